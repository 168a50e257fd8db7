"""Consumer groups and positions: coordinators of the internal topic `__positions`, and their clock.

A member's heartbeat waits here until the member has another assignment to take. So a group is
stable again as soon as its members have answered each other, however seldom they send heartbeats.

Sessions are kept in memory, from the last heartbeat on, or from the moment at which this broker has
loaded the partition (P55). A member whose session has ended is removed, and so is one that does not
confirm its assignment in time.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, TypeAlias

from millrace.broker.runtime.coordinators import CoordinatorLimits, CoordinatorRuntime
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.runtime.turns import Turns
from millrace.client import host
from millrace.core.coordinators import Result
from millrace.core.errors import InvalidTopicError, MillraceError
from millrace.core.groups import coordinator
from millrace.core.groups.assignors import SubscribedTopic
from millrace.core.groups.config import GroupsConfig
from millrace.core.groups.coordinator import CoordinatorRecord, GroupCoordinator
from millrace.core.groups.group import Current
from millrace.core.groups.membership import FoundTopic, Heartbeat
from millrace.core.groups.patterns import matching
from millrace.core.ids import BrokerId, TopicId, TopicPartition, WallMs
from millrace.core.metadata.image import MetadataImage
from millrace.core.positions.position import PositionsConfig
from millrace.core.topics import POSITIONS_TOPIC, parse_topic_name

_EXPIRE_SECONDS: Final = 60.0
_EXPIRE_AT_ONCE: Final = 10
"""Names that one request looks at."""
_SESSIONS_SECONDS: Final = 0.25
"""Time between two looks at all sessions."""

_MATCHED_MAX: Final = 1000
"""Regular expressions whose topics are remembered."""

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
        self._changes: dict[tuple[TopicPartition, str], asyncio.Event] = {}
        self._matched: dict[str, list[str]] = {}  # By regular expression.
        self._matched_in: MetadataImage | None = None

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
        while True:
            change = self._changes.setdefault((place, name), asyncio.Event())
            current = await self._ask(place, name, heartbeat)
            left = until - host.monotonic_s()
            if current.epoch != heartbeat.confirmed or left <= 0:
                return current
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await change.wait()
            # What the member said is stored by now.
            heartbeat = Heartbeat(heartbeat.member_id, heartbeat.confirmed)

    async def _ask(self, place: TopicPartition, name: str, heartbeat: Heartbeat) -> Current:
        records = 0

        def handle(machine: GroupCoordinator, now: WallMs) -> Result[CoordinatorRecord, Current]:
            nonlocal records
            result = machine.handle_heartbeat(name, heartbeat, self, now)
            records = len(result.records)
            # Now, and not when it is committed: a commit may take longer than a session.
            self._hear(place, name, heartbeat, result.response)
            return result

        current = await self.runtime.ask(place, handle)
        if records:
            self._tell(place, name)
        return current

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
        gone = await self.runtime.ask(
            place,
            lambda machine, now: machine.handle_leave(name, member_ids, self, now, for_now=for_now),
        )
        sessions = self._sessions.get(place, {})
        for each in gone:
            sessions.pop((name, each), None)
        if gone:
            self._tell(place, name)
        return gone

    def is_confirmed(self, place: TopicPartition, name: str, member_id: str) -> bool:
        """Whether a member has confirmed its assignment, as far as this broker knows."""
        session = self._sessions.get(place, {}).get((name, member_id))
        return session is not None and session.is_confirmed

    def _tell(self, place: TopicPartition, name: str) -> None:
        """Let waiting heartbeats of a group look at it again."""
        change = self._changes.pop((place, name), None)
        if change is not None:
            change.set()

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
        while True:
            await asyncio.sleep(_SESSIONS_SECONDS)
            await self.end_sessions()

    async def end_sessions(self) -> None:
        """Look at all sessions once."""
        now = host.monotonic_s()
        served = dict(self.runtime.machines())
        for place in self._sessions.keys() - served.keys():
            del self._sessions[place]  # Another broker leads it.
        for place, machine in served.items():
            sessions = self._sessions.setdefault(place, {})
            for name, member_ids in self._overdue(machine, sessions, now):
                with suppress(MillraceError):  # The next time, or the next leader, does it.
                    await self.leave(place, name, member_ids)

    def _overdue(
        self, machine: GroupCoordinator, sessions: dict[tuple[str, str], _Session], now: float
    ) -> list[tuple[str, list[str]]]:
        ends_at = now + self.config.session_timeout_ms / 1000
        overdue: list[tuple[str, list[str]]] = []
        known = set()
        for name, group in machine.membership.groups.items():
            late = []
            for member_id, member in group.members.items():
                known.add((name, member_id))
                session = sessions.setdefault((name, member_id), _Session(ends_at))
                is_slow = not session.is_confirmed and (
                    now - session.told_at > member.rebalance_timeout_ms / 1000
                )
                if session.ends_at <= now or is_slow:
                    late.append(member_id)
            if late:
                overdue.append((name, late))
        for gone in sessions.keys() - known:
            del sessions[gone]
        return overdue

    # --- The topics that members subscribe to ------------------------------------------------

    def find(self, name: str) -> FoundTopic | None:
        """Implement `TopicsView` over the metadata that this broker has."""
        image = self._partitions.image
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

    def matching(self, pattern: str) -> Sequence[str]:
        """Implement `TopicsView`: look through all topics once for each state of the metadata."""
        image = self._partitions.image
        if image is None:
            return ()
        if self._matched_in is not image or len(self._matched) >= _MATCHED_MAX:
            self._matched_in, self._matched = image, {}
        if pattern not in self._matched:
            names = [str(each) for each in image.topics if not each.is_internal]
            self._matched[pattern] = matching(pattern, names)
        return self._matched[pattern]

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
        image = self._partitions.image
        return image is None or topic_id in image.topics_by_id


def _zone(image: MetadataImage, broker_id: BrokerId) -> str:
    broker = image.broker(broker_id)
    return "" if broker is None else broker.rack
