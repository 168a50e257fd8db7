"""The Produce service: a stream of requests, each checked, appended and answered on its own.

Life of a request: its bytes are taken from the memory pool; it is split and every batch is checked,
on the loop if that is short and no earlier request is with the checking thread, else on that
thread; the loop gives offsets and hands the batches to the append threads; when every
batch is acknowledged or refused, one answer goes out and the bytes are given back. Requests of one
stream are given offsets in the order in which they came, and answered as they finish. A batch for a
leader that does not know of its election yet waits for the metadata (`EarlyRequests`), and the
first batch of a transaction in a partition waits for its coordinator (`Joining`).

A client that exceeds a quota is answered at once, and told how long to wait; its stream is not read
meanwhile (`Throttle`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from time import thread_time_ns
from typing import Final

from millrace.broker import events
from millrace.broker.controller.producer_ids import ProducerIds
from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.guard.demands import each, whole
from millrace.broker.quotas import Quotas
from millrace.broker.replica.early_requests import EarlyRequests
from millrace.broker.replica.partitions import Partitions
from millrace.broker.rpc.calls import Calls, ServiceMethods
from millrace.broker.rpc.joining import Joining
from millrace.broker.rpc.memory import ConnectionMemory, MemoryPool
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.produce_answers import Answers, given_up
from millrace.broker.rpc.produce_checks import (
    CheckedBatch,
    CheckedRequest,
    RequestChecks,
    without_trace,
)
from millrace.broker.rpc.resources import TopicResources, transaction
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import Caller
from millrace.core.errors import (
    Appended,
    BrokerBusyError,
    BrokerShuttingDownError,
    InvalidTopicError,
    MillraceError,
    RequestTimedOutError,
    UnknownProducerIdError,
    UnknownServerError,
)
from millrace.core.guard.access import Operation, ResourceKind, named
from millrace.core.guard.producer_owners import Owner
from millrace.core.ids import (
    MonotonicMs,
    ProducerId,
    TopicPartition,
)
from millrace.core.quotas.quota import QuotaKind
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.leader_transactions import JoinGuard
from millrace.proto.errors import error_to_wire
from millrace.proto.v1 import produce_pb2 as pb
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.mailbox import Worker
from millrace.runtime.streams import run_until_first
from millrace.runtime.transport.calls import Message, ServerCall
from millrace.runtime.turns import Turns

_log = logging.getLogger(__name__)

_SWEEP_SECONDS = 0.1
"""Pause between two looks for requests whose time is up."""
_TAKEN_AT_ONCE: Final = 8
"""Requests of a stream that are taken before it looks whether others should have their turn."""

DEMANDS: Final = {
    "InitProducerId": whole(
        Operation.TRANSACT,
        ResourceKind.TRANSACTIONS,
        transaction,
        "if it names a transactional id",
    ),
    "Produce": each(Operation.PRODUCE, ResourceKind.TOPICS)
    & each(Operation.TRANSACT, ResourceKind.TRANSACTIONS, "of transactional batches"),
}
"""What each call demands."""

_TimedCheck = tuple[CheckedRequest, int]
"""With the nanoseconds of the thread that it took; 0: they were not measured."""


@dataclass(slots=True, eq=False)
class _Request:
    """A request between its appends and its answer: the owner of its waiters."""

    stream: "_ProduceStream"
    correlation_id: int
    is_awaited: bool
    """With `acks=0` no client waits for the answer: only a refusal is sent."""
    size: int
    deadline: MonotonicMs
    begun: float
    """When its batches were checked, in seconds."""
    transactional_id: str
    """Of the producer of transactional batches; empty: none of them is."""
    owner: Owner | None
    """Of the producer's id; None: there is no guard, or it refuses nobody."""
    topic_partitions: list[TopicPartition] = field(default_factory=list)
    outcomes: list[Waiter | MillraceError | None] = field(default_factory=list)
    """In the order of the batches; None: not appended or refused yet."""
    log_start_offsets: list[int] = field(default_factory=list)
    outstanding: int = 0
    is_answered: bool = False

    def on_append_done(self, waiter: Waiter) -> None:
        self.outstanding -= 1
        if not self.outstanding:
            self.stream.on_request_done(self)


class ProduceService:
    """Serves `millrace.proto.v1.Produce`.

    Args:
        producer_ids: that this broker may give out.
        begin_transactional: answers `InitProducerId` with a transactional id.
    """

    NAME = pb.DESCRIPTOR.services_by_name["Produce"].full_name

    def __init__(
        self,
        *,
        partitions: Partitions,
        producer_ids: ProducerIds,
        begin_transactional: Callable[
            [pb.InitProducerIdRequest, Caller], Awaitable[pb.InitProducerIdResponse]
        ],
        checkers: Sequence[Worker],
        memory: MemoryPool,
        early: EarlyRequests,
        joining: Joining,
        limits: LimitsConfig,
        metrics: BrokerMetrics,
        quotas: Quotas,
        calls: Calls,
        turns: Turns,
    ) -> None:
        self.partitions = partitions
        self.topics = TopicResources(lambda: partitions.image)
        self.quotas = quotas
        self.turns = turns
        self.producer_ids = producer_ids
        self.begin_transactional = begin_transactional
        self.early = early
        self.joining = joining
        self.checkers = cycle(checkers)
        self.memory = memory
        self.limits = limits
        self.metrics = metrics
        self.refusals = calls.refusals
        self.listener = calls.listener
        self._calls = calls
        self.checks = RequestChecks(partitions, limits.request_entries_max)
        # A stream's next message is in memory before the pool counts it. So there are only as many
        # streams as such messages fit into the connection's share.
        self._connection_streams_max = (
            limits.connection_request_memory_bytes_max // limits.message_bytes_max
        )
        self._is_ending = False
        self._connections: dict[str, tuple[ConnectionMemory, list[_ProduceStream]]] = {}

    def methods(self) -> ServiceMethods:
        """Return what serves its calls."""
        return self._calls.methods(
            self.NAME,
            unary={
                "InitProducerId": (
                    self._init_producer_id,
                    pb.InitProducerIdRequest,
                    DEMANDS["InitProducerId"],
                )
            },
            streams={"Produce": (self.produce, DEMANDS["Produce"])},
        )

    async def produce(self, call: ServerCall, caller: GuardedCaller) -> None:
        """Serve a stream."""
        memory, streams = self._connections.setdefault(caller.address, (ConnectionMemory(), []))
        if len(streams) >= self._connection_streams_max:
            raise BrokerBusyError(
                f"a connection may have {self._connection_streams_max} produce streams: send on "
                "those that are open"
            )
        stream = _ProduceStream(self, call, memory, caller)
        if self._is_ending:
            stream.end()
        streams.append(stream)
        self.metrics.produce_streams.inc()
        try:
            await stream.run()
        finally:
            self.metrics.produce_streams.dec()
            streams.remove(stream)
            if not streams:
                self._connections.pop(caller.address, None)

    async def _init_producer_id(
        self, request: pb.InitProducerIdRequest, caller: Caller
    ) -> pb.InitProducerIdResponse:
        if request.transactional_id:
            return await self.begin_transactional(request, caller)
        try:
            producer_id = await self.producer_ids.next(caller)
        except MillraceError as error:
            return pb.InitProducerIdResponse(error=error_to_wire(error))
        return pb.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    def end_streams(self) -> None:
        """Take no more requests, because the broker stops; answer the earlier ones."""
        self._is_ending = True
        for _, streams in self._connections.values():
            for stream in streams:
                stream.end()

    async def sweep(self) -> None:
        """Answer, for as long as the broker runs, the requests whose time is up."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = monotonic_now()
            for _, streams in self._connections.values():
                for stream in streams:
                    stream.expire(now)

    def check_producer_id(self, producer_id: ProducerId) -> None:
        """Refuse an id that the cluster has not given out: each costs memory for a day.

        A broker gives an id out once it has the metadata of that; another broker may get it a
        moment later, or, without a controller, much later. So the producer may try again.

        Raises:
            UnknownProducerIdError: see above.
        """
        image = self.partitions.image
        if image is not None and producer_id >= image.cluster.next_producer_id:
            raise UnknownProducerIdError(
                f"producer id {producer_id} was not given out as far as this broker knows, which "
                f"has heard of those below {image.cluster.next_producer_id}: try again shortly, "
                "with an id that InitProducerId gave",
                appended=Appended.NO,
            )

    def timed_check(self, message: Message) -> _TimedCheck:
        """Split a message and check its batches; measure that if a quota asks for it."""
        begun = thread_time_ns() if self.quotas.limits_requests else 0
        checked = self.checks.check(message)
        return checked, thread_time_ns() - begun if begun else 0


class _ProduceStream:
    def __init__(
        self,
        service: ProduceService,
        call: ServerCall,
        memory: ConnectionMemory,
        caller: GuardedCaller,
    ) -> None:
        self._service = service
        self._call = call
        self._memory = memory
        self._caller = caller
        self._topics = caller.on_topics(Operation.PRODUCE, service.topics.of)
        # One thread for the whole stream keeps its requests in order.
        self._checker = next(service.checkers)
        self._pending: dict[_Request, None] = {}
        self._ended = asyncio.Event()
        self._in_check = 0
        self._drained = asyncio.Event()
        self._drained.set()
        self._throttle = service.quotas.throttle(QuotaKind.PRODUCE, caller, self._on_quotas)
        self._answers = Answers(
            call,
            self._throttle,
            memory,
            message_bytes_max=service.limits.message_bytes_max,
            sent=service.metrics.requests.produce_send,
            on_sent=self._drained.set,
        )

    async def run(self) -> None:
        self._throttle.begin()
        if self._throttle.delay_ms():
            self._answers.tell_delay()
        try:
            await run_until_first(self._answers.write(), self._serve())
        finally:
            self._throttle.close()

    def _on_quotas(self) -> None:
        self._answers.on_quotas()

    def end(self) -> None:
        """End the stream because the broker stops: answer received requests, then close."""
        self._ended.set()

    async def _serve(self) -> None:
        await run_until_first(self._read(), self._ended.wait())
        # No more requests come; the earlier ones still get their answers.
        await self._drain()
        if self._ended.is_set():
            raise BrokerShuttingDownError("the broker is stopping")

    async def _drain(self) -> None:
        while self._in_check or self._pending or self._answers.count:
            self._drained.clear()
            await self._drained.wait()

    @property
    def _is_full(self) -> bool:
        answers, limits = self._answers, self._service.limits
        unanswered = self._in_check + len(self._pending) + answers.count
        return (
            unanswered >= limits.produce_requests_in_flight_max
            or answers.ready_bytes >= limits.message_bytes_max
        )

    async def _read(self) -> None:
        service, throttle = self._service, self._throttle
        taken = 0
        while True:
            # At the bound nothing is read, so that a client that takes no answers holds no more
            # memory.
            while self._is_full:
                self._drained.clear()
                await self._drained.wait()
            if throttle.delay_ms():
                await throttle.wait()
            message = await self._call.read()
            if message is None:
                return
            size, begun = len(message), host.monotonic_s()
            throttle.charge(size)
            if not service.memory.try_take(size, self._memory):
                await service.memory.take(size, self._memory)
            taken += 1
            if not taken % _TAKEN_AT_ONCE:
                await service.turns.next_slice()  # Many that came at once leave others their turn.
            self._in_check += 1
            if self._in_check > 1 or not self._check_here(message, size, begun):
                done = partial(self._on_checked, size, begun)
                self._checker.submit(done, service.timed_check, message)
            del message

    def _check_here(self, message: Message, size: int, begun: float) -> bool:
        """Check a message on the loop, unless it may take too long; no earlier one is in check."""
        service = self._service
        timed_from = thread_time_ns() if service.quotas.limits_requests else 0
        try:
            checked = service.checks.check_if_short(message)
        except Exception as error:  # As on the checking thread.
            self._on_checked(size, begun, None, error)
            return True
        if checked is None:
            return False
        taken = thread_time_ns() - timed_from if timed_from else 0
        self._on_checked(size, begun, (checked, taken), None)
        return True

    def _on_checked(
        self,
        size: int,
        begun: float,
        result: _TimedCheck | None,
        error: BaseException | None,
    ) -> None:
        self._in_check -= 1
        now = host.monotonic_s()
        self._service.metrics.requests.produce_check.observe(now - begun)
        if result is None:
            assert error is not None
            self._refuse(size, 0, error)
            return
        request, nanoseconds = result
        if not nanoseconds:
            self._take(size, request, now)
            return
        timed_from = thread_time_ns()
        self._take(size, request, now)
        self._throttle.charge_time(nanoseconds + thread_time_ns() - timed_from)

    def _take(self, size: int, request_checked: CheckedRequest, now: float) -> None:
        """Append what can be appended of a checked request; `now` in seconds."""
        service = self._service
        header, checked = request_checked
        if isinstance(checked, MillraceError):
            self._refuse(size, header.correlation_id, checked)
            return
        owner: Owner = self._caller.principal
        if header.transactional_id:
            owner = named(ResourceKind.TRANSACTIONS, header.transactional_id)
            if refused := self._caller.refusal(Operation.TRANSACT, owner):
                self._refuse(size, header.correlation_id, refused)
                return
        access = self._caller.access
        # Where nobody is refused, a client may be known by one stream, and by the next one not.
        is_owned = access is not None and access.guard.is_enforced
        timeout_ms = min(header.request_timeout_ms, service.limits.request_timeout_ms_max)
        request = _Request(
            self,
            header.correlation_id,
            is_awaited=header.acks != 0,
            size=size,
            deadline=MonotonicMs(int(now * 1000) + timeout_ms),
            begun=now,
            transactional_id=header.transactional_id,
            owner=owner if is_owned else None,
        )
        acks = Acks.ALL if header.acks < 0 else Acks.LEADER
        self._pending[request] = None
        request.outstanding = 1  # Ours, until every batch has been seen.
        for number, batch in enumerate(checked):
            request.topic_partitions.append(batch.topic_partition)
            request.log_start_offsets.append(0)
            request.outcomes.append(None)
            if self._topics is not None and (
                refused := self._topics.refusal(batch.topic_partition.topic_id)
            ):
                self._refuse_batch(request, number, refused)
                continue
            partition = service.partitions.find(batch.topic_partition)
            epoch = batch.expected_epoch
            if partition is not None and service.early.is_early(partition, epoch):
                request.outstanding += 1
                judge = partial(self._judge_later, request, number, batch, acks)
                service.early.add(partition, epoch, judge)
            else:
                self._judge(request, number, batch, acks)
        request.outstanding -= 1
        if not request.outstanding:
            self.on_request_done(request)

    def _judge_later(
        self,
        request: _Request,
        number: int,
        batch: CheckedBatch,
        acks: Acks,
        joined: JoinGuard | MillraceError | None = None,
    ) -> None:
        """Append or refuse a batch that has waited, unless its request was given up meanwhile."""
        if isinstance(joined, MillraceError):
            self._refuse_batch(request, number, joined)
        elif not request.is_answered:
            self._judge(request, number, batch, acks, joined)
        request.outstanding -= 1
        if not request.outstanding:
            self.on_request_done(request)

    def _refuse(self, size: int, correlation_id: int, error: BaseException) -> None:
        """Answer a request of which nothing was appended."""
        service = self._service
        service.memory.give_back(size, self._memory)
        if not isinstance(error, MillraceError):
            # Unforeseen bytes of one client must not end the broker.
            events.CHECK_FAILED.log(_log, cause=error)
            error = UnknownServerError(
                "the broker failed to check the request; its log has the trace",
                appended=Appended.NO,
            )
        self._on_refused(error)
        self._answers.send(
            pb.ProduceAnswer(
                correlation_id=correlation_id, error=error_to_wire(error, is_write=True)
            )
        )

    def _judge(
        self,
        request: _Request,
        number: int,
        batch: CheckedBatch,
        acks: Acks,
        joined: JoinGuard | None = None,
    ) -> None:
        """Append a batch, or refuse it, or let it wait until it may join its transaction."""
        service = self._service
        try:
            if isinstance(batch.checked, MillraceError):
                raise batch.checked
            partition = service.partitions.get(batch.topic_partition)
            if partition.is_internal:
                raise InvalidTopicError(
                    f"topic {partition.topic!r} belongs to the cluster itself, which alone writes "
                    "to it"
                )
            partition.leader.check_epoch(batch.expected_epoch)
            service.check_producer_id(batch.checked.producer_id)
            if request.transactional_id and joined is None:
                later = partial(self._judge_later, request, number, batch, acks)
                if service.joining.waits(partition, batch.checked, request.transactional_id, later):
                    request.outstanding += 1
                    return
            owner, owners = request.owner, service.producer_ids.owners
            if owner is not None and joined is None:  # Else the coordinator has said so.
                owners.check(batch.checked.producer_id, owner)
            waiter = partition.append(
                batch.checked,
                batch.batch,
                acks,
                request,
                is_successor=batch.is_successor,
                joined=joined,
            )
        except MillraceError as error:
            self._refuse_batch(request, number, error)
            return
        request.outcomes[number] = waiter
        request.log_start_offsets[number] = partition.log.log_start_offset
        if not waiter.is_done:
            request.outstanding += 1
        if not waiter.is_duplicate:
            if owner is not None:
                owners.keep(batch.checked.producer_id, owner)
            length = len(batch.batch)
            service.metrics.appended(partition.topic, length, batch.checked.record_count)
            partition.appended_bytes += length
            self._throttle.charge_topic(partition.topic, length)

    def _refuse_batch(self, request: _Request, number: int, error: MillraceError) -> None:
        self._on_refused(error)
        request.outcomes[number] = without_trace(error)

    def _on_refused(self, error: MillraceError) -> None:
        self._service.refusals.on_refused(error, self._caller, "Produce")

    def on_request_done(self, request: _Request) -> None:
        """Answer a request all of whose batches are acknowledged or refused."""
        del self._pending[request]
        self._service.memory.give_back(request.size, self._memory)
        self._answer(request)
        request.outcomes.clear()  # The waiters refer to the request: a cycle for each would stay.

    def expire(self, now: MonotonicMs) -> None:
        """Answer the requests whose time is up; their bytes are held until they are judged."""
        for request in list(self._pending):
            if request.deadline <= now and not request.is_answered:
                self._answer(request)

    def _answer(self, request: _Request) -> None:
        if request.is_answered:
            self._drained.set()
            return
        request.is_answered = True
        self._service.metrics.requests.produce_append.observe(host.monotonic_s() - request.begun)
        results = []
        is_refused = False
        for topic_partition, outcome, log_start_offset in zip(
            request.topic_partitions, request.outcomes, request.log_start_offsets, strict=True
        ):
            if outcome is None:  # And it will not be appended any more.
                outcome = given_up(request.transactional_id, topic_partition)
            error = outcome if isinstance(outcome, MillraceError) else outcome.error
            if error is None and isinstance(outcome, Waiter) and not outcome.is_done:
                error = RequestTimedOutError(
                    "the batch was appended, but not acknowledged by all in-sync replicas within "
                    "the producer's request_timeout_ms: an idempotent retry is safe"
                )
            if error is not None:
                is_refused = True
                if outcome is not error:  # Refusals at once are counted already.
                    self._on_refused(error)
                service = self._service
                said = wire_error(
                    service.partitions, error, topic_partition, service.listener, is_write=True
                )
                results.append(pb.ProduceResult(error=said, base_offset=-1))
            else:
                assert isinstance(outcome, Waiter)
                results.append(
                    pb.ProduceResult(
                        base_offset=outcome.base_offset,
                        append_timestamp=outcome.append_timestamp,
                        log_start_offset=log_start_offset,
                    )
                )
        if request.is_awaited or is_refused:
            self._answers.send(
                pb.ProduceAnswer(correlation_id=request.correlation_id, results=results)
            )
            return
        self._drained.set()
        if self._throttle.delay_ms():
            self._answers.tell_delay()
