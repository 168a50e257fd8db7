import json
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.cli.records.json_cells import json_cells, json_rows, plain_cells

MAP = pa.map_(pa.string(), pa.int64())
UUID = "6ee834f1-585b-4b07-9ca9-9907fc0d15c5"
UUID_BYTES = bytes.fromhex(UUID.replace("-", ""))

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
        (pa.array([timedelta(seconds=90)], pa.duration("s")), ["90"]),
        (pa.array([{"a": 1}]), ['{"a":1}']),
        (pa.array([1500, -1], pa.duration("ms")), ["1.500", "-0.001"]),
        (pa.array([[[1.5, None]], [], None]), ["[[1.5,null]]", "[]", "null"]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), ["[1,2]", "null"]),
        (pa.array([[1], None], pa.list_view(pa.int8())), ["[1]", "null"]),
        (pa.array([[("a", 1), ("b", None)], None], MAP), ['[["a",1],["b",null]]', "null"]),
        (pa.array([{"a": [b"x"]}, None]), ['{"a":["eA=="]}', "null"]),
        (pa.array([True, None]).cast(pa.int8()).cast(pa.bool_()), ["true", "null"]),
        (pa.RunEndEncodedArray.from_arrays([2], ["x"]), ['"x"', '"x"']),
    ],
    ids=lambda argument: str(argument.type) if isinstance(argument, pa.Array) else "",
)
def test_types_that_json_lacks_are_written_in_their_usual_form(
    column: pa.Array, expected: list[str]
) -> None:
    assert json_cells(column).to_pylist() == expected


@pytest.mark.parametrize(
    ("column", "text"),
    [
        (pa.array([float("nan")]), "null"),
        (pa.array([float("-inf")], pa.float32()), "null"),
        (pa.array([0.1], pa.float32()), "0.1"),
        (pa.array([12345678901234567890], pa.uint64()), "12345678901234567890"),
        (pa.array([Decimal("0.1234567890123456789012")]), "0.1234567890123456789012"),
        (pa.array([Decimal("1.10")]), "1.10"),
        (pa.array([UUID_BYTES], pa.uuid()), f'"{UUID}"'),
        (pa.array([10_000_000], pa.int32()).view(pa.date32()), '"29349-01-26"'),
        (pa.array([1], pa.timestamp("ns")), '"1970-01-01T00:00:00.000000001"'),
    ],
    ids=lambda argument: str(argument.type) if isinstance(argument, pa.Array) else "",
)
def test_a_value_has_the_same_text_within_lists_and_structs_as_in_a_column(
    column: pa.Array, text: str
) -> None:
    assert json_cells(column).to_pylist() == [text]
    assert json_cells(pa.ListArray.from_arrays([0, 1], column)).to_pylist() == [f"[{text}]"]
    struct = pa.StructArray.from_arrays([column], ["a"])
    assert json_cells(struct).to_pylist() == [f'{{"a":{text}}}']
    json.loads(text, parse_constant=pytest.fail)


def test_slices_of_nested_columns_are_written_from_their_own_rows() -> None:
    column = pa.array([[1], [2, 3], None, [4]])
    assert json_cells(column[1:]).to_pylist() == ["[2,3]", "null", "[4]"]
    assert json_cells(pa.array([{"a": 1}, {"a": 2}])[1:]).to_pylist() == ['{"a":2}']
    assert json_cells(pa.array([[("a", 1)], [("b", 2)]], MAP)[1:]).to_pylist() == ['[["b",2]]']
    assert json_cells(pa.array([1, 2], pa.duration("ms"))[1:]).to_pylist() == ["0.002"]
    uuids = pa.array([bytes(16), UUID_BYTES], pa.uuid())[1:]
    assert json_cells(uuids).to_pylist() == [f'"{UUID}"']


def test_a_time_outside_of_the_calendar_and_a_field_that_is_there_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="outside of the calendar"):
        json_cells(pa.array([10**15], pa.timestamp("s")))
    twice = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    with pytest.raises(ValueError, match="'a'"):
        json_cells(twice)


def test_a_row_is_an_object_with_the_columns_in_their_order() -> None:
    batch = pa.record_batch({'say "n"': [1, None], "b": ["x\n", "é"]})
    rows: list[Any] = json_rows(batch).to_pylist()
    assert rows == [
        b'{"say \\"n\\"":1,"b":"x\\n"}',
        '{"say \\"n\\"":null,"b":"é"}'.encode(),
    ]


def test_rows_of_a_batch_without_columns_or_rows_are_empty() -> None:
    assert json_rows(pa.record_batch({"a": pa.array([], pa.int64())})).to_pylist() == []


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_plain_cells_that_are_no_numbers_of_json_are_null(kind: pa.DataType) -> None:
    column = pa.array([1.5, float("nan"), float("inf"), -float("inf"), None], kind)
    for cells in (column, column.dictionary_encode()):
        assert plain_cells(cells).to_pylist() == [b"1.5", None, None, None, None]


def test_plain_cells_are_unquoted_text_and_keep_nulls() -> None:
    assert plain_cells(pa.array(["a", None])).to_pylist() == [b"a", None]
    assert plain_cells(pa.array([7, None])).to_pylist() == [b"7", None]
    assert plain_cells(pa.array([date(2013, 1, 31)])).to_pylist() == [b"2013-01-31"]
    assert plain_cells(pa.array([UUID_BYTES, None], pa.uuid())).to_pylist() == [
        UUID.encode(),
        None,
    ]
    assert plain_cells(pa.array([[float("nan")]])).to_pylist() == [b"[null]"]
    assert plain_cells(pa.array([b"\xff"], pa.binary(1))).to_pylist() == [b"\xff"]
    assert plain_cells(pa.array([True])).to_pylist() == [b"true"]
    assert plain_cells(pa.array([0], pa.timestamp("s", "UTC"))).to_pylist() == [
        b"1970-01-01T00:00:00Z"
    ]
