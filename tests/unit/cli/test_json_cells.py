import json
from datetime import date, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.records.json_cells import json_cells, json_rows, plain_cells

CELLS = st.one_of(
    st.lists(st.none() | st.text()).map(lambda cells: pa.array(cells, pa.string())),
    st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)).map(
        lambda cells: pa.array(cells, pa.int64())
    ),
    st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False)).map(
        lambda cells: pa.array(cells, pa.float64())
    ),
    st.lists(st.none() | st.booleans()).map(lambda cells: pa.array(cells, pa.bool_())),
    st.lists(st.none() | st.lists(st.text(max_size=3), max_size=3)).map(
        lambda cells: pa.array(cells, pa.list_(pa.string()))
    ),
)


@given(CELLS)
def test_what_json_reads_back_is_what_the_column_held(column: pa.Array) -> None:
    assert [json.loads(cell) for cell in json_cells(column).to_pylist()] == column.to_pylist()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([float("nan"), float("inf"), None]), ["null", "null", "null"]),
        (pa.nulls(1), ["null"]),
        (pa.array(["a", "b"]).dictionary_encode(), ['"a"', '"b"']),
        (pa.array([b"\xff"]), ['"/w=="']),
        (pa.array([date(2013, 1, 31)]), ['"2013-01-31"']),
        (pa.array([0], pa.timestamp("s", "Europe/Berlin")), ['"1970-01-01T00:00:00Z"']),
        (pa.array([1_359_626_400], pa.timestamp("s")), ['"2013-01-31T10:00:00"']),
        (pa.array([timedelta(seconds=90)], pa.duration("s")), ["90.0"]),
        (pa.array([{"a": 1}]), ['{"a": 1}']),
    ],
    ids=lambda argument: str(argument.type) if isinstance(argument, pa.Array) else "",
)
def test_types_that_json_lacks_are_written_in_their_usual_form(
    column: pa.Array, expected: list[str]
) -> None:
    assert json_cells(column).to_pylist() == expected


def test_a_row_is_an_object_with_the_columns_in_their_order() -> None:
    batch = pa.record_batch({'say "n"': [1, None], "b": ["x\n", "é"]})
    rows: list[Any] = json_rows(batch).to_pylist()
    assert rows == [
        b'{"say \\"n\\"":1,"b":"x\\n"}',
        '{"say \\"n\\"":null,"b":"é"}'.encode(),
    ]


def test_rows_of_a_batch_without_columns_or_rows_are_empty() -> None:
    assert json_rows(pa.record_batch({"a": pa.array([], pa.int64())})).to_pylist() == []


def test_plain_cells_are_unquoted_text_and_keep_nulls() -> None:
    assert plain_cells(pa.array(["a", None])).to_pylist() == [b"a", None]
    assert plain_cells(pa.array([7, None])).to_pylist() == [b"7", None]
    assert plain_cells(pa.array([b"\xff"], pa.binary(1))).to_pylist() == [b"\xff"]
    assert plain_cells(pa.array([True])).to_pylist() == [b"true"]
    assert plain_cells(pa.array([0], pa.timestamp("s", "UTC"))).to_pylist() == [
        b"1970-01-01T00:00:00Z"
    ]
