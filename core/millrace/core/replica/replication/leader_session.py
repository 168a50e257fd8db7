"""A follower broker's fetch session with one leader broker, over all partitions that it leads.

The session is one stream.

Partitions are named once, by handles that are never reused, so that an answer to an abandoned
position is recognised (P7). From then on the leader sends new batches, and this side reports its
progress (`FollowerProgress`) and grants credit in bytes. Credit bounds the bytes that are received
and not yet written. It is granted again when they are written, in pieces that are worth a message.

News gather here until the shell takes them (`take_request`), so that a thousand positions, or a
round of writes over many partitions, make one message. The number of positions in a message is
bounded, above all of new ones: its receiver handles them without a break, and has others to serve.
The rest waits for the next message.

When the stream breaks only time is lost: the shell calls `on_broken`, waits a little, opens another
and takes a new request, with every position that its followers want then. Positions that were not
sent yet simply go on waiting: a leader that is gone is tried again and again, and a try must not
cost something for each partition.

Source: KIP-227, KIP-74; `core.replica.fetch.session` is the other side.
"""

import heapq
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from millrace.core.ids import MonotonicMs, TopicPartition
from millrace.core.replica.replication.effects import FetchFrom
from millrace.core.replica.replication.progress import FollowerProgress

_GRANT_FRACTION: Final = 4
"""Credit is granted in pieces of at least this fraction of the window."""
_POSITIONS_IN_REQUEST: Final = 500
"""New positions in one message at the most."""
ENTRIES_IN_REQUEST: Final = 5000
"""Closed or reported positions in one message at the most."""


@dataclass(slots=True)
class SessionRequest:
    """The content of one message to the leader."""

    added: list[tuple[int, FetchFrom, FollowerProgress]] = field(default_factory=list)
    removed: list[int] = field(default_factory=list)
    progress: list[tuple[int, FollowerProgress]] = field(default_factory=list)
    credit_bytes: int = 0


@dataclass(slots=True)
class _Open:
    position: FetchFrom
    progress: FollowerProgress
    """As it was sent last; until the position is sent, the current one."""
    is_sent: bool = False


class LeaderSession:
    """The positions, the news and the credit of one stream.

    Args:
        window_bytes: the most credit that the leader has at a time.
    """

    __slots__ = (
        "_due",
        "_granted",
        "_handles",
        "_is_begun",
        "_next_handle",
        "_open",
        "_progress",
        "_removed",
        "_to_send",
        "_unwritten",
        "_window",
    )

    def __init__(self, window_bytes: int) -> None:
        self._window = window_bytes
        self._next_handle = 1
        self._open: dict[int, _Open] = {}
        self._handles: dict[TopicPartition, int] = {}
        self._removed: list[int] = []
        self._progress: dict[int, FollowerProgress] = {}  # News of positions that were sent.
        self._to_send: dict[int, None] = {}
        # Positions that pause before they are sent: (when, handle).
        self._due: list[tuple[MonotonicMs, int]] = []
        self._granted = 0
        self._unwritten = 0
        self._is_begun = False  # Whether the stream has any position yet.

    def __len__(self) -> int:
        return len(self._handles)

    def open(self, position: FetchFrom, progress: FollowerProgress, now: MonotonicMs) -> None:
        """Replace a partition's position."""
        self.close(position.topic_partition)
        handle = self._next_handle
        self._next_handle += 1
        self._open[handle] = _Open(position, progress)
        self._handles[position.topic_partition] = handle
        if position.pause_ms:
            heapq.heappush(self._due, (MonotonicMs(now + position.pause_ms), handle))
        else:
            self._to_send[handle] = None

    def close(self, topic_partition: TopicPartition) -> None:
        """Leave a partition."""
        handle = self._handles.pop(topic_partition, None)
        if handle is None:
            return
        self._progress.pop(handle, None)
        self._to_send.pop(handle, None)
        if self._open.pop(handle).is_sent:
            self._removed.append(handle)

    def on_progress(self, topic_partition: TopicPartition, progress: FollowerProgress) -> None:
        """Note how far a partition's log is; the latest counts."""
        handle = self._handles.get(topic_partition)
        if handle is None:
            return
        found = self._open[handle]
        if not found.is_sent:
            found.progress = progress
        elif progress != found.progress:
            self._progress[handle] = progress
        else:
            self._progress.pop(handle, None)

    def on_received(self, size: int) -> None:
        """Note that batches of so many bytes came; they are on their way to the disk."""
        self._granted -= size
        self._unwritten += size

    def on_done(self, size: int) -> None:
        """Note that batches of so many bytes are written, or dropped."""
        self._unwritten -= size

    def position(self, handle: int) -> FetchFrom | None:
        """Return the position of a handle; None if it was closed (P7)."""
        found = self._open.get(handle)
        return None if found is None else found.position

    def next_due(self) -> MonotonicMs | None:
        """Return when a pause ends."""
        return self._due[0][0] if self._due else None

    @property
    def has_news(self) -> bool:
        """Whether `take_request` would return a message, apart from pauses that end."""
        if self._to_send or self._removed or self._progress:
            return True
        # Credit alone is no reason to open a stream, as while positions pause.
        return self._is_begun and self._is_worth_granting

    @property
    def _credit(self) -> int:
        return self._window - self._granted - self._unwritten

    @property
    def _is_worth_granting(self) -> bool:
        credit = self._credit
        return credit >= self._window // _GRANT_FRACTION or self._granted <= 0 < credit

    def take_request(self, now: MonotonicMs) -> SessionRequest | None:
        """Return the message to send now; None: there is none."""
        while self._due and self._due[0][0] <= now:
            _, handle = heapq.heappop(self._due)
            if handle in self._open:
                self._to_send[handle] = None
        if not self.has_news:
            return None
        request = SessionRequest(removed=self._removed[:ENTRIES_IN_REQUEST])
        del self._removed[:ENTRIES_IN_REQUEST]
        # A partition closes its old position before it opens another.
        to_send = [] if self._removed else list(islice(self._to_send, _POSITIONS_IN_REQUEST))
        for handle in to_send:
            del self._to_send[handle]
            found = self._open[handle]
            found.is_sent = True
            request.added.append((handle, found.position, found.progress))
        self._is_begun = True
        for handle in list(islice(self._progress, ENTRIES_IN_REQUEST)):
            progress = self._progress.pop(handle)
            self._open[handle].progress = progress
            request.progress.append((handle, progress))
        if self._is_worth_granting:
            request.credit_bytes = self._credit
            self._granted += request.credit_bytes
        return request

    def on_broken(self) -> list[FetchFrom]:
        """The stream is gone, with the positions that were sent; return them.

        Their followers may have received more since, and open new ones. The others stay.
        """
        lost = {handle: opened for handle, opened in self._open.items() if opened.is_sent}
        for handle, opened in lost.items():
            del self._open[handle]
            del self._handles[opened.position.topic_partition]
        self._progress.clear()
        self._removed = []
        self._granted = 0
        self._is_begun = False
        return [opened.position for opened in lost.values()]
