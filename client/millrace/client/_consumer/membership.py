"""One consumer as a member of its group.

Heartbeats run on the loop, all the time, so a slow user does not lose its membership. A new
assignment is taken where the user polls: then all records that were handed out are done, and what
is revoked can be committed. The member confirms an assignment after that.

Invariants:

- Records of a partition are handed out only while the member owns it: after a session without an
  answer the member hands out nothing, as the group may have given its partitions away (P61, P62).
- The member commits only what it has handed out before the poll that commits.
- It numbers its commits, so that the coordinator knows an attempt that arrives late (P62).
- Where the group begins at the end of a partition, the member commits that end as soon as it knows
  it, and tries again as long as it owns the partition. Without that, the next owner would begin at
  a later end, and skip what came between. An end has a lower number than all other commits of the
  member, so it never replaces one of them, in whatever order their attempts arrive (P62).
- Heartbeats and polls meet in three fields alone: `_told`, `_is_lost` and `_failure`. A poll that
  waits in the middle of an assignment looks at them again, as the member may have lost it.

Source: KIP-848; Kafka's AsyncKafkaConsumer.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol, TypeAlias

from millrace.client import events
from millrace.client._cluster.arguments import log_end
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.coordinators import ANSWER_S, Coordinators
from millrace.client._cluster.positions import KeptPositions
from millrace.client._cluster.wire import error_of
from millrace.client._consumer.counters import ConsumerCounters
from millrace.client._consumer.settings import ConsumerConfig
from millrace.client._threads.logs import Log
from millrace.client._threads.tasks import Tasks, last_work_s
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import (
    Appended,
    ClientError,
    FencedMemberEpochError,
    GroupFullError,
    InstanceIdInUseError,
    MillraceError,
    RequestTimedOutError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnreleasedInstanceIdError,
)
from millrace.core.ids import Offset, TopicId, TopicPartition
from millrace.core.topics import PartitionName
from millrace.proto.v1 import groups_pb2 as pb
from millrace.proto.v1 import positions_pb2
from millrace.runtime import host

_log = Log(__name__)

_ID_BYTES: Final = 16
_PAUSE_S: Final = 0.1
_SESSION_S: Final = 10.0
"""Until the coordinator has said how long a session is."""
_SILENCE_SHARE: Final = 0.2
"""The share of a session after which a silent coordinator is given up: it may have lost its power.
The rest of the session is for the cluster to notice that, and for its successor to answer."""
_SILENCE_S_MIN: Final = 0.5
_END_NUMBER: Final = 1
"""The number of a commit of ends at which the group begins: that of the first commit."""
_END_PAUSE_S_MAX: Final = 5.0
"""The longest pause before such a commit is tried again; it doubles from `_PAUSE_S`."""
_COMMITS_SHARE: Final = 0.6
"""The share of its time to close for the commits of a member that leaves. Its partitions wait a
session, 10 s by default, at most: then others read again what is not committed."""
_LEAVE_SHARE: Final = 0.2
"""For the request to leave after that. A coordinator that does not hear it waits a session."""
_OFTEN_S: Final = 0.05
"""A user that polls again within this time gives heartbeats enough turns of the loop."""
_HEARTBEATS_SHARE: Final = 0.02
"""The share of another user's time that is for heartbeats."""
_HEARTBEATS_S_MAX: Final = 0.02
"""The most of that at once."""

Callback: TypeAlias = Callable[[list[PartitionName]], Awaitable[None] | None]
"""Called with partitions that were assigned, revoked or lost."""


@dataclass(frozen=True, slots=True)
class Callbacks:
    """What the user wants to hear."""

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


@dataclass(frozen=True, slots=True)
class Begun:
    """A partition that a member begins to read.

    Attributes:
        topic: its name.
        position: that the group has committed; None: none.
        is_later: it appeared after the group had begun to read the topic: without a position it is
            read from its start.
    """

    topic: str
    position: Position | None = None
    is_later: bool = False


class Reading(Protocol):
    """What a member needs of its consumer."""

    def begin(self, places: dict[TopicPartition, Begun]) -> None:
        """Read these partitions, too."""

    def end(self, places: Iterable[TopicPartition]) -> None:
        """Read these no more, and drop what was fetched of them."""

    def known_position(self, place: TopicPartition) -> Position | None:
        """Return the position of the next record that is handed out; None: it is not known yet."""

    def tell_gone(
        self, topic: str, topic_id: TopicId, places: Iterable[TopicPartition], error: str
    ) -> None:
        """Log once that a topic is gone whose partitions, among others, are read."""

    def tell_made_again(self, topic: str, topic_id: TopicId) -> None:
        """Log once that the group's positions are of a deleted topic of this name."""

    def wake(self) -> None:
        """Let a poll that waits look again; it asks `Membership.has_work` first."""

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
        counters: ConsumerCounters,
    ) -> None:
        self._config = config
        self._counters = counters
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
        self._former = ""
        """What it was before it lost its place, as long as the group may not know that."""
        self._has_joined = self._has_been_member = False
        self._session_s = _SESSION_S
        self._wait_s = 1.0
        self._heard_at = self._polled_at = self._committed_at = host.monotonic_s()
        self._has_confirmed = asyncio.Event()
        self._has_polled = asyncio.Event()
        self._is_polling = False
        self._has_warned = False  # Of a heartbeat that is refused again and again.
        self._commit_numbers = count(_END_NUMBER + 1)
        self._committing: asyncio.Task[None] | None = None
        self._commits_end_at: float | None = None
        """Set when it is closed: a dead broker must not hold up the program's end."""
        self._begins_at_end = log_end(config.auto_offset_reset) == "end"
        self._ends: dict[TopicPartition, Position | None] = {}
        """Owned partitions of which the group has no position, with the ends at which it begins;
        None: the end is not found yet."""
        self._has_found_end = asyncio.Event()
        self._compared: set[TopicId] = set()
        """Topics without a position that were compared with the deleted ones, of those it owns."""
        self._tasks = Tasks(
            asyncio.get_running_loop(), "member of a group", self._on_unexpected_error
        )
        self._tasks.spawn(self._beat)
        if self._begins_at_end:
            self._tasks.spawn(self._keep_ends)

    def _new_id(self) -> str:
        return host.current.random_bytes(_ID_BYTES).hex()

    def _on_unexpected_error(self, error: BaseException) -> None:
        failure = ClientError(f"a task of the group's member has failed unexpectedly: {error!r}")
        failure.__cause__ = error
        self._failure = failure
        self._reading.wake()

    # --- Heartbeats, all the time ------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            silent_s = host.monotonic_s() - self._polled_at
            if not self._is_polling and silent_s > self._config.max_poll_interval_ms / 1000:
                await self._leave_as_it_is_slow()
                continue
            request = self._heartbeat()
            try:
                # As it was, it would keep its partitions for a session, from itself as well.
                await self._leave_former()
                heard_at, answer = await self._ask(request)
            except (UnknownMemberIdError, FencedMemberEpochError) as error:
                events.MEMBER_LOST.log(_log, group=self._config.group, error=error.message)
                if request.member_id == self._member_id:
                    self._lose()
                if isinstance(error, UnknownMemberIdError):
                    self._former = ""  # The group has removed it.
            except MillraceError as error:
                # Until the session of a member that lost its place has ended, the group counts the
                # lost one, too, so it may have no room for the new one.
                is_taken = isinstance(error, GroupFullError | InstanceIdInUseError)
                may_pass = is_taken and self._has_been_member
                if not error.retriable and not may_pass:
                    self._failure = error
                    self._reading.wake()
                    return
                self._warn(error)
                await asyncio.sleep(_PAUSE_S)
            else:
                if request.member_id != self._member_id:
                    continue  # The member gave itself up meanwhile.
                self._has_joined = self._has_been_member = True
                self._has_warned = False
                self._heard_at = heard_at
                self._session_s = answer.session_timeout_ms / 1000
                self._wait_s = answer.heartbeat_interval_ms / 1000
                if answer.epoch != self._confirmed:
                    await self._wait_until_taken(answer)

    def _warn(self, error: MillraceError) -> None:
        """Log why the member does not get into the group; lost connections say so themselves."""
        is_refused = isinstance(
            error, UnreleasedInstanceIdError | InstanceIdInUseError | GroupFullError
        )
        if is_refused and not self._has_warned:
            self._has_warned = True
            events.MEMBER_WAITS.log(_log, group=self._config.group, error=error.message)

    def _heartbeat(self) -> pb.GroupHeartbeatRequest:
        # A member that was not heard for a while waits for less, as its session goes on meanwhile.
        wait_s = min(max(self._heard_at + self._wait_s - host.monotonic_s(), 0), self._wait_s)
        request = pb.GroupHeartbeatRequest(
            group=self._config.group,
            member_id=self._member_id,
            confirmed=self._confirmed,
            wait_ms=int(wait_s * 1000),
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
        """Return the answer, and since when its session lasts, at the least."""
        asked_at = 0.0

        async def ask(connection: Connection) -> pb.GroupHeartbeatResponse:
            nonlocal asked_at
            if asked_at:  # Another coordinator: hear from it at once, as the session goes on.
                request.wait_ms = 0
            asked_at = host.monotonic_s()
            answer: pb.GroupHeartbeatResponse = await connection.groups.GroupHeartbeat(request)
            if (error := error_of(answer)) is not None:
                self._warn(error)  # At once: attempts go on for as long as a request may take.
            return answer

        def silence_s() -> float:
            answer_s = min(max(_SILENCE_SHARE * self._session_s, _SILENCE_S_MIN), ANSWER_S)
            return answer_s if asked_at else answer_s + request.wait_ms / 1000

        answer = await self._coordinators.ask(self._config.group, ask, silence_s=silence_s)
        return min(asked_at + answer.waited_ms / 1000, host.monotonic_s()), answer

    async def _wait_until_taken(self, answer: pb.GroupHeartbeatResponse) -> None:
        """Let the user's next poll take an assignment; go on with heartbeats soon."""
        # A poll that takes this one already goes on with it: its commits may last for heartbeats.
        if self._told is None or self._told.epoch != answer.epoch:
            self._told = answer
        self._has_confirmed.clear()
        self._reading.wake()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._wait_s):
                await self._has_confirmed.wait()

    def _lose(self) -> None:
        self._former = self._former or self._member_id
        self._is_lost, self._told, self._confirmed = True, None, 0
        self._has_joined = False
        self._member_id = self._new_id()
        self._ends.clear()
        self._reading.wake()

    async def _leave_as_it_is_slow(self) -> None:
        events.MEMBER_SLOW.log(
            _log,
            group=self._config.group,
            max_poll_interval_ms=self._config.max_poll_interval_ms,
        )
        self._has_polled.clear()
        self._lose()  # Before others may own its partitions.
        with suppress(MillraceError):
            await self._leave_former()
        await self._has_polled.wait()

    async def _leave_former(self) -> None:
        """Leave as the member that it was before it lost its place, if it still is one.

        Raises:
            MillraceError: as any request.
        """
        if former := self._former:
            await self._leave(former, for_now=False)
            self._former = ""

    async def _leave(self, *member_ids: str, for_now: bool) -> None:
        request = pb.LeaveGroupRequest(
            group=self._config.group, member_ids=member_ids, for_now=for_now
        )
        await self._coordinators.ask(
            self._config.group, lambda connection: connection.groups.LeaveGroup(request)
        )

    # --- Where the user polls ----------------------------------------------------------------

    async def give_way(self) -> None:
        """Let heartbeats go on, as a user that always finds records may never wait itself.

        One turn of the loop is less than one heartbeat takes. That is enough for a user that polls
        often; another one waits for a small share of the time that it has kept the loop.
        """
        kept_s = host.monotonic_s() - self._polled_at
        share_s = min(kept_s * _HEARTBEATS_SHARE, _HEARTBEATS_S_MAX)
        await asyncio.sleep(share_s if kept_s > _OFTEN_S else 0)

    @property
    def is_due(self) -> bool:
        """Whether a poll has something to do here, beside handing out records."""
        now = host.monotonic_s()
        self._polled_at = now
        self._has_polled.set()
        return self.has_work or self._is_silent(now) or self._must_commit(now)

    @property
    def has_work(self) -> bool:
        """Whether a heartbeat has brought something for the next poll."""
        return self._told is not None or self._is_lost or self._failure is not None

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Note that the user waits in a poll, however long that takes."""
        self._is_polling = True
        try:
            yield
        finally:
            self._is_polling = False
            self._polled_at = host.monotonic_s()

    def _is_silent(self, now: float) -> bool:
        """Whether others may own its partitions by now."""
        return bool(self.owned) and now - self._heard_at > self._session_s

    def _must_commit(self, now: float) -> bool:
        interval_s = self._config.auto_commit_interval_ms / 1000
        is_time = now - self._committed_at >= interval_s
        return self._config.enable_auto_commit and bool(self.owned) and is_time

    async def poll(self) -> None:
        """Do what is due before records are handed out.

        Raises:
            MillraceError: the member cannot join, or a callback raised.
        """
        while True:  # A step may take longer than a session: look at all of it again.
            if self._failure is not None:
                raise self._failure
            if self._is_silent(host.monotonic_s()):
                self._lose()
            if self._is_lost:
                self._is_lost = False
                await self._give_up()
            elif self._told is not None:
                await self._take(self._told)
            else:
                break
        if self._must_commit(host.monotonic_s()) and not self._is_committing:
            self._committed_at = host.monotonic_s()
            # The positions of now: those that this poll hands out are not done (P62).
            positions = self._positions_of(self.owned)
            # Records need not wait for it.
            self._committing = asyncio.create_task(self._commit_by_itself(positions))

    async def _give_up(self) -> None:
        """Stop to read everything, as others may own it."""
        lost = self._names(self.owned)
        self._reading.end(self.owned)
        self.owned = {}
        await self._call(self._callbacks.on_lost or self._callbacks.on_revoked, lost)

    async def _take(self, told: pb.GroupHeartbeatResponse) -> None:
        """Take an assignment; leave it to the next round when it is lost meanwhile."""
        assigned = {
            TopicPartition(TopicId(each.topic_id), partition): each.topic
            for each in told.assigned
            for partition in each.partitions
        }
        revoked = [each for each in self.owned if each not in assigned]
        if revoked:
            self._tell_gone(told)
            await self._commit_before_others_own(revoked)
            if self._told is not told:
                return
            await self._call(self._callbacks.on_revoked, self._names(revoked))
            self._reading.end(revoked)
            for each in revoked:
                del self.owned[each]
                self._ends.pop(each, None)
        # A topic without a name was deleted since.
        begun = {
            each: topic for each, topic in assigned.items() if topic and each not in self.owned
        }
        committed = await self._committed() if begun else {}
        if self._told is not told:
            return
        later = {
            TopicPartition(TopicId(each.topic_id), partition)
            for each in told.assigned
            if each.HasField("later_from")
            for partition in each.partitions
            if partition >= each.later_from
        }
        beginning = {
            each: Begun(topic, committed.get(each), each in later) for each, topic in begun.items()
        }
        self.owned.update(begun)
        if self._begins_at_end:
            self._ends.update(dict.fromkeys(beginning.keys() - committed.keys() - later))
        self._reading.begin(beginning)
        self._confirmed, self._told = told.epoch, None
        self._counters.assignments += 1
        self._look_for_made_again(begun, committed)
        await self._call(self._callbacks.on_assigned, self._names(begun))
        self._has_confirmed.set()

    def _tell_gone(self, told: pb.GroupHeartbeatResponse) -> None:
        """Tell of topics that the group takes away because they are gone: they have no name."""
        for each in told.revoking:
            topic_id = TopicId(each.topic_id)
            names = [topic for place, topic in self.owned.items() if place.topic_id == topic_id]
            if names and not each.topic:
                problem = f"the topic {names[0]!r} was deleted"
                self._reading.tell_gone(names[0], topic_id, self.owned, problem)

    def _look_for_made_again(
        self, begun: dict[TopicPartition, str], committed: Collection[TopicPartition]
    ) -> None:
        """Find topics that begin without any position, as the group's are of a deleted topic.

        In the background, and once for each topic: no record waits for what is only told.
        """
        with_position = {each.topic_id for each in committed}
        new = {
            topic: place.topic_id
            for place, topic in begun.items()
            if place.topic_id not in with_position
        }
        before = with_position - {each.topic_id for each in self.owned}
        if before and not self._compared.issuperset(new.values()):
            self._tasks.spawn(self._tell_made_again, new, before)

    async def _tell_made_again(self, new: dict[str, TopicId], before: Collection[TopicId]) -> None:
        """Tell of those topics whose name a deleted topic with a position had."""
        with suppress(MillraceError):  # It goes on without; a later assignment tries again.
            names = await self._positions.names_before()
            owned = {each.topic_id for each in self.owned}
            for topic_id, name in names.items():
                if topic_id in before and new.get(name) in owned:
                    self._reading.tell_made_again(name, new[name])
            self._compared = (self._compared | set(new.values())) & owned

    def on_end_found(self, place: TopicPartition, end: Offset) -> None:
        """Commit the end of a partition if the group begins there."""
        if place in self._ends and self._ends[place] is None:
            self._ends[place] = Position(end)
            self._has_found_end.set()

    async def _keep_ends(self) -> None:
        """Commit the ends at which the group begins, until it has them."""
        pause_s = _PAUSE_S
        while True:
            await self._has_found_end.wait()
            await asyncio.sleep(0)  # The ends of other partitions are found in the same turn.
            await self._log_failure_of(self._commit_ends(self.owned))
            if any(self._ends.values()):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _END_PAUSE_S_MAX)
            else:
                self._has_found_end.clear()
                pause_s = _PAUSE_S

    async def _commit_ends(self, places: Iterable[TopicPartition]) -> None:
        """Commit those ends of partitions that are found, and that the group lacks.

        Raises:
            MillraceError: as `commit`.
        """
        ends = {each: end for each in places if (end := self._ends.get(each)) is not None}
        await self._store(ends, _END_NUMBER)
        for each, end in ends.items():
            if self._ends.get(each) is end:  # And not of a later assignment.
                del self._ends[each]

    async def _committed(self) -> dict[TopicPartition, Position]:
        return await self._positions.fetch_by_id(
            self._config.group, positions_pb2.POSITION_KIND_COMMITTED
        )

    @property
    def _is_committing(self) -> bool:
        return self._committing is not None and not self._committing.done()

    async def _commit_by_itself(self, positions: dict[TopicPartition, Position]) -> None:
        """Commit for a user who does not; what fails is tried again with the next commit."""
        before, current = self._committing, asyncio.current_task()
        if before is not None and before is not current:
            await asyncio.wait([before], timeout=self._left_s())  # Its positions are older.
        self._committed_at = host.monotonic_s()
        await self._log_failure_of(self.commit(positions))

    async def _commit_before_others_own(self, places: Collection[TopicPartition]) -> None:
        """Commit what the next owners of partitions need, in the time of one request at most."""
        limit_s = self._config.request_timeout_ms / 1000
        try:
            async with asyncio.timeout(limit_s):
                if self._config.enable_auto_commit:
                    await self._commit_by_itself(self._positions_of(places))
                await self._log_failure_of(self._commit_ends(places))
        except TimeoutError:
            self._counters.commit_failures[RequestTimedOutError.name()] += 1
            problem = f"the group's coordinator did not answer in {limit_s:g} s"
            events.COMMIT_FAILED.log(_log, group=self._config.group, error=problem)

    async def _log_failure_of(self, commit: Awaitable[object]) -> None:
        try:
            await commit
        except (StaleMemberEpochError, UnknownMemberIdError):
            pass  # The next poll is told.
        except MillraceError as error:
            events.COMMIT_FAILED.log(_log, group=self._config.group, error=error.message)

    def _left_s(self) -> float | None:
        """Return how long a commit may last; None: as long as any request."""
        if self._commits_end_at is None:
            return None
        return max(self._commits_end_at - host.monotonic_s(), 0)

    async def commit_read(self, places: Iterable[TopicPartition]) -> None:
        """Commit how far owned partitions were handed out, except in topics that are gone.

        Raises:
            MillraceError: as `commit`.
        """
        await self.commit(self._positions_of(places))

    def _positions_of(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return how far owned partitions were handed out, as far as that is known."""
        return {
            each: position
            for each in places
            if (position := self._reading.known_position(each)) is not None
        }

    async def commit(self, positions: dict[TopicPartition, Position]) -> set[TopicPartition]:
        """Commit positions of owned partitions; return those that are left out, as they are gone.

        Raises:
            MillraceError: they are not stored, or may not be.
        """
        gone = await self._store(positions, next(self._commit_numbers))
        for each in positions:
            self._ends.pop(each, None)
        return gone

    async def _store(
        self, positions: dict[TopicPartition, Position], number: int
    ) -> set[TopicPartition]:
        if not positions:
            return set()
        begun = host.monotonic_s()
        try:
            async with asyncio.timeout(self._left_s()):
                gone = await self._positions.commit_as_member(
                    self._config.group,
                    positions,
                    member_id=self._member_id,
                    epoch=self._confirmed,  # In which it reads; a later one is not taken yet.
                    number=number,
                )
        except TimeoutError as error:
            self._counters.commit_failures[RequestTimedOutError.name()] += 1
            raise RequestTimedOutError(
                "the group's coordinator did not answer in the time that "
                f"close_timeout_ms={self._config.close_timeout_ms} leaves for commits",
                appended=Appended.MAYBE,
            ) from error
        except MillraceError as error:
            self._counters.commit_failures[error.name()] += 1
            raise
        self._counters.commit_seconds.observe(host.monotonic_s() - begun)
        return gone

    def _names(self, places: Iterable[TopicPartition]) -> list[PartitionName]:
        return [(self.owned[each], each.partition) for each in places]

    async def _call(self, callback: Callback | None, places: list[PartitionName]) -> None:
        if callback is not None and places:
            with self._reading.lent():
                done = callback(places)
                if inspect.isawaitable(done):
                    await done

    async def close(self) -> None:
        """Commit, give everything up, and leave the group: a static member for a session.

        Ends before `close_timeout_ms`; what that does not suffice for is told by an event.
        """
        limit_s = last_work_s(self._config.close_timeout_ms / 1000)
        self._commits_end_at = host.monotonic_s() + _COMMITS_SHARE * limit_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                try:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LEAVE_SHARE * limit_s):
                            await self._tasks.end()
                    await self._give_back()
                finally:
                    if self._committing is not None:
                        self._committing.cancel()
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
                    await self._leave(*self._ids(), for_now=True)
        except TimeoutError:
            self._on_not_left(f"the coordinator did not answer in {limit_s:g} s")

    def _on_not_left(self, error: str) -> None:
        events.LEAVING_FAILED.log(_log, group=self._config.group, error=error)

    async def _give_back(self) -> None:
        if self._is_lost or self._is_silent(host.monotonic_s()):
            await self._give_up()
            return
        await self._commit_before_others_own(self.owned)
        await self._call(self._callbacks.on_revoked, self._names(self.owned))

    def _ids(self) -> Iterator[str]:
        """Yield the member ids under which the group may know it."""
        yield from filter(None, (self._former, self._member_id))
