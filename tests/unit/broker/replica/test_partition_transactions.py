"""A leader's replica writes transactions and their markers, and its log knows them."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import LogOnDisk
from tests.fakes.open_partition import Sender, lead, partition_of, send
from tests.fakes.two_replicas import HERE, THERE, complete, raise_it
from tests.fakes.until import until

from millrace.broker.replica.appender import Appender
from millrace.broker.replica.counts import count_replicas
from millrace.broker.replica.partition import Partition
from millrace.broker.telemetry.transactions import UndecidedCounts
from millrace.core.errors import InvalidTransactionStateError, StorageFullError
from millrace.core.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import BatchHeader, parse_header
from millrace.core.records.markers import AbortedTransaction, Marker
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.events import Corrupt, DiskEvent
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.runtime.clock import monotonic_now, wall_now
from millrace.runtime.mailbox import Mailbox

PRODUCER = ProducerId(7)


def on_disk(partition: Partition, event: DiskEvent) -> None:
    assert not isinstance(event, Corrupt)
    complete(partition.replica.on_disk(event, monotonic_now()))


@asynccontextmanager
async def leading(disk: Disk | None = None) -> AsyncIterator[Partition]:
    opened = LogOnDisk(disk or Disk(), ballast_bytes=2000)
    ballast = opened.directory.ballast
    appender = Appender(
        "a",
        Mailbox(asyncio.get_running_loop()),
        lambda _: None,
        on_disk=on_disk,
        on_failed=raise_it,
        check_room=ballast.check,
        give_room=ballast.give_up,
    )
    partition = partition_of(opened.log, appender)
    try:
        lead(partition, HERE, 1)
        yield partition
    finally:
        await asyncio.to_thread(appender.close)


def batch_of(
    partition: Partition, epoch: int = 0, sequence: int = 0
) -> tuple[BatchHeader, bytes, memoryview]:
    """A client's batch of a transaction, with two records; its first by default."""
    prepared = prepare(partition.topic_partition, Columns(2, wall_now(), values=[b"value"] * 2))
    sealed = prepared.finish(PRODUCER, ProducerEpoch(epoch), sequence, is_transactional=True)
    return parse_header(sealed), sealed, memoryview(prepared.body)


async def join(partition: Partition, epoch: int = 0) -> Waiter:
    header, head, body = batch_of(partition, epoch)
    sender = Sender()
    joined = partition.leader.begin_joining(header)
    partition.append(header, head, body, Acks.LEADER, sender, joined=joined)
    return await asyncio.wait_for(sender.done, 10)


def follow(partition: Partition) -> None:
    """The follower has everything."""
    end = partition.leader.written_offset
    complete(
        partition.leader.on_follower_fetch(
            THERE,
            LeaderEpoch(1),
            FollowerProgress(end, end, Offset(0), LeaderEpoch(1)),
            partition.log.leader_epochs,
            monotonic_now(),
            log_start_offset=Offset(0),
        )
    )


async def test_a_transaction_is_decided_when_its_marker_is_committed() -> None:
    async with leading() as partition:
        await join(partition)
        follow(partition)
        leader = partition.leader
        assert (leader.high_watermark, leader.last_stable_offset) == (2, 0)
        sender = Sender()
        marker = Marker(PRODUCER, ProducerEpoch(1), False, LeaderEpoch(3))
        appended = partition.append_markers([marker], sender)
        assert appended.refusals == [None]
        await until(lambda: leader.flushed_offset == 3)
        assert leader.last_stable_offset == 0
        assert not sender.done.done()
        follow(partition)
        assert (await asyncio.wait_for(sender.done, 10)).error is None
        assert (leader.high_watermark, leader.last_stable_offset) == (3, 3)
        aborted = partition.log.reader.aborted(Offset(0), Offset(3), may_block=False)
        assert aborted == [AbortedTransaction(PRODUCER, Offset(0), Offset(1))]
        again = partition.append_markers([marker], Sender())
        assert again.waiter is not None
        assert again.waiter.is_done
        assert (await join(partition, epoch=1)).base_offset == 3


async def test_a_batch_that_has_not_joined_is_refused_and_nothing_is_written() -> None:
    async with leading() as partition:
        header, head, body = batch_of(partition)
        with pytest.raises(InvalidTransactionStateError):
            partition.append(header, head, body, Acks.LEADER, Sender())
        assert partition.leader.next_offset == 0


async def test_a_new_leader_goes_on_with_what_its_log_knows() -> None:
    async with leading() as partition:
        await join(partition)
        follow(partition)
        lead(partition, THERE, 2)
        assert partition.replica.last_stable_offset == 0
        lead(partition, HERE, 3)
        assert partition.leader.last_stable_offset == 0
        marker = Marker(PRODUCER, ProducerEpoch(1), True, LeaderEpoch(3))
        (written,) = partition.append_markers([marker], Sender()).written
        assert (written.first_offset, written.last_offset) == (0, 1)


async def test_a_transaction_is_as_old_for_a_new_leader_and_grows_no_younger_by_batches() -> None:
    async with leading() as partition:
        await join(partition)
        follow(partition)
        (before,) = partition.leader.producers.open_entries()
        await until(lambda: wall_now() > before[1].seen_at)
        lead(partition, THERE, 2)
        lead(partition, HERE, 3)
        header, head, body = batch_of(partition, sequence=2)
        sender = Sender()
        partition.append(header, head, body, Acks.LEADER, sender)
        await asyncio.wait_for(sender.done, 10)
        (entry,) = partition.leader.producers.open_entries()
        assert entry[1].seen_at > before[1].seen_at
        assert entry[1].began_at == before[1].began_at
        assert (await undecided(partition)).open_ms >= 1


async def test_a_transaction_that_waited_for_the_disk_is_as_old_for_a_new_leader() -> None:
    async with leading() as partition:
        is_held, may_write = threading.Event(), threading.Event()

        def hold() -> None:
            is_held.set()
            assert may_write.wait(60)

        held = partition.appender.call(hold)
        await until(is_held.is_set)
        joins = asyncio.create_task(join(partition))
        await until(partition.leader.producers.open_entries)
        (taken,) = partition.leader.producers.open_entries()
        await until(lambda: wall_now() > taken[1].began_at)
        may_write.set()
        await asyncio.gather(held, joins)
        follow(partition)
        lead(partition, THERE, 2)
        lead(partition, HERE, 3)
        assert partition.leader.producers.open_entries() == [taken]


async def test_on_a_full_disk_a_marker_takes_the_ballast_and_data_does_not() -> None:
    disk = Disk()
    async with leading(disk) as partition:
        await join(partition)
        follow(partition)
        disk.capacity = sum(disk.size(path) for path in disk.files()) + 100
        with pytest.raises(StorageFullError):
            await append_plain(partition)
        marker = Marker(PRODUCER, ProducerEpoch(1), True, LeaderEpoch(3))
        partition.append_markers([marker], Sender())
        await until(lambda: partition.leader.flushed_offset == 3)
        follow(partition)
        with pytest.raises(StorageFullError):
            await append_plain(partition)
        assert partition.leader.last_stable_offset == 3


async def undecided(partition: Partition, later_ms: int = 0) -> UndecidedCounts:
    """What the look for the metrics finds, so much later."""
    counts = await count_replicas(
        [partition], monotonic_now, lambda: WallMs(wall_now() + later_ms), hanging_ms=60_000
    )
    return counts.undecided


async def test_metrics_show_what_readers_wait_for_and_that_it_hangs() -> None:
    nothing = UndecidedCounts(records={"t": 0})
    async with leading() as partition:
        assert await undecided(partition) == nothing
        await join(partition)
        follow(partition)
        found = await undecided(partition)
        assert (found.open, found.hanging, found.records) == (1, 0, {"t": 2})
        later = await undecided(partition, 60_100)
        assert (later.open, later.hanging) == (1, 1)
        assert later.open_ms >= 60_100
        marker = Marker(PRODUCER, ProducerEpoch(1), True, LeaderEpoch(3))
        partition.append_markers([marker], Sender())
        ended = await undecided(partition, 60_100)
        assert (ended.open, ended.hanging, ended.records) == (0, 0, {"t": 2})
        await until(lambda: partition.leader.flushed_offset == 3)
        follow(partition)
        assert await undecided(partition, 60_100) == nothing


async def append_plain(partition: Partition) -> None:
    error = (await asyncio.wait_for(send(partition, b"v" * 200), 10)).error
    if error is not None:
        raise error
