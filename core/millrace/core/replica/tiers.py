"""Which closed segment of a tiered topic moves next between a broker's SSD and its HDD.

A tiered replica's log begins on an SSD, its *home*. Its closed segments move to an HDD, the oldest
first, so those that lie there are always the beginning of the log. A segment may move when all of
it is committed (P76): what a leader change may still cut off stays at home. It is due when one of
these holds:

- its newest record is older than `local.retention.ms`;
- without it, the home still has `local.retention.bytes` of the log;
- the SSD has less free space than the broker wants: then the oldest of all logs there goes first.

When the topic asks for `media=ssd` again, the segments come back, the newest first.

Pure. Source: Kafka's KIP-405 for the names of the settings. There, a segment is copied when it is
closed and deleted from the local disk later; here a segment is in one place at a time.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from millrace.core.ids import Offset, WallMs

UNLIMITED: Final = -1


class TierSegment(Protocol):
    """What the decisions need of a segment."""

    @property
    def base_offset(self) -> Offset: ...
    @property
    def next_offset(self) -> Offset: ...
    @property
    def size(self) -> int: ...
    @property
    def largest_timestamp(self) -> WallMs:
        """Of all its batches, negative when none has one."""

    def closing_time(self, now: WallMs) -> WallMs:
        """Return when it was closed, by the broker's clock; at most `now`."""


_SegmentT = TypeVar("_SegmentT", bound=TierSegment)


class LocalRetention(NamedTuple):
    """The topic's settings about how much of its logs stays on the SSD; -1: no limit."""

    ms: int = 86_400_000
    bytes: int = UNLIMITED


class Movable(NamedTuple):
    """The oldest segment of a log that may move to the HDD.

    Attributes:
        base_offset: of the segment.
        size: its bytes.
        closed_at: when it was closed.
        is_due: whether the topic's settings ask for the move now.
    """

    base_offset: Offset
    size: int
    closed_at: WallMs
    is_due: bool


def movable(
    segments: Sequence[TierSegment],
    tier_end: Offset,
    retention: LocalRetention,
    high_watermark: Offset,
    now: WallMs,
) -> Movable | None:
    """Return the segment of a log that may move next; None: there is none.

    Args:
        segments: of the log, ascending; the last one is active.
        tier_end: segments that begin before it lie on the HDD.
        retention: the topic's settings.
        high_watermark: of the replica.
        now: the time.
    """
    at_home = [segment for segment in segments if segment.base_offset >= tier_end]
    if len(at_home) < 2 or at_home[0].next_offset > high_watermark:
        return None
    first = at_home[0]
    rest = sum(segment.size for segment in at_home[1:])
    is_due = _is_old(first, retention.ms, now) or UNLIMITED != retention.bytes <= rest
    return Movable(first.base_offset, first.size, first.closing_time(now), is_due)


_LogT = TypeVar("_LogT")


def first_to_move(
    logs: Iterable[tuple[_LogT, Movable | None]], *, is_filling: bool
) -> _LogT | None:
    """Return the log whose segment moves first, of those with one home; None when none is due.

    Args:
        logs: with the segment that may move.
        is_filling: whether the home has less free space than it should.
    """
    due = [
        (found.closed_at, log)
        for log, found in logs
        if found is not None and (found.is_due or is_filling)
    ]
    return min(due, key=lambda move: move[0])[1] if due else None


def last_in_tier(segments: Sequence[_SegmentT], tier_end: Offset) -> _SegmentT | None:
    """Return the closed segment that comes back from the HDD first; None: there is none."""
    there = [segment for segment in segments[:-1] if segment.base_offset < tier_end]
    return there[-1] if there else None


def _is_old(segment: TierSegment, local_ms: int, now: WallMs) -> bool:
    """Records with timestamps of the future do not keep a segment on the SSD."""
    closed_at = segment.closing_time(now)
    newest = closed_at if segment.largest_timestamp < 0 else segment.largest_timestamp
    return local_ms != UNLIMITED and now - min(newest, closed_at) > local_ms
