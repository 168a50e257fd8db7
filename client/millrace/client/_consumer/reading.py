"""The consumer's shell: it drives the fetcher machine, opens streams, looks up offsets, and waits.

Both consumers, the async and the sync one, are a few lines over this.
"""

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Final

import pyarrow as pa

from millrace.client import events
from millrace.client._cluster import wire
from millrace.client._cluster.arguments import (
    LogEnd,
    checked_offset,
    checked_place,
    log_end,
    whole_number,
)
from millrace.client._cluster.broker_streams import BrokerStreams
from millrace.client._cluster.connection import Connection
from millrace.client._cluster.offsets import OffsetSpec, ask_for_epoch_ends, look_up_offsets
from millrace.client._cluster.pauses import spread
from millrace.client._cluster.throttling import ThrottlingNotice
from millrace.client._consumer.counters import ConsumerCounters
from millrace.client._consumer.fetch_stream import FetchStream
from millrace.client._consumer.membership import Begun, Callbacks, Membership
from millrace.client._consumer.records import (
    FetchedRecords,
    LentRecords,
    Record,
    Records,
    header_columns,
    record_type,
)
from millrace.client._consumer.settings import ConsumerConfig
from millrace.client._threads.logs import Log
from millrace.client._threads.tasks import Tasks, let_go
from millrace.core.client.consumer.fetcher import (
    Fetcher,
    FindEpochEnd,
    Jumped,
    JumpReason,
    LookUpOffset,
    Reset,
)
from millrace.core.client.consumer.sessions import ChangeSession, FetchedBatch, FetchedPartition
from millrace.core.client.routing.router import Router
from millrace.core.coordinator.groups import patterns
from millrace.core.coordinator.positions.position import Position
from millrace.core.errors import (
    ClosedError,
    ConcurrentUseError,
    ConnectionFailedError,
    CorruptBatchError,
    InvalidGroupError,
    InvalidRequestError,
    MillraceError,
    NotLeaderError,
    RefreshMetadataError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from millrace.core.records.batch import open_batch
from millrace.core.settings import BATCH_INFLATED_BYTES_MAX
from millrace.core.topics import PartitionName, parse_topic_name
from millrace.proto.v1 import cluster_pb2, fetch_pb2
from millrace.runtime import fork, host
from millrace.runtime.clock import monotonic_now, wall_now

_log = Log(__name__)

Start = int | LogEnd

_RESPONSE_BYTES_MAX: Final = 1024 * 1024
_REASON_GRACE_S: Final = 0.5
"""How much longer than a look-up its user waits, to get the look-up's error."""
_LENT_MAX: Final = 10_000
"""Records that are decoded at a time for a loop over a consumer."""
_RETRY_BACKOFF_MS: Final = 100
_RETRY_BACKOFF_MS_MAX: Final = 1_000


_REASONS: Final = {
    JumpReason.RECORDS_DELETED: "records were deleted before they were read",
    JumpReason.BEYOND_END: "the log ends before that",
}
_OUTCOMES: Final = {
    Reset.EARLIEST: ", and it goes on with the first record that is there",
    Reset.LATEST: ", and by auto_offset_reset it goes on at the end",
}
_RESETS: Final = {"beginning": Reset.EARLIEST, "end": Reset.LATEST, None: Reset.NONE}


def _reset_of(start: object) -> Reset | Offset:
    if (end := log_end(start)) is not None:
        return _RESETS[end]
    offset = whole_number(start)
    if offset is not None and offset >= 0:
        return Offset(offset)
    raise InvalidRequestError(
        f'{start!r} is no position: give an offset, "beginning" ("earliest") or "end" ("latest")'
    )


def _fitting(rows: pa.RecordBatch, bytes_max: int) -> int:
    """Return how many of the first rows take no more than so many bytes."""
    counts = range(1, len(rows) + 1)
    return bisect_right(counts, bytes_max, key=lambda count: rows.slice(0, count).nbytes)


class ConsumerCore:
    """What both consumers share. Its methods belong to one thread or task at a time.

    The loop and the polling thread use the machine; `_lock` guards it. Nothing is decoded under the
    lock.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        config: ConsumerConfig,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._config = config
        self._partition_bytes_max = config.max_partition_fetch_bytes
        self._settings = fetch_pb2.FetchSettings(
            min_bytes=config.fetch_min_bytes,
            max_wait_ms=config.fetch_max_wait_ms,
            response_bytes_max=_RESPONSE_BYTES_MAX,
            window_bytes=config.fetch_max_bytes,
            rack=config.client_rack,
        )
        self.cluster = config.new_cluster(bootstrap)
        self.loop = loop
        self._tracing = config.new_tracing(config.group)
        self.is_closed = False
        self._is_forked = False
        self._record_type = record_type(config.key_deserializer, config.value_deserializer)
        retry_ms, retry_ms_max = spread(_RETRY_BACKOFF_MS, _RETRY_BACKOFF_MS_MAX)
        router = Router(retry_ms, retry_ms_max, config.metadata_max_age_ms, monotonic_now())
        reset = _RESETS[log_end(config.auto_offset_reset)]
        self._fetcher = Fetcher(reset, config.fetch_max_bytes, router)
        self._lock = threading.Lock()
        self.counters = ConsumerCounters()
        self._throttling = ThrottlingNotice("consumer")
        self._tasks = Tasks(loop, "consumer")
        self._streams = BrokerStreams(
            self.cluster,
            self._fetcher,
            lock=self._lock,
            tasks=self._tasks,
            open_stream=self._open_stream,
            on_told=self._step,
            on_looked_up=self._on_looked_up,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._news = asyncio.Event()
        self._step_is_due = False
        self._rest: tuple[FetchedBatch, pa.RecordBatch] | None = None
        """Records of a batch that did not fit into the last `poll`."""
        self._lent: LentRecords | None = None
        """The first records of the rest, for loops over the consumer: the records that they leave
        are handed out next."""
        self._user = threading.Lock()
        self._whole_topics: list[str] = []
        """Topics that are read with all their partitions, also those that come."""
        self._pattern = ""
        """Topics of a matching name are read when they come, without a group; empty: none."""
        self._topics_timer: asyncio.TimerHandle | None = None
        self._topics: dict[TopicPartition, str] = {}
        """Names of the topics of assigned partitions."""
        self._look_up_errors: dict[TopicPartition, MillraceError] = {}
        """The error of the last look-up of a position, if it failed."""
        self.membership: Membership | None = None
        """In the group that the user subscribed in."""
        self._told_gone: set[TopicId] = set()
        """Topics of assigned partitions that are gone, as the user was told."""
        self._told_made_again: set[TopicId] = set()
        """Topics that were made again, as the user was told."""
        self.topic_ids: dict[str, TopicId] = {}
        """Ids of the topics that are read, by name: another topic may have a name by now."""
        fork.watch(self)

    def on_forked(self) -> None:
        """This is the copy in a child: only the parent hands out fetched records."""
        self._lock, self._user = threading.Lock(), threading.Lock()
        self._streams.lock = self._lock
        self._is_forked = True

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """Hold the consumer for one call.

        Raises:
            ConcurrentUseError: another call is under way.
            ClosedError: the consumer is closed, or a copy that a fork made.
        """
        if not self._user.acquire(blocking=False):
            raise ConcurrentUseError(
                "the consumer is in use by another thread or task: give each its own consumer"
            )
        try:
            self._check_open()
            yield
        finally:
            self._user.release()

    @contextmanager
    def lent(self) -> Iterator[None]:
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
                columns = [each for each in headers if each is not None]
                tracing.polled(topics, sum(counts), columns, begun_ms)

        return polled

    def traced(self, handler: Callable[[Record], object]) -> Callable[[Record], object]:
        """Return a handler of records, each of whose calls is a span if these are on."""
        return handler if self._tracing is None else self._tracing.traced(handler)

    def take_records(self, max_records: int, max_bytes: int) -> Records:
        """Return records that have come, one at least; none if none have."""
        if max_records < 1:
            raise InvalidRequestError(f"max_records={max_records}: a poll hands out 1 at least")
        self._leave_gone()
        self._take_back()
        records = Records(self._record_type)
        size = 0
        while len(records) < max_records:
            try:
                opened = self._rest or self._take_opened()
            except MillraceError:
                if records:  # The error is for the next call: these records come first.
                    with self._lock:
                        self._fetcher.raise_again()
                    return records
                raise
            if opened is None:
                break
            batch, rows = opened
            count = min(max_records - len(records), len(rows))
            taken = batch.header.opened_bytes
            if size + taken > max_bytes:
                # To the record: which costs as much as opening a small batch.
                count = min(count, max(_fitting(rows, max_bytes - size), not records))
                taken = rows.slice(0, count).nbytes
            self._rest = (batch, rows.slice(count)) if len(rows) > count else None
            if self._rest is not None and not count:
                break
            records.add(batch.topic, batch.topic_partition.partition, rows.slice(0, count))
            size += taken
        return records

    def take_batches(self, max_bytes: int) -> list[FetchedRecords]:
        """Return batches that have come, one at least; none if none have.

        Waiting batches are bounded by their compressed size; handed out ones by their size in
        memory.
        """
        self._leave_gone()
        self._take_back()
        batches: list[FetchedRecords] = []
        size = 0
        while size < max_bytes or not batches:
            try:
                opened = self._rest or self._take_opened()
            except MillraceError:
                if batches:
                    with self._lock:
                        self._fetcher.raise_again()
                    return batches
                raise
            if opened is None:
                break
            batch, rows = opened
            # Not `nbytes`, which costs as much as opening a batch.
            if batches and size + batch.header.opened_bytes > max_bytes:
                self._rest = opened
                break
            self._rest = None
            if not len(rows):  # A cleaner took them all; the position is beyond them.
                continue
            size += batch.header.opened_bytes
            batches.append(
                FetchedRecords(
                    batch.topic,
                    batch.topic_partition.partition,
                    rows,
                    batch.header.leader_epoch,
                    self._fetcher.high_watermark(batch.topic_partition) or Offset(0),
                    batch.topic_partition.topic_id,
                    batch.header.has_append_time,
                )
            )
        return batches

    def lend_records(self) -> LentRecords | tuple[()]:
        """Return records that have come, for a loop; none if none have.

        Any later call hands out the records that the loop leaves. A seek or a pause of the
        partition, or any other poll, ends the loop over them.
        """
        self._leave_gone()
        while not self._lent:
            self._take_back()
            opened = self._rest or self._take_opened()
            if opened is None:
                return ()
            batch, rows = opened
            self._rest = opened if len(rows) else None
            if len(rows):
                self._lent = LentRecords(
                    self._record_type,
                    batch.topic,
                    batch.topic_partition.partition,
                    rows.slice(0, _LENT_MAX),
                )
        return self._lent

    def _leave_gone(self) -> None:
        """Tell of topics that are gone, and read them no more.

        A group takes their partitions away itself.

        Raises:
            UnknownTopicOrPartitionError: nothing else is read.
        """
        if not self._fetcher.has_gone:
            return
        with self._lock:
            rest = self._rest
            if rest is not None and self._fetcher.is_gone(rest[0].topic_partition):
                return  # These records come first.
            gone = self._fetcher.take_gone()
            is_all = all(map(self._fetcher.is_gone, self._fetcher.assigned))
        names = {place.topic_id: self._topics[place] for place in gone}
        errors = {place.topic_id: error for place, error in gone.items()}
        for topic_id, topic in names.items():
            self.tell_gone(topic, topic_id, gone, errors[topic_id].message)
        if self.membership is not None:
            return
        if is_all and not self._pattern:
            place, error = next(iter(gone.items()))
            about_new = self._about_new_topic(self._topics[place], place.topic_id)
            raise UnknownTopicOrPartitionError(error.message + about_new)
        with self._lock:
            for place in gone:
                self._fetcher.unassign(place)
            self._wake()
        for place in gone:
            del self._topics[place]
        for topic_id, topic in names.items():
            if self.topic_ids.get(topic) == topic_id:  # Else another one has the name by now.
                del self.topic_ids[topic]
                self._whole_topics = [each for each in self._whole_topics if each != topic]

    def tell_gone(
        self, topic: str, topic_id: TopicId, places: Iterable[TopicPartition], error: str
    ) -> None:
        """Log once that a topic is gone whose partitions, among others, are read."""
        if topic_id not in self._told_gone:
            self._told_gone.add(topic_id)
            self.counters.jumps["topic_gone"] += 1
            count = sum(place.topic_id == topic_id for place in places)
            error += self._about_new_topic(topic, topic_id)
            events.READ_TOPIC_GONE.log(_log, topic=topic, partitions=count, error=error)

    def tell_made_again(self, topic: str, topic_id: TopicId) -> None:
        """Log once that the group's positions are of a deleted topic of this name."""
        if topic_id not in self._told_made_again:
            self._told_made_again.add(topic_id)
            self.counters.jumps["topic_made_again"] += 1
            events.READ_TOPIC_MADE_AGAIN.log(_log, topic=topic, group=self.group)

    def _about_new_topic(self, topic: str, topic_id: TopicId) -> str:
        """Return what becomes of a topic that has the name of one that is gone, if there is one."""
        info = self.cluster.metadata.topics.get(topic)
        if info is None or info.topic_id == topic_id:
            return ""
        if self.membership is not None:
            return ": the group reads the new one, in which it has no position yet"
        if self._pattern and patterns.matching(self._pattern, [topic]):
            return ": the new one is read from its beginning"
        return ": assign the new one to read it"

    def _take_back(self) -> None:
        """Let the rest begin with the first record that no loop has reached."""
        if self._rest is not None and self._lent is not None:
            batch, rows = self._rest
            rows = rows.slice(self._lent.count - len(self._lent))
            self._drop_rest()
            self._rest = (batch, rows) if len(rows) else None

    def _drop_rest(self) -> None:
        self._rest = None
        if self._lent is not None:
            self._lent.take_back()
            self._lent = None

    def _take_opened(self) -> tuple[FetchedBatch, pa.RecordBatch] | None:
        while (batch := self._take_batch()) is not None:
            opened = self._open(batch)
            if opened is not None:
                return batch, opened
        return None

    def _take_batch(self) -> FetchedBatch | None:
        with self._lock:
            try:
                while True:
                    batch = self._fetcher.take()
                    if batch is None or not batch.header.is_control:
                        return batch
            finally:
                must_poll = self._fetcher.must_poll
                if not self._fetcher.has_news:
                    self._news.clear()
                if must_poll:
                    self._wake()

    def _open(self, batch: FetchedBatch) -> pa.RecordBatch | None:
        """Return a batch's records; None: it is damaged, and fetched again."""
        try:
            opened = open_batch(
                batch.topic_partition, batch.header, batch.data, BATCH_INFLATED_BYTES_MAX
            )
        # Never past an unreadable batch: the position goes back to it.
        except CorruptBatchError:
            if self._fetch_again(batch.topic_partition, batch.start_offset):
                return None
            raise
        except MillraceError:
            self._rewind(batch.topic_partition, batch.start_offset)
            raise
        if batch.start_offset > batch.header.base_offset:
            offsets = opened.column("offset").to_numpy()
            opened = opened.slice(int((offsets < batch.start_offset).sum()))
        counters, header = self.counters, batch.header
        counters.records += len(opened)
        counters.batches += 1
        counters.batch_bytes += header.length
        if header.largest_timestamp >= 0:
            counters.age_seconds.observe(max(0, wall_now() - header.largest_timestamp) / 1000)
        return opened

    # Positions.

    def seek_partition(self, place: TopicPartition, to: Offset | Reset) -> None:
        """Move to another position."""
        if self._rest is not None and place == self._rest[0].topic_partition:
            self._drop_rest()
        with self._lock:
            self._fetcher.seek(place, to)
            self._wake()

    def _rewind(self, place: TopicPartition, to: Offset) -> None:
        """Go back to the first record that was not handed out."""
        self._drop_rest()  # If there is one it is of this partition.
        with self._lock:
            self._fetcher.rewind(place, to)
            self._wake()

    def _fetch_again(self, place: TopicPartition, damaged_offset: Offset) -> bool:
        """Go back to a damaged batch; return whether its broker verifies it for the first time."""
        self._drop_rest()
        with self._lock:
            is_first = self._fetcher.fetch_again(place, damaged_offset)
            self._wake()
        return is_first

    def seek(self, place: PartitionName, to: Start) -> None:
        """Go on at an offset, or at an end of the log."""
        self.seek_partition(self._assigned(place), _reset_of(to))

    def pause(self, places: Iterable[PartitionName]) -> None:
        """Hand nothing out of these partitions until `resume`."""
        for place in [self._assigned(place) for place in places]:
            rest = self._rest_offset(place)
            if rest is not None:
                self._rewind(place, rest)
            with self._lock:
                self._fetcher.pause(place)
                self._wake()

    def resume(self, places: Iterable[PartitionName]) -> None:
        """Go on with paused partitions."""
        for place in [self._assigned(place) for place in places]:
            with self._lock:
                self._fetcher.resume(place)
                self._wake()

    def awaited(self) -> list[PartitionName]:
        """See `Consumer.awaited_partitions`."""
        with self._lock:
            return [self._place(each) for each in self._fetcher.awaited()]

    def assignment(self) -> list[PartitionName]:
        """Return the partitions that are read."""
        with self._lock:
            return [self._place(topic_partition) for topic_partition in self._fetcher.assigned]

    async def assign(
        self,
        wanted: Iterable[PartitionName | str] | Mapping[PartitionName | str, Start],
        start: Start | None,
        ends: Mapping[PartitionName, int],
        found: Iterable[str] = (),
    ) -> None:
        """Read exactly these partitions, and those of the topics that were found by a pattern.

        What was found may be deleted since: it is left out.
        """
        _check_list(wanted)
        places: dict[TopicPartition, str] = {}
        starts: dict[TopicPartition, Reset | Offset] = {}
        until: dict[TopicPartition, Offset] = {}
        whole_topics: list[str] = []
        limits = {
            (str(parse_topic_name(topic)), number): Offset(end)
            for (topic, number), end in zip(map(checked_place, ends), ends.values(), strict=True)
        }
        each_start: Mapping[PartitionName | str, Start] = (
            wanted if isinstance(wanted, Mapping) else {}
        )
        wanted = [item if isinstance(item, str) else checked_place(item) for item in wanted]
        named = set(wanted)
        wanted += [topic for topic in found if topic not in named]
        # A named partition takes precedence over its topic.
        wanted.sort(key=lambda item: not isinstance(item, str))
        topics = {item if isinstance(item, str) else item[0] for item in wanted}
        if topics:  # There may be new partitions since, or another topic of the name.
            await self.cluster.refresh(sorted(str(parse_topic_name(topic)) for topic in topics))
        for item in wanted:
            name, numbers = (item, None) if isinstance(item, str) else (item[0], [item[1]])
            try:
                info = await self.cluster.topic_with(name, numbers[0] if numbers else 0)
            except UnknownTopicOrPartitionError:
                if item in named:
                    raise
                continue
            whole_topics += [info.name] if numbers is None else []
            for number in range(len(info.partitions)) if numbers is None else numbers:
                if not 0 <= number < len(info.partitions):
                    raise UnknownTopicOrPartitionError(
                        f"topic {info.name!r} has partitions 0 to {len(info.partitions) - 1}, not "
                        f"{number}"
                    )
                place = TopicPartition(info.topic_id, number)
                to = each_start.get(item, start)
                places[place] = info.name
                starts[place] = Reset.NONE if to is None else _reset_of(to)
                if (info.name, number) in limits:
                    until[place] = limits.pop((info.name, number))
        if limits:
            topic, number = next(iter(limits))
            raise InvalidRequestError(
                f"there is an end for partition {number} of {topic!r}, which is not to be read"
            )
        self._drop_rest()
        self._pattern = ""
        self._whole_topics = whole_topics
        with self._lock:
            for gone in [p for p in self._fetcher.assigned if p not in places]:
                self._fetcher.unassign(gone)
            for place, topic in places.items():
                self._fetcher.assign(topic, place, starts[place], until.get(place))
        self._topics = places
        self._told_gone.clear()
        self._look_up_errors.clear()
        self.topic_ids = {topic: place.topic_id for place, topic in places.items()}
        self._streams.tell_leaders()
        self._step()

    async def read_topics(self, topics: Iterable[str], pattern: str, start: Start | None) -> None:
        """Read all partitions of topics, and of those whose name matches, also later ones."""
        found: list[str] = []
        if pattern:
            try:
                patterns.check_pattern(pattern)
            except InvalidGroupError as error:
                raise InvalidRequestError(error.message) from error
            found = await self._matching_topics(pattern)
        await self.assign(topics, start, {}, found)
        self._pattern = pattern
        self._look_for_topics_later()

    async def _matching_topics(self, pattern: str) -> list[str]:
        response = await self.cluster.look_up(
            cluster_pb2.GetMetadataRequest(), wanted=partial(patterns.matching, pattern)
        )
        there = [each for each in response.topics if not each.internal and not each.error.code]
        return patterns.matching(pattern, [str(parse_topic_name(each.name)) for each in there])

    def _look_for_topics_later(self) -> None:
        if self._topics_timer is not None:
            self._topics_timer.cancel()
        if self._pattern and not self.is_closed:
            self._topics_timer = self.loop.call_later(
                self._config.metadata_max_age_ms / 1000, self._tasks.spawn, self._look_for_topics
            )

    async def _look_for_topics(self) -> None:
        """Read topics that match the pattern and have come, from their beginning."""
        pattern = self._pattern
        with suppress(MillraceError):  # The next look may succeed.
            found = await self._matching_topics(pattern) if pattern else []
            if pattern == self._pattern:  # Else the user has made another choice.
                self._add_topics(found)
        self._look_for_topics_later()

    def _add_topics(self, names: Iterable[str]) -> None:
        for name in set(names).difference(self._whole_topics):
            info = self.cluster.metadata.topics.get(name)
            if info is not None:
                self.topic_ids[name] = info.topic_id
                self._whole_topics.append(name)
        self._on_looked_up()

    def begin(self, places: Mapping[TopicPartition, Begun]) -> None:
        """Read these partitions, too."""
        with self._lock:
            for place, begun in places.items():
                start = begun.position
                if start is None:
                    reset = Reset.EARLIEST if begun.is_later else Reset.NONE
                    self._fetcher.assign(begun.topic, place, reset, is_new=begun.is_later)
                else:
                    epoch = LeaderEpoch(start.leader_epoch)
                    self._fetcher.assign(begun.topic, place, Offset(start.offset), epoch=epoch)
        for place, begun in places.items():
            self._topics[place] = begun.topic
            self.topic_ids[begun.topic] = place.topic_id
        self._streams.tell_leaders()
        self._step()

    def end(self, places: Iterable[TopicPartition]) -> None:
        """Read these no more, and drop what was fetched of them."""
        gone = set(places)
        if self._rest is not None and self._rest[0].topic_partition in gone:
            self._drop_rest()
        with self._lock:
            for place in gone:
                self._fetcher.unassign(place)
        for place in gone:
            del self._topics[place]
            self._told_gone.discard(place.topic_id)
            self._told_made_again.discard(place.topic_id)
        self._step()

    def known_position(self, place: TopicPartition) -> Position | None:
        """Return the position of the next record that is handed out.

        None: it is not known yet, or the topic is gone.
        """
        offset = self._rest_offset(place)
        with self._lock:
            if self._fetcher.is_gone(place):
                return None
            if offset is None:
                offset = self._fetcher.position(place)
            if offset is None:
                return None
            return Position(offset, self._fetcher.epoch_before(place, offset))

    def wake(self) -> None:
        """Let a poll that waits look again."""
        self._news.set()

    async def position(self, place: PartitionName) -> int:
        """Return the offset of the next record to be handed out.

        Raises:
            MillraceError: it had to be looked up, and could not, for as long as a call may take.
        """
        topic_partition = self._assigned(place)
        rest = self._rest_offset(topic_partition)
        if rest is not None:
            return rest
        deadline = host.monotonic_s() + self.cluster.timeout_s + _REASON_GRACE_S
        while True:
            with self._lock:
                position = self._fetcher.position(topic_partition)
                error = self._fetcher.error(topic_partition)
            if position is not None:
                return position
            if error is not None:
                raise error.with_traceback(None)
            self._check_open()
            if host.monotonic_s() >= deadline:
                raise self._why_unknown(topic_partition)
            await asyncio.sleep(0.005)

    def _why_unknown(self, place: TopicPartition) -> MillraceError:
        """Return why the offset of a partition is not known."""
        leader = self.cluster.metadata.leader_of(place)
        if leader is None or leader.broker_id < 0:
            return NotLeaderError(f"partition {place.partition} has no leader at present")
        return self._look_up_errors.get(place) or ConnectionFailedError(
            f"broker {leader.broker_id} did not say in {self.cluster.timeout_s:g} s where "
            f"partition {place.partition} begins or ends"
        )

    async def lag(self) -> dict[PartitionName, int]:
        """Return how many records are still to be handed out, per partition."""
        lags = {}
        with self._lock:
            read = [each for each in self._fetcher.assigned if not self._fetcher.is_gone(each)]
        assigned: dict[TopicPartition, OffsetSpec] = dict.fromkeys(read, "end")
        for topic_partition, end in (await look_up_offsets(self.cluster, assigned)).items():
            place = self._place(topic_partition)
            lags[place] = max(0, end.offset - await self.position(place))
        return lags

    async def seek_to_time(self, timestamp_ms: int, places: Iterable[PartitionName] | None) -> None:
        """Go to the first record at or after a time; to the end where there is none."""
        time = whole_number(timestamp_ms)
        if time is None:
            raise InvalidRequestError(f"{timestamp_ms!r} is no time: give ms UTC since 1970")
        chosen = (
            list(self._fetcher.assigned)
            if places is None
            else [self._assigned(place) for place in places]
        )
        wanted: dict[TopicPartition, OffsetSpec] = dict.fromkeys(chosen, time)
        for place, found in (await look_up_offsets(self.cluster, wanted)).items():
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
        rest, lent = self._rest, self._lent
        with self._lock:
            for place in self._fetcher.assigned:
                end, position = self._fetcher.high_watermark(place), self._fetcher.position(place)
                topic = self._topics.get(place)
                if topic is None:
                    continue
                if end is None or position is None:
                    unknown.add(topic)
                else:
                    lags[topic] = lags.get(topic, 0) + max(0, end - position)
        if rest is not None and rest[0].topic in lags:
            handed_out = 0 if lent is None else lent.count - len(lent)
            lags[rest[0].topic] += max(0, len(rest[1]) - handed_out)
        return {topic: lag for topic, lag in lags.items() if topic not in unknown}

    def partition_counts(self) -> tuple[int, int]:
        """Return how many partitions are read, and how many of them no broker sends at present."""
        if self.is_closed:
            return 0, 0
        with self._lock:
            return len(self._fetcher.assigned), len(self._fetcher.awaited())

    def stream_failures(self) -> int:
        """Return how many streams to brokers broke, or could not be opened."""
        return self._streams.failures

    # On the loop.

    async def give_way(self) -> None:
        """Let a member's heartbeats go on.

        Raises:
            ClosedError: the consumer was closed meanwhile.
        """
        if self.membership is not None:
            await self.membership.give_way()
            self._check_open()

    async def wait_for_news(self, timeout_s: float) -> None:
        """Wait until something can be taken, at most so long.

        Raises:
            ClosedError: the consumer is closed, or was meanwhile.
        """
        self._check_open()
        with self._lock:
            if self._fetcher.has_news:
                return
            self._news.clear()
        if self.membership is not None and self.membership.has_work:
            return
        polling = nullcontext() if self.membership is None else self.membership.polling()
        with polling, suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._news.wait()
        self._check_open()

    async def subscribe(self, topics: Iterable[str], pattern: str, callbacks: Callbacks) -> None:
        """Join the group, and read what it assigns."""
        _check_list(topics)
        await self.leave()
        self.end(list(self._topics))
        names = sorted({str(parse_topic_name(topic)) for topic in topics})
        if names or pattern:
            self.membership = Membership(
                self.cluster,
                self._config,
                self,
                topics=names,
                pattern=pattern,
                callbacks=callbacks,
                counters=self.counters,
            )

    @property
    def close_timeout_ms(self) -> int:
        """How long `close` may take."""
        return self._config.close_timeout_ms

    @property
    def group(self) -> str:
        """The group that the user named; empty: none."""
        return self._config.group

    async def commit(self, positions: Mapping[PartitionName, int] | None) -> None:
        """See `Consumer.commit`."""
        if self.membership is None:
            raise InvalidRequestError("there is no group to commit in: set group=..., subscribe")
        if positions is None:
            await self.membership.commit_read(self.membership.owned)
            return
        found = {
            self._assigned(place): checked_offset(offset, place)
            for place, offset in positions.items()
        }
        with self._lock:
            named = {
                place: Position(offset, self._fetcher.epoch_before(place, offset))
                for place, offset in found.items()
            }
        for gone in await self.membership.commit(named):
            raise UnknownTopicOrPartitionError(
                f"the topic of partition {gone.partition} was deleted: its position is not stored, "
                "and those of the others are"
            )

    async def leave(self) -> None:
        """Leave the group, if it is a member."""
        membership = self.membership
        if membership is not None:
            try:
                await membership.close()  # Within `close_timeout_ms`.
            finally:
                self.membership = None
                self.end(list(membership.owned))

    async def close(self) -> None:
        """Leave the group, and let go of everything."""
        ends_at = host.monotonic_s() + self.close_timeout_ms / 1000
        try:
            await self.leave()  # Callbacks may still use the consumer.
        finally:
            self.is_closed = True
            self._news.set()  # Wake waiters for records.
            for timer in (self._timer, self._topics_timer):
                if timer is not None:
                    timer.cancel()
            await let_go(ends_at, self._streams.close, self._tasks.end, self.cluster.close)

    def _wake(self) -> None:
        if not self._step_is_due:
            self._step_is_due = True
            self.loop.call_soon_threadsafe(self._step)

    def _step(self) -> None:
        self._step_is_due = False
        if self.is_closed:
            return
        now = monotonic_now()
        with self._lock:
            effects = self._fetcher.poll(now)
            has_news = self._fetcher.has_news
            wake = self._fetcher.next_wake(now)
        if has_news:
            self._news.set()
        for effect in effects:
            match effect:
                case ChangeSession():
                    stream = self._streams.get(effect.broker_id)
                    if stream is not None:
                        stream.change(effect)
                case LookUpOffset():
                    self._tasks.spawn(self._look_up, effect)
                case FindEpochEnd():
                    self._tasks.spawn(self._find_epoch_end, effect)
                case Jumped():
                    self._on_jumped(effect)
                case _:
                    self._streams.perform(effect)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake is not None:
            self._timer = self.loop.call_later(max(wake - now, 1) / 1000, self._step)

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
            self._streams.learn_address(fetched.error)
        with self._lock:
            self._fetcher.on_fetched(broker_id, news, monotonic_now())
        self._step()

    def _on_throttled(self, broker_id: BrokerId, throttle_ms: int) -> None:
        self.counters.throttled_ms += throttle_ms  # Each is told once, with what it is for.
        self._throttling.on_throttled(broker_id, throttle_ms)

    def _open_stream(self, broker_id: BrokerId, connection: Connection) -> FetchStream:
        return FetchStream(
            broker_id,
            connection,
            settings=self._settings,
            partition_bytes_max=self._partition_bytes_max,
            on_fetched=self._on_fetched,
            on_throttled=self._on_throttled,
            on_broken=self._streams.on_broken,
        )

    def _on_looked_up(self) -> None:
        """Read new partitions of subscribed topics, from their beginning."""
        for topic in self._whole_topics:
            info = self.cluster.metadata.topics.get(topic)
            for partition in () if info is None else info.partitions:
                assert info is not None
                place = TopicPartition(info.topic_id, partition.partition)
                if place not in self._topics and info.topic_id == self.topic_ids.get(topic):
                    self._topics[place] = topic
                    with self._lock:
                        self._fetcher.assign(topic, place, Reset.EARLIEST, is_new=True)
        self._step()

    async def _look_up(self, effect: LookUpOffset) -> None:
        try:
            end: OffsetSpec = "beginning" if effect.reset is Reset.EARLIEST else "end"
            found = await look_up_offsets(self.cluster, {effect.topic_partition: end})
        except MillraceError as error:
            self._look_up_errors[effect.topic_partition] = error
            with self._lock:
                self._fetcher.on_look_up_failed(
                    effect.handle, error, error.retriable, monotonic_now()
                )
        else:
            self._look_up_errors.pop(effect.topic_partition, None)
            with self._lock:
                offset = found[effect.topic_partition].offset
                is_taken = self._fetcher.on_offset_found(effect.handle, offset)
            if is_taken and end == "end" and self.membership is not None:
                self.membership.on_end_found(effect.topic_partition, offset)
        self._step()

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
            (result,) = await ask_for_epoch_ends(self.cluster, leader.broker_id, request)
            wire.raise_if_refused(result)
        except MillraceError as error:
            if isinstance(error, RefreshMetadataError) and error.leader is not None:
                self.cluster.metadata.learn_leader(place, error.leader)
            with self._lock:
                self._fetcher.on_look_up_failed(
                    effect.handle, error, error.retriable, monotonic_now()
                )
        else:
            epoch, end_offset = LeaderEpoch(result.end.leader_epoch), Offset(result.end.end_offset)
            with self._lock:
                self._fetcher.on_epoch_end(effect.handle, epoch, end_offset)
        self._step()

    def _rest_offset(self, place: TopicPartition) -> Offset | None:
        """Return where the rest of the last `poll` or loop begins, if it is of this partition."""
        if self._rest is None or self._rest[0].topic_partition != place:
            return None
        offsets = self._rest[1].column("offset")
        handed_out = 0 if self._lent is None else self._lent.count - len(self._lent)
        return Offset(offsets[handed_out].as_py()) if handed_out < len(offsets) else None

    def _assigned(self, place: PartitionName) -> TopicPartition:
        topic, number = checked_place(place)
        # Not the cluster's ids: a topic that was deleted meanwhile is still assigned.
        topic_id = self.topic_ids.get(str(parse_topic_name(topic)))
        found = None if topic_id is None else TopicPartition(topic_id, number)
        if found is None or found not in self._fetcher.assigned:
            raise InvalidRequestError(f"partition {number} of {topic!r} is not assigned: assign it")
        return found

    def _place(self, topic_partition: TopicPartition) -> PartitionName:
        return self._topics[topic_partition], topic_partition.partition


def _untraced(_: object) -> None:
    """Nothing is recorded of a poll."""


def _check_list(topics: object) -> None:
    """Refuse a single name, which would be taken letter by letter."""
    if isinstance(topics, str):
        raise InvalidRequestError(f"{topics!r} is one topic: give a list, as [{topics!r}]")
