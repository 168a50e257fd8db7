"""Tests that run by day only when what they are about has changed; else they are `nightly`.

Tests of the tests' own tools, and of parts that few changes touch, tell nothing new about a tree in
which those parts are as they were. Changes count since main, or since the last release where this
is main itself, and the working tree's count, too. Where git cannot say (no git, a shallow clone, no
earlier release), all tests run. `-m ''`, `-m nightly`, and their file or folder on the command line
run them in any case.
"""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import pytest

BY_DAY: Final = "not nightly"
"""The expression of marks that `pyproject.toml` sets: tests by day."""

ABOUT: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        "tests/integration/demo": ("demo",),
        "tests/integration/kubernetes/test_bad_resources.py": (
            *("crds", "operator", "runtime", "tests/bad_resources"),
        ),
        "tests/integration/kubernetes/test_chart.py": (
            *("charts", "crds", "dashboards", "operator", "tests/data/chart"),
        ),
        "tests/integration/kubernetes/test_spark_job_chart.py": ("charts", "spark-on-k8s"),
        "tests/integration/web/test_browser.py": ("runtime", "tests/integration/web", "web"),
        "tests/sim/test_clocks.py": ("tests/sim",),
        "tests/sim/test_coordination.py": ("tests/sim",),
        "tests/sim/test_disk.py": ("tests/sim", "tests/fakes"),
        # A mutant names the source of the product that it changes.
        "tests/sim/test_mutants.py": ("broker", "client", "core", "runtime", "tests/sim"),
        "tests/sim/test_runs.py": ("tests/sim",),
        "tests/sim/test_threads.py": ("tests/sim",),
        "tests/sim/test_world.py": ("tests/sim",),
        "tests/unit/bench": ("bench",),
        "tests/unit/checkers": ("tests/checkers", "tests/fakes"),
        "tests/unit/demo": ("demo",),
        "tests/unit/e2e": ("e2e", "tests/faults"),
    }
)
"""Files and folders of tests, and the folders that they are about."""

ABOUT_ALL: Final = ("pyproject.toml", "requirements", "tests/changes.py", "tests/conftest.py")
"""What every test depends on."""


@dataclass(frozen=True)
class Changes:
    """The paths that differ from a commit."""

    since: str
    paths: frozenset[str]

    def touch(self, folders: Sequence[str]) -> bool:
        """Whether one of these files or folders has changed."""
        return any(is_in(path, folder) for path in self.paths for folder in folders)


def is_in(path: str, folder: str) -> bool:
    """Whether a path is this file, or in this folder."""
    return path == folder or path.startswith(f"{folder}/")


def changes(root: Path) -> Changes | None:
    """Return what has changed in a checkout since main or the last release; None: unknown."""

    def git(*arguments: str) -> str:
        command = ("git", "-C", str(root), *arguments)
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        if git("rev-parse", "--is-shallow-repository") == "true":
            return None
        head = git("rev-parse", "HEAD")
        since = "main"
        try:
            base = git("merge-base", "HEAD", "origin/main")
        except subprocess.CalledProcessError:
            base = head
        if base == head:
            since = "the last release"
            base = git("log", "-1", "--format=%H", "-G^version = ", "HEAD~", "--", "pyproject.toml")
        changed = git("diff", "--name-only", "--no-renames", base)
        new = git("ls-files", "--others", "--exclude-standard")
    except (OSError, subprocess.CalledProcessError):
        return None
    if not base:
        return None
    return Changes(f"{since} ({base[:8]})", frozenset(f"{changed}\n{new}".split("\n")) - {""})


class ByChanges:
    """Marks tests as nightly whose folders have not changed, and says which in one line."""

    def __init__(
        self, config: pytest.Config, root: Path, about: Mapping[str, Sequence[str]] = ABOUT
    ) -> None:
        self._config, self._root, self._about = config, root, about
        found = changes(root)
        self._since = "" if found is None else found.since
        self._unchanged = {
            tests
            for tests, folders in about.items()
            if found is not None and not found.touch((tests, *folders, *ABOUT_ALL))
        }

    @property
    def _nightly(self) -> list[str]:
        """The tests of the table that this run treats as nightly."""
        if self._config.option.markexpr != BY_DAY:
            return sorted(self._about)
        named = [self._name(argument.partition("::")[0]) for argument in self._config.args]
        return sorted(
            tests for tests in self._unchanged if not any(is_in(path, tests) for path in named)
        )

    def _name(self, path: str | Path) -> str:
        """Return a path as the table names it."""
        return os.path.relpath(path, self._root)

    def pytest_report_header(self) -> str | None:
        """Return the line."""
        if self._config.option.markexpr != BY_DAY or not self._nightly:
            return None
        return f"left for the night, unchanged since {self._since}: {', '.join(self._nightly)}"

    @pytest.hookimpl(tryfirst=True)  # Before marks are looked at.
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Mark them."""
        nightly = self._nightly
        for item in items:
            if any(is_in(self._name(item.path), tests) for tests in nightly):
                item.add_marker(pytest.mark.nightly)
