"""The Fetch service: sessions that follow partitions. Its look-ups are in `offset_lookups`.

One stream is one session (`millrace.core.fetch.session`). A task reads what the reader asks for,
another answers: it waits until there are news and credit, reads whole batches from the files
without decoding them, and writes one response. It does not look further until gRPC has taken that
response, so that a reader which does not read costs the broker one response and no more. A position
at a leader that has not heard of its election yet waits for the news (`EarlyRequests`).
"""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import grpc

from millrace.broker.config import LimitsConfig
from millrace.broker.rpc.errors import abort
from millrace.broker.rpc.offset_lookups import OffsetLookups
from millrace.broker.rpc.partition_errors import wire_error
from millrace.broker.rpc.requests import checked_topic_partition, decode_request, unary_handler
from millrace.broker.runtime.clock import monotonic_now
from millrace.broker.runtime.early_requests import EarlyRequests
from millrace.broker.runtime.partition import Partition
from millrace.broker.runtime.partitions import Partitions
from millrace.broker.runtime.reader import LogReader
from millrace.broker.runtime.streams import run_until_first
from millrace.broker.runtime.turns import Turns
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.segment import ReadPlan
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.errors import (
    BrokerShuttingDownError,
    CorruptLogError,
    CreditTooSmallError,
    MalformedRequestError,
    MillraceError,
    NotLeaderError,
    OffsetOutOfRangeError,
)
from millrace.core.fetch.catch_up import CatchUpAllowance
from millrace.core.fetch.read_replica import preferred_read_replica
from millrace.core.fetch.session import (
    NO_END,
    FetchSession,
    Position,
    SessionLimits,
    SessionSettings,
)
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from millrace.core.log.leader_epochs import EpochEnd
from millrace.core.metadata.model import BrokerLife, Listener
from millrace.core.records.header import Buffer
from millrace.core.replication.leader_session import ENTRIES_IN_REQUEST
from millrace.core.replication.progress import FollowerProgress
from millrace.core.replication.rules import ReplicationConfig
from millrace.proto.codec import encode_fetch_response
from millrace.proto.features import check_broker
from millrace.proto.v1 import fetch_pb2 as pb
from millrace.proto.v1 import replica_pb2

_PARTITIONS_IN_RESPONSE: Final = 1000
"""What one response tells of at the most: bounds how long the loop is busy with one session."""


class SessionService:
    """What serving sessions takes, of consumers or of followers.

    Args:
        replication: how followers are served; None: consumers are.
        listener: that consumers come through.
    """

    def __init__(
        self,
        *,
        partitions: Partitions,
        reader: LogReader,
        early: EarlyRequests,
        turns: Turns,
        limits: LimitsConfig,
        metrics: BrokerMetrics,
        replication: ReplicationConfig | None = None,
        listener: Listener = Listener.INSIDE,
    ) -> None:
        self.replication = replication
        self.listener = listener
        self.early = early
        self.turns = turns
        self.partitions = partitions
        self.reader = reader
        self.metrics = metrics
        self.limits = limits
        self._streams: set[_FetchStream] = set()
        self._is_ending = False
        self.entries_max = limits.request_entries_max
        self.session_limits = SessionLimits(
            partitions_max=limits.fetch_session_partitions_max,
            response_bytes_max=limits.fetch_response_bytes_max,
            max_wait_ms_max=limits.fetch_wait_ms_max,
        )

    async def fetch(self, _: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        self.metrics.fetch_streams.inc()
        stream = _FetchStream(self, context)
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


class ReplicaService(SessionService):
    """Serves `millrace.proto.v1.Replica`, on the replica listener.

    What strangers are held to binds no broker: it follows as many partitions as it may hold, and
    says of them as much in one message as `LeaderSession` does.
    """

    NAME = replica_pb2.DESCRIPTOR.services_by_name["Replica"].full_name

    def configure(self, *, broker_partitions_max: int) -> None:
        """Follow the cluster's settings; sessions that are open go on as they are."""
        self.entries_max = max(self.limits.request_entries_max, ENTRIES_IN_REQUEST)
        partitions_max = max(self.limits.fetch_session_partitions_max, broker_partitions_max)
        self.session_limits = replace(self.session_limits, partitions_max=partitions_max)

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers to register; messages of the stream stay bytes."""
        return grpc.method_handlers_generic_handler(
            self.NAME, {"Fetch": grpc.stream_stream_rpc_method_handler(self.fetch)}
        )


class FetchService(SessionService):
    """Serves `millrace.proto.v1.Fetch`, on a listener of clients."""

    NAME = pb.DESCRIPTOR.services_by_name["Fetch"].full_name

    def __init__(
        self,
        *,
        partitions: Partitions,
        reader: LogReader,
        early: EarlyRequests,
        turns: Turns,
        limits: LimitsConfig,
        metrics: BrokerMetrics,
        listener: Listener,
    ) -> None:
        super().__init__(
            partitions=partitions,
            reader=reader,
            early=early,
            turns=turns,
            limits=limits,
            metrics=metrics,
            listener=listener,
        )
        self._lookups = OffsetLookups(
            partitions, reader, turns, wait_ms_max=limits.fetch_wait_ms_max, listener=listener
        )

    def end_streams(self) -> None:
        """End all sessions and waiting look-ups, because the broker stops."""
        super().end_streams()
        self._lookups.end_waits()

    def handlers(self) -> grpc.GenericRpcHandler:
        """Return the handlers to register; messages of the stream stay bytes."""
        lookups = self._lookups
        unary = partial(unary_handler, limits=self.limits)
        return grpc.method_handlers_generic_handler(
            self.NAME,
            {
                "Fetch": grpc.stream_stream_rpc_method_handler(self.fetch),
                "ListOffsets": unary(lookups.list_offsets, pb.ListOffsetsRequest),
                "OffsetsForLeaderEpoch": unary(
                    lookups.offsets_for_leader_epoch, pb.OffsetsForLeaderEpochRequest
                ),
            },
        )


@dataclass(slots=True)
class _Plan:
    """What a response will hold of one partition: batches, or only its offsets."""

    position: Position
    partition: Partition
    read: ReadPlan | None
    diverging: EpochEnd | None = None
    preferred_read_replica: BrokerId | None = None

    @property
    def ends_position(self) -> bool:
        """Whether the partition leaves the session: the reader opens another position."""
        return self.diverging is not None or self.preferred_read_replica is not None

    @property
    def length(self) -> int:
        return 0 if self.read is None else self.read.length


@dataclass(slots=True)
class _EarlyPosition:
    """A position that waits until its leader has heard that it leads."""

    wanted: pb.FetchPartition
    progress: pb.FollowerProgress | None = None
    """The latest that came meanwhile."""


class _FetchStream:
    """One session; a `Reader` of the partitions that it follows."""

    def __init__(
        self,
        service: SessionService,
        context: "grpc.aio.ServicerContext[bytes, bytes]",
    ) -> None:
        self._service = service
        self._context = context
        self._session = FetchSession(service.session_limits)
        self._refused: list[pb.FetchedPartition] = []
        self._early: dict[int, _EarlyPosition] = {}
        self._wake = asyncio.Event()
        self._is_configured = False
        self._follower: BrokerLife | None = None
        self._catch_up: CatchUpAllowance | None = None
        self._zone = ""
        self._has_room = asyncio.Event()
        self._pause_ms = 0  # Of what is left out of a plan because it was caught up with enough.
        self._ended = asyncio.Event()

    async def run(self) -> None:
        try:
            # Else gRPC sends them with the first message, and could not end the stream before.
            await self._context.send_initial_metadata(())
            # The reader's half-close ends the session as well: nothing more can be granted.
            await run_until_first(self._listen(), self._answer(), self._ended.wait())
            if self._ended.is_set():
                raise BrokerShuttingDownError("the broker is stopping")
        except grpc.aio.InternalError:
            pass  # The reader went away in the middle of a message, which is its right.
        except MillraceError as error:
            await abort(self._context, error)

    def end(self) -> None:
        """End the session because the broker stops."""
        self._ended.set()

    def close(self) -> None:
        """Leave all partitions."""
        self._early.clear()
        for position in list(self._session.positions.values()):
            self._leave(position.handle)

    def on_advanced(self, handle: int) -> None:
        """A partition has news."""
        self._session.on_advanced(handle, monotonic_now())
        if self._session.credit:
            self._wake.set()

    async def _listen(self) -> None:
        entries_max = self._service.entries_max
        while isinstance(message := await self._context.read(), bytes):  # Then it is EOF.
            await self._on_request(decode_request(pb.FetchRequest, message, entries_max))
            self._wake.set()
            # A reader that is told of many errors and takes none is not listened to any more.
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
            if self._service.replication is not None:
                check_broker(settings.features)
                self._follower = BrokerLife(
                    BrokerId(settings.replica_id), BrokerEpoch(settings.replica_broker_epoch)
                )
                rate = self._service.replication.catch_up_bytes_per_second
                self._catch_up = None if rate == -1 else CatchUpAllowance(rate, monotonic_now())
            self._zone = settings.rack
            session.configure(
                SessionSettings(
                    min_bytes=settings.min_bytes,
                    max_wait_ms=settings.max_wait_ms,
                    response_bytes_max=settings.response_bytes_max,
                    window_bytes=settings.window_bytes,
                    read_committed=settings.isolation_level == pb.ISOLATION_LEVEL_READ_COMMITTED,
                )
            )
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

    def _wait_if_early(self, wanted: pb.FetchPartition) -> bool:
        """Have a position wait that its leader is about to be ready for; return whether it does.

        One that names its zone does not: it may have come to a replica that only follows.
        """
        place = TopicPartition(TopicId(wanted.topic_id), wanted.partition)
        partition = None if self._zone else self._service.partitions.find(place)
        epoch = LeaderEpoch(wanted.current_leader_epoch)
        if partition is None or not self._service.early.is_early(partition, epoch):
            return False
        if len(self._early) >= self._service.session_limits.partitions_max:
            return False
        self._leave(wanted.handle)
        early = self._early[wanted.handle] = _EarlyPosition(wanted)

        def judge() -> None:
            if self._early.get(wanted.handle) is not early:
                return  # The reader left it, or the stream ended.
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
        if position is None or self._follower is None:
            return
        try:
            self._service.partitions.on_follower_progress(
                position.topic_partition,
                self._follower,
                position.current_leader_epoch,
                FollowerProgress(
                    Offset(progress.log_end_offset),
                    Offset(progress.flushed_offset),
                    Offset(progress.log_start_offset),
                    LeaderEpoch(progress.last_fetched_epoch),
                ),
            )
        except MillraceError as error:
            self._refuse(position, error)

    def _follow(self, wanted: pb.FetchPartition) -> None:
        topic_partition = checked_topic_partition(wanted.topic_id, wanted.partition)
        partition = self._service.partitions.get(topic_partition)
        self._check_epoch(partition, LeaderEpoch(wanted.current_leader_epoch))
        self._leave(wanted.handle)
        self._session.add(
            Position(
                wanted.handle,
                topic_partition,
                Offset(wanted.fetch_offset),
                LeaderEpoch(wanted.current_leader_epoch),
                LeaderEpoch(wanted.last_fetched_epoch),
                wanted.max_bytes,
                Offset(wanted.end_offset),
                may_be_sent_on=bool(self._zone) and not wanted.from_leader,
            ),
            monotonic_now(),
        )
        partition.follow(self, wanted.handle, to_log_end=self._follower is not None)

    def _check_epoch(self, partition: Partition, expected: LeaderEpoch) -> None:
        """Refuse a reader of another epoch (P6); a replica that only follows serves who wants it.

        But only while it is in sync: else its readers would lag with it (P12).

        Raises:
            NotLeaderError, FencedLeaderEpochError, UnknownLeaderEpochError: as the leader says.
        """
        follower = partition.replica.follower
        if follower is None or not self._zone:
            partition.leader.check_epoch(expected)
            return
        if not self._service.partitions.is_in_sync(partition.topic_partition):
            raise NotLeaderError(
                f"{partition.topic_partition} is not in sync on this broker: read from its leader"
            )
        follower.check_epoch(expected)

    def _leave(self, handle: int) -> None:
        self._early.pop(handle, None)
        position = self._session.remove(handle)
        if position is not None:
            partition = self._service.partitions.find(position.topic_partition)
            if partition is not None:
                partition.leave(self, handle)

    def _refuse(self, position: Position, error: MillraceError) -> None:
        """End a partition's part in the session; damage ends it for everybody (P65)."""
        if self._session.positions.get(position.handle) is position:
            self._refuse_handle(position.handle, position.topic_partition, error)
        if isinstance(error, CorruptLogError):
            self._service.partitions.take_offline(position.topic_partition, error)

    def _refuse_handle(
        self, handle: int, topic_partition: TopicPartition, error: MillraceError
    ) -> None:
        self._leave(handle)
        self._service.metrics.refused(error)
        service = self._service
        refused = pb.FetchedPartition(
            handle=handle,
            error=wire_error(service.partitions, error, topic_partition, service.listener),
        )
        partition = self._service.partitions.find(topic_partition)
        if partition is not None:
            refused.log_start_offset = partition.log.log_start_offset
        self._refused.append(refused)

    async def _answer(self) -> None:
        session = self._session
        while True:
            self._wake.clear()
            self._pause_ms = 0
            plans = await self._plan() if session.can_send else []
            if not plans and not self._refused:
                await self._wait(self._pause_ms)
                continue
            found_bytes = sum(plan.length for plan in plans)
            wait_ms = session.must_wait(found_bytes, monotonic_now())
            is_urgent = self._refused or any(plan.ends_position for plan in plans)
            if wait_ms and not is_urgent:
                await self._wait(wait_ms)
                continue
            await self._respond(plans)

    async def _wait(self, at_most_ms: int) -> None:
        """Wait for news, or until the time is over; 0: for news alone."""
        if not at_most_ms:
            await self._wake.wait()
            return
        timer = asyncio.get_running_loop().call_later(at_most_ms / 1000, self._wake.set)
        await self._wake.wait()
        timer.cancel()

    async def _plan(self) -> "list[_Plan]":
        """Find what to send next; nothing is read yet. Partitions without news leave the queue."""
        session = self._session
        budget = min(session.credit, session.response_bytes_max)
        plans: list[_Plan] = []
        work = self._service.turns.work()
        for position in session.next_turn():
            if budget <= 0 or len(plans) == _PARTITIONS_IN_RESPONSE:
                break
            await work.give_way()
            if session.positions.get(position.handle) is not position:
                continue  # The reader left, or sought, meanwhile.
            try:
                partition = self._service.partitions.get(position.topic_partition)
                self._check_epoch(partition, position.current_leader_epoch)
                if (diverging := self._diverging(position, partition)) is not None:
                    plans.append(_Plan(position, partition, None, diverging))
                    continue
                if (nearer := self._nearer_replica(position, partition)) is not None:
                    nowhere = _Plan(position, partition, None, preferred_read_replica=nearer)
                    plans.append(nowhere)
                    continue
                if self._must_pause(position, partition):
                    continue
                plan = await self._plan_partition(position, partition, budget)
            except MillraceError as error:
                self._refuse(position, error)
                continue
            if session.positions.get(position.handle) is not position:
                continue  # The reader left, or sought, while the disk was read.
            if plan is None and self._is_told(position, partition):
                # At once, and not after the others were looked at: news that come while one of
                # them waits for the disk must not be forgotten.
                session.on_nothing([position])
            elif plan is None or plan.length <= budget:
                budget -= plan.length if plan else 0
                plans.append(_Plan(position, partition, plan))
            elif not plans and plan.length <= session.credit:
                # A first batch that is larger than a response is sent whole, alone.
                plans.append(_Plan(position, partition, plan))
                break
        return plans

    def _must_pause(self, position: Position, partition: Partition) -> bool:
        """Whether a follower that catches up has got enough for now (F34)."""
        leader = partition.replica.leader
        if self._catch_up is None or leader is None or self._follower in leader.maximal_isr:
            position.seen_log_bytes = -1
            return False
        size, seen = partition.log.size_bytes, position.seen_log_bytes
        position.seen_log_bytes = size
        appended_bytes = max(size - seen, 0) if seen >= 0 else 0
        self._pause_ms = self._catch_up.pause_ms(monotonic_now(), appended_bytes)
        return self._pause_ms > 0

    def _diverging(self, position: Position, partition: Partition) -> EpochEnd | None:
        """Return where the reader must look back to, if its log is no prefix of this one (P4).

        That is asked once for each position: what is sent from it is of this log.
        """
        leader, log = partition.replica.leader, partition.log
        if leader is None or position.told_high_watermark >= 0:
            return None
        offset, epoch = position.fetch_offset, position.last_fetched_epoch
        if self._follower is None:
            return leader.diverging(offset, epoch, log.leader_epochs)
        return leader.diverging_follower(
            self._follower, offset, epoch, log.leader_epochs, log.log_start_offset
        )

    def _nearer_replica(self, position: Position, partition: Partition) -> BrokerId | None:
        """Return the follower that the reader should read from, if there is one (KIP-392)."""
        if not position.may_be_sent_on:
            return None
        leader, image = partition.replica.leader, self._service.partitions.image
        if leader is None or image is None:
            return None
        return preferred_read_replica(
            self._zone,
            position.fetch_offset,
            leader=leader.state.leader,
            isr=leader.state.isr,
            followers=leader.followers,
            brokers=image.cluster.brokers,
        )

    def _is_told(self, position: Position, partition: Partition) -> bool:
        return (
            position.told_high_watermark == partition.replica.high_watermark
            and position.told_log_start_offset == partition.log.log_start_offset
        )

    def _has_everything(self, position: Position, partition: Partition) -> bool:
        """Whether a follower has been sent all that its leader has: no need to look again."""
        leader = partition.replica.leader
        return (
            self._follower is not None
            and leader is not None
            and position.fetch_offset >= leader.written_offset
            and self._is_told(position, partition)
        )

    async def _plan_partition(
        self, position: Position, partition: Partition, budget: int
    ) -> ReadPlan | None:
        """Plan a read of one partition; None when the position is at its end."""
        log = partition.log
        offset = position.fetch_offset
        replica = partition.replica
        if self._follower is not None:
            end = partition.leader.written_offset
            if not log.log_start_offset <= offset <= end:
                raise OffsetOutOfRangeError(
                    f"{position.topic_partition} has the offsets {log.log_start_offset} to {end}, "
                    f"not {offset}"
                )
        elif replica.follower is not None:
            replica.follower.check_readable(offset)
            end = replica.follower.high_watermark
        else:
            leader = partition.leader
            leader.check_readable(offset, log.log_start_offset)
            is_committed_only = self._session.settings.read_committed
            end = leader.last_stable_offset if is_committed_only else leader.high_watermark
        if offset >= end:
            return None
        max_bytes = min(budget, position.max_bytes or budget)
        until = position.end_offset if position.end_offset != NO_END else end
        try:
            plan = _plan_read(log, offset, max_bytes, end, until, may_block=False)
        except BlockingIOError:
            plan = await self._service.reader.call(
                log.log_dir, _plan_read, log, offset, max_bytes, end, until
            )
        if plan is None:
            return None
        window = self._session.settings.window_bytes
        if window and plan.length > window:
            raise CreditTooSmallError(
                f"{partition.topic}-{position.topic_partition.partition}: the batch at offset "
                f"{offset} is {plan.length} bytes, but the reader never grants more than "
                f"{window}: raise its fetch size (fetch_max_bytes)"
            )
        return plan

    async def _respond(self, plans: list[_Plan]) -> None:
        session = self._session
        partitions = self._refused[:_PARTITIONS_IN_RESPONSE]
        del self._refused[:_PARTITIONS_IN_RESPONSE]
        self._has_room.set()
        reads = [(plan.partition.log, plan.read) for plan in plans if plan.read is not None]
        batches = self._service.reader.read_cached(reads)
        if batches is None:
            batches = await self._service.reader.read(reads)
        sent = []
        unused = iter(batches)
        for plan in plans:
            data: Buffer | MillraceError = b"" if plan.read is None else next(unused)
            position, partition = plan.position, plan.partition
            if session.positions.get(position.handle) is not position:
                continue  # The reader left, or sought, while the disk was read.
            if isinstance(data, MillraceError):
                self._refuse(position, data)  # Goes with the next response.
                continue
            if len(data) != plan.length:
                continue  # Deleted meanwhile: the next plan finds out what to say.
            partitions.append(self._describe(plan))
            sent.append(data)
            if plan.ends_position:
                self._leave(position.handle)
            if plan.read is not None:
                end = plan.read.end_offset
                epoch = partition.log.leader_epochs.epoch_of(Offset(end - 1))
                session.on_sent(position, plan.length, end, epoch)
                if position.is_at_end:
                    self._leave(position.handle)
                self._service.metrics.fetched(partition.topic, plan.length)
                if self._catch_up is not None and position.seen_log_bytes >= 0:
                    self._catch_up.on_sent(plan.length)
                    self._service.metrics.replication.caught_up(plan.length)
                if self._has_everything(position, partition):
                    session.on_nothing([position])
        message = encode_fetch_response(pb.FetchHeader(partitions=partitions), sent)
        session.on_responded(monotonic_now())
        del plans, reads, batches, sent, unused  # While this waits, it holds the message alone.
        await self._context.write(message)

    def _describe(self, plan: "_Plan") -> pb.FetchedPartition:
        position, log = plan.position, plan.partition.log
        high_watermark = plan.partition.replica.high_watermark
        position.told_high_watermark = high_watermark
        position.told_log_start_offset = log.log_start_offset
        diverging = plan.diverging
        return pb.FetchedPartition(
            diverging=None
            if diverging is None
            else pb.EpochEndOffset(leader_epoch=diverging.epoch, end_offset=diverging.end_offset),
            preferred_read_replica=plan.preferred_read_replica,
            handle=position.handle,
            high_watermark=high_watermark,
            last_stable_offset=high_watermark,
            log_start_offset=log.log_start_offset,
            length=plan.length,
            fetch_offset=position.fetch_offset,
        )


def _plan_read(
    log: PartitionLog,
    offset: Offset,
    max_bytes: int,
    end: Offset,
    until: Offset,
    *,
    may_block: bool = True,
) -> ReadPlan | None:
    """Plan a read of what lies before `end`, for a reader that wants what lies before `until`.

    That may lie within a batch, or between two: then the next one is the last that is sent.
    """
    if until < end:
        plan = log.plan_read(offset, max_bytes, until, may_block=may_block)
        if plan is not None:
            return plan
        max_bytes = 1
    return log.plan_read(offset, max_bytes, end, may_block=may_block)
