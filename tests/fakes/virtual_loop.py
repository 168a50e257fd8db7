"""An asyncio event loop whose clock jumps to the next timer instead of waiting for it.

For tests of pauses and time-outs: minutes take no time, and a slow machine changes nothing. Only
for code that neither opens a connection nor waits for a thread. The loop's clock is also that of
`host.current`, whose dice are the same in each run.
"""

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, ParamSpec

from millrace.runtime import host

Parameters = ParamSpec("Parameters")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop in which no timer waits."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self.now


class _VirtualHost(host.RealHost):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def monotonic_ns(self) -> int:
        return round(self._loop.time() * 1e9)

    def dice(self) -> random.Random:
        return random.Random(0)


class _JumpingSelector(selectors.BaseSelector):
    """Advances the clock of a loop by the time for which the loop would wait."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop
        self._real = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = self._real.select(0)
        if not events:
            assert timeout is not None, "the test waits for what never happens"
            self._loop.now += timeout
        return events

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()


def in_virtual_time(
    test: Callable[Parameters, Coroutine[Any, Any, None]],
) -> Callable[Parameters, None]:
    """Return an asynchronous test that runs in virtual time."""

    @wraps(test)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        before = host.current
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            host.current = _VirtualHost(runner.get_loop())
            try:
                runner.run(test(*args, **kwargs))
            finally:
                host.current = before

    return run
