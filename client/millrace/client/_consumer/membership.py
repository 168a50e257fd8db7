"""One consumer as a member of its group.

Heartbeats run on the loop, all the time, so a slow user does not lose its membership. A new
assignment is taken where the user polls: then all records that were handed out are done, and what
is revoked can be committed. The member confirms an assignment after that.

Invariants:

- Records of a partition are handed out only while the member owns it: after a session without an
  answer the member hands out nothing, as the group may have given its partitions away (P61, P62).
- The member commits only what it has handed out before the poll that commits.

Source: KIP-848; Kafka's AsyncKafkaConsumer.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from millrace.client import host
from millrace.client._cluster.cluster import Cluster, Connection
from millrace.client._cluster.coordinators import Coordinators
from millrace.client._cluster.positions import KeptPositions
from millrace.client._consumer.settings import ConsumerConfig
from millrace.core.errors import (
    FencedMemberEpochError,
    MillraceError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.positions.position import Position
from millrace.core.topics import PartitionName
from millrace.proto.v1 import groups_pb2 as pb
from millrace.proto.v1 import positions_pb2

_log = logging.getLogger(__name__)

_ID_BYTES: Final = 16
_PAUSE_S: Final = 0.1
_SESSION_S: Final = 10.0
"""Until the coordinator has said how long a session is."""

Callback: TypeAlias = Callable[[list[PartitionName]], Awaitable[None] | None]
"""Called with partitions that were assigned, revoked or lost."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the user wants to hear."""

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


class Reading(Protocol):
    """What a member needs of its consumer."""

    def begin(self, places: dict[TopicPartition, tuple[str, Position | None]]) -> None:
        """Read these partitions, too: their topic, and where to begin; None: at the default."""

    def end(self, places: Iterable[TopicPartition]) -> None:
        """Read these no more, and drop what was fetched of them."""

    def known_position(self, place: TopicPartition) -> Position | None:
        """Return the position of the next record that is handed out; None: it is not known yet."""

    def wake(self) -> None:
        """Let a poll that waits look again."""

    def lent(self) -> AbstractContextManager[None]:
        """Let a callback use the consumer, in the middle of a call of its user."""


class Membership:
    """See the module.

    Attributes:
        owned: the topic of each partition that the member reads.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        reading: Reading,
        *,
        topics: Sequence[str],
        pattern: str,
        callbacks: Callbacks,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._reading = reading
        self._topics, self._pattern = topics, pattern
        self._callbacks = callbacks
        self._coordinators = Coordinators(cluster)
        self._positions = KeptPositions(cluster, self._coordinators)
        self.owned: dict[TopicPartition, str] = {}
        self._confirmed = 0
        self._told: pb.GroupHeartbeatResponse | None = None
        self._failure: MillraceError | None = None
        self._is_lost = False
        self._member_id = self._new_id()
        self._has_joined = False
        self._session_s = _SESSION_S
        self._wait_s = 1.0
        self._heard_at = self._polled_at = self._committed_at = host.monotonic_s()
        self._has_confirmed = asyncio.Event()
        self._has_polled = asyncio.Event()
        self._beating = asyncio.get_running_loop().create_task(self._beat())

    def _new_id(self) -> str:
        return host.current.random_bytes(_ID_BYTES).hex()

    # --- Heartbeats, all the time ------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            if host.monotonic_s() - self._polled_at > self._config.max_poll_interval_ms / 1000:
                await self._leave_as_it_is_slow()
                continue
            request = self._heartbeat()
            try:
                asked_at, answer = await self._ask(request)
            except (UnknownMemberIdError, FencedMemberEpochError) as error:
                _log.warning("the member lost its partitions: %s", error.message)
                if request.member_id == self._member_id:
                    self._lose()
            except MillraceError as error:
                if not error.retriable:
                    self._failure = error
                    self._reading.wake()
                    return
                await asyncio.sleep(_PAUSE_S)
            else:
                if request.member_id != self._member_id:
                    continue  # The member gave itself up meanwhile.
                self._has_joined = True
                self._heard_at = asked_at
                self._session_s = answer.session_timeout_ms / 1000
                self._wait_s = answer.heartbeat_interval_ms / 1000
                if answer.epoch != self._confirmed:
                    await self._wait_until_taken(answer)

    def _heartbeat(self) -> pb.GroupHeartbeatRequest:
        request = pb.GroupHeartbeatRequest(
            group=self._config.group,
            member_id=self._member_id,
            confirmed=self._confirmed,
            wait_ms=int(self._wait_s * 1000),
        )
        if not self._has_joined:
            request.member.CopyFrom(
                pb.GroupMember(
                    instance_id=self._config.group_instance_id,
                    zone=self._config.client_rack,
                    topics=self._topics,
                    pattern=self._pattern,
                    assignor=self._config.group_assignor,
                    rebalance_timeout_ms=self._config.max_poll_interval_ms,
                )
            )
        return request

    async def _ask(
        self, request: pb.GroupHeartbeatRequest
    ) -> tuple[float, pb.GroupHeartbeatResponse]:
        """Return the answer, and when the request that it answers was sent."""
        asked_at = 0.0

        async def ask(connection: Connection) -> pb.GroupHeartbeatResponse:
            nonlocal asked_at
            if asked_at:  # Another coordinator: hear from it at once, as the session goes on.
                request.wait_ms = 0
            asked_at = host.monotonic_s()
            answer: pb.GroupHeartbeatResponse = await connection.groups.GroupHeartbeat(request)
            return answer

        answer = await self._coordinators.ask(self._config.group, ask, wait_s=self._wait_s)
        return asked_at, answer

    async def _wait_until_taken(self, answer: pb.GroupHeartbeatResponse) -> None:
        """Let the user's next poll take an assignment; go on with heartbeats soon."""
        self._told = answer
        self._has_confirmed.clear()
        self._reading.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                await self._has_confirmed.wait()

    def _lose(self) -> None:
        self._is_lost, self._told, self._confirmed = True, None, 0
        self._has_joined = False
        self._member_id = self._new_id()
        self._reading.wake()

    async def _leave_as_it_is_slow(self) -> None:
        _log.warning(
            "the consumer did not poll for max_poll_interval_ms=%d, and leaves its group %r: poll "
            "more often, take fewer records at a time, or raise it",
            self._config.max_poll_interval_ms,
            self._config.group,
        )
        with suppress(MillraceError):
            await self._leave(for_now=False)
        self._lose()
        self._has_polled.clear()
        await self._has_polled.wait()

    async def _leave(self, *, for_now: bool) -> None:
        request = pb.LeaveGroupRequest(
            group=self._config.group, member_ids=[self._member_id], for_now=for_now
        )
        await self._coordinators.ask(
            self._config.group, lambda connection: connection.groups.LeaveGroup(request)
        )

    # --- Where the user polls ----------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether a poll has something to do here, beside handing out records."""
        now = host.monotonic_s()
        self._polled_at = now
        self._has_polled.set()
        return (
            self._told is not None
            or self._is_lost
            or self._failure is not None
            or (bool(self.owned) and now - self._heard_at > self._session_s)
            or self._must_commit(now)
        )

    def _must_commit(self, now: float) -> bool:
        interval_s = self._config.auto_commit_interval_ms / 1000
        is_time = now - self._committed_at >= interval_s
        return self._config.enable_auto_commit and bool(self.owned) and is_time

    async def poll(self) -> None:
        """Do what is due before records are handed out.

        Raises:
            MillraceError: the member cannot join, or a callback raised.
        """
        if self._failure is not None:
            raise self._failure
        if self.owned and host.monotonic_s() - self._heard_at > self._session_s:
            self._lose()  # Others may own its partitions by now.
        if self._is_lost:
            self._is_lost = False
            lost = self._names(self.owned)
            self._reading.end(self.owned)
            self.owned = {}
            if lost:
                await self._call(self._callbacks.on_lost or self._callbacks.on_revoked, lost)
        if self._told is not None:
            await self._take(self._told)
        if self._must_commit(host.monotonic_s()):
            await self._commit_by_itself(self.owned)

    async def _take(self, told: pb.GroupHeartbeatResponse) -> None:
        assigned = {
            TopicPartition(TopicId(each.topic_id), partition)
            for each in told.assigned
            for partition in each.partitions
        }
        revoked = [each for each in self.owned if each not in assigned]
        if revoked:
            names = self._names(revoked)
            if self._config.enable_auto_commit:
                await self._commit_by_itself(revoked)
            await self._call(self._callbacks.on_revoked, names)
            self._reading.end(revoked)
            for each in revoked:
                del self.owned[each]
        added = sorted(assigned - self.owned.keys())
        topics = await self._topics_of(added)
        begun = {each: topics[each.topic_id] for each in added if each.topic_id in topics}
        committed = await self._committed() if begun else {}
        self._reading.begin(
            {each: (name, committed.get((name, each.partition))) for each, name in begun.items()}
        )
        self.owned.update(begun)
        self._confirmed, self._told = told.epoch, None
        if begun:
            await self._call(self._callbacks.on_assigned, self._names(begun))
        self._has_confirmed.set()

    async def _topics_of(self, places: Iterable[TopicPartition]) -> dict[TopicId, str]:
        known = {info.topic_id: name for name, info in self._cluster.topics.items()}
        unknown = {each.topic_id for each in places} - known.keys()
        return known | await self._cluster.names_of(unknown)

    async def _committed(self) -> dict[PartitionName, Position]:
        return await self._positions.fetch(
            self._config.group, positions_pb2.POSITION_KIND_COMMITTED
        )

    async def _commit_by_itself(self, places: Iterable[TopicPartition]) -> None:
        """Commit for a user who does not."""
        self._committed_at = host.monotonic_s()
        with suppress(StaleMemberEpochError, UnknownMemberIdError):  # The next poll is told.
            await self.commit_read(places)

    async def commit_read(self, places: Iterable[TopicPartition]) -> None:
        """Commit how far owned partitions were handed out.

        Raises:
            MillraceError: as `commit`.
        """
        await self.commit(
            {
                (self.owned[each], each.partition): position
                for each in places
                if (position := self._reading.known_position(each)) is not None
            }
        )

    async def commit(self, positions: dict[PartitionName, Position]) -> None:
        """Commit positions of owned partitions.

        Raises:
            MillraceError: they are not stored, or may not be.
        """
        if positions:
            await self._positions.commit(
                self._config.group,
                positions,
                member_id=self._member_id,
                epoch=self._confirmed,  # In which it reads; a later one is not taken yet.
            )

    def _names(self, places: Iterable[TopicPartition]) -> list[PartitionName]:
        return [(self.owned[each], each.partition) for each in places]

    async def _call(self, callback: Callback | None, places: list[PartitionName]) -> None:
        if callback is not None and places:
            with self._reading.lent():
                done = callback(places)
                if inspect.isawaitable(done):
                    await done

    async def close(self) -> None:
        """Commit, give everything up, and leave the group: a static member for a session."""
        self._beating.cancel()
        with suppress(asyncio.CancelledError):
            await self._beating
        try:
            if not self._is_lost:
                if self._config.enable_auto_commit:
                    await self._commit_by_itself(self.owned)
                await self._call(self._callbacks.on_revoked, self._names(self.owned))
        finally:
            with suppress(MillraceError):
                await self._leave(for_now=True)
