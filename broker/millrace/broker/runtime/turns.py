"""Long work on the event loop, a slice at a time, so that everything else goes on in between.

Whatever does something for each of many entries calls `give_way` before each of them. All long work
together has one slice in each turn of the loop: who comes when that is used up waits for the next
turn, and those who came first go on first. So the loop is kept no longer by a hundred such requests
than by one.
"""

import asyncio
import time
from typing import Final

SLICE_SECONDS: Final = 0.005
"""How long all long work together may keep the loop in one turn."""


class Turns:
    """See the module. One for all of a broker; on the event loop."""

    def __init__(self) -> None:
        self._until: float | None = None  # Of this turn's slice, once it has begun.

    async def give_way(self) -> None:
        """Return when there is time for an entry: at once, unless this turn's slice is over."""
        while self._until is not None and time.monotonic() >= self._until:
            await asyncio.sleep(0)
        if self._until is None:
            self._until = time.monotonic() + SLICE_SECONDS
            # Before all who wait now: they were put into the loop's queue after this.
            asyncio.get_running_loop().call_soon(self._end)

    def _end(self) -> None:
        self._until = None
