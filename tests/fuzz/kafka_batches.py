"""Record batches that come by Kafka's protocol, and ours as Kafka's readers get them.

Magic, length and checksum would keep a fuzzer out, so they are set right: that is what a hostile
producer does.
"""

import struct
from typing import Any, Final

import numpy as np
import pyarrow as pa
from kafka.record import MemoryRecords
from tests.fakes.header_fields import FIELDS
from tests.fakes.kafka_batches import HEADER_BYTES as KAFKA_BYTES
from tests.fakes.kafka_batches import sealed, with_fields
from tests.unit.core.records.batches import LIMITS, TOPIC_PARTITION, open_whole, resealed

from millrace.broker.kafka.records.stored_batches import _bodies
from millrace.broker.rpc.converted_batches import walk as walk_stored
from millrace.core.errors import MillraceError
from millrace.core.ids import LeaderEpoch, Offset
from millrace.core.records import batch, kafka_batch, kafka_compression, kafka_walk
from millrace.core.records.compression import Codec
from millrace.core.records.header import HEADER_BYTES, MAGIC, Attributes, parse_header
from millrace.core.records.kafka_reader import open_few
from millrace.core.records.kafka_records import to_kafka

_ATTRIBUTES_AT: Final = FIELDS["attributes"][0]
_COUNT_AT: Final = 57
_INFLATED_BYTES_MAX: Final = 1 << 16
_BASE_OFFSET: Final = Offset(10)


def fuzz_kafka_batch(data: bytes) -> None:
    """A leader's check of a Kafka client's batch; all readers read what it accepts, and alike."""
    data += bytes(max(KAFKA_BYTES - len(data), 0))
    whole = sealed(with_fields(data, magic=kafka_batch.MAGIC, batch_length=len(data) - 12))
    (count,) = struct.unpack_from(">i", whole, _COUNT_AT)
    if 0 < count < 1 << 20:
        whole = with_fields(whole, last_offset_delta=count - 1)
    try:
        head, _ = kafka_batch.adopt(TOPIC_PARTITION, memoryview(whole), LIMITS)
    except MillraceError:
        return
    begin, rest = kafka_batch.stamp(
        TOPIC_PARTITION, head, whole, base_offset=_BASE_OFFSET, leader_epoch=LeaderEpoch(1)
    )
    stored = begin + bytes(rest)
    header = parse_header(stored)
    records = open_whole(stored).to_pylist()
    assert [record["offset"] for record in records] == [
        _BASE_OFFSET + number for number in range(count)
    ]
    few = open_few(header, stored[HEADER_BYTES:])
    if not isinstance(few, pa.RecordBatch):
        assert few.values is None or few.values == [record["value"] for record in records]
    if header.codec == Codec.NONE:
        read = [
            record for each in MemoryRecords(bytes(to_kafka(header, stored))) for record in each
        ]
        assert [(record.timestamp, record.key, record.value) for record in read] == [
            (record["timestamp"], record["key"], record["value"]) for record in records
        ]


def fuzz_kafka_walk(data: bytes) -> None:
    """Records are found one by one as they are found all at once, or refused by both."""
    count, records = data[0] if data else 0, data[1:]
    if not 0 < count * kafka_walk.RECORD_BYTES_MIN <= len(records):
        return
    found: list[Any] = []
    for walk in (kafka_walk._walk_few, kafka_walk._walk_many):
        try:
            found.append(walk(records, count))
        except (kafka_walk._WrongRecordError, MillraceError):
            found.append(None)
    few, many = found
    assert (few is None) == (many is None)
    if few is None:
        return
    _assert_same(few, many, kafka_walk.Walked.__slots__[:-1])
    assert (few.headers is None) == (many.headers is None)
    if few.headers is not None:
        _assert_same(few.headers, many.headers, kafka_walk.WalkedHeaders.__slots__)


def fuzz_kafka_compression(data: bytes) -> None:
    """Whatever is inflated ends at its bound, and is the same twice."""
    number = data[0] % (len(Codec) + 1) if data else 0
    inflated_max = int.from_bytes(data[1:4], "little") % _INFLATED_BYTES_MAX
    stored = data[4:]
    try:
        records = kafka_compression.inflate(number, stored, inflated_max)
    except MillraceError:
        return
    assert number == Codec.NONE or len(records) <= inflated_max
    assert bytes(records) == bytes(kafka_compression.inflate(number, stored, inflated_max))


def fuzz_kafka_converted(data: bytes) -> None:
    """A batch of ours that a leader has accepted becomes one of Kafka's with the same records."""
    data += bytes(max(HEADER_BYTES - len(data), 0))
    body_bytes = len(data) - HEADER_BYTES
    numbers: dict[str, Any] = {"magic": MAGIC, "stored_length": body_bytes, "reserved": 0}
    if not data[_ATTRIBUTES_AT] & Attributes.CODEC_MASK:
        numbers["inflated_length"] = body_bytes
    whole = resealed(data, **numbers)
    try:
        header = batch.check(TOPIC_PARTITION, whole, LIMITS)
    except MillraceError:
        return
    records = open_whole(whole).to_pylist()
    read = [record for each in MemoryRecords(bytes(to_kafka(header, whole))) for record in each]
    assert [(record.key, record.value) for record in read] == [
        (record["key"], record["value"]) for record in records
    ]


def fuzz_kafka_stored(data: bytes) -> None:
    """What lies in a file is sent within its bounds, or refused."""
    view = memoryview(data)
    pieces = _bodies(view)
    assert pieces is None or sum(map(len, pieces)) <= len(data)
    try:
        batches = list(walk_stored(view))
    except MillraceError:
        return
    assert sum(len(found.data) for found in batches) <= len(data)


def _assert_same(one: Any, other: Any, names: Any) -> None:
    for name in names:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
