"""Long work on the event loop, a slice at a time, so that other work goes on in between.

Work with many entries yields before each of them. All long work together has one slice in each turn
of the loop. A task that waited for a slice has all of it, however many entries that are; the next
one is for whoever has waited longest. So a hundred large requests delay the loop no longer than one
does, and work without end, such as a connection that sends requests faster than they are answered,
has its share of the time and no more. The first few entries of each work are done at once, and so
are messages of ordinary size: small work does not wait.
"""

import asyncio
from collections import deque
from typing import Any, Final

from millrace.runtime import host

SLICE_SECONDS: Final = 0.002
"""How long all long work together may keep the loop in one turn."""
FREE_ENTRIES: Final = 16
"""Entries of each work that do not count."""
FREE_BYTES: Final = 32 << 10
"""Largest message that is decoded or encoded at once: for less than its call costs anyway."""


class Turns:
    """Shares the slices of the event loop among all long work of a broker."""

    def __init__(self) -> None:
        self._until: float | None = None  # Of this turn's slice, once it has begun.
        self._holder: asyncio.Task[Any] | None = None  # Who began it.
        # Who has waited longest is first. While anybody waits, a slice goes on, or the first one is
        # told to begin the next.
        self._waiting: deque[asyncio.Future[None]] = deque()

    def work(self) -> "Work":
        """Begin something that may become long."""
        return Work(self)

    async def give_way_to(self, message_bytes: int) -> None:
        """Return when there is time to decode or encode a message of this size."""
        if message_bytes > FREE_BYTES:
            await self.next_slice()

    async def next_slice(self) -> None:
        """Return when there is time for an entry: at once, unless the slice is over or another's.

        It is another's only while somebody waits: otherwise all share what is left of it.
        """
        task = asyncio.current_task()
        is_over = self._until is not None and host.monotonic_s() >= self._until
        if is_over or (self._waiting and self._holder is not task):
            await self._wait()
        if self._until is None:
            self._until, self._holder = host.monotonic_s() + SLICE_SECONDS, task
            asyncio.get_running_loop().call_soon(self._end)
            self._tell_first()  # In the next turn: then this slice has ended.

    async def _wait(self) -> None:
        """Return when the next slice is this task's."""
        told = asyncio.get_running_loop().create_future()
        self._waiting.append(told)
        try:
            await told
        except asyncio.CancelledError:
            self._waiting.remove(told)
            if self._until is None:  # It may have been told.
                self._tell_first()
            raise
        self._waiting.remove(told)

    def _end(self) -> None:
        self._until = self._holder = None
        self._tell_first()

    def _tell_first(self) -> None:
        if self._waiting and not self._waiting[0].done():
            self._waiting[0].set_result(None)


class Work:
    """One piece of work with many entries, such as a request, a response or a log to read."""

    __slots__ = ("_done", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._done = 0

    async def give_way(self, entries: int = 1) -> None:
        """Return when there is time for this many more entries."""
        self._done += entries
        if self._done > FREE_ENTRIES:
            await self._turns.next_slice()
