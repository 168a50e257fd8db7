#!/bin/sh
# install.sh GROUP...: makes .venv hold the locked requirements of each group, and this checkout itself.
# Seven groups are not of Python: `java` sees that the system has a Java that Spark can use, `faults` that it has what
# the tests break real brokers with, `cluster` that it has what a Kubernetes of our own is made with, `prometheus` that
# it has Prometheus, `suites` that it has what others' tests of Kafka's protocol are built with, `browser` that it has a
# browser to open the web page in, `node` that it has Node.js and npm.
#
# Every make target that needs something calls it. A group's stamp carries the hash of all that was installed
# for it, so that a second call costs a few milliseconds and a changed lock file is noticed after any `git pull`.
# PYTHON=... chooses the interpreter when .venv is made.
set -eu
cd "$(dirname "$0")/.."
venv=.venv

NO_RIGHTS=3 # The exit code where something is missing and nothing may be installed here.

say() { echo "millrace: $*" >&2; }
fail() { say "$*"; exit 1; }

# Two targets at once (make -j, two terminals) must not install into one .venv.
if command -v flock >/dev/null 2>&1; then
    exec 9>.venv.lock
    flock 9
fi

find_python() {
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    found=$("${PYTHON:-python3}" --version 2>/dev/null) || found="no ${PYTHON:-python3}"
    fail "needs Python 3.11 or later, found $found." \
        "Install one (Debian 12, Ubuntu 24.04: apt-get install python3 python3-venv), or name it: make PYTHON=/path/to/python3.12 ..."
}

# has_package NAME: whether the lists of the system's package manager have it.
has_package() { apt-cache show "$1" >/dev/null 2>&1; }

# install_packages PACKAGES WHY [OPTIONAL]: from the system's package manager, where its rights allow that; else exits with
# $NO_RIGHTS. One name that the system does not know, and apt-get installs nothing: OPTIONAL is one that not every system has.
install_packages() {
    if ! command -v apt-get >/dev/null 2>&1; then
        say "$2. Install your system's package of it, then try again."
        exit $NO_RIGHTS
    elif [ "$(id -u)" = 0 ]; then
        sudo=
    elif sudo -n true 2>/dev/null; then
        sudo=sudo
    else
        say "$2. Install what is missing, then try again: sudo apt-get install $1"
        exit $NO_RIGHTS
    fi
    $sudo apt-get update -qq >/dev/null
    names=$1
    [ -n "${3:-}" ] && has_package "$3" && names="${1:+$1 }$3"
    [ -z "$names" ] && return
    say "installing from the system's packages: $names"
    # shellcheck disable=SC2086  # A list of names without spaces.
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $names >/dev/null ||
        fail "could not install $names. Install it yourself, then try again: sudo apt-get install $names"
}

# Debian keeps what `python -m venv` needs in a package of its own.
ensure_venv_module() {
    "$1" -c 'import ensurepip' 2>/dev/null && return
    package=$("$1" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    install_packages "$package" "$1 has no ensurepip, so it cannot make a virtual environment"
}

java_version() {
    "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -n 1
}

# Spark wants Java 17 or later. Each Debian has one of them, under another number: default-jre-headless is the one that is there.
ensure_java() {
    version=$(java_version)
    [ "${version:-0}" -ge 17 ] && return
    [ -n "${JAVA_HOME:-}" ] && fail "JAVA_HOME names Java ${version:-none}, and Spark wants 17 or later: correct it, or unset it."
    install_packages default-jre-headless "Spark wants Java 17 or later, found ${version:-none}"
    version=$(java_version)
    [ "${version:-0}" -ge 17 ] || fail "this system's default-jre-headless is Java ${version:-none}, and Spark wants 17 or later." \
        "Install a later one, and name its folder in JAVA_HOME."
}

# list_missing PROGRAM:PACKAGE...: the packages of the programs that are not there.
list_missing() {
    for pair in "$@"; do
        command -v "${pair%%:*}" >/dev/null 2>&1 || echo "${pair#*:}"
    done
    [ -e /usr/include/dlfcn.h ] || echo libc6-dev
}

# Only root can break disks and networks, and the tests leave out, with the reason, what a machine cannot do. So
# nothing fails here.
ensure_fault_tools() {
    [ "$(id -u)" = 0 ] || return 0
    missing=$(list_missing ip:iproute2 tc:iproute2 ss:iproute2 mkfs.ext4:e2fsprogs cc:gcc | sort -u | xargs)
    [ -z "$missing" ] && return
    (install_packages "$missing" "no $missing: some tests are left out") || true
}

# A cluster out of its parts takes root; without it, and where Docker or another cluster serves, none of this is needed.
ensure_cluster_tools() {
    [ "$(id -u)" = 0 ] || return 0
    missing=$(list_missing containerd:containerd runc:runc iptables:iptables conntrack:conntrack ip:iproute2 \
        mkfs.xfs:xfsprogs debootstrap:debootstrap buildah:buildah openssl:openssl cc:gcc | sort -u | xargs)
    [ -x /usr/lib/cni/ptp ] || missing="$missing containernetworking-plugins"
    # Debian 13's buildah does not start without netavark, which its package only recommends. Some systems have no
    # such package.
    optional=netavark
    [ -x /usr/lib/podman/netavark ] && optional=
    # The lists know buildah and not netavark: to renew them each time would change nothing.
    [ -z "$missing" ] && has_package buildah && ! has_package netavark && optional=
    [ -z "$missing$optional" ] && return
    (install_packages "$missing" "no ${missing:-$optional}: no cluster without them" "$optional") || true
}

# Tests of the web page are left out without one. As root a browser is installed for them, and else that is said.
ensure_browser() {
    for program in chromium chromium-browser google-chrome; do
        command -v "$program" >/dev/null 2>&1 && return
    done
    (install_packages "chromium fonts-dejavu-core" "no chromium: tests of the web page in a browser are left out") || true
}

# Only `make pictures` needs them: Grafana's components, which draw the dashboards, are packages of npm.
ensure_node() {
    command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 && return
    install_packages "nodejs npm" "no Node.js with npm: the dashboards cannot be drawn"
}

# Prometheus and its promtool, for the tests of metrics, dashboards and alerts, which are left out without it. Debian's
# package starts a server, which nothing here needs.
ensure_prometheus() {
    command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1 && return
    [ "$(id -u)" = 0 ] || return 0
    (install_packages prometheus "no prometheus: some tests are left out") || return 0
    systemctl disable --now --quiet prometheus >/dev/null 2>&1 || true
}

# Tests of Kafka's clients: kcat, what librdkafka and its tests are built with, and a compiler for checks in Java.
ensure_suite_tools() {
    [ "$(id -u)" = 0 ] || return 0
    missing=$(list_missing kcat:kcat cmake:cmake make:make cc:gcc c++:g++ cargo:cargo javac:default-jdk-headless | sort -u | xargs)
    [ -e /usr/include/openssl/ssl.h ] || missing="$missing libssl-dev"
    [ -e /usr/include/zlib.h ] || missing="$missing zlib1g-dev"
    [ -z "$missing" ] && return
    (install_packages "$missing" "no $missing: some suites are left out") || true
}

pip_install() {
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input --quiet install "$@" >&2
}

install_group() {
    case $1 in
        java) ensure_java; return ;;
        faults) ensure_fault_tools; return ;;
        cluster) ensure_cluster_tools; return ;;
        browser) ensure_browser; return ;;
        node) ensure_node; return ;;
        prometheus) ensure_prometheus; return ;;
        suites) ensure_suite_tools; return ;;
        # The checkout is installed editable with the locked build back end, so it has to be there first.
        runtime) files="requirements/build.txt requirements/runtime.txt" inputs=pyproject.toml ;;
        *) files="requirements/$1.txt" inputs= ;;
    esac
    # shellcheck disable=SC2086  # Lists of file names without spaces.
    stamp="$venv/.installed-$1-$(cat $files $inputs | sha256sum | cut -c1-16)"
    [ -e "$stamp" ] && return
    say "installing $files"
    for file in $files; do
        # Without isolation a source distribution is built with the locked back end, not with the newest one; by PEP 517, as
        # pip 25.3 and later know no other way.
        pip_install --require-hashes --no-build-isolation --use-pep517 -r "$file"
    done
    [ "$1" = runtime ] && pip_install --no-deps --no-build-isolation --editable .
    rm -f "$venv/.installed-$1-"*
    : >"$stamp"
}

if ! "$venv/bin/python" -c '' 2>/dev/null || ! [ -x "$venv/bin/pip" ]; then # Missing, half made, or its Python has gone.
    python=$(find_python)
    ensure_venv_module "$python"
    say "making $venv with $("$python" --version)"
    "$python" -m venv --clear "$venv"
fi
for group in "$@"; do
    install_group "$group"
done
