"""What the end of a stream means for others that use its connection."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
from tests.fakes.until import until

from millrace.client._cluster.broker_streams import BrokerStream, BrokerStreams
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._threads.tasks import Tasks
from millrace.core.client.routing.router import Connect
from millrace.core.ids import BrokerId
from millrace.runtime.transport.calls import CallError, Status

BROKER = BrokerId(0)


class OpenStream:
    """A stream of the transport that ends when the test says so."""

    is_draining = False

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_draining: Callable[[], None] = lambda: None

    async def read(self) -> None:
        await self.ended

    def cancel(self) -> None:
        """It has ended."""


class Channel:
    """The calls to a broker."""

    def __init__(self) -> None:
        self.is_closed = False
        self.stream_opened = OpenStream()

    async def stream(self, method: str) -> OpenStream:
        return self.stream_opened

    async def close(self) -> None:
        self.is_closed = True


class OneConnection(Cluster):
    """A cluster of one broker."""

    def __init__(self) -> None:
        super().__init__("b:1", client_id="c")
        self.channel = Channel()

    async def _connect(self, address: str) -> Connection:
        return Connection(address, cast(Any, self.channel))

    async def broker(self, broker_id: BrokerId) -> Connection:
        return await self.connection("b:1")


class Machine:
    """Notes every event."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, event: str) -> Callable[..., None]:
        return lambda *_: self.told.append(event)


@pytest.mark.parametrize(
    ("error", "is_dropped"),
    [(None, False), (CallError(Status.UNAVAILABLE, "the connection broke"), True)],
    ids=["drained", "broken"],
)
async def test_a_stream_that_ends_well_leaves_the_connection_to_the_calls_of_others(
    error: CallError | None, is_dropped: bool
) -> None:
    cluster, machine = OneConnection(), Machine()
    tasks = Tasks(asyncio.get_running_loop(), "test")

    def open_stream(broker_id: BrokerId, connection: Connection, stream: Any) -> BrokerStream:
        return BrokerStream(broker_id, connection, "test", stream, streams.on_broken)

    streams: BrokerStreams[BrokerStream] = BrokerStreams(
        cluster,
        cast(Any, machine),
        lock=nullcontext(),
        tasks=tasks,
        method="/S/Follow",
        open_stream=open_stream,
        on_told=lambda: None,
        on_looked_up=lambda: None,
    )
    streams.perform(Connect(BROKER))
    await until(lambda: streams.get(BROKER) is not None)
    ended = cluster.channel.stream_opened.ended
    if error is None:
        ended.set_result(None)
    else:
        ended.set_exception(error)
    await until(lambda: streams.get(BROKER) is None)
    for _ in range(3):
        await asyncio.sleep(0)
    await tasks.end()
    assert machine.told == ["on_connected", "on_disconnected"]
    assert cluster.channel.is_closed is is_dropped
