"""Closed segments move from an SSD to an HDD and back: what is read, and what any crash leaves."""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from tests.fakes.disk import Disk, Entry, Inode, PowerCut
from tests.fakes.keyed_batches import keyed_batch, records_in
from tests.fakes.log_on_disk import NOW, batches_of
from tests.fakes.stamped_batches import TOPIC_PARTITION, bytes_of, stamped_batch, transactions

from millrace.broker.storage import new_beginning
from millrace.broker.storage.file_system import File
from millrace.broker.storage.log import PartitionLog, abandon
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import (
    DirectoryConfig,
    LogDirectory,
    connect,
    settle_moves,
)
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    StorageBusyError,
    StorageFullError,
)
from millrace.core.ids import BrokerId, MonotonicMs, Offset, TopicPartition, WallMs
from millrace.core.media import Media
from millrace.core.replica.compaction.cleanable import CompactionLags
from millrace.core.replica.compaction.key_hashes import KeyHasher
from millrace.core.replica.tiers import LocalRetention

SSD, HDD = "/ssd", "/hdd"
HOME, TIER = f"{SSD}/{TOPIC_PARTITION}", f"{HDD}/{TOPIC_PARTITION}.tier"
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=300)
BATCHES = [
    stamped_batch(number, value=bytes(150), epoch=number // 4, producer_id=7, sequence=number)
    for number in range(14)
]
"""Three of them fill a segment."""
EXPECTED: dict[int, bytes] = {batch.base_offset: bytes_of(batch) for batch in BATCHES}


class TieredLog:
    """A log whose home is one log directory, with another one for its oldest segments."""

    def __init__(
        self,
        disk: Disk,
        config: LogConfig = CONFIG,
        hdd_id: str = "hdd",
        ballast_bytes: int = 0,
    ) -> None:
        self.disk = disk
        self.ssd = _open(disk, SSD, Media.SSD, "ssd", ballast_bytes)
        self.hdd = _open(disk, HDD, Media.HDD, hdd_id)
        moves = [self.ssd.moves, self.hdd.moves]
        connect(moves)
        settle_moves(moves)
        self.log: PartitionLog = self.ssd.open_partition(TOPIC_PARTITION, config, NOW)
        self.log.high_watermark = self.log.log_end_offset

    def write(self, first: int, end: int) -> None:
        for batch in BATCHES[first:end]:
            self.log.writer.append([batch], NOW)
        self.log.high_watermark = self.log.log_end_offset

    def move_out(self, count: int = 1) -> None:
        for _ in range(count):
            for _ in self.log.tiering.move_out(HDD, self.hdd.identity.directory_id):
                pass

    def bring_back(self, count: int = 1) -> None:
        for _ in range(count):
            for _ in self.log.tiering.bring_back():
                pass

    def check(self, start: int = 0, end: int = 14) -> None:
        """Check what is read, byte for byte, and that every segment is sound."""
        expected = {base: EXPECTED[base] for base in range(start, end)}
        found = {base: data for base, data in batches_of(self.log).items() if base >= start}
        assert found == expected
        for directory in (self.ssd, self.hdd):
            while directory.scrub(1 << 30):
                pass
            assert directory.corrupt == {}

    @property
    def in_tier(self) -> list[int]:
        """First offsets of the segments that lie on the HDD."""
        return [segment.base_offset for segment in self.log.segments if segment.log_dir == HDD]

    @property
    def files(self) -> dict[str, list[int]]:
        """First offsets of the segment files in each of the two folders."""
        paths = [path.rpartition("/") for path in self.disk.files() if path.endswith(".log")]
        return {
            place: [int(name[:20]) for folder, _, name in paths if folder == place]
            for place in (HOME, TIER)
        }

    def close(self) -> None:
        self.ssd.close(clean=True)
        self.hdd.close(clean=True)


def _open(
    disk: Disk, path: str, media: Media, directory_id: str, ballast_bytes: int = 0
) -> LogDirectory:
    return LogDirectory.open(
        disk,
        path,
        DirectoryConfig(media=media, ballast_bytes=ballast_bytes),
        cluster_id="cluster",
        broker_id=BrokerId(1),
        new_directory_id=directory_id,
    )


def tiered(moved: int = 2) -> TieredLog:
    """Return a log of five segments, 0, 3, 6, 9 and 12, the first of them moved."""
    opened = TieredLog(Disk())
    opened.write(0, 14)
    assert [segment.base_offset for segment in opened.log.segments] == [0, 3, 6, 9, 12]
    opened.move_out(moved)
    return opened


def test_segments_are_read_wherever_they_lie() -> None:
    opened = tiered()
    assert opened.in_tier == [0, 3]
    assert opened.files == {HOME: [6, 9, 12], TIER: [0, 3]}
    assert opened.log.tier_bytes == sum(segment.size for segment in opened.log.segments[:2])
    assert [opened.log.log_dir_of(Offset(at)) for at in (0, 5, 6, 13)] == [HDD, HDD, SSD, SSD]
    opened.check()
    assert opened.log.reader.offset_for_timestamp(WallMs(0)) is not None
    assert opened.log.reader.unread(Offset(0), Offset(14)).size == opened.log.size_bytes
    opened.close()

    again = TieredLog(opened.disk)
    assert again.in_tier == [0, 3]
    assert again.ssd.was_clean
    again.check()


class HangingDisk(Disk):
    """A disk whose HDD hangs. A call that would wait for the HDD fails the test."""

    hangs = False

    def _entry(self, path: str) -> Entry:
        assert not (self.hangs and path.startswith(HDD)), path
        return super()._entry(path)


class BusyDisk(Disk):
    """A disk whose process lacks a descriptor at one call that needs one."""

    lack_at = 0

    def take_descriptor(self, path: str) -> None:
        self.lack = errno.EMFILE if self.lack_at == 1 else None
        self.lack_at = max(self.lack_at - 1, 0)
        super().take_descriptor(path)


class VanishingDisk(Disk):
    """A disk on which a file is removed, as by a move, after its directory was listed."""

    vanishing = ""

    def list(self, path: str) -> list[str]:
        names = super().list(path)
        if path == HOME and self.vanishing in names:
            self.unlink(f"{path}/{self.vanishing}")
        return names


class BrokenDisk(Disk):
    """A disk of which one directory cannot be read."""

    broken = "-"

    def list(self, path: str) -> list[str]:
        if path.startswith(self.broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().list(path)

    def size(self, path: str) -> int:
        if path.startswith(self.broken):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return super().size(path)


def test_nothing_at_home_waits_for_an_hdd_that_hangs() -> None:
    disk = HangingDisk()
    opened = TieredLog(disk)
    opened.write(0, 10)
    opened.move_out(2)
    log, ssd = opened.log, opened.ssd
    disk.hangs = True
    disk.is_cold = True
    opened.write(10, 14)
    log.flusher.flush()
    log.writer.roll(NOW)
    log.flusher.checkpoint()
    ssd.checkpoint(MonotonicMs(0))
    assert log.tiering.movable(NOW) is not None
    plan = log.reader.plan_read(Offset(6), 1 << 20, Offset(14))
    assert plan is not None
    assert log.reader.read(plan) == b"".join(EXPECTED[at] for at in range(6, 9))
    with pytest.raises(BlockingIOError):  # So a thread of the HDD reads.
        log.reader.plan_read(Offset(1), 1000, Offset(14), may_block=False)
    assert log.log_dir_of(Offset(1)) == HDD
    assert log.reader.unread(Offset(6), Offset(14)).size > 0
    while ssd.scrub(1 << 30):
        pass
    assert log.retention.apply(NOW, Offset(14)) == 0
    log.retention.advance_log_start(Offset(4))
    log.config = replace(CONFIG, retention_records=5)
    assert log.retention.apply(NOW, Offset(14)) == 2
    assert log.log_start_offset == 9
    assert log.has_leftovers
    log.truncation.truncate_to(Offset(11), NOW)
    opened.write(11, 14)
    ssd.let_go([TOPIC_PARTITION])
    ssd.retired.delete([TOPIC_PARTITION], NOW)
    ssd.retired.empty_trash(WallMs(NOW + 90_000_000))
    disk.hangs = False
    opened.hdd.retired.retire_tiers([TOPIC_PARTITION], NOW, False)
    opened.hdd.retired.empty_trash(WallMs(NOW + 90_000_000))
    assert not _names_of(disk)


def test_a_folder_whose_name_was_not_flushed_is_flushed_by_the_next_try() -> None:
    opened = TieredLog(Disk())
    opened.write(0, 14)
    opened.log.flusher.flush()
    opened.disk.make_directory(TIER)  # As a try left it whose flush was refused.
    opened.move_out(2)
    assert TIER.rpartition("/")[2] in opened.disk.root.names["hdd"].durable
    opened.check()


def test_the_active_segment_and_what_is_not_committed_stay() -> None:
    opened = TieredLog(Disk())
    opened.write(0, 14)
    opened.log.high_watermark = Offset(8)
    opened.move_out(5)
    assert opened.in_tier == [0, 3]
    opened.log.high_watermark = Offset(14)
    opened.move_out(5)
    assert opened.in_tier == [0, 3, 6, 9]
    opened.check()


def test_a_reader_of_a_segment_that_has_moved_gets_it_from_its_new_place() -> None:
    opened = tiered(0)
    old = opened.log.segments[0]
    plan = opened.log.reader.plan_read(Offset(0), 10_000, Offset(14))
    assert plan is not None
    opened.move_out()
    assert old.is_retired
    assert opened.log.reader.read(plan) == b""  # As if it was deleted: the reader plans again.
    opened.check()


def test_aborted_transactions_are_known_wherever_their_segments_lie() -> None:
    opened = TieredLog(Disk())
    for batch in transactions(9):
        opened.log.writer.append([batch], NOW)
    opened.log.high_watermark = opened.log.log_end_offset
    everything = Offset(0), opened.log.log_end_offset
    aborted = opened.log.reader.aborted(*everything)
    assert len(aborted) == 4
    opened.move_out(2)
    assert len(opened.in_tier) == 2
    assert opened.log.reader.aborted(*everything) == aborted
    opened.close()
    opened.disk.restart()
    again = TieredLog(opened.disk)
    assert again.log.reader.aborted(*everything) == aborted
    again.bring_back(2)
    assert again.in_tier == []
    assert again.log.reader.aborted(*everything) == aborted


def test_segments_come_back_the_newest_first() -> None:
    opened = tiered(3)
    opened.bring_back()
    assert opened.in_tier == [0, 3]
    opened.check()
    opened.bring_back(5)
    assert opened.files == {HOME: [0, 3, 6, 9, 12], TIER: []}
    assert opened.log.tier is None
    opened.check()
    opened.close()
    opened.disk.remove(HDD)  # It is not needed any more.
    TieredLog(opened.disk, hdd_id="another").check()


def test_retention_deletes_from_the_tier_without_waiting_for_its_disk() -> None:
    opened = tiered(3)
    opened.log.retention.advance_log_start(Offset(7))
    assert opened.files[TIER] == [0, 3, 6]
    opened.check(7)
    opened.log.tiering.remove_leftovers()
    assert opened.files[TIER] == [6]
    opened.log.retention.advance_log_start(Offset(10))
    opened.log.flusher.checkpoint()
    opened.ssd.checkpoint(MonotonicMs(0))
    opened.disk.restart()  # Before the leftover was removed.
    again = TieredLog(opened.disk)
    assert again.files[TIER] == []
    again.check(10)
    again.write(14, 14)
    again.move_out(5)
    assert again.in_tier == [9]
    again.check(10)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_tier_that_retention_has_emptied_ends_and_its_disk_may_go(is_refused: bool) -> None:
    opened = tiered(2)
    opened.log.retention.advance_log_start(Offset(7))
    opened.log.tiering.remove_leftovers()
    if is_refused:
        opened.disk.lack = errno.EMFILE
        with pytest.raises(StorageBusyError, match="ending the tier"):
            opened.bring_back()
        opened.disk.lack = None
        assert opened.log.tier is not None
    opened.bring_back()
    assert opened.log.tier is None
    opened.check(start=7)
    opened.close()
    opened.disk.remove(HDD)
    again = TieredLog(opened.disk, hdd_id="another")
    again.check(start=7)
    again.move_out()
    assert again.in_tier == [6]


def test_a_leftover_is_not_taken_for_the_segment_that_came_back() -> None:
    opened = tiered(1)
    state = opened.log.tiering.state
    state.tier_leftovers.append(f"{HOME}/{0:020d}.log")  # Its removal was refused.
    opened.bring_back()
    opened.log.tiering.remove_leftovers()
    opened.check()


def test_a_copy_on_its_way_home_is_not_taken_for_a_later_segment_of_that_offset() -> None:
    opened = tiered(3)
    steps = opened.log.tiering.bring_back()
    next(steps)
    opened.log.truncation.truncate_to(Offset(4), NOW)
    opened.write(4, 6)
    opened.log.writer.roll(NOW)
    assert opened.log.segments[-1].base_offset == 6
    opened.write(6, 10)
    for _ in steps:
        pass
    opened.write(10, 14)
    opened.check()
    opened.close()
    TieredLog(opened.disk).check()


def test_what_a_move_has_left_is_not_a_part_of_a_later_segment() -> None:
    opened = tiered(3)
    steps = opened.log.tiering.bring_back()
    next(steps)
    steps.close()
    opened.log.truncation.truncate_to(Offset(4), NOW)
    opened.write(4, 6)
    opened.log.writer.roll(NOW)
    opened.write(6, 14)
    opened.check()
    opened.close()
    TieredLog(opened.disk).check()


@pytest.mark.parametrize("at", [2, 4, 7, 13])
def test_a_log_that_is_cut_goes_on(at: int) -> None:
    opened = tiered(3)
    opened.log.truncation.truncate_to(Offset(at), NOW)
    opened.check(0, at)
    for batch in BATCHES[at:]:
        opened.log.writer.append([batch], NOW)
    opened.log.high_watermark = Offset(14)
    opened.check()
    opened.move_out(5)
    assert opened.in_tier == [segment.base_offset for segment in opened.log.segments[:-1]]
    opened.check()
    opened.close()
    again = TieredLog(opened.disk)
    again.check()
    again.bring_back(9)
    assert again.in_tier == []
    again.check()


def test_a_log_that_starts_over_leaves_nothing_in_its_tier() -> None:
    opened = tiered(3)
    opened.log.truncation.start_over(Offset(100))
    assert opened.log.tier is None
    opened.log.tiering.remove_leftovers()
    assert opened.files == {HOME: [100], TIER: []}
    opened.close()
    assert TieredLog(opened.disk).log.log_start_offset == 100


def test_a_log_starts_over_while_the_disk_of_its_tier_hangs_or_is_missing() -> None:
    disk = HangingDisk()
    opened = TieredLog(disk)
    opened.write(0, 14)
    opened.move_out(3)
    new_beginning.decide(disk, HOME, TOPIC_PARTITION, Offset(5))
    hanging, twin = opened.log, disk.copy()
    disk.hangs = True
    hanging.truncation.start_over(Offset(100))
    assert (hanging.log_start_offset, hanging.tier) == (100, None)
    disk.hangs = False
    hanging.tiering.remove_leftovers()
    assert opened.files == {HOME: [100], TIER: []}

    twin.remove(HDD)
    again = TieredLog(twin, hdd_id="another")
    assert (again.log.log_start_offset, again.log.log_end_offset) == (5, 5)


@pytest.mark.parametrize("lack_at", range(1, 16))
def test_a_start_that_was_refused_is_repeated_and_leaves_nothing(lack_at: int) -> None:
    disk = BusyDisk()
    opened = TieredLog(disk)
    opened.write(0, 14)
    opened.move_out(3)
    disk.lack_at = lack_at
    with pytest.raises(StorageBusyError):
        opened.log.truncation.start_over(Offset(100))
    opened.log.truncation.start_over(Offset(100))
    opened.log.tiering.remove_leftovers()
    assert opened.files == {HOME: [100], TIER: []}
    opened.close()
    assert TieredLog(disk).log.log_start_offset == 100


def test_a_file_that_a_move_removes_meanwhile_does_not_fail_the_disk() -> None:
    disk = VanishingDisk()
    opened = TieredLog(disk)
    opened.write(0, 14)
    disk.vanishing = f"{0:020d}.log"
    opened.log.truncation.start_over(Offset(100))
    assert (opened.log.failure, opened.log.log_start_offset) == (None, 100)


@pytest.mark.parametrize("is_opened_again", [False, True])
def test_what_was_in_a_tier_does_not_count_in_the_next_one(is_opened_again: bool) -> None:
    opened = TieredLog(Disk())
    for batch in BATCHES[6:]:
        batch_of_later = stamped_batch(batch.base_offset + 94, value=bytes(150))
        if not opened.log.log_end_offset:
            opened.log.truncation.start_over(Offset(100))
        opened.log.writer.append([batch_of_later], NOW)
    opened.log.high_watermark = opened.log.log_end_offset
    opened.move_out(2)
    assert opened.in_tier == [100, 103]
    opened.log.truncation.start_over(Offset(0))  # The leader has lost its records.
    opened.write(0, 14)
    if is_opened_again:
        opened.ssd.close_partition(TOPIC_PARTITION)
        opened.log = opened.ssd.open_partition(TOPIC_PARTITION, CONFIG, NOW)
        opened.log.high_watermark = opened.log.log_end_offset
        assert not opened.disk.exists(TIER)
    opened.move_out(2)
    assert opened.files == {HOME: [6, 9, 12], TIER: [0, 3]}
    opened.log.tiering.remove_leftovers()
    opened.check()


def test_what_a_log_that_started_over_has_left_goes_with_its_topic() -> None:
    opened = tiered(2)
    opened.log.truncation.start_over(Offset(100))
    _delete(opened)
    opened.hdd.retired.retire_tiers(
        opened.hdd.retired.left_of([TOPIC_PARTITION.topic_id]), NOW, False
    )
    later = WallMs(NOW + 90_000_000)
    opened.ssd.retired.empty_trash(later)
    opened.hdd.retired.empty_trash(later)
    assert not _names_of(opened.disk)


@pytest.mark.parametrize("broken", [HOME, TIER, f"{TIER}/{0:020d}.log"])
def test_a_log_that_cannot_be_opened_says_whose_disk_it_is(broken: str) -> None:
    disk = BrokenDisk()
    opened = TieredLog(disk)
    opened.write(0, 14)
    opened.move_out(2)
    opened.ssd.close_partition(TOPIC_PARTITION)
    disk.broken = broken
    folder = HOME if broken == HOME else TIER
    with pytest.raises(LogDirFailedError, match=f"opening {folder} failed") as refused:
        opened.ssd.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    assert refused.value.log_dir == folder.rpartition("/")[0]


@pytest.mark.parametrize("was_cut", [False, True])
def test_a_log_whose_tier_is_gone_or_exchanged_is_refused_and_not_shortened(was_cut: bool) -> None:
    for harm in (_remove_identity, _remove_folder, _remove_segment, _damage_note, _remove_note):
        opened = tiered(3)
        if was_cut:
            opened.log.truncation.truncate_to(Offset(7), NOW)
        opened.close()
        before = opened.disk.contents(f"{HOME}/leader-epochs")
        harm(opened.disk)
        with pytest.raises(CorruptLogError):
            TieredLog(opened.disk, hdd_id="another")
        assert opened.disk.contents(f"{HOME}/leader-epochs") == before


def _remove_identity(disk: Disk) -> None:
    disk.remove(HDD)  # An empty disk in its place gets another id.


def _remove_folder(disk: Disk) -> None:
    disk.remove(TIER)


def _remove_segment(disk: Disk) -> None:
    disk.remove(f"{TIER}/{3:020d}.log")


def _damage_note(disk: Disk) -> None:
    disk.flip_bit(f"{HOME}/tier", 60)


def _remove_note(disk: Disk) -> None:
    disk.remove(f"{HOME}/tier")


def test_a_tier_that_vanishes_is_damage_and_no_deletion() -> None:
    opened = tiered(2)
    plan = opened.log.reader.plan_read(Offset(0), 10_000, Offset(14))
    assert plan is not None
    opened.disk.remove(TIER)
    with pytest.raises(CorruptLogError):
        opened.log.reader.read(plan)
    asks: list[Callable[[PartitionLog], object]] = [
        lambda log: log.reader.plan_read(Offset(1), 10, Offset(14)),
        lambda log: log.tier_scrubber.scrub(1 << 30),
        lambda log: log.reader.unread(Offset(1), Offset(14)),
        lambda log: log.reader.offset_for_timestamp(WallMs(0)),
        lambda log: list(log.tiering.bring_back()),
    ]
    for ask in asks:
        opened = tiered(2)
        opened.disk.remove(TIER)
        with pytest.raises(CorruptLogError, match=TIER):
            ask(opened.log)


def test_each_disk_is_scrubbed_by_itself_and_damage_is_told_of_the_log() -> None:
    opened = tiered(2)
    opened.disk.flip_bit(f"{TIER}/{3:020d}.log", 300)
    while opened.ssd.scrub(300):
        pass
    assert opened.ssd.corrupt == {}
    while opened.hdd.scrub(300):
        pass
    assert opened.ssd.corrupt.keys() == {TOPIC_PARTITION}
    assert opened.hdd.corrupt == {}
    opened = tiered(2)
    opened.disk.flip_bit(f"{HOME}/{3:020d}.index", 20)  # All indexes are at home.
    while opened.ssd.scrub(300):
        pass
    opened.check()
    assert not opened.log.segments[1].index.is_damaged


def test_a_damaged_segment_is_found_before_its_original_is_removed() -> None:
    opened = tiered(0)
    opened.disk.flip_bit(f"{HOME}/{0:020d}.log", 300)
    with pytest.raises(CorruptLogError, match="damaged"):
        opened.move_out()
    assert opened.files == {HOME: [0, 3, 6, 9, 12], TIER: []}


def test_a_full_disk_refuses_the_move_and_appends_go_on() -> None:
    opened = TieredLog(Disk())
    opened.write(0, 10)
    used = sum(opened.disk.size(path) for path in opened.disk.files())
    opened.disk.capacity = used + 500
    with pytest.raises(StorageFullError, match="not moved"):
        opened.move_out()
    opened.disk.capacity = None
    opened.write(10, 14)
    opened.check()
    opened.move_out()
    opened.check()


class SmallSsd(Disk):
    """A disk whose SSD takes so many bytes."""

    ssd_bytes = 2**62
    _used_last = ""

    def inode_of(self, path: str) -> Inode:
        self._used_last = path
        return super().inode_of(path)

    def free_space(self, path: str) -> int:
        self._used_last = path
        return self.room()

    def room(self) -> int:
        if not self._used_last.startswith(SSD):
            return 2**62
        used = sum(self.size(path) for path in self.files() if path.startswith(SSD))
        return max(self.ssd_bytes - used, 0)


def test_a_full_ssd_has_room_again_when_its_segments_have_moved() -> None:
    disk = SmallSsd()
    opened = TieredLog(disk, ballast_bytes=2000)
    disk.ssd_bytes = 6000
    with pytest.raises(StorageFullError):
        opened.write(0, 14)
    end = opened.log.log_end_offset
    assert 6 < end < 14
    opened.log.high_watermark = end
    opened.move_out()
    assert opened.in_tier == [0]
    while end < 14:
        try:
            opened.write(end, 14)
        except StorageFullError:
            opened.log.high_watermark = opened.log.log_end_offset
            opened.move_out()
        end = opened.log.log_end_offset
    opened.check()
    opened.close()
    disk.restart()
    TieredLog(disk, ballast_bytes=2000).check()


def test_a_disk_that_fails_during_a_move_does_not_fail_the_log() -> None:
    opened = tiered(1)
    opened.disk.fail_flush_at = opened.disk.flushes + 1
    with pytest.raises(LogDirFailedError, match=HDD):
        opened.move_out()
    assert opened.log.failure is None
    opened.check()


class LackingDisk(Disk):
    """A disk in whose process a flush of the home finds no descriptor, so many times."""

    refusals = 0

    def fsync_directory(self, path: str) -> None:
        if path == HOME and self.refusals:
            self.refusals -= 1
            raise OSError(errno.EMFILE, "no descriptor", path)
        super().fsync_directory(path)


@pytest.mark.parametrize("moved", [0, 1])
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("refusals", [1, 2])
def test_a_place_that_was_not_said_for_certain_takes_no_segment_away(
    moved: int, power: bool, refusals: int
) -> None:
    disk = LackingDisk()
    opened = TieredLog(disk)
    opened.write(0, 14)
    opened.move_out(moved)
    opened.log.flusher.flush()
    disk.refusals = refusals
    error = StorageBusyError if refusals == 1 else LogDirFailedError
    with pytest.raises(error):
        opened.move_out()
    if refusals == 1:
        opened.check()
        assert opened.in_tier == [0, 3][:moved]
    if power:
        disk.cut_power()
    else:
        disk.restart()
    again = TieredLog(disk)
    again.check()
    again.move_out(9)
    assert again.in_tier == [0, 3, 6, 9]
    again.check()


def test_a_log_that_is_being_moved_keeps_its_segments() -> None:
    opened = tiered(0)
    opened.log.hold_cleaning(is_held=True)
    with pytest.raises(StorageBusyError):
        opened.move_out()
    opened.log.hold_cleaning(is_held=False)
    opened.move_out()
    assert opened.in_tier == [0]


def _delete(opened: TieredLog) -> None:
    for path, there in opened.ssd.let_go([TOPIC_PARTITION]).items():
        assert path == HDD
        opened.hdd.retired.retire_tiers(there, NOW, False)
    opened.ssd.retired.delete([TOPIC_PARTITION], NOW)


def test_a_log_that_is_deleted_goes_into_the_trash_of_both_disks() -> None:
    opened = tiered(2)
    _delete(opened)
    assert not opened.disk.exists(HOME)
    assert not opened.disk.exists(TIER)
    later = WallMs(NOW + 90_000_000)
    assert (opened.ssd.retired.empty_trash(later), opened.hdd.retired.empty_trash(later)) == (1, 1)
    assert not _names_of(opened.disk)


def test_segments_that_were_set_aside_go_with_their_topic() -> None:
    opened = tiered(2)
    tiers = opened.ssd.tiers_of([TOPIC_PARTITION])
    kept = opened.ssd.retired.set_aside(TOPIC_PARTITION, NOW)
    opened.hdd.retired.retire_tiers(tiers[HDD], NOW, True)
    assert opened.disk.exists(f"{kept}/tier")
    assert opened.hdd.retired.damaged == [f"{HDD}/{TOPIC_PARTITION}.{NOW}.damaged"]
    assert opened.hdd.retired.left_of([TOPIC_PARTITION.topic_id]) == [TOPIC_PARTITION]
    log = opened.ssd.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    assert (log.log_end_offset, log.tier) == (0, None)
    _delete(opened)
    opened.hdd.retired.retire_tiers(
        opened.hdd.retired.left_of([TOPIC_PARTITION.topic_id]), NOW, False
    )
    assert opened.hdd.retired.damaged == []
    later = WallMs(NOW + 90_000_000)
    opened.ssd.retired.empty_trash(later)
    opened.hdd.retired.empty_trash(later)
    assert not _names_of(opened.disk)


def test_segments_whose_log_is_lost_are_known_until_it_is_opened() -> None:
    opened = tiered(2)
    opened.close()
    opened.disk.remove(SSD)
    ssd = _open(opened.disk, SSD, Media.SSD, "another")
    hdd = _open(opened.disk, HDD, Media.HDD, "hdd")
    connect([ssd.moves, hdd.moves])
    assert hdd.retired.left_of([TOPIC_PARTITION.topic_id]) == [TOPIC_PARTITION]
    ssd.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    assert hdd.retired.left_of([TOPIC_PARTITION.topic_id]) == []
    assert not opened.disk.exists(TIER)


def _names_of(disk: Disk) -> list[str]:
    return [path for each in (SSD, HDD) for path in disk.list(each) if str(TOPIC_PARTITION) in path]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_a_move_that_is_abandoned_leaves_nothing(is_deleted: bool) -> None:
    for moved in (0, 1):
        opened = tiered(moved)
        move = opened.log.tiering.move_out(HDD, opened.hdd.identity.directory_id)
        next(move)
        if is_deleted:
            _delete(opened)
        abandon(move)
        copies = [path for path in opened.disk.files() if ".copy" in path]
        assert [path for path in copies if ".deleted/" not in path] == []
        assert opened.disk.exists(TIER) is not is_deleted
        abandon(move)
        abandon(opened.log.tiering.bring_back())
        if not is_deleted:
            opened.check()
            opened.move_out()
            opened.check()


def test_a_compacted_log_is_cleaned_on_both_disks() -> None:
    config = LogConfig(
        is_compacted=True, index_interval_bytes=200, lags=CompactionLags(min_dirty_ratio=0.0)
    )
    opened = TieredLog(Disk(), config)
    for segment in range(6):
        for number in range(4):
            cells = (b"key-%d" % ((segment + number) % 5), b"%d-%d" % (segment, number))
            opened.log.writer.append([keyed_batch(opened.log.log_end_offset, [cells])], NOW)
        opened.log.writer.roll(NOW)
    opened.log.high_watermark = opened.log.log_end_offset
    opened.move_out(3)
    before = records_in(opened.log)
    for _ in opened.log.cleaner.clean(KeyHasher(b"secret"), 1 << 20, NOW):
        pass
    kept = {record.key: record for record in before}
    expected = sorted(kept.values(), key=lambda record: record.offset)
    assert records_in(opened.log) == expected
    assert opened.in_tier == [0]
    assert [segment.base_offset for segment in opened.log.segments] == [0, 12, 24]
    opened.close()
    again = TieredLog(opened.disk, config)
    assert records_in(again.log) == expected
    again.move_out(2)
    assert again.in_tier == [0, 12]
    for _ in again.log.cleaner.clean(KeyHasher(b"secret"), 1 << 20, NOW):
        pass
    assert records_in(again.log) == expected


def test_a_log_that_the_hdd_has_failed_keeps_the_ssd_from_nothing() -> None:
    config = LogConfig(is_compacted=True, lags=CompactionLags(min_dirty_ratio=0.0), checkpoint_ms=0)
    opened = TieredLog(Disk(), config)
    for number in range(6):
        cells = [(b"key-%d" % (number % 2), b"%d" % number)]
        opened.log.writer.append([keyed_batch(number, cells)], NOW)
        opened.log.writer.roll(NOW)
    opened.log.high_watermark = opened.log.log_end_offset
    opened.move_out(3)
    beside = TopicPartition(TOPIC_PARTITION.topic_id, TOPIC_PARTITION.partition + 1)
    other: PartitionLog = opened.ssd.open_partition(beside, config, NOW)
    for log in (opened.log, other):
        log.writer.append([keyed_batch(log.log_end_offset, [(b"key", b"last")])], NOW)
    opening = opened.disk.open

    def of_two_disks(path: str, *, create: bool = False, writable: bool = False) -> File:
        if create and path.startswith(f"{HDD}/"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return opening(path, create=create, writable=writable)

    opened.disk.open = of_two_disks  # type: ignore[method-assign,assignment]
    with pytest.raises(LogDirFailedError) as raised:
        for _ in opened.log.cleaner.clean(KeyHasher(b"secret"), 1 << 20, NOW):
            pass
    assert raised.value.log_dir == opened.log.failed_log_dir == HDD

    opened.ssd.checkpoint(MonotonicMs(0))
    assert other.flushed_offset == 1
    while opened.ssd.scrub(1 << 30):
        pass
    with pytest.raises(LogDirFailedError):
        opened.hdd.scrub(1 << 30)
    opened.ssd.close(clean=True)
    assert opened.log.is_closed
    assert other.is_closed
    opened.hdd.close(clean=False)
    opened.disk.open = opening  # type: ignore[method-assign]
    again = _open(opened.disk, SSD, Media.SSD, "ssd")
    assert not again.was_clean  # The end of the failed log may not be durable.


def test_segments_that_move_while_a_log_is_cleaned_are_cleaned_all_the_same() -> None:
    config = LogConfig(
        is_compacted=True,
        segment_bytes=1,  # So that each segment is a group.
        index_interval_bytes=200,
        lags=CompactionLags(min_dirty_ratio=0.0),
    )
    for moves_at in range(14):
        opened = TieredLog(Disk(), config)
        for number in range(7):
            cells = [(b"key-%d" % (number % 3), b"%d" % number), (b"key", b"%d" % number)]
            opened.log.writer.append([keyed_batch(opened.log.log_end_offset, cells)], NOW)
            opened.log.writer.roll(NOW)
        opened.log.high_watermark = opened.log.log_end_offset
        opened.move_out()
        latest = {record.key: record for record in records_in(opened.log)}
        cleaning = opened.log.cleaner.clean(KeyHasher(b"secret"), 1 << 20, NOW)
        for _ in zip(range(moves_at), cleaning, strict=False):
            pass
        opened.move_out()  # The oldest one at home, unless the cleaning has it in hand.
        opened.bring_back(moves_at % 3)
        for _ in cleaning:
            pass
        assert opened.log.state.cleaner_point.offset == opened.log.log_end_offset, moves_at
        expected = sorted(latest.values(), key=lambda record: record.offset)
        assert records_in(opened.log) == expected, moves_at
        opened.move_out(7)
        assert records_in(opened.log) == expected, moves_at
        opened.close()
        assert records_in(TieredLog(opened.disk, config).log) == expected, moves_at


Story = Callable[[TieredLog], None]


def _out(opened: TieredLog) -> None:
    opened.move_out(2)


def _back(opened: TieredLog) -> None:
    opened.bring_back(2)


def _out_again(opened: TieredLog) -> None:
    opened.bring_back()
    opened.move_out(2)


def _cut(opened: TieredLog) -> None:
    opened.log.truncation.truncate_to(Offset(4), NOW)
    opened.write(4, 14)


def _trim(opened: TieredLog) -> None:
    opened.log.retention.advance_log_start(Offset(7))
    opened.log.tiering.remove_leftovers()


def crashes(
    moved: int, story: Callable[[TieredLog], object], *, power: bool
) -> Iterator[tuple[int, Disk]]:
    """Crash at one step of a story after the other; yield each step, and the disk after it."""
    for at in itertools.count(1):
        opened = tiered(moved)
        opened.log.flusher.checkpoint()
        opened.ssd.checkpoint(MonotonicMs(0))
        disk = opened.disk
        disk.cut_power_at = disk.calls + at
        try:
            story(opened)
        except PowerCut:
            if power:
                disk.cut_power()
            else:
                disk.restart()
            yield at, disk
        else:
            return


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("story", [_out, _back, _out_again, _cut, _trim])
def test_after_a_crash_at_any_step_the_whole_log_is_there_once(story: Story, power: bool) -> None:
    at = 0
    for at, disk in crashes(3 if story is not _out else 1, story, power=power):
        again = TieredLog(disk)
        end = again.log.log_end_offset
        assert end == 14 or (story is _cut and end >= 4), at
        again.check(again.log.log_start_offset, end)
        counted = {segment.base_offset: segment.folder for segment in again.log.segments}
        found = again.files
        assert sorted(found[HOME] + found[TIER]) == sorted(counted), at
        assert all(base in found[folder] for base, folder in counted.items()), at
        again.write(end, 14)
        again.move_out(9)
        again.check(again.log.log_start_offset)
        again.close()
        TieredLog(disk).check(again.log.log_start_offset)
    assert at > 5


def test_how_much_stays_on_the_ssd_is_the_topics_choice() -> None:
    opened = tiered(0)
    opened.log.config = LogConfig(local_retention=LocalRetention(ms=1000))
    found = opened.log.tiering.movable(NOW)
    assert found is not None
    assert (found.base_offset, found.is_due) == (0, True)  # Its records are of the year 1970.
    opened.log.config = LogConfig(local_retention=LocalRetention(ms=-1))
    found = opened.log.tiering.movable(NOW)
    assert found is not None
    assert not found.is_due


def test_a_folder_that_does_not_count_goes_into_the_trash_when_its_log_is_opened() -> None:
    for at, disk in crashes(1, TieredLog.bring_back, power=True):
        again = TieredLog(disk)
        again.check()
        is_there = disk.exists(TIER)
        assert is_there == (again.log.tier is not None), at
        again.bring_back()
        again.check()


def _move_whole(opened: TieredLog) -> PartitionLog:
    """Move the log to the HDD as a whole, as when its topic asks for that media."""
    copy = opened.hdd.moves.begin_copy(opened.log)
    while copy.advance():
        pass
    opened.log.flusher.checkpoint()
    taken = opened.hdd.moves.take_in(copy, opened.ssd.moves, CONFIG, NOW)
    opened.ssd.moves.part_with(TOPIC_PARTITION, NOW)
    opened.hdd.moves.settle(TOPIC_PARTITION)
    opened.hdd.retired.retire_tiers([TOPIC_PARTITION], NOW, False)
    return taken


def test_a_log_moves_to_another_directory_with_what_lies_in_its_tier() -> None:
    opened = tiered(3)
    taken = _move_whole(opened)
    assert batches_of(taken) == {base: EXPECTED[base] for base in range(14)}
    assert taken.tier is None
    assert not opened.disk.exists(TIER)
    assert not opened.disk.exists(HOME)


@pytest.mark.parametrize("power", [False, True])
def test_after_a_crash_while_a_tiered_log_moves_as_a_whole_one_log_has_everything(
    power: bool,
) -> None:
    at = 0
    for at, disk in crashes(3, _move_whole, power=power):
        ssd, hdd = _open(disk, SSD, Media.SSD, "ssd"), _open(disk, HDD, Media.HDD, "hdd")
        connect([ssd.moves, hdd.moves])
        settle_moves([ssd.moves, hdd.moves])
        (holder,) = (each for each in (ssd, hdd) if TOPIC_PARTITION in each.found)
        log = holder.open_partition(TOPIC_PARTITION, CONFIG, NOW)
        assert batches_of(log) == {base: EXPECTED[base] for base in range(14)}, at
    assert at > 10


def test_nothing_is_written_where_the_log_directory_is_not_any_more() -> None:
    opened = tiered(1)
    opened.hdd.check_there()
    opened.disk.remove(HDD)
    with pytest.raises(LogDirFailedError, match="not the log directory any more"):
        opened.hdd.check_there()
