"""A log is compacted: what stays, what readers see meanwhile, and what is left after any crash."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, repeat

import pytest
from tests.fakes.disk import Disk, PowerCut
from tests.fakes.keyed_batches import (
    KeyedRecord,
    batches_in,
    keyed_batch,
    latest,
    records_in,
)
from tests.fakes.log_on_disk import EVERYWHERE, NOW, PARTITION, ROOT, LogOnDisk
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch
from tests.sim.machines.disk import UnorderedDirectory

from millrace.broker.storage import inspection
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory.log_copy import LogCopy
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.broker_config import StorageConfig
from millrace.core.errors import CorruptLogError, StorageBusyError, StorageFullError
from millrace.core.ids import LeaderEpoch, Offset, ProducerId, WallMs
from millrace.core.metadata.topic_config import CleanupPolicy, TopicConfig
from millrace.core.records.rewriting import cut
from millrace.core.replica.compaction.cleanable import CompactionLags
from millrace.core.replica.compaction.key_hashes import KeyHasher
from millrace.core.replica.log.producer_states import ProducerStates

HASHER = KeyHasher(b"a secret of the test")
MAP_BYTES = 1 << 20
DAY = 86_400_000
COMPACTED = LogConfig(
    is_compacted=True, index_interval_bytes=200, lags=CompactionLags(min_dirty_ratio=0.0)
)


class CompactedLog(LogOnDisk):
    """A log whose every record is committed, at all replicas."""

    def __init__(self, disk: Disk, config: LogConfig = COMPACTED) -> None:
        super().__init__(disk, config)
        self.log.high_watermark = self.end
        self.log.cleaner.tombstones_end = EVERYWHERE

    def write(
        self,
        *cells: tuple[bytes | None, bytes | None],
        producer_id: int = -1,
        sequence: int = -1,
        epoch: int = 0,
        codec: str = "none",
        timestamp: int = 1000,
    ) -> None:
        """Append one batch."""
        batch = keyed_batch(
            self.end,
            cells,
            producer_id=producer_id,
            sequence=sequence,
            epoch=epoch,
            codec=codec,
            timestamp=timestamp,
        )
        self.append(batch)
        self.log.high_watermark = self.end

    def roll(self, now: WallMs = NOW) -> None:
        self.log.writer.roll(now)

    def clean(self, now: WallMs = NOW, map_bytes: int = MAP_BYTES) -> None:
        for _ in self.log.cleaner.clean(HASHER, map_bytes, now):
            pass

    @property
    def records(self) -> list[KeyedRecord]:
        return records_in(self.log)

    @property
    def offsets(self) -> list[int]:
        return [record.offset for record in self.records]


def check_whole(opened: CompactedLog) -> None:
    """Check that no offset is without a batch, and that every byte is sound."""
    headers = [header for header, _ in batches_in(opened.log)]
    at = headers[0].base_offset if headers else opened.end
    epoch = LeaderEpoch(-1)
    for header in headers:
        assert header.base_offset == at
        assert header.leader_epoch >= epoch
        at, epoch = header.next_offset, header.leader_epoch
    assert at == opened.end
    while opened.log.scrubber.scrub(1 << 30):
        pass


def test_the_example_of_kafkas_design() -> None:
    opened = CompactedLog(Disk())
    before = [
        (13, b"K1", b"V5"),
        (17, b"K5", b"V2"),
        (19, b"K2", b"V7"),
        (20, b"K7", b"V1"),
        (21, b"K8", b"V4"),
        (22, b"K4", b"V6"),
        (23, b"K1", b"V1"),
        (24, b"K1", b"V2"),
        (25, b"K1", b"V9"),
        (26, b"K9", b"V6"),
        (27, b"K8", b"V22"),
        (28, b"K2", b"V25"),
    ]
    opened.log.truncation.start_over(Offset(13))
    # An earlier cleaning has taken the offsets between 13 and 19.
    for offset, key, value in before:
        while opened.end < offset:
            opened.write((key, b"old"))
        opened.write((key, value))
        assert opened.end == offset + 1
    opened.roll()
    opened.clean()
    assert opened.records == [
        (17, b"K5", b"V2"),
        (20, b"K7", b"V1"),
        (22, b"K4", b"V6"),
        (25, b"K1", b"V9"),
        (26, b"K9", b"V6"),
        (27, b"K8", b"V22"),
        (28, b"K2", b"V25"),
    ]
    check_whole(opened)
    for removed in (13, 18, 19, 21, 23, 24):  # The next higher one answers.
        following = [offset for offset in (17, 20, 22, 25, 26) if offset > removed]
        assert records_in(opened.log, removed)[0].offset == following[0]


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_only_the_latest_record_of_each_key_stays_over_segments(codec: str) -> None:
    opened = CompactedLog(Disk())
    for segment in range(5):
        for batch in range(4):
            cells = [
                (b"key-%d" % ((7 * batch + number) % 11), b"%d-%d-%d" % (segment, batch, number))
                for number in range(5)
            ]
            opened.write(*cells, codec=codec)
        opened.roll()
    opened.write((b"key-0", b"the newest"))
    written = opened.records
    opened.clean()
    kept = opened.records
    assert set(kept) <= set(written)
    assert opened.offsets == sorted(opened.offsets)
    assert latest(kept) == latest(written)
    cleaned = kept[:-1]
    assert len({record.key for record in cleaned}) == len(cleaned)
    check_whole(opened)
    assert len(opened.log.segments) == 2
    opened.disk.restart()
    reopened = CompactedLog(opened.disk)
    assert reopened.records == kept
    check_whole(reopened)
    assert reopened.log.state.cleaner_point == opened.log.state.cleaner_point
    assert reopened.log.state.cleaner_point.offset == opened.end - 1


def test_the_active_segment_and_what_is_not_committed_stay_as_they_are() -> None:
    opened = CompactedLog(Disk())
    for number in range(3):
        opened.write((b"key", b"%d" % number))
        opened.roll()
    opened.write((b"key", b"3"), (b"key", b"4"))
    opened.log.high_watermark = Offset(2)
    opened.clean()
    assert opened.offsets == [1, 2, 3, 4]
    opened.log.high_watermark = Offset(3)
    opened.clean()
    assert opened.offsets == [2, 3, 4]


def test_records_that_lie_within_the_lag_stay() -> None:
    config = LogConfig(is_compacted=True, lags=CompactionLags(0.0, min_lag_ms=1000))
    opened = CompactedLog(Disk(), config)
    for number in range(3):
        opened.write((b"key", b"%d" % number))
        opened.roll(WallMs(NOW + 400 * number))
    opened.clean(WallMs(NOW + 1400))
    assert opened.offsets == [1, 2]
    opened.clean(WallMs(NOW + 1800))
    assert opened.offsets == [2]


def test_a_map_that_is_too_small_takes_several_passes() -> None:
    opened = CompactedLog(Disk())
    for number in range(400):
        opened.write((b"key-%d" % (number % 200), b"%d" % number))
    opened.roll()
    written = opened.records
    points = []
    while opened.log.state.cleaner_point.offset < 400:
        opened.clean(map_bytes=1)  # 57 keys.
        points.append(opened.log.state.cleaner_point.offset)
        check_whole(opened)
        assert latest(opened.records) == latest(written)
    assert points == sorted(points)
    assert len(points) > 4
    assert opened.offsets == list(range(200, 400))


def test_a_tombstone_outlives_what_it_deletes_by_its_retention() -> None:
    opened = CompactedLog(Disk())
    opened.write((b"gone", b"1"), (b"stays", b"2"))
    opened.roll()
    opened.write((b"gone", None))
    opened.roll()
    opened.clean()
    assert opened.offsets == [1, 2]
    horizon = opened.log.state.cleaner_point.next_horizon
    assert horizon == NOW + COMPACTED.delete_retention_ms
    assert not opened.log.cleaner.cleanable(WallMs(horizon - 1)).is_due
    assert opened.log.cleaner.cleanable(horizon).is_due
    opened.clean(WallMs(horizon - 1))
    assert opened.offsets == [1, 2]
    opened.clean(horizon)
    assert opened.offsets == [1]
    assert opened.log.state.cleaner_point.next_horizon == -1
    check_whole(opened)


def test_tombstones_stay_until_every_replica_has_removed_what_they_delete() -> None:
    opened = CompactedLog(Disk())
    opened.log.cleaner.tombstones_end = Offset(0)
    opened.write((b"gone", b"1"))
    opened.write((b"gone", None))
    opened.roll()
    opened.clean()
    horizon = opened.log.state.cleaner_point.next_horizon
    assert not opened.log.cleaner.cleanable(horizon).is_due
    opened.clean(horizon)
    assert opened.offsets == [1]
    assert opened.log.state.cleaner_point.next_horizon == horizon
    opened.log.cleaner.tombstones_end = EVERYWHERE
    assert opened.log.cleaner.cleanable(horizon).is_due
    opened.clean(horizon)
    assert opened.offsets == []


def test_a_tombstone_after_the_end_of_the_map_stays_whatever_its_horizon() -> None:
    leader, follower = CompactedLog(Disk()), CompactedLog(Disk())
    for side in (leader, follower):
        for number in range(100):
            side.write((b"other-%d" % number, b"x"))
        side.write((b"key", b"1"))
    leader.write((b"key", None))
    leader.roll()
    leader.clean()
    (header, batch), *_ = batches_in(leader.log)
    assert header.delete_horizon == NOW + COMPACTED.delete_retention_ms
    # The follower gets the tombstone with its leader's horizon, and has compacted nothing itself.
    end = cut(TOPIC_PARTITION, header, batch, follower.end)
    follower.append(StampedBatch.of(end.header, end.stamped, end.body))
    follower.log.high_watermark = follower.end
    follower.roll()
    later = WallMs(header.delete_horizon + DAY)
    follower.clean(later, map_bytes=1)
    assert follower.log.state.cleaner_point.offset < 101
    assert follower.records[-2:] == [(100, b"key", b"1"), (101, b"key", None)]
    follower.clean(later)
    assert follower.records[-2:] == [(99, b"other-99", b"x"), (101, b"key", None)]
    follower.clean(later)
    assert follower.records[-1] == (99, b"other-99", b"x")
    check_whole(follower)


def test_a_tombstone_after_the_end_of_the_map_gets_no_horizon_from_one_before_it() -> None:
    opened = CompactedLog(Disk())
    opened.write((b"gone", b"1"))
    opened.write((b"gone", None))
    opened.write((b"later", b"1"))
    for number in range(55):
        opened.write((b"key-%d" % number, b"x"))
    opened.write((b"later", None))
    opened.write((b"too much for the map", b"x"), (b"one more", b"x"))
    opened.write((b"key-7", None))
    opened.roll()
    opened.clean(map_bytes=1)  # 57 keys.
    assert opened.log.state.cleaner_point.offset < opened.end - 1
    horizon = opened.log.state.cleaner_point.next_horizon
    assert opened.records[-1] == (opened.end - 1, b"key-7", None)
    opened.clean(horizon)  # Only now the record of key-7 goes.
    assert b"key-7" not in [record.key for record in opened.records[:-1]]
    assert opened.records[-1] == (opened.end - 1, b"key-7", None)


def test_records_without_a_key_stay() -> None:
    opened = CompactedLog(Disk())
    opened.write((None, b"1"), (b"", b"2"), (None, None), (b"", b"3"))
    opened.roll()
    opened.clean()
    assert opened.records == [(0, None, b"1"), (2, None, None), (3, b"", b"3")]


def test_the_last_batch_of_a_producer_keeps_its_sequence_without_records() -> None:
    opened = CompactedLog(Disk())
    opened.write((b"a", b"1"), (b"b", b"2"), producer_id=5, sequence=0)
    opened.write((b"a", b"3"), (b"b", b"4"), producer_id=5, sequence=2)
    opened.write((b"a", b"5"), (b"b", b"6"), producer_id=6, sequence=0)
    opened.write((b"a", b"7"), (b"b", b"8"))
    opened.roll()
    opened.clean()
    assert opened.offsets == [6, 7]
    states = ProducerStates()
    for header, _ in batches_in(opened.log):
        states.update(header, header.base_offset, NOW)
    known = opened.log.producer_states
    for producer_id in (ProducerId(5), ProducerId(6)):
        rebuilt, own = states.entry(producer_id), known.entry(producer_id)
        assert rebuilt is not None
        assert own is not None
        assert rebuilt.batches[-1] == own.batches[-1]
    check_whole(opened)


def test_a_batch_that_was_emptied_does_not_hide_the_record_of_the_latest_time() -> None:
    opened = CompactedLog(Disk())
    opened.write((b"other", b"1"), timestamp=2000)
    opened.write((b"key", b"1"), producer_id=5, sequence=0, timestamp=9000)
    opened.write((b"key", b"2"), timestamp=1000)
    opened.roll()
    assert opened.log.reader.offset_of_largest_timestamp() == (1, 9000)
    opened.clean()
    assert opened.offsets == [0, 2]
    assert [header.record_count for header, _ in batches_in(opened.log)] == [1, 0, 1]
    assert opened.log.reader.offset_of_largest_timestamp() == (0, 2000)
    opened.disk.remove(f"{PARTITION}/{0:020}.index")
    opened.disk.restart()
    assert CompactedLog(opened.disk).log.reader.offset_of_largest_timestamp() == (0, 2000)


def test_leader_epochs_are_those_of_before() -> None:
    opened = CompactedLog(Disk())
    for epoch in (0, 0, 1, 3, 3, 4):
        opened.write((b"a", b"1"), epoch=epoch)
    opened.roll()
    before = opened.log.leader_epochs.entries
    opened.clean()
    assert opened.offsets == [5]
    opened.disk.restart()
    opened.disk.remove(f"{PARTITION}/leader-epochs")
    assert CompactedLog(opened.disk).log.leader_epochs.entries == before


def test_many_small_batches_become_few() -> None:
    opened = CompactedLog(Disk())
    for number in range(300):
        opened.write((b"key-%d" % number, b"value"))
    opened.roll()
    written = opened.records
    opened.clean()
    assert opened.records == written
    assert len(batches_in(opened.log)) == 1
    size = opened.log.size_bytes
    changes = opened.disk.flushes
    opened.clean()  # Nothing to do: nothing is replaced.
    assert opened.log.size_bytes == size
    assert opened.disk.flushes - changes < 6


def test_a_reader_of_a_replaced_segment_goes_on_with_the_new_one() -> None:
    opened = CompactedLog(Disk())
    for number in range(40):
        opened.write((b"key-%d" % (number % 3), b"%d" % number))
        if number % 10 == 9:
            opened.roll()
    log = opened.log
    plan = log.reader.plan_read(Offset(5), 1, log.log_end_offset)
    assert plan is not None
    old = log.segments[0]
    opened.clean()
    assert old.is_retired
    assert log.reader.read(plan) == b""
    assert [record.offset for record in records_in(log, 5)] == [37, 38, 39]
    assert log.reader.unread(Offset(0), log.log_end_offset).size == log.size_bytes
    found = log.reader.offset_for_timestamp(WallMs(1000))
    assert found is not None
    assert found.offset == 37


def test_each_segment_is_replaced_on_its_own() -> None:
    config = LogConfig(is_compacted=True, segment_bytes=2000, lags=COMPACTED.lags)
    opened = CompactedLog(Disk(), config)
    for number in range(120):
        opened.write((b"key-%d" % number, b"x" * 40))
        opened.write((b"same", b"x" * 40))
    opened.roll()
    before = opened.log.size_bytes
    most = 0
    for _ in opened.log.cleaner.clean(HASHER, MAP_BYTES, NOW):
        sizes = [
            opened.disk.size(path) for path in opened.disk.files() if path.startswith(PARTITION)
        ]
        most = max(most, sum(sizes))
        assert latest(opened.records)[b"key-7"] == b"x" * 40
    assert most < before + 2 * config.segment_bytes + 4000
    check_whole(opened)
    assert len(opened.records) == 121


def written_for_crashes(disk: Disk) -> CompactedLog:
    config = LogConfig(is_compacted=True, segment_bytes=1200, lags=COMPACTED.lags)
    opened = CompactedLog(disk, config)
    for number in range(30):
        opened.write((b"key-%d" % (number % 7), b"%d" % number), (b"gone-%d" % number, None))
        if number % 3 == 2:
            opened.roll()
    opened.checkpoint()
    return opened


@pytest.mark.parametrize("seed", range(40))
def test_after_a_power_cut_at_any_step_the_log_has_the_last_value_of_each_key(seed: int) -> None:
    disk = Disk(seed)
    opened = written_for_crashes(disk)
    written = opened.records
    disk.cut_power_at = disk.calls + 1 + 3 * seed
    try:
        opened.clean()
        opened.clean(WallMs(NOW + 2 * DAY))
    except PowerCut:
        pass
    disk.cut_power()
    opened = CompactedLog(disk, opened.log.config)
    kept = opened.records
    assert set(kept) <= set(written)
    assert latest(kept) == latest(written)
    check_whole(opened)
    opened.clean()
    opened.clean(WallMs(NOW + 5 * DAY))
    assert latest(opened.records) == latest(written)
    check_whole(opened)
    names = disk.list(PARTITION)
    assert not [name for name in names if name.endswith((".swap", ".new"))]


class ReorderingDisk(Disk):
    """A disk on which any of the unflushed changes of names may survive a power cut."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.root = UnorderedDirectory()
        self.calls_until_cut: int | None = None
        """Once a cleaned segment counts: how many calls later the power goes."""

    def new_directory(self) -> UnorderedDirectory:
        return UnorderedDirectory()

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if self.calls_until_cut is not None and target.endswith(".swap"):
            self.cut_power_at = self.calls + self.calls_until_cut


@pytest.mark.parametrize("seed", range(120))
def test_names_that_reach_the_disk_in_any_order_lose_nothing(seed: int) -> None:
    disk = ReorderingDisk(seed)
    opened = written_for_crashes(disk)
    written = opened.records
    disk.calls_until_cut = 1 + seed % 12
    with pytest.raises(PowerCut):
        opened.clean()
    disk.calls_until_cut = None
    disk.cut_power()
    opened = CompactedLog(disk, opened.log.config)
    assert latest(opened.records) == latest(written)
    check_whole(opened)


def test_a_hundred_kills_in_a_row_lose_nothing() -> None:
    disk = Disk(7)
    opened = written_for_crashes(disk)
    written = opened.records
    for kill in range(100):
        disk.cut_power_at = disk.calls + 1 + kill % 23
        try:
            opened.clean()
            disk.cut_power_at = None
        except PowerCut:
            pass
        disk.restart()
        opened = CompactedLog(disk, opened.log.config)
        assert latest(opened.records) == latest(written)
    check_whole(opened)


def test_a_full_disk_changes_nothing_and_leaves_nothing() -> None:
    opened = written_for_crashes(Disk())
    before, names = opened.records, opened.disk.list(PARTITION)
    opened.disk.capacity = sum(map(opened.disk.size, opened.disk.files())) + 100
    with pytest.raises(StorageFullError):
        opened.clean()
    assert opened.records == before
    assert opened.disk.list(PARTITION) == names
    opened.disk.capacity = None
    opened.clean()
    assert latest(opened.records) == latest(before)


class BusyDisk(Disk):
    """A disk of a process that lacks descriptors from some call on, once a cleaned segment counts.

    Args:
        begin: how many calls that need a descriptor succeed before.
        times: how many are refused then.
    """

    def __init__(self, begin: int, times: int) -> None:
        super().__init__()
        self._next: Iterator[bool] = chain(repeat(False, begin), repeat(True, times))
        self.refused: Iterator[bool] = iter(())

    def recover(self) -> None:
        self.refused = self._next = iter(())

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if target.endswith(".swap"):
            self.refused = self._next

    def take_descriptor(self, path: str) -> None:
        if next(self.refused, False):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)


def read(opened: CompactedLog) -> None:
    assert opened.records or opened.log.log_start_offset == opened.end


def append_and_clean(opened: CompactedLog) -> None:
    opened.write((b"key-1", b"later"))
    opened.roll()
    opened.clean()


def shorten(opened: CompactedLog) -> None:
    opened.log.truncation.truncate_to(Offset(4), NOW)


def trim(opened: CompactedLog) -> None:
    opened.log.retention.advance_log_start(Offset(8))


def begin_again(opened: CompactedLog) -> None:
    opened.log.truncation.start_over(Offset(100))


def scrub(opened: CompactedLog) -> None:
    while opened.log.scrubber.scrub(1 << 30):
        pass


def copy(opened: CompactedLog) -> None:
    opened.disk.make_directory(f"{ROOT}/copy")
    try:
        LogCopy(opened.disk, opened.log, f"{ROOT}/copy").complete()
    finally:
        opened.log.hold_cleaning(is_held=False)


def written_in_threes(disk: Disk) -> CompactedLog:
    opened = CompactedLog(disk)
    for number in range(9):
        opened.write((b"key-%d" % (number % 3), b"%d" % number), (b"gone-%d" % number, None))
        if number % 3 == 2:
            opened.roll()
    opened.checkpoint()
    return opened


@pytest.mark.parametrize("ends", ["not", "in order", "by a kill", "by a power cut"])
@pytest.mark.parametrize("times", [1, 2, 10**6])
@pytest.mark.parametrize(
    "then", [read, CompactedLog.clean, append_and_clean, shorten, trim, begin_again, scrub, copy]
)
def test_a_replacement_that_is_refused_for_want_of_a_descriptor_is_completed_later(
    then: Callable[[CompactedLog], None], times: int, ends: str
) -> None:
    twin = written_in_threes(Disk())
    twin.clean()
    then(twin)
    pending = 0
    for begin in range(8):
        disk = BusyDisk(begin, times)
        opened = written_in_threes(disk)
        with suppress(StorageBusyError):
            opened.clean()
        pending += opened.log.state.replacement is not None
        for job in (read, scrub, then) if times > 2 else ():
            with suppress(StorageBusyError):
                job(opened)
        disk.recover()
        then(opened)
        assert opened.log.failure is None
        if ends == "in order":
            opened.directory.close(clean=True)
        elif ends == "by a power cut":
            disk.cut_power()
        if ends != "not":
            disk.restart()
            opened = CompactedLog(disk)
        check_whole(opened)
        assert opened.log.log_start_offset == twin.log.log_start_offset
        if then is not shorten:
            assert latest(in_log(opened)) == latest(in_log(twin))
        if then is not append_and_clean:  # It may have appended twice.
            assert opened.end == twin.end
    assert pending >= 4


def test_records_wait_for_a_descriptor_that_their_segment_takes_its_place() -> None:
    disk = BusyDisk(1, 10**6)
    opened = written_in_threes(disk)
    with pytest.raises(StorageBusyError):
        opened.clean()
    reader = opened.log.reader
    with pytest.raises(BlockingIOError):
        reader.plan_read(Offset(0), 1000, opened.end, may_block=False)
    with pytest.raises(StorageBusyError):
        reader.plan_read(Offset(0), 1000, opened.end)
    with pytest.raises(StorageBusyError):
        reader.unread(Offset(0), opened.end)
    with pytest.raises(StorageBusyError):
        reader.offset_for_timestamp(WallMs(0))
    assert opened.log.cleaner.cleanable(NOW).first_dirty == 0
    assert opened.log.tiering.movable(WallMs(NOW + DAY)) is None
    disk.recover()
    assert reader.plan_read(Offset(0), 1000, opened.end) is not None
    assert opened.log.state.replacement is None
    assert opened.log.state.held == ()


def in_log(opened: CompactedLog) -> list[KeyedRecord]:
    """Return the records without those before the log's start in its first batch."""
    start = opened.log.log_start_offset
    return [record for record in opened.records if record.offset >= start]


def test_a_flipped_bit_in_a_segment_is_found_and_nothing_is_replaced() -> None:
    opened = written_for_crashes(Disk())
    found = opened.log.segments[1]
    opened.disk.flip_bit(found.path, found.size // 2)
    with pytest.raises(CorruptLogError):
        opened.clean()
    assert opened.log.segments[1] is found


def steps(opened: CompactedLog) -> Iterator[object]:
    return iter(opened.log.cleaner.clean(HASHER, MAP_BYTES, NOW))


def test_a_log_that_is_cut_while_it_is_cleaned_stays_cut() -> None:
    opened = written_for_crashes(Disk())
    under_way = steps(opened)
    next(under_way)
    opened.log.truncation.truncate_to(Offset(20), NOW)
    before = opened.records
    list(under_way)
    assert opened.end == 20
    assert latest(opened.records) == latest(before)
    assert opened.log.state.cleaner_point.offset <= 20
    check_whole(opened)


def test_an_active_segment_that_was_empty_at_the_start_of_a_cleaning_is_left_alone() -> None:
    opened = CompactedLog(Disk())
    opened.write((b"key", b"1"))
    opened.roll()
    active = opened.log.segments[-1]
    under_way = steps(opened)
    next(under_way)
    opened.write((b"key", b"2"))
    list(under_way)
    assert opened.log.segments[-1] is active
    assert opened.log.state.cleaner_point.offset == 1
    opened.write((b"key", b"3"))
    assert opened.offsets == [0, 1, 2]
    check_whole(opened)


def test_segments_that_retention_deletes_while_they_are_cleaned_stay_deleted() -> None:
    opened = written_for_crashes(Disk())
    under_way = steps(opened)
    for _ in range(11):
        next(under_way)
    opened.log.retention.advance_log_start(Offset(30))
    list(under_way)
    assert opened.log.log_start_offset == 30
    check_whole(opened)
    opened.clean()
    check_whole(opened)


def test_a_cut_after_the_cleaner_point_takes_the_point_back_for_good() -> None:
    opened = written_for_crashes(Disk())
    opened.clean()
    assert opened.log.state.cleaner_point.offset == 60
    opened.log.truncation.truncate_to(Offset(10), NOW)
    end = opened.end
    assert opened.log.state.cleaner_point.offset <= 10
    opened.disk.cut_power()
    assert CompactedLog(opened.disk).log.state.cleaner_point.offset <= max(end, 10)


def test_a_log_that_is_being_moved_is_not_changed() -> None:
    opened = written_for_crashes(Disk())
    before = opened.log.segments
    opened.log.hold_cleaning(is_held=True)
    with pytest.raises(StorageBusyError, match="moved"):
        opened.clean()
    assert opened.log.segments == before
    opened.log.hold_cleaning(is_held=False)
    opened.clean()
    assert opened.log.segments != before


def test_records_before_the_log_start_do_not_come_back() -> None:
    opened = written_for_crashes(Disk())
    opened.log.retention.advance_log_start(Offset(25))
    before = opened.records
    opened.clean()
    assert opened.log.log_start_offset == 25
    assert latest(opened.records) == latest(before)
    assert min(opened.offsets) >= 25


def test_batches_without_keys_cost_nothing_to_clean_and_stay() -> None:
    opened = CompactedLog(Disk())
    opened.append(stamped_batch(0, records=3))
    opened.log.high_watermark = opened.end
    opened.roll()
    opened.clean()
    assert opened.offsets == [0, 1, 2]


@pytest.mark.parametrize("policy", CleanupPolicy)
def test_a_policy_says_whether_old_records_go_by_age_by_key_or_both(policy: CleanupPolicy) -> None:
    topic = TopicConfig(
        cleanup_policy=policy, retention_ms=1000, segment_ms=5000, max_compaction_lag_ms=300
    )
    opened = CompactedLog(Disk(), LogConfig.of(topic, StorageConfig()))
    config = opened.log.config
    assert config.is_compacted == (policy is not CleanupPolicy.DELETE)
    assert config.segment_ms == (300 if config.is_compacted else 5000)
    for key in (b"a", b"b", b"a"):
        opened.write((key, b"value"))
        opened.roll()
    if config.is_compacted:
        opened.clean()
    assert opened.offsets == ([1, 2] if config.is_compacted else [0, 1, 2])
    opened.log.retention.apply(WallMs(NOW + 2000), opened.end)
    assert opened.offsets == ([1, 2] if policy is CleanupPolicy.COMPACT else [])


def test_an_active_segment_that_is_old_is_ended_once_all_of_it_is_committed() -> None:
    opened = CompactedLog(Disk(), LogConfig(is_compacted=True, segment_ms=1000))
    assert not opened.log.has_old_segment(WallMs(NOW + 5000))
    opened.write((b"key", b"1"))
    assert not opened.log.has_old_segment(WallMs(NOW + 999))
    assert opened.log.has_old_segment(WallMs(NOW + 1000))
    opened.log.high_watermark = Offset(0)
    assert not opened.log.has_old_segment(WallMs(NOW + 1000))


def test_inspection_counts_a_copy_that_was_replacing_segments() -> None:
    disk = Disk()
    opened = written_for_crashes(disk)
    written = opened.records
    for calls in range(1, 400):  # Until the power goes while a copy replaces others.
        disk.cut_power_at = disk.calls + calls
        with suppress(PowerCut):
            opened.clean()
        disk.restart()
        swaps = [name for name in disk.list(PARTITION) if name.endswith(".swap")]
        if swaps:
            break
        opened = CompactedLog(disk, opened.log.config)
    assert swaps
    (partition,) = inspection.partitions(disk, ROOT)
    verified = inspection.verify_partition(disk, partition)
    assert verified.is_sound
    assert verified.log_end_offset == 60
    opened = CompactedLog(disk, opened.log.config)
    assert latest(opened.records) == latest(written)
