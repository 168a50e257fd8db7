"""Records as Python objects."""

import pyarrow as pa
import pytest

from millrace.client import Record, Records, SerializationError
from millrace.client._consumer.records import (
    POLL_EVERY_MS,
    LentRecords,
    _has_headers,
    parts,
    record_type,
)
from millrace.core.ids import Offset, WallMs
from millrace.core.records.columns import SCHEMA
from millrace.core.records.few_records import FewRecords
from millrace.runtime.clock import monotonic_now


def batch(*values: bytes | None, start: int = 0) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(start, start + count), pa.int64()),
            pa.array([1000 + row for row in range(count)], pa.int64()),
            pa.nulls(count, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([[{"key": "h", "value": b"1"}], *[[]] * (count - 1)], SCHEMA.field(4).type),
        ],
        schema=SCHEMA,
    )


def make(kind: type[Record] = Record) -> Records:
    records = Records(kind)
    records.add("t", 0, batch(b"a", None, start=5))
    records.add("u", 3, batch(b"b"))
    return records


def test_records_are_a_sequence_over_partitions() -> None:
    records = make()
    assert len(records) == 3
    assert [(r.topic, r.partition, r.offset, r.value) for r in records] == [
        ("t", 0, 5, b"a"),
        ("t", 0, 6, None),
        ("u", 3, 0, b"b"),
    ]
    assert records[0].headers == (("h", b"1"),)
    assert records[1].headers == ()
    assert records[-1].value == b"b"
    assert records[1:] == list(records)[1:]
    assert records[0].timestamp == 1000
    with pytest.raises(IndexError):
        records[3]


def test_records_that_are_python_objects_already_are_like_the_others() -> None:
    records = make()
    records.add("v", 2, FewRecords(range(7, 9), (10, 11), None, [b"c", b""]))
    assert len(records) == 5
    assert list(records)[3:] == [
        Record("v", 2, Offset(7), WallMs(10), None, b"c", ()),
        Record("v", 2, Offset(8), WallMs(11), None, b"", ()),
    ]
    assert [records[index] for index in range(5)] == list(records)
    assert records.keys() == [None] * 5
    assert records.values() == [b"a", None, b"b", b"c", b""]


def test_each_record_is_reached_by_its_index_without_a_look_at_all_others() -> None:
    records = make()
    records.add("v", 0, batch(*[b"%d" % number for number in range(20_000)]))
    assert [records[index] for index in range(len(records))] == list(records)


def test_lent_records_that_no_loop_came_to_are_for_the_next_one() -> None:
    lent = LentRecords(Record, "t", 0, batch(b"a", b"b", None, b"d", start=5))
    assert len(lent) == lent.count == 4
    assert next(iter(lent)) == make()[0]._replace(value=b"a")
    assert len(lent) == 3
    second = iter(lent)
    assert [next(second).value for _ in range(2)] == [b"b", None]
    assert len(lent) == 1
    lent.take_back()
    assert list(second) == list(lent) == []
    assert len(lent) == 0


def test_a_loop_gets_all_records_in_parts_that_grow_up_to_a_bound() -> None:
    lent = LentRecords(Record, "t", 0, batch(*[b""] * 300))
    sizes, offsets = [], []
    while lent:
        for part in parts(lent):
            some = [record.offset for record in part]
            sizes.append(len(some))
            offsets += some
    assert offsets == list(range(300))
    assert max(sizes) == 64


def test_a_loop_that_takes_long_for_a_record_polls_after_it() -> None:
    lent = LentRecords(Record, "t", 0, batch(b"a", b"b", b"c"))
    seen = []
    for part in parts(lent):
        for record in part:
            seen.append(record.value)
            done_at = monotonic_now() + POLL_EVERY_MS
            while monotonic_now() < done_at:
                pass
    assert seen == [b"a"]
    assert len(lent) == 2


def test_columns_come_without_making_records() -> None:
    assert make().values() == [b"a", None, b"b"]
    assert make().keys() == [None, None, None]


def test_a_record_shows_itself() -> None:
    assert repr(make()[2]) == (
        "Record(topic='u', partition=3, offset=0, timestamp=1000, key=None, value=b'b', "
        "headers=(('h', b'1'),))"
    )


def test_deserializers_are_called_when_a_field_is_read() -> None:
    calls = []

    def deserialize(data: bytes) -> str:
        calls.append(data)
        return data.decode()

    records = make(record_type(None, deserialize))
    assert not calls
    assert [record.value for record in records] == ["a", None, "b"]
    assert records.values() == ["a", None, "b"]
    assert calls == [b"a", b"b"] * 2


def test_a_deserializer_that_raises_names_the_record() -> None:
    def broken(data: bytes) -> str:
        raise ValueError("no")

    with pytest.raises(SerializationError, match="offset 5 of topic 't' partition 0"):
        make(record_type(None, broken))[0].value  # noqa: B018


def test_headers_are_looked_at_only_where_a_record_has_some() -> None:
    assert not _has_headers(batch(b"a", b"b").column("headers")[1:])
    assert _has_headers(batch(b"a", b"b").column("headers"))
    assert not _has_headers(batch(b"a").column("headers")[:0])
