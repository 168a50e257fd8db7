"""Kafka's record batches (of version 2), which are the bodies of batches of format 2.

A Kafka client's batch is stored as it was sent, behind a header of ours: so all that works by the
header alone works with both formats, and Kafka's readers get the stored bytes. Its own header, all
numbers big-endian:

| offset | size | field             | meaning                                                      |
|-------:|-----:|-------------------|--------------------------------------------------------------|
|      0 |    8 | base_offset       | stamped by the leader                                        |
|      8 |    4 | batch_length      | bytes after this field                                       |
|     12 |    4 | leader_epoch      | stamped by the leader                                        |
|     16 |    1 | magic             | 2                                                            |
|     17 |    4 | crc               | CRC-32C of bytes 21 to the end                               |
|     21 |    2 | attributes        | codec, kind of time, transactional: see `KafkaAttributes`    |
|     23 |    4 | last_offset_delta | last - base offset                                           |
|     27 |    8 | base_timestamp    | that the records' times are counted from                     |
|     35 |    8 | max_timestamp     | the largest; append time if the topic stamps it              |
|     43 |    8 | producer_id       | -1: not idempotent                                           |
|     51 |    2 | producer_epoch    | likewise                                                     |
|     53 |    4 | base_sequence     | likewise                                                     |
|     57 |    4 | record_count      |                                                              |

Then the records, compressed together (`kafka_walk` says how one is laid out).

`adopt` checks a client's batch once, as `batch.check` does one of columns, so that nothing after it
has to doubt a record: what our header says is what the records say. Kafka's checksum covers neither
offset nor epoch, so `stamp` renews it only where append time is stamped, too (K3).

The producer's checksum leaves out what is stamped (K2).

Source: KIP-98; the rules for clients are those of Kafka's LogValidator.
"""

import struct
from dataclasses import dataclass
from typing import Final

import crc32c
import numpy as np

from millrace.core import words
from millrace.core.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    MessageTooLargeError,
    UnsupportedFormatError,
)
from millrace.core.ids import (
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
from millrace.core.records import kafka_compression, kafka_walk
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.columns import RECORDS_MAX
from millrace.core.records.header import (
    KAFKA_HEADER_BYTES,
    KAFKA_MAGIC,
    PRODUCER_BYTES,
    TIMESTAMP_MAX,
    Attributes,
    BatchHeader,
    Buffer,
    parse_header,
    producer_checksum,
    producer_section,
    seal,
    seal_again,
)
from millrace.core.records.header import stamp as stamp_header
from millrace.core.records.kafka_walk import Walked

MAGIC: Final = 2
_MAGIC_AT: Final = 16
_CRC_AT: Final = 17
_COVERED_AT: Final = 21
"""Kafka's checksum covers the bytes from here on."""
_LENGTH_AT: Final = 8
_LENGTH_BEFORE: Final = 12
"""Bytes before those that `batch_length` counts."""
_LEADER_EPOCH_AT: Final = 12
_OLD_BYTES_MIN: Final = 17
"""Of a message of an old version, up to its magic."""

_WHOLE: Final = struct.Struct(">qiibIhiqqqhii")
_COVERED: Final = struct.Struct(">hiqqqhii")
_BEGIN: Final = struct.Struct(">qiibI")
_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")
assert _WHOLE.size == KAFKA_HEADER_BYTES


class KafkaAttributes:
    """Bits of `attributes`; the codecs have our numbers."""

    CODEC_MASK: Final = 0x07
    APPEND_TIME: Final = 0x08
    """`max_timestamp` is the time of every record."""
    TRANSACTIONAL: Final = 0x10
    CONTROL: Final = 0x20
    DELETE_HORIZON: Final = 0x40
    """`base_timestamp` is when tombstones may go."""

    KNOWN: Final = 0x7F


@dataclass(slots=True, frozen=True)
class KafkaHeader:
    """The fields of a Kafka batch's header, as they are there."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def length(self) -> int:
        """Bytes of the whole batch."""
        return _LENGTH_BEFORE + self.batch_length

    @property
    def codec(self) -> int:
        """Number of the codec: see `compression.Codec`."""
        return self.attributes & KafkaAttributes.CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & KafkaAttributes.TRANSACTIONAL)

    @property
    def has_append_time(self) -> bool:
        """Whether `max_timestamp` is the time of every record."""
        return bool(self.attributes & KafkaAttributes.APPEND_TIME)


def read_header(batch: Buffer) -> KafkaHeader:
    """Read the header that `batch` begins with.

    Raises:
        CorruptBatchError: too few bytes.
        UnsupportedFormatError: of another version.
    """
    if len(batch) < KAFKA_HEADER_BYTES:
        _refuse_old(batch)
        raise CorruptBatchError(
            f"the header of a Kafka batch is {KAFKA_HEADER_BYTES} bytes, but {len(batch)} are there"
        )
    header = KafkaHeader(*_WHOLE.unpack_from(batch))
    if header.magic != MAGIC:
        _refuse_version(header.magic)
    return header


def split(records: memoryview) -> list[memoryview]:
    """Return the batches of a record set; only their bounds are looked at.

    Raises:
        CorruptBatchError: a length does not fit.
        UnsupportedFormatError: messages of version 0 or 1, or a later one.
    """
    batches = []
    at, size = 0, len(records)
    while at < size:
        if size - at < KAFKA_HEADER_BYTES:
            read_header(records[at:])  # It says what is wrong.
        length = _LENGTH_BEFORE + _LENGTH.unpack_from(records, at + _LENGTH_AT)[0]
        if records[at + _MAGIC_AT] != MAGIC:
            _refuse_version(records[at + _MAGIC_AT])
        if not KAFKA_HEADER_BYTES <= length <= size - at:
            raise CorruptBatchError(
                f"a Kafka batch is {length} bytes by its header, but {size - at} are there"
            )
        batches.append(records[at : at + length])
        at += length
    return batches


def adopt(
    topic_partition: TopicPartition, batch: memoryview, limits: BatchLimits
) -> tuple[bytes, BatchHeader]:
    """Check a Kafka client's batch, as its leader does once, and return our header for it.

    What the client says of offset and leader epoch counts for nothing. The order is from cheap to
    costly, and nothing is allocated for a size that was not compared with a limit before. It takes
    about 0.2 us for each record: not for the event loop.

    Args:
        topic_partition: where it is to be appended.
        batch: the whole batch, which is stored as the body, stamped by `stamp`.
        limits: the topic's.

    Returns:
        The 96 bytes before the body, not yet stamped, and the same parsed.

    Raises:
        MessageTooLargeError: larger than the limits, or too many records (K4).
        CorruptBatchError: the checksum or a length does not fit.
        UnsupportedFormatError: a version, attribute or codec that is not known.
        InvalidTimestampError: a record's time is none.
        InvalidRecordError: the contents break a rule of the format, or of the topic.
    """
    kafka = read_header(batch)
    _check_sizes(kafka, batch, limits)
    _check_client_rules(kafka, limits)
    found = crc32c.crc32c(batch[_COVERED_AT:])
    if found != kafka.crc:
        raise CorruptBatchError(
            f"the batch's checksum is {kafka.crc:#010x}, but its bytes give {found:#010x}"
        )
    inflated_max = limits.inflated_bytes_max - KAFKA_HEADER_BYTES
    records = kafka_compression.inflate(kafka.codec, batch[KAFKA_HEADER_BYTES:], inflated_max)
    walked = kafka_walk.walk(memoryview(records), kafka.record_count)
    _check_records(records, walked, limits)
    first_time, largest_time = _times(kafka, walked)
    has_producer = kafka.producer_id != NO_PRODUCER_ID
    section = producer_section(
        magic=KAFKA_MAGIC,
        stored_length=len(batch),
        inflated_length=KAFKA_HEADER_BYTES + len(records),
        record_count=kafka.record_count,
        attributes=kafka.codec | (Attributes.TRANSACTIONAL if kafka.is_transactional else 0),
        base_timestamp=first_time,
        max_timestamp=largest_time,
        producer_id=ProducerId(kafka.producer_id),
        producer_epoch=ProducerEpoch(kafka.producer_epoch) if has_producer else NO_PRODUCER_EPOCH,
        base_sequence=kafka.base_sequence if has_producer else NO_SEQUENCE,
    )
    sealed = seal(topic_partition, section, batch)
    return sealed, parse_header(sealed)


def stamp(
    topic_partition: TopicPartition,
    unstamped: Buffer,
    batch: Buffer,
    *,
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    append_timestamp: WallMs = NO_TIMESTAMP,
) -> tuple[bytes, memoryview]:
    """Return a batch as its leader writes it: both headers, stamped, and the rest of the body.

    `batch` itself is not changed.

    Args:
        topic_partition: that the batch is sealed for.
        unstamped: our header, as `adopt` returned it.
        batch: Kafka's, the body.
        base_offset: offset of the batch's first record.
        leader_epoch: epoch of the leader that stamps (P1).
        append_timestamp: time of all records when the topic stamps append time, else -1.
    """
    view = memoryview(batch)
    rest = view[KAFKA_HEADER_BYTES:]
    kafka = bytearray(view[:KAFKA_HEADER_BYTES])
    _BASE_OFFSET.pack_into(kafka, 0, base_offset)
    _LEADER_EPOCH.pack_into(kafka, _LEADER_EPOCH_AT, leader_epoch)
    if append_timestamp != NO_TIMESTAMP:
        attributes, *others = _COVERED.unpack_from(kafka, _COVERED_AT)
        others[2] = append_timestamp
        _COVERED.pack_into(kafka, _COVERED_AT, attributes | KafkaAttributes.APPEND_TIME, *others)
        crc = crc32c.crc32c(rest, crc32c.crc32c(memoryview(kafka)[_COVERED_AT:]))
        _CRC.pack_into(kafka, _CRC_AT, crc)
        crc = producer_checksum(topic_partition, unstamped[:PRODUCER_BYTES], kafka)
        unstamped = seal_again(unstamped, crc32c.crc32c(rest, crc))
    stamped = stamp_header(
        unstamped,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        append_timestamp=append_timestamp,
    )
    return stamped + kafka, rest


def write_header(
    stored: Buffer,
    *,
    base_offset: Offset,
    leader_epoch: LeaderEpoch,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: WallMs,
    max_timestamp: WallMs,
    producer_id: ProducerId,
    producer_epoch: ProducerEpoch,
    base_sequence: int,
    record_count: int,
) -> bytes:
    """Return the 61 bytes before records, for a batch that a broker makes.

    Args:
        stored: the records, compressed as `attributes` say.
        base_offset, leader_epoch, last_offset_delta, base_timestamp, max_timestamp, producer_id,
            producer_epoch, base_sequence, record_count: as in the table above.
        attributes: bits of `KafkaAttributes`.
    """
    covered = _COVERED.pack(
        attributes, last_offset_delta, base_timestamp, max_timestamp, producer_id, producer_epoch,
        base_sequence, record_count,
    )  # fmt: skip
    crc = crc32c.crc32c(stored, crc32c.crc32c(covered))
    length = KAFKA_HEADER_BYTES - _LENGTH_BEFORE + len(stored)
    return _BEGIN.pack(base_offset, length, leader_epoch, MAGIC, crc) + covered


def _refuse_old(batch: Buffer) -> None:
    """Refuse messages of version 0 or 1, which may be shorter than a header."""
    if len(batch) >= _OLD_BYTES_MIN and batch[_MAGIC_AT] in (0, 1):
        _refuse_version(batch[_MAGIC_AT])


def _refuse_version(magic: int) -> None:
    raise UnsupportedFormatError(
        f"the records have Kafka's message format {magic}; brokers take format {MAGIC}, which "
        "Kafka's clients write since 0.11"
    )


def _check_sizes(kafka: KafkaHeader, batch: memoryview, limits: BatchLimits) -> None:
    length, count = kafka.length, kafka.record_count
    if length != len(batch):
        raise CorruptBatchError(f"the batch is {length} bytes by its header, but {len(batch)} came")
    if length > limits.batch_bytes_max:
        raise MessageTooLargeError(
            f"the batch is {length} bytes; the topic's max.message.bytes is "
            f"{limits.batch_bytes_max}: send smaller batches or raise it"
        )
    if count > RECORDS_MAX:
        raise MessageTooLargeError(
            f"the batch holds {count} records; the limit is {RECORDS_MAX}: send smaller batches"
        )
    if count <= 0:
        raise InvalidRecordError(f"the batch holds {count} records")
    if kafka.last_offset_delta != count - 1:
        raise InvalidRecordError(
            f"the batch has {words.count(count, 'record')}, and its last offset delta is "
            f"{kafka.last_offset_delta}: a producer's offsets must be dense"
        )


def _check_client_rules(kafka: KafkaHeader, limits: BatchLimits) -> None:
    """Refuse what only brokers may write (P51), and what fits no producer."""
    attributes = kafka.attributes
    if attributes & ~KafkaAttributes.KNOWN:
        raise UnsupportedFormatError(
            f"the batch has attributes ({attributes & 0xFFFF:#06x}) of a later format"
        )
    if attributes & (KafkaAttributes.CONTROL | KafkaAttributes.DELETE_HORIZON):
        raise InvalidRecordError("only a broker may write control batches or delete horizons")
    if attributes & KafkaAttributes.APPEND_TIME:
        raise InvalidTimestampError(
            "the batch says that its time is the append time, which only a broker may"
        )
    if kafka.producer_id != NO_PRODUCER_ID:
        if kafka.producer_id < 0 or kafka.producer_epoch < 0 or kafka.base_sequence < 0:
            raise InvalidRecordError(
                f"the batch has producer id {kafka.producer_id}, epoch {kafka.producer_epoch} and "
                f"base sequence {kafka.base_sequence}: none may be negative"
            )
    elif kafka.is_transactional:
        raise InvalidRecordError("the batch is transactional, and has no producer id")
    if kafka.is_transactional and not limits.takes_transactions:
        raise InvalidRecordError(
            "the topic takes no transactional batches: it is one of the cluster's own"
        )


def _check_records(records: Buffer, walked: Walked, limits: BatchLimits) -> None:
    # They mean nothing. Some clients take them for a varint, and read what follows one byte off.
    if np.frombuffer(records, np.uint8)[walked.starts].any():
        raise InvalidRecordError("a record has attributes, which must be 0")
    deltas = walked.offset_deltas
    if not np.array_equal(deltas, np.arange(len(deltas))):
        raise InvalidRecordError("a producer's offsets must be dense: only a cleaner leaves gaps")
    if limits.requires_keys:
        missing = np.flatnonzero(walked.key_lengths < 0).tolist()
        if missing:
            error = InvalidRecordError(
                f"the batch has {words.count(len(missing), 'record')} without a key, and the topic "
                "is compacted (cleanup.policy), which keeps the latest record of each key: give "
                "every record a key; an empty one is a key, too"
            )
            error.records = missing
            raise error


def _times(kafka: KafkaHeader, walked: Walked) -> tuple[WallMs, WallMs]:
    """Return the first and the largest of the records' times (K3)."""
    base, deltas = kafka.base_timestamp, walked.timestamp_deltas
    smallest, largest = base + int(deltas.min()), base + int(deltas.max())
    if smallest < NO_TIMESTAMP or largest > TIMESTAMP_MAX:
        raise InvalidTimestampError(
            f"the records' times are {smallest} to {largest}: a time is milliseconds since 1970, "
            f"up to the end of the year 9999 ({TIMESTAMP_MAX}), or -1 for none"
        )
    return WallMs(base + int(deltas[0])), WallMs(largest)
