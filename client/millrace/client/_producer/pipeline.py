"""The producer's shell: one loop, one step, and the machines that it drives.

`send()` appends to an intake under a lock, from any thread. Everything else happens in `_step` on
the loop: close intakes that are due, give their records partitions, encode the batches, let the
sender machine decide, perform its effects. A step runs when an intake opens or fills, when an
answer has arrived, and at the time that the machines name; never per record.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import Empty
from typing import Any, Final

import numpy as np

from millrace.client._cluster import wire
from millrace.client._cluster.broker_streams import BrokerStreams
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.latencies import Latencies
from millrace.client._cluster.pauses import spread
from millrace.client._cluster.throttling import ThrottlingNotice
from millrace.client._producer.handles import own
from millrace.client._producer.produce_stream import ProduceStream
from millrace.client._producer.settings import ProducerConfig
from millrace.client._threads import unclosed
from millrace.client._threads.tasks import Tasks, let_go
from millrace.client._threads.token_lock import TokenLock
from millrace.core.client.producer.batch import ProducerBatch, encode
from millrace.core.client.producer.delivery import Acknowledged
from millrace.core.client.producer.distributor import Distributor, TopicLayout
from millrace.core.client.producer.intake import Intake, Intakes, Waiter
from millrace.core.client.producer.partitioners import Partitioner
from millrace.core.client.producer.sender import (
    AllocateProducerId,
    Answer,
    Complete,
    Disconnect,
    Refusal,
    Sender,
    SenderConfig,
    Transmit,
)
from millrace.core.client.routing.router import Router
from millrace.core.errors import (
    Appended,
    BufferExhaustedError,
    ClosedError,
    ConnectionFailedError,
    InvalidConfigError,
    MessageTooLargeError,
    MillraceError,
    RefreshMetadataError,
    RetriableError,
    UnknownServerError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    UNKNOWN_OFFSET,
    BrokerId,
    MonotonicMs,
    ProducerId,
    WallMs,
)
from millrace.core.records.compression import Codec, Compressor
from millrace.proto.v1 import produce_pb2
from millrace.runtime import fork, host
from millrace.runtime.clock import monotonic_now

_FOREVER: Final = MonotonicMs(2**62)
_BUSY_LINGER_MS: Final = 100
"""Longest linger while batches queue for the broker, when it exceeds `linger_ms`."""
_REQUEST_BYTES_MAX: Final = 1024 * 1024
"""Raw gRPC in Python moves most bytes a second at this message size."""
_REQUESTS_IN_FLIGHT_MAX: Final = 5
_PARTITION_LOOK_UP_PAUSE_S: Final = 1.0
"""Pause after a look-up of a topic that lacks a partition that a record names. All records of the
topic wait for such a look-up, so a program with a wrong number must not cause one per record."""
_UNTOLD_MAX: Final = 1_000
"""Failures kept for the next flush, which raises the first that handles have not reported."""


@dataclass(slots=True, eq=False)
class _Flush:
    """A waiting flush; others may wait beside it, for some of the same records."""

    pending: set[Intake]
    future: asyncio.Future[None]
    failure: tuple[MillraceError, int] | None
    """The first failure that it has to raise, and its number of records."""


@dataclass(slots=True)
class ProducerCounters:
    """The source of `metrics()` and `millrace.client.metrics`; all since the producer was made."""

    records: int = 0
    record_bytes: int = 0
    batches: int = 0
    batch_bytes: int = 0
    requests: int = 0
    acknowledged_records: int = 0
    failed_records: int = 0
    repeated_batches: int = 0
    refused_requests: int = 0
    throttled_ms: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Failed records, by error."""
    delivery_seconds: Latencies = field(default_factory=Latencies)
    """Of each batch, from the `send()` of its first record to its acknowledgement."""
    request_seconds: Latencies = field(default_factory=Latencies)
    """Of each request, until its answer."""


class Pipeline:
    """From sent to acknowledged. Made and used on its loop, except for what `lock` guards."""

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
        self.refusal = ""
        """Why it takes no more records; empty while it does."""
        self.is_closed = False
        self.made_in = unclosed.here()
        self.loop = loop
        self.loop_thread = 0
        self._compressor = compressor
        self._retry_ms, self._retry_ms_max = spread(
            config.retry_backoff_ms, config.retry_backoff_max_ms
        )
        router = Router(
            self._retry_ms, self._retry_ms_max, config.metadata_max_age_ms, monotonic_now()
        )
        self._sender = Sender(
            SenderConfig(
                acks=config.acks,
                request_timeout_ms=config.request_timeout_ms,
                delivery_timeout_ms=config.delivery_timeout_ms,
                request_bytes_max=_REQUEST_BYTES_MAX,
                requests_in_flight_max=_REQUESTS_IN_FLIGHT_MAX,
                leader_silence_ms=config.leader_silence_ms,
            ),
            router,
        )
        self._distributor = Distributor(
            config.batch_size, partitioner, self._sender.queue_length, host.current.dice()
        )
        self._parked: dict[str, deque[Intake]] = {}
        """Intakes that wait until their topic is known."""
        self._looked_up_lately: set[str] = set()
        """Topics that lack a partition that records named, in the pause after their look-up."""
        self._unfinished: dict[Intake, None] = {}
        self._flushes: list[_Flush] = []
        self._room_waiters: list[asyncio.Future[None]] = []
        self._threads_waiting: dict[host.Queue, None] = {}
        self._untold: dict[MillraceError, int] = {}
        """Failures since the last flush, in order, and their numbers of records. Handles may have
        reported some."""
        self._throttling = ThrottlingNotice("producer")
        self._tasks = Tasks(loop, "producer")
        # Only the loop uses the machine, so it needs no lock.
        self._streams = BrokerStreams(
            cluster,
            self._sender,
            lock=nullcontext(),
            tasks=self._tasks,
            open_stream=self._open_stream,
            on_told=self.wake,
            on_looked_up=self.wake,
        )
        self._encoders: ThreadPoolExecutor | None = None
        self._encoding: deque[tuple[ProducerBatch, asyncio.Future[Any]]] = deque()
        self._step_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._flushed_at = MonotonicMs(0)
        """Records sent until this time do not linger, at any stage."""
        self._is_short = False
        """A caller found no room since memory was last given back."""
        fork.watch(self)
        unclosed.watch(self)

    def __del__(self) -> None:
        unclosed.on_collected(self)

    def start(self) -> None:
        """Remember the loop's thread; called on it."""
        self.loop_thread = threading.get_ident()
        if self._compressor.codec is not Codec.NONE:
            # The codecs let go of the interpreter: another core compresses meanwhile.
            self._encoders = ThreadPoolExecutor(1, thread_name_prefix="millrace-compress")

    def on_forked(self) -> None:
        """This is the copy in a child: only the parent delivers the records taken so far."""
        self.refusal, self.is_closed = fork.FORKED, True
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
        self.intakes.must_wake = False
        if self._step_is_due:
            return
        self._step_is_due = True
        if threading.get_ident() == self.loop_thread:
            self.loop.call_soon(self._step)
        else:
            self.loop.call_soon_threadsafe(self._step)

    def is_on_loop(self) -> bool:
        """Return whether this thread runs the producer's loop, and must not be blocked."""
        return threading.get_ident() == self.loop_thread

    def expect_room(self) -> host.Queue | None:
        """Return the queue for `wait_for_room`; None: this thread must not wait. The lock is
        held."""
        self._is_short = True
        self.intakes.close_opened_until(_FOREVER)  # Open intakes must leave first.
        if self.is_on_loop():
            return None
        # A queue in C, and not an event: Ctrl-C in the middle of a wait leaves no lock taken.
        room = host.current.new_queue()
        self._threads_waiting[room] = None
        return room

    def wait_for_room(self, room: host.Queue | None, deadline: float) -> None:
        """Block this thread until memory was given back; the lock is not held.

        Raises:
            BufferExhaustedError: it is the loop's thread, or the deadline passed.
        """
        self.wake()
        if room is None:
            remedy = "on the event loop send() never waits: `await producer.wait_for_room()`"
        else:
            try:
                room.get(timeout=max(0.0, deadline - host.monotonic_s()))
            except Empty:
                remedy = f"it stayed full for max_block_ms={self.config.max_block_ms}"
            else:
                return
            finally:
                self._threads_waiting.pop(room, None)
        raise BufferExhaustedError(
            f"buffer_memory={self.config.buffer_memory} is used up by records that are not "
            f"acknowledged yet; {remedy}, or raise buffer_memory"
        )

    def _wake_threads(self) -> None:
        """Let threads that wait for room try again; the lock is held."""
        for room in list(self._threads_waiting):  # Some may give up meanwhile.
            room.put(None)
        self._threads_waiting.clear()

    def unfinished_records(self) -> int:
        """Return how many records have no outcome yet, as far as other threads let it be seen."""
        intakes = self.intakes
        return sum(
            intake.unfinished_records
            for intake in [*self._unfinished, *intakes.closed, *intakes.open.values()]
        )

    def untold_records(self) -> int:
        """Return how many records have no outcome yet, or an error that nobody has seen."""
        failed = sum(count - error.told.bit_count() for error, count in self._untold.copy().items())
        return self.unfinished_records() + failed

    def acknowledged_records(self) -> int:
        """Return how many records were acknowledged since the start."""
        return self.counters.acknowledged_records

    def stream_failures(self) -> int:
        """Return how many streams to brokers broke, or could not be opened."""
        return self._streams.failures

    # Called on the loop.

    def awaited_brokers(self) -> list[str]:
        """Return the addresses of brokers that batches wait for, as far as they are known."""
        brokers = self.cluster.metadata.brokers
        return [brokers[each].address for each in self._sender.awaited_brokers() if each in brokers]

    def producer_id_problem(self) -> str | None:
        """Return why there is no producer id yet; None: none is needed, empty: no answer yet."""
        return self._sender.producer_id_problem()

    async def room_for(self, size: int) -> None:
        """Wait until `size` bytes of memory are free.

        Raises:
            ClosedError: the producer is closed.
        """
        while True:
            with self.lock:
                if self.refusal:
                    raise ClosedError(self.refusal)
                if self.intakes.available >= min(size, self.config.buffer_memory):
                    return
                self._is_short = True
                self.intakes.close_opened_until(_FOREVER)
            future: asyncio.Future[None] = self.loop.create_future()
            self._room_waiters.append(future)
            self.wake()
            try:
                await future
            finally:
                with suppress(ValueError):  # It is still there if this task was cancelled.
                    self._room_waiters.remove(future)

    async def flush(self) -> None:
        """Send all records without lingering, and wait for their outcomes.

        Raises:
            MillraceError: the first failure of what it waited for, or since the last flush.
        """
        self._flushed_at = monotonic_now()
        self._step()
        untold = (failure for failure in self._untold.items() if not _is_told(*failure))
        flush = _Flush(set(self._unfinished), self.loop.create_future(), next(untold, None))
        self._untold.clear()
        if flush.pending:
            self._flushes.append(flush)
            try:
                await flush.future
            except asyncio.CancelledError:
                if flush.failure is not None:  # The next one raises it.
                    self._untold = dict([flush.failure, *self._untold.items()])
                raise
            finally:
                self._flushes.remove(flush)
        if flush.failure is not None:
            raise own(flush.failure[0])

    def refuse_records(self) -> None:
        """Take no more records: those sent while the others leave would be lost."""
        with self.lock:
            self.refusal = "the producer is closed"
            self.intakes.plain.clear()
            self._wake_threads()
        self._wake_room_waiters()

    async def drain(self) -> None:
        """With `acks=0`, wait until brokers have taken what was sent."""
        if self.config.acks == 0:
            await asyncio.gather(*(each.drain() for each in self._streams.open_streams()))

    async def close(self, why: str, ends_at: float) -> None:
        """Let go of everything; records without an outcome fail.

        Args:
            why: what is told of them, besides that the producer was closed.
            ends_at: see `let_go`.
        """
        self.refuse_records()
        with self.lock:
            self.is_closed = True
            self.intakes.close_opened_until(_FOREVER)
            self._unfinished.update(dict.fromkeys(self.intakes.closed))
            self.intakes.closed.clear()
        if self._timer is not None:
            self._timer.cancel()
        await let_go(
            ends_at,
            self._streams.close,
            self._tasks.end,
            partial(self._give_all_up, why),
            self.cluster.close,
        )

    async def _give_all_up(self, why: str) -> None:
        if self._encoders is not None:
            self._encoders.shutdown()
        for intake in list(self._unfinished):
            self._give_up(intake, why)

    def _give_up(self, intake: Intake, why: str) -> None:
        message = f"the producer was closed before the record was acknowledged{why and ': '}{why}"
        if not intake.is_distributed:
            error = ClosedError(message)
            intake.fail(error)
            self._on_failed((intake,), intake.record_count, error)
        for batch, _, count in intake.segments:
            if batch.outcome is None:
                appended = Appended.MAYBE if batch.attempts else Appended.NO
                batch.outcome = ClosedError(message, appended=appended)
            if isinstance(batch.outcome, ClosedError):
                self._on_failed((intake,), count, batch.outcome)
        intake.batches_open = 0
        self._complete_intake(intake)

    def _step(self) -> None:
        self._step_is_due = False
        if self.is_closed:
            return
        now = monotonic_now()
        with self.lock:
            self.intakes.close_opened_until(self._due(now))
            closed = self.intakes.closed
            self._unfinished.update(dict.fromkeys(closed))  # First: see `on_forked`.
            self.intakes.closed = deque()
        for intake in closed:
            self._distribute(intake)
        self._distributor.seal_opened_until(self._due(now))
        self._encode()
        self._perform(now)
        self._schedule(now)

    def _linger(self) -> int:
        """Return how long a record may linger now."""
        # With little memory no more records may come: those here leave as soon as they can.
        linger_ms = 0 if self._is_short else self.config.linger_ms
        return max(linger_ms, _BUSY_LINGER_MS) if self._sender.is_saturated() else linger_ms

    def _due(self, now: MonotonicMs) -> MonotonicMs:
        """Return the send time up to which records no longer linger."""
        return max(MonotonicMs(now - self._linger()), self._flushed_at)

    def _schedule(self, now: MonotonicMs) -> None:
        """Set the timer for the next moment at which something is due."""
        moments = [
            opened + self._linger()
            for opened in (self.intakes.first_opened_at(), self._distributor.first_opened_at())
            if opened is not None
        ]
        wake = self._sender.next_wake(now)
        if wake is not None:
            moments.append(wake)
        at = min(moments, default=0)
        if self._timer is not None:
            if self._timer_at == at:
                return
            self._timer.cancel()
            self._timer = None
        if moments:
            self._timer_at = at
            self._timer = self.loop.call_later(max(at - now, 0.5) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._step()

    # Records to partitions.

    def _distribute(self, intake: Intake, *, is_looked_up: bool = False) -> None:
        parked = self._parked.get(intake.topic)
        if parked is not None:
            parked.append(intake)
            return
        info = self.cluster.metadata.topics.get(intake.topic)
        if info is None:
            self._parked[intake.topic] = deque([intake])
            self._tasks.spawn(self._look_up, intake.topic, intake.opened_at)
            return
        is_looked_up = is_looked_up or intake.topic in self._looked_up_lately
        if not is_looked_up and _last_named(intake) >= len(info.partitions):
            self._parked[intake.topic] = deque([intake])  # Others wait until it is gone, in order.
            self._tasks.spawn(self._look_for_partition, intake.topic)
            return
        self.counters.records += intake.record_count
        self.counters.record_bytes += intake.size
        batch_bytes_max = min(info.batch_bytes_max, self.cluster.batch_bytes_max)
        self._distributor.distribute(
            intake, TopicLayout(info.topic_id, len(info.partitions), batch_bytes_max)
        )
        for error in intake.failures.values():
            self._on_failed((intake,), 1, error)
        if intake.is_complete:
            self._complete_intake(intake)

    async def _look_up(self, topic: str, waits_since: MonotonicMs) -> None:
        """Look a topic up; records that wait for it fail when their time is over."""
        config = self.config
        for_delivery = (
            waits_since + config.delivery_timeout_ms - monotonic_now(),
            f"delivery_timeout_ms={config.delivery_timeout_ms}",
        )
        for_answer = min((config.max_block_ms, f"max_block_ms={config.max_block_ms}"), for_delivery)
        for_topic = min(
            (config.topic_wait_ms, f"topic_wait_ms={config.topic_wait_ms}"), for_delivery
        )
        began_at = self.loop.time()
        pause_ms = self._retry_ms
        problem: MillraceError = ConnectionFailedError("no broker was asked yet")
        left_ms, limit = for_answer
        while True:
            why = f"waited for {limit}"
            try:
                async with asyncio.timeout_at(began_at + left_ms / 1000):
                    await self.cluster.topic(topic)
                self._streams.tell_leaders()
                why = ""
            except TimeoutError:
                pass
            except MillraceError as error:
                problem = error
                is_missing = isinstance(error, UnknownTopicOrPartitionError)
                left_ms, limit = for_topic if is_missing else for_answer
                why = f"waited for {limit}" if error.retriable else "were not sent"
                end = began_at + left_ms / 1000
                if error.retriable and self.loop.time() + pause_ms / 1000 < end:
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, self._retry_ms_max)
                    continue
            break
        for intake in self._parked.pop(topic):
            if not why:
                self._distribute(intake)
                continue
            message = f"{problem.message} (records for topic {topic!r} {why})"
            failure = type(problem)(message, appended=Appended.NO)
            intake.fail(failure)
            self._on_failed((intake,), intake.record_count, failure)
            self._complete_intake(intake)
        self.wake()

    async def _look_for_partition(self, topic: str) -> None:
        """Look up a topic in which records name a partition that is not known: it may be new."""
        last = max(map(_last_named, self._parked[topic]))
        with suppress(MillraceError, TimeoutError):  # Then the records fail.
            async with asyncio.timeout(self.config.max_block_ms / 1000):
                info = await self.cluster.topic_with(topic, last)
            if last >= len(info.partitions):
                self._looked_up_lately.add(topic)
                self.loop.call_later(
                    _PARTITION_LOOK_UP_PAUSE_S, self._looked_up_lately.discard, topic
                )
        self._streams.tell_leaders()
        for intake in self._parked.pop(topic):
            self._distribute(intake, is_looked_up=True)
        self.wake()

    # Batches to the sender.

    def _encode(self) -> None:
        batches, self._distributor.sealed = self._distributor.sealed, []
        if self._encoders is None:
            for batch in batches:
                self._encoded(batch, partial(encode, batch, self._compressor))
            return
        for batch in batches:
            future = self._encoded_in_thread(batch)
            self._encoding.append((batch, future))
            future.add_done_callback(self._on_encoded)

    def _encoded_in_thread(self, batch: ProducerBatch) -> "asyncio.Future[Any]":
        try:
            return self.loop.run_in_executor(self._encoders, encode, batch, self._compressor)
        except RuntimeError:  # The process ends: its executors take no more work.
            future: asyncio.Future[Any] = self.loop.create_future()
        try:
            future.set_result(encode(batch, self._compressor))
        except Exception as error:
            future.set_exception(error)
        return future

    def _on_encoded(self, _: "asyncio.Future[Any]") -> None:
        while self._encoding and self._encoding[0][1].done():
            batch, future = self._encoding.popleft()
            if not future.cancelled():
                self._encoded(batch, future.result)
        self.wake()

    def _encoded(self, batch: ProducerBatch, prepared: Callable[[], Any]) -> None:
        try:
            batch.prepared = prepared()
        except MillraceError as error:
            self._sender.on_unencodable(batch, error)
            return
        except Exception as error:  # Arrow's own errors about a user's columns.
            self._sender.on_unencodable(
                batch, InvalidConfigError(f"the records cannot be encoded: {error!r}")
            )
            return
        self._sender.on_batches((batch,))

    # Effects.

    def _perform(self, now: MonotonicMs) -> None:
        for effect in self._sender.poll(now):
            match effect:
                case Transmit():
                    stream = self._streams.get(effect.broker_id)
                    assert stream is not None, "the machine sends to brokers that are connected"
                    self.counters.requests += 1
                    self.counters.batches += len(effect.batches)
                    for batch, _ in effect.batches:
                        assert batch.prepared is not None
                        self.counters.batch_bytes += batch.prepared.length
                        self.counters.repeated_batches += batch.attempts > 1
                    stream.send(effect.correlation_id, effect.batches)
                case Complete():
                    self._complete(effect.batch)
                case Disconnect():
                    self._streams.give_up(effect.broker_id)
                case AllocateProducerId():
                    self._tasks.spawn(self._allocate_producer_id)
                case _:
                    self._streams.perform(effect)

    def _complete(self, batch: ProducerBatch) -> None:
        batch.prepared = None
        if isinstance(batch.outcome, MillraceError):
            self._on_failed(batch.intakes, batch.record_count, batch.outcome)
        else:
            self.counters.acknowledged_records += batch.record_count
            self.counters.delivery_seconds.observe((monotonic_now() - batch.opened_at) / 1000)
        for intake in batch.intakes:
            intake.batches_open -= 1
            if intake.is_complete:
                self._complete_intake(intake)
            elif intake.waiters:
                waiters, intake.waiters = intake.waiters, []
                intake.waiters += [waiter for waiter in waiters if not self._tell(waiter)]

    def _on_failed(self, intakes: Iterable[Intake], count: int, error: MillraceError) -> None:
        """Keep a failure for every flush that waits for these records, or for the next one."""
        self.counters.failed_records += count
        self.counters.failures[error.name()] += count
        is_untold = False
        for intake in intakes:
            waiting = [flush for flush in self._flushes if intake in flush.pending]
            for flush in waiting:
                flush.failure = flush.failure or (error, count)
            is_untold = is_untold or not waiting
        if is_untold:
            untold = self._untold
            untold[error] = untold.get(error, 0) + count
            if len(untold) > _UNTOLD_MAX:
                oldest = next(iter(untold))
                del untold[oldest if _is_told(oldest, untold[oldest]) else error]

    def _complete_intake(self, intake: Intake) -> None:
        with self.lock:
            self.intakes.release(intake)
            self._is_short = False
            self._wake_threads()
        self._unfinished.pop(intake, None)
        waiters, intake.waiters = intake.waiters, []
        for waiter in waiters:
            self._tell(waiter)
        self._wake_room_waiters()
        for flush in self._flushes:
            flush.pending.discard(intake)
            if not flush.pending and not flush.future.done():
                flush.future.set_result(None)

    def _wake_room_waiters(self) -> None:
        for future in self._room_waiters:
            if not future.done():
                future.set_result(None)
        self._room_waiters.clear()

    def _tell(self, waiter: Waiter) -> bool:
        try:
            return waiter()
        except Exception as error:  # A user's callback; not the producer's affair.
            self.loop.call_exception_handler(
                {"message": "a delivery callback raised", "exception": error}
            )
            return True

    def _open_stream(self, broker_id: BrokerId, connection: Connection) -> ProduceStream:
        return ProduceStream(
            broker_id,
            connection,
            acks=self.config.acks,
            request_timeout_ms=self.config.request_timeout_ms,
            latencies=self.counters.request_seconds,
            on_answer=self._on_answer,
            on_throttled=self._on_throttled,
            on_written=self._on_written,
            on_late_refusal=self._on_late_refusal,
            on_broken=self._streams.on_broken,
        )

    def _on_throttled(self, broker_id: BrokerId, throttle_ms: int) -> None:
        self.counters.throttled_ms += self._sender.on_throttled(
            broker_id, throttle_ms, monotonic_now()
        )
        self._throttling.on_throttled(broker_id, throttle_ms)
        self._step()

    def _on_answer(
        self, broker_id: BrokerId, correlation_id: int, answers: Sequence[Answer]
    ) -> None:
        for answer in answers:
            if isinstance(answer, Refusal):
                self._streams.learn_address(answer.error)
        self._sender.on_answer(broker_id, correlation_id, answers, monotonic_now())
        self._step()

    def _on_written(self, broker_id: BrokerId, correlation_id: int, batches: int) -> None:
        answers = [Acknowledged(UNKNOWN_OFFSET, WallMs(-1))] * batches
        self._sender.on_answer(broker_id, correlation_id, answers, monotonic_now())
        self._step()

    def _on_late_refusal(self, broker_id: BrokerId, errors: Sequence[MillraceError]) -> None:
        self.counters.refused_requests += 1
        # A look-up does not solve the other errors.
        if any(isinstance(each, RefreshMetadataError | MessageTooLargeError) for each in errors):
            self._sender.on_late_refusal(broker_id)
            self._step()

    async def _allocate_producer_id(self) -> None:
        request = produce_pb2.InitProducerIdRequest()

        async def ask(connection: Connection) -> produce_pb2.InitProducerIdResponse:
            response: produce_pb2.InitProducerIdResponse = await connection.produce.InitProducerId(
                request
            )
            # Raised in here: another broker may have ids left, or a way to the controller.
            wire.raise_if_refused(response)
            return response

        while True:
            try:
                response = await self.cluster.call(
                    ask, attempt_s=lambda: self.cluster.metadata_timeout_s
                )
            except (RetriableError, ConnectionFailedError, UnknownServerError) as error:
                self._sender.on_no_producer_id(error.message)
                await asyncio.sleep(self._retry_ms_max / 1000)
            else:
                break
        self._sender.on_producer_id(ProducerId(response.producer_id))
        self.wake()


def _last_named(intake: Intake) -> int:
    """Return the last partition that records name; -1: they name none."""
    return -1 if intake.partitions is None else int(np.max(intake.partitions, initial=-1))


def _is_told(error: MillraceError, count: int) -> bool:
    """Whether handles have reported an error for all of these records."""
    return error.told.bit_count() >= count
