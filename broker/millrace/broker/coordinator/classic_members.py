"""The members of classic groups: their requests, their answers, and the clock.

The machine (`coordinator/groups/classic.py`) says who is answered when; a request to join may wait
for minutes. Each event runs as a request of the coordinator's runtime, so that its answers are told
after the commit of what they rest on. It runs in a task of its own: a caller that goes away takes
nothing of it along. How much of the processor's time it took is told, as the caller's client pays.

When this broker stops to serve a partition, all that waits there is refused, so that clients look
for the next coordinator at once.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, TypeAlias

from millrace.broker import events
from millrace.broker.coordinator.coordinators import CoordinatorRuntime
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.classic import ClassicGroups
from millrace.core.coordinator.groups.classic_events import (
    NOBODY,
    Answer,
    Committer,
    Effect,
    JoinRequest,
    Leaving,
    Rebalance,
    Refused,
    Reply,
    Store,
    SyncRequest,
)
from millrace.core.coordinator.groups.coordinator import CoordinatorRecord, GroupCoordinator
from millrace.core.coordinator.groups.stalls import Stalls
from millrace.core.coordinator.positions.position import REQUEST_POSITIONS_MAX, Position
from millrace.core.errors import MillraceError
from millrace.core.ids import MonotonicMs, TopicPartition, WallMs
from millrace.runtime.clock import monotonic_now
from millrace.runtime.loop_time import LoopTime
from millrace.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

Runtime: TypeAlias = CoordinatorRuntime[GroupCoordinator, CoordinatorRecord]
Spent: TypeAlias = Callable[[int], None]
"""Called with the nanoseconds of the loop's thread that a request took beside its caller."""
_Act: TypeAlias = Callable[[ClassicGroups, MonotonicMs], list[Effect]]


def _for_nobody(nanoseconds: int) -> None:
    """Nobody pays."""


@dataclass(slots=True, eq=False)
class _Service:
    """A partition that is served, from the begin to the end of that."""

    machine: GroupCoordinator


class ClassicMembers:
    """Serves members of classic groups. It belongs to the event loop.

    Args:
        runtime: returns what runs the coordinators.
        on_failure: called with an unexpected error.
    """

    def __init__(
        self, runtime: Callable[[], Runtime], on_failure: Callable[[BaseException], None]
    ) -> None:
        self._runtime = runtime
        self._tasks = Tasks(on_failure)
        self._serving: dict[TopicPartition, _Service] = {}
        self._tokens: Iterator[int] = count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._stalls = Stalls(monotonic_now())

    # --- Requests ------------------------------------------------------------------------------

    async def join(
        self, place: TopicPartition, request: JoinRequest, spent: Spent = _for_nobody
    ) -> Reply:
        """Let a member join; return when the others have joined as well.

        Raises:
            MillraceError: this broker does not lead the partition, or is too busy.
        """
        return await self._ask(
            place, lambda token: lambda groups, now: groups.join(request, token, now), spent
        )

    async def sync(
        self, place: TopicPartition, request: SyncRequest, spent: Spent = _for_nobody
    ) -> Reply:
        """Return the assignment of a member, as soon as the leader has brought it.

        Raises:
            MillraceError: as `join`.
        """
        return await self._ask(
            place, lambda token: lambda groups, now: groups.sync(request, token, now), spent
        )

    async def heartbeat(
        self, place: TopicPartition, name: str, member_id: str, instance_id: str, generation: int
    ) -> Refused | None:
        """A member lives; return what it has to do, or None.

        Raises:
            MillraceError: as `join`.
        """

        def handle(
            machine: GroupCoordinator, _: WallMs
        ) -> Result[CoordinatorRecord, Refused | None]:
            self._begin(place, machine)
            refused = machine.classic.heartbeat(
                name, member_id, instance_id, generation, monotonic_now()
            )
            return Result([], refused)

        return await self._runtime().ask(place, handle)

    async def leave(
        self,
        place: TopicPartition,
        name: str,
        leaving: Sequence[Leaving],
        spent: Spent = _for_nobody,
    ) -> list[Refused | None]:
        """Let members leave; return for each why it is none, or None.

        Raises:
            MillraceError: as `join`.
        """
        told: list[Refused | None] = []

        def leave(groups: ClassicGroups, now: MonotonicMs) -> list[Effect]:
            told[:], effects = groups.leave(name, leaving, now)
            return effects

        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tasks.begin(_timed(self._leave(place, leave, done), spent))
        await done
        return told

    async def _leave(self, place: TopicPartition, act: _Act, done: asyncio.Future[None]) -> None:
        try:
            await self._event(place, act)
        except MillraceError as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(None)

    async def commit(
        self,
        place: TopicPartition,
        name: str,
        positions: Mapping[TopicPartition, Position],
        committer: Committer = NOBODY,
    ) -> Refused | None:
        """Store how far a member has read, or a reader without a group; return why not, or None.

        Raises:
            MillraceError: as `join`, or the positions break a bound.
        """
        items = iter(positions.items())
        while some := dict(islice(items, REQUEST_POSITIONS_MAX)):

            def commit(
                machine: GroupCoordinator,
                now: WallMs,
                some: Mapping[TopicPartition, Position] = some,
            ) -> Result[CoordinatorRecord, Refused | None]:
                self._begin(place, machine)
                result = machine.handle_classic_commit(name, some, now, committer)
                if result.response is None:
                    machine.classic.on_commit(name, committer, monotonic_now())
                return result

            refused = await self._runtime().ask(place, commit)
            if refused is not None:
                return refused
        return None

    # --- Times ---------------------------------------------------------------------------------

    def look(self) -> None:
        """Look at the times of all groups once; the caller does so again and again."""
        now = monotonic_now()
        stalled_ms = self._stalls.look(now)
        for place, machine in self._runtime().machines():
            self._begin(place, machine)
            if stalled_ms:
                machine.classic.prolong(stalled_ms)
            if machine.classic.is_due(now):  # Also while what an earlier look did is committed.
                self._tasks.begin(self._look_at(place))

    async def _look_at(self, place: TopicPartition) -> None:
        with suppress(MillraceError):  # The next look does it, or the next leader.
            await self._event(place, ClassicGroups.tick)

    async def close(self) -> None:
        """End what is under way."""
        await self._tasks.cancel()

    def on_ended(self, place: TopicPartition) -> None:
        """This broker stops to serve a partition."""
        service = self._serving.pop(place, None)
        if service is not None:
            self._perform(place, service, service.machine.classic.end())

    # --- Private -------------------------------------------------------------------------------

    def _begin(self, place: TopicPartition, machine: GroupCoordinator) -> _Service:
        """Begin to serve a partition, with the first event there."""
        service = self._serving.get(place)
        if service is None:
            service = self._serving[place] = _Service(machine)
            machine.classic.restart(monotonic_now())
        return service

    async def _ask(self, place: TopicPartition, act: Callable[[int], _Act], spent: Spent) -> Reply:
        token = next(self._tokens)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[token] = answer
        self._tasks.begin(_timed(self._event_of(place, act(token), token), spent))
        try:
            return await answer
        finally:
            self._waiting.pop(token, None)

    async def _event_of(self, place: TopicPartition, act: _Act, token: int) -> None:
        """Let an event happen; if it did not, its caller hears why."""
        has_happened = False

        def noting(groups: ClassicGroups, now: MonotonicMs) -> list[Effect]:
            nonlocal has_happened
            has_happened = True
            return act(groups, now)

        try:
            await self._event(place, noting)
        except MillraceError as error:
            answer = self._waiting.get(token)
            # Once it has happened, the machine answers.
            if not has_happened and answer is not None and not answer.done():
                answer.set_exception(error)

    async def _event(self, place: TopicPartition, act: _Act) -> None:
        """Let an event happen; answer, and store, what follows from it.

        Raises:
            MillraceError: it has not happened, or what it rests on is not committed.
        """
        effects: list[Effect] = []
        service: _Service | None = None

        def handle(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, None]:
            nonlocal service
            service = self._begin(place, machine)
            effects[:] = act(machine.classic, monotonic_now())
            records: list[CoordinatorRecord] = []
            for effect in effects:  # Those that are appended meanwhile as well.
                if isinstance(effect, Store):
                    records += self._records(machine, effect, effects, now)
            return Result(records, None)

        is_stored = False
        try:
            await self._runtime().ask(place, handle)
            is_stored = True
        finally:
            if service is not None:
                self._perform(place, service, effects, is_stored=is_stored)

    def _records(
        self, machine: GroupCoordinator, store: Store, effects: list[Effect], now: WallMs
    ) -> list[CoordinatorRecord]:
        """Return the records of a generation; if it may not be stored, add what follows."""
        try:
            return machine.handle_generation(store.group, store.generation, now).records
        except MillraceError:
            effects += machine.classic.on_stored(
                store.group, store.number, monotonic_now(), is_stored=False
            )
            return []

    def _perform(
        self,
        place: TopicPartition,
        service: _Service,
        effects: Sequence[Effect],
        *,
        is_stored: bool = False,
    ) -> None:
        """Tell answers and reasons; say how writes have ended, and do what follows from that."""
        for effect in effects:
            match effect:
                case Answer(token, reply):
                    assert isinstance(token, int)
                    answer = self._waiting.get(token)
                    if answer is not None and not answer.done():
                        answer.set_result(reply)
                case Rebalance(group, generation, reason):
                    events.GROUP_REBALANCES.log(
                        _log, group=group, generation=generation, reason=reason
                    )
                case Store(group, number, _) if self._serving.get(place) is service:
                    # Otherwise its end has answered all that waited.
                    followed = service.machine.classic.on_stored(
                        group, number, monotonic_now(), is_stored=is_stored
                    )
                    if any(isinstance(effect, Store) for effect in followed):
                        self._tasks.begin(self._follow(place, followed))
                    else:
                        self._perform(place, service, followed)

    async def _follow(self, place: TopicPartition, effects: list[Effect]) -> None:
        with suppress(MillraceError):  # It has happened in memory; `look` goes on from there.
            await self._event(place, lambda groups, now: effects)


async def _timed(event: Coroutine[Any, Any, None], spent: Spent) -> None:
    timed = LoopTime(event)
    try:
        await timed
    finally:
        spent(timed.nanoseconds)
