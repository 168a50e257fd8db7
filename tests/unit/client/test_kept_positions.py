"""Positions under a name: what a client says of those that it could not have kept."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.coordinators import Coordinators
from millrace.client._cluster.positions import KeptPositions
from millrace.core.errors import Appended, ConnectionFailedError, MillraceError
from millrace.core.ids import BrokerId, KnownLeader, Leader, LeaderEpoch
from millrace.core.positions.position import Position

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

    async def call(self, method: object, *, attempt_s: float) -> object:
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
