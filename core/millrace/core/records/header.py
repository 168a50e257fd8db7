"""The fixed header in front of every record batch: 96 bytes, little-endian.

| offset | size | field              | set by   | meaning                                        |
|-------:|-----:|--------------------|----------|------------------------------------------------|
|      0 |    4 | magic              | producer | `MRB` and the format version, 1 or 2           |
|      4 |    4 | stored_length      | producer | bytes of the body as stored, after compression |
|      8 |    4 | inflated_length    | producer | bytes of the body once inflated                |
|     12 |    4 | record_count       | producer | records; 0 only when a cleaner took them all   |
|     16 |    4 | last_offset_delta  | producer | last - base offset; count - 1 unless cleaned   |
|     20 |    2 | attributes         | producer | codec, kind and columns: see `Attributes`      |
|     22 |    2 | producer_epoch     | producer | int16, -1: none                                |
|     24 |    8 | producer_id        | producer | int64, -1: not idempotent                      |
|     32 |    4 | base_sequence      | producer | int32, -1: not idempotent                      |
|     36 |    4 | (reserved)         | producer | 0                                              |
|     40 |    8 | base_timestamp     | producer | int64 ms UTC: of the first record              |
|     48 |    8 | max_timestamp      | producer | int64 ms UTC: the largest of the batch         |
|     56 |    8 | delete_horizon     | cleaner  | int64 ms UTC when tombstones may go, -1: none  |
|     64 |    4 | producer_crc       | producer | CRC-32C, see below                             |
|     68 |    4 | leader_epoch       | broker   | int32                                          |
|     72 |    8 | base_offset        | broker   | int64                                          |
|     80 |    8 | append_timestamp   | broker   | int64 ms UTC, -1 unless the topic stamps it    |
|     88 |    2 | broker_attributes  | broker   | bit 0: append time is the records' time        |
|     90 |    2 | (reserved)         | broker   | 0                                              |
|     92 |    4 | broker_crc         | both     | CRC-32C of bytes 0 to 91                       |

Two checksums, because two parties write. The producer's covers the topic id, the partition, bytes 0
to 63 and the stored body: it detects a record that was changed after the producer, or filed under
another topic (P66, CVE-2026-35554). The broker's covers the header, the producer's checksum
included, and is renewed when the broker stamps offset, epoch and time: a batch at a wrong offset
does not verify either. Together they cover every byte.

Version 1 has columns as its body (`columns`). Version 2 has a whole record batch of Kafka's as a
Kafka client sent it (`kafka_batch`), with a stamp of its own in bytes 0 to 7 and 12 to 15, which
the producer's checksum leaves out: they must be what this header says. The attributes of columns
are 0, and a time may be -1: the record has none.

A header with contradicting numbers is refused: times lie between 0 and `TIMESTAMP_MAX`, only a
producer with an id has an epoch and sequences, and a time that its attribute does not announce is
-1. A cleaner leaves base offset, last offset delta and base sequence unchanged, so that the log
shows the producer's last sequence even when its last batch is empty (P45).
"""

import struct
from dataclasses import dataclass
from typing import Final, NoReturn

import crc32c

from millrace.core.errors import CorruptBatchError, UnsupportedFormatError
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)

Buffer = bytes | bytearray | memoryview

COLUMNS_FORMAT: Final = 1
KAFKA_FORMAT: Final = 2
MAGIC: Final = b"MRB\x01"
KAFKA_MAGIC: Final = b"MRB\x02"
HEADER_BYTES: Final = 96
KAFKA_HEADER_BYTES: Final = 61
"""What a body of format 2 begins with: see `kafka_batch`."""
BODY_BYTES_MAX: Final = 2**31 - 1 - HEADER_BYTES
"""Bytes of a body, stored or inflated, that the format can express; brokers allow far less."""
SEQUENCE_MAX: Final = 2**31 - 1  # Then the next sequence is 0 (P43).
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
TIMESTAMP_MAX: Final = WallMs(253_402_300_799_999)
"""The last millisecond of the year 9999: beyond it most languages have no date."""

_PRODUCER: Final = struct.Struct("<4sIIIIHhqiIqqq")  # Bytes 0 to 63.
_BROKER: Final = struct.Struct("<IiqqHH")  # Bytes 64 to 91: the producer's CRC, then the stamp.
_CRC: Final = struct.Struct("<I")
_WHOLE: Final = struct.Struct("<4sIIIIHhqiIqqqIiqqHHI")  # All of these in one.
_BINDING: Final = struct.Struct("<16si")
_KAFKA_STAMP: Final = struct.Struct(">q4xi")  # In a body of format 2: base offset, leader epoch.

PRODUCER_BYTES: Final = _PRODUCER.size
_BROKER_CRC_AT: Final = HEADER_BYTES - _CRC.size
assert PRODUCER_BYTES == 64
assert PRODUCER_BYTES + _BROKER.size == _BROKER_CRC_AT
assert _WHOLE.size == HEADER_BYTES


class Attributes:
    """Bits of `attributes`. A bit that is not named here must be 0."""

    CODEC_MASK: Final = 0x0007
    TRANSACTIONAL: Final = 0x0008
    CONTROL: Final = 0x0010
    DELETE_HORIZON: Final = 0x0020
    OFFSET_DELTAS: Final = 0x0100
    TIMESTAMPS: Final = 0x0200
    KEYS: Final = 0x0400
    VALUES: Final = 0x0800
    HEADERS: Final = 0x1000
    KEYS_EMPTY: Final = 0x2000
    """Without the keys column: every key is empty, not null."""
    VALUES_EMPTY: Final = 0x4000
    """Without the values column: every value is empty, not null."""

    COLUMNS: Final = OFFSET_DELTAS | TIMESTAMPS | KEYS | VALUES | HEADERS
    KNOWN: Final = 0x7F3F
    KNOWN_OF_KAFKA: Final = CODEC_MASK | TRANSACTIONAL | DELETE_HORIZON
    """Of a batch of format 2."""


APPEND_TIME: Final = 0x0001
"""Bit of `broker_attributes`: `append_timestamp` is the time of every record."""


@dataclass(slots=True)
class BatchHeader:
    """A header's fields, read by `parse_header`. Treated as immutable."""

    stored_length: int
    inflated_length: int
    record_count: int
    last_offset_delta: int
    attributes: int
    producer_epoch: ProducerEpoch
    producer_id: ProducerId
    base_sequence: int
    base_timestamp: WallMs
    max_timestamp: WallMs
    delete_horizon: WallMs
    producer_crc: int
    leader_epoch: LeaderEpoch
    base_offset: Offset
    append_timestamp: WallMs
    broker_attributes: int
    format: int
    """The version of the layout: `COLUMNS_FORMAT` or `KAFKA_FORMAT`."""

    @property
    def length(self) -> int:
        """Bytes of the whole batch: header and stored body."""
        return HEADER_BYTES + self.stored_length

    @property
    def last_offset(self) -> Offset:
        """Offset of the last record, inclusive."""
        return Offset(self.base_offset + self.last_offset_delta)

    @property
    def next_offset(self) -> Offset:
        """Offset of the first record after the batch."""
        return Offset(self.base_offset + self.last_offset_delta + 1)

    @property
    def opened_bytes(self) -> int:
        """Bytes that a reader keeps of the opened batch, at the most.

        Every record has an offset and a time, even without a column in the body. Kafka's records
        get columns with offsets besides; those of headers are not counted.
        """
        each = 2 * 8 if self.format == COLUMNS_FORMAT else 2 * 8 + 3 * 4
        return self.inflated_length + each * self.record_count

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record that the producer sent; wraps from 2^31 - 1 to 0."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        # Not by the record count: a cleaner removes records, but no sequences.
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def codec(self) -> int:
        """Number of the codec: see `compression.Codec`."""
        return self.attributes & Attributes.CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & Attributes.TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a marker that the broker wrote."""
        return bool(self.attributes & Attributes.CONTROL)

    @property
    def is_stamped(self) -> bool:
        """Whether a broker's fields are set: never in a batch from a producer."""
        return (
            self.base_offset != 0
            or self.leader_epoch != NO_LEADER_EPOCH
            or self.broker_attributes != 0
        )

    @property
    def has_append_time(self) -> bool:
        """Whether the records' times are the leader's, instead of the producer's."""
        return bool(self.broker_attributes & APPEND_TIME)

    @property
    def largest_timestamp(self) -> WallMs:
        """The time for retention and the time index; `NO_TIMESTAMP`: there is no record.

        A batch that a cleaner emptied has a time, and no record of it; Kafka's records may have no
        time (K3).
        """
        if not self.record_count:
            return NO_TIMESTAMP
        if self.broker_attributes & APPEND_TIME:
            return self.append_timestamp
        return self.max_timestamp


def producer_section(
    *,
    stored_length: int,
    inflated_length: int,
    record_count: int,
    attributes: int,
    base_timestamp: WallMs,
    max_timestamp: WallMs,
    last_offset_delta: int | None = None,
    producer_id: ProducerId = NO_PRODUCER_ID,
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    delete_horizon: WallMs = NO_TIMESTAMP,
    magic: bytes = MAGIC,
) -> bytes:
    """Return bytes 0 to 63: the producer's fields, before its checksum."""
    return _PRODUCER.pack(
        magic,
        stored_length,
        inflated_length,
        record_count,
        record_count - 1 if last_offset_delta is None else last_offset_delta,
        attributes,
        producer_epoch,
        producer_id,
        base_sequence,
        0,
        base_timestamp,
        max_timestamp,
        delete_horizon,
    )


def producer_checksum(topic_partition: TopicPartition, section: Buffer, body: Buffer) -> int:
    """Return the CRC-32C that binds `section` and the stored `body` to a partition.

    Of a body of format 2 it leaves out what the leader stamps (K2).
    """
    crc = crc32c.crc32c(_BINDING.pack(*topic_partition))
    crc = crc32c.crc32c(section, crc)
    if section[3] == KAFKA_FORMAT:
        body = memoryview(body)
        crc = crc32c.crc32c(body[8:12], crc)
        body = body[16:]
    return crc32c.crc32c(body, crc)


def seal(topic_partition: TopicPartition, section: bytes, body: Buffer) -> bytes:
    """Return the 96-byte header of a batch as a producer sends it, not yet stamped."""
    crc = producer_checksum(topic_partition, section, body)
    return _stamped(section, _BROKER.pack(crc, NO_LEADER_EPOCH, 0, NO_TIMESTAMP, 0, 0))


def seal_again(header: Buffer, crc: int) -> bytes:
    """Return the 96-byte header with another checksum of the producer's, not yet stamped."""
    return _stamped(
        bytes(header[:PRODUCER_BYTES]), _BROKER.pack(crc, NO_LEADER_EPOCH, 0, NO_TIMESTAMP, 0, 0)
    )


def stamp(
    header: Buffer,
    *,
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    append_timestamp: WallMs = NO_TIMESTAMP,
) -> bytes:
    """Return `header` with the broker's fields set and its checksum renewed.

    Of a batch of format 2 its body is stamped, too: see `kafka_batch.stamp`.

    Args:
        header: the 96 bytes as the producer sent them.
        base_offset: offset of the batch's first record.
        leader_epoch: epoch of the leader that stamps (P1).
        append_timestamp: time of all records when the topic stamps append time, else -1.
    """
    (crc,) = _CRC.unpack_from(header, PRODUCER_BYTES)
    attributes = APPEND_TIME if append_timestamp != NO_TIMESTAMP else 0
    return _stamped(
        bytes(header[:PRODUCER_BYTES]),
        _BROKER.pack(crc, leader_epoch, base_offset, append_timestamp, attributes, 0),
    )


def _stamped(section: bytes, broker: bytes) -> bytes:
    covered = section + broker
    return covered + _CRC.pack(crc32c.crc32c(covered))


def parse_header(data: Buffer, at: int = 0) -> BatchHeader:
    """Read the header at byte `at` of `data` and verify the broker's checksum.

    The body's bytes need not be present. General bounds are checked, so the result is safe to
    calculate with; limits of a topic are not checked (see `check` in `batch`).

    Raises:
        CorruptBatchError: too few bytes, a checksum that does not fit, or impossible numbers.
        UnsupportedFormatError: another magic or unknown attributes.
    """
    if len(data) - at < HEADER_BYTES:
        raise CorruptBatchError(
            f"a batch header is {HEADER_BYTES} bytes, but only {max(len(data) - at, 0)} are there"
        )
    (
        magic, stored, inflated, count, last_delta, attributes, epoch, pid, sequence, zero, base,
        top, horizon, crc, leader_epoch, base_offset, append_time, broker_attributes, zero2,
        broker_crc,
    ) = _WHOLE.unpack_from(data, at)  # fmt: skip
    if magic == MAGIC:
        batch_format, known, first_time = COLUMNS_FORMAT, Attributes.KNOWN, 0
    elif magic == KAFKA_MAGIC:
        batch_format, known, first_time = KAFKA_FORMAT, Attributes.KNOWN_OF_KAFKA, NO_TIMESTAMP
    else:
        _refuse_magic(magic, memoryview(data)[at : at + _BROKER_CRC_AT], broker_crc)
    found = crc32c.crc32c(memoryview(data)[at : at + _BROKER_CRC_AT])
    if found != broker_crc:
        raise CorruptBatchError(
            f"the header's checksum is {broker_crc:#010x}, but its bytes give {found:#010x}"
        )
    if attributes & ~known or broker_attributes & ~APPEND_TIME or zero or zero2:
        raise UnsupportedFormatError(
            f"the batch has attributes ({attributes:#06x}, {broker_attributes:#06x}) of a later "
            "format"
        )
    if not (
        count <= last_delta + 1 <= SEQUENCE_MAX
        and stored <= BODY_BYTES_MAX
        and inflated <= BODY_BYTES_MAX
        and 0 <= base_offset < 2**63 - 1 - last_delta
        and leader_epoch >= NO_LEADER_EPOCH
        and first_time <= base <= top <= TIMESTAMP_MAX
        and (
            base == top or attributes & Attributes.TIMESTAMPS
            if batch_format == COLUMNS_FORMAT
            else count and stored >= KAFKA_HEADER_BYTES <= inflated
        )
        and (
            _is_time(append_time)
            if broker_attributes & APPEND_TIME
            else append_time == NO_TIMESTAMP
        )
        and (
            _is_time(horizon) if attributes & Attributes.DELETE_HORIZON else horizon == NO_TIMESTAMP
        )
        and _is_identity(pid, epoch, sequence, attributes)
    ):
        raise CorruptBatchError(
            f"impossible numbers in the header: {count} records over {last_delta + 1} offsets from "
            f"{base_offset}, {stored} bytes inflating to {inflated}, leader epoch {leader_epoch}, "
            f"producer {pid}/{epoch}/{sequence}, attributes {attributes:#06x}, times {base} to "
            f"{top}, appended {append_time}, delete horizon {horizon}"
        )
    return BatchHeader(
        stored, inflated, count, last_delta, attributes, epoch, pid, sequence, base, top, horizon,
        crc, leader_epoch, base_offset, append_time, broker_attributes, batch_format,
    )  # fmt: skip


def _refuse_magic(magic: bytes, header: memoryview, checksum: int) -> NoReturn:
    for known in (MAGIC, KAFKA_MAGIC):
        if crc32c.crc32c(known + bytes(header[len(known) :])) == checksum:
            raise CorruptBatchError(
                f"the bytes begin with {magic!r}, and the header's checksum fits {known!r}: the "
                "batch is damaged"
            )
    if magic[:3] == MAGIC[:3]:
        raise UnsupportedFormatError(
            f"the batch has format version {magic[3]}; this release reads versions "
            f"{COLUMNS_FORMAT} and {KAFKA_FORMAT}"
        )
    raise CorruptBatchError(f"the bytes begin with {magic!r}, not {MAGIC!r}: this is no batch")


def _is_time(time: int) -> bool:
    return 0 <= time <= TIMESTAMP_MAX


def _is_identity(producer_id: int, epoch: int, sequence: int, attributes: int) -> bool:
    if producer_id == NO_PRODUCER_ID:
        transactional = attributes & Attributes.TRANSACTIONAL
        return epoch == NO_PRODUCER_EPOCH and sequence == NO_SEQUENCE and not transactional
    # A marker that ends a transaction carries its producer, but takes no sequence.
    sequenced = sequence >= 0 or (attributes & Attributes.CONTROL and sequence == NO_SEQUENCE)
    return producer_id >= 0 and epoch >= 0 and bool(sequenced)


def verify_body(topic_partition: TopicPartition, header: BatchHeader, batch: Buffer) -> None:
    """Verify the producer's checksum over a whole batch whose header is parsed.

    Args:
        topic_partition: the partition that the batch is supposed to belong to.
        header: the parsed header of `batch`.
        batch: at least the whole batch, from its first byte.

    Raises:
        CorruptBatchError: bytes are missing or changed, or the batch is of another partition.
    """
    view, length = memoryview(batch), HEADER_BYTES + header.stored_length
    if len(view) < length:
        raise CorruptBatchError(
            f"the batch is {length} bytes by its header, but {len(view)} are there"
        )
    found = producer_checksum(topic_partition, view[:PRODUCER_BYTES], view[HEADER_BYTES:length])
    if found != header.producer_crc:
        raise CorruptBatchError(
            f"the batch at offset {header.base_offset} does not match its "
            f"producer's checksum ({found:#010x} against {header.producer_crc:#010x}): its bytes "
            "changed, or it belongs to another partition",
            topic_partition=topic_partition,
        )
    if header.format == KAFKA_FORMAT:
        stamped = _KAFKA_STAMP.unpack_from(view, HEADER_BYTES)
        if stamped != (header.base_offset, header.leader_epoch):
            raise CorruptBatchError(
                f"the batch at offset {header.base_offset} of leader epoch {header.leader_epoch} "
                f"has offset {stamped[0]} and leader epoch {stamped[1]} in Kafka's header: its "
                "bytes changed",
                topic_partition=topic_partition,
            )
