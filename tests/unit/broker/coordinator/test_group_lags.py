"""How a coordinator asks leaders for the lags of its groups, also those that hang."""

import asyncio
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from millrace.broker.coordinator.group_lags import METHOD, GroupLags
from millrace.broker.peer_connection import PeerConnections
from millrace.broker.replica.peers import Peers
from millrace.broker.telemetry.group_lags import GroupLagMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.coordinator import GroupCoordinator
from millrace.core.coordinator.positions.position import Position, PositionsConfig
from millrace.core.ids import BrokerId, Offset, TopicId, TopicPartition, WallMs
from millrace.proto.lags import MeasuredLag, lags_to_wire
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.runtime.turns import Turns

TOPIC_ID = TopicId(b"t" * 16)
HERE, NOWHERE = BrokerId(1), BrokerId(2)


def coordinator_of(**readers: int) -> GroupCoordinator:
    """Return a coordinator of readers that have committed these positions."""
    machine = GroupCoordinator(PositionsConfig(), GroupsConfig(), Offset(0))
    for name, offset in readers.items():
        positions = {TopicPartition(TOPIC_ID, 0): Position(offset)}
        for record in machine.handle_commit(name, positions, WallMs(0)).records:
            machine.replay(record, machine.next_offset)
    return machine


class Image:
    """Metadata of a partition with this leader, whose address nobody knows."""

    def __init__(self, leader: BrokerId) -> None:
        self._state = SimpleNamespace(leader=leader, leader_epoch=3)

    def partition(self, topic_partition: TopicPartition) -> SimpleNamespace:
        return self._state

    def broker(self, broker_id: BrokerId) -> None:
        return None


class Leader:
    """This broker as a leader, which may hang; its log ends at 10."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def measure(self, request: pb.DescribeLagsRequest) -> pb.DescribeLagsResponse:
        self.asked.append(list(request.offsets))
        self.is_asked.set()
        assert set(request.current_leader_epochs) == {3}
        await self.may_answer.wait()
        return lags_to_wire([MeasuredLag(0, 10, 7, 0) for _ in request.offsets])


class World:
    def __init__(
        self, machine: GroupCoordinator, leader: BrokerId = HERE, series_max: int = 10
    ) -> None:
        self.leader = Leader()
        self.registry = CollectorRegistry()
        self.failures: list[BaseException] = []
        self.machines = [machine]
        groups = SimpleNamespace(
            coordinated=lambda names: {
                name for name in names if any(machine.has(name) for machine in self.machines)
            },
            config=GroupsConfig(lag_series_max=series_max),
            topic_name=lambda _: "orders",
            partitions_of=lambda _: 1,
            runtime=SimpleNamespace(
                machines=lambda: [(None, machine) for machine in self.machines]
            ),
        )
        partitions: Any = SimpleNamespace(image=Image(leader))
        peers = Peers(HERE, partitions, PeerConnections(LimitsConfig()))
        peers.serve_here(METHOD, self.leader.measure)
        self.lags = GroupLags(
            groups,  # type: ignore[arg-type]
            partitions,
            peers,
            turns=Turns(),
            metrics=GroupLagMetrics(self.registry),
            on_failure=self.failures.append,
        )

    def shown(self, what: str) -> dict[str, float]:
        """Return the values of a metric, by group."""
        return {
            sample.labels.get("group", ""): sample.value
            for metric in self.registry.collect()
            for sample in metric.samples
            if sample.name == f"millrace_group_lag_{what}"
        }


async def test_readers_at_the_same_offset_take_one_question() -> None:
    world = World(coordinator_of(a=4, b=4, c=10))
    await world.lags.measure()
    assert world.leader.asked == [[4, 10]]
    assert world.shown("records") == {"a": 6, "b": 6, "c": 0}
    assert world.shown("left_out_groups") == {"": 0}
    assert not world.failures


async def test_a_group_that_another_broker_coordinates_by_now_is_not_shown() -> None:
    """The next round may be minutes away, and that broker shows the group."""
    world = World(coordinator_of(a=4))
    await world.lags.measure()
    world.machines = [coordinator_of(b=4)]
    assert world.shown("records") == {}


async def test_without_positions_nobody_is_asked() -> None:
    world = World(coordinator_of())
    await world.lags.measure()
    assert world.leader.asked == []


async def test_a_leader_that_is_not_known_makes_lags_unknown() -> None:
    world = World(coordinator_of(a=4), leader=NOWHERE)
    await world.lags.measure()
    assert world.shown("records") == {}
    assert world.shown("unknown_partitions") == {"a": 1}


async def test_a_leader_that_hangs_is_not_asked_again_before_it_has_answered() -> None:
    world = World(coordinator_of(a=4))
    world.leader.may_answer.clear()
    first = asyncio.create_task(world.lags.measure())
    await world.leader.is_asked.wait()
    await world.lags.measure()
    assert len(world.leader.asked) == 1
    assert world.shown("unknown_partitions") == {"a": 1}
    world.leader.may_answer.set()
    await first
    await world.lags.measure()
    assert len(world.leader.asked) == 2
    assert world.shown("records") == {"a": 6}
    assert not world.failures


async def test_groups_that_do_not_fit_are_neither_asked_about_nor_shown() -> None:
    world = World(coordinator_of(a=1, b=2, c=3), series_max=1)
    await world.lags.measure()
    assert world.leader.asked == [[1]]
    assert world.shown("records") == {"a": 9}
    assert world.shown("left_out_groups") == {"": 2}
