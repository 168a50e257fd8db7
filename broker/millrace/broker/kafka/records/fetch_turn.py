"""One fetch request over Kafka's protocol, from its partitions to what the answer says of each.

A request looks at its partitions, or in a session at those that may have news
(`core.replica.fetch.asked`). If there is not enough to send, it waits until one of them advances:
they wake the request, which has no task for any of them. What may be sent to whom, and where it
lies, is decided as for readers by gRPC (`SessionReader`, `fetch_plans`); the stored batches are
sent in Kafka's form (`stored_batches`).

The reader's limits are those of Kafka (KIP-74): partitions are served in their order until the
answer is full, and the first batch of an answer is sent whole, however large it is. One that does
not fit any more is left for the next request.

Source: Kafka's `ReplicaManager.readFromLog`, `DelayedFetch`.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from millrace.broker.guard.callers import GuardedCaller, TopicAccess, check_topic
from millrace.broker.kafka.known_topics import KnownTopics
from millrace.broker.kafka.records.large_answers import LargeAnswer, LargeAnswers
from millrace.broker.kafka.records.stored_batches import StoredBatches, ZstdNotKnownError
from millrace.broker.kafka.wire.errors import Code, code_of
from millrace.broker.kafka.wire.fetch_codec import FetchRequest, PartitionAnswer
from millrace.broker.quotas import Throttle
from millrace.broker.replica.early_requests import EarlyRequests
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.reader import LogReader
from millrace.broker.rpc.fetch_plans import Plan, find_aborted, find_batches
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.errors import (
    CorruptLogError,
    FencedLeaderEpochError,
    MillraceError,
    NotLeaderError,
    RetriableError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from millrace.core.guard.access import Operation
from millrace.core.ids import Leader, MonotonicMs, TopicPartition
from millrace.core.records.header import Buffer
from millrace.core.replica.fetch.asked import Asked, AskedPartitions
from millrace.core.replica.fetch.session import ResponseRoom
from millrace.core.replica.fetch.session_reader import (
    AtEnd,
    LookBack,
    Pause,
    ReadElsewhere,
    SendBatches,
    SessionReader,
)
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.mailbox import Worker
from millrace.runtime.turns import Turns

_ABOUT_LEADERS: Final = (NotLeaderError, FencedLeaderEpochError, UnknownLeaderEpochError)
_KNOWN_TO_CONSUMERS: Final = frozenset(
    {
        Code.UNKNOWN_SERVER_ERROR,
        Code.OFFSET_OUT_OF_RANGE,
        Code.CORRUPT_MESSAGE,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        Code.NOT_LEADER_OR_FOLLOWER,
        Code.TOPIC_AUTHORIZATION_FAILED,
        Code.KAFKA_STORAGE_ERROR,
        Code.FENCED_LEADER_EPOCH,
        Code.UNKNOWN_LEADER_EPOCH,
        Code.OFFSET_NOT_AVAILABLE,
        Code.UNKNOWN_TOPIC_ID,
        Code.INCONSISTENT_TOPIC_ID,
    }
)
"""Numbers in an answer for which Kafka's `FetchCollector` has a case."""
_ZSTD_SINCE: Final = 10
"""The first version whose readers know it (KIP-110)."""
_STORAGE_ERRORS_SINCE: Final = 6
_UNLIMITED: Final = 2**31 - 1
"""Bytes of a first batch: those of any batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchParts:
    """What requests are answered from.

    Attributes:
        topics: of the listener.
        stored: makes Kafka's batches.
        workers: threads for what takes long, in turn.
        response_bytes_max: of records in an answer, where `large_answers` has room.
        The others are the broker's.
    """

    topics: KnownTopics
    partitions: Partitions
    reader: LogReader
    stored: StoredBatches
    early: EarlyRequests
    workers: Iterator[Worker]
    turns: Turns
    limits: LimitsConfig
    response_bytes_max: int
    large_answers: LargeAnswers
    metrics: BrokerMetrics


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks.

    Attributes:
        caller: who it is.
        topics: which topics it may read; None: there is no guard.
        throttle: what it owes.
        reader: of logs, in turn with other callers.
    """

    caller: GuardedCaller
    topics: TopicAccess | None
    throttle: Throttle
    reader: LogReader


class Following:
    """Follows what a reader asks for; a `Reader` of the partitions.

    Attributes:
        asked: what it asks for.
        news: set when a partition advances.
        early: handles of the partitions whose leader may yet hear that it leads.
    """

    def __init__(self, asked: AskedPartitions) -> None:
        self.asked = asked
        self.news = asyncio.Event()
        self.early: set[int] = set()
        self._followed: dict[int, Partition] = {}

    def on_advanced(self, handle: int) -> None:
        """A partition has news."""
        self.asked.on_advanced(handle)
        self.news.set()

    def on_judged(self, handle: int) -> None:
        """The replica leads, or the time for that is over."""
        self.early.discard(handle)
        self.on_advanced(handle)

    def follow(self, handle: int, partition: Partition) -> None:
        """Hear of a replica from now on; its log may have been closed, and opened again."""
        followed = self._followed.get(handle)
        if followed is not partition:
            if followed is not None:
                followed.leave(self, handle)
            self._followed[handle] = partition
            partition.follow(self, handle)

    def leave(self, handle: int) -> None:
        """Hear nothing more under a handle."""
        if (partition := self._followed.pop(handle, None)) is not None:
            partition.leave(self, handle)

    def close(self) -> None:
        """Leave all partitions."""
        for handle, partition in self._followed.items():
            partition.leave(self, handle)
        self._followed.clear()


class FetchTurn:
    """A request that is being answered.

    Args:
        parts: that it is answered from.
        client: who asks.
        following: what it asks for.
        request: the request.
        version: of the request.
        large: what the answer has of the memory of large ones.
        tells_all: whether the answer has all partitions, also those without news.
    """

    def __init__(
        self,
        parts: FetchParts,
        client: Client,
        following: Following,
        request: FetchRequest,
        version: int,
        *,
        large: LargeAnswer,
        tells_all: bool,
    ) -> None:
        limits = parts.limits
        self._parts = parts
        self._client = client
        self._following = following
        self._asked = following.asked
        self._tells_all = tells_all
        self._version = version
        self._reader = SessionReader(zone=request.rack, read_committed=request.read_committed)
        self._large = large
        # What it may have in any case, what it has where there is room, and what it has now.
        self._free_bytes = min(request.max_bytes, limits.fetch_response_bytes_max)
        self._wanted_bytes = min(request.max_bytes, parts.response_bytes_max)
        self._max_bytes = self._free_bytes
        self._min_bytes = min(request.min_bytes, self._free_bytes)
        may_wait = self._asked and not request.unknown
        wait_ms = min(request.max_wait_ms, limits.fetch_wait_ms_max) if may_wait else 0
        self._until = MonotonicMs(monotonic_now() + wait_ms)
        self._plans: dict[int, Plan] = {}
        self._refused: dict[int, PartitionAnswer] = {}

    async def run(self, is_ending: Callable[[], bool]) -> list[PartitionAnswer]:
        """Wait until there is enough to answer, and return what to say of each partition.

        Args:
            is_ending: returns whether to answer at once; `Following.news` is set when it does.
        """
        news = self._following.news
        while True:
            news.clear()
            now = monotonic_now()
            await self._look(now)
            if self._is_enough() or now >= self._until or is_ending():
                break
            await _wait(news, self._until - now)
        answers = await self._read()
        return await self._all(answers) if self._tells_all else answers

    def _is_enough(self) -> bool:
        """Return whether there is something to answer at once."""
        if self._refused:
            return True
        plans = self._plans.values()
        return self._found_bytes >= self._min_bytes or any(plan.ending for plan in plans)

    # --- What there is -----------------------------------------------------------------------

    async def _look(self, now: MonotonicMs) -> None:
        """Look at what may have news; nothing is read yet."""
        asked_for, work = self._asked, self._parts.turns.work()
        more = self._large.take(self._wanted_bytes - self._free_bytes)
        room = ResponseRoom(lambda: _UNLIMITED, self._free_bytes + more)
        self._plans.clear()
        self._refused.clear()
        for asked in asked_for.turn():
            if room.is_full:
                break
            await work.give_way()
            handle = asked.position.handle
            try:
                plan = await self._plan(asked, room, now)
            except MillraceError as error:
                self._refused[handle] = self._refuse(asked, error)
                continue
            if plan is None:
                asked_for.on_nothing(handle)
            elif not plan.is_empty:
                if room.take(plan.length, len(plan.aborted)):
                    self._plans[handle] = plan
            elif not self._tells_all and self._has_news(plan):
                self._plans[handle] = plan
            else:
                asked_for.on_nothing(handle)
        self._max_bytes = self._free_bytes + self._large.keep(self._found_bytes - self._free_bytes)

    @property
    def _found_bytes(self) -> int:
        return sum([plan.length for plan in self._plans.values()])

    def _has_news(self, plan: Plan) -> bool:
        partition = plan.partition
        return self._reader.has_news(plan.position, partition.replica, partition.log)

    async def _plan(self, asked: Asked, room: ResponseRoom, now: MonotonicMs) -> Plan | None:
        """Return what there is to send of a partition; None: its leader may yet hear of it.

        Raises:
            MillraceError: the reader is refused.
        """
        parts, position, reader = self._parts, asked.position, self._reader
        partition = parts.partitions.get(self._find(asked))
        self._following.follow(position.handle, partition)
        if self._waits_for_leader(asked, partition):
            return None
        replica, log, image = partition.replica, partition.log, parts.partitions.image
        found = reader.decide(position, replica, log, image, now)
        if not isinstance(found, SendBatches):
            assert not isinstance(found, Pause)  # Consumers have no pauses.
            return Plan(position, partition, ending=None if isinstance(found, AtEnd) else found)
        offset = position.fetch_offset
        read = await find_batches(self._client.reader, log, offset, room.max_bytes(position), found)
        if read is None or not reader.read_committed:
            return Plan(position, partition, read)
        aborted = await find_aborted(self._client.reader, log, offset, read)
        return Plan(position, partition, read, aborted=aborted)

    def _waits_for_leader(self, asked: Asked, partition: Partition) -> bool:
        """Return whether this replica is given time to hear that it leads, once for an epoch.

        A reader with a zone does not wait: it may be meant for a follower.
        """
        position, early, following = asked.position, self._parts.early, self._following
        handle, epoch = position.handle, position.current_leader_epoch
        if handle in following.early:
            position.has_advanced = False
            return True
        is_new = asked.awaited_epoch != epoch
        if self._reader.zone or not is_new or not early.is_early(partition, epoch):
            return False
        asked.awaited_epoch = epoch
        position.has_advanced = False
        following.early.add(handle)
        early.add(partition, epoch, partial(following.on_judged, handle))
        return True

    def _find(self, asked: Asked) -> TopicPartition:
        """Return which partition a reader asks for.

        Raises:
            MillraceError: there is no such topic, or it may not read it.
        """
        topics, client = self._parts.topics, self._client
        topic = topics.find(asked.topic)
        if topic is None:
            # Whether there is a topic of a name is not told to everybody.
            resource = topics.resource(asked.topic)
            if resource is not None:
                refused = client.caller.refusal(Operation.CONSUME, resource)
                if refused is not None:
                    raise refused
            raise UnknownTopicOrPartitionError("this broker knows no such topic")
        check_topic(client.topics, topic.topic_id)
        return asked.find(topic.topic_id)

    def _refuse(self, asked: Asked, error: MillraceError) -> PartitionAnswer:
        """Return the answer for a partition that is refused; damage takes it offline (P65)."""
        partitions, place = self._parts.partitions, asked.position.topic_partition
        self._parts.metrics.refused(error, "Fetch")
        if isinstance(error, CorruptLogError):
            partitions.take_offline(place, error)
        image = partitions.image
        state = None if image is None else image.partition(place)
        answer = PartitionAnswer(asked.topic, place.partition, code_in_fetch(error))
        if isinstance(error, UnknownTopicOrPartitionError):
            if state is not None:
                answer.error_code = Code.NOT_LEADER_OR_FOLLOWER  # Another broker has it.
            elif not isinstance(asked.topic, str) and self._parts.topics.find(asked.topic) is None:
                answer.error_code = Code.UNKNOWN_TOPIC_ID
        elif (
            self._version < _STORAGE_ERRORS_SINCE and answer.error_code == Code.KAFKA_STORAGE_ERROR
        ):
            answer.error_code = Code.NOT_LEADER_OR_FOLLOWER
        if state is not None and isinstance(error, _ABOUT_LEADERS):
            answer.leader = Leader(state.leader, state.leader_epoch)
        return answer

    # --- What is said of it ------------------------------------------------------------------

    async def _read(self) -> list[PartitionAnswer]:
        """Read what was found; return what to say of the partitions that have news."""
        parts = self._parts
        plans = list(self._plans.values())
        reads = [(plan.partition.log, plan.read) for plan in plans if plan.read is not None]
        begun_s = host.monotonic_s()
        batches = self._client.reader.read_cached(reads)
        if batches is None:
            parts.metrics.requests.fetch_disk_reads.inc()
            batches = await self._client.reader.read(reads)
        if reads:
            parts.metrics.requests.fetch_read.observe(host.monotonic_s() - begun_s)
        answers = list(self._refused.values())
        unused = iter(batches)
        left = self._max_bytes
        for plan in plans:
            data: Buffer | MillraceError = b"" if plan.read is None else next(unused)
            answer = await self._answer(plan, data, left, is_first=left == self._max_bytes)
            if answer is not None:
                size = sum(map(len, answer.records))
                left -= size
                self._count(plan.partition, size)
                answers.append(answer)
        self._client.throttle.charge(self._max_bytes - left)
        return answers

    async def _answer(
        self, plan: Plan, data: Buffer | MillraceError, left: int, *, is_first: bool
    ) -> PartitionAnswer | None:
        """Return what to say of a partition; None: nothing for now.

        Args:
            plan: of what there is.
            data: the stored batches, or why they could not be read.
            left: bytes that the answer may still have.
            is_first: whether it has none yet: then a larger batch is sent, too.
        """
        asked_for, handle = self._asked, plan.position.handle
        asked = asked_for.by_handle[handle]
        if isinstance(data, MillraceError):
            return self._refuse(asked, data)
        if len(data) != plan.length:
            return None  # Deleted meanwhile: the next request finds the error.
        records: Sequence[Buffer] = ()
        if plan.read is not None and (left > 0 or is_first):
            try:
                records = await self._in_kafkas_form(plan, data, left)
            except MillraceError as error:
                return self._refuse(asked, error)
            except ZstdNotKnownError:
                place = plan.position.topic_partition
                code = Code.UNSUPPORTED_COMPRESSION_TYPE
                return PartitionAnswer(asked.topic, place.partition, code)
            if not is_first and sum(map(len, records)) > left:
                records = ()
        answer = self._describe(asked, plan, records)
        if plan.is_empty:
            asked_for.on_nothing(handle)
        elif records or plan.ending is not None:
            asked_for.on_served(handle)
        return answer

    async def _in_kafkas_form(self, plan: Plan, stored: Buffer, left: int) -> Sequence[Buffer]:
        """Return stored batches as the reader gets them.

        Raises:
            CorruptLogError: one is damaged: the log is (P65).
            ZstdNotKnownError: the reader cannot read one.
        """
        partition, bytes_max = plan.partition, min(plan.position.max_bytes, left)
        knows_zstd = self._version >= _ZSTD_SINCE
        try:
            return await self._parts.stored.in_kafkas_form(
                partition.topic_partition, stored, bytes_max, knows_zstd=knows_zstd
            )
        except MillraceError:
            # Says whether it is the log that is damaged.
            assert plan.read is not None
            reader = self._client.reader
            await reader.call(plan.read.segment.log_dir, partition.log.reader.verify, plan.read)
            raise

    def _count(self, partition: Partition, size: int) -> None:
        """Count bytes that a reader gets."""
        if size:
            self._parts.metrics.fetched(partition.topic, size)
            partition.fetched_bytes += size
            self._client.throttle.charge_topic(partition.topic, size)

    async def _all(self, told: Iterable[PartitionAnswer]) -> list[PartitionAnswer]:
        """Return what to say of all partitions, in the order in which they were named."""
        found = {(answer.topic, answer.partition): answer for answer in told}
        work = self._parts.turns.work()
        answers = []
        for asked in self._asked.by_handle.values():
            await work.give_way()
            answer = found.get((asked.topic, asked.position.topic_partition.partition))
            answers.append(answer or self._without_records(asked))
        return answers

    def _without_records(self, asked: Asked) -> PartitionAnswer:
        """Return what to say of a partition that was not read."""
        position = asked.position
        try:
            if position.handle in self._following.early:
                raise UnknownLeaderEpochError("this broker has not heard of the leader epoch")
            partition = self._parts.partitions.get(self._find(asked))
        except MillraceError as error:
            return self._refuse(asked, error)
        return self._describe(asked, Plan(position, partition), ())

    def _describe(self, asked: Asked, plan: Plan, records: Sequence[Buffer]) -> PartitionAnswer:
        """Return what to say of a partition; note what the reader is told by it."""
        offsets = plan.tell()
        answer = PartitionAnswer(
            asked.topic,
            plan.position.topic_partition.partition,
            high_watermark=offsets.high_watermark,
            last_stable_offset=offsets.last_stable_offset,
            log_start_offset=offsets.log_start_offset,
            records=records,
        )
        if self._reader.read_committed:
            answer.aborted = plan.aborted if records else ()
        match plan.ending:
            case LookBack(end):
                answer.diverging = end
            case ReadElsewhere(broker_id):
                answer.preferred_replica = broker_id
        return answer


def code_in_fetch(error: MillraceError) -> int:
    """Return Kafka's number of an error, as consumers understand it.

    The Java consumer fails for good when it gets a number that it does not expect. So an error that
    can be tried again has the number after which consumers look up the leader, and fetch again.
    """
    code = code_of(error)
    if isinstance(error, RetriableError) and code not in _KNOWN_TO_CONSUMERS:
        return Code.NOT_LEADER_OR_FOLLOWER
    return code


async def _wait(event: asyncio.Event, at_most_ms: int) -> None:
    timer = asyncio.get_running_loop().call_later(at_most_ms / 1000, event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
