"""What an attack is, where it goes, and what it sends by.

An attack is a row: a name, what is done, to which port, by how many connections at a time, and a
small function that gets one open connection. When the function returns, or the broker ends the
connection, another one is made after a pause. All attackers come from an address of their own, as
those on another machine do.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Self

from tests.integration.hostile_http2 import END_STREAM, SETTINGS, call_headers, frame
from tests.integration.hostile_http2 import PREFACE as HTTP2_PREFACE

from millrace.core.addresses import split_address
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.wire import Kind

ELSEWHERE: Final = "127.0.0.2"
"""The address of attackers; honest clients have another one."""
_CONNECT_SECONDS: Final = 5.0
_MIB: Final = 1 << 20


class Port(StrEnum):
    """Where an attack goes; `RAW`: bytes of TCP to a port that speaks TLS."""

    GRPC = "grpc"
    DRPC = "drpc"
    RAW_GRPC = "raw grpc"
    RAW_DRPC = "raw drpc"
    PLAIN_GRPC = "plain grpc"
    PLAIN_DRPC = "plain drpc"
    KAFKA = "kafka"
    PLAIN_KAFKA = "plain kafka"
    REPLICAS = "replicas"
    PAGE = "page"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A broker under attack.

    Attributes:
        grpc: its port for clients, with TLS.
        drpc: likewise, by DRPC.
        plain_grpc: another one, in plain text.
        plain_drpc: likewise, by DRPC.
        kafka: its port for clients of Kafka, with TLS.
        plain_kafka: another one, in plain text.
        replicas: its port for brokers, which asks for certificates.
        page: its metrics page.
        ca_file: authority of all certificates.
        certificate_file: of a client whose certificate names no broker.
        key_file: of that certificate.
        token: of somebody who may do everything in the namespace `mallory`, and nothing else.
        topic_id: of a topic there with one partition, in hex.
    """

    grpc: str
    drpc: str
    plain_grpc: str
    plain_drpc: str
    kafka: str
    plain_kafka: str
    replicas: str
    page: str
    ca_file: str
    certificate_file: str
    key_file: str
    token: str
    topic_id: str

    def write(self, path: Path) -> None:
        """Write it for the process of an attack."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what `write` has written."""
        return cls(**json.loads(path.read_text()))

    def address(self, port: Port) -> str:
        """Return the address of a port."""
        return {
            Port.GRPC: self.grpc,
            Port.DRPC: self.drpc,
            Port.RAW_GRPC: self.grpc,
            Port.RAW_DRPC: self.drpc,
            Port.PLAIN_GRPC: self.plain_grpc,
            Port.PLAIN_DRPC: self.plain_drpc,
            Port.KAFKA: self.kafka,
            Port.PLAIN_KAFKA: self.plain_kafka,
            Port.REPLICAS: self.replicas,
            Port.PAGE: self.page,
        }[port]

    def tls(self, port: Port) -> ssl.SSLContext | None:
        """Return how connections to a port are made; None: in plain text."""
        if port not in (Port.GRPC, Port.DRPC, Port.KAFKA, Port.REPLICAS):
            return None
        context = ssl.create_default_context(cafile=self.ca_file)
        context.check_hostname = False
        if port not in (Port.DRPC, Port.KAFKA):
            context.set_alpn_protocols(["h2"])
        if port is Port.REPLICAS:
            context.load_cert_chain(self.certificate_file, self.key_file)
        return context


class Peer:
    """One open connection of an attacker.

    Attributes:
        reader: what the broker sends.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer
        self._read = bytearray()
        self._stream = 0

    async def send(self, data: bytes) -> None:
        """Send bytes, as fast as the broker takes them."""
        if self._writer.transport.is_closing():
            raise ConnectionError("the broker closed the connection")
        self._writer.write(data)
        await self._writer.drain()
        await asyncio.sleep(0)  # Others have their turn, also where nothing has to be waited for.

    async def hold_on(self) -> None:
        """Read until the broker ends the connection."""
        while await self.reader.read(_MIB):
            pass

    async def stand_still(self) -> None:
        """Read nothing any more."""
        self.reader._transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.Event().wait()

    async def drip(self, data: bytes, pause_s: float = 0.5) -> None:
        """Send a byte after another, slowly."""
        for at in range(len(data)):
            await self.send(data[at : at + 1])
            await asyncio.sleep(pause_s)
        await self.hold_on()

    async def greet(self) -> None:
        """Send what begins a connection of HTTP/2."""
        await self.send(HTTP2_PREFACE + frame(SETTINGS))

    async def call(self, method: str, request: bytes, token: str = "") -> int:
        """Make a call by DRPC; return the kind of what answers it."""
        self._stream += 1
        await self.send(drpc_call(self._stream, method, request, token))
        while True:
            header = wire.parse_header(self._read, 0, len(self._read))
            if header is not None and len(self._read) >= header.payload_at + header.length:
                del self._read[: header.payload_at + header.length]
                if header.stream == self._stream and header.kind in _ANSWERS:
                    return header.kind
                continue
            data = await self.reader.read(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._read += data


_ANSWERS: Final = (Kind.MESSAGE, Kind.ERROR, Kind.CLOSE_SEND)


def drpc_call(stream: int, method: str, request: bytes | None, token: str = "") -> bytes:
    """Return the packets of a call by DRPC.

    Args:
        stream: its id.
        method: its path.
        request: its only message; None: it has none yet.
        token: of its caller; empty: none.
    """
    packets = []
    if token:
        entries = {"authorization": f"Bearer {token}"}
        packets.append((Kind.METADATA, wire.encode_metadata(entries)))
    packets.append((Kind.INVOKE, method.encode()))
    if request is not None:
        packets += [(Kind.MESSAGE, request), (Kind.CLOSE_SEND, b"")]
    return b"".join(
        wire.frame_header(kind, stream, number, len(body)) + body
        for number, (kind, body) in enumerate(packets, 1)
    )


def grpc_call(stream: int, method: str, request: bytes | None, token: str = "") -> bytes:
    """Return the frames of a call by gRPC; arguments as of `drpc_call`, the ids odd."""
    more = {"authorization": f"Bearer {token}".encode()} if token else {}
    headers = call_headers(method, stream, more)
    if request is None:
        return headers
    body = b"\x00" + len(request).to_bytes(4, "big") + request
    return headers + frame(0, body, flags=END_STREAM, stream=stream)


Step = Callable[[Peer, Target], Awaitable[None]]
"""Does with one open connection what the attack does."""


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        name: of it, for the command line.
        what: is done, in few words.
        port: that it goes to.
        peers: connections at a time.
        step: what each of them does.
        pause_s: between the end of a connection and the next one.
        memory_mib_max: by which the broker may grow.
    """

    name: str
    what: str
    port: Port
    peers: int
    step: Step
    pause_s: float = 0.01
    memory_mib_max: int = 128


async def carry_out(attack: Attack, target: Target, seconds: float) -> int:
    """Attack for so long; return how many connections were made."""
    host, port = split_address(target.address(attack.port))
    tls, until, made = target.tls(attack.port), time.monotonic() + seconds, 0

    async def again_and_again() -> None:
        nonlocal made
        while time.monotonic() < until:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(_CONNECT_SECONDS):
                    reader, writer = await asyncio.open_connection(
                        host, port, ssl=tls, local_addr=(ELSEWHERE, 0)
                    )
                made += 1
                try:
                    await attack.step(Peer(reader, writer), target)
                finally:
                    writer.transport.abort()
            await asyncio.sleep(attack.pause_s)

    tasks = [asyncio.create_task(again_and_again()) for _ in range(attack.peers)]
    done, _ = await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for task in done:
        task.result()  # What an attack does wrong itself is told.
    return made
