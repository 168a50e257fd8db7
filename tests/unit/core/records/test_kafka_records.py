"""Kafka's records as columns, and columns as Kafka's records."""

import gzip
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import kafka_batches
from tests.fakes.kafka_batches import NOON, Record, batch_of
from tests.unit.core.records.batches import (
    LIMITS,
    TOPIC_PARTITION,
    codecs,
    columns,
    open_whole,
    resealed,
    rows,
    sealed,
    stamped,
)

from millrace.core.errors import (
    CorruptBatchError,
    InvalidRecordError,
    MessageTooLargeError,
    MillraceError,
)
from millrace.core.ids import (
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    WallMs,
)
from millrace.core.records import kafka_batch, kafka_walk, rewriting
from millrace.core.records.batch import open_records
from millrace.core.records.columns import RECORDS_MAX, Columns
from millrace.core.records.compression import CODEC_NAMES
from millrace.core.records.few_records import FewRecords
from millrace.core.records.header import HEADER_BYTES, KAFKA_HEADER_BYTES, parse_header
from millrace.core.records.kafka_batch import KafkaAttributes, KafkaHeader
from millrace.core.records.kafka_records import to_kafka
from millrace.core.records.markers import NOT_BUMPING, Marker, WrittenMarker, seal_markers

CELLS = st.none() | st.binary(max_size=9) | st.binary(min_size=60, max_size=140)
RECORDS = st.builds(
    Record,
    CELLS,
    CELLS,
    st.just(NOON) | st.integers(0, 2 * NOON),
    st.lists(st.tuples(st.text(max_size=4), CELLS), max_size=3) | st.just([]),
)
FEW = st.lists(RECORDS, min_size=1, max_size=5)
MANY = [Record(b"v%d" % i, b"k" * (i % 3), NOON + i) for i in range(kafka_walk.FEW_MAX)]


def adopted(batch: bytes, **stamps: Any) -> bytes:
    """Return a batch of format 2, as a leader writes it."""
    unstamped, _ = kafka_batch.adopt(TOPIC_PARTITION, memoryview(batch), LIMITS)
    stamps = {"base_offset": Offset(70), "leader_epoch": LeaderEpoch(4)} | stamps
    begin, rest = kafka_batch.stamp(TOPIC_PARTITION, unstamped, batch, **stamps)
    return begin + bytes(rest)


def of_kafka(records: Sequence[Record], base_offset: int) -> list[dict[str, Any]]:
    return [
        {
            "offset": base_offset + number,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for number, record in enumerate(records)
    ]


# From Kafka's records to columns.


@given(FEW, st.booleans(), st.sampled_from(kafka_batches.CODECS))
def test_kafkas_records_are_read_as_columns(
    records: list[Record], are_many: bool, codec: str
) -> None:
    if are_many:
        records = records + MANY
    stored = adopted(batch_of(records, codec))
    assert open_whole(stored).to_pylist() == of_kafka(records, 70)


def test_snappy_in_the_blocks_of_java_is_read() -> None:
    records = kafka_batches.encoded(Record(b"x" * 100_000), 0, NOON)
    batch = kafka_batches.of_bytes(kafka_batches.xerial(records), 1, "snappy")
    assert open_whole(adopted(batch)).column("value").to_pylist() == [b"x" * 100_000]


@pytest.mark.parametrize("records", [[Record()], [Record(), *MANY]])
def test_append_time_is_the_time_of_all_of_kafkas_records(records: list[Record]) -> None:
    stored = adopted(batch_of(records), append_timestamp=WallMs(NOON + 7))
    assert set(open_whole(stored).column("timestamp").to_pylist()) == {NOON + 7}


def test_a_record_without_a_time_has_none_when_it_is_read() -> None:
    stored = adopted(batch_of([Record(timestamp=-1)]))
    assert open_whole(stored).column("timestamp").to_pylist() == [-1]


@given(FEW)
def test_a_few_of_kafkas_records_are_those_that_arrow_reads(records: list[Record]) -> None:
    stored = adopted(batch_of(records))
    few = open_records(TOPIC_PARTITION, parse_header(stored), stored, 1 << 20)
    expected = open_whole(stored)
    if any(record.headers for record in records):
        assert few == expected
        return
    assert isinstance(few, FewRecords)
    nothing = [None] * len(records)
    assert (
        list(few.offsets),
        list(few.timestamps),
        few.keys or nothing,
        few.values or nothing,
    ) == tuple(expected.column(name).to_pylist() for name in range(4))
    assert (few.keys is None) == all(record.key is None for record in records)


@pytest.mark.parametrize("count", [1, 100, 5000])
def test_an_opened_batch_of_kafkas_takes_no_more_memory_than_its_header_tells(count: int) -> None:
    for record in (Record(b"", b""), Record(b"v", None), Record(None, None)):
        stored = adopted(batch_of([record] * count))
        # Besides a bitmap for each column with nulls, of some records nothing but that.
        bitmaps = 2 * (count // 8 + 64)
        assert open_whole(stored).nbytes <= parse_header(stored).opened_bytes + bitmaps


def test_many_of_kafkas_records_come_as_arrow() -> None:
    stored = adopted(batch_of([Record(), *MANY]))
    records = open_records(TOPIC_PARTITION, parse_header(stored), stored, 1 << 20)
    assert records == open_whole(stored)


@given(st.data())
def test_a_changed_batch_of_kafkas_is_read_or_refused(drawn: st.DataObject) -> None:
    """By a hostile broker or one with a bad memory: all of its checksums fit."""
    records = [Record(b"value", b"key", NOON + 3, [("name", b"v")]), Record()]
    more = drawn.draw(st.sampled_from([[], MANY]))
    stored = bytearray(adopted(batch_of([*records, *more])))
    assert open_whole(resealed(bytes(stored))).num_rows == len(records) + len(more)
    for _ in range(drawn.draw(st.integers(1, 3))):
        at = drawn.draw(st.integers(HEADER_BYTES, HEADER_BYTES + 200))
        stored[at % len(stored)] = drawn.draw(st.integers(0, 255))
    changed = resealed(bytes(stored))
    try:
        read = open_whole(changed)
    except MillraceError:
        return
    assert read.num_rows == len(records) + len(more)


# From columns to Kafka's records.


def converted(batch: bytes) -> list[tuple[KafkaHeader, bytes]]:
    """Return the batches that a stored one becomes, each with its inflated records.

    Their checksums are computed by Kafka's definition, and the records inflated by other means than
    the product's.
    """
    found = []
    written = bytes(to_kafka(parse_header(batch), batch))
    while written:
        header = kafka_batch.read_header(written)
        records = written[KAFKA_HEADER_BYTES : header.length]
        assert kafka_batches.sealed(written[: header.length]) == written[: header.length]
        codec = kafka_batches.CODECS[header.codec]
        found.append((header, inflated(codec, records)))
        written = written[header.length :]
    return found


def inflated(codec: str, records: bytes) -> bytes:
    match codec:
        case "none":
            return records
        case "gzip":
            return gzip.decompress(records)
        case "snappy":
            size, _ = varint(records)
            return bytes(pa.Codec("snappy").decompress(records, size))
    with pa.CompressedInputStream(pa.BufferReader(records), codec) as stream:
        return bytes(stream.read())


def varint(data: bytes) -> tuple[int, int]:
    """Return a number without a sign, and its size."""
    number = 0
    for place, byte in enumerate(data):
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return number, place + 1
    raise ValueError


def encoded(given_columns: Columns) -> bytes:
    """Return what an encoder of Kafka's makes of records."""
    read = rows(given_columns)
    base = read[0]["timestamp"]
    return b"".join(
        kafka_batches.encoded(
            Record(
                row["value"],
                row["key"],
                row["timestamp"],
                [(header["key"], header["value"]) for header in row["headers"]],
            ),
            row["offset"],
            base,
        )
        for row in read
    )


@given(columns())
def test_columns_become_the_bytes_that_an_encoder_writes(given_columns: Columns) -> None:
    batch = stamped(sealed(given_columns), base_offset=Offset(77), leader_epoch=LeaderEpoch(3))
    header = parse_header(batch)
    [(kafka, records)] = converted(batch)
    assert records == encoded(given_columns)
    assert (kafka.base_offset, kafka.leader_epoch, kafka.attributes) == (77, 3, 0)
    assert kafka.record_count == kafka.last_offset_delta + 1 == given_columns.record_count
    assert (kafka.base_timestamp, kafka.max_timestamp) == (
        header.base_timestamp,
        header.max_timestamp,
    )
    assert (kafka.producer_id, kafka.producer_epoch, kafka.base_sequence) == (-1, -1, -1)


@given(columns(), codecs())
def test_records_are_the_same_there_and_back(given_columns: Columns, codec: str) -> None:
    batch = stamped(
        sealed(given_columns, codec), base_offset=Offset(70), leader_epoch=LeaderEpoch(4)
    )
    written = bytes(to_kafka(parse_header(batch), batch))
    assert open_whole(adopted(written)) == open_whole(batch)


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_the_codec_stays(codec: str) -> None:
    value = bytes(range(256)) * 2000
    batch = sealed(Columns(3, WallMs(NOON), [value] * 3), codec)
    [(kafka, records)] = converted(batch)
    assert kafka_batches.CODECS[kafka.codec] == codec
    assert records.count(value) == 3


def test_columns_of_one_record_become_one() -> None:
    for given_columns in (
        Columns(1, WallMs(5)),
        Columns(1, WallMs(5), [b""], [b""]),
        Columns(1, WallMs(5), headers=[[("", None)]]),
    ):
        assert converted(sealed(given_columns))[0][1] == encoded(given_columns)


def test_the_largest_batch_becomes_one() -> None:
    times = np.arange(RECORDS_MAX) * 1_000_003 % 2**40
    given_columns = Columns(RECORDS_MAX, times, [b"v" * 70] * RECORDS_MAX)
    [(kafka, records)] = converted(sealed(given_columns))
    assert kafka.record_count == RECORDS_MAX
    assert records == encoded(given_columns)


def test_the_producer_and_its_transaction_stay() -> None:
    batch = sealed(
        Columns(2, WallMs(NOON), [b"a", b"b"]),
        producer_id=ProducerId(2**40),
        producer_epoch=ProducerEpoch(9),
        base_sequence=77,
        is_transactional=True,
    )
    [(kafka, _)] = converted(batch)
    assert (kafka.producer_id, kafka.producer_epoch, kafka.base_sequence) == (2**40, 9, 77)
    assert kafka.attributes == KafkaAttributes.TRANSACTIONAL


def test_append_time_is_the_time_of_all_records() -> None:
    times = np.array([NOON, NOON - 5], np.int64)
    batch = stamped(
        sealed(Columns(2, times, [b"a", b"b"])),
        base_offset=Offset(0),
        leader_epoch=LeaderEpoch(0),
        append_timestamp=WallMs(NOON + 9),
    )
    [(kafka, records)] = converted(batch)
    assert kafka.attributes == KafkaAttributes.APPEND_TIME
    assert kafka.max_timestamp == NOON + 9
    assert records == encoded(Columns(2, WallMs(NOON), [b"a", b"b"]))


def cleaned(kept: Sequence[int], count: int) -> bytes:
    """Return a batch from offset 70 of which a cleaner has kept some records."""
    values = [b"%d" % number for number in range(count)]
    batch = stamped(
        sealed(Columns(count, np.arange(count) + NOON, values)),
        base_offset=Offset(70),
        leader_epoch=LeaderEpoch(4),
    )
    records = open_whole(batch).take(pa.array(kept, pa.int64()))
    written = rewriting.write(TOPIC_PARTITION, records, rewriting.Stamp.of(parse_header(batch)))
    return written.stamped + bytes(written.body)


@pytest.mark.parametrize("kept", [[1], [0, 2], [3, 299]])
def test_offsets_keep_their_gaps(kept: list[int]) -> None:
    [(kafka, records)] = converted(cleaned(kept, 300))
    assert (kafka.base_offset, kafka.last_offset_delta, kafka.record_count) == (70, 299, len(kept))
    assert records == b"".join(
        kafka_batches.encoded(Record(b"%d" % n, None, NOON + n), n, NOON + kept[0]) for n in kept
    )


def test_a_batch_without_records_is_one_of_kafkas_without_records() -> None:
    [(kafka, records)] = converted(cleaned([], 3))
    assert (kafka.base_offset, kafka.last_offset_delta, kafka.record_count) == (70, 2, 0)
    assert records == b""
    assert kafka.max_timestamp == NO_TIMESTAMP


def test_kafkas_batch_is_what_was_sent() -> None:
    sent = batch_of([Record(b"v", b"k", NOON, [("h", b"")])] * 3, "zstd")
    [(kafka, _)] = converted(adopted(sent))
    assert (kafka.base_offset, kafka.leader_epoch) == (70, 4)
    stored = adopted(sent)
    assert bytes(to_kafka(parse_header(stored), stored))[16:] == sent[16:]


MARKERS = [
    WrittenMarker(
        Marker(ProducerId(7), ProducerEpoch(3), True, LeaderEpoch(11)), Offset(1), Offset(2)
    ),
    WrittenMarker(Marker(ProducerId(8), ProducerEpoch(0), False, LeaderEpoch(12), NOT_BUMPING)),
    WrittenMarker(Marker(ProducerId(9), ProducerEpoch(5), False, LeaderEpoch(13))),
]


def control_record(offset_delta: int, kind: int, coordinator_epoch: int) -> bytes:
    value = b"\0\0" + coordinator_epoch.to_bytes(4, "big")
    return kafka_batches.encoded(Record(value, bytes([0, 0, 0, kind])), offset_delta, NOON)


def control_batch() -> bytes:
    return stamped(
        seal_markers(TOPIC_PARTITION, MARKERS, WallMs(NOON)),
        base_offset=Offset(70),
        leader_epoch=LeaderEpoch(4),
    )


def test_each_marker_becomes_a_control_batch() -> None:
    batches = converted(control_batch())
    kind = KafkaAttributes.CONTROL | KafkaAttributes.TRANSACTIONAL
    assert [
        (kafka.base_offset, kafka.last_offset_delta, kafka.producer_id, kafka.producer_epoch)
        for kafka, _ in batches
    ] == [(70, 0, 7, 3), (71, 0, 8, 0), (72, 0, 9, 5)]
    assert all(
        (kafka.attributes, kafka.record_count, kafka.base_sequence, kafka.leader_epoch)
        == (kind, 1, -1, 4)
        and kafka.base_timestamp == kafka.max_timestamp == NOON
        for kafka, _ in batches
    )
    assert [records for _, records in batches] == [
        control_record(0, 1, 11),
        control_record(0, 0, 12),
        control_record(0, 0, 13),
    ]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ([0], [(70, 2, 0)]),
        ([2], [(70, 2, 2)]),
        ([0, 2], [(70, 0, 0), (71, 1, 1)]),
        ([], [(70, 2, None)]),
    ],
)
def test_markers_that_a_cleaner_left_reach_over_the_others(
    kept: list[int], expected: list[tuple[int, int, int | None]]
) -> None:
    batch = control_batch()
    records = open_whole(batch).take(pa.array(kept, pa.int64()))
    written = rewriting.write(TOPIC_PARTITION, records, rewriting.Stamp.of(parse_header(batch)))
    batches = converted(written.stamped + bytes(written.body))
    assert [
        (
            kafka.base_offset,
            kafka.last_offset_delta,
            records[kafka_walk.walk(records, 1).starts[0] + 2] >> 1 if records else None,
        )
        for kafka, records in batches
    ] == expected


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_body_of_another_size_than_it_says_is_refused(codec: str, change: int) -> None:
    for whole in (
        sealed(Columns(3, WallMs(NOON), [b"x" * 500] * 3), codec),
        adopted(batch_of([Record(b"x" * 500)] * 3, codec)),
    ):
        wrong = resealed(whole, inflated_length=parse_header(whole).inflated_length + change)
        with pytest.raises((CorruptBatchError, InvalidRecordError, MessageTooLargeError)):
            open_whole(wrong)
