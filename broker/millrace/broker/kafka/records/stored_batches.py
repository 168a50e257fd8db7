"""Stored batches as Kafka's readers get them.

A batch of format 2 is Kafka's own behind a header of 96 bytes: a reader gets the bytes after it as
they were read, without a copy. One of format 1 is converted (`rpc/converted_batches`, K6).
"""

import struct
from collections.abc import Sequence
from typing import Final

from millrace.broker.rpc.converted_batches import ConvertedBatches, Stored, walk
from millrace.core.ids import TopicPartition
from millrace.core.records.compression import Codec
from millrace.core.records.header import (
    HEADER_BYTES,
    KAFKA_MAGIC,
    BatchHeader,
    Buffer,
    verify_body,
)
from millrace.core.records.kafka_records import to_kafka

_BEGIN: Final = struct.Struct("<4sI")
_PIECES_MAX: Final = 32
"""Pieces of an answer that are not joined, however small they are."""
_PIECE_BYTES_MIN: Final = 4 << 10
"""Mean size of pieces that are not joined, however many they are."""
_AT_ONCE: Final = 1000
"""Batches that the event loop looks at in one go, which takes a millisecond."""


class ZstdNotKnownError(Exception):
    """A batch is compressed with zstd, and the reader's version of Fetch is from before it."""


class _TooManyError(Exception):
    """There are more batches than the event loop has time for."""


class StoredBatches(ConvertedBatches):
    """Makes Kafka's batches of stored ones. It belongs to the event loop."""

    def known(self, batch: Stored) -> Buffer | None:
        """Implement `ConvertedBatches`."""
        return batch.data[HEADER_BYTES:] if batch.is_kafkas else None

    @staticmethod
    def converted(
        topic_partition: TopicPartition, header: BatchHeader, batch: memoryview
    ) -> Buffer:
        """Implement `ConvertedBatches`."""
        verify_body(topic_partition, header, batch)
        return to_kafka(header, batch)

    async def in_kafkas_form(
        self, topic_partition: TopicPartition, stored: Buffer, bytes_max: int, *, knows_zstd: bool
    ) -> Sequence[Buffer]:
        """Return the batches of a reader, in pieces.

        Args:
            topic_partition: that they are of.
            stored: whole batches as they lie in the file.
            bytes_max: of all; the first batch counts even if it is larger.
            knows_zstd: whether the reader does.

        Raises:
            MillraceError: a stored batch is damaged.
            ZstdNotKnownError: the reader cannot read one.
        """
        view = memoryview(stored)
        if knows_zstd:
            try:
                pieces = _bodies(view, _AT_ONCE)
            except _TooManyError:
                pieces = await self.worker.call(_bodies, view, owner=topic_partition)
            if pieces is not None:
                return pieces
        batches = list(walk(view))
        if not knows_zstd and any(batch.codec == Codec.ZSTD for batch in batches):
            raise ZstdNotKnownError
        return await self.take(topic_partition, batches, bytes_max)


def _bodies(stored: memoryview, batches_max: int | None = None) -> list[Buffer] | None:
    """Return the bodies of batches that are all Kafka's; None: they are not.

    Small ones are joined: a system call with thousands of pieces costs more than to copy them.

    Raises:
        _TooManyError: there are more than `batches_max`.
    """
    pieces: list[Buffer] = []
    at, size = 0, len(stored)
    while at + HEADER_BYTES <= size:
        magic, length = _BEGIN.unpack_from(stored, at)
        begin = at + HEADER_BYTES
        at = begin + length
        if magic != KAFKA_MAGIC or at > size:
            return None
        pieces.append(stored[begin:at])
        if len(pieces) == batches_max:
            raise _TooManyError
    if len(pieces) > _PIECES_MAX and size < len(pieces) * _PIECE_BYTES_MIN:
        return [b"".join(pieces)]
    return pieces
