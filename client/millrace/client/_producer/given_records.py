"""What users give to `send()` and `send_batch()`, checked where it comes in, and as it is sent."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.client._cluster.arguments import whole_number
from millrace.client.serialization import Serializer
from millrace.core import words
from millrace.core.client.producer.sent_columns import Cells, SentColumns, taken
from millrace.core.errors import InvalidRecordError, MillraceError, SerializationError
from millrace.core.ids import NO_TIMESTAMP, WallMs
from millrace.core.records.cells import cells_of
from millrace.core.records.columns import HEADERS_TYPE
from millrace.core.records.header import TIMESTAMP_MAX
from millrace.core.settings import INT32_MAX
from millrace.runtime.clock import wall_now

Headers = Sequence[tuple[str, bytes | None]] | Mapping[str, bytes | None]
"""Headers of one record: pairs of name and value, or a mapping."""

_TIMES: Final = "milliseconds since 1970, up to the year 9999, or -1 for the time of sending"
_LONG_CELL_BYTES: Final = 200
_COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition")


def serialized(cell: Any, serializer: Serializer | None, what: str, topic: str) -> bytes | None:
    """Return a key or value as bytes.

    Raises:
        SerializationError: its serializer raised, or there is none for this type.
    """
    if type(cell) is bytes and serializer is None:
        return cell
    if cell is None:
        return None
    if serializer is not None:
        try:
            cell = serializer(cell)
        except Exception as error:
            raise SerializationError(
                f"the {what} serializer raised {error!r} for a record of topic {topic!r}"
            ) from error
    if isinstance(cell, bytes | bytearray | memoryview):
        return bytes(cell)  # A copy: the caller may change its buffer while ours is under way.
    raise SerializationError(
        f"a {what} of topic {topic!r} is {type(cell).__name__}, not bytes: encode it, or give the "
        f"producer a {what}_serializer"
    )


def checked_partition(partition: object) -> int:
    """Return the number of a partition; raises `InvalidRecordError` for what is none."""
    if type(partition) is int and 0 <= partition <= INT32_MAX:
        return partition
    number = whole_number(partition)
    if number is None or not 0 <= number <= INT32_MAX:
        raise InvalidRecordError(f"partition={partition!r}: it must be a number from 0")
    return number


def checked_timestamp(timestamp: object) -> WallMs | None:
    """Return the timestamp of a record; None: that of its sending.

    Raises:
        InvalidRecordError: it is none.
    """
    number = whole_number(timestamp)
    if number is None and isinstance(timestamp, np.datetime64):
        number = whole_number(timestamp.astype("datetime64[ms]").astype(np.int64))
    if number == NO_TIMESTAMP:  # As a consumer tells of a record of Kafka's without a time.
        return None
    if number is None or not 0 <= number <= TIMESTAMP_MAX:
        raise InvalidRecordError(f"timestamp={timestamp!r}: it must be {_TIMES}")
    return WallMs(number)


def checked_headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Return the headers of a record; raises `InvalidRecordError` for what are none."""
    checked = []
    try:
        for name, value in headers.items() if isinstance(headers, Mapping) else headers:
            if not isinstance(name, str) or not (value is None or isinstance(value, bytes)):
                raise InvalidRecordError(
                    f"header {name!r}: a name is a string and a value bytes or None"
                )
            if not name.isascii():
                name.encode()
            checked.append((name, value))
    except UnicodeEncodeError as error:  # Of a name as `os.fsdecode` makes them.
        raise InvalidRecordError(f"header {name!r}: no UTF-8 can be made of it") from error
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(
            f"headers={headers!r}: they must be pairs of name and value, or a mapping"
        ) from error
    return tuple(checked)


def as_arrow(column: Any, what: str) -> Any:
    """Return objects with Arrow's interface as Arrow, and all others unchanged.

    Raises:
        InvalidRecordError: a mapping, which has no order of rows; or Arrow cannot hold it.
    """
    if isinstance(column, Mapping):
        raise InvalidRecordError(
            f"{what} are a {type(column).__name__}: give columns by their names as a table, as "
            "pyarrow.table({'key': ..., 'value': ...})"
        )
    if isinstance(column, pa.Table | pa.RecordBatch | pa.Array | pa.ChunkedArray):
        return column
    try:
        if hasattr(column, "__arrow_c_stream__"):
            column = pa.chunked_array(column)
        elif hasattr(column, "__arrow_c_array__"):
            column = pa.chunked_array([pa.array(column)])
        else:
            return column
    except (pa.ArrowException, ValueError, TypeError) as error:
        raise InvalidRecordError(f"{what} cannot be made Arrow columns: {error}") from error
    return pa.Table.from_struct_array(column) if pa.types.is_struct(column.type) else column


def columns_of_sequences(
    values: Any,
    keys: Any,
    headers: Any,
    timestamps: Any,
    *,
    serializers: tuple[Serializer | None, Serializer | None],
    rejected: dict[int, MillraceError],
) -> SentColumns:
    """Return the columns of `send_batch` but for the rejected rows.

    Args:
        values, keys, headers, timestamps: as they were given.
        serializers: of keys and values.
        rejected: gets the errors of rows that cannot be serialized.

    Raises:
        InvalidRecordError: there are no columns, or they do not fit.
    """
    keys, headers = as_arrow(keys, "keys"), as_arrow(headers, "headers")
    timestamps = as_arrow(timestamps, "timestamps")
    columns = (values, keys, headers, timestamps)
    given = [column for column in columns if column is not None and hasattr(column, "__len__")]
    if not given:
        raise InvalidRecordError("send_batch() needs values or keys")
    count = len(given[0])
    if any(len(column) != count for column in given):
        raise InvalidRecordError(
            f"the columns have different lengths: {', '.join(str(len(column)) for column in given)}"
        )
    key_serializer, value_serializer = serializers
    values = _column(values, value_serializer, "value", rejected)
    keys = _column(keys, key_serializer, "key", rejected)
    if isinstance(headers, pa.Array | pa.ChunkedArray):
        headers = _header_column(headers)
    elif headers is not None:
        headers = [() if row is None else checked_headers(row) for row in headers]
    times = _timestamps(timestamps, count)
    if rejected:
        kept = np.array([row for row in range(count) if row not in rejected], np.int64)
        indexes = pa.array(kept)
        values, keys = taken(values, kept), taken(keys, kept)
        if isinstance(headers, pa.Array):
            headers = headers.take(indexes)
        elif headers is not None:
            headers = [headers[row] for row in kept.tolist()]
        times = None if times is None else times[kept]
        count = len(kept)
    return SentColumns(values, keys, headers, times, None, count)


def columns_of_table(table: pa.Table | pa.RecordBatch) -> SentColumns:
    """Return the columns of a table; raises `InvalidRecordError` for those that do not fit."""
    known = {name: table.column(name) for name in table.schema.names if name in _COLUMNS}
    if "value" not in known and "key" not in known:
        raise InvalidRecordError(
            f"the table has the columns {', '.join(table.schema.names)}, but needs `value` or `key`"
        )
    headers = known.get("headers")
    if headers is not None:
        headers = _header_column(headers)
    partitions = None
    if "partition" in known:
        cells = known["partition"]
        if not (pa.types.is_integer(cells.type) or pa.types.is_null(cells.type)):
            raise InvalidRecordError(
                f"the partition column is {cells.type}: it must hold whole numbers from 0, or null"
            )
        bounds = pc.min_max(cells).as_py()
        if bounds["min"] is not None and not 0 <= bounds["min"] <= bounds["max"] <= INT32_MAX:
            raise InvalidRecordError(
                f"the partition column holds {bounds['min']} to {bounds['max']}: it must hold "
                "numbers from 0, or null"
            )
        cells = cells.cast(pa.int64()).fill_null(-1)
        partitions = np.ascontiguousarray(cells.to_numpy(), np.int64)
    return SentColumns(
        _column(known.get("value"), None, "value", {}),
        _column(known.get("key"), None, "key", {}),
        headers,
        _timestamps(known.get("timestamp"), table.num_rows),
        partitions,
        table.num_rows,
    )


def _header_column(headers: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return headers with their one type; refuse headers that no batch can hold."""
    if isinstance(headers, pa.ChunkedArray):
        headers = headers.combine_chunks()
    if headers.type != HEADERS_TYPE:
        if not _has_names(headers.type):
            raise InvalidRecordError(
                f"the headers column is {headers.type} and must be {HEADERS_TYPE}"
            )
        try:
            headers = headers.cast(HEADERS_TYPE)
        except pa.ArrowException as error:
            raise InvalidRecordError(
                f"the headers column is {headers.type} and must be {HEADERS_TYPE}"
            ) from error
    entries = headers.flatten()
    if entries.null_count or entries.field("key").null_count:
        raise InvalidRecordError("a header and its name may not be null, only its value")
    return headers


def _column(
    cells: Any, serializer: Serializer | None, what: str, rejected: dict[int, MillraceError]
) -> Cells | None:
    """Return keys or values as an array or list that the caller can no longer change."""
    if cells is None:
        return None
    if isinstance(cells, pa.ChunkedArray):
        cells = cells.combine_chunks()
    if isinstance(cells, pa.Array):
        return _binary_array(cells, what)
    if isinstance(cells, str | bytes):
        raise InvalidRecordError(f"{what}s must be a sequence, not one {type(cells).__name__}")
    if serializer is not None:
        made: list[bytes | None] = []
        for row, cell in enumerate(cells):
            try:
                made.append(serialized(cell, serializer, what, "?"))
            except SerializationError as error:
                rejected[row] = error
                made.append(None)
        cells = made
    elif isinstance(cells, list) and cells and _are_long(cells):
        cells = cells.copy()
        if set(map(type, cells)) == {bytes}:
            return cells_of(cells)
    try:
        column = pa.array(cells, pa.binary())
    except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
        raise SerializationError(
            f"the {what}s are not all bytes ({error}): encode them, or give the producer a "
            f"{what}_serializer"
        ) from error
    if isinstance(column, pa.ChunkedArray):
        raise InvalidRecordError(f"the {what}s of one send_batch() are limited to 2 GiB")
    return column


def _are_long(cells: list[Any]) -> bool:
    """Return whether cells should stay Python's bytes until they are joined, judged by the first.

    Arrow checks their types and counts their lengths at once, but copies them once more.
    """
    return isinstance(cells[0], bytes) and len(cells[0]) > _LONG_CELL_BYTES


def _binary_array(cells: pa.Array, what: str) -> pa.Array:
    if cells.type == pa.binary():
        return cells
    kinds = pa.types
    if not (
        kinds.is_string(cells.type)
        or kinds.is_string_view(cells.type)
        or kinds.is_binary_view(cells.type)
        or kinds.is_large_string(cells.type)
        or kinds.is_large_binary(cells.type)
        or kinds.is_fixed_size_binary(cells.type)
        or kinds.is_null(cells.type)
        or kinds.is_dictionary(cells.type)
    ):
        raise InvalidRecordError(
            f"the {what} column is {cells.type}: cast it to binary or string first"
        )
    try:
        if kinds.is_dictionary(cells.type):
            return _binary_array(cells.dictionary_decode(), what)
        return cells.cast(pa.binary())
    except pa.ArrowException as error:
        raise InvalidRecordError(f"the {what} column cannot be cast to binary: {error}") from error


def _has_names(kind: pa.DataType) -> bool:
    """Return whether headers of this type have names that are text: others would be cast."""
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind)):
        return False
    entry = kind.value_type
    at = entry.get_field_index("key") if pa.types.is_struct(entry) else -1
    if at < 0:
        return False
    name = entry.field(at).type
    if pa.types.is_dictionary(name):
        name = name.value_type
    return bool(
        pa.types.is_string(name)
        or pa.types.is_large_string(name)
        or pa.types.is_string_view(name)
        or pa.types.is_null(name)
    )


def _timestamps(timestamps: Any, count: int) -> Any:
    if timestamps is None:
        return None
    if isinstance(timestamps, int | float | str | np.generic):
        time = checked_timestamp(timestamps)
        return None if time is None else np.full(count, time, np.int64)
    try:
        times = _whole_numbers(timestamps)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidRecordError(f"timestamps must be {_TIMES}: {error}") from error
    if times.shape != (count,):
        raise InvalidRecordError(
            f"timestamps of shape {times.shape} for {words.count(count, 'record')}"
        )
    lacking = times == NO_TIMESTAMP
    if lacking.any():
        times = np.where(lacking, wall_now(), times)
    if count and not 0 <= int(times.min()) <= int(times.max()) <= TIMESTAMP_MAX:
        raise InvalidRecordError(
            f"timestamps from {times.min()} to {times.max()}: they must be {_TIMES}"
        )
    return np.ascontiguousarray(times, np.int64)


def _whole_numbers(column: Any) -> np.ndarray[Any, Any]:
    """Return a column of whole numbers, or of times as milliseconds.

    Raises:
        TypeError: it holds something else: truth values, fractions, texts, nulls.
    """
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.Array):
        if column.null_count:
            raise TypeError("nulls are among them")
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        if not pa.types.is_integer(column.type):
            raise TypeError(f"{column.type} are no whole numbers")
        return cast("np.ndarray[Any, Any]", column.to_numpy(zero_copy_only=False))
    array = column if isinstance(column, list | tuple) else np.asarray(column)
    if isinstance(array, list | tuple) or array.dtype == object:
        # numpy would make numbers of truth values and times that stand beside numbers.
        kinds = set(map(type, array))
        are_times = kinds == {np.datetime64}
        for kind in () if are_times else kinds:
            if not issubclass(kind, int | np.integer) or kind is bool:
                raise TypeError(f"{kind.__name__} is among them, and not whole numbers alone")
        array = np.asarray(array, "datetime64[ms]" if are_times else np.int64)
    if not array.size:
        return array.astype(np.int64)
    if array.dtype.kind == "M":
        return array.astype("datetime64[ms]").astype(np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{array.dtype} are no whole numbers")
    return array
