"""The dashboards are what their code makes now."""

from pathlib import Path

import pytest
from dashboards.board import Board
from dashboards.generate import BOARDS, files
from tests.arch.repository import ROOT

MADE = files()
PICTURE_BYTES_MAX = 300_000


@pytest.mark.parametrize("path", MADE, ids=lambda path: path.name)
def test_what_is_checked_in_is_what_make_dashboards_writes(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == MADE[path], "run: make dashboards"


def test_no_file_is_left_of_a_dashboard_that_is_gone() -> None:
    folder = ROOT / "dashboards"
    kept = {*folder.glob("json/*"), *folder.glob("rules/*")}
    assert kept == set(MADE), "remove what make dashboards does not write any more"


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_the_documents_show_a_picture_of_each_dashboard(board: Board) -> None:
    name = f"pictures/dashboard-{board.uid.removeprefix('millrace-')}.png"
    assert f"({name})" in (ROOT / "docs" / "watching.md").read_text(), "embed the picture"
    size = (ROOT / "docs" / name).stat().st_size
    assert 10_000 < size < PICTURE_BYTES_MAX, "run: make pictures"
