"""The audit log: who changed the cluster, or was refused, from where, and with which outcome.

An administrative request has one line, where it was decided: at the controller, at the leader whose
records are deleted or whose open transaction is aborted, or at the coordinator of the group or of
the transactional id. The line is written when the outcome is
known, and names the client as reported by the broker that passed the request on. A request that
only validates changes nothing, and leaves no line. Values are not logged, but for the names and
numbers that say what was changed.

A line is written at once, and what is equal to it is summed up for ten seconds: a client that is
refused ten thousand times a second costs two lines in ten seconds. Acts and refusals each have a
bound of different lines, so that a flood of refusals hides no act. A request of which a part was
done, or may have been done, is an act.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

from millrace.broker import events
from millrace.core.callers import Caller
from millrace.core.errors import Appended, MillraceError
from millrace.core.events import AUDIT_LOGGER, Event

_log = logging.getLogger(AUDIT_LOGGER)

_SUMMED_SECONDS: Final = 10
_REFUSALS_SHARE: Final = 10
"""A tenth as many lines for refusals as for acts."""
_NAMED_MAX: Final = 20
"""Entries of a request that its line names."""
_TEXT_MAX: Final = 300
"""Characters of a client's text that the log takes."""


class AuditLog:
    """Writes the lines, and sums up equal ones.

    Args:
        lines_max: different acts in ten seconds.
    """

    def __init__(self, lines_max: int) -> None:
        self._acts = _Sums(lines_max)
        self._refusals = _Sums(lines_max // _REFUSALS_SHARE)

    def on_refused(self, caller: Caller, method: str, error: MillraceError) -> None:
        """Log that a request was refused."""
        same = _Same(events.CALLER_REFUSED, _from_host(caller), method, error.name())
        if self._refusals.is_new(same):
            events.CALLER_REFUSED.log(
                _log, **caller.log_fields(), method=method, error=printable(error.message)
            )

    def on_unknown(self, caller: Caller, method: str, reason: str) -> None:
        """Log that nobody could be identified, with the reason that the caller is not told."""
        same = _Same(events.CREDENTIAL_REFUSED, _from_host(caller), method, "")
        if self._refusals.is_new(same):
            events.CREDENTIAL_REFUSED.log(
                _log, **caller.log_fields(), method=method, reason=printable(reason)
            )

    def on_rehearsed(self, caller: Caller, method: str, reason: str) -> None:
        """Log what would be refused if access control were enforced."""
        same = _Same(events.ACCESS_WOULD_BE_REFUSED, _from_host(caller), method, reason)
        if self._refusals.is_new(same):
            events.ACCESS_WOULD_BE_REFUSED.log(
                _log, **caller.log_fields(), method=method, reason=printable(reason)
            )

    def on_act(
        self,
        caller: Caller,
        request: str,
        entries: Sequence[str],
        outcomes: Sequence[object],
    ) -> None:
        """Log a request whose entries were each done, or refused with an error.

        Args:
            caller: the client.
            request: its name on the wire.
            entries: the first ones, in words.
            outcomes: of all.
        """
        refusals = [outcome for outcome in outcomes if isinstance(outcome, MillraceError)]
        named = [
            f"{entry}: {outcome.name()}"
            for entry, outcome in zip(entries, outcomes, strict=False)
            if isinstance(outcome, MillraceError)
        ]
        is_refused = bool(refusals) and len(refusals) == len(outcomes)
        # Whatever a client names, it is refused for the same reason.
        kinds = {type(refusal) for refusal in refusals}
        reasons = ", ".join(sorted(kind.name() for kind in kinds))
        self._write(
            caller,
            request,
            entries,
            len(outcomes),
            outcome="refused" if is_refused else "partly refused" if refusals else "done",
            why_nothing_is_done=reasons if is_refused else "",
            refused=named,
            refused_count=len(refusals),
        )

    def on_failed(
        self, caller: Caller, request: str, entries: Sequence[str], error: MillraceError
    ) -> None:
        """Log a request that failed as a whole.

        It may have been done nevertheless, as `appended` says.
        """
        why = error.name() if error.appended is Appended.NO else ""
        self._write(
            caller,
            request,
            entries,
            len(entries),
            outcome="failed",
            why_nothing_is_done=why,
            error=error,
        )

    def tell_sums(self) -> None:
        """Log how often what was logged has been repeated; begin to sum up again."""
        self._acts.tell()
        self._refusals.tell()

    async def run(self) -> None:
        """Log the sums every ten seconds, for ever, and when this ends."""
        try:
            while True:
                await asyncio.sleep(_SUMMED_SECONDS)
                self.tell_sums()
        finally:
            self.tell_sums()

    def _write(
        self,
        caller: Caller,
        request: str,
        entries: Sequence[str],
        entry_count: int,
        *,
        outcome: str,
        why_nothing_is_done: str,
        refused: Sequence[str] = (),
        refused_count: int = 0,
        error: MillraceError | None = None,
    ) -> None:
        said = ", ".join(entries)
        if why_nothing_is_done:
            event, sums, what = (
                events.ADMINISTRATIVE_REQUEST_REFUSED,
                self._refusals,
                why_nothing_is_done,
            )
        else:
            event, sums, what = events.ADMINISTRATIVE_REQUEST, self._acts, f"{outcome}: {said}"
        if sums.is_new(_Same(event, _from_host(caller), request, what)):
            event.log(
                _log,
                **caller.log_fields(),
                request=request,
                entries=said,
                entry_count=entry_count,
                outcome=outcome,
                refused=", ".join(refused),
                refused_count=refused_count,
                error="" if error is None else printable(error.message),
                appended="" if error is None else error.appended.name,
            )


class AuditLine:
    """The line of one administrative request.

    Args:
        audit: writes it.
        caller: the client.
        request: its name on the wire.
    """

    def __init__(self, audit: AuditLog, caller: Caller, request: str) -> None:
        self._audit = audit
        self._caller = caller
        self._request = request
        self._entries: list[str] = []

    def name(self, entries: Iterable[str]) -> None:
        """Name the entries of the request; only the first ones are logged."""
        self._entries = [printable(entry) for entry in islice(entries, _NAMED_MAX)]

    def on_answered(self, outcomes: Sequence[object]) -> None:
        """Write the line of a request whose entries were each done, or refused with an error."""
        self._audit.on_act(self._caller, self._request, self._entries, outcomes)

    def on_failed(self, error: MillraceError) -> None:
        """Write the line of a request that failed as a whole."""
        self._audit.on_failed(self._caller, self._request, self._entries, error)


def printable(text: str) -> str:
    """Return the part of a client's text that a log line may have."""
    return "".join(character if character.isprintable() else "?" for character in text[:_TEXT_MAX])


@dataclass(frozen=True, slots=True)
class _Same:
    """What two lines have in common that are summed up."""

    event: Event
    caller: Caller
    method: str
    what: str


class _Sums:
    """Counts repeats; it remembers at most `lines_max` lines, until they are told."""

    def __init__(self, lines_max: int) -> None:
        self._lines_max = lines_max
        self._repeats: dict[_Same, int] = {}
        self._left_out = 0

    def is_new(self, same: _Same) -> bool:
        """Count a line; return whether it is to be written."""
        repeats = self._repeats.get(same)
        if repeats is not None:
            self._repeats[same] = repeats + 1
            return False
        if len(self._repeats) >= self._lines_max:
            self._left_out += 1
            return False
        self._repeats[same] = 0
        return True

    def tell(self) -> None:
        """Log the sums, and forget them."""
        for same, repeats in self._repeats.items():
            if repeats:
                events.AUDIT_REPEATED.log(
                    _log,
                    **same.caller.log_fields(),
                    event_repeated=same.event.name,
                    method=same.method,
                    repeats=repeats,
                )
        if self._left_out:
            events.AUDIT_LEFT_OUT.log(_log, lines=self._left_out)
        self._repeats.clear()
        self._left_out = 0


def _from_host(caller: Caller) -> Caller:
    """Return a caller without its port, which differs in each connection."""
    return replace(caller, address=caller.address.rpartition(":")[0])
