"""Batches that a broker writes from records it has: what a cleaner leaves, and the end of a batch.

A broker seals such a batch itself, after it has verified the checksums of what it was made from.
The records keep their offsets and times; where offsets are missing between them, the batch has the
offset column.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Self

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
from millrace.core.records import column_writer
from millrace.core.records.arrow_views import numbers_of
from millrace.core.records.batch import open_batch
from millrace.core.records.columns import Columns
from millrace.core.records.compression import CODEC_NAMES, Compressor
from millrace.core.records.header import (
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
    empty_timestamp: WallMs = NO_TIMESTAMP
    """The time of a batch without records."""
    kind: int = 0
    """The bits of `Attributes` that say whether it belongs to a transaction, or ends some."""

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
            empty_timestamp=header.max_timestamp,
            kind=header.attributes & (Attributes.TRANSACTIONAL | Attributes.CONTROL),
        )


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
    count = records.num_rows
    if count:
        offsets, times, keys, values, headers = records.columns
        if not len(headers.flatten()):
            headers = None
        deltas = (numbers_of(offsets) - wanted.base_offset).astype(np.int32)
        written = column_writer.write(
            Columns(count, numbers_of(times), values, keys, headers, offset_deltas=deltas)
        )
        codec, body = _compressor(wanted.codec).compress(written.body)
        attributes = written.attributes | codec
        inflated_length = len(written.body)
        base, top = written.base_timestamp, written.max_timestamp
    else:
        attributes, body, inflated_length = 0, b"", 0
        base = top = wanted.empty_timestamp
    attributes |= wanted.kind
    if wanted.delete_horizon != NO_TIMESTAMP:
        attributes |= Attributes.DELETE_HORIZON
    section = producer_section(
        stored_length=len(body),
        inflated_length=inflated_length,
        record_count=count,
        attributes=attributes,
        base_timestamp=base,
        max_timestamp=top,
        last_offset_delta=wanted.next_offset - wanted.base_offset - 1,
        producer_id=wanted.producer_id,
        producer_epoch=wanted.producer_epoch,
        base_sequence=wanted.base_sequence,
        delete_horizon=wanted.delete_horizon,
    )
    stamped = stamp(
        seal(topic_partition, section, body),
        base_offset=wanted.base_offset,
        leader_epoch=wanted.leader_epoch,
        append_timestamp=wanted.append_timestamp,
    )
    return RewrittenBatch(parse_header(stamped), stamped, body)


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


@cache
def _compressor(codec: int) -> Compressor:
    return Compressor(CODEC_NAMES[codec])
