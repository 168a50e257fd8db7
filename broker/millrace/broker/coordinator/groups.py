"""Consumer groups and positions: coordinators of the internal topic `__positions`, and their clock.

A member's heartbeat waits here until the member has another assignment to take. So a group is
stable again as soon as its members have answered each other, however seldom they send heartbeats.
A change wakes only the heartbeats that it concerns: a group may have ten thousand members.

Sessions are kept in memory (`coordinator/groups/sessions.py`), and end when this broker stops to
serve the partition: they say nothing about the time of another coordinator (P55). The heartbeats
that wait are refused then, so that their members find the next coordinator at once. A member whose
session has ended is removed, and so is one that does not confirm its assignment in time.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from millrace.broker.coordinator.classic_members import ClassicMembers
from millrace.broker.coordinator.coordinators import CoordinatorLimits, CoordinatorRuntime
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.reader import LogReader
from millrace.core.coordinator.contract import ResponseT, Result
from millrace.core.coordinator.groups import coordinator
from millrace.core.coordinator.groups.assignors import SubscribedTopic
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.coordinator import CoordinatorRecord, GroupCoordinator
from millrace.core.coordinator.groups.group import Current, Epochs, Group, concerned
from millrace.core.coordinator.groups.membership import Heartbeat
from millrace.core.coordinator.groups.patterns import matching
from millrace.core.coordinator.groups.sessions import Sessions
from millrace.core.coordinator.groups.stalls import LOOK_MS, Stalls
from millrace.core.coordinator.groups.subscriptions import FoundTopic
from millrace.core.coordinator.positions.position import PositionsConfig
from millrace.core.errors import (
    InstanceIdInUseError,
    InvalidTopicError,
    MillraceError,
    UnreleasedInstanceIdError,
)
from millrace.core.ids import BrokerId, MonotonicMs, TopicId, TopicPartition, WallMs
from millrace.core.metadata.image import MetadataImage
from millrace.core.topics import POSITIONS_TOPIC, parse_topic_name
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now, wall_now
from millrace.runtime.tasks import Tasks
from millrace.runtime.turns import Turns, Work

_EXPIRE_SECONDS: Final = 60.0
_EXPIRE_AT_ONCE: Final = 10
"""Names that one request looks at."""
_LOOKED_AT_ONCE: Final = 500
"""Members that one look takes before others get a turn of the loop."""
_END_AT_ONCE: Final = 500
"""Members that one request removes."""
_SILENT_AT_ONCE: Final = 100
"""Most members whose silence one look stores: after a broker has died, all may be silent."""

_MATCHED_MAX: Final = 1000
_FOUND_MAX: Final = 100_000
"""Regular expressions and names whose topics are remembered."""

_TWIN_SECONDS: Final = 1.0
"""A living member sends its next heartbeat this soon after the answer to the last one."""

GroupsRuntime: TypeAlias = CoordinatorRuntime[GroupCoordinator, CoordinatorRecord]


class Assignment(NamedTuple):
    """What a member is told.

    Attributes:
        current: what it owns.
        epochs: of its group, which tell its later partitions.
        waited_seconds: how long the heartbeat waited; the session of the member begins after that.
    """

    current: Current
    epochs: Epochs
    waited_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Wait:
    """A heartbeat that waits.

    Attributes:
        change: set when the member may have another assignment.
        is_over: the heartbeat is answered now, even without a change.
    """

    change: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False


class _Look(NamedTuple):
    """Members of a group that were not heard.

    Attributes:
        name: of the group.
        ended: those to remove.
        silent: those whose silence is to be stored.
    """

    name: str
    ended: list[str]
    silent: list[str]


class Groups:
    """Answers members' heartbeats and departures, and ends their sessions. It belongs to the event
    loop.

    Attributes:
        runtime: runs the coordinators.
        classic: the members of groups that speak Kafka's classic protocol.
        config: the broker's settings of groups.
    """

    def __init__(
        self,
        partitions: Partitions,
        reader: LogReader,
        positions: PositionsConfig,
        groups: GroupsConfig,
        *,
        turns: Turns,
        on_failure: Callable[[BaseException], None],
        limits: CoordinatorLimits,
    ) -> None:
        self._partitions = partitions
        self._turns = turns
        self.config = groups
        self.runtime: GroupsRuntime = CoordinatorRuntime(
            str(POSITIONS_TOPIC),
            lambda start_offset: GroupCoordinator(positions, groups, start_offset),
            coordinator,
            partitions=partitions,
            reader=reader,
            turns=turns,
            on_failure=on_failure,
            limits=limits,
            on_ended=self._on_ended,
        )
        self.classic = ClassicMembers(lambda: self.runtime, on_failure)
        self._sessions: dict[TopicPartition, Sessions] = {}
        # The waiting heartbeats, by group and member id.
        self._waiting: dict[TopicPartition, dict[tuple[str, str], list[_Wait]]] = {}
        # Events that the next heartbeat of a member sets.
        self._awaited: dict[tuple[TopicPartition, str, str], list[asyncio.Event]] = {}
        self._assigning: dict[tuple[TopicPartition, str], asyncio.Task[None]] = {}
        self._waking = Tasks(on_failure)
        self._stalls = Stalls(monotonic_now())
        self._ending: dict[TopicPartition, asyncio.Task[None]] = {}
        self._found: dict[str, FoundTopic | None] = {}  # By name, in the metadata of `version`.
        self._matched: dict[str, list[str]] = {}  # By regular expression.
        self._version: MetadataImage | None = None

    def kept(self) -> int:
        """Return how many positions the loaded coordinators keep; from any thread."""
        return sum(len(machine) for _, machine in self.runtime.machines())

    def coordinated(self, names: Iterable[str]) -> set[str]:
        """Return the groups and other readers that a loaded coordinator keeps; from any thread."""
        machines = [machine for _, machine in self.runtime.machines()]
        return {name for name in names if any(machine.has(name) for machine in machines)}

    # --- Members -----------------------------------------------------------------------------

    async def heartbeat(
        self, place: TopicPartition, name: str, heartbeat: Heartbeat, wait_seconds: float
    ) -> Assignment:
        """Handle a heartbeat; answer when the member has another assignment, or the time is over.

        Args:
            place: the partition of the group's name.
            name: the group.
            heartbeat: of a member.
            wait_seconds: how long to wait for another assignment.

        Raises:
            MillraceError: it was refused, or this broker does not lead the partition.
        """
        arrived_at = host.monotonic_s()
        until = arrived_at + wait_seconds
        key = (name, heartbeat.member_id)
        for heard in self._awaited.get((place, *key), ()):
            heard.set()
        wait = _Wait()
        members = self._waiting.setdefault(place, {})
        waiting = members.setdefault(key, [])
        waiting.append(wait)
        try:
            while True:
                wait.change.clear()
                waited_seconds = host.monotonic_s() - arrived_at
                try:
                    told = await self._ask(place, name, heartbeat)
                except UnreleasedInstanceIdError as error:
                    await self._refuse_twin(place, name, heartbeat, error)
                    raise
                left = until - host.monotonic_s()
                if told.current.epoch != heartbeat.confirmed or left <= 0 or wait.is_over:
                    return told._replace(waited_seconds=waited_seconds)
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await wait.change.wait()
                # What the member said is stored by now.
                heartbeat = Heartbeat(heartbeat.member_id, heartbeat.confirmed)
        finally:
            waiting.remove(wait)
            if not waiting:
                members.pop(key, None)

    async def _refuse_twin(
        self,
        place: TopicPartition,
        name: str,
        heartbeat: Heartbeat,
        error: UnreleasedInstanceIdError,
    ) -> None:
        """Refuse a member for good if the one with its instance id lives.

        That one may be dead. So its waiting heartbeat is answered: a living member sends the next
        one at once.

        Raises:
            InstanceIdInUseError: it lives.
        """
        machine = self.runtime.machine(place)
        group = None if machine is None else machine.membership.groups.get(name)
        said = heartbeat.member
        holder = None if group is None or said is None else group.instances.get(said.instance_id)
        if group is None or holder is None:
            return
        member = group.members[holder]
        heard = asyncio.Event()
        awaited = self._awaited.setdefault((place, name, holder), [])
        awaited.append(heard)
        try:
            for wait in self._waiting.get(place, {}).get((name, holder), ()):
                wait.is_over = True
                wait.change.set()
            async with asyncio.timeout(_TWIN_SECONDS):
                await heard.wait()
        except TimeoutError:
            return
        finally:
            awaited.remove(heard)
            if not awaited:
                self._awaited.pop((place, name, holder), None)
        raise InstanceIdInUseError(
            f"the member {holder!r} of the group {name!r}, at {member.address or 'no address'}, "
            f"lives and has the instance id {member.instance_id!r}: give each member its own, or "
            "stop that one first"
        ) from error

    async def _ask(self, place: TopicPartition, name: str, heartbeat: Heartbeat) -> Assignment:
        asked: list[GroupCoordinator] = []

        def handle(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, Current]:
            asked.append(machine)
            result = machine.handle_heartbeat(name, heartbeat, self, now)
            # Now, and not when it is committed: a commit may take longer than a session.
            self._sessions_of(place).hear(
                name, heartbeat.member_id, heartbeat.confirmed, result.response, monotonic_now()
            )
            return result

        current = await self._change(place, name, handle, by=heartbeat.member_id)
        # This is right even if the broker no longer leads: the answer rests on committed records.
        group = asked[-1].membership.groups.get(name)
        return Assignment(current, Epochs() if group is None else group.epochs)

    async def leave(
        self,
        place: TopicPartition,
        name: str,
        member_ids: Sequence[str],
        *,
        for_now: bool = False,
    ) -> list[str]:
        """Remove members; return those that were there.

        With `for_now` a static member may return within another session.

        Raises:
            MillraceError: as `heartbeat`.
        """
        gone = await self._change(
            place,
            name,
            lambda machine, now: machine.handle_leave(name, member_ids, self, now, for_now=for_now),
        )
        self._forget(place, name, gone)
        return gone

    def _forget(self, place: TopicPartition, name: str, member_ids: Iterable[str]) -> None:
        sessions = self._sessions.get(place)
        if sessions is not None:
            for member_id in member_ids:
                sessions.forget(name, member_id)

    def is_confirmed(self, place: TopicPartition, name: str, member_id: str) -> bool:
        """Whether a member has confirmed its assignment, as far as this broker knows."""
        sessions = self._sessions.get(place)
        return sessions is not None and sessions.is_confirmed(name, member_id)

    async def _change(
        self,
        place: TopicPartition,
        name: str,
        handle: Callable[[GroupCoordinator, WallMs], Result[CoordinatorRecord, ResponseT]],
        *,
        by: str = "",
    ) -> ResponseT:
        """Ask for a change of a group; let the waiting heartbeats that it concerns look again.

        Args:
            place: the partition of the group's name.
            name: the group.
            handle: makes the change.
            by: the member that asks, and hears of it by the answer.
        """
        woken: set[str] = set()

        def noting(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, ResponseT]:
            group = machine.membership.groups.get(name)
            result = handle(machine, now)
            if group is not None and result.records:
                woken.update(concerned(group, result.records))
            return result

        response = await self.runtime.ask(place, noting)
        waiting = self._waiting.get(place, {})
        for member_id in sorted(woken - {by}):  # In one order, so that a simulated run repeats.
            for wait in waiting.get((name, member_id), ()):
                wait.change.set()
        self._assign_later(place, name)
        return response

    def _assign_later(self, place: TopicPartition, name: str) -> None:
        """If the target of a group has to wait, compute it when its time has come."""
        machine = self.runtime.machine(place)
        if machine is None or (place, name) in self._assigning:
            return
        wait_ms = machine.membership.target_wait_ms(name, wall_now())
        if wait_ms is not None:
            self._assigning[place, name] = asyncio.create_task(
                self._assign(place, name, wait_ms / 1000)
            )

    async def _assign(self, place: TopicPartition, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        del self._assigning[place, name]
        with suppress(MillraceError):  # The next heartbeat, or the next leader, does it.
            await self._change(
                place, name, lambda machine, now: machine.handle_assign(name, self, now)
            )

    def _sessions_of(self, place: TopicPartition) -> Sessions:
        """Return the sessions of a partition that is served."""
        sessions = self._sessions.get(place)
        if sessions is None:
            sessions = self._sessions[place] = Sessions(self.config)
        return sessions

    def _on_ended(self, place: TopicPartition) -> None:
        """This broker stops to serve a partition."""
        self._sessions.pop(place, None)
        self.classic.on_ended(place)
        if waiting := self._waiting.get(place):
            self._waking.begin(self._wake([wait for some in waiting.values() for wait in some]))

    async def _wake(self, waits: Sequence[_Wait]) -> None:
        work = self._turns.work()
        for wait in waits:
            wait.change.set()
            await work.give_way()

    async def watch_sessions(self) -> None:
        """Remove members that are not heard, while the broker runs."""
        try:
            while True:
                await asyncio.sleep(LOOK_MS / 1000)
                self.classic.look()
                await self.end_sessions()
        finally:
            await self.classic.close()
            await self._waking.cancel()
            for task in (*self._ending.values(), *self._assigning.values()):
                task.cancel()

    async def end_sessions(self) -> None:
        """Look at all sessions once."""
        self._look_at_clock()  # Also where no group has members.
        work = self._turns.work()
        for place, machine in list(self.runtime.machines()):
            looks = await self._looks(place, machine, work)
            if looks and place not in self._ending:
                self._ending[place] = asyncio.create_task(self._end(place, looks))

    def _look_at_clock(self) -> MonotonicMs:
        """Return the time; prolong all sessions if this broker stood still (see `Stalls`)."""
        now = monotonic_now()
        if stalled_ms := self._stalls.look(now):
            for sessions in self._sessions.values():
                sessions.prolong(stalled_ms)
        return now

    async def _looks(
        self, place: TopicPartition, machine: GroupCoordinator, work: Work
    ) -> list[_Look]:
        """Return the members to remove, and those whose silence is to be stored, for each group."""
        found: list[_Look] = []
        membership = machine.membership
        room = _SILENT_AT_ONCE
        for name in list(membership.occupied):
            look = _Look(name, [], [])
            group = membership.occupied.get(name)
            members = [] if group is None else list(group.members)
            for at in range(0, len(members), _LOOKED_AT_ONCE):
                if self.runtime.machine(place) is not machine:
                    return []  # Another broker leads it.
                group = membership.occupied.get(name)
                if group is None:
                    break  # All members have left meanwhile.
                some = members[at : at + _LOOKED_AT_ONCE]
                now, sessions = self._look_at_clock(), self._sessions_of(place)
                look.ended.extend(sessions.ended(group, some, now))
                if room:
                    silent = list(sessions.silent(group, some, now))[:room]
                    look.silent.extend(silent)
                    room -= len(silent)
                await work.give_way(len(some))
            if look.ended or look.silent:
                found.append(look)
        if place in self._sessions and len(self._sessions[place]) > membership.members:
            self._sessions[place].retain(membership.groups)
        return found

    async def _end(self, place: TopicPartition, looks: Sequence[_Look]) -> None:
        """Remove dead members, and store for how long others were silent.

        A partition that cannot commit holds up no other one. Members may be heard
        while a commit lasts, so each request looks at its members again.
        """
        try:
            for name, ended, silent in looks:
                for at in range(0, len(ended), _END_AT_ONCE):
                    await self._remove(place, name, ended[at : at + _END_AT_ONCE])
                if silent:
                    await self._store_silence(place, name, silent)
        except MillraceError:
            pass  # The next look, or the next leader, does it.
        finally:
            self._ending.pop(place, None)

    async def _remove(self, place: TopicPartition, name: str, member_ids: Sequence[str]) -> None:
        def remove(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, list[str]]:
            group = machine.membership.groups.get(name) or Group(name)
            ended = self._sessions_of(place).ended(group, member_ids, monotonic_now())
            return machine.handle_leave(name, ended, self, now)

        gone = await self._change(place, name, remove)
        self._forget(place, name, gone)

    async def _store_silence(
        self, place: TopicPartition, name: str, member_ids: Sequence[str]
    ) -> None:
        def store(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, None]:
            group = machine.membership.groups.get(name) or Group(name)
            silent = self._sessions_of(place).silent(group, member_ids, monotonic_now())
            return machine.handle_silence(name, silent, now)

        await self.runtime.ask(place, store)

    # --- The topics that members subscribe to ------------------------------------------------

    @property
    def version(self) -> MetadataImage | None:
        """Implement `TopicsView`: the metadata that this broker has."""
        image = self._partitions.image
        if self._version is not image:
            self._version, self._matched, self._found = image, {}, {}
        return image

    def find(self, name: str) -> FoundTopic | None:
        """Implement `TopicsView`."""
        image = self.version
        if name in self._found:
            return self._found[name]
        found = _find(image, name)
        if len(self._found) < _FOUND_MAX:
            self._found[name] = found
        return found

    def topic_name(self, topic_id: TopicId) -> str:
        """Return the name of a topic; empty: it is not there."""
        image = self._partitions.image
        topic = None if image is None else image.topics_by_id.get(topic_id)
        return "" if topic is None else str(topic.name)

    def partitions_of(self, topic_id: TopicId) -> int:
        """Return how many partitions a topic has; 0: it is not there."""
        image = self._partitions.image
        topic = None if image is None else image.topics_by_id.get(topic_id)
        return 0 if topic is None else len(topic.partitions)

    def matching(self, pattern: str) -> Sequence[str]:
        """Implement `TopicsView`: look through all topics once for each state of the metadata."""
        image = self.version
        if image is None:
            return ()
        found = self._matched.get(pattern)
        if found is None:
            names = [str(topic) for topic in image.topics if not topic.is_internal]
            found = matching(pattern, names)
            if len(self._matched) < _MATCHED_MAX:
                self._matched[pattern] = found
        return found

    # --- Expiry ------------------------------------------------------------------------------

    async def expire(self) -> None:
        """Delete what has not been used for long, while the broker runs."""
        while True:
            await asyncio.sleep(_EXPIRE_SECONDS)
            await self.expire_now()

    async def expire_now(self) -> None:
        """Look through all names once."""
        for topic_partition, machine in self.runtime.machines():
            names = machine.names()
            with suppress(MillraceError):  # The next time, or the next leader, does it.
                for at in range(0, len(names), _EXPIRE_AT_ONCE):
                    some = names[at : at + _EXPIRE_AT_ONCE]

                    def forget(
                        machine: GroupCoordinator, now: WallMs, some: Sequence[str] = some
                    ) -> Result[CoordinatorRecord, None]:
                        return machine.handle_expire(some, now, self._exists, self)

                    await self.runtime.ask(topic_partition, forget)
                    await asyncio.sleep(0)  # Other work needs the loop, too.

    def _exists(self, topic_id: TopicId) -> bool:
        """Whether there is a topic, or it may come back with its positions (P75)."""
        image = self._partitions.image
        return image is None or topic_id in image.topics_by_id or image.may_return(topic_id)


def _find(image: MetadataImage | None, name: str) -> FoundTopic | None:
    if image is None:
        return None
    try:
        topic = image.topics.get(parse_topic_name(name))
    except InvalidTopicError:
        return None
    if topic is None:
        return None
    zones = [
        frozenset(filter(None, (_zone(image, broker) for broker in partition.replicas)))
        for partition in topic.partitions
    ]
    return FoundTopic(topic.topic_id, SubscribedTopic(len(topic.partitions), zones))


def _zone(image: MetadataImage, broker_id: BrokerId) -> str:
    broker = image.broker(broker_id)
    return "" if broker is None else broker.rack
