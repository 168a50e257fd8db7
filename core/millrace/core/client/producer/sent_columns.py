"""Records as users send them: columns without partitions, and the memory that they take."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.records.arrow_views import int64s_of
from millrace.core.records.cells import ByteCells
from millrace.core.records.columns import HEADERS_TYPE, RecordHeaders

Cells: TypeAlias = pa.Array | ByteCells
"""Keys or values."""
SentCells: TypeAlias = Cells | list[bytes | None]
"""The same, of few records also as they were given one by one: see `FEW_MAX`."""

RECORD_OVERHEAD: Final = 8
"""Bytes that a record takes in a batch beside its key and value: two int32 offsets."""
_HEADER_OVERHEAD: Final = 8
"""Bytes that each header takes beside its name and value: two offsets."""
_HEADERS_OVERHEAD: Final = 4
"""Bytes that each record takes once one of them has headers."""
TIMESTAMP_BYTES: Final = 8


def headers_size(headers: RecordHeaders) -> int:
    """Return the bytes that a record's headers take in a batch, about."""
    return sum(
        (len(name) if name.isascii() else len(name.encode()))
        + (0 if value is None else len(value))
        + _HEADER_OVERHEAD
        for name, value in headers
    )


@dataclass(slots=True)
class SentColumns:
    """Records sent together. Columns of equal length; None: all null, none, unset."""

    values: SentCells | None
    keys: SentCells | None
    headers: pa.Array | Sequence[RecordHeaders] | None
    timestamps: Any
    partitions: Any
    record_count: int
    known_sizes: Any = None
    """Cached result of `sizes()`, which is needed wherever records are cut."""

    def slice(self, start: int, count: int) -> "SentColumns":
        """Return some of the records; nothing is copied out of arrays."""
        end = start + count
        return SentColumns(
            None if self.values is None else self.values[start:end],
            None if self.keys is None else self.keys[start:end],
            None if self.headers is None else self.headers[start:end],
            None if self.timestamps is None else self.timestamps[start:end],
            None if self.partitions is None else self.partitions[start:end],
            count,
            None if self.known_sizes is None else self.known_sizes[start:end],
        )

    def sizes(self) -> Any:
        """Return the bytes that each record takes of `buffer_memory`, int64."""
        if self.known_sizes is not None:
            return self.known_sizes
        sizes = np.full(self.record_count, RECORD_OVERHEAD, np.int64)
        for column in (self.values, self.keys):
            if column is not None:
                sizes += cell_lengths(column)
        if self.headers is not None:
            sizes += _HEADERS_OVERHEAD
            if isinstance(self.headers, pa.Array):
                sizes += _header_array_sizes(self.headers)
            else:
                sizes += np.fromiter(map(headers_size, self.headers), np.int64, self.record_count)
        if self.timestamps is not None:
            sizes += TIMESTAMP_BYTES
        self.known_sizes = sizes
        return sizes


def with_headers(
    headers: pa.Array | Sequence[RecordHeaders] | None, record_count: int, added: RecordHeaders
) -> Any:
    """Return the headers of records, with these headers added to each.

    A record that has the first of them already is left as it is.

    Args:
        headers: of each record; None: none has headers.
        record_count: how many records there are.
        added: to each record; empty: nothing changes.
    """
    if not added:
        return headers
    if headers is None:
        return pa.array([added], HEADERS_TYPE).take(pa.array(np.zeros(record_count, np.int64)))
    name = added[0][0]
    if not isinstance(headers, pa.Array):
        return [
            own if any(known == name for known, _ in own) else (*own, *added) for own in headers
        ]
    if headers.null_count:  # Null rows may have entries after theirs.
        headers = headers.take(pa.array(np.arange(record_count)))
    assert isinstance(headers, pa.Array)
    ends = headers.offsets.to_numpy().astype(np.int64)
    first, last = int(ends[0]), int(ends[-1])
    entries = headers.values.slice(first, last - first)
    named = np.zeros(len(entries) + 1, np.int64)  # Entries of the name before each.
    np.cumsum(pc.equal(entries.field("key"), name).to_numpy(zero_copy_only=False), out=named[1:])
    starts, ends = ends[:-1] - first, ends[1:] - first
    counts = np.where(named[ends] > named[starts], 0, len(added))
    before = np.cumsum(counts) - counts  # Added entries before each record.
    moved = np.arange(len(entries)) + np.repeat(before, ends - starts)
    order = np.empty(len(entries) + int(counts.sum()), np.int64)
    order[moved] = np.arange(len(entries))
    at = (ends + before)[counts > 0]
    for number in range(len(added)):
        order[at + number] = len(entries) + number
    joined = pa.concat_arrays([entries, pa.array([added], HEADERS_TYPE).values])
    offsets = np.concatenate([[0], ends + before + counts]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), joined.take(pa.array(order)), type=HEADERS_TYPE
    )


def _header_array_sizes(headers: pa.Array) -> Any:
    """Return the `headers_size` of each record, for a whole column at once."""
    ends = headers.offsets.to_numpy()
    names, values = headers.values.field(0), headers.values.field(1)
    up_to = np.zeros(len(names) + 1, np.int64)  # Bytes of all headers before each.
    for cells in (names, values):
        up_to[1:] += pc.fill_null(pc.binary_length(cells), 0).to_numpy()
    up_to[1:] += _HEADER_OVERHEAD
    np.cumsum(up_to, out=up_to)
    return up_to[ends[1:]] - up_to[ends[:-1]]


def taken(cells: SentCells | None, rows: Any) -> SentCells | None:
    """Return the cells of some rows, in the order of the rows."""
    if isinstance(cells, list):
        return [cells[row] for row in rows]
    if isinstance(cells, pa.Array):
        return cells.take(int64s_of(rows))
    return None if cells is None else cells.take(rows)


def cell_lengths(column: SentCells) -> Any:
    """Return the bytes of every cell of a column; an array's type is binary or string."""
    if isinstance(column, list):
        return np.array([0 if cell is None else len(cell) for cell in column], np.int64)
    if isinstance(column, ByteCells):
        return column.lengths
    offsets = np.frombuffer(column.buffers()[1], "<i4", len(column) + 1, 4 * column.offset)
    return np.diff(offsets)
