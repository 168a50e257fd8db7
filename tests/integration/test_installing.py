"""What `make` installs, on machines made of a few programs of the test: nothing is installed.

`requirements/install.sh` and the Makefile run as they are, in a folder of their own, and find no
other programs than the test's and some of the system that only read and write texts.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT_PROGRAMS = (
    *("cat", "chmod", "cp", "cut", "dirname", "echo", "env", "head", "make", "rm", "sed", "sh"),
    *("sha256sum", "sort", "xargs"),
)
CLUSTER_PROGRAMS = (
    *("buildah", "cc", "conntrack", "containerd", "debootstrap", "ip", "iptables", "mkfs.xfs"),
    *("openssl", "runc"),
)
NO_RIGHTS = 3
ROOT_ID, USER_ID = 0, 1000


class Machine:
    """A folder with a checkout, whose .venv notes what it is told, and the machine's programs."""

    def __init__(self, folder: Path, user_id: int) -> None:
        self.folder, self.programs, self.calls = folder, folder / "bin", folder / "calls"
        shutil.copytree(ROOT / "requirements", folder / "requirements")
        shutil.copy(ROOT / "Makefile", folder)
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.programs.mkdir()
        for name in TEXT_PROGRAMS:
            found = shutil.which(name)
            assert found is not None, f"needs {name}"
            (self.programs / name).symlink_to(found)
        self.calls.touch()
        self.has("id", f"echo {user_id}")
        for name in ("python", "pip"):
            self._write(folder / ".venv" / "bin" / name, f'echo "{name} $*" >>"{self.calls}"')

    def has(self, program: str, does: str) -> None:
        """Give it a program, as a shell script."""
        self._write(self.programs / program, does)

    def has_java(self, version: int) -> None:
        """Give it a Java."""
        self.has("java", _java(version))

    def looks_for(self, path: str, *, is_there: bool) -> None:
        """Let it have a file, or not, that `install.sh` looks for in a folder of the system."""
        script = self.folder / "requirements" / "install.sh"
        text = script.read_text()
        assert path in text
        found = self.programs / "sh" if is_there else self.folder / "missing"
        script.write_text(text.replace(path, str(found)))

    def knows(self, *packages: str) -> None:
        """Give it apt-cache, whose lists have these packages."""
        self.has("apt-cache", f'case "$2" in {"|".join(packages)}) exit 0 ;; esac\nexit 100')

    def has_packages(self, does: str) -> None:
        """Give it apt-get, that notes how it is called; `does` is what its `install` does."""
        script = f'echo "apt-get $*" >>"{self.calls}"\n[ "$1" = update ] && exit 0\n{does}'
        self.has("apt-get", script)

    def brings_java(self, version: int) -> str:
        """Return what the installation of a Java does."""
        java = self.programs / "java"
        return f"cat >'{java}' <<'END'\n#!/bin/sh\n{_java(version)}\nEND\nchmod +x '{java}'"

    def run(self, *words: str, **more: str) -> tuple[int, str]:
        """Run a command there; return its exit code, and what it says."""
        ran = subprocess.run(
            words,
            cwd=self.folder,
            env={"PATH": str(self.programs), **more},
            check=False,
            capture_output=True,
            text=True,
        )
        return ran.returncode, ran.stdout + ran.stderr

    def install(self, *groups: str, **more: str) -> tuple[int, str]:
        """Run `install.sh`."""
        return self.run("sh", "requirements/install.sh", *groups, **more)

    def called(self, program: str) -> list[str]:
        """Return the arguments of each call of a program, except looks whether it runs."""
        lines = [line.partition(" ") for line in self.calls.read_text().splitlines()]
        return [rest for name, _, rest in lines if name == program and rest.strip() != "-c"]

    @staticmethod
    def _write(path: Path, script: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


def _java(version: int) -> str:
    return f"echo 'openjdk version \"{version}.0.1\" 2025-01-21' >&2"


NewMachine = Callable[[int], Machine]


@pytest.fixture
def machine(tmp_path: Path) -> NewMachine:
    return lambda user_id: Machine(tmp_path, user_id)


def test_a_java_that_spark_can_use_is_left_alone(machine: NewMachine) -> None:
    here = machine(ROOT_ID)
    here.has_packages("exit 1")
    here.has_java(17)
    assert here.install("java") == (0, "")
    assert here.called("apt-get") == []


@pytest.mark.parametrize("before", [None, 11])
def test_the_java_that_the_system_has_is_installed(machine: NewMachine, before: int | None) -> None:
    here = machine(ROOT_ID)
    if before is not None:
        here.has_java(before)
    here.has_packages(here.brings_java(21))
    code, said = here.install("java")
    assert code == 0, said
    update, install = here.called("apt-get")
    assert update.startswith("update ")
    assert install.split()[-1] == "default-jre-headless"
    assert "--no-install-recommends" in install


def test_without_rights_nothing_is_installed_and_the_message_says_what_to_do(
    machine: NewMachine,
) -> None:
    here = machine(USER_ID)
    here.has_packages("exit 1")
    here.has("sudo", "exit 1")  # It would ask for a password.
    code, said = here.install("java")
    assert code == NO_RIGHTS
    assert "Spark wants Java 17 or later, found none" in said
    assert "sudo apt-get install default-jre-headless" in said
    assert here.called("apt-get") == []


def test_a_system_without_apt_is_told_to_install_by_itself(machine: NewMachine) -> None:
    code, said = machine(ROOT_ID).install("java")
    assert code == NO_RIGHTS
    assert "Install your system's package" in said


def test_a_java_that_cannot_be_installed_is_an_error(machine: NewMachine) -> None:
    here = machine(ROOT_ID)
    here.has_packages("echo 'E: no candidate' >&2; exit 100")
    code, said = here.install("java")
    assert code == 1
    assert "E: no candidate" in said
    assert "could not install default-jre-headless" in said


def test_a_system_whose_java_is_too_old_is_an_error(machine: NewMachine) -> None:
    here = machine(ROOT_ID)
    here.has_packages(here.brings_java(11))
    code, said = here.install("java")
    assert code == 1
    assert "this system's default-jre-headless is Java 11" in said


def test_a_java_home_with_an_old_java_is_an_error_and_nothing_is_installed(
    machine: NewMachine, tmp_path: Path
) -> None:
    here = machine(ROOT_ID)
    here.has_packages("exit 1")
    here.has_java(11)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "bin").symlink_to(here.programs)
    code, said = here.install("java", JAVA_HOME=str(tmp_path / "home"))
    assert code == 1
    assert "JAVA_HOME names Java 11" in said
    assert here.called("apt-get") == []


@pytest.mark.parametrize(
    ("user_id", "installing", "is_run"),
    [(ROOT_ID, "exit 100", False), (USER_ID, "exit 100", True)],
    ids=["asked to install and could not", "may not install"],
)
def test_the_demo_fails_where_java_cannot_be_installed_and_runs_where_nothing_may_be(
    machine: NewMachine, user_id: int, installing: str, is_run: bool
) -> None:
    here = machine(user_id)
    here.has_packages(installing)
    code, said = here.run("make", "demo")
    demos = [call for call in here.called("python") if call.startswith("-m demo.")]
    assert demos == (["-m demo.flights", "-m demo.pipeline"] if is_run else [])
    assert (code == 0) is is_run, said


def test_a_cluster_gets_its_programs_and_buildahs_netavark(machine: NewMachine) -> None:
    here = machine(ROOT_ID)
    here.looks_for("/usr/lib/podman/netavark", is_there=False)
    here.looks_for("/usr/lib/cni/ptp", is_there=False)
    here.has_packages("exit 100")
    here.knows("buildah", "netavark")
    here.has("openssl", "")
    code, said = here.install("cluster")
    assert code == 0, "what is missing is told, and the tests that need it are left out"
    assert "could not install" in said
    asked = here.called("apt-get")[-1].split()
    assert {"buildah", "containerd", "netavark", "runc", "xfsprogs"} < {*asked}
    assert "containernetworking-plugins" in asked
    assert "openssl" not in asked, "it is there"


def test_a_cluster_gets_its_programs_where_the_system_has_no_netavark(machine: NewMachine) -> None:
    here = machine(ROOT_ID)
    here.looks_for("/usr/lib/podman/netavark", is_there=False)
    here.has_packages("exit 0")
    here.knows("buildah")
    assert here.install("cluster")[0] == 0
    asked = here.called("apt-get")[-1].split()
    assert {"buildah", "containerd"} < {*asked}
    assert "netavark" not in asked


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        (["buildah", "netavark"], ["update", "install"]),
        (["buildah"], []),
        (["none"], ["update"]),  # There are no lists yet, and netavark is not in those that come.
    ],
)
def test_netavark_alone_is_installed_only_where_the_system_has_it(
    machine: NewMachine, known: list[str], asked: list[str]
) -> None:
    here = machine(ROOT_ID)
    here.looks_for("/usr/lib/podman/netavark", is_there=False)
    for path in ("/usr/lib/cni/ptp", "/usr/include/dlfcn.h"):
        here.looks_for(path, is_there=True)
    for program in CLUSTER_PROGRAMS:
        here.has(program, "")
    here.has_packages("exit 0")
    here.knows(*known)
    assert here.install("cluster")[0] == 0
    calls = [call.split() for call in here.called("apt-get")]
    assert [call[0] for call in calls] == asked
    assert all(call[-1] == "netavark" for call in calls if call[0] == "install")


def test_requirements_are_installed_by_their_hashes_with_the_locked_back_end(
    machine: NewMachine,
) -> None:
    here = machine(USER_ID)
    assert here.install("demo")[0] == 0
    (pip,) = [call for call in here.called("python") if call.startswith("-m pip ")]
    words = pip.split()
    assert {"--require-hashes", "--no-build-isolation", "--use-pep517"} < {*words}
    assert words[-2:] == ["-r", "requirements/demo.txt"]
    assert here.install("demo") == (0, ""), "its stamp says that it is there"
    assert len([call for call in here.called("python") if "pip" in call]) == 1
