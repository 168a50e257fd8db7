"""The records of a small plain batch as Python objects.

For a few records numpy and Arrow cost several times what the records themselves cost. What is not
plain goes through Arrow (`column_reader`). Both read the same records.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from millrace.core.records.column_reader import is_plain
from millrace.core.records.columns import TABLE_ENTRY
from millrace.core.records.header import Attributes, BatchHeader, Buffer

FEW_BYTES: Final = 64 << 10
"""Bytes of an inflated body up to which this way is taken: it copies each cell twice."""


@dataclass(slots=True)
class FewRecords:
    """Records as columns of Python objects; None: all cells of the column are null."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    keys: list[bytes | None] | None
    values: list[bytes | None] | None

    def __len__(self) -> int:
        return len(self.offsets)


def read(body: Buffer, header: BatchHeader) -> FewRecords | None:
    """Return the records of an inflated body; None: it is not small and plain."""
    if len(body) > FEW_BYTES or not is_plain(body, header):
        return None
    count, attributes = header.record_count, header.attributes
    at = TABLE_ENTRY.itemsize * (attributes & Attributes.COLUMNS).bit_count()
    times: Sequence[int] = (header.base_timestamp,) * count
    if attributes & Attributes.TIMESTAMPS:
        times = struct.unpack_from(f"<{count}q", body, at)
        at += 8 * count
    if header.has_append_time:
        times = (header.append_timestamp,) * count
    keys: list[bytes | None] | None = None
    if attributes & Attributes.KEYS:
        keys, at = _cells(body, at, count)
    values: list[bytes | None] | None = None
    if attributes & Attributes.VALUES:
        values, at = _cells(body, at, count)
    first = header.base_offset
    return FewRecords(range(first, first + count), times, keys, values)


def _cells(body: Buffer, at: int, count: int) -> tuple[list[bytes | None], int]:
    """Return the cells of a column, and where the next one begins."""
    ends = struct.unpack_from(f"<{count + 1}i", body, at)
    begin = at + 4 * (count + 1)
    begin += -begin % 8
    end = begin + ends[-1]
    data = bytes(body[begin:end])
    return [data[a:b] for a, b in pairwise(ends)], end + -end % 8
