"""The tokens that visitors gave, each for one cluster, by what their browser shows for them.

A browser gets a random word, never the token: cookies do not know of ports, so another server on
the visitor's machine is sent them, too. A word comes with a token that brokers have accepted, so
that strangers fill nothing; there are only so many, and each ends when it was not used, or is old.
Nobody can push others out: where there is no room, the caller with the most words loses one.
"""

import base64
import json
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from millrace.runtime.page_messages import Request

SESSIONS_MAX: Final = 100
"""Visits that are remembered. Of those whose account has most, a further one takes the place of the
one that was away longest."""
CLUSTERS_MAX: Final = 20
"""Clusters for which a visitor has tokens; a further one takes the place of the first."""
IDLE_S_MAX: Final = 30 * 60.0
"""How long a visitor may be away."""
AGE_S_MAX: Final = 12 * 3600.0
"""After so long a visitor is asked again."""
_WORD_BYTES: Final = 32
_PORT: Final = re.compile(r".*:(\d{1,5})", re.ASCII)


@dataclass(slots=True)
class _Session:
    owner: str
    begun_at: float
    used_at: float
    tokens: dict[str, str] = field(default_factory=dict)
    """By the name of the cluster."""


class Sessions:
    """The sessions of all visitors. Used on one event loop.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        """Those used last are the last ones."""

    def __len__(self) -> int:
        return len(self._sessions)

    def token(self, word: str, cluster: str) -> str:
        """Return a visitor's token for a cluster; empty: there is none."""
        session = self._used(word)
        return "" if session is None else session.tokens.get(cluster, "")

    def keep(self, word: str, cluster: str, token: str) -> str:
        """Keep a token that brokers have accepted.

        Args:
            word: that the visitor's browser showed until now; empty: none.

        Returns:
            The one that it shows from now on: another one, as somebody may have planted the first.
        """
        session = self._used(word)
        self._sessions.pop(word, None)
        now = self._clock()
        if session is None:
            session = _Session("", now, now)
        session.owner = _owner(token)
        session.tokens.pop(cluster, None)
        session.tokens[cluster] = token
        if len(session.tokens) > CLUSTERS_MAX:
            del session.tokens[next(iter(session.tokens))]
        if len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[self._dispensable()]
        word = secrets.token_urlsafe(_WORD_BYTES)
        self._sessions[word] = session
        return word

    def forget(self, word: str, cluster: str) -> None:
        """Forget a visitor's token for a cluster, and the visitor with the last one."""
        session = self._sessions.get(word)
        if session is not None:
            session.tokens.pop(cluster, None)
            if not session.tokens:
                del self._sessions[word]

    def _dispensable(self) -> str:
        """Return the word of the session that goes first."""
        counts = Counter(session.owner for session in self._sessions.values())
        most = max(counts.values())
        return next(
            word for word, session in self._sessions.items() if counts[session.owner] == most
        )

    def _used(self, word: str) -> _Session | None:
        """Return the session of a word, which counts as used now; drop what has ended."""
        now = self._clock()
        ended = [
            each
            for each, session in self._sessions.items()
            if now - session.used_at > IDLE_S_MAX or now - session.begun_at > AGE_S_MAX
        ]
        for each in ended:
            del self._sessions[each]
        session = self._sessions.pop(word, None)
        if session is not None:
            session.used_at = now
            self._sessions[word] = session
        return session


def _owner(token: str) -> str:
    """Return whose token that is, which brokers have verified: an account may get any number."""
    _, _, rest = token.partition(".")
    claims = rest.partition(".")[0]
    try:
        found = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    except (ValueError, RecursionError):
        return token
    subject = found.get("sub") if isinstance(found, dict) else None
    return subject if isinstance(subject, str) else token


def shown_word(request: Request) -> str:
    """Return what a browser shows for a session; empty: nothing."""
    wanted = _cookie_name(request)
    for pair in request.fields.get("cookie", "").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value
    return ""


def cookie(request: Request, word: str) -> str:
    """Return the field by which the browser of a request keeps a word until it is closed.

    No script reads it, and it goes with no request that another site has caused. It is sent in
    plain text, but the page listens on the loopback address alone.
    """
    return f"{_cookie_name(request)}={word}; Path=/; HttpOnly; SameSite=Strict"


def _cookie_name(request: Request) -> str:
    """Return a name with the port: cookies are for all ports of a machine."""
    found = _PORT.fullmatch(request.fields.get("host", ""))
    return f"millrace-{found[1] if found else 80}"
