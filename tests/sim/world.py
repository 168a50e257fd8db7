"""Virtual time: the order of events, and their randomness.

A world is a heap of events, ordered by time and then by when they were scheduled. Nothing else
runs: no thread, no real clock, no socket. So one seed is one run, under any hash seed of the
interpreter, and `Trace.digest` proves it.

Each concern (a link, a disk, a workload) draws from a generator of its own. A fault that is removed
from a run leaves the others' random numbers unchanged, so a run can shrink.
"""

import hashlib
import random
from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, Final, NewType

Micros = NewType("Micros", int)
"""Microseconds of virtual time since the world began; no simulated process can read it."""

MILLISECOND: Final = 1_000
SECOND: Final = 1_000_000
MINUTE: Final = 60 * SECOND

EVENTS_AT_ONE_MOMENT_MAX: Final = 100_000
_LINES_PER_HASH: Final = 256
_MESSAGES_MAX: Final = 100


class Violation(Exception):
    """The product broke a promise; the run ends here."""


class Trace:
    """The events of a run, as lines: the digest covers all of them; the last ones are kept.

    Args:
        lines_max: how many lines are kept.
        is_detailed: keep notes and the last messages, instead of each step; digests of detailed
            traces compare only with one another.
    """

    def __init__(self, lines_max: int = 2_000, *, is_detailed: bool = False) -> None:
        self.is_detailed = is_detailed
        self._lines: deque[tuple[int, str, bool]] = deque(maxlen=lines_max)
        self._messages: deque[tuple[int, str]] = deque(maxlen=_MESSAGES_MAX)
        self._new: list[tuple[int, str, bool]] = []
        """Neither hashed nor kept yet; the last field: whether it is a note."""
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, at: int, text: str, *, is_told: bool = False) -> None:
        """Add the label of a step, or, with `is_told`, a note about it."""
        self._new.append((at, text, is_told))
        if len(self._new) >= _LINES_PER_HASH:
            self._fold()

    def add_message(self, at: int, text: str) -> None:
        """Note what one process said to another, in a detailed trace."""
        self._messages.append((at, text))

    @property
    def lines(self) -> list[tuple[int, str]]:
        """The last ones: time and text."""
        self._fold()
        happened = [(at, text) for at, text, _ in self._lines]
        return sorted([*happened, *self._messages], key=lambda line: line[0])

    def digest(self) -> str:
        """Return the hash of every line so far."""
        self._fold()
        return self._hash.hexdigest()

    def text(self) -> str:
        """Return the kept lines, the time in seconds before each."""
        return "\n".join(f"{at / SECOND:12.6f}  {text}" for at, text in self.lines)

    def _fold(self) -> None:
        new, self._new = self._new, []
        self._hash.update("".join([f"{at} {text}\n" for at, text, _ in new]).encode())
        self._lines.extend([line for line in new if line[2]] if self.is_detailed else new)


class Event(list[Any]):
    """A future action that can be cancelled: time, number, label, action and arguments. It is a
    list, which the heap can order quickly, because there are so many.
    """

    __slots__ = ()

    def cancel(self) -> None:
        self[3] = None
        self[4] = ()


class World:
    """The clock, the heap of events, and the dice of one run.

    Attributes:
        now: the time; only `run_until` advances it.
        events: how many happened.
        handled: how many of them product code handled; processes count them.
    """

    def __init__(self, seed: int, trace: Trace | None = None) -> None:
        self.seed = seed
        self.now = Micros(0)
        self.trace = trace or Trace()
        self.events = 0
        self.handled = 0
        self._heap: list[Event] = []
        self._scheduled = 0

    def random(self, concern: str) -> random.Random:
        """Return a new generator for one concern; equal names give equal dice."""
        return random.Random(f"{self.seed}/{concern}")  # `Random` hashes a string by SHA-512.

    def at(self, when: int, label: str, action: Callable[..., object], *arguments: object) -> Event:
        """Schedule an action at a time, not before now; the label goes into the trace."""
        now = self.now
        self._scheduled = number = self._scheduled + 1
        event = Event((when if when > now else now, number, label, action, arguments))
        heappush(self._heap, event)
        return event

    def after(
        self, delay: int, label: str, action: Callable[..., object], *arguments: object
    ) -> Event:
        """Schedule an action `delay` microseconds from now."""
        now = self.now
        self._scheduled = number = self._scheduled + 1
        event = Event((now + delay if delay > 0 else now, number, label, action, arguments))
        heappush(self._heap, event)
        return event

    def note(self, text: str) -> None:
        """Write a line into the trace."""
        self.trace.add(self.now, text, is_told=True)

    def run_until(self, end: int, after_each: Callable[[], None] | None = None) -> None:
        """Run all events that are due up to `end`.

        Args:
            end: in microseconds of virtual time, inclusive; the world's time afterwards.
            after_each: called after every event: the invariants.

        Raises:
            Violation: an invariant does not hold, or time stands still.
        """
        heap, trace = self._heap, self.trace.add
        events_now = 0
        while heap and heap[0][0] <= end:
            when, _, label, action, arguments = heappop(heap)
            if action is None:
                continue
            if when != self.now:
                events_now = 0
                self.now = Micros(when)
            elif events_now == EVENTS_AT_ONE_MOMENT_MAX:
                raise Violation(f"{EVENTS_AT_ONE_MOMENT_MAX} events at one moment, such as {label}")
            events_now += 1
            self.events += 1
            trace(when, label)
            action(*arguments)
            if after_each is not None:
                after_each()
        self.now = Micros(max(self.now, end))
