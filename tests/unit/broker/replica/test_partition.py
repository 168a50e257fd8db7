"""A replica's machine, files and append thread together, on a disk in memory."""

import asyncio
from dataclasses import replace

import pytest
from tests.fakes import kafka_batches
from tests.fakes.disk import Disk, DiskThatHangs
from tests.fakes.kafka_batches import Record
from tests.fakes.log_on_disk import LogOnDisk, batches_of
from tests.fakes.open_partition import Sender, lead, partition_of, send, send_kafka
from tests.fakes.two_replicas import HERE, THERE, complete, raise_it
from tests.fakes.until import until

from millrace.broker.replica.appender import Appender
from millrace.broker.replica.partition import Partition
from millrace.core.errors import StorageFullError
from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    ProducerId,
)
from millrace.core.records.header import HEADER_BYTES, parse_header, verify_body
from millrace.core.records.kafka_batch import adopt, read_header
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.events import Corrupt, DiskEvent
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.runtime.clock import monotonic_now, wall_now
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


async def test_a_kafka_clients_batch_is_in_the_log_as_it_was_sent_and_stamped() -> None:
    log = LogOnDisk(Disk()).log
    appender = appender_of()
    partition = partition_of(log, appender)
    sent = kafka_batches.idempotent([Record(b"first", b"k"), Record(None, None, -1)], "gzip")
    try:
        lead(partition, HERE, 1)
        await append(partition)
        acknowledged = await asyncio.wait_for(send_kafka(partition, sent), 10)
        assert (acknowledged.error, acknowledged.base_offset) == (None, 1)
        head, header = adopt(log.topic_partition, memoryview(sent), partition.limits)
        again = partition.append(header, head, memoryview(sent), Acks.LEADER, Sender())
        assert (again.is_duplicate, again.base_offset, log.log_end_offset) == (True, 1, 3)
        batch = batches_of(log)[1]
        header = parse_header(batch)
        verify_body(log.topic_partition, header, batch)
        assert batch[HEADER_BYTES:] == kafka_batches.with_fields(
            sent, base_offset=1, leader_epoch=1
        )
        assert (header.base_offset, header.leader_epoch, header.producer_id) == (1, 1, 7)
        entry = log.producer_states.entry(ProducerId(7))
        assert entry is not None
        assert entry.batches[-1].last_sequence == 21
    finally:
        await asyncio.to_thread(appender.close)


async def test_a_kafka_clients_batch_has_the_append_time_where_the_topic_stamps_it() -> None:
    log = LogOnDisk(Disk()).log
    appender = appender_of()
    partition = partition_of(log, appender)
    try:
        lead(partition, HERE, 1)
        partition.leader.rules = replace(partition.leader.rules, stamps_append_time=True)
        before = wall_now()
        await asyncio.wait_for(send_kafka(partition, kafka_batches.batch_of([Record()])), 10)
        batch = batches_of(log)[0]
        header, kafka = parse_header(batch), read_header(batch[HEADER_BYTES:])
        verify_body(log.topic_partition, header, batch)
        assert before <= header.append_timestamp <= wall_now()
        assert kafka.has_append_time
        assert kafka.max_timestamp == header.append_timestamp
        assert log.segments[0].largest_timestamp == header.append_timestamp
    finally:
        await asyncio.to_thread(appender.close)
