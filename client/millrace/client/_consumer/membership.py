"""One consumer as a member of its group.

A new assignment is taken where the user polls: then all records that were handed out are done, and
what is revoked can be committed. The member confirms an assignment after that.

Invariant: records of a partition are handed out only while the member owns it. After a session
without an answer the member hands out nothing, as the group may have given its partitions away
(P61, P62).

Source: KIP-848; Kafka's AsyncKafkaConsumer.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, TypeAlias

from millrace.client import events
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.coordinators import Coordinators
from millrace.client._cluster.positions import KeptPositions
from millrace.client._consumer.assignment import Assignment, Begun
from millrace.client._consumer.counters import ConsumerCounters
from millrace.client._consumer.heartbeats import Heartbeats
from millrace.client._consumer.member_commits import MemberCommits
from millrace.client._consumer.settings import ConsumerConfig
from millrace.client._threads.logs import Log
from millrace.client._threads.tasks import Tasks, last_work_s
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import ClientError, MillraceError, UnstablePositionsError
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.topics import PartitionName
from millrace.proto.v1 import groups_pb2 as pb
from millrace.proto.v1 import positions_pb2
from millrace.runtime import host

_log = Log(__name__)

_COMMITS_SHARE: Final = 0.6
"""The share of its time to close for the commits of a member that leaves. Its partitions wait a
session, 10 s by default, at most: then others read again what is not committed."""
_LEAVE_SHARE: Final = 0.2
"""The share for the request to leave. A coordinator that does not get it waits a session."""
_TAKEN_AWAY_S: Final = 10.0
"""Within this time a group takes the partitions of a deleted topic away."""

Callback: TypeAlias = Callable[[list[PartitionName]], Awaitable[None] | None]
"""Called with partitions that were assigned, revoked or lost."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """The functions by which the user hears of changes; None: the user does not want to."""

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


class Membership:
    """The member.

    Attributes:
        owned: the topic of each partition that it reads.
        gave_up_at: when others last got partitions that it had read, or since when it is a member,
            in seconds of the monotonic clock.
        is_held: a transaction commits for the member: it gives no partition up of which it has
            handed out records that are not committed.
        must_put_back: what it has handed out since the last commit does not count: the next poll
            goes back.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        assignment: Assignment,
        *,
        topics: Sequence[str],
        pattern: str,
        callbacks: Callbacks,
        counters: ConsumerCounters,
    ) -> None:
        self._config = config
        self._counters = counters
        self._assignment = assignment
        self._callbacks = callbacks
        coordinators = Coordinators(cluster)
        self._positions = KeptPositions(cluster, coordinators)
        self.owned: dict[TopicPartition, str] = {}
        self.gave_up_at = host.monotonic_s()
        self.must_put_back = self.is_held = False
        self._moved: set[TopicPartition] = set()
        """Partitions that its user moved since it must go back: they stay there."""
        self._compared: set[TopicId] = set()
        """Topics without a position that were compared with the deleted ones, of those it owns."""
        self.heartbeats = Heartbeats(
            config,
            coordinators,
            topics=topics,
            pattern=pattern,
            on_lost=self._on_lost,
            on_news=assignment.wake,
        )
        self._tasks = Tasks(
            asyncio.get_running_loop(), "member of a group", self._on_unexpected_error
        )
        self._tasks.spawn(self.heartbeats.beat)
        self.commits = MemberCommits(
            config=config,
            positions=self._positions,
            heartbeats=self.heartbeats,
            assignment=assignment,
            owned=self.owned,
            counters=counters,
        )
        if self.commits.begins_at_end:
            self._tasks.spawn(self.commits.keep_ends)

    def _on_lost(self) -> None:
        self.commits.ends.clear()

    def _on_unexpected_error(self, error: BaseException) -> None:
        failure = ClientError(f"a task of the group's member has failed unexpectedly: {error!r}")
        failure.__cause__ = error
        self.heartbeats.fail(failure)

    @property
    def is_due(self) -> bool:
        """Whether a poll has something to do here, beside handing out records."""
        now = host.monotonic_s()
        self.heartbeats.on_polled(now)
        return self.heartbeats.has_work or self.must_put_back or now >= self.due_at

    @property
    def due_at(self) -> float:
        """When a poll has something to do here though nothing happens until then."""
        return min(self._silent_at, self._taken_away_at, self.commits.due_at)

    @property
    def _taken_away_at(self) -> float:
        """When the group has had time to take away a topic that was gone."""
        gone_at = self._assignment.gone_at
        return gone_at + _TAKEN_AWAY_S if gone_at else inf

    def _join_again_where_topics_are_back(self) -> None:
        """Read what the group has not taken away: it was deleted, and brought back soon."""
        self._assignment.gone_at = 0
        if any(map(self._assignment.is_gone, self.owned)):
            self.heartbeats.lose()

    @property
    def _silent_at(self) -> float:
        """When others may own its partitions."""
        return self.heartbeats.silent_at if self.owned else inf

    @property
    def _is_silent(self) -> bool:
        """Whether others may own its partitions by now."""
        return host.monotonic_s() >= self._silent_at

    async def poll(self) -> None:
        """Do what is due before records are handed out.

        Raises:
            MillraceError: the member cannot join, or a callback raised.
        """
        while True:  # A step may take longer than a session: look at all of it again.
            if self.heartbeats.failure is not None:
                raise self.heartbeats.failure
            if self._is_silent:
                self.heartbeats.lose()
            if self.heartbeats.is_lost:
                self.heartbeats.is_lost = False
                await self._give_up()
            elif host.monotonic_s() >= self._taken_away_at:
                self._join_again_where_topics_are_back()
            elif self.must_put_back:
                await self.put_back()
            elif (
                told := self.heartbeats.told
            ) is not None and told is not self.heartbeats.deferred:
                await self._take(told)
            else:
                break
        self.commits.begin_due()

    def hold(self, *, is_held: bool) -> None:
        """Note that a transaction commits for the member, or that it has ended."""
        self.is_held = is_held
        self.heartbeats.deferred = None

    async def _give_up(self) -> None:
        """Stop to read everything, as others may own it."""
        lost = self._names(self.owned)
        self.gave_up_at = host.monotonic_s()
        self._assignment.end(self.owned)
        self.owned.clear()
        await self._call(self._callbacks.on_lost or self._callbacks.on_revoked, lost)

    async def _take(self, told: pb.GroupHeartbeatResponse) -> None:
        """Take an assignment; leave it to the next round when it is lost meanwhile."""
        assigned = {
            TopicPartition(TopicId(topic.topic_id), partition): topic.topic
            for topic in told.assigned
            for partition in topic.partitions
        }
        revoked = [place for place in self.owned if place not in assigned]
        # What is committed is done, and no record was handed out in this transaction.
        if revoked and self.is_held and self._assignment.is_undecided(revoked):
            self.heartbeats.deferred = told
            return
        if revoked:
            self._tell_gone(told)
            await self.commits.commit_before_others_own(revoked)
            if self.heartbeats.told is not told:
                return
            await self._call(self._callbacks.on_revoked, self._names(revoked))
            self._assignment.end(revoked)
            if not self.is_held:
                self.gave_up_at = host.monotonic_s()
            for place in revoked:
                del self.owned[place]
                self.commits.ends.pop(place, None)
        # A topic without a name was deleted since.
        begun = {
            place: topic for place, topic in assigned.items() if topic and place not in self.owned
        }
        committed = await self._committed(told, begun) if begun else {}
        if self.heartbeats.told is not told:
            return
        later = {
            TopicPartition(TopicId(topic.topic_id), partition)
            for topic in told.assigned
            if topic.HasField("later_from")
            for partition in topic.partitions
            if partition >= topic.later_from
        }
        beginning = {
            place: Begun(topic, committed.get(place), place in later)
            for place, topic in begun.items()
        }
        self.owned.update(begun)
        self.commits.begin_at_ends(beginning.keys() - committed.keys() - later)
        self._assignment.begin(beginning)
        self.heartbeats.confirm(told)
        self._counters.assignments += 1
        self._look_for_made_again(begun, committed)
        await self._call(self._callbacks.on_assigned, self._names(begun))
        self.heartbeats.on_taken()

    def _tell_gone(self, told: pb.GroupHeartbeatResponse) -> None:
        """Tell of topics that the group takes away because they are gone: they have no name."""
        for topic in told.revoking:
            topic_id = TopicId(topic.topic_id)
            names = [name for place, name in self.owned.items() if place.topic_id == topic_id]
            if names and not topic.topic:
                problem = f"the topic {names[0]!r} was deleted"
                self._assignment.tell_gone(names[0], topic_id, self.owned, problem)

    def _look_for_made_again(
        self, begun: dict[TopicPartition, str], committed: Collection[TopicPartition]
    ) -> None:
        """Find topics that begin without any position, as the group's are of a deleted topic.

        In the background, and once for each topic: no record waits for what is only told.
        """
        with_position = {place.topic_id for place in committed}
        new = {
            topic: place.topic_id
            for place, topic in begun.items()
            if place.topic_id not in with_position
        }
        before = with_position - {place.topic_id for place in self.owned}
        if before and not self._compared.issuperset(new.values()):
            self._tasks.spawn(self._tell_made_again, new, before)

    async def _tell_made_again(self, new: dict[str, TopicId], before: Collection[TopicId]) -> None:
        """Tell of those topics whose name a deleted topic with a position had."""
        with suppress(MillraceError):  # It goes on without; a later assignment tries again.
            names = await self._positions.names_before()
            owned = {place.topic_id for place in self.owned}
            for topic_id, name in names.items():
                if topic_id in before and new.get(name) in owned:
                    self._assignment.tell_made_again(name, new[name])
            self._compared = (self._compared | set(new.values())) & owned

    async def put_back(self) -> None:
        """Go back to where the group has committed, else to the first record that was taken.

        Raises:
            MillraceError: the group's positions are not known yet; the next poll asks again.
        """
        committed = await self._stable_positions(self.owned)
        if not self.heartbeats.is_lost:  # Else it gives everything up.
            places = [place for place in self.owned if place not in self._moved]
            self._assignment.put_back({place: committed.get(place) for place in places})
        self.must_put_back = False
        self._moved.clear()

    def on_moved(self, place: TopicPartition) -> None:
        """The user has moved a partition: it does not go back from there."""
        if self.must_put_back:
            self._moved.add(place)

    async def _committed(
        self, told: pb.GroupHeartbeatResponse, begun: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Return the group's positions; any, if the assignment that they are for is replaced.

        The last owner of a partition may have committed in a transaction that has not ended
        (KIP-447).
        """
        while True:
            try:
                return await self._stable_positions(begun)
            except UnstablePositionsError:
                if self.heartbeats.told is not told:
                    return {}

    async def _stable_positions(
        self, awaited: Collection[TopicPartition]
    ) -> dict[TopicPartition, Position]:
        """Return the group's positions once no transaction changes those of some partitions."""
        return await self._positions.fetch_by_id(
            self._config.group,
            positions_pb2.POSITION_KIND_COMMITTED,
            require_stable=True,
            stable=awaited,
        )

    def _names(self, places: Iterable[TopicPartition]) -> list[PartitionName]:
        return [(self.owned[place], place.partition) for place in places]

    async def _call(self, callback: Callback | None, places: list[PartitionName]) -> None:
        if callback is not None and places:
            done = callback(places)
            if inspect.isawaitable(done):
                await done

    async def close(self) -> None:
        """Commit, give everything up, and leave the group: a static member for a session.

        Ends before `close_timeout_ms`; what that does not suffice for is told by an event.
        """
        limit_s = last_work_s(self._config.close_timeout_ms / 1000)
        self.commits.end_at = host.monotonic_s() + _COMMITS_SHARE * limit_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                try:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LEAVE_SHARE * limit_s):
                            await self._tasks.end()
                    await self._give_back()
                finally:
                    self.commits.cancel()
                    if not limit.expired():
                        await self._leave_in(_LEAVE_SHARE * limit_s)
        except TimeoutError:
            if not limit.expired():
                raise  # Of a callback.
            self._on_not_left(f"close_timeout_ms={self._config.close_timeout_ms} passed")

    async def _leave_in(self, limit_s: float) -> None:
        try:
            with suppress(MillraceError):
                async with asyncio.timeout(limit_s):
                    await self.heartbeats.leave(*self.heartbeats.ids(), for_now=True)
        except TimeoutError:
            self._on_not_left(f"the coordinator did not answer in {limit_s:g} s")

    def _on_not_left(self, error: str) -> None:
        events.LEAVING_FAILED.log(_log, group=self._config.group, error=error)

    async def _give_back(self) -> None:
        if self.heartbeats.is_lost or self._is_silent:
            await self._give_up()
            return
        await self.commits.commit_before_others_own(self.owned)
        await self._call(self._callbacks.on_revoked, self._names(self.owned))
