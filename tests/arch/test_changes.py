"""Tests whose folders are unchanged are left for the night: `tests/changes.py`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.arch.repository import ROOT
from tests.changes import ABOUT, ABOUT_ALL, changes

CONFTEST = """\
from pathlib import Path
from tests.changes import ByChanges

def pytest_configure(config):
    about = {"tests/test_toys.py": ("toys",), "tests/bikes": ("bikes",)}
    config.pluginmanager.register(ByChanges(config, Path(__file__).parents[1], about))
"""
CONFIGURATION = """\
version = "0.1.0"
[tool.pytest.ini_options]
addopts = ["-m", "not nightly", "-p", "no:cacheprovider"]
markers = ["nightly: as ours"]
"""


class Repository:
    """A small git repository with tests, as a clone has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "--quiet", "--initial-branch=work")
        self.write("pyproject.toml", CONFIGURATION)
        self.commit("the release")
        self.write("tests/conftest.py", CONFTEST)
        for name in ("test_toys.py", "bikes/test_bikes.py", "test_all.py"):
            self.write(f"tests/{name}", f"def {Path(name).stem}(): pass\n")
        self.write("toys/doll.py", "")
        self.write("bikes/wheel.py", "")
        self.commit("toys and bikes")

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=self.folder, check=True, capture_output=True)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def commit(self, subject: str) -> None:
        self.git("add", ".")
        self.git("commit", "--quiet", "--allow-empty", "-m", subject)

    def on_main(self) -> None:
        """Make what is committed main, as fetched."""
        self.git("update-ref", "refs/remotes/origin/main", "HEAD")

    def changed(self) -> set[str]:
        found = changes(self.folder)
        assert found is not None
        return set(found.paths)

    def ran(self, *arguments: str) -> tuple[set[str], str]:
        """Return the tests that pytest runs, and the line about those left out."""
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "--verbose", *arguments],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        lines = done.stdout.splitlines()
        passed = {line.split()[0].rpartition("::")[2] for line in lines if " PASSED " in line}
        return passed, "".join(line for line in lines if line.startswith("left for the night"))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_everything_in_the_table_is_there() -> None:
    named = {*ABOUT, *(folder for folders in ABOUT.values() for folder in folders), *ABOUT_ALL}
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_tests_of_unchanged_folders_are_left_for_the_night(repository: Repository) -> None:
    repository.on_main()
    repository.write("toys/doll.py", "arms = 2\n")
    repository.commit("arms")
    ran, said = repository.ran("tests")
    assert ran == {"test_toys", "test_all"}
    assert said.startswith("left for the night, unchanged since main (")
    assert said.endswith("): tests/bikes")
    assert repository.ran("tests/bikes")[0] == {"test_bikes"}
    assert repository.ran("tests/bikes/test_bikes.py::test_bikes")[0] == {"test_bikes"}
    assert repository.ran("-m", "nightly")[0] == {"test_toys", "test_bikes"}
    assert repository.ran("-m", "") == ({"test_toys", "test_bikes", "test_all"}, "")


def test_the_working_tree_counts(repository: Repository) -> None:
    repository.on_main()
    repository.commit("nothing")
    repository.write("toys/doll.py", "arms = 2\n")
    repository.write("bikes/bell.py", "")
    assert repository.changed() == {"toys/doll.py", "bikes/bell.py"}


def test_both_names_of_a_moved_file_count(repository: Repository) -> None:
    repository.on_main()
    repository.git("mv", "toys/doll.py", "bikes/doll.py")
    repository.commit("a doll on a bike")
    assert repository.changed() == {"toys/doll.py", "bikes/doll.py"}


def test_main_itself_is_compared_with_the_last_release(repository: Repository) -> None:
    repository.write("pyproject.toml", CONFIGURATION.replace("0.1.0", "0.2.0"))
    repository.commit("the second release")
    repository.write("toys/doll.py", "arms = 2\n")
    repository.commit("arms")
    repository.on_main()
    found = changes(repository.folder)
    assert found is not None
    assert found.since.startswith("the last release (")
    assert found.paths == {"toys/doll.py"}


def test_a_release_is_compared_with_the_one_before_it(repository: Repository) -> None:
    repository.write("pyproject.toml", CONFIGURATION.replace("0.1.0", "0.2.0"))
    repository.commit("the second release")
    repository.on_main()
    assert {"toys/doll.py", "bikes/wheel.py"} <= repository.changed()


def test_without_main_or_an_earlier_release_all_tests_run(
    repository: Repository, tmp_path_factory: pytest.TempPathFactory
) -> None:
    shallow = tmp_path_factory.mktemp("shallow")
    source = f"file://{repository.folder}"
    repository.git("clone", "--quiet", "--depth=1", source, str(shallow))
    assert changes(shallow) is None
    assert changes(tmp_path_factory.mktemp("no repository")) is None
    repository.git("checkout", "--quiet", "HEAD~")
    assert changes(repository.folder) is None
