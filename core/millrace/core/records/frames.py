"""Checks that compressed bodies have only frames of data, and nothing that readers would skip.

A stream of zstd or lz4 may have skippable frames, a member of gzip a name, a comment or an extra
field: bytes that no reader uses, and that would be stored and replicated. Besides, zstd's own
    one-shot decoder takes frames that other decoders refuse: of formats before 1.0, with unknown
    bits, or with a window larger than the body. Leaders refuse all of that; inflating checks the
    content of the blocks.

Each block takes a few steps, and honest ones are large: up to 128 KiB, or 4 MiB.

Source: RFC 8878 (zstd), the LZ4 frame format 1.6, RFC 1952 (gzip).
"""

import struct
from typing import Final

from millrace.core.records.header import Buffer

ZSTD_WINDOW_BYTES: Final = 8 << 20
"""The window that RFC 8878 requires of every decoder."""

_ZSTD_MAGIC: Final = 0xFD2FB528
_ZSTD_CONTENT_SIZE_BYTES: Final = (0, 2, 4, 8)
_ZSTD_RLE_BLOCK: Final = 1
_LZ4_MAGIC: Final = 0x184D2204
_LZ4_INDEPENDENT: Final = 0b10_0000

_ZSTD_BLOCK: Final = struct.Struct("<HB").unpack_from
_LZ4_BLOCK: Final = struct.Struct("<I").unpack_from


def check_zstd(stored: Buffer, inflated_length: int) -> None:
    """Check the frames of a zstd stream.

    Raises:
        ValueError: a frame has more than data, or not every decoder takes it.
    """
    at = 0
    while at < len(stored):
        at = _zstd_frame_end(stored, at, inflated_length)
    _check_end(stored, at)


def check_lz4(stored: Buffer) -> None:
    """Check the frames of an lz4 stream.

    Raises:
        ValueError: a frame has more than data, or not every decoder takes it.
    """
    at = 0
    while at < len(stored):
        at = _lz4_frame_end(stored, at)
    _check_end(stored, at)


def check_kafka_lz4(stored: Buffer) -> None:
    """Check the frame of a Kafka client: one, of independent blocks.

    Raises:
        ValueError: it has more than data, or Kafka's own readers do not take it.
    """
    end = _lz4_frame_end(stored, 0)
    if end < len(stored):
        raise ValueError("more follows the lz4 frame")
    _check_end(stored, end)
    if not _number(stored, 4, 1) & _LZ4_INDEPENDENT:
        raise ValueError("the blocks of the lz4 frame depend on one another")


def check_gzip(stored: Buffer) -> None:
    """Check the header of the member of a gzip stream.

    Raises:
        ValueError: it has more than data.
    """
    flags = _number(stored, 3, 1)
    if flags:
        raise ValueError(f"the gzip member has a name, a comment or an extra field (flags {flags})")


def _zstd_frame_end(stored: Buffer, at: int, inflated_length: int) -> int:
    _check_magic(stored, at, _ZSTD_MAGIC, "zstd")
    descriptor = _number(stored, at + 4, 1)
    if descriptor & 0b0001_1000:
        raise ValueError("a zstd frame sets bits that mean nothing")
    if descriptor & 0b11:
        raise ValueError("a zstd frame asks for a dictionary")
    is_single_segment = descriptor >> 5 & 1
    content_size_bytes = _ZSTD_CONTENT_SIZE_BYTES[descriptor >> 6] or is_single_segment
    at += 5
    if not is_single_segment:
        window = _number(stored, at, 1)
        size = (8 + (window & 0b111)) << (7 + (window >> 3))
        if size > max(ZSTD_WINDOW_BYTES, inflated_length):
            raise ValueError(
                f"a zstd frame wants a window of {size} bytes; {ZSTD_WINDOW_BYTES} are allowed, or "
                "as many as the body has"
            )
        at += 1
    at += content_size_bytes
    block = 0
    try:
        while not block & 1:  # The last one has this bit.
            block, size_high = _ZSTD_BLOCK(stored, at)
            if block >> 1 & 0b11 == _ZSTD_RLE_BLOCK:
                at += 4
            else:
                at += 3 + (size_high << 13 | block >> 3)
    except struct.error:
        raise ValueError("the last frame is cut") from None
    return at + (4 if descriptor & 0b100 else 0)


def _lz4_frame_end(stored: Buffer, at: int) -> int:
    _check_magic(stored, at, _LZ4_MAGIC, "lz4")
    flags = _number(stored, at + 4, 1)
    if flags & 0b11:
        raise ValueError("an lz4 frame asks for a dictionary, or sets a bit that means nothing")
    block_checksum_bytes = 4 if flags & 0b1_0000 else 0
    at += 7 + (8 if flags & 0b1000 else 0)
    try:
        while block := _LZ4_BLOCK(stored, at)[0]:
            at += 4 + (block & 0x7FFFFFFF) + block_checksum_bytes
    except struct.error:
        raise ValueError("the last frame is cut") from None
    return at + 4 + (4 if flags & 0b100 else 0)


def _check_magic(stored: Buffer, at: int, magic: int, name: str) -> None:
    found = _number(stored, at, 4)
    if found != magic:
        raise ValueError(f"what begins with {found:#010x} is no {name} frame of data")


def _check_end(stored: Buffer, at: int) -> None:
    if at != len(stored):
        raise ValueError("the last frame is cut")


def _number(stored: Buffer, at: int, size: int) -> int:
    if at + size > len(stored):
        raise ValueError("the last frame is cut")
    return int.from_bytes(stored[at : at + size], "little")
