"""Batches as a leader hands them to storage, made in one line."""

from collections.abc import Sequence

import numpy as np
from tests.fakes import kafka_batches
from tests.fakes.kafka_batches import Record

from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.ids import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.records import kafka_batch
from millrace.core.records.batch import prepare
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.columns import Columns
from millrace.core.records.header import HEADER_BYTES, parse_header, stamp
from millrace.core.records.markers import Marker, WrittenMarker, seal_markers

TOPIC_PARTITION = TopicPartition(TopicId(bytes(range(16))), 3)


def stamped_batch(
    base_offset: int,
    *,
    records: int = 1,
    value: bytes = b"value",
    timestamp: int | Sequence[int] = 1000,
    epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    sequence: int = -1,
    producer_epoch: int = 0,
    in_transaction: bool = False,
    as_kafka: bool = False,
    topic_partition: TopicPartition = TOPIC_PARTITION,
) -> StampedBatch:
    """Return a batch of records that differ in their `timestamp` at the most.

    `as_kafka`: as a Kafka client sends it.
    """
    if as_kafka:
        if isinstance(timestamp, int):
            timestamp = [timestamp] * records
        return kafka_batch_of(
            base_offset,
            [Record(value, None, time) for time in timestamp],
            epoch=epoch,
            producer_id=producer_id,
            sequence=sequence,
            producer_epoch=producer_epoch,
            in_transaction=in_transaction,
            topic_partition=topic_partition,
        )
    times = WallMs(timestamp) if isinstance(timestamp, int) else np.array(timestamp, np.int64)
    columns = Columns(records, times, values=[value] * records)
    prepared = prepare(topic_partition, columns)
    header = prepared.finish(
        ProducerId(producer_id),
        ProducerEpoch(-1 if producer_id == NO_PRODUCER_ID else producer_epoch),
        sequence,
        is_transactional=in_transaction,
    )
    stamped = stamp(header, base_offset=Offset(base_offset), leader_epoch=LeaderEpoch(epoch))
    return StampedBatch.of(parse_header(header), stamped, prepared.body)


def kafka_batch_of(
    base_offset: int,
    records: Sequence[Record],
    *,
    codec: str = "none",
    epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    sequence: int = -1,
    producer_epoch: int = 0,
    in_transaction: bool = False,
    append_timestamp: int = NO_TIMESTAMP,
    topic_partition: TopicPartition = TOPIC_PARTITION,
) -> StampedBatch:
    """Return a Kafka client's batch, of format 2."""
    batch = kafka_batches.batch_of(
        records,
        codec,
        producer_id=producer_id,
        producer_epoch=-1 if producer_id == NO_PRODUCER_ID else producer_epoch,
        base_sequence=sequence,
        attributes=kafka_batches.TRANSACTIONAL if in_transaction else 0,
    )
    limits = BatchLimits(
        batch_bytes_max=16 << 20, inflated_bytes_max=16 << 20, takes_transactions=True
    )
    sealed, header = kafka_batch.adopt(topic_partition, memoryview(batch), limits)
    stamped, body = kafka_batch.stamp(
        topic_partition,
        sealed,
        batch,
        base_offset=Offset(base_offset),
        leader_epoch=LeaderEpoch(epoch),
        append_timestamp=WallMs(append_timestamp),
    )
    return StampedBatch.of(header, stamped, body, WallMs(append_timestamp))


def control_batch(
    base_offset: int,
    *markers: WrittenMarker,
    epoch: int = 0,
    timestamp: int = 1000,
    topic_partition: TopicPartition = TOPIC_PARTITION,
) -> StampedBatch:
    """Return a batch of markers."""
    whole = seal_markers(topic_partition, markers, WallMs(timestamp))
    header, body = whole[:HEADER_BYTES], whole[HEADER_BYTES:]
    stamped = stamp(header, base_offset=Offset(base_offset), leader_epoch=LeaderEpoch(epoch))
    return StampedBatch.of(parse_header(header), stamped, body)


def transactions(count: int) -> list[StampedBatch]:
    """Return transactions of one producer, two records and a marker each; the last one is open.

    The first is committed, the next aborted, and so on.
    """
    batches = []
    for number in range(count):
        at = Offset(3 * number)
        batches.append(
            stamped_batch(
                at,
                records=2,
                value=bytes(100),
                producer_id=7,
                producer_epoch=number,
                sequence=0,
                in_transaction=True,
            )
        )
        if number < count - 1:
            epoch, is_commit = ProducerEpoch(number + 1), number % 2 == 0
            marker = Marker(ProducerId(7), epoch, is_commit, LeaderEpoch(1))
            batches.append(control_batch(at + 2, WrittenMarker(marker, at, Offset(at + 1))))
    return batches


def bytes_of(batch: StampedBatch) -> bytes:
    """Return the batch as it lies in the log."""
    return batch.header + bytes(batch.body)
