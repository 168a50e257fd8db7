"""Which part of a log may be cleaned, which log is first, and which segments become one."""

from dataclasses import dataclass

from millrace.core.ids import Offset, WallMs
from millrace.core.replica.compaction.cleanable import (
    Cleanable,
    CleanerPoint,
    CompactionLags,
    cleanable,
    first_to_clean,
    groups,
)

NOW = WallMs(100_000)
ALWAYS = CompactionLags(min_dirty_ratio=0.0)
START = CleanerPoint(Offset(0))


@dataclass
class Extent:
    """A segment of ten records, closed ten seconds after it was begun."""

    base_offset: Offset
    created_at: WallMs
    size: int = 100

    @property
    def next_offset(self) -> Offset:
        return Offset(self.base_offset + 10)

    def closing_time(self, now: WallMs) -> WallMs:
        return WallMs(min(self.created_at + 10_000, now))


SEGMENTS = [Extent(Offset(10 * number), WallMs(10_000 * number)) for number in range(5)]
"""Written from 0 to 50 s; the last one, from offset 40 on, is active."""


def found(
    point: CleanerPoint = START,
    lags: CompactionLags = ALWAYS,
    high_watermark: int = 50,
    now: int = NOW,
) -> Cleanable:
    return cleanable(
        SEGMENTS, point, lags, Offset(high_watermark), WallMs(now), tombstones_end=Offset(50)
    )


def test_all_but_the_active_segment_may_be_cleaned() -> None:
    assert found() == Cleanable(Offset(0), Offset(40), 0, 400, is_overdue=False, is_due=True)


def test_nothing_beyond_the_high_watermark_may_be_cleaned() -> None:
    assert found(high_watermark=39).first_uncleanable == 30
    assert found(high_watermark=9).first_uncleanable == 0
    assert not found(high_watermark=9).is_due


def test_segments_wait_for_the_lag_from_their_end_on() -> None:
    lags = CompactionLags(min_dirty_ratio=0.0, min_lag_ms=60_000)
    assert found(lags=lags, now=89_999).first_uncleanable == 20
    assert found(lags=lags, now=90_000).first_uncleanable == 30


def test_segments_that_a_clock_ahead_has_stamped_may_be_cleaned() -> None:
    ahead = [Extent(extent.base_offset, WallMs(10**12)) for extent in SEGMENTS]
    found = cleanable(ahead, START, ALWAYS, Offset(50), NOW, tombstones_end=Offset(50))
    assert found.first_uncleanable == 40
    assert found.is_due
    assert not found.is_overdue


def test_a_log_is_due_once_enough_of_it_is_dirty() -> None:
    lags = CompactionLags(min_dirty_ratio=0.5)
    assert found(CleanerPoint(Offset(10)), lags).dirty_ratio == 0.75
    assert found(CleanerPoint(Offset(10)), lags).is_due
    assert not found(CleanerPoint(Offset(20)), lags).is_due
    assert not found(CleanerPoint(Offset(40))).is_due


def test_a_log_is_due_once_a_dirty_record_is_too_old() -> None:
    lags = CompactionLags(min_dirty_ratio=1.0, max_lag_ms=70_000)
    assert not found(CleanerPoint(Offset(30)), lags, now=100_000).is_due
    overdue = found(CleanerPoint(Offset(30)), lags, now=100_001)
    assert overdue.is_due
    assert overdue.is_overdue


def test_a_log_is_due_once_a_tombstone_is() -> None:
    lags = CompactionLags(min_dirty_ratio=1.0)
    point = CleanerPoint(Offset(40), next_horizon=WallMs(NOW + 1))
    assert not found(point, lags).is_due
    assert found(point, lags, now=NOW + 1).is_due
    assert not found(point, lags, high_watermark=0, now=NOW + 1).is_due
    assert found(point._replace(next_end=Offset(50)), lags, now=NOW + 1).is_due
    elsewhere = point._replace(next_end=Offset(51))
    assert not found(elsewhere, lags, now=NOW + 1).is_due, "another replica has what it deletes"


def test_a_point_before_the_log_counts_as_its_start() -> None:
    kept = SEGMENTS[2:]
    found = cleanable(
        kept, CleanerPoint(Offset(3)), ALWAYS, Offset(50), NOW, tombstones_end=Offset(50)
    )
    assert found.first_dirty == 20


def test_the_dirtiest_log_is_cleaned_first_and_before_it_one_that_is_overdue() -> None:
    def of(dirty: int, *, is_overdue: bool = False, is_due: bool = True) -> Cleanable:
        return Cleanable(Offset(0), Offset(9), 100, dirty, is_overdue, is_due)

    assert first_to_clean([]) is None
    assert first_to_clean([("a", of(900, is_due=False))]) is None
    assert first_to_clean([("a", of(100)), ("b", of(300)), ("c", of(200))]) == "b"
    assert first_to_clean([("a", of(100)), ("b", of(300)), ("c", of(0, is_overdue=True))]) == "c"


def test_groups_are_no_larger_than_a_segment_may_be() -> None:
    sizes = [60, 30, 20, 150, 40, 60]
    segments = [Extent(Offset(10 * at), WallMs(0), size) for at, size in enumerate(sizes)]
    assert [[each.size for each in group] for group in groups(segments, 100)] == [
        [60, 30],
        [20],
        [150],
        [40, 60],
    ]
    far = [Extent(Offset(0), WallMs(0)), Extent(Offset(2**31), WallMs(0))]
    assert len(list(groups(far, 10**6))) == 2
