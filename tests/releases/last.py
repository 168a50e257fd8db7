"""The last release: its wire, the names of its settings, and its code, which tests run brokers of.

`make release` writes them. The code is what the wheel of the release holds, packed tighter: so a
broker of before is there in every clone, also in a shallow one without tags.
"""

import os
import sys
import sysconfig
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "tests" / "data" / "last_release"
WIRE: Final = FOLDER / "wire.json"
SETTINGS: Final = FOLDER / "settings.json"
_NAME: Final = "millrace-"
_KIND: Final = ".tar.xz"


@dataclass(frozen=True, slots=True)
class Release:
    """The code of a release, in a folder."""

    version: str
    folder: Path

    @property
    def python(self) -> list[str]:
        """The command of a Python that imports this code, and this environment's dependencies.

        Without `-S` it would also see this checkout, which the environment installs by a `.pth`.
        """
        return [sys.executable, "-S", "-P"]

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that it needs."""
        return {"PYTHONPATH": os.pathsep.join([str(self.folder), sysconfig.get_path("purelib")])}


def unpacked(folder: Path) -> Release:
    """Return the last release, its code unpacked into a folder."""
    (archive,) = _archives()
    unpack(archive, folder)
    return Release(archive.name.removeprefix(_NAME).removesuffix(_KIND), folder)


def keep_code(version: str, code: Path) -> None:
    """Make a release, whose code a folder has, the last one."""
    for archive in _archives():
        archive.unlink()
    pack(code, FOLDER / f"{_NAME}{version}{_KIND}")


def _archives() -> list[Path]:
    return list(FOLDER.glob(f"{_NAME}*{_KIND}"))


def pack(folder: Path, archive: Path) -> None:
    """Write an archive of the files in a folder: the same bytes for the same files."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                member = tarfile.TarInfo(path.relative_to(folder).as_posix())
                member.size = path.stat().st_size
                with path.open("rb") as content:
                    packed.addfile(member, content)


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of an archive into a folder."""
    with tarfile.open(archive) as packed:
        for member in packed:
            content = packed.extractfile(member)
            assert content is not None
            path = folder / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.read())
