"""Results on standard output, a table for people or JSON for programs; messages on standard
error."""

import json
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

import click

from millrace.cli.console.standard_streams import ReaderLeft, drop_output

Row = Sequence[object]

_GAP: Final = "  "
"""Between columns."""


def say(text: str = "") -> None:
    """Print a message that is not part of the result."""
    click.echo(text, err=True)


def put(text: str = "") -> None:
    """Print a part of the result; when its reader has left, the command goes on to its own end."""
    with suppress(ReaderLeft):
        click.echo(text)


def announce_line(text: str) -> None:
    """Print what a server says when it is ready; the server goes on without a reader."""
    try:
        click.echo(text)
    except ReaderLeft:
        drop_output()


def announce_json(document: Any) -> None:
    """Print the same for programs, as one line of JSON."""
    announce_line(json.dumps(document, ensure_ascii=False))


def document_of(answer: Any, leave: Collection[str] = (), **names: str) -> dict[str, Any]:
    """Return the fields of a dataclass for a program, some of them under other names.

    Args:
        leave: fields to leave out.
    """
    fields = asdict(answer)
    return {names.get(name, name): value for name, value in fields.items() if name not in leave}


def rows_of(documents: Iterable[Mapping[str, Any]], keys: Sequence[str]) -> list[list[object]]:
    """Return documents as rows of a table: lists in one cell, and what is empty as a dash."""

    def cell(value: object) -> object:
        shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
        return None if shown == "" else shown

    return [[cell(document[key]) for key in keys] for document in documents]


def print_json(document: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document."""
    put(json.dumps(document, ensure_ascii=False, indent=indent))


def print_table(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Print rows under column names; numbers are aligned to the right, None is a dash.

    A terminal gets what fits its width: see `table_lines`. Anything else gets columns of full
    width, one line a row.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in table_lines(columns, rows, width):
        put(line)


def table_lines(columns: Sequence[str], rows: Sequence[Row], width: int | None) -> list[str]:
    """Return the lines of a table; neither names of columns nor words are ever broken.

    If it is too wide, empty columns are left out; then the last one is wrapped at its spaces; if
    that is not enough either, a row becomes a line for each of its cells.

    Args:
        width: characters that a line may have; None: any number.
    """
    shown = [_Column(name, [row[i] for row in rows]) for i, name in enumerate(columns)]
    if width is None or _width_of(shown) <= width:
        return _lines_of(shown)
    shown = [column for column in shown if not column.is_empty] or shown
    *others, last = shown
    left = width - _width_of(others) - len(_GAP)
    if last.width > left >= last.width_min and not last.is_numeric:
        last.width = left
    if _width_of(shown) <= width:
        return _lines_of(shown)
    names = max(len(column.name) for column in shown)
    lines = []
    for i in range(len(rows)):
        lines += ["", *(f"{column.name:{names}}  {column.cells[i]}" for column in shown)]
    return lines[1:]


def print_result(output: str, document: Any, columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Print a result in the form that `--output` asks for."""
    if output == "json":
        print_json(document)
    else:
        print_table(columns, rows)


def ids_text(numbers: Iterable[int]) -> str:
    """Write the numbers of brokers or partitions for a person."""
    return ", ".join(map(str, numbers))


def text(cell: object) -> str:
    """Write a cell for a person."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return str(cell)


class _Column:
    def __init__(self, name: str, cells: Sequence[object]) -> None:
        self.name = name
        self.cells = [text(cell) for cell in cells]
        self.is_empty = all(cell is None for cell in cells)
        self.is_numeric = bool(cells) and all(
            isinstance(cell, int | float) or cell is None for cell in cells
        )
        self.width = max(map(len, (name, *self.cells)))

    @property
    def width_min(self) -> int:
        """The width of its name, or of its longest word."""
        return max(map(len, (self.name, *(word for cell in self.cells for word in cell.split()))))

    def aligned(self, cell: str) -> str:
        return cell.rjust(self.width) if self.is_numeric else cell.ljust(self.width)


def _width_of(columns: Sequence[_Column]) -> int:
    return sum(column.width for column in columns) + len(_GAP) * (len(columns) - 1)


def _lines_of(columns: Sequence[_Column]) -> list[str]:
    *others, last = columns
    lines = []
    for row in zip(*((column.name, *column.cells) for column in columns), strict=True):
        begin = "".join(
            column.aligned(cell) + _GAP for column, cell in zip(others, row[:-1], strict=True)
        )
        first, *rest = _wrapped(row[-1], last.width)
        lines.append((begin + last.aligned(first)).rstrip())
        lines += [" " * len(begin) + line for line in rest]
    return lines


def _wrapped(cell: str, width: int) -> list[str]:
    lines = textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
    return lines or [""]
