"""Keys and values that are still Python's bytes, and the way from them to Arrow.

Bytes stay the objects that the user gave until the body of their batch is joined: one copy. Their
lengths are counted once, and say how much memory records take, where a batch is full, and where
each cell begins in the body. A column with nulls is an Arrow array instead.

`pa.array` is avoided: see `arrow_views`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import is_not
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Lengths: TypeAlias = npt.NDArray[np.int64]

FEW_MAX: Final = 64
"""Up to so many records, plain Python costs less than numpy: few come after a pause, when the code
and data of numpy's calls have left the processor's caches."""
_OFFSET_MAX: Final = 2**31 - 1
_SHORT_BYTES: Final = 200


@dataclass(slots=True, eq=False)
class ByteCells:
    """Bytes without nulls, and the length of each.

    They are in several lists, one after another: each copy of a list visits all of its cells.
    """

    lists: Sequence[Sequence[bytes]]
    lengths: Lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, rows: slice) -> "ByteCells":
        return ByteCells([self.cells()[rows]], self.lengths[rows])

    def cells(self) -> Sequence[bytes]:
        """Return all of them."""
        if len(self.lists) == 1:
            return self.lists[0]
        return list(chain.from_iterable(self.lists))

    def are_short(self) -> bool:
        """Return whether it costs less to copy them once more than to visit each once more."""
        return int(self.lengths.sum()) <= _SHORT_BYTES * len(self.lengths)

    def take(self, rows: npt.NDArray[np.int64]) -> "ByteCells":
        """Return some of the cells, in the order of `rows`."""
        # By an array of objects: half of the time that a list of lookups takes.
        objects = np.fromiter(self.cells(), object, len(self))
        return ByteCells([objects[rows].tolist()], self.lengths[rows])

    def as_array(self) -> pa.Array:
        """Return them as a binary array, which is a copy."""
        return _array(self.cells(), self.lengths)

    def offsets(self) -> npt.NDArray[np.int32]:
        """Return where each cell begins, and where the last one ends."""
        offsets = np.zeros(len(self.lengths) + 1, "<i4")
        np.cumsum(self.lengths, out=offsets[1:])
        return offsets


def joined(columns: Sequence[ByteCells]) -> ByteCells:
    """Return the cells of several columns as one column."""
    return ByteCells(
        [cells for column in columns for cells in column.lists],
        np.concatenate([column.lengths for column in columns]),
    )


def cells_of(cells: Sequence[bytes | None]) -> ByteCells | pa.Array:
    """Return a column: an array if there are nulls.

    Raises:
        TypeError: what is no bytes, if it is noticed: else the join of the cells raises it.
        OverflowError: nulls, and more bytes than an array can hold.
    """
    count = len(cells)
    try:
        lengths = np.fromiter(map(len, cells), np.int64, count)  # type: ignore[arg-type]
    except TypeError:  # A None among them.
        return array_of(cells)
    return ByteCells([cells], lengths)  # type: ignore[list-item]


def array_of(cells: Sequence[bytes | None]) -> pa.Array:
    """Return cells as a binary array.

    Raises:
        TypeError: what is no bytes.
        OverflowError: more bytes than an array can hold.
    """
    count = len(cells)
    try:
        return _array(cells, np.fromiter(map(len, cells), np.int64, count))  # type: ignore[arg-type]
    except TypeError:
        present = np.fromiter(map(partial(is_not, None), cells), np.bool_, count)
        if present.all():
            raise
    lengths = np.zeros(count, np.int64)
    found = [cell for cell in cells if cell is not None]
    lengths[present] = np.fromiter(map(len, found), np.int64, len(found))
    return _array(found, lengths, present)


def _array(
    cells: Sequence[bytes | None], lengths: Lengths, present: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    count, size = len(lengths), int(lengths.sum())
    if size > _OFFSET_MAX:
        raise OverflowError(f"{size} bytes: an array holds {_OFFSET_MAX}")
    offsets = np.zeros(count + 1, "<i4")
    np.cumsum(lengths, out=offsets[1:])
    bits, nulls = None, 0
    if present is not None:
        bits = pa.py_buffer(np.packbits(present, bitorder="little"))
        nulls = count - int(present.sum())
    data = b"".join(cells)  # type: ignore[arg-type]
    if len(data) != size:  # A buffer whose items are wider than a byte told another length.
        raise TypeError("cells must be bytes, not arrays of wider items")
    return pa.Array.from_buffers(
        pa.binary(), count, [bits, pa.py_buffer(offsets), pa.py_buffer(data)], nulls
    )
