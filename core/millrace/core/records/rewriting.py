"""Batches that a broker writes from records it has: what a cleaner leaves, and the end of a batch.

A broker seals such a batch itself, after it has verified the checksums of what it was made from.
The records keep their offsets and times; where offsets are missing between them, a batch of columns
has the offset column. A batch stays in its format; what has no records left is of columns always.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple, Self

import numpy as np
import pyarrow as pa

from millrace.core.ids import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.records import column_reader, column_writer, kafka_records
from millrace.core.records.arrow_views import int64s_of, numbers_of
from millrace.core.records.batch import open_batch
from millrace.core.records.columns import Columns
from millrace.core.records.compression import CODEC_NAMES, Compressor
from millrace.core.records.header import (
    APPEND_TIME,
    COLUMNS_FORMAT,
    KAFKA_FORMAT,
    KAFKA_MAGIC,
    MAGIC,
    SEQUENCE_MAX,
    Attributes,
    BatchHeader,
    Buffer,
    parse_header,
    producer_section,
    seal,
    stamp,
)


@dataclass(slots=True, frozen=True, kw_only=True)
class Stamp:
    """What a rewritten batch says besides its records."""

    base_offset: Offset
    next_offset: Offset
    leader_epoch: LeaderEpoch
    codec: int
    append_timestamp: WallMs = NO_TIMESTAMP
    delete_horizon: WallMs = NO_TIMESTAMP
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    base_sequence: int = NO_SEQUENCE
    empty_timestamp: WallMs
    """The time of a batch without records."""
    kind: int = 0
    """The bits of `Attributes` that say whether it belongs to a transaction, or ends some."""
    format: int = COLUMNS_FORMAT
    """Of a batch with records."""

    @property
    def last_offset_delta(self) -> int:
        """Of the batch: its last offset, from the first one on."""
        return self.next_offset - self.base_offset - 1

    @classmethod
    def of(cls, header: BatchHeader) -> Self:
        """Return what a batch says, so that it can be written again with fewer records."""
        return cls(
            base_offset=header.base_offset,
            next_offset=header.next_offset,
            leader_epoch=header.leader_epoch,
            codec=header.codec,
            append_timestamp=header.append_timestamp,
            delete_horizon=header.delete_horizon,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            base_sequence=header.base_sequence,
            empty_timestamp=empty_time(header),
            kind=header.attributes & (Attributes.TRANSACTIONAL | Attributes.CONTROL),
            format=header.format,
        )


def empty_time(header: BatchHeader) -> WallMs:
    """Return the time of a batch that has lost its records; it counts for nothing."""
    return max(header.max_timestamp, WallMs(0))  # Kafka's records may have had none.


@dataclass(slots=True, frozen=True)
class RewrittenBatch:
    """A whole batch: its parsed header, the header's bytes, and the stored body."""

    header: BatchHeader
    stamped: bytes
    body: Buffer
    is_rewritten: bool = True
    """Whether it differs from what was in the log."""

    @property
    def length(self) -> int:
        """Bytes of header and body."""
        return len(self.stamped) + len(self.body)


def write(
    topic_partition: TopicPartition, records: pa.RecordBatch, wanted: Stamp
) -> RewrittenBatch:
    """Seal and stamp a batch.

    Args:
        topic_partition: the partition that it is bound to.
        records: with the columns of `columns.SCHEMA`; offsets in `[base_offset, next_offset)`.
        wanted: the rest.

    Raises:
        MessageTooLargeError: more bytes than the format can hold.
    """
    is_kafka = bool(records.num_rows) and wanted.format == KAFKA_FORMAT
    made = (_kafka if is_kafka else _columns)(records, wanted)
    attributes = made.attributes | wanted.kind
    if wanted.delete_horizon != NO_TIMESTAMP:
        attributes |= Attributes.DELETE_HORIZON
    section = producer_section(
        magic=KAFKA_MAGIC if is_kafka else MAGIC,
        stored_length=len(made.body),
        inflated_length=made.inflated_length,
        record_count=records.num_rows,
        attributes=attributes,
        base_timestamp=made.base_timestamp,
        max_timestamp=made.max_timestamp,
        last_offset_delta=wanted.last_offset_delta,
        producer_id=wanted.producer_id,
        producer_epoch=wanted.producer_epoch,
        base_sequence=wanted.base_sequence,
        delete_horizon=wanted.delete_horizon,
    )
    stamped = stamp(
        seal(topic_partition, section, made.body),
        base_offset=wanted.base_offset,
        leader_epoch=wanted.leader_epoch,
        append_timestamp=wanted.append_timestamp,
    )
    return RewrittenBatch(parse_header(stamped), stamped, made.body)


class _Made(NamedTuple):
    """The body of a batch, and what its header says of the body."""

    attributes: int
    base_timestamp: WallMs
    max_timestamp: WallMs
    inflated_length: int
    body: Buffer


def _columns(records: pa.RecordBatch, wanted: Stamp) -> _Made:
    if not records.num_rows:
        return _Made(0, wanted.empty_timestamp, wanted.empty_timestamp, 0, b"")
    written = column_writer.write(_columns_of(records, wanted))
    codec, body = _compressor(wanted.codec).compress(written.body)
    return _Made(
        written.attributes | codec,
        written.base_timestamp,
        written.max_timestamp,
        len(written.body),
        body,
    )


def _kafka(records: pa.RecordBatch, wanted: Stamp) -> _Made:
    times = numbers_of(records.column("timestamp"))
    first, largest = WallMs(int(times[0])), WallMs(int(times.max()))
    # The columns have one time for all: Kafka's records may have none.
    columns = replace(_columns_of(records, wanted), timestamps=WallMs(0))
    written = column_writer.write(columns)
    header = BatchHeader(
        stored_length=len(written.body),
        inflated_length=len(written.body),
        record_count=records.num_rows,
        last_offset_delta=wanted.last_offset_delta,
        attributes=written.attributes | wanted.codec | wanted.kind,
        producer_epoch=wanted.producer_epoch,
        producer_id=wanted.producer_id,
        base_sequence=wanted.base_sequence,
        base_timestamp=first,
        max_timestamp=largest,
        delete_horizon=NO_TIMESTAMP,
        producer_crc=0,
        leader_epoch=wanted.leader_epoch,
        base_offset=wanted.base_offset,
        append_timestamp=wanted.append_timestamp,
        broker_attributes=0 if wanted.append_timestamp == NO_TIMESTAMP else APPEND_TIME,
        format=COLUMNS_FORMAT,
    )
    body = column_reader.read(written.body, header)
    body.timestamps = int64s_of(times)
    made = kafka_records.of_columns(header, body)
    return _Made(made.codec, first, largest, made.inflated_length, made.batch)


def _columns_of(records: pa.RecordBatch, wanted: Stamp) -> Columns:
    offsets, times, keys, values, headers = records.columns
    if not len(headers.flatten()):
        headers = None
    deltas = (numbers_of(offsets) - wanted.base_offset).astype(np.int32)
    return Columns(records.num_rows, numbers_of(times), values, keys, headers, offset_deltas=deltas)


def cut(
    topic_partition: TopicPartition, header: BatchHeader, batch: Buffer, offset: Offset
) -> RewrittenBatch:
    """Return the end of a batch, from `offset` on, as a batch of its own.

    Args:
        topic_partition: of the batch.
        header: of the batch.
        batch: all of it, as a broker keeps it.
        offset: lies within the batch, after its first one.

    Raises:
        CorruptBatchError, UnsupportedFormatError, InvalidRecordError: the batch is not what its
            leader accepted.
    """
    records = open_batch(topic_partition, header, batch, header.inflated_length)
    offsets = numbers_of(records.column("offset"))
    before = int(np.searchsorted(offsets, offset))
    wanted = replace(Stamp.of(header), base_offset=offset)
    if header.base_sequence != NO_SEQUENCE:
        sequence = (header.base_sequence + offset - header.base_offset) & SEQUENCE_MAX
        wanted = replace(wanted, base_sequence=sequence)
    return write(topic_partition, records.slice(before), wanted)


def in_columns(
    topic_partition: TopicPartition, header: BatchHeader, batch: Buffer
) -> RewrittenBatch:
    """Return a batch of Kafka's as one of columns, for readers that know no other (K6).

    Columns have no word for a record without a time: such a record has the batch's largest, or if
    none has one, that of 1970.

    Args:
        topic_partition: of the batch.
        header: of the batch.
        batch: all of it, as a broker keeps it.

    Raises:
        CorruptBatchError, UnsupportedFormatError, InvalidRecordError: the batch is not what its
            leader accepted.
        MessageTooLargeError: columns of it are more bytes than the format can hold.
    """
    records = open_batch(topic_partition, header, batch, header.inflated_length)
    times = numbers_of(records.column("timestamp"))
    lacking = times == NO_TIMESTAMP
    if lacking.any():
        at = records.schema.get_field_index("timestamp")
        told = int64s_of(np.where(lacking, empty_time(header), times))
        records = records.set_column(at, records.schema.field(at), told)
    return write(topic_partition, records, replace(Stamp.of(header), format=COLUMNS_FORMAT))


@cache
def _compressor(codec: int) -> Compressor:
    return Compressor(CODEC_NAMES[codec])
