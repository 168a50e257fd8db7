"""Shipped clients of a simulated cluster; they report what they did and saw to `tests.checkers`.

For each topic and each kind of load, one process runs a producer, which sends bursts to every
partition. Another polls all partitions in a loop. Optional ones read from the replica in their
zone, ask for end offsets, or commit positions. A burst with an unknown outcome retires the logical
process that sent it, as the checkers require.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, cast

from tests.checkers.history import FAIL, INFO, INVOKE, OK, Op, Recorder, Send
from tests.sim.clients.kafka.connections import KafkaBrokers
from tests.sim.clients.kafka.consumer import KafkaConsumer
from tests.sim.clients.kafka.producer import KafkaProducer, ProducerParts
from tests.sim.machines.machine import ClientMachine
from tests.sim.world import MILLISECOND, SECOND, Violation, World

from millrace.client import Admin, Consumer, Position, Producer, RecordHandle
from millrace.client._producer.settings import BATCH_SIZE_DEFAULT, ProducerSettings
from millrace.core.errors import (
    Appended,
    ConnectionFailedError,
    CorruptBatchError,
    DeliveryTimedOutError,
    LogTruncatedError,
    MillraceError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RetriableError,
    StorageError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import NO_TIMESTAMP, LeaderEpoch, Offset, TopicPartition
from millrace.core.isolation import READ_COMMITTED, READ_UNCOMMITTED, Isolation

Acks = Literal["all", 0, 1]
VALUE_BYTES: Final = 8
_VALUES_OF_EACH: Final = 10_000_000
_PATIENCE_MS: Final = 3_600_000
_IMPATIENCE_MS: Final = 2_000
_POLL_MS: Final = 500
_KAFKA_REQUEST_S: Final = 10
_NAMES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What one producer does with each partition.

    Attributes:
        every_us: the mean pause between two bursts.
        quiet_every_us: the least mean pause in quiet. There bursts must go on; many of them show no
            more, and took a third of the scenarios' time.
        burst_max: most batches of a burst.
        acks: of the producer.
        is_patient: it retries until it has the acknowledgement, without a time limit.
        request_timeout_ms: how long a broker may take to answer; 0: no limit but its patience.
        is_new: each burst comes from a new producer, which no broker knows.
        client_id: of the producer, for quotas; empty: the default.
        value_bytes: the size of each value, at least 8; large ones are not compressed.
        values_max: most values of a batch.
        is_apart: each value is a batch, so that no request is large.
    """

    every_us: int = 300 * MILLISECOND
    quiet_every_us: int = 200 * MILLISECOND
    burst_max: int = 3
    acks: Acks = "all"
    is_patient: bool = True
    request_timeout_ms: int = 0
    is_new: bool = False
    client_id: str = ""
    value_bytes: int = VALUE_BYTES
    values_max: int = 3
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """What the clients of a topic have to know.

    Attributes:
        topic: its name.
        keys: of the history, one for each partition.
        partition_of: the partition of each key.
        may_be_cut: whether its records may be lost, by an unclean election that is stored.
        kept_from: the offset below which retention may have deleted records.
        newest_epoch: its leader epoch, as stored.
        committed: the highest offset that any leader of it has ever committed.
        is_gone: whether the topic was deleted, or soon will be.
        is_stored: whether there is a topic of a name, as stored.
        is_quiet: whether all faults have ended for a while.
        has_damage: whether a fault damaged a file; a leader sends batches without verifying them.
        marks: of a compacted topic; None: it is not compacted.
        is_transactional: whether its log has markers, and records of aborted transactions.
        untimed: values that clients of Kafka sent without a time.
        has_append_time: whether its records have the times of their leaders.
        ended_by_hand: how often a person has asked to abort a transaction of an id, of all topics.
    """

    world: World
    bootstrap: str
    topic: str
    recorder: Recorder
    keys: Sequence[int]
    partitions: Sequence[TopicPartition]
    may_be_cut: Callable[[TopicPartition], bool]
    kept_from: Callable[[TopicPartition], Offset]
    newest_epoch: Callable[[TopicPartition], LeaderEpoch]
    committed: Callable[[TopicPartition], Offset]
    is_gone: Callable[[], bool]
    is_stored: Callable[[str], bool]
    is_quiet: Callable[[], bool]
    has_damage: Callable[[], bool]
    marks: "Marks | None" = None
    is_transactional: bool = False
    untimed: set[int] = field(default_factory=set)
    has_append_time: bool = False
    ended_by_hand: Counter[str] = field(default_factory=Counter)

    @property
    def has_holes(self) -> bool:
        """Whether offsets have no record for a reader, also the last ones."""
        return self.marks is not None or self.is_transactional

    def on_untimed(self, values: Sequence[bytes | None]) -> None:
        """Records are sent without a time."""
        self.untimed.update(int.from_bytes(value, "big") for value in values if value)

    @property
    def has_been_cut(self) -> bool:
        """Whether any partition may have lost records in an unclean election."""
        return any(map(self.may_be_cut, self.partitions))

    @property
    def has_given_up(self) -> bool:
        """Whether retention may have deleted records of any partition."""
        return any(map(self.kept_from, self.partitions))


class Marks:
    """The records of a compacted topic that replace each other.

    Each producer writes one key in each partition again and again: numbers, and then a tombstone;
    after that it takes another key, and never writes the deleted one again. Nobody else writes that
    key, and one record of it is in flight at a time. So the last record in the log is the last one
    that was acknowledged, or one that was sent after it.

    All other records of such a topic have keys of their own, and must stay.
    """

    PREFIX: Final = b"mark-"
    _TOMBSTONE_EVERY: Final = 4

    def __init__(self) -> None:
        self._possible: dict[tuple[int, bytes], list[bytes | None]] = {}
        self._deleted: Counter[tuple[int, int]] = Counter()

    def key_of(self, partition: int, writer: int) -> bytes:
        """Return the key that a producer writes now."""
        return self.PREFIX + b"%d-%d" % (writer, self._deleted[partition, writer])

    def next_of(self, partition: int, key: bytes) -> bytes | None:
        """Return the next value of a key, which is about to be sent."""
        possible = self._possible.setdefault((partition, key), [None])
        number = len(possible) + int.from_bytes(possible[0] or b"", "big")
        value = None if number % self._TOMBSTONE_EVERY == 0 else number.to_bytes(VALUE_BYTES, "big")
        possible.append(value)
        return value

    def on_done(self, partition: int, writer: int, *, is_written: bool) -> None:
        """The outcome of the value that was sent last is known."""
        possible = self._possible[partition, self.key_of(partition, writer)]
        if is_written:
            del possible[:-1]
            self._deleted[partition, writer] += possible == [None]
        else:
            possible.pop()

    def judge(
        self, partition: int, seen: Mapping[bytes, bytes | None], where: str = "the leader"
    ) -> None:
        """Check what a reader has seen of the whole partition: the last value of each key."""
        for (number, key), possible in self._possible.items():
            if number == partition and seen.get(key) not in possible:
                raise Violation(
                    f"partition {partition} at {where} ends with {seen.get(key)!r} of {key!r}, "
                    f"which should be one of {possible}"
                )


@dataclass(frozen=True, slots=True)
class Job:
    """What every client is told: who it is, what it works with, where, and how often."""

    name: str
    site: Site
    machine: ClientMachine
    every_us: int
    """The mean pause between two pieces of its work."""


class Client:
    """A process that works with a topic.

    Attributes:
        is_over: it has ended.
    """

    def __init__(self, job: Job) -> None:
        self.name = job.name
        self.is_over = False
        self.is_stopped = False
        self._every_us = job.every_us
        self._site = job.site
        self._world = job.site.world
        self._machine = job.machine
        self._dice = self._world.random(f"client {self.name}")
        self._lives = itertools.count(1)

    def start(self) -> None:
        self._machine.process.begin(self._run)

    async def _run(self) -> None:
        await self._work()
        self.is_over = True

    async def _work(self) -> None:
        raise NotImplementedError

    @property
    def _is_done(self) -> bool:
        return self.is_stopped or self._site.is_gone()

    def _record(
        self,
        process: str,
        type: str,
        f: str,
        *,
        sends: Sequence[Send] = (),
        polled: Sequence[Mapping[int, Sequence[Sequence[int]]]] = (),
        details: object = None,
        error: str | None = None,
    ) -> None:
        at_ns = self._world.now * 1000
        op = Op(at_ns, process, type, f, sends=sends, details=details, error=error)
        self._site.recorder.record(op, polled)

    def _judge(self, error: MillraceError) -> None:
        """Fail on an error that no client should meet, whatever happens to brokers."""
        if isinstance(error, CorruptBatchError) and self._site.has_damage():
            return
        if not isinstance(error, RetriableError | StorageError | ConnectionFailedError):
            raise Violation(f"{self.name} is told {type(error).__name__}: {error}")

    async def _pause(self, mean_us: int) -> None:
        await asyncio.sleep((1 + self._dice.expovariate(1 / mean_us)) / SECOND)


class Writer(Client):
    """Sends bursts to every partition of its topic.

    Attributes:
        acknowledged: number of values so far, of each partition.
        waits_since: when each partition's burst in flight was sent.
        told: the errors that it received.
    """

    def __init__(self, job: Job, *, number: int, load: Load) -> None:
        super().__init__(job)
        self.load = load
        self.acknowledged = dict.fromkeys(job.site.keys, 0)
        self.waits_since: dict[int, int] = {}
        self.told: list[str] = []
        self._values = itertools.count(number * _VALUES_OF_EACH)
        self._number = number

    async def _work(self) -> None:
        async with self._producer() as producer:
            writing = [
                asyncio.create_task(self._write(producer, partition, key))
                for partition, key in enumerate(self._site.keys)
            ]
            await asyncio.gather(*writing)

    def _producer(self) -> Producer:
        if self._machine.kafka:
            return self._kafka_producer()
        return Producer(self._site.bootstrap, **self._settings())

    def _kafka_producer(self) -> Producer:
        """Return a producer that speaks Kafka's protocol: what is used here of both is alike."""
        settings: dict[str, Any] = {**self._settings()}
        acks = settings["acks"]
        patience_s = settings["request_timeout_ms"] / 1000
        client_id = settings.get("client_id", self.name)
        parts = ProducerParts(
            brokers=KafkaBrokers(self._machine.kafka, client_id, self._dice, patience_s),
            acks=-1 if acks == "all" else acks,
            delivery_timeout_s=settings["delivery_timeout_ms"] / 1000,
            is_apart=not settings["batch_size"],
            dice=self._dice,
            on_untimed=self._site.on_untimed,
        )
        return cast(Producer, KafkaProducer(parts))

    def _settings(self) -> ProducerSettings:
        load = self.load
        settings: ProducerSettings = {"client_id": load.client_id} if load.client_id else {}
        if load.value_bytes > VALUE_BYTES:
            settings["compression"] = "none"
        return settings | {
            "acks": load.acks,
            "transport": self._machine.transport,
            "linger_ms": 1,
            "delivery_timeout_ms": _PATIENCE_MS if load.is_patient else _IMPATIENCE_MS,
            "request_timeout_ms": load.request_timeout_ms
            or (10_000 if load.is_patient else _IMPATIENCE_MS),
            "topic_wait_ms": _PATIENCE_MS,
            # What gathers while a producer begins would otherwise be one batch.
            "batch_size": 0 if load.is_new or load.is_apart else BATCH_SIZE_DEFAULT,
        }

    async def _write(self, producer: Producer, partition: int, key: int) -> None:
        process = f"{self.name}.{key}"
        while not self._is_done:
            self.waits_since[key] = self._world.now
            if self.load.is_new:
                async with self._producer() as new:
                    is_known = await self._send(new, process, partition, key)
            else:
                is_known = await self._send(producer, process, partition, key)
            self.waits_since.pop(key)
            if not is_known:
                process = f"{self.name}.{key}.{next(self._lives)}"
            least_us = self.load.quiet_every_us if self._site.is_quiet() else 0
            await self._pause(max(self._every_us, least_us))

    async def _send(self, producer: Producer, process: str, partition: int, key: int) -> bool:
        """Send a burst and wait for it; return whether its outcome is known."""
        dice = self._dice
        batches = [
            [next(self._values) for _ in range(1 + dice.randrange(self.load.values_max))]
            for _ in range(1 + dice.randrange(self.load.burst_max))
        ]
        values = [value for batch in batches for value in batch]
        self._record(process, INVOKE, "send", sends=[Send(key, value) for value in values])
        handles: list[RecordHandle] = []
        for batch in batches:
            data = [value.to_bytes(self.load.value_bytes, "big") for value in batch]
            handles += self._submit(producer, partition, data)
            await asyncio.sleep(0.002)  # So that the next records get a batch of their own.
        if self._site.marks is not None:
            await self._send_mark(self._site.marks, producer, partition)
        done: list[Send] = []
        failed: list[tuple[int, MillraceError]] = []
        for value, handle in zip(values, handles, strict=True):
            try:
                done.append(Send(key, value, (await handle).offset))
            except MillraceError as error:
                failed.append((value, error))
                self._on_refused(partition, error)
        self.acknowledged[key] += len(done)
        if self.load.acks != "all":  # Records that only the leader has may be lost.
            done = [Send(key, value) for _, value, _ in done]
        if done:
            self._record(process, INFO if self.load.acks == 0 else OK, "send", sends=done)
        for value, why in failed:
            kind = FAIL if why.appended is Appended.NO else INFO
            self._record(process, kind, "send", sends=[Send(key, value)], error=repr(why))
        return not failed and self.load.acks != 0

    def _submit(
        self, producer: Producer, partition: int, values: Sequence[bytes]
    ) -> list[RecordHandle]:
        """Give records of one partition to the producer; return a handle for each."""
        is_compacted = self._site.marks is not None
        return [
            producer.send(
                self._site.topic, value, key=value if is_compacted else None, partition=partition
            )
            for value in values
        ]

    async def _send_mark(self, marks: Marks, producer: Producer, partition: int) -> None:
        """Send a record that replaces the one before."""
        key = marks.key_of(partition, self._number)
        value = marks.next_of(partition, key)
        try:
            await producer.send(self._site.topic, value, key=key, partition=partition)
        except MillraceError as error:
            if error.appended is Appended.NO:
                marks.on_done(partition, self._number, is_written=False)
            self._on_refused(partition, error)
        else:
            marks.on_done(partition, self._number, is_written=True)

    def _on_refused(self, partition: int, error: MillraceError) -> None:
        self.told.append(str(error))
        if isinstance(error, OutOfOrderSequenceError):
            topic_partition = self._site.partitions[partition]
            if self.load.acks == "all" and not self._site.may_be_cut(topic_partition):
                raise Violation(f"{self.name} is told {error!r}")
        elif self.load.is_patient or not isinstance(error, DeliveryTimedOutError):
            self._judge(error)


class Reader(Client):
    """Polls all partitions of its topic, from their beginning.

    Args:
        zone: read from the replica in this zone, if there is one.

    Attributes:
        began_at: when its current pass began; it starts over after an error.
        next_offsets: its position in each partition.
        marks: the last value of each mark, by partition.
    """

    poll_f: ClassVar[str] = "poll"
    isolation: ClassVar[Isolation] = READ_COMMITTED

    def __init__(self, job: Job, *, zone: str = "") -> None:
        super().__init__(job)
        self.began_at = 0
        self.next_offsets: dict[int, int] = {}
        self.marks: dict[int, dict[bytes, bytes | None]] = {}
        self._zone = zone

    async def _work(self) -> None:
        while not self._is_done:
            process = f"{self.name}.{next(self._lives)}"
            async with self._consumer() as consumer:
                with suppress(UnknownTopicOrPartitionError):
                    await self._read(consumer, process)
            await self._pause(self._every_us)

    def _consumer(self) -> Consumer:
        if self._machine.kafka:
            return self._kafka_consumer()
        return Consumer(
            self._site.bootstrap,
            request_timeout_ms=10_000,
            client_rack=self._zone,
            metadata_max_age_ms=5_000,
            auto_offset_reset="none",
            isolation=self.isolation,
            transport=self._machine.transport,
        )

    def _kafka_consumer(self) -> Consumer:
        """Return a consumer that speaks Kafka's protocol: what is used here of both is alike."""
        brokers = KafkaBrokers(self._machine.kafka, self.name, self._dice, _KAFKA_REQUEST_S)
        made = KafkaConsumer(brokers, isolation=self.isolation, zone=self._zone, dice=self._dice)
        return cast(Consumer, made)

    async def _read(self, consumer: Consumer, process: str) -> None:
        await self._assign(consumer)
        self.began_at, self.next_offsets = self._world.now, {}
        self._record(process, OK, "assign", details=list(self._site.keys))
        while not self._is_done:
            self._record(process, INVOKE, self.poll_f)
            try:
                polled = await self._poll(consumer)
            except MillraceError as error:
                self._record(process, INFO, self.poll_f, error=repr(error))
                self._on_refused(error)
                return
            self._record(process, OK, self.poll_f, polled=[polled])
            await self._pause(self._every_us)

    async def _assign(self, consumer: Consumer) -> None:
        while True:
            try:
                await consumer.assign([self._site.topic], start="beginning")
                return
            except (RetriableError, ConnectionFailedError):
                await self._pause(self._every_us)

    async def _poll(self, consumer: Consumer) -> dict[int, list[tuple[int, int]]]:
        found: dict[int, list[tuple[int, int]]] = {}
        keys = self._site.keys
        for record in await consumer.poll(_POLL_MS):
            topic_partition = self._site.partitions[record.partition]
            if record.offset >= self._site.committed(topic_partition):
                raise Violation(f"{self.name} gets offset {record.offset}: it is not committed")
            self.next_offsets[record.partition] = record.offset + 1
            if record.key is not None and record.key.startswith(Marks.PREFIX):
                self.marks.setdefault(record.partition, {})[record.key] = record.value
                continue
            value = int.from_bytes(record.value, "big")
            self._judge_time(value, record.timestamp)
            found.setdefault(keys[record.partition], []).append((record.offset, value))
        if self._site.has_holes:
            for number in range(len(keys)):
                self.next_offsets[number] = await consumer.position((self._site.topic, number))
        return found

    def _judge_time(self, value: int, timestamp: int) -> None:
        """Check that a time that nobody gave stays none, and that a leader's is there (K3)."""
        site = self._site
        has_none = value in site.untimed and not site.has_append_time
        if has_none != (timestamp == NO_TIMESTAMP):
            raise Violation(f"{self.name} gets {value} with the time {timestamp} (K3)")

    def _on_refused(self, error: MillraceError) -> None:
        site = self._site
        if isinstance(error, LogTruncatedError | OffsetOutOfRangeError):
            is_old = isinstance(error, OffsetOutOfRangeError) and site.has_given_up
            if not site.has_been_cut and not is_old:
                raise Violation(f"{self.name} is told {type(error).__name__}: {error}")
        else:
            self._judge(error)


class FinalReader(Reader):
    """Reads every partition once, up to where it ended before.

    A commit is told when it is decided (T12). So this waits for the markers of transactions that
    were open then.
    """

    async def _work(self) -> None:
        while True:
            self._record(self.name, INVOKE, "final")
            try:
                polled = await self._read_all()
            except OffsetOutOfRangeError as error:  # Retention goes on during the read.
                self._record(self.name, INFO, "final", error=repr(error))
                self._on_refused(error)
                await self._pause(SECOND)
            else:
                self._record(self.name, OK, "final", polled=polled)
                self._judge_marks()
                return

    def _judge_marks(self) -> None:
        site = self._site
        if site.marks is None or site.has_given_up:
            return
        for partition, topic_partition in enumerate(site.partitions):
            if not site.may_be_cut(topic_partition):
                site.marks.judge(partition, self.marks.get(partition, {}))

    async def _read_all(self) -> list[dict[int, list[tuple[int, int]]]]:
        site = self._site
        self.next_offsets, self.marks = {}, {}
        polled: list[dict[int, list[tuple[int, int]]]] = [{key: [] for key in site.keys}]
        async with Admin(site.bootstrap) as admin:
            starts = await admin.list_offsets(site.topic, "beginning")
            ends = await admin.list_offsets(site.topic, isolation=READ_UNCOMMITTED)
        left = {
            site.keys[number]: end.offset
            for (topic, number), end in ends.items()
            if end.offset > starts[topic, number].offset
        }
        async with self._consumer() as consumer:
            await self._assign(consumer)
            while left:
                some = await self._poll(consumer)
                polled.append(some)
                for number, key in enumerate(site.keys):
                    if self.next_offsets.get(number, 0) >= left.get(key, 0):
                        left.pop(key, None)
        return polled


class EndReader(Client):
    """Asks for the end offsets of its topic."""

    async def _work(self) -> None:
        process = self.name
        keys, partitions = self._site.keys, self._site.partitions
        # A record that was acknowledged may stand after open transactions.
        isolation = READ_UNCOMMITTED if self._site.is_transactional else READ_COMMITTED
        async with Admin(self._site.bootstrap, request_timeout_ms=5_000) as admin:
            while not self._is_done:
                self._record(process, INVOKE, "list_offsets", details=dict.fromkeys(keys))
                try:
                    found = await admin.list_offsets(self._site.topic, isolation=isolation)
                except MillraceError as error:
                    self._record(process, INFO, "list_offsets", error=repr(error))
                    process = f"{self.name}.{next(self._lives)}"
                    self._judge(error)
                else:
                    # A deposed leader that has not heard of its successor answers with its last
                    # state (P40).
                    for (_, number), end in found.items():
                        if end.offset > self._site.committed(partitions[number]):
                            raise Violation(f"{self.name} is told {end}: it is not committed")
                    ends = {
                        keys[number]: end.offset
                        for (_, number), end in found.items()
                        if end.leader_epoch >= self._site.newest_epoch(partitions[number])
                    }
                    self._record(process, OK, "list_offsets", details=ends)
                await self._pause(self._every_us)


class Keeper(Client):
    """Commits positions in its topic under many names, and fetches them.

    A fetched position is never older than one that was acknowledged, and never one that the broker
    refused with an error.
    """

    def __init__(self, job: Job, *, may_be_lost: Callable[[], bool]) -> None:
        super().__init__(job)
        self._may_be_lost = may_be_lost

    async def _work(self) -> None:
        acknowledged: dict[str, int] = {}
        refused: set[int] = set()
        place = (self._site.topic, 0)
        said = 0
        async with Admin(self._site.bootstrap, request_timeout_ms=5_000) as admin:
            while not self._is_done:
                name = f"reader-{self._dice.randrange(_NAMES)}"
                said += 1
                try:
                    await admin.commit_positions(name, {place: Position(said)})
                except MillraceError as error:
                    self._judge(error)
                    if error.appended is Appended.NO:
                        refused.add(said)
                else:
                    acknowledged[name] = said
                try:
                    name = f"reader-{self._dice.randrange(_NAMES)}"
                    least = acknowledged.get(name, 0)
                    found = (await admin.fetch_positions(name)).get(place, Position(0))
                except MillraceError as error:
                    self._judge(error)
                else:
                    if found.offset < least and not self._may_be_lost():
                        raise Violation(f"{name} is at {found.offset}, and {least} was committed")
                    if found.offset in refused:
                        raise Violation(f"{name} is at {found.offset}, which was refused")
                await self._pause(self._every_us)
