"""Counts refused requests, and logs one with its caller now and then.

So during a flood of refusals the log names some of the callers. Only the caller's own faults are
logged: a moved leader, for example, is none.
"""

import logging
from collections.abc import Callable
from typing import Final

from millrace.broker.runtime.clock import monotonic_now
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.callers import Caller
from millrace.core.errors import BrokerBusyError, InvalidRequestError, MillraceError
from millrace.core.ids import MonotonicMs

_log = logging.getLogger(__name__)

_PAUSE_MS: Final = 10_000
"""Pause between two refusals in the log."""
_TEXT_MAX: Final = 300
"""Characters of a client's text that the log takes."""


class Refusals:
    """See the module.

    Args:
        metrics: count them.
        clock: for the pauses of the log.

    Attributes:
        metrics: as given.
    """

    def __init__(
        self, metrics: BrokerMetrics, *, clock: Callable[[], MonotonicMs] = monotonic_now
    ) -> None:
        self.metrics = metrics
        self._clock = clock
        self._quiet_until = MonotonicMs(0)
        self._unnamed = 0

    def on_refused(self, error: MillraceError, caller: Caller, method: str) -> None:
        """Count a refusal, and log it if it is time to.

        Args:
            error: the refusal.
            caller: of the request.
            method: its name, without the service.
        """
        self.metrics.refused(error)
        if not isinstance(error, InvalidRequestError | BrokerBusyError):
            return
        now = self._clock()
        if now < self._quiet_until:
            self._unnamed += 1
            return
        _log.warning(
            "a caller was refused",
            extra={
                **caller.log_fields(),
                "method": method,
                "error": printable(error.message),
                "others_since_the_last": self._unnamed,
            },
        )
        self._quiet_until = MonotonicMs(now + _PAUSE_MS)
        self._unnamed = 0


def printable(text: str) -> str:
    """Return the part of a client's text that a log line may have."""
    return "".join(each if each.isprintable() else "?" for each in text[:_TEXT_MAX])
