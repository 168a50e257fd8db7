"""Batches of keyed records as a leader stamps them, and what a reader of a log gets of them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.fakes.kafka_batches import Record
from tests.fakes.stamped_batches import TOPIC_PARTITION, kafka_batch_of

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.ids import (
    NO_PRODUCER_ID,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records.batch import open_batch, prepare, walk
from millrace.core.records.columns import Columns
from millrace.core.records.compression import Compressor
from millrace.core.records.header import BatchHeader, parse_header, stamp


class KeyedRecord(NamedTuple):
    """A record of a log."""

    offset: int
    key: bytes | None
    value: bytes | None


def keyed_batch(
    base_offset: int,
    cells: Sequence[tuple[bytes | None, bytes | None]],
    *,
    epoch: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    sequence: int = -1,
    producer_epoch: int = 0,
    in_transaction: bool = False,
    timestamp: int = 1000,
    codec: str = "none",
    as_kafka: bool = False,
    topic_partition: TopicPartition = TOPIC_PARTITION,
) -> StampedBatch:
    """Return a batch of records with these keys and values.

    `as_kafka`: as a Kafka client sends it.
    """
    if as_kafka:
        return kafka_batch_of(
            base_offset,
            [Record(value, key, timestamp) for key, value in cells],
            codec=codec,
            epoch=epoch,
            producer_id=producer_id,
            sequence=sequence,
            producer_epoch=producer_epoch,
            in_transaction=in_transaction,
            topic_partition=topic_partition,
        )
    columns = Columns(
        len(cells),
        WallMs(timestamp),
        keys=[key for key, _ in cells],
        values=[value for _, value in cells],
    )
    prepared = prepare(topic_partition, columns, Compressor(codec))
    header = prepared.finish(
        ProducerId(producer_id),
        ProducerEpoch(-1 if producer_id == NO_PRODUCER_ID else producer_epoch),
        sequence,
        is_transactional=in_transaction,
    )
    stamped = stamp(header, base_offset=Offset(base_offset), leader_epoch=LeaderEpoch(epoch))
    return StampedBatch.of(parse_header(header), stamped, prepared.body)


def batches_in(log: PartitionLog, start_offset: int = 0) -> list[tuple[BatchHeader, bytes]]:
    """Return all batches of a log from an offset on, as a follower reads them."""
    found: list[tuple[BatchHeader, bytes]] = []
    at = max(Offset(start_offset), log.log_start_offset)
    while (plan := log.reader.plan_read(at, 1 << 20, log.log_end_offset)) is not None:
        data = log.reader.read(plan)
        if len(data) == plan.length:  # Else it was replaced meanwhile.
            found += [(header, bytes(batch)) for header, batch in walk(data)]
            at = plan.end_offset
    return found


def records_of(log: PartitionLog, header: BatchHeader, batch: bytes) -> list[KeyedRecord]:
    """Return the records of one batch of a log."""
    opened = open_batch(log.topic_partition, header, batch, header.inflated_length)
    columns = (opened.column(name).to_pylist() for name in ("offset", "key", "value"))
    return [KeyedRecord(*cells) for cells in zip(*columns, strict=True)]


def records_in(log: PartitionLog, start_offset: int = 0) -> list[KeyedRecord]:
    """Return all records of a log from an offset on, as a consumer reads them."""
    records = [
        record
        for header, batch in batches_in(log, start_offset)
        for record in records_of(log, header, batch)
    ]
    start = max(start_offset, log.log_start_offset)
    return [record for record in records if record.offset >= start]


def latest(records: Iterable[KeyedRecord]) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key; keys that were deleted are not there."""
    values: dict[bytes | None, bytes | None] = {}
    for record in records:
        values[record.key] = record.value
    return {key: value for key, value in values.items() if value is not None}
