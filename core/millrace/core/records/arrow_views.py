"""Arrow's columns for numpy, and back.

`Array.to_numpy`, `pa.array` and `pa.scalar` import pandas where it is installed: 40 MB of a
broker's memory, and half a second.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bools = npt.NDArray[np.bool_]


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
