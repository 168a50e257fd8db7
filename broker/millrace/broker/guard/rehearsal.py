"""The guard of a call whose caller is let through: what would be refused is only told.

While a running cluster gets access control, its clients have no tokens and no rights yet (G4).
The audit log names those that access control would refuse, so that their owners can be told first.
"""

from collections.abc import Callable, Iterable
from typing import Final

from millrace.broker.guard.credentials import Credential
from millrace.broker.guard.guard import Guard
from millrace.core.errors import AccessUndecidedError, MillraceError
from millrace.core.guard.access import Demand
from millrace.core.guard.decisions import Decision
from millrace.core.guard.identity import Identity, RefusedCredentialError
from millrace.core.ids import MonotonicMs
from millrace.runtime.clock import monotonic_now

_NOT_ASKED_MS: Final = 10_000
"""For how long it counts that a caller who is nobody is let through."""


class Rehearsal(Guard):
    """Lets one caller do everything.

    Args:
        guard: that will decide; its callers have proved to it who they are.
        tell: called with the reason of what it would refuse.
    """

    is_enforced = False

    def __init__(self, guard: Guard, tell: Callable[[str], object]) -> None:
        self._guard = guard
        self._tell = tell

    async def prove(
        self, metadata: Iterable[tuple[str, str | bytes]], proved: str, source: str = ""
    ) -> tuple[Identity, Credential | None]:
        return await self._guard.prove(metadata, proved, source)

    def knows(self, identity: Identity) -> bool:
        return self._guard.knows(identity)

    def check(self, credential: Credential) -> None:
        try:
            self._guard.check(credential)
        except RefusedCredentialError as error:
            self._tell(str(error))

    async def learn(
        self, identity: Identity, demands: Iterable[Demand], *, all_needed: bool
    ) -> None:
        if self.knows(identity):
            await self._guard.learn(identity, demands, all_needed=all_needed)

    def decide(
        self, identity: Identity, demand: Demand, now: MonotonicMs | None = None
    ) -> Decision:
        if now is None:
            now = monotonic_now()
        if not self.knows(identity):  # That was told when the call began.
            return Decision(True, MonotonicMs(now + _NOT_ASKED_MS))
        decision = self._guard.decide(identity, demand, now)
        if not decision.is_allowed:
            refused = self._guard.refusal(identity, demand, is_named=True)
            if not isinstance(refused, AccessUndecidedError):
                self._tell(refused.message)
        return Decision(True, decision.until)

    def is_listed(self, identity: Identity, demand: Demand) -> bool:
        return True

    def refusal(self, identity: Identity, demand: Demand, *, is_named: bool) -> MillraceError:
        raise AssertionError("a rehearsal refuses nothing")
