"""The garbage collector of a broker: short stops, also of a broker that holds millions of objects.

The collector stops the broker while it looks at the objects of a generation; those of 5,000
partitions or groups take a fifth of a second and more. All long-lived objects end in the oldest
generation. So this one is collected while it is small, and what survives is frozen: no later
collection looks at it. References free most dropped objects, also frozen ones; but a cycle that was
frozen and dropped later stays. So everything is collected again when the frozen objects have
doubled, as soon as the loop is quiet, or when there are four times as many.

CPython leaves the oldest generation alone until the objects that are new in it are a quarter of
those that its last collection left. So that collection must have left few.

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
"""Share of its time that a quiet loop works."""
_QUIET_FACTOR: Final = 2
_ANY_FACTOR: Final = 4
"""How much the frozen objects grow before all are collected, in a quiet moment or in any."""
_OLDEST: Final = 2


class Garbage:
    """See the module. One for the process.

    Attributes:
        kept: objects that the last collection of everything left.
        added: objects frozen since.
    """

    def __init__(self) -> None:
        self.kept = self.added = 0

    def begin(self) -> None:
        """Collect often, and little at a time, from now on."""
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._on_collection)
        self.keep_all()

    def end(self) -> None:
        """Undo `begin`, but for the thresholds."""
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()

    def keep_all(self) -> None:
        """The present objects stay: freeze them without a collection."""
        gc.freeze()
        self.kept, self.added = gc.get_freeze_count(), 0

    async def run(self) -> None:
        """Collect everything when it is time, for as long as the broker runs; on its loop."""
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
        return self.kept + self.added >= factor * self.kept

    def collect_all(self) -> None:
        """Collect everything, also what is frozen."""
        gc.callbacks.remove(self._on_collection)
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        gc.collect()  # It looks at nothing, and leaves nothing: see the module.
        self.keep_all()
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, Any]) -> None:
        if phase == "stop" and info["generation"] == _OLDEST:
            self.added += len(gc.get_objects(generation=_OLDEST))
            gc.freeze()
