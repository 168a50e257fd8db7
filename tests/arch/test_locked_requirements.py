"""Every dependency is locked with its hashes, and nothing says where packages come from."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.arch.repository import ROOT, files
from tests.releases.lock_files import LOCKS, locked

# A host that serves packages, or an option that names one; and folders that only one machine has.
FOREIGN = re.compile(
    r"https?://[a-z0-9.-]*(?:pypi|pythonhosted|npmjs|maven|crates)"
    r"|index[-_]url\b|trusted[-_]host|find[-_]links"
    r"|(?<![\w.-])/(?:root|work|home/\w+|Users/\w+)/",
    re.IGNORECASE,
)


def declared() -> dict[str, list[Requirement]]:
    """What pyproject.toml asks for, by the name of its lock file."""
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = {"runtime": pyproject["project"]["dependencies"], **pyproject["dependency-groups"]}
    return {name: [Requirement(line) for line in lines] for name, lines in groups.items()}


def test_every_group_has_a_lock_file_and_the_other_way_round() -> None:
    assert {lock.stem for lock in LOCKS} == declared().keys()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_file_pins_and_hashes_every_requirement(lock: Path) -> None:
    requirements = locked(lock)
    assert requirements
    for requirement, hashes in requirements:
        assert [pin.operator for pin in requirement.specifier] == ["=="], requirement
        assert hashes, requirement


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_file_holds_what_pyproject_asks_for(lock: Path) -> None:
    pins: dict[str, list[str]] = {}
    for requirement, _ in locked(lock):
        version = next(iter(requirement.specifier)).version
        pins.setdefault(canonicalize_name(requirement.name), []).append(version)
    for requirement in declared()[lock.stem]:
        versions = pins.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement} is not locked: run `make lock`"
        assert all(requirement.specifier.contains(version) for version in versions), requirement


def test_the_lock_files_agree_on_every_version() -> None:
    """Groups are installed into one environment, so that a second one would undo the first."""
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        for requirement, _ in locked(lock):
            versions.setdefault(f"{requirement.name};{requirement.marker}", set()).add(
                str(requirement.specifier)
            )
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}


def test_no_file_names_a_package_registry_or_a_folder_of_one_machine() -> None:
    found = []
    for path in files():
        try:
            text = (ROOT / path).read_text()
        except UnicodeDecodeError:  # A golden vector, a picture.
            continue
        found += [f"{path}: {match.group()}" for match in FOREIGN.finditer(text)]
    assert found == []
