"""A machine's clocks: they start anywhere, run too fast or too slow, and jump.

`monotonic` never goes back; it runs at `rate` (0.5 to 2) and may jump forward, as after a virtual
machine resumes. `wall` advances with it, and may jump both ways. Timers follow `monotonic`.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

from tests.sim.world import Event, World

EPOCH_US: Final = 1_700_000_000 * 1_000_000
"""The wall time at which worlds begin."""
CLOCK_RATE_MAX: Final = 2.0
"""How much too fast a clock may run."""


class MachineClock:
    """The clock of one machine, over all its processes.

    Args:
        world: whose time it distorts.
        owner: the machine's name, for the trace.

    Attributes:
        jumped_us: how far the time of day was set forward, and not set back yet.
    """

    def __init__(self, world: World, owner: str) -> None:
        dice = world.random(f"clock {owner}")
        self._world = world
        self._label = f"{owner} timer"
        self._rate = 1.0
        self._at = 0  # World time at which the rate last changed,
        self._local = dice.randrange(10**12)  # and what the clock showed at that time.
        self._wall_offset = EPOCH_US - self._local + dice.randrange(-(10**6), 10**6)
        self._timers: list[tuple[int, int, Callable[[], object]]] = []
        self._set = 0
        self.jumped_us = 0
        self._next: Event | None = None

    # --- What a process sees -----------------------------------------------------------------

    def monotonic(self) -> int:
        """Return microseconds of a clock that never goes back; it outlives processes."""
        return self._local + int((self._world.now - self._at) * self._rate)

    def wall(self) -> int:
        """Return the time of day, in microseconds since 1970."""
        return self.monotonic() + self._wall_offset

    def after(self, delay_us: int, action: Callable[[], object]) -> None:
        """Run an action after a delay by `monotonic`. It cannot be cancelled: an action that is no
        longer needed does nothing. The end of the process drops all of them."""
        self._set += 1
        heappush(self._timers, (self.monotonic() + max(delay_us, 0), self._set, action))
        if self._timers[0][1] == self._set:
            self._plan()

    # --- What tests do to it -----------------------------------------------------------------

    def set_rate(self, rate: float) -> None:
        """Let the clock run at this multiple of the world's speed."""
        assert rate > 0
        self._local, self._at = self.monotonic(), self._world.now
        self._rate = rate
        self._plan()

    def jump(self, forward_us: int) -> None:
        """Let both clocks jump forward, as after a machine was suspended."""
        assert forward_us >= 0
        self._local += forward_us
        self._plan()

    def jump_wall(self, by_us: int) -> None:
        """Set the time of day, forward or back."""
        self._wall_offset += by_us
        self.jumped_us += by_us

    def forget_timers(self) -> None:
        """Drop all timers: the process that set them has ended."""
        self._timers.clear()
        self._plan()

    def _plan(self) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._timers:
            left = max(self._timers[0][0] - self.monotonic(), 0)
            # Rounded up, so that a timer is never early.
            self._next = self._world.after(int(left / self._rate) + 1, self._label, self._fire)

    def _fire(self) -> None:
        self._next = None
        due, now = [], self.monotonic()
        while self._timers and self._timers[0][0] <= now:
            due.append(heappop(self._timers)[2])
        self._plan()
        for action in due:
            action()
