"""The audit log: a line in the controller's log for each administrative request of a client.

It is written when the outcome is known, and names the client as reported by the broker that passed
the request on. A request that only validates changes nothing, and leaves no line.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from millrace.broker.rpc.refusals import printable
from millrace.core.callers import Caller
from millrace.core.errors import MillraceError

_log = logging.getLogger(__name__)

_NAMED_MAX: Final = 20
"""Entries of a request that its line names."""


class AuditLine:
    """The line of one request.

    Args:
        caller: the client.
        request: its name on the wire.
    """

    def __init__(self, caller: Caller, request: str) -> None:
        self._caller = caller
        self._request = request
        self._entries: list[str] = []

    def name(self, entries: Iterable[str]) -> None:
        """Name the entries of the request; only the first ones are logged."""
        self._entries = [printable(each) for each in islice(entries, _NAMED_MAX)]

    def on_answered(self, outcomes: Sequence[object]) -> None:
        """Write the line of a request whose entries were each done, or refused with an error."""
        refused = [
            f"{entry}: {outcome.name()}"
            for entry, outcome in zip(self._entries, outcomes, strict=False)
            if isinstance(outcome, MillraceError)
        ]
        self._write(
            entry_count=len(outcomes),
            refused=", ".join(refused),
            refused_count=sum(isinstance(each, MillraceError) for each in outcomes),
        )

    def on_failed(self, error: MillraceError) -> None:
        """Write the line of a request that failed as a whole.

        It may have been done nevertheless, as `appended` says.
        """
        self._write(error=printable(error.message), appended=error.appended.name)

    def _write(self, **outcome: object) -> None:
        entries = ", ".join(self._entries)
        fields = {"request": self._request, "entries": entries, **outcome}
        _log.info("administrative request", extra={**self._caller.log_fields(), **fields})
