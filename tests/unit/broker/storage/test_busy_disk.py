"""A process that lacks descriptors or memory for a while: nothing is lost, and nothing is dead."""

import errno
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count

import pytest
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import NOW, PARTITION, LogOnDisk, batches_of, open_directory
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.refusals import refusal
from millrace.broker.storage.segment import ReadPlan, parse_offset_name
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    StorageBusyError,
    StorageError,
    StorageFullError,
)
from millrace.core.ids import NO_TIMESTAMP, MonotonicMs, Offset, ProducerId, WallMs
from millrace.core.records.header import parse_header

SMALL = LogConfig(segment_bytes=3 * stamped_batch(0).length, checkpoint_ms=100)


@pytest.mark.parametrize(
    ("code", "means"),
    [
        (errno.ENOSPC, StorageFullError),
        (errno.EDQUOT, StorageFullError),
        (errno.EMFILE, StorageBusyError),
        (errno.ENFILE, StorageBusyError),
        (errno.ENOMEM, StorageBusyError),
        (errno.EINTR, StorageBusyError),
        (errno.EIO, LogDirFailedError),
        (errno.EROFS, LogDirFailedError),
        (errno.ENODEV, LogDirFailedError),
        (errno.EACCES, LogDirFailedError),
        (errno.ENOENT, LogDirFailedError),
    ],
)
def test_only_what_is_known_to_pass_does_not_fail_the_directory(
    code: int, means: type[StorageError]
) -> None:
    assert type(refusal(OSError(code, "said the disk"), "writing")) is means


def filled() -> LogOnDisk:
    opened = LogOnDisk(Disk(), SMALL)
    for offset in range(10):
        opened.append(stamped_batch(offset))
    return opened


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM])
def test_what_is_refused_changes_nothing_and_succeeds_later(code: int) -> None:
    opened = filled()
    log, directory = opened.log, opened.directory
    before = opened.batches()
    plan = log.reader.plan_read(Offset(0), 1000, Offset(10))
    assert plan is not None
    jobs: list[Callable[[], object]] = [
        partial(opened.append, stamped_batch(10)),
        log.flusher.flush,
        partial(log.writer.roll, NOW),
        log.flusher.checkpoint,
        partial(log.reader.read, plan),
        partial(log.scrubber.scrub, 10**6),
        partial(log.reader.offset_for_timestamp, WallMs(0)),
        partial(directory.checkpoint, MonotonicMs(10**6)),
        partial(directory.retired.empty_trash, NOW),
        directory.retired.look_again_for_damaged,
        partial(directory.retired.set_aside, TOPIC_PARTITION, NOW),
    ]
    for job in jobs:
        opened.disk.lack = code
        with pytest.raises(StorageBusyError):
            job()
        opened.disk.lack = None
        assert log.failure is None
        assert opened.batches() == before
    opened.append(stamped_batch(10))
    assert log.flusher.flush() == 11
    opened.disk.cut_power()
    assert LogOnDisk(opened.disk, SMALL).end == 11


def test_what_is_deleted_or_cut_is_so_when_it_is_tried_again() -> None:
    opened = filled()
    log = opened.log
    jobs: list[tuple[int, Callable[[], object]]] = [
        (2, partial(log.retention.advance_log_start, Offset(2))),
        (7, partial(log.truncation.truncate_to, Offset(7), NOW)),
        (50, partial(log.truncation.start_over, Offset(50))),
    ]
    for offset, job in jobs:
        opened.disk.lack = errno.EMFILE
        with pytest.raises(StorageBusyError):
            job()
        opened.disk.lack = None
        job()
        assert log.failure is None
        assert offset in (log.log_start_offset, log.log_end_offset)
    opened.disk.cut_power()
    assert LogOnDisk(opened.disk, SMALL).end == 50


CODES = pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
SIZES = pytest.mark.parametrize("config", [SMALL, LogConfig()], ids=["segments", "one segment"])


@CODES
@SIZES
@pytest.mark.parametrize("offset", [6, 7, 8])
def test_a_cut_that_is_refused_half_way_is_done_when_it_is_tried_again(
    offset: int, config: LogConfig, code: int
) -> None:
    for opened, refused in refused_half_way(code, config, partial(cut, offset)):
        log = opened.log
        if refused:
            assert opened.batches().keys() >= {0, 2, 4}
            cut(offset, log)
        end = offset - offset % 2  # The batch that holds it goes.
        assert (opened.end, log.failure) == (end, None)
        assert knows_its_batches(log)
        opened.append(the_batch(end, epoch=8))
        assert log.flusher.flush() == end + 2
        opened.disk.cut_power()
        after = LogOnDisk(opened.disk, config)
        assert after.end == end + 2
        assert knows_its_batches(after.log)


@CODES
@SIZES
def test_what_comes_after_half_a_cut_finds_the_log_sound(config: LogConfig, code: int) -> None:
    for opened, refused in refused_half_way(code, config, partial(cut, 6)):
        opened.checkpoint()
        opened.directory.scrub(1 << 20)
        assert opened.log.flusher.flush() >= 6
        end = opened.end
        assert knows_its_batches(opened.log)
        opened.append(the_batch(end, epoch=9))
        assert opened.log.failure is None
        opened.log.truncation.start_over(Offset(50)) if refused else opened.log.writer.roll(NOW)
        opened.log.flusher.flush()
        end = opened.end
        opened.disk.cut_power()
        assert LogOnDisk(opened.disk, config).end == end


@CODES
@SIZES
@pytest.mark.parametrize("ends", ["crash", "checkpoint and crash", "in order"])
def test_a_process_that_ends_with_half_a_cut_leaves_a_sound_log(
    ends: str, config: LogConfig, code: int
) -> None:
    for opened, _ in refused_half_way(code, config, partial(cut, 6)):
        if ends == "checkpoint and crash":
            opened.checkpoint()
            opened.directory.scrub(1 << 20)
        if ends == "in order":
            opened.directory.close(clean=True)
        else:
            opened.disk.cut_power()
        after = LogOnDisk(opened.disk, config)
        assert 6 <= after.end <= 20
        assert (after.log.failure, after.directory.corrupt) == (None, {})
        assert knows_its_batches(after.log)


@SIZES
def test_readers_of_a_log_that_is_being_cut_find_no_damage(config: LogConfig) -> None:
    for stopped_at in count(1):
        opened = reopened(config)
        looks: list[ReadPlan | None] = []
        disk, log = opened.disk, opened.log
        plan = partial(log.reader.plan_read, Offset(0), 1 << 20, Offset(6))
        at_call(disk, disk.calls + stopped_at, lambda: looks.append(plan()))  # noqa: B023
        cut(6, log)
        del disk.call
        assert (log.failure, opened.end) == (None, 6)
        if not looks:
            return
        assert looks[0] is not None


@CODES
@SIZES
def test_a_deletion_that_is_refused_half_way_is_done_when_it_is_tried_again(
    config: LogConfig, code: int
) -> None:
    for opened, refused in refused_half_way(code, config, give_up):
        if refused:
            give_up(opened.log)
        assert (opened.log.log_start_offset, opened.log.failure) == (14, None)
        bases = [parse_offset_name(name, ".log") for name in opened.disk.list(PARTITION)]
        gone = 12 if config is SMALL else 0
        assert min(base for base in bases if base is not None) == gone
        opened.disk.cut_power()
        after = LogOnDisk(opened.disk, config)
        assert (after.log.log_start_offset, after.end) == (14, 18)  # Nobody flushed the last one.


def roll(log: PartitionLog) -> None:
    log.writer.roll(NOW)


@CODES
@pytest.mark.parametrize("ends", ["crash", "power cut", "in order"])
def test_a_log_whose_roll_is_refused_half_way_goes_on_in_the_old_segment(
    ends: str, code: int
) -> None:
    for opened, refused in refused_half_way(code, LogConfig(), roll, is_flushed=True):
        if refused:
            assert opened.log.segments[-1].closed_at == NO_TIMESTAMP
        opened.append(the_batch(20, epoch=8), the_batch(22, epoch=8))
        assert (len(opened.log.segments), opened.log.failure) == (1 if refused else 2, None)
        assert opened.disk.exists(segment_path(20)) is not refused
        opened.log.flusher.flush()
        if ends == "in order":
            opened.directory.close(clean=True)
        if ends == "power cut":
            opened.disk.cut_power()
        after = LogOnDisk(opened.disk.copy())
        assert (after.end, after.log.failure) == (24, None)
        assert knows_its_batches(after.log)


@pytest.mark.parametrize("is_checkpointed", [False, True])
@pytest.mark.parametrize("has_index", [False, True])
@pytest.mark.parametrize("later", [(), (24, 26)])
def test_the_empty_file_of_a_segment_that_never_began_does_not_count(
    later: Sequence[int], has_index: bool, is_checkpointed: bool
) -> None:
    """An earlier release left it when the disk refused the beginning of the segment."""
    opened = reopened(LogConfig())
    for offset in (20, 22):
        opened.append(the_batch(offset, epoch=4))
    if later:
        opened.log.writer.roll(NOW)
    for offset in later:
        opened.append(the_batch(offset, epoch=4))
    if is_checkpointed:
        opened.checkpoint()
    disk = opened.disk.copy()
    disk.write(segment_path(20), b"")
    if not has_index and disk.exists(index := segment_path(0).replace(".log", ".index")):
        disk.remove(index)
    after = LogOnDisk(disk)
    assert (after.end, after.log.failure) == (opened.end, None)
    assert knows_its_batches(after.log)
    assert not disk.exists(segment_path(20))


def test_a_segment_that_has_lost_its_bytes_is_damaged_though_it_is_empty() -> None:
    opened = filled()
    opened.checkpoint()
    for base in (3, 6, 9):
        disk = opened.disk.copy()
        disk.write(segment_path(base), b"")
        with pytest.raises(CorruptLogError):
            LogOnDisk(disk, SMALL)


def segment_path(base_offset: int) -> str:
    return f"{PARTITION}/{base_offset:020d}.log"


def cut(offset: int, log: PartitionLog) -> None:
    log.truncation.truncate_to(Offset(offset), NOW)


def give_up(log: PartitionLog) -> None:
    log.retention.advance_log_start(Offset(14))


def the_batch(offset: int, *, epoch: int) -> StampedBatch:
    return stamped_batch(offset, records=2, epoch=epoch, producer_id=7, sequence=offset)


def reopened(config: LogConfig) -> LogOnDisk:
    """A log of ten batches of two records, all but the last checkpointed; it was opened again."""
    opened = LogOnDisk(Disk(), config)
    for offset in range(0, 18, 2):
        opened.append(the_batch(offset, epoch=offset // 4))
    opened.checkpoint()
    opened.disk.restart()
    opened = LogOnDisk(opened.disk, config)
    opened.append(the_batch(18, epoch=4))
    return opened


def refused_half_way(
    code: int,
    config: LogConfig,
    change: Callable[[PartitionLog], None],
    *,
    is_flushed: bool = False,
) -> Iterator[tuple[LogOnDisk, bool]]:
    """Change logs like that, one after another; each has one more call to the disk go well.

    Whether it was refused is told with it; the last one was not.
    """
    for calls in count(1):
        opened = reopened(config)
        if is_flushed:  # A flush must not say that the disk is full.
            opened.log.flusher.flush()
        refuse_after(opened.disk, opened.disk.calls + calls, code)
        try:
            change(opened.log)
            refused = False
        except (StorageBusyError, StorageFullError):
            refused = True
        del opened.disk.call
        opened.disk.lack = None
        yield opened, refused
        if not refused:
            return


def knows_its_batches(log: PartitionLog) -> bool:
    """Whether a log knows the epochs and the producer of the batches that it has, and no more."""
    headers = [parse_header(batch) for batch in batches_of(log).values()]
    entry = log.producer_states.entry(ProducerId(7))
    assert entry is not None
    begun: dict[int, int] = {}
    for header in headers:
        begun.setdefault(header.leader_epoch, header.base_offset)
    return dict(log.leader_epochs.entries) == begun and [
        kept.base_offset for kept in entry.batches
    ] == [header.base_offset for header in headers[-5:]]


def test_a_log_that_is_refused_half_way_to_a_new_beginning_gets_there_later() -> None:
    for refused_at in range(1, 60):
        opened = filled()
        opened.log.flusher.flush()
        refuse_after(opened.disk, opened.disk.calls + refused_at)
        try:
            opened.log.truncation.start_over(Offset(50))
        except StorageBusyError:
            opened.disk.lack = None
            opened.checkpoint()  # It may come in between.
            opened.log.truncation.start_over(Offset(50))
        opened.disk.lack = None
        assert (opened.log.log_start_offset, opened.end, opened.log.failure) == (50, 50, None)
        assert LogOnDisk(opened.disk.copy(), SMALL).end == 50


def refuse_after(disk: Disk, calls: int, code: int = errno.EMFILE) -> None:
    """Let the process lack descriptors, or what else there is a code for, from a call on."""
    at_call(disk, calls, lambda: setattr(disk, "lack", code))


def at_call(disk: Disk, number: int, job: Callable[[], object]) -> None:
    """Do something in the midst of a call, the so-many-th that changes something."""
    call = disk.call

    def counted() -> None:
        call()
        if disk.calls == number:
            job()

    disk.call = counted  # type: ignore[method-assign]


def test_a_log_that_cannot_be_opened_now_is_not_taken_for_damaged() -> None:
    opened = filled()
    opened.directory.close(clean=True)
    directory = open_directory(opened.disk)
    opened.disk.lack = errno.EMFILE
    with pytest.raises(StorageBusyError):
        directory.open_partition(TOPIC_PARTITION, SMALL, NOW)
    opened.disk.lack = None
    assert directory.corrupt == {}
    assert directory.open_partition(TOPIC_PARTITION, SMALL, NOW).log_end_offset == 10


def test_a_flush_that_failed_stays_failed_whatever_it_said() -> None:
    opened = filled()
    opened.disk.fail_flush_at = opened.disk.flushes + 1
    with pytest.raises(LogDirFailedError):
        opened.log.flusher.flush()
    with pytest.raises(LogDirFailedError):
        opened.log.flusher.flush()
    assert opened.disk.exists(f"{PARTITION}/failed")
