"""Long work on the event loop, a slice at a time, so that other work goes on in between.

Work with many entries yields before each of them. All long work together has one slice in each turn
of the loop. Work that finds it used up waits for a slice, and what has waited longest begins the
next one: so work without end, such as a connection that sends requests faster than they are
answered, has its share and no more. A hundred large requests delay the loop no longer than one
does. The first few entries of each are done at once, and so are messages of ordinary size: small
work does not wait.
"""

import asyncio
from collections import deque
from typing import Final

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
        self._waiting: deque[object] = deque()  # What has waited longest is first.

    def work(self) -> "Work":
        """Begin something that may become long."""
        return Work(self)

    async def give_way_to(self, message_bytes: int) -> None:
        """Return when there is time to decode or encode a message of this size."""
        if message_bytes > FREE_BYTES:
            await self.next_slice()

    async def next_slice(self) -> None:
        """Return when there is time for an entry: at once, unless this turn's slice is over."""
        if self._waiting or not self._has_time:
            await self._wait()
        if self._until is None:
            self._until = host.monotonic_s() + SLICE_SECONDS
            asyncio.get_running_loop().call_soon(self._end)

    @property
    def _has_time(self) -> bool:
        return self._until is None or host.monotonic_s() < self._until

    async def _wait(self) -> None:
        """Return when a slice has time, and nobody waits for longer."""
        me = object()
        self._waiting.append(me)
        try:
            await asyncio.sleep(0)
            while self._waiting[0] is not me or not self._has_time:  # noqa: ASYNC110
                await asyncio.sleep(0)
        finally:
            self._waiting.remove(me)

    def _end(self) -> None:
        self._until = None


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
