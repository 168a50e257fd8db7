"""Arrow's columns for numpy, and back.

`Array.to_numpy`, `pa.array` and `pa.scalar` import pandas where it is installed: 40 MB of a
broker's memory, and half a second.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.records.header import Buffer

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

_BINARY: Final = pa.binary()


def numbers_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the cells of an int32 or int64 column without nulls."""
    kind = np.dtype(f"<i{column.type.bit_width // 8}")
    return np.frombuffer(column.buffers()[1], kind)[column.offset : column.offset + len(column)]


def validity_of(column: pa.Array) -> Bools:
    """Return which cells are not null."""
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(len(column), np.bool_)
    unpacked = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")
    return unpacked[column.offset : column.offset + len(column)].view(np.bool_)


def bools_of(mask: Bools) -> pa.Array:
    """Return truth values as a column."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits], 0)


def int64s_of(numbers: npt.NDArray[np.int64]) -> pa.Array:
    """Return numbers as a column, without a copy."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)], 0)


def scalar_of(content: bytes) -> pa.Scalar:
    """Return bytes as a value of Arrow's."""
    ends = pa.py_buffer(np.array([0, len(content)], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(content)], 0)[0]


def slices(
    data: Buffer,
    starts: Int64s | Int32s,
    lengths: Int64s | Int32s,
    kind: pa.DataType = _BINARY,
) -> pa.Array:
    """Return pieces of `data` as a column of their own memory.

    Args:
        data: bytes; fewer than 2^31.
        starts, lengths: of pieces that lie within `data` one after another; a length of -1 is null.
        kind: `binary` or `string`.
    """
    count = len(starts)
    # Every second cell is a piece, and those between are what lies between two pieces.
    offsets = np.zeros(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = starts + np.maximum(lengths, 0)
    offsets[-1] = starts[-1] + max(lengths[-1], 0) if count else 0
    bits, nulls = None, 0
    present = lengths >= 0
    if not present.all():
        nulls = count - int(np.count_nonzero(present))
        both = np.ones(2 * count, np.bool_)
        both[0::2] = present
        bits = pa.py_buffer(np.packbits(both, bitorder="little"))
    pieces = pa.Array.from_buffers(
        kind, 2 * count, [bits, pa.py_buffer(offsets), pa.py_buffer(data)], nulls
    )
    every_second = np.arange(0, 2 * count, 2, dtype=np.int32)
    indices = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(every_second)], 0)
    return pieces.take(indices)
