"""Batches that the encoder of a Kafka client made, and what Kafka's own reader makes of ours."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from tests.fakes import kafka_batches as made
from tests.fakes.kafka_batches import CODECS
from tests.unit.core.records.batches import LIMITS, TOPIC_PARTITION, open_whole

from millrace.core.ids import LeaderEpoch, Offset
from millrace.core.records.batch_limits import BatchLimits
from millrace.core.records.header import HEADER_BYTES, TIMESTAMP_MAX, parse_header
from millrace.core.records.kafka_batch import adopt, split, stamp
from millrace.core.records.rewriting import Stamp, write

Sent = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]
"""Time, key, value and headers of a record."""

CELLS = st.none() | st.binary(max_size=20) | st.sampled_from([b"x" * 300, b"y" * 20_000])
TIMES = st.integers(-1, TIMESTAMP_MAX) | st.integers(1_700_000_000_000, 1_700_000_001_000)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3)
RECORDS = st.lists(st.tuples(TIMES, CELLS, CELLS, HEADERS), min_size=1, max_size=70)


def built(records: list[Sent], producer: tuple[int, int, int] = (-1, -1, -1), **more: Any) -> bytes:
    """Return a batch as kafka-python's producer makes it; it lacks packages for most codecs."""
    builder = DefaultRecordBatchBuilder(
        2, more.get("codec", 0), more.get("is_transactional", False), *producer, 1 << 30
    )
    for offset, (time, key, value, headers) in enumerate(records):
        builder.append(offset, time, key, value, headers)
    return bytes(builder.build())


def compressed(batch: bytes, codec: str) -> bytes:
    """Return an uncompressed batch with its records compressed."""
    records = made.compressed(codec, batch[made.HEADER_BYTES :])
    attributes = int.from_bytes(batch[21:23], "big") | CODECS.index(codec)
    whole = made.sealed(batch[: made.HEADER_BYTES] + records)
    return made.with_fields(whole, attributes=attributes)


def stored(batch: bytes, base_offset: int = 40) -> bytes:
    """Return a client's batch as its leader writes it."""
    limits = BatchLimits(batch_bytes_max=8 << 20, inflated_bytes_max=8 << 20)
    (view,) = split(memoryview(batch))
    head, _ = adopt(TOPIC_PARTITION, view, limits)
    begin, rest = stamp(
        TOPIC_PARTITION, head, view, base_offset=Offset(base_offset), leader_epoch=LeaderEpoch(3)
    )
    return begin + bytes(rest)


def read(body: bytes) -> list[tuple[int, Sent]]:
    """Return offsets and records as kafka-python's consumer sees them."""
    batch = DefaultRecordBatch(body)
    assert batch.validate_crc()
    return [
        (record.offset, (record.timestamp, record.key, record.value, record.headers))
        for record in batch
    ]


def rows(records: pa.RecordBatch) -> list[tuple[int, Sent]]:
    """Return offsets and records as a reader of columns sees them."""
    return [
        (
            row["offset"],
            (
                row["timestamp"],
                row["key"],
                row["value"],
                [(header["key"], header["value"]) for header in row["headers"]],
            ),
        )
        for row in records.to_pylist()
    ]


@given(RECORDS, st.sampled_from(CODECS), st.booleans())
def test_what_a_client_sends_is_what_every_reader_sees(
    records: list[Sent], codec: str, is_idempotent: bool
) -> None:
    sent = built(records, (7, 1, 20) if is_idempotent else (-1, -1, -1))
    batch = stored(compressed(sent, codec))
    expected = list(enumerate(records, 40))
    header = parse_header(batch)
    assert rows(open_whole(batch, 8 << 20)) == expected
    assert header.base_timestamp == records[0][0]
    assert header.max_timestamp == max(time for time, *_ in records)
    assert header.producer_id == (7 if is_idempotent else -1)
    if codec in ("none", "gzip"):
        assert read(batch[HEADER_BYTES:]) == expected


@given(RECORDS, st.sampled_from(["none", "gzip"]), st.data())
def test_kafkas_reader_reads_what_a_cleaner_left(
    records: list[Sent], codec: str, data: st.DataObject
) -> None:
    batch = stored(compressed(built(records), codec))
    size = len(records)
    keep = data.draw(st.lists(st.booleans(), min_size=size, max_size=size).filter(any))
    left = open_whole(batch, 8 << 20).filter(pa.array(keep))
    made_again = write(TOPIC_PARTITION, left, Stamp.of(parse_header(batch)))
    expected = [each for each, stays in zip(enumerate(records, 40), keep, strict=True) if stays]
    assert read(bytes(made_again.body)) == expected


def test_gzip_of_a_clients_own_is_taken() -> None:
    records: list[Sent] = [(1000 + at, b"key", b"value" * 50, []) for at in range(20)]
    batch = stored(built(records, codec=1))
    assert parse_header(batch).codec == 1
    assert rows(open_whole(batch)) == list(enumerate(records, 40))


@pytest.mark.parametrize("is_transactional", [False, True])
def test_a_transaction_is_one_only_if_the_client_says_so(is_transactional: bool) -> None:
    sent = built([(5, None, b"v", [])], (7, 1, 0), is_transactional=is_transactional)
    limits = BatchLimits(
        batch_bytes_max=1 << 20, inflated_bytes_max=1 << 20, takes_transactions=True
    )
    _, header = adopt(TOPIC_PARTITION, memoryview(sent), limits)
    assert header.is_transactional == is_transactional


def test_bytes_of_a_clients_batch_can_be_taken_from_a_larger_buffer() -> None:
    sent = built([(5, b"k", b"v", [])])
    view = memoryview(bytearray(b"before" + sent + b"after"))[6 : 6 + len(sent)]
    assert (
        adopt(TOPIC_PARTITION, view, LIMITS)[0]
        == adopt(TOPIC_PARTITION, memoryview(sent), LIMITS)[0]
    )
