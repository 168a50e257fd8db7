"""Rows of CSV, read as text, and the JSON of their cells.

A block is cut after its last whole row, by Arrow's own rules of quoting, and each piece is parsed
by itself. So a row may be larger than a block, rows of a pipe are produced as soon as they are
whole, and each row has its number.

Arrow reads each cell as text, and numbers are written into JSON as they stand in the file: digits,
exponents and zeros stay. The first MiB of rows says of each column what it holds:

| every cell that is not empty is | the column holds | its JSON |
|---|---|---|
| a number as JSON writes it, NaN or an infinity | numbers | the cell, and null for the latter |
| true or false, in any case | truth values | true or false |
| anything else, such as 007 or +1 | text | the cell in quotes |

An empty cell is null among numbers and truth values. A column that is empty in the first MiB holds
what the first cell after it is, and its empty cells stay null.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv

from millrace.cli.console.failures import Failure
from millrace.cli.records.file_names import BLOCK_BYTES
from millrace.cli.records.json_cells import quoted
from millrace.cli.records.problems import RowError, first_bad, told
from millrace.cli.records.record_columns import RECORD_COLUMNS

CONVERT: Final = "convert the file first: iconv -f LATIN1 -t UTF-8"
ROW_BYTES_MAX: Final = 64 << 20

# Atomic groups, as Python before 3.11.5 matches `(?:…)*+` wrongly where the group can backtrack:
# https://github.com/python/cpython/issues/106052.
_QUOTED: Final = rb'"(?>(?:[^"]++|"")*)"'
_CELL: Final = re.compile(rb"(?>(?:(?:" + _QUOTED + rb'|[^",\r\n])[^,\r\n]*+)?)')
_ROW: Final = rb'(?>(?:[^"\r\n]++|(?<![^,\r\n])' + _QUOTED + rb'|(?<=[^,\r\n])")*)(?:\r\n|\n|\r)'
"""A quote at the beginning of a cell begins quoted text; elsewhere it is an ordinary character."""
_FIRST_ROW: Final = re.compile(_ROW)
_ROWS: Final = re.compile(rb"(?>(?:" + _ROW + rb")*)")

Holds = Literal["numbers", "truth values", "text", "text or null"]

_FORMS: Final[dict[Holds, tuple[str, str]]] = {
    "numbers": (
        r"^-?(?:0|[1-9][0-9]*)(?:[.][0-9]+)?(?:[eE][+-]?[0-9]+)?$",
        r"^(?:[+-]?(?i:nan|inf|infinity))?$",
    ),
    "truth values": (r"^(?i:true|false)$", "^$"),
}
"""Two patterns for each: of cells that are values, and of cells that are null."""


class CsvFile:
    """A CSV file whose header has been read.

    Args:
        begun: its first bytes, already read.
        read: returns some more of its bytes; none at its end.
        name: the file's, for messages.
        fills_block: the first block is a whole one, or the whole file, so that it says what columns
            hold.

    Raises:
        Failure: it has no header that can be used.
    """

    def __init__(
        self, begun: bytes, read: Callable[[int], bytes], name: str, *, fills_block: bool
    ) -> None:
        self._name = name
        self._chunks = self._whole_rows(begun, read, BLOCK_BYTES if fills_block else 0)
        self._row = -1
        """The last one read; 0 is the header."""
        self._first = next(filter(None, (chunk.lstrip(b"\r\n") for chunk in self._chunks)), b"")
        header = _FIRST_ROW.match(self._first)
        text, self._first = (
            (self._first, b"") if header is None else (header[0], self._first[header.end() :])
        )
        try:
            self.columns = next(csv.reader(io.StringIO(text.decode(), newline="")), [])
        except UnicodeDecodeError as error:
            raise Failure(f"{name}: the header is not UTF-8", CONVERT) from error
        self._row = 0
        self.is_of_records = tuple(self.columns) == RECORD_COLUMNS
        """Whether `consume` wrote the file. Then null has no quotes, and an equal text has them."""

    def batches(
        self, null_value: str | None, first: int
    ) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
        """Yield rows with their numbers, all cells as bytes.

        Args:
            null_value: the text that stands for null.
            first: rows before this one may have any number of cells.

        Raises:
            Failure: a row has too many cells, or too few; the rows before it have been yielded.
        """
        yield from self._parsed(self._first, null_value, first)
        for chunk in self._chunks:
            yield from self._parsed(chunk, null_value, first)

    def _parsed(
        self, chunk: bytes, null_value: str | None, first: int
    ) -> Iterator[tuple[Sequence[int], pa.RecordBatch]]:
        if not chunk.strip(b"\r\n"):
            return
        bad: dict[int, _BadRow] = {}
        try:
            table = self._table(chunk, null_value)
        except pa.ArrowInvalid:
            good, found = _fitting(chunk, len(self.columns))
            if not found:
                raise
            bad = {self._row + index: row for index, row in found.items()}
            table = self._table(good, null_value)
        begin, self._row = self._row + 1, self._row + table.num_rows + len(bad)
        numbers: Sequence[int] = range(begin, self._row + 1)
        if bad:
            numbers = [number for number in numbers if number not in bad]
        refused = next((number for number in bad if number >= first), None)
        if refused is not None:
            numbers = [number for number in numbers if number < refused]
        if numbers:
            (rows,) = table.slice(0, len(numbers)).combine_chunks().to_batches()
            yield numbers, rows
        if refused is not None:
            row, expected = bad[refused], len(self.columns)
            raise Failure(
                f"{self._name}, row {refused:,}: {row.cells} "
                f"{'cell' if row.cells == 1 else 'cells'} where the header names {expected}: "
                f"{told(row.text)}",
                'a cell with a comma, a quote or a line break is written in quotes: "a, ""b"""',
            )

    def _table(self, chunk: bytes, null_value: str | None) -> pa.Table:
        if not chunk:
            return pa.table({name: pa.array([], pa.binary()) for name in self.columns})
        has_null = null_value is not None or self.is_of_records
        return arrow_csv.read_csv(
            pa.BufferReader(chunk),
            arrow_csv.ReadOptions(
                column_names=self.columns, use_threads=False, block_size=len(chunk) + 1
            ),
            arrow_csv.ParseOptions(newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(self.columns, pa.binary()),
                null_values=[null_value or ""] if has_null else [],
                strings_can_be_null=has_null,
                quoted_strings_can_be_null=not self.is_of_records,
            ),
        )

    def _whole_rows(
        self, begun: bytes, read: Callable[[int], bytes], wanted: int
    ) -> Iterator[bytes]:
        """Yield the file in pieces of whole rows."""
        rest = begun
        while data := _gathered(read, wanted):
            rest += data
            end = _end_of_rows(rest)
            if end:
                yield rest[:end]
                rest = rest[end:]
            # Doubling limits how often a long row is scanned again.
            wanted = len(rest) if len(rest) > BLOCK_BYTES else 0
            if len(rest) > ROW_BYTES_MAX:
                raise Failure(
                    f"{self._name}, {self._place}: longer than {ROW_BYTES_MAX} bytes",
                    "is there a quote that does not end?",
                )
        if rest:
            if _end_of_rows(rest + b"\n") != len(rest) + 1:
                raise Failure(f"{self._name}, {self._place}: a quote that does not end")
            yield rest

    @property
    def _place(self) -> str:
        return "the header" if self._row < 0 else f"row {self._row + 1:,}"


class Contents:
    """What the columns of a file hold, as far as it has been read."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._holds: list[Holds | None] = [None] * len(columns)
        self._text: Holds = "text"

    def learn(self, batch: pa.RecordBatch) -> None:
        """Decide on columns that have been empty so far."""
        for i, holds in enumerate(self._holds):
            if holds is None:
                found = _holds(batch.column(i))
                self._holds[i] = self._text if found == "text" else found
        self._text = "text or null"

    def json_cells(self, index: int, texts: pa.Array) -> pa.Array:
        """Return the JSON text of the cells of a column, without nulls.

        Raises:
            RowError: a cell is not what the column holds.
        """
        holds = self._holds[index]
        if holds == "text":
            return quoted(texts)
        if holds == "text or null":
            return quoted(pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts))
        if holds is None:
            return pa.array(["null"] * len(texts), pa.string())
        cells, bad = _cells(holds, texts)
        if bad >= 0:
            cell = told(texts[bad].as_py())
            raise RowError(
                bad,
                f"column {self._columns[index]!r} holds {holds} so far, and {cell} is none",
                "--null-value TEXT names what stands for null, --as-text takes every cell as text",
            )
        return pc.coalesce(cells, pa.scalar("null"))


def text_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the columns of a batch as text.

    Raises:
        RowError: a cell is not UTF-8.
    """
    problem: RowError | None = None
    texts = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            texts.append(column.cast(pa.string()))
        except pa.ArrowInvalid:
            row = first_bad(column, lambda cells: cells.cast(pa.string()))
            if problem is None or row < problem.index:
                problem = RowError(row, f"column {name!r} is not UTF-8", CONVERT)
    if problem is not None:
        raise problem
    return texts


def _holds(column: pa.Array) -> Holds | None:
    try:
        texts = column.cast(pa.string())
    except pa.ArrowInvalid:
        return "text"
    for holds in _FORMS:
        cells, bad = _cells(holds, texts)
        if bad < 0:
            return holds if cells.null_count < len(cells) else None
    return "text"


def _cells(holds: Holds, texts: pa.Array) -> tuple[pa.Array, int]:
    """Return cells as JSON has them, null where it has none, and the first that has another form.

    The index of that cell is -1 if there is none.
    """
    form, nothing = _FORMS[holds]
    bad = -1
    is_meant = pc.match_substring_regex(texts, form)
    if not pc.all(is_meant, min_count=0).as_py():
        texts = pc.ascii_trim_whitespace(texts)
        is_meant = pc.match_substring_regex(texts, form)
        is_empty = pc.match_substring_regex(texts, nothing)
        bad = pc.index(pc.or_(is_meant, is_empty), False).as_py()
        texts = pc.if_else(is_meant, texts, pa.scalar(None, pa.string()))
    return (texts if holds == "numbers" else pc.ascii_lower(texts)), bad


@dataclass(slots=True)
class _BadRow:
    text: bytes
    cells: int


def _fitting(chunk: bytes, expected: int) -> tuple[bytes, dict[int, _BadRow]]:
    """Return the rows with so many cells, and the others by their place, counted from 1.

    Only for a chunk that Arrow refuses. Arrow would name such rows itself, but not those that are
    not UTF-8.
    """
    good: list[bytes] = []
    bad: dict[int, _BadRow] = {}
    text, at = chunk + b"\n", 0
    while at < len(chunk):
        found = _FIRST_ROW.match(text, at)
        assert found is not None, "chunks end after a row"
        row, at = found[0].rstrip(b"\r\n"), found.end()
        if not row:
            continue
        cells = _count_of_cells(row)
        if cells == expected:
            good.append(found[0])
        else:
            bad[len(good) + len(bad) + 1] = _BadRow(row, cells)
    return b"".join(good), bad


def _count_of_cells(row: bytes) -> int:
    count, at = 0, 0
    while at <= len(row):
        found = _CELL.match(row, at)
        assert found is not None, "it matches the empty text"
        count, at = count + 1, found.end() + 1
    return count


def _end_of_rows(data: bytes) -> int:
    """Return where the last whole row ends; 0: nowhere."""
    if b'"' not in data and (end := data.rfind(b"\n") + 1):
        return end
    found = _ROWS.match(data)
    assert found is not None, "it matches the empty text"
    return found.end()


def _gathered(read: Callable[[int], bytes], wanted: int) -> bytes:
    """Return at least so many bytes, unless the file ends before; else what there is."""
    blocks = [read(BLOCK_BYTES)]
    count = len(blocks[0])
    while count < wanted and blocks[-1]:
        blocks.append(read(BLOCK_BYTES))
        count += len(blocks[-1])
    return b"".join(blocks)
