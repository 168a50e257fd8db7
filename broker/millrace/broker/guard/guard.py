"""Who calls, and what that caller may do: the one place that answers both.

A caller is known by the token of its call (`authorization: Bearer ...`), or else by the certificate
of its connection. A token that is sent and not accepted refuses the call: nobody is taken for
somebody else, nor for nobody. Callers are told nothing of the reason; the audit log is.

The authority is asked for operations on resources. What it decides counts for ten seconds
(`core/guard/decisions`), or until it changes its mind. A caller without any right is refused before
its request is decoded.

`FileGuard` goes by files, `KubernetesGuard` by the API server.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Final

from millrace.broker.guard.credentials import Credential
from millrace.core.errors import AuthenticationFailedError, MillraceError
from millrace.core.guard.access import Demand, refusal
from millrace.core.guard.decisions import Decision
from millrace.core.guard.identity import Identity
from millrace.core.guard.token_file import TokenEntry
from millrace.core.ids import MonotonicMs

NOT_KNOWN: Final = (
    "this broker asks for a token, and none came: set token_file (MILLRACE_TOKEN_FILE), or ask who "
    "runs the cluster for one; kubectl millrace has --account"
)
NOT_ACCEPTED: Final = (
    "this broker does not accept the token: ask who runs the cluster for another one, and put it "
    "into the client's token_file"
)


class AuthorityAwayError(Exception):
    """The authority cannot be asked at the moment."""


class NotAskedError(AuthorityAwayError):
    """There is no answer to this question; there may be to others."""


class Guard(ABC):
    """Knows callers and their rights. It belongs to the event loop.

    Attributes:
        generation: another number whenever earlier decisions do not count any more.
        is_enforced: whether callers are refused what it does not allow; else that is told.
    """

    generation = 0
    is_enforced = True

    @abstractmethod
    async def prove(
        self, metadata: Iterable[tuple[str, str | bytes]], proved: str, source: str = ""
    ) -> tuple[Identity, Credential | None]:
        """Return who makes a call, and what proves it, if that may end.

        Args:
            metadata: of the call.
            proved: principal of the connection; empty: it proves nobody.
            source: the host that the call comes from.

        Raises:
            RefusedCredentialError: says why, for the audit log.
            AccessUndecidedError: nobody can be asked now.
        """

    @abstractmethod
    def knows(self, identity: Identity) -> bool:
        """Return whether somebody is known, or may do something as nobody."""

    @abstractmethod
    def check(self, credential: Credential) -> None:
        """Check again what proves a stream's caller.

        Raises:
            RefusedCredentialError: it does not count any more.
        """

    @abstractmethod
    async def learn(
        self, identity: Identity, demands: Iterable[Demand], *, all_needed: bool
    ) -> None:
        """Find out what demands need, where that takes time: `decide` knows it afterwards.

        Args:
            identity: whose demands they are.
            demands: for a request, or for the entries of a list.
            all_needed: the request is refused if one of them is; the list would be shorter.
        """

    @abstractmethod
    def decide(
        self, identity: Identity, demand: Demand, now: MonotonicMs | None = None
    ) -> Decision:
        """Return whether somebody may do something, and until when that counts."""

    @abstractmethod
    def is_listed(self, identity: Identity, demand: Demand) -> bool:
        """Return whether somebody sees an entry of a list; nobody is asked for that."""

    def tokens_of(self, principal: str) -> Sequence[TokenEntry] | None:
        """Return the tokens by which a principal can log in with a password, the newest one last.

        None: this guard has no tokens.
        """
        del principal
        return None

    def salt_secret(self) -> bytes:
        """Return from what the salts of names without a token follow, by which clients log in.

        It is asked only where there are tokens.
        """
        raise AssertionError("this guard has no tokens")

    def check_known(self, identity: Identity) -> None:
        """Refuse somebody who may do nothing at all here, and is nobody.

        Raises:
            AuthenticationFailedError: says what to do.
        """
        if not self.knows(identity):
            raise AuthenticationFailedError(NOT_KNOWN)

    def refusal(self, identity: Identity, demand: Demand, *, is_named: bool) -> MillraceError:
        """Return the error for a decision that allows nothing.

        Args:
            identity: who may not.
            demand: what.
            is_named: whether the name of the resource may be told.
        """
        return refusal(identity.principal, demand, is_named=is_named)
