"""A partition between its machine, its log and the thread that writes it."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import LogOnDisk
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.broker.runtime.appender import Appender
from millrace.broker.runtime.clock import wall_now
from millrace.broker.runtime.partition import Partition
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import CorruptLogError
from millrace.core.ids import LeaderEpoch, ProducerEpoch, ProducerId, TopicPartition
from millrace.core.metadata.topic_config import Durability, TopicConfig
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header
from millrace.core.replication.leader import Acks, Waiter

REPLICATED = TopicConfig(durability=Durability.REPLICATED)
FSYNC = TopicConfig(durability=Durability.FSYNC)


class AppenderByHand:
    """Does what it is given when the test says so."""

    def __init__(self) -> None:
        self.batches: list[StampedBatch] = []
        self.calls: list[tuple[Callable[[], Any], asyncio.Future[Any]]] = []

    def append(self, target: object, batch: StampedBatch, generation: int) -> None:
        self.batches.append(batch)

    def call(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.calls.append((job, future))
        return future


class Owner:
    def __init__(self) -> None:
        self.told: list[int] = []

    def on_append_done(self, waiter: Waiter) -> None:
        assert waiter.error is None
        self.told.append(waiter.base_offset)


def on_corrupt(topic_partition: TopicPartition, error: CorruptLogError) -> None:
    raise AssertionError(error)


def partition_on(disk: LogOnDisk, appender: AppenderByHand, config: TopicConfig) -> Partition:
    return Partition(
        topic="orders",
        topic_partition=TOPIC_PARTITION,
        config=config,
        leader_epoch=LeaderEpoch(0),
        log=disk.log,
        appender=cast(Appender, appender),
        inflated_bytes_max=1 << 20,
        on_corrupt=on_corrupt,
    )


def append(partition: Partition, owner: Owner, acks: Acks = Acks.ALL) -> Waiter:
    prepared = prepare(TOPIC_PARTITION, Columns(1, wall_now(), [b"value"]))
    head = prepared.finish(ProducerId(-1), ProducerEpoch(-1), -1)
    batch = memoryview(head + bytes(prepared.body))
    return partition.append(parse_header(head), batch, acks, owner)


def test_a_flush_that_a_later_round_overtakes_on_its_way_to_the_loop_is_counted() -> None:
    async def story() -> None:
        disk, appender, owner = LogOnDisk(Disk()), AppenderByHand(), Owner()
        partition = partition_on(disk, appender, REPLICATED)
        append(partition, owner)
        disk.append(appender.batches[0])
        partition.on_written(disk.end)
        assert owner.told == [0]

        partition.configure(FSYNC)
        flushing = asyncio.create_task(partition.flush())
        await asyncio.sleep(0)
        ((job, flushed),) = appender.calls
        flushed.set_result(job())
        append(partition, owner)
        disk.append(appender.batches[1])
        partition.on_written(disk.end)  # Before the task that flushes goes on.
        await flushing
        assert partition.leader.flushed_offset == 1
        assert owner.told == [0]
        partition.on_flushed(disk.end, disk.log.flush())
        assert owner.told == [0, 1]

    asyncio.run(story())


def test_a_flush_that_a_checkpoint_did_is_told_by_the_round_that_finds_nothing_to_flush() -> None:
    disk, appender, owner = LogOnDisk(Disk()), AppenderByHand(), Owner()
    partition = partition_on(disk, appender, FSYNC)
    append(partition, owner)
    disk.append(appender.batches[0])
    disk.checkpoint()  # Between the round's write and its flush.
    partition.on_flushed(disk.end, disk.log.flush())
    assert owner.told == [0]
