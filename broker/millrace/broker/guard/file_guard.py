"""The guard of a broker by files: whom tokens prove, and what rules allow."""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from millrace.broker.guard.credentials import Credential, bearer_token, certified
from millrace.broker.guard.guard import AuthorityAwayError, Guard
from millrace.core.guard.access import Demand
from millrace.core.guard.decisions import Decision, Decisions
from millrace.core.guard.identity import Identity, RefusedCredentialError
from millrace.core.guard.token_file import TokenEntry, Tokens, digest_of
from millrace.core.ids import MonotonicMs, WallMs
from millrace.runtime.clock import monotonic_now, wall_now

_NAME_KEPT_MAX: Final = 512
"""Characters of a name whose decisions are kept; longer than any that is valid."""


class Authority(Protocol):
    """Decides what callers may do."""

    def knows(self, identity: Identity) -> bool:
        """Return whether somebody may do anything at all; True where that is not known."""

    def allow(self, identity: Identity, demand: Demand) -> bool:
        """Return whether somebody may do something.

        Raises:
            AuthorityAwayError: nobody knows at the moment.
        """


class FileAuthenticator:
    """Knows the tokens of a file.

    Attributes:
        tokens: of the file, as it is now.
    """

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens

    def identify(self, token: str, now: WallMs) -> Credential:
        """Return what a token proves.

        Raises:
            RefusedCredentialError: nothing; says why, for the audit log.
        """
        return self._found(digest_of(token), now)

    def check(self, credential: Credential, now: WallMs) -> None:
        """Check again what was proved a while ago.

        Raises:
            RefusedCredentialError: it does not count any more.
        """
        proved, now_proved = credential.identity, self._found(credential.digest, now).identity
        if now_proved.principal != proved.principal:
            raise RefusedCredentialError("the token is another principal's by now")
        if now_proved.groups != proved.groups:
            raise RefusedCredentialError("its principal is of other groups by now")

    def tokens_of(self, principal: str, now: WallMs) -> Sequence[TokenEntry]:
        """Return the tokens of a principal that count now."""
        return [
            entry
            for entry in self.tokens.of(principal)
            if entry.expires_at is None or now < entry.expires_at
        ]

    def _found(self, digest: bytes, now: WallMs) -> Credential:
        entry = self.tokens.find(digest)
        if entry is None:
            raise RefusedCredentialError("the token is in no line of access.tokens_file")
        if entry.expires_at is not None and now >= entry.expires_at:
            raise RefusedCredentialError(
                f"the token {entry.token_id} of {entry.principal!r} has ended"
            )
        return Credential(entry.identity, digest)


class FileGuard(Guard):
    """Asks an authenticator and an authority, which answer at once.

    Args:
        authenticator: knows tokens; None: none are known, and callers have certificates.
        authority: decides.
    """

    def __init__(self, authenticator: FileAuthenticator | None, authority: Authority) -> None:
        self._authenticator = authenticator
        self._authority = authority
        self._decisions = Decisions()

    def on_authority(self, authority: Authority) -> None:
        """Ask another authority from now on."""
        self._authority = authority
        self._decisions.forget()
        self.generation += 1

    async def prove(
        self, metadata: Iterable[tuple[str, str | bytes]], proved: str, source: str = ""
    ) -> tuple[Identity, Credential | None]:
        token = bearer_token(metadata)
        if token is None:
            return certified(proved), None
        if self._authenticator is None:
            raise RefusedCredentialError("this broker knows no tokens: access.tokens_file is empty")
        credential = self._authenticator.identify(token, wall_now())
        return credential.identity, credential

    def knows(self, identity: Identity) -> bool:
        return identity.is_known or self._authority.knows(identity)

    def check(self, credential: Credential) -> None:
        if self._authenticator is not None:
            self._authenticator.check(credential, wall_now())

    def tokens_of(self, principal: str) -> Sequence[TokenEntry] | None:
        if self._authenticator is None:
            return None
        return self._authenticator.tokens_of(principal, wall_now())

    def salt_secret(self) -> bytes:
        assert self._authenticator is not None, "there are tokens"
        return self._authenticator.tokens.salt_secret

    async def learn(
        self, identity: Identity, demands: Iterable[Demand], *, all_needed: bool
    ) -> None:
        """Find nothing out: `decide` never waits."""

    def decide(
        self, identity: Identity, demand: Demand, now: MonotonicMs | None = None
    ) -> Decision:
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

    def is_listed(self, identity: Identity, demand: Demand) -> bool:
        return self.decide(identity, demand).is_allowed
