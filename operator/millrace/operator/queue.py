"""A queue of keys: each is in it at most once, and one worker at a time handles it.

A key that is added while it is handled is handled again afterwards. A failed one is handled again
after a pause, longer each time. This is the work queue of every controller of Kubernetes
(client-go's `workqueue`), for one event loop.
"""

import asyncio
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)

PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 60.0


class WorkQueue(Generic[_K]):
    """A queue of work. Used from one event loop."""

    def __init__(self) -> None:
        self._is_open = True
        self._waiting: dict[_K, None] = {}  # In the order in which they came.
        self._working: set[_K] = set()
        self._timers: dict[_K, asyncio.TimerHandle] = {}
        self._failures: dict[_K, int] = {}
        self._is_due = asyncio.Event()

    def __len__(self) -> int:
        """How many keys wait, or are being handled."""
        return len(self._waiting) + len(self._working)

    @property
    def is_open(self) -> bool:
        """Whether keys are handed out; until they are again, all of them are kept."""
        return self._is_open

    @is_open.setter
    def is_open(self, is_open: bool) -> None:
        self._is_open = is_open
        self._is_due.set()

    def add(self, key: _K) -> None:
        """Add a key, to be handled as soon as a worker is free."""
        self._waiting[key] = None
        self._is_due.set()

    def add_after(self, key: _K, seconds: float) -> None:
        """Add a key later; the earliest time counts."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + seconds:
                return
            timer.cancel()
        self._timers[key] = loop.call_later(seconds, self._on_time, key)

    async def get(self) -> _K:
        """Return the next key. Call `done` or `failed` when it was handled."""
        while True:
            for key in self._waiting if self._is_open else ():
                if key not in self._working:
                    del self._waiting[key]
                    self._working.add(key)
                    return key
            self._is_due.clear()
            await self._is_due.wait()

    def done(self, key: _K, again_after_s: float | None) -> None:
        """A key was handled."""
        self._failures.pop(key, None)
        self._finish(key)
        if again_after_s is not None:
            self.add_after(key, again_after_s)

    def failed(self, key: _K) -> float:
        """Handling failed; return the pause before the retry, in seconds."""
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
