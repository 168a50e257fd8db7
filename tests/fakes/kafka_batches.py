"""Kafka's record batches (version 2) by hand: honest ones, and what no honest client sends.

An encoder of its own, by Kafka's description of the format, that shares nothing with the product's.
"""

import gzip
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import crc32c
import pyarrow as pa

TRANSACTIONAL = 0x10
NOON = 1_700_000_000_000

FIELDS = {
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "crc": (17, ">I"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}
"""Where each field of the header stands, and its type in `struct`."""
HEADER_BYTES = 61
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True, slots=True)
class Record:
    """One record; its time is milliseconds since 1970, -1 for none."""

    value: bytes | None = b"value"
    key: bytes | None = None
    timestamp: int = NOON
    headers: Sequence[tuple[str, bytes | None]] = field(default=())


def varint(number: int) -> bytes:
    """Return a number as zigzag varint."""
    raw = (number << 1) ^ (number >> 63)
    raw &= (1 << 64) - 1
    out = bytearray()
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def cell(data: bytes | None) -> bytes:
    """Return bytes after their length; -1: null."""
    return varint(-1) if data is None else varint(len(data)) + data


def encoded(record: Record, offset_delta: int, base_timestamp: int) -> bytes:
    """Return a record as it lies in a batch."""
    rest = b"\0" + varint(record.timestamp - base_timestamp) + varint(offset_delta)
    rest += cell(record.key) + cell(record.value) + varint(len(record.headers))
    for name, value in record.headers:
        rest += cell(name.encode()) + cell(value)
    return varint(len(rest)) + rest


def xerial(data: bytes, block_bytes: int = 32 << 10) -> bytes:
    """Return data as Java's SnappyOutputStream compresses it."""
    blocks = [data[at : at + block_bytes] for at in range(0, len(data), block_bytes)]
    packed = [pa.Codec("snappy").compress(block, asbytes=True) for block in blocks]
    return (
        b"\x82SNAPPY\0"
        + struct.pack(">ii", 1, 1)
        + b"".join(struct.pack(">i", len(block)) + block for block in packed)
    )


def lz4_frame(data: bytes, block_bytes: int = 64 << 10) -> bytes:
    """Return data as one lz4 frame of blocks that do not depend on one another, as clients do."""
    blocks = [data[at : at + block_bytes] for at in range(0, len(data), block_bytes)]
    packed = [pa.Codec("lz4_raw").compress(block, asbytes=True) for block in blocks]
    return (
        bytes.fromhex("04224d18604082")
        + b"".join(struct.pack("<I", len(block)) + block for block in packed)
        + bytes(4)
    )


def compressed(codec: str, data: bytes) -> bytes:
    """Return data as clients compress it."""
    if codec == "none":
        return data
    if codec == "gzip":
        return gzip.compress(data)
    if codec == "lz4":
        return lz4_frame(data)
    return bytes(pa.Codec(codec).compress(data, asbytes=True))


def sealed(batch: bytes | bytearray) -> bytes:
    """Return a batch with the length and the checksum that fit it."""
    data = bytearray(batch)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">I", data, 17, crc32c.crc32c(data[21:]))
    return bytes(data)


def with_fields(batch: bytes, **numbers: int) -> bytes:
    """Return a batch with other numbers in its header; the checksum fits unless it is given."""
    data = bytearray(batch)
    for name, number in numbers.items():
        at, kind = FIELDS[name]
        struct.pack_into(kind, data, at, number)
    if "crc" not in numbers:
        struct.pack_into(">I", data, 17, crc32c.crc32c(data[21:]))
    return bytes(data)


def of_bytes(records: bytes, count: int, codec: str = "none", **numbers: int) -> bytes:
    """Return a batch of any bytes as its records, already compressed."""
    header = bytearray(HEADER_BYTES)
    fields: dict[str, Any] = {
        "magic": 2,
        "attributes": CODECS.index(codec),
        "last_offset_delta": count - 1,
        "base_timestamp": NOON,
        "max_timestamp": NOON,
        "producer_id": -1,
        "producer_epoch": -1,
        "base_sequence": -1,
        "record_count": count,
    }
    return with_fields(sealed(header + records), **fields | numbers)


def batch_of(records: Iterable[Record], codec: str = "none", **numbers: int) -> bytes:
    """Return a batch as an honest client sends it; `numbers` are fields of its header."""
    records = list(records)
    times = [record.timestamp for record in records]
    base = numbers.get("base_timestamp", times[0])
    data = b"".join(encoded(record, delta, base) for delta, record in enumerate(records))
    attributes = CODECS.index(codec) | numbers.pop("attributes", 0)
    fields = {"base_timestamp": base, "max_timestamp": max(times), "attributes": attributes}
    return of_bytes(compressed(codec, data), len(records), codec, **fields | numbers)


def idempotent(records: Iterable[Record], codec: str = "none", **numbers: int) -> bytes:
    """Return a batch of producer 7, epoch 1, sequence 20 on."""
    identity = {"producer_id": 7, "producer_epoch": 1, "base_sequence": 20}
    return batch_of(records, codec, **identity | numbers)
