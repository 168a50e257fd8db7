"""DRPC by hand, for what no client would do; and a look at which methods a port serves."""

import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

import grpc

from millrace.proto.v1 import (
    cluster_pb2,
    controller_pb2,
    fetch_pb2,
    groups_pb2,
    positions_pb2,
    produce_pb2,
    replica_pb2,
)
from millrace.runtime.transport.calls import Status
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.wire import Kind

MALFORMED: Final = b"\xff" * 20
"""No request of any method, so that a call to each does nothing."""
_MODULES: Final[tuple[Any, ...]] = (
    *(cluster_pb2, controller_pb2, fetch_pb2, groups_pb2),
    *(positions_pb2, produce_pb2, replica_pb2),
)


def all_methods() -> set[str]:
    """Return the methods of all services, by path."""
    return {
        f"/{service.full_name}/{method.name}"
        for module in _MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }


def frame(kind: int, stream: int, message: int, body: bytes = b"", **more: Any) -> bytes:
    """Return a packet of one frame."""
    return wire.frame_header(kind, stream, message, len(body), **more) + body


def unfinished(kind: int, stream: int, message: int, body: bytes = b"") -> bytes:
    """Return a frame that is not the last one of its packet."""
    made = bytearray(frame(kind, stream, message, body))
    made[0] &= ~1
    return bytes(made)


def invoke(method: str, stream: int = 1) -> bytes:
    """Return the packet that begins a call."""
    return frame(Kind.INVOKE, stream, 1, method.encode())


class DrpcByHand:
    """One connection that sends what the test wants sent.

    Args:
        address: `host:port`.
        source: the address that it comes from.
    """

    def __init__(self, address: str, source: str = "127.0.0.1") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection(
            (host, int(port)), timeout=10, source_address=(source, 0)
        )
        self._read = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, *frames: bytes) -> bool:
        """Send bytes; return whether the peer still takes any."""
        try:
            self.socket.sendall(b"".join(frames))
        except OSError:
            return False
        return True

    def packet(self) -> tuple[int, int, bytes]:
        """Return the next packet but signs of life: its kind, its stream, its body."""
        while True:
            header = wire.parse_header(self._read, 0, len(self._read))
            if header is not None and len(self._read) >= header.payload_at + header.length:
                end = header.payload_at + header.length
                body = bytes(self._read[header.payload_at : end])
                del self._read[:end]
                if header.kind != Kind.KEEP_ALIVE:
                    return header.kind, header.stream, body
                continue
            more = self.socket.recv(1 << 16)
            if not more:
                raise ConnectionError("the broker closed the connection")
            self._read += more

    def call(self, method: str, request: bytes, stream: int = 1) -> tuple[int, bytes]:
        """Make a call with one request; return the kind and the body of what answers it."""
        self.send(invoke(method, stream), frame(Kind.MESSAGE, stream, 2, request))
        self.send(frame(Kind.CLOSE_SEND, stream, 3))
        while True:
            kind, of, body = self.packet()
            if of == stream and kind != Kind.ERROR_DETAILS:
                return kind, body

    def is_closed_within(self, seconds: float) -> bool:
        """Read until the peer closes; return whether it did in time."""
        self.socket.settimeout(seconds)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            pass
        return True


def served_by_drpc(address: str) -> set[str]:
    """Return the methods that a port of DRPC serves."""
    served = set()
    with DrpcByHand(address) as connection:
        for stream, method in zip(itertools.count(1), sorted(all_methods()), strict=False):
            kind, body = connection.call(method, MALFORMED, stream)
            if kind != Kind.ERROR or int.from_bytes(body[:8], "big") != Status.UNIMPLEMENTED:
                served.add(method)
    return served


def served_by_grpc(address: str) -> set[str]:
    """Return the methods that a port of gRPC serves."""
    served = set()
    with grpc.insecure_channel(address) as channel:
        for method in sorted(all_methods()):
            open_stream: Any = channel.stream_stream(method)
            call = open_stream(iter([MALFORMED]), timeout=20)
            with suppress(grpc.RpcError):
                next(call)
            if call.code() is not grpc.StatusCode.UNIMPLEMENTED:
                served.add(method)
    return served


def listening_ports(pid: int) -> Iterator[int]:
    """Yield the ports of TCP that a process listens on."""
    own = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):
            own.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                yield int(fields[1].rpartition(":")[2], 16)
