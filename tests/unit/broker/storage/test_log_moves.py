"""A log moves to another log directory: it is there whole afterwards, and after any crash once."""

import errno
from collections.abc import Sequence
from contextlib import suppress

import pytest
from tests.fakes.disk import Disk, PowerCut
from tests.fakes.stamped_batches import TOPIC_PARTITION, bytes_of, stamped_batch, transactions

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import DirectoryConfig, LogDirectory, settle_moves
from millrace.broker.storage.log_directory.log_copy import LogCopy
from millrace.core.errors import (
    CorruptLogError,
    MillraceError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import BrokerId, MonotonicMs, Offset, WallMs

NOW = WallMs(1_000_000)
CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=300)
BATCHES = [
    stamped_batch(number, value=bytes(150), epoch=number // 4, producer_id=7, sequence=number)
    for number in range(12)
]
LATER = BATCHES[10]


def open_directory(disk: Disk, path: str) -> LogDirectory:
    return LogDirectory.open(
        disk,
        path,
        DirectoryConfig(ballast_bytes=0),
        cluster_id="cluster",
        broker_id=BrokerId(1),
        new_directory_id=f"id of {path}",
    )


def open_both(disk: Disk) -> tuple[LogDirectory, LogDirectory]:
    """Open two log directories of a broker as it does when it starts."""
    both = open_directory(disk, "/old"), open_directory(disk, "/new")
    settle_moves([side.moves for side in both])
    return both


def written(source: LogDirectory, *, count: int = 10, start: int = 0) -> PartitionLog:
    """Return a log of several segments, whose first records may be gone."""
    log = source.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    for batch in BATCHES[:count]:
        log.writer.append([batch], NOW)
    log.flusher.checkpoint()
    log.retention.advance_log_start(Offset(start))
    return log


def exhaust(copy: LogCopy) -> None:
    while copy.advance():
        pass


def copied(target: LogDirectory, log: PartitionLog) -> LogCopy:
    copy = target.moves.begin_copy(log)
    exhaust(copy)
    return copy


def moved(source: LogDirectory, target: LogDirectory, copy: LogCopy) -> PartitionLog:
    """Do all that comes once nothing is appended any more, as the shell does."""
    copy.log.flusher.checkpoint()
    taken = target.moves.take_in(copy, source.moves, CONFIG, NOW)
    source.moves.part_with(TOPIC_PARTITION, NOW)
    target.moves.settle(TOPIC_PARTITION)
    return taken


def contents(log: PartitionLog) -> bytes:
    read = b""
    offset = log.log_start_offset
    while (plan := log.reader.plan_read(offset, 1 << 20, log.log_end_offset)) is not None:
        read += log.reader.read(plan)
        offset = plan.end_offset
    return read


def joined(first: int = 0, last: int = 10) -> bytes:
    return b"".join(map(bytes_of, BATCHES[first:last]))


def holders(directories: Sequence[LogDirectory]) -> list[str]:
    return [directory.path for directory in directories if TOPIC_PARTITION in directory.found]


def test_a_log_is_the_same_in_another_directory_and_goes_on_there() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source, start=6)
    log.high_watermark = Offset(9)
    expected, states = contents(log), log.producer_states.snapshot()
    taken = moved(source, target, copied(target, log))
    assert contents(taken) == expected
    assert (taken.log_start_offset, taken.log_end_offset) == (6, 10)
    assert taken.leader_epochs.entries == log.leader_epochs.entries
    assert taken.producer_states.snapshot() == states
    assert taken.high_watermark == 9
    assert (taken.truncated_bytes, taken.mended) == (0, ())
    taken.writer.append([BATCHES[10]], NOW)
    taken.flusher.flush()

    disk.cut_power()
    both = open_both(disk)
    assert holders(both) == ["/new"]
    again = both[1].open_partition(TOPIC_PARTITION, CONFIG, NOW)
    assert contents(again) == joined(6, 11)
    assert [name for name in disk.list("/new") if "moving" in name] == []
    assert [name for name in disk.list("/old") if name.endswith(".deleted")]


def test_a_moved_log_knows_its_transactions() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = source.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    for batch in transactions(5):
        log.writer.append([batch], NOW)
    aborted = log.reader.aborted(Offset(0), log.log_end_offset)
    assert len(aborted) == 2
    taken = moved(source, target, copied(target, log))
    assert taken.reader.aborted(Offset(0), taken.log_end_offset) == aborted
    assert taken.undecided == log.undecided
    assert taken.undecided.last_stable_offset(taken.log_end_offset) == 12


def test_what_is_written_while_a_log_is_copied_is_copied() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source, count=3)
    copy = target.moves.begin_copy(log)
    for batch in BATCHES[3:]:
        copy.advance()
        log.writer.append([batch], NOW)
    assert copy.missing_bytes > 0
    assert contents(moved(source, target, copy)) == joined(last=12)


def test_what_is_cut_or_deleted_while_a_log_is_copied_goes_from_the_copy() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source)
    copy = copied(target, log)
    log.truncation.truncate_to(Offset(5), NOW)
    others = [
        stamped_batch(number, value=b"x" * 150, epoch=5, producer_id=8, sequence=number - 5)
        for number in range(5, 9)
    ]
    for batch in others:
        log.writer.append([batch], NOW)
    log.retention.advance_log_start(Offset(4))
    expected = contents(log)
    taken = moved(source, target, copy)
    assert contents(taken) == expected
    assert taken.leader_epochs.entries == log.leader_epochs.entries
    assert taken.producer_states.snapshot() == log.producer_states.snapshot()


def test_a_log_that_is_begun_anew_while_it_is_copied_is_copied_anew() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source)
    copy = copied(target, log)
    log.truncation.start_over(Offset(11))
    log.writer.append([BATCHES[11]], NOW)
    taken = moved(source, target, copy)
    assert (taken.log_start_offset, contents(taken)) == (11, joined(11, 12))


def story(disk: Disk, said: list[str]) -> None:
    """Move a log, and append to it afterwards; note what is sure."""
    source, target = open_both(disk)
    log = written(source, start=6)
    said.append("written")
    taken = moved(source, target, copied(target, log))
    taken.writer.append([LATER], NOW)
    taken.flusher.flush()
    said.append("appended")
    target.keep_points()


def steps() -> range:
    """Return the calls of a story that come after the log was written."""
    disk = Disk()
    said: list[str] = []
    source, _ = open_both(disk)
    written(source, start=6)
    before = disk.calls
    disk = Disk()
    story(disk, said)
    return range(before + 1, disk.calls + 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
def test_after_a_crash_at_any_moment_one_log_counts_and_nothing_is_lost(
    seed: int, power: bool
) -> None:
    crashed = 0
    for at in steps():
        disk = Disk(seed)
        said: list[str] = []
        disk.cut_power_at = at
        with suppress(PowerCut):
            story(disk, said)
            raise AssertionError("the power did not go")
        crashed += 1
        if power:
            disk.cut_power()
        else:
            disk.restart()
        both = open_both(disk)
        assert len(holders(both)) == 1, at
        (holder,) = (side for side in both if TOPIC_PARTITION in side.found)
        assert holder.moves.partitions.checkpoints.get(TOPIC_PARTITION) is not None
        log = holder.open_partition(TOPIC_PARTITION, CONFIG, NOW)
        assert log.log_start_offset == 6
        if "appended" in said:
            assert contents(log) == joined(6, 11), at
        else:  # Or with what was being appended.
            assert contents(log) in (joined(6), joined(6, 11)), at
        if log.log_end_offset == 10:
            log.writer.append([LATER], NOW)
        for side in both:
            side.close(clean=True)

        both = open_both(disk)
        assert [side.was_clean for side in both] == [True, True]
        (holder,) = (side for side in both if TOPIC_PARTITION in side.found)
        log = holder.open_partition(TOPIC_PARTITION, CONFIG, NOW)
        assert contents(log) == joined(6, 11), at
        assert not [name for name in disk.list("/new") if name.endswith(".moving")]
    assert crashed > 40


def unsettled(disk: Disk) -> None:
    """Leave a copy that is complete, and the log that it was made of."""
    source, target = open_both(disk)
    log = written(source)
    copy = copied(target, log)
    log.flusher.checkpoint()
    target.moves.take_in(copy, source.moves, CONFIG, NOW)
    disk.restart()


def test_a_copy_does_not_count_while_the_directory_of_its_log_is_away() -> None:
    disk = Disk()
    unsettled(disk)
    alone = open_directory(disk, "/new")
    settle_moves([alone.moves])
    with pytest.raises(CorruptLogError, match="may be older than that one: bring the directory"):
        alone.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    # Others have the partition, and it is fetched anew.
    alone.retired.set_aside(TOPIC_PARTITION, NOW)
    assert alone.open_partition(TOPIC_PARTITION, CONFIG, NOW).log_end_offset == 0


def test_people_can_decide_that_a_copy_counts_when_the_other_directory_is_lost() -> None:
    disk = Disk()
    unsettled(disk)
    disk.remove(f"/new/{TOPIC_PARTITION}/came-from")
    alone = open_directory(disk, "/new")
    assert contents(alone.open_partition(TOPIC_PARTITION, CONFIG, NOW)) == joined()


def test_a_copy_that_is_given_up_leaves_the_log_as_it_is() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source)
    copy = copied(target, log)
    log.flusher.checkpoint()
    target.moves.take_in(copy, source.moves, CONFIG, NOW)
    target.moves.remove_copy(TOPIC_PARTITION)
    log.writer.append([BATCHES[10]], NOW)
    log.flusher.flush()
    disk.cut_power()
    both = open_both(disk)
    assert holders(both) == ["/old"]
    assert contents(both[0].open_partition(TOPIC_PARTITION, CONFIG, NOW)) == joined(last=11)


def leave_room(disk: Disk, room: int) -> None:
    """Let so much more be written and no more."""
    disk.capacity = None
    used = sum(map(disk.size, disk.files()))
    disk.capacity = used + room


def test_a_copy_that_could_not_be_removed_does_not_count_once_the_log_has_gone_on() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source)
    copy = copied(target, log)
    log.flusher.checkpoint()
    target.moves.take_in(copy, source.moves, CONFIG, NOW)
    disk.lack = errno.EMFILE
    with pytest.raises(StorageBusyError):
        target.moves.remove_copy(TOPIC_PARTITION)
    disk.lack = None
    log.writer.append([BATCHES[10]], NOW)
    log.flusher.flush()
    crashed = disk.copy()
    both = open_both(crashed)
    assert holders(both) == ["/old"]
    assert contents(both[0].open_partition(TOPIC_PARTITION, CONFIG, NOW)) == joined(last=11)
    # Without a crash it is tried again.
    assert contents(moved(source, target, copied(target, log))) == joined(last=11)


def test_a_log_that_does_not_fit_is_not_copied() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source)
    leave_room(disk, log.size_bytes - 1)
    with pytest.raises(StorageFullError, match="bytes left, and the log in /old"):
        target.moves.begin_copy(log)


def test_a_disk_that_fills_up_meanwhile_refuses_and_gets_its_room_back() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source)
    copy = target.moves.begin_copy(log)
    leave_room(disk, log.size_bytes // 2)
    with pytest.raises(StorageFullError):
        exhaust(copy)
    target.moves.remove_copy(TOPIC_PARTITION)
    assert not [name for name in disk.list("/new") if name.endswith(".moving")]
    assert contents(log) == joined()


def test_a_log_that_nobody_knows_in_the_other_directory_is_left_alone() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source)
    disk.make_directory(f"/new/{TOPIC_PARTITION}")
    with pytest.raises(CorruptLogError, match="for an unknown reason"):
        target.moves.begin_copy(log)


@pytest.mark.parametrize("name", ["00000000000000000000.log", "00000000000000000000.index"])
def test_what_cannot_be_read_is_no_fault_of_the_disk_that_it_is_copied_to(name: str) -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source)
    disk.unreadable.add(f"{log.directory}/{name}")
    copy = target.moves.begin_copy(log)
    expected: type[MillraceError] = CorruptLogError if name.endswith("log") else StorageBusyError
    with pytest.raises(expected):
        exhaust(copy)


def test_who_reads_the_old_log_when_it_has_moved_is_not_told_that_records_are_gone() -> None:
    disk = Disk()
    source, target = open_both(disk)
    written(source)
    for each in (source, target):
        each.close(clean=True)
    source, target = open_both(disk)  # Nothing is remembered of where batches begin.
    log = source.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    plan = log.reader.plan_read(Offset(0), 1 << 20, Offset(10))
    assert plan is not None
    moved(source, target, copied(target, log))
    assert log.reader.read(plan) == b""
    with pytest.raises(StorageBusyError, match="ask again"):
        log.reader.plan_read(Offset(1), 1 << 20, Offset(10))
    with pytest.raises(StorageBusyError, match="ask again"):
        log.reader.offset_for_timestamp(WallMs(0))
    source.checkpoint(MonotonicMs(0))
    assert source.moves.partitions.checkpoints.get(TOPIC_PARTITION) is None


def test_a_directory_that_refuses_to_give_a_log_up_is_asked_again() -> None:
    disk = Disk()
    source, target = open_both(disk)
    log = written(source)
    copy = copied(target, log)
    log.flusher.checkpoint()
    taken = target.moves.take_in(copy, source.moves, CONFIG, NOW)
    disk.lack = errno.EMFILE
    with pytest.raises(StorageError):
        source.moves.part_with(TOPIC_PARTITION, NOW)
    disk.lack = None
    source.moves.part_with(TOPIC_PARTITION, NOW)
    target.moves.settle(TOPIC_PARTITION)
    assert contents(taken) == joined()
    assert holders((source, target)) == []
