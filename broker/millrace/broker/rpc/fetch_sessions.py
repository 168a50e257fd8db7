"""Sessions that follow partitions, of consumers and of followers.

One stream is one session (`core.replica.fetch.session`). One task reads the reader's requests,
another answers: it waits until there are news and credit, reads whole batches from the files
without decoding them, and writes one response. `SessionReader` decides what may be sent. The task
waits until the transport has taken that response, so a reader that does not read costs the broker
one response. A position at a leader that does not know of its election yet waits for the metadata
(`EarlyRequests`).

Stored batches are sent without a look at their bytes, unless the reader says that one came damaged:
then they are verified first, and a damaged log goes offline (P65). For a reader of an earlier
release, what it does not know is converted (K6), as early as when the response is planned: that
tells its size.

A reader that exceeds a quota gets its answer, which says how long it waits for the next one
(`Throttle`).
"""

import asyncio
from dataclasses import dataclass
from time import thread_time_ns
from typing import Final

from millrace.broker.guard.callers import GuardedCaller, TopicAccess, check_topic
from millrace.broker.quotas import Quotas
from millrace.broker.replica.early_requests import EarlyRequests
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.broker.replica.reader import LogReader
from millrace.broker.rpc.broker_calls import check_id
from millrace.broker.rpc.calls import Calls
from millrace.broker.rpc.converted_batches import ColumnBatches
from millrace.broker.rpc.fetch_plans import Plan, find_aborted, find_batches
from millrace.broker.rpc.lags import Lags
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.requests import checked_topic_partition, decode_request
from millrace.broker.rpc.resources import TopicResources
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.errors import (
    AccessDeniedError,
    BrokerShuttingDownError,
    CorruptLogError,
    MalformedRequestError,
    MillraceError,
)
from millrace.core.guard.access import Operation
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
)
from millrace.core.metadata.model import BrokerLife
from millrace.core.quotas.quota import QuotaKind
from millrace.core.records.header import KAFKA_FORMAT, Buffer
from millrace.core.replica.fetch.catch_up import CatchUpAllowance
from millrace.core.replica.fetch.session import (
    PARTITIONS_IN_RESPONSE,
    FetchPosition,
    FetchSession,
    ResponseRoom,
    SessionLimits,
    SessionSettings,
)
from millrace.core.replica.fetch.session_reader import (
    AtEnd,
    Pause,
    SendBatches,
    SessionReader,
)
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.rules import ReplicationConfig
from millrace.proto.codec import fetch_response
from millrace.proto.features import check_broker
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.runtime import host
from millrace.runtime.clock import monotonic_now
from millrace.runtime.loop_time import LoopTime
from millrace.runtime.streams import run_until_first
from millrace.runtime.transport.calls import ServerCall
from millrace.runtime.turns import Turns

_LOOK_SECONDS: Final = 2.0
"""Pause between two looks whether a reader may still read."""


@dataclass(eq=False, kw_only=True)
class SessionService:
    """Serves sessions, of consumers or of followers.

    Attributes:
        calls: of the listener.
        quotas: of clients; None: followers have none (P72).
        columns: converts for readers of earlier releases; None: followers know every format.
        replication: settings for followers; None: it serves consumers.
    """

    partitions: Partitions
    reader: LogReader
    early: EarlyRequests
    turns: Turns
    limits: LimitsConfig
    metrics: BrokerMetrics
    calls: Calls
    quotas: Quotas | None
    columns: ColumnBatches | None = None
    replication: ReplicationConfig | None = None

    def __post_init__(self) -> None:
        self.listener = self.calls.listener
        self.lags = Lags(self.partitions, self.reader, self.turns, self.listener)
        self.topics = TopicResources(lambda: self.partitions.image)
        self._streams: set[FetchStream] = set()
        self._is_ending = False
        self.entries_max = self.limits.request_entries_max
        self.session_limits = SessionLimits(
            partitions_max=self.limits.fetch_session_partitions_max,
            response_bytes_max=self.limits.fetch_response_bytes_max,
            max_wait_ms_max=self.limits.fetch_wait_ms_max,
        )

    async def fetch(self, call: ServerCall, caller: GuardedCaller) -> None:
        """Serve a stream."""
        self.metrics.fetch_streams.inc()
        stream = FetchStream(self, call, caller)
        if self._is_ending:
            stream.end()
        self._streams.add(stream)
        try:
            await stream.run()
        finally:
            stream.close()
            self._streams.remove(stream)
            self.metrics.fetch_streams.dec()

    def end_streams(self) -> None:
        """End all sessions, and those that come, because the broker stops."""
        self._is_ending = True
        for stream in self._streams:
            stream.end()


@dataclass(slots=True)
class _EarlyPosition:
    """A position that waits until its leader knows that it leads."""

    wanted: pb.FetchPartition
    progress: pb.FollowerProgress | None = None
    """The latest position that arrived meanwhile."""


class FetchStream:
    """One session; a `Reader` of the partitions that it follows."""

    def __init__(
        self,
        service: SessionService,
        call: ServerCall,
        caller: GuardedCaller,
    ) -> None:
        self._service = service
        self._call = call
        self._session = FetchSession(service.session_limits)
        self._refused: list[pb.FetchedPartition] = []
        self._early: dict[int, _EarlyPosition] = {}
        self._wake = asyncio.Event()
        quotas = service.quotas
        self._throttle = (
            None if quotas is None else quotas.throttle(QuotaKind.FETCH, caller, self._wake.set)
        )
        # What its requests cost, which delays them, and not the answers.
        self._asking = (
            None if quotas is None else quotas.throttle(QuotaKind.REQUEST, caller, lambda: None)
        )
        self._is_configured = False
        self._columns: ColumnBatches | None = None  # For a reader that knows those alone.
        self._reader = SessionReader()
        self._has_room = asyncio.Event()
        self._pause_ms = 0  # Pause of followers that have got enough for now.
        self._ended = asyncio.Event()
        self._caller = caller
        self._log_reader = service.reader.of(caller.owner)
        self._topics = caller.on_topics(Operation.CONSUME, service.topics.of)

    async def run(self) -> None:
        duties = [self._listen(), self._answer(), self._wait_for_end()]
        if self._topics is not None:
            duties.append(self._watch_access(self._topics))
        # The reader's half-close ends the session as well: nothing more can be granted.
        await run_until_first(*duties)
        if self._ended.is_set():
            raise BrokerShuttingDownError("the broker is stopping")

    def end(self) -> None:
        """End the session because the broker stops."""
        self._ended.set()

    async def _wait_for_end(self) -> None:
        await self._ended.wait()

    async def _watch_access(self, topics: TopicAccess) -> None:
        """Refuse, for ever, the topics that the reader may not read any more."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            work = self._service.turns.work()
            for position in list(self._session.positions.values()):
                await work.give_way()
                refused = topics.refusal(position.topic_partition.topic_id)
                if refused is not None:
                    self._refuse(position, refused)
                    self._wake.set()

    def close(self) -> None:
        """Leave all partitions."""
        self._early.clear()
        for position in list(self._session.positions.values()):
            self._leave(position.handle)
        for throttle in (self._throttle, self._asking):
            if throttle is not None:
                throttle.close()

    def on_advanced(self, handle: int) -> None:
        """A partition has news."""
        self._session.on_advanced(handle, monotonic_now())
        if self._session.credit:
            self._wake.set()

    async def _listen(self) -> None:
        entries_max = self._service.entries_max
        while (message := await self._call.read()) is not None:
            request = decode_request(pb.FetchRequest, bytes(message), entries_max)
            if self._asking is not None and self._asking.limits_requests:
                timed = LoopTime(self._on_request(request))
                await timed
                self._asking.charge_time(timed.nanoseconds)
                self._wake.set()
                await self._asking.wait()
            else:
                await self._on_request(request)
            self._wake.set()
            # Stop reading from a reader that does not take its many errors.
            while len(self._refused) >= entries_max:
                self._has_room.clear()
                await self._has_room.wait()

    async def _on_request(self, request: pb.FetchRequest) -> None:
        session = self._session
        if not self._is_configured:
            self._is_configured = True
            settings = request.settings
            if settings.HasField("replica_id") != (self._service.replication is not None):
                raise MalformedRequestError(
                    "followers, and they alone, fetch on the replica listener"
                )
            session.configure(
                SessionSettings(
                    min_bytes=settings.min_bytes,
                    max_wait_ms=settings.max_wait_ms,
                    response_bytes_max=settings.response_bytes_max,
                    window_bytes=settings.window_bytes,
                    read_committed=settings.isolation_level == pb.ISOLATION_LEVEL_READ_COMMITTED,
                )
            )
            self._reader = self._identify(settings)
            if settings.batch_format_max < KAFKA_FORMAT:
                self._columns = self._service.columns
        work = self._service.turns.work()
        for handle in request.remove:
            await work.give_way()
            self._leave(handle)
        for wanted in request.partitions:
            await work.give_way()
            if not self._wait_if_early(wanted):
                self._open(wanted)
        for progress in request.progress:
            await work.give_way()
            self._on_progress(progress)
        session.grant(request.credit_bytes)

    def _identify(self, settings: pb.FetchSettings) -> SessionReader:
        """Return the reader, by its first message."""
        read_committed = self._session.settings.read_committed
        replication = self._service.replication
        if replication is None:
            return SessionReader(zone=settings.rack, read_committed=read_committed)
        check_broker(settings.features)
        check_id(self._caller, BrokerId(settings.replica_id), self._service.partitions.image)
        rate = replication.catch_up_bytes_per_second
        return SessionReader(
            follower=BrokerLife(
                BrokerId(settings.replica_id), BrokerEpoch(settings.replica_broker_epoch)
            ),
            catch_up=None if rate == -1 else CatchUpAllowance(rate, monotonic_now()),
        )

    def _wait_if_early(self, wanted: pb.FetchPartition) -> bool:
        """Let a position wait if its leader will be ready soon; return whether it waits.

        A position with a zone does not wait: it may be meant for a follower.
        """
        place = TopicPartition(TopicId(wanted.topic_id), wanted.partition)
        partition = None if self._reader.zone else self._service.partitions.find(place)
        epoch = LeaderEpoch(wanted.current_leader_epoch)
        if partition is None or not self._service.early.is_early(partition, epoch):
            return False
        if len(self._early) >= self._service.session_limits.partitions_max:
            return False
        self._leave(wanted.handle)
        early = self._early[wanted.handle] = _EarlyPosition(wanted)

        def judge() -> None:
            if self._early.get(wanted.handle) is not early:
                return  # The reader closed it, or the stream ended.
            del self._early[wanted.handle]
            self._open(wanted)
            if early.progress is not None:
                self._on_progress(early.progress)
            self._wake.set()

        self._service.early.add(partition, epoch, judge)
        return True

    def _open(self, wanted: pb.FetchPartition) -> None:
        try:
            self._follow(wanted)
        except MillraceError as error:
            topic_partition = TopicPartition(TopicId(wanted.topic_id), wanted.partition)
            self._refuse_handle(wanted.handle, topic_partition, error)

    def _on_progress(self, progress: pb.FollowerProgress) -> None:
        early = self._early.get(progress.handle)
        if early is not None:
            early.progress = progress
            return
        position = self._session.positions.get(progress.handle)
        follower = self._reader.follower
        if position is None or follower is None:
            return
        try:
            self._service.partitions.on_follower_progress(
                position.topic_partition,
                follower,
                position.current_leader_epoch,
                FollowerProgress(
                    Offset(progress.log_end_offset),
                    Offset(progress.flushed_offset),
                    Offset(progress.log_start_offset),
                    LeaderEpoch(progress.last_fetched_epoch),
                    Offset(progress.compacted_offset),
                ),
            )
        except MillraceError as error:
            self._refuse(position, error)

    def _follow(self, wanted: pb.FetchPartition) -> None:
        topic_partition = checked_topic_partition(wanted.topic_id, wanted.partition)
        check_topic(self._topics, topic_partition.topic_id)
        partition = self._service.partitions.get(topic_partition)
        reader = self._reader
        reader.check_epoch(
            partition.replica,
            LeaderEpoch(wanted.current_leader_epoch),
            self._service.partitions.image,
        )
        self._leave(wanted.handle)
        self._session.add(
            FetchPosition(
                wanted.handle,
                topic_partition,
                Offset(wanted.fetch_offset),
                LeaderEpoch(wanted.current_leader_epoch),
                LeaderEpoch(wanted.last_fetched_epoch),
                wanted.max_bytes,
                Offset(wanted.end_offset),
                Offset(wanted.verify_until),
                may_be_sent_on=bool(reader.zone) and not wanted.from_leader,
            ),
            monotonic_now(),
        )
        partition.follow(self, wanted.handle, to_log_end=reader.follower is not None)

    def _leave(self, handle: int) -> None:
        self._early.pop(handle, None)
        position = self._session.remove(handle)
        if position is not None:
            partition = self._service.partitions.find(position.topic_partition)
            if partition is not None:
                partition.leave(self, handle)

    def _refuse(self, position: FetchPosition, error: MillraceError) -> None:
        """Remove a partition from the session; damage takes it offline for all readers (P65)."""
        if self._session.positions.get(position.handle) is position:
            self._refuse_handle(position.handle, position.topic_partition, error)
        if isinstance(error, CorruptLogError):
            self._service.partitions.take_offline(position.topic_partition, error)

    def _refuse_handle(
        self, handle: int, topic_partition: TopicPartition, error: MillraceError
    ) -> None:
        self._leave(handle)
        self._service.metrics.refused(error, "Fetch")
        service = self._service
        refused = pb.FetchedPartition(
            handle=handle,
            error=wire_error(service.partitions, error, topic_partition, service.listener),
        )
        partition = self._service.partitions.find(topic_partition)
        if partition is not None and not isinstance(error, AccessDeniedError):
            refused.log_start_offset = partition.log.log_start_offset
            refused.high_watermark = partition.replica.high_watermark
            refused.last_stable_offset = partition.replica.last_stable_offset
        self._refused.append(refused)

    async def _answer(self) -> None:
        session = self._session
        await self._begin_throttle()
        while True:
            self._wake.clear()
            self._pause_ms = 0 if self._throttle is None else self._throttle.delay_ms()
            # A reader that exceeds its quota still gets errors at once.
            now = monotonic_now()
            plans = await self._plan(now) if session.can_send and not self._pause_ms else []
            if not plans and not self._refused:
                await self._wait(self._pause_ms)
                continue
            found_bytes = sum([plan.length for plan in plans])
            wait_ms = session.must_wait(found_bytes, now)
            if wait_ms and not (self._refused or any(plan.ending for plan in plans)):
                await self._wait(wait_ms)
                continue
            await self._respond(plans)

    async def _begin_throttle(self) -> None:
        """Tell the reader what it owes already, before it wonders why nothing comes."""
        if self._throttle is None:
            return
        self._throttle.begin()
        if delay_ms := self._throttle.delay_ms():
            header = pb.FetchHeader(throttle_time_ms=delay_ms)
            await self._call.write(*fetch_response(header, []))

    async def _wait(self, at_most_ms: int) -> None:
        """Wait for news, or until the time is over; 0: only for news."""
        if not at_most_ms:
            await self._wake.wait()
            return
        timer = asyncio.get_running_loop().call_later(at_most_ms / 1000, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    async def _plan(self, now: MonotonicMs) -> list[Plan]:
        """Find what to send next; nothing is read yet. Partitions without news leave the queue."""
        session, reader = self._session, self._reader
        room = session.room()
        plans: list[Plan] = []
        work = self._service.turns.work()
        for position in session.next_turn():
            if room.is_full:
                break
            await work.give_way()
            if session.positions.get(position.handle) is not position:
                continue  # The reader left, or sought, meanwhile.
            try:
                partition = self._service.partitions.get(position.topic_partition)
                plan = await self._plan_partition(position, partition, room, now)
            except MillraceError as error:
                self._refuse(position, error)
                continue
            if session.positions.get(position.handle) is not position:
                continue  # The reader left, or sought, while the disk was read.
            if plan is None:
                continue
            if plan.is_empty and not reader.has_news(position, partition.replica, partition.log):
                # At once, and not after the others: news that arrive while one of them waits for
                # the disk must not be lost.
                session.on_nothing([position])
            elif room.take(plan.length, len(plan.aborted)):
                plans.append(plan)
        return plans

    async def _plan_partition(
        self, position: FetchPosition, partition: Partition, room: ResponseRoom, now: MonotonicMs
    ) -> Plan | None:
        """Plan what to send of one partition; None: nothing for now, as it has got enough."""
        replica, log, image = partition.replica, partition.log, self._service.partitions.image
        found = self._reader.decide(position, replica, log, image, now)
        if not isinstance(found, SendBatches):
            if isinstance(found, Pause):
                self._pause_ms = found.pause_ms
                return None
            return Plan(position, partition, ending=None if isinstance(found, AtEnd) else found)
        offset, log_reader = position.fetch_offset, self._log_reader
        bytes_max = room.max_bytes(position)
        read = await find_batches(log_reader, log, offset, bytes_max, found)
        if read is None:
            return Plan(position, partition)
        if position.must_verify:
            await log_reader.call(read.segment.log_dir, log.reader.verify, read)
        converted = None
        if self._columns is not None:
            reads = [(log, read)]
            (data,) = log_reader.read_cached(reads) or await log_reader.read(reads)
            if isinstance(data, MillraceError):
                raise data
            if len(data) != read.length:  # Deleted meanwhile: that is an error, next time.
                return await self._plan_partition(position, partition, room, now)
            place = position.topic_partition
            converted = await self._columns.in_columns(place, data, read.end_offset, bytes_max)
        length = read.length if converted is None else len(converted[0])
        self._session.check_window(position, length)
        if not self._reader.read_committed:
            return Plan(position, partition, read, converted=converted)
        aborted = await find_aborted(log_reader, log, offset, read)
        return Plan(position, partition, read, aborted=aborted, converted=converted)

    async def _respond(self, plans: list[Plan]) -> None:
        session = self._session
        partitions: list[pb.FetchedPartition] = []
        if self._refused:
            partitions = self._refused[:PARTITIONS_IN_RESPONSE]
            del self._refused[:PARTITIONS_IN_RESPONSE]
            self._has_room.set()
        reads = [
            (plan.partition.log, plan.read)
            for plan in plans
            if plan.read is not None and plan.data is None
        ]
        metrics = self._service.metrics.requests
        begun, begun_s = self._thread_time_ns(), host.monotonic_s()
        batches = self._log_reader.read_cached(reads)
        if batches is None:
            metrics.fetch_disk_reads.inc()
            batches = await self._log_reader.read(reads)
            begun = self._thread_time_ns()  # The loop has done other work meanwhile.
        if reads:
            metrics.fetch_read.observe(host.monotonic_s() - begun_s)
        sent = []
        unused = iter(batches)
        for plan in plans:
            data: Buffer | MillraceError = plan.data or b""
            if plan.read is not None and plan.data is None:
                data = next(unused)
            position = plan.position
            if session.positions.get(position.handle) is not position:
                continue  # The reader left, or sought, while the disk was read.
            if isinstance(data, MillraceError):
                self._refuse(position, data)  # Goes with the next response.
                continue
            if len(data) != plan.length:
                continue  # Deleted meanwhile: the next plan finds the error.
            partitions.append(plan.describe())
            sent.append(data)
            if plan.ending is not None:
                self._leave(position.handle)
            if plan.read is not None:
                self._on_sent(plan, plan.end)
        header = pb.FetchHeader(partitions=partitions)
        if self._throttle is not None:
            size = sum(map(len, sent))
            if size:
                self._throttle.charge(size)
            if begun:
                self._throttle.charge_time(thread_time_ns() - begun)
            if plans:  # Else it may be delayed already, and was told.
                header.throttle_time_ms = self._throttle.delay_ms()
        message = fetch_response(header, sent)
        session.on_responded(monotonic_now())
        del plans, reads, batches, sent, unused  # While this waits, it holds only the message.
        begun_s = host.monotonic_s()
        await self._call.write(*message)
        metrics.fetch_send.observe(host.monotonic_s() - begun_s)

    def _thread_time_ns(self) -> int:
        """Return the time of the processor, which is a system call; 0: no quota asks for it."""
        quotas = self._service.quotas
        return thread_time_ns() if quotas is not None and quotas.limits_requests else 0

    def _on_sent(self, plan: Plan, end: Offset) -> None:
        """Move the reader on to an offset, and count what it gets."""
        session, position, partition = self._session, plan.position, plan.partition
        epoch = partition.log.leader_epochs.epoch_of(Offset(end - 1))
        session.on_sent(position, plan.length, end, epoch)
        if position.is_at_end:
            self._leave(position.handle)
        self._service.metrics.fetched(partition.topic, plan.length)
        if self._reader.follower is None:
            partition.fetched_bytes += plan.length
        if self._throttle is not None:
            self._throttle.charge_topic(partition.topic, plan.length)
        if self._reader.on_sent(position, plan.length):
            self._service.metrics.replication.caught_up(plan.length)
        if self._reader.has_everything(position, partition.replica, partition.log):
            session.on_nothing([position])
