"""What Kafka's readers get, as kafka-python reads it, which knows nothing of Millrace."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.default_records import ControlRecord, DefaultRecordBatch
from tests.unit.core.records.batches import TOPIC_PARTITION, columns, rows, sealed, stamped

from millrace.core.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.columns import Columns
from millrace.core.records.header import parse_header
from millrace.core.records.kafka_records import to_kafka
from millrace.core.records.markers import Marker, WrittenMarker, seal_markers

NOON = WallMs(1_700_000_000_000)


def read(batch: bytes) -> list[DefaultRecordBatch]:
    """Return the batches that a stored one becomes, with checksums that fit."""
    found: list[Any] = []
    records = MemoryRecords(bytes(to_kafka(parse_header(batch), batch)))
    while (kafkas := records.next_batch()) is not None:
        assert kafkas.validate_crc()
        found.append(kafkas)
    return found


@given(columns(), st.sampled_from(["none", "gzip"]), st.integers(0, 2**40))
def test_the_records_are_those_that_were_written(
    given_columns: Columns, codec: str, offset: int
) -> None:
    batch = sealed(
        given_columns,
        codec,
        producer_id=ProducerId(7),
        producer_epoch=ProducerEpoch(1),
        base_sequence=20,
        is_transactional=True,
    )
    [kafkas] = read(stamped(batch, base_offset=Offset(offset), leader_epoch=LeaderEpoch(3)))
    assert kafkas.is_transactional
    assert not kafkas.is_control_batch
    assert (kafkas.producer_id, kafkas.producer_epoch, kafkas.base_sequence) == (7, 1, 20)
    assert (kafkas.base_offset, kafkas.leader_epoch) == (offset, 3)
    assert [
        {
            "offset": record.offset - offset,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in kafkas
    ] == rows(given_columns)


def test_append_time_is_told_as_such() -> None:
    batch = sealed(Columns(2, WallMs(5), [b"a", b"b"]))
    [kafkas] = read(
        stamped(
            batch,
            base_offset=Offset(0),
            leader_epoch=LeaderEpoch(0),
            append_timestamp=NOON,
        )
    )
    assert kafkas.timestamp_type == DefaultRecordBatch.LOG_APPEND_TIME
    assert [record.timestamp for record in kafkas] == [NOON, NOON]


def test_markers_are_control_records() -> None:
    markers = [
        WrittenMarker(Marker(ProducerId(7), ProducerEpoch(2), is_commit, LeaderEpoch(5)))
        for is_commit in (True, False)
    ]
    batch = stamped(
        seal_markers(TOPIC_PARTITION, markers, NOON),
        base_offset=Offset(70),
        leader_epoch=LeaderEpoch(4),
    )
    commit, abort = read(batch)
    for kafkas in (commit, abort):
        assert kafkas.is_control_batch
        assert kafkas.is_transactional
        assert (kafkas.producer_id, kafkas.producer_epoch) == (7, 2)
    [record] = commit
    assert isinstance(record, ControlRecord)
    assert record.commit
    assert record.offset == 70
    [record] = abort
    assert record.abort
    assert record.offset == 71
