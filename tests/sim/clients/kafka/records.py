"""Kafka's record batches as a client of the simulator reads them, by Kafka's description alone.

It shares nothing with the product's decoder. Each batch is verified: its checksum, its size, and
that its offsets follow those before; a broker that sends anything else breaks its promise.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import crc32c
import pyarrow as pa

_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = _HEAD.size
_CRC_FROM: Final = 21
_LENGTH_FROM: Final = 12
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_XERIAL: Final = b"\x82SNAPPY\0"
_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_MARKER: Final = struct.Struct(">hh")
_COMMITS: Final = 1


class BrokenBatchError(Exception):
    """What a broker sent is no batch of Kafka's."""


class KafkaRecord(NamedTuple):
    """One record; its time is in milliseconds, -1 for none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class KafkaBatch:
    """One batch.

    Attributes:
        last_offset: of the batch, whether there is such a record or not.
        records: that are left of it.
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    producer_id: int
    is_transactional: bool
    is_control: bool
    records: tuple[KafkaRecord, ...]

    @property
    def is_commit(self) -> bool:
        """Whether a batch of control says that a transaction is committed."""
        key = self.records[0].key
        assert key is not None
        _, kind = _MARKER.unpack_from(key)
        return bool(kind == _COMMITS)


def batches_in(data: bytes) -> Iterator[KafkaBatch]:
    """Return the batches of an answer; the last one may be cut short, as Kafka's may be.

    Raises:
        BrokenBatchError: one is none.
    """
    at = 0
    while len(data) - at >= _LENGTH_FROM:
        (length,) = struct.unpack_from(">i", data, at + 8)
        end = at + _LENGTH_FROM + length
        if end > len(data):
            return
        yield _batch(data[at:end])
        at = end


@lru_cache(maxsize=4096)
def _batch(data: bytes) -> KafkaBatch:
    (
        base_offset,
        _,
        leader_epoch,
        magic,
        crc,
        attributes,
        last_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        _,
        _,
        count,
    ) = _HEAD.unpack_from(data)
    if magic != 2:
        raise BrokenBatchError(f"magic is {magic}")
    if crc32c.crc32c(data[_CRC_FROM:]) != crc:
        raise BrokenBatchError(f"the checksum of the batch at {base_offset} does not hold")
    body = _inflated(_CODECS[attributes & 7], data[HEADER_BYTES:])
    has_append_time = bool(attributes & _APPEND_TIME)
    records: list[KafkaRecord] = []
    at = 0
    for _ in range(count):
        record, at = _record(body, at, base_offset, base_timestamp)
        if has_append_time:
            record = record._replace(timestamp=max_timestamp)
        if records and record.offset <= records[-1].offset:
            raise BrokenBatchError(f"offset {record.offset} follows {records[-1].offset}")
        records.append(record)
    if at != len(body):
        raise BrokenBatchError(f"{len(body) - at} bytes are after the records at {base_offset}")
    last_offset = base_offset + last_delta
    if records and not base_offset <= records[0].offset <= records[-1].offset <= last_offset:
        raise BrokenBatchError(f"the batch {base_offset} to {last_offset} has other offsets")
    return KafkaBatch(
        base_offset,
        last_offset,
        leader_epoch,
        producer_id,
        bool(attributes & _TRANSACTIONAL),
        bool(attributes & _CONTROL),
        tuple(records),
    )


def _inflated(codec: str, data: bytes) -> bytes:
    if codec == "none":
        return data
    if codec == "snappy":
        return b"".join(_unsnapped(block) for block in _snappy_blocks(data))
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        return bytes(stream.read())


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """Return the blocks of data that Java's SnappyOutputStream has written, or the only one."""
    if not data.startswith(_XERIAL):
        yield data
        return
    at = len(_XERIAL) + 8  # Two versions.
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def _unsnapped(block: bytes) -> bytes:
    size = shift = 0
    for byte in block:  # The inflated length comes first.
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return bytes(pa.Codec("snappy").decompress(block, decompressed_size=size))


def _record(data: bytes, at: int, base_offset: int, base_timestamp: int) -> tuple[KafkaRecord, int]:
    size, at = _varint(data, at)
    end = at + size
    at += 1  # Attributes.
    time_delta, at = _varint(data, at)
    offset_delta, at = _varint(data, at)
    key, at = _cell(data, at)
    value, at = _cell(data, at)
    headers, at = _varint(data, at)
    for _ in range(headers):
        _, at = _cell(data, at)
        _, at = _cell(data, at)
    if at != end:
        raise BrokenBatchError(f"a record ends at {at}, and not at {end}")
    return KafkaRecord(base_offset + offset_delta, base_timestamp + time_delta, key, value), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7


def _cell(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    if size < 0:
        return None, at
    return data[at : at + size], at + size
