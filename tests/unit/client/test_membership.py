"""A member between its heartbeats and its user's polls, with a coordinator that the test plays."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.virtual_loop import in_virtual_time

from millrace.client._cluster.cluster import Cluster
from millrace.client._consumer.assignment import Assignment, Begun
from millrace.client._consumer.counters import ConsumerCounters
from millrace.client._consumer.membership import Callback, Callbacks, Membership
from millrace.client._consumer.settings import ConsumerConfig
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import (
    ClientError,
    ConnectionFailedError,
    GroupFullError,
    InvalidGroupError,
    MillraceError,
    NotLeaderError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
    UnstablePositionsError,
)
from millrace.core.ids import Offset, TopicId, TopicPartition
from millrace.core.settings import parse
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import cluster_pb2, common_pb2, groups_pb2, positions_pb2
from millrace.runtime import host

TOPIC_ID = TopicId(b"t" * 16)
DEADLINE_S = 10


def place(number: int) -> TopicPartition:
    return TopicPartition(TOPIC_ID, number)


def given(
    epoch: int, *partitions: int, session_ms: int = 5_000, later_from: int | None = None
) -> groups_pb2.GroupHeartbeatResponse:
    """An assignment."""
    assigned = [
        groups_pb2.TopicPartitions(
            topic_id=TOPIC_ID, partitions=partitions, topic="t", later_from=later_from
        )
    ]
    return groups_pb2.GroupHeartbeatResponse(
        epoch=epoch,
        assigned=assigned if partitions else [],
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=50,
    )


class Coordinator:
    """Answers as `decide` says; also the cluster, and its only connection."""

    timeout_s = 5.0

    def __init__(self) -> None:
        self.decide: Callable[[groups_pb2.GroupHeartbeatRequest], Any] = lambda _: given(1, 0)
        self.heartbeats: list[groups_pb2.GroupHeartbeatRequest] = []
        self.left: list[str] = []
        self.gone: set[TopicId] = set()
        self.deleted: dict[TopicId, str] = {}
        """Deleted topics in which the group has a position."""
        self.committed: dict[int, int] = {}
        self.commits: list[list[int]] = []
        self.list_refusal: MillraceError | None = None
        self.lists_asked = 0
        self.may_list = asyncio.Event()
        self.may_list.set()
        self.numbers: list[int] = []
        self.commit_refusals: list[MillraceError] = []
        self.fetch_refusals: list[MillraceError] = []
        self.are_stable: list[bool] = []
        """Whether each look-up of positions wanted those of open transactions to be over."""
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.hears = asyncio.Event()
        self.hears.set()
        self.takes_requests = asyncio.Event()
        self.takes_requests.set()
        self.groups = self.positions = self.cluster = self

    async def call(
        self, method: Callable[[Any], Awaitable[Any]], *, attempt_s: Callable[[], float]
    ) -> Any:
        try:
            async with asyncio.timeout(attempt_s()):
                return await method(self)
        except TimeoutError:
            raise ConnectionFailedError("no broker answered") from None

    def ask_another(self, dead: str) -> None:
        pass  # It is the only one.

    async def GroupHeartbeat(self, request: groups_pb2.GroupHeartbeatRequest) -> Any:
        copy = groups_pb2.GroupHeartbeatRequest()
        copy.CopyFrom(request)
        self.heartbeats.append(copy)
        await self.hears.wait()
        answer = self.decide(copy)
        if isinstance(answer, Exception):
            return groups_pb2.GroupHeartbeatResponse(error=error_to_wire(cast(Any, answer)))
        if answer.epoch == request.confirmed:
            await asyncio.sleep(0.02)  # As a long poll, but shorter.
        return answer

    async def LeaveGroup(self, request: groups_pb2.LeaveGroupRequest) -> Any:
        await self.takes_requests.wait()
        self.left += request.member_ids
        return groups_pb2.LeaveGroupResponse()

    async def FetchPositions(self, request: Any) -> Any:
        await self.may_answer.wait()
        self.are_stable.append(request.require_stable)
        if self.fetch_refusals:
            error = error_to_wire(self.fetch_refusals.pop(0))
            return positions_pb2.FetchPositionsResponse(error=error)
        return positions_pb2.FetchPositionsResponse(
            positions=[
                positions_pb2.Position(
                    topic_partition=common_pb2.TopicPartition(topic_id=TOPIC_ID, partition=number),
                    offset=offset,
                )
                for number, offset in self.committed.items()
            ]
            + [
                positions_pb2.Position(
                    topic_partition=common_pb2.TopicPartition(topic_id=topic_id, partition=0),
                    offset=99,
                )
                for topic_id in self.deleted
            ]
        )

    async def ListDeletedTopics(self, request: object) -> Any:
        self.lists_asked += 1
        await self.may_list.wait()
        if self.list_refusal is not None:
            raise self.list_refusal
        topics = [
            cluster_pb2.DeletedTopic(topic_id=topic_id, name=name)
            for topic_id, name in self.deleted.items()
        ]
        return cluster_pb2.ListDeletedTopicsResponse(topics=topics)

    async def topic(self, name: str) -> SimpleNamespace:
        return SimpleNamespace(topic_id=TOPIC_ID)

    async def names_of(self, topic_ids: set[TopicId]) -> dict[TopicId, str]:
        return dict.fromkeys(topic_ids - self.gone, "t")

    async def CommitPositions(self, request: positions_pb2.CommitPositionsRequest) -> Any:
        await self.takes_requests.wait()
        if self.commit_refusals:
            error = self.commit_refusals.pop(0)
            return positions_pb2.CommitPositionsResponse(error=error_to_wire(error))
        if any(position.topic_partition.topic_id in self.gone for position in request.positions):
            gone = UnknownTopicOrPartitionError("there is no such partition")
            return positions_pb2.CommitPositionsResponse(error=error_to_wire(gone))
        self.commits.append([position.offset for position in request.positions])
        self.numbers.append(request.number)
        return positions_pb2.CommitPositionsResponse()


class Reading:
    """What the member lets its consumer read."""

    def __init__(self) -> None:
        self.read: dict[TopicPartition, Position | None] = {}
        self.begun: dict[TopicPartition, Begun] = {}
        self.wakes = 0
        self.gone: list[str] = []
        self.gone_at = 0.0
        self.unread: set[TopicPartition] = set()
        """Their topic was gone."""
        self.made_again: list[str] = []
        self.undecided: set[TopicPartition] = set()
        """Records of them were handed out, and are not committed."""

    def begin(self, places: Mapping[TopicPartition, Begun]) -> None:
        self.begun.update(places)
        self.read.update({place: begun.position for place, begun in places.items()})

    def end(self, places: Any) -> None:
        for place in list(places):
            del self.read[place]
            self.unread.discard(place)

    def known_position(self, place: TopicPartition) -> Position | None:
        return self.read.get(place)

    def is_gone(self, place: TopicPartition) -> bool:
        return place in self.unread

    def is_undecided(self, places: Iterable[TopicPartition]) -> bool:
        return not self.undecided.isdisjoint(places)

    def tell_gone(self, topic: str, *_: object) -> None:
        self.gone.append(topic)

    def tell_made_again(self, topic: str, topic_id: TopicId) -> None:
        self.made_again.append(topic)

    def put_back(self, positions: Mapping[TopicPartition, Position | None]) -> None:
        self.read.update(positions)

    def wake(self) -> None:
        self.wakes += 1


class Story:
    """One member with its coordinator."""

    def __init__(
        self,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        **settings: Any,
    ) -> None:
        self.coordinator = Coordinator()
        self.reading = Reading()
        config = parse(ConsumerConfig, {"group": "g", "enable_auto_commit": False, **settings})
        self.member = Membership(
            cast(Cluster, self.coordinator),
            config,
            cast(Assignment, self.reading),
            topics=["t"],
            pattern="",
            callbacks=Callbacks(on_assigned=on_assigned, on_revoked=on_revoked),
            counters=ConsumerCounters(),
        )

    async def until(self, condition: Callable[[], object], *, polls: bool = False) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                if polls and self.member.is_due:
                    await self.member.poll()
                await asyncio.sleep(0.005)

    async def close(self) -> None:
        await self.member.close()


@asynccontextmanager
async def a_story(**settings: Any) -> AsyncIterator[Story]:
    made = Story(**settings)
    try:
        yield made
    finally:
        await made.close()


async def test_a_member_reads_what_it_is_given_from_where_the_group_has_committed() -> None:
    async with a_story() as it:
        it.coordinator.committed = {0: 7}
        it.coordinator.decide = lambda _: given(1, 0, 1)
        await it.until(lambda: it.reading.read, polls=True)
        assert it.reading.read == {place(0): Position(7, 0), place(1): None}
        await it.until(lambda: it.coordinator.heartbeats[-1].confirmed == 1)


async def test_a_topic_that_is_gone_for_the_member_alone_is_read_anew() -> None:
    """It was brought back before the coordinator heard that it was deleted."""
    async with a_story() as it:
        it.coordinator.committed = {0: 7}
        await it.until(lambda: it.reading.read, polls=True)
        it.coordinator.committed = {0: 9}
        it.reading.unread = {place(0)}
        it.reading.gone_at = host.monotonic_s() - 9
        assert it.member.due_at > host.monotonic_s()
        it.reading.gone_at -= 2
        await it.until(lambda: it.reading.read == {place(0): Position(9, 0)}, polls=True)
        assert not it.reading.unread
        assert not it.member.is_due


async def test_an_assignment_that_is_lost_while_it_is_taken_is_neither_read_nor_confirmed() -> None:
    async with a_story() as it:
        coordinator, member = it.coordinator, it.member
        coordinator.may_answer.clear()
        await it.until(lambda: member.heartbeats.has_work)
        first = coordinator.heartbeats[0].member_id
        taking = asyncio.create_task(member.poll())
        coordinator.decide = lambda request: (
            UnknownMemberIdError("gone") if request.member_id == first else given(1, 1)
        )
        await it.until(lambda: coordinator.heartbeats[-1].member_id != first)
        await it.until(lambda: member.heartbeats.told is not None)
        coordinator.may_answer.set()
        await taking
        assert set(it.reading.read) == {place(1)}
        await it.until(lambda: coordinator.heartbeats[-1].confirmed == 1)
        assert set(it.reading.read) == {place(1)}


async def test_a_session_that_ends_while_an_assignment_is_taken_ends_the_reading() -> None:
    async with a_story() as it:
        coordinator, member = it.coordinator, it.member
        coordinator.decide = lambda _: given(1, 0, session_ms=300)
        await it.until(lambda: it.reading.read, polls=True)
        coordinator.may_answer.clear()
        coordinator.decide = lambda _: given(2, 0, 1, session_ms=300)
        await it.until(lambda: member.heartbeats.has_work)
        taking = asyncio.create_task(member.poll())
        coordinator.hears.clear()
        await it.until(lambda: member._is_silent)
        coordinator.may_answer.set()
        await taking
        assert not it.reading.read, "others may own what it had"
        coordinator.hears.set()


@dataclass
class Broker:
    """Coordinates the group or names the coordinator; without power it is silent."""

    address: str
    brokers: "Brokers"
    has_power: bool = True

    @property
    def groups(self) -> "Broker":
        return self

    @property
    def positions(self) -> "Broker":
        return self

    async def GroupHeartbeat(self, request: groups_pb2.GroupHeartbeatRequest) -> Any:
        if not self.has_power:
            await asyncio.Event().wait()
        leader = self.brokers.leader
        if leader is not self:
            error = error_to_wire(NotLeaderError("it is elsewhere"))
            error.leader.address, error.leader.broker_id = leader.address, 1
            error.leader.leader_epoch = self.brokers.epoch
            return groups_pb2.GroupHeartbeatResponse(error=error)
        wait_s = request.wait_ms / 1000 if request.confirmed else 0.0
        if wait_s:
            self.brokers.waits.set()
        await asyncio.sleep(wait_s)
        if not self.has_power:
            await asyncio.Event().wait()
        answer = given(1, 0, session_ms=10_000)
        answer.heartbeat_interval_ms = 3_000
        answer.waited_ms = round(wait_s * 1000) if self.brokers.tells_wait else 0
        return answer

    async def FetchPositions(self, request: object) -> Any:
        return positions_pb2.FetchPositionsResponse()

    async def LeaveGroup(self, request: object) -> Any:
        return groups_pb2.LeaveGroupResponse()


class Brokers(Cluster):
    """Brokers of which one coordinates the group; there are no connections."""

    def __init__(self, *, tells_wait: bool = True) -> None:
        self.all = [Broker(f"{name}:1", self) for name in "abc"]
        super().__init__([broker.address for broker in self.all], client_id="c")
        self.leader, self.epoch = self.all[0], 1
        self.tells_wait = tells_wait
        self.waits = asyncio.Event()

    async def connection(self, address: str) -> Any:
        return next(broker for broker in self.all if broker.address == address)

    async def on(self, connection: Any, method: Callable[[Any], Awaitable[Any]]) -> Any:
        return await method(connection)


@pytest.mark.parametrize(
    ("lost", "tells_wait"),
    [(1, True), (2, True), (1, False)],
    ids=["alone", "with another broker", "of the release before"],
)
@pytest.mark.parametrize("loss_s", [0.1, 0.8, 1.5, 2.2, 2.9], ids=str)
@in_virtual_time
async def test_a_coordinator_that_loses_its_power_at_any_moment_ends_no_session(
    loss_s: float, lost: int, tells_wait: bool
) -> None:
    """The group is idle: each heartbeat waits to its end. Others know of it after 4.5 s."""

    brokers, reading = Brokers(tells_wait=tells_wait), Reading()
    member = Membership(
        brokers,
        parse(ConsumerConfig, {"group": "g", "enable_auto_commit": False}),
        cast(Assignment, reading),
        topics=["t"],
        pattern="",
        callbacks=Callbacks(),
        counters=ConsumerCounters(),
    )

    async def read(seconds: float) -> None:
        until = host.monotonic_s() + seconds
        while host.monotonic_s() < until:
            if member.is_due:
                await member.poll()
            assert reading.read or not brokers.waits.is_set(), "its session has ended"
            await asyncio.sleep(0.05)

    await read(5)
    brokers.waits.clear()
    await brokers.waits.wait()  # A heartbeat has just begun to wait.
    await read(loss_s)
    for broker in brokers.all[:lost]:
        broker.has_power = False
    await read(4.5)
    brokers.leader, brokers.epoch = brokers.all[lost], 2
    await read(20)
    await member.close()


async def test_a_member_that_gave_itself_up_leaves_before_it_joins_again() -> None:
    """Else a ghost would keep its partitions for a session, and its instance id."""

    async with a_story() as it:
        coordinator, member = it.coordinator, it.member
        coordinator.decide = lambda _: given(1, 0, session_ms=300)
        await it.until(lambda: it.reading.read, polls=True)
        first = coordinator.heartbeats[0].member_id
        coordinator.hears.clear()  # Nobody answers, for longer than a session.
        await it.until(lambda: member._is_silent)
        await it.until(lambda: not it.reading.read, polls=True)
        seen = len(coordinator.heartbeats)
        coordinator.hears.set()
        await it.until(lambda: it.reading.read, polls=True)
        assert coordinator.left == [first]
        later = coordinator.heartbeats[seen:]
        again = next(heartbeat for heartbeat in later if heartbeat.HasField("member"))
        assert again.member_id != first


async def test_a_member_that_the_group_has_removed_need_not_leave() -> None:
    async with a_story() as it:
        coordinator = it.coordinator
        await it.until(lambda: it.reading.read, polls=True)
        first = coordinator.heartbeats[0].member_id
        coordinator.decide = lambda request: (
            UnknownMemberIdError("gone") if request.member_id == first else given(1, 0)
        )
        await it.until(lambda: coordinator.heartbeats[-1].member_id != first, polls=True)
        await it.until(lambda: it.reading.read, polls=True)
        assert coordinator.left == []


async def test_a_member_that_polls_too_seldom_gives_up_before_it_leaves() -> None:
    async with a_story(max_poll_interval_ms=1000) as it:
        await it.until(lambda: it.reading.read, polls=True)
        first = it.coordinator.heartbeats[0].member_id
        await it.until(lambda: it.coordinator.left)
        assert it.coordinator.left == [first]
        assert it.member.heartbeats.is_lost, "the next poll hands nothing out"
        it.coordinator.decide = lambda _: given(1)
        await it.until(lambda: not it.reading.read, polls=True)


async def test_a_user_that_waits_in_a_poll_does_poll() -> None:
    async with a_story(max_poll_interval_ms=1000) as it:
        await it.until(lambda: it.reading.read, polls=True)
        with it.member.heartbeats.polling():
            await it.until(lambda: len(it.coordinator.heartbeats) > 60)
        assert it.coordinator.left == []


async def test_who_lost_its_place_waits_for_it_in_a_full_group_and_a_stranger_is_told() -> None:
    async with a_story() as it:
        coordinator = it.coordinator
        await it.until(lambda: it.reading.read, polls=True)
        first = coordinator.heartbeats[0].member_id
        coordinator.decide = lambda request: (
            UnknownMemberIdError("gone") if request.member_id == first else GroupFullError("full")
        )
        await it.until(lambda: not it.reading.read, polls=True)
        coordinator.decide = lambda _: given(1, 2)
        await it.until(lambda: set(it.reading.read) == {place(2)}, polls=True)

    async with a_story() as it:
        it.coordinator.decide = lambda _: GroupFullError("full")
        with pytest.raises(GroupFullError):
            await it.until(lambda: False, polls=True)


async def test_what_is_refused_for_good_is_raised_by_the_poll() -> None:
    async with a_story() as it:
        it.coordinator.decide = lambda _: InvalidGroupError("no")
        with pytest.raises(InvalidGroupError):
            await it.until(lambda: False, polls=True)
        assert it.reading.wakes


async def test_a_poll_commits_nothing_of_what_it_hands_out_itself() -> None:
    async with a_story(enable_auto_commit=True, auto_commit_interval_ms=500) as it:
        await it.until(lambda: it.reading.read, polls=True)
        it.reading.read[place(0)] = Position(5, 0)
        await it.until(lambda: it.member.is_due)
        await it.member.poll()
        it.reading.read[place(0)] = Position(9, 0)  # The same poll has handed out four records.
        await it.until(lambda: it.coordinator.commits)
        assert it.coordinator.commits == [[5]]


async def test_a_dead_coordinator_holds_up_no_close_for_ten_seconds() -> None:
    failed: list[str] = []

    async def commit(places: object) -> None:
        try:
            await it.member.commits.commit({place(0): Position(5)})
        except MillraceError as error:
            failed.append(error.name())

    it = Story(on_revoked=commit, enable_auto_commit=True)
    await it.until(lambda: it.reading.read, polls=True)
    it.reading.read[place(0)] = Position(5, 0)
    it.coordinator.takes_requests.clear()
    async with asyncio.timeout(10):
        await it.close()
    assert failed == ["REQUEST_TIMED_OUT"]


async def test_partitions_that_came_later_begin_at_their_start_unless_a_position_is_committed() -> (
    None
):
    async with a_story() as it:
        it.coordinator.committed = {3: 7}
        it.coordinator.decide = lambda _: given(1, 0, 1, 2, 3, later_from=2)
        await it.until(lambda: it.reading.read, polls=True)
        later = {place.partition: begun.is_later for place, begun in it.reading.begun.items()}
        assert later == {0: False, 1: False, 2: True, 3: True}
        assert it.reading.begun[place(3)].position == Position(7, 0)


async def test_a_member_commits_the_ends_at_which_its_group_begins_at_once_and_once() -> None:
    async with a_story(auto_offset_reset="latest") as it:
        it.coordinator.committed = {0: 7}
        it.coordinator.decide = lambda _: given(1, 0, 1, 2, 3, later_from=3)
        await it.until(lambda: it.reading.read, polls=True)
        for number in range(4):
            it.member.commits.on_end_found(place(number), Offset(10 + number))
        await it.until(lambda: it.coordinator.commits)
        it.member.commits.on_end_found(place(1), Offset(20))  # The user has moved to the end.
        await it.member.commits.commit({place(1): Position(15)})
        assert it.coordinator.commits == [[11, 12], [15]]


async def test_an_end_is_not_committed_over_a_later_position() -> None:
    async with a_story(auto_offset_reset="latest") as it:
        await it.until(lambda: it.reading.read, polls=True)
        it.member.commits.on_end_found(place(0), Offset(10))
        await it.member.commits.commit({place(0): Position(15)})
        it.coordinator.decide = lambda _: given(2, 0, 1)
        await it.until(lambda: len(it.reading.read) == 2, polls=True)
        it.member.commits.on_end_found(place(1), Offset(20))
        await it.until(lambda: len(it.coordinator.commits) == 2)
        assert it.coordinator.commits == [[15], [20]]


async def test_an_end_that_is_found_after_a_commit_is_not_committed() -> None:
    async with a_story(auto_offset_reset="latest") as it:
        it.coordinator.decide = lambda _: given(1, 0, 1)
        await it.until(lambda: it.reading.read, polls=True)
        await it.member.commits.commit({place(0): Position(5)})
        it.member.commits.on_end_found(place(0), Offset(10))
        it.member.commits.on_end_found(place(1), Offset(20))
        await it.until(lambda: len(it.coordinator.commits) == 2)
        assert it.coordinator.commits == [[5], [20]]


async def test_an_attempt_to_commit_an_end_replaces_no_later_position_when_it_arrives_late() -> (
    None
):
    async with a_story(auto_offset_reset="latest") as it:
        await it.until(lambda: it.reading.read, polls=True)
        it.member.commits.on_end_found(place(0), Offset(10))
        it.coordinator.commit_refusals = [InvalidGroupError("no")]
        with pytest.raises(InvalidGroupError):
            await it.member.commits.commit(
                {place(0): Position(15)}
            )  # It may be stored all the same.
        await it.until(lambda: it.coordinator.commits)
        await it.member.commits.commit({place(0): Position(16)})
        assert it.coordinator.commits == [[10], [16]]
        assert it.coordinator.numbers == [1, 3], "the end counts as older than the one that failed"


async def test_the_commit_of_an_end_is_tried_again_and_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_story(auto_offset_reset="latest") as it:
        await it.until(lambda: it.reading.read, polls=True)
        it.coordinator.commit_refusals = [InvalidGroupError("not now")] * 2
        it.member.commits.on_end_found(place(0), Offset(10))
        await it.until(lambda: it.coordinator.commits)
        assert it.coordinator.commits == [[10]]
    assert caplog.text.count("not now") == 2


async def test_an_unexpected_error_of_the_commit_of_an_end_is_raised_by_the_poll() -> None:
    async with a_story(auto_offset_reset="latest") as it:
        it.coordinator.decide = lambda _: given(1, 0, 1)
        await it.until(lambda: it.reading.read, polls=True)
        it.coordinator.commit_refusals = [cast(MillraceError, object())]
        it.member.commits.on_end_found(place(0), Offset(10))
        with pytest.raises(ClientError, match="unexpectedly: AttributeError"):
            await it.until(lambda: False, polls=True)


@pytest.mark.parametrize("is_lost", [False, True], ids=["revoked", "lost"])
async def test_an_end_is_forgotten_with_its_partition(is_lost: bool) -> None:
    async with a_story(auto_offset_reset="latest") as it:
        coordinator = it.coordinator
        await it.until(lambda: it.reading.read, polls=True)
        first = coordinator.heartbeats[0].member_id
        coordinator.commit_refusals = [InvalidGroupError("no")] * 1000
        it.member.commits.on_end_found(place(0), Offset(10))
        await it.until(lambda: len(coordinator.commit_refusals) < 1000)
        coordinator.decide = lambda request: (
            UnknownMemberIdError("gone")
            if is_lost and request.member_id == first
            else given(2, session_ms=5_000)
        )
        await it.until(lambda: not it.reading.read, polls=True)
        coordinator.committed = {0: 50}  # By the owner between.
        coordinator.commit_refusals = []
        coordinator.decide = lambda _: given(3, 0, 1)
        await it.until(lambda: len(it.reading.read) == 2, polls=True)
        it.member.commits.on_end_found(place(1), Offset(20))
        await it.until(lambda: coordinator.commits)
        assert coordinator.commits == [[20]]


async def test_a_revoked_partition_has_its_end_committed_before_another_member_has_it() -> None:
    async with a_story(auto_offset_reset="latest") as it:
        await it.until(lambda: it.reading.read, polls=True)
        it.coordinator.decide = lambda _: given(2)
        await it.until(lambda: it.member.heartbeats.has_work)
        it.member.commits.on_end_found(place(0), Offset(10))
        await it.member.poll()
        assert [10] in it.coordinator.commits


@in_virtual_time
async def test_revoked_partitions_wait_for_a_silent_coordinator_for_one_request_at_most(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The member has two commits to make, and one from before may be under way."""

    limits: Any = {"request_timeout_ms": 5_000, "auto_commit_interval_ms": 100}
    it = Story(auto_offset_reset="latest", enable_auto_commit=True, **limits)
    coordinator, member = it.coordinator, it.member
    coordinator.decide = lambda _: given(1, 0, 1, session_ms=60_000)
    await it.until(lambda: it.reading.read, polls=True)
    coordinator.takes_requests.clear()
    it.reading.read[place(0)] = Position(5, 0)
    await asyncio.sleep(0.2)
    await it.until(lambda: member.commits.is_committing, polls=True)
    member.commits.on_end_found(place(1), Offset(10))
    coordinator.decide = lambda _: given(2, session_ms=60_000)
    await it.until(lambda: member.heartbeats.has_work)
    begun = host.monotonic_s()
    await member.poll()
    assert host.monotonic_s() - begun <= 5.001
    assert not it.reading.read
    coordinator.takes_requests.set()
    await it.close()
    assert "5 s" in caplog.text


async def test_a_member_with_a_commit_under_way_is_not_due_before_another_interval() -> None:
    """Else a poll that waits until it is due would not wait at all."""
    it = Story(enable_auto_commit=True, auto_commit_interval_ms=200)
    coordinator, member = it.coordinator, it.member
    coordinator.committed = {0: 7}
    coordinator.decide = lambda _: given(1, 0, session_ms=60_000)
    coordinator.takes_requests.clear()
    await it.until(lambda: member.commits.is_committing, polls=True)
    await it.until(lambda: member.is_due)
    await member.poll()
    assert member.commits.is_committing
    assert not member.is_due
    coordinator.takes_requests.set()
    await it.close()


@pytest.mark.parametrize("commits", [False, True], ids=["by hand", "by itself"])
async def test_a_member_that_closes_commits_the_ends_that_the_group_lacks(commits: bool) -> None:
    it = Story(auto_offset_reset="latest", enable_auto_commit=commits)
    await it.until(lambda: it.reading.read, polls=True)
    it.coordinator.commit_refusals = [InvalidGroupError("not now")]
    it.member.commits.on_end_found(place(0), Offset(10))
    await it.until(lambda: not it.coordinator.commit_refusals)
    await it.close()
    assert it.coordinator.commits == [[10]]


async def test_without_a_reset_to_the_end_a_member_commits_no_end() -> None:
    async with a_story() as it:
        await it.until(lambda: it.reading.read, polls=True)
        it.member.commits.on_end_found(place(0), Offset(10))
        await it.close()
        assert not it.coordinator.commits


async def test_what_a_group_takes_away_with_its_topic_is_told_and_a_moved_partition_is_not() -> (
    None
):
    async with a_story() as it:
        it.coordinator.decide = lambda _: given(1, 0, 1)
        await it.until(lambda: it.reading.read, polls=True)
        for epoch, topic in ((2, "t"), (3, "")):
            left = range(3 - epoch)

            def decide(_: object, epoch: int = epoch, topic: str = topic, left: Any = left) -> Any:
                answer = given(epoch, *left)
                answer.revoking.add(topic_id=TOPIC_ID, partitions=[3 - epoch], topic=topic)
                return answer

            it.coordinator.decide = decide
            await it.until(lambda left=left: len(it.reading.read) == len(left), polls=True)  # type: ignore[misc]
            assert it.reading.gone == ([] if topic else ["t"])


@pytest.mark.parametrize(
    ("committed", "deleted", "refusal", "told"),
    [
        ({}, "t", None, ["t"]),
        ({0: 7}, "t", None, []),
        ({0: 7, 1: 8}, "t", None, []),
        ({}, "another", None, []),
        ({}, "t", ConnectionFailedError("no answer"), []),
    ],
    ids=["no position", "one position", "all positions", "another topic", "an error"],
)
async def test_a_group_whose_positions_are_of_a_deleted_topic_of_the_name_is_told(
    committed: dict[int, int], deleted: str, refusal: MillraceError | None, told: list[str]
) -> None:
    async with a_story() as it:
        it.coordinator.committed = committed
        it.coordinator.deleted = {TopicId(b"d" * 16): deleted}
        it.coordinator.list_refusal = refusal
        it.coordinator.decide = lambda _: given(1, 0, 1)
        await it.until(lambda: it.reading.read, polls=True)
        if not committed:
            await it.until(lambda: it.coordinator.lists_asked)
        await asyncio.sleep(0)
        assert it.reading.made_again == told


async def test_no_record_waits_for_what_is_told_of_deleted_topics_which_are_compared_once() -> None:
    async with a_story() as it:
        coordinator = it.coordinator
        coordinator.deleted = {TopicId(b"d" * 16): "t"}
        coordinator.may_list.clear()
        coordinator.decide = lambda _: given(1, 0)
        await it.until(lambda: it.reading.read, polls=True)
        await it.until(lambda: coordinator.heartbeats[-1].confirmed == 1)
        coordinator.may_list.set()
        await it.until(lambda: it.reading.made_again)
        coordinator.decide = lambda _: given(2, 0, 1)
        await it.until(lambda: coordinator.heartbeats[-1].confirmed == 2, polls=True)
        assert coordinator.lists_asked == 1


async def test_a_member_that_is_closed_waits_for_no_list_of_deleted_topics() -> None:
    it = Story()
    it.coordinator.deleted = {TopicId(b"d" * 16): "t"}
    it.coordinator.may_list.clear()
    await it.until(lambda: it.coordinator.lists_asked, polls=True)
    async with asyncio.timeout(3):
        await it.close()
    assert it.reading.made_again == []


async def test_a_commit_of_everything_leaves_out_topics_that_are_gone() -> None:
    async with a_story() as it:
        it.coordinator.committed = {0: 7, 1: 8}
        it.coordinator.decide = lambda _: given(1, 0, 1)
        await it.until(lambda: it.reading.read, polls=True)
        it.coordinator.gone = {TOPIC_ID}
        async with asyncio.timeout(3):
            left_out = await it.member.commits.commit_read(it.member.owned)
            assert left_out == {place(0), place(1)}
            assert await it.member.commits.commit({place(0): Position(9)}) == {place(0)}
        assert it.coordinator.commits == []


# Transactions that commit for the member (T18).


async def test_no_partition_is_given_up_until_the_transaction_has_ended() -> None:
    """What was handed out and is not committed yet would be read by the next owner, too."""
    async with a_story() as it:
        it.coordinator.decide = lambda _: given(1, 0, 1)
        await it.until(lambda: it.reading.read, polls=True)
        it.member.hold(is_held=True)
        it.reading.undecided = {place(0)}
        it.coordinator.decide = lambda _: given(2, 0, 1, 2)
        await it.until(lambda: it.coordinator.heartbeats[-1].confirmed == 2, polls=True)
        it.coordinator.decide = lambda _: given(3, 1)
        await it.until(lambda: it.member.heartbeats.told is not None)
        beats = len(it.coordinator.heartbeats)
        await it.until(lambda: len(it.coordinator.heartbeats) > beats + 2, polls=True)
        assert not it.member.is_due, "a poll that waits does not turn in circles"
        assert set(it.reading.read) == {place(0), place(1), place(2)}
        assert it.coordinator.heartbeats[-1].confirmed == 2
        before = it.member.gave_up_at
        it.member.hold(is_held=False)
        await it.until(lambda: it.coordinator.heartbeats[-1].confirmed == 3, polls=True)
        assert set(it.reading.read) == {place(1)}
        assert it.member.gave_up_at > before


async def test_what_is_committed_is_given_up_where_the_next_transaction_polls_first() -> None:
    """A program may poll within transactions alone; this one has read nothing of it."""
    async with a_story() as it:
        it.coordinator.decide = lambda _: given(1, 0, 1)
        await it.until(lambda: it.reading.read, polls=True)
        it.member.hold(is_held=True)
        it.reading.undecided = {place(1)}
        before = it.member.gave_up_at
        it.coordinator.decide = lambda _: given(2, 1)
        await it.until(lambda: it.coordinator.heartbeats[-1].confirmed == 2, polls=True)
        assert set(it.reading.read) == {place(1)}
        assert it.member.gave_up_at == before, "its transaction may commit"


async def test_what_is_lost_is_given_up_though_a_transaction_is_open() -> None:
    """It can only abort: others read the same records."""
    async with a_story() as it:
        await it.until(lambda: it.reading.read, polls=True)
        it.member.hold(is_held=True)
        before, first = it.member.gave_up_at, it.coordinator.heartbeats[0].member_id
        it.coordinator.decide = lambda request: (
            UnknownMemberIdError("gone") if request.member_id == first else given(1)
        )
        await it.until(lambda: not it.reading.read, polls=True)
        assert it.member.gave_up_at > before


async def test_after_an_abort_the_next_poll_goes_back_to_what_the_group_has_committed() -> None:
    async with a_story() as it:
        it.coordinator.committed = {0: 7}
        it.coordinator.decide = lambda _: given(1, 0, 1)
        await it.until(lambda: it.reading.read, polls=True)
        it.reading.read = {place(0): Position(Offset(90)), place(1): Position(Offset(50))}
        it.member.must_put_back = True
        assert it.member.is_due
        await it.member.poll()
        assert it.reading.read == {place(0): Position(7, 0), place(1): None}
        assert not it.member.must_put_back


async def test_what_the_user_has_moved_after_an_abort_stays_there() -> None:
    async with a_story() as it:
        it.coordinator.committed = {0: 7, 1: 8}
        it.coordinator.decide = lambda _: given(1, 0, 1)
        await it.until(lambda: it.reading.read, polls=True)
        it.member.must_put_back = True
        it.member.on_moved(place(0))
        it.reading.read = {place(0): Position(Offset(2)), place(1): Position(Offset(50))}
        await it.member.poll()
        assert it.reading.read == {place(0): Position(2), place(1): Position(8, 0)}
        it.member.must_put_back = True
        await it.member.poll()
        assert it.reading.read[place(0)] == Position(7, 0)


async def test_an_assignment_waits_for_positions_that_a_transaction_commits() -> None:
    """KIP-447: the last owner's transaction has not ended."""
    async with a_story() as it:
        it.coordinator.committed = {0: 7}
        it.coordinator.fetch_refusals = [UnstablePositionsError("a transaction is open")] * 2
        await it.until(lambda: it.reading.read, polls=True)
        assert it.reading.read == {place(0): Position(7, 0)}
        assert it.coordinator.are_stable == [True] * 3
