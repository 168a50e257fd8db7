"""The dashboards are what their code makes now."""

from pathlib import Path

import pytest
from dashboards.generate import files
from tests.arch.repository import ROOT

MADE = files()


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_what_is_checked_in_is_what_make_dashboards_writes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path], "run: make dashboards"


def test_no_file_is_left_of_a_dashboard_that_is_gone() -> None:
    folder = ROOT / "dashboards"
    kept = {*folder.glob("json/*"), *folder.glob("rules/*")}
    assert kept == set(MADE), "remove what make dashboards does not write any more"
