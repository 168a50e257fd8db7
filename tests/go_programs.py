"""Programs that tests need and that are written in Go: built once, and kept in the user's cache.

Where they are kept is named by their content, so that a change of it builds them again, and every
checkout and branch finds its own. They are built by the `go` of the PATH or, where there is none or
an old one, by that of `requirements/go.txt`, installed beside this Python. Modules come by Go's own
settings, and are held against the hashes of the module's `go.sum`.
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

INSTALL = Path(__file__).resolve().parents[1] / "requirements" / "install.sh"

_SETTINGS = {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}


@dataclass(frozen=True, kw_only=True)
class GoPrograms:
    """Programs that are built together.

    Args:
        name: what to call the folder that they are kept in.
        about: what they are, for people.
        source: the folder with `go.mod`.
        names: of the programs, which are files of that folder.
        build_in: is called with a Go that is new enough, an empty folder for whatever it likes, and
            the folder where the programs have to be afterwards.
        others: other files that they are made from.
        made_with: what else they are made from, as text.
    """

    name: str
    about: str
    source: Path
    names: Sequence[str]
    build_in: Callable[[str, Path, Path], None]
    others: Sequence[Path] = ()
    made_with: str = ""

    def folder(self) -> Path:
        """Return where the programs are, or will be."""
        digest = hashlib.sha256(f"{platform.machine()}{self.made_with}".encode())
        for path in [*sorted(self.source.rglob("*")), *self.others]:
            if path.is_file():
                digest.update(path.read_bytes())
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "millrace" / f"{self.name}-{digest.hexdigest()[:12]}"

    def are_built(self) -> bool:
        """Whether the programs are there."""
        return all((self.folder() / name).is_file() for name in self.names)

    def build(self) -> None:
        """Build the programs; does nothing when they are there."""
        destination = self.folder()
        destination.parent.mkdir(parents=True, exist_ok=True)
        with destination.with_name(f"{destination.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Another test run may be at it.
            if not self.are_built():
                with tempfile.TemporaryDirectory(dir=destination.parent) as made:
                    scratch, programs = Path(made, "scratch"), Path(made, "bin")
                    scratch.mkdir()
                    self.build_in(_go(self.source), scratch, programs)
                    programs.rename(destination)

    def main(self) -> None:
        """Build, and say how long it took."""

        def say(text: str) -> None:
            sys.stderr.write(f"millrace: {text}\n")

        begun = time.monotonic()
        if not self.are_built():
            say(f"building {self.about}, once, in {self.folder()}")
            self.build()
            say(f"built in {time.monotonic() - begun:.0f} s")


def run_go(go: str, *arguments: str, folder: Path) -> None:
    """Run a command of Go's in a folder, with the Go that it is and no other.

    Raises:
        subprocess.CalledProcessError: it failed; what it wrote went to standard error.
    """
    subprocess.run([go, *arguments], cwd=folder, check=True, env=os.environ | _SETTINGS)


def asked_of_go(go: str, *arguments: str, folder: Path) -> str:
    """Run a command of Go's likewise, and return what it prints.

    Raises:
        subprocess.CalledProcessError: as above.
    """
    return subprocess.run(
        [go, *arguments],
        cwd=folder,
        check=True,
        env=os.environ | _SETTINGS,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()


def _go(source: Path) -> str:
    """Return a Go that is new enough, after fetching one if need be."""
    wanted = re.search(r"^go (\d+)\.(\d+)", (source / "go.mod").read_text(), re.MULTILINE)
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
