"""Both ends of Kafka's protocol: a listener over modules of the test, and a client by hand."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

from tests.fakes.call_context import calls_of

from millrace.broker.guard.guard import Guard
from millrace.broker.kafka.api_versions import ApiVersionsRequests
from millrace.broker.kafka.connection import KafkaServer
from millrace.broker.kafka.requests import RequestTable, Served
from millrace.broker.kafka.wire import codec
from millrace.core.kafka_config import KafkaConfig
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.served_connections import ServerLimits
from millrace.runtime.turns import Turns

LIMITS: Final = ServerLimits(
    connection=ConnectionLimits(message_bytes_max=1 << 20, keepalive_ms=0, dead_after_ms=5000),
    connections_max=10,
    connections_per_host_max=10,
    received_bytes_max=4 << 20,
    silence_ms_max=10_000,
    idle_ms_max=-1,
    age_ms_max=-1,
    message_ms_max=10_000,
)
DEADLINE_S: Final = 10


def request_frame(
    key: int, version: int, message: Any = None, *, correlation_id: int = 0, client_id: str = "me"
) -> bytes:
    """Return a whole frame, with its length.

    Args:
        key: of the request.
        version: of its format.
        message: kafka-python's, or the bytes of a body; None: the empty message of that request.
        correlation_id: of the header.
        client_id: of the header.
    """
    if message is None:
        message = codec.request_class(key)(version=version)
    body = message if isinstance(message, bytes) else bytes(message.encode(version=version))
    client = client_id.encode()
    header = struct.pack(">hhih", key, version, correlation_id, len(client)) + client
    if codec.is_flexible(key, version):
        header += b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


class KafkaByHand:
    """A connection whose frames the test writes and reads."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._sent: dict[int, tuple[int, int]] = {}

    def send(self, key: int, version: int, message: Any = None, **more: Any) -> int:
        """Send a request; return the number that its answer repeats."""
        number = len(self._sent) + 1
        self._sent[number] = (key, version)
        frame = request_frame(key, version, message, correlation_id=number, **more)
        self.writer.write(frame)
        return number

    async def frame(self) -> bytes:
        """Return the next answer without its length."""
        async with asyncio.timeout(DEADLINE_S):
            (length,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(length)

    async def answer(self) -> tuple[int, Any]:
        """Return the next answer: its number, and kafka-python's message."""
        data = await self.frame()
        (number,) = struct.unpack_from(">i", data)
        key, version = self._sent[number]
        found = codec.response_class(key)
        begin = 5 if key != 18 and codec.is_flexible(key, version) else 4
        return number, found.decode(data[begin:], version=version)

    async def ask(self, key: int, version: int, message: Any = None) -> Any:
        """Return the answer to a request."""
        number = self.send(key, version, message)
        answered, response = await self.answer()
        assert answered == number
        return response

    async def is_ended(self) -> bool:
        """Return once the other side has ended the connection, or fail."""
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError):
                while await self._reader.read(1 << 16):
                    pass
        return True

    async def end(self) -> None:
        """End it."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class KafkaServed:
    """A listener, and what it told."""

    def __init__(
        self,
        served: Mapping[Any, Served],
        limits: ServerLimits = LIMITS,
        kafka: KafkaConfig | None = None,
        guard: Guard | None = None,
        entries_max: int = 1000,
    ) -> None:
        self.failures: list[BaseException] = []
        self.ended: list[str] = []
        self.clients: list[KafkaByHand] = []
        self.server = KafkaServer(
            limits,
            KafkaConfig() if kafka is None else kafka,
            calls_of(guard=guard),
            entries_max=entries_max,
            turns=Turns(),
            on_failure=self.failures.append,
            on_ended=lambda _, reason: self.ended.append(reason),
        )
        versions = ApiVersionsRequests()
        module: Any = SimpleNamespace(served=lambda: served)
        self.server.table = versions.table = RequestTable([versions, module])
        self.port = self.server.bind("127.0.0.1:0")

    async def connect(self) -> KafkaByHand:
        """Open a connection to it."""
        client = KafkaByHand(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client


@contextlib.asynccontextmanager
async def serving_kafka(
    served: Mapping[Any, Served] | None = None, **more: Any
) -> AsyncIterator[KafkaServed]:
    """Serve modules of the test; fail for what failed in a handler."""
    the = KafkaServed(served or {}, **more)
    await the.server.serve()
    try:
        yield the
    finally:
        for client in the.clients:
            await client.end()
        await the.server.stop(0)
    assert the.failures == []


def limits_with(**changes: Any) -> ServerLimits:
    """Return `LIMITS` with some changes; those of a connection by their names, too."""
    of_connection = {key: changes.pop(key) for key in ("message_bytes_max",) if key in changes}
    return replace(LIMITS, connection=replace(LIMITS.connection, **of_connection), **changes)
