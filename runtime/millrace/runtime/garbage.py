"""The garbage collector of a broker: it stops the broker only briefly, even with many objects.

The collector stops the broker while it looks at the objects of a generation. For the objects of
5,000 partitions or groups that takes a fifth of a second or more. All long-lived objects end in the
oldest generation. So this generation is collected while it is small, and the survivors are frozen:
no later collection looks at them.

Reference counting frees most objects, frozen ones as well. But a frozen cycle that is dropped stays
in memory. So everything is collected again in a quiet moment after the frozen objects have doubled,
or at any moment after they have quadrupled. Those that are free by then do not count: while a
request is large, a collection freezes thousands of its objects.

CPython collects the oldest generation only when its new objects are a quarter of those that its
last collection left. So that collection must have left few.

Source: https://docs.python.org/3/library/gc.html, `gc.freeze`
"""

import asyncio
import gc
import time
from collections.abc import Mapping
from typing import Any, Final

THRESHOLDS: Final = (10_000, 2, 2)
"""Of the three generations. A collection of the oldest one looks at about 130,000 objects."""
_LOOK_SECONDS: Final = 1.0
_QUIET_SHARE: Final = 0.2
"""The loop is quiet while it works for less than this share of its time."""
_QUIET_FACTOR: Final = 2
_ANY_FACTOR: Final = 4
"""All objects are collected when the frozen ones have grown by this factor; the first one is for a
quiet loop."""
_OLDEST: Final = 2


class Garbage:
    """Collects and freezes the objects of this process: it has one.

    Attributes:
        kept: objects that the last collection of everything left.
        added: objects frozen since; those that were freed later count until `is_due` looks.
    """

    def __init__(self) -> None:
        self.kept = self.added = 0

    def begin(self) -> None:
        """Collect often from now on, and few objects at a time."""
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._on_collection)
        self.keep_all()

    def end(self) -> None:
        """Undo `begin`, except for the thresholds."""
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()

    def keep_all(self) -> None:
        """Freeze the present objects without a collection."""
        gc.freeze()
        self.kept, self.added = gc.get_freeze_count(), 0

    async def run(self) -> None:
        """Collect everything whenever that is due, on the broker's loop, until it stops."""
        while True:
            worked = time.thread_time()
            await asyncio.sleep(_LOOK_SECONDS)
            share = (time.thread_time() - worked) / _LOOK_SECONDS
            if self.is_due(share):
                self.collect_all()

    def is_due(self, share: float) -> bool:
        """Return whether to collect everything.

        Args:
            share: of its time that the loop works.
        """
        factor = _QUIET_FACTOR if share < _QUIET_SHARE else _ANY_FACTOR
        due = factor * self.kept
        if self.kept + self.added >= due:
            # Most of what was frozen during large requests is free by now.
            self.added = gc.get_freeze_count() - self.kept
        return self.kept + self.added >= due

    def collect_all(self) -> None:
        """Collect all objects, frozen ones included."""
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.collect()  # Nothing is left to look at, so CPython notes that few objects are left.
        self.keep_all()
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase == "stop" and info["generation"] == _OLDEST:
            self.added += len(gc.get_objects(generation=_OLDEST))
            gc.freeze()
