"""The connections to one broker."""

import asyncio
from typing import Any

import pytest

from millrace.client._cluster import broker_channel
from millrace.client._cluster.broker_channel import BrokerChannel
from millrace.proto.v1.common_pb2 import HelloResponse
from millrace.proto.v1.fetch_pb2 import ListOffsetsRequest
from millrace.proto.v1.groups_pb2 import GroupHeartbeatRequest
from millrace.runtime.transport.calls import CallError


class Opened:
    """A connection of DRPC."""

    is_closed = False
    is_free = True

    def abort(self, reason: str) -> None:
        self.is_closed = True


class SlowConnector:
    """Opens a connection when the test says so."""

    def __init__(self) -> None:
        self.may_open = asyncio.Event()
        self.opened = Opened()

    def tries(self, address: str) -> bool:
        return True

    async def connect(self, address: str, greet: object) -> Opened:
        await self.may_open.wait()
        return self.opened


async def test_a_connection_that_opens_after_the_client_has_closed_is_closed() -> None:
    connector: Any = SlowConnector()
    channel = BrokerChannel("b:1", client_id="c", on_called=lambda *_: None, connector=connector)
    calling = asyncio.ensure_future(channel.unary_unary("/S/Ask", bytes, bytes)(b""))
    await asyncio.sleep(0)
    await channel.close()
    connector.may_open.set()
    with pytest.raises(CallError, match="closed"):
        await calling
    assert connector.opened.is_closed


class ByGrpc:
    """A channel of gRPC that answers at once with its own name, or with a greeting."""

    def __init__(self, greeting: HelloResponse) -> None:
        self._greeting = greeting.SerializeToString()
        self.is_closed = False
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    def unary_unary(self, method: str, **_: object) -> Any:
        async def answer(request: object) -> bytes:
            await self.may_answer.wait()
            return self._greeting if method.endswith("/Hello") else b"by gRPC"

        return answer

    async def close(self) -> None:
        self.is_closed = True


class Greeter:
    """Opens a connection, and greets on it at once; it is of no use where that fails."""

    def metadata_for(self, _: str) -> dict[str, str]:
        return {}

    def __init__(self) -> None:
        self.refusal: CallError | None = None
        self.avoided: list[str] = []

    def tries(self, address: str) -> bool:
        return bool(address)

    def avoid(self, address: str) -> None:
        self.avoided.append(address)

    async def connect(self, address: str, greet: Any) -> Opened | None:
        if not address:
            return None
        connection = Opened()
        try:
            await greet(connection, {})
        except CallError as error:
            self.refusal = error
            return None
        return connection


def bytes_of(_: object) -> bytes:
    return b""


class Stage:
    """A channel whose transports are doubles.

    Attributes:
        by_drpc: what a call by DRPC waits for; its answer says how it came.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, drpc_id: int = 7) -> None:
        greeting = HelloResponse(cluster_id="c", broker_id=7, drpc_address="b:2")
        self.by_grpc = ByGrpc(greeting)
        self.connector = Greeter()
        self.by_drpc = asyncio.Event()
        self.by_drpc.set()
        at_drpc = HelloResponse(cluster_id="c", broker_id=drpc_id, drpc_address="b:2")

        async def call(_: object, method: str, request: bytes, metadata: object) -> bytes:
            if method.endswith("/Hello"):
                return at_drpc.SerializeToString()
            await self.by_drpc.wait()
            return b"by DRPC"

        monkeypatch.setattr(broker_channel, "call", call)
        monkeypatch.setattr(broker_channel, "Channel", lambda *_, **__: self.by_grpc)
        connector: Any = self.connector
        self.channel = BrokerChannel(
            "b:1", client_id="c", on_called=lambda *_: None, connector=connector
        )

    async def ask(self, request: object = b"") -> bytes:
        """Make a call with one request and one response."""
        answer: bytes = await self.channel.unary_unary("/S/Ask", bytes_of, bytes)(request)
        return answer


async def test_once_drpc_is_reached_the_connection_of_grpc_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    await stage.channel.greet("", "")
    assert stage.by_grpc.is_closed
    assert await stage.ask() == b"by DRPC"


async def test_where_another_broker_answers_by_drpc_calls_go_by_grpc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, drpc_id=8)
    await stage.channel.greet("", "")
    assert "another broker" in str(stage.connector.refusal)
    assert "b:2" in stage.connector.avoided


async def test_an_answer_by_drpc_that_cannot_be_read_is_a_failed_call_as_by_grpc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    await stage.channel.greet("", "")
    ask = stage.channel.unary_unary("/S/Ask", bytes, HelloResponse.FromString)
    with pytest.raises(CallError, match="cannot be read"):
        await ask(b"")
    assert await stage.ask() == b"by DRPC", "the connection is as good as before"


async def test_what_would_wait_for_another_call_goes_by_grpc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    await stage.channel.greet("", "")
    stage.by_drpc.clear()
    first = asyncio.ensure_future(stage.ask())
    await asyncio.sleep(0)
    assert await asyncio.wait_for(stage.ask(), 5) == b"by gRPC"
    stage.by_drpc.set()
    assert await first == b"by DRPC"


@pytest.mark.parametrize(
    "slow", [GroupHeartbeatRequest(wait_ms=5000), ListOffsetsRequest(max_wait_ms=5000)]
)
async def test_a_call_that_the_broker_answers_late_on_purpose_holds_up_no_other_one(
    monkeypatch: pytest.MonkeyPatch, slow: object
) -> None:
    stage = Stage(monkeypatch)
    await stage.channel.greet("", "b:2")
    stage.by_grpc.may_answer.clear()
    late = asyncio.ensure_future(stage.ask(slow))
    await asyncio.sleep(0)
    assert await stage.ask() == b"by DRPC"
    assert not late.done(), "it goes by gRPC"
    late.cancel()
    assert await stage.ask() == b"by DRPC"
    assert stage.connector.avoided == [], "nothing is known against DRPC"


async def test_a_heartbeat_that_waits_for_nothing_goes_by_drpc(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch)
    await stage.channel.greet("", "")
    assert await stage.ask(GroupHeartbeatRequest()) == b"by DRPC"


async def test_calls_follow_one_another_on_one_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)
    opened = []
    connect = stage.connector.connect

    async def counted(address: str, greet: Any) -> Opened | None:
        opened.append(address)
        return await connect(address, greet)

    monkeypatch.setattr(stage.connector, "connect", counted)
    await stage.channel.greet("", "b:2")
    assert [await stage.ask() for _ in range(3)] == [b"by DRPC"] * 3
    assert opened == ["b:2"]
