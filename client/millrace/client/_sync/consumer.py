"""Reading records without an event loop.

Records are decoded in the thread that polls, while the loop's thread reads the next ones.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Unpack

from millrace.client._consumer.assignment import Start
from millrace.client._consumer.consumer import LOOP_WAIT_MS, POLL_BYTES_MAX_DEFAULT, Consumer, Taken
from millrace.client._consumer.dead_letters import DeadLetters, Handler
from millrace.client._consumer.exactly_once import (
    BYTES_MAX_DEFAULT,
    INTERVAL_MS_DEFAULT,
    OutputRecords,
    TransactionalProducer,
    Transform,
    loop_producer_of,
)
from millrace.client._consumer.handing_out import HandingOut, check_max_records
from millrace.client._consumer.records import FetchedRecords, Record, Records, parts
from millrace.client._consumer.settings import ConsumerSettings
from millrace.client._sync.client import SyncClient, blocking, direct, load
from millrace.core.errors import ClosedError
from millrace.core.topics import PartitionName
from millrace.runtime import host

PlainCallback = Callable[[list[PartitionName]], object]


class SyncConsumer(SyncClient[Consumer]):
    """Reads records, from one thread at a time.

        with SyncConsumer("localhost:7092") as consumer:
            consumer.subscribe(["orders"])
            for record in consumer:
                print(record.offset, record.key, record.value)

    The settings and methods are those of `Consumer`.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], **settings: Unpack[ConsumerSettings]
    ) -> None:
        load(settings)
        super().__init__(lambda: Consumer(bootstrap, **settings))
        self._core = self._client._core
        self._reading = self._client._reading

    assign = blocking(Consumer.assign)

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str = "",
        start: Start | None = None,
        on_assigned: PlainCallback | None = None,
        on_revoked: PlainCallback | None = None,
        on_lost: PlainCallback | None = None,
    ) -> None:
        """Read all partitions of these topics, and those that they get: `Consumer.subscribe`.

        Callbacks run in the thread that polls, or closes the consumer.
        """
        assigned, revoked, lost = (
            None if callback is None else self._thread.in_caller(callback)
            for callback in (on_assigned, on_revoked, on_lost)
        )
        self._thread.call(
            self._client.subscribe(
                topics,
                pattern=pattern,
                start=start,
                on_assigned=assigned,
                on_revoked=revoked,
                on_lost=lost,
            )
        )

    commit = blocking(Consumer.commit)
    assignment = direct(Consumer.assignment)
    awaited_partitions = direct(Consumer.awaited_partitions)
    topic_ids = direct(Consumer.topic_ids)

    def poll(
        self,
        timeout_ms: int = 1_000,
        max_records: int = 10_000,
        max_bytes: int = POLL_BYTES_MAX_DEFAULT,
    ) -> Records:
        """Return records, as soon as there are some: see `Consumer.poll`."""
        check_max_records(max_records)
        return self._take(lambda out: out.take_records(max_records, max_bytes), timeout_ms)

    def poll_batches(
        self, timeout_ms: int = 1_000, max_bytes: int = POLL_BYTES_MAX_DEFAULT
    ) -> list[FetchedRecords]:
        """Return records as Arrow record batches: see `Consumer.poll_batches`."""
        return self._take(lambda out: out.take_batches(max_bytes), timeout_ms)

    def _take(self, take: Callable[[HandingOut], Taken], timeout_ms: int) -> Taken:
        polling = self._core.begin_poll()
        with self._core.exclusive():
            deadline = host.monotonic_s() + timeout_ms / 1000
            while True:
                membership = self._core.membership
                if membership is not None and membership.is_due:
                    self._thread.call(membership.poll())
                left = deadline - host.monotonic_s()
                # Most polls begin before there is anything.
                if left <= 0 or self._core.handing_out.has_news:
                    taken = self._core.take(take)
                    if taken or left <= 0 or self._core.fetching.take_end():
                        polling(taken)
                        return taken
                self._thread.check_caller()
                self._core.wait_in_thread(left)

    def __iter__(self) -> Iterator[Record]:
        while True:
            try:
                lent = self._take(HandingOut.lend_records, LOOP_WAIT_MS)
            except ClosedError:
                if self._core.is_closed:
                    return
                raise  # Of what a callback uses, or in the child of a fork.
            for part in parts(lent):
                yield from part

    def process(self, handler: Handler, dead_letters: DeadLetters) -> None:
        """Call a function with each record, at least once: see `Consumer.process`.

            dead_letters = DeadLetters(producer, "orders.dead", attempts=5)
            with SyncConsumer("localhost:7092", group="billing") as consumer:
                consumer.subscribe(["orders"])
                consumer.process(bill, dead_letters)

        The function runs in this thread. An exception that is no `Exception`, as of Ctrl-C or
        `sys.exit()`, ends `process`, and the record that it interrupts comes again.
        """
        called = self._thread.in_caller(self._core.traced(handler))
        self._thread.call(self._client._process(called, dead_letters))

    def process_exactly_once(
        self,
        transform: Transform,
        producer: TransactionalProducer,
        *,
        interval_ms: int = INTERVAL_MS_DEFAULT,
        bytes_max: int = BYTES_MAX_DEFAULT,
    ) -> None:
        """Write what a function makes of records, exactly once: `Consumer.process_exactly_once`.

            with (
                SyncConsumer(brokers, group="delays", enable_auto_commit=False) as consumer,
                SyncProducer(brokers, transactional_id="delays-1") as producer,
            ):
                consumer.subscribe(["flights"])
                consumer.process_exactly_once(delays, producer)

        The function runs in this thread. Ctrl-C ends it, and aborts the open transaction.
        """
        loop_producer = loop_producer_of(transform, producer)
        made: list[Iterable[OutputRecords]] = []

        def call(records: FetchedRecords) -> None:
            outputs = transform(records)
            if inspect.isawaitable(outputs):
                raise TypeError("a synchronous consumer takes a plain function")
            made.append(list(outputs))

        called = self._thread.in_caller(call)

        async def transformed(records: FetchedRecords) -> Iterable[OutputRecords]:
            await called(records)
            return made.pop()

        self._thread.call(
            self._client._process_exactly_once(transformed, loop_producer, interval_ms, bytes_max)
        )

    seek = direct(Consumer.seek)
    seek_to_time = blocking(Consumer.seek_to_time)
    pause = direct(Consumer.pause)
    resume = direct(Consumer.resume)
    position = blocking(Consumer.position)
    lag = blocking(Consumer.lag)
    metrics = direct(Consumer.metrics)

    def close(self) -> None:
        """Release everything: see `Consumer.close`."""
        self._thread.close(self._client.close(), self._core.config.close_timeout_ms, str)
