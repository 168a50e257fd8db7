"""Files and pipes as columns of records.

| format | one record is | its value unless a value column is named |
|---|---|---|
| lines | a line | the line, or what follows the key separator |
| json | a line with a JSON object | the line, byte for byte |
| json, one array | an element, which is an object | its text without space between tokens |
| csv | a row | the row as a JSON object |
| parquet, arrow | a row | the row as a JSON object |

Keys, and values taken from a column, are the cell's text: key columns of a CSV file are never
guessed to be numbers, so that `007` stays `007`. An Arrow file that `millrace consume` wrote gives
the original records back, headers and timestamps included.
"""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.cli.failures import Failure, did_you_mean
from millrace.cli.records.file_names import BLOCK_BYTES, Unbuffered
from millrace.cli.records.headers import headers_of, with_added
from millrace.cli.records.json_arrays import Element, blocks_of_elements
from millrace.cli.records.json_cells import json_rows, plain_cells
from millrace.core.records.columns import RecordHeaders

FORMATS: Final = ("lines", "json", "csv", "parquet", "arrow")
RECORDS_MARK: Final = {b"millrace": b"records"}
"""Schema metadata of an Arrow or Parquet file whose columns are records, not their values."""

LINE_BYTES_MAX: Final = 64 << 20
_TIMESTAMP_MAX: Final = (1 << 63) - 1
ROWS_MAX: Final = 16_384
"""Rows of a Parquet file that become one batch of columns: bounds memory for wide rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMapping:
    """How rows become records; columns are named by the user."""

    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    headers: str | None = None
    null_value: str | None = None
    """Text that stands for null."""
    key_separator: bytes | None = None
    """In lines: what ends the key. None: lines have no key."""
    as_text: bool = False
    """CSV: every cell is text, no numbers are recognised."""
    added_headers: RecordHeaders = ()
    """Of every record, behind its own."""

    @property
    def columns(self) -> list[str]:
        """The columns that are named."""
        named = (self.key, self.value, self.timestamp, self.headers)
        return [column for column in named if column is not None]


@dataclass(slots=True)
class RecordColumns:
    """Some records, as columns of equal length."""

    values: pa.Array
    keys: pa.Array | None = None
    timestamps: pa.Array | None = None
    """int64, ms UTC."""
    headers: pa.Array | None = None
    numbers: Sequence[int] = ()
    """Of the lines or rows that they come from, counted from 1."""
    unit: str = "row"
    """The unit of the numbers."""
    name: str = ""
    """The file's, for messages."""

    def place(self, index: int) -> str:
        """Return where a record comes from, for messages."""
        return f"{self.name}, {self.unit} {self.numbers[index]:,}"

    @property
    def size_bytes(self) -> int:
        """Bytes of keys and values."""
        cells = [column for column in (self.keys, self.values) if column is not None]
        return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in cells)


def read_records(
    stream: BinaryIO, name: str, file_format: str, mapping: RecordMapping
) -> Iterator[RecordColumns]:
    """Yield the records of a file, a block at a time; of a pipe, as soon as they arrive.

    Args:
        stream: the file; Parquet needs one that can seek.
        name: the file's name for messages.
        file_format: one of `FORMATS`.
        mapping: how rows become records.

    Raises:
        Failure: the file does not have its format, or lacks a column.
    """
    read = {
        "lines": _read_lines,
        "json": _read_json,
        "csv": _read_csv,
        "parquet": _read_parquet,
        "arrow": _read_arrow,
    }[file_format]
    row = 1
    try:
        for columns in read(stream, name, mapping):
            if not columns.numbers:
                columns.numbers = range(row, row + len(columns.values))
                row += len(columns.values)
            columns.name = name
            columns.headers = with_added(
                columns.headers, mapping.added_headers, len(columns.values)
            )
            yield columns
    except pa.ArrowInvalid as error:
        hint = ""
        if file_format == "csv":
            hint = "--null-value TEXT names what stands for null, --as-text takes cells as they are"
        raise Failure(f"{name} cannot be read as {file_format}: {error}", hint) from error
    except UnicodeEncodeError as error:  # JSON can escape halves of characters.
        raise Failure(f"{name}: {error.object!r} cannot be written as UTF-8") from error
    except RecursionError as error:
        raise Failure(f"{name}: JSON that is nested too deeply to be read") from error


def _read_lines(stream: BinaryIO, name: str, mapping: RecordMapping) -> Iterator[RecordColumns]:
    for first, lines in _blocks_of_lines(stream, name):
        records = RecordColumns(pa.array(lines, pa.binary()), unit="line")
        records.numbers = range(first, first + len(lines))
        if mapping.key_separator is not None:
            keys, values = _split_keys(records.values, mapping.key_separator, first, name)
            records.keys, records.values = _with_nulls(keys, mapping), values
        records.values = _with_nulls(records.values, mapping)
        yield records


def _split_keys(
    lines: pa.Array, separator: bytes, first: int, name: str
) -> tuple[pa.Array, pa.Array]:
    missing = pc.index(pc.find_substring(lines, separator), -1).as_py()
    if missing >= 0:
        raise Failure(
            f"{name}, line {first + missing}: no key separator {separator.decode()!r}",
            "without --key-separator, whole lines are values and have no key",
        )
    parts = pc.split_pattern(lines, separator, max_splits=1)
    return pc.list_element(parts, 0), pc.list_element(parts, 1)


def _read_json(stream: BinaryIO, name: str, mapping: RecordMapping) -> Iterator[RecordColumns]:
    # Not through Arrow's reader: it would take "2013-01-01" for a date and long numbers for
    # doubles, and keys must stay unchanged.
    for numbers, elements, unit in _json_elements(stream, name):
        rows = [row for _, row in elements]

        def column(wanted: str, rows: list[dict[str, Any]] = rows) -> list[Any]:
            if not any(wanted in row for row in rows):
                raise _no_column(name, wanted, rows[0])
            return [row.get(wanted) for row in rows]

        values: list[bytes | None] = [text for text, _ in elements]
        if mapping.value is not None:
            values = list(map(_json_cell, column(mapping.value)))
        records = RecordColumns(_with_nulls(pa.array(values, pa.binary()), mapping), unit=unit)
        records.numbers = numbers
        if mapping.key is not None:
            keys = pa.array(map(_json_cell, column(mapping.key)), pa.binary())
            records.keys = _with_nulls(keys, mapping)
        if mapping.timestamp is not None:
            cells = zip(numbers, column(mapping.timestamp), strict=True)
            times = [_json_time(cell, name, unit, number) for number, cell in cells]
            records.timestamps = pa.array(times, pa.int64())
        if mapping.headers is not None:
            records.headers = headers_of(column(mapping.headers), name)
        yield records


def _json_elements(
    stream: BinaryIO, name: str
) -> Iterator[tuple[Sequence[int], list[Element], str]]:
    """Yield the numbers of lines or elements, these, and what they are."""
    buffered = io.BufferedReader(Unbuffered(stream), BLOCK_BYTES)
    if buffered.peek(1).lstrip().startswith(b"["):
        for first, elements in blocks_of_elements(buffered.read1, BLOCK_BYTES, name):
            yield range(first, first + len(elements)), elements, "element"
        return
    for first, lines in _blocks_of_lines(buffered, name):
        numbered = [(number, line) for number, line in enumerate(lines, first) if line.strip()]
        if numbered:
            rows = [(line, _json_object(line, f"{name}, line {n}")) for n, line in numbered]
            yield [number for number, _ in numbered], rows, "line"


def _json_object(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise Failure(
            f"{where}: not JSON: {error}", "--format lines takes every line as it is"
        ) from error
    if not isinstance(row, dict):
        raise Failure(f"{where}: not a JSON object", "--format lines takes every line as it is")
    return row


def _json_cell(cell: Any) -> bytes | None:
    if cell is None:
        return None
    if isinstance(cell, str):
        return cell.encode()
    return json.dumps(cell, ensure_ascii=False, separators=(",", ":")).encode()


def _json_time(cell: Any, name: str, unit: str, number: int) -> int:
    if type(cell) is int and abs(cell) <= _TIMESTAMP_MAX:  # A bool is an int, too.
        return cell
    try:
        time = datetime.fromisoformat(cell)
    except (TypeError, ValueError) as error:
        raise Failure(
            f"{name}, {unit} {number:,}: {cell!r} is not a timestamp",
            "a timestamp is a number of milliseconds since 1970, or a time like 2013-01-31T10:00Z",
        ) from error
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _read_csv(stream: BinaryIO, name: str, mapping: RecordMapping) -> Iterator[RecordColumns]:
    import pyarrow.csv as arrow_csv

    buffered = io.BufferedReader(Unbuffered(stream), BLOCK_BYTES)
    header = buffered.peek(BLOCK_BYTES).decode(errors="replace").splitlines()
    if not header:
        return
    columns = next(csv.reader(header[:1]))
    _check_columns(columns, name, mapping)
    text = (
        columns
        if mapping.as_text
        else [
            column for column in (mapping.key, mapping.value, mapping.headers) if column is not None
        ]
    )
    rows = arrow_csv.open_csv(
        buffered,
        read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES),
        parse_options=arrow_csv.ParseOptions(newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            column_types=dict.fromkeys(text, pa.string()),
            null_values=[""] if mapping.null_value is None else [mapping.null_value],
            strings_can_be_null=mapping.null_value is not None,
        ),
    )
    for field in rows.schema:
        if pa.types.is_binary(field.type):  # What Arrow makes of text that it cannot read.
            raise Failure(
                f"{name}: column {field.name!r} is not UTF-8",
                "convert the file first: iconv -f LATIN1 -t UTF-8",
            )
    for batch in rows:
        yield _records_of(batch, name, mapping)


def _read_parquet(stream: BinaryIO, name: str, mapping: RecordMapping) -> Iterator[RecordColumns]:
    from pyarrow import parquet

    if not stream.seekable():
        stream = io.BytesIO(stream.read())  # Its directory is at the end.
    file = parquet.ParquetFile(stream)
    for batch in file.iter_batches(ROWS_MAX):
        yield _records_of(batch, name, mapping)


def _read_arrow(stream: BinaryIO, name: str, mapping: RecordMapping) -> Iterator[RecordColumns]:
    buffered = io.BufferedReader(Unbuffered(stream), BLOCK_BYTES)
    if buffered.peek(6)[:6] == b"ARROW1":
        file = pa.ipc.open_file(stream if _at_start(stream) else buffered.read())
        batches = (file.get_batch(i) for i in range(file.num_record_batches))
    else:
        batches = iter(pa.ipc.open_stream(buffered))
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS_MAX):
            yield _records_of(batch.slice(start, ROWS_MAX), name, mapping)


def _at_start(stream: BinaryIO) -> bool:
    if stream.seekable():
        stream.seek(0)
        return True
    return False


def _records_of(batch: pa.RecordBatch, name: str, mapping: RecordMapping) -> RecordColumns:
    if not mapping.columns and RECORDS_MARK.items() <= (batch.schema.metadata or {}).items():
        return RecordColumns(
            batch.column("value"),
            batch.column("key"),
            batch.column("timestamp").cast(pa.int64()),
            batch.column("headers"),
        )
    _check_columns(batch.schema.names, name, mapping)
    if mapping.value is None:
        values = json_rows(batch)
    else:
        values = _with_nulls(plain_cells(batch.column(mapping.value)), mapping)
    records = RecordColumns(values)
    if mapping.key is not None:
        records.keys = _with_nulls(plain_cells(batch.column(mapping.key)), mapping)
    if mapping.timestamp is not None:
        records.timestamps = _milliseconds(batch.column(mapping.timestamp), name, mapping.timestamp)
    if mapping.headers is not None:
        records.headers = headers_of(batch.column(mapping.headers), name)
    return records


def _milliseconds(column: pa.Array, name: str, column_name: str) -> pa.Array:
    try:
        if not pa.types.is_integer(column.type):
            column = column.cast(pa.timestamp("ms"), safe=False)
        column = column.cast(pa.int64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise Failure(f"{name}: column {column_name!r} holds no times: {error}") from error
    if column.null_count:
        raise Failure(f"{name}: column {column_name!r} has no time in some rows")
    return column


def _with_nulls(cells: pa.Array, mapping: RecordMapping) -> pa.Array:
    if mapping.null_value is None:
        return cells
    null = pa.scalar(mapping.null_value.encode(), pa.binary())
    return pc.if_else(pc.equal(cells, null), pa.scalar(None, pa.binary()), cells)


def _check_columns(columns: list[str], name: str, mapping: RecordMapping) -> None:
    for wanted in mapping.columns:
        if wanted not in columns:
            raise _no_column(name, wanted, columns)


def _no_column(name: str, wanted: str, columns: Any) -> Failure:
    return Failure(f"{name} has no column {wanted!r}", did_you_mean(wanted, columns))


def _blocks_of_lines(stream: BinaryIO, name: str) -> Iterator[tuple[int, list[bytes]]]:
    """Yield lines as soon as they are there, with the number of the first."""
    # `read` would wait until a whole block was typed.
    read = getattr(stream, "read1", stream.read)
    number, rest = 1, b""
    while block := read(BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        if lines:
            yield number, lines
        number += len(lines)
        if len(rest) > LINE_BYTES_MAX:
            raise Failure(f"{name}, line {number}: longer than {LINE_BYTES_MAX} bytes")
    if rest:
        yield number, [rest]
