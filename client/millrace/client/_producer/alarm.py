"""A timer for a moment that moves with each step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from millrace.core.ids import MonotonicMs
from millrace.runtime import host

_AT_LEAST_S: Final = 0.0005


class Timer(Protocol):
    """What `asyncio.TimerHandle` has."""

    def cancel(self) -> None: ...


@dataclass(slots=True, eq=False)
class Alarm:
    """Calls `on_due` at the time that was set, or earlier.

    A later time does not replace an earlier one: `on_due` is called early and sets the next time.
    That costs less than another timer for each step.

    Times are whole milliseconds, and a timer counts from the middle of one: without regard to that
    it would come half a millisecond late, on average. libuv rounds to milliseconds, too.
    """

    call_later: Callable[[float, Callable[[], None]], Timer]
    on_due: Callable[[], None]
    _timer: Timer | None = None
    _at: int = 0

    def set(self, at: MonotonicMs) -> None:
        """Call `on_due` at this time at the latest, but for what the loop's timers are late."""
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self.call_later(max(at / 1000 - host.monotonic_s(), _AT_LEAST_S), self._fire)

    def cancel(self) -> None:
        """Do not call it any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        self.on_due()
