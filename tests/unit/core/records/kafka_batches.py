"""Records of Kafka's batches, written byte by byte: with it every number can be made wrong."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_END = 21
"""Where the bytes begin that Kafka's checksum covers."""


class Record(NamedTuple):
    """What a producer gives Kafka's client."""

    timestamp_delta: int = 0
    offset_delta: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()


def varint(number: int, length: int = 1) -> bytes:
    """Return a zigzag varint of at least `length` bytes."""
    raw = number << 1 if number >= 0 else ~(number << 1)
    written = bytearray()
    while raw > 127 or len(written) < length - 1:
        written.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*written, raw])


def cell(content: bytes | None) -> bytes:
    """Return a key, a value or a header's name."""
    return varint(-1) if content is None else varint(len(content)) + content


def fields(record: Record) -> list[bytes]:
    """Return the fields of a record behind its length, to make one of them wrong."""
    entries = [part for name, value in record.headers for part in (cell(name), cell(value))]
    return [
        b"\0",
        varint(record.timestamp_delta),
        varint(record.offset_delta),
        cell(record.key),
        cell(record.value),
        varint(len(record.headers)),
        *entries,
    ]


def sized(content: bytes) -> bytes:
    """Return what a record's length and content are."""
    return varint(len(content)) + content


def encoded(record: Record) -> bytes:
    """Return a record."""
    return sized(b"".join(fields(record)))


def batch(
    records: bytes,
    count: int,
    *,
    attributes: int = 0,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    leader_epoch: int = -1,
    base_timestamp: int = 0,
    max_timestamp: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Return a whole batch of records that are encoded, and compressed as `attributes` say."""
    covered = HEADER.pack(
        base_offset,
        HEADER.size - 12 + len(records),
        leader_epoch,
        2,
        0,
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    crc = crc32c.crc32c(covered[CRC_END:] + records)
    return covered[:17] + struct.pack(">I", crc) + covered[CRC_END:] + records
