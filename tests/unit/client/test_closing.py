"""`close()` of a client whose parts do not end."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, cast

import pytest
from tests.fakes.virtual_loop import in_virtual_time

from millrace.client import (
    Admin,
    ClosedError,
    Consumer,
    Producer,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
)
from millrace.client._cluster.broker_streams import BrokerStreams
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._threads.tasks import Tasks, let_go
from millrace.client._with_blocks import raise_or_note
from millrace.core.client.routing.router import Connect
from millrace.core.ids import BrokerId
from millrace.runtime import host

NOBODY = "127.0.0.1:1"
CLOSE_MS = 300
Client = Admin | Consumer | Producer


class Stuck:
    """A part of a client that never ends."""

    def __init__(self) -> None:
        self.is_told = False

    async def end(self) -> None:
        self.is_told = True
        await asyncio.Event().wait()

    async def close(self) -> None:
        await self.end()

    async def drain(self) -> None:
        await self.end()

    def cancel(self) -> None:
        self.is_told = True


class StuckCluster(Cluster):
    """A cluster whose connections do not close."""

    is_told = False

    async def close(self) -> None:
        self.is_told = True
        await super().close()
        await asyncio.Event().wait()


def of_an_admin(client: Client) -> list[Any]:
    cast(Any, client)._cluster = cluster = StuckCluster(NOBODY, client_id="c")
    return [cluster]


def of_a_consumer(client: Client) -> list[Any]:
    core = cast(Any, client)._core
    core.cluster = StuckCluster(NOBODY, client_id="c")
    core.fetching.streams, core.fetching.tasks = Stuck(), Stuck()
    return [core.cluster, core.fetching.streams, core.fetching.tasks]


def of_a_producer(client: Client) -> list[Any]:
    core = cast(Any, client)._pipeline
    core.cluster, core.streams, core._tasks = StuckCluster(NOBODY, client_id="c"), Stuck(), Stuck()
    return [core.cluster, core.streams, core._tasks]


@pytest.mark.parametrize(
    ("kind", "stuck_parts"),
    [(Admin, of_an_admin), (Consumer, of_a_consumer), (Producer, of_a_producer)],
)
@in_virtual_time
async def test_close_ends_in_time_though_parts_of_the_client_do_not_end(
    kind: Callable[..., Client], stuck_parts: Callable[[Client], list[Any]]
) -> None:
    client = kind(NOBODY, close_timeout_ms=CLOSE_MS)
    parts = stuck_parts(client)
    begun = host.monotonic_s()
    await client.close()
    assert host.monotonic_s() - begun <= CLOSE_MS / 1000 + 0.001
    assert all(part.is_told for part in parts), "those after one that is stuck end, too"


@in_virtual_time
async def test_close_of_a_producer_ends_in_time_though_neither_records_nor_parts_end() -> None:
    producer = Producer(NOBODY, close_timeout_ms=CLOSE_MS)
    parts = of_a_producer(producer)
    stuck = Stuck()
    cast(Any, producer)._pipeline.flush = stuck.end
    begun = host.monotonic_s()
    with pytest.raises(ClosedError, match="close_timeout_ms=300 passed"):
        await producer.close()
    assert host.monotonic_s() - begun <= CLOSE_MS / 1000 + 0.001
    assert all(part.is_told for part in [stuck, *parts])


async def test_a_member_whose_heartbeats_do_not_end_closes_in_time() -> None:
    consumer = Consumer(NOBODY, group="g", close_timeout_ms=CLOSE_MS)
    await consumer.subscribe(["t"])
    membership = cast(Any, consumer)._core.membership
    await membership._tasks.end()
    membership._tasks = Stuck()
    async with asyncio.timeout(10):
        await consumer.close()


class Ending:
    """A stream or a channel; its end takes for ever if it is stuck."""

    def __init__(self, *, is_stuck: bool) -> None:
        self.is_told = False
        self._is_stuck = is_stuck

    async def wait_closed(self) -> None:
        if self._is_stuck:
            await asyncio.Event().wait()


class EndingStream(Ending):
    def close(self) -> None:
        self.is_told = True


class EndingChannel(Ending):
    async def stream(self, method: str) -> Any:
        """Nothing is sent."""

    async def close(self) -> None:
        self.is_told = True
        await self.wait_closed()


class ConnectedCluster(Cluster):
    """A cluster whose first connection does not close, and which is connecting to `never:1`."""

    def __init__(self) -> None:
        super().__init__(NOBODY, client_id="c")
        self.channels: list[EndingChannel] = []
        self.next_channel: EndingChannel | None = None

    async def _connect(self, address: str) -> Connection:
        if address == "never:1":
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.Event().wait()
        self.channels.append(self.next_channel or EndingChannel(is_stuck=not self.channels))
        return Connection(address, cast(Any, self.channels[-1]))

    async def broker(self, broker_id: BrokerId) -> Connection:
        return await self.connection(f"b{broker_id}:1")


class Machine:
    """Takes every event."""

    def __getattr__(self, event: str) -> Callable[..., None]:
        return lambda *_: None


def streams_of(
    cluster: Cluster, tasks: Tasks, open_stream: Callable[..., Any]
) -> BrokerStreams[Any]:
    return BrokerStreams(
        cluster,
        cast(Any, Machine()),
        lock=nullcontext(),
        tasks=tasks,
        method="/S/Follow",
        open_stream=open_stream,
        on_told=lambda: None,
        on_looked_up=lambda: None,
    )


@pytest.mark.parametrize("stuck", range(3))
@in_virtual_time
async def test_a_stream_that_does_not_end_leaves_no_other_one_open(stuck: int) -> None:
    tasks = Tasks(asyncio.get_running_loop(), "test")
    streams = streams_of(
        ConnectedCluster(),
        tasks,
        lambda number, *_: cast(Any, EndingStream(is_stuck=number == stuck)),
    )
    for number in range(3):
        streams.perform(Connect(BrokerId(number)))
    await asyncio.sleep(1)
    opened = streams.open_streams()
    assert len(opened) == 3
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await streams.close()
    assert all(stream.is_told for stream in opened)
    await tasks.end()


class OpeningChannel(EndingChannel):
    """A channel whose streams open when they are let."""

    def __init__(self) -> None:
        super().__init__(is_stuck=False)
        self.may_open = asyncio.Event()
        self.opened = Stuck()

    async def stream(self, method: str) -> Any:
        await self.may_open.wait()
        return self.opened


@in_virtual_time
async def test_a_stream_that_opens_while_the_client_closes_is_closed() -> None:
    cluster, channel = ConnectedCluster(), OpeningChannel()
    tasks = Tasks(asyncio.get_running_loop(), "test")
    opened = EndingStream(is_stuck=False)
    streams = streams_of(cluster, tasks, lambda *_: cast(Any, opened))
    streams.perform(Connect(BrokerId(0)))
    await asyncio.sleep(1)
    cluster.next_channel = channel
    streams.perform(Connect(BrokerId(1)))
    await asyncio.sleep(1)
    channel.may_open.set()
    await let_go(host.monotonic_s() + 1, streams.close, tasks.end)
    assert opened.is_told
    assert channel.opened.is_told
    assert len(streams.open_streams()) == 1


@in_virtual_time
async def test_a_connection_that_does_not_open_or_close_leaves_no_other_one_open() -> None:
    cluster = ConnectedCluster()
    connecting = asyncio.create_task(cluster.connection("never:1"))
    await asyncio.sleep(0)
    for number in range(3):
        await cluster.broker(BrokerId(number))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await cluster.close()
    assert all(channel.is_told for channel in cluster.channels)
    connecting.cancel()


@pytest.mark.parametrize("is_past", [False, True])
@in_virtual_time
async def test_what_is_open_is_closed_though_the_time_to_close_is_over(is_past: bool) -> None:
    cluster = ConnectedCluster()
    for number in range(3):
        await cluster.broker(BrokerId(number))
    stuck = [Stuck(), Stuck()]
    begun = host.monotonic_s()
    await let_go(begun - 1 if is_past else begun, *(part.end for part in stuck), cluster.close)
    assert all(part.is_told for part in stuck)
    assert all(channel.is_told for channel in cluster.channels)
    assert host.monotonic_s() - begun < 0.1


class MineError(Exception):
    """What the program raises in its block."""


NOTE = "close() of the client has failed, too: ClosedError: it is stuck"


def use(client: Any, error: Exception | None = None) -> None:
    """Use a client whose `close()` fails, and end its block by an error if there is one."""
    close = client.close

    async def closed() -> None:
        await close()
        raise ClosedError("it is stuck")

    client.close = closed
    if error is not None:
        raise error


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
async def test_an_error_of_close_is_a_note_of_the_error_that_ended_the_block(
    kind: Callable[..., Client],
) -> None:
    with pytest.raises(MineError) as caught:
        async with kind(NOBODY) as client:
            use(client, MineError())
    assert caught.value.__notes__ == [NOTE]
    with pytest.raises(ClosedError, match="it is stuck"):
        async with kind(NOBODY) as client:
            use(client)


@pytest.mark.parametrize("kind", [SyncAdmin, SyncConsumer, SyncProducer])
def test_an_error_of_close_is_such_a_note_without_an_event_loop_too(
    kind: Callable[..., SyncAdmin | SyncConsumer | SyncProducer],
) -> None:
    with pytest.raises(MineError) as caught, kind(NOBODY) as client:
        use(client._client, MineError())
    assert caught.value.__notes__ == [NOTE]
    with pytest.raises(ClosedError, match="it is stuck"), kind(NOBODY) as client:
        use(client._client)


@pytest.mark.parametrize("end", [SystemExit(), KeyboardInterrupt(), asyncio.CancelledError()])
def test_what_no_trace_would_show_is_logged(
    end: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    raise_or_note(ClosedError("it is stuck"), end)
    assert [record.getMessage() for record in caplog.records] == [
        "close() of a client has failed at the end of a `with` block: ClosedError: it is stuck"
    ]


def refuse(*_: object) -> None:
    """Fail as a callback of the group does that sends through a closed producer."""
    raise ClosedError("the producer is closed")


async def test_a_loop_over_a_consumer_raises_what_another_closed_client_causes() -> None:
    async with Consumer(NOBODY) as consumer:
        cast(Any, consumer)._core.take = refuse
        with pytest.raises(ClosedError, match="the producer is closed"):
            async for _ in consumer:
                pass


def test_a_loop_without_an_event_loop_raises_it_too() -> None:
    with SyncConsumer(NOBODY) as consumer:
        cast(Any, consumer)._core.take = refuse
        with pytest.raises(ClosedError, match="the producer is closed"):
            next(iter(consumer))
