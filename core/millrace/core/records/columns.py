"""The body of a batch:

Arrow's buffers of the present columns, one after another. A column table of 8 bytes for each
present column, in the order of `COLUMN_NAMES`:

| offset | size | field    | meaning                                                         |
|-------:|-----:|----------|-----------------------------------------------------------------|
|      0 |    1 | column   | number of the column: 0 offset_delta, 1 timestamp, 2 key, ...   |
|      1 |    1 | flags    | bit 0: cells are null; bit 1: header values are null            |
|      2 |    2 | reserved | 0                                                               |
|      4 |    4 | length   | bytes of the column's buffers, a multiple of 8                  |

Then the buffers, little-endian, each padded with zeros to 8 bytes, for `n` records:

- offset_delta: int32[n], ascending from 0 or more to at most last_offset_delta
- timestamp: int64[n], ms UTC
- key, value: [validity: bit[n]], offsets: int32[n + 1] from 0, data
- headers: offsets: int32[n + 1] from 0 to m, then names: int32[m + 1] and UTF-8 data, then header
  values like a value column of m entries, whose validity bitmap is governed by bit 1 of the flags

A column without information is omitted: offsets that are dense from the base offset, one timestamp
for all, keys or values that are all null or all empty (an attribute says which), no headers at all.

So the same records have only one form, and nothing can hide in it: padding and the bits after the
last cell are zeros, a bitmap is present only when a cell is null, no bytes lie under a null cell.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from millrace.core.ids import WallMs
from millrace.core.records.cells import ByteCells
from millrace.core.records.header import Attributes

if sys.byteorder != "little":
    raise ImportError("Millrace reads record batches in place, which needs a little-endian machine")

RECORDS_MAX: Final = 100_000
"""Records in one batch: bounds what a reader allocates for omitted columns.

Readers expand offsets and timestamps, 16 bytes a record; so the smallest batch, 96 bytes, can make
a reader allocate 1.6 MB at the most.
"""

HEADERS_TYPE: Final = pa.list_(
    pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())])
)
SCHEMA: Final = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS_TYPE, nullable=False),
    ]
)
"""Schema of the Arrow record batches that readers get."""

COLUMN_NAMES: Final = ("offset_delta", "timestamp", "key", "value", "headers")
COLUMN_BITS: Final = (
    Attributes.OFFSET_DELTAS,
    Attributes.TIMESTAMPS,
    Attributes.KEYS,
    Attributes.VALUES,
    Attributes.HEADERS,
)
TABLE_ENTRY: Final = np.dtype(
    [("column", "u1"), ("flags", "u1"), ("reserved", "<u2"), ("length", "<u4")]
)
PLAIN_TABLE_ENTRY: Final = Struct("<BBHI")
"""The same, of one column, without numpy."""
HAS_NULLS: Final = 1
HEADER_VALUES_HAVE_NULLS: Final = 2
FLAGS_ALLOWED: Final = (0, 0, HAS_NULLS, HAS_NULLS, HEADER_VALUES_HAVE_NULLS)

BinaryColumn: TypeAlias = Sequence[bytes | None] | ByteCells | pa.Array | pa.ChunkedArray
"""Keys or values: Python bytes, or an Arrow array of any binary or string type."""
RecordHeaders = Sequence[tuple[str, bytes | None]]
"""Headers of one record: name and value, in order; names may repeat."""


@dataclass(slots=True)
class Columns:
    """Records to be sealed, as columns of equal length.

    `keys`, `values` and `headers` may be None: all null, all null, none. `timestamps` is one time
    for all records, or an integer array. `offset_deltas` is None unless the offsets have gaps.
    """

    record_count: int
    timestamps: WallMs | np.ndarray[tuple[int], np.dtype[np.int64]]
    values: BinaryColumn | None = None
    keys: BinaryColumn | None = None
    headers: Sequence[RecordHeaders] | pa.Array | pa.ChunkedArray | None = None
    offset_deltas: np.ndarray[tuple[int], np.dtype[np.int32]] | None = None
