"""Finds records by their timestamps: the index leads to a batch, and the batch to its record.

Timestamps need not ascend, so the first record at or after a time may lie before records of earlier
times. The index's running maximum finds it.
"""

from typing import NamedTuple

import numpy as np

from millrace.broker.storage import scan
from millrace.broker.storage.segment import Segment
from millrace.core.ids import Offset, TopicPartition, WallMs
from millrace.core.records.arrow_views import numbers_of
from millrace.core.records.batch import open_batch
from millrace.core.records.header import BatchHeader


class TimestampedOffset(NamedTuple):
    """A record's offset and timestamp."""

    offset: Offset
    timestamp: WallMs


def first_record(
    segment: Segment,
    timestamp: WallMs,
    start_offset: Offset,
    limit_offset: Offset,
) -> TimestampedOffset | None:
    """Return a segment's first record whose timestamp is `timestamp` or later; None: no such.

    Args:
        segment: where to look.
        timestamp: what to look for.
        start_offset, limit_offset: only records in `[start_offset, limit_offset)`.

    Raises:
        CorruptBatchError, UnsupportedFormatError, InvalidRecordError, OSError: it cannot be read.
    """
    if segment.largest_timestamp < timestamp or segment.next_offset <= start_offset:
        return None
    place = segment.index.floor_of_time(timestamp)
    for position, header in scan.headers(segment.file, place.position, segment.size):
        if header.base_offset >= limit_offset:
            return None
        if header.largest_timestamp < timestamp or header.next_offset <= start_offset:
            continue
        data = segment.file.pread(header.length, position)
        record = _first_in_batch(header, data, segment.topic_partition, timestamp, start_offset)
        if record is not None:
            return record if record.offset < limit_offset else None
    return None


def _first_in_batch(
    header: BatchHeader,
    data: bytes,
    topic_partition: TopicPartition,
    timestamp: WallMs,
    start_offset: Offset,
) -> TimestampedOffset | None:
    records = open_batch(topic_partition, header, data, header.inflated_length)
    offsets = numbers_of(records.column("offset"))
    timestamps = numbers_of(records.column("timestamp"))
    fitting = np.flatnonzero((timestamps >= timestamp) & (offsets >= start_offset))
    if not len(fitting):
        return None
    at = fitting[0]
    return TimestampedOffset(Offset(int(offsets[at])), WallMs(int(timestamps[at])))
