"""Callers that show the token of a ServiceAccount.

A token is verified here, by the API server's published keys, before the API server is asked: so a
forged one costs it nothing. Then it reviews the token, at first sight and every few minutes, since
only it knows which accounts and pods are gone. `core/guard/known_tokens` has the rules of both.
"""

import asyncio
import hmac
from dataclasses import dataclass, field
from typing import Final

from millrace.broker.guard.credentials import Credential
from millrace.broker.guard.guard import AuthorityAwayError, NotAskedError
from millrace.broker.guard.published_keys import PublishedKey, PublishedKeys
from millrace.broker.guard.reviews import TOKEN_REVIEW, Reviewer, SingleFlight
from millrace.core.broker_config import LimitsConfig
from millrace.core.guard import service_account_token
from millrace.core.guard.identity import Identity, RefusedCredentialError
from millrace.core.guard.known_tokens import KnownTokens, Standing
from millrace.core.guard.service_account_token import Expected, OtherIssuerError, ShapedToken
from millrace.core.quotas.sources import SourceRates
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now, wall_now

_BURST_MS: Final = 5000
"""How much of its rate an address saves up: pods that start together have new tokens."""
_CHECKS: Final = 20
"""New tokens of an address that are verified for each that is reviewed. A signature costs 50 to 80
us, less than the call that brings it: forgeries must not use up what good tokens need."""
_CHECKS_BURST_MS: Final = 1000
_DUE_WAIT_S: Final = 1.0
"""How long a call with a good token waits for the review that is due."""


@dataclass(frozen=True, slots=True)
class ShownToken(Credential):
    """A token that was accepted, and is reviewed again.

    Attributes:
        token: as the caller shows it.
    """

    token: str = field(repr=False)


class ServiceAccountTokens:
    """Says whose a token is. It belongs to the event loop.

    Args:
        reviewer: the API server.
        audience: of the cluster's tokens.
        reviews_per_source: tokens of one address that are reviewed in a second, if they are new;
            `_CHECKS` times as many are verified.
    """

    def __init__(
        self,
        reviewer: Reviewer,
        audience: str,
        *,
        reviews_per_source: int = LimitsConfig().token_reviews_per_host_rate_max,
    ) -> None:
        self._reviewer = reviewer
        self._audience = audience
        self._keys = PublishedKeys(reviewer)
        self._known = KnownTokens()
        self._checks = SourceRates(_CHECKS * reviews_per_source, _CHECKS_BURST_MS, debt_ms_max=1)
        self._reviews = SourceRates(reviews_per_source, _BURST_MS, debt_ms_max=1)
        self._secret = host.current.random_bytes(32)
        self._under_way = SingleFlight[bytes, Identity]()

    async def identify(self, token: str, source: str = "") -> ShownToken:
        """Return what a token proves.

        Args:
            token: as the caller shows it.
            source: the host that it comes from.

        Raises:
            RefusedCredentialError: it proves nothing.
            AuthorityAwayError: it is not known, and nobody can be asked.
        """
        if len(token) > service_account_token.TOKEN_CHARACTERS_MAX:
            raise RefusedCredentialError(f"it has {len(token)} characters")
        key = hmac.digest(self._secret, token.encode("utf-8", "surrogatepass"), "sha256")
        standing = self._known.standing(key, monotonic_now())
        if standing is Standing.REFUSED:
            raise RefusedCredentialError(self._known.reason(key))
        if standing is Standing.UNKNOWN:
            found_out = self._asking(key, token, source)
            return ShownToken(await asyncio.shield(found_out), key, token)
        self._check_end(key)
        known = ShownToken(self._known.identity(key), key, token)
        if standing is Standing.DUE:
            try:
                asking = asyncio.shield(self._asking(key, token))
                await asyncio.wait_for(asking, _DUE_WAIT_S)
            except (AuthorityAwayError, TimeoutError):
                self._known.on_no_answer(key, monotonic_now())
        return known

    def check(self, credential: ShownToken) -> None:
        """Check again, without waiting, what was proved a while ago.

        Raises:
            RefusedCredentialError: it does not count any more.
        """
        key = credential.digest
        standing = self._known.standing(key, monotonic_now())
        if standing is Standing.REFUSED:
            raise RefusedCredentialError(self._known.reason(key))
        if standing is Standing.UNKNOWN:
            raise RefusedCredentialError("nobody has reviewed it for a long time")
        self._check_end(key)
        if standing is Standing.DUE:
            self._asking(key, credential.token).add_done_callback(
                lambda done: self._on_reviewed(key, done)
            )

    def _on_reviewed(self, key: bytes, task: "asyncio.Task[Identity]") -> None:
        if not task.cancelled() and isinstance(task.exception(), AuthorityAwayError):
            self._known.on_no_answer(key, monotonic_now())

    def _check_end(self, key: bytes) -> None:
        known = self._known.identity(key)
        if known.expires_at is not None and known.expires_at <= wall_now():
            self._known.on_refused(key, "it has expired", monotonic_now())
            raise RefusedCredentialError("it has expired")

    def _asking(
        self, key: bytes, token: str, source: str | None = None
    ) -> "asyncio.Task[Identity]":
        """Return the one task that finds out about a token.

        Args:
            key: of the token.
            token: itself.
            source: the host that it comes from, if it is new; None: it was good before.
        """
        return self._under_way.run(key, lambda: self._find_out(key, token, source))

    async def _find_out(self, key: bytes, token: str, source: str | None) -> Identity:
        try:
            shaped = service_account_token.parse(token)
            _charge(self._checks, source)
            identity = await self._verified(token, shaped)
            _charge(self._reviews, source)  # Not before: only the API server can make these.
            await self._review(token, identity.principal)
        except RefusedCredentialError as error:
            self._known.on_refused(key, str(error), monotonic_now())
            raise
        self._known.on_accepted(key, identity, monotonic_now())
        return identity

    async def _verified(self, token: str, shaped: ShapedToken) -> Identity:
        """Return whom a token is of, by its claims and its signature.

        Raises:
            RefusedCredentialError: one of them is wrong.
            AuthorityAwayError: its key or its issuer may be new, and nobody tells it now.
        """
        published = await self._keys.find(shaped)
        # Before the signature, which costs most: both are of the same bytes.
        try:
            identity = self._claimed(shaped, published)
        except OtherIssuerError:
            published.verify(token)  # Strangers cannot have the keys fetched.
            published = await self._keys.find(shaped, fetch=True)
            identity = self._claimed(shaped, published)
        published.verify(token)
        return identity

    def _claimed(self, shaped: ShapedToken, published: PublishedKey) -> Identity:
        expected = Expected(published.issuer, self._audience)
        return service_account_token.check_claims(shaped.claims, expected, wall_now())

    async def _review(self, token: str, account: str) -> None:
        """Have the API server review a token.

        Raises:
            RefusedCredentialError: it does not count (any more).
            AuthorityAwayError: there is no answer.
        """
        spec = {"token": token, "audiences": [self._audience]}
        status = await self._reviewer.review(TOKEN_REVIEW, spec)
        if status.get("authenticated") is not True:
            raise RefusedCredentialError(
                f"the API server refuses it: {status.get('error', '')!s:.200}"
            )
        # An API server that knows no audiences answers without them, for its own audience.
        if self._audience not in (status.get("audiences") or ()):
            raise RefusedCredentialError("the API server says nothing of its audience")
        user = status.get("user")
        if not isinstance(user, dict) or user.get("username") != account:
            raise RefusedCredentialError("the API server says that it is of somebody else")


def _charge(rates: SourceRates, source: str | None) -> None:
    """Charge an address for a new token.

    Raises:
        NotAskedError: too many come from there.
    """
    if source is not None and rates.charge(source, monotonic_now()) is None:
        raise NotAskedError(f"too many new tokens come from {source}")
