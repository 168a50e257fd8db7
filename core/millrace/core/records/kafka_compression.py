"""Inflates the records of Kafka's batches, whose inflated size nothing declares, and back.

The numbers of the codecs are ours (`compression.Codec`). snappy comes as a raw block, as librdkafka
writes it, or in the blocks of Java's SnappyOutputStream ("xerial"): 16 bytes of header, then raw
blocks, each with its length as int32, big-endian. lz4 is one frame of independent blocks: Kafka's
own readers take nothing else.

What is inflated is bounded by a limit of the caller's; nothing much larger is allocated.
Dictionaries and frames that are no data are refused; a window of zstd may be as large as that of
its highest level (`frames`).
"""

import struct
import zlib
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from millrace.core.errors import CorruptBatchError, MessageTooLargeError, UnsupportedFormatError
from millrace.core.records import frames
from millrace.core.records.compression import CODEC_NAMES, Codec, Compressor
from millrace.core.records.header import Buffer

_ZSTD_WINDOW_BYTES: Final = 128 << 20
"""Of zstd's level 22, and the most that decoders take unless they are told. A window is touched
only as far as data goes, which the caller's limit bounds."""
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = struct.Struct(">8sii")  # Magic, version, lowest version that reads it.
_XERIAL_BLOCK: Final = struct.Struct(">i")
_XERIAL_BLOCKS_MAX: Final = 1024
_XERIAL_BLOCK_BYTES: Final = 256
"""Blocks beyond `_XERIAL_BLOCKS_MAX` must have as many bytes on average: honest ones have 32 KiB
when inflated, and each takes a microsecond or two."""
_READ_BYTES: Final = 64 << 10
_GZIP_BITS: Final = zlib.MAX_WBITS | 16


class _TooLarge(Exception):
    """More comes out than may."""


def inflate(codec: int, stored: Buffer, inflated_max: int) -> Buffer:
    """Return the inflated records; what has no codec as it is.

    Args:
        codec: its number.
        stored: the records as they are in the batch.
        inflated_max: the most bytes that may come out.

    Raises:
        UnsupportedFormatError: an unknown codec.
        CorruptBatchError: what is stored is cut, damaged, or more than data.
        MessageTooLargeError: more comes out.
    """
    if codec == Codec.NONE:
        return stored
    inflater = _INFLATERS.get(codec)
    if inflater is None:
        raise UnsupportedFormatError(
            f"compression codec {codec} is not known; known are {', '.join(CODEC_NAMES)}"
        )
    try:
        inflated = inflater(stored, inflated_max)
        if len(inflated) > inflated_max:
            raise _TooLarge
    except _TooLarge:
        raise MessageTooLargeError(
            f"the batch's records inflate to more than {inflated_max} bytes, the broker's "
            "limits.batch_inflated_bytes_max: send smaller batches or raise it"
        ) from None
    except (OSError, ValueError, zlib.error, struct.error, pa.ArrowException) as error:
        raise CorruptBatchError(
            f"the batch's records do not inflate by {CODEC_NAMES[codec]}: {error}"
        ) from error
    return inflated


def compress(codec: int, records: Buffer) -> tuple[Codec, Buffer]:
    """Return the codec used and the records as stored: plain where compressing saves nothing.

    Every client of Kafka's reads them.
    """
    if codec != Codec.LZ4:
        return Compressor(CODEC_NAMES[codec]).compress(records)
    # LZ4's own frames have blocks that depend on one another.
    parts: list[Buffer] = [_LZ4_BEGIN]
    for at in range(0, len(records), _LZ4_BLOCK_BYTES):
        block = records[at : at + _LZ4_BLOCK_BYTES]
        packed = bytes(memoryview(_LZ4_RAW.compress(block).slice(0)).cast("B"))
        if len(packed) < len(block):
            parts += (_LZ4_LENGTH.pack(len(packed)), packed)
        else:
            parts += (_LZ4_LENGTH.pack(len(block) | _LZ4_PLAIN), block)
    parts.append(_LZ4_LENGTH.pack(0))
    stored = b"".join(parts)
    return (Codec.LZ4, stored) if len(stored) < len(records) else (Codec.NONE, records)


def _gzip(stored: Buffer, inflated_max: int) -> Buffer:
    stream = zlib.decompressobj(wbits=_GZIP_BITS)
    inflated = stream.decompress(stored, inflated_max + 1)
    if len(inflated) > inflated_max:
        raise _TooLarge
    if not stream.eof or stream.unused_data:
        raise ValueError("the stream does not end where the batch ends")
    return inflated


def _lz4(stored: Buffer, inflated_max: int) -> Buffer:
    frames.check_kafka_lz4(stored)
    return _streamed("lz4", stored, inflated_max)


def _zstd(stored: Buffer, inflated_max: int) -> Buffer:
    frames.check_zstd(stored, _ZSTD_WINDOW_BYTES)
    return _streamed("zstd", stored, inflated_max)


def _streamed(codec: str, stored: Buffer, inflated_max: int) -> Buffer:
    """Inflate in pieces: the first as large as most batches need, then the rest."""
    pieces = []
    left = inflated_max + 1
    wanted = max(_READ_BYTES, 4 * len(stored))
    with pa.CompressedInputStream(pa.BufferReader(stored), codec) as stream:
        while left > 0:
            piece = stream.read_buffer(min(wanted, left))
            if not piece.size:
                break
            pieces.append(memoryview(piece).cast("B"))
            left -= piece.size
            wanted *= 2
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snappy(stored: Buffer, inflated_max: int) -> Buffer:
    if bytes(stored[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(stored, inflated_max)
    at, size = _XERIAL_HEADER.size, len(stored)
    blocks_left = _XERIAL_BLOCKS_MAX + size // _XERIAL_BLOCK_BYTES
    view = memoryview(stored)
    pieces = []
    while at < size:
        (length,) = _XERIAL_BLOCK.unpack_from(view, at)
        at += _XERIAL_BLOCK.size
        if not 0 < length <= size - at:
            raise ValueError(f"a block of {length} bytes, and {size - at} are there")
        blocks_left -= 1
        if not blocks_left:
            raise ValueError("the blocks are too many for their size")
        piece = _snappy_block(view[at : at + length], inflated_max)
        inflated_max -= len(piece)
        pieces.append(piece)
        at += length
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snappy_block(stored: Buffer, inflated_max: int) -> Buffer:
    declared = shift = 0  # It begins with its inflated length as a varint.
    for byte in bytes(stored[:5]):
        declared |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    else:
        raise ValueError("a snappy block does not say its length")
    if declared > inflated_max:
        raise _TooLarge
    return memoryview(_SNAPPY.decompress(stored, decompressed_size=declared)).cast("B")


_LZ4_RAW: Final = pa.Codec("lz4_raw")
_LZ4_BEGIN: Final = bytes.fromhex("04224d18 607073")
"""Of a frame of independent blocks of 4 MiB at the most, without checksums or a size."""
_LZ4_BLOCK_BYTES: Final = 4 << 20
_LZ4_PLAIN: Final = 1 << 31
_LZ4_LENGTH: Final = struct.Struct("<I")
_SNAPPY: Final = pa.Codec("snappy")
_INFLATERS: Final[dict[int, Callable[[Buffer, int], Buffer]]] = {
    Codec.GZIP: _gzip,
    Codec.SNAPPY: _snappy,
    Codec.LZ4: _lz4,
    Codec.ZSTD: _zstd,
}
