"""The version is everywhere the same, and what is made from the chart is what it gives now."""

import re
from pathlib import Path

import pytest
from charts.generate import EXPECTED, KUSTOMIZE, SPARK_JOBS, VERSION, files, versioned
from e2e import programs
from tests.arch.repository import ROOT


def test_charts_manifests_and_documents_name_the_version_of_pyproject() -> None:
    different = [str(path) for path, made in versioned().items() if path.read_text() != made]
    assert different == [], "run: make manifests"


def test_the_newest_release_of_the_changelog_is_the_version_of_pyproject() -> None:
    headings = re.findall(r"^## \[(.*?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[:2] == ["Unreleased", VERSION]


@pytest.fixture(scope="module")
def made() -> dict[Path, str]:
    if not programs.HELM.are_built():
        pytest.skip("helm is not built yet: make manifests; make test does it")
    return files()


@pytest.mark.parametrize(
    "path",
    [
        KUSTOMIZE / "operator.yaml",
        EXPECTED / "all.yaml",
        EXPECTED / "default.yaml",
        *sorted(SPARK_JOBS.glob("*/job.yaml")),
    ],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_what_is_checked_in_is_what_make_manifests_writes(
    path: Path, made: dict[Path, str]
) -> None:
    assert path.read_text() == made[path], "run: make manifests"
