"""Kafka's batches as a cleaner leaves them, and the end of one as a follower takes it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.fakes import kafka_batches as made
from tests.fakes.kafka_batches import CODECS, NOON, Record
from tests.fakes.stamped_batches import TOPIC_PARTITION, bytes_of, kafka_batch_of
from tests.unit.core.records.batches import open_whole

from millrace.core.ids import NO_TIMESTAMP, Offset, WallMs
from millrace.core.records.compression import Codec
from millrace.core.records.header import (
    COLUMNS_FORMAT,
    HEADER_BYTES,
    KAFKA_FORMAT,
    BatchHeader,
    parse_header,
    verify_body,
)
from millrace.core.records.kafka_batch import read_header
from millrace.core.records.rewriting import RewrittenBatch, Stamp, cut, in_columns, write

RECORDS = [
    Record(b"first" * 20, b"k1", NOON + 1),
    Record(b"", None, NOON, [("a", b"1"), ("ä", None)]),
    Record(None, b"", NOON + 9, [("", b"")]),
    Record(b"last" * 20, b"k4", NOON + 3),
]


def batch_of(*records: Record, **more: Any) -> tuple[BatchHeader, bytes]:
    """Return a batch at offset 40, of producer 7, epoch 1 and sequence 20 on."""
    batch = bytes_of(
        kafka_batch_of(40, records, epoch=2, producer_id=7, producer_epoch=1, sequence=20, **more)
    )
    return parse_header(batch), batch


def kept(header: BatchHeader, batch: bytes, *keep: bool, **changes: Any) -> RewrittenBatch:
    """Return the batch with some of its records."""
    records = open_whole(batch).filter(pa.array(keep))
    return write(TOPIC_PARTITION, records, replace(Stamp.of(header), **changes))


def whole(written: RewrittenBatch) -> bytes:
    """Return all of a batch that verifies, with both of its headers."""
    batch = written.stamped + bytes(written.body)
    verify_body(TOPIC_PARTITION, written.header, batch)
    if written.header.format == KAFKA_FORMAT:
        assert made.sealed(batch[HEADER_BYTES:]) == batch[HEADER_BYTES:]
    return batch


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_stays_one_of_kafkas_and_its_records_their_offsets(codec: str) -> None:
    stamped = kafka_batch_of(
        40, RECORDS * 20, codec=codec, epoch=2, producer_id=7, producer_epoch=1, sequence=20
    )
    batch = bytes_of(stamped)
    before = open_whole(batch)
    keep = np.arange(80) % 4 != 0
    written = kept(parse_header(batch), batch, *keep.tolist())
    after = open_whole(whole(written))
    assert after == before.filter(pa.array(keep.tolist()))
    header, kafka = written.header, read_header(written.body)
    assert (header.format, header.codec) == (KAFKA_FORMAT, Codec[codec.upper()])
    assert (header.record_count, header.base_offset, header.next_offset) == (60, 40, 120)
    assert (kafka.record_count, kafka.base_offset, kafka.last_offset_delta) == (60, 40, 79)
    assert (header.leader_epoch, kafka.leader_epoch) == (2, 2)
    assert (kafka.producer_id, kafka.producer_epoch, kafka.base_sequence) == (7, 1, 20)
    assert header.last_sequence == 99


@pytest.mark.parametrize("codec", CODECS)
def test_for_readers_of_columns_alone_a_batch_is_one_with_the_same_records(codec: str) -> None:
    header, batch = batch_of(*RECORDS * 5, codec=codec, in_transaction=True)
    written = in_columns(TOPIC_PARTITION, header, batch)
    assert open_whole(whole(written)) == open_whole(batch)
    told = written.header
    assert (told.format, told.codec) == (COLUMNS_FORMAT, header.codec)
    assert (told.base_offset, told.next_offset, told.leader_epoch) == (40, 60, 2)
    assert (told.producer_id, told.producer_epoch, told.base_sequence) == (7, 1, 20)
    assert told.is_transactional


def test_for_readers_of_columns_alone_a_record_without_a_time_has_the_batchs_largest_or_1970() -> (
    None
):
    for times, told in (([-1, NOON, -1], [NOON] * 3), ([-1, -1], [0, 0]), ([5, -1], [5, 5])):
        header, batch = batch_of(*(Record(timestamp=time) for time in times))
        written = in_columns(TOPIC_PARTITION, header, batch)
        assert open_whole(whole(written)).column("timestamp").to_pylist() == told
    header, batch = batch_of(Record(timestamp=-1), append_timestamp=NOON + 99)
    written = in_columns(TOPIC_PARTITION, header, batch)
    assert open_whole(whole(written)).column("timestamp").to_pylist() == [NOON + 99]


def test_records_without_a_time_stay_without() -> None:
    header, batch = batch_of(*(Record(timestamp=-1, key=b"%d" % at) for at in range(3)))
    written = kept(header, batch, False, True, True)
    records = open_whole(whole(written))
    assert records.column("timestamp").to_pylist() == [-1, -1]
    assert written.header.largest_timestamp == NO_TIMESTAMP


def test_what_has_no_records_left_is_of_columns() -> None:
    for time in (-1, NOON):
        header, batch = batch_of(Record(timestamp=time), Record(timestamp=time))
        written = kept(header, batch, False, False)
        assert open_whole(whole(written)).num_rows == 0
        assert written.header.format == COLUMNS_FORMAT
        assert written.header.last_sequence == 21
        assert (written.header.base_offset, written.header.next_offset) == (40, 42)
        assert written.header.largest_timestamp == NO_TIMESTAMP


def test_append_time_is_kept() -> None:
    header, batch = batch_of(*RECORDS, append_timestamp=NOON + 99)
    written = kept(header, batch, True, False, True, True)
    assert open_whole(whole(written)).column("timestamp").to_pylist() == [NOON + 99] * 3
    assert written.header.largest_timestamp == NOON + 99
    kafka = read_header(written.body)
    assert kafka.has_append_time
    assert kafka.max_timestamp == NOON + 99


def test_what_is_decided_is_in_no_transaction_any_more() -> None:
    header, batch = batch_of(*RECORDS, in_transaction=True)
    assert header.is_transactional
    written = kept(header, batch, True, True, True, True, kind=0)
    assert not written.header.is_transactional
    assert not read_header(whole(written)[HEADER_BYTES:]).is_transactional
    written = kept(header, batch, True, True, True, False)
    assert written.header.is_transactional
    assert read_header(whole(written)[HEADER_BYTES:]).is_transactional


def test_a_delete_horizon_is_in_our_header_alone() -> None:
    header, batch = batch_of(*RECORDS)
    written = kept(header, batch, False, True, True, True, delete_horizon=NOON + 5)
    assert written.header.delete_horizon == NOON + 5
    assert read_header(whole(written)[HEADER_BYTES:]).attributes == 0
    again = kept(written.header, whole(written), True, True, False)
    assert again.header.delete_horizon == NOON + 5


def test_the_end_of_a_batch_is_a_batch_of_its_own() -> None:
    header, batch = batch_of(*RECORDS)
    end = cut(TOPIC_PARTITION, header, batch, Offset(42))
    assert open_whole(whole(end)) == open_whole(batch).slice(2)
    assert (end.header.base_offset, end.header.next_offset) == (42, 44)
    assert (end.header.base_sequence, end.header.last_sequence) == (22, 23)
    assert end.header.format == KAFKA_FORMAT
    cleaned = kept(header, batch, True, True, False, False)
    nothing = cut(TOPIC_PARTITION, cleaned.header, whole(cleaned), Offset(43))
    assert nothing.header.record_count == 0
    assert (nothing.header.base_offset, nothing.header.next_offset) == (43, 44)


def test_times_of_a_rewritten_batch_are_those_of_its_records() -> None:
    header, batch = batch_of(*RECORDS)
    written = kept(header, batch, False, True, False, True)
    assert written.header.base_timestamp == NOON
    assert written.header.max_timestamp == WallMs(NOON + 3)
