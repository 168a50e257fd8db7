import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import pytest

from millrace.cli.console.failures import Failure
from millrace.cli.records.sources import RECORDS_MARK, RecordMapping, read_records
from millrace.cli.records.writers import open_writer
from millrace.core.records.columns import SCHEMA

RECORDS = pa.RecordBatch.from_pylist(
    [
        {
            "offset": 5,
            "timestamp": 1000,
            "key": b"k",
            "value": b'{"a": "b"}',
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        },
        {"offset": 6, "timestamp": -1, "key": None, "value": b"\xff\xfe", "headers": []},
        {"offset": 9, "timestamp": 1500, "key": b"", "value": None, "headers": []},
    ],
    SCHEMA,
)


def written(file_format: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    settings = {"key_separator": None, "null_value": None, **options}
    writer = open_writer(file_format, stream, **settings)
    writer.write("flights", 3, RECORDS)
    writer.close()
    return stream.getvalue()


def test_lines_are_the_bytes_of_the_values() -> None:
    assert written("lines") == b'{"a": "b"}\n\xff\xfe\nnull\n'
    assert written("lines", null_value="") == b'{"a": "b"}\n\xff\xfe\n\n'


def test_lines_with_keys_have_the_separator_between() -> None:
    assert written("lines", key_separator=b"\t") == b'k\t{"a": "b"}\nnull\t\xff\xfe\n\tnull\n'


def test_json_lines_tell_null_from_empty_and_bytes_from_text() -> None:
    lines = [json.loads(line) for line in written("json").splitlines()]
    common = {"topic": "flights", "partition": 3}
    assert lines == [
        {
            **common,
            "offset": 5,
            "timestamp": "1970-01-01T00:00:01.000Z",
            "key": "k",
            "value": '{"a": "b"}',
            "headers": [["h", "1"], ["h", None]],
        },
        {
            **common,
            "offset": 6,
            "timestamp": None,
            "key": None,
            "value": {"base64": "//4="},
            "headers": [],
        },
        {
            **common,
            "offset": 9,
            "timestamp": "1970-01-01T00:00:01.500Z",
            "key": "",
            "value": None,
            "headers": [],
        },
    ]


def test_csv_has_column_names_once_and_quotes_what_needs_it() -> None:
    assert written("csv", null_value="NULL").decode().splitlines() == [
        "topic,partition,offset,timestamp,key,value,headers",
        'flights,3,5,1970-01-01T00:00:01.000Z,k,"{""a"": ""b""}","[[""h"", ""1""], [""h"", null]]"',
        "flights,3,6,,NULL,base64://4=,",
        'flights,3,9,1970-01-01T00:00:01.500Z,"",NULL,',
    ]


CELLS = [
    b"",
    None,
    b" ",
    b"NULL",
    b"a,b",
    b'say "hi"',
    b"two\nlines",
    b"\xff\xfe",
    b"base64:AA==",
    b"7",
]


@pytest.mark.parametrize("null_value", ["a,b", '"q"', 'a"', "a\nb", "\r"])
def test_csv_refuses_a_text_for_null_that_needs_quotes_as_null_has_none(null_value: str) -> None:
    with pytest.raises(Failure, match="cannot stand for null in CSV"):
        written("csv", null_value=null_value)


@pytest.mark.parametrize("null_value", [None, "NULL", "7"])
@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_text_files_of_records_give_the_bytes_of_keys_and_values_back(
    file_format: str, null_value: str | None
) -> None:
    rows: list[dict[str, Any]] = [
        {"offset": i, "timestamp": 1000, "key": cell, "value": cell, "headers": []}
        for i, cell in enumerate(CELLS)
    ]
    stream = io.BytesIO()
    writer = open_writer(file_format, stream, key_separator=None, null_value=null_value)
    writer.write("flights", 3, pa.RecordBatch.from_pylist(rows, SCHEMA))
    writer.close()
    stream.seek(0)
    mapping = RecordMapping(
        key="key",
        value="value",
        timestamp="timestamp",
        headers="headers",
        null_value=null_value if file_format == "csv" else None,
    )
    (columns,) = read_records(stream, "copy", file_format, mapping)
    assert columns.values.to_pylist() == CELLS
    assert columns.keys is not None
    assert columns.keys.to_pylist() == CELLS
    assert columns.timestamps is not None
    assert columns.timestamps.to_pylist() == [1000] * len(CELLS)


def test_rows_of_other_programs_keep_what_looks_like_bytes_of_records() -> None:
    line = b'{"value": {"base64": "AA=="}}'
    (columns,) = read_records(io.BytesIO(line), "other", "json", RecordMapping(value="value"))
    assert columns.values.to_pylist() == [b'{"base64":"AA=="}']
    table = b"value,key\nbase64:AA==,\n"
    (columns,) = read_records(io.BytesIO(table), "other", "csv", RecordMapping(value="value"))
    assert columns.values.to_pylist() == [b"base64:AA=="]


def test_rows_of_records_are_values_as_a_whole_unless_a_column_is_named() -> None:
    (columns,) = read_records(io.BytesIO(written("csv")), "copy", "csv", RecordMapping())
    rows = [json.loads(value) for value in columns.values.to_pylist()]
    assert [row["key"] for row in rows] == ["k", None, ""]
    assert [row["value"] for row in rows] == ['{"a": "b"}', "base64://4=", None]


def test_what_is_not_base64_in_a_record_is_refused_by_its_row() -> None:
    lines = written("json").replace(b"//4=", b"//4")
    with pytest.raises(Failure, match="copy, line 2: '//4' is not base64"):
        list(read_records(io.BytesIO(lines), "copy", "json", RecordMapping(value="value")))


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
def test_files_of_records_can_be_produced_again_without_loss(file_format: str) -> None:
    stream = io.BytesIO(written(file_format))
    (columns,) = read_records(stream, "copy", file_format, RecordMapping())
    assert columns.values.to_pylist() == [b'{"a": "b"}', b"\xff\xfe", None]
    assert columns.keys is not None
    assert columns.keys.to_pylist() == [b"k", None, b""]
    assert columns.timestamps is not None
    assert columns.timestamps.to_pylist() == [1000, None, 1500]
    assert columns.headers is not None
    assert columns.headers.to_pylist() == RECORDS.column("headers").to_pylist()


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
def test_files_of_records_have_times_as_times(file_format: str) -> None:
    stream = io.BytesIO(written(file_format))
    read = pa.parquet.read_table if file_format == "parquet" else pa.ipc.open_stream
    assert read(stream).schema.field("timestamp").type == pa.timestamp("ms", "UTC")


@pytest.mark.parametrize("file_format", ["arrow", "parquet"])
def test_files_with_times_as_numbers_can_be_produced_again_too(file_format: str) -> None:
    table = pa.table(RECORDS.columns, SCHEMA.with_metadata(RECORDS_MARK))
    stream = io.BytesIO()
    if file_format == "parquet":
        pa.parquet.write_table(table, stream)
    else:
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
    stream.seek(0)
    (columns,) = read_records(stream, "copy", file_format, RecordMapping())
    assert columns.timestamps is not None
    assert columns.timestamps.to_pylist() == [1000, -1, 1500]


def test_a_table_shows_one_line_a_record_even_when_values_have_several() -> None:
    stream = io.BytesIO()
    writer = open_writer("table", stream, key_separator=None, null_value=None)
    writer.write("flights", 0, RECORDS.slice(0, 1).set_column(3, "value", pa.array([b"a\nb"])))
    lines = stream.getvalue().decode().splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE"]
    assert lines[1].split() == ["flights", "0", "5", "1970-01-01T00:00:01.000Z", "k", "a␊b"]
    assert len(lines) == 2
