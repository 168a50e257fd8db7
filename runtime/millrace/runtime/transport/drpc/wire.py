"""DRPC's wire format: frames, packets, metadata and errors.

A frame is a control byte (bit 0: the last frame of its packet; bits 1 to 6: the kind; bit 7: ignore
the packet when its kind is not known), the ids of the stream and of the message in it, and the
length of the payload, as varints of 7 bits a byte, the lowest first. Ids never go back. Source:
storj.io/drpc, packages drpcwire and drpcmetadata; docs/protocol.md has what is Millrace's own.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from millrace.proto.errors import error_from_bytes
from millrace.proto.v1.drpc_pb2 import CallMetadata
from millrace.runtime.transport.calls import CallError, Metadata, Status
from millrace.runtime.transport.frames import FrameError

VARINT_BYTES_MAX: Final = 10
METADATA_BYTES_MAX: Final = 16 << 10
METHOD_BYTES_MAX: Final = 256
DEADLINE: Final = "millrace-deadline-ms"
"""Key of the metadata: how long the caller waits for the call, in ms."""
KEEP_ALIVE: Final = "millrace-keepalive-ms"
"""Likewise: how often the caller wants to hear something, in ms."""
_CODE_BYTES: Final = 8
LAST: Final = 1
"""Bit of the control byte: the last frame of its packet."""
IGNORABLE: Final = 0x80
"""Likewise: the packet is ignored where its kind is not known."""


class Kind(IntEnum):
    """Kinds of packets; those from 32 on are Millrace's own, and ignorable."""

    INVOKE = 1
    MESSAGE = 2
    ERROR = 3
    CANCEL = 4
    CLOSE = 5
    CLOSE_SEND = 6
    METADATA = 7
    ERROR_DETAILS = 32
    KEEP_ALIVE = 33
    DRAIN = 34


class Header(NamedTuple):
    """The header of a frame.

    Attributes:
        control: the first byte, with the bits `LAST` and `IGNORABLE`.
        payload_at: where the payload begins.
    """

    kind: int
    control: int
    stream: int
    message: int
    length: int
    payload_at: int


def parse_header(data: bytes | bytearray, at: int, end: int) -> Header | None:
    """Read a header; None: it is incomplete.

    Args:
        data: what was read.
        at: where the header begins.
        end: where the known bytes end.

    Raises:
        FrameError: a varint does not end, or exceeds 64 bits.
    """
    if end - at < 4:
        return None
    control, stream, message, length = data[at], data[at + 1], data[at + 2], data[at + 3]
    if not (stream | message | length) & 0x80:  # Each has one byte.
        return Header(control >> 1 & 0x3F, control, stream, message, length, at + 4)
    at += 1
    ids = []
    for _ in range(3):
        number = data[at]
        at += 1
        if number >= 0x80:
            number &= 0x7F
            shift = 7
            while True:
                if at >= end:
                    return None
                byte = data[at]
                at += 1
                number |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
                if shift >= 7 * VARINT_BYTES_MAX:
                    raise FrameError("a number in a frame's header has more than 64 bits")
            if number >> 64:
                raise FrameError("a number in a frame's header has more than 64 bits")
        ids.append(number)
        if at >= end and len(ids) < 3:
            return None
    stream, message, length = ids
    return Header(control >> 1 & 0x3F, control, stream, message, length, at)


def frame_header(
    kind: int, stream: int, message: int, length: int, *, is_ignorable: bool = False
) -> bytes:
    """Return the header of a packet of one frame."""
    header = bytearray((kind << 1 | (LAST | IGNORABLE if is_ignorable else LAST),))
    for number in (stream, message, length):
        while number >= 0x80:
            header.append(number & 0x7F | 0x80)
            number >>= 7
        header.append(number)
    return bytes(header)


def encode_metadata(metadata: Metadata) -> bytes:
    """Return the body of a metadata packet."""
    return CallMetadata(entries=metadata).SerializeToString()


def decode_metadata(body: bytes) -> dict[str, str]:
    """Return the metadata of a call.

    Raises:
        FrameError: that is no map of texts.
    """
    try:
        return dict(CallMetadata.FromString(body).entries)
    except DecodeError as error:
        raise FrameError("a call's metadata is no protobuf map of texts") from error


def encode_error(status: Status, text: str) -> bytes:
    """Return the body of an error packet."""
    return status.to_bytes(_CODE_BYTES, "big") + text.encode()


def decode_error(body: bytes, details: bytes | None) -> CallError:
    """Return the error of a call that has failed.

    Args:
        body: of the error packet.
        details: of the packet before it that names the error; None: there was none.
    """
    code, text = int.from_bytes(body[:_CODE_BYTES], "big"), body[_CODE_BYTES:]
    message = text.decode(errors="replace")
    try:
        status = Status(code)
    except ValueError:
        status = Status.UNKNOWN  # Go's error without a code has 0.
    refusal = None if details is None else error_from_bytes(details, message)
    return CallError(status, message, refusal)
