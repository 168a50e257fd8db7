"""Ends of DRPC connections without a network: the test feeds them bytes."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

from millrace.core.errors import Appended, NotLeaderError
from millrace.runtime.transport.calls import CallError, ServerCall, Status
from millrace.runtime.transport.drpc.client import DrpcConnection
from millrace.runtime.transport.drpc.connection import Connection
from millrace.runtime.transport.drpc.server import DrpcServer, _ServedConnection
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.frames import FrameError, FrameReader, ReadAhead
from millrace.runtime.transport.receive_memory import ReceiveMemory
from millrace.runtime.transport.served_connections import ServerLimits

LIMITS: Final = ConnectionLimits(message_bytes_max=1 << 16, keepalive_ms=0, dead_after_ms=1000)
_TURNS_MAX: Final = 100
_AHEAD: Final = ReadAhead()
_LOOP: Final = asyncio.new_event_loop()


def run_in_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run something to its end, and fail for what the loop would only log."""
    failures: list[dict[str, Any]] = []
    _LOOP.set_exception_handler(lambda _, context: failures.append(context))
    _LOOP.run_until_complete(work)
    assert not failures, failures


class BareTransport:
    """What a connection needs of a transport; what is sent goes nowhere."""

    def __init__(self) -> None:
        self.is_paused = self.is_closed = False

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def write(self, data: bytes) -> None:
        pass

    def writelines(self, parts: object) -> None:
        pass

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, name: str) -> tuple[str, int] | None:
        return ("127.0.0.9", 1) if name == "peername" else None


class Recording(Connection):
    """An end that notes the packets, and what ended them."""

    def __init__(self, memory: ReceiveMemory) -> None:
        super().__init__(LIMITS, _AHEAD, memory)
        self.packets: list[tuple[int, int, bytes]] = []
        self.reason = ""

    def on_packet(self, kind: int, stream: int, body: bytes | memoryview) -> None:
        self.packets.append((kind, stream, bytes(body)))
        self.release(len(body))

    def on_protocol_error(self, error: FrameError) -> None:
        self.reason = str(error)
        self.abort(self.reason)

    def on_lost(self, reason: str) -> None:
        pass


async def feed(end: FrameReader, data: bytes, at_once: int) -> None:
    """Have an end read bytes, so many at once, as far as it reads; then the connection is lost."""
    transport: Any = BareTransport()
    end.connection_made(transport)
    at = turns = 0
    while at < len(data) and not transport.is_closed and turns < _TURNS_MAX:
        if transport.is_paused:
            turns += 1
            await asyncio.sleep(0)
            continue
        buffer = end.get_buffer(-1)
        size = min(len(buffer), at_once, len(data) - at)
        assert size, "a read of nothing"
        buffer[:size] = data[at : at + size]
        at += size
        end.buffer_updated(size)
    for _ in range(5):
        await asyncio.sleep(0)
    end.connection_lost(None)
    for _ in range(5):
        await asyncio.sleep(0)


async def serve_bytes(data: bytes, at_once: int) -> None:
    """Feed bytes to the serving end."""
    failures: list[BaseException] = []
    server = DrpcServer(
        ServerLimits(
            connection=LIMITS,
            connections_max=2,
            connections_per_host_max=2,
            received_bytes_max=1 << 20,
            silence_ms_max=1000,
            idle_ms_max=-1,
            age_ms_max=-1,
            message_ms_max=1000,
        ),
        status_of=lambda _: Status.UNAVAILABLE,
        on_failure=failures.append,
        on_ended=lambda *_: None,
    )
    server.methods = {"E": _echo, "R": _refuse, "W": _wait}
    await feed(_ServedConnection(server), data, at_once)
    assert not failures, failures
    assert not server.connections
    assert server.memory.used == 0


async def answer_bytes(data: bytes, at_once: int) -> None:
    """Feed bytes to the calling end, which has made a call."""
    memory = ReceiveMemory(1 << 20)
    end = DrpcConnection(LIMITS, _AHEAD, memory)
    end.transport = BareTransport()  # type: ignore[assignment]
    stream = end.stream("E", {})

    async def read() -> None:
        try:
            while await stream.read() is not None:
                pass
        except CallError:
            pass

    reading = asyncio.get_running_loop().create_task(read())
    await feed(end, data, at_once)
    await reading
    assert memory.used == 0


async def _echo(call: ServerCall) -> None:
    while (message := await call.read()) is not None:
        await call.write(message)


async def _refuse(call: ServerCall) -> None:
    raise NotLeaderError("no", appended=Appended.NO)


async def _wait(call: ServerCall) -> None:
    await asyncio.Event().wait()
