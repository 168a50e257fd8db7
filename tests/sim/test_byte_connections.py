"""Connections of bytes between simulated processes: pieces, bounds, and every way to end."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.sim.machines.byte_connections import WINDOWS, ByteEnd
from tests.sim.machines.machine import ClientMachine
from tests.sim.machines.network import CONNECT_US, KEEPALIVE_US, Network, Weather
from tests.sim.world import SECOND, World

from millrace.runtime import host
from millrace.runtime.transport.calls import CallError, ServerCall, Status
from millrace.runtime.transport.drpc import client
from millrace.runtime.transport.drpc.client import DrpcConnection
from millrace.runtime.transport.drpc.server import DrpcServer
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.frames import ReadAhead
from millrace.runtime.transport.receive_memory import ReceiveMemory
from millrace.runtime.transport.served_connections import ServerLimits

ADDRESS = "10.0.0.1:7096"
CONNECTION = ConnectionLimits(message_bytes_max=1 << 20, keepalive_ms=0, dead_after_ms=5000)


class Raw(asyncio.BufferedProtocol):
    """One end of a connection, by hand."""

    transport: ByteEnd

    def __init__(self) -> None:
        self.read: list[bytes] = []
        self.told: list[str] = []
        self._buffer = bytearray(1 << 10)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.read.append(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool:
        self.told.append("end")
        return False

    def pause_writing(self) -> None:
        self.told.append("paused")

    def resume_writing(self) -> None:
        self.told.append("resumed")

    def connection_lost(self, exc: Exception | None) -> None:
        self.told.append(f"lost: {exc}")

    @property
    def data(self) -> bytes:
        return b"".join(self.read)


class Pair:
    """Two machines, the second of which listens."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.caller = ClientMachine(self.world, "caller", self.network)
        self.server = ClientMachine(self.world, "server", self.network, host="10.0.0.1")
        self.served: list[Raw] = []
        self.mine = Raw()
        self.errors: list[OSError] = []

    def listen(self) -> None:
        async def listen() -> None:
            def factory() -> Raw:
                self.served.append(Raw())
                return self.served[-1]

            await host.current.bind(ADDRESS).accept(factory)

        self.on(self.server, listen)

    def connect(self) -> None:
        async def connect() -> None:
            try:
                self.mine = await host.current.connect(ADDRESS, Raw)
            except OSError as error:
                self.errors.append(error)

        self.on(self.caller, connect)

    def open(self) -> tuple[Raw, Raw]:
        self.listen()
        self.connect()
        assert not self.errors
        return self.mine, self.served[0]

    def on(self, machine: ClientMachine, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        machine.process.begin(work)
        self.go_on()

    def write(self, end: Raw, data: bytes) -> None:
        async def write() -> None:
            end.transport.write(data)

        process: Any = end.transport.process
        process.begin(write)

    def cut(self) -> None:
        pairs = [("caller", "server"), ("server", "caller")]
        self.network.impose(pairs, Weather(is_cut=True))

    def go_on(self, for_us: int = SECOND) -> None:
        self.world.run_until(self.world.now + for_us)


@pytest.mark.parametrize("seed", range(4))
def test_bytes_arrive_in_order_in_pieces_that_the_seed_chooses(seed: int) -> None:
    pair = Pair(seed)
    mine, served = pair.open()
    written = [bytes([number]) * (number * 7 % 90 + 2) for number in range(200)]
    for data in written:
        pair.write(mine, data)
        pair.go_on(300)
    pair.go_on()
    assert served.data == b"".join(written)
    assert not set(served.read) <= set(written)


def test_bytes_in_flight_are_bounded_and_a_writer_hears_when_there_is_room() -> None:
    pair = Pair()
    mine, served = pair.open()
    served.transport.pause_reading()
    data = bytes(2 * max(WINDOWS) + 1)
    pair.write(mine, data)
    pair.go_on()
    assert mine.told == ["paused"]
    in_flight = len(data) - mine.transport.get_write_buffer_size()
    assert 0 < in_flight <= max(WINDOWS)

    async def resume() -> None:
        served.transport.resume_reading()

    pair.on(pair.server, resume)
    pair.go_on(10 * SECOND)
    assert served.data == data
    assert mine.told == ["paused", "resumed"]


def test_a_port_at_which_nobody_listens_refuses_and_a_cut_machine_does_not_answer() -> None:
    pair = Pair()
    pair.connect()
    assert [type(error) for error in pair.errors] == [ConnectionRefusedError]
    pair.cut()
    pair.connect()
    pair.go_on(CONNECT_US)
    assert [type(error) for error in pair.errors] == [ConnectionRefusedError, TimeoutError]


def test_what_was_written_before_a_close_arrives_and_then_the_end() -> None:
    pair = Pair()
    mine, served = pair.open()

    async def write_and_close() -> None:
        mine.transport.write(b"last words")
        mine.transport.close()

    pair.on(pair.caller, write_and_close)
    assert served.data == b"last words"
    assert served.told == ["end", "lost: None"]
    assert mine.told == ["lost: None"]


def test_a_cut_within_a_frame_leaves_its_first_bytes() -> None:
    pair = Pair()
    mine, served = pair.open()
    mine.transport.cut_after(12)
    pair.write(mine, bytes(range(100)))
    pair.go_on()
    assert served.data == bytes(range(12))
    assert served.told == mine.told == ["lost: Connection reset by peer"]


def test_an_end_that_is_gone_alone_is_noticed_by_keepalive() -> None:
    pair = Pair()
    mine, served = pair.open()
    served.transport.vanish()
    pair.write(mine, b"into the void")
    pair.go_on(KEEPALIVE_US - SECOND)
    assert (mine.told, served.data) == ([], b"")
    assert served.told == ["lost: Connection timed out"]
    pair.go_on(2 * SECOND)
    assert mine.told == ["lost: Connection timed out"]


def test_small_pieces_come_late_and_in_order() -> None:
    pair = Pair()
    mine, served = pair.open()
    mine.transport.slow_down(10, SECOND)
    pair.write(mine, bytes(range(200)))
    pair.go_on(SECOND // 100)
    assert len(served.data) < 200
    pair.go_on(2 * SECOND)
    assert served.data == bytes(range(200))
    assert max(map(len, served.read)) < 200


def test_a_reset_breaks_both_ends() -> None:
    pair = Pair()
    mine, served = pair.open()
    assert pair.network.reset_streams(pair.world.random("reset"), 1.0, ["server"]) == 1
    pair.go_on()
    assert mine.told == served.told == ["lost: Connection reset by peer"]


def test_keepalive_notices_a_cut_and_no_paused_process() -> None:
    pair = Pair()
    mine, served = pair.open()
    pair.server.freeze()
    pair.write(mine, b"for later")
    pair.go_on(2 * KEEPALIVE_US)
    assert (mine.told, served.data) == ([], b"")
    pair.server.thaw()
    pair.go_on()
    assert served.data == b"for later"
    pair.cut()
    pair.go_on(KEEPALIVE_US + SECOND)
    assert mine.told == served.told == ["lost: keepalive watchdog timeout"]


def test_a_process_that_dies_is_noticed_at_once_and_a_machine_without_power_later() -> None:
    for is_silent in (False, True):
        pair = Pair()
        mine, _ = pair.open()
        pair.network.on_process_ended(pair.server.process, is_silent=is_silent)
        pair.server.process.bury()
        pair.go_on()
        assert bool(mine.told) is not is_silent
        pair.go_on(KEEPALIVE_US)
        assert mine.told == ["lost: Socket closed"]


# --- With DRPC -------------------------------------------------------------------------------


async def echo(call: ServerCall) -> None:
    while (message := await call.read()) is not None:
        await call.write(message)


def serve(pair: Pair) -> None:
    async def start() -> None:
        limits = ServerLimits(
            connection=CONNECTION,
            connections_max=10,
            connections_per_host_max=10,
            received_bytes_max=4 << 20,
            silence_ms_max=10_000,
            idle_ms_max=-1,
            age_ms_max=-1,
            message_ms_max=10_000,
        )
        server = DrpcServer(
            limits,
            status_of=lambda error: Status.UNAVAILABLE,
            on_failure=lambda error: None,
            on_ended=lambda address, reason: None,
        )
        server.methods["/Echo"] = echo
        server.bind(ADDRESS)
        await server.serve()

    pair.on(pair.server, start)


async def connected() -> DrpcConnection:
    return await client.connect(
        ADDRESS, CONNECTION, ahead=ReadAhead(), memory=ReceiveMemory(4 << 20)
    )


@pytest.mark.parametrize("seed", range(6))
def test_messages_of_drpc_come_whole_and_in_order_however_they_are_cut(seed: int) -> None:
    pair = Pair(seed)
    serve(pair)
    sent = [bytes([number % 256]) * (number * 997 % 50_000) for number in range(40)]
    got: list[bytes] = []

    async def call() -> None:
        stream = (await connected()).stream("/Echo", {})
        for message in sent:
            await stream.write(message)
            answer = await stream.read()
            assert answer is not None
            got.append(bytes(answer))

    pair.on(pair.caller, call)
    pair.go_on(60 * SECOND)
    assert got == sent


@pytest.mark.parametrize("size", [0, 1, 3, 40, 400])
def test_a_call_of_drpc_whose_connection_breaks_within_a_frame_is_lost(size: int) -> None:
    pair = Pair()
    serve(pair)
    told: list[str] = []

    async def call() -> None:
        connection = await connected()
        connection.transport.cut_after(size)  # type: ignore[attr-defined]
        stream = connection.stream("/Echo", {})
        await stream.write(bytes(500))
        try:
            await stream.read()
        except CallError as error:
            told.append(str(error))

    pair.on(pair.caller, call)
    pair.go_on(10 * SECOND)
    assert told == ["UNAVAILABLE: the connection broke: Connection reset by peer"]
