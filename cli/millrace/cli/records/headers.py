"""Headers of records: from a column of a file, and the same ones for every record."""

import base64
from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import pyarrow as pa

from millrace.cli.records.json_texts import DECODER, cell_of
from millrace.cli.records.problems import RowError, told
from millrace.core.records.columns import HEADERS_TYPE, RecordHeaders

FORMS: Final = (
    'headers are pairs, [["name", "value"], ...], or an object, {"name": "value"}, as JSON'
)


def headers_of(column: pa.Array | list[Any]) -> pa.Array:
    """Return the headers that the cells of a column are: JSON, or what it says, or Arrow's.

    Args:
        column: a null or an empty text is no headers.

    Raises:
        RowError: a cell has another form.
    """
    if isinstance(column, pa.Array):
        if pa.types.is_list(column.type):
            try:
                return column.cast(HEADERS_TYPE).fill_null([])
            except pa.ArrowException as error:
                raise RowError(0, f"a column of {column.type} holds no headers", FORMS) from error
        column = column.to_pylist()
    headers: list[list[dict[str, Any]]] = []
    try:
        for cell in column:
            headers.append(_pairs(cell))
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"{told(cell)} is not headers"
        if isinstance(error, UnicodeEncodeError):  # JSON can escape halves of characters.
            problem = f"{error.object!r} cannot be written as UTF-8"
        raise RowError(len(headers), problem, FORMS) from error
    return pa.array(headers, HEADERS_TYPE)


def with_added(headers: pa.Array | None, added: RecordHeaders, count: int) -> pa.Array | None:
    """Return the headers of `count` records with further ones after them."""
    if not added:
        return headers
    mine = pa.array([{"key": key, "value": value} for key, value in added], HEADERS_TYPE.value_type)
    own = mine.slice(0, 0) if headers is None else headers.flatten()
    lengths = np.zeros(count, np.int64) if headers is None else headers.value_lengths().to_numpy()
    ends = np.cumsum(lengths + len(mine))
    places = np.arange(len(mine)) - len(mine) + ends[:, np.newaxis]
    taken = np.zeros(len(own) + count * len(mine), np.int64)
    is_own = np.ones(len(taken), np.bool_)
    is_own[places] = False
    taken[is_own] = np.arange(len(own))
    taken[places] = np.arange(len(own), len(own) + len(mine))
    entries = pa.concat_arrays([own, mine]).take(pa.array(taken))
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return pa.ListArray.from_arrays(offsets, entries).cast(HEADERS_TYPE)


def _pairs(cell: Any) -> list[dict[str, Any]]:
    said = DECODER.decode(_text(cell)) if isinstance(cell, str | bytes) and cell else cell
    pairs: Iterable[Any] = said.items() if isinstance(said, dict) else said or ()
    return [{"key": _name(key), "value": _value(value)} for key, value in pairs]


def _text(cell: str | bytes) -> str:
    return cell if isinstance(cell, str) else cell.decode()


def _name(key: Any) -> str:
    if not isinstance(key, str):
        raise TypeError("a name is a text")
    key.encode()
    return key


def _value(value: Any) -> bytes | None:
    match value:
        case {"base64": str(text)} if len(value) == 1:  # As `consume` writes what is no text.
            return base64.b64decode(text, validate=True)
    return cell_of(value)
