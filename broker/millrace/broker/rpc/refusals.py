"""Counts refused requests, and passes those on to the audit log that are the caller's own fault.

A moved leader, for example, is none. A busy broker is named, too: its callers are too many.
"""

from millrace.broker.rpc.audit import AuditLog
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.callers import Caller
from millrace.core.errors import (
    AccessDeniedError,
    BrokerBusyError,
    InvalidRequestError,
    MillraceError,
)


class Refusals:
    """Counts the refused requests of one listener.

    Args:
        metrics: count them.
        audit: names the callers.

    Attributes:
        metrics: as given.
        audit: as given.
    """

    def __init__(self, metrics: BrokerMetrics, audit: AuditLog) -> None:
        self.metrics = metrics
        self.audit = audit

    def on_rehearsed(self, caller: Caller, method: str, reason: str) -> None:
        """Count, and log, what access control would refuse."""
        self.metrics.rehearsed_refusals.inc()
        self.audit.on_rehearsed(caller, method, reason)

    def on_refused(self, error: MillraceError, caller: Caller, method: str) -> None:
        """Count a refusal, and log it if it is the caller's fault.

        Args:
            error: the refusal.
            caller: of the request.
            method: its name, without the service.
        """
        self.metrics.refused(error, method)
        if isinstance(error, InvalidRequestError | AccessDeniedError | BrokerBusyError):
            self.audit.on_refused(caller, method, error)
