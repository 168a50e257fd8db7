"""Ready-made serializers and deserializers; any callable from and to `bytes` will do as well.

    producer = Producer("localhost:7092", key_serializer=from_str, value_serializer=from_json)
    consumer = Consumer("localhost:7092", key_deserializer=to_str, value_deserializer=to_json)

They are never called with None: a missing key or value is null in the log. One that raises fails
its record alone, with `SerializationError`.
"""

import json
import struct
from collections.abc import Callable
from typing import Any, Final

Serializer = Callable[[Any], bytes]
Deserializer = Callable[[bytes], Any]

_INT64: Final = struct.Struct(">q")


def from_bytes(value: bytes | bytearray | memoryview) -> bytes:
    """Return the bytes as they are.

    Raises:
        TypeError: not bytes.
    """
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError(f"bytes are wanted, not {type(value).__name__}")
    return bytes(value)


def to_bytes(data: bytes) -> bytes:
    """Return the bytes as they are."""
    return data


def from_str(value: str) -> bytes:
    """Return the text as UTF-8."""
    return value.encode()


def to_str(data: bytes) -> str:
    """Return the UTF-8 as text."""
    return data.decode()


def from_int64(value: int) -> bytes:
    """Return the number as 8 bytes, big-endian, as Kafka's `LongSerializer` does."""
    return _INT64.pack(value)


def to_int64(data: bytes) -> int:
    """Return the number of 8 bytes, big-endian."""
    return int(_INT64.unpack(data)[0])


def from_json(value: Any) -> bytes:
    """Return the value as compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def to_json(data: bytes) -> Any:
    """Return the value that the JSON stands for."""
    return json.loads(data)
