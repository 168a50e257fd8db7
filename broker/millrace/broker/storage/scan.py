"""Reads a segment batch by batch: only headers to find a place, whole batches to verify them."""

from collections.abc import Iterator
from typing import Final

from millrace.broker.storage.file_system import File
from millrace.core.errors import CorruptBatchError, UnsupportedFormatError
from millrace.core.ids import LeaderEpoch, Offset, TopicPartition
from millrace.core.records.header import HEADER_BYTES, BatchHeader, parse_header, verify_body

_READ_BYTES: Final = 1 << 20
_WINDOW_BYTES: Final = 4096

DAMAGE = (CorruptBatchError, UnsupportedFormatError)
"""Errors of bytes that are no batch."""


class ScanStop(Exception):
    """A batch is not the one that was written, or not the next one.

    Attributes:
        reason: what is wrong.
        position: its first byte.
        offset: the offset that it should have begun with.
    """

    def __init__(self, reason: str, position: int, offset: Offset) -> None:
        super().__init__(f"at byte {position}, offset {offset}: {reason}")
        self.reason = reason
        self.position = position
        self.offset = offset


def verified_batches(
    file: File,
    topic_partition: TopicPartition,
    *,
    position: int,
    end_position: int,
    next_offset: Offset,
    leader_epoch: LeaderEpoch,
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch in `[position, end_position)`, every byte verified.

    Batches must be of the partition, follow one another without a gap from `next_offset` on, and
    their leader epochs may not fall below `leader_epoch` and each other (P65).

    Raises:
        ScanStop: at the first batch that breaks these rules.
        OSError: the disk refused.
    """
    chunk = b""
    chunk_at = position
    while position < end_position:
        at = position - chunk_at
        if len(chunk) - at < HEADER_BYTES:
            chunk, chunk_at, at = _read(file, position, _READ_BYTES, end_position), position, 0
        try:
            header = parse_header(chunk, at)
            length = header.length
            if len(chunk) - at < length:
                wanted = max(length, _READ_BYTES)
                chunk, chunk_at, at = _read(file, position, wanted, end_position), position, 0
            verify_body(topic_partition, header, memoryview(chunk)[at : at + length])
        except DAMAGE as error:
            raise ScanStop(error.message, position, next_offset) from None
        if header.base_offset != next_offset or header.leader_epoch < leader_epoch:
            raise ScanStop(
                f"the batch has offset {header.base_offset} and leader epoch "
                f"{header.leader_epoch}, expected are {next_offset} and at least {leader_epoch}",
                position,
                next_offset,
            )
        yield position, header
        position += length
        next_offset = header.next_offset
        leader_epoch = header.leader_epoch


def _read(file: File, position: int, size: int, end_position: int) -> bytes:
    return file.pread(min(size, end_position - position), position)


def headers(
    file: File, position: int, end_position: int, *, may_block: bool = True
) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch in `[position, end_position)`; bodies are not read.

    Raises:
        CorruptBatchError, UnsupportedFormatError: no batch begins where one should.
        BlockingIOError: a header is not in memory, and `may_block` is false.
        OSError: the disk refused.
    """
    window: bytes | memoryview = b""
    window_at = position
    cached = memoryview(b"" if may_block else bytearray(_WINDOW_BYTES))
    while position < end_position:
        at = position - window_at
        if len(window) - at < HEADER_BYTES:
            window_at, at = position, 0
            if may_block:
                window = file.pread(_WINDOW_BYTES, position)
            else:
                done = file.pread_into_cached(cached, position)
                if done < HEADER_BYTES <= end_position - position:
                    raise BlockingIOError
                window = cached[: max(done, 0)]
        header = parse_header(window, at)
        yield position, header
        position += header.length
