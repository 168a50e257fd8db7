"""Which segments a topic's retention gives up: the oldest, by time or by size, whole ones only."""

from millrace.broker.storage.log_config import UNLIMITED, LogConfig
from millrace.broker.storage.segment import Segment
from millrace.core.ids import NO_TIMESTAMP, Offset, WallMs


def overtaken(
    segments: tuple[Segment, ...], config: LogConfig, now: WallMs, limit_offset: Offset
) -> int:
    """Return how many of the oldest segments may be deleted; never the last, which is active.

    Args:
        segments: of a log, ascending.
        config: how much and how long to keep.
        now: the time.
        limit_offset: the high watermark; nothing behind it is given up.
    """
    size = sum(segment.size for segment in segments)
    for number, segment in enumerate(segments[:-1]):
        size -= segment.size
        is_too_much = config.retention_bytes != UNLIMITED and size >= config.retention_bytes
        if segment.next_offset > limit_offset or not (
            is_too_much or is_old(segment, config.retention_ms, now)
        ):
            return number
    return len(segments) - 1


def is_old(segment: Segment, retention_ms: int, now: WallMs) -> bool:
    """Return whether all records of a segment have been kept for long enough.

    Its time is its largest timestamp, but not later than when it was closed: records that claim to
    be from the future are not kept longer for it.
    """
    closed_at = now if segment.closed_at == NO_TIMESTAMP else segment.closed_at
    newest = closed_at if segment.largest_timestamp < 0 else segment.largest_timestamp
    return retention_ms != UNLIMITED and now - min(newest, closed_at) > retention_ms
