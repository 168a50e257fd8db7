"""What is made from the chart is what the chart gives now."""

from pathlib import Path

import pytest
from charts.generate import EXPECTED, KUSTOMIZE, files
from e2e import programs


@pytest.mark.parametrize(
    "path",
    [KUSTOMIZE / "operator.yaml", EXPECTED / "all.yaml", EXPECTED / "default.yaml"],
    ids=lambda path: path.name,
)
def test_what_is_checked_in_is_what_make_manifests_writes(path: Path) -> None:
    if not programs.HELM.are_built():
        pytest.skip("helm is not built yet: make manifests; make test does it")
    assert path.read_text() == files()[path], "run: make manifests"
