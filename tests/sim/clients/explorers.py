"""Shipped clients that call their whole interface on one topic, and judge every answer.

Each client draws one call after another, while brokers may fail; half of them are synchronous
clients. The committed records decide which answers are allowed: no offset lies beyond them, the
records of a partition follow each other without a gap, and a call that only validates changes
nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pyarrow as pa
from tests.sim.clients.readers_and_writers import VALUE_BYTES, Client, Job, Load, Writer
from tests.sim.machines.on_threads import OnThreads
from tests.sim.world import SECOND, Violation

from millrace.client import (
    Admin,
    AfterBytes,
    BatchHandle,
    Consumer,
    Position,
    Producer,
    Record,
    RecordHandle,
)
from millrace.client._producer.settings import ProducerSettings
from millrace.core.errors import (
    Appended,
    BrokerIdNotRegisteredError,
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidRecordError,
    InvalidReplicationFactorError,
    LogTruncatedError,
    MessageTooLargeError,
    MillraceError,
    OffsetOutOfRangeError,
    PreferredLeaderNotAvailableError,
    ReassignmentRefusedError,
    RetriableError,
    SerializationError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import Offset

_TIMEOUT_MS: Final = 5_000
_NOT_A_BROKER: Final = 999
_NAME: Final = "explorer"
_POLL_MS: Final = 400
_LOOP_S: Final = 1.0
_LONGEST_US: Final = 3 * SECOND
"""How long a call may take where nothing fails."""
_CALLS_OF_EACH: Final = 40
"""After this many calls another client with new connections takes over."""
_COMPRESSIONS: Final = ("none", "zstd", "lz4", "snappy", "gzip")
_FLUSHES: Final = 0.1
_BUFFER_BYTES: Final = 1 << 20
_SYNC_ADMIN: Final[Any] = partial(OnThreads, Admin)
_SYNC_CONSUMER: Final[Any] = partial(OnThreads, Consumer)
_SYNC_PRODUCER: Final[Any] = partial(OnThreads, Producer)


class Explorer(Client):
    """Makes one call after another.

    Args:
        is_calm: there are no faults, so that no call may fail or take long.
    """

    def __init__(self, job: Job, *, is_calm: bool) -> None:
        super().__init__(job)
        self._is_calm = is_calm

    def _wrong(self, what: str) -> Violation:
        return Violation(f"{self.name} on {self._site.topic}: {what}")

    def _any_place(self) -> tuple[str, int]:
        return self._site.topic, self._dice.randrange(len(self._site.partitions))

    def _committed(self, partition: int) -> Offset:
        return self._site.committed(self._site.partitions[partition])

    def _time_ago(self, ms_max: int) -> int:
        """Return a drawn time within the last milliseconds, by this machine's clock."""
        wall_ms = self._machine.process.host.wall_ns() // 1_000_000
        return max(0, wall_ms - self._dice.randrange(ms_max))

    async def _make_calls(self, calls: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> None:
        for _ in range(_CALLS_OF_EACH):
            if self._is_done:
                return
            call = self._dice.choice(calls)
            began = self._world.now
            try:
                await call()
            except MillraceError as error:
                if self._is_calm:
                    raise self._wrong(f"{call.__name__} fails with {error!r}") from error
                self._judge(error)
            took = self._world.now - began
            if self._is_calm and took > _LONGEST_US:
                raise self._wrong(f"{call.__name__} takes {took / SECOND:.3f} s")
            await self._pause(self._every_us)


class AdminExplorer(Explorer):
    """Calls all of `Admin`."""

    _admin: Admin

    def __init__(self, job: Job, *, is_calm: bool, may_be_lost: Callable[[], bool]) -> None:
        super().__init__(job, is_calm=is_calm)
        self._may_be_lost = may_be_lost
        self._begun: Position | None = None
        self._topics_made = 0

    async def _work(self) -> None:
        calls = [
            self._describe_topic,
            self._describe_cluster,
            self._describe_logs,
            self._look_up_offsets,
            self._wait_for_news,
            self._change_nothing,
            self._create_and_delete,
            self._ask_for_what_is_wrong,
            self._take_back_moves,
            self._elect_preferred,
            self._keep_positions,
            self._begin_where_it_began,
        ]
        while not self._is_done:
            kind = self._dice.choice((Admin, _SYNC_ADMIN))
            async with kind(self._site.bootstrap, request_timeout_ms=_TIMEOUT_MS) as self._admin:
                await self._make_calls(calls)

    async def _describe_topic(self) -> None:
        site, admin = self._site, self._admin
        described = (await admin.describe_topics([site.topic]))[site.topic]
        at_length = await admin.describe_topic(site.topic)
        for topic in (described, at_length):
            if len(topic.partitions) != len(site.partitions):
                raise self._wrong(f"{len(topic.partitions)} partitions are described")
            for partition in topic.partitions:
                if partition.leader >= 0 and partition.leader not in partition.replicas:
                    raise self._wrong(f"its leader is no replica: {partition}")
        await admin.list_topics(internal=True)

    async def _describe_cluster(self) -> None:
        cluster = await self._admin.describe_cluster()
        brokers = {broker.broker_id for broker in cluster.brokers}
        if len(brokers) < len(cluster.brokers) or not brokers.issuperset(cluster.unreachable):
            raise self._wrong(f"brokers are {cluster.brokers}, unreachable {cluster.unreachable}")
        health = await self._admin.describe_health()
        for replica in health.offline:
            if replica.leader >= 0 or health.is_healthy:
                raise self._wrong(f"it is called offline: {replica}")

    async def _describe_logs(self) -> None:
        for log in await self._admin.describe_logs(self._site.topic):
            committed = self._committed(log.partition)
            if not log.log_start_offset <= log.high_watermark <= log.log_end_offset:
                raise self._wrong(f"offsets out of order: {log}")
            if log.high_watermark > committed or log.flushed_offset > log.log_end_offset:
                raise self._wrong(f"{committed} is committed of {log}")
        await self._admin.describe_damage(self._site.topic)

    async def _look_up_offsets(self) -> None:
        place = self._any_place()
        # A leader that has yet to hear of its successor knows no later offsets than this one.
        end = (await self._admin.list_offsets([place]))[place].offset
        after = AfterBytes(self._dice.randrange(end + 1), self._dice.randrange(1, 5_000))
        for at in ("beginning", "end", "max_timestamp", self._time_ago(60_000), after):
            found = (await self._admin.list_offsets({place: at}))[place]
            if found.offset > self._committed(place[1]):
                raise self._wrong(f"{at} is at {found}, which is not committed")
        both = await self._admin.list_offsets([self._site.topic], return_errors=True)
        if len(both) != len(self._site.partitions):
            raise self._wrong(f"ends of {len(both)} partitions are told")

    async def _wait_for_news(self) -> None:
        place = self._any_place()
        end = (await self._admin.list_offsets([place]))[place]
        epochs = {place: max(end.leader_epoch, 0)}
        reached = (await self._admin.find_epoch_ends(epochs))[place]
        if reached < 0:
            raise self._wrong(f"epoch {end.leader_epoch} ends at {reached}")
        # The call returns at the next record, which may exist already.
        await self._admin.wait_for_news({place: end.offset}, 2 * _LONGEST_US // 1_000)

    async def _change_nothing(self) -> None:
        admin, topic = self._admin, self._site.topic
        await admin.alter_topic(topic, set_config={"retention.ms": "1"}, validate_only=True)
        await admin.alter_topic(topic, unset_config=["retention.ms"], validate_only=True)
        await admin.delete_topic(topic, validate_only=True)
        await admin.create_topic("never", 1, 1, validate_only=True)
        if "never" in await admin.list_topics():
            raise self._wrong("a topic was made that was to be checked alone")

    async def _create_and_delete(self) -> None:
        """Create a topic and delete it; after an error that says "not created", check that."""
        self._topics_made += 1
        name = f"{self._own_name}-{self._topics_made}"
        try:
            await self._admin.create_topic(name, partitions=1, replication_factor=1)
        except MillraceError as error:
            if error.appended is Appended.NO and self._site.is_stored(name):
                raise self._wrong(f"{name} is there, though {error!r} was told") from error
            raise
        await self._admin.delete_topic(name)

    async def _ask_for_what_is_wrong(self) -> None:
        admin, topic = self._admin, self._site.topic
        wrong: list[tuple[type[MillraceError], Callable[[], Awaitable[object]]]] = [
            (TopicAlreadyExistsError, lambda: admin.create_topic(topic, validate_only=True)),
            (InvalidConfigError, lambda: admin.alter_topic(topic, set_config={"no": "setting"})),
            (InvalidPartitionsError, lambda: admin.alter_topic(topic, partitions=-1)),
            (BrokerIdNotRegisteredError, lambda: admin.unregister_broker(_NOT_A_BROKER)),
            (BrokerIdNotRegisteredError, lambda: admin.drain_broker(_NOT_A_BROKER)),
            (UnknownTopicOrPartitionError, lambda: admin.list_offsets([(topic, 999)])),
            (UnknownTopicOrPartitionError, lambda: admin.delete_topic("never")),
        ]
        expected, ask = self._dice.choice(wrong)
        try:
            await ask()
        except expected:
            return
        if not self._site.is_gone():
            raise self._wrong(f"{expected.__name__} does not come")

    async def _take_back_moves(self) -> None:
        place = self._any_place()
        outcome = (await self._admin.reassign_partitions({place: None}))[place]
        if outcome is not None and not isinstance(outcome, ReassignmentRefusedError):
            self._judge(outcome)

    async def _elect_preferred(self) -> None:
        places = None if self._dice.random() < 0.5 else [self._any_place()]
        for outcome in (await self._admin.elect_leaders(places)).values():
            if outcome is not None and not isinstance(outcome, PreferredLeaderNotAvailableError):
                self._judge(outcome)

    async def _keep_positions(self) -> None:
        admin, place = self._admin, self._any_place()
        position = Position(self._dice.randrange(1_000))
        await admin.commit_positions(self._own_name, {place: position})
        kept = (await admin.fetch_positions(self._own_name)).get(place)
        names = [group.name for group in await admin.list_groups()]
        if (kept != position or self._own_name not in names) and not self._may_be_lost():
            raise self._wrong(f"{position} was committed, and {kept} is kept; names are {names}")
        await admin.delete_group(self._own_name)
        kept = (await admin.fetch_positions(self._own_name)).get(place)
        if kept is not None and not self._may_be_lost():
            raise self._wrong(f"{kept} is kept, though positions were deleted")

    async def _begin_where_it_began(self) -> None:
        place, name = (self._site.topic, 0), f"{self._own_name}-began"
        proposal = Position(self._dice.randrange(1_000))
        began = (await self._admin.resolve_initial(name, {place: proposal}))[place]
        if self._begun not in (None, began) and not self._may_be_lost():
            raise self._wrong(f"it began at {self._begun}, and is now said to at {began}")
        self._begun = began

    def _judge(self, error: MillraceError) -> None:
        # There may be no broker at the moment that can take a replica.
        if isinstance(error, InvalidReplicationFactorError):
            return
        # The requested offsets may have been deleted since.
        may_be_gone = self._site.has_been_cut or self._site.has_given_up
        if not (isinstance(error, OffsetOutOfRangeError) and may_be_gone):
            super()._judge(error)

    @property
    def _own_name(self) -> str:
        return f"{_NAME}-{self.name}"


class ConsumerExplorer(Explorer):
    """Calls all of `Consumer`: it seeks, pauses, and takes records by every method."""

    _consumer: Consumer
    _expected: dict[int, int | None]
    """The next offset by partition; None: any."""
    _sought: set[int]
    """Partitions at an offset that the user named, without the epoch of its leader."""

    async def _work(self) -> None:
        calls = [
            self._poll,
            self._poll,
            self._poll_batches,
            self._poll_batches,
            self._seek,
            self._seek_to_time,
            self._pause_and_resume,
            self._tell_position,
            self._tell_lag,
            self._assign_some,
        ]
        while not self._is_done:
            kind = self._dice.choice((Consumer, _SYNC_CONSUMER))
            async with kind(
                self._site.bootstrap,
                request_timeout_ms=_TIMEOUT_MS,
                auto_offset_reset="earliest",
                transport=self._machine.transport,
                fetch_max_bytes=self._dice.choice((1_024, 1_000_000)),
            ) as self._consumer:
                self._expected, self._sought = {}, set()
                try:
                    await self._consumer.subscribe([self._site.topic], start="beginning")
                except MillraceError as error:
                    self._judge(error)
                else:
                    self._expect_anything()
                    iterating = [self._iterate] if kind is Consumer else []
                    await self._make_calls(calls + iterating)
            await self._pause(SECOND)

    def _expect_anything(self) -> None:
        self._expected = dict.fromkeys(range(len(self._site.partitions)))
        self._sought.clear()

    def _judge(self, error: MillraceError) -> None:
        self._expect_anything()
        if isinstance(error, LogTruncatedError):
            if not self._site.has_been_cut:
                raise self._wrong(f"it is told {error!r}")
            for place in self._consumer.assignment():
                self._consumer.seek(place, "beginning")
        else:
            super()._judge(error)

    def _check(self, partition: int, first: int, count: int) -> None:
        """Judge records that the consumer returned."""
        topic_partition = self._site.partitions[partition]
        expected = self._expected.get(partition)
        self._expected[partition] = first + count
        if first + count > self._site.committed(topic_partition):
            raise self._wrong(f"it gets {first + count - 1} of {partition}: not committed")
        if expected not in (None, first) and not self._may_jump(partition):
            raise self._wrong(f"{first} of {partition} comes where {expected} is next")
        self._sought.discard(partition)

    def _may_jump(self, partition: int) -> bool:
        """Whether the consumer may start over.

        Records may have been truncated or deleted. Or a leader that does not know yet that it was
        replaced refuses an offset beyond its log: without a leader epoch it cannot know better.
        """
        if partition in self._sought and not self._is_calm:
            return True
        topic_partition = self._site.partitions[partition]
        return self._site.may_be_cut(topic_partition) or bool(self._site.kept_from(topic_partition))

    def _check_records(self, records: list[Record]) -> None:
        for record in records:
            self._check(record.partition, record.offset, 1)

    async def _poll(self) -> None:
        count = self._dice.choice((1, 100))
        records = await self._consumer.poll(_POLL_MS, max_records=count)
        as_list = list(records)
        self._check_records(as_list)
        columns = list(zip(records.keys(), records.values(), strict=True))
        if columns != [(record.key, record.value) for record in as_list] or (
            as_list and (records[-1], records[1:]) != (as_list[-1], as_list[1:])
        ):
            raise self._wrong(f"{records!r} differ from {as_list}")

    async def _poll_batches(self) -> None:
        for fetched in await self._consumer.poll_batches(_POLL_MS, max_bytes=20_000):
            offsets = fetched.records["offset"].to_pylist()
            if offsets != list(range(offsets[0], offsets[0] + len(offsets))):
                raise self._wrong(f"{fetched.partition} has gaps: {offsets}")
            self._check(fetched.partition, offsets[0], len(offsets))

    async def _iterate(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOP_S):
                async for record in self._consumer:
                    self._check_records([record])
                    if self._dice.random() < 0.2:
                        break

    async def _seek(self) -> None:
        assigned = self._consumer.assignment()
        topic, partition = self._dice.choice(assigned)
        to = self._dice.randrange(self._committed(partition) + 1)
        self._consumer.seek((topic, partition), to)
        self._expected[partition] = to
        self._sought.add(partition)

    async def _seek_to_time(self) -> None:
        self._expect_anything()
        await self._consumer.seek_to_time(self._time_ago(120_000))

    async def _pause_and_resume(self) -> None:
        paused = self._dice.choice(self._consumer.assignment())
        self._consumer.pause(paused)
        records = list(await self._consumer.poll(_POLL_MS))
        if any(record.partition == paused[1] for record in records):
            raise self._wrong(f"{paused} is paused, and has records")
        self._check_records(records)
        self._consumer.resume(paused)
        self._consumer.awaited_partitions()

    async def _tell_position(self) -> None:
        topic, partition = self._dice.choice(self._consumer.assignment())
        position = await self._consumer.position((topic, partition))
        expected = self._expected[partition]
        if expected not in (None, position) and not self._may_jump(partition):
            raise self._wrong(f"{partition} is at {position}, where {expected} is next")

    async def _tell_lag(self) -> None:
        for place, lag in (await self._consumer.lag()).items():
            if not 0 <= lag <= self._committed(place[1]):
                raise self._wrong(f"{place} lags by {lag}")

    async def _assign_some(self) -> None:
        self._expect_anything()
        if self._dice.random() < 0.5:
            await self._consumer.subscribe([self._site.topic], start="beginning")
            return
        topic, partition = self._any_place()
        end = self._committed(partition)
        if end == 0:
            return
        start = self._dice.randrange(end)
        await self._consumer.assign({(topic, partition): start}, ends={(topic, partition): end})
        self._expected[partition] = start
        self._sought.add(partition)
        if topic not in self._consumer.topic_ids():
            raise self._wrong("it does not know the topic that it reads")


class WriterExplorer(Writer):
    """A writer that gives its records to all methods of `Producer` in turn, in all forms."""

    def __init__(self, job: Job, *, number: int, load: Load) -> None:
        super().__init__(job, number=number, load=load)
        self._called: list[tuple[RecordHandle, list[RecordHandle]]] = []
        self._batches: list[tuple[BatchHandle, list[RecordHandle]]] = []

    def _settings(self) -> ProducerSettings:
        return {
            **super()._settings(),
            "compression": self._dice.choice(_COMPRESSIONS),
            "buffer_memory": _BUFFER_BYTES,
        }

    def _producer(self) -> Producer:
        kind = self._dice.choice((Producer, _SYNC_PRODUCER))
        return kind(self._site.bootstrap, **self._settings())

    def _submit(
        self, producer: Producer, partition: int, values: Sequence[bytes]
    ) -> list[RecordHandle]:
        form = self._dice.choice(
            (self._one_by_one, self._as_lists, self._as_arrow, self._as_table, self._in_columns)
        )
        self._give_what_is_wrong(producer, partition)
        handles = form(producer, partition, values)
        called: list[RecordHandle] = []
        handles[-1].add_done_callback(called.append)
        self._called.append((handles[-1], called))
        return handles

    async def _send(self, producer: Producer, process: str, partition: int, key: int) -> bool:
        if self._dice.random() < _FLUSHES:
            await self._look_around(producer)
        is_known = await super()._send(producer, process, partition, key)
        batches, self._batches = self._batches, []
        for batch, handles in batches:
            if all(handle.done() for handle in handles):
                await self._judge_batch(batch, handles)
            else:
                self._batches.append((batch, handles))  # Of another partition.
        called, self._called = self._called, []
        for handle, heard in called:
            if handle.done() and heard != [handle]:
                raise self._wrong(f"{handle} is done, and its callback was called {heard}")
        return is_known

    async def _judge_batch(self, batch: BatchHandle, handles: Sequence[RecordHandle]) -> None:
        """Judge what is told of a batch when the outcome of all its records is known."""
        is_in_thread = self._dice.random() < 0.5
        failed = batch.errors()
        try:
            told = await (asyncio.to_thread(batch.result, 0) if is_in_thread else batch)
        except MillraceError as error:
            if str(error) not in map(str, failed.values()):
                raise self._wrong(
                    f"a batch fails with {error!r}, its records with {failed}"
                ) from None
            return
        offsets = [
            written.base_offset + index if written.base_offset >= 0 else -1
            for written in told.ranges
            for index in range(written.record_count)
        ]
        found = [handle.result(0).offset for handle in handles]
        if failed or not batch.done() or (offsets != found and self.load.acks != 0):
            raise self._wrong(f"{told} is told of a batch whose records are at {found}: {failed}")

    async def _look_around(self, producer: Producer | OnThreads) -> None:
        with suppress(RetriableError):
            if isinstance(producer, Producer):
                await producer.wait_for_room(_BUFFER_BYTES // 2)
            if len(await producer.partitions_for(self._site.topic)) != len(self._site.partitions):
                raise self._wrong("a producer knows other partitions")
        metrics = producer.metrics()
        settled = metrics["acknowledged_records"] + metrics["failed_records"]
        if settled > metrics["records"]:
            raise self._wrong(f"{metrics}: more is settled than was sent")
        if not 0 <= metrics["buffer_available_bytes"] <= metrics["buffer_total_bytes"]:
            raise self._wrong(f"{metrics}: more is free than there is")
        for tell in (producer.awaited_brokers, producer.producer_id_problem):
            if isinstance(producer, OnThreads):  # Only the synchronous client has to wait for it.
                await asyncio.to_thread(tell)
            else:
                tell()
        try:
            await producer.flush()
        except MillraceError as error:
            self._on_refused(0, error)

    def _give_what_is_wrong(self, producer: Producer, partition: int) -> None:
        """Give records that are refused at once, so that nothing of them is ever read."""
        topic = self._site.topic
        wrong: Callable[[], object] = self._dice.choice(
            (
                lambda: producer.send(topic, b"", partition=-1),
                lambda: producer.send(topic, b"", partition=partition, timestamp=-2),
                lambda: producer.send(topic, b"", headers=[("name", 1)]),  # type: ignore[list-item]
                lambda: producer.send(topic, "text", partition=partition),
                lambda: producer.send(topic, bytes(2 * _BUFFER_BYTES), partition=partition),
                lambda: producer.send_batch(topic, [b"a"], keys=[b"a", b"b"]),
                lambda: producer.send_batch(topic, {"value": [b"a"]}),
                lambda: producer.send_batch(topic, [b"a"], timestamps=[-2]),
                lambda: producer.send_batch(topic, pa.table({"other": [1]})),
                lambda: producer.send_batch(topic, pa.array([1.5])),
                lambda: producer.send_batch(topic),
            )
        )
        try:
            wrong()
        except (InvalidRecordError, SerializationError, MessageTooLargeError) as error:
            if error.appended is not Appended.NO:
                raise self._wrong(f"{error!r} says that something may be appended") from error
            return
        raise self._wrong("a producer takes what it must refuse")

    def _one_by_one(
        self, producer: Producer, partition: int, values: Sequence[bytes]
    ) -> list[RecordHandle]:
        return [
            producer.send(
                self._site.topic,
                value,
                key=self._dice.choice((None, b"key")),
                partition=partition,
                headers={"name": b"header", "empty": None},
                timestamp=self._now_ms(),
            )
            for value in values
        ]

    def _as_lists(
        self, producer: Producer, partition: int, values: Sequence[bytes]
    ) -> list[RecordHandle]:
        batch = producer.send_batch(
            self._site.topic,
            list(values),
            [b"key"] * len(values),
            partition=partition,
            headers=[{"name": b"header"}, *[None] * (len(values) - 1)],
            timestamps=[self._now_ms()] * len(values),
        )
        return self._handles_of(batch)

    def _as_arrow(
        self, producer: Producer, partition: int, values: Sequence[bytes]
    ) -> list[RecordHandle]:
        kind = self._dice.choice((pa.binary(), pa.large_binary(), pa.binary(VALUE_BYTES)))
        column = pa.array(values, kind)
        if self._dice.random() < 0.5:
            column = column.dictionary_encode()
        return self._handles_of(producer.send_batch(self._site.topic, column, partition=partition))

    def _as_table(
        self, producer: Producer, partition: int, values: Sequence[bytes]
    ) -> list[RecordHandle]:
        count = len(values)
        table = pa.table(
            {
                "value": pa.array(values, pa.binary()),
                "timestamp": pa.array([self._now_ms()] * count, pa.timestamp("ms", "UTC")),
                "headers": pa.array([[{"key": "name", "value": b"header"}]] * count),
                "partition": pa.array([partition] * count),
                "left out": pa.array(range(count)),
            }
        )
        return self._handles_of(producer.send_batch(self._site.topic, table))

    def _in_columns(
        self, producer: Producer, partition: int, values: Sequence[bytes]
    ) -> list[RecordHandle]:
        batch = producer.send_batch(
            self._site.topic,
            pa.chunked_array([pa.array([value], pa.binary()) for value in values]),
            pa.array(["key"] * len(values)),
            partition=partition,
            timestamps=self._now_ms(),
        )
        if (batch.done() and not batch.errors()) or len(batch) != len(values):
            raise self._wrong(f"{len(batch)} of {len(values)} records, before the loop ran: done")
        return self._handles_of(batch)

    def _handles_of(self, batch: BatchHandle) -> list[RecordHandle]:
        handles = [batch[index] for index in range(len(batch))]
        self._batches.append((batch, handles))
        return handles

    def _now_ms(self) -> int:
        return self._machine.process.host.wall_ns() // 1_000_000

    def _wrong(self, what: str) -> Violation:
        return Violation(f"{self.name} on {self._site.topic}: {what}")
