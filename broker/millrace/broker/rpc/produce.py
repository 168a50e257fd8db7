"""The Produce service: a stream of requests, each checked, appended and answered on its own.

Life of a request: its bytes are taken from the memory pool; it is split and every batch is checked,
on the loop if that is short and no earlier request is with the checking thread, else on that
thread; its batches are appended (`appends`); when every batch is acknowledged or refused, one
answer goes out and the bytes are given back. Requests of one stream are given offsets in the order
in which they came, and answered as they finish.

A client that exceeds a quota is answered at once, and told how long to wait; its stream is not read
meanwhile (`Throttle`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Sequence
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
from millrace.broker.rpc.appends import Appending, AppendRequest, Terms
from millrace.broker.rpc.calls import Calls, ServiceMethods
from millrace.broker.rpc.joining import Joining
from millrace.broker.rpc.memory import ConnectionMemory, MemoryPool
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.produce_answers import Answers
from millrace.broker.rpc.produce_checks import (
    CheckedRequest,
    RequestChecks,
    timed,
)
from millrace.broker.rpc.resources import TopicResources, transaction
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import Caller
from millrace.core.errors import (
    Appended,
    BrokerBusyError,
    BrokerShuttingDownError,
    MillraceError,
    UnknownServerError,
)
from millrace.core.guard.access import Operation, ResourceKind
from millrace.core.quotas.quota import QuotaKind
from millrace.core.replica.replication.appends import Waiter
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
        self.quotas = quotas
        self.turns = turns
        self.begin_transactional = begin_transactional
        self.checkers = cycle(checkers)
        self.memory = memory
        self.limits = limits
        self.metrics = metrics
        self.listener = calls.listener
        self.appending = Appending(
            partitions=partitions,
            topics=TopicResources(lambda: partitions.image),
            producer_ids=producer_ids,
            early=early,
            joining=joining,
            refusals=calls.refusals,
            request_timeout_ms_max=limits.request_timeout_ms_max,
        )
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
            producer_id = await self.appending.producer_ids.next(caller)
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
            self.appending.expire(monotonic_now())

    def timed_check(self, message: Message) -> Generator[None, None, _TimedCheck]:
        """Split a message and check its batches; measure that if a quota asks for it."""
        return timed(self.checks.check(message), is_timed=self.quotas.limits_requests)


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
        # One thread for the whole stream keeps its requests in order.
        self._checker = next(service.checkers)
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
        self._appends = service.appending.of(
            caller, self._throttle, answer=self._answer, free=self._on_judged
        )

    async def run(self) -> None:
        self._throttle.begin()
        if self._throttle.delay_ms():
            self._answers.tell_delay()
        try:
            await run_until_first(self._answers.write(), self._serve())
        finally:
            self._service.appending.close(self._appends)
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
        while self._in_check or self._appends.count or self._answers.count:
            self._drained.clear()
            await self._drained.wait()

    @property
    def _is_full(self) -> bool:
        answers, limits = self._answers, self._service.limits
        unanswered = self._in_check + self._appends.count + answers.count
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
            taken += 1
            if not taken % _TAKEN_AT_ONCE:
                # Many that came at once leave others their turn.
                await service.turns.next_slice(self._caller.owner)
            if not service.memory.try_take(size, self._memory):
                await service.memory.take(size, self._memory)
            # Nothing is awaited before the bytes have an owner: a stream may end in each await.
            self._in_check += 1
            if self._in_check > 1 or not self._check_here(message, size, begun):
                done = partial(self._on_checked, size, begun)
                self._checker.submit(done, service.timed_check, message, owner=self._caller.owner)
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
        header, checked = request_checked
        number = header.correlation_id
        if isinstance(checked, MillraceError):
            self._refuse(size, number, checked)
            return
        terms = Terms(header.acks, header.request_timeout_ms, header.transactional_id)
        try:
            self._appends.append(terms, checked, size=size, tag=number, now=now)
        except MillraceError as error:
            self._refuse(size, number, error)

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
        self._appends.on_refused(error)
        self._answers.send(
            pb.ProduceAnswer(
                correlation_id=correlation_id, error=error_to_wire(error, is_write=True)
            )
        )

    def _on_judged(self, request: AppendRequest) -> None:
        """All batches of a request are judged, perhaps after its answer."""
        self._service.memory.give_back(request.size, self._memory)
        if request.is_answered:
            self._drained.set()

    def _answer(self, request: AppendRequest, outcomes: Sequence[Waiter | MillraceError]) -> None:
        service, results = self._service, []
        is_refused = False
        for topic_partition, outcome, log_start_offset in zip(
            request.topic_partitions, outcomes, request.log_start_offsets, strict=True
        ):
            if isinstance(outcome, MillraceError):
                is_refused = True
                said = wire_error(
                    service.partitions, outcome, topic_partition, service.listener, is_write=True
                )
                results.append(pb.ProduceResult(error=said, base_offset=-1))
            else:
                results.append(
                    pb.ProduceResult(
                        base_offset=outcome.base_offset,
                        append_timestamp=outcome.append_timestamp,
                        log_start_offset=log_start_offset,
                    )
                )
        if request.is_awaited or is_refused:
            assert isinstance(request.tag, int)
            self._answers.send(pb.ProduceAnswer(correlation_id=request.tag, results=results))
            return
        self._drained.set()
        if self._throttle.delay_ms():
            self._answers.tell_delay()
