import errno
import io
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.cli.console.failures import Failure
from millrace.cli.records.sources import RecordMapping, read_records

Records = dict[str, list[Any] | None]


def read(data: bytes, file_format: str, first: int = 1, **mapping: Any) -> Records:
    """Read everything and return it as lists."""
    records: Records = {"values": [], "keys": None, "timestamps": None}
    for columns in read_records(
        io.BytesIO(data), "input", file_format, RecordMapping(**mapping), first
    ):
        for name in records:
            column = getattr(columns, name)
            if column is not None:
                records[name] = (records[name] or []) + column.to_pylist()
    return records


def read_until_refused(
    data: bytes, file_format: str, **mapping: Any
) -> tuple[list[bytes | None], Failure]:
    """Return the values before a row that is refused, and why it is."""
    values: list[bytes | None] = []

    def read_all() -> None:
        stream, mapped = io.BytesIO(data), RecordMapping(**mapping)
        for columns in read_records(stream, "input", file_format, mapped):
            assert len(columns.numbers) == len(columns.values)
            values.extend(columns.values.to_pylist())

    with pytest.raises(Failure) as refused:
        read_all()
    return values, refused.value


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


@pytest.mark.parametrize("row", [b"3", b"3,4,5"])
def test_a_csv_row_with_too_few_or_too_many_cells_is_named_by_its_number(row: bytes) -> None:
    data = b"a,b\n1,2\n\n" + row + b"\n5,6\n"
    records, problem = read_until_refused(data, "csv", as_text=True)
    assert records == [b'{"a":"1","b":"2"}']
    assert "input, row 2: " in problem.message
    assert f"{row.decode()!r}" in problem.message
    assert read(data, "csv", first=3)["values"] == [b'{"a":5,"b":6}']


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
    with pytest.raises(Failure, match=r"input, line 2: .* cannot be written as UTF-8"):
        read(b'{"t": ""}\n' + data, "json", 1, **{named: "t"})


@pytest.mark.parametrize("begin", [b'{"a":', b'[{"a":'])
def test_json_that_is_nested_too_deeply_is_refused(begin: bytes) -> None:
    with pytest.raises(Failure, match=r"input, (line|element) 1: JSON that is nested too deeply"):
        read(begin + b"[" * 100_000, "json")


BOM = b"\xef\xbb\xbf"
NUMBERS = ["12345678901234567890", "0.1234567890123456789", "1.10", "1e2", "1e400", "-0.0", "7"]


@pytest.mark.parametrize(
    ("data", "file_format"),
    [
        (b"id,v\n7,a\n", "csv"),
        (b'"id",v\n7,a\n', "csv"),
        (b'{"id":7,"v":"a"}\n', "json"),
        (b'[{"id":7,"v":"a"}]', "json"),
    ],
)
def test_a_byte_order_mark_is_no_part_of_the_first_name(data: bytes, file_format: str) -> None:
    assert read(BOM + data, file_format, key="id")["keys"] == [b"7"]
    assert read(BOM + data, file_format)["values"] == [b'{"id":7,"v":"a"}']


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_utf_16_is_refused_with_how_to_convert_it(file_format: str) -> None:
    with pytest.raises(Failure, match="input is UTF-16") as failure:
        read("id,v\n1,2\n".encode("utf-16"), file_format)
    assert "iconv -f UTF-16" in failure.value.hint


@pytest.mark.parametrize("mapping", [{}, {"key": "a"}, {"key": "b"}, {"as_text": True}])
@pytest.mark.parametrize("file_format", ["csv", "parquet", "arrow"])
def test_a_column_that_is_there_twice_is_refused_by_its_name(
    file_format: str, mapping: dict[str, Any]
) -> None:
    table = pa.Table.from_arrays([pa.array([n]) for n in range(5)], names=list("abacb"))
    data = {"csv": lambda _: b"a,b,a,c,b\n0,1,2,3,4\n", "parquet": parquet_bytes}.get(
        file_format, arrow_bytes
    )(table)
    with pytest.raises(Failure, match="input has more than one column 'a', 'b'"):
        read(data, file_format, **mapping)


def test_a_name_that_is_twice_in_an_object_of_json_is_refused() -> None:
    with pytest.raises(Failure, match=r"input, line 2: .* the name 'a' twice"):
        read(b'{"a":1}\n{"a":1,"b":2,"a":3}\n', "json")


@pytest.mark.parametrize("file_format", ["csv", "json", "array"])
def test_numbers_keep_all_digits_as_values_and_as_keys(file_format: str) -> None:
    objects = [f'{{"n":{number},"v":[{number}]}}' for number in NUMBERS]
    data = {
        "csv": "n\n" + "\n".join(NUMBERS),
        "json": "\n".join(objects),
        "array": f"[{','.join(objects)}]",
    }[file_format].encode()
    file_format = "csv" if file_format == "csv" else "json"
    texts = [number.encode() for number in NUMBERS]
    assert read(data, file_format, key="n")["keys"] == texts
    assert read(data, file_format, value="n")["values"] == texts
    rows = read(data, file_format)["values"]
    if file_format == "csv":
        assert rows == [b'{"n":' + text + b"}" for text in texts]
    else:
        assert rows == [text.encode() for text in objects]
        assert read(data, file_format, key="v")["keys"] == [b"[" + text + b"]" for text in texts]


def test_json_with_what_python_alone_takes_for_a_number_is_refused() -> None:
    values, problem = read_until_refused(b'{"n":1}\n{"n":NaN}\n', "json")
    assert values == [b'{"n":1}']
    assert problem.message == "input, line 2: not JSON: JSON has no NaN"
    assert "--format lines" in problem.hint


def test_csv_cells_that_are_no_numbers_of_json_are_text_or_null() -> None:
    data = b"text,number,truth,sparse\n007,1,TRUE,\n+1,NaN,false,\n1,-inf,,\n.5, 2 ,true,\n"
    assert read(data, "csv")["values"] == [
        b'{"text":"007","number":1,"truth":true,"sparse":null}',
        b'{"text":"+1","number":null,"truth":false,"sparse":null}',
        b'{"text":"1","number":null,"truth":null,"sparse":null}',
        b'{"text":".5","number":2,"truth":true,"sparse":null}',
    ]


def many_rows(count: int, odd: bytes) -> bytes:
    """Return more than a MiB of rows, each a number and an empty cell, and odd ones after them."""
    return b"n,rare\n" + b"".join(b"%d,\n" % (1_000_000 + n) for n in range(count)) + odd


def test_a_column_that_holds_no_more_numbers_after_150_000_rows_is_told_with_the_row() -> None:
    data = many_rows(150_000, b"late,\n5,x\n")
    values, problem = read_until_refused(data, "csv")
    assert len(values) == 150_000
    assert values[-1] == b'{"n":1149999,"rare":null}'
    assert problem.message == (
        "input, row 150,001: column 'n' holds numbers so far, and 'late' is none"
    )
    assert "--null-value" in problem.hint
    assert "--as-text" in problem.hint
    assert read(data, "csv", first=150_001, as_text=True)["values"] == [
        b'{"n":"late","rare":""}',  # All cells are text.
        b'{"n":"5","rare":"x"}',
    ]
    assert read(data, "csv", first=150_002)["values"] == [b'{"n":5,"rare":"x"}']
    assert read(data, "csv", first=150_001, null_value="late")["values"] == [
        b'{"n":null,"rare":null}',
        b'{"n":5,"rare":"x"}',
    ]


def test_a_column_that_is_empty_in_the_first_mib_takes_what_comes() -> None:
    values = read(many_rows(150_000, b"5,x\n"), "csv")["values"]
    assert values is not None
    assert values[-1] == b'{"n":5,"rare":"x"}'


def test_csv_cells_may_be_larger_than_a_block() -> None:
    long = b"x, " * 1_000_000 + b'""\n'
    data = b'k,v,w\na,"' + long + b'",1\nb,' + b"y" * 3_000_000 + b',2\nc,"5"" pipe",3\n'
    assert read(data, "csv", key="k", value="v") == {
        "values": [long.replace(b'""', b'"'), b"y" * 3_000_000, b'5" pipe'],
        "keys": [b"a", b"b", b"c"],
        "timestamps": None,
    }


class Pipe(io.RawIOBase):
    """Bytes that come a few at a time."""

    def __init__(self, data: bytes, cut: int) -> None:
        self._stream, self._cut = io.BytesIO(data), cut

    def read(self, size: int = -1) -> bytes:
        return self._stream.read(min(size, self._cut))


def csv_records(stream: Any) -> tuple[list[int], list[bytes | None], str]:
    """Return the numbers and values of all rows before a refused one, and why it is refused."""
    numbers: list[int] = []
    values: list[bytes | None] = []
    try:
        for columns in read_records(stream, "input", "csv", RecordMapping(as_text=True)):
            numbers += columns.numbers
            values += columns.values.to_pylist()
    except Failure as failure:
        return numbers, values, failure.message
    return numbers, values, ""


def test_csv_has_quotes_line_breaks_and_empty_lines_wherever_they_may_stand() -> None:
    data = b'\r\na,b\r\n1,"x\r\n,""y"\r\n\r\n2,z"z\r\n"3"5,\r4,end'
    values = [b'{"a":"1","b":"x\\r\\n,\\"y"}', b'{"a":"2","b":"z\\"z"}']
    values += [b'{"a":"35","b":""}', b'{"a":"4","b":"end"}']
    assert csv_records(io.BytesIO(data)) == ([1, 2, 3, 4], values, "")


@settings(max_examples=200)
@given(
    rows=st.text('xa",,\n\r', max_size=30).map(str.encode),
    cut=st.integers(1, 4),
)
def test_csv_of_a_pipe_is_the_same_however_it_is_cut(rows: bytes, cut: int) -> None:
    data = b"a,b\n" + rows
    assert csv_records(Pipe(data, cut)) == csv_records(io.BytesIO(data))


def test_csv_rows_of_a_pipe_are_yielded_as_they_come_where_nothing_is_guessed() -> None:
    readable, writable = os.pipe()
    with open(readable, "rb") as stream, open(writable, "wb", buffering=0) as writer:
        records = read_records(stream, "-", "csv", RecordMapping(as_text=True))
        writer.write(b"a\nfirst\nsec")
        assert next(records).values.to_pylist() == [b'{"a":"first"}']
        writer.write(b"ond\n")
        assert next(records).values.to_pylist() == [b'{"a":"second"}']


def test_a_quote_that_does_not_end_is_named_by_its_row() -> None:
    values, problem = read_until_refused(b'a,b\n1,2\n3,"4\n5,6\n', "csv")
    assert values == [b'{"a":1,"b":2}']
    assert problem.message == "input, row 2: a quote that does not end"


def test_a_row_without_end_is_refused_at_a_bound() -> None:
    class Endless(io.RawIOBase):
        count = 0

        def read(self, size: int = -1) -> bytes:
            self.count += 1
            return b'a\n1\n"x' if self.count == 1 else b"y" * size

    with pytest.raises(Failure, match="input, row 2: longer than 67108864 bytes") as failure:
        list(read_records(Endless(), "input", "csv", RecordMapping(as_text=True)))  # type: ignore[arg-type]
    assert "quote" in failure.value.hint


@pytest.mark.parametrize("file_format", ["csv", "json"])
def test_records_before_a_bad_cell_are_yielded_and_the_row_is_named(file_format: str) -> None:
    data = b"t\n1\n2\nsoon\n" if file_format == "csv" else b'{"t":1}\n{"t":2}\n{"t":"soon"}\n'
    values, problem = read_until_refused(data, file_format, timestamp="t", value="t")
    assert values == [b"1", b"2"]
    unit = "row" if file_format == "csv" else "line"
    assert f"input, {unit} 3: " in problem.message
    assert "'soon' is not a timestamp" in problem.message


def test_times_of_csv_are_read_in_each_form_with_and_without_a_zone() -> None:
    cells = ["1500", "1970-01-01", "1970-01-01 00:00:01.5", "1970-01-01T01:00+01:00"]
    cells += ["1970-01-01T00:00:00.123456Z", "1970-01-01T00:00-0100"]
    data = "\n".join(["t", *cells]).encode()
    times = [1500, 0, 1500, 0, 123, 3_600_000]
    assert read(data, "csv", timestamp="t")["timestamps"] == times
    table = pa.table({"t": cells})
    assert read(parquet_bytes(table), "parquet", timestamp="t")["timestamps"] == times


def test_uuids_and_dates_are_keys_without_quotes() -> None:
    uuid = "6ee834f1-585b-4b07-9ca9-9907fc0d15c5"
    table = pa.table(
        {
            "id": pa.array([bytes.fromhex(uuid.replace("-", ""))], pa.uuid()),
            "day": pa.array([15736], pa.date32()),
        }
    )
    for data, file_format in ((parquet_bytes(table), "parquet"), (arrow_bytes(table), "arrow")):
        assert read(data, file_format, key="id")["keys"] == [uuid.encode()]
        assert read(data, file_format, key="day")["keys"] == [b"2013-01-31"]
        assert read(data, file_format)["values"] == [
            f'{{"id":"{uuid}","day":"2013-01-31"}}'.encode()
        ]


def test_what_is_no_number_in_a_list_of_parquet_is_null() -> None:
    table = pa.table({"n": [[1.5, float("nan")], [float("inf")]]})
    assert read(parquet_bytes(table), "parquet")["values"] == [b'{"n":[1.5,null]}', b'{"n":[null]}']
    assert read(parquet_bytes(table), "parquet", key="n")["keys"] == [b"[1.5,null]", b"[null]"]


def test_text_of_parquet_that_is_not_utf_8_is_named_by_its_row() -> None:
    texts = pa.array([b"good", b"bad\xff"]).view(pa.string())
    data = arrow_bytes(pa.Table.from_arrays([texts], names=["t"]))
    values, problem = read_until_refused(data, "arrow")
    assert values == [b'{"t":"good"}']
    assert "input, row 2: " in problem.message


def test_a_time_outside_of_the_calendar_is_named_by_its_row() -> None:
    table = pa.table({"t": pa.array([0, 10**15], pa.timestamp("s"))})
    values, problem = read_until_refused(arrow_bytes(table), "arrow")
    assert values == [b'{"t":"1970-01-01T00:00:00"}']
    assert "input, row 2: " in problem.message


def test_a_file_that_is_cut_off_is_told_with_the_last_row_that_was_read() -> None:
    batches = pa.table({"n": range(100)}).to_batches(max_chunksize=10)
    data = arrow_bytes(pa.Table.from_batches(batches))
    values, problem = read_until_refused(data[: len(data) // 2], "arrow")
    assert 0 < len(values) < 100
    assert f"input after row {len(values)} cannot be read as arrow: " in problem.message


@pytest.mark.parametrize("file_format", ["parquet", "arrow"])
def test_files_that_are_read_from_their_end_may_come_through_a_pipe(file_format: str) -> None:
    table = pa.table({"n": range(3)})
    data = parquet_bytes(table) if file_format == "parquet" else arrow_bytes(table, pa.ipc.new_file)
    readable, writable = os.pipe()
    with open(readable, "rb") as stream:
        with open(writable, "wb") as writer:
            writer.write(data)
        (columns,) = read_records(stream, "-", file_format, RecordMapping())
    assert columns.values.to_pylist() == [b'{"n":0}', b'{"n":1}', b'{"n":2}']


def test_wide_rows_of_a_file_become_small_batches() -> None:
    table = pa.table({"t": ["x" * 1_000_000] * 64})
    for data, file_format in ((parquet_bytes(table), "parquet"), (arrow_bytes(table), "arrow")):
        blocks = list(read_records(io.BytesIO(data), "x", file_format, RecordMapping()))
        assert max(len(columns.values) for columns in blocks) <= 17
        assert [number for columns in blocks for number in columns.numbers] == [*range(1, 65)]


@pytest.mark.parametrize("file_format", ["lines", "json", "array", "csv", "parquet", "arrow"])
def test_every_format_can_begin_at_a_row(file_format: str) -> None:
    table = pa.table({"n": range(1, 6)})
    objects = [f'{{"n":{n}}}' for n in range(1, 6)]
    data = {
        "lines": "\n".join(objects).encode(),
        "json": "\n".join(objects).encode(),
        "array": f"[{','.join(objects)}]".encode(),
        "csv": b"n\n1\n2\n3\n4\n5\n",
        "parquet": parquet_bytes(table),
        "arrow": arrow_bytes(table),
    }[file_format]
    file_format = "json" if file_format == "array" else file_format
    stream = io.BytesIO(data)
    columns = list(read_records(stream, "x", file_format, RecordMapping(), first=4))
    values = [value for column in columns for value in column.values.to_pylist()]
    assert values == [b'{"n":4}', b'{"n":5}']
    assert columns[0].place(0).endswith(" 4")
    assert not list(read_records(io.BytesIO(data), "x", file_format, RecordMapping(), first=6))


def test_a_line_of_json_that_is_passed_over_may_be_wrong() -> None:
    assert read(b'{"n":1}\nwrong\n{"n":3}\n', "json", first=3)["values"] == [b'{"n":3}']


def test_a_column_of_json_that_an_object_has_had_may_be_missing_in_a_later_block() -> None:
    data = b'{"k":"a"}\n' + b'{"v":1}\n' * 300_000
    keys = read(data, "json", key="k")["keys"]
    assert keys is not None
    assert keys[:2] == [b"a", None]


def test_an_array_of_json_is_told_from_lines_after_any_space() -> None:
    assert read(b" \n" * 500_000 + b'[{"n": 1}]', "json")["values"] == [b'{"n":1}']
    assert read(b"\n" * 5 + b'{"n": 1}', "json")["values"] == [b'{"n": 1}']


TYPED = pa.table({"n": [1, 2], "t": ["a", None], "l": [[1.5], []], "b": [b"x", b"y"]})
NESTED = pa.table(
    {
        "n": [1, 2, 3],
        "t": pa.array(["a", None, "a"]).dictionary_encode(),
        "lists": [[[1], []], [], None],
        "structs": [{"a": ["b"]}, None, {"a": []}],
        "maps": pa.array([[("k", [1])], None, []], pa.map_(pa.string(), pa.list_(pa.int8()))),
        "views": pa.array([["a" * 20], [], None], pa.list_view(pa.string_view())),
        "fixed": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int8(), 2)),
        "times": pa.array([1, 2, None], pa.timestamp("us", "UTC")),
    }
)
WHOLE: dict[str, bytes] = {
    "lines": b"a:1\nb:2\n",
    "json": b'{"n": 1, "t": [1.5, {"a": "\\u00e4"}]}\n{"n": null}\n',
    "array": b'[{"n": 1, "t": [1.5, {"a": "\\u00e4"}]}, {"n": null}]',
    "csv": b'n,t\n1,"a, ""b"""\n2,2013-01-31\n',
    "parquet": parquet_bytes(TYPED),
    "arrow": arrow_bytes(TYPED),
    "arrow file": arrow_bytes(TYPED, pa.ipc.new_file),
    "nested arrow": arrow_bytes(NESTED),
}


@settings(max_examples=150)
@given(
    which=st.sampled_from(list(WHOLE)),
    changes=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=3)), max_size=4),
    end=st.floats(0, 1),
    names=st.booleans(),
)
def test_damaged_files_end_with_a_message_and_with_nothing_else(
    which: str, changes: list[tuple[float, bytes]], end: float, names: bool
) -> None:
    data = bytearray(WHOLE[which])
    for place, change in changes:
        at = int(place * len(data))
        data[at : at + len(change)] = change
    if end < 0.5:
        del data[int(2 * end * len(data)) :]
    mapping = {"key": "n", "headers": "t", "timestamp": "n"} if names else {}
    file_format = {"array": "json", "arrow file": "arrow", "nested arrow": "arrow"}.get(
        which, which
    )
    with suppress(Failure):
        read(bytes(data), file_format, 1, **mapping)


FRACTIONS = [[0.5] * 3, [0.5] * 2]


def with_offsets(lists: list[Any], offsets: list[int], damaged: list[int]) -> bytes:
    """Return a stream with a column of lists in which some offsets are others."""
    data = arrow_bytes(pa.table({"l": lists}))
    whole, other = (np.array(values, np.int32).tobytes() for values in (offsets, damaged))
    assert data.count(whole) == 1
    return data.replace(whole, other)


@pytest.mark.parametrize(
    ("lists", "offsets", "damaged"),
    [
        (FRACTIONS, [0, 3, 5], [8_453_888, 3, 5]),
        (FRACTIONS, [0, 3, 5], [0, 3, 8_453_888]),
        ([FRACTIONS, []], [0, 3, 5], [0, 1 << 30, 5]),
    ],
    ids=["first", "last", "nested"],
)
def test_offsets_that_lead_out_of_their_buffer_are_refused_and_not_followed(
    lists: list[Any], offsets: list[int], damaged: list[int]
) -> None:
    with pytest.raises(Failure, match=r"input, row [12]: In column 0: "):
        read(with_offsets(lists, offsets, damaged), "arrow")


def test_the_empty_part_of_a_damaged_column_is_not_looked_at() -> None:
    data = with_offsets([[], FRACTIONS], [0, 3, 5], [8_453_888, 3, 5])
    with pytest.raises(Failure, match="input, row 1: In column 0: "):
        read(data, "arrow")


def test_a_disk_that_fails_is_told_with_the_file_and_the_last_row() -> None:
    good = iter((b"a\nb\n",))

    class Failing(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            for piece in good:
                return piece
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    stream: Any = Failing()
    records = read_records(stream, "input", "lines", RecordMapping())
    assert next(records).values.to_pylist() == [b"a", b"b"]
    with pytest.raises(Failure, match="input after line 2 cannot be read: Input/output error"):
        next(records)
