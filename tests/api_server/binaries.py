"""A real kube-apiserver and etcd, built once from their Go modules and kept in the user's cache.

    python -m tests.api_server.binaries

builds them where they are not there yet. It takes the `go` of the PATH or, where there is none or
an old one, that of `requirements/go.txt`, installed beside this Python. Modules come by Go's own
settings, and are held against the hashes of `go/go.sum`.
"""

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).with_name("go")
INSTALL = Path(__file__).resolve().parents[2] / "requirements" / "install.sh"

_PROGRAMS = ("etcd", "kube-apiserver")


def version() -> str:
    """Return which Kubernetes it is."""
    found = re.search(r"k8s\.io/kubernetes v(\S+)", (SOURCE / "go.mod").read_text())
    assert found is not None
    return found[1]


def folder() -> Path:
    """Return where the programs are, or will be."""
    digest = hashlib.sha256(platform.machine().encode())
    for path in sorted(SOURCE.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "millrace" / f"kubernetes-{version()}-{digest.hexdigest()[:12]}"


def are_built() -> bool:
    """Whether the programs are there."""
    return all((folder() / program).is_file() for program in _PROGRAMS)


def build() -> None:
    """Build the programs; does nothing when they are there."""
    destination = folder()
    destination.parent.mkdir(parents=True, exist_ok=True)
    with destination.with_name(f"{destination.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Another test run may be at it.
        if not are_built():
            with tempfile.TemporaryDirectory(dir=destination.parent) as made:
                _build_in(Path(made, "bin"))
                Path(made, "bin").rename(destination)


def _build_in(destination: Path) -> None:
    major, minor, _ = version().split(".")
    settings = {"gitVersion": f"v{version()}", "gitMajor": major, "gitMinor": minor}
    flags = " ".join(
        f"-X k8s.io/component-base/version.{name}={value}" for name, value in settings.items()
    )
    subprocess.run(
        [
            *(_go(), "build", "-trimpath", "-ldflags", f"-s -w {flags}", "-o", f"{destination}/"),
            *("./etcd", "k8s.io/kubernetes/cmd/kube-apiserver"),
        ],
        cwd=SOURCE,
        check=True,
        env=os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local"},
    )


def _go() -> str:
    """Return a Go that is new enough, after fetching one if need be."""
    wanted = re.search(r"^go (\d+)\.(\d+)", (SOURCE / "go.mod").read_text(), re.MULTILINE)
    assert wanted is not None
    beside_python = Path(sys.executable).with_name("go")
    if not beside_python.exists():
        on_path = shutil.which("go")
        if on_path is not None and _version_of(on_path) >= tuple(map(int, wanted.groups())):
            return on_path
        subprocess.run(["sh", str(INSTALL), "go"], check=True)
    return str(beside_python)


def _version_of(go: str) -> tuple[int, ...]:
    said = subprocess.run([go, "env", "GOVERSION"], check=True, capture_output=True, text=True)
    found = re.match(r"go(\d+)\.(\d+)", said.stdout)
    return tuple(map(int, found.groups())) if found else (0, 0)


def main() -> None:
    """Build, and say how long it took."""

    def say(text: str) -> None:
        sys.stderr.write(f"millrace: {text}\n")

    begun = time.monotonic()
    if not are_built():
        say(f"building kube-apiserver {version()} and etcd in {folder()}, once: some minutes")
        build()
        say(f"built in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
