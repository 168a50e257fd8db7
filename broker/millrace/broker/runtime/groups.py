"""Consumer groups and positions: coordinators of the internal topic `__positions`, and their clock.

A member's heartbeat waits here until the member has another assignment to take. So a group is
stable again as soon as its members have answered each other, however seldom they send heartbeats.
A change wakes only the heartbeats that it concerns: a group may have ten thousand members.

Sessions are kept in memory, from the last heartbeat on, or from the moment at which this broker has
loaded the partition (P55). A member whose session has ended is removed, and so is one that does not
confirm its assignment in time.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from millrace.broker.runtime.clock import wall_now
from millrace.broker.runtime.coordinators import CoordinatorLimits, CoordinatorRuntime
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.runtime.turns import Turns, Work
from millrace.client import host
from millrace.core.coordinators import ResponseT, Result
from millrace.core.errors import InvalidTopicError, MillraceError
from millrace.core.groups import coordinator
from millrace.core.groups.assignors import SubscribedTopic
from millrace.core.groups.config import GroupsConfig
from millrace.core.groups.coordinator import CoordinatorRecord, GroupCoordinator
from millrace.core.groups.group import Current, concerned
from millrace.core.groups.membership import FoundTopic, Heartbeat, MembershipMachine
from millrace.core.groups.patterns import matching
from millrace.core.ids import BrokerId, TopicId, TopicPartition, WallMs
from millrace.core.metadata.image import MetadataImage
from millrace.core.positions.position import PositionsConfig
from millrace.core.topics import POSITIONS_TOPIC, parse_topic_name

_EXPIRE_SECONDS: Final = 60.0
_EXPIRE_AT_ONCE: Final = 10
"""Names that one request looks at."""
_END_AT_ONCE: Final = 500
"""Members that one request removes."""
_SESSIONS_SECONDS: Final = 0.25
"""Time between two looks at all sessions."""

_MATCHED_MAX: Final = 1000
_FOUND_MAX: Final = 100_000
"""Regular expressions and names whose topics are remembered."""

_STALL_SECONDS: Final = 1.0
"""A look that is so late says that the broker stood still."""

GroupsRuntime: TypeAlias = CoordinatorRuntime[GroupCoordinator, CoordinatorRecord]


@dataclass(slots=True)
class _Session:
    """What this broker heard of a member: seconds of the monotonic clock.

    Attributes:
        ends_at: when the member counts as dead.
        epoch: of the last assignment that it was told.
        told_at: when it was told that one first.
        is_confirmed: whether it has taken that one.
    """

    ends_at: float
    epoch: int = 0
    told_at: float = 0.0
    is_confirmed: bool = True


class Groups:
    """See the module. On the event loop.

    Attributes:
        runtime: runs the coordinators.
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
        )
        self._sessions: dict[TopicPartition, dict[tuple[str, str], _Session]] = {}
        # What ends the waits of a member's heartbeats.
        self._waiting: dict[tuple[TopicPartition, str, str], set[asyncio.Event]] = {}
        self._assigning: dict[tuple[TopicPartition, str], asyncio.Task[None]] = {}
        self._looked_at = host.monotonic_s()
        self._ending: dict[TopicPartition, asyncio.Task[None]] = {}
        self._found: dict[str, FoundTopic | None] = {}  # By name, in the metadata of `version`.
        self._matched: dict[str, list[str]] = {}  # By regular expression.
        self._version: MetadataImage | None = None

    def kept(self) -> int:
        """Return how many positions the loaded coordinators keep; from any thread."""
        return sum(len(machine) for _, machine in self.runtime.machines())

    # --- Members -----------------------------------------------------------------------------

    async def heartbeat(
        self, place: TopicPartition, name: str, heartbeat: Heartbeat, wait_seconds: float
    ) -> Current:
        """Handle a heartbeat; answer when the member has another assignment, or the time is over.

        Args:
            place: the partition of the group's name.
            name: the group.
            heartbeat: of a member.
            wait_seconds: how long to wait for another assignment.

        Raises:
            MillraceError: it was refused, or this broker does not lead the partition.
        """
        until = host.monotonic_s() + wait_seconds
        key = (place, name, heartbeat.member_id)
        change = asyncio.Event()
        waiting = self._waiting.setdefault(key, set())
        waiting.add(change)
        try:
            while True:
                change.clear()
                current = await self._ask(place, name, heartbeat)
                left = until - host.monotonic_s()
                if current.epoch != heartbeat.confirmed or left <= 0:
                    return current
                with suppress(TimeoutError):
                    async with asyncio.timeout(left):
                        await change.wait()
                # What the member said is stored by now.
                heartbeat = Heartbeat(heartbeat.member_id, heartbeat.confirmed)
        finally:
            waiting.remove(change)
            if not waiting:
                self._waiting.pop(key, None)

    async def _ask(self, place: TopicPartition, name: str, heartbeat: Heartbeat) -> Current:
        def handle(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, Current]:
            result = machine.handle_heartbeat(name, heartbeat, self, now)
            # Now, and not when it is committed: a commit may take longer than a session.
            self._hear(place, name, heartbeat, result.response)
            return result

        return await self._change(place, name, handle, by=heartbeat.member_id)

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
        sessions = self._sessions.get(place, {})
        for each in gone:
            sessions.pop((name, each), None)
        return gone

    def is_confirmed(self, place: TopicPartition, name: str, member_id: str) -> bool:
        """Whether a member has confirmed its assignment, as far as this broker knows."""
        session = self._sessions.get(place, {}).get((name, member_id))
        return session is not None and session.is_confirmed

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
        for member_id in woken - {by}:
            for change in self._waiting.get((place, name, member_id), ()):
                change.set()
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

    def _hear(
        self, place: TopicPartition, name: str, heartbeat: Heartbeat, current: Current
    ) -> None:
        now = host.monotonic_s()
        ends_at = now + self.config.session_timeout_ms / 1000
        sessions = self._sessions.setdefault(place, {})
        session = sessions.setdefault((name, heartbeat.member_id), _Session(ends_at))
        session.ends_at = ends_at
        session.is_confirmed = heartbeat.confirmed >= current.epoch
        if session.epoch != current.epoch:
            session.epoch, session.told_at = current.epoch, now

    async def watch_sessions(self) -> None:
        """Remove members that are not heard, while the broker runs."""
        try:
            while True:
                await asyncio.sleep(_SESSIONS_SECONDS)
                await self.end_sessions()
        finally:
            for task in (*self._ending.values(), *self._assigning.values()):
                task.cancel()

    async def end_sessions(self) -> None:
        """Look at all sessions once."""
        self._look_at_clock()  # Also where no group has members.
        work = self._turns.work()
        served = dict(self.runtime.machines())
        for place in self._sessions.keys() - served.keys():
            del self._sessions[place]  # Another broker leads it.
        for place, machine in served.items():
            sessions = self._sessions.setdefault(place, {})
            overdue = await self._overdue(machine.membership, sessions, work)
            if overdue and place not in self._ending:
                self._ending[place] = asyncio.create_task(self._end(place, overdue))

    def _look_at_clock(self) -> float:
        """Return the time; prolong all sessions if the last look at it is too long ago.

        This broker stood still then: members may have been heard, and wait to be handled.
        """
        now = host.monotonic_s()
        stalled = now - self._looked_at - _SESSIONS_SECONDS
        self._looked_at = now
        if stalled > _STALL_SECONDS:
            for sessions in self._sessions.values():
                for session in sessions.values():
                    session.ends_at += stalled
        return now

    async def _end(self, place: TopicPartition, overdue: list[tuple[str, list[str]]]) -> None:
        """Remove members. A partition that cannot commit holds up no other one."""
        try:
            for name, member_ids in overdue:
                for at in range(0, len(member_ids), _END_AT_ONCE):
                    await self.leave(place, name, member_ids[at : at + _END_AT_ONCE])
        except MillraceError:
            pass  # The next look, or the next leader, does it.
        finally:
            del self._ending[place]

    async def _overdue(
        self,
        membership: MembershipMachine,
        sessions: dict[tuple[str, str], _Session],
        work: Work,
    ) -> list[tuple[str, list[str]]]:
        overdue: list[tuple[str, list[str]]] = []
        for name in list(membership.occupied):
            group = membership.occupied.get(name)
            if group is None:
                continue  # All members have left meanwhile.
            now = self._look_at_clock()
            ends_at = now + self.config.session_timeout_ms / 1000
            late = []
            for member_id, member in group.members.items():
                session = sessions.get((name, member_id))
                if session is None:
                    session = sessions[name, member_id] = _Session(ends_at)
                is_slow = not session.is_confirmed and (
                    now - session.told_at > member.rebalance_timeout_ms / 1000
                )
                if session.ends_at <= now or is_slow:
                    late.append(member_id)
            if late:
                overdue.append((name, late))
            await work.give_way(len(group.members))
        if len(sessions) > membership.members:
            groups = membership.groups
            for name, member_id in list(sessions):
                if name not in groups or member_id not in groups[name].members:
                    del sessions[name, member_id]
        return overdue

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
            names = [str(each) for each in image.topics if not each.is_internal]
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
                        return machine.handle_expire(some, now, self._exists)

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
