"""Produce: Kafka's record batches into the logs, as they were sent.

Life of a request: its bytes are taken from the memory of requests; its batches are checked once and
get Millrace's header (`kafka_batch.adopt`), on the loop if that is short and no earlier request is
with the checking thread, else on that thread (K8); then they are appended as those of gRPC are
(`rpc/appends`), and the next request of the connection begins meanwhile. Requests of one connection
get their offsets in the order in which they came, and are answered in it.

A client that exceeds a quota is answered at once, and told how long to wait (KIP-219). A request
that comes before that, also by another connection, waits for a second at the most. Then it is
refused, and told the rest of the delay: its client has not given it up yet, and sends it again. If
it waited for longer, the client would send it again meanwhile, and it would be appended twice.

With `acks=0` a request waits until nothing is owed. Nothing is answered, and a refusal ends the
connection, as that is all that such a client can be told.

Batches are stored in format 2, which brokers of earlier releases do not know: while one of them is
registered, batches are refused (K4). Transactions of Kafka's clients have its first protocol (T14).
"""

import asyncio
import logging
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from struct import Struct
from time import thread_time_ns
from typing import Any, Final

from millrace.broker import events
from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.kafka.parts import KafkaParts
from millrace.broker.kafka.records.succession import Place, Standing, Succession
from millrace.broker.kafka.requests import (
    ApiKey,
    Encoded,
    KafkaConnectionState,
    Later,
    Request,
    Served,
)
from millrace.broker.kafka.wire.errors import NO_ERROR, Code, code_of
from millrace.broker.kafka.wire.produce_codec import (
    Endpoint,
    ProduceBody,
    ProducePartition,
    ProduceResult,
    decode_produce,
    encode_produce,
)
from millrace.broker.quotas import Throttle
from millrace.broker.rpc.appends import AppendRequest, Terms
from millrace.broker.rpc.memory import ConnectionMemory
from millrace.broker.rpc.produce import ProduceService
from millrace.broker.rpc.produce_checks import (
    CheckedBatch,
    check_transactional,
    timed,
    without_trace,
)
from millrace.broker.rpc.resources import topic_resource
from millrace.core.coordinator.transactions.transaction import full_id
from millrace.core.errors import (
    AbortedError,
    AccessDeniedError,
    Appended,
    BrokerBusyError,
    FencedError,
    InvalidRecordError,
    InvalidTopicError,
    MalformedRequestError,
    MillraceError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RefreshMetadataError,
    RetriableError,
    TopicAuthorizationFailedError,
    TransactionalIdAuthorizationFailedError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
    UnsupportedFeatureError,
)
from millrace.core.guard.access import Operation
from millrace.core.ids import NO_LEADER_EPOCH, LeaderEpoch, ProducerId, TopicId, TopicPartition
from millrace.core.metadata.model import Topic
from millrace.core.quotas.quota import QuotaKind
from millrace.core.records import kafka_batch
from millrace.core.records.header import KAFKA_HEADER_BYTES
from millrace.core.records.markers import NOT_BUMPING
from millrace.core.replica.replication.appends import Waiter
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.mailbox import Worker, at_once
from millrace.runtime.streams import run_until_first

_log = logging.getLogger(__name__)

_VERSIONS: Final = range(3, 14)
_SHORT_BYTES: Final = 32 << 10
_SHORT_RECORDS: Final = 200
"""Batches that are checked on the loop, as that takes less than 100 us: plain ones up to both."""
_PRODUCER: Final = Struct(">qhii")
_PRODUCER_AT: Final = 43
"""Where a batch has producer id, epoch, base sequence and number of records."""
_ATTRIBUTES_AT: Final = 22
_CODEC_MASK: Final = 0x07
_ACKS: Final = (-1, 0, 1)
_DELAY_MS_MAX: Final = 1000
"""Longest delay of a request by a quota, where its client awaits an answer; the rest is told."""


@dataclass(slots=True)
class _Part:
    """The records for one partition, from the request to its answer.

    Attributes:
        asked: as in the request.
        topic_partition: that it names; None: there is none.
        batch: the records, if they are one batch.
        producer: id, epoch, base sequence and records of the batch of an idempotent producer.
        standing: how it stands to earlier batches of the producer (K1).
        refused: why it is not appended, as far as that is known before the check.
    """

    asked: ProducePartition
    topic_partition: TopicPartition | None = None
    batch: memoryview | None = None
    producer: tuple[int, int, int, int] | None = None
    standing: Standing = Standing.NEXT
    refused: MillraceError | None = None

    @property
    def place(self) -> Place:
        """Where it goes, as the client names it."""
        return self.asked.topic, self.asked.partition


@dataclass(slots=True, eq=False)
class _Produced:
    """A request between its check and its answer."""

    version: int
    body: ProduceBody
    parts: list[_Part]
    response: "asyncio.Future[Encoded | None]"
    size: int
    arrived_ms: int


class ProduceRequests:
    """Answers Produce."""

    def __init__(self, parts: KafkaParts) -> None:
        self._parts = parts
        self._service = parts.services.produce
        self._entries_max = parts.broker.config.limits.request_entries_max

    def served(self) -> Mapping[int, Served]:
        """Implement `RequestModule`."""
        return {
            ApiKey.PRODUCE: Served(
                _VERSIONS,
                self._produce,
                is_raw=True,
                keeps_bytes=True,
                listed=range(_VERSIONS[-1] + 1),
            ),
        }

    async def _produce(self, request: Request) -> Later | None:
        begun = host.monotonic_s()
        body = decode_produce(request.message, request.version, self._entries_max)
        if body.acks not in _ACKS:
            raise MalformedRequestError(f"acks is {body.acks}; it must be -1, 0 or 1")
        producer = request.connection.of(_Connection)
        producer.open(self._parts, request.caller, request.connection)
        produced = _Produced(
            request.version,
            body,
            [self._part(asked, request.caller) for asked in body.partitions],
            asyncio.get_running_loop().create_future(),
            len(request.message),
            request.arrived_ms,
        )
        await producer.take(produced, begun)
        return Later(produced.response) if body.acks else None

    def _part(self, asked: ProducePartition, caller: GuardedCaller) -> _Part:
        """Return the records for a partition, with what keeps them from being appended."""
        part = _Part(asked)
        try:
            part.batch = _only_batch(asked.records)
            producer = _PRODUCER.unpack_from(part.batch, _PRODUCER_AT)
            if producer[0] >= 0 and producer[2] >= 0:
                part.producer = producer
            topic = self._topic(asked)
            part.topic_partition = TopicPartition(topic.topic_id, asked.partition)
        except MillraceError as error:
            # Who may not write hears nothing else, whether there is such a topic or not.
            part.refused = without_trace(_denied(self._parts, asked, caller) or error)
        return part

    def _topic(self, asked: ProducePartition) -> Topic:
        called = asked.topic
        if isinstance(called, str):
            self._parts.names.topic(called)
        topic = self._parts.topics.find(called if isinstance(called, str) else TopicId(called))
        if topic is None:
            what = called if isinstance(called, str) else f"with id {called.hex()}"
            raise UnknownTopicOrPartitionError(f"there is no topic {what}")
        return topic


def _denied(
    parts: KafkaParts, asked: ProducePartition, caller: GuardedCaller
) -> MillraceError | None:
    """Return why a caller may not write to a topic, by what it calls it; None: it may."""
    if isinstance(asked.topic, bytes):
        topic = parts.topics.find(TopicId(asked.topic))
        if topic is None:
            return None
        return caller.refusal_by_id(Operation.PRODUCE, topic_resource(topic.name))
    try:
        name = parts.names.topic(asked.topic)
    except InvalidTopicError:
        return None
    return caller.refusal(Operation.PRODUCE, topic_resource(name))


class _Connection:
    """The requests of one connection that are being appended."""

    is_open = False

    def open(
        self, parts: KafkaParts, caller: GuardedCaller, connection: KafkaConnectionState
    ) -> None:
        """Begin with the first request; go on with another caller once it has changed."""
        if self.is_open:
            if caller is not self._caller:
                self._go_on_as(caller)
            return
        self.is_open = True
        self._caller: GuardedCaller = caller
        self._owner = caller.owner  # It stays, so that the requests stay in order.
        self._parts = parts
        self._service: ProduceService = parts.services.produce
        self._connection = connection
        self._memory = ConnectionMemory()
        self._succession = Succession()
        # One thread for the whole connection keeps its requests in order.
        self._checker: Worker = next(self._service.checkers)
        self._in_check = 0
        self._throttle: Throttle = self._service.quotas.throttle(
            QuotaKind.PRODUCE, caller, lambda: None
        )
        self._appends = self._service.appending.of(
            caller, self._throttle, answer=self._answer, free=self._on_judged
        )
        self._throttle.begin()
        connection.on_closed.append(self.close)

    def _go_on_as(self, caller: GuardedCaller) -> None:
        self._caller = caller
        self._throttle.close()
        self._throttle = self._service.quotas.throttle(QuotaKind.PRODUCE, caller, lambda: None)
        self._appends.go_on_as(caller, self._throttle)
        self._throttle.begin()

    def close(self) -> None:
        """The connection is gone: what is under way is appended, and not answered."""
        self._service.appending.close(self._appends)
        self._throttle.close()

    async def take(self, produced: _Produced, begun: float) -> None:
        """Take a request: its bytes count here, and it is checked in its turn."""
        service, size = self._service, produced.size
        if produced.body.acks:
            for part in produced.parts:
                if part.producer is not None:
                    part.standing = self._succession.begin(part.place, *part.producer[:3])
        # Some of Kafka's clients never try again, and without acknowledgements none could.
        await self._appends.learn(
            part.topic_partition.topic_id
            for part in produced.parts
            if part.topic_partition is not None
        )
        if self._throttle.delay_ms() and not await self._has_paid(produced):
            self._refuse_busy(produced, "the client exceeds its quota, and owes too much to wait")
            return
        if not service.memory.try_take(size, self._memory) and not await self._has_memory(produced):
            self._refuse_busy(produced, "the broker holds all bytes of requests that it may hold")
            return
        self._throttle.charge(size)
        self._in_check += 1
        done = partial(self._on_checked, produced, begun)
        if self._in_check > 1 or not _is_short(produced):
            self._checker.submit(done, self._timed_check, produced, owner=self._owner)
            return
        try:
            result = at_once(self._timed_check(produced))
        except Exception as error:  # As on the checking thread.
            done(None, error)
        else:
            done(result, None)

    async def _has_paid(self, produced: _Produced) -> bool:
        """Wait for what the client owes; return False if its request cannot wait for so long."""
        throttle, body = self._throttle, produced.body
        if not body.acks:
            await throttle.wait()
            return True
        await self._wait(throttle.wait(), produced, min(max(body.timeout_ms, 0), _DELAY_MS_MAX))
        return not throttle.delay_ms()

    async def _has_memory(self, produced: _Produced) -> bool:
        """Wait for the bytes of a request; return False if it cannot wait for so long."""
        memory, size = self._service.memory, produced.size
        is_taken = False

        async def take() -> None:
            nonlocal is_taken
            await memory.take(size, self._memory)
            is_taken = True

        if not produced.body.acks:
            await take()
        else:  # The rest of its time is the append's.
            await self._wait(take(), produced, max(produced.body.timeout_ms, 0) // 2)
        return is_taken

    async def _wait(
        self, awaited: Coroutine[Any, Any, None], produced: _Produced, wait_ms: int
    ) -> None:
        """Wait for something, but not for longer than the client of a request waits."""
        left_ms = max(produced.arrived_ms + wait_ms - monotonic_now(), 0)
        with suppress(TimeoutError):
            async with asyncio.timeout(left_ms / 1000):
                await run_until_first(awaited, self._connection.draining.wait())

    def _refuse_busy(self, produced: _Produced, why: str) -> None:
        """Have a client send a request again; what counts it are the delays of its quota."""
        error = BrokerBusyError(
            f"{why}: nothing was appended, send it again after the delay", appended=Appended.NO
        )
        self._send(produced, [error for part in produced.parts if part.refused is None], ())

    # --- Checking, on a thread ---------------------------------------------------------------

    def _timed_check(
        self, produced: _Produced
    ) -> Generator[None, None, tuple[list[CheckedBatch], int]]:
        """Check the batches of a request; measure that if a quota asks for it."""
        return timed(self._check_all(produced), is_timed=self._throttle.limits_requests)

    def _check_all(self, produced: _Produced) -> Generator[None, None, list[CheckedBatch]]:
        checked: list[CheckedBatch] = []
        for part in produced.parts:
            if part.refused is None:
                if checked:
                    yield
                checked.append(self._check(part, produced.body.transactional_id))
        return checked

    def _check(self, part: _Part, transactional_id: str | None) -> CheckedBatch:
        topic_partition, batch = part.topic_partition, part.batch
        assert topic_partition is not None
        assert batch is not None
        head = b""
        try:
            limits = self._parts.broker.partitions.get(topic_partition).limits
            head, checked = kafka_batch.adopt(topic_partition, batch, limits)
            check_transactional(checked, transactional_id or "")
        except MillraceError as error:
            return _checked(topic_partition, part, head, without_trace(error))
        return _checked(topic_partition, part, head, checked)

    # --- On the loop again -------------------------------------------------------------------

    def _on_checked(
        self,
        produced: _Produced,
        begun: float,
        result: tuple[list[CheckedBatch], int] | None,
        error: BaseException | None,
    ) -> None:
        self._in_check -= 1
        service, now = self._service, host.monotonic_s()
        service.metrics.requests.produce_check.observe(now - begun)
        if result is None:
            assert error is not None
            # Unforeseen bytes of one client must not end the broker.
            events.CHECK_FAILED.log(_log, cause=error)
            failed = UnknownServerError(
                "the broker failed to check the request; its log has the trace",
                appended=Appended.NO,
            )
            self._refuse(produced, failed)
            return
        checked, nanoseconds = result
        timed_from = thread_time_ns() if nanoseconds else 0
        body = produced.body
        try:
            transactional_id = ""
            if body.transactional_id:
                transactional_id = full_id(self._parts.names.full(body.transactional_id))
                if body.acks != -1:
                    raise MalformedRequestError(
                        f"acks is {body.acks}, and the batches are transactional: ask for all (-1)"
                    )
            terms = Terms(
                body.acks, max(body.timeout_ms, 0), transactional_id, protocol=NOT_BUMPING
            )
            self._appends.append(terms, checked, size=produced.size, tag=produced, now=now)
        except MillraceError as refused:
            self._refuse(produced, refused)
        if nanoseconds:
            self._throttle.charge_time(nanoseconds + thread_time_ns() - timed_from)

    def _refuse(self, produced: _Produced, error: MillraceError) -> None:
        """Answer a request of which nothing was appended."""
        self._service.memory.give_back(produced.size, self._memory)
        self._appends.on_refused(error)
        if isinstance(error, TransactionalIdAuthorizationFailedError):
            for part in produced.parts:  # Also where there is no such topic: that is not told.
                part.refused = error
        self._send(produced, [error for part in produced.parts if part.refused is None], ())

    def _on_judged(self, request: AppendRequest) -> None:
        self._service.memory.give_back(request.size, self._memory)

    def _answer(self, request: AppendRequest, outcomes: Sequence[Waiter | MillraceError]) -> None:
        assert isinstance(request.tag, _Produced)
        self._send(request.tag, outcomes, request.log_start_offsets)

    def _send(
        self,
        produced: _Produced,
        outcomes: Sequence[Waiter | MillraceError],
        log_start_offsets: Sequence[int],
    ) -> None:
        """Answer a request.

        Args:
            produced: the request.
            outcomes: of its batches that could be checked, in their order.
            log_start_offsets: likewise.
        """
        results: list[ProduceResult] = []
        leaders: dict[int, Endpoint] = {}
        number = 0
        for part in produced.parts:
            outcome: Waiter | MillraceError
            if part.refused is not None:
                outcome, start = part.refused, -1
                self._appends.on_refused(outcome)
            else:
                outcome = outcomes[number]
                start = log_start_offsets[number] if log_start_offsets else -1
                number += 1
            if isinstance(outcome, MillraceError):
                results.append(self._refused(part, outcome, leaders))
                continue
            if part.producer is not None:
                self._succession.end(part.place, *part.producer)
            results.append(
                ProduceResult(
                    part.asked.topic,
                    part.asked.partition,
                    NO_ERROR,
                    outcome.base_offset,
                    outcome.append_timestamp,
                    start,
                )
            )
        if not produced.body.acks:
            if any(result.code for result in results):
                self._connection.close()
            return
        if not produced.response.done():
            encoded = encode_produce(
                results, produced.version, self._throttle.delay_ms(), list(leaders.values())
            )
            produced.response.set_result(Encoded((encoded,)))

    def _refused(
        self, part: _Part, error: MillraceError, leaders: dict[int, Endpoint]
    ) -> ProduceResult:
        """Return what a client is told of a batch that is not in the log, or may not be."""
        if part.producer is not None and isinstance(error, AccessDeniedError | InvalidTopicError):
            self._succession.forget(part.place, *part.producer[:3])
        if isinstance(error, TopicAuthorizationFailedError):
            # In the words that it would have if there were no such topic.
            error = _denied(self._parts, part.asked, self._caller) or error
        leader = None
        place = part.topic_partition
        image = self._parts.image
        state = None if place is None else image.partition(place)
        if state is not None and isinstance(error, UnknownTopicOrPartitionError):
            # As after a reassignment; so the client hears who leads.
            error = NotLeaderError(
                "this broker has no replica of the partition: ask its leader",
                topic_partition=place,
                appended=Appended.NO,
            )
        if isinstance(error, NotLeaderError):
            reached = None if state is None else self._parts.addresses.of(state.leader)
            if state is not None and reached is not None:
                leader = (state.leader, state.leader_epoch)
                broker = image.broker(state.leader)
                rack = "" if broker is None else broker.rack
                leaders[state.leader] = (state.leader, *reached, rack)
        if part.standing is Standing.UNCERTAIN and isinstance(error, OutOfOrderSequenceError):
            error = self._to_repeat(part, error)
        said = image.in_words(error).message
        code = code_in_produce(error)
        topic, partition, _ = part.asked
        # With these the client knows that its other records may be sent again.
        records = error.records if isinstance(error, InvalidRecordError) else ()
        return ProduceResult(topic, partition, code, message=said, records=records, leader=leader)

    def _to_repeat(self, part: _Part, gap: OutOfOrderSequenceError) -> MillraceError:
        """Return what lets a client repeat a batch, after those before it if there are some.

        A leader that knows batches of the producer is certain that some are missing.
        """
        if part.topic_partition is None or part.producer is None:
            return gap
        try:
            leader = self._parts.broker.partitions.get(part.topic_partition).leader
        except MillraceError:  # Another broker leads by now.
            return gap
        entry = leader.producers.entry(ProducerId(part.producer[0]))
        if entry is not None and entry.batches:
            return gap
        return NotEnoughReplicasError(
            f"{gap.message}; a batch that nothing is missing before is taken the next time"
        )


def code_in_produce(error: MillraceError) -> int:
    """Return Kafka's number of an error, as producers understand it.

    What can be tried again at the same broker, and was surely not appended, is as if replicas were
    lacking: all producers try that again, and do nothing else. An end of a producer's epoch has one
    number here, whatever ended it (KIP-588).
    """
    if isinstance(error, FencedError | AbortedError):
        return Code.INVALID_PRODUCER_EPOCH
    if isinstance(error, UnsupportedFeatureError):
        return Code.UNSUPPORTED_FOR_MESSAGE_FORMAT
    is_elsewhere = isinstance(error, RefreshMetadataError)
    code = code_of(error)
    if isinstance(error, RetriableError) and not is_elsewhere and error.appended is Appended.NO:
        return code if code == Code.KAFKA_STORAGE_ERROR else Code.NOT_ENOUGH_REPLICAS
    return code


def _only_batch(records: memoryview | None) -> memoryview:
    """Return the batch that records are.

    Raises:
        InvalidRecordError: they are not one batch.
        UnsupportedFormatError: they are in a format of before Kafka 0.11.
    """
    batches = kafka_batch.split(records) if records is not None else []
    if len(batches) != 1:
        raise InvalidRecordError(
            f"{len(batches)} batches came for a partition; a request has one for each"
        )
    return batches[0]


def _is_short(produced: _Produced) -> bool:
    """Whether a request is surely checked within 100 us."""
    if produced.size > _SHORT_BYTES:
        return False
    records = 0
    for part in produced.parts:
        if part.batch is not None:
            if part.batch[_ATTRIBUTES_AT] & _CODEC_MASK:
                return False
            records += max(_PRODUCER.unpack_from(part.batch, _PRODUCER_AT)[3], 0) + 10
    return records <= _SHORT_RECORDS


def _checked(
    topic_partition: TopicPartition, part: _Part, head: bytes, outcome: Any
) -> CheckedBatch:
    assert part.batch is not None
    epoch = LeaderEpoch(NO_LEADER_EPOCH)
    is_successor = part.standing is not Standing.NEXT
    return CheckedBatch(topic_partition, epoch, is_successor, head, part.batch, outcome)


assert _PRODUCER_AT + _PRODUCER.size == KAFKA_HEADER_BYTES
