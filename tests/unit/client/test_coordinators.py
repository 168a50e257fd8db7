"""Coordinators and the controller are found though the broker that is asked first is cut off."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.virtual_loop import in_virtual_time

from millrace.client import Admin
from millrace.client._cluster import wire
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.coordinators import Coordinators
from millrace.core.errors import (
    ConnectionFailedError,
    ControllerNotAvailableError,
    CoordinatorLoadInProgressError,
    MillraceError,
    NotLeaderError,
)
from millrace.core.ids import BrokerId, KnownLeader, Leader, LeaderEpoch
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import cluster_pb2, groups_pb2
from millrace.runtime.transport.calls import CallError, Status

CUT_OFF, CURRENT, DEAD, SILENT = "cut-off:1", "current:1", "dead:1", "silent:1"


def names(address: str) -> MillraceError:
    error = NotLeaderError("it is elsewhere")
    error.leader = KnownLeader(Leader(BrokerId(9), LeaderEpoch(1)), address)
    return error


class Brokers(Cluster):
    """Brokers that answer, or refuse, by their address; there are no connections."""

    def __init__(
        self, refusals: dict[str, MillraceError], bootstrap: tuple[str, ...] = (CUT_OFF, CURRENT)
    ) -> None:
        super().__init__(bootstrap, client_id="c", timeout_ms=20_000)
        self._refusals = refusals
        self.asked: list[str] = []
        self.dropped: list[str] = []
        self.goes_on = asyncio.Event()

    async def connection(self, address: str) -> Any:
        if address == DEAD:
            raise ConnectionFailedError(f"{address} refuses connections")
        return SimpleNamespace(address=address)

    async def drop(self, connection: Any) -> None:
        self.dropped.append(connection.address)

    async def on(self, connection: Any, method: Callable[[Any], Awaitable[Any]]) -> Any:
        return await method(connection)

    async def answer(self, connection: Any) -> groups_pb2.LeaveGroupResponse:
        self.asked.append(connection.address)
        if connection.address == SILENT:
            await self.goes_on.wait()
        refusal = self._refusals.get(connection.address)
        if refusal is not None:
            error = error_to_wire(refusal)
            if isinstance(refusal, NotLeaderError) and refusal.leader is not None:
                error.leader.address = refusal.leader.address
            return groups_pb2.LeaveGroupResponse(error=error)
        return groups_pb2.LeaveGroupResponse(member_ids=[connection.address])


@pytest.mark.parametrize(
    "refusal", [names(DEAD), names(CUT_OFF), CoordinatorLoadInProgressError("wait")], ids=str
)
async def test_others_are_asked_when_what_a_broker_says_leads_nowhere(
    refusal: MillraceError,
) -> None:
    cluster = Brokers({CUT_OFF: refusal})
    async with asyncio.timeout(10):
        answer = await Coordinators(cluster).ask("g", cluster.answer)
    assert list(answer.member_ids) == [CURRENT]


async def test_a_silent_coordinator_is_given_up_when_its_caller_says_and_asked_last_then() -> None:
    """A broker without power is silent, and it is the last one that answered everything else."""
    cluster = Brokers({CURRENT: names(SILENT)}, (SILENT, CURRENT))
    cluster.order.first = SILENT
    cluster.timeout_s = 0.9
    with pytest.raises(MillraceError):
        await Coordinators(cluster).ask("g", cluster.answer, silence_s=lambda: 0.1)
    assert cluster.asked[:4] == [SILENT, CURRENT, SILENT, CURRENT]


async def test_a_silent_coordinator_that_answered_last_is_not_asked_again_before_others() -> None:
    """Both waits together would be longer than a session."""
    cluster = Brokers({}, (SILENT, CURRENT))
    cluster.order.first = SILENT
    coordinators = Coordinators(cluster)
    error = names(SILENT)
    assert coordinators._learn("g", error)
    answer = await coordinators.ask("g", cluster.answer, silence_s=lambda: 0.1)
    assert list(answer.member_ids) == [CURRENT]
    assert cluster.asked == [SILENT, CURRENT]


@pytest.mark.parametrize("is_known", [False, True])
@in_virtual_time
async def test_a_silent_coordinator_that_others_still_name_is_given_a_short_time(
    is_known: bool,
) -> None:
    """The cluster takes seconds to notice that a broker has lost its power."""

    cluster = Brokers({CURRENT: names(SILENT)}, (SILENT, CURRENT))
    coordinators = Coordinators(cluster)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    if is_known:
        assert coordinators._learn("g", names(SILENT))
    asked = asyncio.create_task(coordinators.ask("g", cluster.answer, silence_s=lambda: 2.0))
    await asyncio.sleep(2.2)
    assert cluster.asked == [SILENT, CURRENT, SILENT]
    await asyncio.sleep(0.4)
    del cluster._refusals[CURRENT]
    answer = await asked
    assert list(answer.member_ids) == [CURRENT]
    assert loop.time() - begun < 3.5


@in_virtual_time
async def test_a_silent_coordinator_that_goes_on_is_found_again() -> None:
    cluster = Brokers({CURRENT: names(SILENT)}, (SILENT, CURRENT))
    asked = asyncio.create_task(Coordinators(cluster).ask("g", cluster.answer))
    await asyncio.sleep(7)
    cluster.goes_on.set()
    answer = await asked
    assert list(answer.member_ids) == [SILENT]
    assert cluster.order.silent_s(SILENT) is None
    assert cluster.dropped == [SILENT], "it may not know the connection any more"


class Refusing(Cluster):
    """One broker, which refuses each call as a whole."""

    async def connection(self, address: str) -> Any:
        return SimpleNamespace(address=address, is_given_up=False)

    async def refuse(self, _: object) -> groups_pb2.LeaveGroupResponse:
        raise CallError(Status.UNAVAILABLE, "wait", CoordinatorLoadInProgressError("wait"))


@pytest.mark.parametrize("is_known", [False, True])
@in_virtual_time
async def test_a_refusal_of_a_whole_call_ends_the_silence_of_a_broker(is_known: bool) -> None:
    cluster = Refusing(CURRENT, client_id="c", timeout_ms=1_000)
    coordinators = Coordinators(cluster)
    if is_known:
        assert coordinators._learn("g", names(CURRENT))
    cluster.order.on_silence(CURRENT)
    with pytest.raises(CoordinatorLoadInProgressError):
        await coordinators.ask("g", cluster.refuse)
    assert cluster.order.silent_s(CURRENT) is None


async def test_others_are_asked_when_a_broker_knows_no_controller_for_long() -> None:
    admin = Admin(CUT_OFF)
    cluster = Brokers({CUT_OFF: ControllerNotAvailableError("none")})
    admin._cluster = cluster

    async def drain(connection: Any) -> cluster_pb2.DrainBrokerResponse:
        answer = await cluster.answer(connection)
        return cluster_pb2.DrainBrokerResponse(error=answer.error)

    async with asyncio.timeout(10):
        await admin._change(drain, wire.raise_if_refused)
    assert cluster.asked[-1] == CURRENT
