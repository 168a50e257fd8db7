"""Positions under a name: what a client says of those that it could not have kept."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.coordinators import Coordinators, _pause_s
from millrace.client._cluster.positions import KeptPositions
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import Appended, ConnectionFailedError, MillraceError, UnknownServerError
from millrace.core.ids import BrokerId, KnownLeader, Leader, LeaderEpoch
from millrace.proto.v1 import positions_pb2 as pb

KEEPER = KnownLeader(Leader(BrokerId(1), LeaderEpoch(0)), "keeper:1")


class BrokenCluster:
    """A cluster whose brokers do not answer."""

    timeout_s = 0.2

    def __init__(self, *, is_reached: bool) -> None:
        self._is_reached = is_reached

    async def connection(self, address: str) -> object:
        if not self._is_reached:
            raise ConnectionFailedError(f"no broker listens at {address}")
        return object()

    async def on(self, connection: object, method: Callable[[Any], Awaitable[Any]]) -> object:
        raise ConnectionFailedError("the broker did not answer")

    async def call(self, method: object, *, attempt_s: object) -> object:
        raise ConnectionFailedError("no broker can be reached")


@pytest.mark.parametrize("is_reached", [False, True])
def test_positions_may_be_kept_where_a_broker_was_asked_and_did_not_answer(
    is_reached: bool,
) -> None:
    cluster = cast(Cluster, BrokenCluster(is_reached=is_reached))
    coordinators = Coordinators(cluster)
    coordinators._keepers["reader"] = KEEPER
    positions = KeptPositions(cluster, coordinators)
    with pytest.raises(MillraceError) as raised:
        asyncio.run(positions.commit("reader", {("orders", 0): Position(7)}))
    assert raised.value.appended is (Appended.MAYBE if is_reached else Appended.NO)


class EmptyPages:
    """Coordinators that say again and again that more positions follow, and give none."""

    def __init__(self) -> None:
        self.asked = 0

    async def ask(self, name: str, method: object) -> pb.FetchPositionsResponse:
        self.asked += 1
        return pb.FetchPositionsResponse(has_more=self.asked < 10)


def test_a_page_without_positions_that_more_follow_ends_the_look_up() -> None:
    pages = EmptyPages()
    positions = KeptPositions(cast(Cluster, None), cast(Coordinators, pages))
    with pytest.raises(UnknownServerError):
        asyncio.run(positions.fetch("reader", pb.POSITION_KIND_COMMITTED))
    assert pages.asked == 1


@pytest.mark.parametrize(
    ("failing_s", "pause_s"), [(0.0, 0.1), (0.5, 0.1), (2.0, 0.4), (10.0, 2.0), (1_000.0, 2.0)]
)
def test_pauses_grow_with_the_time_spent_failing_and_differ_between_clients(
    failing_s: float, pause_s: float
) -> None:
    pauses = [_pause_s(failing_s) for _ in range(100)]
    assert 0.799 * pause_s <= min(pauses) < max(pauses) <= 1.201 * pause_s
