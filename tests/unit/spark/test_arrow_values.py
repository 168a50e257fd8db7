"""Rows in Arrow's form: what was put into values comes out of them, beside their records."""

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.spark.arrow_values import decode, encode
from millrace.spark.errors import InvalidValueError

ROWS = pa.schema([("page", pa.string()), ("count", pa.int64())])


def stream(*tables: dict[str, Any]) -> bytes:
    out = pa.BufferOutputStream()
    batches = [pa.RecordBatch.from_pydict(table) for table in tables]
    with pa.ipc.new_stream(out, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    found: bytes = out.getvalue().to_pybytes()
    return found


def records(*values: bytes | None) -> pa.RecordBatch:
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "topic": ["clicks"] * count,
            "partition": [2] * count,
            "offset": list(range(10, 10 + count)),
            "value": pa.array(values, pa.binary()),
        }
    )


def rows(batches: Any) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def test_rows_stand_beside_their_records() -> None:
    found = decode(
        records(
            stream(
                {"page": ["a", "b"], "count": [1, 2]},
                {"page": ["c"], "count": pa.array([None], pa.int64())},
            ),
            None,
            stream({"page": pa.array([], pa.string()), "count": pa.array([], pa.int64())}),
            stream({"more": [0], "count": pa.array([3], pa.int32()), "page": ["d"]}),
        ),
        ROWS,
    )
    assert rows(found) == [
        ("clicks", 2, 10, "a", 1),
        ("clicks", 2, 10, "b", 2),
        ("clicks", 2, 10, "c", None),
        ("clicks", 2, 13, "d", 3),
    ]


def test_many_rows_are_handed_on_in_parts() -> None:
    value = stream({"page": ["a"] * 15_000, "count": [1] * 15_000})
    assert [len(batch) for batch in decode(records(*[value] * 5), ROWS)] == [30_000, 30_000, 15_000]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{}",
        stream({"page": ["a"]}),
        stream({"page": ["a"], "count": ["many"]}),
        stream({"page": ["a"], "count": [1]})[:-60],
    ],
)
def test_a_value_of_something_else_is_told_with_its_record(value: bytes) -> None:
    good = stream({"page": ["a"], "count": [1]})
    with pytest.raises(InvalidValueError, match="the record at offset 11 of clicks-2 is not an"):
        list(decode(records(good, value), ROWS))


@given(
    st.lists(st.tuples(st.sampled_from([None, b"k", b"l"]), st.integers(0, 9)), max_size=40),
    st.integers(1, 7),
)
def test_rows_come_back_in_their_order_and_share_a_record_only_with_their_key(
    given_rows: list[tuple[bytes | None, int]], rows_per_record: int
) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([key for key, _ in given_rows], pa.binary()),
            "number": pa.array([number for _, number in given_rows], pa.int64()),
        }
    )
    packed = encode(batch, ["key"], rows_per_record)
    assert packed.schema.names == ["key", "value"]
    schema = pa.schema([("number", pa.int64())])
    assert rows(decode(packed, schema)) == given_rows
    sizes = [len(pa.ipc.open_stream(value).read_all()) for value in packed["value"].to_pylist()]
    assert all(1 <= size <= rows_per_record for size in sizes)
    runs = 1 + sum(a[0] != b[0] for a, b in pairwise(given_rows))
    assert len(packed) <= runs + len(given_rows) // rows_per_record


def test_rows_without_anything_beside_them_fill_their_records() -> None:
    packed = encode(pa.RecordBatch.from_pydict({"number": list(range(10))}), [], 4)
    sizes = [len(pa.ipc.open_stream(value).read_all()) for value in packed["value"].to_pylist()]
    assert sizes == [4, 4, 2]
