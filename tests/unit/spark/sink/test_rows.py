"""Rows become records as whole columns, and a row that cannot is named."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.errors import (
    InvalidTopicError,
    MessageTooLargeError,
    NotEnoughReplicasError,
    UnknownTopicOrPartitionError,
)
from millrace.spark.errors import InvalidColumnsError, InvalidRowError
from millrace.spark.sink.rows import Part, RowsOfTask, check_columns, not_written

NOW = 1_700_000_000_000
HEADERS = pa.list_(
    pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
)
WHOLE = {
    "key": "string",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


def rows(topic: str | None = None, namespace: str = "default") -> RowsOfTask:
    return RowsOfTask(topic, namespace, "task 3", 1000)


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def parts(of: pa.RecordBatch, topic: str | None = None) -> list[Part]:
    return rows(topic).parts(of, NOW)


def test_what_a_reader_gives_can_be_written_as_it_is() -> None:
    check_columns(list(WHOLE.items()), None)
    check_columns([("value", "string")], "clicks")


@pytest.mark.parametrize(
    ("columns", "topic", "told"),
    [
        ({"value": "string"}, None, "neither a column topic nor the option topic"),
        ({"key": "string"}, "clicks", "there is no column value"),
        ({"vlaue": "string"}, "clicks", "no place for column vlaue: did you mean value?"),
        ({"value": "string", "carrier": "string"}, "c", "column carrier: drop it, or make it part"),
        ({"value": "struct<a:int>"}, "clicks", "column value is struct<a:int>, not binary or str"),
        ({"value": "binary", "key": "int"}, "clicks", "column key is int, not binary or string"),
        ({"value": "binary", "key": "void"}, "clicks", "column key is void"),
        ({"value": "binary", "timestamp": "bigint"}, "c", "timestamp is bigint, not timestamp"),
        ({"value": "binary", "headers": "map<string,binary>"}, "c", "not array<struct<key:string"),
        ({"value": "binary", "topic": "int"}, None, "column topic is int, not string"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(
    columns: dict[str, str], topic: str | None, told: str
) -> None:
    with pytest.raises(InvalidColumnsError) as raised:
        check_columns(list(columns.items()), topic)
    assert told in raised.value.message
    assert "Nothing was written" in raised.value.message


def test_columns_that_are_there_twice_are_refused() -> None:
    """As of two topics that were joined: no row would say which one counts."""
    twice = [("value", "binary"), ("offset", "bigint"), ("value", "binary"), ("offset", "bigint")]
    with pytest.raises(InvalidColumnsError, match="there are 2 columns value, as after a join"):
        check_columns(twice, "clicks")


def test_rows_go_to_the_topic_of_the_option_whatever_the_column_says() -> None:
    (part,) = parts(batch(topic=["a", None], value=["1", "2"]), "clicks")
    assert part.topic == "clicks"
    assert part.records.to_pydict() == {"value": ["1", "2"]}


def test_rows_are_parted_by_topic_in_their_order() -> None:
    task = rows()
    found = task.parts(batch(topic=["b", "a", "b", "ns/a", "a"], value=[*"01234"]), NOW)
    assert [(part.topic, part.records["value"].to_pylist()) for part in found] == [
        ("b", ["0", "2"]),
        ("a", ["1", "4"]),
        ("ns/a", ["3"]),
    ]
    (later,) = task.parts(batch(topic=["default/a"] * 2, value=["5", "6"]), NOW)
    assert later.topic == "a"
    assert later.name_row(1) == "row 6 of task 3 for topic 'a'"
    assert found[1].name_row(1) == "row 4 of task 3 for topic 'a'"
    assert task.count == 7


def test_times_are_rounded_down_to_milliseconds_whatever_their_zone() -> None:
    for zone in ("UTC", "America/New_York"):
        times = pa.array([NOW * 1000 + 999, None], pa.timestamp("us", zone))
        (part,) = parts(batch(value=["1", "2"], timestamp=times), "clicks")
        assert part.records["timestamp"].to_pylist() == [NOW, NOW]


def test_the_time_of_a_record_that_is_read_without_one_is_that_of_writing() -> None:
    """A client of Kafka's may give none, and a topic can be copied as it is read."""
    times = pa.array([NOW * 1000, -1000], pa.timestamp("us", "UTC"))
    (part,) = parts(batch(value=["1", "2"], timestamp=times), "clicks")
    assert part.records["timestamp"].to_pylist() == [NOW, NOW]


def test_columns_that_are_no_records_are_left_out_and_nothing_is_copied() -> None:
    whole = batch(value=["1"], offset=[7], timestampType=[0], key=pa.array([None], pa.binary()))
    (part,) = parts(whole, "clicks")
    assert part.records.schema.names == ["value", "key"]
    assert part.records["value"].buffers()[2].address == whole["value"].buffers()[2].address


def test_no_rows_are_no_parts() -> None:
    assert parts(batch(value=pa.array([], pa.string())), "clicks") == []


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"topic": ["a", None]}, "row 1 of task 3 (key 'k1') has no topic: fill the column"),
        ({"topic": ["a", "a"], "partition": [None, -1]}, "row 1 of task 3 (key 'k1') names part"),
        ({"topic": ["a", "a"], "partition": [2**31, -1]}, "row 0 of task 3 (key 'k0') names part"),
        (
            {"topic": ["a"] * 2, "timestamp": pa.array([0, -2000], pa.timestamp("us", "UTC"))},
            "row 1 of task 3 (key 'k1') has the time -2 ms since 1970: it lies between",
        ),
        (
            {"topic": ["a"] * 2, "headers": pa.array([[], [{"key": None}]], HEADERS)},
            "row 1 of task 3 (key 'k1') has a header without a name",
        ),
        (
            {"topic": ["a"] * 2, "headers": pa.array([None, [None]], HEADERS)},
            "row 1 of task 3 (key 'k1') has a header without a name",
        ),
    ],
)
def test_a_row_that_cannot_be_a_record_is_named(columns: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRowError) as raised:
        parts(batch(key=["k0", "k1"], value=["1", "2"], **columns))
    assert told in raised.value.message
    assert "Nothing of its Arrow batch was sent" in raised.value.message


def test_a_header_without_a_name_is_found_in_a_slice() -> None:
    whole = [[{"key": None}], [{"key": "n", "value": b""}], None, [{"key": "n"}, {"key": None}]]
    sliced = batch(value=[*"0123"], headers=pa.array(whole, HEADERS)).slice(1)
    with pytest.raises(InvalidRowError, match="row 2 of task 3 has a header"):
        parts(sliced, "clicks")


def test_a_name_that_is_no_topic_s_is_told_with_its_row() -> None:
    with pytest.raises(InvalidTopicError, match=r"row 1 of task 3 .*for topic 'a b': .*ASCII"):
        parts(batch(topic=["a", "a b"], key=["", "k"], value=["1", "2"]))


def test_a_row_that_no_buffer_holds_is_refused() -> None:
    with pytest.raises(MessageTooLargeError, match="row 1 of task 3 has 1000 bytes, with head"):
        parts(batch(value=["", "x" * 1000]), "clicks")
    assert parts(batch(value=["x" * 900]), "clicks")


def test_key_value_and_headers_count_together() -> None:
    half = "x" * 450
    header = [{"key": half, "value": None}]
    headers = pa.array([None, header, [], header * 2], HEADERS)
    fine = batch(key=[None, half, half, "k"], value=[half, "v", None, half[:30]], headers=headers)
    assert parts(fine.slice(0, 3), "clicks")
    task = rows("clicks")
    assert task.parts(fine.slice(0, 1), NOW)
    with pytest.raises(MessageTooLargeError, match=r"row 3 of task 3 \(key 'k'\) has 947 bytes"):
        task.parts(fine.slice(1), NOW)
    wide = batch(
        key=pa.array(["k" * 500] * 2, pa.large_string()),
        value=pa.array([None, b"x" * 500], pa.large_binary()),
    )
    with pytest.raises(MessageTooLargeError, match=r"row 1 of task 3 .* has 1000 bytes.*bufferB"):
        parts(wide, "clicks")


def test_a_partition_that_the_topic_does_not_have_is_told() -> None:
    (part,) = parts(batch(value=["1", "2"], partition=[1, 2], key=[b"k" * 50, None]), "clicks")
    part.check_partitions(3)
    with pytest.raises(InvalidRowError, match="row 1 of task 3 for topic 'clicks' names parti"):
        part.check_partitions(2)
    with pytest.raises(InvalidRowError, match=r"\(key b'k{40}'\.\.\.\).* partitions 0 to 0"):
        part.check_partitions(1)


def test_an_error_keeps_its_class_and_names_the_first_row() -> None:
    part = Part("clicks", batch(value=["1", "2"]), "task 3", np.array([10, 20]))
    error = not_written(part, {1: NotEnoughReplicasError("one of two")}, is_undone=False)
    assert isinstance(error, NotEnoughReplicasError)
    assert error.message.startswith("row 20 of task 3 for topic 'clicks' was not written: one of")
    both = dict.fromkeys((0, 1), NotEnoughReplicasError("one of two"))
    undone = not_written(part, both, is_undone=True).message
    assert "row 10 of task 3 for topic 'clicks' and 1 more of" in undone
    assert "stays" in error.message
    assert "before does not count" in undone


def test_rows_of_a_topic_that_was_deleted_meanwhile_say_what_to_do() -> None:
    (part,) = parts(batch(value=[b"1"]), "clicks")
    gone = UnknownTopicOrPartitionError("the topic 'clicks' was deleted")
    told = not_written(part, {0: gone}, is_undone=True).message
    assert "deleted: see that it is there (millrace topic create clicks), and write again" in told


def test_a_topic_without_a_namespace_is_of_that_of_the_sink() -> None:
    names = ["clicks", "other/clicks", "default/clicks", "clicks"]
    of = batch(value=[b"1", b"2", b"3", b"4"], topic=names)
    found = {part.topic: part.rows.tolist() for part in rows(namespace="shop").parts(of, NOW)}
    assert found == {"shop/clicks": [0, 3], "other/clicks": [1], "clicks": [2]}
