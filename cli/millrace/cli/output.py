"""Results on standard output, a table for people or JSON for programs; talk on standard error."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

Row = Sequence[object]


def say(text: str = "") -> None:
    """Tell the person something that is not the result."""
    click.echo(text, err=True)


def put(text: str = "") -> None:
    """Print a part of the result; when its reader has left, the command goes on to its own end."""
    try:
        click.echo(text)
    except BrokenPipeError:
        drop_output()


def drop_output() -> None:
    """Keep the interpreter from writing at its end what could not be written before."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_json(document: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document."""
    put(json.dumps(document, ensure_ascii=False, indent=indent))


def print_table(columns: Sequence[str], rows: Sequence[Row], *, title: str = "") -> None:
    """Print rows under column names; numbers are aligned to the right, None is a dash.

    A terminal gets wrapped cells; anything else gets plain columns of full width, one line a row.
    """
    if title:
        put(title)
    texts = [[text(cell) for cell in row] for row in rows]
    numeric = [
        all(isinstance(row[i], int | float) or row[i] is None for row in rows) and bool(rows)
        for i in range(len(columns))
    ]
    if sys.stdout.isatty():
        _print_on_terminal(columns, texts, numeric)
        return
    widths = [max(map(len, cells)) for cells in zip(columns, *texts, strict=True)]
    for line in (columns, *texts):
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ]
        put("  ".join(cells).rstrip())


def print_result(
    output: str, document: Any, columns: Sequence[str], rows: Sequence[Row], *, title: str = ""
) -> None:
    """Print a result in the form that `--output` asks for."""
    if output == "json":
        print_json(document)
    else:
        print_table(columns, rows, title=title)


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


def size(count: float) -> str:
    """Write a number of bytes for a person."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def _print_on_terminal(
    columns: Sequence[str], rows: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)
