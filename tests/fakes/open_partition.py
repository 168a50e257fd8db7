"""A replica with its files, and a producer that sends to it."""

import asyncio

from tests.fakes.two_replicas import STANDINGS, replica_of, state_of

from millrace.broker.replica.appender import Appender
from millrace.broker.replica.partition import Partition
from millrace.broker.storage.log import PartitionLog
from millrace.core.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.topic_config import TopicConfig
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header
from millrace.core.records.kafka_batch import adopt
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.effects import Effect
from millrace.runtime.clock import monotonic_now, wall_now


def partition_of(log: PartitionLog, appender: Appender, topic: str = "t") -> Partition:
    """Return the replica that is here with its files; it has no role yet."""
    return Partition(
        topic=topic,
        topic_partition=log.topic_partition,
        config=TopicConfig(),
        replica=replica_of(log, log.topic_partition),
        log=log,
        appender=appender,
        inflated_bytes_max=1 << 20,
    )


def lead(partition: Partition, leader: BrokerLife | None, epoch: int) -> list[Effect]:
    """Tell the broker which leader an epoch has."""
    return partition.replica.on_state(state_of(leader, epoch), STANDINGS, monotonic_now())


class Sender:
    """The owner of one append; its `done` has the outcome."""

    def __init__(self) -> None:
        self.done: asyncio.Future[Waiter] = asyncio.get_running_loop().create_future()

    def on_append_done(self, waiter: Waiter) -> None:
        self.done.set_result(waiter)


def send_kafka(
    partition: Partition, batch: bytes, acks: Acks = Acks.LEADER
) -> asyncio.Future[Waiter]:
    """Append a Kafka client's batch; return what will tell how that ended."""
    body, sender = memoryview(batch), Sender()
    head, header = adopt(partition.topic_partition, body, partition.limits)
    partition.append(header, head, body, acks, sender)
    return sender.done


def send(partition: Partition, value: bytes, acks: Acks = Acks.LEADER) -> asyncio.Future[Waiter]:
    """Append a client's batch of one record; return what will tell how that ended."""
    columns = Columns(1, wall_now(), values=[value])
    prepared = prepare(partition.topic_partition, columns)
    sealed = prepared.finish(ProducerId(NO_PRODUCER_ID), ProducerEpoch(-1), -1)
    sender = Sender()
    partition.append(parse_header(sealed), sealed, memoryview(prepared.body), acks, sender)
    return sender.done
