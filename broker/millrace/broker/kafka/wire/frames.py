"""Frames of Kafka's protocol: four bytes of length, a header, and a body.

A request's header has the number of the request, the version of its format, a number that the
answer repeats, and how the client calls itself. An answer's header has that number alone. Those of
flexible versions have tagged fields after it, but for the answer to ApiVersions, which a client has
to read before it knows what the broker speaks.

Source: KIP-482, KIP-511; Kafka's RequestHeader.json and ResponseHeader.json.
"""

import struct
from typing import Final, NamedTuple

from millrace.core.errors import MalformedRequestError
from millrace.runtime.transport.frames import Frame, FrameError

LENGTH_BYTES: Final = 4
_REQUEST: Final = struct.Struct(">hhih")
"""The number of the request, its version, the number to repeat, the length of the client id."""
_LENGTH: Final = struct.Struct(">i")
_ANSWER: Final = struct.Struct(">ii")
_TAGS_BYTES_MAX: Final = 1024
"""Of the tagged fields of a header, of which there are none so far."""
_OTHER_PROTOCOLS: Final = {
    b"\x16\x03": "TLS: this port is in plain text",
    b"GET ": "HTTP: clients of Kafka connect here",
    b"POST": "HTTP: clients of Kafka connect here",
    b"PRI ": "gRPC: clients of Millrace connect to another port",
}


class RequestHeader(NamedTuple):
    """The header of a request.

    Attributes:
        key: which request it is.
        version: of its format.
        correlation_id: the answer repeats it.
        client_id: how the client calls itself; empty: it does not say.
        rest_at: where the header goes on, or the body begins.
    """

    key: int
    version: int
    correlation_id: int
    client_id: str
    rest_at: int


def parse_length(data: bytes | bytearray, at: int, end: int, bytes_max: int) -> Frame | None:
    """Return where a frame begins, and how long it is; None: its length is incomplete.

    Args:
        data: what was read.
        at: where the length begins.
        end: where the known bytes end.
        bytes_max: of a frame.

    Raises:
        FrameError: it has too many, or too few for a header.
    """
    if end - at < LENGTH_BYTES:
        return None
    (length,) = _LENGTH.unpack_from(data, at)
    if _REQUEST.size <= length <= bytes_max:
        return at + LENGTH_BYTES, length
    begin = bytes(data[at : at + LENGTH_BYTES])
    for known, words in _OTHER_PROTOCOLS.items():
        if begin.startswith(known):
            raise FrameError(f"the other side speaks {words}")
    if length < _REQUEST.size:
        raise FrameError(f"a request has {length} bytes")
    raise FrameError(f"a request has {length} bytes, and {bytes_max} are allowed")


def parse_request_header(frame: memoryview) -> RequestHeader:
    """Return the header of a request, without its tagged fields.

    Raises:
        MalformedRequestError: it is none.
    """
    key, version, correlation_id, length = _REQUEST.unpack_from(frame)
    at = _REQUEST.size
    if length < 0:
        return RequestHeader(key, version, correlation_id, "", at)
    end = at + length
    if end > len(frame):
        raise MalformedRequestError("the header of a request is cut short")
    client_id = bytes(frame[at:end]).decode(errors="replace")
    return RequestHeader(key, version, correlation_id, client_id, end)


def after_tags(frame: memoryview, at: int) -> int:
    """Return where the body of a flexible request begins.

    Args:
        frame: the request.
        at: where the tagged fields of its header begin.

    Raises:
        MalformedRequestError: they are none.
    """
    found = bytes(frame[at : at + _TAGS_BYTES_MAX])
    if found[:1] == b"\0":  # As all clients send it.
        return at + 1
    place = 0

    def number() -> int:
        nonlocal place
        value = shift = 0
        while shift < 32:
            byte = found[place]
            place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise IndexError

    try:
        for _ in range(number()):
            number()
            place += number()
            if place > len(found):
                raise IndexError
    except IndexError:
        raise MalformedRequestError("the tagged fields of a request's header are broken") from None
    return at + place


def answer_header(correlation_id: int, size: int, *, has_tags: bool) -> bytes:
    """Return the length and the header of an answer.

    Args:
        correlation_id: of the request.
        size: bytes of its body.
        has_tags: whether its header has tagged fields.
    """
    if has_tags:
        return _ANSWER.pack(size + 5, correlation_id) + b"\0"
    return _ANSWER.pack(size + 4, correlation_id)


def framed(said: bytes) -> tuple[bytes, bytes]:
    """Return what is sent without a header, with its length."""
    return _LENGTH.pack(len(said)), said
