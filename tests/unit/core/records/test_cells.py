"""Python's bytes as a column, and as an Arrow array."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.records.cells import ByteCells, array_of, cells_of, joined

CELLS = st.lists(st.binary(max_size=9) | st.none())


@given(CELLS)
def test_an_array_is_the_one_that_arrow_makes(cells: list[bytes | None]) -> None:
    array = array_of(cells)
    array.validate(full=True)
    assert array.equals(pa.array(cells, pa.binary()))
    assert array.null_count == cells.count(None)


@given(CELLS)
def test_a_column_with_nulls_is_an_array_and_any_other_is_not(cells: list[bytes | None]) -> None:
    column = cells_of(cells)
    assert isinstance(column, pa.Array) == (None in cells)
    array = column.as_array() if isinstance(column, ByteCells) else column
    assert array.to_pylist() == cells


@given(st.lists(st.binary(max_size=9), min_size=1), st.data())
def test_some_cells_keep_their_lengths(cells: list[bytes], data: st.DataObject) -> None:
    column = cells_of(cells)
    assert isinstance(column, ByteCells)
    rows = data.draw(st.lists(st.integers(0, len(cells) - 1)))
    for part, expected in (
        (column.take(np.array(rows, np.int64)), [cells[row] for row in rows]),
        (column[1:3], cells[1:3]),
    ):
        assert list(part.cells()) == expected
        assert part.lengths.tolist() == [len(cell) for cell in expected]
        assert len(part) == len(expected)


@given(st.lists(st.lists(st.binary(max_size=9)), min_size=1))
def test_joined_columns_hold_all_cells_in_their_order(columns: list[list[bytes]]) -> None:
    cells = [cell for column in columns for cell in column]
    column = joined([cells_of(column) for column in columns])
    assert list(column.cells()) == cells
    assert column.as_array().to_pylist() == cells
    assert list(column[1:].cells()) == cells[1:]


@pytest.mark.parametrize(
    "cells", [[1], [None, 1], ["text"], [None, "text"], [memoryview(b"12345678").cast("q")]]
)
def test_what_is_no_bytes_makes_no_array(cells: list[Any]) -> None:
    with pytest.raises(TypeError):
        array_of(cells)
