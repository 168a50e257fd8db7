"""Positions join a transaction: the group asks first, and a marker may pass meanwhile (P56)."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.marker_writers import MarkersImage
from tests.fakes.transactions_log import ID, ResponseT, at
from tests.fakes.until import until

from millrace.broker.coordinator.staged_commits import (
    ClassicStagedCommit,
    StagedCommit,
    StagedCommits,
)
from millrace.broker.coordinator.transaction_joins import Writer
from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.classic_events import Committer, JoinRequest, Refused
from millrace.core.coordinator.groups.classic_group import Protocol
from millrace.core.coordinator.groups.classic_records import ClassicMember, Generation
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.coordinator import CoordinatorRecord, GroupCoordinator
from millrace.core.coordinator.positions.position import Kind, Position, PositionsConfig
from millrace.core.errors import (
    Appended,
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    ProducerFencedError,
    TransactionCoordinatorFencedError,
    UnknownMemberIdError,
)
from millrace.core.ids import (
    LeaderEpoch,
    MonotonicMs,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    WallMs,
)
from millrace.core.ids import TopicPartition as Place
from millrace.core.records.markers import BUMPING, NOT_BUMPING, Marker
from millrace.core.topics import POSITIONS_TOPIC

TOPIC_ID = TopicId(b"positions".ljust(16))
PLACE = Place(TOPIC_ID, 0)
WRITER = Writer(ID, ProducerId(100), ProducerEpoch(3))


class Stage:
    """A broker that coordinates all groups, and what coordinators of transactions answer."""

    def __init__(self) -> None:
        self.machine = GroupCoordinator(PositionsConfig(), GroupsConfig(), Offset(0))
        self.leader_epoch = 5
        self.coordinator_epoch = 1
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.refusal: Exception | None = None
        image: Any = MarkersImage()
        image.topics = {
            POSITIONS_TOPIC: SimpleNamespace(topic_id=TOPIC_ID, partitions=[SimpleNamespace()])
        }
        self.image = image
        leading: Any = SimpleNamespace(
            image=image,
            get=lambda _: SimpleNamespace(
                leader=SimpleNamespace(leader_epoch=LeaderEpoch(self.leader_epoch))
            ),
        )
        groups: Any = SimpleNamespace(runtime=self)
        joins: Any = self
        self.commits = StagedCommits(groups, joins, leading)

    async def ask(
        self,
        place: Place,
        handle: Callable[[GroupCoordinator, WallMs], Result[CoordinatorRecord, ResponseT]],
    ) -> ResponseT:
        assert place == PLACE
        result = handle(self.machine, WallMs(1))
        for record in result.records:
            self.machine.replay(record, self.machine.next_offset)
        await asyncio.sleep(0)
        return result.response

    async def ask_for_group(self, writer: Writer, group: str) -> LeaderEpoch:
        assert writer == WRITER
        self.asked.append(group)
        await self.may_answer.wait()
        if self.refusal is not None:
            raise self.refusal
        return LeaderEpoch(self.coordinator_epoch)

    async def commit(self, member_id: str = "") -> None:
        commit = StagedCommit(
            positions={at(0): Position(10)}, member_id=member_id, epoch=-1, number=0
        )
        await self.commits.commit(PLACE, "g", WRITER, commit)

    async def commit_classic(self, generation: int, member_id: str = "m") -> Refused | None:
        committer = Committer(member_id, generation=generation)
        commit = ClassicStagedCommit(positions={at(0): Position(10)}, committer=committer)
        return await self.commits.commit(PLACE, "g", WRITER, commit)

    def join_classic(self) -> None:
        """Let a member join a classic group, in its first generation."""
        machine, now = self.machine.classic, MonotonicMs(0)
        machine.join(
            JoinRequest(
                group="g",
                member_id="",
                session_timeout_ms=60_000,
                rebalance_timeout_ms=60_000,
                protocol_type="consumer",
                protocols=(Protocol("range", b""),),
                new_id="m",
                needs_id=False,
            ),
            1,
            now,
        )
        machine.tick(MonotonicMs(10_000))

    async def end(
        self,
        epoch: int = 4,
        *,
        is_commit: bool = True,
        protocol: int = BUMPING,
        coordinator_epoch: int = 1,
    ) -> None:
        told_by = LeaderEpoch(coordinator_epoch)
        marker = Marker(WRITER.producer_id, ProducerEpoch(epoch), is_commit, told_by, protocol)
        await self.commits.end("g", marker)

    @property
    def committed(self) -> list[int]:
        return [found.offset for found in self.machine.positions("g", Kind.COMMITTED).values()]


async def test_positions_are_stored_after_the_group_has_joined_and_count_at_the_end() -> None:
    stage = Stage()
    await stage.commit()
    assert stage.asked == ["g"]
    assert stage.committed == []
    await stage.end()
    assert stage.committed == [10]


async def test_what_the_coordinator_refuses_is_not_stored() -> None:
    stage = Stage()
    stage.refusal = ProducerFencedError("another producer has begun")
    with pytest.raises(ProducerFencedError):
        await stage.commit()
    assert not stage.machine.has("g")


async def test_what_the_group_refuses_does_not_join() -> None:
    stage = Stage()
    with pytest.raises(UnknownMemberIdError):
        await stage.commit("m")
    assert not stage.asked


@pytest.mark.parametrize(("epoch", "protocol"), [(4, BUMPING), (3, NOT_BUMPING)])
async def test_positions_are_not_stored_after_their_marker_has_passed(
    epoch: int, protocol: int
) -> None:
    stage = Stage()
    stage.may_answer.clear()
    commit = asyncio.create_task(stage.commit())
    await until(lambda: bool(stage.asked))
    await stage.end(epoch, protocol=protocol)
    stage.may_answer.set()
    with pytest.raises(ConcurrentTransactionsError, match="has ended before") as refused:
        await commit
    assert refused.value.appended is Appended.NO
    assert not stage.machine.has("g"), "nobody would ever resolve it"


async def test_a_late_marker_of_a_coordinator_that_was_replaced_resolves_nothing() -> None:
    """P46, T14: without bumps the next transaction has the epoch of the marker."""
    stage = Stage()
    stage.coordinator_epoch = 2
    await stage.commit()
    with pytest.raises(TransactionCoordinatorFencedError):
        await stage.end(3, protocol=NOT_BUMPING, coordinator_epoch=1)
    assert stage.committed == []
    await stage.end(3, protocol=NOT_BUMPING, coordinator_epoch=2)
    assert stage.committed == [10]


async def test_a_marker_of_an_earlier_transaction_is_in_no_way() -> None:
    stage = Stage()
    stage.may_answer.clear()
    commit = asyncio.create_task(stage.commit())
    await until(lambda: bool(stage.asked))
    await stage.end(3)
    stage.may_answer.set()
    await commit
    await stage.end(4)
    assert stage.committed == [10]


async def test_positions_are_not_stored_if_another_broker_may_have_had_the_marker() -> None:
    stage = Stage()
    stage.may_answer.clear()
    commit = asyncio.create_task(stage.commit())
    await until(lambda: bool(stage.asked))
    stage.leader_epoch += 2
    stage.may_answer.set()
    with pytest.raises(CoordinatorLoadInProgressError) as refused:
        await commit
    assert refused.value.appended is Appended.NO
    assert not stage.machine.has("g")
    await stage.commit()
    await stage.end()
    assert stage.committed == [10], "the next attempt joins again"


async def test_a_broker_that_does_not_know_the_topic_resolves_nothing() -> None:
    stage = Stage()
    stage.image.topics = {}
    with pytest.raises(CoordinatorLoadInProgressError):
        await stage.end()


async def test_a_member_of_a_classic_group_commits_with_a_transaction() -> None:
    stage = Stage()
    stage.join_classic()
    assert await stage.commit_classic(generation=1) is None
    assert stage.committed == []
    await stage.end(epoch=3, protocol=NOT_BUMPING)
    assert stage.committed == [10]


@pytest.mark.parametrize(
    ("generation", "member_id", "refused"),
    [(0, "m", Refused.ILLEGAL_GENERATION), (1, "other", Refused.UNKNOWN_MEMBER)],
)
async def test_who_is_not_in_the_generation_of_a_classic_group_does_not_join(
    generation: int, member_id: str, refused: Refused
) -> None:
    stage = Stage()
    stage.join_classic()
    assert await stage.commit_classic(generation, member_id) is refused
    assert stage.asked == []


async def test_who_does_not_say_who_it_is_commits_with_a_transaction_all_the_same() -> None:
    """KIP-447: an application may commit for members of its own."""
    stage = Stage()
    stage.join_classic()
    assert await stage.commit_classic(-1, "") is None
    await stage.end(epoch=3, protocol=NOT_BUMPING)
    assert stage.committed == [10]


async def test_the_next_coordinator_knows_the_members_of_a_classic_group_at_once() -> None:
    member = ClassicMember(session_timeout_ms=60_000, rebalance_timeout_ms=60_000)
    generation = Generation(1, "consumer", "range", "m", {"m": member})
    stage = Stage()
    for record in stage.machine.handle_generation("g", generation, WallMs(1)).records:
        stage.machine.replay(record, stage.machine.next_offset)
    assert await stage.commit_classic(generation=1) is None
