"""Writes records: as lines, JSON, CSV, Arrow or Parquet files, or as a table.

Writers get whole Arrow batches with the columns of `millrace.core.records.columns.SCHEMA`. Cells
that are not UTF-8 are shown as base64, never with replaced characters.
"""

import base64
import json
import re
import shutil
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.cli.arguments.read_start import show_time
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.records.json_cells import json_cells
from millrace.cli.records.record_columns import BASE64, RECORD_COLUMNS
from millrace.cli.records.record_format import Batch, Piece, formatted
from millrace.cli.records.sources import RECORDS_MARK
from millrace.core.records.columns import SCHEMA

_NEEDS_QUOTES: Final = '^$|^ | $|[",\r\n]'
"""Without quotes an empty text would be null, and some programs strip spaces at the ends."""
_PARTS_CSV: Final = re.compile('[",\r\n]')

_PLACE: Final = (pa.field("topic", pa.string()), pa.field("partition", pa.int32()))
_TIME: Final = pa.field("timestamp", pa.timestamp("ms", "UTC"))
FILE_SCHEMA: Final = pa.schema(
    [*_PLACE, *(_TIME if field.name == _TIME.name else field for field in SCHEMA)], RECORDS_MARK
)
"""Columns of the files that are written."""


class RecordWriter:
    """Writes batches of records in one format."""

    def write(self, topic: str, partition: int, records: pa.RecordBatch) -> None:
        """Write the records of one partition, in order."""
        raise NotImplementedError

    def close(self) -> None:
        """Complete the output; the stream stays open."""


def open_writer(
    file_format: str, stream: BinaryIO, *, key_separator: bytes | None, null_value: str | None
) -> RecordWriter:
    """Return a writer of one of the formats of `consume`.

    Args:
        stream: where the bytes go.
        key_separator: in lines, written between key and value; None: values alone.
        null_value: what stands for null in lines (default `null`) and CSV (default: nothing).

    Raises:
        Failure: `null_value` cannot stand for null in this format.
    """
    match file_format:
        case "lines":
            return LinesWriter(stream, key_separator, null_bytes(null_value))
        case "json":
            return JsonWriter(stream)
        case "csv":
            return CsvWriter(stream, null_value or "")
        case "arrow":
            return FileWriter(pa.ipc.new_stream(stream, FILE_SCHEMA))
        case "parquet":
            from pyarrow import parquet

            return FileWriter(parquet.ParquetWriter(stream, FILE_SCHEMA, compression="zstd"))
        case "table":
            return TableWriter(stream)
    raise AssertionError(f"no writer for {file_format}")


def null_bytes(null_value: str | None) -> bytes:
    """Return what stands for null where a user sees it; the default is `null`."""
    return ("null" if null_value is None else null_value).encode()


class LinesWriter(RecordWriter):
    """A value per line, as the bytes that were produced."""

    def __init__(self, stream: BinaryIO, key_separator: bytes | None, null: bytes) -> None:
        self._stream, self._separator, self._null = stream, key_separator, null

    def write(self, topic: str, partition: int, records: pa.RecordBatch) -> None:
        lines = records.column("value").fill_null(self._null)
        if self._separator is not None:
            keys = records.column("key").fill_null(self._null)
            lines = pc.binary_join_element_wise(keys, lines, pa.scalar(self._separator))
        self._stream.write(b"\n".join([*lines.to_pylist(), b""]))


class FormatWriter(RecordWriter):
    """Each record as a format string says."""

    def __init__(self, stream: BinaryIO, pieces: list[Piece], null_value: str | None) -> None:
        self._stream, self._pieces, self._null = stream, pieces, null_bytes(null_value)

    def write(self, topic: str, partition: int, records: pa.RecordBatch) -> None:
        self._stream.write(formatted(self._pieces, Batch(topic, partition, records, self._null)))


class JsonWriter(RecordWriter):
    """An object per line: topic, partition, offset, timestamp, key, value, headers."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, topic: str, partition: int, records: pa.RecordBatch) -> None:
        count = records.num_rows
        headers = records.column("headers")
        cells = {
            "topic": pa.repeat(json.dumps(topic), count),
            "partition": pa.repeat(str(partition), count),
            "offset": json_cells(records.column("offset")),
            "timestamp": json_cells(_times(records.column("timestamp"))),
            "key": _json_bytes(records.column("key")),
            "value": _json_bytes(records.column("value")),
            "headers": pa.array([_json_headers(row) for row in headers.to_pylist()], pa.string())
            if len(headers.flatten())
            else pa.repeat("[]", count),
        }
        pieces: list[pa.Array | pa.Scalar] = []
        for i, (name, column) in enumerate(cells.items()):
            pieces += [pa.scalar(f'{", " if i else "{"}"{name}": '), column]
        lines = pc.binary_join_element_wise(*pieces, pa.scalar("}\n"), pa.scalar(""))
        self._stream.write("".join(lines.to_pylist()).encode())


class CsvWriter(RecordWriter):
    """A row per record under a line of column names; keys and values as text.

    As in PostgreSQL's COPY, an empty text has quotes and null has none. So has a text that equals
    the one for null.

    Raises:
        Failure: the text for null would be no cell without quotes.
    """

    def __init__(self, stream: BinaryIO, null: str) -> None:
        if _PARTS_CSV.search(null):
            raise Failure(
                f"{null!r} cannot stand for null in CSV, where null has no quotes",
                "choose a --null-value without quotes, commas and line ends",
                exit_code=ExitCode.USAGE,
            )
        self._stream, self._null = stream, pa.scalar(null, pa.string())
        self._header: bytes = (",".join(RECORD_COLUMNS) + "\n").encode()

    def write(self, topic: str, partition: int, records: pa.RecordBatch) -> None:
        count = records.num_rows
        headers = records.column("headers").to_pylist()
        columns = [
            pa.repeat(topic, count),
            pa.repeat(str(partition), count),
            records.column("offset").cast(pa.string()),
            pa.array(map(show_time, records.column("timestamp").to_pylist()), pa.string()),
            self._cells(_texts(records.column("key"))),
            self._cells(_texts(records.column("value"))),
            _quoted(
                pa.array([_json_headers(row) if row else None for row in headers], pa.string())
            ),
        ]
        cells = [pc.fill_null(column, "") for column in columns]
        lines = pc.binary_join_element_wise(*cells, pa.scalar(","))
        self._flush("\n".join([*lines.to_pylist(), ""]).encode())

    def close(self) -> None:
        self._flush(b"")  # The column names alone, when there were no records.

    def _cells(self, texts: pa.Array) -> pa.Array:
        reads_as_null = pc.equal(texts, self._null)
        plain = pc.if_else(reads_as_null, pa.scalar(None, pa.string()), texts)
        quoted = pc.if_else(reads_as_null, _in_quotes(texts), _quoted(plain))
        return pc.coalesce(quoted, self._null)

    def _flush(self, lines: bytes) -> None:
        self._stream.write(self._header + lines)
        self._header = b""


class FileWriter(RecordWriter):
    """An Arrow stream, which pipes and files can carry alike, or a Parquet file."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, topic: str, partition: int, records: pa.RecordBatch) -> None:
        self._file.write_batch(_placed(topic, partition, records))

    def close(self) -> None:
        self._file.close()


class TableWriter(RecordWriter):
    """Fixed columns that appear as the records come; a terminal gets lines cut to its width."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._width = shutil.get_terminal_size().columns if stream.isatty() else None
        self._line(("TOPIC", "PARTITION", "OFFSET", "TIMESTAMP", "KEY", "VALUE"))

    def write(self, topic: str, partition: int, records: pa.RecordBatch) -> None:
        for offset, timestamp, key, value, _ in _rows(records):
            shown = ("-" if cell is None else _text(cell) for cell in (key, value))
            self._line((topic, partition, offset, show_time(timestamp) or "-", *shown))

    def _line(self, cells: tuple[object, ...]) -> None:
        line = "{:<16} {:>9} {:>10}  {:<24}  {:<16}  {}".format(*cells)
        line = line.replace("\n", "␊").replace("\r", "␍").replace("\t", " ")
        self._stream.write(line[: self._width].rstrip().encode() + b"\n")


def _rows(records: pa.RecordBatch) -> Any:
    """Iterate over rows in the order of `SCHEMA`."""
    return zip(*(column.to_pylist() for column in records.columns), strict=True)


def _placed(topic: str, partition: int, records: pa.RecordBatch) -> pa.RecordBatch:
    columns = {name: records.column(name) for name in SCHEMA.names}
    columns["topic"] = pa.repeat(topic, records.num_rows)
    columns["partition"] = pa.repeat(partition, records.num_rows).cast(pa.int32())
    columns["timestamp"] = _times(records.column("timestamp"))
    return pa.RecordBatch.from_arrays(
        [columns[name] for name in FILE_SCHEMA.names], schema=FILE_SCHEMA
    )


def _text(cell: bytes) -> str:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return _encoded(cell)


def _encoded(cell: bytes) -> str:
    return BASE64 + base64.b64encode(cell).decode()


def _texts(cells: pa.Array) -> pa.Array:
    """Return cells as text from which `produce` restores the same bytes."""
    try:
        texts = cells.cast(pa.string())
    except pa.ArrowInvalid:  # Some cell is not UTF-8.
        texts = pa.array(
            [None if cell is None else _text(cell) for cell in cells.to_pylist()], pa.string()
        )
    mistaken = pc.starts_with(cells, BASE64.encode())
    if not pc.any(mistaken).as_py():
        return texts
    pairs = zip(cells.to_pylist(), texts.to_pylist(), mistaken.to_pylist(), strict=True)
    return pa.array(
        [_encoded(cell) if is_one else text for cell, text, is_one in pairs], pa.string()
    )


def _quoted(texts: pa.Array) -> pa.Array:
    """Put texts into quotes where CSV needs them."""
    return pc.if_else(pc.match_substring_regex(texts, _NEEDS_QUOTES), _in_quotes(texts), texts)


def _in_quotes(texts: pa.Array) -> pa.Array:
    doubled = pc.replace_substring(texts, '"', '""')
    return pc.binary_join_element_wise(pa.scalar('"'), doubled, pa.scalar('"'), pa.scalar(""))


def _times(timestamps: pa.Array) -> pa.Array:
    known = pc.if_else(pc.greater_equal(timestamps, 0), timestamps, pa.scalar(None, pa.int64()))
    return known.cast(pa.timestamp("ms", "UTC"))


def _json_bytes(cells: pa.Array) -> pa.Array:
    try:
        return json_cells(cells.cast(pa.string()))
    except pa.ArrowInvalid:  # Some cell is not UTF-8.
        return pa.array([_json_cell(cell) for cell in cells.to_pylist()], pa.string())


def _json_cell(cell: bytes | None) -> str:
    if cell is None:
        return "null"
    try:
        return json.dumps(cell.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return json.dumps({"base64": base64.b64encode(cell).decode()})


def _json_headers(headers: Any) -> str:
    """Write headers as `[["name", "value"], ...]`: names may repeat, and order matters."""
    pairs = [(header["key"], header["value"]) for header in headers or []]
    return "[" + ", ".join(f"[{json.dumps(k)}, {_json_cell(v)}]" for k, v in pairs) + "]"
