"""Batches of Kafka's clients in a log: what a batch of columns has, and what it cannot have."""

import pytest
from tests.fakes.disk import Disk
from tests.fakes.kafka_batches import Record
from tests.fakes.log_on_disk import NOW, LogOnDisk
from tests.fakes.stamped_batches import (
    TOPIC_PARTITION,
    bytes_of,
    control_batch,
    kafka_batch_of,
    stamped_batch,
)

from millrace.broker.storage.log_config import LogConfig
from millrace.core.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.batch import open_batch
from millrace.core.records.header import KAFKA_FORMAT, parse_header
from millrace.core.records.markers import AbortedTransaction, Marker, WrittenMarker

SMALL = LogConfig(segment_bytes=600, index_interval_bytes=100)


def test_a_record_is_found_by_its_time_in_logs_of_both_formats() -> None:
    opened = LogOnDisk(Disk(), SMALL)
    times = [50, 90, 10, 20, 95, 30] * 10
    for offset in range(0, len(times), 2):
        both = times[offset : offset + 2]
        opened.append(stamped_batch(offset, records=2, timestamp=both, as_kafka=offset % 4 == 0))
    assert len(opened.log.segments) > 3
    for wanted in range(0, 100, 5):
        expected = next((o for o, time in enumerate(times) if time >= wanted), None)
        found = opened.log.reader.offset_for_timestamp(WallMs(wanted))
        assert (found.offset if found else None) == expected
    assert opened.log.reader.offset_of_largest_timestamp() == (4, 95)


def test_a_record_without_a_time_is_found_by_none() -> None:
    opened = LogOnDisk(Disk())
    opened.append(kafka_batch_of(0, [Record(timestamp=-1), Record(timestamp=-1)]))
    assert opened.log.reader.offset_for_timestamp(WallMs(0)) is None
    assert opened.log.reader.offset_of_largest_timestamp() is None
    opened.append(kafka_batch_of(2, [Record(timestamp=-1), Record(timestamp=7)]))
    assert opened.log.reader.offset_for_timestamp(WallMs(0)) == (3, 7)
    assert opened.log.reader.offset_of_largest_timestamp() == (3, 7)


def test_append_time_is_what_a_record_is_found_by() -> None:
    opened = LogOnDisk(Disk())
    opened.append(kafka_batch_of(0, [Record(timestamp=5)] * 3, append_timestamp=1000))
    assert opened.log.reader.offset_for_timestamp(WallMs(6)) == (0, 1000)
    assert opened.log.segments[0].largest_timestamp == 1000


def test_records_without_a_time_are_kept_from_the_closing_of_their_segment_on() -> None:
    """K3."""
    opened = LogOnDisk(Disk(), LogConfig(retention_ms=1000, segment_ms=500))
    opened.append(kafka_batch_of(0, [Record(timestamp=-1)]), now=NOW)
    assert opened.log.retention.apply(WallMs(NOW + 100_000), opened.end) == 0
    closed = WallMs(NOW + 100_000)
    opened.append(kafka_batch_of(1, [Record(timestamp=-1)]), now=closed)
    assert [segment.base_offset for segment in opened.log.segments] == [0, 1]
    assert opened.log.retention.apply(WallMs(closed + 1000), opened.end) == 0
    assert opened.log.retention.apply(WallMs(closed + 1001), opened.end) == 1
    assert opened.log.log_start_offset == 1


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_a_log_that_is_recovered_has_the_batches_of_every_codec(codec: str) -> None:
    opened = LogOnDisk(Disk())
    sent = [kafka_batch_of(at, [Record(b"x" * 500, b"k")] * 5, codec=codec) for at in (0, 5)]
    opened.append(*sent)
    opened.disk.restart()
    opened = LogOnDisk(opened.disk)
    assert opened.batches() == {batch.base_offset: bytes_of(batch) for batch in sent}
    for batch in opened.batches().values():
        header = parse_header(batch)
        records = open_batch(TOPIC_PARTITION, header, batch, header.inflated_length)
        assert records.column("value").to_pylist() == [b"x" * 500] * 5


def test_a_kafka_producers_transaction_is_in_the_index_of_aborted_ones() -> None:
    opened = LogOnDisk(Disk())
    opened.append(kafka_batch_of(0, [Record()] * 2, producer_id=7, sequence=0, in_transaction=True))
    assert opened.log.undecided.last_stable_offset(opened.end) == 0
    marker = Marker(ProducerId(7), ProducerEpoch(1), False, LeaderEpoch(1))
    opened.append(control_batch(2, WrittenMarker(marker, Offset(0), Offset(1))))
    for _ in range(2):
        aborted = opened.log.reader.aborted(Offset(0), opened.end)
        assert aborted == [AbortedTransaction(ProducerId(7), Offset(0), Offset(1))]
        opened.disk.restart()
        opened = LogOnDisk(opened.disk)


def test_what_a_follower_lacks_of_a_batch_is_a_batch_of_kafkas_too() -> None:
    """P57: its leader has put together what the follower has in part."""
    whole = kafka_batch_of(0, [Record(b"%d" % at, b"k") for at in range(6)], epoch=3)
    end = whole.cut(TOPIC_PARTITION, Offset(4))
    assert (end.base_offset, end.next_offset, end.leader_epoch) == (4, 6, 3)
    header = parse_header(end.header)
    assert header.format == KAFKA_FORMAT
    records = open_batch(TOPIC_PARTITION, header, bytes_of(end), 1 << 20)
    assert records.column("value").to_pylist() == [b"4", b"5"]
