"""Compression of a batch's body as a whole, by the producer.

Inflating is bounded by the declared size, which the caller has compared with its own limit: the
output buffer is not larger than that, and a stream with more or less data is refused. Nothing
relies on the codec's own fields (content sizes, windows, checksums). The leader that accepts a body
refuses anything but data in a stream (`check_frames`); a reader of an accepted body does not check
that.

Any number of threads may use one `Compressor` and `inflate`. gzip is therefore Python's own zlib:
pyarrow's gzip codec keeps one stream in the object and crashes when two threads compress with it.
"""

import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import pyarrow as pa

from millrace.core.errors import CorruptBatchError, InvalidConfigError, UnsupportedFormatError
from millrace.core.records import frames
from millrace.core.records.header import Buffer


class Codec(IntEnum):
    """Codecs by their number in the batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_GZIP_BITS: Final = zlib.MAX_WBITS | 16  # The largest window, in gzip's wrapping.

CODEC_NAMES: Final = tuple(codec.name.lower() for codec in Codec)

_LEVELS: Final = {Codec.GZIP: range(1, 10), Codec.LZ4: range(1, 13), Codec.ZSTD: range(-131072, 23)}


class Compressor:
    """Compresses bodies with one codec and level.

    Args:
        name: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
        level: the codec's level; None is the codec's own default.

    Raises:
        InvalidConfigError: an unknown codec, or a level that it does not have.
    """

    def __init__(self, name: str = "none", level: int | None = None) -> None:
        if name not in CODEC_NAMES:
            raise InvalidConfigError(
                f"compression {name!r}: choose one of {', '.join(CODEC_NAMES)}"
            )
        self.codec = Codec[name.upper()]
        levels = _LEVELS.get(self.codec)
        if level is not None and (levels is None or level not in levels):
            allowed = "no level" if levels is None else f"{levels.start} to {levels.stop - 1}"
            raise InvalidConfigError(f"compression level {level}: {name} takes {allowed}")
        self._level = level
        self._codec = (
            None
            if self.codec in (Codec.NONE, Codec.GZIP)
            else pa.Codec(name, compression_level=level)
        )

    def compress(self, body: Buffer) -> tuple[Codec, Buffer]:
        """Return the codec used and the stored body: uncompressed when compression saves
        nothing."""
        stored: Buffer
        if self.codec is Codec.GZIP:
            level = zlib.Z_DEFAULT_COMPRESSION if self._level is None else self._level
            stored = zlib.compress(body, level, wbits=_GZIP_BITS)
        elif self._codec is not None:
            # Not the buffer itself: its memoryview has the length from before pyarrow shrank it.
            stored = _view(self._codec.compress(body).slice(0))
        else:
            return Codec.NONE, body
        if len(stored) >= len(body):
            return Codec.NONE, body
        return self.codec, stored


def inflate(codec: int, stored: Buffer, inflated_length: int) -> Buffer:
    """Return the body of exactly `inflated_length` bytes.

    The caller has bounded `inflated_length`; no output buffer is larger.

    Raises:
        UnsupportedFormatError: an unknown codec.
        CorruptBatchError: the stored body does not inflate to exactly that size.
    """
    inflater = _INFLATERS.get(codec)
    if inflater is None:
        raise UnsupportedFormatError(
            f"compression codec {codec} is not known; known are {', '.join(CODEC_NAMES)}"
        )
    try:
        body = inflater(stored, inflated_length)
    except (OSError, ValueError, zlib.error, pa.ArrowException) as error:
        raise CorruptBatchError(
            f"the body does not inflate to the declared {inflated_length} bytes: {error}"
        ) from error
    if len(body) != inflated_length:
        raise CorruptBatchError(
            f"the body inflates to {len(body)} bytes but is declared as {inflated_length}"
        )
    return body


def check_frames(codec: int, stored: Buffer, inflated_length: int) -> None:
    """Check that a stored body has only data, in a form that every decoder takes; see `frames`.

    Raises:
        CorruptBatchError: it is not.
    """
    try:
        if codec == Codec.ZSTD:
            frames.check_zstd(stored, inflated_length)
        elif codec == Codec.LZ4:
            frames.check_lz4(stored)
        elif codec == Codec.GZIP:
            frames.check_gzip(stored)
    except ValueError as error:
        raise CorruptBatchError(f"the compressed body: {error}") from error


# Given a size above the true one, pyarrow's one-shot gzip, snappy and lz4 return a buffer of that
# size whose tail was never written. So each inflater here proves the exact length in its own way.


def _view(buffer: pa.Buffer) -> memoryview:
    """Return a view of bytes; pyarrow's own view has signed items, so it never equals bytes."""
    return memoryview(buffer).cast("B")


def _plain(stored: Buffer, inflated_length: int) -> Buffer:
    return stored


def _gzip(stored: Buffer, inflated_length: int) -> Buffer:
    stream = zlib.decompressobj(wbits=_GZIP_BITS)
    body = stream.decompress(stored, inflated_length + 1)
    if not stream.eof or stream.unused_data:
        raise ValueError("the gzip stream does not end where the body ends")
    return body


def _snappy(stored: Buffer, inflated_length: int) -> Buffer:
    declared = shift = 0  # A raw snappy block begins with its inflated length as a varint.
    for byte in bytes(stored[:5]):
        declared |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if declared != inflated_length:
        raise ValueError(f"the snappy block declares {declared} bytes")
    return _view(_SNAPPY.decompress(stored, decompressed_size=inflated_length))


def _lz4(stored: Buffer, inflated_length: int) -> Buffer:
    with pa.CompressedInputStream(pa.BufferReader(stored), "lz4") as stream:
        return _view(stream.read_buffer(inflated_length + 1))


def _zstd(stored: Buffer, inflated_length: int) -> Buffer:
    return _view(_ZSTD.decompress(stored, decompressed_size=inflated_length))


_SNAPPY: Final = pa.Codec("snappy")
_ZSTD: Final = pa.Codec("zstd")  # Its one-shot call does refuse a size that is not exact.
_INFLATERS: Final[dict[int, Callable[[Buffer, int], Buffer]]] = {
    Codec.NONE: _plain,
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
