"""The async consumer."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Sized
from types import MappingProxyType, TracebackType
from typing import Final, Literal, Self, TypeVar

from millrace.client._arguments import LogEnd
from millrace.client._cluster import METADATA_TIMEOUT_MS_DEFAULT
from millrace.client._consumer_core import ConsumerCore, Start
from millrace.client._records import FetchedRecords, Record, Records
from millrace.client._settings import bounded
from millrace.client._wire import Place
from millrace.client.serialization import Deserializer
from millrace.core.errors import ClosedError
from millrace.core.ids import TopicId
from millrace.core.settings import INT32_MAX

LOOP_WAIT_MS: Final = 1_000
"""How long a loop over a consumer waits at a time."""
POLL_BYTES_MAX_DEFAULT: Final = 16_777_216

Taken = TypeVar("Taken", bound=Sized)


class Consumer:
    """Reads records, from an event loop.

        async with Consumer("localhost:7092") as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                print(record.offset, record.key, record.value)

    One task uses a consumer at a time. There are no groups yet: a consumer reads the partitions
    that it is told to. A loop may be left at any record: the next loop, or `poll`, goes on behind
    it. `seek` and `pause` count in the middle of one, too.

    Args:
        bootstrap: `host:port` of brokers, tried in turn: a string with commas, or a sequence.
        client_id: name in the brokers' logs.
        fetch_min_bytes: a broker waits until so much is there ...
        fetch_max_wait_ms: ... but no longer than this.
        fetch_max_bytes: bytes that may be on their way or wait to be polled, per broker.
        max_partition_fetch_bytes: bytes of one partition in one response.
        auto_offset_reset: where to begin without a position, and where to go when it lies outside
            of the log: "earliest" or "beginning", "latest" or "end", or "none" for an error.
        key_deserializer, value_deserializer: from bytes to what records show.
        request_timeout_ms: how long a call to a broker may take.
        metadata_max_age_ms: after which to look whether topics have more partitions, and where to
            read from.
        metadata_timeout_ms: how long one broker may take to tell where the leaders are, before
            another is asked.
        client_rack: the zone of this client, as brokers name theirs (`node.rack`). With it,
            partitions are read from an in-sync follower of the same zone where there is one;
            empty: from their leaders.

    Raises:
        InvalidConfigError: a setting is out of its bounds.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        client_id: str = "millrace-python",
        fetch_min_bytes: int = 1,
        fetch_max_wait_ms: int = 500,
        fetch_max_bytes: int = 52_428_800,
        max_partition_fetch_bytes: int = 1_048_576,
        auto_offset_reset: LogEnd | Literal["none"] = "earliest",
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        request_timeout_ms: int = 30_000,
        metadata_max_age_ms: int = 300_000,
        metadata_timeout_ms: int = METADATA_TIMEOUT_MS_DEFAULT,
        client_rack: str = "",
    ) -> None:
        self._core = ConsumerCore(
            bootstrap,
            client_id=client_id,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            auto_offset_reset=auto_offset_reset,
            key_deserializer=key_deserializer,
            value_deserializer=value_deserializer,
            request_timeout_ms=bounded("request_timeout_ms", request_timeout_ms, 1, INT32_MAX),
            metadata_max_age_ms=bounded("metadata_max_age_ms", metadata_max_age_ms, 1, INT32_MAX),
            metadata_timeout_ms=bounded("metadata_timeout_ms", metadata_timeout_ms, 1, INT32_MAX),
            client_rack=client_rack,
            loop=asyncio.get_running_loop(),
        )

    async def assign(
        self,
        partitions: Iterable[Place | str] | Mapping[Place | str, Start],
        *,
        start: Start | None = None,
        ends: Mapping[Place, int] = MappingProxyType({}),
    ) -> None:
        """Read exactly these partitions from now on.

            await consumer.assign(["orders", ("payments", 0)], start="end")
            await consumer.assign({("orders", 0): 17, ("orders", 1): "beginning"})

        Args:
            partitions: topic and number, or a topic for all of its partitions; as a mapping, each
                with its own start.
            start: an offset, "beginning" or "earliest", "end" or "latest"; None: where
                `auto_offset_reset` says.
            ends: offsets up to which partitions are read. Nothing is fetched behind the batch that
                holds the record before such an offset, and that batch is handed out whole:
                `position` tells when a partition is there.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
            InvalidRequestError: no position to start at, or an end of what is not to be read.
        """
        with self._core.exclusive():
            await self._core.assign(partitions, start, ends)

    async def subscribe(self, topics: Iterable[str], *, start: Start | None = None) -> None:
        """Read all partitions of these topics from now on, and those that they get later.

        There are no groups yet: two consumers of one topic both read all of it. To share a topic
        out, give each its partitions with `assign`.

        Args:
            topics: their names; a list, also of one.
            start: as for `assign`.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
        """
        await self.assign(topics, start=start)

    def assignment(self) -> list[Place]:
        """Return the partitions that are read."""
        return self._core.assignment()

    def awaited_partitions(self) -> list[Place]:
        """Return the partitions that no broker sends at present.

        Nobody leads them, their broker cannot be reached, or where to begin is looked up. Paused
        ones, and those that cannot go on before `seek`, are not among them.
        """
        return self._core.awaited()

    def topic_ids(self) -> dict[str, TopicId]:
        """Return which topics are read, by name.

        One that is made anew under the name has another id:

            before = consumer.topic_ids()["orders"]
        """
        return dict(self._core.topic_ids)

    async def poll(
        self,
        timeout_ms: int = 1_000,
        max_records: int = 10_000,
        max_bytes: int = POLL_BYTES_MAX_DEFAULT,
    ) -> Records:
        """Return records, as soon as there are some; none when `timeout_ms` is over.

        Args:
            timeout_ms: how long to wait for the first.
            max_records: how many at the most; at least 1.
            max_bytes: of records as Arrow columns once inflated, unless the first alone is larger.

        Raises:
            ClosedError: the consumer is closed, or was while this waited.
            OffsetOutOfRangeError: with `auto_offset_reset="none"`.
            LogTruncatedError: records that were handed out are gone, after an unclean election; its
                `end_offset` is where to seek to go on. Nothing is ever skipped in silence.
            CorruptBatchError, UnsupportedFormatError: a batch is damaged, or of a later release;
                the position stays before it.
        """
        return await self._take(lambda: self._core.take_records(max_records, max_bytes), timeout_ms)

    async def poll_batches(
        self, timeout_ms: int = 1_000, max_bytes: int = POLL_BYTES_MAX_DEFAULT
    ) -> list[FetchedRecords]:
        """Return records as Arrow record batches: like `poll`, and several times as fast.

        Args:
            timeout_ms: how long to wait for the first.
            max_bytes: of batches once inflated, and 16 bytes for each record's offset and time,
                unless the first batch alone is larger.
        """
        return await self._take(lambda: self._core.take_batches(max_bytes), timeout_ms)

    async def _take(self, take: Callable[[], Taken], timeout_ms: int) -> Taken:
        """Return what there is to take, as soon as there is something."""
        with self._core.exclusive():
            deadline = time.monotonic() + timeout_ms / 1000
            while True:
                taken = take()
                if taken:
                    return taken
                left = deadline - time.monotonic()
                if left <= 0:
                    await asyncio.sleep(0)  # Else nothing ever comes to who asks and never waits.
                    return taken
                await self._core.wait_for_news(left)

    async def __aiter__(self) -> AsyncIterator[Record]:
        while True:
            try:
                lent = await self._take(self._core.lend_records, LOOP_WAIT_MS)
            except ClosedError:
                return
            for record in lent:
                yield record

    def seek(self, partition: Place, to: Start) -> None:
        """Go on elsewhere in a partition.

            consumer.seek(("orders", 0), 17)

        Args:
            partition: topic and number.
            to: an offset, "beginning" or "earliest", "end" or "latest".

        Raises:
            InvalidRequestError: the partition is not assigned, or an argument is no such thing.
        """
        with self._core.exclusive():
            self._core.seek(partition, to)

    async def seek_to_time(
        self, timestamp_ms: int, partitions: Iterable[Place] | None = None
    ) -> None:
        """Go to the first record at or after a time (ms UTC), in these or all partitions."""
        with self._core.exclusive():
            await self._core.seek_to_time(timestamp_ms, partitions)

    def pause(self, *partitions: Place) -> None:
        """Hand nothing out of these partitions until `resume`."""
        with self._core.exclusive():
            self._core.pause(partitions)

    def resume(self, *partitions: Place) -> None:
        """Go on with paused partitions."""
        with self._core.exclusive():
            self._core.resume(partitions)

    async def position(self, partition: Place) -> int:
        """Return the offset of the next record that `poll` will hand out.

        Raises:
            MillraceError: it had to be looked up, and for `request_timeout_ms` nobody could tell:
                the last reason. At once where the partition cannot go on, as `poll` tells or told.
        """
        with self._core.exclusive():
            return await self._core.position(partition)

    async def lag(self) -> dict[Place, int]:
        """Return how many records there are still to hand out, per partition."""
        with self._core.exclusive():
            return await self._core.lag()

    async def close(self) -> None:
        """Let go of everything; closing twice is harmless."""
        if not self._core.is_closed:
            await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
