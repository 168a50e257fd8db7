"""A caller with its rights, as handlers see it.

Without a guard everybody may do everything, and nothing is looked up.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from millrace.broker.guard.credentials import Credential
from millrace.broker.guard.guard import NOT_ACCEPTED, Guard
from millrace.core.callers import Caller
from millrace.core.errors import (
    AccessDeniedError,
    AccessUndecidedError,
    AuthenticationFailedError,
    MillraceError,
)
from millrace.core.guard.access import Demand, Operation, Resource, refusal_of_all
from millrace.core.guard.decisions import Decision
from millrace.core.guard.identity import Identity, RefusedCredentialError
from millrace.core.ids import MonotonicMs, TopicId
from millrace.runtime.clock import monotonic_now

_LOOK_SECONDS: Final = 2.0
"""Pause between two looks whether the token of a stream still counts."""

EntryT = TypeVar("EntryT")

TopicOf = Callable[[TopicId], Resource | None]
"""Returns the resource of a topic's id; None: there is no such topic."""


@dataclass(frozen=True, slots=True)
class Access:
    """What one caller may do.

    Attributes:
        guard: knows.
        identity: of the caller.
        credential: what proves it; None: the connection, or nothing.
    """

    guard: Guard
    identity: Identity
    credential: Credential | None

    async def learn(self, demands: Iterable[Demand], *, all_needed: bool = True) -> None:
        """Find out what demands need, where that takes time; see `Guard.learn`."""
        await self.guard.learn(self.identity, demands, all_needed=all_needed)

    def refusal(self, operation: Operation, resource: Resource) -> MillraceError | None:
        """Return why the caller may not do something; None: it may."""
        demand = Demand(operation, resource)
        if self.guard.decide(self.identity, demand).is_allowed:
            return None
        return self.guard.refusal(self.identity, demand, is_named=True)

    def refusal_by_id(
        self, operation: Operation, resource: Resource, decision: Decision | None = None
    ) -> MillraceError | None:
        """As `refusal`; the name is told to callers who may see it, as they named only an id."""
        demand = Demand(operation, resource)
        if decision is None:
            decision = self.guard.decide(self.identity, demand)
        if decision.is_allowed:
            return None
        seen = self.guard.decide(self.identity, Demand(Operation.DESCRIBE, resource))
        return self.guard.refusal(self.identity, demand, is_named=seen.is_allowed)

    async def watch(self) -> None:
        """Wait until the token does not count any more.

        Raises:
            AuthenticationFailedError: it does not.
        """
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            if self.credential is not None:
                try:
                    self.guard.check(self.credential)
                except RefusedCredentialError as error:
                    raise AuthenticationFailedError(NOT_ACCEPTED) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedCaller(Caller):
    """A client, and what it may do.

    Attributes:
        access: its rights; None: there is no guard.
    """

    access: Access | None = field(default=None, compare=False, repr=False)

    def may(self, operation: Operation, resource: Resource) -> bool:
        """Return whether the caller sees an entry of a list; call `learn` before."""
        if (access := self.access) is None:
            return True
        return access.guard.is_listed(access.identity, Demand(operation, resource))

    async def learn(
        self, operation: Operation, resources: Iterable[Resource], *, all_needed: bool = False
    ) -> None:
        """Find out what the entries of a list need, where that takes time; see `Guard.learn`."""
        if self.access is not None:
            demands = (Demand(operation, resource) for resource in resources)
            await self.access.learn(demands, all_needed=all_needed)

    async def seen(
        self,
        operation: Operation,
        entries: Collection[EntryT],
        resource_of: Callable[[EntryT], Resource],
        *,
        none_hidden: bool = False,
    ) -> list[EntryT]:
        """Return the entries of a list that the caller sees.

        Args:
            operation: that it must be allowed.
            entries: all of them.
            resource_of: returns the resource of an entry.
            none_hidden: refuse, instead of leaving entries out.

        Raises:
            MillraceError: as `sees`.
        """
        await self.learn(operation, map(resource_of, entries), all_needed=none_hidden)
        return [
            entry
            for entry in entries
            if self.sees(operation, resource_of(entry), none_hidden=none_hidden)
        ]

    def sees(self, operation: Operation, resource: Resource, *, none_hidden: bool) -> bool:
        """Return whether the caller sees an entry of a list; call `learn` before.

        Args:
            operation: that it must be allowed.
            resource: of the entry.
            none_hidden: refuse, instead of leaving it out. Who concludes what is nowhere asks so.

        Raises:
            AccessUndecidedError: nobody knows now; only with `none_hidden`.
            AccessDeniedError: it does not, and is not told the name; only with `none_hidden`.
        """
        if self.may(operation, resource):
            return True
        if not none_hidden:
            return False
        refused = self.refusal(operation, resource)
        if isinstance(refused, AccessDeniedError):
            raise refusal_of_all(self.principal, operation, resource.kind)
        if refused is not None:
            raise refused
        return True

    def refusal(self, operation: Operation, resource: Resource) -> MillraceError | None:
        """Return why the caller may not do something; None: it may."""
        return None if self.access is None else self.access.refusal(operation, resource)

    def refusal_by_id(self, operation: Operation, topic: Resource) -> MillraceError | None:
        """As `refusal`, of a topic that the caller named by its id."""
        return None if self.access is None else self.access.refusal_by_id(operation, topic)

    def on_topics(self, operation: Operation, topic_of: TopicOf) -> "TopicAccess | None":
        """Return what a stream asks for each topic; None: there is no guard."""
        return None if self.access is None else TopicAccess(self.access, operation, topic_of)


class TopicAccess:
    """Whether the caller of a stream may do something with topics: one look-up of a dictionary.

    Args:
        access: of the caller.
        operation: that the stream does.
        topic_of: names the topics.
    """

    def __init__(self, access: Access, operation: Operation, topic_of: TopicOf) -> None:
        self._access = access
        self._operation = operation
        self._topic_of = topic_of
        self._until: dict[TopicId, MonotonicMs] = {}
        self._generation = access.guard.generation

    def refusal(self, topic_id: TopicId, now: MonotonicMs | None = None) -> MillraceError | None:
        """Return why the caller may not; None: it may, or there is no such topic."""
        if now is None:
            now = monotonic_now()
        until = self._until.get(topic_id)
        if until is not None and now < until and self._generation == self._access.guard.generation:
            return None
        return self._ask(topic_id, now)

    async def learn(self, topic_ids: Iterable[TopicId]) -> None:
        """Wait until it is known of topics, for a client that might not try again."""
        demands = []
        for topic_id in topic_ids:
            if isinstance(self.refusal(topic_id), AccessUndecidedError):
                resource = self._topic_of(topic_id)
                assert resource is not None, "there is nothing to refuse then"
                demands.append(Demand(self._operation, resource))
        if demands:
            await self._access.learn(demands)

    def _ask(self, topic_id: TopicId, now: MonotonicMs) -> MillraceError | None:
        guard = self._access.guard
        if self._generation != guard.generation:
            self._generation = guard.generation
            self._until.clear()
        resource = self._topic_of(topic_id)
        if resource is None:
            return None
        decision = guard.decide(self._access.identity, Demand(self._operation, resource), now)
        if decision.is_allowed:
            self._until[topic_id] = decision.until
            return None
        return self._access.refusal_by_id(self._operation, resource, decision)


def check_topic(topics: TopicAccess | None, topic_id: TopicId) -> None:
    """Refuse a topic that the caller of `topics` may not use; None: there is no guard.

    Raises:
        MillraceError: says why.
    """
    if topics is not None and (refused := topics.refusal(topic_id)) is not None:
        raise refused
