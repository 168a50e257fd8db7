"""Long work on the event loop, a slice at a time, so that other work goes on in between.

Work with many entries yields before each of them. All long work together has one slice in each turn
of the loop. A task that waited for a slice has all of it. The task that has waited longest gets the
next one. So a hundred large requests delay the loop no longer than one does. Some work never ends:
a connection may send requests faster than they are answered. Such work names its owner, a client.
Owners take turns, a slice each, and the number of their connections does not count. The first few
entries of each work are done at once, and so are messages of ordinary size: small work does not
wait.
"""

import asyncio
from collections import deque
from collections.abc import Hashable
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
        # By owner. The first owner has the next turn; its task that has waited longest is first.
        # While anybody waits, a slice goes on, or the first task is told to begin the next.
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    def work(self) -> "Work":
        """Begin something that may become long."""
        return Work(self)

    async def give_way_to(self, message_bytes: int) -> None:
        """Return when there is time to decode or encode a message of this size."""
        if message_bytes > FREE_BYTES:
            await self.next_slice()

    async def next_slice(self, owner: Hashable = None) -> None:
        """Return when there is time for an entry: at once, unless the slice is over or another's.

        It is another's only while somebody waits: otherwise all share what is left of it.

        Args:
            owner: it takes turns with other owners; None: this task is its own owner.
        """
        task = asyncio.current_task()
        is_over = self._until is not None and host.monotonic_s() >= self._until
        if is_over or (self._waiting and self._holder is not task):
            await self._wait(owner)
        if self._until is None:
            self._until, self._holder = host.monotonic_s() + SLICE_SECONDS, task
            asyncio.get_running_loop().call_soon(self._end)
            self._tell_first()  # In the next turn: then this slice has ended.

    async def _wait(self, owner: Hashable) -> None:
        """Return when the next slice is this task's."""
        told = asyncio.get_running_loop().create_future()
        owner = told if owner is None else owner
        self._waiting.setdefault(owner, deque()).append(told)
        try:
            await told
        except asyncio.CancelledError:
            self._waiting[owner].remove(told)
            if not self._waiting[owner]:
                del self._waiting[owner]
            if self._until is None:  # It may have been told.
                self._tell_first()
            raise
        others = self._waiting.pop(owner)
        others.remove(told)
        if others:
            self._waiting[owner] = others  # Behind the other owners.

    def _end(self) -> None:
        self._until = self._holder = None
        self._tell_first()

    def _tell_first(self) -> None:
        if self._waiting:
            first = next(iter(self._waiting.values()))[0]
            if not first.done():
                first.set_result(None)


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
