"""Replays the batches of a log into the states of its producers (P45).

Headers suffice for records; a control batch is read whole, as its markers end transactions.
"""

from collections.abc import Iterator

from millrace.broker.storage import scan
from millrace.broker.storage.segment import Segment, segment_of
from millrace.core.ids import NO_PRODUCER_ID, Offset, WallMs
from millrace.core.records.header import BatchHeader
from millrace.core.replica.log.producer_states import ProducerStates


def headers_between(
    segments: tuple[Segment, ...], start_offset: Offset, end_offset: Offset
) -> Iterator[BatchHeader]:
    """Yield the headers of the batches in `[start_offset, end_offset)`, bodies unread.

    Raises:
        CorruptBatchError, UnsupportedFormatError: no batch begins where one should.
    """
    for _, _, header in _batches(segments, start_offset, end_offset):
        yield header


def replay(
    states: ProducerStates,
    segments: tuple[Segment, ...],
    start_offset: Offset,
    end_offset: Offset,
    now: WallMs,
) -> None:
    """Take the batches in `[start_offset, end_offset)` into the states.

    Raises:
        CorruptBatchError, UnsupportedFormatError: no batch begins where one should, or a control
            batch cannot be read.
    """
    for found, position, header in _batches(segments, start_offset, end_offset):
        if header.producer_id != NO_PRODUCER_ID:
            states.update(header, header.base_offset, now)
        elif header.is_control:
            states.end(found.markers_at(position, header), header.base_offset, now)


def _batches(
    segments: tuple[Segment, ...], start_offset: Offset, end_offset: Offset
) -> Iterator[tuple[Segment, int, BatchHeader]]:
    if start_offset >= end_offset:
        return
    first = max(segment_of(segments, start_offset), 0)
    for found in segments[first:]:
        position = 0
        if start_offset > found.base_offset:
            position = found.locate(start_offset, found.size).position
        for at, header in scan.headers(found.file, position, found.size):
            if header.base_offset >= end_offset:
                return
            yield found, at, header
