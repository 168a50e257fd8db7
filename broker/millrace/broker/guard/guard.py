"""Who calls, and what that caller may do: the one place that answers both.

A caller is known by the token of its call (`authorization: Bearer ...`), or else by the certificate
of its connection. A token that is sent and not accepted refuses the call: nobody is taken for
somebody else, nor for nobody. Callers are told nothing of the reason; the audit log is.

The authority is asked for operations on resources. What it decides counts for ten seconds
(`core/guard/decisions`), or until it changes its mind. Whoever has no right at all is refused
before its request is decoded.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from millrace.broker.guard.credentials import Credential, bearer_token
from millrace.core.errors import AuthenticationFailedError, MillraceError
from millrace.core.guard.access import Demand, refusal
from millrace.core.guard.decisions import Decision, Decisions
from millrace.core.guard.identity import NOBODY, Identity, RefusedCredentialError
from millrace.core.ids import MonotonicMs, WallMs
from millrace.runtime.clock import monotonic_now, wall_now

_NOT_KNOWN: Final = (
    "this broker asks for a token, and none came: set token_file (MILLRACE_TOKEN_FILE), or ask who "
    "runs the cluster for one"
)
NOT_ACCEPTED: Final = (
    "this broker does not accept the token: ask who runs the cluster for another one, and put it "
    "into the client's token_file"
)


_NAME_KEPT_MAX: Final = 512
"""Characters of a name whose decisions are kept; longer than any that is valid."""


class AuthorityAwayError(Exception):
    """The authority cannot be asked at the moment."""


class NotAskedError(AuthorityAwayError):
    """There is no answer to this question; there may be to others."""


class Authority(Protocol):
    """Decides what callers may do."""

    def knows(self, identity: Identity) -> bool:
        """Return whether somebody may do anything at all; True where that is not known."""

    def allow(self, identity: Identity, demand: Demand) -> bool:
        """Return whether somebody may do something.

        Raises:
            AuthorityAwayError: nobody knows at the moment.
        """


class Authenticator(Protocol):
    """Knows whom tokens prove."""

    def identify(self, token: str, now: WallMs) -> Credential:
        """Return what a token proves.

        Raises:
            RefusedCredentialError: nothing; says why, for the audit log.
        """

    def check(self, credential: Credential, now: WallMs) -> None:
        """Check again what was proved a while ago.

        Raises:
            RefusedCredentialError: it does not count any more.
        """


class Guard:
    """Asks the authenticator and the authority. It belongs to the event loop.

    Args:
        authenticator: knows tokens; None: none are known, and callers have certificates.
        authority: decides.

    Attributes:
        generation: another number whenever earlier decisions do not count any more.
    """

    def __init__(self, authenticator: Authenticator | None, authority: Authority) -> None:
        self._authenticator = authenticator
        self._authority = authority
        self._decisions = Decisions()
        self.generation = 0

    def on_authority(self, authority: Authority) -> None:
        """Ask another authority from now on."""
        self._authority = authority
        self._decisions.forget()
        self.generation += 1

    def identify(
        self, metadata: Iterable[tuple[str, str | bytes]], proved: str
    ) -> tuple[Identity, Credential | None]:
        """Return who makes a call, and what proves it, if that may end.

        Args:
            metadata: of the call.
            proved: principal of the connection; empty: it proves nobody.

        Raises:
            RefusedCredentialError: says why, for the audit log.
        """
        token = bearer_token(metadata)
        if token is None:
            return (Identity(proved) if proved else NOBODY), None
        if self._authenticator is None:
            raise RefusedCredentialError("this broker knows no tokens: access.tokens_file is empty")
        credential = self._authenticator.identify(token, wall_now())
        return credential.identity, credential

    async def prove(
        self, metadata: Iterable[tuple[str, str | bytes]], proved: str
    ) -> tuple[Identity, Credential | None]:
        """As `identify`, for a guard that has to ask somebody.

        Raises:
            RefusedCredentialError: says why, for the audit log.
            AccessUndecidedError: nobody can be asked now.
        """
        return self.identify(metadata, proved)

    def check_known(self, identity: Identity) -> None:
        """Refuse somebody who may do nothing at all here, and is nobody.

        Raises:
            AuthenticationFailedError: says what to do.
        """
        if not self.knows(identity):
            raise AuthenticationFailedError(_NOT_KNOWN)

    def knows(self, identity: Identity) -> bool:
        """Return whether somebody is known, or may do something as nobody."""
        return identity.is_known or self._authority.knows(identity)

    def check(self, credential: Credential) -> None:
        """Check again what proves a stream's caller.

        Raises:
            RefusedCredentialError: it does not count any more.
        """
        if self._authenticator is not None:
            self._authenticator.check(credential, wall_now())

    async def learn(self, identity: Identity, demands: Iterable[Demand]) -> None:
        """Find out what demands need, where that takes time: `decide` knows it afterwards."""

    def is_listed(self, identity: Identity, demand: Demand) -> bool:
        """Return whether somebody sees an entry of a list; nobody is asked for that."""
        return self.decide(identity, demand).is_allowed

    def refusal(self, identity: Identity, demand: Demand, *, is_named: bool) -> MillraceError:
        """Return the error for a decision that allows nothing.

        Args:
            identity: who may not.
            demand: what.
            is_named: whether the name of the resource may be told.
        """
        return refusal(identity.principal, demand, is_named=is_named)

    def decide(
        self, identity: Identity, demand: Demand, now: MonotonicMs | None = None
    ) -> Decision:
        """Return whether somebody may do something, and until when that counts."""
        if now is None:
            now = monotonic_now()
        found = self._decisions.find(identity, demand, now)
        if found is not None:
            return found
        try:
            is_allowed = self._authority.allow(identity, demand)
        except AuthorityAwayError:
            return self._decisions.without_authority(identity, demand, now)
        _, (_, namespace, name) = demand
        if len(namespace) + len(name) > _NAME_KEPT_MAX:
            return Decision(is_allowed, now)
        return self._decisions.keep(identity, demand, now, is_allowed=is_allowed)
