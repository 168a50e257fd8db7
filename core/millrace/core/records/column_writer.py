"""Writes the body of a batch from columns: the one form that `columns` describes."""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from millrace.core import words
from millrace.core.errors import InvalidRecordError, InvalidTimestampError, MessageTooLargeError
from millrace.core.ids import WallMs
from millrace.core.records.arrow_views import int64s_of, numbers_of, validity_of
from millrace.core.records.cells import FEW_MAX, ByteCells, array_of, cells_of
from millrace.core.records.columns import (
    COLUMN_BITS,
    HAS_NULLS,
    HEADER_VALUES_HAVE_NULLS,
    HEADERS_TYPE,
    PLAIN_TABLE_ENTRY,
    BinaryColumn,
    Columns,
    RecordHeaders,
)
from millrace.core.records.header import BODY_BYTES_MAX, TIMESTAMP_MAX, Attributes, Buffer

_Part: TypeAlias = Buffer | pa.Buffer
_Written: TypeAlias = tuple[int, int, int, Sequence[Sequence[_Part]]]
"""Of a present column: its number, flags, the length of its buffers, and lists of these."""

_PADS: Final = tuple(b"\0" * (-n % 8) for n in range(8))
_ALL_NULL: Final = -1
_ALL_EMPTY: Final = 0


@dataclass(slots=True)
class WrittenColumns:
    """A body before compression, and the header fields that describe it. Not changed."""

    attributes: int
    base_timestamp: WallMs
    max_timestamp: WallMs
    body: bytes


def write(columns: Columns) -> WrittenColumns:
    """Lay out `columns`.

    Raises:
        InvalidRecordError: a column of another length or kind than it must have.
        InvalidTimestampError: a time that the format cannot hold.
        MessageTooLargeError: more bytes than the format can hold.
    """
    attributes = 0
    written: list[_Written] = []
    count = columns.record_count
    if columns.offset_deltas is not None and int(columns.offset_deltas[-1]) >= count:
        deltas = _numbers("offset deltas", columns.offset_deltas, count)
        parts, length = _padded(deltas.astype("<i4", copy=False).tobytes())
        written.append((0, 0, length, [parts]))
    base, top, times = _times(columns)
    if times is not None:
        parts, length = _padded(times.astype("<i8", copy=False).tobytes())
        written.append((1, 0, length, [parts]))
    for column, name, cells, empty in (
        (2, "keys", columns.keys, Attributes.KEYS_EMPTY),
        (3, "values", columns.values, Attributes.VALUES_EMPTY),
    ):
        if cells is None:
            continue
        flags, lists, length = _binary(name, cells, count)
        if length > 0:
            written.append((column, flags, length, lists))
        elif length == _ALL_EMPTY:
            attributes |= empty
    if columns.headers is not None:
        flags, parts, length = _headers(columns.headers, count)
        if length:
            written.append((4, flags, length, [parts]))
    for column, _, _, _ in written:
        attributes |= COLUMN_BITS[column]
    return WrittenColumns(attributes, base, top, _joined(written))


def _joined(written: list[_Written]) -> bytes:
    size = PLAIN_TABLE_ENTRY.size * len(written)
    for _, _, length, _ in written:
        size += length
    if size > BODY_BYTES_MAX:
        raise MessageTooLargeError(
            f"a body of {size} bytes; the format's limit is {BODY_BYTES_MAX}"
        )
    parts: list[_Part] = []
    for column, flags, length, _ in written:
        parts.append(PLAIN_TABLE_ENTRY.pack(column, flags, 0, length))
    for _, _, _, lists in written:
        for buffers in lists:  # A copy of a list visits each cell: only here.
            parts += buffers
    try:
        body = b"".join(parts)
    except TypeError as error:
        raise InvalidRecordError(f"keys and values must be bytes: {error}") from error
    if len(body) != size:  # A buffer whose items are wider than a byte told another length.
        raise InvalidRecordError("keys and values must be bytes, not arrays of wider items")
    return body


def _numbers(name: str, numbers: np.ndarray, count: int) -> np.ndarray:
    if numbers.shape != (count,) or numbers.dtype.kind not in "iu":
        raise InvalidRecordError(
            f"{name}: {numbers.dtype} of shape {numbers.shape}, where integers for "
            f"{words.count(count, 'record')} are needed"
        )
    return numbers


def _times(columns: Columns) -> tuple[WallMs, WallMs, np.ndarray | None]:
    """Return the first time, the largest, and all of them unless they are the same."""
    given = columns.timestamps
    if isinstance(given, np.ndarray):
        times = _numbers("timestamps", given, columns.record_count)
        base, low, top = int(times[0]), int(times.min()), int(times.max())
    else:
        times, base, low, top = None, given, given, given
    if low < 0 or top > TIMESTAMP_MAX:
        raise InvalidTimestampError(
            f"timestamps from {low} to {top}: they are milliseconds since 1970 and at most "
            f"{TIMESTAMP_MAX}, the end of the year 9999"
        )
    return WallMs(base), WallMs(top), None if low == top else times


def _padded(*buffers: _Part) -> tuple[list[_Part], int]:
    parts: list[_Part] = []
    length = 0
    for buffer in buffers:
        size = buffer.size if isinstance(buffer, pa.Buffer) else len(buffer)
        parts += (buffer, _PADS[size % 8])
        length += size + len(_PADS[size % 8])
    return parts, length


def _binary(
    name: str, cells: BinaryColumn, count: int
) -> tuple[int, Sequence[Sequence[_Part]], int]:
    """Return flags, lists of buffers and length; or a length of `_ALL_NULL` or `_ALL_EMPTY`."""
    if len(cells) != count:
        raise InvalidRecordError(
            f"{name}: {words.count(len(cells), 'cell')} for {words.count(count, 'record')}"
        )
    if type(cells) is list and count <= FEW_MAX:
        return _binary_of_few(name, cells)
    if isinstance(cells, pa.ChunkedArray):
        cells = _one_array(name, cells)
    elif not isinstance(cells, pa.Array | ByteCells):
        cells = _column(name, cells)
    if isinstance(cells, ByteCells):
        return _binary_from_bytes(cells)
    array: pa.Array = cells
    if array.null_count == count:
        return 0, [], _ALL_NULL
    flags, buffers, data_length = _array_buffers(name, array)
    if not data_length and not flags:
        return 0, [], _ALL_EMPTY
    parts, length = _padded(*buffers)
    return flags, [parts], length


def _one_array(name: str, cells: pa.ChunkedArray) -> pa.Array:
    try:
        array = cells.combine_chunks()
    except pa.ArrowException as error:
        raise InvalidRecordError(f"{name}: {error}") from error
    if not isinstance(array, pa.Array):
        raise MessageTooLargeError(f"{name}: a batch's column is limited to {BODY_BYTES_MAX} bytes")
    return array


def _column(name: str, cells: Sequence[bytes | None]) -> ByteCells | pa.Array:
    try:
        return cells_of(cells)
    except TypeError as error:
        raise InvalidRecordError(f"{name}: {error}") from error
    except OverflowError as error:
        raise MessageTooLargeError(f"{name}: {error}") from error


def _binary_from_bytes(column: ByteCells) -> tuple[int, Sequence[Sequence[_Part]], int]:
    """Lay out bytes without nulls: one join, no intermediate array."""
    data_length = int(column.lengths.sum())
    if not data_length:
        return 0, [], _ALL_EMPTY
    if data_length > BODY_BYTES_MAX:
        raise MessageTooLargeError(f"a batch's column is limited to {BODY_BYTES_MAX} bytes")
    offsets, length = _padded(column.offsets().tobytes())
    pad = _PADS[data_length % 8]
    return 0, [offsets, *column.lists, [pad]], length + data_length + len(pad)


def _binary_of_few(
    name: str, cells: list[bytes | None]
) -> tuple[int, Sequence[Sequence[_Part]], int]:
    """Lay out a handful of cells without numpy: see `FEW_MAX`."""
    nulls = cells.count(None)
    if nulls == len(cells):
        return 0, [], _ALL_NULL
    found = [b"" if cell is None else cell for cell in cells] if nulls else cells
    try:
        ends = list(accumulate(map(len, found), initial=0))  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidRecordError(f"{name}: {error}") from error
    data_length = ends[-1]
    if not data_length and not nulls:
        return 0, [], _ALL_EMPTY
    if data_length > BODY_BYTES_MAX:
        raise MessageTooLargeError(f"a batch's column is limited to {BODY_BYTES_MAX} bytes")
    flags, bitmap = 0, b""
    if nulls:
        flags = HAS_NULLS
        valid = sum(1 << row for row, cell in enumerate(cells) if cell is not None)
        bitmap = valid.to_bytes(FEW_MAX // 8, "little")[: (len(cells) + 7) // 8]
        bitmap += _PADS[len(bitmap) % 8]
    offsets = array("i", ends).tobytes()
    offsets += _PADS[len(offsets) % 8]
    pad = _PADS[data_length % 8]
    length = len(bitmap) + len(offsets) + data_length + len(pad)
    return flags, [[bitmap, offsets], found, [pad]], length


def _array_buffers(name: str, cells: pa.Array) -> tuple[int, list[_Part], int]:
    """Return flags, [validity,] offsets and data of an array, moved to offset 0, and data bytes."""
    if cells.type not in (pa.binary(), pa.string()):
        cells = _cast(name, cells, pa.binary())
    valid = None
    if cells.null_count:
        valid = validity_of(cells)
    offsets = _offsets(cells)
    if valid is not None and (np.diff(offsets)[~valid]).any():
        cells = cells.take(int64s_of(np.arange(len(cells))))  # Leaves no bytes under nulls.
        offsets = _offsets(cells)
    first, last = int(offsets[0]), int(offsets[-1])
    data = cells.buffers()[2]
    buffers: list[_Part] = [
        (offsets - np.int32(first) if first else offsets).tobytes(),
        b"" if data is None else data.slice(first, last - first),
    ]
    if valid is None:
        return 0, buffers, last - first
    bitmap = np.packbits(valid, bitorder="little").tobytes()
    return HAS_NULLS, [bitmap, *buffers], last - first


def _offsets(cells: pa.Array) -> np.ndarray:
    return np.frombuffer(cells.buffers()[1], "<i4")[cells.offset : cells.offset + len(cells) + 1]


def _cast(name: str, array: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return array.cast(kind)
    except (pa.ArrowException, ValueError) as error:
        raise InvalidRecordError(f"{name}: an array of {array.type} is not {kind}") from error


def _headers(
    headers: Sequence[RecordHeaders] | pa.Array | pa.ChunkedArray, count: int
) -> tuple[int, list[_Part], int]:
    if len(headers) != count:
        raise InvalidRecordError(f"headers: lists for {len(headers)} records of {count}")
    if isinstance(headers, pa.Array | pa.ChunkedArray):
        counts, names, values = _header_arrays(headers)
    else:
        try:
            counts = np.fromiter(map(len, headers), np.int32, count)
            flat = list(chain.from_iterable(headers))
            names = array_of([name.encode() for name, _ in flat])
            values = array_of([value for _, value in flat])
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidRecordError(
                f"a record's headers are a list of pairs of name and value: {error}"
            ) from error
        except OverflowError as error:
            raise MessageTooLargeError(f"headers: {error}") from error
    if not len(names):
        return 0, [], 0
    if names.null_count:
        raise InvalidRecordError("a header's name may not be null")
    offsets = np.zeros(count + 1, "<i4")
    np.cumsum(counts, out=offsets[1:])
    _, name_buffers, _ = _array_buffers("header names", names)
    flags, value_buffers, _ = _array_buffers("header values", values)
    buffers, length = _padded(offsets.tobytes(), *name_buffers, *value_buffers)
    return (HEADER_VALUES_HAVE_NULLS if flags else 0), buffers, length


def _header_arrays(headers: pa.Array | pa.ChunkedArray) -> tuple[np.ndarray, pa.Array, pa.Array]:
    """Return headers per record, all names and all values; a null list is an empty one."""
    if isinstance(headers, pa.ChunkedArray):
        headers = _one_array("headers", headers)
    array = headers if headers.type == HEADERS_TYPE else _cast("headers", headers, HEADERS_TYPE)
    counts = np.diff(numbers_of(array.offsets))
    if array.null_count:
        counts = np.where(validity_of(array), counts, 0)
    entries = array.flatten()
    if entries.null_count:
        raise InvalidRecordError("a header may not be null, only its value")
    return counts, entries.field("key"), entries.field("value")
