"""An event loop whose clock leaps to its next timer, so that a test of long waits takes no time.

The loop's clock is also the monotonic clock of `host.current`, and its dice are loaded. A coroutine
that runs on it waits for timers and for itself alone: no input from outside would end a wait.
"""

import asyncio
import random
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

from millrace.client import host

ResultT = TypeVar("ResultT")


class _Clock(selectors.DefaultSelector):
    """Waits for timers without waiting."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nothing would ever happen"
            self.now_s += timeout
        return found


class _ClockedLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now_s


class _ClockedHost(host.RealHost):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic_ns(self) -> int:
        return round(self._loop.time() * 1e9)

    def dice(self) -> random.Random:
        return random.Random(0)


def run_clocked(story: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a coroutine to its end, as `asyncio.run` does, in virtual time."""
    before = host.current
    with asyncio.Runner(loop_factory=_ClockedLoop) as runner:
        host.current = _ClockedHost(runner.get_loop())
        try:
            return runner.run(story)
        finally:
            host.current = before
