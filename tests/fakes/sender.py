"""A producer's request that waits for one append."""

import asyncio

from millrace.broker.replica.partition import Partition
from millrace.core.ids import NO_PRODUCER_ID, ProducerEpoch, ProducerId
from millrace.core.records.batch import prepare
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.runtime.clock import wall_now


class Sender:
    """The owner of one append; its `done` has the outcome."""

    def __init__(self) -> None:
        self.done: asyncio.Future[Waiter] = asyncio.get_running_loop().create_future()

    def on_append_done(self, waiter: Waiter) -> None:
        self.done.set_result(waiter)


def send(partition: Partition, value: bytes) -> asyncio.Future[Waiter]:
    """Append a client's batch of one record; return what will tell how that ended."""
    columns = Columns(1, wall_now(), values=[value])
    prepared = prepare(partition.topic_partition, columns)
    sealed = prepared.finish(ProducerId(NO_PRODUCER_ID), ProducerEpoch(-1), -1)
    batch, sender = memoryview(sealed + bytes(prepared.body)), Sender()
    partition.append(parse_header(sealed), batch, Acks.LEADER, sender)
    return sender.done
