"""Stored batches as Kafka's readers get them.

A batch of format 2 is Kafka's own behind a header of 96 bytes: a reader gets the bytes after it as
they were read, without a copy. One of format 1 is converted, on the threads that check batches, a
few at a time: so a thread is soon free for others, and inflates one batch at a time.

What was converted last is kept. Readers of one partition that come at the same time wait for each
other: all groups that read a topic ask for the same batches as soon as they are committed. A batch
is known by its header, which has the checksum of its bytes.
"""

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from millrace.core.errors import MillraceError
from millrace.core.ids import TopicPartition
from millrace.core.records.compression import Codec
from millrace.core.records.header import (
    HEADER_BYTES,
    KAFKA_MAGIC,
    Attributes,
    Buffer,
    parse_header,
    verify_body,
)
from millrace.core.records.kafka_records import to_kafka
from millrace.runtime.mailbox import Worker

_PREFIX: Final = struct.Struct("<4sIIIIH")
"""The magic, the bytes of the body, three numbers of no use here, and the attributes."""
_BEGIN: Final = struct.Struct("<4sI")
_PIECES_MAX: Final = 32
"""Pieces of an answer that are not joined, however small they are."""
_PIECE_BYTES_MIN: Final = 4 << 10
"""Mean size of pieces that are not joined, however many they are."""
_AT_ONCE: Final = 1000
"""Batches that the event loop looks at in one go, which takes a millisecond."""
_JOB_BYTES: Final = 128 << 10
"""Stored bytes that a thread converts at a time, except for a larger batch."""

_Key = tuple[TopicPartition, bytes]


class ZstdNotKnownError(Exception):
    """A batch is compressed with zstd, and the reader's version of Fetch is from before it."""


class _TooManyError(Exception):
    """There are more batches than the event loop has time for."""


class _Stored(NamedTuple):
    """A stored batch.

    Attributes:
        data: all of it.
        is_kafkas: whether its body is a batch of Kafka's.
        codec: of its body.
    """

    data: memoryview
    is_kafkas: bool
    codec: int

    @property
    def header(self) -> bytes:
        return bytes(self.data[:HEADER_BYTES])


class StoredBatches:
    """Makes Kafka's batches of stored ones. It belongs to the event loop.

    Args:
        workers: the threads that convert.
        kept_bytes_max: of converted batches that are kept.
    """

    def __init__(self, workers: Sequence[Worker], kept_bytes_max: int) -> None:
        self._workers = cycle(workers)
        self._kept_bytes_max = kept_bytes_max
        self._kept: OrderedDict[_Key, Buffer] = OrderedDict()
        self._kept_bytes = 0
        self._locks: WeakValueDictionary[TopicPartition, asyncio.Lock] = WeakValueDictionary()

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
                pieces = await next(self._workers).call(_bodies, view)
            if pieces is not None:
                return pieces
        batches = list(_walk(view))
        if not knows_zstd and any(batch.codec == Codec.ZSTD for batch in batches):
            raise ZstdNotKnownError
        lock = self._locks.get(topic_partition)
        if lock is None:
            lock = self._locks[topic_partition] = asyncio.Lock()
        async with lock:
            return await self._converted(topic_partition, batches, bytes_max)

    async def _converted(
        self, topic_partition: TopicPartition, batches: list[_Stored], bytes_max: int
    ) -> list[Buffer]:
        pieces: list[Buffer] = []
        size = 0
        made: dict[_Key, Buffer] = {}  # Also what is too large to be kept.
        for number, batch in enumerate(batches):
            piece: Buffer | None
            if batch.is_kafkas:
                piece = batch.data[HEADER_BYTES:]
            else:
                key = topic_partition, batch.header
                piece = made.pop(key, None) or self._find(key)
                if piece is None:
                    try:
                        made = await self._convert_from(topic_partition, batches, number)
                    except MillraceError:
                        if not pieces:
                            raise
                        break  # What precedes it can be read.
                    piece = made.pop(key)
            if pieces and size + len(piece) > bytes_max:
                break
            pieces.append(piece)
            size += len(piece)
        return pieces

    async def _convert_from(
        self, topic_partition: TopicPartition, batches: list[_Stored], begin: int
    ) -> dict[_Key, Buffer]:
        """Convert a batch and a few of the next ones; return what was made, and keep it."""
        job: list[_Stored] = []
        size = 0
        for batch in batches[begin:]:
            if job and size + len(batch.data) > _JOB_BYTES:
                break
            if not batch.is_kafkas and (topic_partition, batch.header) not in self._kept:
                job.append(batch)
                size += len(batch.data)
        converted: list[Buffer | MillraceError] = await next(self._workers).call(
            _convert, topic_partition, [batch.data for batch in job]
        )
        made: dict[_Key, Buffer] = {}
        for batch, outcome in zip(job, converted, strict=False):
            if isinstance(outcome, MillraceError):
                if not made:
                    raise outcome
                break
            key = topic_partition, batch.header
            made[key] = outcome
            self._keep(key, outcome)
        return made

    def _find(self, key: _Key) -> Buffer | None:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
        return found

    def _keep(self, key: _Key, converted: Buffer) -> None:
        replaced = self._kept.pop(key, None)
        self._kept_bytes += len(converted) - (0 if replaced is None else len(replaced))
        self._kept[key] = converted
        while self._kept_bytes > self._kept_bytes_max:
            _, dropped = self._kept.popitem(last=False)
            self._kept_bytes -= len(dropped)


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


def _walk(stored: memoryview) -> Iterator[_Stored]:
    """Yield the stored batches without a look at their checksums.

    Raises:
        CorruptBatchError, UnsupportedFormatError: there is something else.
    """
    at = 0
    while at + HEADER_BYTES <= len(stored):
        magic, length, _, _, _, attributes = _PREFIX.unpack_from(stored, at)
        end = at + HEADER_BYTES + length
        if magic[:-1] != KAFKA_MAGIC[:-1] or end > len(stored):
            parse_header(stored, at)  # Says what is wrong with it, if that is seen in the header.
            return
        yield _Stored(stored[at:end], magic == KAFKA_MAGIC, attributes & Attributes.CODEC_MASK)
        at = end


def _convert(
    topic_partition: TopicPartition, batches: Sequence[memoryview]
) -> list[Buffer | MillraceError]:
    """Convert batches; the last outcome may be an error. On a thread."""
    converted: list[Buffer | MillraceError] = []
    for batch in batches:
        try:
            header = parse_header(batch)
            verify_body(topic_partition, header, batch)
            converted.append(to_kafka(header, batch))
        except MillraceError as error:
            converted.append(error.with_traceback(None))  # It refers to this frame.
            break
    return converted
