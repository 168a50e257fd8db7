"""Stored batches in the format that their readers know.

A batch that a reader knows is sent as it lies there. Others are converted (K6), on the threads
that check batches, a few at a time: so a thread is soon free for others, and inflates one batch at
a time.

What was converted last is kept. Readers of one partition that come at the same time wait for each
other: all groups that read a topic ask for the same batches as soon as they are committed. A batch
is known by its header, which has the checksum of its bytes.
"""

import asyncio
import re
import struct
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

from millrace.core.errors import MillraceError
from millrace.core.ids import Offset, TopicPartition
from millrace.core.records import rewriting
from millrace.core.records.header import (
    HEADER_BYTES,
    KAFKA_MAGIC,
    Attributes,
    BatchHeader,
    Buffer,
    parse_header,
)
from millrace.runtime.mailbox import Worker

_PREFIX: Final = struct.Struct("<4sIIIIH50xq")
"""The magic, the bytes of the body, two numbers of no use here, the delta of the last offset, the
attributes, and the first offset."""
_KAFKAS: Final = re.compile(re.escape(KAFKA_MAGIC))
_JOB_BYTES: Final = 128 << 10
"""Stored bytes that a thread converts at a time, except for a larger batch."""

_Key = tuple[TopicPartition, bytes]


class Stored(NamedTuple):
    """A stored batch.

    Attributes:
        data: all of it.
        is_kafkas: whether its body is a batch of Kafka's.
        codec: of its body.
        next_offset: the one after its last.
    """

    data: memoryview
    is_kafkas: bool
    codec: int
    next_offset: Offset

    @property
    def header(self) -> bytes:
        return bytes(self.data[:HEADER_BYTES])


class ConvertedBatches(ABC):
    """Gives readers batches of one format. It belongs to the event loop.

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

    @property
    def worker(self) -> Worker:
        """The next thread."""
        return next(self._workers)

    @abstractmethod
    def known(self, batch: Stored) -> Buffer | None:
        """Return what readers get of a batch as it lies there; None: it is to be converted."""

    @staticmethod
    @abstractmethod
    def converted(
        topic_partition: TopicPartition, header: BatchHeader, batch: memoryview
    ) -> Buffer:
        """Return a batch in the other format; on a thread.

        Raises:
            MillraceError: it is damaged.
        """

    async def take(
        self, topic_partition: TopicPartition, batches: Sequence[Stored], bytes_max: int
    ) -> list[Buffer]:
        """Return what readers get of batches, of as many as fit.

        Args:
            topic_partition: that they are of.
            batches: one after another.
            bytes_max: of all; the first batch counts even if it is larger.

        Raises:
            MillraceError: the first one is damaged.
        """
        lock = self._locks.get(topic_partition)
        if lock is None:
            lock = self._locks[topic_partition] = asyncio.Lock()
        async with lock:
            return await self._take(topic_partition, batches, bytes_max)

    async def _take(
        self, topic_partition: TopicPartition, batches: Sequence[Stored], bytes_max: int
    ) -> list[Buffer]:
        pieces: list[Buffer] = []
        size = 0
        made: dict[_Key, Buffer] = {}  # Also what is too large to be kept.
        for number, batch in enumerate(batches):
            piece = self.known(batch)
            if piece is None:
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
        self, topic_partition: TopicPartition, batches: Sequence[Stored], begin: int
    ) -> dict[_Key, Buffer]:
        """Convert a batch and a few of the next ones; return what was made, and keep it."""
        job: list[Stored] = []
        size = 0
        for batch in batches[begin:]:
            if job and size + len(batch.data) > _JOB_BYTES:
                break
            if self.known(batch) is None and (topic_partition, batch.header) not in self._kept:
                job.append(batch)
                size += len(batch.data)
        outcomes: list[Buffer | MillraceError] = await self.worker.call(
            self._convert,
            topic_partition,
            [batch.data for batch in job],
            owner=topic_partition,
        )
        made: dict[_Key, Buffer] = {}
        for batch, outcome in zip(job, outcomes, strict=False):
            if isinstance(outcome, MillraceError):
                if not made:
                    raise outcome
                break
            key = topic_partition, batch.header
            made[key] = outcome
            self._keep(key, outcome)
        return made

    @classmethod
    def _convert(
        cls, topic_partition: TopicPartition, batches: Sequence[memoryview]
    ) -> list[Buffer | MillraceError]:
        """Convert batches; the last outcome may be an error. On a thread."""
        outcomes: list[Buffer | MillraceError] = []
        for batch in batches:
            try:
                outcomes.append(cls.converted(topic_partition, parse_header(batch), batch))
            except MillraceError as error:
                outcomes.append(error.with_traceback(None))  # It refers to this frame.
                break
        return outcomes

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


class ColumnBatches(ConvertedBatches):
    """For readers of earlier releases, which know columns alone (K6)."""

    def known(self, batch: Stored) -> Buffer | None:
        """Implement `ConvertedBatches`."""
        return None if batch.is_kafkas else batch.data

    @staticmethod
    def converted(
        topic_partition: TopicPartition, header: BatchHeader, batch: memoryview
    ) -> Buffer:
        """Implement `ConvertedBatches`."""
        found = rewriting.in_columns(topic_partition, header, batch)
        return found.stamped + bytes(found.body)

    async def in_columns(
        self, topic_partition: TopicPartition, stored: Buffer, end: Offset, bytes_max: int
    ) -> tuple[Buffer, Offset]:
        """Return batches of columns, of as many as fit, and the offset after them.

        Args:
            topic_partition: that they are of.
            stored: whole batches as they lie in the file, at least one.
            end: the offset after them.
            bytes_max: of all; the first batch counts even if it is larger.

        Raises:
            MillraceError: a stored batch is damaged.
        """
        if _KAFKAS.search(stored) is None:
            return stored, end
        batches = list(walk(memoryview(stored)))
        pieces = await self.take(topic_partition, batches, bytes_max)
        return b"".join(pieces), batches[len(pieces) - 1].next_offset


def walk(stored: memoryview) -> Iterator[Stored]:
    """Yield the stored batches without a look at their checksums.

    Raises:
        CorruptBatchError, UnsupportedFormatError: there is something else.
    """
    at = 0
    while at + HEADER_BYTES <= len(stored):
        magic, length, _, _, last, attributes, base = _PREFIX.unpack_from(stored, at)
        end = at + HEADER_BYTES + length
        if magic[:-1] != KAFKA_MAGIC[:-1] or end > len(stored):
            parse_header(stored, at)  # Says what is wrong with it, if that is seen in the header.
            return
        codec = attributes & Attributes.CODEC_MASK
        yield Stored(stored[at:end], magic == KAFKA_MAGIC, codec, Offset(base + last + 1))
        at = end
