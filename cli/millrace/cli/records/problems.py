"""What is wrong with an input: the one place where errors of libraries become messages.

Arrow, the codecs and Python's own parsers raise what they like, also errors that no document names.
A user gets one message with the file, and with the row where it is known.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import pyarrow as pa

from millrace.cli.console.failures import Failure
from millrace.cli.files.json_document import TOO_DEEP
from millrace.core.errors import MillraceError

_CELL_CHARACTERS_TOLD_MAX = 40


class RowError(Exception):
    """A row of a block is wrong; the rows before it are good.

    Args:
        index: of the row, in its block.
        message: what is wrong, without the place.
        hint: what to do about it.
    """

    def __init__(self, index: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.index, self.message, self.hint = index, message, hint


@contextmanager
def explained(place: Callable[[], str], file_format: str) -> Iterator[None]:
    """Turn errors of libraries into a `Failure` with the place in the input."""
    try:
        yield
    except (click.ClickException, MillraceError, AssertionError):
        raise
    except RecursionError as error:
        raise Failure(f"{place()}: {TOO_DEEP}") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # Not a decoder's.
            raise Failure(f"{place()} cannot be read: {error.strerror}") from error
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise Failure(f"{place()} cannot be read as {file_format}: {lines[0]}") from error


def first_bad(column: pa.Array, convert: Callable[[pa.Array], Any]) -> int:
    """Return the index of the first cell for which `convert` fails, as it does for the column."""
    good, bad = 0, len(column)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            convert(column.slice(good, middle - good))
        except (pa.ArrowException, ValueError):
            bad = middle
        else:
            good = middle
    return good


def told(cell: object) -> str:
    """Return a cell for a message: no more than its beginning."""
    text = cell.decode(errors="replace") if isinstance(cell, bytes) else str(cell)
    return repr(
        text if len(text) <= _CELL_CHARACTERS_TOLD_MAX else text[:_CELL_CHARACTERS_TOLD_MAX] + "…"
    )
