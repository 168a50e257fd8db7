"""The broker's side of one fetch session: what a reader wants, and what to send next.

A reader names each partition once, under one handle. From then on the session knows its position
and moves it on as batches are sent. So a reader that simply reads on only grants credit in bytes
(KIP-227's idea, taken further by the stream). Every byte of batches uses up credit; without credit
nothing is sent, which makes it a pull.

Partitions with news wait in a queue, each at most once, and are served in turn, so that one busy
partition cannot starve the rest. A partition that was read to its end leaves the queue and comes
back when the shell reports that its log moved (`on_advanced`).

Offsets that moved without records, such as a high watermark after a commit, are news, too. They
wait up to `max_wait_ms` for records to travel with, and longer while batches follow each other
closely: then the next batch carries them.

The shell asks the session with `next_turn`, reads the files, and reports with `on_sent`. Source:
KIP-227; credit as in Reactive Streams.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from millrace.core.errors import CreditTooSmallError, MalformedRequestError
from millrace.core.ids import (
    VERIFY_NOTHING,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicPartition,
)

_CLOSELY_MS: Final = 50
"""Batches that are sent within this time of each other follow closely."""
PARTITIONS_IN_RESPONSE: Final = 1000
"""Partitions in one response: bounds how long the loop is busy with one session."""
ABORTED_IN_RESPONSE: Final = 20_000
"""Aborted transactions that one response names, unless one partition has more: each takes some 25
bytes of the response's header."""
NO_END: Final = Offset(0)
"""As an end: the reader reads without end."""


@dataclass(slots=True, frozen=True, kw_only=True)
class SessionLimits:
    """The broker's bounds on one session."""

    partitions_max: int
    response_bytes_max: int
    max_wait_ms_max: int


@dataclass(slots=True, frozen=True, kw_only=True)
class SessionSettings:
    """What the reader asked for in its first message."""

    min_bytes: int = 1
    max_wait_ms: int = 500
    response_bytes_max: int = 0
    window_bytes: int = 0
    """The most credit that the reader will ever have outstanding; 0: it does not say."""
    read_committed: bool = False


@dataclass(slots=True)
class FetchPosition:
    """Where the reader stands in one partition."""

    handle: int
    topic_partition: TopicPartition
    fetch_offset: Offset
    current_leader_epoch: LeaderEpoch
    last_fetched_epoch: LeaderEpoch
    max_bytes: int
    end_offset: Offset = NO_END
    """The reader wants nothing from here on."""
    verify_until: Offset = VERIFY_NOTHING
    """A batch below this offset came damaged: what is sent from there is verified first."""
    may_be_sent_on: bool = False
    """The reader goes to another replica if it is told to (KIP-392)."""
    told_high_watermark: int = -1
    told_last_stable_offset: int = -1
    told_log_start_offset: int = -1
    told_compacted_offset: int = 0
    seen_log_bytes: int = -1
    """Of a follower that catches up: the size of the log when it was served last."""
    has_advanced: bool = False
    """It may have news that the last look at it has not seen."""

    @property
    def is_at_end(self) -> bool:
        """Whether the reader has everything that it wants."""
        return NO_END != self.end_offset <= self.fetch_offset

    @property
    def must_verify(self) -> bool:
        """Whether the next batches are to be verified before they are sent."""
        return self.fetch_offset < self.verify_until


@dataclass(slots=True)
class FetchSession:
    """The positions, the queue and the credit of one reader."""

    limits: SessionLimits
    settings: SessionSettings = field(default_factory=SessionSettings)
    credit: int = 0
    """Bytes of batches that may still be sent."""

    positions: dict[int, FetchPosition] = field(default_factory=dict)
    _handles: dict[TopicPartition, int] = field(default_factory=dict)
    _news: dict[int, None] = field(default_factory=dict)  # A queue whose members are unique.
    _news_since: MonotonicMs | None = None
    _has_sent: bool = False  # Batches, since the last response.
    _sent_at: MonotonicMs | None = None  # When batches went out last.
    _more_until: MonotonicMs | None = None  # More of them are to be expected until then.

    @property
    def response_bytes_max(self) -> int:
        """Bytes of batches in one response."""
        own = self.limits.response_bytes_max
        return min(own, self.settings.response_bytes_max or own)

    def configure(self, settings: SessionSettings) -> None:
        """Take the settings of the first message; a wait above the broker's bound is cut to it."""
        self.settings = SessionSettings(
            min_bytes=settings.min_bytes,
            max_wait_ms=min(settings.max_wait_ms, self.limits.max_wait_ms_max),
            response_bytes_max=settings.response_bytes_max,
            window_bytes=settings.window_bytes,
            read_committed=settings.read_committed,
        )

    def add(self, position: FetchPosition, now: MonotonicMs) -> FetchPosition | None:
        """Add a partition or replace its position; return the position replaced.

        Raises:
            MalformedRequestError: the session has as many partitions as it may, or this one under
                another handle.
        """
        other = self._handles.get(position.topic_partition, position.handle)
        if other != position.handle:
            # Thousands of handles of one partition would each cost a look at it.
            raise MalformedRequestError(
                f"it is in this fetch session already, under handle {other}: leave that one before "
                "you name it again",
                topic_partition=position.topic_partition,
            )
        replaced = self.positions.get(position.handle)
        if replaced is None and len(self.positions) >= self.limits.partitions_max:
            raise MalformedRequestError(
                f"a fetch session holds at most {self.limits.partitions_max} partitions: open "
                "another stream for more"
            )
        if replaced is not None:
            del self._handles[replaced.topic_partition]
        self._handles[position.topic_partition] = position.handle
        self.positions[position.handle] = position
        self.on_advanced(position.handle, now)
        return replaced

    def remove(self, handle: int) -> FetchPosition | None:
        """Forget a partition; return its position if it was there."""
        self._news.pop(handle, None)
        position = self.positions.pop(handle, None)
        if position is not None:
            del self._handles[position.topic_partition]
        return position

    def grant(self, credit: int) -> None:
        """Add to what may be sent."""
        self.credit += credit

    def on_advanced(self, handle: int, now: MonotonicMs) -> None:
        """Note that a partition may have news: new records, or an offset that moved."""
        position = self.positions.get(handle)
        if position is None:
            return
        position.has_advanced = True
        self._news[handle] = None
        if self._news_since is None:
            self._news_since = now

    def check_window(self, position: FetchPosition, batch_bytes: int) -> None:
        """Refuse a batch that the reader will never have the credit for.

        Args:
            position: of the reader.
            batch_bytes: of what is to be sent from there.

        Raises:
            CreditTooSmallError: the batch is larger than the reader's window.
        """
        window = self.settings.window_bytes
        if window and batch_bytes > window:
            raise CreditTooSmallError(
                f"the batch at offset {position.fetch_offset} is {batch_bytes} bytes, but the "
                f"reader never grants more than {window}: raise its fetch size (fetch_max_bytes)",
                topic_partition=position.topic_partition,
            )

    @property
    def can_send(self) -> bool:
        """Whether a turn may find something to send."""
        return bool(self._news) and self.credit > 0

    def room(self) -> "ResponseRoom":
        """Return what the next response may hold."""
        return ResponseRoom(lambda: self.credit, self.response_bytes_max)

    def next_turn(self) -> list[FetchPosition]:
        """Return the partitions to look at for the next response, in the order of service.

        The shell reads them until the response is full; every one it looked at is answered with
        `on_sent` or `on_nothing`, the others keep their place.
        """
        return [self.positions[handle] for handle in self._news]

    def must_wait(self, found_bytes: int, now: MonotonicMs) -> int:
        """Return for how many ms a response of `found_bytes` should wait for more; 0: send it."""
        if found_bytes >= self.settings.min_bytes or self._news_since is None:
            return 0
        if found_bytes >= self.credit:
            return 0
        until = self._news_since + self.settings.max_wait_ms
        if not found_bytes and self._more_until is not None:
            until = max(until, self._more_until)
        return max(0, until - now)

    def on_sent(
        self,
        position: FetchPosition,
        sent_bytes: int,
        next_offset: Offset,
        leader_epoch: LeaderEpoch,
    ) -> None:
        """Move on to the end of what was sent; the partition goes to the end of the queue."""
        assert sent_bytes <= self.credit
        self.credit -= sent_bytes
        self._has_sent = True
        position.fetch_offset = next_offset
        position.last_fetched_epoch = leader_epoch
        del self._news[position.handle]
        self._news[position.handle] = None

    def on_nothing(self, positions: Iterable[FetchPosition]) -> None:
        """Note that the partitions have no more news until they advance."""
        for position in positions:
            self._news.pop(position.handle, None)

    def on_responded(self, now: MonotonicMs) -> None:
        """Note that a response went out: the wait for `min_bytes` begins again."""
        self._news_since = now if self._news else None
        if self._has_sent:
            if self._sent_at is not None and now - self._sent_at <= _CLOSELY_MS:
                self._more_until = MonotonicMs(now + _CLOSELY_MS)
            self._sent_at = now
            self._has_sent = False


class ResponseRoom:
    """What one response may still hold: partitions, aborted transactions, and bytes of batches.

    A first batch that is larger than a response is sent whole, alone, where the credit suffices.

    Args:
        credit: returns how many bytes the reader takes at the most, which may become more.
        bytes_max: of a response.
    """

    __slots__ = ("_aborted", "_bytes", "_credit", "_partitions")

    def __init__(self, credit: Callable[[], int], bytes_max: int) -> None:
        self._credit = credit
        self._bytes = min(credit(), bytes_max)
        self._partitions = 0
        self._aborted = ABORTED_IN_RESPONSE

    @property
    def is_full(self) -> bool:
        """Whether nothing more goes in."""
        return self._bytes <= 0 or self._partitions >= PARTITIONS_IN_RESPONSE

    def max_bytes(self, position: FetchPosition) -> int:
        """Return how many bytes of a partition to look for."""
        return min(self._bytes, position.max_bytes or self._bytes)

    def take(self, size: int, aborted: int = 0) -> bool:
        """Put a partition in; return whether there is room for it.

        Args:
            size: bytes of its batches.
            aborted: how many aborted transactions are named with them.
        """
        if size > self._bytes and (self._partitions or size > self._credit()):
            return False
        if aborted and aborted > self._aborted and self._partitions:
            return False
        self._aborted -= aborted
        self._bytes -= size
        self._partitions += 1
        return True
