"""Cells of any type as timestamps: milliseconds since 1970, UTC."""

import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.cli.records.problems import RowError, first_bad, told
from millrace.client.times import parse_time_ms

HINT: Final = "a timestamp is a number of milliseconds since 1970, or a time like 2013-01-31T10:00Z"
_WHOLE: Final = re.compile(rb"-?[0-9]{1,19}")
_INT64_MAX: Final = (1 << 63) - 1
_IS_WHOLE: Final = "^-?[0-9]+$"
_IS_ZONED: Final = "[T ][0-9].*(?:Z|[+-][0-9]{2}:?(?:[0-9]{2})?)$"
_BEHIND_MS: Final = r"([.][0-9]{3})[0-9]+"


def milliseconds_of(column: pa.Array, column_name: str) -> pa.Array:
    """Return the times of a column as int64.

    Raises:
        RowError: a cell is no time, or null.
    """
    if column.null_count:
        row = pc.index(column.is_null(), True).as_py()
        raise RowError(row, f"column {column_name!r} has no time", HINT)
    try:
        return _converted(column)
    except (pa.ArrowException, ValueError) as error:
        row = first_bad(column, _converted)
        cell = column.slice(row, 1).cast(pa.string(), safe=False)[0].as_py()
        raise RowError(
            row, f"column {column_name!r} holds no times: {told(cell)} is not a timestamp", HINT
        ) from error


def millisecond_of(cell: Any) -> int:
    """Return the time that a value of JSON says.

    Raises:
        ValueError: the value is not a time.
    """
    if isinstance(cell, bytes) and _WHOLE.fullmatch(cell) and abs(int(cell)) <= _INT64_MAX:
        return int(cell)
    if not isinstance(cell, str):
        raise ValueError("neither a whole number nor a text")
    return parse_time_ms(cell)


def _converted(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return _parsed(column.cast(pa.string()))
    if not pa.types.is_integer(column.type):
        column = column.cast(pa.timestamp("ms"), safe=False)
    return column.cast(pa.int64())


def _parsed(texts: pa.Array) -> pa.Array:
    null = pa.scalar(None, pa.string())
    is_whole = pc.match_substring_regex(texts, _IS_WHOLE)
    whole = pc.if_else(is_whole, texts, null).cast(pa.int64())
    if not whole.null_count:
        return whole
    texts = pc.replace_substring_regex(texts, _BEHIND_MS, r"\1")
    is_zoned = pc.match_substring_regex(texts, _IS_ZONED)
    zoned = pc.if_else(is_zoned, texts, null).cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    local = pc.if_else(pc.or_(is_whole, is_zoned), null, texts).cast(pa.timestamp("ms"))
    return pc.coalesce(whole, zoned, local.cast(pa.int64()))
