"""The same clients for code without an event loop.

One loop thread per process serves all of them; it starts with the first and ends with the last.
`SyncProducer.send()` does not enter the loop at all; everything else costs one hop per call.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from queue import Empty
from types import MappingProxyType, TracebackType
from typing import Any, Final, Literal, Self, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

from millrace.client import host
from millrace.client._admin.admin import Admin
from millrace.client._admin.descriptions import (
    ClusterDescription,
    ConfigValue,
    DamagedReplica,
    DeletedTopic,
    LogDescription,
    TopicDescription,
)
from millrace.client._admin.groups import GroupDescription, GroupListing, Lag
from millrace.client._admin.health import ClusterHealth
from millrace.client._admin.quotas import QuotaDescription
from millrace.client._cluster.offsets import OffsetAndTimestamp, OffsetSpec
from millrace.client._consumer.consumer import LOOP_WAIT_MS, POLL_BYTES_MAX_DEFAULT, Consumer, Taken
from millrace.client._consumer.dead_letters import DeadLetters, Handler
from millrace.client._consumer.reading import Start
from millrace.client._consumer.records import FetchedRecords, Record, Records, parts
from millrace.client._consumer.settings import ConsumerSettings
from millrace.client._producer.producer import Producer, RecordSink, unacknowledged
from millrace.client._producer.settings import ProducerSettings
from millrace.client._runtime import fork, logs
from millrace.client._runtime.tasks import CANCELLED_BY_OTHERS
from millrace.client._settings import AdminSettings, TracedSettings
from millrace.core.errors import Appended, ClientError, ClosedError, MillraceError
from millrace.core.ids import BrokerId, TopicId
from millrace.core.positions.position import Position
from millrace.core.topics import PartitionName

Result = TypeVar("Result")
Argument = TypeVar("Argument")
PlainCallback = Callable[[list[PartitionName]], object]

_CLOSING_S: Final = 2.0
"""How much longer `close()` of a client waits than the coroutine that it runs may take."""


class _LoopThread:
    """An event loop on a thread: one per process, from the first client on, for ever.

    It is never closed, as grpc.aio keeps calling into every loop that it has once seen.
    """

    _lock = threading.Lock()
    _shared: "_LoopThread | None" = None

    def __init__(self) -> None:
        self._process = _process()
        self.loop = host.current.start_loop("millrace-client")
        logs.divert(self.loop)
        self._calling: WeakKeyDictionary[asyncio.Task[Any] | None, host.Queue] = WeakKeyDictionary()
        """Where the thread waits that called each task."""

    @classmethod
    def shared(cls) -> "_LoopThread":
        """Return the process's loop thread."""
        with cls._lock:
            if cls._shared is None or cls._shared._process != _process():
                cls._shared = _LoopThread()
            return cls._shared

    @classmethod
    def on_forked(cls) -> None:
        """Let the child make its own: a thread that the child lacks may hold the lock."""
        cls._lock = threading.Lock()

    def call(self, work: Coroutine[Any, Any, Result], limit_s: float | None = None) -> Result:
        """Run a coroutine on the loop and wait for its result.

        If the wait ends before that, by Ctrl-C or an exception of a signal handler, it is
        cancelled.

        Args:
            work: the coroutine.
            limit_s: how long to wait; None: for as long as it takes.

        Raises:
            TimeoutError: the time is over.
            ClosedError: the process was forked after the client was made.
            RuntimeError: this is the loop's thread, as in a delivery callback: the wait would last
                for ever.
        """
        if self._process != _process():
            work.close()
            raise ClosedError(fork.FORKED)
        if self._is_running():
            work.close()
            raise RuntimeError(
                "a synchronous client cannot be called where it delivers news, as in a callback: "
                "call it in another thread"
            )
        logs.remember_levels()
        # Not a future: Ctrl-C in the middle of its wait can leave its lock taken, and the loop
        # thread would block on it for ever.
        finished = host.current.new_queue()
        tasks: list[asyncio.Task[Result]] = []

        def start() -> None:
            task = self.loop.create_task(work)
            tasks.append(task)
            self._calling[task] = finished
            task.add_done_callback(finished.put)

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        deadline = None if limit_s is None else host.monotonic_s() + limit_s

        def get() -> Any:
            if deadline is None:
                return finished.get()
            try:
                return finished.get(timeout=max(0.0, deadline - host.monotonic_s()))
            except Empty:
                raise TimeoutError from None

        try:
            self.loop.call_soon_threadsafe(start)
            while not isinstance(news := get(), asyncio.Task):
                news()
        except BaseException:
            self.loop.call_soon_threadsafe(cancel)
            raise
        task: asyncio.Task[Result] = news
        if task.cancelled():
            raise ClientError(f"the call {CANCELLED_BY_OTHERS}: call again")
        return task.result()

    def close(
        self, work: Coroutine[Any, Any, None], timeout_ms: int, what_is_left: Callable[[], str]
    ) -> None:
        """Run the coroutine that closes a client, which keeps its own time limit.

        Raises:
            ClosedError: it did not: something blocks the clients' thread.
        """
        try:
            self.call(work, timeout_ms / 1000 + _CLOSING_S)
        except TimeoutError:
            raise ClosedError(
                f"close() has not ended in close_timeout_ms={timeout_ms}, as something blocks the "
                f"clients' thread, such as a callback{what_is_left()}",
                appended=Appended.MAYBE,
            ) from None

    def in_caller(self, callback: Callable[[Argument], object]) -> "Callable[[Argument], Any]":
        """Return a callback for the loop that runs in the thread which waits in `call`.

        So it may call the synchronous client itself.
        """

        async def run(argument: Argument) -> None:
            calling = self._calling.get(asyncio.current_task())
            assert calling is not None, "called by what a thread waits for"
            done = self.loop.create_future()

            def call() -> None:
                try:
                    callback(argument)
                except Exception as error:
                    # Not of Ctrl-C or `sys.exit`: these end `call`, which cancels the task.
                    self.loop.call_soon_threadsafe(_settle, done, error)
                else:
                    self.loop.call_soon_threadsafe(_settle, done, None)

            calling.put(call)
            await done

        return run

    def _is_running(self) -> bool:
        """Return whether this is the loop's thread."""
        try:
            return asyncio.get_running_loop() is self.loop
        except RuntimeError:
            return False


def _process() -> tuple[host.Host, int]:
    return host.current, os.getpid()


os.register_at_fork(after_in_child=_LoopThread.on_forked)


def _settle(done: "asyncio.Future[None]", error: Exception | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _load(settings: TracedSettings) -> None:
    """Load what the settings need in this thread: modules make loggers, for which `logging` locks.

    The clients' thread must not wait for that lock: this one may have it, as in `dictConfig`.
    """
    if settings.get("tracing"):
        with suppress(ImportError):  # The settings are checked later, and say so.
            import_module("millrace.client.tracing")


async def _make(factory: Callable[[], Result]) -> Result:
    return factory()


class SyncProducer(RecordSink):
    """Writes records, from any number of threads.

        with SyncProducer("localhost:7092") as producer:
            for line in lines:
                producer.send("orders", line)
            producer.flush()  # Raises if a record was not delivered.

    `send()` waits only when `buffer_memory` is full, at most `max_block_ms`. The settings are those
    of `Producer`.

    When a program ends without `close()`, the records are delivered for up to 10 s, and a warning
    counts those that are not. A `logging.Handler` may send through a producer, and close it.
    """

    def __init__(
        self, bootstrap: str | Sequence[str], **settings: Unpack[ProducerSettings]
    ) -> None:
        _load(settings)
        self._thread = _LoopThread.shared()
        self._producer = self._thread.call(_make(lambda: Producer(bootstrap, **settings)))
        producer = self._producer
        super().__init__(producer._pipeline, *producer._serializers, producer._tracing)

    def flush(self) -> None:
        """Send everything without lingering, and wait until it is acknowledged or has failed.

        A failure is raised in all threads that wait for its record, or else once in the next call:
        see `Producer.flush`.

        Raises:
            MillraceError: the first failure of the records it waited for, or since the last flush,
                that no handle has reported.
            ClosedError: the producer was closed before everything was acknowledged.
        """
        self._thread.call(self._producer.flush())

    def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic.
        """
        return self._thread.call(self._producer.partitions_for(topic))

    def awaited_brokers(self) -> list[str]:
        """Return the brokers that records wait for: see `Producer.awaited_brokers`."""
        return self._thread.call(_make(self._producer.awaited_brokers))

    def producer_id_problem(self) -> str | None:
        """Return why there is no producer id: see `Producer.producer_id_problem`."""
        return self._thread.call(_make(self._producer.producer_id_problem))

    def close(self) -> None:
        """Deliver the sent records and release everything; closing twice is harmless.

        No more records can be sent from now on, also while it waits for the earlier ones. Takes
        `close_timeout_ms` at the most, and little longer if the clients' thread is blocked.

        Raises:
            MillraceError: the first failure of the records it waited for, or since the last flush,
                that no handle has reported.
            ClosedError: the time was over; tells how many records were not acknowledged.
        """
        pipeline = self._pipeline
        self._thread.close(
            self._producer.close(),
            pipeline.config.close_timeout_ms,
            lambda: f"; {unacknowledged(pipeline)}",
        )

    def _abandon(self) -> None:
        """Deliver nothing more, neither now nor at the end of the process, and wait for nothing."""
        pipeline = self._pipeline
        pipeline.is_closed = True  # At once: the clients' thread may be blocked.
        ends_at = host.monotonic_s() + pipeline.config.close_timeout_ms / 1000
        closing = pipeline.close("it was abandoned", ends_at)
        asyncio.run_coroutine_threadsafe(closing, self._thread.loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except MillraceError:
            if kind is None:  # The user's error matters more than a failed delivery.
                raise


class SyncConsumer:
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
        _load(settings)
        self._thread = _LoopThread.shared()
        self._consumer = self._thread.call(_make(lambda: Consumer(bootstrap, **settings)))
        self._core = self._consumer._core

    def assign(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, Start],
        *,
        start: Start | None = None,
        ends: Mapping[PartitionName, int] = MappingProxyType({}),
    ) -> None:
        """Read exactly these partitions from now on: see `Consumer.assign`."""
        self._thread.call(self._consumer.assign(partitions, start=start, ends=ends))

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
            None if each is None else self._thread.in_caller(each)
            for each in (on_assigned, on_revoked, on_lost)
        )
        self._thread.call(
            self._consumer.subscribe(
                topics,
                pattern=pattern,
                start=start,
                on_assigned=assigned,
                on_revoked=revoked,
                on_lost=lost,
            )
        )

    def commit(self, positions: Mapping[PartitionName, int] | None = None) -> None:
        """Commit how far the group has read: see `Consumer.commit`."""
        self._thread.call(self._consumer.commit(positions))

    def assignment(self) -> list[PartitionName]:
        """Return the partitions that are read."""
        return self._core.assignment()

    def awaited_partitions(self) -> list[PartitionName]:
        """Return the partitions that no broker sends at present.

        See `Consumer.awaited_partitions`.
        """
        return self._consumer.awaited_partitions()

    def topic_ids(self) -> dict[str, TopicId]:
        """Return which topics are read, by name: see `Consumer.topic_ids`."""
        return self._consumer.topic_ids()

    def poll(
        self,
        timeout_ms: int = 1_000,
        max_records: int = 10_000,
        max_bytes: int = POLL_BYTES_MAX_DEFAULT,
    ) -> Records:
        """Return records, as soon as there are some: see `Consumer.poll`."""
        return self._take(lambda: self._core.take_records(max_records, max_bytes), timeout_ms)

    def poll_batches(
        self, timeout_ms: int = 1_000, max_bytes: int = POLL_BYTES_MAX_DEFAULT
    ) -> list[FetchedRecords]:
        """Return records as Arrow record batches: see `Consumer.poll_batches`."""
        return self._take(lambda: self._core.take_batches(max_bytes), timeout_ms)

    def _take(self, take: Callable[[], Taken], timeout_ms: int) -> Taken:
        # Records are decoded in this thread, while the loop's thread reads the next ones.
        polling = self._core.begin_poll()
        with self._core.exclusive():
            deadline = host.monotonic_s() + timeout_ms / 1000
            while True:
                membership = self._core.membership
                if membership is not None and membership.is_due:
                    self._thread.call(membership.poll())
                taken = take()
                left = deadline - host.monotonic_s()
                if taken or left <= 0:
                    polling(taken)
                    return taken
                self._thread.call(self._core.wait_for_news(left))

    def __iter__(self) -> Iterator[Record]:
        while True:
            try:
                lent = self._take(self._core.lend_records, LOOP_WAIT_MS)
            except ClosedError:
                if self._core.is_closed:
                    return
                raise  # In the child of a fork it never is.
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
        self._thread.call(self._consumer._process(called, dead_letters))

    def seek(self, partition: PartitionName, to: Start) -> None:
        """Move to another position in a partition: see `Consumer.seek`."""
        self._consumer.seek(partition, to)

    def seek_to_time(
        self, timestamp_ms: int, partitions: Iterable[PartitionName] | None = None
    ) -> None:
        """Go to the first record at or after a time (ms UTC), in these or all partitions."""
        self._thread.call(self._consumer.seek_to_time(timestamp_ms, partitions))

    def pause(self, *partitions: PartitionName) -> None:
        """Hand nothing out of these partitions until `resume`."""
        self._consumer.pause(*partitions)

    def resume(self, *partitions: PartitionName) -> None:
        """Go on with paused partitions."""
        self._consumer.resume(*partitions)

    def position(self, partition: PartitionName) -> int:
        """Return the offset of the next record that `poll` will hand out.

        Raises:
            MillraceError: it had to be looked up, without success within `request_timeout_ms`: the
                last reason.
        """
        return self._thread.call(self._consumer.position(partition))

    def lag(self) -> dict[PartitionName, int]:
        """Return how many records are still to be handed out, per partition."""
        return self._thread.call(self._consumer.lag())

    def metrics(self) -> dict[str, int]:
        """Return counters since the start: see `Consumer.metrics`."""
        return self._consumer.metrics()

    def close(self) -> None:
        """Release everything: see `Consumer.close`."""
        self._thread.close(self._consumer.close(), self._core.close_timeout_ms, str)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SyncAdmin:
    """Creates, describes and changes topics, and looks after the cluster.

        with SyncAdmin("localhost:7092") as admin:
            admin.create_topic("orders", partitions=4)

    The methods are those of `Admin`.
    """

    def __init__(self, bootstrap: str | Sequence[str], **settings: Unpack[AdminSettings]) -> None:
        self._thread = _LoopThread.shared()
        self._admin = self._thread.call(_make(lambda: Admin(bootstrap, **settings)))

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Create a topic: see `Admin.create_topic`."""
        return self._thread.call(
            self._admin.create_topic(
                name, partitions, replication_factor, config, validate_only=validate_only
            )
        )

    def alter_topic(
        self,
        name: str,
        *,
        set_config: Mapping[str, str] | None = None,
        unset_config: Iterable[str] = (),
        partitions: int | None = None,
        validate_only: bool = False,
    ) -> TopicDescription:
        """Change settings of a topic: see `Admin.alter_topic`."""
        return self._thread.call(
            self._admin.alter_topic(
                name,
                set_config=set_config,
                unset_config=unset_config,
                partitions=partitions,
                validate_only=validate_only,
            )
        )

    def delete_topic(self, name: str, *, validate_only: bool = False) -> None:
        """Delete a topic with all its records."""
        self._thread.call(self._admin.delete_topic(name, validate_only=validate_only))

    def list_deleted_topics(self) -> list[DeletedTopic]:
        """Return the deleted topics that can be brought back, the one deleted first at first."""
        return self._thread.call(self._admin.list_deleted_topics())

    def undelete_topic(self, name: str, *, topic_id: TopicId | None = None) -> TopicDescription:
        """See `Admin.undelete_topic`."""
        return self._thread.call(self._admin.undelete_topic(name, topic_id=topic_id))

    def purge_topic(self, name: str, *, topic_id: TopicId | None = None) -> None:
        """See `Admin.purge_topic`."""
        self._thread.call(self._admin.purge_topic(name, topic_id=topic_id))

    def list_topics(self, *, internal: bool = False) -> list[str]:
        """Return the names of all topics, sorted."""
        return self._thread.call(self._admin.list_topics(internal=internal))

    def describe_topics(self, names: Iterable[str] | None = None) -> dict[str, TopicDescription]:
        """Return topics by name; None: all."""
        return self._thread.call(self._admin.describe_topics(names))

    def describe_topic(self, name: str) -> TopicDescription:
        """Return one topic."""
        return self._thread.call(self._admin.describe_topic(name))

    def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and brokers."""
        return self._thread.call(self._admin.describe_cluster())

    def describe_health(self) -> ClusterHealth:
        """Return the cluster's problems: see `Admin.describe_health`."""
        return self._thread.call(self._admin.describe_health())

    def drain_broker(self, broker_id: int) -> None:
        """Take a broker out of service: see `Admin.drain_broker`."""
        self._thread.call(self._admin.drain_broker(broker_id))

    def undrain_broker(self, broker_id: int) -> None:
        """Take a broker back into service."""
        self._thread.call(self._admin.undrain_broker(broker_id))

    def unregister_broker(self, broker_id: int) -> None:
        """Remove a broker that is gone: see `Admin.unregister_broker`."""
        self._thread.call(self._admin.unregister_broker(broker_id))

    def reassign_partitions(
        self, assignments: Mapping[PartitionName, Sequence[int] | None]
    ) -> dict[PartitionName, MillraceError | None]:
        """Change which brokers hold partitions: see `Admin.reassign_partitions`."""
        return self._thread.call(self._admin.reassign_partitions(assignments))

    def elect_leaders(
        self,
        partitions: Iterable[PartitionName] | None = None,
        *,
        kind: Literal["preferred", "unclean"] = "preferred",
    ) -> dict[PartitionName, MillraceError | None]:
        """Elect other leaders: see `Admin.elect_leaders`."""
        return self._thread.call(self._admin.elect_leaders(partitions, kind=kind))

    @overload
    def list_offsets(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec = "end",
        *,
        return_errors: Literal[False] = False,
    ) -> dict[PartitionName, OffsetAndTimestamp]: ...

    @overload
    def list_offsets(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec = "end",
        *,
        return_errors: bool,
    ) -> dict[PartitionName, OffsetAndTimestamp | MillraceError]: ...

    def list_offsets(
        self,
        partitions: Iterable[PartitionName | str] | Mapping[PartitionName | str, OffsetSpec],
        at: OffsetSpec = "end",
        *,
        return_errors: bool = False,
    ) -> Mapping[PartitionName, OffsetAndTimestamp | MillraceError]:
        """Return an offset for each partition: see `Admin.list_offsets`."""
        listing = self._admin.list_offsets(partitions, at, return_errors=return_errors)
        return self._thread.call(listing)

    def delete_records(
        self, before: Mapping[PartitionName, int]
    ) -> dict[PartitionName, int | MillraceError]:
        """Delete the oldest records of partitions: see `Admin.delete_records`."""
        return self._thread.call(self._admin.delete_records(before))

    def wait_for_news(self, ends: Mapping[PartitionName, int], timeout_ms: int) -> None:
        """Wait until the end of a partition moves: see `Admin.wait_for_news`."""
        self._thread.call(self._admin.wait_for_news(ends, timeout_ms))

    def find_epoch_ends(self, epochs: Mapping[PartitionName, int]) -> dict[PartitionName, int]:
        """Return where leader epochs end: see `Admin.find_epoch_ends`."""
        return self._thread.call(self._admin.find_epoch_ends(epochs))

    def describe_logs(self, topic: str | None = None) -> list[LogDescription]:
        """Return offsets and sizes of the replicas on all brokers."""
        return self._thread.call(self._admin.describe_logs(topic))

    def describe_damage(self, topic: str | None = None) -> list[DamagedReplica]:
        """Return replicas that are offline, or were fetched again: see `Admin.describe_damage`."""
        return self._thread.call(self._admin.describe_damage(topic))

    def describe_broker_configs(self) -> dict[BrokerId, dict[str, ConfigValue]]:
        """Return the settings of the brokers: see `Admin.describe_broker_configs`."""
        return self._thread.call(self._admin.describe_broker_configs())

    def set_quota(
        self,
        name: str,
        *,
        principal: str | None = None,
        client_id: str | None = None,
        topic: str | None = None,
        namespace: str | None = None,
        produce_bytes_per_second: int | None = None,
        fetch_bytes_per_second: int | None = None,
        request_percent: int | None = None,
        per_broker: bool = False,
        validate_only: bool = False,
    ) -> QuotaDescription:
        """Make a quota, or replace the one of this name: see `Admin.set_quota`."""
        return self._thread.call(
            self._admin.set_quota(
                name,
                principal=principal,
                client_id=client_id,
                topic=topic,
                namespace=namespace,
                produce_bytes_per_second=produce_bytes_per_second,
                fetch_bytes_per_second=fetch_bytes_per_second,
                request_percent=request_percent,
                per_broker=per_broker,
                validate_only=validate_only,
            )
        )

    def delete_quota(self, name: str, *, validate_only: bool = False) -> None:
        """Delete a quota: see `Admin.delete_quota`."""
        self._thread.call(self._admin.delete_quota(name, validate_only=validate_only))

    def list_quotas(self) -> list[QuotaDescription]:
        """Return all quotas by name, without their use."""
        return self._thread.call(self._admin.list_quotas())

    def describe_quotas(self, names: Iterable[str] | None = None) -> dict[str, QuotaDescription]:
        """Return quotas with what is used of them: see `Admin.describe_quotas`."""
        return self._thread.call(self._admin.describe_quotas(names))

    def resolve_initial(
        self, name: str, proposals: Mapping[PartitionName, Position]
    ) -> dict[PartitionName, Position]:
        """Return where a reader of this name began: see `Admin.resolve_initial`."""
        return self._thread.call(self._admin.resolve_initial(name, proposals))

    def commit_positions(self, name: str, positions: Mapping[PartitionName, Position]) -> None:
        """Store how far a reader has read: see `Admin.commit_positions`."""
        self._thread.call(self._admin.commit_positions(name, positions))

    def fetch_positions(
        self, name: str, *, kind: Literal["committed", "initial"] = "committed"
    ) -> dict[PartitionName, Position]:
        """Return how far a reader has read, or where it began: see `Admin.fetch_positions`."""
        return self._thread.call(self._admin.fetch_positions(name, kind=kind))

    def list_groups(self) -> list[GroupListing]:
        """Return all consumer groups and other readers: see `Admin.list_groups`."""
        return self._thread.call(self._admin.list_groups())

    def describe_group(self, name: str) -> GroupDescription | None:
        """Return the members and the positions of a group: see `Admin.describe_group`."""
        return self._thread.call(self._admin.describe_group(name))

    def describe_lags(
        self, positions: Mapping[PartitionName, int]
    ) -> dict[PartitionName, Lag | MillraceError]:
        """Return how much follows positions: see `Admin.describe_lags`."""
        return self._thread.call(self._admin.describe_lags(positions))

    def forget_topics(self, name: str, topics: Collection[str]) -> None:
        """Forget the positions of a group in some topics: see `Admin.forget_topics`."""
        self._thread.call(self._admin.forget_topics(name, topics))

    def delete_group(self, name: str) -> None:
        """Forget a group with all its positions: see `Admin.delete_group`."""
        self._thread.call(self._admin.delete_group(name))

    def close(self) -> None:
        """Close the connections; closing twice is harmless."""
        self._thread.close(self._admin.close(), self._admin._close_timeout_ms, str)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
