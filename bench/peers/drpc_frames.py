"""Bare DRPC frames (storj.io/drpc) between two Python processes on uvloop: the ceiling for a broker
in Python over this carrier.

`python -m bench.peers.drpc_frames server CERTIFICATE` first prints its port, and serves until it is
ended; `... client CERTIFICATE DIRECTION ADDRESS SIZE SECONDS` moves messages of SIZE bytes in one
direction for SECONDS and prints one JSON line. CERTIFICATE is a file with a key and a certificate,
for TLS 1.3, or `plain`. DIRECTION is produce (client to server, an answer for each message) or
fetch. A server also echoes (`bench.loads.many_clients`). Messages are random bytes that neither
side reads: no protobuf, no checksum, no file.

A frame is a control byte (bit 0: the packet's last frame; bits 1 to 6: its kind; bit 7: a reader
that does not know the kind ignores the packet), then stream id, message id and length as varints,
then the payload. A reader takes a header together with what follows it; the rest of a long payload
goes from the kernel into a buffer of its own. None of this is the product's code, so that a fault
of the product's frames does not lower their ceiling.
"""

import asyncio
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import IntEnum
from functools import partial
from typing import cast

import uvloop

SERVICE = "bench.Stream"
PLAIN = "plain"
READ_AHEAD_BYTES = 16 << 10
WRITE_BUFFER_BYTES = 4 << 20
COPIED_BYTES_MAX = 1 << 10
"""Up to here, a slice of the read-ahead buffer is copied by way of another one: that is quicker."""
HEADER_BYTES_MAX = 1 + 3 * 10
PACKET_BYTES_MAX = 64 << 20
STREAM_ID = 1
"""Each connection carries one call."""
ANSWER = b"appended at 0"
DONE, IGNORABLE = 1, 1 << 7


class Kind(IntEnum):
    """Kinds of packets."""

    INVOKE = 1
    MESSAGE = 2
    ERROR = 3
    CANCEL = 4
    CLOSE = 5
    CLOSE_SEND = 6
    METADATA = 7


KINDS: dict[int, Kind] = {kind.value: kind for kind in Kind}


class FrameError(Exception):
    """The other side broke the protocol, or ended the call with an error."""


class Connection(asyncio.BufferedProtocol):
    """One connection with one call, seen from either side.

    Args:
        received: is called with each packet that is whole: its kind and its body.
        lost: is called once the connection is gone.
    """

    def __init__(
        self,
        received: Callable[["Connection", Kind, bytes | bytearray], None],
        lost: Callable[[], object] = lambda: None,
    ) -> None:
        self._received = received
        self._lost = lost
        self._room = asyncio.Event()
        self._room.set()
        self._sent = 0
        self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        self._ahead_bytes = 0
        self._payload: bytearray | None = None
        """That of the frame at hand, where it did not fit into the read-ahead buffer."""
        self._payload_view = self._ahead[:0]
        self._payload_bytes = 0
        self._control = 0
        self._packet = bytearray()
        """The earlier frames of the packet at hand."""
        self._place = (0, 0)
        self.transport: asyncio.Transport

    def invoke(self, method: str, metadata: Mapping[str, str]) -> None:
        """Begin the call, as a client."""
        if metadata:
            self.send_packet(Kind.METADATA, b"".join(map(_map_entry, metadata.items())))
        self.send_packet(Kind.INVOKE, method.encode())

    def send(self, message: bytes) -> None:
        """Send a message; the caller has waited for `room`."""
        self.send_packet(Kind.MESSAGE, message)

    def send_packet(self, kind: Kind, body: bytes = b"") -> None:
        """Send a packet as one frame."""
        self._sent += 1
        header = bytearray((kind << 1 | DONE, STREAM_ID))
        _put_varint(header, self._sent)
        _put_varint(header, len(body))
        self.transport.writelines([header, body])

    async def room(self) -> None:
        """Wait until little enough is unsent."""
        await self._room.wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the socket."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def connection_lost(self, error: Exception | None) -> None:
        """Let all who wait for room go on: what they write goes nowhere."""
        self._room.set()
        self._lost()

    def pause_writing(self) -> None:
        """Much is unsent."""
        self._room.clear()

    def resume_writing(self) -> None:
        """Little is unsent."""
        self._room.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where the next bytes belong."""
        if self._payload is not None:
            return self._payload_view[self._payload_bytes :]
        return self._ahead[self._ahead_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        """Take the bytes that came."""
        if self._payload is None:
            self._ahead_bytes += nbytes
            self._take_frames()
            return
        self._payload_bytes += nbytes
        if self._payload_bytes == len(self._payload):
            payload, self._payload, self._payload_view = self._payload, None, self._ahead[:0]
            self._on_frame(payload)

    def _take_frames(self) -> None:
        """Take all frames of the read-ahead buffer, and begin the payload of an unfinished one."""
        ahead, end, at = self._ahead, self._ahead_bytes, 0
        while end - at >= 4:
            self._control = ahead[at]
            values, body = _varints(ahead, at + 1, end)
            if len(values) < 3:
                assert end - at < HEADER_BYTES_MAX, "varints without end"
                break
            stream_id, message_id, length = values
            if (stream_id, message_id) < self._place or length > PACKET_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes at {values} after {self._place}")
            self._place = (stream_id, message_id)
            if end - body < length:
                self._begin_payload(ahead[body:end], length)
                at = end
                break
            at = body + length
            payload = ahead[body:at]
            self._on_frame(payload.tobytes() if length > COPIED_BYTES_MAX else bytes(payload))
        rest = end - at
        if rest and at:
            ahead[:rest] = bytes(ahead[at:end])
        self._ahead_bytes = rest

    def _begin_payload(self, begun: memoryview, length: int) -> None:
        self._payload = bytearray(length)
        self._payload_view = memoryview(self._payload)
        self._payload_bytes = len(begun)
        self._payload_view[: len(begun)] = begun

    def _on_frame(self, payload: bytes | bytearray) -> None:
        if not self._control & DONE:
            self._packet += payload
            return
        if self._packet:
            self._packet += payload
            payload, self._packet = self._packet, bytearray()
        number = self._control >> 1 & 0x3F
        kind = KINDS.get(number)
        if kind is not None:
            self._received(self, kind, payload)
        elif not self._control & IGNORABLE:
            raise FrameError(f"a packet of the unknown kind {number}")


async def open_call(
    address: str,
    method: str,
    received: Callable[[Connection, Kind, bytes | bytearray], None],
    lost: Callable[[], object] = lambda: None,
    *,
    metadata: Mapping[str, str] = {},
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Connect, and begin a call; see `Connection`."""
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(
        partial(Connection, received, lost), host, int(port), ssl=tls
    )
    connection.invoke(method, metadata)
    return connection


def tls_context(certificate: str, purpose: ssl.Purpose) -> ssl.SSLContext | None:
    """Return TLS 1.3 by a file with a key and a certificate that both sides have; None: no TLS."""
    if certificate == PLAIN:
        return None
    context = ssl.create_default_context(purpose, cafile=certificate)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if purpose is ssl.Purpose.CLIENT_AUTH:
        context.load_cert_chain(certificate)
    return context


def main(arguments: list[str]) -> None:
    """Run the role that the command line names."""
    role, certificate, *rest = arguments
    if role == "server":
        uvloop.run(_serve(tls_context(certificate, ssl.Purpose.CLIENT_AUTH)))
        return
    direction, address, size, seconds = rest
    tls = tls_context(certificate, ssl.Purpose.SERVER_AUTH)
    messages, elapsed, cpu = uvloop.run(_move(tls, direction, address, int(size), float(seconds)))
    moved = {"bytes": messages * int(size), "records": messages, "seconds": elapsed}
    print(json.dumps({**moved, "detail": {"cpu_seconds": cpu}}))


async def _serve(tls: ssl.SSLContext | None) -> None:
    def connected() -> Connection:
        serving = _Serving()
        return Connection(serving.received, serving.lost)

    server = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0, ssl=tls)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class _Serving:
    """The server's side of one call."""

    def __init__(self) -> None:
        self._method = ""
        self._giving: asyncio.Task[None] | None = None

    def received(self, connection: Connection, kind: Kind, body: bytes | bytearray) -> None:
        if kind is Kind.INVOKE:
            self._method = body.decode().rpartition("/")[2]
        elif kind is not Kind.MESSAGE:
            return
        elif self._method == "fetch":
            self._giving = asyncio.ensure_future(_give(connection, int(body)))
        else:
            connection.send(ANSWER if self._method == "produce" else bytes(body))

    def lost(self) -> None:
        if self._giving is not None:
            self._giving.cancel()


async def _give(connection: Connection, size: int) -> None:
    message = os.urandom(size)
    while True:
        await connection.room()
        connection.send(message)
        # A connection that breaks has room without end, until the loop says that it is lost.
        await asyncio.sleep(0)


async def _move(
    tls: ssl.SSLContext | None, direction: str, address: str, size: int, seconds: float
) -> tuple[int, float, float]:
    """Return how many messages arrived or were answered; the time, and CPU time, that it took."""
    moved, sent = 0, -1
    all_answered, gone = asyncio.Event(), asyncio.Event()

    def received(connection: Connection, kind: Kind, body: bytes | bytearray) -> None:
        nonlocal moved
        if kind is not Kind.MESSAGE:
            raise FrameError(f"{kind.name} {bytes(body)!r}")
        moved += 1
        if moved == sent:
            all_answered.set()

    def lost() -> None:
        gone.set()
        all_answered.set()

    connection = await open_call(address, f"/{SERVICE}/{direction}", received, lost, tls=tls)
    started, cpu_started = time.perf_counter(), time.process_time()
    if direction == "produce":
        message, count = os.urandom(size), 0
        while time.perf_counter() - started < seconds and not gone.is_set():
            await connection.room()
            connection.send(message)
            count += 1
        sent = count
        if moved < sent:
            await all_answered.wait()
    else:
        connection.send(str(size).encode())
        # uvloop's timers may be up to a millisecond early.
        while (left := started + seconds - time.perf_counter()) > 0 and not gone.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), left)
    elapsed, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    if gone.is_set():
        raise FrameError("the server has ended the connection")
    connection.transport.abort()
    return moved, elapsed, cpu_seconds


def _map_entry(entry: tuple[str, str]) -> bytes:
    """Return an entry of a protobuf map of texts, field 1 of its message."""
    written = bytearray()
    for tag, text in zip((0x0A, 0x12), entry, strict=True):
        written.append(tag)
        _put_varint(written, len(text.encode()))
        written += text.encode()
    header = bytearray((0x0A,))
    _put_varint(header, len(written))
    return bytes(header + written)


def _put_varint(buffer: bytearray, value: int) -> None:
    while value > 0x7F:
        buffer.append(value & 0x7F | 0x80)
        value >>= 7
    buffer.append(value)


def _varints(buffer: memoryview, at: int, end: int) -> tuple[list[int], int]:
    """Return the three numbers of a header and where they end; fewer if some are not there yet."""
    values: list[int] = []
    value = shift = 0
    while at < end and len(values) < 3:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    return values, at


if __name__ == "__main__":
    main(sys.argv[1:])
