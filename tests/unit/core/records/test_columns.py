"""Columns in, the same columns out; and every Arrow array that a user may hand over."""

import re
import subprocess
import sys
from array import array
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from tests.unit.core.records.batches import (
    LIMITS,
    TOPIC_PARTITION,
    codecs,
    columns,
    open_whole,
    rows,
    sealed,
)

from millrace.core.errors import InvalidRecordError, InvalidTimestampError
from millrace.core.ids import WallMs
from millrace.core.records import batch as record_batch
from millrace.core.records import column_reader, column_writer
from millrace.core.records.cells import FEW_MAX, cells_of
from millrace.core.records.columns import HEADERS_TYPE, RECORDS_MAX, SCHEMA, Columns
from millrace.core.records.compression import inflate
from millrace.core.records.header import HEADER_BYTES, TIMESTAMP_MAX, Attributes, parse_header

NOON = WallMs(1_700_000_000_000)
CELLS: list[bytes | None] = [b"one", None, b"", b"four", b"\xff" * 20]


def values(cells: Any, count: int | None = None) -> Columns:
    return Columns(
        record_count=len(cells) if count is None else count, timestamps=NOON, values=cells
    )


def read_values(batch: bytes) -> list[bytes | None]:
    read: list[bytes | None] = open_whole(batch).column("value").to_pylist()
    return read


@given(columns(), codecs())
def test_records_come_back_as_they_were(given_columns: Columns, codec: str) -> None:
    batch = sealed(given_columns, codec)
    header = record_batch.check(TOPIC_PARTITION, batch, LIMITS)
    assert header.record_count == given_columns.record_count
    assert open_whole(batch).to_pylist() == rows(given_columns)


@given(columns())
def test_the_same_records_have_one_form_however_they_are_handed_over(plain: Columns) -> None:
    def arrow(cells: Any, kind: pa.DataType) -> Any:
        if cells is None:
            return None
        padded = pa.concat_arrays([pa.array([None], kind), pa.array(cells, kind)])
        return padded.slice(1)  # With an offset, as slices of tables have.

    headers = None
    if plain.headers is not None:
        named = [
            [{"key": name, "value": value} for name, value in of_one] for of_one in plain.headers
        ]
        headers = arrow(named, HEADERS_TYPE)
    from_arrow = Columns(
        record_count=plain.record_count,
        timestamps=plain.timestamps,
        keys=arrow(plain.keys, pa.binary()),
        values=arrow(plain.values, pa.large_binary()),
        headers=headers,
    )
    assert sealed(from_arrow) == sealed(plain)


@given(columns())
def test_cells_whose_lengths_were_counted_have_the_same_form(plain: Columns) -> None:
    def counted(cells: Any) -> Any:
        return None if cells is None else cells_of(cells)

    count, times = plain.record_count, plain.timestamps
    as_cells = Columns(count, times, counted(plain.values), counted(plain.keys), plain.headers)
    assert sealed(as_cells) == sealed(plain)


@pytest.mark.parametrize("count", [1, FEW_MAX - 1, FEW_MAX, FEW_MAX + 1])
def test_few_cells_have_the_form_of_many(count: int) -> None:
    for step in (1, 2, count + 1):
        cells = [None if row % step else b"x" * (row % 7) for row in range(count)]
        many = pa.array([*cells, b"another"], pa.binary()).slice(0, count)
        assert sealed(values(cells)) == sealed(values(many))


@given(columns(), codecs())
def test_what_a_reader_got_is_sealed_to_the_same_body_again(plain: Columns, codec: str) -> None:
    batch = sealed(plain, codec)
    header, records = parse_header(batch), open_whole(batch)
    again = Columns(
        record_count=len(records),
        timestamps=records.column("timestamp").to_numpy(),
        keys=records.column("key"),
        values=records.column("value"),
        headers=records.column("headers"),
    )
    body = inflate(header.codec, batch[HEADER_BYTES:], header.inflated_length)
    assert column_writer.write(again).body == bytes(body)


def _written(parameter: object) -> str:
    """Return a parameter's name, which is the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(parameter))


@pytest.mark.parametrize(
    "array",
    [
        pa.array(CELLS, pa.binary()),
        pa.array(CELLS, pa.large_binary()),
        pa.array(CELLS, pa.binary_view()),
        pa.array(CELLS, pa.binary()).dictionary_encode(),
        pa.chunked_array([pa.array(CELLS[:2]), pa.array(CELLS[2:])]),
        pa.chunked_array([CELLS[:2], CELLS[2:2], CELLS[2:]], pa.large_binary()),
        pa.array([b"x", *CELLS, b"y"], pa.binary()).slice(1, len(CELLS)),
        tuple(CELLS),
        np.array(CELLS, object),
    ],
    ids=lambda array: type(array).__name__ + str(getattr(array, "type", "")),
)
def test_any_binary_array_is_taken(array: Any) -> None:
    assert read_values(sealed(values(array))) == CELLS


@pytest.mark.parametrize(
    "kind",
    [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
)
def test_text_is_taken_as_utf8(kind: pa.DataType) -> None:
    texts = ["a", None, "", "zwölf"]
    expected = [None if text is None else text.encode() for text in texts]
    assert read_values(sealed(values(pa.array(texts, kind)))) == expected


def test_cells_of_fixed_size_are_taken() -> None:
    assert read_values(sealed(values(pa.array([b"ab", b"cd"], pa.binary(2))))) == [b"ab", b"cd"]


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([1, 2]),
        pa.array([[b"a"], [b"b"]]),
        pa.chunked_array([[1], [2]]),
        [1, 2],
        [b"a", 2],
        [None, 2],
        ["a", "b"],
        [b"x" * 300, "b"],
        [b"x" * 300, 7],
        [b"a", object()],
        [memoryview(array("i", [1, 2])), b"b"],
    ],
    ids=_written,
)
def test_what_is_not_bytes_is_refused(cells: Any) -> None:
    with pytest.raises(InvalidRecordError):
        sealed(values(cells))


def test_views_of_bytes_are_bytes() -> None:
    assert read_values(sealed(values([memoryview(b"abc"), bytearray(b"de")]))) == [b"abc", b"de"]


def test_no_bytes_are_stored_under_a_null() -> None:
    secret = pa.Array.from_buffers(
        pa.binary(),
        3,
        [
            pa.py_buffer(b"\x05"),
            pa.py_buffer(np.array([0, 1, 7, 8], np.int32)),
            pa.py_buffer(b"aSECRETb"),
        ],
    )
    assert secret.to_pylist() == [b"a", None, b"b"]
    batch = sealed(values(secret))
    assert b"SECRET" not in batch
    assert read_values(batch) == [b"a", None, b"b"]


@pytest.mark.parametrize(
    ("given_columns", "attributes"),
    [
        (Columns(record_count=9, timestamps=NOON), 0),
        (values([None] * 9), 0),
        (values(pa.nulls(9)), 0),
        (values(pa.nulls(9, pa.binary())), 0),
        (values([b""] * 9), Attributes.VALUES_EMPTY),
        (values(pa.array([""] * 9)), Attributes.VALUES_EMPTY),
        (Columns(record_count=9, timestamps=NOON, keys=[b""] * 9), Attributes.KEYS_EMPTY),
        (Columns(record_count=9, timestamps=NOON, headers=[()] * 9), 0),
        (Columns(record_count=9, timestamps=np.full(9, NOON)), 0),
        (Columns(9, NOON, offset_deltas=np.arange(9, dtype=np.int32)), 0),
    ],
)
def test_a_column_that_says_nothing_is_left_out(given_columns: Columns, attributes: int) -> None:
    batch = sealed(given_columns)
    assert len(batch) == HEADER_BYTES
    assert parse_header(batch).attributes == attributes


def test_null_and_empty_are_told_apart_in_columns_that_are_left_out() -> None:
    batch = sealed(Columns(record_count=2, timestamps=NOON, keys=[b"", b""], values=[None, None]))
    assert open_whole(batch).select(["key", "value"]).to_pylist() == [
        {"key": b"", "value": None},
        {"key": b"", "value": None},
    ]


def test_a_records_headers_are_always_a_list() -> None:
    without = open_whole(sealed(values([b"a", b"b"])))
    some = Columns(2, NOON, headers=[[], [("name", None), ("name", b"")]])
    assert without.column("headers").to_pylist() == [[], []]
    assert open_whole(sealed(some)).column("headers").to_pylist() == [
        [],
        [{"key": "name", "value": None}, {"key": "name", "value": b""}],
    ]
    assert without.schema == SCHEMA


@pytest.mark.parametrize(
    "kind",
    [
        HEADERS_TYPE,
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())])),
        pa.map_(pa.string(), pa.binary()),
    ],
    ids=str,
)
def test_headers_are_taken_from_any_list_of_pairs(kind: pa.DataType) -> None:
    cells = [[("a", b"x"), ("b", None)], None, [], [("ä", b"")]]
    if not pa.types.is_map(kind):
        cells = [of and [{"key": k, "value": v} for k, v in of] for of in cells]  # type: ignore[misc]
    array = pa.array([None, *cells, None], kind).slice(1, 4)
    for given_headers in (array, pa.chunked_array([array.slice(0, 3), array.slice(3)])):
        batch = sealed(Columns(record_count=4, timestamps=NOON, headers=given_headers))
        read = open_whole(batch).column("headers").to_pylist()
        assert [[(h["key"], h["value"]) for h in of] for of in read] == [
            [("a", b"x"), ("b", None)],
            [],
            [],
            [("ä", b"")],
        ]


def test_headers_hidden_under_a_null_list_are_not_taken() -> None:
    entries = pa.array([{"key": "a", "value": b"x"}, {"key": "SECRET", "value": b"y"}])
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()), entries, mask=pa.array([False, True])
    )
    batch = sealed(Columns(record_count=2, timestamps=NOON, headers=lists))
    assert b"SECRET" not in batch
    assert open_whole(batch).column("headers").to_pylist() == [[{"key": "a", "value": b"x"}], []]


@pytest.mark.parametrize(
    "headers",
    [
        [[("a", b"x")]],
        [[("a", b"x")], None],
        [[("a", b"x")], [b"y"]],
        [[("a", b"x")], [("b", b"y", b"z")]],
        [[("a", b"x")], [(None, b"y")]],
        [[("a", b"x")], [(7, b"y")]],
        [[("a", b"x")], [("b", 7)]],
        [[("\ud800", b"x")], []],
        pa.array([[{"key": "a", "value": b"x"}, None], []], pa.list_(HEADERS_TYPE.value_type)),
        pa.array([["a"], ["b"]]),
        pa.array([b"a", b"b"]),
    ],
    ids=_written,
)
def test_headers_of_another_shape_are_refused(headers: Any) -> None:
    with pytest.raises(InvalidRecordError):
        sealed(Columns(record_count=2, timestamps=NOON, headers=headers))


@pytest.mark.parametrize(
    "given_columns",
    [
        values([b"a"], count=2),
        values(pa.array([b"a"] * 3), count=2),
        Columns(record_count=2, timestamps=NOON, keys=[]),
        Columns(record_count=2, timestamps=np.array([1, 2, 3])),
        Columns(record_count=2, timestamps=np.array([[1, 2]])),
        Columns(record_count=2, timestamps=np.array([1.0, 2.0])),
        Columns(2, NOON, offset_deltas=np.array([1, 2, 3], np.int32)),
        values([], count=0),
        values([None] * (RECORDS_MAX + 1)),
    ],
    ids=lambda given_columns: f"{given_columns.record_count} records",
)
def test_columns_of_another_length_are_refused(given_columns: Columns) -> None:
    with pytest.raises(InvalidRecordError):
        sealed(given_columns)


@pytest.mark.parametrize(
    "timestamps",
    [
        -1,
        TIMESTAMP_MAX + 1,
        1_700_000_000_000_000,  # Microseconds.
        np.array([0, -1]),
        np.array([0, 2**62]),
        np.array([0, 2**64 - 1], np.uint64),
    ],
)
def test_times_that_the_format_cannot_hold_are_refused(timestamps: Any) -> None:
    with pytest.raises(InvalidTimestampError, match="year 9999"):
        sealed(Columns(record_count=2, timestamps=timestamps))


def test_the_edges_of_time_are_held() -> None:
    batch = sealed(Columns(record_count=3, timestamps=np.array([5, 0, TIMESTAMP_MAX])))
    header = parse_header(batch)
    assert (header.base_timestamp, header.max_timestamp) == (5, TIMESTAMP_MAX)
    assert open_whole(batch).column("timestamp").to_pylist() == [5, 0, TIMESTAMP_MAX]


def test_sealing_leaves_the_callers_columns_alone() -> None:
    times = np.full(3, NOON)
    mine = Columns(record_count=3, timestamps=times, values=CELLS[:3])
    sealed(mine)
    assert mine.timestamps is times


def test_as_many_records_as_a_batch_holds_come_back() -> None:
    batch = sealed(values([b"x"] * RECORDS_MAX))
    assert read_values(batch) == [b"x"] * RECORDS_MAX
    empty = sealed(Columns(record_count=RECORDS_MAX, timestamps=NOON, keys=[b""] * RECORDS_MAX))
    records = open_whole(empty)
    assert records.column("key").null_count == 0
    assert records.column("value").null_count == RECORDS_MAX


def test_the_smallest_batch_makes_a_reader_allocate_16_bytes_a_record_at_most() -> None:
    batch = sealed(Columns(record_count=RECORDS_MAX, timestamps=NOON))
    assert len(batch) == HEADER_BYTES
    header = parse_header(batch)
    before = pa.total_allocated_bytes()
    records = record_batch.open_batch(TOPIC_PARTITION, header, batch, 0)
    own = [records.column(name) for name in ("offset", "timestamp")]
    assert sum(buffer.size for array in own for buffer in array.buffers() if buffer) <= (
        16 * RECORDS_MAX
    )
    assert pa.total_allocated_bytes() == before  # The other columns look into shared zeros.


def test_nothing_is_copied_out_of_an_uncompressed_batch() -> None:
    batch = sealed(values([b"x" * 100] * 1000))
    before = pa.total_allocated_bytes()
    value = open_whole(batch).column("value")
    start = pa.py_buffer(batch).address
    assert start <= value.buffers()[2].address < start + len(batch)
    assert pa.total_allocated_bytes() == before


def test_a_batch_stands_at_any_address() -> None:
    batch = sealed(
        Columns(3, np.array([3, 1, 2]), values=CELLS[:3], headers=[[("a", b"b")], [], []])
    )
    for shift in range(9):
        moved = memoryview(bytes(shift) + batch)[shift:]
        assert open_whole(moved) == open_whole(batch)  # type: ignore[arg-type]
        record_batch.check(TOPIC_PARTITION, moved, LIMITS)


def test_offsets_with_gaps_come_back() -> None:
    deltas = np.array([2, 3, 9], np.int32)
    written = column_writer.write(values([b"a", b"b", b"c"]))
    gapped = column_writer.write(
        Columns(record_count=3, timestamps=NOON, values=[b"a", b"b", b"c"], offset_deltas=deltas)
    )
    assert gapped.attributes == written.attributes | Attributes.OFFSET_DELTAS
    assert len(gapped.body) == len(written.body) + 8 + 16


def test_only_a_little_endian_machine_may_read_batches_in_place() -> None:
    script = (
        "import sys, numpy, pyarrow, crc32c; sys.byteorder = 'big'; "
        "import millrace.core.records.columns"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert run.returncode != 0
    assert "little-endian" in run.stderr


def test_the_reader_names_every_column_that_is_there() -> None:
    written = column_writer.write(
        Columns(
            2, np.array([1, 2]), values=[b"a", None], keys=[b"k", b""], headers=[[], [("h", b"")]]
        )
    )
    batch = sealed(
        Columns(
            2, np.array([1, 2]), values=[b"a", None], keys=[b"k", b""], headers=[[], [("h", b"")]]
        )
    )
    body = column_reader.read(written.body, parse_header(batch), canonical=True)
    assert body.offset_deltas is None
    for column in (body.timestamps, body.keys, body.values, body.headers):
        assert column is not None
        assert len(column) == 2
