"""Format strings for records, as kcat's `-f` has them: text with tokens such as `%k` in it.

A string is divided into pieces once. A piece then gives a column for a whole batch, and the columns
are joined by Arrow, so that no record costs a step of Python.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "\\": b"\\", "0": b"\0"}
_PIECE: Final = re.compile(
    r"(?P<token>%.)|\\x(?P<hex>[0-9A-Fa-f]{1,2})|\\(?P<escape>.)|[^%\\]+", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records of one partition, and the bytes that stand for null."""

    topic: str
    partition: int
    records: pa.RecordBatch
    null: bytes


Piece = bytes | Callable[[Batch], pa.Array | pa.Scalar]
"""Text as it is, or what makes a column or one text for all records."""


def parse_format(text: str) -> list[Piece]:
    r"""Divide a format string into its pieces.

    Args:
        text: tokens of `_COLUMNS`, `%%`, the escapes `\n`, `\r`, `\t`, `\0`, `\\` and `\xNN`, and
            anything else, which stays as it is.

    Raises:
        ValueError: it has an unknown token, or none at all.
    """
    pieces = list(_pieces(text))
    if all(isinstance(piece, bytes) for piece in pieces):
        raise ValueError(f"{text!r} has no token such as %k or %s")
    return pieces


def formatted(pieces: list[Piece], batch: Batch) -> memoryview:
    """Return the text of all records of a batch, one after the other."""
    cells = [
        pa.scalar(piece, pa.binary()) if isinstance(piece, bytes) else piece(batch)
        for piece in pieces
    ]
    if not any(isinstance(cell, pa.Array) for cell in cells):  # As `%t\n`: the same for all.
        cells.append(pa.repeat(pa.scalar(b"", pa.binary()), batch.records.num_rows))
    texts = pc.binary_join_element_wise(*cells, pa.scalar(b"", pa.binary()))
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(b"" if data is None else data)[ends[0] : ends[-1]]


def _pieces(text: str) -> Iterator[Piece]:
    end = 0
    for found in _PIECE.finditer(text):
        if found.start() != end:
            break
        end = found.end()
        if found["token"] == "%%":
            yield b"%"
        elif found["token"]:
            if found["token"] not in _COLUMNS:
                raise ValueError(
                    f"{found['token']} is no token; there are {', '.join(_COLUMNS)}, %%"
                )
            yield _COLUMNS[found["token"]]
        elif found["hex"]:
            yield bytes([int(found["hex"], 16)])
        elif found["escape"]:
            if found["escape"] not in _ESCAPES:
                raise ValueError(rf"\{found['escape']} is no escape: \n, \r, \t, \0, \\ or \xNN")
            yield _ESCAPES[found["escape"]]
        else:
            yield found[0].encode(errors="surrogateescape")
    if end < len(text):
        raise ValueError(f"{text[end:]!r} at its end is not complete")


def _digits(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.string()).cast(pa.binary())


def _length(cells: pa.Array) -> pa.Array:
    return pc.fill_null(pc.binary_length(cells), -1)


def _length_bytes(batch: Batch) -> pa.Array:
    lengths = _length(batch.records.column("value")).to_numpy().astype(">i4")
    return pa.Array.from_buffers(
        pa.binary(4), len(lengths), [None, pa.py_buffer(lengths.tobytes())]
    ).cast(pa.binary())


def _headers(batch: Batch) -> pa.Array | pa.Scalar:
    headers = batch.records.column("headers")
    entries = headers.flatten()
    if not len(entries):
        return pa.scalar(b"", pa.binary())
    names = entries.field("key").cast(pa.binary())
    values = entries.field("value").fill_null(batch.null)
    pairs = pc.binary_join_element_wise(names, values, pa.scalar(b"=", pa.binary()))
    ends = np.concatenate(([0], np.cumsum(headers.value_lengths().to_numpy())))
    lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs)
    return pc.binary_join(lists, pa.scalar(b",", pa.binary()))


_COLUMNS: Final[dict[str, Callable[[Batch], pa.Array | pa.Scalar]]] = {
    "%t": lambda batch: pa.scalar(batch.topic.encode(), pa.binary()),
    "%p": lambda batch: pa.scalar(str(batch.partition).encode(), pa.binary()),
    "%o": lambda batch: _digits(batch.records.column("offset")),
    "%k": lambda batch: batch.records.column("key").fill_null(batch.null),
    "%s": lambda batch: batch.records.column("value").fill_null(batch.null),
    "%K": lambda batch: _digits(_length(batch.records.column("key"))),
    "%S": lambda batch: _digits(_length(batch.records.column("value"))),
    "%R": _length_bytes,
    "%T": lambda batch: _digits(batch.records.column("timestamp")),
    "%h": _headers,
}
