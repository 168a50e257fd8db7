"""Kubernetes' access control decides what callers may do, by reviews of access.

A resource here is one of `millrace.dev` there, with our operations as verbs, so
`kubectl auth can-i produce topics/orders` gives a broker's answer. A role may be for all
namespaces, for one, or for names. They are asked in this order (G7): a caller that may read all
topics of a namespace costs one or two reviews, and not one for each topic. Each of these questions
is a demand of its own to `Decisions`.

The questions about one caller that are under way have a bound, `ASKED_MAX`. So a caller that asks
for much makes no other caller wait.

While the API server is away, what it allowed goes on. It is then asked every `AGAIN_S` only, and
nobody who was allowed waits for it longer than `DUE_WAIT_S`.

Source: https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from millrace.broker.guard.guard import AuthorityAwayError, NotAskedError
from millrace.broker.guard.reviews import ACCESS_REVIEW, Reviewer, SingleFlight
from millrace.core.guard.access import Demand, Operation, Resource, ResourceKind
from millrace.core.guard.decisions import Decision, Decisions
from millrace.core.guard.identity import Identity
from millrace.core.ids import MonotonicMs
from millrace.core.topics import INTERNAL_PREFIX, is_namespace
from millrace.runtime.clock import monotonic_now

AGAIN_S: Final = 5.0
DUE_WAIT_S: Final = 0.5

NAMES_MAX: Final = 64
"""Names of one list that are asked about."""
ASKED_MAX: Final = 64
"""Questions about one caller that are under way at a time."""
_ASKED_TOGETHER: Final = 32
LEARN_S: Final = 1.0
"""For how long names are asked about that a request needs all of. Then it is tried again."""
_SOON_MS: Final = 500
"""For how long an earlier decision counts while there is another question."""

_API_GROUP: Final = "millrace.dev"
_NAMES: Final = {
    ResourceKind.TOPICS: "topics",
    ResourceKind.GROUPS: "groups",
    ResourceKind.TRANSACTIONS: "transactions",
    ResourceKind.CLUSTER: "clusters",
}
_NAME_CHARACTERS_MAX: Final = 512


class AccessReviews:
    """Says what callers may do. It belongs to the event loop.

    Args:
        reviewer: the API server.
        namespace: of the cluster.
        cluster_name: of the cluster, as of its `Cluster`.
    """

    def __init__(self, reviewer: Reviewer, namespace: str, cluster_name: str) -> None:
        self._reviewer = reviewer
        self._cluster = Resource(ResourceKind.CLUSTER, namespace, cluster_name)
        self._decisions = Decisions()
        self._asked = SingleFlight[tuple[Identity, Demand], Decision]()
        self._reviewing = SingleFlight[tuple[Identity, Demand], Decision]()
        self._away_until = MonotonicMs(0)
        self._under_way = Counter[str]()  # By principal.

    async def decide(self, identity: Identity, demand: Demand) -> Decision:
        """Return whether somebody may do something, and until when that counts.

        Raises:
            AuthorityAwayError: it is not known, and nobody can be asked.
        """
        now = monotonic_now()
        if (known := self.known(identity, demand, now)) is not None:
            return known
        demand = self._named(demand)
        asking = self._asking(identity, demand)
        earlier = self._earlier(identity, demand, now)
        if not earlier.is_allowed:
            return await asyncio.shield(asking)
        try:
            return await asyncio.wait_for(asyncio.shield(asking), DUE_WAIT_S)
        except (AuthorityAwayError, TimeoutError):
            return earlier

    async def learn(
        self, identity: Identity, demands: Iterable[Demand], *, all_needed: bool = False
    ) -> None:
        """Ask about several things: about their namespaces, and about names if they are few (G7).

        Args:
            identity: who wants to do them.
            demands: the things.
            all_needed: names are asked about for `LEARN_S`, however many there are.

        Raises:
            AuthorityAwayError: nobody can be asked.
        """
        named, now = list(map(self._named, demands)), monotonic_now()
        if not all(self._earlier(identity, demand, now).is_allowed for demand in named):
            await self._learn(identity, named, all_needed)
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self._learn(identity, named, all_needed), DUE_WAIT_S)

    async def _learn(self, identity: Identity, demands: Iterable[Demand], all_needed: bool) -> None:
        wide: dict[Demand, list[Demand]] = {}
        for demand in demands:
            operation, (kind, namespace, _) = demand
            of_namespace = wide.setdefault(Demand(operation, Resource(kind, namespace, "")), [])
            if all_needed or len(of_namespace) <= NAMES_MAX:
                of_namespace.append(demand)
        await self._ask_together(identity, wide)
        now = monotonic_now()
        left = [
            demand
            for of_namespace, named in wide.items()
            if (known := self.known(identity, of_namespace, now)) is None or not known.is_allowed
            for demand in named
        ]
        if all_needed:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ask_together(identity, left), LEARN_S)
        elif len(left) <= NAMES_MAX:
            await self._ask_together(identity, left)

    async def _ask_together(self, identity: Identity, demands: Iterable[Demand]) -> None:
        now = monotonic_now()
        open_ = [demand for demand in demands if self.known(identity, demand, now) is None]
        for first in range(0, len(open_), _ASKED_TOGETHER):
            some = open_[first : first + _ASKED_TOGETHER]
            asked = (self.decide(identity, demand) for demand in some)
            for failed in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(failed, BaseException):
                    raise failed

    def known(self, identity: Identity, demand: Demand, now: MonotonicMs) -> Decision | None:
        """Return what is known without asking: allowed by one question, or refused by all."""
        demand = self._named(demand)
        if not _can_be_asked(demand.resource):
            return Decision(False, now)
        until: MonotonicMs | None = None
        is_refused = True
        for question in _questions(demand):
            decided = self._decisions.find(identity, question, now)
            if decided is None:
                is_refused = False
            elif decided.is_allowed:
                return decided
            else:
                until = decided.until if until is None else min(until, decided.until)
        return Decision(False, until) if is_refused and until is not None else None

    def begin(self, identity: Identity, demand: Demand, now: MonotonicMs) -> Decision:
        """Ask, and return what counts until there is an answer."""
        demand = self._named(demand)
        self._asking(identity, demand)
        earlier = self._earlier(identity, demand, now)
        return earlier._replace(until=MonotonicMs(now + _SOON_MS))

    def is_listed(self, identity: Identity, demand: Demand, now: MonotonicMs) -> bool:
        """Return what is known; of what is being asked, or cannot be, what was allowed before."""
        if (known := self.known(identity, demand, now)) is not None:
            return known.is_allowed
        demand = self._named(demand)
        waits = now < self._away_until + _SOON_MS or any(
            self._reviewing.is_under_way((identity, question)) for question in _questions(demand)
        )
        return waits and self._earlier(identity, demand, now).is_allowed

    def _named(self, demand: Demand) -> Demand:
        """Return a demand as it is asked for.

        The cluster has its name. Its own topics have what belongs to everybody: they are for those
        who administer the cluster, as a role for all topics of a namespace is not meant for them.
        """
        operation, (kind, _, name) = demand
        if kind is ResourceKind.CLUSTER:
            return Demand(operation, self._cluster)
        if kind is ResourceKind.TOPICS and name.startswith(INTERNAL_PREFIX):
            return Demand(Operation.ADMINISTER, self._cluster)
        return demand

    def _earlier(self, identity: Identity, demand: Demand, now: MonotonicMs) -> Decision:
        """Return what counts if nobody answers."""
        found = (
            self._decisions.without_authority(identity, question, now)
            for question in _questions(demand)
        )
        return max(found)  # An allowed one is more than a refused one.

    def _asking(self, identity: Identity, demand: Demand) -> "asyncio.Task[Decision]":
        """Return the one task that asks about a demand."""
        return self._asked.run((identity, demand), lambda: self._ask(identity, demand))

    async def _ask(self, identity: Identity, demand: Demand) -> Decision:
        """Ask the questions that are open, until one is allowed."""
        for question in _questions(demand):
            decided = self._decisions.find(identity, question, monotonic_now())
            if decided is None:
                decided = await asyncio.shield(self._review(identity, question))
            if decided.is_allowed:
                return decided
        return self.known(identity, demand, monotonic_now()) or Decision(False, monotonic_now())

    def _review(self, identity: Identity, question: Demand) -> "asyncio.Task[Decision]":
        """Return the one task that asks a question."""
        return self._reviewing.run((identity, question), lambda: self._reviewed(identity, question))

    async def _reviewed(self, identity: Identity, question: Demand) -> Decision:
        if monotonic_now() < self._away_until:
            raise AuthorityAwayError("the API server did not answer a moment ago")
        principal = identity.principal
        if self._under_way[principal] >= ASKED_MAX:
            raise NotAskedError(f"{ASKED_MAX} questions about {principal!r} are not answered")
        self._under_way[principal] += 1
        try:
            status = await self._reviewer.review(ACCESS_REVIEW, _spec(identity, question))
        except NotAskedError:
            raise
        except AuthorityAwayError:
            self._away_until = MonotonicMs(monotonic_now() + int(AGAIN_S * 1000))
            raise
        finally:
            self._under_way[principal] -= 1
            if not self._under_way[principal]:
                del self._under_way[principal]
        # An authorizer that denies says so, and one that failed has found no rule that allows.
        is_allowed = status.get("allowed") is True and not status.get("denied")
        return self._decisions.keep(identity, question, monotonic_now(), is_allowed=is_allowed)


def _questions(demand: Demand) -> Iterator[Demand]:
    """Yield what is asked for a demand: all namespaces, all names of the namespace, the name."""
    operation, (kind, namespace, name) = demand
    yield Demand(operation, Resource(kind, "", ""))
    yield Demand(operation, Resource(kind, namespace, ""))
    if name:
        yield demand


def _can_be_asked(resource: Resource) -> bool:
    """Return whether a resource has a namespace: an empty one would ask for all there are."""
    return is_namespace(resource.namespace) and len(resource.name) <= _NAME_CHARACTERS_MAX


def _spec(identity: Identity, question: Demand) -> dict[str, Any]:
    operation, (kind, namespace, name) = question
    about = {
        "group": _API_GROUP,
        "resource": _NAMES[kind],
        "verb": operation.value,
        "namespace": namespace,
        "name": name,
    }
    return {
        "user": identity.principal,
        "groups": sorted(identity.groups),
        "resourceAttributes": about,
    }
