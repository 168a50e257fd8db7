"""Stamps of a broker whose clock was ahead hold nothing up, and a clock that is behind deletes
nothing early (F19)."""

import pytest
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import NOW, PARTITION, LogOnDisk, open_directory
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import DirectoryConfig
from millrace.core.ids import WallMs
from millrace.core.replica.compaction.cleanable import CompactionLags

AHEAD = WallMs(NOW + 10 * 365 * 86_400_000)
LENGTH = stamped_batch(0).length
CONFIG = LogConfig(segment_bytes=2 * LENGTH, retention_ms=1000)


def filled(now: WallMs, config: LogConfig = CONFIG) -> LogOnDisk:
    """A log of three segments whose records have the time of their append; they are committed."""
    opened = LogOnDisk(Disk(), config)
    for offset in range(6):
        opened.append(stamped_batch(offset, timestamp=now), now=now)
    opened.log.high_watermark = opened.end
    return opened


def at(milliseconds: int) -> WallMs:
    return WallMs(NOW + milliseconds)


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_segments_of_a_clock_ahead_are_deleted_by_their_age_since_it_was_noticed(
    is_opened_again: bool,
) -> None:
    opened = filled(AHEAD)
    if is_opened_again:
        opened.directory.close(clean=True)
        opened.disk.restart()
        opened = LogOnDisk(opened.disk, CONFIG)
    opened.log.notice_clock(NOW)
    retention = opened.log.retention
    assert retention.apply(NOW, opened.end) == 0
    assert retention.apply(at(1000), opened.end) == 0
    assert retention.apply(at(1001), opened.end) == 3
    assert opened.log.log_start_offset == opened.end


def test_a_clock_that_is_behind_for_a_while_deletes_nothing_early() -> None:
    opened = filled(NOW)
    opened.log.notice_clock(WallMs(1000))
    retention = opened.log.retention
    assert retention.apply(WallMs(1000), opened.end) == 0
    assert retention.apply(at(1000), opened.end) == 0
    assert retention.apply(at(1001), opened.end) == 3


def test_segments_of_a_clock_ahead_are_compacted_after_their_lag() -> None:
    opened = filled(AHEAD)
    opened.log.notice_clock(NOW)
    cleaner = opened.log.cleaner
    assert cleaner.cleanable(NOW).first_uncleanable == 4
    opened.log.config = LogConfig(lags=CompactionLags(min_dirty_ratio=1.0, min_lag_ms=500))
    assert cleaner.cleanable(at(499)).first_uncleanable == 0
    assert cleaner.cleanable(at(500)).first_uncleanable == 4
    opened.log.config = LogConfig(lags=CompactionLags(min_dirty_ratio=1.0, max_lag_ms=500))
    assert not cleaner.cleanable(at(500)).is_due
    assert cleaner.cleanable(at(501)).is_due


def test_the_segment_that_a_clock_ahead_began_ends_with_the_next_append() -> None:
    opened = LogOnDisk(Disk(), LogConfig())
    opened.append(stamped_batch(0), now=AHEAD)
    opened.log.high_watermark = opened.end
    assert opened.log.has_old_segment(NOW)
    opened.append(stamped_batch(1), now=NOW)
    assert [found.base_offset for found in opened.log.segments] == [0, 1]
    opened.append(stamped_batch(2), now=NOW)
    assert len(opened.log.segments) == 2


def test_what_was_deleted_by_a_clock_ahead_stays_as_long_as_other_trash() -> None:
    opened = filled(NOW)
    opened.directory.retired.delete([TOPIC_PARTITION], AHEAD)
    opened.disk.restart()
    retired = open_directory(opened.disk).retired
    delay = DirectoryConfig().file_delete_delay_ms
    assert retired.empty_trash(NOW) == 0
    assert retired.empty_trash(at(delay - 1)) == 0
    assert opened.disk.exists(f"{PARTITION}.{AHEAD}.deleted")
    assert retired.empty_trash(at(delay)) == 1


def test_a_clock_that_is_behind_for_a_while_empties_no_trash_early() -> None:
    opened = filled(NOW)
    opened.directory.retired.delete([TOPIC_PARTITION], NOW)
    opened.disk.restart()
    retired = open_directory(opened.disk).retired
    delay = DirectoryConfig().file_delete_delay_ms
    assert retired.empty_trash(WallMs(1000)) == 0
    assert retired.empty_trash(at(delay - 1)) == 0
    assert retired.empty_trash(at(delay)) == 1
