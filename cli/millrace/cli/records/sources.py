"""Files and pipes as columns of records.

| format | one record is | its value unless a value column is named |
|---|---|---|
| lines | a line | the line, or what follows the key separator |
| json | a line with a JSON object | the line, byte for byte |
| json, one array | an element, which is an object | its text without space between tokens |
| csv | a row | the row as a JSON object |
| parquet, arrow | a row | the row as a JSON object |

Keys, and values taken from a column, are the cell's text, so that `007` stays `007`. Numbers of
text formats keep their digits wherever they go; `csv_rows` says how those of CSV are told from
text. An Arrow file that `millrace consume` wrote gives the original records back, headers and
timestamps included; columns of its JSON and CSV files give the original bytes back, and null.

A format gives blocks of rows with their numbers, and a function that makes records of rows. A row
that it refuses ends the input: the rows before it become records, and the message names the row.
`problems` has the messages for what libraries refuse.
"""

import base64
import io
import shutil
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.cli.console.failures import Failure, did_you_mean
from millrace.cli.files.json_document import TOO_DEEP
from millrace.cli.records.csv_rows import CONVERT, Contents, CsvFile, text_columns
from millrace.cli.records.file_names import BLOCK_BYTES, Unbuffered
from millrace.cli.records.headers import headers_of, with_added
from millrace.cli.records.json_arrays import Element, blocks_of_elements
from millrace.cli.records.json_cells import json_rows, objects_of, plain_cells, quoted
from millrace.cli.records.json_texts import DECODER, cell_of, text_of
from millrace.cli.records.problems import RowError, explained, first_bad, told
from millrace.cli.records.record_columns import BASE64, RECORD_COLUMNS
from millrace.cli.records.times import HINT as TIMES
from millrace.cli.records.times import millisecond_of, milliseconds_of
from millrace.core.json_objects import repeated
from millrace.core.records.columns import RecordHeaders

RECORDS_MARK: Final = {b"millrace": b"records"}
"""Schema metadata of an Arrow or Parquet file whose columns are records, not their values."""

LINE_BYTES_MAX: Final = 64 << 20
ROWS_MAX: Final = 16_384
"""Rows of a Parquet or Arrow file that become one batch of columns."""
_ROWS_BYTES_MAX: Final = 16 << 20
"""Bytes of these rows, about: bounds memory for wide rows."""
_BOM: Final = b"\xef\xbb\xbf"
_OTHER_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_RECORD_KEYS: Final = set(RECORD_COLUMNS)
_NOT_JSON: Final = "--format lines takes every line as it is"


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
    """What ends the key in a line. None: lines have no key."""
    as_text: bool = False
    """CSV: every cell is text, no numbers are recognised."""
    added_headers: RecordHeaders = ()
    """Headers that every record gets, after its own."""

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
    """The numbers of the lines or rows that they come from, counted from 1."""
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


@dataclass(slots=True)
class _Block:
    rows: Any
    """A list or a record batch: it can be sliced."""
    numbers: Sequence[int]
    unit: str = "row"


_Convert = Callable[[Any], RecordColumns]


def read_records(
    stream: BinaryIO, name: str, file_format: str, mapping: RecordMapping, first: int = 1
) -> Iterator[RecordColumns]:
    """Yield the records of a file, a block at a time; of a pipe, as soon as they arrive.

    Args:
        name: the file's name for messages.
        file_format: one of those above.
        first: the first row, line or element that becomes a record; what is wrong with those before
            it is no error, unless it hides where the next one begins.

    Raises:
        Failure: the file does not have its format, or lacks a column. The records before the place
            that it names have been yielded.
    """
    begin = {
        "lines": _lines,
        "json": _json,
        "csv": _csv,
        "parquet": _parquet,
        "arrow": _arrow,
    }[file_format]
    place = name
    with ExitStack() as closing, explained(lambda: place, file_format):
        blocks, convert = begin(stream, name, mapping, first, closing)
        for block in blocks:
            before = bisect_left(block.numbers, first)
            rows, numbers = block.rows[before:], block.numbers[before:]
            if not numbers:
                continue
            columns, problem = _good(convert, rows)
            count = len(columns.values)
            if count:
                place = f"{name} after {block.unit} {numbers[count - 1]:,}"
                columns.numbers, columns.unit, columns.name = numbers[:count], block.unit, name
                columns.headers = with_added(columns.headers, mapping.added_headers, count)
                yield columns
            if problem is not None:
                where = f"{name}, {block.unit} {numbers[problem.index]:,}"
                raise Failure(f"{where}: {problem.message}", problem.hint) from problem


def _good(convert: _Convert, rows: Any) -> tuple[RecordColumns, RowError | None]:
    """Return the records of rows up to the first one that is refused, and why it is."""
    problem: RowError | None = None
    while True:
        try:
            return convert(rows), problem
        except RowError as error:
            if not error.index:
                # Arrow finds no fault in an empty part, and then follows its damaged offsets.
                return RecordColumns(pa.array([], pa.binary())), error
            problem, rows = error, rows[: error.index]


# Lines.


def _lines(
    stream: BinaryIO, name: str, mapping: RecordMapping, first: int, closing: ExitStack
) -> tuple[Iterator[_Block], _Convert]:
    def convert(lines: list[bytes]) -> RecordColumns:
        records = RecordColumns(pa.array(lines, pa.binary()))
        if mapping.key_separator is not None:
            keys, values = _split_keys(records.values, mapping.key_separator)
            records.keys, records.values = _with_nulls(keys, mapping), values
        records.values = _with_nulls(records.values, mapping)
        return records

    def blocks() -> Iterator[_Block]:
        for number, lines in _blocks_of_lines(_reader(stream), name):
            yield _Block(lines, range(number, number + len(lines)), "line")

    return blocks(), convert


def _split_keys(lines: pa.Array, separator: bytes) -> tuple[pa.Array, pa.Array]:
    missing = pc.index(pc.find_substring(lines, separator), -1).as_py()
    if missing >= 0:
        raise RowError(
            missing,
            f"no key separator {separator.decode()!r}",
            "without --key-separator, whole lines are values and have no key",
        )
    parts = pc.split_pattern(lines, separator, max_splits=1)
    return pc.list_element(parts, 0), pc.list_element(parts, 1)


def _reader(stream: BinaryIO) -> Callable[[int], bytes]:
    # `read` would wait until a whole block was typed.
    return cast(Callable[[int], bytes], getattr(stream, "read1", stream.read))


def _begun(read: Callable[[int], bytes], name: str) -> bytes:
    """Return the first bytes of a text, without a byte order mark.

    Raises:
        Failure: it is UTF-16.
    """
    begun = b""
    while len(begun) < len(_BOM) and (data := read(len(_BOM) - len(begun))):
        begun += data
    if begun.startswith(_OTHER_BOMS):
        raise Failure(
            f"{name} is UTF-16 by its byte order mark, and not UTF-8",
            "convert the file first: iconv -f UTF-16 -t UTF-8",
        )
    return begun.removeprefix(_BOM)


def _blocks_of_lines(
    read: Callable[[int], bytes], name: str, begun: bytes = b""
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield lines as soon as they are there, with the number of the first."""
    number, rest, block = 1, b"", begun or read(BLOCK_BYTES)
    while block:
        *lines, rest = (rest + block).split(b"\n")
        if lines:
            yield number, lines
        number += len(lines)
        if len(rest) > LINE_BYTES_MAX:
            raise Failure(f"{name}, line {number:,}: longer than {LINE_BYTES_MAX} bytes")
        block = read(BLOCK_BYTES)
    if rest:
        yield number, [rest]


# JSON.


def _json(
    stream: BinaryIO, name: str, mapping: RecordMapping, first: int, closing: ExitStack
) -> tuple[Iterator[_Block], _Convert]:
    # Not through Arrow's reader: it would take "2013-01-01" for a date and long numbers for
    # doubles, and keys must stay unchanged.
    return _json_blocks(_reader(stream), name, first), _JsonColumns(name, mapping)


def _json_blocks(read: Callable[[int], bytes], name: str, first: int) -> Iterator[_Block]:
    begun = _begun(read, name)
    while not begun.strip() and len(begun) < BLOCK_BYTES and (data := read(BLOCK_BYTES)):
        begun += data
    if begun.lstrip().startswith(b"["):
        given = iter((begun,))

        def read_again(count: int) -> bytes:
            return next(given, b"") or read(count)

        for number, elements in blocks_of_elements(read_again, BLOCK_BYTES, name):
            yield _Block(elements, range(number, number + len(elements)), "element")
        return
    for start, lines in _blocks_of_lines(read, name, begun):
        problem: Failure | None = None
        numbers: list[int] = []
        rows: list[Element] = []
        for number, line in enumerate(lines, start):
            if number < first or not line.strip():
                continue
            try:
                rows.append((line, _json_object(line)))
            except (ValueError, RecursionError) as error:
                why = TOO_DEEP if isinstance(error, RecursionError) else str(error)
                problem = Failure(f"{name}, line {number:,}: {why}", _NOT_JSON)
                problem.__cause__ = error
                break
            numbers.append(number)
        if rows:
            yield _Block(rows, numbers, "line")
        if problem is not None:
            raise problem


def _json_object(line: bytes) -> dict[str, Any]:
    try:
        row = DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        raise ValueError("not JSON, as it is not UTF-8") from error
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    return row


class _JsonColumns:
    """Makes records of objects."""

    def __init__(self, name: str, mapping: RecordMapping) -> None:
        self._name, self._mapping = name, mapping
        self._seen: set[str] = set()
        """Columns that an object of the file has had: others may lack them."""

    def __call__(self, elements: list[Element]) -> RecordColumns:
        mapping = self._mapping
        rows = [row for _, row in elements]
        values: list[bytes | None] = [text for text, _ in elements]
        if mapping.value is not None:
            values = _cells(self._bytes(mapping.value, rows))
        records = RecordColumns(_with_nulls(pa.array(values, pa.binary()), mapping))
        if mapping.key is not None:
            keys = _cells(self._bytes(mapping.key, rows))
            records.keys = _with_nulls(pa.array(keys, pa.binary()), mapping)
        if mapping.timestamp is not None:
            times = _times(self._column(mapping.timestamp, rows))
            records.timestamps = pa.array(times, pa.int64())
        if mapping.headers is not None:
            records.headers = headers_of(self._column(mapping.headers, rows))
        return records

    def _bytes(self, wanted: str, rows: list[dict[str, Any]]) -> list[Any]:
        """Return a column; bytes of records that `consume` wrote are what they were."""
        cells = self._column(wanted, rows)
        for i, cell in enumerate(cells):
            match cell:
                case {"base64": str(text)} if len(cell) == 1 and rows[i].keys() == _RECORD_KEYS:
                    cells[i] = _decoded(text, i)
        return cells

    def _column(self, wanted: str, rows: list[dict[str, Any]]) -> list[Any]:
        if wanted not in self._seen:
            if rows and not any(wanted in row for row in rows):
                raise _no_column(self._name, wanted, rows[0])
            self._seen.add(wanted)
        return [row.get(wanted) for row in rows]


def _cells(cells: list[Any]) -> list[bytes | None]:
    converted: list[bytes | None] = []
    try:
        for cell in cells:
            converted.append(cell_of(cell))
    except UnicodeEncodeError as error:  # JSON can escape halves of characters.
        problem = f"{error.object!r} cannot be written as UTF-8"
        raise RowError(len(converted), problem) from error
    except RecursionError as error:
        raise RowError(len(converted), TOO_DEEP) from error
    return converted


def _times(cells: list[Any]) -> list[int]:
    times: list[int] = []
    try:
        for cell in cells:
            times.append(millisecond_of(cell))
    except (ValueError, OverflowError) as error:
        shown = cell if isinstance(cell, str | bytes) else text_of(cell)
        raise RowError(len(times), f"{told(shown)} is not a timestamp", TIMES) from error
    return times


# CSV.


def _csv(
    stream: BinaryIO, name: str, mapping: RecordMapping, first: int, closing: ExitStack
) -> tuple[Iterator[_Block], _Convert]:
    read = _reader(stream)
    guesses = mapping.value is None and not mapping.as_text
    file = CsvFile(_begun(read, name), read, name, fills_block=guesses)
    contents = Contents(file.columns)

    def blocks() -> Iterator[_Block]:
        if file.columns:
            _check_columns(file.columns, name, mapping)
        for numbers, batch in file.batches(mapping.null_value, first):
            if guesses:
                contents.learn(batch)
            yield _Block(batch, numbers)

    def convert(batch: pa.RecordBatch) -> RecordColumns:
        texts = text_columns(batch)
        by_name = dict(zip(file.columns, texts, strict=True))
        if file.is_of_records:
            by_name |= {column: _unwrapped(by_name[column]) for column in ("key", "value")}
        if mapping.value is not None:
            values = by_name[mapping.value]
        else:
            cells = [
                contents.json_cells(i, column) if guesses else quoted(column)
                for i, column in enumerate(texts)
            ]
            values = objects_of(file.columns, cells, batch.num_rows)
        records = RecordColumns(values.cast(pa.binary()))
        if mapping.key is not None:
            records.keys = by_name[mapping.key].cast(pa.binary())
        _add_columns(records, by_name, mapping)
        return records

    return blocks(), convert


def _unwrapped(texts: pa.Array) -> pa.Array:
    """Return the bytes that `consume` wrote as these texts."""
    wrapped = pc.starts_with(texts, BASE64)
    if not pc.any(wrapped).as_py():
        return texts.cast(pa.binary())
    cells: list[bytes | None] = texts.cast(pa.binary()).to_pylist()
    for i in np.flatnonzero(wrapped.fill_null(False).to_numpy(zero_copy_only=False)):
        cells[i] = _decoded(texts[int(i)].as_py().removeprefix(BASE64), int(i))
    return pa.array(cells, pa.binary())


def _decoded(text: str, row: int) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise RowError(row, f"{told(text)} is not base64") from error


# Columns with types.


def _parquet(
    stream: BinaryIO, name: str, mapping: RecordMapping, first: int, closing: ExitStack
) -> tuple[Iterator[_Block], _Convert]:
    from pyarrow import parquet

    file = parquet.ParquetFile(_seekable(stream, closing))
    _check_columns(file.schema_arrow.names, name, mapping)
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    row_bytes = max(
        (row_group.total_byte_size // max(row_group.num_rows, 1) for row_group in groups), default=0
    )
    rows = max(1, min(ROWS_MAX, _ROWS_BYTES_MAX // max(row_bytes, 1)))
    return _blocks_of_batches(file.iter_batches(rows)), lambda batch: _typed(batch, mapping)


def _arrow(
    stream: BinaryIO, name: str, mapping: RecordMapping, first: int, closing: ExitStack
) -> tuple[Iterator[_Block], _Convert]:
    buffered = io.BufferedReader(Unbuffered(stream), BLOCK_BYTES)
    if buffered.peek(6)[:6] == b"ARROW1":
        if stream.seekable():
            stream.seek(0)
        else:
            stream = _seekable(cast(BinaryIO, buffered), closing)
        file = pa.ipc.open_file(stream)
        schema = file.schema
        batches = (file.get_batch(i) for i in range(file.num_record_batches))
    else:
        opened = pa.ipc.open_stream(buffered)
        schema, batches = opened.schema, iter(opened)
    _check_columns(schema.names, name, mapping)
    return _blocks_of_batches(batches), lambda batch: _typed(batch, mapping)


def _seekable(stream: BinaryIO, closing: ExitStack) -> BinaryIO:
    """Return the whole of a pipe as a file: the directory of these formats is at the end."""
    if stream.seekable():
        return stream
    spool = tempfile.TemporaryFile()  # noqa: SIM115  # `closing` closes it.
    closing.enter_context(spool)
    shutil.copyfileobj(stream, spool, BLOCK_BYTES)
    spool.seek(0)
    return cast(BinaryIO, spool)


def _blocks_of_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[_Block]:
    number = 1
    for batch in batches:
        rows = _ROWS_BYTES_MAX * batch.num_rows // max(batch.get_total_buffer_size(), 1)
        rows = max(1, min(ROWS_MAX, rows))
        for start in range(0, batch.num_rows, rows):
            part = batch.slice(start, rows)
            yield _Block(part, range(number, number + part.num_rows))
            number += part.num_rows


def _typed(batch: pa.RecordBatch, mapping: RecordMapping) -> RecordColumns:
    try:
        # Offsets that lead outside of a buffer would be followed; texts need not be UTF-8.
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        row = first_bad(batch, lambda rows: rows.validate(full=True))
        raise RowError(
            row, str(error).splitlines()[0], CONVERT if "UTF8" in str(error) else ""
        ) from error
    if not mapping.columns and RECORDS_MARK.items() <= (batch.schema.metadata or {}).items():
        return RecordColumns(
            batch.column("value"),
            batch.column("key"),
            batch.column("timestamp").cast(pa.int64()),
            batch.column("headers"),
        )
    by_name = dict(zip(batch.schema.names, batch.columns, strict=True))
    if mapping.value is None:
        values = _located(json_rows, batch)
    else:
        values = _with_nulls(_located(plain_cells, by_name[mapping.value]), mapping)
    records = RecordColumns(values)
    if mapping.key is not None:
        records.keys = _with_nulls(_located(plain_cells, by_name[mapping.key]), mapping)
    _add_columns(records, by_name, mapping)
    return records


def _located(convert: Callable[[Any], pa.Array], rows: Any) -> pa.Array:
    """Return converted rows, or name the first one that cannot be converted."""
    try:
        return convert(rows)
    except ValueError as error:
        raise RowError(first_bad(rows, convert), str(error).splitlines()[0]) from error


def _add_columns(
    records: RecordColumns, by_name: dict[str, pa.Array], mapping: RecordMapping
) -> None:
    """Add timestamps and headers from columns."""
    if mapping.timestamp is not None:
        records.timestamps = milliseconds_of(by_name[mapping.timestamp], mapping.timestamp)
    if mapping.headers is not None:
        records.headers = headers_of(by_name[mapping.headers])


def _with_nulls(cells: pa.Array, mapping: RecordMapping) -> pa.Array:
    if mapping.null_value is None:
        return cells
    null = pa.scalar(mapping.null_value.encode(), pa.binary())
    return pc.if_else(pc.equal(cells, null), pa.scalar(None, pa.binary()), cells)


def _check_columns(columns: list[str], name: str, mapping: RecordMapping) -> None:
    if twice := repeated(columns):
        raise Failure(
            f"{name} has more than one column {', '.join(map(repr, twice))}",
            "give each column a name of its own",
        )
    for wanted in mapping.columns:
        if wanted not in columns:
            raise _no_column(name, wanted, columns)


def _no_column(name: str, wanted: str, columns: Any) -> Failure:
    return Failure(f"{name} has no column {wanted!r}", did_you_mean(wanted, columns))
