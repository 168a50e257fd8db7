"""The guard of a broker on Kubernetes: the API server knows the callers, and decides.

Its answers take milliseconds at best, so they are asked for before a handler runs (`learn`). A
stream that meets something new, or old, has the question asked, and goes on meanwhile with what was
allowed before. What nobody has decided yet is refused with an error that clients try again after,
so an API server that is away ends no client that waits for it.

A caller that proves nothing is refused. Kubernetes' anonymous user may have rights, but these are
not meant for records.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from millrace.broker.coordination.opening import api_access
from millrace.broker.guard.access_reviews import AccessReviews
from millrace.broker.guard.credentials import Credential, bearer_token, certified
from millrace.broker.guard.guard import AuthorityAwayError, Guard
from millrace.broker.guard.reviews import Reviews
from millrace.broker.guard.service_accounts import ServiceAccountTokens, ShownToken
from millrace.core.broker_config import KubernetesConfig, LimitsConfig
from millrace.core.errors import AccessUndecidedError, MillraceError
from millrace.core.guard.access import Demand
from millrace.core.guard.decisions import Decision
from millrace.core.guard.identity import Identity
from millrace.core.guard.service_account_token import audience_of
from millrace.core.ids import MonotonicMs
from millrace.runtime.clock import monotonic_now

_AUTHENTICATED: Final = frozenset({"system:authenticated"})
"""Kubernetes' group of all who are known, as of its own users with certificates."""
_UNDECIDED: Final = "the broker has yet to ask the Kubernetes API server about it; try again"


class KubernetesAccess:
    """The API server as a broker's guard, open as long as `run` runs.

    Args:
        settings: of the cluster, which callers' tokens are for.
        limits: of what callers can make the broker ask.

    Raises:
        InvalidConfigError: the broker has no access to the API server.

    Attributes:
        guard: of the broker.
    """

    def __init__(self, settings: KubernetesConfig, limits: LimitsConfig) -> None:
        access = api_access(settings)
        namespace = settings.namespace or access.namespace
        self._reviews = Reviews(access, request_timeout_ms=settings.request_timeout_ms)
        self.guard = KubernetesGuard(
            ServiceAccountTokens(
                self._reviews,
                audience_of(settings.cluster_name, namespace),
                reviews_per_source=limits.token_reviews_per_host_rate_max,
            ),
            AccessReviews(self._reviews, namespace, settings.cluster_name),
        )

    async def run(self) -> None:
        """Answer for as long as the broker runs."""
        try:
            await asyncio.Event().wait()
        finally:
            self._reviews.close()


class KubernetesGuard(Guard):
    """Asks the API server.

    Args:
        tokens: knows ServiceAccounts.
        reviews: decides.
    """

    def __init__(self, tokens: ServiceAccountTokens, reviews: AccessReviews) -> None:
        self._tokens = tokens
        self._reviews = reviews

    async def prove(
        self, metadata: Iterable[tuple[str, str | bytes]], proved: str, source: str = ""
    ) -> tuple[Identity, Credential | None]:
        token = bearer_token(metadata)
        if token is None:
            identity = certified(proved)
            return replace(identity, groups=_AUTHENTICATED) if proved else identity, None
        try:
            credential = await self._tokens.identify(token, source)
        except AuthorityAwayError as error:
            raise AccessUndecidedError(_UNDECIDED) from error
        return credential.identity, credential

    def knows(self, identity: Identity) -> bool:
        return identity.is_known

    def check(self, credential: Credential) -> None:
        assert isinstance(credential, ShownToken)
        self._tokens.check(credential)

    async def learn(
        self, identity: Identity, demands: Iterable[Demand], *, all_needed: bool
    ) -> None:
        try:
            await self._reviews.learn(identity, demands, all_needed=all_needed)
        except AuthorityAwayError:
            return  # What was allowed before goes on; `refusal` tells of the rest.

    def decide(
        self, identity: Identity, demand: Demand, now: MonotonicMs | None = None
    ) -> Decision:
        if now is None:
            now = monotonic_now()
        known = self._reviews.known(identity, demand, now)
        return self._reviews.begin(identity, demand, now) if known is None else known

    def is_listed(self, identity: Identity, demand: Demand) -> bool:
        return self._reviews.is_listed(identity, demand, monotonic_now())

    def refusal(self, identity: Identity, demand: Demand, *, is_named: bool) -> MillraceError:
        if self._reviews.known(identity, demand, monotonic_now()) is None:
            return AccessUndecidedError(_UNDECIDED)
        return super().refusal(identity, demand, is_named=is_named)
