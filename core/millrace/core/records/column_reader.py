"""Opens the body of a batch from an untrusted sender.

Lengths, offsets and bitmaps are checked before Arrow sees them, because there an offset that points
outside is undefined behaviour and not an exception. A leader also checks that the body has the one
form that `columns` describes; a reader does not need that.

For a few records numpy and Arrow cost several times what plain Python does, as their code and data
are not in the CPU's caches then. So a leader takes the usual small body with `is_plain`, and only
asks `read` where that does not suffice.
"""

import struct
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
import pyarrow as pa

from millrace.core.errors import InvalidRecordError
from millrace.core.records.cells import FEW_MAX
from millrace.core.records.columns import (
    COLUMN_BITS,
    COLUMN_NAMES,
    FLAGS_ALLOWED,
    HAS_NULLS,
    HEADER_VALUES_HAVE_NULLS,
    HEADERS_TYPE,
    PLAIN_TABLE_ENTRY,
    TABLE_ENTRY,
)
from millrace.core.records.header import Attributes, BatchHeader, Buffer


@dataclass(slots=True)
class Body:
    """Arrow arrays over an inflated body; they keep it alive and copy nothing.

    An omitted column is None (see `Columns`).
    """

    offset_deltas: pa.Array | None
    timestamps: pa.Array | None
    keys: pa.Array | None
    values: pa.Array | None
    headers: pa.Array | None


def read(body: Buffer, header: BatchHeader, *, canonical: bool = False) -> Body:
    """Open an inflated body.

    Args:
        body: exactly the inflated body.
        header: the batch's header, which says what columns are there.
        canonical: also refuse a safe layout that is not the one form of these records.

    Raises:
        InvalidRecordError: the layout points outside of the body or contradicts the header.
    """
    attributes = header.attributes
    expected = [column for column, bit in enumerate(COLUMN_BITS) if attributes & bit]
    for there, empty in (
        (Attributes.KEYS, Attributes.KEYS_EMPTY),
        (Attributes.VALUES, Attributes.VALUES_EMPTY),
    ):
        if attributes & there and attributes & empty:
            raise InvalidRecordError("the attributes say that a column is there, and left out")
    if header.record_count == 0 and attributes & Attributes.COLUMNS:
        raise InvalidRecordError("a batch without records has columns")
    table_bytes = TABLE_ENTRY.itemsize * len(expected)
    if table_bytes > len(body):
        raise InvalidRecordError(f"{len(expected)} columns cannot be in {len(body)} bytes")
    table = np.frombuffer(body, TABLE_ENTRY, len(expected)).tolist()
    cursor = _Cursor(body, table_bytes, canonical=canonical)
    columns: list[pa.Array | None] = [None] * len(COLUMN_BITS)
    for number, (column, flags, reserved, length) in zip(expected, table, strict=True):
        cursor.enter(COLUMN_NAMES[number], length)
        if column != number or reserved or flags & ~FLAGS_ALLOWED[number]:
            raise cursor.refusal(f"the table's entry {(column, flags, reserved)} is not of it")
        columns[number] = _READERS[number](cursor, header, flags)
    cursor.finish()
    return Body(*columns)


_PLAIN_COLUMNS: Final = {
    sum(COLUMN_BITS[number] for number in columns): columns
    for size in range(4)
    for columns in combinations((1, 2, 3), size)
}
"""Numbers of the columns, by their bits: times, keys and values."""
_TIMES_COLUMN: Final = COLUMN_BITS.index(Attributes.TIMESTAMPS)
_LAYOUT: Final = Attributes.COLUMNS | Attributes.KEYS_EMPTY | Attributes.VALUES_EMPTY
_ENTRY: Final = PLAIN_TABLE_ENTRY.unpack_from
_ENTRY_BYTES: Final = PLAIN_TABLE_ENTRY.size
_TIMES: Final = [struct.Struct(f"<{count}q").unpack_from for count in range(FEW_MAX + 1)]
_OFFSETS: Final = [struct.Struct(f"<{count + 1}i").unpack_from for count in range(FEW_MAX + 1)]


def is_plain(body: Buffer, header: BatchHeader) -> bool:
    """Return whether a body surely is one that `read` takes as canonical, and has no null cell.

    False: it has many records, or a column or flag that is not usual, or it is not right: `read`
    finds out.
    """
    count, size = header.record_count, len(body)
    columns = _PLAIN_COLUMNS.get(header.attributes & _LAYOUT)
    if columns is None or not 0 < count <= FEW_MAX:
        return False
    end = _ENTRY_BYTES * len(columns)
    if size < end:
        return False
    for place, number in enumerate(columns):
        column, flags, reserved, length = _ENTRY(body, _ENTRY_BYTES * place)
        at, end = end, end + length
        if column != number or flags or reserved or end > size:
            return False
        if number == _TIMES_COLUMN:
            if length != 8 * count:
                return False
            times = _TIMES[count](body, at)
            top = max(times)
            if (
                times[0] != header.base_timestamp
                or top != header.max_timestamp
                or not 0 <= min(times) < top
            ):
                return False
            continue
        offsets_end = at + 4 * (count + 1)
        data_at = offsets_end + -offsets_end % 8
        if data_at > end:
            return False
        offsets = _OFFSETS[count](body, at)
        data_end = data_at + offsets[-1]
        if (
            offsets[0]
            or offsets[-1] <= 0
            or (count > 1 and sorted(offsets) != list(offsets))
            or data_end + -data_end % 8 != end
            or any(body[offsets_end:data_at])
            or any(body[data_end:end])
        ):
            return False
    return end == size


class _Cursor:
    """Takes buffers off a column's bytes, never past their end."""

    __slots__ = ("at", "buffer", "canonical", "column", "end", "view")

    def __init__(self, body: Buffer, at: int, *, canonical: bool) -> None:
        self.view, self.buffer, self.canonical = memoryview(body), pa.py_buffer(body), canonical
        self.at = self.end = at
        self.column = ""

    def enter(self, column: str, length: int) -> None:
        """Begin a column of `length` bytes where the one before must have ended."""
        if self.at != self.end:
            raise self.refusal(f"{self.end - self.at} bytes are left over")
        self.column = column
        if length % 8 or length > len(self.view) - self.end:
            raise self.refusal(
                f"{length} bytes are declared where {len(self.view) - self.end} are left, or no "
                "multiple of 8"
            )
        self.end += length

    def finish(self) -> None:
        """End the last column, and the body with it."""
        if self.at != len(self.view):
            raise InvalidRecordError(
                f"{len(self.view) - self.at} bytes follow what the columns need"
            )

    def refusal(self, why: str) -> InvalidRecordError:
        return InvalidRecordError(f"column {self.column}: {why}")

    def take(self, size: int) -> pa.Buffer:
        if size > self.end - self.at:
            raise self.refusal(
                f"a buffer of {size} bytes is declared where {self.end - self.at} are left"
            )
        taken = self.buffer.slice(self.at, size)
        after = self.at + size
        padded = after + -size % 8
        if self.canonical and padded != after and any(self.view[after:padded]):
            raise self.refusal("its padding is not zero")
        self.at = padded
        return taken

    def numbers(self, kind: pa.DataType, count: int) -> tuple[pa.Array, np.ndarray]:
        """Take a column of fixed width; return it for Arrow and for numpy."""
        width = kind.bit_width // 8
        taken = self.take(width * count)
        array = pa.Array.from_buffers(kind, count, [None, taken], 0)
        return array, np.frombuffer(taken, f"<i{width}")

    def offsets(self, count: int) -> tuple[pa.Buffer, np.ndarray]:
        """Take int32 offsets that rise from 0; return them for Arrow and for numpy."""
        taken = self.take(4 * (count + 1))
        offsets = np.frombuffer(taken, "<i4")
        # Not `any()`: for the few records of a small batch that costs several times as much.
        if offsets[0] != 0 or np.count_nonzero(offsets[1:] < offsets[:-1]):
            raise self.refusal("its offsets do not ascend from 0")
        return taken, offsets

    def binary(
        self, kind: pa.DataType, count: int, has_nulls: bool, may_say_nothing: bool
    ) -> pa.Array:
        validity = self.take((count + 7) // 8) if has_nulls else None
        taken, offsets = self.offsets(count)
        data = self.take(int(offsets[-1]))
        if self.canonical:
            if validity is not None:
                self._check_nulls(np.frombuffer(validity, np.uint8), offsets, may_say_nothing)
            elif not (data.size or may_say_nothing):
                raise self.refusal("all cells are empty, so the column must be left out")
        return pa.Array.from_buffers(kind, count, [validity, taken, data], -1 if has_nulls else 0)

    def _check_nulls(self, bitmap: np.ndarray, offsets: np.ndarray, may_be_null: bool) -> None:
        count = len(offsets) - 1
        cells = np.unpackbits(bitmap, bitorder="little")
        valid, after = cells[:count], cells[count:]
        if after.any():
            raise self.refusal("bits are set after the last cell's")
        if valid.all():
            raise self.refusal("no cell is null, so the bitmap must be left out")
        if not (may_be_null or valid.any()):
            raise self.refusal("all cells are null, so the column must be left out")
        if (np.diff(offsets)[valid == 0]).any():
            raise self.refusal("bytes are hidden under a null cell")


def _read_offset_deltas(cursor: _Cursor, header: BatchHeader, flags: int) -> pa.Array:
    array, deltas = cursor.numbers(pa.int32(), header.record_count)
    first, last = int(deltas[0]), int(deltas[-1])
    if first < 0 or last > header.last_offset_delta or bool((deltas[1:] <= deltas[:-1]).any()):
        raise cursor.refusal(f"its numbers do not ascend between 0 and {header.last_offset_delta}")
    if cursor.canonical and last == header.record_count - 1:
        raise cursor.refusal("the offsets are dense, so the column must be left out")
    return array


def _read_timestamps(cursor: _Cursor, header: BatchHeader, flags: int) -> pa.Array:
    array, times = cursor.numbers(pa.int64(), header.record_count)
    low, top = int(times.min()), int(times.max())
    if low < 0 or top != header.max_timestamp or int(times[0]) != header.base_timestamp:
        raise cursor.refusal(
            f"it begins with {times[0]} and lies between {low} and {top}, but the header says "
            f"that it begins with {header.base_timestamp} and rises to {header.max_timestamp}"
        )
    if cursor.canonical and low == top:
        raise cursor.refusal("all times are the same, so the column must be left out")
    return array


def _read_binary(cursor: _Cursor, header: BatchHeader, flags: int) -> pa.Array:
    return cursor.binary(
        pa.binary(), header.record_count, bool(flags & HAS_NULLS), may_say_nothing=False
    )


def _read_headers(cursor: _Cursor, header: BatchHeader, flags: int) -> pa.Array:
    count = header.record_count
    taken, offsets = cursor.offsets(count)
    entries = int(offsets[-1])
    if cursor.canonical and not entries:
        raise cursor.refusal("no record has any, so the column must be left out")
    names = cursor.binary(pa.string(), entries, has_nulls=False, may_say_nothing=True)
    try:
        names.validate(full=True)
    except pa.ArrowInvalid as error:
        raise cursor.refusal(f"a header's name is not UTF-8: {error}") from error
    values_have_nulls = bool(flags & HEADER_VALUES_HAVE_NULLS)
    values = cursor.binary(pa.binary(), entries, values_have_nulls, may_say_nothing=True)
    structs = pa.Array.from_buffers(
        HEADERS_TYPE.value_type, entries, [None], 0, children=[names, values]
    )
    return pa.Array.from_buffers(HEADERS_TYPE, count, [None, taken], 0, children=[structs])


_READERS: Final = (
    _read_offset_deltas,
    _read_timestamps,
    _read_binary,
    _read_binary,
    _read_headers,
)
