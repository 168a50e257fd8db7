"""A replica's machine, files and append thread together, on a disk in memory."""

import asyncio

import pytest
from tests.fakes.disk import Disk, DiskThatHangs
from tests.fakes.log_on_disk import LogOnDisk
from tests.fakes.open_partition import lead, partition_of, send
from tests.fakes.two_replicas import HERE, THERE, complete, raise_it
from tests.fakes.until import until

from millrace.broker.replica.appender import Appender
from millrace.broker.replica.partition import Partition
from millrace.core.errors import StorageFullError
from millrace.core.ids import (
    LeaderEpoch,
    Offset,
)
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.events import Corrupt, DiskEvent
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.runtime.clock import monotonic_now
from millrace.runtime.mailbox import Mailbox


def on_disk(partition: Partition, event: DiskEvent) -> None:
    """Bring what became of the files to the machine, and its answers to the senders."""
    assert not isinstance(event, Corrupt)
    complete(partition.replica.on_disk(event, monotonic_now()))


def appender_of() -> Appender:
    mailbox = Mailbox(asyncio.get_running_loop())
    return Appender("a", mailbox, lambda _: None, on_disk=on_disk, on_failed=raise_it)


class DeafReader:
    """Implements `Reader`; does nothing."""

    def on_advanced(self, handle: int) -> None:
        pass


async def append(partition: Partition) -> Waiter:
    """Append a client's batch; return how that ended."""
    return await asyncio.wait_for(send(partition, b"value"), 10)


async def test_after_a_failed_write_appends_go_on_in_the_next_role_too() -> None:
    disk = Disk()
    log = LogOnDisk(disk).log
    appender = appender_of()
    partition = partition_of(log, appender)
    try:
        lead(partition, HERE, 1)
        disk.capacity = 0
        assert isinstance((await append(partition)).error, StorageFullError)
        disk.capacity = None
        lead(partition, THERE, 2)
        lead(partition, HERE, 3)
        for offset in range(2):
            acknowledged = await append(partition)
            assert acknowledged.error is None
            assert acknowledged.base_offset == offset
    finally:
        await asyncio.to_thread(appender.close)


@pytest.mark.parametrize("is_leader_first", [True, False])
async def test_a_batch_is_acknowledged_when_leader_and_follower_have_flushed_it(
    is_leader_first: bool,
) -> None:
    """They flush at the same time: what is written is there for followers before it is flushed
    (P13)."""
    disk = DiskThatHangs()
    log = LogOnDisk(disk).log
    appender = appender_of()
    partition = partition_of(log, appender)

    def on_follower_flushed() -> None:
        end = Offset(2)
        progress = FollowerProgress(end, end, Offset(0), LeaderEpoch(1))
        complete(
            partition.leader.on_follower_fetch(
                THERE,
                LeaderEpoch(1),
                progress,
                log.leader_epochs,
                monotonic_now(),
                log_start_offset=Offset(0),
            )
        )

    try:
        lead(partition, HERE, 1)
        partition.follow(DeafReader(), 1, to_log_end=True)
        await append(partition)  # The files, and where the epoch begins, are flushed before.
        disk.may_go_on.clear()
        acknowledged = send(partition, b"value", Acks.ALL)
        await until(lambda: partition.leader.written_offset == 2)
        assert partition.leader.flushed_offset == 1
        if is_leader_first:
            disk.may_go_on.set()
            await until(lambda: partition.leader.flushed_offset == 2)
            assert not acknowledged.done()
            on_follower_flushed()
        else:
            on_follower_flushed()
            assert not acknowledged.done()
            disk.may_go_on.set()
        assert (await asyncio.wait_for(acknowledged, 10)).error is None
        assert partition.leader.high_watermark == 2
    finally:
        disk.may_go_on.set()
        await asyncio.to_thread(appender.close)


async def test_the_time_of_replication_ends_when_the_follower_has_what_was_durable() -> None:
    log = LogOnDisk(Disk()).log
    appender = appender_of()
    partition = partition_of(log, appender)

    def follow(end: int) -> None:
        partition.leader.on_follower_fetch(
            THERE,
            LeaderEpoch(1),
            FollowerProgress(Offset(end), Offset(end), Offset(0), LeaderEpoch(1)),
            log.leader_epochs,
            monotonic_now(),
            log_start_offset=Offset(0),
        )

    try:
        lead(partition, HERE, 1)
        partition.note_durable()
        assert partition.take_replication_seconds() is None
        await append(partition)
        partition.note_durable()
        assert partition.take_replication_seconds() is None
        await append(partition)
        partition.note_durable()  # The measurement of the first batch goes on.
        follow(1)
        seconds = partition.take_replication_seconds()
        assert seconds is not None
        assert 0 <= seconds < 10
        assert partition.take_replication_seconds() is None
        partition.note_durable()
        lead(partition, THERE, 2)
        assert partition.take_replication_seconds() is None
    finally:
        await asyncio.to_thread(appender.close)
