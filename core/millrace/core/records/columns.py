"""The body of a batch: Arrow's buffers of the columns that are there, one after another.

A column table of 8 bytes for each column that is there, in the order of `COLUMNS`:

| offset | size | meaning                                                          |
|-------:|-----:|------------------------------------------------------------------|
|      0 |    1 | number of the column                                             |
|      1 |    1 | bit 0: a validity bitmap comes first                             |
|      2 |    2 | 0                                                                |
|      4 |    4 | bytes of the column's buffers, a multiple of 8                   |

Then the buffers, little-endian, each padded with zeros to 8 bytes, for `n` records:

- offset_delta: int32[n], ascending from 0 or more to last_offset_delta
- timestamp: int64[n], ms UTC
- key, value: [validity: bit[n]], offsets: int32[n + 1] from 0, data
- headers: offsets: int32[n + 1] from 0 to m, then names: int32[m + 1] and UTF-8 data, then header
  values like a value column of m entries, whose validity bitmap is governed by bit 1 of the table

A column that says nothing is left out: offsets that are dense, one timestamp for all, keys or
values that are all null or all empty (an attribute says which), no headers at all.

`read` trusts nothing: lengths, offsets and bitmaps are checked before Arrow sees them, because an
offset that points outside is undefined behaviour there and not an exception.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.core.errors import InvalidRecordError
from millrace.core.ids import WallMs
from millrace.core.records.header import Attributes, Buffer

HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""Schema of the Arrow record batches that readers get."""

_HAS_NULLS: Final = 1
_HEADER_VALUES_HAVE_NULLS: Final = 2
_ENTRY: Final = np.dtype([("column", "u1"), ("flags", "u1"), ("zero", "<u2"), ("length", "<u4")])
_COLUMN_BITS: Final = (
    Attributes.OFFSET_DELTAS,
    Attributes.TIMESTAMPS,
    Attributes.KEYS,
    Attributes.VALUES,
    Attributes.HEADERS,
)
_PADS: Final = tuple(b"\0" * (-n % 8) for n in range(8))

BinaryColumn = Sequence[bytes | None] | pa.Array
"""Keys or values: Python bytes, or an Arrow array of binary or string type."""
RecordHeaders = Sequence[tuple[str, bytes | None]]
"""Headers of one record: name and value, in order; names may repeat."""


@dataclass(slots=True)
class Columns:
    """Records to be sealed, as columns of equal length.

    `keys`, `values` and `headers` may be None: all null, all null, none. `timestamps` is one time
    for all records, or an int64 array. `offset_deltas` is None unless the offsets have gaps.
    """

    record_count: int
    timestamps: WallMs | np.ndarray[tuple[int], np.dtype[np.int64]]
    values: BinaryColumn | None = None
    keys: BinaryColumn | None = None
    headers: Sequence[RecordHeaders] | pa.Array | None = None
    offset_deltas: np.ndarray[tuple[int], np.dtype[np.int32]] | None = None


def write(columns: Columns) -> tuple[int, bytes]:
    """Return the column bits of the batch's attributes, and the body before compression."""
    attributes = 0
    table: list[tuple[int, int, int, int]] = []
    parts: list[Buffer | pa.Buffer] = []

    def add(column: int, flags: int, buffers: list[Buffer | pa.Buffer], length: int) -> None:
        nonlocal attributes
        attributes |= _COLUMN_BITS[column]
        table.append((column, flags, 0, length))
        parts.extend(buffers)

    if columns.offset_deltas is not None:
        add(0, 0, *_padded(columns.offset_deltas.astype("<i4", copy=False).tobytes()))
    if isinstance(columns.timestamps, np.ndarray):
        add(1, 0, *_padded(columns.timestamps.astype("<i8", copy=False).tobytes()))
    for column, cells, empty in (
        (2, columns.keys, Attributes.KEYS_EMPTY),
        (3, columns.values, Attributes.VALUES_EMPTY),
    ):
        flags, buffers, length = _binary(cells)
        if length > 0:
            add(column, flags, buffers, length)
        elif length == 0:
            attributes |= empty
    if columns.headers is not None:
        flags, buffers, length = _headers(columns.headers)
        if length:
            add(4, flags, buffers, length)
    return attributes, b"".join([np.array(table, _ENTRY).tobytes(), *parts])


def _padded(*buffers: Buffer | pa.Buffer) -> tuple[list[Buffer | pa.Buffer], int]:
    parts: list[Buffer | pa.Buffer] = []
    length = 0
    for buffer in buffers:
        size = buffer.size if isinstance(buffer, pa.Buffer) else len(buffer)
        parts += (buffer, _PADS[size % 8])
        length += size + len(_PADS[size % 8])
    return parts, length


_ALL_NULL: Final = -1
_ALL_EMPTY: Final = 0


def _binary(cells: BinaryColumn | None) -> tuple[int, list[Buffer | pa.Buffer], int]:
    """Return flags, buffers and length; or a length of `_ALL_NULL` or `_ALL_EMPTY`."""
    if cells is None:
        return 0, [], _ALL_NULL
    if not isinstance(cells, pa.Array):
        try:
            return _binary_from_bytes(cells)
        except TypeError:  # A None among them: Arrow builds the bitmap.
            cells = pa.array(cells, pa.binary())
    if cells.null_count == len(cells):
        return 0, [], _ALL_NULL
    flags, buffers, data_length = _array_buffers(cells)
    if not data_length and not flags:
        return 0, [], _ALL_EMPTY
    return flags, *_padded(*buffers)


def _binary_from_bytes(cells: Sequence[bytes | None]) -> tuple[int, list[Buffer | pa.Buffer], int]:
    """Lay out bytes without nulls: one join, no intermediate array.

    Raises:
        TypeError: a cell is None.
    """
    count = len(cells)
    offsets = np.zeros(count + 1, "<i4")
    np.cumsum(np.fromiter(map(len, cells), np.int64, count), out=offsets[1:])  # type: ignore[arg-type]
    data_length = int(offsets[-1])
    if data_length < 0 or (count and int(offsets.min()) < 0):
        raise InvalidRecordError("a column of a batch is limited to 2^31 - 1 bytes")
    if not data_length:
        return 0, [], _ALL_EMPTY
    buffers, length = _padded(offsets.tobytes())
    buffers += cells  # type: ignore[arg-type]
    pad = _PADS[data_length % 8]
    buffers.append(pad)
    return 0, buffers, length + data_length + len(pad)


def _array_buffers(cells: pa.Array) -> tuple[int, list[Buffer | pa.Buffer], int]:
    """Return flags, [validity,] offsets and data of an array, moved to offset 0, and data bytes."""
    if cells.type not in (pa.binary(), pa.string()):
        cells = cells.cast(pa.binary())
    count = len(cells)
    validity, offsets_buffer, data = cells.buffers()
    offsets = np.frombuffer(offsets_buffer, "<i4")[cells.offset : cells.offset + count + 1]
    first, last = int(offsets[0]), int(offsets[-1])
    if first:
        offsets = offsets - np.int32(first)
    buffers: list[Buffer | pa.Buffer] = []
    if cells.null_count:
        bits = cells.is_valid()  # A fresh array: its values begin at bit 0.
        buffers.append(_bitmap(bits, count))
    buffers.append(offsets.tobytes())
    buffers.append(b"" if data is None else data.slice(first, last - first))
    return (_HAS_NULLS if cells.null_count else 0), buffers, last - first


def _bitmap(bits: pa.BooleanArray, count: int) -> bytes:
    """Return the values of a boolean array as bits, with zeros behind the last."""
    return np.packbits(bits.to_numpy(zero_copy_only=False), bitorder="little").tobytes()


def _headers(
    headers: Sequence[RecordHeaders] | pa.Array,
) -> tuple[int, list[Buffer | pa.Buffer], int]:
    if isinstance(headers, pa.Array):
        array = headers if headers.type == HEADERS_TYPE else headers.cast(HEADERS_TYPE)
        if array.null_count:
            array = pa.array(array.to_pylist(), HEADERS_TYPE).fill_null([])
        counts = np.diff(array.offsets.to_numpy(zero_copy_only=False))
        entries = array.flatten()
        names, values = entries.field("key"), entries.field("value")
    else:
        counts = np.fromiter(map(len, headers), np.int32, len(headers))
        flat = list(chain.from_iterable(headers))
        names = pa.array([name for name, _ in flat], pa.string())
        values = pa.array([value for _, value in flat], pa.binary())
    if not len(names):
        return 0, [], 0
    if names.null_count:
        raise InvalidRecordError("a header's name may not be null")
    offsets = np.zeros(len(counts) + 1, "<i4")
    np.cumsum(counts, out=offsets[1:])
    _, name_buffers, _ = _array_buffers(names)
    flags, value_buffers, _ = _array_buffers(values)
    buffers, length = _padded(offsets.tobytes(), *name_buffers, *value_buffers)
    return (_HEADER_VALUES_HAVE_NULLS if flags else 0), buffers, length


@dataclass(slots=True)
class Body:
    """Arrow arrays over an inflated body; they keep it alive and copy nothing.

    A column that was left out is None (see `Columns`); `keys_empty` and `values_empty` tell whether
    that means empty or null.
    """

    offset_deltas: pa.Array | None
    timestamps: pa.Array | None
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None


class _Cursor:
    """Takes buffers off a column's bytes, never past their end."""

    def __init__(self, buffer: pa.Buffer, at: int, end: int, column: str) -> None:
        self.buffer, self.at, self.end, self.column = buffer, at, end, column

    def take(self, size: int) -> pa.Buffer:
        if size > self.end - self.at:
            raise InvalidRecordError(
                f"column {self.column}: a buffer of {size} bytes is declared where "
                f"{self.end - self.at} are left"
            )
        taken = self.buffer.slice(self.at, size)
        self.at += size + -size % 8
        return taken

    def offsets(self, count: int) -> tuple[pa.Buffer, int]:
        """Take int32 offsets that rise from 0; return them and the last."""
        taken = self.take(4 * (count + 1))
        offsets = np.frombuffer(taken, "<i4")
        if offsets[0] != 0 or (count and bool((offsets[1:] < offsets[:-1]).any())):
            raise InvalidRecordError(f"column {self.column}: its offsets do not ascend from 0")
        return taken, int(offsets[-1])

    def binary(self, kind: pa.DataType, count: int, has_nulls: bool) -> pa.Array:
        validity = self.take((count + 7) // 8) if has_nulls else None
        offsets, data_length = self.offsets(count)
        data = self.take(data_length)
        return pa.Array.from_buffers(
            kind, count, [validity, offsets, data], -1 if has_nulls else 0
        )

    def finish(self) -> None:
        if self.at != self.end:
            raise InvalidRecordError(
                f"column {self.column}: {self.end - self.at} bytes are left over"
            )


def read(
    body: Buffer, *, attributes: int, record_count: int, last_offset_delta: int, deep: bool = False
) -> Body:
    """Open an inflated body.

    Args:
        body: exactly the inflated body.
        attributes: the header's, which say what columns are there.
        record_count: the header's number of records.
        last_offset_delta: the header's, which the offset column must end with.
        deep: also verify what costs more than the layout: UTF-8 of header names.

    Raises:
        InvalidRecordError: the layout points outside of the body or contradicts the header.
    """
    expected = [i for i, bit in enumerate(_COLUMN_BITS) if attributes & bit]
    buffer = pa.py_buffer(body)
    at = _ENTRY.itemsize * len(expected)
    if at > len(body):
        raise InvalidRecordError(f"{len(expected)} columns cannot be in {len(body)} bytes")
    table = np.frombuffer(body, _ENTRY, len(expected)).tolist()
    columns: list[pa.Array | None] = [None] * len(_COLUMN_BITS)
    for number, (column, flags, zero, length) in zip(expected, table, strict=True):
        name = SCHEMA.names[number]
        allowed = (0, 0, _HAS_NULLS, _HAS_NULLS, _HEADER_VALUES_HAVE_NULLS)[number]
        if column != number or zero or flags & ~allowed or length % 8 or length > len(body) - at:
            raise InvalidRecordError(
                f"the column table's entry {(column, flags, zero, length)} does not describe the "
                f"{name} column in a body of {len(body)} bytes"
            )
        cursor = _Cursor(buffer, at, at + length, name)
        columns[number] = _READERS[number](cursor, record_count, flags)
        cursor.finish()
        at += length
    if at != len(body):
        raise InvalidRecordError(f"{len(body) - at} bytes follow the last column")
    opened = Body(*columns)
    _check_offset_deltas(opened.offset_deltas, record_count, last_offset_delta)
    if deep and opened.headers is not None:
        _check_utf8(opened.headers)
    return opened


def _check_offset_deltas(deltas: pa.Array | None, record_count: int, last_delta: int) -> None:
    if deltas is None:
        if last_delta != record_count - 1:
            raise InvalidRecordError(
                f"{record_count} records span {last_delta + 1} offsets, but no offsets are given"
            )
        return
    numbers = deltas.to_numpy()
    ascending = record_count < 2 or bool((numbers[1:] > numbers[:-1]).all())
    if numbers[0] < 0 or numbers[-1] > last_delta or not ascending:
        raise InvalidRecordError(f"the offsets do not ascend between 0 and {last_delta}")


def _check_utf8(headers: pa.Array) -> None:
    try:
        headers.flatten().field("key").validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"a header's name is not UTF-8: {error}") from error


def _read_offset_deltas(cursor: _Cursor, count: int, flags: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, cursor.take(4 * count)], 0)


def _read_timestamps(cursor: _Cursor, count: int, flags: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), count, [None, cursor.take(8 * count)], 0)


def _read_binary(cursor: _Cursor, count: int, flags: int) -> pa.Array:
    return cursor.binary(pa.binary(), count, bool(flags & _HAS_NULLS))


def _read_headers(cursor: _Cursor, count: int, flags: int) -> pa.Array:
    offsets, entries = cursor.offsets(count)
    names = cursor.binary(pa.string(), entries, has_nulls=False)
    values = cursor.binary(pa.binary(), entries, bool(flags & _HEADER_VALUES_HAVE_NULLS))
    structs = pa.Array.from_buffers(
        HEADERS_TYPE.value_type, entries, [None], 0, children=[names, values]
    )
    return pa.Array.from_buffers(HEADERS_TYPE, count, [None, offsets], 0, children=[structs])


_READERS: Final = (
    _read_offset_deltas,
    _read_timestamps,
    _read_binary,
    _read_binary,
    _read_headers,
)
