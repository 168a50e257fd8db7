"""The append thread over logs whose flushes cannot be tried for a while, or take long."""

import asyncio
import errno
import threading

from tests.fakes.disk import Disk, DiskThatHangs
from tests.fakes.log_on_disk import LogOnDisk
from tests.fakes.stamped_batches import bytes_of, stamped_batch
from tests.fakes.until import until

from millrace.broker.replica.appender import Appender
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    MillraceError,
    StorageFullError,
)
from millrace.core.ids import BrokerEpoch, BrokerId, Offset
from millrace.core.replica.replication.events import Corrupt, DiskEvent, Failed, Flushed, Written
from millrace.runtime.mailbox import Mailbox


class NotedTarget:
    """Implements `Target`; notes what it is told."""

    is_flushed_before_ack = True
    is_followed = True

    def __init__(self, log: PartitionLog) -> None:
        self.log = log
        self.generation_written = 0
        self.written: list[Offset] = []
        self.events: list[DiskEvent] = []
        self.failed: list[MillraceError] = []
        self.flushed = asyncio.Event()

    def on_disk(self, event: DiskEvent) -> None:
        self.events.append(event)
        match event:
            case Written(end_offset):
                self.written.append(end_offset)
            case Flushed():
                self.flushed.set()
            case Failed(_, error) | Corrupt(error):
                self.failed.append(error)


def appender_of(opened: LogOnDisk, failures: list[LogDirFailedError] | None = None) -> Appender:
    """Return the threads of a log's directory; they add its failure to `failures`."""
    return Appender(
        opened.directory.path,
        Mailbox(asyncio.get_running_loop()),
        opened.directory.checkpoint,
        on_disk=NotedTarget.on_disk,
        on_failed=([] if failures is None else failures).append,
        check_room=opened.directory.ballast.check,
        may_append_cached=lambda: opened.directory.can_append_cached,
    )


class DiskOfFewDescriptors(Disk):
    """Lacks a descriptor for the next so many flushes."""

    flushes_to_refuse = 0

    def count_flush(self, inode: object = None) -> None:
        if self.flushes_to_refuse:
            self.flushes_to_refuse -= 1
            raise OSError(errno.EMFILE, "too many open files")
        super().count_flush(inode)  # type: ignore[arg-type]


async def test_a_flush_that_could_not_be_tried_is_tried_again_and_not_acknowledged_before() -> None:
    disk = DiskOfFewDescriptors()
    opened = LogOnDisk(disk, LogConfig(segment_ms=2**62))  # Its first segment is of long ago.
    opened.append(stamped_batch(0))
    opened.log.flusher.flush()
    failures: list[LogDirFailedError] = []
    appender = appender_of(opened, failures)
    target = NotedTarget(opened.log)
    disk.flushes_to_refuse = 2
    appender.append(target, stamped_batch(1), 0)
    await asyncio.wait_for(target.flushed.wait(), 10)
    assert target.written[0] == 2
    assert disk.flushes_to_refuse == 0
    assert opened.log.flushed_offset == 2
    assert failures == target.failed == []
    appender.close()


async def test_a_flush_that_is_owed_does_not_wait_until_calls_pause() -> None:
    disk = DiskOfFewDescriptors()
    opened = LogOnDisk(disk, LogConfig(segment_ms=2**62))
    opened.append(stamped_batch(0))
    opened.log.flusher.flush()
    appender = appender_of(opened)
    target = NotedTarget(opened.log)
    disk.flushes_to_refuse = 2
    appender.append(target, stamped_batch(1), 0)
    try:
        async with asyncio.timeout(10):
            while not target.flushed.is_set():
                await appender.call(lambda: None)
                await asyncio.sleep(0.005)
    finally:
        await asyncio.to_thread(appender.close)
    assert opened.log.flushed_offset == 2


async def test_a_flush_that_is_owed_is_not_made_for_the_log_that_replaces_it_after_a_move() -> None:
    """The other directory's thread writes there: only its reports are in the order of the log."""
    disk = DiskOfFewDescriptors()
    opened = LogOnDisk(disk, LogConfig(segment_ms=2**62))  # Its first segment is of long ago.
    moved, other = LogOnDisk(Disk()), LogOnDisk(Disk())
    opened.append(stamped_batch(0))
    opened.log.flusher.flush()
    appender = appender_of(opened)
    target = NotedTarget(opened.log)
    disk.flushes_to_refuse = 10**6
    appender.append(target, stamped_batch(1), 0)
    await appender.call(lambda: None)  # It runs after the round.
    moved.append(stamped_batch(0), stamped_batch(1))
    target.log = moved.log
    opened.log.close(clean=False)
    beside = NotedTarget(other.log)
    appender.append(beside, stamped_batch(0), 0)
    await asyncio.wait_for(beside.flushed.wait(), 10)  # Owed flushes are made before it.
    appender.close()
    assert not target.flushed.is_set()
    assert (moved.log.flushed_offset, moved.log.log_end_offset) == (0, 2)


async def test_what_comes_for_a_log_that_was_set_aside_fails_and_takes_nothing_else_along() -> None:
    opened = LogOnDisk(Disk())
    failures: list[LogDirFailedError] = []
    appender = appender_of(opened, failures)
    target = NotedTarget(opened.log)
    opened.log.close(clean=False)
    appender.append(target, stamped_batch(0), 0)
    assert await appender.call(lambda: 7) == 7
    assert {type(error) for error in target.failed} == {CorruptLogError}
    assert failures == []
    appender.close()


async def test_what_gathers_for_one_round_makes_no_segment_larger_than_its_setting() -> None:
    batches = [stamped_batch(number) for number in range(20)]
    length = batches[0].length
    disk = Disk()
    opened = LogOnDisk(disk, LogConfig(segment_bytes=length * 3))
    appender = appender_of(opened)
    target = NotedTarget(opened.log)
    is_busy = threading.Event()
    appender.call(is_busy.wait, 10)
    for batch in batches[:19]:
        appender.append(target, batch, 0)
    disk.capacity = sum(map(disk.size, disk.files())) + 13 * length
    is_busy.set()
    await until(lambda: target.flushed.is_set() and target.failed)
    assert [type(error) for error in target.failed] == [StorageFullError]
    assert target.written == [opened.end]
    assert 3 <= opened.end <= 13
    disk.capacity = None
    target.flushed.clear()
    for batch in batches[opened.end :]:
        appender.append(target, batch, target.generation_written)
    await until(lambda: opened.end == len(batches))
    sizes = [disk.size(name) for name in disk.files() if name.endswith(".log")]
    assert max(sizes) <= 3 * length
    appender.close()


async def test_a_reading_tells_how_long_flushes_took_and_the_one_under_way_takes() -> None:
    disk = DiskThatHangs()
    opened = LogOnDisk(disk)
    appender = appender_of(opened)
    target = NotedTarget(opened.log)
    appender.append(target, stamped_batch(0), 0)
    await asyncio.wait_for(target.flushed.wait(), 10)
    target.flushed.clear()
    appender.take_reading()
    disk.may_go_on.clear()
    appender.append(target, stamped_batch(1), 0)
    async with asyncio.timeout(10):
        while (reading := appender.take_reading()).under_way_ms < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert reading.flushes_ms == []
    disk.may_go_on.set()
    await asyncio.wait_for(target.flushed.wait(), 10)
    reading = appender.take_reading()
    assert len(reading.flushes_ms) == 1
    assert reading.flushes_ms[0] >= 20
    # The thread reports the flush before it ends its round.
    await until(lambda: appender.take_reading().under_way_ms == 0)
    assert appender.take_reading().flushes_ms == []
    appender.close()


async def test_followers_may_fetch_what_is_written_while_the_flush_is_under_way() -> None:
    disk = DiskThatHangs()
    opened = LogOnDisk(disk)
    appender = appender_of(opened)
    target = NotedTarget(opened.log)
    appender.append(target, stamped_batch(0), 0)  # It makes the files, which is flushed too.
    await asyncio.wait_for(target.flushed.wait(), 10)
    target.flushed.clear()
    disk.may_go_on.clear()
    appender.append(target, stamped_batch(1), 0)
    await until(lambda: len(target.written) == 2)
    assert (target.written, target.flushed.is_set()) == ([1, 2], False)
    disk.may_go_on.set()
    await asyncio.wait_for(target.flushed.wait(), 10)
    appender.close()


async def test_what_is_flushed_at_once_is_reported_once_unless_followers_wait_for_it() -> None:
    opened = LogOnDisk(Disk())
    appender = appender_of(opened)
    target = NotedTarget(opened.log)
    for offset, (is_followed, is_flushed) in enumerate(
        [(True, True), (False, True), (True, False), (False, False)]
    ):
        target.is_followed, target.is_flushed_before_ack = is_followed, is_flushed
        appender.append(target, stamped_batch(offset), 0)
        await appender.call(lambda: None)  # It runs after the round, which uses both.
    await asyncio.to_thread(appender.close)
    written_and_flushed = [Written(Offset(1)), Flushed(Offset(1))]
    written_only = [Written(Offset(3)), Written(Offset(4))]
    assert target.events == [*written_and_flushed, Flushed(Offset(2)), *written_only]


def cached_appends() -> tuple[LogOnDisk, Appender]:
    """Return a log with one batch on a disk that takes appends from the loop, and its threads."""
    disk = Disk()
    disk.cached_bytes_max = 1 << 20
    opened = LogOnDisk(disk, LogConfig(segment_ms=2**62))
    opened.append(stamped_batch(0))
    return opened, appender_of(opened)


async def test_a_small_batch_is_written_by_the_loop_and_reported_after_its_append() -> None:
    opened, appender = cached_appends()
    target = NotedTarget(opened.log)
    target.is_flushed_before_ack = False
    appender.append(target, stamped_batch(1), 0)
    assert (opened.end, target.written) == (2, [])
    appender.append(target, stamped_batch(2), 0)
    await until(lambda: target.written == [2, 3])
    await asyncio.to_thread(appender.close)


async def test_a_batch_behind_others_of_the_thread_is_written_after_them() -> None:
    opened, appender = cached_appends()
    target = NotedTarget(opened.log)
    target.is_flushed_before_ack = False
    is_over = threading.Event()
    done = appender.call(is_over.wait, 10)
    for offset in range(1, 4):
        appender.append(target, stamped_batch(offset), 0)
    assert opened.end == 1
    is_over.set()
    await done
    await until(lambda: target.written == [4])
    # The thread says that it is idle a moment after it has said what it has written.
    await until(lambda: appender._finished == appender._submitted)
    appender.append(target, stamped_batch(4), 0)
    assert opened.end == 5
    await until(lambda: target.written == [4, 5])
    await asyncio.to_thread(appender.close)


async def test_what_is_flushed_or_large_or_void_is_not_written_by_the_loop() -> None:
    opened, appender = cached_appends()
    target = NotedTarget(opened.log)
    appender.append(target, stamped_batch(1), 0)
    assert opened.end == 1
    await asyncio.wait_for(target.flushed.wait(), 10)
    await until(lambda: appender._finished == appender._submitted)
    target.is_flushed_before_ack = False
    appender.append(target, stamped_batch(2, value=bytes(20_000)), 0)
    assert opened.end == 2
    await until(lambda: target.written == [2, 3])
    await until(lambda: appender._finished == appender._submitted)
    target.generation_written = 1
    appender.append(target, stamped_batch(3), 0)  # Its offset was taken back.
    await appender.call(lambda: None)
    assert opened.end == 3
    await asyncio.to_thread(appender.close)


async def test_a_write_that_would_wait_half_way_is_done_again_by_the_thread() -> None:
    opened, appender = cached_appends()
    target = NotedTarget(opened.log)
    target.is_flushed_before_ack = False
    opened.disk.cached_bytes_max = 50
    batches = [stamped_batch(offset) for offset in range(3)]
    for batch in batches[1:]:
        appender.append(target, batch, 0)
    await until(lambda: opened.end == 3)
    assert list(opened.batches().values()) == [bytes_of(batch) for batch in batches]
    assert target.failed == []
    await asyncio.to_thread(appender.close)


async def test_an_append_is_refused_while_there_is_no_room_for_the_ballast() -> None:
    """What is left of it is for the checkpoints."""
    disk = Disk()
    opened = LogOnDisk(disk, ballast_bytes=2000)
    appender = appender_of(opened)
    target = NotedTarget(opened.log)
    try:
        disk.capacity = sum(map(disk.size, disk.files()))
        opened.directory.begin_life(BrokerId(1), BrokerEpoch(7))
        appender.append(target, stamped_batch(0), 0)
        await appender.call(lambda: None)
        await asyncio.sleep(0)
        assert [type(error) for error in target.failed] == [StorageFullError]
        assert appender.take_reading().was_full
        assert opened.end == 0
        disk.capacity = None
        appender.append(target, stamped_batch(0), target.generation_written)
        async with asyncio.timeout(30):
            await target.flushed.wait()
        assert opened.end == 1
    finally:
        await asyncio.to_thread(appender.close)
