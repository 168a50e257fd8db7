"""The simulated broker: a synchronous shell around the product's machines and storage.

It does what `Replicas`, `Controller`, `MetadataCache`, `LeaseElection` and `FetchSession` say, on a
simulated machine, and decides nothing by itself. `LogDirectory` and `PartitionLog` are the
product's, on the simulated disk.

A life begins with the log directory as the last one left it. It finds the controller by the lease,
opens a stream to it, registers, and from then on sends heartbeats; the stored objects come down the
same stream and make the images that the replicas follow. When the directory fails, the process
ends, and its supervisor starts another.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final, Protocol

from tests.sim.appending import THREAD, Appender, Target, Written
from tests.sim.controlling import CLUSTER_ID, ControllerHost
from tests.sim.machine import Machine, NodeEvent, Terminated
from tests.sim.messages import (
    Administer,
    Answer,
    Ask,
    AskAll,
    AskEnd,
    AskEnds,
    AskLeaders,
    Batches,
    ControlStream,
    End,
    FetchStream,
    FullState,
    Leaders,
    Produce,
    Produced,
    Pushed,
    Read,
    Sent,
    Unserved,
)
from tests.sim.network import Received, Stream, StreamEnded, StreamOpened, StreamReceived
from tests.sim.serving import FollowerService
from tests.sim.witness import Witness
from tests.sim.world import Violation

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import UNLIMITED, LogConfig
from millrace.broker.storage.log_directory import DirectoryConfig, LogDirectory, read_seen
from millrace.broker.storage.sealed_file import DamagedFileError
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import (
    Appended,
    CorruptLogError,
    DuplicateBrokerRegistrationError,
    InvalidConfigError,
    MillraceError,
    NotControllerError,
    NotLeaderError,
    StaleBrokerEpochError,
    StaleControllerEpochError,
    StorageError,
    StorageFullError,
    UnsupportedFormatError,
)
from millrace.core.errors import CorruptBatchError as DamagedBatchError
from millrace.core.ids import (
    NO_BROKER,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.cache import MetadataCache
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataImage
from millrace.core.metadata.lease import NOBODY
from millrace.core.metadata.model import BrokerLife, BrokerRegistration, Reluctance, Topic
from millrace.core.metadata.requests import (
    AlterPartition,
    AlterPartitions,
    ConfirmDeletions,
    Heartbeat,
    HeartbeatAnswer,
    RegisterBroker,
    RenewReplicas,
    Request,
)
from millrace.core.metadata.seen import Seen, SeenToKeep
from millrace.core.metadata.topic_config import Durability
from millrace.core.records.batch import BatchLimits, check, walk
from millrace.core.records.header import HEADER_BYTES, stamp, verify_body
from millrace.core.replication.follower import (
    AdvanceLogStart,
    Append,
    RecordsLost,
    StartAnew,
    Truncate,
)
from millrace.core.replication.in_sync import IsrProposal
from millrace.core.replication.leader import Acks, PartitionLeader, Waiter
from millrace.core.replication.leader_session import SessionRequest
from millrace.core.replication.replicas import (
    Advanced,
    CloseReplica,
    Completed,
    Configure,
    DropReplica,
    Effect,
    Extended,
    Fetched,
    Halted,
    LogChange,
    Lost,
    OpenLog,
    ProposeIsr,
    ProposeRenewals,
    Replicas,
    SetAside,
)
from millrace.core.replication.rules import ReplicationConfig

DIRECTORY: Final = "/data"

TICK_MS_MAX: Final = 300
CHECKPOINT_MS: Final = 1000
SCRUB_MS: Final = 2000
SCRUB_BYTES: Final = 40_000
RETAIN_MS: Final = 3000
TRASH_MS: Final = 20_000
REGISTER_AGAIN_MS: Final = 300
OPEN_AGAIN_MS: Final = 1000
REMEMBER_MS: Final = 1000

REPLICATION: Final = ReplicationConfig(
    replica_lag_time_max_ms=5_000,
    replica_fetch_backoff_ms=200,
    isr_rejoin_pause_ms=2_000,
    isr_rejoin_pause_max_ms=8_000,
)
LOG: Final = LogConfig(
    segment_bytes=20_000,
    index_interval_bytes=1_000,
    retention_ms=UNLIMITED,
    checkpoint_bytes=50_000,
    checkpoint_ms=10_000,
)
RETENTION: Final = ("retention.ms", "retention.bytes")
"""Only topics that set one of them give anything up."""
LIMITS: Final = BatchLimits(batch_bytes_max=1 << 20, inflated_bytes_max=1 << 20)
_READ_BYTES: Final = 16 << 10


class Judge(Protocol):
    """Whoever judges brokers from outside.

    Attributes:
        touched: partitions that something was done to since it judged last: their leader has more,
            or has told others of more, or somebody has less.
    """

    touched: dict[TopicPartition, None]

    def on_image(self, name: str, image: MetadataImage) -> None:
        """A broker follows another image from now on."""

    def on_deleting(self, name: str, topic_partition: TopicPartition) -> None:
        """A broker is about to delete its data of a partition."""

    def on_given_up(
        self, topic_partition: TopicPartition, leader_epoch: LeaderEpoch, offset: Offset
    ) -> None:
        """A leader, perhaps one that was replaced, keeps nothing before an offset."""

    def on_lost(self, topic_partition: TopicPartition, records: RecordsLost) -> None:
        """A broker reports what an unclean election has cost."""


class SimulatedBroker:
    """See the module; implements `Node`.

    Args:
        config: the cluster's.
        replication: the broker's.
        judge: whom it shows what it does.
        witness: shown what it does.
        hear_of_damage: told of a broker whose batches do not match their checksums.
        new_host: makes the controller's part of it.
        scrub_ms: how often it verifies some more of its closed segments.

    Attributes:
        replicas: once this life is registered.
        logs: those that are open.
        renewed: partitions that this life has begun anew because their logs were damaged, and
            when it did so last.
        found_damaged: partitions whose logs this life has found damaged, and when.
    """

    def __init__(
        self,
        config: ClusterConfig,
        replication: ReplicationConfig,
        judge: Judge,
        witness: Witness,
        *,
        hear_of_damage: Callable[[str], object] = lambda _: None,
        new_host: type[ControllerHost] = ControllerHost,
        scrub_ms: int = SCRUB_MS,
    ) -> None:
        self.replicas: Replicas | None = None
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.is_fenced = True
        self.renewed: dict[TopicPartition, int] = {}
        self.found_damaged: dict[TopicPartition, int] = {}
        self._config = config
        self._replication = replication
        self._judge = judge
        self._touched = judge.touched
        self._witness = witness
        self._hear_of_damage = hear_of_damage
        self._new_host = new_host
        self._scrub_ms = scrub_ms
        self._targets: dict[TopicPartition, Target] = {}
        self._opening: dict[TopicPartition, object] = {}  # The latest order to open each.
        self._refused: set[TopicPartition] = set()  # Logs that could not be opened yet.
        self._life: BrokerLife | None = None
        self._control: Stream | None = None
        self._has_asked_to_register = False
        self._asked: dict[int, Callable[[object], None]] = {}
        self._number = 0
        self._log_ends: dict[TopicPartition, None] = {}
        self._leaders: dict[BrokerId, Stream] = {}
        self._wants_shutdown = False
        self._is_stopping = False
        self._is_deleting = False
        self._told_to_stop_at = 0
        self._proposed: list[tuple[TopicPartition, IsrProposal]] = []

    @property
    def life(self) -> BrokerLife | None:
        """Which one it is, once it is registered."""
        return self._life

    @property
    def is_damaged(self) -> bool:
        """Whether a log was found damaged below what was flushed, and has not begun anew."""
        return self.replicas is not None and bool(self.replicas.failed)

    @property
    def reluctance(self) -> Reluctance:
        """Why it would rather not lead."""
        return Reluctance.NONE

    @property
    def metadata(self) -> MetadataImage | None:
        """What it follows."""
        return self._cache.image

    @property
    def _now(self) -> MonotonicMs:
        return self._machine.clock.monotonic()

    # --- A life ------------------------------------------------------------------------------

    def start(self, machine: Machine) -> None:
        self._machine = machine
        dice = machine.random
        try:
            self.directory = LogDirectory.open(
                machine.disk,
                DIRECTORY,
                DirectoryConfig(ballast_bytes=0, file_delete_delay_ms=TRASH_MS),
                cluster_id=CLUSTER_ID,
                broker_id=NO_BROKER,
                new_directory_id=f"{dice.getrandbits(64):016x}",
            )
            seen = read_seen(machine.disk, DIRECTORY)
        except (StorageError, OSError, DamagedFileError) as error:
            machine.exit(f"the log directory: {error}")
        self._incarnation = f"{dice.getrandbits(64):016x}"
        self._witness.logs.on_started(
            machine, self.directory, self._incarnation, (seen, self.directory.used_by)
        )
        self._cache = MetadataCache(CLUSTER_ID if seen.controller_epoch else None, seen)
        self._to_keep = SeenToKeep()
        self._kept = seen
        self.host = self._new_host(
            machine,
            self._config,
            self._witness,
            seen=seen,
            seen_here=lambda: self._cache.seen,
            keep_seen_elsewhere=self._keep_seen_elsewhere,
        )
        self._appender = Appender(
            machine, self._on_written, self._on_log_failed, self._witness.logs
        )
        for period_ms, work in (
            (self.host.times.retry_ms, self.host.look_at_lease),
            (self._config.controller_tick_ms, self.host.tick),
            (self._config.broker_heartbeat_interval_ms, self._beat),
            (min(TICK_MS_MAX, self._replication.replica_lag_time_max_ms // 5), self._tick),
            (CHECKPOINT_MS, self._checkpoint),
            (self._scrub_ms, self._scrub),
            (RETAIN_MS, self._retain),
            (REMEMBER_MS, self._remember),
        ):
            self._repeat(period_ms, work)

    def _repeat(self, period_ms: int, work: Callable[[], object]) -> None:
        self._machine.clock.set_timer(period_ms, partial(self._repeat, period_ms, work))
        work()

    def on_timer(self, token: object) -> None:
        assert callable(token)
        token()
        self._say()

    def crash(self) -> None:
        pass

    def on_message(self, event: NodeEvent) -> None:
        match event:
            case StreamReceived(stream, message):  # As nearly always.
                self._on_streamed(stream, message)
            case Terminated():
                self._wants_shutdown = True
                self._told_to_stop_at = self._machine.world.now
                if self._life is None:
                    self._machine.exit("told to, before it was registered")
            case Received(sender, message):
                self._on_client(sender, message)
            case StreamOpened(stream, ControlStream(seen)):
                self.host.on_opened(stream, seen)
            case StreamOpened(stream, FetchStream() as request):
                if self.replicas is None:
                    stream.reset()
                else:
                    self.service.on_opened(stream, request)
            case StreamEnded(stream):
                self._on_ended(stream)
        self._say()

    def _on_streamed(self, stream: Stream, message: object) -> None:
        match message:
            case SessionRequest():
                if self.replicas is not None:
                    self.service.on_request(stream, message)
            case Sent() | Unserved():
                self._on_leader_says(stream, message)
            case Produce():
                self._on_produce(stream, message)
            case Ask() | AskAll():
                self.host.on_message(stream, message)
            case _ if stream is self._control:
                self._on_controller_says(message)

    def _say(self) -> None:
        """Send what has gathered in sessions while an event was handled."""
        if self.replicas is None:
            return
        self.service.serve()
        now = self._machine.clock.monotonic()
        for leader, session in self.replicas.sessions.items():
            request = session.take_request(now)
            if request is not None:
                self._send_request(leader, request)

    def _send_request(self, leader: BrokerId, request: SessionRequest) -> None:
        assert self._life is not None
        assert self.replicas is not None
        stream = self._leaders.get(leader)
        if stream is None:
            assert self._cache.image is not None
            name = self._cache.image.cluster.brokers[leader].name
            stream = self._machine.network.open_stream(name, FetchStream(self._life))
            self._leaders[leader] = stream
        self._witness.replicas.on_said(self._life, leader, request, self.replicas, self.logs)
        stream.send(request)

    def _on_ended(self, stream: Stream) -> None:
        self.host.on_ended(stream)
        if stream is self._control:
            self._leave_control()
            return
        for leader, other in list(self._leaders.items()):
            if other is stream:
                del self._leaders[leader]
                assert self.replicas is not None
                self._perform(self.replicas.on_session_broken(leader, self._now))
                return
        if self.replicas is not None:
            self.service.on_ended(stream)

    # --- The controller ----------------------------------------------------------------------

    def _leave_control(self) -> None:
        self._control = None
        self._has_asked_to_register = False
        asked, self._asked = self._asked, {}
        for done in asked.values():
            done(NotControllerError("the stream to the controller is gone"))

    def _connect(self) -> None:
        if self._control is not None and self._control.remote != self.host.holder:
            self._control.reset()
            self._leave_control()
        if self._control is None and self.host.holder in self._peers():
            opening = ControlStream(self._cache.seen)
            self._control = self._machine.network.open_stream(self.host.holder, opening)

    def _peers(self) -> Iterable[str]:
        return () if self.host.holder in (NOBODY, "somebody") else (self.host.holder,)

    def _ask(self, request: Request, done: Callable[[object], None]) -> None:
        if self._control is None:
            done(NotControllerError("there is no controller"))
            return
        self._number += 1
        self._asked[self._number] = done
        self._control.send(Ask(self._number, request))

    def _beat(self) -> None:
        self._connect()
        if self._control is None or self._is_stopping:
            return
        if self._life is None:
            self._register()
            return
        image = self._cache.image
        found = [] if self.replicas is None else map(self.replicas.log_end, self._log_ends)
        ends = [each for each in found if each is not None]
        self._log_ends = {}
        self._ask(
            Heartbeat(
                life=self._life,
                metadata_epoch=-1 if image is None else image.epoch,
                wants_shutdown=self._wants_shutdown,
                log_ends=ends,
                offline=() if self.replicas is None else self.replicas.offline(),
                reluctance=self.reluctance,
            ),
            self._on_beat,
        )

    def _on_beat(self, answer: object) -> None:
        if isinstance(answer, StaleBrokerEpochError):
            self._machine.exit(f"another life of this broker has begun: {answer}")
        if isinstance(answer, HeartbeatAnswer):
            self.is_fenced = answer.is_fenced
            if answer.may_stop and self._wants_shutdown:
                self._stop()

    def _stop(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        assert self._life is not None
        broker_epoch = self._life.broker_epoch
        waited_us = self._machine.world.now - self._told_to_stop_at
        self._witness.states.on_stopping(self._life, waited_us)

        others = self._not_ours()

        def close() -> None:
            self.directory.close(clean=True, broker_epoch=broker_epoch, others=others)
            self._witness.logs.on_closed(self._machine)

        def done(result: object) -> None:
            self._machine.exit(f"told to: {result or 'all is closed'}")

        self._machine.run(THREAD, close, done)

    def _not_ours(self) -> list[TopicPartition]:
        image, life = self._cache.image, self._life
        assert image is not None
        assert life is not None
        states = {found: image.partition(found) for found in self.directory.found}
        return [
            found
            for found, state in states.items()
            if state is None or life.broker_id not in state.replicas
        ]

    def _register(self) -> None:
        if self._has_asked_to_register:
            return
        self._has_asked_to_register = True
        identity = self.directory.identity
        self._ask(
            RegisterBroker(
                name=self._machine.name,
                rack="",
                host=self._machine.name,
                port=1,
                incarnation_id=self._incarnation,
                directory_ids=[identity.directory_id],
                broker_id=None if identity.broker_id == NO_BROKER else identity.broker_id,
                replica_host=self._machine.name,
                replica_port=2,
                previous_broker_epoch=self.directory.closed_by,
                directory_epoch=self.directory.used_by,
            ),
            self._on_registered,
        )

    def _on_registered(self, answer: object) -> None:
        if self._life is not None:
            return
        is_older_copy = self._machine.disk.is_older_copy
        if isinstance(answer, InvalidConfigError):
            if is_older_copy:
                self._machine.exit(f"refused: {answer}")
            raise Violation(f"{self._machine.name} cannot be registered: {answer}")
        if not isinstance(answer, BrokerRegistration):
            if isinstance(answer, DuplicateBrokerRegistrationError | NotControllerError):
                self._machine.clock.set_timer(REGISTER_AGAIN_MS, self._may_register_again)
                return
            raise Violation(f"{self._machine.name} cannot be registered: {answer}")
        if is_older_copy:
            raise Violation(f"{self._machine.name} is registered with an older copy of its disk")
        self._life = answer.life
        self._witness.logs.on_remembering(self._machine, answer.broker_epoch)
        with self._or_exit():
            self.directory.begin_life(*answer.life)
        self.replicas = Replicas(answer.life, self._replication, self.directory.found)
        limit = self._config.request_partitions_max
        self.replicas.configure(request_partitions_max=limit)
        self.service = FollowerService(
            self._machine,
            self.replicas,
            self.logs,
            self._perform,
            self._on_damaged,
            witness=self._witness.replicas,
        )
        if self._cache.image is not None:
            self._follow(self._cache.image)

    def _may_register_again(self) -> None:
        self._has_asked_to_register = False

    def _on_controller_says(self, message: object) -> None:
        match message:
            case Answer(number, result):
                done = self._asked.pop(number, None)
                if done is not None:
                    done(result)
            case AskEnds(partitions):
                self._log_ends.update(dict.fromkeys(partitions))
            case FullState(objects):
                self._learn(lambda: self._cache.on_full_state(objects))
            case Pushed(objects):
                for key, stored in objects.items():
                    self._learn(partial(self._cache.on_object, key, stored))

    def _learn(self, learn: Callable[[], None]) -> None:
        cache = self._cache
        before, had_missed = cache.image, cache.has_missed
        try:
            learn()
        except StaleControllerEpochError:
            if self._control is not None:
                self._control.reset()
                self._leave_control()
            return
        if cache.has_missed and not had_missed and self._control is not None:
            self._control.send(AskAll())
        if self._kept.controller_epoch < cache.seen.controller_epoch:
            self._remember()
        if cache.image is not None and cache.image is not before:
            self._judge.on_image(self._machine.name, cache.image)
            if self.replicas is not None:
                self._follow(cache.image)
                self._witness.replicas.on_image(self._machine, self.replicas, self.logs)

    def _follow(self, image: MetadataImage) -> None:
        assert self.replicas is not None
        self._perform(self.replicas.on_image(image, self._now))
        self._delete_deleted()

    def _delete_deleted(self) -> None:
        """Delete the data of topics that were deleted, and confirm that (P70)."""
        image, life = self._cache.image, self._life
        assert image is not None
        assert life is not None
        deleted = image.deletions_of(life.broker_id)
        if not deleted or self._is_deleting:
            return
        self._is_deleting = True

        def done(result: object) -> None:
            self._is_deleting = False
            if isinstance(result, StorageFullError):
                return  # The tombstones stay: the next image brings them again.
            if isinstance(result, Exception):
                self._fail(result)
            request = ConfirmDeletions(broker_id=life.broker_id, topic_ids=deleted)
            self._ask(request, lambda _: None)
            if self._cache.image is not image:
                self._delete_deleted()

        self._machine.run(THREAD, lambda: self._delete(deleted), done)

    def _delete(self, topic_ids: Iterable[TopicId]) -> None:
        known = dict.fromkeys((*self.directory.found, *self.directory.logs))
        for topic_partition in [each for each in known if each.topic_id in topic_ids]:
            self._drop(topic_partition)

    def _drop(self, topic_partition: TopicPartition) -> None:
        self._judge.on_deleting(self._machine.name, topic_partition)
        self._witness.logs.on_cutting(self._machine, topic_partition)
        self.directory.delete_partitions([topic_partition], self._machine.clock.wall())

    def _remember(self) -> None:
        """Keep what was seen of the metadata."""
        self._to_keep.on_seen(self._cache.seen)
        self._keep_seen()

    def _keep_seen_elsewhere(self, seen: Seen) -> None:
        self._to_keep.on_seen_elsewhere(seen)
        self._keep_seen()

    def _keep_seen(self) -> None:
        seen = self._to_keep.seen
        if seen == self._kept:
            return
        self._kept = seen
        self._witness.logs.on_remembering(self._machine, seen)
        with self._or_exit():
            self.directory.keep_seen(seen)

    @contextlib.contextmanager
    def _or_exit(self) -> Iterator[None]:
        try:
            yield
        except (OSError, StorageError) as error:
            self._machine.exit(f"the disk refused: {error}")

    # --- What the replicas want --------------------------------------------------------------

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case LogChange(topic_partition, change, generation):
                    self._change_log(topic_partition, change, generation)
                case Completed(topic_partition, waiters):
                    for waiter in waiters:
                        self._acknowledge(topic_partition, waiter)
                case Advanced(topic_partition):
                    replica = None if self.replicas is None else self.replicas.find(topic_partition)
                    if replica is not None:
                        self._witness.replicas.on_advanced(replica, self.logs[topic_partition])
                        self.logs[topic_partition].high_watermark = replica.high_watermark
                        if replica.leader is not None:
                            self._touched[topic_partition] = None
                    self.service.on_advanced(topic_partition)
                case Extended(topic_partition):
                    self.service.on_advanced(topic_partition)
                case OpenLog(topic_partition, topic):
                    self._open_log(topic_partition, topic)
                case Configure(topic_partition, topic):
                    self._configure(topic_partition, topic)
                case CloseReplica(topic_partition):
                    self._close_log(topic_partition)
                case DropReplica(topic_partition):
                    self._close_log(topic_partition)
                    self._machine.run(
                        THREAD, partial(self._drop, topic_partition), self._on_dropped
                    )
                case Halted() | Lost():
                    self._report(effect)
                case ProposeIsr(proposals):
                    self._propose(proposals)
                case ProposeRenewals() | SetAside():
                    self._renew(effect)

    def _report(self, effect: Halted | Lost) -> None:
        """What people should know."""
        if isinstance(effect, Halted):
            raise Violation(f"{self._machine.name} halts {effect.topic_partition}: {effect.error}")
        self._machine.world.note(f"{self._machine.name} reports {effect.records}")
        self._judge.on_lost(effect.topic_partition, effect.records)

    def _propose(self, proposals: list[tuple[TopicPartition, IsrProposal]]) -> None:
        assert self._life is not None
        assert self.replicas is not None
        self._proposed = proposals
        self._witness.replicas.on_proposed(self.replicas, proposals)
        changes = [
            AlterPartition(
                topic_id=topic_partition.topic_id,
                partition=topic_partition.partition,
                leader=self._life,
                leader_epoch=proposal.leader_epoch,
                partition_epoch=proposal.partition_epoch,
                isr=proposal.isr,
                is_unflushed=proposal.is_unflushed,
            )
            for topic_partition, proposal in proposals
        ]
        self._ask(AlterPartitions(changes=changes), self._on_isr_answers)

    def _renew(self, effect: ProposeRenewals | SetAside) -> None:
        if isinstance(effect, SetAside):
            self._set_aside(effect.topic_partition)
            return
        assert self._life is not None
        request = RenewReplicas(replica=self._life, renewals=effect.renewals)
        self._ask(request, self._on_renewal_answers)

    def _on_renewal_answers(self, answers: object) -> None:
        assert self.replicas is not None
        self._perform(self.replicas.on_renewal_answers(_outcomes(answers), self._now))

    def _set_aside(self, topic_partition: TopicPartition) -> None:
        def done(result: object) -> None:
            assert self.replicas is not None
            if isinstance(result, CorruptLogError | StorageFullError):
                self.replicas.on_set_aside_failed(topic_partition, result, self._now)
            elif isinstance(result, Exception):
                self._fail(result)
            else:
                self._machine.world.note(f"{self._machine.name} begins {topic_partition} anew")
                self.renewed[topic_partition] = self._machine.world.now
                self._perform(self.replicas.on_set_aside(topic_partition))

        self._judge.on_deleting(self._machine.name, topic_partition)
        self._witness.logs.on_cutting(self._machine, topic_partition)
        wall = self._machine.clock.wall()
        self._machine.run(THREAD, partial(self.directory.set_aside, topic_partition, wall), done)

    def _on_isr_answers(self, answers: object) -> None:
        assert self.replicas is not None
        outcomes = _outcomes(answers)
        proposed = self._proposed
        effects = self.replicas.on_isr_answers(outcomes, self._now)
        errors = outcomes if isinstance(outcomes, list) else [outcomes] * len(proposed)
        self._witness.replicas.on_isr_answers(self.replicas, proposed, errors)
        self._perform(effects)

    def _open_log(self, topic_partition: TopicPartition, topic: Topic) -> None:
        self._refused.discard(topic_partition)
        opening = self._opening[topic_partition] = object()

        def opened(result: object) -> None:
            assert self.replicas is not None
            if self._opening.get(topic_partition) is not opening:
                return  # It was dropped meanwhile, and is begun anew by another job.
            del self._opening[topic_partition]
            if isinstance(result, StorageFullError):
                self.replicas.on_opening_refused(topic_partition, result)
                self._refused.add(topic_partition)
                self._machine.clock.set_timer(
                    OPEN_AGAIN_MS, partial(self._open_again, topic_partition)
                )
                return
            if isinstance(result, CorruptLogError):
                self._on_damaged(topic_partition, result)
                return
            if isinstance(result, Exception):
                self._fail(result)
            assert isinstance(result, PartitionLog)
            self.logs[topic_partition] = result
            self._targets[topic_partition] = Target(result, _is_flushed(topic))
            self._touched[topic_partition] = None
            self._perform(
                self.replicas.on_opened(topic_partition, result, result.high_watermark, self._now)
            )

        def open_and_flush() -> PartitionLog:
            config = _log_config(topic)
            log = self.directory.open_partition(topic_partition, config, self._machine.clock.wall())
            # What recovery found may be in the page cache alone, and no append may ever come that
            # flushes it: where that counts, a producer that repeats its last batch would wait for
            # ever.
            if _is_flushed(topic):
                log.flush()
            self._witness.logs.on_opened(self._machine, log)
            return log

        self._machine.run(THREAD, open_and_flush, opened)

    def _open_again(self, topic_partition: TopicPartition) -> None:
        assert self.replicas is not None
        image = self._cache.image
        if topic_partition in self._refused and self.replicas.is_opening(topic_partition):
            assert image is not None
            self._open_log(topic_partition, image.topics_by_id[topic_partition.topic_id])

    def _configure(self, topic_partition: TopicPartition, topic: Topic) -> None:
        target = self._targets.get(topic_partition)
        if target is None:
            return
        target.log.config = _log_config(topic)
        becomes_durable = _is_flushed(topic) and not target.is_flushed
        target.is_flushed = _is_flushed(topic)
        if becomes_durable:
            # What was written while it did not have to be would be waited for.
            self._appender.change(
                target, target.log.flush, partial(self._note_flushed, topic_partition)
            )

    def _note_flushed(self, topic_partition: TopicPartition) -> None:
        """Tell the machine how far a log is flushed, and no more than it knows to be written."""
        assert self.replicas is not None
        log, replica = self.logs.get(topic_partition), self.replicas.find(topic_partition)
        role = None if replica is None else replica.leader or replica.follower
        if log is None or role is None:
            return
        flushed_offset = min(log.flushed_offset, role.written_offset)
        if flushed_offset > role.flushed_offset:
            self._perform(self.replicas.on_flushed(topic_partition, flushed_offset, self._now))

    def _close_log(self, topic_partition: TopicPartition) -> None:
        self.logs.pop(topic_partition, None)
        self._targets.pop(topic_partition, None)

    def _on_dropped(self, result: object) -> None:
        if isinstance(result, Exception):
            self._fail(result)

    def _change_log(
        self,
        topic_partition: TopicPartition,
        change: Append | Truncate | StartAnew | AdvanceLogStart,
        generation: int,
    ) -> None:
        target = self._targets[topic_partition]
        match change:
            case Append(batches):
                self._appender.append(target, batches, generation)  # type: ignore[arg-type]
            case Truncate(end_offset):
                self._machine.world.note(
                    f"{self._machine.name} cuts {topic_partition} to {end_offset}"
                )
                self._appender.change(
                    target,
                    partial(self._truncate, target.log, end_offset),
                    partial(self._on_truncated, topic_partition),
                )
            case AdvanceLogStart(start_offset):
                self._appender.change(
                    target, lambda: target.log.advance_log_start(start_offset), lambda: None
                )
            case StartAnew(start_offset):
                self._machine.world.note(
                    f"{self._machine.name} begins {topic_partition} at {start_offset}"
                )
                self._appender.change(
                    target,
                    partial(self._start_anew, target.log, start_offset),
                    partial(self._on_started_anew, topic_partition),
                )

    def _truncate(self, log: PartitionLog, end_offset: Offset) -> None:
        self._witness.logs.on_cutting(self._machine, log.topic_partition)
        log.truncate_to(end_offset, self._machine.clock.wall())
        self._witness.logs.on_cut(self._machine, log)

    def _start_anew(self, log: PartitionLog, start_offset: Offset) -> None:
        self._witness.logs.on_cutting(self._machine, log.topic_partition)
        log.start_anew(start_offset)
        self._witness.logs.on_cut(self._machine, log)

    def _on_truncated(self, topic_partition: TopicPartition) -> None:
        assert self.replicas is not None
        self._touched[topic_partition] = None
        self._perform(self.replicas.on_truncated(topic_partition, self._now))

    def _on_started_anew(self, topic_partition: TopicPartition) -> None:
        assert self.replicas is not None
        self._touched[topic_partition] = None
        self._perform(self.replicas.on_started_anew(topic_partition, self._now))

    def _on_written(self, written: Written) -> None:
        assert self.replicas is not None
        topic_partition = written.target.log.topic_partition
        if self._targets.get(topic_partition) is not written.target:
            return
        if written.failed_at is not None:
            assert written.error is not None
            if not isinstance(written.error, StorageFullError | CorruptLogError):
                self._fail(written.error)
            replica = self.replicas.find(topic_partition)
            if replica is not None:
                self._witness.replicas.on_taken_back(replica, written.failed_at)
            if isinstance(written.error, StorageFullError):
                self._witness.logs.on_not_written(self._machine, written.target.log)
            self._perform(
                self.replicas.on_write_failed(
                    topic_partition, written.failed_at, written.error, self._now
                )
            )
            if isinstance(written.error, CorruptLogError):
                self._on_damaged(topic_partition, written.error)
            return
        self._perform(self.replicas.on_written(topic_partition, written.end_offset, self._now))
        if written.flushed_offset is not None:
            self._perform(
                self.replicas.on_flushed(topic_partition, written.flushed_offset, self._now)
            )

    def _on_log_failed(self, target: Target, error: StorageError) -> None:
        if not isinstance(error, CorruptLogError):
            self._fail(error)
        elif self._targets.get(target.log.topic_partition) is target:  # Else it was dropped.
            self._on_damaged(target.log.topic_partition, error)

    def _on_damaged(self, topic_partition: TopicPartition, error: CorruptLogError) -> None:
        assert self.replicas is not None
        self.found_damaged[topic_partition] = self._machine.world.now
        self._close_log(topic_partition)
        self._perform(self.replicas.on_failed(topic_partition, error))

    def _fail(self, error: Exception) -> None:
        """The directory failed; a broker that has no other one ends (P63)."""
        if not isinstance(error, StorageError | OSError):
            raise error
        self._machine.exit(f"the disk failed: {error}")

    def _tick(self) -> None:
        if self.replicas is not None:
            self._perform(self.replicas.tick(self._now))

    def _checkpoint(self) -> None:
        def done(result: object) -> None:
            if isinstance(result, Exception) and not isinstance(result, StorageFullError):
                self._fail(result)
            if not isinstance(result, Exception):
                self._witness.logs.on_checkpoint(self._machine, self.logs)
            for topic_partition in self.logs:
                self._note_flushed(topic_partition)

        if not self._is_stopping:
            self._machine.run("checkpoint", lambda: self.directory.checkpoint(self._now), done)

    def _scrub(self) -> None:
        def done(result: object) -> None:
            if isinstance(result, Exception) and not isinstance(result, StorageFullError):
                self._fail(result)
            for topic_partition, error in list(self.directory.corrupt.items()):
                if topic_partition in self.logs:
                    self._on_damaged(topic_partition, error)

        if self.replicas is not None and not self._is_stopping:
            self._machine.run("checkpoint", lambda: self.directory.scrub(SCRUB_BYTES), done)

    def _retain(self) -> None:
        """Give up what topics do not keep any longer: their leaders do, and followers follow."""
        if self.replicas is None or self._is_stopping:
            return
        wall = self._machine.clock.wall()
        for topic_partition, target in self._targets.items():
            replica = self.replicas.find(topic_partition)
            config = target.log.config
            is_kept = config.retention_ms == config.retention_bytes == UNLIMITED
            if replica is not None and replica.leader and replica.leads and not is_kept:
                epoch = replica.leader.leader_epoch
                self._appender.change(
                    target,
                    partial(self._give_up, target.log, wall, replica.high_watermark, epoch),
                    partial(self._on_retained, topic_partition),
                )
        self._machine.run(THREAD, lambda: self.directory.empty_trash(wall), self._on_dropped)

    def _give_up(
        self, log: PartitionLog, wall: WallMs, high_watermark: Offset, leader_epoch: LeaderEpoch
    ) -> None:
        try:
            with contextlib.suppress(StorageFullError):  # Another time.
                log.apply_retention(wall, high_watermark)
        finally:  # Also when the power goes half-way.
            self._judge.on_given_up(log.topic_partition, leader_epoch, log.log_start_offset)
            self._touched[log.topic_partition] = None

    def _on_retained(self, topic_partition: TopicPartition) -> None:
        self.service.on_advanced(topic_partition)

    # --- Following ---------------------------------------------------------------------------

    def _on_leader_says(self, stream: Stream, message: Sent | Unserved) -> None:
        assert self.replicas is not None
        leader = next((each for each, other in self._leaders.items() if other is stream), None)
        if leader is None:
            return
        if isinstance(message, Unserved):
            effects = self.replicas.on_fetch_error(
                leader, message.handle, message.log_start_offset, self._now
            )
        else:
            found = self.replicas.sessions[leader].position(message.handle)
            batches, is_damaged = ((), False) if found is None else verified(found[0], message.data)
            if is_damaged:
                self._hear_of_damage(stream.remote)
            fetched = Fetched(
                handle=message.handle,
                fetch_offset=message.fetch_offset,
                high_watermark=message.high_watermark,
                log_start_offset=message.log_start_offset,
                batches=batches,
                size=len(message.data),
                is_damaged=is_damaged,
                diverging=message.diverging,
            )
            effects = self.replicas.on_fetched(leader, fetched, self._now)
            if effects and found is not None:
                assert self._life is not None
                replica = self.replicas.find(found[0])
                self._witness.replicas.on_fetched(self._life, leader, message, replica, effects)
        self._perform(effects)

    # --- Clients -----------------------------------------------------------------------------

    def _on_client(self, sender: str, message: object) -> None:
        reply = partial(self._machine.network.send, sender)
        match message:
            case AskLeaders():
                reply(Leaders(self._leaders_of_all()))
            case Administer(request):
                self._ask(request, lambda _: None)
            case AskEnd(number):
                try:
                    reply(self._end(message))
                except MillraceError as error:
                    reply(End(number, error=error))
            case Read(number, topic_partition):
                try:
                    reply(self._read(message))
                except CorruptLogError as error:
                    reply(Batches(number, error=error))
                    self._on_damaged(topic_partition, error)
                except MillraceError as error:
                    start_offset = self._log_start_offset(topic_partition)
                    reply(Batches(number, error=error, log_start_offset=start_offset))

    def _log_start_offset(self, topic_partition: TopicPartition) -> Offset:
        """Where the log begins of which this broker is the leader; 0 where it is not."""
        replica = None if self.replicas is None else self.replicas.find(topic_partition)
        if replica is None or not replica.leads:
            return Offset(0)
        return self.logs[topic_partition].log_start_offset

    def _leaders_of_all(self) -> dict[TopicPartition, tuple[str, LeaderEpoch]]:
        image = self._cache.image
        if image is None:
            return {}
        brokers = image.cluster.brokers
        return {
            TopicPartition(topic_id, number): (brokers[state.leader].name, state.leader_epoch)
            for topic_id, topic in image.topics_by_id.items()
            for number, state in enumerate(topic.partitions)
            if state.leader != NO_BROKER
        }

    def _on_produce(self, stream: Stream, message: Produce) -> None:
        try:
            self._produce(stream, message)
        except MillraceError as error:
            if message.acks is not None:
                stream.send(Produced(message.number, Offset(-1), error))

    def _produce(self, stream: Stream, message: Produce) -> None:
        header = check(message.topic_partition, message.batch, LIMITS)
        leader = self._leader_of(message.topic_partition)
        leader.check_epoch(message.leader_epoch)
        acks = message.acks or Acks.LEADER
        owner = None if message.acks is None else (stream, message.number)
        wall = self._machine.clock.wall()
        waiter = leader.append(header, acks, owner, wall, is_successor=message.is_successor)
        self._touched[message.topic_partition] = None
        log = self.logs[message.topic_partition]
        self._witness.replicas.on_appended(leader, log, header, acks, waiter)
        if not waiter.is_duplicate:
            stamped = stamp(
                message.batch[:HEADER_BYTES],
                base_offset=waiter.base_offset,
                leader_epoch=leader.leader_epoch,
                append_timestamp=waiter.append_timestamp,
            )
            body = message.batch[HEADER_BYTES:]
            batch = StampedBatch.of(header, stamped, body, waiter.append_timestamp)
            self._witness.replicas.on_stamped(leader, batch)
            target = self._targets[message.topic_partition]
            self._appender.append(target, [batch], leader.generation)
        if waiter.is_done:
            self._acknowledge(message.topic_partition, waiter)

    def _leader_of(self, topic_partition: TopicPartition) -> PartitionLeader:
        if self.replicas is None:
            raise NotLeaderError("this broker is not registered yet", appended=Appended.NO)
        replica = self.replicas.get(topic_partition)
        if replica.leader is None or not replica.leads:
            raise NotLeaderError("another broker leads", appended=Appended.NO)
        return replica.leader

    def _acknowledge(self, topic_partition: TopicPartition, waiter: Waiter) -> None:
        replica = None if self.replicas is None else self.replicas.find(topic_partition)
        log = self.logs.get(topic_partition)
        self._witness.replicas.on_answered(replica, log, waiter)
        if waiter.owner is None:
            return
        assert isinstance(waiter.owner, tuple)
        stream, number = waiter.owner
        stream.send(Produced(number, waiter.base_offset, waiter.error))

    def _end(self, message: AskEnd) -> End:
        leader = self._leader_of(message.topic_partition)
        leader.check_epoch(message.leader_epoch)
        leader.check_end_offset()
        answer = End(message.number, leader.last_stable_offset, leader.leader_epoch)
        self._judge_answer(message.topic_partition, message.leader_epoch, answer)
        return answer

    def _judge_answer(
        self, topic_partition: TopicPartition, expected: LeaderEpoch, answer: Batches | End
    ) -> None:
        assert self.replicas is not None
        self._witness.replicas.on_read(self.replicas.get(topic_partition), expected, answer)

    def _read(self, message: Read) -> Batches:
        if message.may_be_follower and self.replicas is not None:
            follower = self.replicas.get(message.topic_partition).follower
            if follower is not None:
                follower.check_epoch(message.leader_epoch)
                follower.check_readable(message.offset)
                return self._read_up_to(message, follower.high_watermark)
        leader = self._leader_of(message.topic_partition)
        leader.check_epoch(message.leader_epoch)
        log = self.logs[message.topic_partition]
        diverging = leader.diverging(message.offset, message.last_epoch, log.leader_epochs)
        if diverging is not None:
            return Batches(
                message.number, diverging=diverging, high_watermark=leader.high_watermark
            )
        leader.check_readable(message.offset, log.log_start_offset)
        return self._read_up_to(message, leader.last_stable_offset)

    def _read_up_to(self, message: Read, high_watermark: Offset) -> Batches:
        log = self.logs[message.topic_partition]
        plan = None
        if message.offset < high_watermark:
            plan = log.plan_read(message.offset, _READ_BYTES, high_watermark)
        data = b"" if plan is None else log.read(plan)
        answer = Batches(message.number, data, high_watermark)
        self._judge_answer(message.topic_partition, message.leader_epoch, answer)
        return answer


def _outcomes(answers: object) -> list[MillraceError | None] | MillraceError:
    """Return what a list of states and errors says of each."""
    if isinstance(answers, list):
        return [each if isinstance(each, MillraceError) else None for each in answers]
    assert isinstance(answers, MillraceError)
    return answers


def _is_flushed(topic: Topic) -> bool:
    return topic.config.durability is Durability.FSYNC


def _log_config(topic: Topic) -> LogConfig:
    kept = {
        name.replace(".", "_"): int(text)
        for name, text in topic.overrides.items()
        if name in RETENTION
    }
    return replace(LOG, **kept)


@lru_cache(maxsize=64)  # All followers of a leader get the same.
def verified(topic_partition: TopicPartition, data: bytes) -> tuple[Sequence[StampedBatch], bool]:
    """Return the batches up to the first whose checksums do not hold, and whether there is one."""
    batches: list[StampedBatch] = []
    try:
        for header, batch in walk(data):
            verify_body(topic_partition, header, batch)
            batches.append(
                StampedBatch.of(header, bytes(batch[:HEADER_BYTES]), bytes(batch[HEADER_BYTES:]))
            )
    except (DamagedBatchError, UnsupportedFormatError):
        return batches, True
    return batches, False
