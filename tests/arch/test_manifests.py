"""What is made from the chart is what the chart gives now."""

from pathlib import Path

import pytest
from charts.generate import EXPECTED, KUSTOMIZE, SPARK_JOBS, files
from e2e import programs


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
