"""Transactional clients: writers that end their transactions in every way, and copies by a group.

A writer is one transactional id. Its producers follow each other: one is closed, or left within a
transaction while its successor begins, and then tries to go on, which must be refused. Others stand
still within a transaction for longer than its time-out. Some transactions read the topic before and
after they write; the reader goes on from transaction to transaction. In a compacted topic they also
write records that replace each other (`Marks`), so that an aborted one must not.

A copier is a member of a group. It copies the records of one topic to the same partitions of
another one, by `process_exactly_once`. So what committed readers see of a copy is a beginning of
what they see of the original, record by record.

`tests.checkers.transactions` has what must hold of both.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, cast

from tests.checkers.history import FAIL, INFO, INVOKE, OK, UNCOMMITTED, Send
from tests.sim.clients.kafka.connections import KafkaBrokers
from tests.sim.clients.kafka.producer import ProducerParts
from tests.sim.clients.kafka.transactions import KafkaTransactionalProducer
from tests.sim.clients.readers_and_writers import VALUE_BYTES, Client, Job, Reader
from tests.sim.world import MILLISECOND, SECOND, Violation

from millrace.client import Consumer, FetchedRecords, OutputRecords, Producer, RecordHandle
from millrace.core.errors import (
    AbortedError,
    Appended,
    FencedError,
    FencedMemberEpochError,
    InvalidTransactionStateError,
    LogTruncatedError,
    MillraceError,
    StaleMemberEpochError,
    TransactionInDoubtError,
    UnknownMemberIdError,
)
from millrace.core.isolation import READ_UNCOMMITTED

COPY_GROUP: Final = "copiers"
_VALUES_OF_EACH: Final = 10_000_000
_FIRST_VALUE: Final = 1_000_000_000
"""Values of plain writers are lower."""
_REQUEST_MS: Final = 5_000
_PATIENCE_MS: Final = 3_600_000
_DOUBT_US: Final = 300 * MILLISECOND
_DELIVERED: Final = 0.4
"""The share of commits that begin when the records have been delivered."""
_SETTLED: Final = 5
"""Transactions in quiet, after which none is open from before it."""
_REPEATS_MAX: Final = 5
"""Attempts of a commit that could not be asked for, before the transaction is aborted."""
_FIRST_MARK: Final = 1_000
"""Plain writers have lower numbers."""
_MARKS_OF_EACH: Final = 4
"""Keys that one writer writes again and again in a partition: most wait for some transactions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPlan:
    """What the transactional writers of a topic do.

    Attributes:
        writers: how many transactional ids.
        every_us: the mean pause between two transactions.
        records_max: most records for one partition.
        timeout_ms: of transactions.
        aborts: the share of transactions that the writer aborts.
        leaves: the share of transactions that are left open, as their producer is replaced.
        sleeps: the share of transactions that are open for longer than their time-out.
        closes: the share of transactions after which the producer is closed, and another begins.
        reads: the share of transactions that read what is there, their own topic.
        has_operator: whether a person ends some by hand (`transaction_operator`).
    """

    writers: int = 2
    every_us: int = 300 * MILLISECOND
    records_max: int = 3
    timeout_ms: int = 6_000
    aborts: float = 0.15
    leaves: float = 0.06
    sleeps: float = 0.02
    closes: float = 0.06
    reads: float = 0.0
    has_operator: bool = False


class _Life:
    """One producer of a transactional id.

    Attributes:
        producer: the client.
        is_replaced: another one has begun with the id.
    """

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.is_replaced = False

    @property
    def forgets(self) -> bool:
        """Whether a producer of Kafka's protocol has left out what it has to ask first (T14)."""
        return bool(getattr(self.producer, "forgets", False))

    @property
    def is_over(self) -> bool:
        """Whether a producer that speaks Kafka's protocol can do nothing more."""
        return bool(getattr(self.producer, "is_fenced", False))


@dataclass(slots=True)
class _Transaction:
    """One transaction.

    Attributes:
        process: its name in the history.
        producer: that writes it.
        sends: what it writes.
        reads: what it read, one dict a poll.
        marks: the partition and the number of each mark that it sends.
    """

    process: str
    producer: Producer
    sends: list[Send]
    reads: list[Mapping[int, Sequence[tuple[int, int]]]] = field(default_factory=list)
    marks: list[tuple[int, int]] = field(default_factory=list)


class TransactionalWriter(Reader):
    """Writes transactions under one id, and reads in some of them.

    Attributes:
        done: committed transactions so far.
        doing: what it does, for a person.
        commits_us: how long commits took whose records had been delivered before.
    """

    least_in_quiet = 2

    def __init__(
        self, job: Job, *, number: int, plan: TransactionPlan, may_be_lost: Callable[[], bool]
    ) -> None:
        super().__init__(job)
        self.done = 0
        self.doing = "beginning"
        self.commits_us: list[int] = []
        self._plan = plan
        self._may_be_lost = may_be_lost
        self._next_value = _FIRST_VALUE + number * _VALUES_OF_EACH
        self._first_mark = _FIRST_MARK + number * _MARKS_OF_EACH
        self._zombies: set[asyncio.Task[None]] = set()
        self._consumer_now: Consumer | None = None
        self._reads_as = ""
        self._forgets = False
        self._in_quiet = 0  # Transactions since all is quiet.

    async def _work(self) -> None:
        before: _Life | None = None
        while not self._is_done:
            life = _Life(self._producer())
            try:
                await self._begin(life, before)
                await self._write_until_left(life)
            finally:
                if before is not None:
                    await self._let_go(before)
            before = life
        if before is not None:
            await self._let_go(before)
        if self._zombies:
            await asyncio.wait(self._zombies)
        await self._stop_reading()

    def _producer(self) -> Producer:
        if self._machine.kafka:
            return self._kafka_producer()
        return Producer(
            self._site.bootstrap,
            transactional_id=self.name,
            transaction_timeout_ms=self._plan.timeout_ms,
            transport=self._machine.transport,
            linger_ms=1,
            request_timeout_ms=_REQUEST_MS,
            delivery_timeout_ms=_PATIENCE_MS,
            topic_wait_ms=_PATIENCE_MS,
        )

    def _kafka_producer(self) -> Producer:
        """Return a producer that speaks Kafka's protocol: what is used here of both is alike."""
        parts = ProducerParts(
            brokers=KafkaBrokers(self._machine.kafka, self.name, self._dice, _REQUEST_MS / 1000),
            delivery_timeout_s=_PATIENCE_MS / 1000,
            dice=self._dice,
            on_untimed=self._site.on_untimed,
        )
        made = KafkaTransactionalProducer(
            parts, transactional_id=self.name, timeout_ms=self._plan.timeout_ms
        )
        return cast(Producer, made)

    async def _begin(self, life: _Life, before: _Life | None) -> None:
        """Initialise; a producer that still stood is replaced, and tries to go on."""
        while not self._is_done:
            try:
                self.doing = "initialising"
                await life.producer.init_transactions()
            except MillraceError as error:
                self._judge(error)
                await self._pause(_DOUBT_US)
            else:
                break
        else:
            return
        if before is not None:
            before.is_replaced = True
            zombie = asyncio.create_task(self._go_on(before))
            self._zombies.add(zombie)
            zombie.add_done_callback(self._zombies.discard)

    async def _write_until_left(self, life: _Life) -> None:
        dice, plan = self._dice, self._plan
        while not self._is_done:
            is_left = await self._transact(life)
            if is_left or life.is_over:
                return
            await self._pause(plan.every_us)
            if dice.random() < plan.closes:
                return

    async def _transact(self, life: _Life) -> bool:
        """Write one transaction; return whether it is left open."""
        dice, plan, producer = self._dice, self._plan, life.producer
        process = f"{self.name}#{next(self._lives)}"
        way = dice.random()
        sleeps = not self._site.is_quiet() and dice.random() < plan.sleeps
        pause_us = dice.choice((0, 0, 20, 200)) * MILLISECOND
        try:
            await producer.begin_transaction()
        except MillraceError as error:
            self._judge(error)
            await self._pause(_DOUBT_US)
            return False
        self._forgets = life.forgets
        self._in_quiet = self._in_quiet + 1 if self._site.is_quiet() else 0
        transaction = _Transaction(process, producer, self._draw_sends())
        is_reading = dice.random() < plan.reads
        if is_reading:
            transaction.reads += await self._read_along()
        self._record(process, INVOKE, "txn", sends=transaction.sends)
        self.doing = f"writing {process}"
        try:
            handles = [self._send(producer, send) for send in transaction.sends]
            self._send_marks(transaction)
        except MillraceError as error:  # It is over, or was aborted by time.
            self._judge(error)
            await self._abort(transaction)
            return False
        await asyncio.sleep((2 * plan.timeout_ms * 1000 if sleeps else pause_us) / SECOND)
        if is_reading:
            transaction.reads += await self._read_along()
        if way < plan.leaves:
            self._end(transaction, FAIL, "left")
            return True
        if way < plan.leaves + plan.aborts:
            await self._abort(transaction)
        else:
            is_delivered = dice.random() < _DELIVERED and await _are_delivered(handles)
            before, asked_at = self.done, self._world.now
            await self._commit(transaction, handles)
            if is_delivered and self.done > before:
                self.commits_us.append(self._world.now - asked_at)
        return False

    def _draw_sends(self) -> list[Send]:
        dice = self._dice
        keys = dice.sample(list(self._site.keys), 1 + dice.randrange(len(self._site.keys)))
        sends: list[Send] = []
        for key in keys:
            for _ in range(1 + dice.randrange(self._plan.records_max)):
                sends.append(Send(key, self._next_value))
                self._next_value += 1
        return sends

    def _send(self, producer: Producer, send: Send) -> RecordHandle:
        partition = self._site.keys.index(send.key)
        value = send.value.to_bytes(VALUE_BYTES, "big")
        key = None if self._site.marks is None else value
        return producer.send(self._site.topic, value, key=key, partition=partition)

    def _send_marks(self, transaction: _Transaction) -> None:
        """Send a record to each partition of a transaction that replaces an earlier one."""
        marks = self._site.marks
        if marks is None:
            return
        for history_key in dict.fromkeys(send.key for send in transaction.sends):
            partition = self._site.keys.index(history_key)
            number = self._first_mark + self._dice.randrange(_MARKS_OF_EACH)
            key = marks.key_of(partition, number)
            value = marks.next_of(partition, key)
            transaction.marks.append((partition, number))
            transaction.producer.send(self._site.topic, value, key=key, partition=partition)

    async def _read_along(self) -> list[Mapping[int, Sequence[tuple[int, int]]]]:
        """Poll once, from where the last transaction has read to; return what came."""
        try:
            if self._consumer_now is None:
                self._consumer_now = self._consumer()
                await self._assign(self._consumer_now)
                self._reads_as = f"{self.name}.{next(self._lives)}"
                self._record(self._reads_as, OK, "assign", details=list(self._site.keys))
            self._record(self._reads_as, INVOKE, self.poll_f)
            polled = await self._poll(self._consumer_now)
        except MillraceError as error:
            self._on_refused(error)
            await self._stop_reading()
            return []
        self._record(self._reads_as, OK, self.poll_f, polled=[polled])
        return [polled]

    async def _stop_reading(self) -> None:
        consumer, self._consumer_now = self._consumer_now, None
        if consumer is not None:
            with contextlib.suppress(MillraceError):
                await consumer.close()

    def _end(
        self,
        transaction: _Transaction,
        outcome: str,
        why: str | None = None,
        sends: Sequence[Send] = (),
    ) -> None:
        """Tell what became of a transaction, and where its records are, if that is known."""
        self._record(
            transaction.process,
            outcome,
            "txn",
            sends=sends or transaction.sends,
            polled=transaction.reads,
            error=why,
        )
        if self._site.marks is not None and outcome != INFO:
            for partition, number in transaction.marks:
                self._site.marks.on_done(partition, number, is_written=outcome == OK)

    async def _abort(self, transaction: _Transaction) -> None:
        self._record(transaction.process, INVOKE, "end", details="abort")
        self.doing = f"aborting {transaction.process}"
        try:
            await transaction.producer.abort_transaction()
        except MillraceError as error:
            self._judge(error)
        self._end(transaction, FAIL, "aborted")

    async def _commit(self, transaction: _Transaction, handles: list[RecordHandle]) -> None:
        self._record(transaction.process, INVOKE, "end", details="commit")
        self.doing = f"committing {transaction.process}"
        outcome, why = await self._committed(transaction.producer)
        sends: list[Send] = []
        if outcome == OK:
            self.done += 1
            sends = [
                Send(send.key, send.value, (await handle).offset)
                for send, handle in zip(transaction.sends, handles, strict=True)
            ]
        self._end(transaction, outcome, why, sends)

    async def _committed(self, producer: Producer) -> tuple[str, str | None]:
        """Commit; return the type of the operation, and the last error."""
        why: str | None = None
        repeats = 0
        while True:
            try:
                await producer.commit_transaction()
            except TransactionInDoubtError as error:
                why = repr(error)
                if self._is_done:
                    return INFO, why
                await self._pause(_DOUBT_US)
                outcome = await self._ask(producer)
                if outcome is not None:
                    return outcome, why
            except MillraceError as error:
                self._judge(error)
                why = repr(error)
                if isinstance(error, FencedError | AbortedError):
                    is_known = error.appended is Appended.NO or isinstance(error, AbortedError)
                    return FAIL if is_known else INFO, why
                repeats += 1
                if not error.retriable or repeats == _REPEATS_MAX or self._is_done:
                    with contextlib.suppress(TransactionInDoubtError):
                        await self._give_up(producer)
                    return FAIL, why
                await self._pause(_DOUBT_US)
            else:
                return OK, None

    async def _give_up(self, producer: Producer) -> None:
        try:
            await producer.abort_transaction()
        except MillraceError as error:
            self._judge(error)

    async def _ask(self, producer: Producer) -> str | None:
        """Sometimes ask what became of a commit in doubt; None: nobody knows yet."""
        if self._dice.random() < 0.5:
            return None
        try:
            outcome = await producer.outcome()
        except MillraceError as error:
            self._judge(error)
            return None
        if outcome == "unknown":
            raise Violation(f"{self.name}: the last transaction of an id has no outcome (T17)")
        return {"committed": OK, "aborted": FAIL}.get(outcome or "open")

    async def _go_on(self, life: _Life) -> None:
        """Go on with a producer that was replaced: all of it is refused (P47, P53)."""
        await self._pause(_DOUBT_US)
        process = f"{self.name}#{next(self._lives)}"
        sends = self._draw_sends()
        producer = life.producer
        with contextlib.suppress(MillraceError):  # One is open, or it knows that it is fenced.
            await producer.begin_transaction()
        self._record(process, INVOKE, "txn", sends=sends)
        with contextlib.suppress(MillraceError):
            for send in sends:
                self._send(producer, send)
        try:
            await producer.commit_transaction()
        except MillraceError as error:
            self._record(process, FAIL, "txn", sends=sends, error=repr(error))
        else:
            if not self._may_be_lost():
                raise Violation(f"{self.name} commits, and another producer has its id (P47)")

    async def _let_go(self, life: _Life) -> None:
        """Close a producer, without waiting for what it cannot deliver any more."""
        with contextlib.suppress(MillraceError):
            await life.producer.close()

    def _judge(self, error: MillraceError) -> None:
        if isinstance(error, AbortedError | TransactionInDoubtError):
            return  # By time, as a broker was away.
        if isinstance(error, InvalidTransactionStateError) and self._forgets:
            return
        if isinstance(error, FencedError) and self._may_be_lost():
            return
        may_be_over = self._in_quiet < _SETTLED or self._plan.has_operator
        if isinstance(error, FencedError) and self._machine.kafka and may_be_over:
            return  # A producer of Kafka is done by time, or when a person ends its transaction.
        super()._judge(error)


async def _are_delivered(handles: Iterable[RecordHandle]) -> bool:
    """Wait for records; return whether all are there."""
    try:
        for handle in handles:
            await handle
    except MillraceError:
        return False
    return True


class UncommittedReader(Reader):
    """Polls all records, whatever becomes of their transactions."""

    poll_f = UNCOMMITTED
    isolation = READ_UNCOMMITTED


class Copier(Client):
    """A member of the group that copies a topic, with one producer after another.

    Attributes:
        done: how many records it was given to copy.
        copied: how many of each partition.
        doing: what it does, for a person.
    """

    least_in_quiet = 0
    """Others may have all partitions."""
    doing = "copying"

    def __init__(self, job: Job, *, source: str, may_be_lost: Callable[[], bool]) -> None:
        super().__init__(job)
        self.done = 0
        self.copied: Counter[int] = Counter()
        self._source = source
        self._may_be_lost = may_be_lost

    async def _work(self) -> None:
        while not self._is_done:
            await self._copy_for(self._dice.uniform(5, 40))
            await self._pause(SECOND)

    async def _copy_for(self, seconds: float) -> None:
        dice = self._dice
        consumer = Consumer(
            self._site.bootstrap,
            group=COPY_GROUP,
            request_timeout_ms=_REQUEST_MS,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            transport=self._machine.transport,
        )
        producer = Producer(
            self._site.bootstrap,
            transactional_id=self.name,
            transaction_timeout_ms=6_000,
            transport=self._machine.transport,
            linger_ms=1,
            request_timeout_ms=_REQUEST_MS,
            topic_wait_ms=_PATIENCE_MS,
        )
        try:
            await consumer.subscribe([self._source])
            copying = asyncio.create_task(
                consumer.process_exactly_once(
                    self._copy, producer, interval_ms=dice.choice((20, 100, 500))
                )
            )
            until = self._world.now + int(seconds * SECOND)
            while not self._is_done and not copying.done() and self._world.now < until:
                await self._pause(200 * MILLISECOND)
            copying.cancel()
            await asyncio.wait([copying])
            if not copying.cancelled() and (error := copying.exception()) is not None:
                if not isinstance(error, MillraceError):
                    raise error
                self._judge(error)
        except MillraceError as error:
            self._judge(error)
        finally:
            for client in (producer, consumer):
                try:
                    await client.close()
                except MillraceError as error:
                    self._judge(error)

    def _copy(self, read: FetchedRecords) -> Iterator[OutputRecords]:
        self.done += read.records.num_rows
        self.copied[read.partition] += read.records.num_rows
        keys = None if self._site.marks is None else read.records.column("key")
        yield OutputRecords(
            self._site.topic, read.records.column("value"), keys, partition=read.partition
        )

    def _judge(self, error: MillraceError) -> None:
        # What a session that has ended, or a transaction that was aborted, brings.
        expected = (
            AbortedError,
            TransactionInDoubtError,
            UnknownMemberIdError,
            FencedMemberEpochError,
            StaleMemberEpochError,
        )
        if isinstance(error, expected):
            return
        # What an unclean election brings, of the original or of what coordinators keep.
        if isinstance(error, FencedError | LogTruncatedError) and self._may_be_lost():
            return
        super()._judge(error)
