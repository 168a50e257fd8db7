"""A process that lacks descriptors or memory for a while: nothing is lost, and nothing is dead."""

import errno
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

import pytest
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import NOW, PARTITION, LogOnDisk, batches_of, open_directory
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.refusals import refusal
from millrace.broker.storage.segment import parse_offset_name
from millrace.core.errors import LogDirFailedError, StorageBusyError, StorageError, StorageFullError
from millrace.core.ids import MonotonicMs, Offset, ProducerId, WallMs
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
    plan = log.plan_read(Offset(0), 1000, Offset(10))
    assert plan is not None
    jobs: list[Callable[[], object]] = [
        partial(opened.append, stamped_batch(10)),
        log.flush,
        partial(log.roll, NOW),
        log.checkpoint,
        partial(log.read, plan),
        partial(log.scrub, 10**6),
        partial(log.offset_for_timestamp, WallMs(0)),
        partial(directory.checkpoint, MonotonicMs(10**6)),
        partial(directory.empty_trash, NOW),
        partial(directory.set_aside, TOPIC_PARTITION, NOW),
    ]
    for job in jobs:
        opened.disk.lack = code
        with pytest.raises(StorageBusyError):
            job()
        opened.disk.lack = None
        assert log.failure is None
        assert opened.batches() == before
    opened.append(stamped_batch(10))
    assert log.flush() == 11
    opened.disk.cut_power()
    assert LogOnDisk(opened.disk, SMALL).end == 11


def test_what_is_deleted_or_cut_is_so_when_it_is_tried_again() -> None:
    opened = filled()
    log = opened.log
    jobs: list[tuple[int, Callable[[], object]]] = [
        (2, partial(log.advance_log_start, Offset(2))),
        (7, partial(log.truncate_to, Offset(7), NOW)),
        (50, partial(log.start_anew, Offset(50))),
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


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
def test_a_cut_that_is_refused_half_way_is_done_when_it_is_tried_again(code: int) -> None:
    for opened, refused in refused_half_way(code, cut):
        log = opened.log
        if refused:
            log.truncate_to(Offset(3), NOW)
        assert (opened.end, log.failure) == (3, None)
        assert knows_its_batches(log)
        opened.append(stamped_batch(3, epoch=8, producer_id=7, sequence=3))
        assert log.flush() == 4
        opened.disk.cut_power()
        after = LogOnDisk(opened.disk, SMALL)
        assert after.end == 4
        assert knows_its_batches(after.log)


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
def test_a_deletion_that_is_refused_half_way_is_done_when_it_is_tried_again(code: int) -> None:
    for opened, refused in refused_half_way(code, lambda log: log.advance_log_start(Offset(7))):
        if refused:
            opened.log.advance_log_start(Offset(7))
        assert (opened.log.log_start_offset, opened.log.failure) == (7, None)
        bases = [parse_offset_name(name, ".log") for name in opened.disk.list(PARTITION)]
        assert sorted(base for base in bases if base is not None) == [6, 9]
        opened.disk.cut_power()
        after = LogOnDisk(opened.disk, SMALL)
        assert (after.log.log_start_offset, after.end) == (7, 9)  # Nobody flushed the last one.


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOSPC])
@pytest.mark.parametrize("ends", ["crash", "checkpoint and crash", "in order"])
def test_a_process_that_ends_with_half_a_cut_leaves_a_sound_log(ends: str, code: int) -> None:
    for opened, _ in refused_half_way(code, cut):
        if ends == "checkpoint and crash":
            if opened.log.is_being_cut:
                with pytest.raises(StorageBusyError, match="nothing was flushed"):
                    opened.log.flush()
            opened.checkpoint()
            opened.directory.scrub(1 << 20)
        if ends == "in order":
            opened.directory.close(clean=True)
        else:
            opened.disk.cut_power()
        after = LogOnDisk(opened.disk, SMALL)
        assert 3 <= after.end <= 10
        assert (after.log.failure, after.directory.corrupt) == (None, {})
        assert knows_its_batches(after.log)


def cut(log: PartitionLog) -> None:
    log.truncate_to(Offset(3), NOW)


def refused_half_way(
    code: int, change: Callable[[PartitionLog], None]
) -> Iterator[tuple[LogOnDisk, bool]]:
    """Logs of ten batches, all but the last checkpointed, changed; each has one more call go well.

    Whether it was refused is told with it; the last one was not.
    """
    for calls in count(1):
        opened = LogOnDisk(Disk(), SMALL)
        for offset in range(10):
            if offset == 9:
                opened.checkpoint()
            opened.append(stamped_batch(offset, epoch=offset // 2, producer_id=7, sequence=offset))
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
        opened.log.flush()
        refuse_after(opened.disk, opened.disk.calls + refused_at)
        try:
            opened.log.start_anew(Offset(50))
        except StorageBusyError:
            opened.disk.lack = None
            opened.checkpoint()  # It may come in between.
            opened.log.start_anew(Offset(50))
        opened.disk.lack = None
        assert (opened.log.log_start_offset, opened.end, opened.log.failure) == (50, 50, None)
        assert LogOnDisk(opened.disk.copy(), SMALL).end == 50


def refuse_after(disk: Disk, calls: int, code: int = errno.EMFILE) -> None:
    """Let the process lack descriptors, or what else there is a code for, from a call on."""
    call = disk.call

    def counted() -> None:
        call()
        if disk.calls == calls:
            disk.lack = code

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
        opened.log.flush()
    with pytest.raises(LogDirFailedError):
        opened.log.flush()
    assert opened.disk.exists(f"{PARTITION}/failed")
