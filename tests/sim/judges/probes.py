"""Shows the witnesses what shipped brokers do during a run.

The probes wrap some methods of the product. When such a method has returned, a witness sees its
arguments, its result and its process. Nothing else changes, and no time passes. The probes keep a
witness's violation, because the product may catch the exception.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from tests.sim.machines.machine import BrokerProcess
from tests.sim.machines.process import SimulatedHost
from tests.sim.world import SECOND, Violation

from millrace.broker.controller.shell import ControllerShell
from millrace.broker.replica.appender import Appender, HeldAppends
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.partitions import Partitions
from millrace.broker.rpc.appends import Appends
from millrace.broker.rpc.controller import BrokerSessions
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log.cleaner import LogCleaner, _Copy
from millrace.broker.storage.log.flusher import LogFlusher
from millrace.broker.storage.log.retention import LogRetention
from millrace.broker.storage.log.tiering import LogTiering
from millrace.broker.storage.log.truncation import LogTruncation
from millrace.broker.storage.log.writer import LogWriter
from millrace.broker.storage.log_directory import LogDirectory
from millrace.broker.storage.log_directory.retired import RetiredLogs
from millrace.broker.storage.segment import Segment
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.controller.controller import Controller
from millrace.core.controller.effects import Respond
from millrace.core.errors import (
    CorruptLogError,
    LogDirFailedError,
    MillraceError,
    StorageFullError,
)
from millrace.core.ids import Offset, TopicPartition
from millrace.core.metadata.model import CLUSTER_KEY, BrokerLife
from millrace.core.metadata.objects.cache import MetadataCache
from millrace.core.metadata.requests import AlterPartitions, Heartbeat, HeartbeatAnswer
from millrace.core.replica.compaction.batches import BatchCleaner, CleaningRules
from millrace.core.replica.replication.effects import (
    Complete,
    Effect,
    Halted,
    ProposeIsr,
    RecordsLost,
    SetAside,
    Wake,
)
from millrace.core.replica.replication.events import Failed
from millrace.core.replica.replication.follower import PartitionFollower
from millrace.core.replica.replication.leader import PartitionLeader
from millrace.core.replica.replication.leader_offsets import LeaderOffsets
from millrace.core.replica.replication.leader_session import LeaderSession
from millrace.core.replica.replication.replicas import Replicas
from millrace.core.replica.replication.unopened import UnopenedReplicas
from millrace.runtime import host

if TYPE_CHECKING:
    from tests.sim.cluster import SimulatedCluster

_FAILED_US: Final = SECOND
"""A failed flush ends all appends to its directory within this time."""
_REPLICAS: Final = (
    "on_image", "on_opened", "on_failed", "on_set_aside_failed", "on_disk", "on_fetched",
    "on_fetch_error", "on_session_broken", "on_follower_progress", "on_isr_answers", "tick",
)  # fmt: skip
_CONTROLLER: Final = (
    "take_over", "handle", "tick", "on_connection_broken", "on_object_read", "on_object_written",
    "on_write_refused", "on_seen_elsewhere", "resign",
)  # fmt: skip


class Probes:
    """Wraps the methods of the product for one run.

    Attributes:
        violation: the first that a witness found.
    """

    def __init__(self, cluster: "SimulatedCluster") -> None:
        self.violation: Violation | None = None
        self._cluster = cluster
        self._logs, self._cleaners, self._replicas, self._states = (
            cluster.witness.logs,
            cluster.witness.cleaners,
            cluster.witness.replicas,
            cluster.witness.states,
        )
        self._copies: WeakKeyDictionary[_Copy, CleaningRules] = WeakKeyDictionary()
        self._proposed: dict[Replicas, list[Any]] = {}
        self._asked: dict[tuple[Controller, int], Any] = {}
        self._allowed: dict[tuple[Controller, int], list[set[BrokerLife]]] = {}
        self._wants_to_stop: dict[object, int] = {}
        self._retaining: set[tuple[str, TopicPartition]] = set()
        self._failed_at: dict[tuple[str, str], int] = {}  # By process and directory.

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Wrap the methods for the length of the block."""
        with ExitStack() as stack:

            def probe(
                owner: type,
                name: str,
                after: Callable[..., None] | None = None,
                before: Callable[..., Any] | None = None,
                failed: Callable[..., None] | None = None,
            ) -> None:
                kept = vars(owner)[name]
                setattr(owner, name, self._wrapped(kept, after, before, failed))
                stack.callback(setattr, owner, name, kept)

            for name in _REPLICAS:
                probe(
                    Replicas,
                    name,
                    getattr(self, f"_on_{name}", self._after_replicas),
                    getattr(self, f"_before_{name}", None),
                )
            for name in ("on_answers", "on_set_aside"):
                probe(UnopenedReplicas, name, self._after_unopened)
            for name in _CONTROLLER:
                probe(
                    Controller,
                    name,
                    self._after_controller,
                    self._before_handle if name == "handle" else None,
                )
            probe(ControllerShell, "_on_unusable", before=self._before_unusable)
            probe(MetadataCache, "on_full_state", self._on_full_state)
            probe(BrokerSessions, "on_published", self._on_published)
            probe(LeaderSession, "take_request", self._on_said)
            probe(LeaderOffsets, "diverging_follower", self._on_served)
            probe(PartitionLeader, "append", self._on_appended)
            probe(LeaderOffsets, "check_end_offset", self._on_end_told)
            probe(PartitionFollower, "check_readable", failed=self._on_unreadable)
            probe(Appends, "_judge", self._on_produced)
            probe(Appender, "append", before=self._before_append)
            probe(HeldAppends, "append", before=self._before_append)
            probe(LogWriter, "append", self._on_written, failed=self._on_not_written)
            probe(LogFlusher, "flush", self._on_log_flush, failed=self._on_flush_failed)
            probe(
                LogRetention,
                "apply",
                self._after_retention,
                self._before_retention,
                self._after_retention,
            )
            probe(LogRetention, "_delete_before", before=self._before_giving_up)
            probe(LogTiering, "switch", self._on_segment_moved, self._before_segment_moves)
            probe(Partitions, "advance_log_start", before=self._before_deletion)
            probe(LogCleaner, "cleanable", self._on_log_looked_at)
            probe(LogCleaner, "_move_point", self._on_log_cleaned)
            probe(_Copy, "run", before=self._before_copy)
            probe(_Copy, "_replace", before=self._before_replacement)
            probe(LogTruncation, "truncate_to", self._on_log_cut, self._before_log_cut)
            probe(LogTruncation, "start_over", self._on_log_cut, self._before_log_cut)
            probe(LogDirectory, "open", self._on_directory_open)
            probe(
                LogDirectory,
                "open_partition",
                self._on_partition_open,
                failed=self._on_partition_refused,
            )
            probe(RetiredLogs, "delete", before=self._before_delete)
            probe(RetiredLogs, "set_aside", before=self._before_set_aside)
            probe(LogDirectory, "checkpoint", self._on_checkpoint)
            probe(LogDirectory, "close", self._on_directory_close)
            probe(LogDirectory, "begin_life", self._on_life, self._before_life)
            probe(LogDirectory, "keep_seen", self._on_seen, self._before_seen)
            yield

    def _wrapped(
        self,
        kept: Any,
        after: Callable[..., None] | None,
        before: Callable[..., Any] | None,
        failed: Callable[..., None] | None,
    ) -> Any:
        """Return a wrapped method or classmethod.

        `before` gets the process and the arguments. `after` and `failed` get its result, and what
        the method returned or raised.
        """
        function = kept.__func__ if isinstance(kept, classmethod) else kept

        @functools.wraps(function)
        def shown(*args: Any, **kwargs: Any) -> Any:
            process = process_now()
            if process is None:
                return function(*args, **kwargs)
            known = None
            if before is not None:
                known = self._judge(before, process, *args, **kwargs)
            try:
                result = function(*args, **kwargs)
            except Exception as error:
                if failed is not None:
                    self._judge(failed, process, known, error, *args, **kwargs)
                raise
            if after is not None:
                self._judge(after, process, known, result, *args, **kwargs)
            return result

        return classmethod(shown) if isinstance(kept, classmethod) else shown

    def _judge(self, look: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return look(*args, **kwargs)
        except Violation as violation:
            self.violation = self.violation or violation
            raise

    # --- Replicas ----------------------------------------------------------------------------

    def _after_replicas(
        self, process: BrokerProcess, _: Any, effects: list[Effect], replicas: Replicas, *__: Any
    ) -> None:
        self._look_at(process, replicas, effects)

    def _after_unopened(
        self, process: BrokerProcess, _: Any, effects: list[Effect], *__: Any
    ) -> None:
        if process.replicas is not None:
            self._look_at(process, process.replicas, effects)

    def _look_at(
        self, process: BrokerProcess, replicas: Replicas, effects: Iterable[Effect]
    ) -> None:
        for effect in effects:
            match effect:
                case Wake(topic_partition):
                    replica, log = replicas.find(topic_partition), process.log(topic_partition)
                    if replica is not None and log is not None:
                        self._replicas.on_advanced(replica, log)
                case Complete(topic_partition, waiters):
                    replica, log = replicas.find(topic_partition), process.log(topic_partition)
                    for waiter in waiters:
                        self._replicas.on_answered(replica, log, waiter)
                case ProposeIsr(proposals):
                    self._proposed[replicas] = proposals
                    self._replicas.on_proposed(replicas, proposals)
                case Halted():
                    raise Violation(
                        f"{process.name} halts {effect.topic_partition}: {effect.error}"
                    )
                case RecordsLost():
                    self._cluster.invariants.on_lost(effect)
                case SetAside(topic_partition):
                    name = process.machine.name
                    self._cluster.invariants.renewed[name, topic_partition] = self._cluster.now

    def _on_on_image(
        self, process: BrokerProcess, _: Any, effects: list[Effect], replicas: Replicas, *__: Any
    ) -> None:
        if process.replicas is replicas:
            self._replicas.on_image(process.machine, replicas, process.logs)
        self._look_at(process, replicas, effects)

    def _before_on_fetched(
        self, process: BrokerProcess, replicas: Replicas, leader: Any, fetched: Any, *__: Any
    ) -> Any:
        is_open = process.life is not None and self._replicas.is_answer_to_open(
            process.life, leader, fetched.handle, replicas
        )
        return replicas.sessions[leader].position(fetched.handle), is_open

    def _on_on_fetched(
        self,
        process: BrokerProcess,
        known: Any,
        effects: list[Effect],
        replicas: Replicas,
        leader: Any,
        *_: Any,
    ) -> None:
        position, is_open = known
        if position is not None and process.life is not None:
            replica = replicas.find(position.topic_partition)
            self._replicas.on_fetched(
                process.life, leader, position.leader_epoch, replica, effects, is_open=is_open
            )
        self._look_at(process, replicas, effects)

    def _on_on_follower_progress(
        self,
        process: BrokerProcess,
        known: Any,
        effects: list[Effect],
        replicas: Replicas,
        *report: Any,
    ) -> None:
        topic_partition, life, leader_epoch, progress, _ = report
        self._replicas.on_report(replicas.get(topic_partition), life, leader_epoch, progress)
        self._look_at(process, replicas, effects)

    def _on_on_disk(
        self,
        process: BrokerProcess,
        _: Any,
        effects: list[Effect],
        replicas: Replicas,
        topic_partition: Any,
        event: Any,
        *__: Any,
    ) -> None:
        replica = replicas.find(topic_partition)
        if replica is not None and isinstance(event, Failed):
            self._replicas.on_taken_back(replica, event.base_offset)
        self._look_at(process, replicas, effects)

    def _on_on_isr_answers(
        self,
        process: BrokerProcess,
        _: Any,
        effects: list[Effect],
        replicas: Replicas,
        answers: Any,
        *__: Any,
    ) -> None:
        proposed = self._proposed.pop(replicas, [])
        if not isinstance(answers, list):
            answers = [answers] * len(proposed)
        self._replicas.on_isr_answers(replicas, proposed, answers)
        self._look_at(process, replicas, effects)

    def _on_said(
        self, process: BrokerProcess, _: Any, request: Any, session: LeaderSession, *__: Any
    ) -> None:
        replicas = process.replicas
        if request is None or replicas is None or process.life is None:
            return
        for leader, opened in replicas.sessions.items():
            if opened is session:
                self._replicas.on_said(process.life, leader, request, replicas, process.logs)

    def _on_served(
        self,
        process: BrokerProcess,
        _: Any,
        diverging: Any,
        leader: PartitionLeader,
        follower: Any,
        fetch_offset: Any,
        *__: Any,
    ) -> None:
        log = process.log(leader.topic_partition)
        if log is not None and follower is not None:
            self._replicas.on_served(
                leader, log, follower, fetch_offset, diverges=diverging is not None
            )

    def _on_appended(
        self,
        process: BrokerProcess,
        _: Any,
        waiter: Any,
        leader: PartitionLeader,
        header: Any,
        acks: Any,
        *__: Any,
        is_successor: bool = False,
        **___: Any,
    ) -> None:
        log = process.log(leader.topic_partition)
        if log is not None:
            self._replicas.on_appended(leader, log, header, acks, waiter, is_successor=is_successor)
            if waiter.is_done and process.replicas is not None:  # It repeats what is committed.
                replica = process.replicas.find(leader.topic_partition)
                self._replicas.on_answered(replica, log, waiter)

    def _on_produced(
        self,
        process: BrokerProcess,
        _: Any,
        __: Any,
        ___: Appends,
        request: Any,
        number: int,
        batch: Any,
        *____: Any,
    ) -> None:
        if request.is_answered and not isinstance(request.outcomes[number], MillraceError):
            raise Violation(
                f"{process.name} appends to {batch.topic_partition}, and has said that it does not "
                "(P16)"
            )

    def _on_end_told(self, _: BrokerProcess, __: Any, ___: Any, leader: PartitionLeader) -> None:
        self._replicas.on_end_told(leader)

    def _on_unreadable(
        self,
        _: BrokerProcess,
        __: Any,
        error: Exception,
        follower: PartitionFollower,
        fetch_offset: Any,
    ) -> None:
        self._replicas.on_unreadable(follower, fetch_offset, error)

    # --- Disks -------------------------------------------------------------------------------

    def _before_append(
        self, process: BrokerProcess, _: Any, target: Any, batch: StampedBatch, *__: Any
    ) -> None:
        leader = target.replica.leader
        leads = None if leader is None or leader.is_resigned else leader.leader_epoch
        if process.life is not None:
            is_compacted = target.log.config.is_compacted
            self._replicas.on_writing(
                process.life, target.topic_partition, batch, leads, is_compacted=is_compacted
            )

    def _on_not_written(
        self, process: BrokerProcess, _: Any, error: Exception, writer: LogWriter, *__: Any
    ) -> None:
        if isinstance(error, StorageFullError):
            self._logs.on_not_written(process.machine, writer._state)

    def _on_flush_failed(
        self, process: BrokerProcess, _: Any, error: Exception, flusher: LogFlusher, *__: Any
    ) -> None:
        if isinstance(error, LogDirFailedError):
            key = process.name, flusher._state.log_dir
            self._failed_at.setdefault(key, self._cluster.now)

    def _on_written(
        self, process: BrokerProcess, _: Any, __: Any, writer: LogWriter, *___: Any
    ) -> None:
        log_dir = writer._state.log_dir
        failed_at = self._failed_at.get((process.name, log_dir), self._cluster.now)
        if self._cluster.now - failed_at > _FAILED_US:
            raise Violation(f"{process.name} appends to {log_dir}, where a flush failed (P63)")

    def _on_log_flush(self, process: BrokerProcess, _: Any, __: Any, flusher: LogFlusher) -> None:
        self._logs.on_flushed(process.machine, flusher._state)

    def _before_retention(self, process: BrokerProcess, part: LogRetention, *_: Any) -> None:
        self._retaining.add((process.name, part._state.topic_partition))

    def _after_retention(
        self, process: BrokerProcess, _: Any, __: Any, part: LogRetention, *___: Any
    ) -> None:
        self._retaining.discard((process.name, part._state.topic_partition))

    def _before_giving_up(
        self, process: BrokerProcess, retention: LogRetention, offset: Offset
    ) -> None:
        """A log begins later from now on, by its topic's retention or as its leader's does."""
        state = retention._state
        if (process.name, state.topic_partition) in self._retaining:
            # Its broker may no longer lead by now.
            epoch = state.epochs.current.latest_epoch
            self._cluster.invariants.on_given_up(state.topic_partition, epoch, offset)

    def _before_segment_moves(
        self, process: BrokerProcess, tiering: LogTiering, found: Segment, *_: Any
    ) -> None:
        self._logs.on_segment_moving(process.machine, tiering.state, found)

    def _on_segment_moved(
        self,
        process: BrokerProcess,
        _: Any,
        has_moved: bool,
        tiering: LogTiering,
        found: Segment,
        *__: Any,
    ) -> None:
        if has_moved:
            self._logs.on_segment_moved(process.machine, tiering.state, found)

    def _before_deletion(
        self, _: BrokerProcess, __: Partitions, partition: Partition, start_offset: Offset
    ) -> None:
        epoch = partition.leader.leader_epoch
        self._cluster.invariants.on_given_up(partition.topic_partition, epoch, start_offset)

    def _before_log_cut(self, process: BrokerProcess, part: LogTruncation, *_: Any) -> None:
        self._logs.on_cutting(process.machine, part._state.topic_partition)

    def _on_log_cut(
        self, process: BrokerProcess, _: Any, __: Any, part: LogTruncation, *___: Any
    ) -> None:
        self._logs.on_cut(process.machine, part._state)
        self._cleaners.on_cut(process.machine, part._state)

    def _on_log_looked_at(
        self, _: BrokerProcess, __: Any, found: Any, cleaner: LogCleaner, now: Any
    ) -> None:
        self._cleaners.on_looked_at(cleaner, found, now)

    def _before_copy(self, _: BrokerProcess, copy: _Copy, cleaner: BatchCleaner) -> None:
        self._copies[copy] = cleaner._rules

    def _before_replacement(self, process: BrokerProcess, copy: _Copy, _: Any) -> None:
        self._cleaners.on_replacing(
            process.machine, copy._state, copy._group, copy._path, self._copies[copy]
        )

    def _on_log_cleaned(
        self, process: BrokerProcess, _: Any, __: Any, cleaner: LogCleaner, ___: Any, point: Any
    ) -> None:
        if cleaner._state.cleaner_point is point:
            self._cleaners.on_cleaned(process.machine, cleaner._state)

    def _on_directory_open(
        self, process: BrokerProcess, _: Any, directory: LogDirectory, *__: Any, **___: Any
    ) -> None:
        self._logs.on_started(process.machine, process.name, directory)
        self._logs.on_recalled(process.machine, directory.used_by)

    def _on_partition_open(
        self, process: BrokerProcess, _: Any, log: PartitionLog, *__: Any
    ) -> None:
        self._logs.on_opened(process.machine, log.state)
        self._cleaners.on_cut(process.machine, log.state)

    def _on_partition_refused(
        self,
        process: BrokerProcess,
        _: Any,
        error: Exception,
        directory: LogDirectory,
        topic_partition: TopicPartition,
        *__: Any,
    ) -> None:
        if isinstance(error, CorruptLogError):
            path = f"{directory.path}/{topic_partition}"
            self._logs.on_refused(process.machine, path, error)

    def _before_delete(
        self, process: BrokerProcess, _: RetiredLogs, topic_partitions: Any, *__: Any
    ) -> None:
        for topic_partition in topic_partitions:
            self._cluster.invariants.on_deleting(process.machine.name, topic_partition)
            self._logs.on_cutting(process.machine, topic_partition)

    def _before_set_aside(
        self, process: BrokerProcess, _: RetiredLogs, topic_partition: Any, *__: Any
    ) -> None:
        self._cluster.invariants.on_deleting(process.machine.name, topic_partition)
        self._logs.on_cutting(process.machine, topic_partition)

    def _on_checkpoint(
        self, process: BrokerProcess, _: Any, __: Any, directory: LogDirectory, *___: Any
    ) -> None:
        self._logs.on_checkpoint(process.machine, directory)

    def _on_directory_close(
        self,
        process: BrokerProcess,
        _: Any,
        __: Any,
        directory: LogDirectory,
        *,
        clean: bool,
        **___: Any,
    ) -> None:
        if clean:
            self._logs.on_closed(process.machine, directory)

    def _before_life(
        self, process: BrokerProcess, _: LogDirectory, __: Any, broker_epoch: Any, *___: Any
    ) -> None:
        self._logs.on_remembering(process.machine, broker_epoch)

    def _on_life(
        self, process: BrokerProcess, _: Any, __: Any, directory: LogDirectory, *___: Any
    ) -> None:
        self._logs.on_life_begun(process.machine, directory)

    def _on_seen(
        self, process: BrokerProcess, _: Any, __: Any, directory: LogDirectory, *___: Any
    ) -> None:
        self._logs.on_seen_kept(process.machine, directory)

    def _before_seen(self, process: BrokerProcess, _: LogDirectory, seen: Any) -> None:
        self._logs.on_remembering(process.machine, seen)

    # --- Controllers -------------------------------------------------------------------------

    def _before_handle(
        self, _: BrokerProcess, controller: Controller, request_id: int, request: Any, *__: Any
    ) -> None:
        self._asked[controller, request_id] = request
        if isinstance(request, AlterPartitions):
            self._allowed[controller, request_id] = _allowed(controller, request)
        if isinstance(request, Heartbeat) and request.wants_shutdown:
            self._wants_to_stop.setdefault(request.life, self._cluster.now)

    def _after_controller(
        self, _: BrokerProcess, __: Any, effects: Any, controller: Controller, *___: Any
    ) -> None:
        for effect in effects:
            if isinstance(effect, Respond):
                request = self._asked.pop((controller, effect.request_id), None)
                result = effect.result
                self._states.on_answered(request, result)
                allowed = self._allowed.pop((controller, effect.request_id), None)
                if allowed is not None and isinstance(result, list):
                    self._states.on_altered(request, result, allowed)
                if (
                    isinstance(request, Heartbeat)
                    and isinstance(result, HeartbeatAnswer)
                    and result.may_stop
                ):
                    since = self._wants_to_stop.get(request.life, self._cluster.now)
                    self._states.on_stopping(request.life, self._cluster.now - since)

    def _before_unusable(
        self, process: BrokerProcess, _: ControllerShell, __: Controller, error: Any
    ) -> None:
        self._cluster.store.on_refused(process.machine.name, str(error))

    def _on_full_state(
        self, process: BrokerProcess, _: Any, __: Any, ___: MetadataCache, objects: Any
    ) -> None:
        epoch = objects[CLUSTER_KEY].controller_epoch
        self._cluster.invariants.on_full_state(process.machine, epoch)

    def _on_published(
        self, process: BrokerProcess, _: Any, __: Any, ___: BrokerSessions, objects: Any
    ) -> None:
        self._states.on_published(process.machine.name, objects)


def _allowed(controller: Controller, request: AlterPartitions) -> list[set[BrokerLife]]:
    """Return who may be in sync after each change: members so far, and who may join just now."""
    decided = controller._decided
    able = {
        broker.life
        for broker in decided.cluster.brokers.values()
        if not broker.is_fenced and not broker.is_draining
    }
    keys = (TopicPartition(change.topic_id, change.partition) for change in request.changes)
    states = map(decided.partition, keys)
    return [able if state is None else able.union(state.isr) for state in states]


def process_now() -> BrokerProcess | None:
    """Return the broker process that runs now; None: none does."""
    current = host.current
    process = current.process if isinstance(current, SimulatedHost) else None
    return process if isinstance(process, BrokerProcess) else None
