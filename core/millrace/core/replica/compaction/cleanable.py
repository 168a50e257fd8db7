"""Which part of a log may be cleaned, which log comes first, and which segments become one.

A log may be cleaned before its *first uncleanable offset*, at the beginning of a segment:

- the active segment is never cleaned;
- nothing at or beyond the last stable offset is (P57, T3): it is not known to be the log's for
  good, or whether it counts;
- a segment that was closed less than `min.compaction.lag.ms` ago is not: so each record can be read
  for at least as long after it was written, whatever time its producer gave it.

The head is dirty. A log is cleaned when its dirty part of all that may be cleaned exceeds
`min.cleanable.dirty.ratio`, or earlier: when a record in the head was written more than
`max.compaction.lag.ms` ago, or when tombstones that were kept are due. The log of the highest ratio
comes first, and before it one whose lag is exceeded.

Source: Kafka's LogCleanerManager, KIP-58, KIP-354.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from millrace.core.ids import NO_TIMESTAMP, Offset, WallMs
from millrace.core.settings import INT64_MAX

SPAN_MAX: Final = 2**31 - 2
"""Offsets of one segment: its index counts them from its first."""


class CleanableSegment(Protocol):
    """What the decisions need of a segment."""

    @property
    def base_offset(self) -> Offset: ...
    @property
    def next_offset(self) -> Offset: ...
    @property
    def size(self) -> int: ...
    @property
    def created_at(self) -> WallMs:
        """When its first batch was appended, by the broker's clock."""

    def closing_time(self, now: WallMs) -> WallMs:
        """Return when it was closed, by the broker's clock; at most `now`."""


_SegmentT = TypeVar("_SegmentT", bound=CleanableSegment)


class CleanerPoint(NamedTuple):
    """What earlier cleanings of a log have reached.

    Attributes:
        offset: the cleaner point: the head begins there.
        next_horizon: when the first of the tombstones before it is due; `NO_TIMESTAMP`: never.
        cleaned_at: the time of the last cleaning; `NO_TIMESTAMP`: there was none.
        next_end: the end of the batch that has `next_horizon`.
    """

    offset: Offset
    next_horizon: WallMs = NO_TIMESTAMP
    cleaned_at: WallMs = NO_TIMESTAMP
    next_end: Offset = Offset(0)


class CompactionLags(NamedTuple):
    """The topic's settings about the time of a cleaning."""

    min_dirty_ratio: float = 0.5
    min_lag_ms: int = 0
    max_lag_ms: int = INT64_MAX


class Cleanable(NamedTuple):
    """A log's part that may be cleaned now.

    Attributes:
        first_dirty: where the head begins.
        first_uncleanable: where what may be cleaned ends.
        clean_bytes, dirty_bytes: of the segments before the one, and from there to the other.
        is_overdue: whether the lag or a horizon is exceeded.
        is_due: whether it is to be cleaned now.
    """

    first_dirty: Offset
    first_uncleanable: Offset
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    is_due: bool

    @property
    def dirty_ratio(self) -> float:
        """The dirty part of what may be cleaned, 0 to 1."""
        return self.dirty_bytes / max(self.clean_bytes + self.dirty_bytes, 1)


def cleanable(
    segments: Sequence[CleanableSegment],
    point: CleanerPoint,
    lags: CompactionLags,
    stable_offset: Offset,
    now: WallMs,
    *,
    tombstones_end: Offset,
) -> Cleanable:
    """Return which part of a log may be cleaned.

    Args:
        segments: of the log, ascending; the last one is active.
        point: of earlier cleanings.
        lags: the topic's settings.
        stable_offset: the replica's last stable one; at most its high watermark.
        now: the time.
        tombstones_end: those before it may go when their horizon is over.
    """
    first_dirty = max(point.offset, segments[0].base_offset)
    clean_bytes = dirty_bytes = 0
    first_uncleanable = segments[0].base_offset
    is_overdue = point.next_end <= tombstones_end and NO_TIMESTAMP < point.next_horizon <= now
    for segment in segments[:-1]:
        closed_at = segment.closing_time(now)
        if segment.next_offset > stable_offset or now - closed_at < lags.min_lag_ms:
            break
        first_uncleanable = segment.next_offset
        if segment.next_offset <= first_dirty:
            clean_bytes += segment.size
            continue
        dirty_bytes += segment.size
        is_overdue = is_overdue or now - min(segment.created_at, closed_at) > lags.max_lag_ms
    first_dirty = min(first_dirty, first_uncleanable)
    found = Cleanable(
        first_dirty, first_uncleanable, clean_bytes, dirty_bytes, is_overdue, is_due=False
    )
    is_dirty = dirty_bytes > 0 and found.dirty_ratio > lags.min_dirty_ratio
    return found._replace(
        is_due=first_uncleanable > segments[0].base_offset and (is_dirty or is_overdue)
    )


_LogT = TypeVar("_LogT")


def first_to_clean(logs: Iterable[tuple[_LogT, Cleanable]]) -> _LogT | None:
    """Return the log that is cleaned first; None when none is due."""
    due = [(found.is_overdue, found.dirty_ratio, log) for log, found in logs if found.is_due]
    return max(due, key=lambda log: log[:2])[2] if due else None


def groups(segments: Iterable[_SegmentT], segment_bytes: int) -> Iterator[list[_SegmentT]]:
    """Divide segments in a row into groups that each become one segment.

    Args:
        segments: ascending.
        segment_bytes: a group is no larger, unless it is one segment.
    """
    group: list[_SegmentT] = []
    size = 0
    for segment in segments:
        if group and (
            size + segment.size > segment_bytes
            or segment.next_offset - group[0].base_offset > SPAN_MAX
        ):
            yield group
            group, size = [], 0
        group.append(segment)
        size += segment.size
    if group:
        yield group
