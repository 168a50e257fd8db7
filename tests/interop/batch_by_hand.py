"""A record batch from docs/format.md alone: one record, of a value that is not empty."""

import struct
from functools import reduce

_HEADER_BYTES = 96


def seal(topic_id: bytes, value: bytes, timestamp: int) -> bytes:
    """Return the batch that a producer sends."""
    column = struct.pack("<II", 0, len(value)) + value + bytes(-len(value) % 8)
    body = struct.pack("<BBHI", 3, 0, 0, len(column)) + column
    times, none = (timestamp, timestamp), -1
    head = b"MRB\1" + struct.pack(
        "<IIIIHhqi4xqqq", len(body), len(body), 1, 0, 1 << 11, none, none, none, *times, none
    )
    crc = _crc32c(topic_id + bytes(4) + head + body)
    head += struct.pack("<IiqqHH", crc, none, 0, none, 0, 0)
    return head + struct.pack("<I", _crc32c(head)) + body


def value_of(batch: bytes) -> bytes:
    """Return the value of the record."""
    (length,) = struct.unpack_from("<I", batch, _HEADER_BYTES + 12)
    return batch[_HEADER_BYTES + 16 :][:length]


def _crc32c(data: bytes) -> int:
    bits = (byte >> at & 1 for byte in data for at in range(8))
    return ~reduce(_with_bit, bits, 0xFFFFFFFF) & 0xFFFFFFFF


def _with_bit(crc: int, bit: int) -> int:
    return crc >> 1 ^ (0x82F63B78 if (crc ^ bit) & 1 else 0)
