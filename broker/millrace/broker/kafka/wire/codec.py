"""Kafka's messages: made from Kafka's own schemas by kafka-python, behind bounds of our own.

kafka-python decodes for clients, which trust their brokers. So a request is walked through first,
by the same schemas, and nothing is made of it: every length and number has to fit into what came,
and the entries of all its arrays together are bounded, as are its tagged fields, each of which
costs kafka-python a copy of the rest (`check_arrays`). Only then it is decoded.

The classes are those of the newest schemas, and one class has all versions of a message; which ones
are served is said in `requests`.

Source: the format is that of Kafka's message schemas; KIP-482 for tagged fields, KIP-893 for
structs that may be missing.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from kafka.protocol import admin, consumer, metadata, producer, sasl
from kafka.protocol.api_message import ApiMessage

from millrace.broker.kafka.wire import consumer_group_messages
from millrace.core.errors import MalformedRequestError
from millrace.core.records.header import Buffer

_VARINT_BYTES_MAX: Final = 5
_VARINT_BITS: Final = 7
_VARINT_MAX: Final = 0x7F
_VARINT_MORE: Final = 0x80
"""Bits of a byte of a number, the largest in one byte, and the bit that says that more follow."""
_TAGS_MAX: Final = 64
"""Tagged fields of a request. No client sends more than a few."""
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


@dataclass(slots=True)
class _Budget:
    """What a request may still have.

    Attributes:
        end: where its bytes end.
        entries: of arrays.
        tags: tagged fields.
    """

    end: int
    entries: int
    tags: int = _TAGS_MAX


_Walk = Callable[[memoryview, int, _Budget], int]
"""Walks over a field: takes where it begins, returns where it ends."""


def request_class(key: int) -> Any:
    """Return the class of a request's messages by its number."""
    return _classes()[key, True]


def response_class(key: int) -> Any:
    """Return the class of a response's messages by the number of its request."""
    return _classes()[key, False]


def name_of(key: int) -> str:
    """Return the name of a request, for people and metrics."""
    return str(request_class(key).name).removesuffix("Request")


def is_flexible(key: int, version: int) -> bool:
    """Whether a version of a request has tagged fields, and compact lengths."""
    return bool(request_class(key).flexible_version_q(version))


def decode_request(key: int, version: int, body: memoryview, entries_max: int) -> Any:
    """Return the message of a request.

    Args:
        key: which request it is.
        version: of its format.
        body: its bytes, after the header.
        entries_max: of all its arrays together.

    Raises:
        MalformedRequestError: it is no such message, or has too many entries.
    """
    found = request_class(key)
    check_arrays(found, version, body, entries_max)
    try:
        return found.decode(body, version=version)
    except (ValueError, IndexError, AssertionError, struct.error) as error:
        raise MalformedRequestError(f"{found.name} v{version} cannot be read: {error}") from None


def encode_response(message: Any, version: int) -> Buffer:
    """Return the bytes of a response, after its header."""
    encoded: Buffer = message.encode(version=version)
    return encoded


class ListEncoder:
    """Encodes a response whose last field is a long list, an entry at a time.

    A whole message would keep the loop for as long as all its entries take together.

    Args:
        message: the response, without entries.
        field: the list.
        version: of the format.

    Attributes:
        size: bytes of the entries so far, and of the rest.
    """

    def __init__(self, message: Any, field: str, version: int) -> None:
        self._message = message
        self._field = field
        self._version = version
        self._is_flexible = bool(type(message).flexible_version_q(version))
        setattr(message, field, [])
        # An empty list is encoded as its length. The number of tagged fields may follow.
        empty = bytes(message.encode(version=version))
        self._head = empty[:-2] if self._is_flexible else empty[: -_INT32.size]
        self._begin = len(empty) - 1 if self._is_flexible else len(empty)
        self._entries: list[bytes] = []
        self.size = len(empty)

    def add(self, entry: Any) -> None:
        """Add an entry."""
        setattr(self._message, self._field, [entry])
        encoded = bytes(self._message.encode(version=self._version))
        part = encoded[self._begin : -1] if self._is_flexible else encoded[self._begin :]
        self._entries.append(part)
        self.size += len(part)

    def parts(self) -> list[Buffer]:
        """Return the bytes of the response, after its header."""
        count = len(self._entries)
        if not self._is_flexible:
            return [self._head, _INT32.pack(count), *self._entries]
        length, rest = bytearray(), count + 1
        while rest > _VARINT_MAX:
            length.append(rest & _VARINT_MAX | _VARINT_MORE)
            rest >>= _VARINT_BITS
        length.append(rest)
        return [self._head, bytes(length), *self._entries, b"\0"]


def check_arrays(message_class: Any, version: int, body: memoryview, entries_max: int) -> None:
    """Check that all lengths and numbers of a message fit into its bytes, before it is decoded.

    Args:
        message_class: of kafka-python.
        version: of its format.
        body: its bytes, after the header.
        entries_max: of all its arrays together.

    Raises:
        MalformedRequestError: one does not, or there are too many entries.
    """
    walk = _walk_of(message_class, version)
    try:
        walk(body, 0, _Budget(len(body), entries_max))
    except (IndexError, struct.error):
        raise MalformedRequestError(f"{message_class.name} v{version} is cut short") from None


@cache
def _classes() -> dict[tuple[int, bool], Any]:
    """Return the classes of all messages, by the number of the request and whether they are one."""
    return {
        (found.API_KEY, found.type == "request"): found
        for module in (admin, consumer, metadata, producer, sasl, consumer_group_messages)
        for name in dir(module)
        if isinstance(found := getattr(module, name), type)
        and issubclass(found, ApiMessage)
        and found is not ApiMessage
    }


@cache
def _walk_of(message_class: Any, version: int) -> _Walk:
    is_compact = bool(message_class.flexible_version_q(version))
    return _struct_walk(message_class._struct, version, is_compact)


def _struct_walk(field: Any, version: int, is_compact: bool) -> _Walk:
    walks: list[_Walk] = []
    fixed = 0
    for inner in field.untagged_fields(version):
        if (size := _size_of(inner)) is not None:
            fixed += size
            continue
        if fixed:
            walks.append(_fixed(fixed))
            fixed = 0
        walks.append(_field_walk(inner, version, is_compact))
    if fixed:
        walks.append(_fixed(fixed))
    if is_compact:
        known = {
            tag: _field_walk(inner, version, is_compact)
            for tag, inner in field.tagged_fields(version)._tags.items()
        }
        walks.append(_tags_walk(known))
    return _sequence(walks)


def _size_of(field: Any) -> int | None:
    """Return the bytes of a field that always has the same number; None: it does not."""
    if field.is_array() or field.is_struct():
        return None
    size = field._type.size
    return size if isinstance(size, int) else None


def _field_walk(field: Any, version: int, is_compact: bool) -> _Walk:
    is_nullable = field.nullable_for_version_q(version)
    if field.is_array():  # An array of structs is one, too.
        inner = field.array_of
        size = _size_of(inner)
        item = _fixed(size) if size is not None else _field_walk(inner, version, is_compact)
        return _array(item, field.name, is_compact=is_compact, is_nullable=is_nullable)
    if field.is_struct():
        walk = _struct_walk(field, version, is_compact)
        return _perhaps(walk) if is_nullable else walk
    if (size := _size_of(field)) is not None:
        return _fixed(size)
    has_short_length = field.type_str == "string"
    return _sized(
        field.name, is_compact=is_compact, is_short=has_short_length, is_nullable=is_nullable
    )


def _sequence(walks: list[_Walk]) -> _Walk:
    if len(walks) == 1:
        return walks[0]

    def walk(data: memoryview, at: int, budget: _Budget) -> int:
        for each in walks:
            at = each(data, at, budget)
        return at

    return walk


def _fixed(size: int) -> _Walk:
    def walk(data: memoryview, at: int, budget: _Budget) -> int:
        at += size
        if at > budget.end:
            raise IndexError
        return at

    return walk


def _perhaps(present: _Walk) -> _Walk:
    def walk(data: memoryview, at: int, budget: _Budget) -> int:
        if data[at] == 0xFF:
            return at + 1
        return present(data, at + 1, budget)

    return walk


def _sized(name: str, *, is_compact: bool, is_short: bool, is_nullable: bool) -> _Walk:
    def walk(data: memoryview, at: int, budget: _Budget) -> int:
        if is_compact:
            length, at = _varint(data, at)
            length -= 1
        elif is_short:
            (length,) = _INT16.unpack_from(data, at)
            at += 2
        else:
            (length,) = _INT32.unpack_from(data, at)
            at += 4
        if length < 0:
            _check_null(name, length, is_nullable)
            return at
        at += length
        if at > budget.end:
            raise IndexError
        return at

    return walk


def _array(item: _Walk, name: str, *, is_compact: bool, is_nullable: bool) -> _Walk:
    def walk(data: memoryview, at: int, budget: _Budget) -> int:
        if is_compact:
            count, at = _varint(data, at)
            count -= 1
        else:
            (count,) = _INT32.unpack_from(data, at)
            at += 4
        if count < 0:
            _check_null(name, count, is_nullable)
            return at
        if count > budget.end - at:  # Each has a byte at least.
            raise IndexError
        budget.entries -= count
        if budget.entries < 0:
            raise MalformedRequestError(
                f"the request has more entries than limits.request_entries_max allows, in {name}: "
                "send several requests"
            )
        for _ in range(count):
            at = item(data, at, budget)
        return at

    return walk


def _tags_walk(known: dict[int, _Walk]) -> _Walk:
    def walk(data: memoryview, at: int, budget: _Budget) -> int:
        if not data[at]:
            return at + 1
        count, at = _varint(data, at)
        budget.tags -= count
        if budget.tags < 0:
            raise MalformedRequestError(f"a request has {_TAGS_MAX} tagged fields at most")
        for _ in range(count):
            tag, at = _varint(data, at)
            size, at = _varint(data, at)
            end = at + size
            if end > budget.end:
                raise IndexError
            inner = known.get(tag)
            if inner is not None and inner(data, at, budget) != end:
                raise MalformedRequestError(f"the tagged field {tag} has not the length it says")
            at = end
        return at

    return walk


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """Return an unsigned number of up to 32 bits, and where it ends."""
    value = data[at]
    if value < 0x80:
        return value, at + 1
    value &= 0x7F
    for count in range(1, _VARINT_BYTES_MAX):
        byte = data[at + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < 0x80:
            if value > 0xFFFF_FFFF:
                break
            return value, at + count + 1
    raise MalformedRequestError("a number has more than 32 bits")


def _check_null(name: str, length: int, is_nullable: bool) -> None:
    if length < -1 or not is_nullable:
        raise MalformedRequestError(f"{name} has the length {length}")
