"""A timer for a moment that moves with each step."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from millrace.core.ids import MonotonicMs

_AT_LEAST_MS: Final = 0.5


class Timer(Protocol):
    """What `asyncio.TimerHandle` has."""

    def cancel(self) -> None: ...


@dataclass(slots=True, eq=False)
class Alarm:
    """Calls `on_due` at the time that was set, or earlier.

    A later time does not replace an earlier one: `on_due` is called early and sets the next time.
    That costs less than another timer for each step.
    """

    call_later: Callable[[float, Callable[[], None]], Timer]
    on_due: Callable[[], None]
    _timer: Timer | None = None
    _at: int = 0

    def set(self, at: MonotonicMs, now: MonotonicMs) -> None:
        """Call `on_due` at this time at the latest."""
        if self._timer is not None:
            if self._at <= at:
                return
            self._timer.cancel()
        self._at = at
        self._timer = self.call_later(max(at - now, _AT_LEAST_MS) / 1000, self._fire)

    def cancel(self) -> None:
        """Do not call it any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _fire(self) -> None:
        self._timer = None
        self.on_due()
