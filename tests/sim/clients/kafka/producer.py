"""A simulated producer of Kafka: its pipeline of batches, with what librdkafka does to each error.

It looks like Millrace's `Producer` where the simulator's writers use it, so one writer drives both.

- Five batches of a partition are in flight at most. They are sent in the order of their sequences,
  again and again, until they are written or their time is over. What a batch is refused with does
  not hold up those behind it, which are on their way (K1).
- Batches of a partition whose leader has changed wait for the answers of the former one.
- A batch whose sequence is known by the broker, and where it stands is not, counts as written.
- When time is over for a batch, the outcome of all that were sent is not known, and the partition
  goes on with another producer id.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from tests.fakes.kafka_batches import Record, batch_of
from tests.sim.clients.kafka.connections import (
    NO_ERROR,
    KafkaBrokers,
    KafkaConnection,
    KnownTopic,
    NotAnsweredError,
    error_of,
)
from tests.sim.machines.process import raise_failure

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import (
    Appended,
    ConnectionFailedError,
    DeliveryTimedOutError,
    MillraceError,
    OutOfOrderSequenceError,
)
from millrace.core.records.header import SEQUENCE_MAX
from millrace.runtime import host

IN_FLIGHT_MAX: Final = 5
_BACKOFF_S: Final = 0.1
_LINGER_S: Final = 0.001
_METADATA_S: Final = 5.0
_VERSIONS: Final = (3, 7, 8, 9, 10)
_CODECS: Final = ("none", "none", "lz4", "zstd")
_ELSEWHERE: Final = frozenset(
    {
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.LEADER_NOT_AVAILABLE,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.KAFKA_STORAGE_ERROR,
    }
)
_AGAIN: Final = frozenset(
    {
        Code.CORRUPT_MESSAGE,
        Code.REQUEST_TIMED_OUT,
        Code.NOT_ENOUGH_REPLICAS,
        Code.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        Code.UNSUPPORTED_FOR_MESSAGE_FORMAT,  # Its user waits until all brokers are upgraded.
    }
    | _ELSEWHERE
)


class Delivered(NamedTuple):
    """Where a record is; None: in the log, and nobody says where."""

    offset: int | None


class KafkaHandle:
    """The future of one record, as `RecordHandle`."""

    def __init__(self) -> None:
        self._future: asyncio.Future[Delivered] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[Any, None, Delivered]:
        return self._future.__await__()

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._future.done()

    def settle(self, offset: int | None) -> None:
        """The record is in the log."""
        if not self._future.done():
            self._future.set_result(Delivered(offset))

    def fail(self, error: MillraceError) -> None:
        """It is not, or may not be."""
        if not self._future.done():
            self._future.set_exception(error)
            self._future.exception()


class Identity(NamedTuple):
    """A producer id and epoch; -1: the producer is not idempotent."""

    producer_id: int
    epoch: int


NOBODY: Final = Identity(-1, -1)


@dataclass(slots=True, eq=False)
class Batch:
    """One batch.

    Attributes:
        records: of it, each with its handle.
        expires_s: when its time is over.
        identity, sequence: with which it is sent, once it is.
        data: as it is sent, likewise.
        due_s: when it may be sent again.
        connection: that it was sent by, while that may answer.
        is_over: its outcome has been told.
    """

    records: list[tuple[bytes | None, bytes | None, KafkaHandle]]
    expires_s: float
    identity: Identity = NOBODY
    sequence: int = -1
    data: bytes = b""
    due_s: float = 0.0
    connection: KafkaConnection | None = None
    is_over: bool = False

    @property
    def was_sent(self) -> bool:
        return bool(self.data)

    def settle(self, base_offset: int | None) -> None:
        self.is_over = True
        for number, (_, _, handle) in enumerate(self.records):
            handle.settle(None if base_offset is None else base_offset + number)

    def fail(self, error: MillraceError) -> None:
        self.is_over = True
        for _, _, handle in self.records:
            handle.fail(error)


@dataclass(slots=True, eq=False)
class Partition:
    """What is known of one partition.

    Attributes:
        number: of it.
        waiting: batches that are to be sent, again or for the first time, in their order.
        flying: that were sent, and are not answered.
        identity: None: it needs a new one.
        next_sequence: of the next batch.
        open: the batch that takes records; None: there is none.
    """

    number: int
    waiting: deque[Batch] = field(default_factory=deque)
    flying: list[Batch] = field(default_factory=list)
    identity: Identity | None = None
    next_sequence: int = 0
    open: Batch | None = None

    def outstanding(self) -> list[Batch]:
        """Return all that were given and are not over."""
        return [*self.flying, *self.waiting]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerParts:
    """What a producer is made of.

    Attributes:
        brokers: that it speaks to.
        acks: as of Kafka's producers; below all (-1) it is not idempotent.
        delivery_timeout_s: how long it tries.
        is_apart: each record is a batch.
        dice: of its client.
        on_untimed: called with the values of records that have no time.
        untimed: the share of batches with such records.
    """

    brokers: KafkaBrokers
    acks: int = -1
    delivery_timeout_s: float
    is_apart: bool = False
    dice: random.Random
    on_untimed: Callable[[Sequence[bytes | None]], None]
    untimed: float = 0.2


class KafkaProducer:
    """Writes to one topic.

    Attributes:
        is_closed: it sends nothing more.
    """

    is_closed = False

    _transactional_id: str | None = None

    def __init__(self, parts: ProducerParts) -> None:
        self._brokers = parts.brokers
        self._acks = parts.acks
        self._delivery_timeout_s = parts.delivery_timeout_s
        self._is_apart = parts.is_apart
        self._dice = parts.dice
        self._on_untimed = parts.on_untimed
        self._untimed = parts.untimed
        self._version = self._dice.choice(_VERSIONS)
        self._codec = self._dice.choice(_CODECS)
        self._topic = ""
        self._known: KnownTopic | None = None
        self._known_since = 0.0
        self._wants_metadata = False
        self._looked_s = -1.0
        self._is_working = False
        self._partitions: dict[int, Partition] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: set[str] = set()
        self._news = asyncio.Event()

    async def __aenter__(self) -> "KafkaProducer":
        self.begin_work()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def begin_work(self) -> None:
        """Begin to send what is given."""
        if not self._is_working:
            self._is_working = True
            self._start(self._run())

    async def close(self) -> None:
        """End; what was sent still arrives."""
        self.is_closed = True
        for where in self._partitions.values():
            for batch in where.outstanding():
                batch.fail(NotAnsweredError("the producer is closed"))
        for task in list(self._tasks):
            task.cancel()
        self._brokers.close()

    # --- Records -----------------------------------------------------------------------------

    def send(
        self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int
    ) -> KafkaHandle:
        """Take a record; return a handle for it."""
        self._topic = topic
        where = self._partitions.setdefault(partition, Partition(partition))
        batch = where.open
        if batch is None:
            batch = Batch([], self._now() + self._delivery_timeout_s)
            where.waiting.append(batch)
            if not self._is_apart:
                where.open = batch
                asyncio.get_running_loop().call_later(_LINGER_S, self._seal, where, batch)
            else:
                self._news.set()
        handle = KafkaHandle()
        batch.records.append((key, value, handle))
        return handle

    def _seal(self, where: Partition, batch: Batch) -> None:
        if where.open is batch:
            where.open = None
        self._news.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # --- The pipeline ------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._news.clear()
            self._expire()
            due_s = self._send_what_can_be_sent()
            try:
                async with asyncio.timeout(due_s):
                    await self._news.wait()
            except TimeoutError:
                pass

    def _begin(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Do something beside all else, unless it is under way already."""
        if name in self._busy:
            work.close()
            return
        self._busy.add(name)

        async def watched() -> None:
            try:
                await work
            finally:
                self._busy.discard(name)
                self._news.set()

        self._start(watched())

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(raise_failure)
        return task

    def _expire(self) -> None:
        """Give up batches whose time is over, and with them what was sent to their partition."""
        now = self._now()
        for where in self._partitions.values():
            late = [batch for batch in where.outstanding() if batch.expires_s <= now]
            for batch in late if any(batch.was_sent for batch in late) else ():
                if not batch.is_over:
                    self._give_up(where, DeliveryTimedOutError("it was not acknowledged in time"))
            for batch in late:
                if not batch.is_over:
                    error = DeliveryTimedOutError("it was not sent in time", appended=Appended.NO)
                    batch.fail(error)
                    if where.open is batch:
                        where.open = None
            where.waiting = deque(batch for batch in where.waiting if not batch.is_over)

    def _give_up(self, where: Partition, error: MillraceError) -> None:
        """Nobody knows the outcome of what was sent: go on with another producer id."""
        for batch in where.outstanding():
            if batch.was_sent and not batch.is_over:
                batch.fail(error.again(Appended.MAYBE))
        where.waiting = deque(batch for batch in where.waiting if not batch.is_over)
        where.flying.clear()
        where.identity, where.next_sequence = None, 0

    def _send_what_can_be_sent(self) -> float:
        """Send batches; return when to look again, in seconds from now."""
        now = self._now()
        next_s = now + _METADATA_S
        for where in self._partitions.values():
            for batch in where.outstanding():
                next_s = min(next_s, max(batch.expires_s, now + 0.001))
        if self._topic and (self._wants_metadata or now - self._known_since > _METADATA_S):
            if now >= self._looked_s + _BACKOFF_S:
                self._begin("metadata", self._look_up())
            else:
                next_s = min(next_s, self._looked_s + _BACKOFF_S)
        if self._known is None:
            return max(next_s - now, 0.001)
        requests: dict[int, list[tuple[Partition, Batch]]] = {}
        for where in self._partitions.values():
            head = self._head(where)
            if head is None:
                continue
            if head.due_s > now:
                next_s = min(next_s, head.due_s)
                continue
            leader = self._known.leaders.get(where.number)
            if leader is None or leader.broker_id < 0:
                self._wants_metadata = True
                next_s = min(next_s, now + _BACKOFF_S)
            else:
                requests.setdefault(leader.broker_id, []).append((where, head))
        has_more = False
        for broker_id, found in requests.items():
            connection = self._brokers.connected(broker_id)
            if connection is None:
                self._begin(f"connect {broker_id}", self._connect(broker_id))
                continue
            ready = [pair for pair in found if self._may_send(*pair, connection)]
            if ready:
                self._produce(connection, ready)
                has_more = True
        return 0.0 if has_more else max(next_s - now, 0.001)

    @staticmethod
    def _head(where: Partition) -> Batch | None:
        """Return the batch that is to be sent next."""
        head = where.waiting[0] if where.waiting else None
        return None if head is None or head is where.open else head

    def _may_send(self, where: Partition, batch: Batch, connection: KafkaConnection) -> bool:
        if self._acks != -1:
            return True
        if any(other.connection is not connection for other in where.flying):
            return False  # The former leader may still answer.
        if where.identity is None and not batch.was_sent:
            if where.flying or any(other.was_sent for other in where.waiting):
                return False
            self._begin("identity", self._identify())
            return False
        return len(where.flying) < IN_FLIGHT_MAX

    def _produce(
        self, connection: KafkaConnection, found: Sequence[tuple[Partition, Batch]]
    ) -> None:
        topics = []
        for where, batch in found:
            where.waiting.popleft()
            if not batch.was_sent:
                self._encode(where, batch)
            batch.connection = connection
            if self._acks:
                where.flying.append(batch)
            topics.append(
                ProduceRequest.TopicProduceData.PartitionProduceData(
                    index=where.number, records=batch.data
                )
            )
        request = ProduceRequest(
            version=self._version,
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=int(self._brokers.patience_s * 1000),
            topic_data=[ProduceRequest.TopicProduceData(name=self._topic, partition_data=topics)],
        )
        answer = connection.send(
            ApiKey.PRODUCE, self._version, request, has_answer=bool(self._acks)
        )
        if not self._acks:
            for _, batch in found:
                batch.settle(None)
            return
        self._start(self._take_answer(connection, answer, found))

    def _encode(self, where: Partition, batch: Batch) -> None:
        timestamp = host.current.wall_ns() // 1_000_000
        if self._dice.random() < self._untimed:
            timestamp = -1
            self._on_untimed([value for _, value, _ in batch.records])
        numbers: dict[str, int] = {}
        if self._acks == -1:
            assert where.identity is not None
            batch.identity, batch.sequence = where.identity, where.next_sequence
            where.next_sequence = (where.next_sequence + len(batch.records)) & SEQUENCE_MAX
            numbers = {
                "producer_id": batch.identity.producer_id,
                "producer_epoch": batch.identity.epoch,
                "base_sequence": batch.sequence,
            }
        batch.data = batch_of(
            [Record(value, key, timestamp) for key, value, _ in batch.records],
            self._codec,
            **numbers,
            **self._more_numbers(),
        )

    def _more_numbers(self) -> dict[str, int]:
        return {}

    # --- Answers -----------------------------------------------------------------------------

    async def _take_answer(
        self,
        connection: KafkaConnection,
        answer: "asyncio.Future[Any]",
        found: Sequence[tuple[Partition, Batch]],
    ) -> None:
        try:
            response = await connection.awaited(answer, self._brokers.patience_s)
        except ConnectionFailedError as error:
            self._wants_metadata = True
            for where, batch in found:
                self._again(where, batch, error)
        else:
            [topic] = response.responses
            told = {each.index: each for each in topic.partition_responses}
            for where, batch in found:
                self._on_told(where, batch, told[where.number])
        self._news.set()

    def _on_told(self, where: Partition, batch: Batch, told: Any) -> None:
        if batch.is_over:
            return
        code = told.error_code
        if code in (NO_ERROR, Code.DUPLICATE_SEQUENCE_NUMBER):
            where.flying.remove(batch)
            has_offset = code == NO_ERROR and told.base_offset >= 0
            batch.settle(told.base_offset if has_offset else None)
            return
        error = error_of(code, f"{self._topic}-{where.number}: {told.error_message}")
        if code in _ELSEWHERE:
            self._wants_metadata = True
        sent = [other for other in where.outstanding() if other.was_sent]
        is_first = min(sent, key=lambda other: other.sequence) is batch
        is_behind = code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_first
        if code in _AGAIN or is_behind or (self._acks != -1 and self._may_repeat(code)):
            self._again(where, batch, error)
        elif code == Code.OUT_OF_ORDER_SEQUENCE_NUMBER:
            self._give_up(where, OutOfOrderSequenceError(error.message))
        else:
            self._on_refused(where, batch, error)

    def _on_refused(self, where: Partition, batch: Batch, error: MillraceError) -> None:
        """A batch can never be written: those behind it cannot be with their sequences."""
        batch.fail(error)
        self._give_up(where, error)

    @staticmethod
    def _may_repeat(code: int) -> bool:
        return code in _AGAIN

    def _again(self, where: Partition, batch: Batch, error: MillraceError) -> None:
        """Have a batch sent again, before those that were given later."""
        if batch.is_over:
            return
        where.flying.remove(batch)
        if self._acks != -1 and error.appended is Appended.MAYBE:
            batch.fail(error)  # It has no sequence by which another one would be known.
            return
        batch.connection = None
        batch.due_s = self._now() + _BACKOFF_S
        if self._acks != -1:
            where.waiting.appendleft(batch)
            return
        sent = [other for other in where.waiting if other.was_sent]
        rest = [other for other in where.waiting if not other.was_sent]
        sent = sorted([*sent, batch], key=lambda other: other.sequence)
        where.waiting = deque([*sent, *rest])

    # --- What it has to know -----------------------------------------------------------------

    async def _look_up(self) -> None:
        self._looked_s = self._now()
        try:
            self._known = await self._brokers.look_up(self._topic)
        except MillraceError:
            self._wants_metadata = True
        else:
            self._wants_metadata, self._known_since = False, self._now()

    async def _connect(self, broker_id: int) -> None:
        try:
            await self._brokers.connection(broker_id)
        except ConnectionFailedError:
            self._wants_metadata = True
            await asyncio.sleep(_BACKOFF_S)

    async def _identify(self) -> None:
        """Get a producer id for all partitions that have none."""
        identity = await self._new_identity()
        if identity is None:
            await asyncio.sleep(_BACKOFF_S)
            return
        for where in self._partitions.values():
            if where.identity is None:
                where.identity, where.next_sequence = identity, 0

    async def _new_identity(self) -> Identity | None:
        version = self._dice.choice((0, 1, 4))
        request = InitProducerIdRequest(
            version=version, transactional_id=None, transaction_timeout_ms=60_000
        )
        try:
            answer = await self._brokers.ask_any(ApiKey.INIT_PRODUCER_ID, version, request)
        except ConnectionFailedError:
            return None
        if answer.error_code != NO_ERROR:
            return None
        return Identity(answer.producer_id, answer.producer_epoch)
