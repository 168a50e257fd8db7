"""All replicas of this broker: performs the effects of their machine, `Replicas`.

Events go in, from the metadata, the append threads, the streams to leaders, followers and the
clock; the effects are performed in their order, on the event loop. The machine makes all decisions,
and `ReplicaFiles` does the work on files.

A log on disk that no image names is left alone: data is deleted only on a deletion that the
metadata states, or when a later state gives the partition to others (P33, P39, P70).

A log directory that fails takes its partitions offline, and only those (P63).

The failure of the last one ends the process: `on_all_failed`. A damaged log is set aside once the
metadata no longer counts on the replica, and a new one is fetched from the leader (P65); each step
is logged, and the damaged files are left for people.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, assert_never

from millrace.broker import events
from millrace.broker.replica.files import Opened, ReplicaFiles
from millrace.broker.replica.open_directory import OpenDirectory
from millrace.broker.replica.open_partitions import OpenPartitions
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.reader import LogReader
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import LogDirectory
from millrace.core.errors import (
    Appended,
    LogDirFailedError,
    MillraceError,
)
from millrace.core.events import Event
from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
    parse_topic_partition,
)
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.image import MetadataChanges, MetadataImage
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.requests import (
    AlterPartitions,
    ConfirmDeletions,
    LogEnd,
    RenewReplicas,
)
from millrace.core.metadata.topic_config import Durability, TopicConfig
from millrace.core.replica.replication.effects import (
    Append,
    Change,
    ChangeLog,
    CloseReplica,
    Complete,
    Configure,
    DropReplica,
    Effect,
    FetchFrom,
    Halted,
    OpenLog,
    ProposeIsr,
    ProposeRenewals,
    RecordsLost,
    SetAside,
    StopFetching,
    Wake,
)
from millrace.core.replica.replication.events import Corrupt, DiskEvent
from millrace.core.replica.replication.file_jobs import RETRY_MS, DeleteTopics, Job, Outcome
from millrace.core.replica.replication.placement import Move
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.replicas import Replicas
from millrace.core.replica.replication.rules import ReplicationConfig
from millrace.runtime.clock import monotonic_now
from millrace.runtime.mailbox import Mailbox
from millrace.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

AskController = Callable[[AlterPartitions | RenewReplicas | ConfirmDeletions], Awaitable[Any]]
"""Asks the controller for changes, and returns its answers; raises if all are refused."""

_TICK_SECONDS: Final = 0.1
"""Pause between ticks of the machine; `replica_lag_time_max_ms` is at least as long."""


class Partitions(OpenPartitions):
    """Feeds the machine with events, and performs its effects.

    Attributes:
        placement: the log directory of each replica.
    """

    def __init__(
        self,
        *,
        broker: BrokerLife,
        config: ReplicationConfig,
        directories: Sequence[LogDirectory],
        ask_controller: AskController,
        mailbox: Mailbox,
        log_config: Callable[[TopicConfig], LogConfig],
        inflated_bytes_max: int,
        on_changes: Callable[[MetadataChanges], None],
        on_lost: Callable[[str, int], None],
        on_replicated: Callable[[float], object],
        on_all_failed: Callable[[LogDirFailedError], None],
        on_failure: Callable[[BaseException], None],
        reader: LogReader,
        misses_a_directory: bool,
        retry_ms: int = RETRY_MS,
    ) -> None:
        on_disk = [found for directory in directories for found in directory.found]
        super().__init__(Replicas(broker, config, on_disk))
        self._sessions_callbacks: list[Callable[[], None]] = []
        self._opened_callbacks: list[Callable[[Partition], None]] = []
        self._broker = broker
        self._ask_controller = ask_controller
        self._log_config = log_config
        self._inflated_bytes_max = inflated_bytes_max
        self._on_changes = on_changes
        self._on_lost = on_lost
        self._on_replicated = on_replicated
        self._on_all_failed = on_all_failed
        self._tasks = Tasks(on_failure)
        self._files = ReplicaFiles(
            broker=broker,
            config=config,
            directories=directories,
            mailbox=mailbox,
            reader=reader,
            log_config=log_config,
            confirm=self._confirm_deletions,
            open_here=self,
            on_disk=self.on_disk,
            on_done=self._on_job_done,
            on_refused=self._on_job_refused,
            on_directory_failed=self.on_directory_failed,
            on_failure=on_failure,
            misses_a_directory=misses_a_directory,
            retry_ms=retry_ms,
        )
        self.placement = self._files.placement

    @property
    def directories(self) -> Sequence[OpenDirectory]:
        """All log directories, also those that have failed."""
        return self.placement.directories

    def not_ours(self) -> list[TopicPartition]:
        """Return the partitions on disk that the metadata does not assign to this broker.

        The cluster does not rely on these copies: other brokers have the partition, or it does not
        exist.
        """
        return [] if self.image is None else self.placement.unassigned(self.image)

    def configure(self, config: ClusterConfig) -> None:
        """Follow the settings of the cluster from now on."""
        self.replicas.configure(request_partitions_max=config.request_partitions_max)
        self._files.kept_ms = config.deleted_topic_retention_ms

    def add_opened_callback(self, callback: Callable[[Partition], None]) -> None:
        """Call this with each replica whose log is opened from now on."""
        self._opened_callbacks.append(callback)

    def add_sessions_callback(self, callback: Callable[[], None]) -> None:
        """Call this from now on when there may be news for leaders."""
        self._sessions_callbacks.append(callback)

    # --- Events ------------------------------------------------------------------------------

    def on_image(self, image: MetadataImage) -> None:
        """Follow the metadata."""
        before, self.image = self.image, image
        self.perform(self.replicas.on_image(image, monotonic_now()))
        if before is not None:
            self._on_changes(image.changes_since(before))
        self._files.delete(image.deletions_of(self._broker.broker_id))

    async def settled(self) -> None:
        """Return once this broker's files agree with the present metadata."""
        await self._files.settled()

    async def tick(self) -> None:
        """Tell the machines the time, for as long as the broker runs."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = monotonic_now()
            self.perform(self.replicas.tick(now))
            self._files.tick(now)

    def on_disk(self, partition: Partition, event: DiskEvent) -> None:
        """Something became of a replica's log."""
        topic_partition = partition.topic_partition
        if self._open.get(topic_partition) is not partition:
            return
        if isinstance(event, Corrupt):
            self.take_offline(topic_partition, event.error)
            return
        self.perform(self.replicas.on_disk(topic_partition, event, monotonic_now()))
        partition.note_durable()

    def on_follower_progress(
        self,
        topic_partition: TopicPartition,
        life: BrokerLife,
        leader_epoch: LeaderEpoch,
        progress: FollowerProgress,
    ) -> None:
        """Take a follower's report about its log.

        Raises:
            MillraceError: as in `Replicas.on_follower_progress`.
        """
        self.perform(
            self.replicas.on_follower_progress(
                topic_partition, life, leader_epoch, progress, monotonic_now()
            )
        )

    def take_offline(self, topic_partition: TopicPartition, error: MillraceError) -> None:
        """Stop serving one partition whose log is damaged; its files are left as they are (P65).

        An error of an earlier log, which was set aside meanwhile, does not concern the one that
        replaced it.
        """
        partition = self._open.get(topic_partition)
        if partition is not None and partition.log.failure is not None:
            self._go_offline(topic_partition, error)

    def _go_offline(self, topic_partition: TopicPartition, error: MillraceError) -> None:
        events.PARTITION_OFFLINE.log(_log, partition=str(topic_partition), error=error.message)
        # Appends under way may or may not have been written.
        maybe = error.again(Appended.MAYBE)
        self.perform(self.replicas.on_failed(topic_partition, maybe))
        self._forget(topic_partition)

    def _forget(self, topic_partition: TopicPartition) -> Partition | None:
        """Forget a partition's open log; return the replica that had it."""
        partition = self._open.pop(topic_partition, None)
        self._files.on_closed(topic_partition)
        return partition

    def on_directory_failed(self, opened: OpenDirectory, error: LogDirFailedError) -> None:
        """Take the replicas there offline; without any directory left, the process ends."""
        events.LOG_DIR_FAILED.log(_log, log_dir=opened.directory.path, error=error.message)
        self.on_unreadable(opened, error)
        if self.placement.has_failed:
            self._on_all_failed(error)

    def on_unreadable(self, opened: OpenDirectory, error: LogDirFailedError) -> None:
        """Take the replicas offline that have segments on a directory that has failed (P63), or had
        some when it failed their logs."""
        path = opened.directory.path
        for topic_partition, partition in list(self._open.items()):
            log = partition.log
            is_tier_there = log.tier is not None and log.tier.log_dir == path
            if topic_partition in opened.replicas or is_tier_there or log.failed_log_dir == path:
                self.perform(self.replicas.on_failed(topic_partition, error))
                self._forget(topic_partition)

    def log_ends(self, asked: Iterable[TopicPartition]) -> list[LogEnd]:
        """Return the ends, on disk, of these logs without a leader (P31)."""
        ends = map(self.replicas.log_end, asked)
        return [end for end in ends if end is not None]

    # --- Effects -----------------------------------------------------------------------------

    def perform(self, effects: Iterable[Effect]) -> None:
        """Perform the machine's effects."""
        for effect in effects:
            match effect:
                case Append(topic_partition, batches, generation):
                    replicated = self._open[topic_partition].append_replicated
                    replicated(batches, generation)  # type: ignore[arg-type]
                case ChangeLog():
                    self._files.change(effect)
                case Complete(_, waiters):
                    for waiter in waiters:
                        waiter.owner.on_append_done(waiter)  # type: ignore[attr-defined]
                case Wake():
                    self._wake(effect)
                case Configure(topic_partition, topic):
                    self._configure(topic_partition, topic.config)
                case OpenLog() | SetAside():
                    self._files.want(effect)
                case CloseReplica() | DropReplica():
                    self._close(effect)
                case Halted(topic_partition, error):
                    events.REPLICA_HALTED.log(
                        _log, partition=str(topic_partition), error=error.message
                    )
                case RecordsLost():
                    self._report_lost(effect)
                case ProposeIsr() | ProposeRenewals():
                    self._tasks.begin(self._ask(effect))
                case FetchFrom() | StopFetching():
                    raise AssertionError("the machine keeps the sessions with leaders itself")
                case _:
                    assert_never(effect)
        self._tell_sessions()

    def _tell_sessions(self) -> None:
        for callback in self._sessions_callbacks:
            callback()

    def _wake(self, effect: Wake) -> None:
        partition = self._open.get(effect.topic_partition)
        if partition is None:
            return
        if effect.only_followers:
            partition.on_followers_concerned()
            return
        partition.log.high_watermark = partition.replica.high_watermark
        partition.on_readers_concerned()
        if (seconds := partition.take_replication_seconds()) is not None:
            self._on_replicated(seconds)

    def _close(self, effect: CloseReplica | DropReplica) -> None:
        """Stop serving a partition; its log is closed later, in a job or with its directory."""
        partition = self._forget(effect.topic_partition)
        if partition is not None:
            partition.on_readers_concerned()
        if isinstance(effect, DropReplica) or effect.may_return:
            self._files.want(effect)

    async def _ask(self, effect: ProposeIsr | ProposeRenewals) -> None:
        """Ask the controller, and pass its answers to the machine."""
        request: AlterPartitions | RenewReplicas
        match effect:
            case ProposeIsr(proposals):
                on_answers = self.replicas.on_isr_answers
                request = AlterPartitions(
                    changes=[
                        proposal.request_of(topic_partition, self._broker)
                        for topic_partition, proposal in proposals
                    ]
                )
            case ProposeRenewals(renewals):
                on_answers = self.replicas.unopened.on_answers
                request = RenewReplicas(replica=self._broker, renewals=renewals)
        answers: Sequence[MillraceError | None] | MillraceError
        try:
            answers = await self._ask_controller(request)
        except MillraceError as error:
            answers = error
        self.perform(on_answers(answers, monotonic_now()))

    def _report_lost(self, lost: RecordsLost) -> None:
        topic = self._open[lost.topic_partition].topic
        events.RECORDS_TAKEN_BACK.log(
            _log,
            topic=topic,
            partition=lost.topic_partition.partition,
            start_offset=lost.start_offset,
            end_offset=lost.end_offset,
            # Records before it were certainly acknowledged; the rest is unknown here.
            committed_offset=lost.committed_offset,
            leader_epoch=lost.leader_epoch,
        )
        self._on_lost(topic, lost.end_offset - lost.start_offset)

    def advance_log_start(self, partition: Partition, start_offset: Offset) -> None:
        """Begin to delete all records before an offset; all of them are committed."""
        if self._open.get(partition.topic_partition) is partition:
            self._files.change(
                ChangeLog(partition.topic_partition, Change.ADVANCE_START, start_offset)
            )

    def _configure(self, topic_partition: TopicPartition, config: TopicConfig) -> None:
        partition = self._open[topic_partition]
        self.placement.on_opened(topic_partition, config.media)
        if config == partition.config:
            return
        becomes_durable = (
            config.durability is Durability.FSYNC and not partition.is_flushed_before_ack
        )
        partition.log.config = self._log_config(config)
        partition.configure(config)
        if becomes_durable:  # Earlier writes did not have to be flushed.
            self._files.change(ChangeLog(topic_partition, Change.FLUSH))

    async def _confirm_deletions(self, topic_ids: Sequence[TopicId]) -> None:
        await self._ask_controller(
            ConfirmDeletions(broker_id=self._broker.broker_id, topic_ids=topic_ids)
        )

    # --- Events of files ---------------------------------------------------------------------

    def _on_job_done(self, job: OpenLog | SetAside, found: Any) -> None:
        match job:
            case OpenLog():
                self._on_log_opened(job, found)
            case SetAside(topic_partition):
                events.LOG_SET_ASIDE.log(_log, partition=self.named(topic_partition), kept_in=found)
                self.perform(self.replicas.unopened.on_set_aside(topic_partition))

    def _on_log_opened(self, job: OpenLog, opened: Opened) -> None:
        topic_partition, topic, log = job.topic_partition, job.topic, opened.log
        effects = self.replicas.on_opened(topic_partition, log, log.high_watermark, monotonic_now())
        replica = self.replicas.find(topic_partition)
        if replica is None:
            self.perform(effects)
            return
        partition = self._open[topic_partition] = Partition(
            topic=str(topic.name),
            topic_partition=topic_partition,
            config=topic.config,
            replica=replica,
            log=log,
            appender=opened.appender,
            inflated_bytes_max=self._inflated_bytes_max,
        )
        self.perform(effects)
        if self._open.get(topic_partition) is partition:
            for callback in self._opened_callbacks:
                callback(partition)

    def _on_job_refused(self, job: Job, outcome: Outcome, error: MillraceError) -> None:
        match job, outcome:
            case ((OpenLog() | ChangeLog() | Move()), Outcome.OFFLINE):
                self._go_offline(job.topic_partition, error)
            case OpenLog(), Outcome.AGAIN:
                self._warn(events.LOG_NOT_OPENED, job.topic_partition, error)
                self.replicas.unopened.on_refused(job.topic_partition, error)
            case SetAside(), _:
                self._warn(events.LOG_NOT_SET_ASIDE, job.topic_partition, error)
                now = monotonic_now()
                self.perform(self.replicas.on_set_aside_failed(job.topic_partition, error, now))
            case ChangeLog(), Outcome.AGAIN:
                self._warn_unchanged(job.topic_partition, error)
            case CloseReplica(), _ if not isinstance(error, LogDirFailedError):
                self._warn(events.DELETED_LOG_NOT_CLOSED, job.topic_partition, error)
            case DropReplica(), Outcome.AGAIN:
                self._tell(events.REPLICA_NOT_DELETED, job.topic_partition, error)
            case DeleteTopics(), Outcome.AGAIN:
                events.TOPICS_NOT_DELETED.log(_log, error=error.message)

    def _warn(self, event: Event, topic_partition: TopicPartition, error: MillraceError) -> None:
        """Log why a replica is offline, unless it was logged."""
        if _is_news(error, self.replicas.unopened.errors.get(topic_partition)):
            self._tell(event, topic_partition, error)

    def _warn_unchanged(self, topic_partition: TopicPartition, error: MillraceError) -> None:
        """Log why a log is not changed, unless it was logged: a full disk refuses each second."""
        partition = self.find(topic_partition)
        if partition is None:
            return
        known, partition.unchanged = partition.unchanged, error
        if _is_news(error, known):
            self._tell(events.LOG_NOT_CHANGED, topic_partition, error)

    def _tell(self, event: Event, topic_partition: TopicPartition, error: MillraceError) -> None:
        event.log(_log, partition=self.named(topic_partition), error=error.message)

    def damaged_logs(self, topic_partition: TopicPartition) -> list[str]:
        """Return the paths of a partition's logs that were set aside here."""
        return [
            path
            for directory in self.directories
            for path in directory.directory.retired.damaged_of(topic_partition)
        ]

    def damaged(self) -> list[TopicPartition]:
        """Return the partitions whose log is offline here, lacks records, or was set aside."""
        kept = {
            found
            for directory in self.directories
            for path in directory.directory.retired.damaged
            if (found := parse_topic_partition(path.rpartition("/")[2].split(".")[0])) is not None
        }
        return sorted({*self.replicas.unopened.errors, *self.replicas.lacking(), *kept})

    # --- The end -----------------------------------------------------------------------------

    async def stop(self) -> None:
        """End all work under way, except that of the append threads."""
        await self._tasks.cancel()
        await self._files.stop()


def _is_news(error: MillraceError, known: MillraceError | None) -> bool:
    return known is None or known.message != error.message
