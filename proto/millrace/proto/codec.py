"""The hot messages' codec: valid protobuf, without protobuf touching the records.

`ProduceRequest` and `FetchResponse` have the same shape: field 1 is a small header message, field 2
is all record batches as one byte string. The header goes through protobuf, the batches never do:
writing is a list of parts, reading is a slice. Any protobuf implementation reads and writes the
same.

An unknown client's message costs no more than its bytes: the fields outside the header are few, the
header is small, and a request names no more partitions than there can be batches. Otherwise a
message of 8 MiB made of empty fields would take minutes, or a gigabyte of partitions that are not
there.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from millrace.core.errors import MalformedRequestError
from millrace.core.records.header import HEADER_BYTES, Buffer
from millrace.proto.entries import too_many_entries
from millrace.proto.v1.fetch_pb2 import FetchHeader
from millrace.proto.v1.produce_pb2 import ProduceHeader

_HEADER_TAG: Final = 1 << 3 | 2
_BATCHES_TAG: Final = 2 << 3 | 2
_HEADER_START: Final = bytes((_HEADER_TAG,))
_BATCHES_START: Final = bytes((_BATCHES_TAG,))
_VARINT_BYTES_MAX: Final = 10
_TAG_BYTES_MAX: Final = 5
_FIELD_NUMBER_MAX: Final = 2**29 - 1
FIELDS_MAX: Final = 16
"""Fields of a message, repeated and unknown ones too; two are known."""
_SMALL_HEADER_BYTES: Final = 64 << 10
"""A header that takes two milliseconds to decode, whatever it holds."""
HEADER_MESSAGE_BYTES_MAX: Final = 1 << 20
"""Bytes of a header message: more than 10,000 partitions."""


class _WithLength(Protocol):
    @property
    def length(self) -> int: ...


def produce_request(header: ProduceHeader, batches: Iterable[Buffer]) -> list[Buffer]:
    """Return the parts of a `ProduceRequest`; batches are in the order of its partitions."""
    return _parts(header.SerializeToString(), batches)


def decode_produce_request(message: Buffer) -> tuple[ProduceHeader, list[memoryview]]:
    """Return the header and one view into `message` for each of its partitions.

    Raises:
        MalformedRequestError: no protobuf, or lengths that do not add up.
    """
    return decode_produce_parts(*split_message(message))


def decode_produce_parts(
    data: bytes, batches: memoryview
) -> tuple[ProduceHeader, list[memoryview]]:
    """As `decode_produce_request`, for a message that is split."""
    batches_max = len(batches) // HEADER_BYTES
    try:
        found = None
        if len(data) > _SMALL_HEADER_BYTES:
            found = too_many_entries(ProduceHeader.DESCRIPTOR, data, batches_max)
        if found is None:
            header = ProduceHeader.FromString(data)
            if len(header.partitions) > batches_max:
                found = f"{len(header.partitions)} partitions"
    except DecodeError as error:
        raise MalformedRequestError(f"the request's header is no protobuf: {error}") from error
    if found is not None:
        raise MalformedRequestError(
            f"the request names {found}, but {len(batches)} bytes cannot hold a batch for each"
        )
    return header, _slices(batches, header.partitions)


def fetch_response(header: FetchHeader, batches: Iterable[Buffer]) -> list[Buffer]:
    """Return the parts of a `FetchResponse`; batches are in the order of its partitions."""
    return _parts(header.SerializeToString(), batches)


def decode_fetch_response(message: Buffer) -> tuple[FetchHeader, list[memoryview]]:
    """Return the header and one view into `message` for each of its partitions.

    Raises:
        MalformedRequestError: no protobuf, or lengths that do not add up.
    """
    data, batches = split_message(message)
    try:
        header = FetchHeader.FromString(data)
    except DecodeError as error:
        raise MalformedRequestError(f"the response's header is no protobuf: {error}") from error
    return header, _slices(batches, header.partitions)


def split_message(message: Buffer) -> tuple[bytes, memoryview]:
    """Return the header message and the batches; other fields may stand between, in any order.

    Raises:
        MalformedRequestError: no protobuf.
    """
    view = memoryview(message)
    header: memoryview | None = None
    batches: memoryview | None = None
    at = fields = 0
    size = len(view)
    while at < size:
        fields += 1
        if fields > FIELDS_MAX:
            raise MalformedRequestError(f"the message has more than {FIELDS_MAX} fields")
        tag = view[at]
        if tag < 0x80:  # As nearly always.
            at += 1
        else:
            tag, at = _read_varint(view, at, _TAG_BYTES_MAX)
        wire_type = tag & 7
        if not 0 < tag >> 3 <= _FIELD_NUMBER_MAX:
            raise MalformedRequestError(f"the message has a field of the number {tag >> 3}")
        if wire_type == 0:
            _, at = _read_varint(view, at, _VARINT_BYTES_MAX)
            continue
        if wire_type == 2:
            length, at = _read_varint(view, at, _TAG_BYTES_MAX)
        elif wire_type in (1, 5):
            length = 8 if wire_type == 1 else 4
        else:
            raise MalformedRequestError(f"the message has a field of unknown wire type {wire_type}")
        if length > size - at:
            raise MalformedRequestError(
                f"the message has a field of {length} bytes where {size - at} are left"
            )
        # Protobuf would merge the parts of a message; no writer sends a header in parts.
        if tag == _HEADER_TAG:
            if header is not None:
                raise MalformedRequestError("the message has field 1 twice")
            if length > HEADER_MESSAGE_BYTES_MAX:
                raise MalformedRequestError(
                    f"the message's header has {length} bytes; the limit is "
                    f"{HEADER_MESSAGE_BYTES_MAX}"
                )
            header = view[at : at + length]
        elif tag == _BATCHES_TAG:
            if batches is not None:
                raise MalformedRequestError("the message has field 2 twice")
            batches = view[at : at + length]
        at += length
    return b"" if header is None else bytes(header), view[:0] if batches is None else batches


def field_of(number: int, message: bytes) -> bytes:
    """Return the bytes of a field with a message that is encoded already.

    A message's bytes may be joined from those of its fields.
    """
    return _varint(number << 3 | 2) + _varint(len(message)) + message


def _parts(header: bytes, batches: Iterable[Buffer]) -> list[Buffer]:
    """Return the parts of a message; joined they are it."""
    parts: list[Buffer] = [b"", *batches]
    size = sum(map(len, parts))
    parts[0] = b"".join(
        (
            _HEADER_START,
            _varint(len(header)),
            header,
            _BATCHES_START,
            _varint(size),
        )
    )
    return parts


def _varint(number: int) -> bytes:
    digits = []
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*digits, number))


def _slices(batches: memoryview, partitions: Iterable[_WithLength]) -> list[memoryview]:
    slices = []
    at = 0
    for partition in partitions:
        end = at + partition.length
        slices.append(batches[at:end])
        at = end
    if at != len(batches):
        raise MalformedRequestError(
            f"the partitions' lengths add up to {at} bytes, but {len(batches)} bytes of batches "
            "came"
        )
    return slices


def _read_varint(view: memoryview, at: int, bytes_max: int) -> tuple[int, int]:
    number = shift = 0
    for byte in view[at : at + bytes_max]:
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise MalformedRequestError("the message ends in the middle of a field, or is no protobuf")
