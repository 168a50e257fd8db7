"""The bytes of `docs/protocol.md`, explained line by line.

The page keeps bytes of a real connection, recorded by `python -m tests.interop.drpc_capture`. What
stands beside them is made from the bytes alone, so it says nothing else than they do.
"""

import re
from collections.abc import Iterator
from typing import Final

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from millrace.proto.v1 import cluster_pb2, drpc_pb2, produce_pb2
from millrace.runtime.transport.calls import Status
from millrace.runtime.transport.drpc import wire
from millrace.runtime.transport.drpc.wire import Header, Kind

Chunk = tuple[str, bytes]
"""`>` for bytes of the client, `<` for bytes of the broker; the bytes."""

_BLOCK: Final = re.compile(r"^```drpc\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ROW_BYTES: Final = 16
_ROW: Final = re.compile(rf"^([<>]) ((?:[0-9a-f]{{2}} ?){{1,{_ROW_BYTES}}})", re.MULTILINE)
_VARINT: Final = 0
_DELIMITED: Final = 2
_SIGNED: Final = (FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)
_DESCRIBED: Final = (cluster_pb2.DESCRIPTOR, drpc_pb2.DESCRIPTOR, produce_pb2.DESCRIPTOR)
"""Named, so that the pool knows what they describe."""
_BODIES: Final = {
    Kind.METADATA: "millrace.proto.v1.CallMetadata",
    Kind.ERROR_DETAILS: "millrace.proto.v1.Error",
}
"""The messages that bodies are, where that does not depend on the method."""
_POOL: Final = descriptor_pool.Default()


def protocol(text: str) -> str:
    """Return the page, with its bytes explained again."""
    return _BLOCK.sub(lambda block: explained(chunks_of(block[1])), text)


def with_bytes(text: str, chunks: list[Chunk]) -> str:
    """Return the page with other bytes."""
    return _BLOCK.sub(lambda _: explained(chunks), text)


def chunks_of(page: str) -> list[Chunk]:
    """Return the bytes of the page, or of a part of it."""
    return [(side, bytes.fromhex(digits)) for side, digits in _ROW.findall(page)]


def explained(chunks: list[Chunk]) -> str:
    """Return the block of the page that explains bytes."""
    lines = [line.rstrip() for line in _lines(chunks)]
    return "\n".join(["```drpc", *lines, "```"])


def packets(chunks: list[Chunk]) -> Iterator[tuple[str, Header, bytes, bytes]]:
    """Yield the side, the header, its bytes, and the body of each packet; each has one frame."""
    left = {"<": b"", ">": b""}
    for side, chunk in chunks:
        data = left[side] + chunk
        while (header := wire.parse_header(data, 0, len(data))) is not None:
            end = header.payload_at + header.length
            if end > len(data):
                break
            assert header.control & wire.LAST, "a packet of several frames"
            yield side, header, data[: header.payload_at], data[header.payload_at : end]
            data = data[end:]
        left[side] = data
    assert not any(left.values()), "the last packet is cut"


def _lines(chunks: list[Chunk]) -> Iterator[str]:
    messages: dict[tuple[int, str], Descriptor] = {}
    for side, header, head, body in packets(chunks):
        kind = Kind(header.kind)
        name = kind.name.lower().replace("_", " ")
        if header.control & wire.IGNORABLE:
            name += ", ignorable"
        place = f"stream {header.stream}, message {header.message}"
        yield from _rows(side, head, f"{name}; {place}, {_bytes(len(body))}")
        if kind == Kind.INVOKE:
            method = _POOL.FindMethodByName(body.decode().lstrip("/").replace("/", "."))
            messages[header.stream, ">"] = method.input_type
            messages[header.stream, "<"] = method.output_type
            yield from _rows(side, body, f"  {body.decode()}")
        elif kind == Kind.ERROR:
            status = Status(int.from_bytes(body[:8], "big"))
            yield from _rows(side, body[:8], f"  status {status}, {status.name}")
            yield from _rows(side, body[8:], f"  {body[8:].decode()}")
        else:
            named = _BODIES.get(kind)
            about = _POOL.FindMessageTypeByName(named) if named else messages[header.stream, side]
            yield from _fields(side, body, about, "  ")


def _fields(side: str, body: bytes, about: Descriptor, indent: str) -> Iterator[str]:
    """Yield the lines of a message."""
    at = 0
    while at < len(body):
        begin = at
        tag, at = _varint(body, at)
        field = about.fields_by_number[tag >> 3]
        number, at = _varint(body, at)
        if tag & 7 == _VARINT:
            yield from _rows(side, body[begin:at], f"{indent}{field.name}: {_value(field, number)}")
            continue
        assert tag & 7 == _DELIMITED, field.name
        content = body[at : at + number]
        if field.message_type is not None:
            yield from _rows(side, body[begin:at], f"{indent}{field.name}: {_bytes(number)}")
            yield from _fields(side, content, field.message_type, indent + "  ")
        elif field.type == FieldDescriptor.TYPE_STRING:
            said = f"{indent}{field.name}: {content.decode()}"
            yield from _rows(side, body[begin : at + number], said)
        else:
            yield from _rows(side, body[begin:at], f"{indent}{field.name}: {_bytes(number)}")
            yield from _rows(side, content, "")
        at += number


def _value(field: FieldDescriptor, number: int) -> str:
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[number].name)
    if field.type in _SIGNED:
        number = (number >> 1) ^ -(number & 1)
    return str(bool(number)).lower() if field.type == FieldDescriptor.TYPE_BOOL else str(number)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number, at


def _rows(side: str, data: bytes, said: str) -> Iterator[str]:
    """Yield bytes in rows, the first with what it is."""
    for at in range(0, len(data), _ROW_BYTES):
        digits = data[at : at + _ROW_BYTES].hex(" ")
        yield f"{side} {digits:{3 * _ROW_BYTES}} {'' if at else said}"


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count} bytes"
