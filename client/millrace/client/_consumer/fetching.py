"""What drives the fetcher machine: streams to brokers, look-ups of positions, and the next step.

The loop and the polling thread use the machine; `lock` guards it. Nothing is decoded under it.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from millrace.client import events
from millrace.client._cluster import wire
from millrace.client._cluster.arguments import log_end
from millrace.client._cluster.broker_streams import BrokerStreams
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.isolation import level_of
from millrace.client._cluster.offsets import (
    OffsetAndTimestamp,
    OffsetSpec,
    ask_for_epoch_ends,
    look_up_offsets,
)
from millrace.client._cluster.pauses import spread
from millrace.client._cluster.throttling import ThrottlingNotice
from millrace.client._consumer.counters import ConsumerCounters
from millrace.client._consumer.fetch_stream import METHOD, FetchStream
from millrace.client._consumer.settings import ConsumerConfig
from millrace.client._threads.logs import Log
from millrace.client._threads.tasks import Tasks
from millrace.core.client.consumer.fetcher import Fetcher, FindEpochEnd, LookUpOffset
from millrace.core.client.consumer.read_partition import Jumped, JumpReason, Reset
from millrace.core.client.consumer.sessions import ChangeSession, FetchedBatch, FetchedPartition
from millrace.core.client.routing.router import Router
from millrace.core.errors import (
    ConnectionFailedError,
    MillraceError,
    NotLeaderError,
    RefreshMetadataError,
)
from millrace.core.ids import NO_BROKER, BrokerId, LeaderEpoch, MonotonicMs, Offset, TopicPartition
from millrace.core.isolation import READ_COMMITTED
from millrace.core.records.header import KAFKA_FORMAT
from millrace.proto.v1 import fetch_pb2
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.transport.calls import ClientStream

_log = Log(__name__)

_RESPONSE_BYTES_MAX: Final = 1024 * 1024
_RETRY_BACKOFF_MS: Final = 100
_RETRY_BACKOFF_MS_MAX: Final = 1_000

RESETS: Final = {"beginning": Reset.EARLIEST, "end": Reset.LATEST, None: Reset.NONE}
"""Where to go, by the end of the log that is named."""
_REASONS: Final = {
    JumpReason.RECORDS_DELETED: "records were deleted before they were read",
    JumpReason.BEYOND_END: "the log ends before that",
}
_OUTCOMES: Final = {
    Reset.EARLIEST: ", and it goes on with the first record that is there",
    Reset.LATEST: ", and by auto_offset_reset it goes on at the end",
}


class Fetching:
    """The machine, on the loop."""

    def __init__(
        self,
        cluster: Cluster,
        config: ConsumerConfig,
        loop: asyncio.AbstractEventLoop,
        *,
        counters: ConsumerCounters,
        on_looked_up: Callable[[], None],
        on_end_found: Callable[[TopicPartition, Offset], None],
    ) -> None:
        self.cluster = cluster
        self._config = config
        self._settings = fetch_pb2.FetchSettings(
            min_bytes=config.fetch_min_bytes,
            max_wait_ms=config.fetch_max_wait_ms,
            response_bytes_max=_RESPONSE_BYTES_MAX,
            window_bytes=config.fetch_max_bytes,
            rack=config.client_rack,
            isolation_level=level_of(config.isolation),
            batch_format_max=KAFKA_FORMAT,
        )
        self.loop = loop
        self.counters = counters
        self._on_end_found = on_end_found
        retry_ms, retry_ms_max = spread(_RETRY_BACKOFF_MS, _RETRY_BACKOFF_MS_MAX)
        router = Router(retry_ms, retry_ms_max, config.metadata_max_age_ms, monotonic_now())
        reset = RESETS[log_end(config.auto_offset_reset)]
        read_committed = config.isolation == READ_COMMITTED
        self.fetcher = Fetcher(reset, config.fetch_max_bytes, router, read_committed=read_committed)
        self.lock = threading.Lock()
        self.news = asyncio.Event()
        """Something can be taken, or a member has work."""
        self._threads: deque[host.Queue] = deque()
        """Where threads wait for news."""
        self._throttling = ThrottlingNotice("consumer")
        self.tasks = Tasks(loop, "consumer")
        self.streams = BrokerStreams(
            cluster,
            self.fetcher,
            lock=self.lock,
            tasks=self.tasks,
            method=METHOD,
            open_stream=self._open_stream,
            on_told=self.step,
            on_looked_up=on_looked_up,
        )
        self.look_up_errors: dict[TopicPartition, MillraceError] = {}
        """The error of the last look-up of a position, if it failed."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = MonotonicMs(0)
        self._step_is_due = False
        self._is_closed = False

    def on_forked(self) -> None:
        """This is the copy in a child: another thread may have held the lock."""
        self.streams.lock = self.lock = threading.Lock()

    # Called by the polling thread.

    @contextmanager
    def changing(self) -> Iterator[Fetcher]:
        """Change what is read; the loop does what follows from it."""
        with self.lock:
            yield self.fetcher
            self._wake()

    def take(self) -> FetchedBatch | None:
        """Return the next batch with records; None: none has come."""
        fetcher = self.fetcher
        if not fetcher.has_news:
            return None  # Without the lock: what comes now wakes the thread later.
        with self.lock:
            try:
                return fetcher.take()
            finally:
                must_poll = self.fetcher.must_poll
                if not self.fetcher.has_news:
                    self.news.clear()
                if must_poll:
                    self._wake()

    def take_end(self) -> bool:
        """Return, once, that a partition has come to its end without another batch to take."""
        if not self.fetcher.has_news:
            return False
        with self.lock:
            return self.fetcher.untold.take_end()

    def await_news(self) -> host.Queue | None:
        """Return a queue into which something is put when there are news; None: there are some."""
        with self.lock:
            if self.fetcher.has_news:
                return None
            queue = host.current.new_queue()
            self._threads.append(queue)
            return queue

    def forget(self, queue: host.Queue) -> None:
        """Put nothing more into a queue."""
        with suppress(ValueError):  # It has what it waited for.
            self._threads.remove(queue)

    def _wake(self) -> None:
        if not self._step_is_due:
            self._step_is_due = True
            self.loop.call_soon_threadsafe(self.step)

    def why_unknown(self, place: TopicPartition) -> MillraceError:
        """Return why the offset of a partition is not known."""
        leader = self.cluster.metadata.leader_of(place)
        if leader is None or leader.broker_id < 0:
            return NotLeaderError(f"partition {place.partition} has no leader at present")
        return self.look_up_errors.get(place) or ConnectionFailedError(
            f"broker {leader.broker_id} did not say in {self.cluster.timeout_s:g} s where "
            f"partition {place.partition} begins or ends"
        )

    # On the loop.

    def tell_news(self) -> None:
        """Wake who waits for news."""
        self.news.set()
        try:
            while self._threads:
                self._threads.popleft().put(None)
        except IndexError:
            pass  # The last thread has given up meanwhile.

    def tell_leaders(self) -> None:
        """Let the machine find the leaders of new partitions."""
        self.streams.tell_leaders()
        self.step()

    def step(self) -> None:
        """Let the machine decide, and do what it says."""
        self._step_is_due = False
        if self._is_closed:
            return
        now = monotonic_now()
        with self.lock:
            effects = self.fetcher.poll(now)
            has_news = self.fetcher.has_news
            wake = self.fetcher.next_wake(now)
        if has_news:
            self.tell_news()
        look_ups: dict[tuple[BrokerId, Reset], list[LookUpOffset]] = {}
        for effect in effects:
            match effect:
                case ChangeSession():
                    stream = self.streams.get(effect.broker_id)
                    if stream is not None:
                        stream.change(effect)
                case LookUpOffset():
                    leader = self.cluster.metadata.leader_of(effect.topic_partition)
                    broker_id = NO_BROKER if leader is None else leader.broker_id
                    look_ups.setdefault((broker_id, effect.reset), []).append(effect)
                case FindEpochEnd():
                    self.tasks.spawn(self._find_epoch_end, effect)
                case Jumped():
                    self._on_jumped(effect)
                case _:
                    self.streams.perform(effect)
        for (_, reset), together in look_ups.items():
            self.tasks.spawn(self._look_up, together, reset)
        if wake is not None and (self._timer is None or wake < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            # One that comes early sets the next: cheaper than another one for each step.
            self._timer_at = wake
            self._timer = self.loop.call_later(max(wake - now, 1) / 1000, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.step()

    def _on_jumped(self, jump: Jumped) -> None:
        self.counters.jumps[jump.reason.value] += 1
        self.counters.skipped_records += jump.skipped
        events.POSITION_JUMPED.log(
            _log,
            topic=jump.topic,
            partition=jump.partition,
            from_offset=jump.from_offset,
            to_offset=jump.to_offset,
            skipped=jump.skipped,
            reason=_REASONS[jump.reason] + _OUTCOMES[jump.reset],
        )

    def _on_fetched(self, broker_id: BrokerId, news: list[FetchedPartition]) -> None:
        for fetched in news:
            if fetched.error is not None:
                self.streams.learn_address(fetched.error)
        with self.lock:
            self.fetcher.on_fetched(broker_id, news, monotonic_now())
        self.step()

    def _on_throttled(self, broker_id: BrokerId, throttle_ms: int) -> None:
        self.counters.throttled_ms += throttle_ms  # Each is told once, with what it is for.
        self._throttling.on_throttled(broker_id, throttle_ms)

    def _open_stream(
        self, broker_id: BrokerId, connection: Connection, stream: ClientStream
    ) -> FetchStream:
        return FetchStream(
            broker_id,
            connection,
            stream,
            settings=self._settings,
            partition_bytes_max=self._config.max_partition_fetch_bytes,
            on_fetched=self._on_fetched,
            on_throttled=self._on_throttled,
            on_broken=self.streams.on_broken,
        )

    async def _look_up(self, effects: list[LookUpOffset], reset: Reset) -> None:
        """Look up where partitions begin or end that one broker leads, in one request."""
        end: OffsetSpec = "beginning" if reset is Reset.EARLIEST else "end"
        handles = {effect.topic_partition: effect.handle for effect in effects}

        def on_known(place: TopicPartition, known: OffsetAndTimestamp | MillraceError) -> None:
            self._on_looked_up(place, handles.pop(place), known, end)

        try:
            await look_up_offsets(
                self.cluster,
                dict.fromkeys(handles, end),
                {},
                isolation=self._config.isolation,
                on_known=on_known,
            )
        except MillraceError as error:
            for place in list(handles):
                on_known(place, error)

    def _on_looked_up(
        self,
        place: TopicPartition,
        handle: int,
        known: OffsetAndTimestamp | MillraceError,
        end: OffsetSpec,
    ) -> None:
        if isinstance(known, MillraceError):
            self.look_up_errors[place] = known
            with self.lock:
                self.fetcher.on_look_up_failed(handle, known, known.retriable, monotonic_now())
        else:
            self.look_up_errors.pop(place, None)
            with self.lock:
                is_taken = self.fetcher.on_offset_found(handle, known.offset)
            if is_taken and end == "end":
                self._on_end_found(place, known.offset)
        self._wake()

    async def _find_epoch_end(self, effect: FindEpochEnd) -> None:
        place = effect.topic_partition
        try:
            leader = self.cluster.metadata.leader_of(place)
            if leader is None or leader.broker_id < 0:
                raise NotLeaderError(f"partition {place.partition} has no leader at present")
            request = fetch_pb2.OffsetsForLeaderEpochRequest()
            request.partitions.add(
                topic_partition=wire.partition_to_wire(place),
                current_leader_epoch=leader.leader_epoch,  # P6
                leader_epoch=effect.leader_epoch,
            )
            result = wire.only(await ask_for_epoch_ends(self.cluster, leader.broker_id, request))
            wire.raise_if_refused(result)
        except MillraceError as error:
            if isinstance(error, RefreshMetadataError) and error.leader is not None:
                self.cluster.metadata.learn_leader(place, error.leader)
            with self.lock:
                self.fetcher.on_look_up_failed(
                    effect.handle, error, error.retriable, monotonic_now()
                )
        else:
            epoch, end_offset = LeaderEpoch(result.end.leader_epoch), Offset(result.end.end_offset)
            with self.lock:
                self.fetcher.on_epoch_end(effect.handle, epoch, end_offset)
        self.step()

    def stop(self) -> None:
        """Take no more steps, and wake those who wait for records."""
        self._is_closed = True
        self.tell_news()
        if self._timer is not None:
            self._timer.cancel()
