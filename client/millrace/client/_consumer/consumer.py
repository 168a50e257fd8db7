"""The async consumer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import Final, TypeVar, Unpack

from millrace.client._consumer.assignment import Start
from millrace.client._consumer.dead_letters import DeadLetters, Handler, process
from millrace.client._consumer.exactly_once import (
    BYTES_MAX_DEFAULT,
    INTERVAL_MS_DEFAULT,
    LoopProducer,
    TransactionalProducer,
    Transform,
    loop_producer_of,
    process_exactly_once,
)
from millrace.client._consumer.handing_out import HandingOut, check_max_records
from millrace.client._consumer.membership import Callback
from millrace.client._consumer.reading import ConsumerCore
from millrace.client._consumer.records import FetchedRecords, LentRecords, Record, Records, parts
from millrace.client._consumer.settings import ConsumerConfig, ConsumerSettings
from millrace.client._consumer.transactional_reading import TransactionalReading
from millrace.client._settings import documents
from millrace.client._with_blocks import AsyncClient
from millrace.core.errors import ClosedError, InvalidRequestError
from millrace.core.ids import TopicId
from millrace.core.settings import parse
from millrace.core.topics import PartitionName
from millrace.runtime import host

LOOP_WAIT_MS: Final = 1_000
"""How long a loop over a consumer waits at a time."""
POLL_BYTES_MAX_DEFAULT: Final = 16_777_216

Taken = TypeVar("Taken", bound=Sized)


@documents(ConsumerConfig)
class Consumer(AsyncClient):
    """Reads records, from an event loop.

        async with Consumer("localhost:7092") as consumer:
            await consumer.subscribe(["orders"])
            async for record in consumer:
                print(record.offset, record.key, record.value)

    One task uses a consumer at a time. With `group="name"` it shares the topics that it subscribes
    to with the other members of the group. A program may leave a loop at any record: the
    next loop, or `poll`, continues with the record after it. `seek` and `pause` also work inside a
    loop.

    A member's heartbeats need the event loop, and get it in each poll; `async for` and `process`
    poll every 100 ms. Code that does not wait for anything keeps the loop from them meanwhile: for
    code that takes a second or longer, use `SyncConsumer`, or `asyncio.to_thread`.

    Sizes and times may be texts with a unit, such as `"64MiB"` and `"30s"`.

    Args:
        bootstrap: `host:port` of brokers, tried in turn: a string with commas, or a sequence.
        {settings}

    Raises:
        InvalidConfigError: a setting does not exist, or is out of its bounds.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], **settings: Unpack[ConsumerSettings]
    ) -> None:
        config = parse(ConsumerConfig, settings)
        self._core = ConsumerCore(bootstrap, config, asyncio.get_running_loop())
        self._reading = TransactionalReading(self._core)

    async def assign(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, Start],
        *,
        start: Start | None = None,
        ends: Mapping[PartitionName, int] = MappingProxyType({}),
    ) -> None:
        """Read exactly these partitions from now on.

            await consumer.assign(["orders", ("payments", 0)], start="end")
            await consumer.assign({("orders", 0): 17, ("orders", 1): "beginning"})

        Args:
            partitions: topic and number, or a topic for all of its partitions; as a mapping, each
                with its own start.
            start: an offset, "beginning" or "earliest", "end" or "latest"; None: where
                `auto_offset_reset` says.
            ends: offsets up to which partitions are read. The last batch fetched is the one that
                holds the record before that offset, and it is handed out whole: `position` shows
                when a partition has reached its end.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic or partition.
            InvalidRequestError: an invalid start, an end of a partition that is not assigned, or
                the consumer is a member of a group.
        """
        with self._core.exclusive():
            if self._core.membership is not None:
                raise InvalidRequestError(
                    "a member of a group reads what the group assigns: leave it first, by "
                    "subscribe([])"
                )
            await self._core.assignment.assign(partitions, start, ends)

    async def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str = "",
        start: Start | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Read all partitions of these topics from now on, and those that they get later.

        With the setting `group`, the members of the group share the partitions, and `poll` takes
        what the group assigns. Without it, the consumer reads all of them.

        Args:
            topics: their names; a list, also of one. A group's need not exist yet.
            pattern: a regular expression (RE2): it reads the topics whose whole name matches,
                besides `topics`, and those that are created later. Without a group, the consumer
                looks for them every `metadata_max_age_ms`.
            start: as for `assign`; a group begins where it has committed, or by
                `auto_offset_reset`. Partitions that come later are read from their start.
            on_assigned: called in `poll` with partitions that the group gave to this member; it may
                `seek` there.
            on_revoked: called in `poll` with partitions that the group takes; it may commit.
            on_lost: likewise with partitions that others may own already; by default `on_revoked`.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic, and no group.
            InvalidRequestError: `start`, a callback, or without a group the pattern is wrong.
        """
        if not self._core.config.group:
            if on_assigned or on_revoked or on_lost:
                raise InvalidRequestError("only a member of a group has callbacks: set group=...")
            with self._core.exclusive():
                await self._core.assignment.read_topics(topics, pattern, start)
            return
        if start is not None:
            raise InvalidRequestError(
                "a group begins where it has committed: use auto_offset_reset, or seek in "
                "on_assigned"
            )
        with self._core.exclusive():
            await self._core.subscribe(topics, pattern, on_assigned, on_revoked, on_lost)

    async def commit(self, positions: Mapping[PartitionName, int] | None = None) -> None:
        """Commit how far the group has read; return when it is durable.

        Args:
            positions: the offset of the next record to process, by partition; None: after all
                records that were handed out, in `process` after those that are done.

        Raises:
            StaleMemberEpochError, UnknownMemberIdError: the group has given partitions to others.
            InvalidRequestError: there is no group.
        """
        # Not exclusive: a callback of `poll` may commit.
        await self._core.commit(positions)

    def assignment(self) -> list[PartitionName]:
        """Return the partitions that are read."""
        return self._core.assigned()

    def awaited_partitions(self) -> list[PartitionName]:
        """Return the partitions that no broker sends at present.

        They have no leader, their broker cannot be reached, or their start is being looked up.
        Paused ones, and those that need a `seek`, are not among them.
        """
        return self._core.awaited()

    def topic_ids(self) -> dict[str, TopicId]:
        """Return which topics are read, by name.

        A topic that is created again under the name has another id:

            before = consumer.topic_ids()["orders"]
        """
        return dict(self._core.assignment.topic_ids)

    async def poll(
        self,
        timeout_ms: int = 1_000,
        max_records: int = 10_000,
        max_bytes: int = POLL_BYTES_MAX_DEFAULT,
    ) -> Records:
        """Return records, as soon as there are some; none when `timeout_ms` is over.

        Also none when a partition with an end (`assign`) has come to it, and what was left there
        was no record for this consumer: ends and aborted records of transactions.

        Args:
            timeout_ms: how long to wait for the first.
            max_records: how many at the most; at least 1.
            max_bytes: of records as Arrow columns once inflated, unless the first alone is larger.

        Raises:
            ClosedError: the consumer is closed, or was while this waited.
            OffsetOutOfRangeError: with `auto_offset_reset="none"`.
            LogTruncatedError: records that were handed out are gone, after an unclean election; its
                `end_offset` is where to seek to go on.
            UnknownTopicOrPartitionError: all topics that it reads were deleted. While there are
                others, or with a group, a deleted topic leaves the assignment.
            CorruptBatchError: a batch came damaged though its broker has verified it; the position
                stays before it.
            UnsupportedFormatError: a batch is of a later release; likewise.

        Nothing is ever skipped in silence: where records were deleted before they were read, and
        where a topic was deleted or made again, the consumer logs a warning (`position_jumped`,
        `read_topic_gone`, `read_topic_made_again`) and counts it in `metrics()`.
        """
        check_max_records(max_records)
        return await self._take(lambda out: out.take_records(max_records, max_bytes), timeout_ms)

    async def poll_batches(
        self, timeout_ms: int = 1_000, max_bytes: int = POLL_BYTES_MAX_DEFAULT
    ) -> list[FetchedRecords]:
        """Return records as Arrow record batches: like `poll`, and several times as fast.

        Each has one record at least.

        Args:
            timeout_ms: how long to wait for the first.
            max_bytes: of batches once inflated, and 16 bytes for each record's offset and time,
                unless the first batch alone is larger.
        """
        return await self._take(lambda out: out.take_batches(max_bytes), timeout_ms)

    async def _take(self, take: Callable[[HandingOut], Taken], timeout_ms: int) -> Taken:
        """Return what there is to take, as soon as there is something."""
        with self._core.exclusive():
            deadline = host.monotonic_s() + timeout_ms / 1000
            polling = self._core.begin_poll()
            while True:
                await self._core.give_way()
                membership = self._core.membership
                if membership is not None and membership.is_due:
                    await membership.poll()
                taken = self._core.take(take)
                if taken or self._core.fetching.take_end():
                    polling(taken)
                    return taken
                left = deadline - host.monotonic_s()
                if left <= 0:
                    await asyncio.sleep(0)  # Else a caller that never waits gets nothing.
                    return taken
                await self._core.wait_for_news(left)

    async def __aiter__(self) -> AsyncIterator[Record]:
        while True:
            try:
                lent = await self._lend(LOOP_WAIT_MS)
            except ClosedError:
                if self._core.is_closed:
                    return
                raise  # Of what a callback uses, or in the child of a fork.
            for part in parts(lent):
                for record in part:
                    yield record

    async def _lend(self, timeout_ms: int) -> LentRecords | tuple[()]:
        return await self._take(HandingOut.lend_records, timeout_ms)

    async def process(self, handler: Handler, dead_letters: DeadLetters) -> None:
        """Call a function with each record, at least once, until the consumer is closed.

            dead_letters = DeadLetters(producer, "orders.dead", attempts=5)
            async with Consumer("localhost:7092", group="billing") as consumer:
                await consumer.subscribe(["orders"])
                await consumer.process(bill, dead_letters)

        A record whose function raises is tried again, after a pause, before any other record of its
        partition. Other partitions go on meanwhile. A record that fails too often goes to the topic
        of the dead, and its partition goes on when that is acknowledged. Commits cover only records
        that the function has finished. With `enable_auto_commit=False` the program has to call
        `commit()`, which in the function covers the records before. To stop, cancel the task, or
        close the consumer, which does not wait for the function: the record whose call was under
        way is read again next time.

        Args:
            handler: takes a `Record`; a function or a coroutine function. One call must take less
                than `max_poll_interval_ms`. A plain function keeps the event loop for the length of
                one call, so that no heartbeat is sent meanwhile: it must take a small part of the
                session, which is 10 s by default (`groups.session_timeout_ms` of brokers).
            dead_letters: where records go that fail too often, and how often that is.

        Raises:
            MillraceError: as `poll`; or a record failed too often, and the topic of the dead did
                not take it: it is not committed.
        """
        await self._process(self._core.traced(handler), dead_letters)

    async def _process(self, handler: Handler, dead_letters: DeadLetters) -> None:
        try:
            await process(self._core, self._lend, handler, dead_letters)
        except ClosedError:
            if not self._core.is_closed:
                raise  # Of the producer, or in the child of a fork.

    async def process_exactly_once(
        self,
        transform: Transform,
        producer: TransactionalProducer,
        *,
        interval_ms: int = INTERVAL_MS_DEFAULT,
        bytes_max: int = BYTES_MAX_DEFAULT,
    ) -> None:
        """Write what a function makes of records, exactly once, until the consumer is closed.

            def delays(read: FetchedRecords) -> Iterator[OutputRecords]:
                yield OutputRecords("delays", keys=read.records["key"], values=late(read.records))

            async with (
                Consumer(brokers, group="delays", enable_auto_commit=False) as consumer,
                Producer(brokers, transactional_id="delays-1") as producer,
            ):
                await consumer.subscribe(["flights"])
                await consumer.process_exactly_once(delays, producer)

        What the function returns is sent in transactions, together with the positions of the group.
        The members of a group share the work; each needs a transactional id of its own. After a
        failure, or when the group gives partitions to others, the records come again, and what the
        function returned before does not count. So it must have no other effect than what it
        returns. To stop, cancel the task.

        Args:
            transform: takes Arrow records of one partition, and returns what is to be sent: a
                function, a generator, or a coroutine function. A plain one keeps the event loop for
                the length of one call, as in `process`.
            producer: with a transactional id.
            interval_ms: a transaction is committed when it has been open for so long. Readers of
                committed records wait for that.
            bytes_max: it is committed earlier when it has read so many bytes.

        Raises:
            ProducerFencedError: another producer has the transactional id.
            MillraceError: what another attempt cannot cure.
            InvalidRequestError: the consumer commits by itself, or is in no group; or the arguments
                are not a function and a producer.
        """
        loop_producer = loop_producer_of(transform, producer)
        await self._process_exactly_once(transform, loop_producer, interval_ms, bytes_max)

    async def _process_exactly_once(
        self, transform: Transform, producer: LoopProducer, interval_ms: int, bytes_max: int
    ) -> None:
        try:
            await process_exactly_once(
                self,
                transform,
                producer,
                interval_ms=interval_ms,
                bytes_max=bytes_max,
                group=self._core.config.group,
            )
        except ClosedError:
            if not self._core.is_closed:
                raise  # Of the producer, or in the child of a fork.

    def seek(self, partition: PartitionName, to: Start) -> None:
        """Move to another position in a partition.

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
        self, timestamp_ms: int, partitions: Iterable[PartitionName] | None = None
    ) -> None:
        """Go to the first record at or after a time (ms UTC), in these or all partitions."""
        with self._core.exclusive():
            await self._core.seek_to_time(timestamp_ms, partitions)

    def pause(self, *partitions: PartitionName) -> None:
        """Hand nothing out of these partitions until `resume`."""
        with self._core.exclusive():
            self._core.pause(partitions)

    def resume(self, *partitions: PartitionName) -> None:
        """Go on with paused partitions."""
        with self._core.exclusive():
            self._core.resume(partitions)

    async def position(self, partition: PartitionName) -> int:
        """Return the offset of the next record that `poll` will hand out.

        Raises:
            MillraceError: it had to be looked up, without success within `request_timeout_ms`: the
                last reason. At once if the partition has an error, which `poll` raises.
        """
        with self._core.exclusive():
            return await self._core.position(partition)

    async def lag(self) -> dict[PartitionName, int]:
        """Return how many offsets are still to be handed out, per partition.

        Those are as many records, or fewer where the topic is compacted.
        """
        with self._core.exclusive():
            return await self._core.lag()

    def metrics(self) -> dict[str, int]:
        """Return counters since the start: of what was taken, in whole batches, and of what failed.

        `assignments` are those that the group made. `jumps` are those of positions that the program
        did not move, and `skipped_records` the offsets that they passed over. `failed_streams` to
        brokers broke, or could not be opened. `throttled_ms` is for how long quotas have delayed
        answers, each broker's counted by itself. `millrace.client.metrics` shows all of it to
        Prometheus.
        """
        counters = self._core.counters
        return {
            "records": counters.records,
            "batches": counters.batches,
            "batch_bytes": counters.batch_bytes,
            "assignments": counters.assignments,
            "jumps": sum(counters.jumps.values()),
            "skipped_records": counters.skipped_records,
            "commits": sum(counters.commit_seconds.counts),
            "failed_commits": sum(counters.commit_failures.values()),
            "failed_streams": self._core.fetching.streams.failures,
            "throttled_ms": counters.throttled_ms,
        }

    async def close(self) -> None:
        """Commit, leave the group, and release everything.

        Closing twice is harmless: a call while another one is under way waits for that one.
        Takes `close_timeout_ms` at the most. If the group's coordinator has not answered by then, a
        warning is logged.
        """
        await self._core.close()
