"""The lock files: what is installed for whom, with its hashes and its licence."""

import re
import tomllib
from pathlib import Path
from typing import Final, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.releases.last import ROOT

FOLDER: Final = ROOT / "requirements"
LOCKS: Final = sorted(FOLDER.glob("*.txt"))
SHIPPED: Final = ("runtime", "operator", "spark")
"""Groups that users install; the others are for work on Millrace."""
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


class Locked(NamedTuple):
    """One pin.

    Attributes:
        requirement: with its version, and a marker where it is not for every platform.
        hashes: SHA-256 of each file that may be installed.
    """

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Its name in canonical form."""
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        """What is pinned."""
        return next(iter(self.requirement.specifier)).version


def locked(lock: Path) -> list[Locked]:
    """Return the pins of a lock file."""
    lines = [line for line in lock.read_text().splitlines() if not line.lstrip().startswith("#")]
    entries = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [
        Locked(Requirement(entry.partition(" --hash=")[0]), tuple(_HASH.findall(entry)))
        for entry in entries
    ]


def lock_of(group: str) -> Path:
    """Return the lock file of a group."""
    return FOLDER / f"{group}.txt"


class Licences(NamedTuple):
    """What requirements/licences.toml says.

    Attributes:
        allowed: SPDX ids of licences that packages may have which users install.
        allowed_for_work: further ones that packages may have which only developers install.
        packages: the expression of each package, by its canonical name.
    """

    allowed: frozenset[str]
    allowed_for_work: frozenset[str]
    packages: dict[str, str]


def licences() -> Licences:
    """Read the licences of all packages."""
    said = tomllib.loads((FOLDER / "licences.toml").read_text())
    return Licences(
        frozenset(said["allowed"]), frozenset(said["allowed_for_work"]), said["packages"]
    )
