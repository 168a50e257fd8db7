"""Which tokens are known to be good or bad, and when somebody has to be asked about one.

Asking for each call would bring the API server down, and so would a cache that a flood of bad
tokens can empty. So good and bad tokens are kept apart, each with a bound, and the key of a token
is a keyed digest: neither the token nor anything that helps to find it is here.

A good token is reviewed again when `REVIEW_MS` have passed, as it may have been revoked. While
nobody answers, it stays good until `AWAY_MS` after the last answer (G8). An error is no answer, and
is never kept as one: it only sets when the next question about a good token may be asked.

Invariant: a token that was refused is good again only after a review.
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum
from typing import Final

from millrace.core.guard.identity import Identity

REVIEW_MS: Final = 5 * 60_000
AWAY_MS: Final = 15 * 60_000
AGAIN_MS: Final = 10_000
"""Pause after a review of a good token that had no answer."""
REFUSED_MS: Final = 10_000
TOKENS_MAX: Final = 10_000
"""Good ones, and as many bad ones; about 500 bytes each."""


class Standing(Enum):
    """What is known of a token."""

    UNKNOWN = "unknown"
    """Nothing: it has to be verified and reviewed."""
    GOOD = "good"
    DUE = "due"
    """It was good: it has to be reviewed, and counts as good if nobody answers."""
    REFUSED = "refused"


@dataclass(slots=True)
class _Good:
    identity: Identity
    reviewed_ms: int
    review_due_ms: int


@dataclass(frozen=True, slots=True)
class _Refused:
    reason: str
    until_ms: int


class KnownTokens:
    """The tokens that were seen lately. Times are in ms of a clock that never jumps."""

    def __init__(self, tokens_max: int = TOKENS_MAX) -> None:
        self._tokens_max = tokens_max
        # In both the one that was set last is last, and a good one also when it was used.
        self._good = OrderedDict[bytes, _Good]()
        self._refused = OrderedDict[bytes, _Refused]()

    def standing(self, key: bytes, now_ms: int) -> Standing:
        """Return what is known of a token."""
        if (good := self._good.pop(key, None)) is not None:
            if now_ms >= good.reviewed_ms + AWAY_MS:
                return Standing.UNKNOWN
            self._good[key] = good
            return Standing.DUE if now_ms >= good.review_due_ms else Standing.GOOD
        refused = self._refused.get(key)
        if refused is None:
            return Standing.UNKNOWN
        if now_ms >= refused.until_ms:
            del self._refused[key]
            return Standing.UNKNOWN
        return Standing.REFUSED

    def identity(self, key: bytes) -> Identity:
        """Return who a token is of that is good or due."""
        return self._good[key].identity

    def reason(self, key: bytes) -> str:
        """Return why a token is refused that is."""
        return self._refused[key].reason

    def on_accepted(self, key: bytes, identity: Identity, now_ms: int) -> None:
        """Keep that a review has found a token good."""
        self._refused.pop(key, None)
        self._good.pop(key, None)
        self._good[key] = _Good(identity, now_ms, now_ms + REVIEW_MS)
        _bound(self._good, self._tokens_max)

    def on_refused(self, key: bytes, reason: str, now_ms: int) -> None:
        """Keep that a token is not good, by its form, its signature, its time or a review."""
        self._good.pop(key, None)
        self._refused.pop(key, None)
        self._refused[key] = _Refused(reason, now_ms + REFUSED_MS)
        _bound(self._refused, self._tokens_max)

    def on_no_answer(self, key: bytes, now_ms: int) -> None:
        """Go on with a good token for a while, as nobody answers."""
        if (good := self._good.get(key)) is not None:
            good.review_due_ms = now_ms + AGAIN_MS

    def __len__(self) -> int:
        return len(self._good) + len(self._refused)


def _bound(kept: OrderedDict[bytes, _Good] | OrderedDict[bytes, _Refused], count_max: int) -> None:
    while len(kept) > count_max:
        kept.popitem(last=False)
