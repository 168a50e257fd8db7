"""One partition's log on a disk in memory: what it takes, finds, refuses and deletes."""

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from tests.fakes.disk import Disk, Inode, PowerCut
from tests.fakes.log_on_disk import NOW, PARTITION, ROOT, LogOnDisk
from tests.fakes.stamped_batches import TOPIC_PARTITION, bytes_of, control_batch, stamped_batch

from millrace.broker.storage.file_system import Mutex
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_recovery import DAMAGED, FAILED
from millrace.broker.storage.recovery_checkpoint import FILE_NAME
from millrace.broker.storage.sealed_file import read_sealed, write_sealed
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    OffsetOutOfRangeError,
    StorageFullError,
)
from millrace.core.ids import (
    NO_TIMESTAMP,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    ProducerEpoch,
    ProducerId,
    WallMs,
)
from millrace.core.records.batch import walk
from millrace.core.records.markers import Marker, WrittenMarker

LENGTH = stamped_batch(0, records=2).length
WINDOW_BYTES = 4096  # What is read to find a header.
SMALL = LogConfig(segment_bytes=4 * LENGTH, index_interval_bytes=2 * LENGTH)


def filled(config: LogConfig = SMALL, batches: int = 40, disk: Disk | None = None) -> LogOnDisk:
    """A log of batches of two records, four in a segment, with timestamps 1000, 1010, ..."""
    opened = LogOnDisk(disk or Disk(), config)
    for number in range(batches):
        opened.append(stamped_batch(2 * number, records=2, timestamp=1000 + 10 * number))
    return opened


def scrubbed(opened: LogOnDisk, max_bytes: int = 300) -> int:
    """Scrub to the end of a round, step by step; return how many bytes that were."""
    total = 0
    while step := opened.log.scrubber.scrub(max_bytes):
        total += step
    return total


def test_batches_come_back_byte_for_byte() -> None:
    opened = LogOnDisk(Disk())
    batches = [stamped_batch(0, records=3), stamped_batch(3), stamped_batch(4, value=b"x" * 9000)]
    opened.append(*batches[:2])
    opened.append(batches[2])
    assert opened.batches() == {batch.base_offset: bytes_of(batch) for batch in batches}
    assert opened.log.log_end_offset == 5
    assert opened.log.flushed_offset == 0


def test_flush_says_up_to_where_records_survive() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0, records=3))
    assert opened.log.flusher.flush() == 3
    opened.append(stamped_batch(3))
    opened.disk.cut_power()
    assert 3 <= LogOnDisk(opened.disk).end <= 4


def test_flushing_twice_touches_the_disk_once() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0))
    opened.log.flusher.flush()
    flushes = opened.disk.flushes
    opened.log.flusher.flush()
    assert opened.disk.flushes == flushes


def test_a_read_holds_whole_batches_within_its_bounds() -> None:
    opened = filled()
    for start in range(80):
        for limit in range(start, 81, 7):
            for max_bytes in (1, LENGTH, LENGTH + 1, 3 * LENGTH, 10**6):
                plan = opened.log.reader.plan_read(Offset(start), max_bytes, Offset(limit))
                if plan is None:
                    assert limit < start - start % 2 + 2
                    continue
                found = [header for header, _ in walk(opened.log.reader.read(plan))]
                assert found[0].base_offset == start - start % 2
                assert found[-1].next_offset == plan.end_offset <= limit
                assert plan.length == len(found) * LENGTH <= max(max_bytes, LENGTH)
                ends_with_segment = plan.position + plan.length == plan.segment.size
                assert (
                    ends_with_segment or plan.end_offset + 2 > limit or 2 * plan.length >= max_bytes
                )


@pytest.mark.parametrize("start", [0, 1, 17, 40, 78, 80])
@pytest.mark.parametrize("batches", [1, 2, 7, 39, 1000])
def test_bytes_after_an_offset_are_counted_in_whole_batches_over_segments(
    start: int, batches: int
) -> None:
    opened = filled()
    first = start - start % 2
    expected = min(first + 2 * batches, 80)
    for more in (0, LENGTH - 1):
        size = batches * LENGTH + more
        assert opened.log.reader.offset_after_bytes(Offset(start), size, Offset(80)) == expected
    if start < 80:
        assert opened.log.reader.offset_after_bytes(Offset(start), 1, Offset(80)) == first + 2
    before = opened.log.reader.offset_after_bytes(Offset(start), 80 * LENGTH, Offset(41))
    assert before == max(start, 40)


@pytest.mark.parametrize("start", range(0, 80, 3))
def test_what_a_reader_has_not_read_is_measured_in_bytes_and_by_its_first_time(start: int) -> None:
    opened = filled()
    batch = start // 2
    assert opened.log.reader.unread(Offset(start), Offset(80)) == (
        (40 - batch) * LENGTH,
        1000 + 10 * batch,
    )
    assert opened.log.reader.unread(Offset(start), Offset(start)) == (0, NO_TIMESTAMP)
    assert opened.log.reader.unread(Offset(start), Offset(1000)).size == (40 - batch) * LENGTH


def test_the_ends_of_transactions_alone_are_not_unread() -> None:
    opened = LogOnDisk(Disk())
    marker = WrittenMarker(Marker(ProducerId(7), ProducerEpoch(1), True, LeaderEpoch(0)))
    opened.append(stamped_batch(0, records=3), control_batch(3, marker), control_batch(4, marker))
    for read in (3, 4, 5):
        assert opened.log.reader.unread(Offset(read), Offset(5)) == (0, NO_TIMESTAMP)
    assert opened.log.reader.unread(Offset(2), Offset(5)).size == opened.log.size_bytes
    last = stamped_batch(5, timestamp=7000)
    opened.append(last)
    assert opened.log.reader.unread(Offset(3), Offset(6)) == (last.length, 7000)


def test_deleted_records_are_not_unread() -> None:
    opened = filled()
    opened.log.retention.advance_log_start(Offset(21))
    assert opened.log.reader.unread(Offset(0), Offset(80)) == (30 * LENGTH, 1100)


@pytest.mark.parametrize("vanished", [0, 40])
def test_a_lag_over_a_file_that_is_gone_is_refused(vanished: int) -> None:
    opened = filled()
    opened.disk.remove(f"{PARTITION}/{vanished:020}.log")
    with pytest.raises(OffsetOutOfRangeError, match="0 to 80"):
        opened.log.reader.unread(Offset(3), Offset(vanished + 5))


@pytest.mark.parametrize("damaged", [0, 40])
def test_a_lag_that_finds_damage_names_its_file(damaged: int) -> None:
    disk = filled().disk
    disk.restart()
    opened = LogOnDisk(disk, SMALL)
    path = f"{PARTITION}/{damaged:020}.log"
    disk.flip_bit(path, 2 * LENGTH + 20)
    with pytest.raises(CorruptLogError, match=path):
        opened.log.reader.unread(Offset(4 if damaged == 0 else 0), Offset(46))


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (lambda log: log.retention.advance_log_start(Offset(32)), (24 * LENGTH, 1160)),
        (lambda log: log.retention.advance_log_start(Offset(80)), (0, NO_TIMESTAMP)),
        (lambda log: log.truncation.truncate_to(Offset(4), NOW), (0, NO_TIMESTAMP)),
        (lambda log: log.truncation.start_over(Offset(100)), (0, NO_TIMESTAMP)),
    ],
)
def test_what_is_deleted_or_cut_while_a_lag_is_measured_does_not_count(
    change: Callable[[PartitionLog], None], left: tuple[int, int]
) -> None:
    filled(disk=(disk := MeanwhileDisk()))
    disk.restart()
    opened = LogOnDisk(disk, SMALL)
    disk.path, disk.job = f"{PARTITION}/{0:020}.log", partial(change, opened.log)
    assert opened.log.reader.unread(Offset(5), Offset(80)) == left
    assert disk.jobs_done == 1
    assert opened.log.failure is None


def test_a_reader_at_the_end_finds_nothing_and_beyond_it_is_told_so() -> None:
    opened = filled(batches=2)
    assert opened.log.reader.plan_read(Offset(4), 100, Offset(4)) is None
    assert opened.log.reader.plan_read(Offset(4), 100, Offset(100)) is None
    with pytest.raises(OffsetOutOfRangeError, match="0 to 4, not 5"):
        opened.log.reader.plan_read(Offset(5), 100, Offset(4))


def test_cached_reads_take_what_is_in_memory_only() -> None:
    opened = filled()
    plan = opened.log.reader.plan_read(Offset(0), 500, Offset(80))
    assert plan is not None
    buffer = bytearray(1000)
    assert opened.log.reader.read_cached(plan, memoryview(buffer)) == plan.length
    assert bytes(buffer[: plan.length]) == opened.log.reader.read(plan)
    opened.disk.is_cold = True
    assert opened.log.reader.read_cached(plan, memoryview(buffer)) == -1


def test_planning_that_would_wait_for_the_disk_says_so() -> None:
    disk = filled().disk
    disk.restart()
    opened = LogOnDisk(disk, SMALL)
    disk.is_cold = True
    with pytest.raises(BlockingIOError):
        opened.log.reader.plan_read(Offset(9), 500, Offset(80), may_block=False)
    assert opened.log.reader.plan_read(Offset(9), 500, Offset(80)) is not None


def test_the_end_of_an_append_is_planned_without_a_read() -> None:
    opened = filled()
    opened.disk.is_cold = True
    start = opened.end
    opened.append(stamped_batch(start))
    assert opened.log.reader.plan_read(start, 500, opened.end, may_block=False) is not None


def test_no_header_is_read_beyond_a_batch_that_fills_the_plan() -> None:
    opened = LogOnDisk(Disk(), LogConfig(segment_bytes=1 << 20, index_interval_bytes=1 << 20))
    for offset in range(3):
        opened.append(stamped_batch(offset, value=b"x" * WINDOW_BYTES))
    before = opened.disk.bytes_read
    plan = opened.log.reader.plan_read(Offset(0), 100, Offset(3))
    assert plan is not None
    assert plan.end_offset == 1
    assert opened.disk.bytes_read == before + WINDOW_BYTES


def test_segments_are_closed_by_size_and_by_age() -> None:
    opened = filled()
    assert len(opened.log.segments) == 10
    opened.append(stamped_batch(opened.end), now=WallMs(NOW + 100))
    assert len(opened.log.segments) == 11
    opened.append(stamped_batch(opened.end), now=WallMs(NOW + 100 + SMALL.segment_ms - 1))
    assert len(opened.log.segments) == 11
    opened.append(stamped_batch(opened.end), now=WallMs(NOW + 100 + SMALL.segment_ms))
    assert len(opened.log.segments) == 12


def test_a_closed_segment_is_flushed() -> None:
    opened = filled()
    opened.disk.cut_power()
    assert LogOnDisk(opened.disk, SMALL).end >= 72


def test_an_offset_is_found_by_timestamp() -> None:
    opened = filled()
    assert opened.log.reader.offset_for_timestamp(WallMs(0)) == (0, 1000)
    assert opened.log.reader.offset_for_timestamp(WallMs(1201)) == (42, 1210)
    assert opened.log.reader.offset_for_timestamp(WallMs(1390)) == (78, 1390)
    assert opened.log.reader.offset_for_timestamp(WallMs(1391)) is None
    assert opened.log.reader.offset_for_timestamp(WallMs(1201), Offset(42)) is None
    assert opened.log.reader.offset_of_largest_timestamp() == (78, 1390)


def test_timestamps_out_of_order_are_found_too() -> None:
    opened = LogOnDisk(Disk(), SMALL)
    times = [50, 90, 10, 20, 95, 30] * 10
    for offset, time in enumerate(times):
        opened.append(stamped_batch(offset, timestamp=time))
    for wanted in range(0, 100, 5):
        expected = next((o for o, time in enumerate(times) if time >= wanted), None)
        found = opened.log.reader.offset_for_timestamp(WallMs(wanted))
        assert (found.offset if found else None) == expected


def test_the_latest_record_is_found_among_those_that_are_there_and_committed() -> None:
    opened = LogOnDisk(Disk(), SMALL)
    times = [50, 90, 10, 20, 95, 30, 95, 40] * 8
    for at in range(0, len(times), 2):
        opened.append(stamped_batch(at, records=2, timestamp=times[at : at + 2]))
    opened.log.retention.advance_log_start(Offset(5))
    assert len(opened.log.segments) > 4
    for limit in (0, 5, 6, 7, 11, 30, 33, len(times) - 1, len(times), len(times) + 9):
        found = opened.log.reader.offset_of_largest_timestamp(Offset(limit))
        there = [(time, -offset) for offset, time in enumerate(times[:limit]) if offset >= 5]
        expected = max(there, default=None)
        assert (found and (found.timestamp, -found.offset)) == expected


def test_a_full_disk_takes_nothing_and_recovers_by_itself() -> None:
    opened = filled(batches=3)
    opened.disk.capacity = 100 + sum(map(opened.disk.size, opened.disk.files()))
    before = opened.disk.contents(f"{PARTITION}/{0:020}.log")
    with pytest.raises(StorageFullError) as raised:
        opened.append(stamped_batch(6, producer_id=9, sequence=0), stamped_batch(7))
    assert raised.value.appended.name == "NO"
    assert opened.disk.contents(f"{PARTITION}/{0:020}.log") == before
    assert len(opened.log.producer_states) == 0
    assert len(opened.batches()) == 3
    opened.disk.capacity = None
    opened.append(stamped_batch(6, producer_id=9, sequence=0), stamped_batch(7))
    assert len(opened.batches()) == 5


def test_an_epoch_whose_batch_did_not_fit_has_not_begun() -> None:
    disk = Disk()
    opened = LogOnDisk(disk)
    opened.append(stamped_batch(0, epoch=1))
    later = [stamped_batch(1, epoch=1), stamped_batch(2, epoch=5, value=bytes(5000))]
    disk.capacity = sum(len(disk.contents(path)) for path in disk.files()) + 3000
    with pytest.raises(StorageFullError):
        opened.append(*later)
    disk.capacity = None
    assert opened.log.leader_epochs.entries == ((1, 0),)
    for base_offset in (1, 2, 3):  # Another leader has other batches there, of an earlier epoch.
        opened.append(stamped_batch(base_offset, epoch=2))
    opened.checkpoint()
    disk.restart()
    assert LogOnDisk(disk).log.leader_epochs.entries == ((1, 0), (2, 1))


def test_an_epoch_that_goes_on_after_a_full_disk_is_not_taken_for_a_later_one() -> None:
    disk = Disk()
    opened = LogOnDisk(disk)
    opened.append(stamped_batch(0, epoch=1))
    disk.capacity = sum(len(disk.contents(path)) for path in disk.files()) + 3000
    with pytest.raises(StorageFullError):
        opened.append(stamped_batch(1, epoch=1), stamped_batch(2, epoch=5, value=bytes(5000)))
    disk.capacity = None
    for base_offset in (1, 2, 3):
        opened.append(stamped_batch(base_offset, epoch=1))
    opened.checkpoint()
    disk.restart()
    assert LogOnDisk(disk).log.leader_epochs.entries == ((1, 0),)


def test_a_disk_that_is_full_when_a_segment_is_closed_takes_nothing() -> None:
    opened = filled(SMALL, batches=4)
    used = sum(map(opened.disk.size, opened.disk.files()))
    opened.disk.capacity = used + 50
    with pytest.raises(StorageFullError):
        opened.append(stamped_batch(8))
    opened.disk.capacity = None
    opened.append(stamped_batch(8))
    assert list(opened.batches()) == [0, 2, 4, 6, 8]
    opened.disk.restart()
    assert list(LogOnDisk(opened.disk).batches()) == [0, 2, 4, 6, 8]


def test_a_full_disk_does_not_hold_the_recovery_point_back() -> None:
    opened = LogOnDisk(Disk(), ballast_bytes=2000)
    opened.append(stamped_batch(0, value=b"x" * 1000))
    opened.disk.capacity = sum(map(opened.disk.size, opened.disk.files()))
    opened.checkpoint()
    assert opened.log.state.recovery_point == 1
    assert "/data/ballast" not in opened.disk.files()
    assert not opened.directory.ballast.take() or opened.disk.room() >= 0
    opened.disk.capacity = None
    assert opened.directory.ballast.take()


def test_a_failed_flush_is_never_tried_again() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0))
    opened.disk.fail_flush_at = opened.disk.flushes + 1
    with pytest.raises(LogDirFailedError):
        opened.log.flusher.flush()
    flushes = opened.disk.flushes
    for attempt in (opened.log.flusher.flush, opened.log.flusher.checkpoint):
        with pytest.raises(LogDirFailedError):
            attempt()
    with pytest.raises(LogDirFailedError):
        opened.append(stamped_batch(1))
    assert opened.disk.flushes == flushes
    assert opened.log.flushed_offset == 0


def test_what_a_failed_flush_left_in_memory_is_written_by_the_next_life() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0))
    opened.checkpoint()
    opened.append(stamped_batch(1, value=b"x" * 2000))
    opened.disk.fail_flush_at = opened.disk.flushes + 1
    with pytest.raises(LogDirFailedError):
        opened.log.flusher.flush()
    assert f"{PARTITION}/{FAILED}" in opened.disk.files()
    opened.disk.restart()
    again = LogOnDisk(opened.disk)
    assert again.end == 2
    assert again.log.flusher.flush() == 2
    assert f"{PARTITION}/{FAILED}" not in opened.disk.files()
    opened.disk.cut_power()
    assert LogOnDisk(opened.disk).batches() == {
        0: bytes_of(stamped_batch(0)),
        1: bytes_of(stamped_batch(1, value=b"x" * 2000)),
    }


def test_a_new_leader_epoch_is_durable_before_its_first_batch() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0, epoch=1))
    opened.log.flusher.flush()
    calls = opened.disk.calls
    opened.append(stamped_batch(1, epoch=4), stamped_batch(2, epoch=5))
    assert opened.disk.calls > calls + 1
    assert opened.log.leader_epochs.entries == ((1, 0), (4, 1), (5, 2))
    opened.disk.cut_power()
    reopened = LogOnDisk(opened.disk)
    kept = [entry for entry in ((1, 0), (4, 1), (5, 2)) if entry[1] < reopened.end]
    assert list(reopened.log.leader_epochs.entries) == kept


def test_the_producers_of_a_log_are_known_again_after_a_crash() -> None:
    opened = LogOnDisk(Disk(), SMALL)
    for number in range(60):
        opened.append(stamped_batch(number, producer_id=number % 3, sequence=number // 3))
        if number == 30:
            opened.checkpoint()
    before = opened.log.producer_states
    opened.disk.restart()
    reopened = LogOnDisk(opened.disk, SMALL)
    assert {p: before.entry(p).batches for p in before} == {  # type: ignore[union-attr]
        p: reopened.log.producer_states.entry(p).batches  # type: ignore[union-attr]
        for p in reopened.log.producer_states
    }


def test_the_age_of_an_open_transaction_survives_a_restart() -> None:
    opened = LogOnDisk(Disk(), SMALL)
    opened.append(stamped_batch(0, producer_id=7, sequence=0, in_transaction=True), now=WallMs(500))
    opened.append(stamped_batch(1, producer_id=7, sequence=1, in_transaction=True), now=WallMs(800))
    opened.checkpoint()
    opened.disk.restart()
    (entry,) = LogOnDisk(opened.disk, SMALL).log.producer_states.open_entries()
    assert entry[1].began_at == 500


@pytest.mark.parametrize("start", [8, 60, 79, 80])
def test_producers_whose_records_are_deleted_are_known_after_a_power_cut(start: int) -> None:
    """Else a batch that is sent again would be taken for a new one (P43)."""
    for seed in range(20):
        opened = LogOnDisk(Disk(seed), SMALL)
        for number in range(40):
            batch = stamped_batch(2 * number, records=2, producer_id=7, sequence=2 * number)
            opened.append(batch)
        if seed % 2:
            opened.checkpoint()
        opened.log.writer.roll(NOW)
        opened.log.retention.advance_log_start(Offset(start))
        opened.disk.cut_power()
        known = LogOnDisk(opened.disk, SMALL).log.producer_states.entry(ProducerId(7))
        assert known is not None, f"seed {seed}"
        assert [batch.base_offset for batch in known.batches] == [70, 72, 74, 76, 78]


def test_retention_by_size_keeps_as_much_as_it_says() -> None:
    opened = filled()
    opened.log.config = LogConfig(retention_bytes=8 * LENGTH)
    deleted = opened.log.retention.apply(NOW, opened.end)
    assert deleted > 0
    assert opened.log.size_bytes == 8 * LENGTH
    assert opened.log.log_start_offset == min(opened.batches())
    with pytest.raises(OffsetOutOfRangeError):
        opened.log.reader.plan_read(Offset(0), 100, Offset(80))
    opened.disk.cut_power()
    assert min(LogOnDisk(opened.disk).batches()) == opened.log.log_start_offset


@pytest.mark.parametrize(
    ("records", "start"), [(0, 72), (8, 72), (9, 64), (40, 40), (71, 8), (72, 8), (73, 0), (-1, 0)]
)
def test_retention_by_number_keeps_at_least_as_many_records_as_it_says(
    records: int, start: int
) -> None:
    opened = filled()
    opened.log.config = LogConfig(retention_records=records, retention_ms=-1)
    assert opened.log.retention.apply(NOW, opened.end) == start // 8
    assert opened.log.log_start_offset == min(opened.batches()) == start
    assert opened.log.retention.apply(NOW, opened.end) == 0
    opened.disk.cut_power()
    assert min(LogOnDisk(opened.disk).batches()) == start


class RefusingDisk(Disk):
    """Removes nothing while it refuses."""

    refuses = False

    def unlink(self, path: str) -> None:
        if self.refuses:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().unlink(path)


def test_the_log_start_does_not_go_back_after_the_disk_has_refused_to_remove_files() -> None:
    """P71"""
    disk = RefusingDisk()
    opened = filled(LogConfig(segment_bytes=4 * LENGTH, retention_bytes=36 * LENGTH), disk=disk)
    disk.refuses = True
    with pytest.raises(StorageFullError):
        opened.log.retention.advance_log_start(Offset(20))
    assert opened.log.log_start_offset == 20
    disk.refuses = False
    assert opened.log.retention.apply(NOW, opened.end) == 1
    assert opened.log.log_start_offset == 20
    assert not disk.exists(f"{PARTITION}/{8:020}.log"), "the rest was removed"
    disk.restart()
    assert LogOnDisk(disk, SMALL).log.log_start_offset == 20


def test_retention_by_number_keeps_what_is_not_committed() -> None:
    opened = filled()
    opened.log.config = LogConfig(retention_records=1, retention_ms=-1)
    assert opened.log.retention.apply(NOW, Offset(23)) == 2
    assert opened.log.log_start_offset == 16


def test_retention_by_time_deletes_even_the_active_segment() -> None:
    opened = filled(LogConfig(segment_bytes=4 * LENGTH, retention_ms=500))
    assert opened.log.retention.apply(WallMs(1200), opened.end) == 0
    assert opened.log.retention.apply(WallMs(1000 + 500 + 31), opened.end) == 1
    assert opened.log.log_start_offset == 8
    assert opened.log.retention.apply(WallMs(5000), opened.end) == 9
    assert opened.batches() == {}
    assert opened.log.log_start_offset == opened.end == 80


def test_retention_keeps_what_is_not_committed() -> None:
    opened = filled(LogConfig(segment_bytes=4 * LENGTH, retention_ms=500))
    assert opened.log.retention.apply(WallMs(10**9), Offset(20)) == 2
    assert opened.log.log_start_offset == 16


def test_records_from_the_future_are_not_kept_for_ever() -> None:
    opened = LogOnDisk(Disk(), LogConfig(segment_bytes=300, retention_ms=1000))
    opened.append(stamped_batch(0, timestamp=10**14), now=NOW)
    opened.append(stamped_batch(1, value=b"x" * 300, timestamp=10**14), now=NOW)
    assert len(opened.log.segments) == 2
    assert opened.log.retention.apply(WallMs(NOW + 1000), opened.end) == 0
    assert opened.log.retention.apply(WallMs(NOW + 1001), opened.end) == 1


def test_minus_one_keeps_everything() -> None:
    opened = filled(LogConfig(segment_bytes=4 * LENGTH, retention_ms=-1, retention_bytes=-1))
    assert opened.log.retention.apply(WallMs(2**60), opened.end) == 0


def test_the_log_start_may_lie_inside_of_a_segment_and_outlives_a_power_cut() -> None:
    opened = filled()
    opened.log.retention.advance_log_start(Offset(33))
    assert min(opened.batches()) == 32
    opened.disk.cut_power()
    reopened = LogOnDisk(opened.disk)
    assert reopened.log.log_start_offset == 33
    assert reopened.log.reader.offset_for_timestamp(WallMs(0)) == (33, 1160)
    with pytest.raises(OffsetOutOfRangeError):
        reopened.log.reader.plan_read(Offset(32), 100, Offset(80))


@pytest.mark.parametrize("offset", [33, 40, 79, 80])
@pytest.mark.parametrize("dies", ["power", "process"])
def test_records_are_deleted_up_to_an_offset_or_not_at_all_wherever_it_ends(
    offset: int, dies: str
) -> None:
    seen = set()
    for call in range(1, 200):
        opened = filled(disk=Disk(call))
        opened.log.flusher.flush()
        before = opened.batches()
        disk = opened.disk
        disk.cut_power_at = disk.calls + call
        try:
            opened.log.retention.advance_log_start(Offset(offset))
        except PowerCut:
            is_done = False
            # Nobody is told of a start that is not durable.
            is_told = opened.log.log_start_offset == offset
        else:
            is_done = is_told = True
        if dies == "power":
            disk.cut_power()
        else:
            disk.restart()
        again = LogOnDisk(disk, SMALL)
        start = again.log.log_start_offset
        assert start == offset if is_told else start in (0, offset)
        assert again.end == 80
        kept = {base: batch for base, batch in before.items() if base + 2 > start}
        assert again.batches() == kept
        seen.add((start, is_told))
        if is_done:
            break
    assert call > 10
    assert seen >= {(0, False), (offset, True)}


def test_truncation_ends_the_log_at_a_batch() -> None:
    opened = filled()
    before = opened.batches()
    opened.log.truncation.truncate_to(Offset(33), NOW)
    assert opened.end == 32
    assert opened.batches() == {o: batch for o, batch in before.items() if o < 32}
    opened.append(stamped_batch(32, epoch=7))
    assert opened.log.leader_epochs.entries == ((0, 0), (7, 32))
    opened.disk.restart()
    assert LogOnDisk(opened.disk, SMALL).end == 33


def test_a_tail_that_is_cut_costs_neither_a_flush_nor_reading_what_stays() -> None:
    """A leader that was moved does that, with a segment of a gigabyte, while producers wait."""
    opened = LogOnDisk(Disk(), LogConfig(index_interval_bytes=4 * LENGTH))
    for number in range(2000):
        opened.append(stamped_batch(2 * number, records=2, timestamp=1000 + number))
        if number == 1900:
            opened.checkpoint()
    flushes, read = opened.disk.flushes, opened.disk.bytes_read
    opened.log.truncation.truncate_to(Offset(3990), NOW)
    assert opened.end == 3990
    assert opened.disk.flushes == flushes
    states_since_checkpoint = 100 * 4096  # Headers are read through a window.
    assert opened.disk.bytes_read - read < states_since_checkpoint + 20 * LENGTH
    assert opened.log.flushed_offset == 3802
    assert opened.log.reader.offset_for_timestamp(WallMs(2994)) == (3988, 2994)
    assert opened.log.reader.offset_for_timestamp(WallMs(2995)) is None
    opened.append(stamped_batch(3990, timestamp=9000))
    assert opened.log.reader.offset_for_timestamp(WallMs(2995)) == (3990, 9000)
    opened.checkpoint()
    before = opened.batches()
    opened.disk.restart()
    again = LogOnDisk(opened.disk)
    assert again.batches() == before
    assert again.log.scanned_bytes == 0, "the index that goes on is whole"
    opened.disk.cut_power()
    assert LogOnDisk(opened.disk).batches() == before


def test_what_was_flushed_and_cut_does_not_come_back() -> None:
    for seed in range(20):
        opened = filled(batches=10, disk=Disk(seed))
        opened.log.flusher.flush()
        opened.log.truncation.truncate_to(Offset(6), NOW)
        assert opened.log.flushed_offset == 6
        opened.disk.cut_power()
        assert LogOnDisk(opened.disk, SMALL).end == 6


def test_a_cut_of_what_was_not_flushed_outlives_a_power_cut_or_does_not() -> None:
    for seed in range(20):
        opened = LogOnDisk(Disk(seed))
        opened.append(*(stamped_batch(offset) for offset in range(4)))
        opened.checkpoint()
        opened.append(*(stamped_batch(offset) for offset in range(4, 8)))
        opened.log.truncation.truncate_to(Offset(6), NOW)
        opened.append(stamped_batch(6, epoch=1, value=b"another"))
        opened.disk.cut_power()
        again = LogOnDisk(opened.disk)
        found = again.batches()
        assert 4 <= again.end <= 8
        assert [found[offset] for offset in range(4)] == [
            bytes_of(stamped_batch(offset)) for offset in range(4)
        ]


def test_a_log_that_was_found_damaged_is_so_after_a_restart_until_it_is_restored() -> None:
    opened = filled()
    opened.checkpoint()
    disk, path = opened.disk, f"{PARTITION}/{0:020}.log"
    disk.flip_bit(path, LENGTH + 70)
    with pytest.raises(CorruptLogError):
        scrubbed(opened)
    for _ in range(2):
        disk.restart()
        with pytest.raises(CorruptLogError, match="damaged"):
            LogOnDisk(disk, SMALL)
    disk.flip_bit(path, LENGTH + 70)
    disk.restart()
    assert LogOnDisk(disk, SMALL).end == 80
    assert not disk.exists(f"{PARTITION}/damaged")


@pytest.mark.parametrize("offset", [500, 80, 3, 0])
def test_a_log_begins_anew_at_any_offset(offset: int) -> None:
    opened = filled()
    opened.log.flusher.flush()
    opened.log.truncation.start_over(Offset(offset))
    log = opened.log
    assert log.log_start_offset == log.log_end_offset == log.flushed_offset == offset
    assert log.leader_epochs.entries == ()
    opened.append(stamped_batch(offset, records=2))
    opened.log.flusher.flush()
    opened.disk.cut_power()
    again = LogOnDisk(opened.disk)
    assert (again.log.log_start_offset, again.end) == (offset, offset + 2)


@pytest.mark.parametrize("offset", [500, 31, 30, 24, 3, 0])
def test_a_log_that_begins_anew_is_as_before_or_does_so_wherever_the_power_is_cut(
    offset: int,
) -> None:
    seen = set()
    for call in range(1, 200):
        opened = filled(disk=Disk(call))
        opened.log.retention.advance_log_start(Offset(31))
        opened.checkpoint()
        disk = opened.disk
        disk.cut_power_at = disk.calls + call
        try:
            opened.log.truncation.start_over(Offset(offset))
            assert call > 20
            disk.cut_power_at = None
            break
        except PowerCut:
            disk.cut_power()
        for _ in range(2):
            again = LogOnDisk(disk, SMALL)
            ends = (again.log.log_start_offset, again.end)
            assert ends in {(31, 80), (offset, offset)}
            disk.restart()
        seen.add(ends)
        if ends == (offset, offset):
            # Nothing of the old log is left, so that an older epoch may follow.
            assert again.log.leader_epochs.entries == ()
            assert not again.log.producer_states
            again = LogOnDisk(disk, SMALL)
            again.append(stamped_batch(offset, records=2))
            again.log.flusher.flush()
            disk.cut_power()
            assert LogOnDisk(disk, SMALL).end == offset + 2
    assert seen == {(31, 80), (offset, offset)}


def test_truncation_takes_producers_and_epochs_back() -> None:
    opened = LogOnDisk(Disk(), SMALL)
    for number in range(40):
        opened.append(
            stamped_batch(number, epoch=number // 10, producer_id=number // 8, sequence=number % 8)
        )
    opened.log.truncation.truncate_to(Offset(18), NOW)
    assert opened.log.leader_epochs.entries == ((0, 0), (1, 10))
    assert set(opened.log.producer_states) == {0, 1, 2}
    entry = opened.log.producer_states.entry(next(reversed(list(opened.log.producer_states))))
    assert entry is not None
    assert entry.batches[-1].last_offset == 17


def test_the_recovery_point_is_due_by_bytes_and_by_time() -> None:
    config = LogConfig(checkpoint_bytes=1000, checkpoint_ms=5000)
    opened = LogOnDisk(Disk(), config)
    assert not opened.log.flusher.is_due(MonotonicMs(0))
    opened.append(stamped_batch(0))
    assert not opened.log.flusher.is_due(MonotonicMs(10))
    assert not opened.log.flusher.is_due(MonotonicMs(5009))
    assert opened.log.flusher.is_due(MonotonicMs(5010))
    opened.checkpoint()
    assert opened.log.state.recovery_point == 1
    assert not opened.log.flusher.is_due(MonotonicMs(99999))
    opened.append(stamped_batch(1, value=b"x" * 1000))
    assert opened.log.flusher.is_due(MonotonicMs(100000))


class LockWithSequel:
    """A lock; something happens right after its first release."""

    def __init__(self, lock: Mutex, sequel: Callable[[], object]) -> None:
        self._lock = lock
        self._sequels = [sequel]

    def acquire(self, blocking: bool = True) -> bool:
        return self._lock.acquire(blocking)

    def release(self) -> None:
        self._lock.release()
        if self._sequels:
            self._sequels.pop()()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_a_checkpoint_does_not_take_back_the_point_of_records_deleted_beside_it() -> None:
    opened = filled(LogConfig(), batches=3)
    log = opened.log

    def delete_more() -> None:
        opened.append(stamped_batch(6))
        log.high_watermark = Offset(7)
        log.retention.advance_log_start(Offset(7))

    log.state.flush_lock = LockWithSequel(log.state.flush_lock, delete_more)
    log.flusher.checkpoint()
    assert log.state.recovery_point == log.log_start_offset == 7
    opened.append(stamped_batch(7))
    opened.checkpoint()
    assert log.state.recovery_point == 8
    opened.disk.cut_power()
    reopened = LogOnDisk(opened.disk)
    assert (reopened.log.log_start_offset, reopened.end) == (7, 8)


def test_an_append_waits_for_a_checkpoint_when_none_came_for_long() -> None:
    opened = LogOnDisk(Disk(), LogConfig(checkpoint_bytes=4 * LENGTH))
    for number in range(20):
        opened.append(stamped_batch(2 * number, records=2))
    opened.disk.restart()
    assert LogOnDisk(opened.disk).log.scanned_bytes <= 8 * LENGTH


def test_recovery_reads_nothing_before_the_recovery_point() -> None:
    opened = filled(batches=5)
    opened.checkpoint()
    opened.append(stamped_batch(10))
    opened.disk.restart()
    assert LogOnDisk(opened.disk, SMALL).log.scanned_bytes == stamped_batch(10).length


def test_a_clean_stop_leaves_nothing_to_read() -> None:
    opened = filled()
    opened.directory.close(clean=True)
    reopened = LogOnDisk(opened.disk, SMALL)
    assert reopened.directory.was_clean
    assert reopened.log.scanned_bytes == 0
    assert reopened.end == reopened.log.flushed_offset == 80


def test_closing_a_log_writes_no_snapshot_that_is_there_already() -> None:
    disk = Disk()
    log = LogOnDisk(disk)
    log.append(stamped_batch(0, producer_id=7, sequence=0))
    log.checkpoint()
    (path,) = (file for file in disk.files() if file.endswith(".snapshot"))
    written = disk.inode_of(path)
    log.log.close(clean=True)
    assert disk.inode_of(path) is written


def test_damage_in_a_closed_segment_is_found_by_the_scrub_and_ends_the_partition() -> None:
    """P67."""
    opened = filled()
    assert scrubbed(opened) == 9 * 4 * LENGTH
    opened.disk.flip_bit(f"{PARTITION}/{8:020}.log", 400)
    with pytest.raises(CorruptLogError, match="damaged"):
        scrubbed(opened)
    with pytest.raises(CorruptLogError):
        opened.append(stamped_batch(80))
    with pytest.raises(CorruptLogError):
        opened.log.reader.plan_read(Offset(0), 100, Offset(80))


@pytest.mark.parametrize("segment", [0, 72])
def test_a_read_that_is_verified_finds_damage_and_ends_the_partition(segment: int) -> None:
    opened = filled()
    plan = opened.log.reader.plan_read(Offset(segment), 3 * LENGTH, Offset(80))
    assert plan is not None
    opened.log.reader.verify(plan)
    opened.disk.flip_bit(plan.segment.path, plan.position + plan.length - 1)
    with pytest.raises(CorruptLogError, match="checksum"):
        opened.log.reader.verify(plan)
    with pytest.raises(CorruptLogError):
        opened.log.reader.plan_read(Offset(segment), 3 * LENGTH, Offset(80))
    assert opened.disk.exists(f"{PARTITION}/{DAMAGED}")


def test_what_is_gone_or_cut_meanwhile_is_not_found_damaged() -> None:
    opened = filled()
    first, last = (
        opened.log.reader.plan_read(Offset(start), 4 * LENGTH, Offset(80)) for start in (0, 72)
    )
    assert first is not None
    assert last is not None
    opened.log.retention.advance_log_start(Offset(40))
    opened.log.truncation.truncate_to(Offset(74), NOW)
    for _ in range(3):
        opened.append(stamped_batch(opened.end, records=7))
    opened.log.reader.verify(first)
    opened.log.reader.verify(last)
    assert opened.log.failure is None


def test_a_header_that_does_not_parse_fails_the_read_and_the_partition() -> None:
    opened = filled()
    opened.disk.flip_bit(f"{PARTITION}/{8:020}.log", LENGTH)
    with pytest.raises(CorruptLogError, match=str(TOPIC_PARTITION)):
        opened.batches(max_bytes=1)


def test_a_file_that_cannot_be_read_fails_its_partition() -> None:
    opened = filled()
    plan = opened.log.reader.plan_read(Offset(0), 200, Offset(80))
    assert plan is not None
    opened.disk.unreadable.add(f"{PARTITION}/{0:020}.log")
    with pytest.raises(CorruptLogError, match="Input/output error"):
        opened.log.reader.read(plan)


def test_a_read_of_a_deleted_segment_is_empty() -> None:
    opened = filled()
    plan = opened.log.reader.plan_read(Offset(0), 200, Offset(80))
    assert plan is not None
    opened.log.retention.advance_log_start(Offset(40))
    assert opened.log.reader.read(plan) == b""
    assert opened.log.reader.read_cached(plan, memoryview(bytearray(1000))) == -1


def test_a_damaged_index_is_passed_over_and_repaired_by_the_scrub() -> None:
    disk = filled().disk
    disk.restart()
    opened = LogOnDisk(disk, SMALL)
    index = f"{PARTITION}/{8:020}.index"
    sound = disk.contents(index)
    disk.flip_bit(index, len(sound) - 3)
    assert len(opened.batches(max_bytes=200)) == 40
    scrubbed(opened)
    assert disk.contents(index) == sound


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("step", [1, 1 << 20])
def test_the_scrub_looks_into_indexes_too_whether_anybody_reads_them_or_not(
    is_gone: bool, step: int
) -> None:
    disk = filled().disk
    disk.restart()
    opened = LogOnDisk(disk, SMALL)
    index = f"{PARTITION}/{8:020}.index"
    sound = disk.contents(index)
    if is_gone:
        disk.unlink(index)
    else:
        disk.flip_bit(index, len(sound) - 3)
    while opened.log.scrubber.scrub(step):
        pass
    assert disk.contents(index) == sound


class MeanwhileDisk(Disk):
    """Somebody else does something when a file is read for the next time."""

    path = ""
    job: Callable[[], object] | None = None
    jobs_done = 0

    def inode_of(self, path: str) -> Inode:
        if path == self.path and self.job is not None:
            job, self.job = self.job, None
            thread = ThreadPoolExecutor(1)
            thread.submit(job).result(10)
            thread.shutdown(wait=False)
            self.jobs_done += 1
        return super().inode_of(path)


def with_a_damaged_index() -> tuple[LogOnDisk, MeanwhileDisk, str]:
    """A log whose index of its third segment, which is named too, is damaged."""
    disk = MeanwhileDisk()
    filled(disk=disk)
    disk.restart()
    opened = LogOnDisk(disk, SMALL)
    stem = f"{PARTITION}/{16:020}"
    disk.flip_bit(f"{stem}.index", len(disk.contents(f"{stem}.index")) - 3)
    disk.path = f"{stem}.log"
    return opened, disk, stem


def test_appends_go_on_while_an_index_is_rebuilt() -> None:
    opened, disk, stem = with_a_damaged_index()
    sound = filled().disk.contents(f"{stem}.index")
    disk.job = partial(opened.append, stamped_batch(80, records=2))
    scrubbed(opened)
    assert disk.jobs_done == 1
    assert opened.end == 82
    assert disk.contents(f"{stem}.index") == sound


@pytest.mark.parametrize("end", [16, 18, 24])
def test_a_segment_that_is_cut_while_its_index_is_rebuilt_is_not_damaged(end: int) -> None:
    opened, disk, _ = with_a_damaged_index()
    disk.job = partial(opened.log.truncation.truncate_to, Offset(end), NOW)
    scrubbed(opened)
    assert disk.jobs_done == 1
    for offset in range(end, 60, 2):
        opened.append(stamped_batch(offset, records=2, value=b"another"))
    scrubbed(opened)
    assert opened.log.failure is None
    disk.restart()
    assert list(LogOnDisk(disk, SMALL).batches()) == list(range(0, 60, 2))


def test_a_segment_that_is_deleted_while_its_index_is_rebuilt_leaves_none() -> None:
    opened, disk, stem = with_a_damaged_index()
    disk.job = partial(opened.log.retention.advance_log_start, Offset(32))
    scrubbed(opened)
    assert disk.jobs_done == 1
    assert not disk.exists(f"{stem}.index")
    assert opened.log.failure is None


@pytest.mark.parametrize("step", [300, 1 << 20])
def test_an_index_that_finds_no_room_waits_for_the_next_round_of_the_scrub(step: int) -> None:
    opened, disk, stem = with_a_damaged_index()
    disk.capacity = sum(map(disk.size, disk.files()))
    read = disk.bytes_read
    with pytest.raises(StorageFullError, match="rebuilding an index of"):
        scrubbed(opened, step)
    scrubbed(opened, step)
    # The rest of the round is done, and of the segment no more is read than twice.
    assert disk.bytes_read - read < 2 * opened.log.size_bytes
    assert opened.log.failure is None
    assert len(opened.batches(max_bytes=200)) == 40
    disk.capacity = None
    scrubbed(opened)
    assert disk.contents(f"{stem}.index") == filled().disk.contents(f"{stem}.index")


def test_an_index_that_cannot_be_written_fails_the_directory_and_is_no_damage() -> None:
    opened, disk, stem = with_a_damaged_index()
    disk.unreadable.add(f"{stem}.index.new")
    with pytest.raises(LogDirFailedError, match="rebuilding an index of"):
        scrubbed(opened)
    assert disk.exists(f"{PARTITION}/{FAILED}")
    assert not disk.exists(f"{PARTITION}/{DAMAGED}")


def test_damage_in_a_segment_is_found_with_that_of_its_index() -> None:
    opened, disk, stem = with_a_damaged_index()
    disk.flip_bit(f"{stem}.log", LENGTH + 400)
    for _ in range(2):
        opened.log.scrubber.scrub(1 << 20)
    with pytest.raises(CorruptLogError, match="checksum"):
        opened.log.scrubber.scrub(1 << 20)


def test_a_segment_that_is_cut_while_it_is_scrubbed_is_not_damaged() -> None:
    opened = filled(disk=(disk := MeanwhileDisk()))
    disk.path = f"{PARTITION}/{16:020}.log"
    disk.job = partial(opened.log.truncation.truncate_to, Offset(18), NOW)
    scrubbed(opened)
    assert disk.jobs_done == 1
    assert opened.log.failure is None


def test_batches_that_do_not_follow_on_are_a_programming_error() -> None:
    opened = filled(batches=1)
    for wrong in (stamped_batch(0), stamped_batch(3), stamped_batch(2, epoch=-1)):
        with pytest.raises(AssertionError):
            opened.append(wrong)
    assert opened.log.leader_epochs.latest_epoch == LeaderEpoch(0)


def test_what_was_committed_is_remembered_as_far_as_it_is_surely_there() -> None:
    disk = Disk()
    before = LogOnDisk(disk)
    before.append(*(stamped_batch(offset) for offset in range(10)))
    assert before.log.high_watermark == 0
    before.log.high_watermark = Offset(6)
    before.checkpoint()
    before.append(*(stamped_batch(offset) for offset in range(10, 20)))
    before.log.high_watermark = Offset(15)
    disk.restart()
    crashed = LogOnDisk(disk)  # What was not checkpointed may be gone next time (P68).
    assert crashed.end == 20
    assert crashed.log.high_watermark == 6
    crashed.log.high_watermark = Offset(20)
    crashed.directory.close(clean=True)
    assert LogOnDisk(disk).log.high_watermark == 20


def test_what_was_committed_is_never_remembered_beyond_a_cut() -> None:
    disk = Disk()
    before = LogOnDisk(disk)
    before.append(*(stamped_batch(offset) for offset in range(10)))
    before.log.high_watermark = Offset(10)
    before.checkpoint()
    before.log.truncation.truncate_to(Offset(4), NOW)
    assert before.log.high_watermark == 4
    before.append(*(stamped_batch(offset, epoch=1) for offset in range(4, 10)))
    disk.cut_power()
    again = LogOnDisk(disk)
    assert again.log.high_watermark == 4
    again.log.truncation.start_over(Offset(50))
    assert again.log.high_watermark == 50
    disk.cut_power()
    assert LogOnDisk(disk).log.high_watermark == 50


def test_a_checkpoint_that_says_nothing_of_it_begins_at_the_log_s_start() -> None:
    disk = Disk()
    before = LogOnDisk(disk)
    before.append(*(stamped_batch(offset) for offset in range(10)))
    before.log.high_watermark = Offset(10)
    before.directory.close(clean=True)
    path = f"{ROOT}/{FILE_NAME}"
    payload = read_sealed(disk, path, "recovery-checkpoint").decode()
    older = "".join(f"{line.rpartition(' ')[0]}\n" for line in payload.splitlines())
    write_sealed(disk, path, "recovery-checkpoint", older.encode())
    assert LogOnDisk(disk).log.high_watermark == 0
