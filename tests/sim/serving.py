"""A leader's side of the followers' fetch streams, in a simulated broker."""

from collections.abc import Callable
from typing import Final

from tests.sim.machine import Machine
from tests.sim.messages import FetchStream, Sent, Unserved
from tests.sim.network import Stream
from tests.sim.replica_witness import ReplicaWitness

from millrace.broker.storage.log import PartitionLog
from millrace.core.errors import CorruptLogError, MillraceError, NotLeaderError
from millrace.core.fetch.session import FetchSession, Position, SessionLimits
from millrace.core.ids import LeaderEpoch, MonotonicMs, Offset, TopicPartition
from millrace.core.metadata.model import BrokerLife
from millrace.core.replication.leader import PartitionLeader
from millrace.core.replication.leader_session import SessionRequest
from millrace.core.replication.progress import FollowerProgress
from millrace.core.replication.replicas import Effect, Replicas

LIMITS: Final = SessionLimits(
    partitions_max=10_000, response_bytes_max=1 << 20, max_wait_ms_max=500
)
_RESPONSE_BYTES: Final = 64 << 10


class _Served:
    """One follower's stream."""

    def __init__(self, life: BrokerLife) -> None:
        self.life = life
        self.session = FetchSession(LIMITS)
        self.handles: dict[TopicPartition, int] = {}


class FollowerService:
    """See the module.

    Args:
        machine: whose life this is.
        replicas: of this broker.
        logs: those that are open.
        perform: does what the replicas want.
        damaged: told of a log that cannot be read.
        witness: shown what is served, and what is reported.
    """

    def __init__(
        self,
        machine: Machine,
        replicas: Replicas,
        logs: dict[TopicPartition, PartitionLog],
        perform: Callable[[list[Effect]], object],
        damaged: Callable[[TopicPartition, CorruptLogError], object],
        *,
        witness: ReplicaWitness,
    ) -> None:
        self._machine = machine
        self._replicas = replicas
        self._logs = logs
        self._perform = perform
        self._damaged = damaged
        self._witness = witness
        self._served: dict[Stream, _Served] = {}
        self._to_serve: dict[Stream, None] = {}

    @property
    def _now(self) -> MonotonicMs:
        return self._machine.clock.monotonic()

    def on_opened(self, stream: Stream, request: FetchStream) -> None:
        """A follower opened a stream."""
        self._served[stream] = _Served(request.life)

    def on_ended(self, stream: Stream) -> None:
        """Its stream is gone."""
        self._served.pop(stream, None)
        self._to_serve.pop(stream, None)

    def on_request(self, stream: Stream, request: SessionRequest) -> None:
        """A follower says where it is, and what it can take."""
        served = self._served.get(stream)
        if served is None:
            stream.reset()
            return
        session, now = served.session, self._now
        for handle in request.removed:
            removed = session.remove(handle)
            if removed is not None and served.handles.get(removed.topic_partition) == handle:
                del served.handles[removed.topic_partition]
        session.grant(request.credit_bytes)
        for handle, topic_partition, position, progress in request.added:
            try:
                leader, log = self._leader(topic_partition)
                leader.check_epoch(position.leader_epoch)
                start_offset = log.log_start_offset
                if position.fetch_offset < start_offset:
                    stream.send(Unserved(handle, start_offset))
                    continue
                diverging = leader.diverging_follower(
                    served.life,
                    position.fetch_offset,
                    position.last_fetched_epoch,
                    log.leader_epochs,
                    start_offset,
                )
                self._witness.on_served(
                    leader.broker,
                    log,
                    served.life,
                    handle,
                    position,
                    diverges=diverging is not None,
                )
                if diverging is not None:
                    stream.send(
                        Sent(
                            handle,
                            position.fetch_offset,
                            leader.high_watermark,
                            start_offset,
                            leader.leader_epoch,
                            diverging=diverging,
                        )
                    )
                    continue
                session.add(
                    Position(
                        handle,
                        topic_partition,
                        position.fetch_offset,
                        position.leader_epoch,
                        position.last_fetched_epoch,
                        _RESPONSE_BYTES,
                    ),
                    now,
                )
                served.handles[topic_partition] = handle
                self._report(topic_partition, served.life, position.leader_epoch, progress, now)
            except MillraceError:
                self._refuse(stream, served, handle, topic_partition)
        for handle, progress in request.progress:
            found = session.positions.get(handle)
            if found is None:
                continue  # It was refused a moment ago.
            try:
                self._report(
                    found.topic_partition, served.life, found.current_leader_epoch, progress, now
                )
            except MillraceError:
                self._refuse(stream, served, handle, found.topic_partition)
        self._to_serve[stream] = None

    def _report(
        self,
        topic_partition: TopicPartition,
        life: BrokerLife,
        leader_epoch: LeaderEpoch,
        progress: FollowerProgress,
        now: MonotonicMs,
    ) -> None:
        effects = self._replicas.on_follower_progress(
            topic_partition, life, leader_epoch, progress, now
        )
        self._witness.on_report(self._replicas.get(topic_partition), life, leader_epoch, progress)
        self._perform(effects)

    def on_advanced(self, topic_partition: TopicPartition) -> None:
        """A partition has news, or another role."""
        for stream, served in self._served.items():
            handle = served.handles.get(topic_partition)
            if handle is not None:
                served.session.on_advanced(handle, self._now)
                self._to_serve[stream] = None

    def serve(self) -> None:
        """Send what there is; to be called when a handler has done everything else."""
        while self._to_serve:
            stream = next(iter(self._to_serve))
            del self._to_serve[stream]
            self._serve(stream, self._served[stream])

    def _serve(self, stream: Stream, served: _Served) -> None:
        session = served.session
        while session.can_send:
            for position in session.next_turn():
                try:
                    message = self._read(position, session.credit)
                except CorruptLogError as error:
                    self._refuse(stream, served, position.handle, position.topic_partition)
                    self._damaged(position.topic_partition, error)
                    continue
                except MillraceError:
                    self._refuse(stream, served, position.handle, position.topic_partition)
                    continue
                if message is None:
                    session.on_nothing([position])
                    continue
                stream.send(message[0])
                session.on_sent(
                    position, len(message[0].data), message[1], position.current_leader_epoch
                )
                if session.credit <= 0:
                    return

    def _read(self, position: Position, credit: int) -> tuple[Sent, Offset] | None:
        """Return what is new and where it ends; None when nothing is."""
        leader, log = self._leader(position.topic_partition)
        leader.check_epoch(position.current_leader_epoch)
        told = (leader.high_watermark, log.log_start_offset)
        data, end_offset = b"", position.fetch_offset
        plan = log.plan_read(
            position.fetch_offset, min(position.max_bytes, credit), leader.written_offset
        )
        if plan is not None:
            if plan.length > credit:
                return None  # Until there is more.
            data, end_offset = log.read(plan), plan.end_offset
        elif told == (position.told_high_watermark, position.told_log_start_offset):
            return None
        position.told_high_watermark, position.told_log_start_offset = told
        sent = Sent(position.handle, position.fetch_offset, *told, leader.leader_epoch, data)
        return sent, end_offset

    def _leader(self, topic_partition: TopicPartition) -> tuple[PartitionLeader, PartitionLog]:
        replica = self._replicas.get(topic_partition)
        if replica.leader is None or not replica.leads:
            raise NotLeaderError(f"{topic_partition} is not led here")
        return replica.leader, self._logs[topic_partition]

    def _refuse(
        self, stream: Stream, served: _Served, handle: int, topic_partition: TopicPartition
    ) -> None:
        served.session.remove(handle)
        if served.handles.get(topic_partition) == handle:
            del served.handles[topic_partition]
        stream.send(Unserved(handle, None))
