"""Which segment moves from the SSD to the HDD next, and which comes back."""

from dataclasses import dataclass

import pytest

from millrace.core.ids import NO_TIMESTAMP, Offset, WallMs
from millrace.core.replica.tiers import (
    LocalRetention,
    Movable,
    first_to_move,
    last_in_tier,
    movable,
)

NOW = WallMs(1_000_000)


@dataclass
class Segment:
    """Ten offsets and 100 bytes; closed, unless it is the last one."""

    base_offset: Offset
    largest_timestamp: WallMs
    closed_at: WallMs
    size: int = 100

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + 10)

    def closing_time(self, now: WallMs) -> WallMs:
        return min(self.closed_at, now)


def segments(*newest: int) -> list[Segment]:
    """Return segments whose newest records are of these times, closed at the same, and an active
    one."""
    closed = [
        Segment(Offset(10 * number), WallMs(at), WallMs(max(at, 0)))
        for number, at in enumerate(newest)
    ]
    return [*closed, Segment(Offset(10 * len(newest)), NOW, NO_TIMESTAMP)]


def due(
    there: list[Segment],
    retention: LocalRetention,
    *,
    tier_end: int = 0,
    high_watermark: int = 1000,
    now: WallMs = NOW,
) -> tuple[int, bool] | None:
    found = movable(there, Offset(tier_end), retention, Offset(high_watermark), now)
    return None if found is None else (found.base_offset, found.is_due)


def test_the_oldest_segment_at_home_goes_first_by_its_age() -> None:
    there = segments(900_000, 950_000)
    day = LocalRetention(ms=60_000)
    assert due(there, day) == (0, True)
    assert due(there, day, tier_end=10) == (10, False)
    assert due(there, day, tier_end=10, now=WallMs(NOW + 20_000)) == (10, True)
    assert due(there, day, tier_end=20) is None  # Only the active one is left.
    assert due(segments(), day) is None


def test_what_is_not_committed_stays_at_home() -> None:
    there = segments(0, 0)
    assert due(there, LocalRetention(ms=0), high_watermark=9) is None
    assert due(there, LocalRetention(ms=0), high_watermark=10) == (0, True)
    assert due(there, LocalRetention(ms=0), tier_end=10, high_watermark=19) is None


@pytest.mark.parametrize(("kept", "is_due"), [(-1, False), (0, True), (200, True), (201, False)])
def test_a_segment_goes_when_the_others_have_enough(kept: int, is_due: bool) -> None:
    assert due(segments(NOW, NOW), LocalRetention(ms=-1, bytes=kept)) == (0, is_due)


def test_records_of_the_future_keep_no_segment_on_the_ssd() -> None:
    there = segments(900_000)
    there[0].largest_timestamp = WallMs(2**60)
    assert due(there, LocalRetention(ms=60_000)) == (0, True)
    there[0].largest_timestamp = NO_TIMESTAMP  # Records without a time count from its end.
    assert due(there, LocalRetention(ms=60_000)) == (0, True)
    assert due(there, LocalRetention(ms=200_000)) == (0, False)


def test_a_cut_log_whose_active_segment_lies_in_the_tier_moves_nothing() -> None:
    assert due(segments(0, 0), LocalRetention(ms=0), tier_end=21) is None


def test_of_several_logs_the_oldest_segment_goes_first_and_any_when_the_disk_fills() -> None:
    old = Movable(Offset(0), 100, WallMs(5), is_due=False)
    young = Movable(Offset(0), 100, WallMs(9), is_due=True)
    logs = [("none", None), ("old", old), ("young", young)]
    assert first_to_move(logs, is_filling=False) == "young"
    assert first_to_move(logs, is_filling=True) == "old"
    assert first_to_move([("none", None)], is_filling=True) is None


def test_the_newest_segment_of_the_tier_comes_back_first() -> None:
    there = segments(0, 0, 0)
    found = last_in_tier(there, Offset(20))
    assert found is there[1]
    assert last_in_tier(there, Offset(0)) is None
    assert last_in_tier(there, Offset(31)) is there[2]  # The active one never moves.
