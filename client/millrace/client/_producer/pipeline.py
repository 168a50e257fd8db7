"""The producer's shell: one loop, one step, and the machines that it drives.

`send()` appends to an intake under a lock, from any thread. Everything else happens in `_step` on
the loop: close intakes that are due, give their records partitions, encode the batches, let the
sender machine decide, perform its effects. A step runs when an intake fills, when an answer has
arrived, and at the time that the machines name; never per record. When an intake opens, only the
alarm for the end of its linger time is set.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Final

from millrace.client._cluster import wire
from millrace.client._cluster.broker_streams import BrokerStreams
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.pauses import spread
from millrace.client._cluster.throttling import ThrottlingNotice
from millrace.client._producer.alarm import Alarm
from millrace.client._producer.counters import ProducerCounters
from millrace.client._producer.encoding import Encoding
from millrace.client._producer.flushes import Flushes
from millrace.client._producer.placing import Placing
from millrace.client._producer.produce_stream import METHOD, ProduceStream
from millrace.client._producer.room import FOREVER, Room
from millrace.client._producer.settings import ProducerConfig
from millrace.client._producer.transactions import Transactions
from millrace.client._threads import fork, logs, unclosed
from millrace.client._threads.tasks import Tasks, let_go
from millrace.client._threads.token_lock import TokenLock
from millrace.core.client.producer.batch import ProducerBatch
from millrace.core.client.producer.delivery import Acknowledged, Delivery, Waiter
from millrace.core.client.producer.distributor import Distributor
from millrace.core.client.producer.effects import (
    AllocateProducerId,
    Answer,
    Complete,
    Disconnect,
    Refusal,
    Transmit,
)
from millrace.core.client.producer.intake import Intake, Intakes
from millrace.core.client.producer.partitioners import Partitioner
from millrace.core.client.producer.sender import Sender, SenderConfig
from millrace.core.client.producer.transaction import ProducerIdentity
from millrace.core.client.routing.router import Router
from millrace.core.errors import (
    Appended,
    ClosedError,
    MessageTooLargeError,
    MillraceError,
    RefreshMetadataError,
)
from millrace.core.ids import UNKNOWN_OFFSET, BrokerId, MonotonicMs, ProducerId, WallMs
from millrace.core.records.compression import Compressor
from millrace.proto.v1 import produce_pb2
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.transport.calls import ClientStream

_BUSY_LINGER_MS: Final = 100
"""Longest linger while batches queue for the broker, when it exceeds `linger_ms`."""
_EARLY_MS: Final = 1
"""Records leave when less is left of their time: the next timer may come that much later."""
_REQUEST_BYTES_MAX: Final = 1024 * 1024
"""Raw gRPC in Python moves most bytes a second at this message size."""
_REQUESTS_IN_FLIGHT_MAX: Final = 5
_STEP_BYTES_MAX: Final = _REQUEST_BYTES_MAX
"""Of records that a step makes into batches, about: the next step goes on when these are on their
way. A program may fill `buffer_memory` before the first step; the broker need not wait for all."""


class Pipeline:
    """The way of records from `send()` to their acknowledgement.

    It is made and used on its loop, except for what `lock` guards.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: ProducerConfig,
        compressor: Compressor,
        partitioner: Partitioner,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.config = config
        self.cluster = cluster
        self.lock = TokenLock()
        self.intakes = Intakes(config.batch_size, config.buffer_memory)
        self.counters = ProducerCounters()
        self.room = Room(self.intakes, self.lock, config, loop, self.wake)
        self.is_closed = False
        self.made_in = unclosed.here()
        self.loop = loop
        self._caught = caught_from_users()
        retry_ms, retry_ms_max = spread(config.retry_backoff_ms, config.retry_backoff_max_ms)
        self._retry_s = retry_ms_max / 1000
        router = Router(retry_ms, retry_ms_max, config.metadata_max_age_ms, monotonic_now())
        self.sender = Sender(
            SenderConfig(
                acks=config.acks,
                request_timeout_ms=config.request_timeout_ms,
                delivery_timeout_ms=config.delivery_timeout_ms,
                request_bytes_max=_REQUEST_BYTES_MAX,
                requests_in_flight_max=_REQUESTS_IN_FLIGHT_MAX,
                leader_silence_ms=config.leader_silence_ms,
                is_transactional=bool(config.transactional_id),
            ),
            router,
        )
        self._distributor = Distributor(
            config.batch_size, partitioner, self.sender.queue_length, host.current.dice()
        )
        self._unfinished: dict[Intake, None] = {}
        self.transactions = (
            Transactions(self, config.transactional_id, config.transaction_timeout_ms)
            if config.transactional_id
            else None
        )
        on_failed = None if self.transactions is None else self.transactions.on_failed
        self._flushes = Flushes(self.counters, on_failed)
        self._throttling = ThrottlingNotice("producer")
        self._tasks = Tasks(loop, "producer")
        # Only the loop uses the machine, so it needs no lock.
        self.streams = BrokerStreams(
            cluster,
            self.sender,
            lock=nullcontext(),
            tasks=self._tasks,
            method=METHOD,
            open_stream=self._open_stream,
            on_told=self.wake,
            on_looked_up=self.wake,
        )
        self._placing = Placing(
            cluster=cluster,
            config=config,
            distributor=self._distributor,
            flushes=self._flushes,
            counters=self.counters,
            tasks=self._tasks,
            retry_ms=(retry_ms, retry_ms_max),
            on_complete=self._complete_intake,
            tell=self._tell,
            tell_leaders=self.streams.tell_leaders,
            wake=self.wake,
        )
        self._encoding = Encoding(compressor, self.sender, loop, self.wake)
        self._look_is_due = False
        self._has_news = False
        """The machines have something to do besides what became of the intakes."""
        # Two alarms: with one, the short wait of each batch would replace the sender's long one.
        self._linger_alarm = Alarm(loop.call_later, self._step)
        self._sender_alarm = Alarm(loop.call_later, self._step)
        self._flushed_at = MonotonicMs(0)
        """Records sent until this time do not linger, at any stage."""
        fork.watch(self)
        unclosed.watch(self)

    def __del__(self) -> None:
        unclosed.on_collected(self)

    def start(self) -> None:
        """Remember the loop's thread; called on it."""
        self.room.loop_thread = threading.get_ident()
        self._encoding.start()

    def on_forked(self) -> None:
        """This is the copy in a child: only the parent delivers the records taken so far."""
        self.room.refusal, self.is_closed = ClosedError(fork.FORKED), True
        self.intakes.plain.clear()
        if not self.lock.token:  # The thread that had it does not exist here.
            self.lock.token.append(None)
        error = ClosedError(
            "the process was forked: only the parent gets the outcome of the record",
            appended=Appended.MAYBE,
        )
        intakes = self.intakes
        for intake in [*self._unfinished, *intakes.closed, *intakes.open.values()]:
            if not intake.is_distributed:
                intake.fail(error)
            for batch, _, _ in intake.segments:
                batch.outcome = batch.outcome or error
            intake.batches_open = 0

    # Called from any thread.

    def wake(self) -> None:
        """Ask for a step; several before it happens are one."""
        self._has_news = True
        self.look_at_intakes()

    def look_at_intakes(self) -> None:
        """Ask for a step if an intake is due, and else for one when it will be."""
        self.intakes.must_wake = False
        if self._look_is_due:
            return
        self._look_is_due = True
        if self.room.is_on_loop():
            self.loop.call_soon(self._look)
        else:
            self.loop.call_soon_threadsafe(self._look)

    def on_rejected(self, error: MillraceError) -> None:
        """Records of a call are not taken: its transaction is not whole."""
        if self.transactions is None:
            return
        if self.room.is_on_loop():
            self.transactions.on_failed(error)
        else:
            self.loop.call_soon_threadsafe(self.transactions.on_failed, error)

    def unfinished_records(self) -> int:
        """Return how many records have no outcome yet, as far as other threads let it be seen."""
        intakes = self.intakes
        return sum(
            intake.unfinished_records
            for intake in [*self._unfinished, *intakes.closed, *intakes.open.values()]
        )

    def untold_records(self) -> int:
        """Return how many records have no outcome yet, or an error that nobody has seen."""
        return self.unfinished_records() + self._flushes.untold_records()

    def acknowledged_records(self) -> int:
        """Return how many records were acknowledged since the start."""
        return self.counters.acknowledged_records

    # Called on the loop.

    async def flush(self) -> None:
        """Send all records without lingering, and wait for their outcomes.

        Raises:
            MillraceError: the first failure of what it waited for, or since the last flush.
        """
        self._flushed_at = monotonic_now()
        self._step()
        await self._flushes.wait(set(self._unfinished))

    async def settle(self, dropped: MillraceError | None = None) -> None:
        """Wait until each record of a transaction has its outcome.

        Args:
            dropped: the error with which those fail that have none; None: they are sent.
        """
        if dropped is not None:
            self.sender.drop_transaction(dropped)
            self._flushed_at = monotonic_now()
            self._gather(self._flushed_at, 2**62)  # It places what is not placed yet.
            self._placing.drop(dropped)
        with suppress(MillraceError):  # The transaction has them.
            await self.flush()

    def begin_transaction(self, identity: ProducerIdentity) -> None:
        """Write the records that come in another transaction."""
        self.sender.begin_transaction(identity)

    def refuse_records(self) -> None:
        """Take no more records: those sent while the others leave would be lost."""
        self.room.refuse(ClosedError("the producer is closed"))

    async def drain(self) -> None:
        """With `acks=0`, wait until brokers have taken what was sent."""
        if self.config.acks == 0:
            await asyncio.gather(*(stream.drain() for stream in self.streams.open_streams()))

    async def close(self, why: str, ends_at: float) -> None:
        """Let go of everything; records without an outcome fail.

        Args:
            why: what is told of them, besides that the producer was closed.
            ends_at: see `let_go`.
        """
        self.refuse_records()
        with self.lock:
            self.is_closed = True
            self.intakes.close_opened_until(FOREVER)
            self._unfinished.update(dict.fromkeys(self.intakes.closed))
            self.intakes.closed.clear()
        self._linger_alarm.cancel()
        self._sender_alarm.cancel()
        await let_go(
            ends_at,
            self.streams.close,
            self._tasks.end,
            partial(self._give_all_up, why),
            self.cluster.close,
        )

    async def _give_all_up(self, why: str) -> None:
        self._encoding.end()
        for intake in list(self._unfinished):
            self._give_up(intake, why)

    def _give_up(self, intake: Intake, why: str) -> None:
        message = f"the producer was closed before the record was acknowledged{why and ': '}{why}"
        if not intake.is_distributed:
            error = ClosedError(message)
            intake.fail(error)
            self._flushes.on_failed((intake,), intake.record_count, error)
        for batch, _, count in intake.segments:
            if batch.outcome is None:
                appended = Appended.MAYBE if batch.attempts else Appended.NO
                batch.outcome = ClosedError(message, appended=appended)
            if isinstance(batch.outcome, ClosedError):
                self._flushes.on_failed((intake,), count, batch.outcome)
        intake.batches_open = 0
        self._complete_intake(intake)
        for batch, _, _ in intake.segments:
            self._tell_all(batch)

    def _look(self) -> None:
        self._look_is_due = False  # First: what is set from now on asks for another look.
        now = monotonic_now()
        opened = self.intakes.first_opened_at()
        if self._has_news or self.intakes.closed or opened is None:
            self._step(now)
            return
        if opened <= self._due(now):
            self._step(now)
        elif not self.is_closed:
            self._linger_alarm.set(MonotonicMs(opened + self._linger()))

    def _step(self, now: MonotonicMs | None = None) -> None:
        self._has_news = False
        if self.is_closed:
            return
        if now is None:
            now = monotonic_now()
        intakes, distributor = self.intakes, self._distributor
        waiting = self._placing.waiting
        if intakes.open or intakes.closed or waiting or distributor.open or distributor.sealed:
            self._gather(now, _STEP_BYTES_MAX)
        self._perform(now)
        self._schedule(now)
        if waiting or distributor.sealed:
            self.wake()

    def _gather(self, now: MonotonicMs, bytes_max: int) -> None:
        """Make batches of records that no longer linger, about so many bytes, for the sender."""
        intakes, distributor, due = self.intakes, self._distributor, self._due(now)
        opened = intakes.first_opened_at()
        if intakes.closed or (opened is not None and opened <= due):
            with self.lock:
                intakes.close_opened_until(due)
                closed = intakes.closed
                for intake in closed:  # First: see `on_forked`.
                    self._unfinished[intake] = None
                intakes.closed = deque()
            self._placing.waiting += closed
        self._placing.place_waiting(bytes_max)
        if not self._placing.waiting:  # Else more records come into these batches.
            distributor.seal_opened_until(due)
        if distributor.sealed:
            self._encoding.encode(distributor.take_sealed(bytes_max))

    def _linger(self) -> int:
        """Return how long a record may linger now."""
        # With little memory no more records may come: those here leave as soon as they can.
        linger_ms = 0 if self.room.is_short else self.config.linger_ms
        return max(linger_ms, _BUSY_LINGER_MS) if self.sender.is_saturated() else linger_ms

    def _due(self, now: MonotonicMs) -> MonotonicMs:
        """Return the send time up to which records no longer linger."""
        return max(MonotonicMs(now - self._linger() + _EARLY_MS), self._flushed_at)

    def _schedule(self, now: MonotonicMs) -> None:
        """Set the alarms for the next moment at which something is due."""
        wake = self.sender.next_wake(now)
        if wake is not None:
            self._sender_alarm.set(wake)
        if not (self.intakes.open or self._distributor.open):
            return
        opened = self.intakes.first_opened_at()
        in_batch = self._distributor.first_opened_at()
        if opened is None or (in_batch is not None and in_batch < opened):
            opened = in_batch
        if opened is not None:
            self._linger_alarm.set(MonotonicMs(opened + self._linger()))

    def _perform(self, now: MonotonicMs) -> None:
        for effect in self.sender.poll(now):
            match effect:
                case Transmit():
                    stream = self.streams.get(effect.broker_id)
                    assert stream is not None, "the machine sends to brokers that are connected"
                    self.counters.requests += 1
                    for batch, _ in effect.batches:
                        assert batch.prepared is not None
                        self.counters.batches += 1
                        self.counters.batch_bytes += batch.prepared.length
                        self.counters.repeated_batches += batch.attempts > 1
                    stream.send(effect.correlation_id, effect.batches)
                case Complete():
                    self._complete(effect.batch, now)
                case Disconnect():
                    self.streams.give_up(effect.broker_id)
                case AllocateProducerId():
                    self._tasks.spawn(self._allocate_producer_id)
                case _:
                    self.streams.perform(effect)

    def _complete(self, batch: ProducerBatch, now: MonotonicMs) -> None:
        batch.prepared = None
        if isinstance(batch.outcome, MillraceError):
            self._flushes.on_failed(batch.intakes, batch.record_count, batch.outcome)
        else:
            self.counters.acknowledged_records += batch.record_count
            self.counters.delivery_seconds.observe((now - batch.opened_at) / 1000)
        for intake in batch.intakes:
            intake.batches_open -= 1
            if intake.is_complete:
                self._complete_intake(intake)
        batch.intakes.clear()  # These refer to the batch: a cycle for each would stay.
        self._tell_all(batch)

    def _complete_intake(self, intake: Intake) -> None:
        self.room.release(intake)
        self._unfinished.pop(intake, None)
        while intake.waiters:
            try:
                _, waiter = intake.waiters.popleft()
            except IndexError:  # A thread has given up meanwhile.
                break
            self._tell(waiter)
        self._flushes.on_complete(intake)

    def _tell_all(self, delivery: Delivery) -> None:
        while delivery.waiters:
            try:
                waiter = delivery.waiters.popleft()
            except IndexError:  # As above.
                break
            self._tell(waiter)

    def _tell(self, waiter: Waiter) -> None:
        try:
            waiter()
        except self._caught as error:  # A user's callback; not the producer's affair.
            self.loop.call_exception_handler(
                {"message": "a delivery callback raised", "exception": error}
            )

    def _open_stream(
        self, broker_id: BrokerId, connection: Connection, stream: ClientStream
    ) -> ProduceStream:
        transactions = self.transactions
        return ProduceStream(
            broker_id,
            connection,
            stream,
            acks=self.config.acks,
            transactional_id=None if transactions is None else lambda: transactions.open_id,
            request_timeout_ms=self.config.request_timeout_ms,
            latencies=self.counters.request_seconds,
            on_answer=self._on_answer,
            on_message=self._step,
            on_throttled=self._on_throttled,
            on_written=self._on_written,
            on_late_refusal=self._on_late_refusal,
            on_broken=self._on_broken,
        )

    def _on_broken(self, broker_id: BrokerId, stream: ProduceStream, reason: str) -> None:
        self.sender.on_unsent(broker_id, stream.unsent)
        self.streams.on_broken(broker_id, stream, reason)

    def _on_throttled(self, broker_id: BrokerId, throttle_ms: int) -> None:
        self.counters.throttled_ms += self.sender.on_throttled(
            broker_id, throttle_ms, monotonic_now()
        )
        self._throttling.on_throttled(broker_id, throttle_ms)

    def _on_answer(
        self,
        broker_id: BrokerId,
        correlation_id: int,
        answers: Sequence[Answer],
        now: MonotonicMs,
    ) -> None:
        for answer in answers:
            if isinstance(answer, Refusal):
                self.streams.learn_address(answer.error)
        self.sender.on_answer(broker_id, correlation_id, answers, now)

    def _on_written(self, broker_id: BrokerId, correlation_id: int, batches: int) -> None:
        answers = [Acknowledged(UNKNOWN_OFFSET, WallMs(-1))] * batches
        self.sender.on_answer(broker_id, correlation_id, answers, monotonic_now())
        self._step()

    def _on_late_refusal(self, broker_id: BrokerId, errors: Sequence[MillraceError]) -> None:
        self.counters.refused_requests += 1
        # A look-up does not solve the other errors.
        if any(isinstance(error, RefreshMetadataError | MessageTooLargeError) for error in errors):
            self.sender.on_late_refusal(broker_id)

    async def _allocate_producer_id(self) -> None:
        async def ask(connection: Connection) -> produce_pb2.InitProducerIdResponse:
            response: produce_pb2.InitProducerIdResponse = await connection.produce.InitProducerId(
                produce_pb2.InitProducerIdRequest()
            )
            # Raised in here: another broker may have ids left, or a way to the controller.
            wire.raise_if_refused(response)
            return response

        while True:
            try:
                response = await self.cluster.call(
                    ask, attempt_s=lambda: self.cluster.metadata_timeout_s
                )
            except ClosedError:
                raise
            except MillraceError as error:  # A denial, too: a token may be renewed.
                self.sender.on_no_producer_id(error.message)
                await asyncio.sleep(self._retry_s)
            else:
                break
        self.sender.on_producer_id(ProducerId(response.producer_id))
        self.wake()


def caught_from_users() -> type[BaseException]:
    """Return which errors of the user's functions, called on this loop, do not end it.

    `sys.exit()` ends the loop of a program, but not the one of all synchronous clients.
    """
    return BaseException if logs.is_clients_thread() else Exception
