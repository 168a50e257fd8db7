"""Decisions are told to leaders: together, again and again, and apart from what fails (T7)."""

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.fakes.marker_writers import HERE, NOWHERE, MarkerLeader, MarkersImage
from tests.fakes.transactions_log import CLICKS, at, producer
from tests.fakes.until import until

from millrace.broker.coordinator.marker_delivery import METHOD, MarkerDelivery, Telling
from millrace.broker.peer_connection import PeerConnections
from millrace.broker.replica.peers import Peers
from millrace.core.broker_config import LimitsConfig
from millrace.core.coordinator.transactions.transaction import Decision
from millrace.core.ids import NO_BROKER, LeaderEpoch, TopicId, TopicPartition
from millrace.core.records.markers import BUMPING
from millrace.proto.v1 import transactions_pb2 as pb

PLACE = TopicPartition(TopicId(b"transactions".ljust(16)), 0)


class World:
    """A delivery to one broker, this one."""

    def __init__(self) -> None:
        self.image = MarkersImage()
        self.leader = MarkerLeader()
        self.failures: list[BaseException] = []
        self.over: list[str] = []
        partitions: Any = SimpleNamespace(image=self.image)
        peers = Peers(HERE, partitions, PeerConnections(LimitsConfig()))
        peers.serve_here(METHOD, self.leader.write)
        self.delivery = MarkerDelivery(partitions, peers, self.failures.append)

    def tell(
        self,
        name: str,
        *partitions: TopicPartition,
        groups: tuple[str, ...] = (),
        is_commit: bool = True,
    ) -> Telling:
        decision = Decision(
            name, producer(len(name), 1), is_commit, BUMPING, list(partitions), list(groups)
        )
        telling = Telling(PLACE, LeaderEpoch(7), decision, self.on_over)
        self.delivery.tell(telling)
        return telling

    async def on_over(self, telling: Telling) -> None:
        self.over.append(telling.decision.transactional_id)


async def test_a_decision_is_told_to_partitions_and_groups_and_is_over_then() -> None:
    world = World()
    world.tell("a", at(0), at(1, CLICKS), groups=("g",), is_commit=False)
    await until(lambda: world.over == ["a"])
    (call,) = world.leader.calls
    (marker,) = call.markers
    assert (marker.coordinator_epoch, marker.version, marker.committed) == (7, BUMPING, False)
    assert world.leader.written == [(place, 1, 1, False) for place in (at(0), at(1, CLICKS), "g")]


async def test_a_transaction_without_participants_is_over_at_once() -> None:
    world = World()
    world.tell("a")
    await until(lambda: world.over == ["a"])
    assert not world.leader.calls


async def test_what_waits_for_a_broker_goes_in_one_call() -> None:
    world = World()
    world.leader.slow = {at(0)}
    for number in range(4):  # As many calls as may be under way.
        world.tell(f"slow {number}", at(0))
    for number in range(50):
        world.tell(f"other {number:02}", at(1 + number % 3))
    await asyncio.sleep(0.01)
    assert len(world.leader.calls) == 4
    world.leader.may_answer.set()
    await until(lambda: len(world.over) == 54)
    assert len(world.leader.calls) == 5
    assert len(world.leader.calls[-1].markers) == 50


async def test_many_ends_are_divided_over_calls() -> None:
    world = World()
    world.leader.slow = {at(0)}
    for number in range(4):
        world.tell(f"slow {number}", at(0))
    for number in range(30):
        world.tell(f"other {number:02}", *map(at, range(1 + number * 50, 51 + number * 50)))
    await asyncio.sleep(0.01)
    world.leader.may_answer.set()
    await until(lambda: len(world.over) == 34)
    sizes = [sum(len(marker.partitions) for marker in call.markers) for call in world.leader.calls]
    assert sizes == [1, 1, 1, 1, 1000, 500]


async def test_a_transaction_over_many_partitions_delays_nobody_else() -> None:
    """An answer means that all of a call is on disk. So its ends go a few at a time, and apart."""
    world = World()
    many = [at(number) for number in range(1050)]
    world.leader.slow = set(many)
    world.tell("large", *many)
    world.tell("large, too", *many)
    await asyncio.sleep(0.01)
    assert [len(call.markers[0].partitions) for call in world.leader.calls] == [100]
    world.tell("small", at(2000))
    await until(lambda: world.over == ["small"])
    world.leader.may_answer.set()
    await until(lambda: len(world.over) == 3)
    assert max(len(call.markers[0].partitions) for call in world.leader.calls) == 100


async def test_what_cannot_be_written_is_told_again_until_it_is() -> None:
    world = World()
    world.leader.cannot = {at(1), "g"}
    telling = world.tell("a", at(0), at(1), groups=("g",))
    await until(lambda: len(world.leader.calls) >= 3)
    assert not world.over
    assert telling.owed.keys() == {at(1), "g"}
    assert all("too few replicas" in problem for problem in telling.owed.values())
    world.leader.cannot.clear()
    await until(lambda: world.over == ["a"])
    assert [written[0] for written in world.leader.written].count(at(0)) == 1


async def test_a_partition_that_hangs_holds_up_nobody_else() -> None:
    world = World()
    world.leader.cannot = {at(0)}
    for number in range(10):
        world.tell(f"hangs {number}", at(0))
    await until(lambda: bool(world.leader.calls))
    await asyncio.sleep(0.01)
    world.leader.slow = {at(0)}  # From now on it takes as long as a call may.
    await asyncio.sleep(0.2)
    for number in range(10):
        world.tell(f"hangs, too {number}", at(0))
        world.tell(f"other {number}", at(1))
    await until(lambda: len(world.over) == 10)
    assert all(name.startswith("other") for name in world.over)
    world.leader.cannot.clear()
    world.leader.may_answer.set()
    await until(lambda: len(world.over) == 30)


async def test_a_partition_without_a_leader_waits_for_one() -> None:
    world = World()
    world.image.leaders[at(0)] = NO_BROKER
    telling = world.tell("a", at(0), at(1))
    await until(lambda: world.leader.has(at(1)))
    assert telling.owed == {at(0): "it has no leader"}
    world.image.leaders[at(0)] = NOWHERE
    await until(lambda: "address of broker 2 is unknown" in telling.owed[at(0)])
    del world.image.leaders[at(0)]
    await until(lambda: world.over == ["a"])


async def test_a_topic_that_is_not_known_delays_nobody() -> None:
    """T8."""
    world = World()
    world.image.deleted.add(CLICKS)
    telling = world.tell("a", at(0), at(0, CLICKS))
    await until(lambda: world.over == ["a"])
    assert telling.unknown == [at(0, CLICKS)]


async def test_what_another_broker_tells_is_told_no_more() -> None:
    world = World()
    world.leader.cannot = {at(0)}
    telling = world.tell("a", at(0))
    await until(lambda: len(world.leader.calls) >= 2)
    telling.is_dropped = True
    calls = len(world.leader.calls)
    world.leader.cannot.clear()
    await asyncio.sleep(0.5)
    assert len(world.leader.calls) <= calls + 1
    assert not world.over


async def test_an_answer_that_lacks_results_counts_for_nothing() -> None:
    world = World()
    world.leader.answers = lambda _: pb.WriteMarkersResponse()
    telling = world.tell("a", at(0))
    await until(lambda: "no result" in telling.owed[at(0)])
    world.leader.answers = lambda response: response
    await until(lambda: world.over == ["a"])
    assert not world.failures
