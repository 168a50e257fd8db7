"""What is read from a batch is a part of it, and no copy."""

import pyarrow as pa
import pytest

from millrace.web.reading import _taken


def batch(offsets: list[int]) -> pa.RecordBatch:
    values = [b"%d" % offset * 1_000 for offset in offsets]
    return pa.record_batch({"offset": pa.array(offsets, pa.int64()), "value": values})


@pytest.mark.parametrize(
    ("position", "end", "taken"),
    [
        (0, 100, [10, 11, 15, 20]),
        (10, 21, [10, 11, 15, 20]),
        (11, 20, [11, 15]),
        (12, 15, []),
        (12, 16, [15]),
        (21, 100, []),
        (0, 10, []),
    ],
)
def test_records_from_a_position_on_and_before_an_end_are_taken_without_a_copy(
    position: int, end: int, taken: list[int]
) -> None:
    records = batch([10, 11, 15, 20])
    before = pa.total_allocated_bytes()
    found = _taken(records, position, end)
    assert pa.total_allocated_bytes() == before
    assert found.column("offset").to_pylist() == taken
    assert found.column("value").to_pylist() == [b"%d" % offset * 1_000 for offset in taken]
