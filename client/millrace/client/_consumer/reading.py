"""What the asynchronous and the synchronous consumer share: their calls, one at a time.

`Assignment` knows what is read, `Fetching` fetches it, `HandingOut` hands it out.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from queue import Empty
from typing import Final, TypeVar

from millrace.client._cluster.arguments import checked_offset, whole_number
from millrace.client._cluster.offsets import OffsetSpec, look_up_offsets
from millrace.client._cluster.positions import Within
from millrace.client._consumer.assignment import Assignment, Start, check_list, reset_of
from millrace.client._consumer.counters import ConsumerCounters
from millrace.client._consumer.fetching import Fetching
from millrace.client._consumer.handing_out import HandingOut
from millrace.client._consumer.membership import Callback, Callbacks, Membership
from millrace.client._consumer.records import Record, header_columns
from millrace.client._consumer.settings import ConsumerConfig
from millrace.client._threads import fork
from millrace.client._threads.tasks import let_go
from millrace.core.client.consumer.read_partition import Reset
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import (
    ClosedError,
    ConcurrentUseError,
    InvalidRequestError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import Offset, TopicPartition
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.runtime import host
from millrace.runtime.clock import wall_now

Taken = TypeVar("Taken")

_THREAD_WAITS_MAX_S: Final = 3600.0
"""A queue takes no timeout of centuries: the poll waits again."""
_WAITS_S_MIN: Final = 0.001
"""A timer may fire a moment early: the poll must not wait again for no time at all."""
_REASON_GRACE_S: Final = 0.5
"""How much longer than a look-up its user waits, to get the look-up's error."""


class ConsumerCore:
    """One consumer. Its methods belong to one thread or task at a time."""

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ConsumerConfig,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.config = config
        self.cluster = config.new_cluster(bootstrap)
        self._tracing = config.new_tracing(config.group)
        self.is_closed = False
        self._closer: asyncio.Task[object] | None = None
        """The task whose call closes the consumer, or has closed it."""
        self._has_closed = asyncio.Event()
        self._is_forked = False
        self.counters = ConsumerCounters()
        self.fetching = Fetching(
            self.cluster,
            config,
            loop,
            counters=self.counters,
            on_looked_up=self._on_looked_up,
            on_end_found=self._on_end_found,
        )
        self.handing_out = HandingOut(self.fetching, config)
        self.assignment = Assignment(self.fetching, self.handing_out, config)
        self.membership: Membership | None = None
        """The member of the group in which the user subscribed; None: there is none."""
        self._user = threading.Lock()
        self._exclusive = _Exclusive(self)
        fork.watch(self)

    def on_forked(self) -> None:
        """This is the copy in a child: only the parent hands out fetched records."""
        self._user = threading.Lock()
        self.fetching.on_forked()
        self._is_forked = True

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold the consumer for one call.

        Raises:
            ConcurrentUseError: another call is under way.
            ClosedError: the consumer is closed, or a copy that a fork made.
        """
        return self._exclusive

    @contextmanager
    def _lent(self) -> Iterator[None]:
        """Let a callback use the consumer, in the middle of a call of its user."""
        is_held = self._user.locked()
        if is_held:
            self._user.release()
        try:
            yield
        finally:
            if is_held and not self._user.acquire(blocking=False):
                raise ConcurrentUseError("a callback of the group left the consumer in use")

    def _check_open(self) -> None:
        if self._is_forked:
            raise ClosedError(fork.FORKED)
        if self.is_closed:
            raise ClosedError("the consumer is closed")

    # Called by the polling thread.

    def begin_poll(self) -> Callable[[object], None]:
        """Return what is called with the records that a poll hands out."""
        self.counters.polled_at = host.monotonic_s()
        tracing = self._tracing
        if tracing is None:
            return _untraced
        begun_ms = wall_now()

        def polled(taken: object) -> None:
            parts = header_columns(taken)
            if parts:
                topics, counts, headers = zip(*parts, strict=True)
                columns = [column for column in headers if column is not None]
                tracing.polled(topics, sum(counts), columns, begun_ms)

        return polled

    def traced(self, handler: Callable[[Record], object]) -> Callable[[Record], object]:
        """Return a handler of records, each of whose calls is a span if these are on."""
        return handler if self._tracing is None else self._tracing.traced(handler)

    def take(self, take: Callable[[HandingOut], Taken]) -> Taken:
        """Hand records out; tell of topics that are gone first."""
        self.assignment.leave_gone()
        return take(self.handing_out)

    def seek_partition(self, place: TopicPartition, to: Offset | Reset) -> None:
        """Move to another position."""
        if self.membership is not None:
            self.membership.on_moved(place)
        self.handing_out.drop_rest_of([place])
        with self.fetching.changing() as fetcher:
            fetcher.seek(place, to)

    def seek(self, place: PartitionName, to: Start) -> None:
        """Go on at an offset, or at an end of the log."""
        self.seek_partition(self.assignment.named(place), reset_of(to))

    def pause(self, places: Iterable[PartitionName]) -> None:
        """Hand nothing out of these partitions until `resume`."""
        for place in [self.assignment.named(place) for place in places]:
            rest = self.handing_out.rest_offset(place)
            if rest is not None:
                self.handing_out.rewind(place, rest)
            with self.fetching.changing() as fetcher:
                fetcher.pause(place)

    def resume(self, places: Iterable[PartitionName]) -> None:
        """Go on with paused partitions."""
        for place in [self.assignment.named(place) for place in places]:
            with self.fetching.changing() as fetcher:
                fetcher.resume(place)

    def awaited(self) -> list[PartitionName]:
        """See `Consumer.awaited_partitions`."""
        with self.fetching.lock:
            return list(map(self.assignment.name_of, self.fetching.fetcher.awaited()))

    def assigned(self) -> list[PartitionName]:
        """Return the partitions that are read."""
        with self.fetching.lock:
            return list(map(self.assignment.name_of, self.fetching.fetcher.assigned))

    async def position(self, place: PartitionName) -> int:
        """Return the offset of the next record to be handed out.

        Raises:
            MillraceError: it had to be looked up, and could not, for as long as a call may take.
        """
        topic_partition = self.assignment.named(place)
        rest = self.handing_out.rest_offset(topic_partition)
        if rest is not None:
            return rest
        deadline = host.monotonic_s() + self.cluster.timeout_s + _REASON_GRACE_S
        while True:
            with self.fetching.lock:
                partition = self.fetching.fetcher.partition(topic_partition)
                position, error = partition.known_position, partition.error
            if position is not None:
                return position
            if error is not None:
                raise error.with_traceback(None)
            self._check_open()
            if host.monotonic_s() >= deadline:
                raise self.fetching.why_unknown(topic_partition)
            await asyncio.sleep(0.005)

    async def lag(self) -> dict[PartitionName, int]:
        """Return how many records are still to be handed out, per partition."""
        lags = {}
        with self.fetching.lock:
            fetcher = self.fetching.fetcher
            read = [place for place in fetcher.assigned if not fetcher.untold.is_gone(place)]
        assigned: dict[TopicPartition, OffsetSpec] = dict.fromkeys(read, "end")
        ends = await look_up_offsets(self.cluster, assigned, isolation=self.config.isolation)
        for topic_partition, end in ends.items():
            place = self.assignment.name_of(topic_partition)
            lags[place] = max(0, end.offset - await self.position(place))
        return lags

    async def seek_to_time(self, timestamp_ms: int, places: Iterable[PartitionName] | None) -> None:
        """Go to the first record at or after a time; to the end where there is none."""
        time = whole_number(timestamp_ms)
        if time is None:
            raise InvalidRequestError(f"{timestamp_ms!r} is no time: give ms UTC since 1970")
        chosen = (
            list(self.fetching.fetcher.assigned)
            if places is None
            else [self.assignment.named(place) for place in places]
        )
        wanted: dict[TopicPartition, OffsetSpec] = dict.fromkeys(chosen, time)
        times = await look_up_offsets(self.cluster, wanted, isolation=self.config.isolation)
        for place, found in times.items():
            self.seek_partition(place, found.offset if found.offset >= 0 else Reset.LATEST)

    # Called from any thread.

    def known_lags(self) -> dict[str, int]:
        """Return how many offsets of each topic are still to be handed out.

        The brokers are not asked: the last response of each partition counts. A topic is left out
        as long as one of its partitions is unknown.
        """
        if self.is_closed:
            return {}
        lags: dict[str, int] = {}
        unknown: set[str] = set()
        waiting_topic, waiting = self.handing_out.rest_count()
        with self.fetching.lock:
            fetcher = self.fetching.fetcher
            for place in fetcher.assigned:
                read = fetcher.partition(place)
                end, position = read.known_end, read.known_position
                topic = self.assignment.topics.get(place)
                if topic is None:
                    continue
                if end is None or position is None:
                    unknown.add(topic)
                else:
                    lags[topic] = lags.get(topic, 0) + max(0, end - position)
        if waiting_topic in lags:
            lags[waiting_topic] += waiting
        return {topic: lag for topic, lag in lags.items() if topic not in unknown}

    def partition_counts(self) -> tuple[int, int]:
        """Return how many partitions are read, and how many of them no broker sends at present."""
        if self.is_closed:
            return 0, 0
        with self.fetching.lock:
            return len(self.fetching.fetcher.assigned), len(self.fetching.fetcher.awaited())

    # On the loop.

    async def give_way(self) -> None:
        """Let a member's heartbeats go on.

        Raises:
            ClosedError: the consumer was closed meanwhile.
        """
        if self.membership is not None:
            await self.membership.heartbeats.give_way()
            self._check_open()

    def _until_due(self, timeout_s: float) -> float:
        """Return for how long a poll may wait, at most so long: until its member is due."""
        if self.membership is None:
            return timeout_s
        left_s = self.membership.due_at - host.monotonic_s()
        return min(timeout_s, max(left_s, _WAITS_S_MIN))

    def wait_in_thread(self, timeout_s: float) -> None:
        """Block this thread until something can be taken or done, at most so long.

        The loop has nothing to do for it. Raises as `wait_for_news`.
        """
        self._check_open()
        queue = self.fetching.await_news()
        if queue is None:
            return
        try:
            timeout_s = min(self._until_due(timeout_s), _THREAD_WAITS_MAX_S)
            if self.membership is None:
                queue.get(timeout=timeout_s)
            elif not self.membership.heartbeats.has_work:
                with self.membership.heartbeats.polling():
                    queue.get(timeout=timeout_s)
        except Empty:
            pass
        finally:
            self.fetching.forget(queue)
        self._check_open()

    async def wait_for_news(self, timeout_s: float) -> None:
        """Wait until something can be taken or done, at most so long.

        Raises:
            ClosedError: the consumer is closed, or was meanwhile.
        """
        self._check_open()
        with self.fetching.lock:
            if self.fetching.fetcher.has_news:
                return
            self.fetching.news.clear()
        if self.membership is not None and self.membership.heartbeats.has_work:
            return
        polling = nullcontext() if self.membership is None else self.membership.heartbeats.polling()
        with polling, suppress(TimeoutError):
            async with asyncio.timeout(self._until_due(timeout_s)):
                await self.fetching.news.wait()
        self._check_open()

    async def subscribe(
        self, topics: Iterable[str], pattern: str, *callbacks: Callback | None
    ) -> None:
        """Join the group, and read what it assigns; callbacks are in the order of `Callbacks`."""
        check_list(topics)
        await self.leave()
        self.assignment.end_all()
        names = sorted({str(parse_topic_name(topic)) for topic in topics})
        if names or pattern:
            self.membership = Membership(
                self.cluster,
                self.config,
                self.assignment,
                topics=names,
                pattern=pattern,
                callbacks=Callbacks(*map(self._lending, callbacks)),
                counters=self.counters,
            )
            self.assignment.is_of_group = True

    def _lending(self, callback: Callback | None) -> Callback | None:
        """Return a callback that may use the consumer."""
        if callback is None:
            return None

        async def call(places: list[PartitionName]) -> None:
            with self._lent():
                done = callback(places)
                if inspect.isawaitable(done):
                    await done

        return call

    def _on_looked_up(self) -> None:
        self.assignment.on_looked_up()

    def _on_end_found(self, place: TopicPartition, end: Offset) -> None:
        if self.membership is not None:
            self.membership.commits.on_end_found(place, end)

    async def commit(
        self, positions: Mapping[PartitionName, int] | None, within: Within | None = None
    ) -> set[TopicPartition]:
        """See `Consumer.commit`.

        Args:
            positions: the offset of the next record by partition; None: after all handed out.
            within: the transaction that they are part of; None: they count at once.

        Returns:
            The partitions that are left out, as their topics are gone.

        Raises:
            UnknownTopicOrPartitionError: the topic of one that was named is gone.
            MillraceError: they are not stored, or may not be.
        """
        if self.membership is None:
            raise InvalidRequestError("there is no group to commit in: set group=..., subscribe")
        if self.membership.must_put_back:  # What was handed out since is aborted.
            await self.membership.put_back()
        if positions is None:
            return await self.membership.commits.commit_read(self.membership.owned, within)
        found = {
            self.assignment.named(place): checked_offset(offset, place)
            for place, offset in positions.items()
        }
        with self.fetching.lock:
            named = {
                place: Position(offset, self.fetching.fetcher.partition(place).epoch_before(offset))
                for place, offset in found.items()
            }
        for gone in await self.membership.commits.commit(named, within):
            raise UnknownTopicOrPartitionError(
                f"the topic of partition {gone.partition} was deleted: its position is not stored, "
                "and those of the others are"
            )
        return set()

    async def leave(self) -> None:
        """Leave the group, if it is a member."""
        membership = self.membership
        if membership is not None:
            try:
                await membership.close()  # Within `close_timeout_ms`.
            finally:
                self.membership, self.assignment.is_of_group = None, False
                self.assignment.end(list(membership.owned))

    async def close(self) -> None:
        """Leave the group, and let go of everything. Later calls wait for the first one."""
        task = asyncio.current_task()
        if self._closer is None:
            self._closer = task
            try:
                await self._close()
            finally:
                self._has_closed.set()
        elif self._closer is not task:  # Else a callback of the group that leaves calls.
            await self._has_closed.wait()

    async def _close(self) -> None:
        ends_at = host.monotonic_s() + self.config.close_timeout_ms / 1000
        try:
            await self.leave()  # Callbacks may still use the consumer.
        finally:
            self.is_closed = True
            self.fetching.stop()
            self.assignment.close()
            fetching = self.fetching
            await let_go(ends_at, fetching.streams.close, fetching.tasks.end, self.cluster.close)


class _Exclusive:
    """Holds a consumer for one call. Polls share one object, as it costs less than a generator."""

    def __init__(self, core: ConsumerCore) -> None:
        self._core = core

    def __enter__(self) -> None:
        core = self._core
        # No call may follow this one: Ctrl-C would leave the consumer in use.
        if not core._user.acquire(blocking=False):
            raise ConcurrentUseError(
                "the consumer is in use by another thread or task: give each its own consumer"
            )
        if core.is_closed or core._is_forked:
            core._user.release()
            core._check_open()

    def __exit__(self, *_: object) -> None:
        self._core._user.release()


def _untraced(_: object) -> None:
    """Nothing is recorded of a poll."""
