"""What an authority has decided: it is asked again after ten seconds, and goes away at times.

Allowed and refused are kept apart, each within a bound: somebody who asks for a hundred thousand
things that are not allowed makes nobody ask again for what is. While the authority is away, what it
allowed goes on for a quarter of an hour; what was refused, or never asked, is refused (G8).

Sources: the API server's own caches of ten seconds (kubernetes#50258), modelexpress#530.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from millrace.core.guard.access import Demand
from millrace.core.guard.identity import Identity
from millrace.core.ids import MonotonicMs

ALLOWED_MS: Final = 10_000
REFUSED_MS: Final = 10_000
AWAY_MS: Final = 15 * 60 * 1000
"""For how long what was allowed goes on without the authority."""
DECISIONS_MAX: Final = 20_000
"""Of each of the two; the oldest ones are forgotten beyond."""


class Decision(NamedTuple):
    """An answer, and until when it counts."""

    is_allowed: bool
    until: MonotonicMs


_Question = tuple[str, frozenset[str], Demand]


class Decisions:
    """Keeps the decisions of one authority."""

    def __init__(self, decisions_max: int = DECISIONS_MAX) -> None:
        self._decisions_max = decisions_max
        # The time of each decision; the oldest first.
        self._allowed = OrderedDict[_Question, MonotonicMs]()
        self._refused = OrderedDict[_Question, MonotonicMs]()

    def __len__(self) -> int:
        return len(self._allowed) + len(self._refused)

    def find(self, identity: Identity, demand: Demand, now: MonotonicMs) -> Decision | None:
        """Return what counts still; None: the authority must be asked."""
        question = identity.principal, identity.groups, demand
        decided = self._allowed.get(question)
        if decided is not None and now < decided + ALLOWED_MS:
            return Decision(True, MonotonicMs(decided + ALLOWED_MS))
        decided = self._refused.get(question)
        if decided is not None and now < decided + REFUSED_MS:
            return Decision(False, MonotonicMs(decided + REFUSED_MS))
        return None

    def keep(
        self, identity: Identity, demand: Demand, now: MonotonicMs, *, is_allowed: bool
    ) -> Decision:
        """Keep what the authority has decided now."""
        question = identity.principal, identity.groups, demand
        kept, other = (
            (self._allowed, self._refused) if is_allowed else (self._refused, self._allowed)
        )
        other.pop(question, None)
        kept.pop(question, None)
        if len(kept) >= self._decisions_max:
            kept.popitem(last=False)  # A dict would look for its first key among all that are gone.
        kept[question] = now
        return Decision(is_allowed, MonotonicMs(now + (ALLOWED_MS if is_allowed else REFUSED_MS)))

    def without_authority(self, identity: Identity, demand: Demand, now: MonotonicMs) -> Decision:
        """Return what counts while the authority is away, until it is asked again."""
        decided = self._allowed.get((identity.principal, identity.groups, demand))
        if decided is None or now >= decided + AWAY_MS:
            return Decision(False, now)
        return Decision(True, MonotonicMs(min(now + ALLOWED_MS, decided + AWAY_MS)))

    def forget(self) -> None:
        """Forget everything: the authority has changed its mind."""
        self._allowed.clear()
        self._refused.clear()
