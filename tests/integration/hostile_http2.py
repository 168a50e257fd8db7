"""HTTP/2 by hand, for what no gRPC library would do."""

import socket
import struct
from typing import Final, Self

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS = 1, 4
CANCEL: Final = 8


class Http2Connection:
    """One connection that sends frames without asking whether it may.

    Args:
        address: `host:port`.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def greet(self) -> None:
        """Send what begins a connection."""
        self.send(PREFACE + frame(SETTINGS))

    def send(self, data: bytes) -> bool:
        """Send bytes; return whether the peer still takes any."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

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


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Return one frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call_headers(path: str, stream: int, more: dict[str, bytes] | None = None) -> bytes:
    """Return the frame that begins a gRPC call."""
    fields = {
        ":method": b"POST",
        ":scheme": b"http",
        ":path": path.encode(),
        ":authority": b"broker",
        "te": b"trailers",
        "content-type": b"application/grpc",
        **(more or {}),
    }
    block = b"".join(
        b"\x00" + _string(name.encode()) + _string(value) for name, value in fields.items()
    )
    return frame(HEADERS, block, flags=END_HEADERS, stream=stream)


def message_frame(message: bytes, *, stream: int) -> bytes:
    """Return the frame with a gRPC message, after which no other comes."""
    prefixed = b"\x00" + struct.pack(">I", len(message)) + message
    return frame(DATA, prefixed, flags=END_STREAM, stream=stream)


def _string(text: bytes) -> bytes:
    """Return a text as HPACK has it, by its length: an integer with a prefix of 7 bits."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    length, rest = b"\x7f", len(text) - 127
    while rest >= 128:
        length += bytes([rest % 128 | 128])
        rest //= 128
    return length + bytes([rest]) + text
