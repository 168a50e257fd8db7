"""What is to be looked at, each thing once however often it was named, and by one worker at a time.

A thing that is named while it is worked on is worked on again afterwards. One that failed is
worked on again after a pause, longer each time. This is the work queue of every controller of
Kubernetes (client-go's `workqueue`), for one event loop.
"""

import asyncio
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)

PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 60.0


class WorkQueue(Generic[_K]):
    """See the module. Used from one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[_K, None] = {}  # In the order in which they came.
        self._working: set[_K] = set()
        self._timers: dict[_K, asyncio.TimerHandle] = {}
        self._failures: dict[_K, int] = {}
        self._is_due = asyncio.Event()

    def __len__(self) -> int:
        """How many things wait, or are worked on."""
        return len(self._waiting) + len(self._working)

    def add(self, key: _K) -> None:
        """Have a thing looked at as soon as a worker is free."""
        self._waiting[key] = None
        self._is_due.set()

    def add_after(self, key: _K, seconds: float) -> None:
        """Have it looked at later; the earliest time counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._on_time, key)

    async def get(self) -> _K:
        """Return what is to be looked at next. Say `done`, or `failed`, when that is over."""
        while True:
            for key in self._waiting:
                if key not in self._working:
                    del self._waiting[key]
                    self._working.add(key)
                    return key
            self._is_due.clear()
            await self._is_due.wait()

    def done(self, key: _K, again_after_s: float | None) -> None:
        """It was looked at."""
        self._failures.pop(key, None)
        self._finish(key)
        if again_after_s is not None:
            self.add_after(key, again_after_s)

    def failed(self, key: _K) -> float:
        """It could not be; return the pause after which it is tried again, in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        pause_s = min(PAUSE_S_MIN * 2.0 ** min(failures, 30), PAUSE_S_MAX)
        self._finish(key)
        self.add_after(key, pause_s)
        return pause_s

    def _finish(self, key: _K) -> None:
        self._working.discard(key)
        if key in self._waiting:
            self._is_due.set()

    def _on_time(self, key: _K) -> None:
        del self._timers[key]
        self.add(key)
