"""Finds records by their timestamps: the index leads to a batch, and the batch to its record.

Timestamps need not ascend, so the first record at or after a time may lie before records of earlier
times. The index's running maximum finds it.
"""

from typing import NamedTuple

import numpy as np

from millrace.broker.storage import scan
from millrace.broker.storage.segment import Segment
from millrace.broker.storage.sparse_index import Place
from millrace.core.ids import NO_TIMESTAMP, Offset, TopicPartition, WallMs
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


def latest_record(
    segment: Segment, start_offset: Offset, limit_offset: Offset
) -> TimestampedOffset | None:
    """Return a segment's first record of the largest timestamp; None: it has no record.

    Args:
        segment: where to look.
        start_offset, limit_offset: only records in `[start_offset, limit_offset)`.

    Raises:
        CorruptBatchError, UnsupportedFormatError, InvalidRecordError, OSError: it cannot be read.
    """
    if segment.largest_timestamp == NO_TIMESTAMP or segment.base_offset >= limit_offset:
        return None
    record = first_record(segment, segment.largest_timestamp, start_offset, limit_offset)
    if record is not None:
        return record
    # The record of the segment's largest timestamp is deleted, or beyond the limit.
    place, largest = segment.index.largest_before(limit_offset)
    if segment.base_offset < start_offset:
        place, largest = Place(segment.base_offset, 0), NO_TIMESTAMP
    for position, header in scan.headers(segment.file, place.position, segment.size):
        if header.base_offset >= limit_offset:
            break
        if header.largest_timestamp <= largest or header.next_offset <= start_offset:
            continue
        if start_offset <= header.base_offset and header.next_offset <= limit_offset:
            largest = header.largest_timestamp
        else:
            data = segment.file.pread(header.length, position)
            records = open_batch(segment.topic_partition, header, data, header.inflated_length)
            offsets = numbers_of(records.column("offset"))
            wanted = (offsets >= start_offset) & (offsets < limit_offset)
            timestamps = numbers_of(records.column("timestamp"))[wanted]
            largest = WallMs(int(timestamps.max(initial=largest)))
    if largest == NO_TIMESTAMP:
        return None
    return first_record(segment, largest, start_offset, limit_offset)


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
