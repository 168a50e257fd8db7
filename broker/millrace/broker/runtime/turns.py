"""Long work on the event loop, a slice at a time, so that everything else goes on in between.

Whatever does something for each of many entries gives way before each of them. All long work
together has one slice in each turn of the loop: who comes when that is used up waits for the next
turn, and those who came first go on first. So a hundred large requests keep the loop no longer than
one does. The first few entries of each are done at once: what is small waits for nobody.
"""

import asyncio
import time
from typing import Final

SLICE_SECONDS: Final = 0.005
"""How long all long work together may keep the loop in one turn."""
FREE_ENTRIES: Final = 16
"""Entries of each work that do not count."""


class Turns:
    """See the module. One for all of a broker; on the event loop."""

    def __init__(self) -> None:
        self._until: float | None = None  # Of this turn's slice, once it has begun.

    def work(self) -> "Work":
        """Begin something that may become long."""
        return Work(self)

    async def next_slice(self) -> None:
        """Return when there is time for an entry: at once, unless this turn's slice is over."""
        while self._until is not None and time.monotonic() >= self._until:  # noqa: ASYNC110
            await asyncio.sleep(0)
        if self._until is None:
            self._until = time.monotonic() + SLICE_SECONDS
            # Before all who wait now: they were put into the loop's queue after this.
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self._until = None


class Work:
    """One request, one response, one log to read: whatever has many entries."""

    __slots__ = ("_done", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._done = 0

    async def give_way(self, entries: int = 1) -> None:
        """Return when there is time for so many more entries."""
        self._done += entries
        if self._done > FREE_ENTRIES:
            await self._turns.next_slice()
