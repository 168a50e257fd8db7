"""The times of records, as columns and JSON say them: one rule for all formats.

A text of digits, with or without a minus, is a number of milliseconds. Any other text is a time of
ISO 8601 (`millrace.client.times`). Arrow reads the usual spelling of a column at once; cells with
another spelling are read one by one, as Arrow knows fewer of them.
"""

import re
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from millrace.cli.records.problems import RowError, first_bad, told
from millrace.client.times import parse_time_ms

HINT: Final = "a timestamp is a number of milliseconds since 1970, or a time like 2013-01-31T10:00Z"
_WHOLE: Final = re.compile(r"-?[0-9]{1,19}")
_INT64_MIN: Final = -(1 << 63)
_IS_WHOLE: Final = f"^{_WHOLE.pattern}$"
_DAY: Final = "[1-9][0-9]{3}-[0-9]{2}-[0-9]{2}"
_HOUR: Final = "[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.][0-9]+)?)?"
_IS_LOCAL: Final = f"^{_DAY}(?:{_HOUR})?$"
_IS_ZONED: Final = f"^{_DAY}{_HOUR}(?:Z|[+-][0-9]{{2}}:[0-9]{{2}})$"
_BELOW_MS: Final = r"([.][0-9]{3})[0-9]+"


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
    if isinstance(cell, bytes) and _WHOLE.fullmatch(text := cell.decode()):  # A number.
        return _time_of(text)
    if not isinstance(cell, str):
        raise ValueError("neither a whole number nor a text")
    return _time_of(cell)


def _converted(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _parsed(column.cast(pa.string()))
    if not pa.types.is_integer(kind):
        column = column.cast(pa.timestamp("ms"), safe=False)
    return column.cast(pa.int64())


def _parsed(texts: pa.Array) -> pa.Array:
    try:
        times = _usual_times(texts)
    except pa.ArrowInvalid:  # The 31st of February, or what only Python can read.
        return pa.array(map(_time_of, texts.to_pylist()), pa.int64())
    if not times.null_count:
        return times
    others = texts.filter(times.is_null())
    read = pa.array(map(_time_of, others.to_pylist()), pa.int64())
    return pc.replace_with_mask(times, times.is_null(), read)


def _usual_times(texts: pa.Array) -> pa.Array:
    """Return the times of texts with a usual spelling, and null for all others."""
    null = pa.scalar(None, pa.string())
    whole = pc.if_else(pc.match_substring_regex(texts, _IS_WHOLE), texts, null).cast(pa.int64())
    if not whole.null_count:
        return whole
    cut = pc.replace_substring_regex(texts, _BELOW_MS, r"\1")
    zoned = pc.if_else(pc.match_substring_regex(texts, _IS_ZONED), cut, null)
    local = pc.if_else(pc.match_substring_regex(texts, _IS_LOCAL), cut, null)
    return pc.coalesce(
        whole,
        zoned.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()),
        local.cast(pa.timestamp("ms")).cast(pa.int64()),
    )


def _time_of(text: str) -> int:
    """Return the time that a text says.

    Raises:
        ValueError: it says none.
    """
    if not _WHOLE.fullmatch(text):
        return parse_time_ms(text)
    time = int(text)
    if not _INT64_MIN <= time < -_INT64_MIN:
        raise ValueError(f"{text} has more than 64 bits")
    return time
