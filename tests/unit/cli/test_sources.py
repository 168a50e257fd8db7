import io
import os
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
import pytest

from millrace.cli.failures import Failure
from millrace.cli.records.sources import RecordMapping, read_records

Records = dict[str, list[Any] | None]


def read(data: bytes, file_format: str, **mapping: Any) -> Records:
    """Read everything and return it as lists."""
    records: Records = {"values": [], "keys": None, "timestamps": None}
    for columns in read_records(io.BytesIO(data), "input", file_format, RecordMapping(**mapping)):
        for name in records:
            column = getattr(columns, name)
            if column is not None:
                records[name] = (records[name] or []) + column.to_pylist()
    return records


def parquet_bytes(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pa.parquet.write_table(table, sink)
    return sink.getvalue()


def arrow_bytes(table: pa.Table, new_writer: Callable[..., Any] = pa.ipc.new_stream) -> bytes:
    sink = io.BytesIO()
    with new_writer(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_lines_are_values_byte_for_byte_and_the_last_needs_no_newline() -> None:
    assert read(b"a \r\n\n\xff\nend", "lines")["values"] == [b"a \r", b"", b"\xff", b"end"]


def test_no_lines_are_no_records() -> None:
    assert read(b"", "lines")["values"] == []


def test_a_line_is_split_at_the_first_separator_into_key_and_value() -> None:
    records = read(b"k\tv\tw\n\t\nk\tNULL\n", "lines", key_separator=b"\t", null_value="NULL")
    assert records["keys"] == [b"k", b"", b"k"]
    assert records["values"] == [b"v\tw", b"", None]


def test_the_text_for_null_stands_for_it_in_keys_too() -> None:
    assert read(b"NULL:1\nk:2\n", "lines", key_separator=b":", null_value="NULL")["keys"] == [
        None,
        b"k",
    ]


def test_records_are_named_by_their_lines_or_rows() -> None:
    def places(data: bytes, file_format: str) -> list[str]:
        return [
            columns.place(index)
            for columns in read_records(io.BytesIO(data), "x", file_format, RecordMapping())
            for index in range(len(columns.values))
        ]

    assert places(b"a\n" + b"b" * 3_000_000 + b"\nc", "lines") == [
        "x, line 1",
        "x, line 2",
        "x, line 3",
    ]
    assert places(b"{}\n\n{}\n", "json") == ["x, line 1", "x, line 3"]
    table = pa.table({"id": range(16_385)})
    assert places(parquet_bytes(table), "parquet")[-1] == "x, row 16,385"


def test_a_line_without_separator_is_named_by_its_number() -> None:
    with pytest.raises(Failure, match="input, line 2: no key separator ':'"):
        read(b"a:1\nb\n", "lines", key_separator=b":")


def test_lines_of_a_pipe_are_yielded_while_its_writer_is_still_there() -> None:
    readable, writable = os.pipe()
    with open(readable, "rb") as stream, open(writable, "wb", buffering=0) as writer:
        records = read_records(stream, "-", "lines", RecordMapping())
        writer.write(b"first\nsec")
        assert next(records).values.to_pylist() == [b"first"]
        writer.write(b"ond\n")
        writer.close()
        assert [columns.values.to_pylist() for columns in records] == [[b"second"]]


def test_lines_longer_than_a_block_are_put_together() -> None:
    long = b"x" * 3_000_000
    assert read(b"a\n" + long + b"\nb", "lines")["values"] == [b"a", long, b"b"]


def test_json_lines_stay_byte_for_byte_and_keys_stay_as_they_were_written() -> None:
    data = b'{"id": "2013-01-01", "n": 12345678901234567890}\n\n{"n":1,  "id":null}\n'
    records = read(data, "json", key="id")
    assert records["values"] == [line for line in data.split(b"\n") if line]
    assert records["keys"] == [b"2013-01-01", None]
    assert read(data, "json", key="n")["keys"] == [b"12345678901234567890", b"1"]


def test_a_json_value_column_gives_its_text_or_its_json() -> None:
    data = b'{"v": "text"}\n{"v": {"a": [1, null]}}\n{"v": null}\n'
    assert read(data, "json", value="v")["values"] == [b"text", b'{"a":[1,null]}', None]


def test_json_timestamps_are_milliseconds_or_iso_8601_in_utc() -> None:
    data = b'{"t": 1500}\n{"t": "1970-01-01T00:00:01"}\n{"t": "1970-01-01T01:00:00+01:00"}\n'
    assert read(data, "json", timestamp="t")["timestamps"] == [1500, 1000, 0]
    with pytest.raises(Failure, match="'soon' is not a timestamp"):
        read(b'{"t": "soon"}', "json", timestamp="t")


@pytest.mark.parametrize("cell", ["99999999999999999999", "-99999999999999999999", "true", "null"])
def test_a_json_timestamp_that_is_none_is_named_with_its_place(cell: str) -> None:
    line = f'{{"t": {cell}}}'
    with pytest.raises(Failure, match=r"input, line 3: .* is not a timestamp"):
        read(f'{{"t": 1}}\n\n{line}\n'.encode(), "json", timestamp="t")
    with pytest.raises(Failure, match=r"input, element 2: .* is not a timestamp"):
        read(f'[{{"t": 1}}, {line}]'.encode(), "json", timestamp="t")


def test_json_with_a_number_that_is_too_long_is_refused_with_its_place() -> None:
    row = b'{"n": ' + b"9" * 5000 + b"}"
    with pytest.raises(Failure, match=r"input, line 2: .* 5000 digits"):
        read(b"{}\n" + row, "json")
    with pytest.raises(Failure, match=r"input, element 2: a number of more than 4,300 digits"):
        read(b"[{}, " + row + b"]", "json")


def test_an_array_of_json_is_a_record_for_each_element() -> None:
    data = b' [ {"id": 7,\n  "n": 1.50} ,\n {"id": "x"}]\n'
    records = read(data, "json", key="id")
    assert records["values"] == [b'{"id":7,"n":1.50}', b'{"id":"x"}']
    assert records["keys"] == [b"7", b"x"]
    with pytest.raises(Failure, match="input, element 2: not a JSON object"):
        read(b"[{}, 1]", "json")


@pytest.mark.parametrize(
    ("data", "file_format"),
    [
        (b'{"v": 1, "h": {"a": "1"}}\n{"v": 2}\n', "json"),
        (b'v,h\n1,"{""a"": ""1""}"\n2,\n', "csv"),
    ],
)
def test_headers_of_a_column_stand_before_those_of_every_record(
    data: bytes, file_format: str
) -> None:
    mapping = RecordMapping(value="v", headers="h", added_headers=[("run", b"17")])
    (columns,) = read_records(io.BytesIO(data), "input", file_format, mapping)
    assert columns.headers is not None
    run = {"key": "run", "value": b"17"}
    assert columns.headers.to_pylist() == [[{"key": "a", "value": b"1"}, run], [run]]


@pytest.mark.parametrize("line", [b"{", b"[1]", b"nonsense"])
def test_a_line_that_is_no_json_object_is_named_by_its_number(line: bytes) -> None:
    with pytest.raises(Failure, match="input, line 2: not"):
        read(b"{}\n" + line + b"\n", "json")


def test_csv_rows_become_json_objects_with_numbers_and_nulls() -> None:
    data = b"carrier,delay,dest\nUA,11,IAH\nAA,NA,MIA\n"
    assert read(data, "csv", key="carrier", null_value="NA") == {
        "values": [
            b'{"carrier":"UA","delay":11,"dest":"IAH"}',
            b'{"carrier":"AA","delay":null,"dest":"MIA"}',
        ],
        "keys": [b"UA", b"AA"],
        "timestamps": None,
    }


def test_csv_keys_and_values_of_a_column_are_never_taken_for_numbers() -> None:
    data = b"zip,city\n007,x\n010,y\n"
    assert read(data, "csv", key="zip", value="zip")["keys"] == [b"007", b"010"]
    assert read(data, "csv", key="zip", value="zip")["values"] == [b"007", b"010"]
    assert read(data, "csv", as_text=True)["values"] == [
        b'{"zip":"007","city":"x"}',
        b'{"zip":"010","city":"y"}',
    ]


def test_csv_null_keys_and_values_are_null_and_not_empty() -> None:
    data = b"k,v\nNULL,x\n,NULL\n"
    records = read(data, "csv", key="k", value="v", null_value="NULL")
    assert records["keys"] == [None, b""]
    assert records["values"] == [b"x", None]


def test_csv_times_become_milliseconds() -> None:
    data = b"at,v\n1970-01-01T00:00:02Z,a\n1970-01-01T00:00:03Z,b\n"
    assert read(data, "csv", timestamp="at", value="v")["timestamps"] == [2000, 3000]


def test_a_column_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(Failure, match="no column 'tailnumber'") as failure:
        read(b"tailnum,dest\nN1,IAH\n", "csv", key="tailnumber")
    assert failure.value.hint == "did you mean 'tailnum'?"


def test_a_csv_row_with_too_few_cells_is_refused_with_a_hint() -> None:
    with pytest.raises(Failure, match="cannot be read as csv") as failure:
        read(b"a,b\n1,2\n3\n", "csv")
    assert "--null-value" in failure.value.hint


def test_csv_that_is_not_utf_8_is_refused_with_how_to_convert_it() -> None:
    with pytest.raises(Failure, match="column 'city' is not UTF-8") as failure:
        read(b"city,n\nK\xf6ln,1\n", "csv")
    assert "iconv" in failure.value.hint


def test_parquet_rows_are_read_through_their_types() -> None:
    table = pa.table({"id": [1, 2], "name": ["a", None]})
    records = read(parquet_bytes(table), "parquet", key="id")
    assert records["keys"] == [b"1", b"2"]
    assert records["values"] == [b'{"id":1,"name":"a"}', b'{"id":2,"name":null}']


@pytest.mark.parametrize("new_writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_streams_and_files_are_both_read(new_writer: Callable[..., Any]) -> None:
    data = arrow_bytes(pa.table({"id": [1, 2], "v": ["a", "b"]}), new_writer)
    assert read(data, "arrow", key="id", value="v")["values"] == [b"a", b"b"]


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_a_file_that_is_something_else_is_refused(file_format: str) -> None:
    with pytest.raises(Failure, match=f"cannot be read as {file_format}"):
        read(b"not at all", file_format)


def test_a_column_of_words_is_no_timestamp() -> None:
    with pytest.raises(Failure, match="holds no times"):
        read(parquet_bytes(pa.table({"t": ["soon"]})), "parquet", timestamp="t")


@pytest.mark.parametrize("named", ["key", "value", "headers"])
def test_half_a_character_is_refused(named: str) -> None:
    data = b'{"t": {"\\ud800": "x"}}' if named == "headers" else b'{"t": "\\ud800"}'
    with pytest.raises(Failure, match=r"input: .* cannot be written as UTF-8"):
        read(data, "json", **{named: "t"})


@pytest.mark.parametrize("begin", [b'{"a":', b'[{"a":'])
def test_json_that_is_nested_too_deeply_is_refused(begin: bytes) -> None:
    with pytest.raises(Failure, match="input: JSON that is nested too deeply"):
        read(begin + b"[" * 100_000, "json")
