"""Pauses grow with what was in vain."""

import pytest

from millrace.core.pauses import doubled_pause, pause_after


@pytest.mark.parametrize(
    ("in_vain_ms", "pause_ms"),
    [(0, 100), (999, 100), (1_010, 101), (9_990, 999), (10_000, 1_000), (86_400_000, 1_000)],
)
def test_a_pause_is_a_part_of_what_was_in_vain_within_its_bounds(
    in_vain_ms: int, pause_ms: int
) -> None:
    assert pause_after(in_vain_ms, 100, 1_000, fraction=10) == pause_ms
    assert pause_after(in_vain_ms // 5, 100, 1_000, fraction=2) == pause_ms


def test_a_pause_doubles_with_each_failure_up_to_its_bound() -> None:
    assert [doubled_pause(failures, 100, 1_000) for failures in (1, 2, 3, 4, 5, 10**9)] == [
        100,
        200,
        400,
        800,
        1_000,
        1_000,
    ]
