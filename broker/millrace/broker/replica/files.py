"""The files of this broker's replicas: runs the jobs of `FileJobs`, as `ReplicaPlacement` places.

A read thread of the directory opens a log, the append thread changes and deletes it, and the mover
copies it to another directory. All outcomes are reported on the event loop.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, assert_never

from millrace.broker import events
from millrace.broker.replica.appender import Appender, HeldAppends
from millrace.broker.replica.mover import ReplicaMover
from millrace.broker.replica.open_directory import OpenDirectory
from millrace.broker.replica.open_partitions import OpenPartitions
from millrace.broker.replica.partition import Partition
from millrace.broker.replica.reader import LogReader
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import LogDirectory
from millrace.core.errors import LogDirFailedError, MillraceError, StorageError
from millrace.core.events import Event
from millrace.core.ids import MonotonicMs, Offset, TopicId, TopicPartition, WallMs
from millrace.core.metadata.model import BrokerLife
from millrace.core.metadata.topic_config import Durability, TopicConfig
from millrace.core.replica.replication.effects import (
    Change,
    ChangeLog,
    CloseReplica,
    DropReplica,
    OpenLog,
    SetAside,
)
from millrace.core.replica.replication.events import DiskEvent, Flushed
from millrace.core.replica.replication.file_jobs import (
    RETRY_MS,
    DeleteTopics,
    FileJobs,
    Job,
    Outcome,
    QueuedJob,
)
from millrace.core.replica.replication.placement import Move, ReplicaPlacement
from millrace.core.replica.replication.rules import ReplicationConfig
from millrace.runtime.clock import monotonic_now, wall_now
from millrace.runtime.mailbox import Mailbox
from millrace.runtime.tasks import Tasks

_log = logging.getLogger(__name__)

_DELETED_AT_ONCE: Final = 200
"""Partitions that the append thread deletes at a time: renaming them delays appends by 20 ms."""
_NAMED_MAX: Final = 20
"""Partitions that one line of the log names."""


class Opened(NamedTuple):
    """A log that was opened, and what writes to it."""

    log: PartitionLog
    appender: Appender


class ReplicaFiles:
    """Runs jobs on the files of replicas, and says how they end.

    Args:
        broker: this broker's life.
        config: the broker's settings.
        directories: those that are open.
        mailbox: where threads answer.
        reader: its threads open logs.
        log_config: returns the settings of a topic's files.
        confirm: tells the controller that the data of topics is gone; raises if that failed.
        open_here: the replicas whose log is open.
        on_disk: called with what became of a log that is open.
        on_done: called with a job that succeeded, and with what it found: an `Opened` log, or the
            path of a log that was set aside.
        on_refused: called with a job that failed, and with what follows.
        on_directory_failed: called once for a directory.
        on_failure: called with an unexpected error.
        misses_a_directory: see `ReplicaPlacement`.
        retry_ms: see `FileJobs`.

    Attributes:
        placement: the directory of each replica.
        kept_ms: how long the files of deleted topics were kept when they are to be deleted.
    """

    def __init__(
        self,
        *,
        broker: BrokerLife,
        config: ReplicationConfig,
        directories: Sequence[LogDirectory],
        mailbox: Mailbox,
        reader: LogReader,
        log_config: Callable[[TopicConfig], LogConfig],
        confirm: Callable[[Sequence[TopicId]], Awaitable[object]],
        open_here: OpenPartitions,
        on_disk: Callable[[Partition, DiskEvent], None],
        on_done: Callable[[OpenLog | SetAside, Any], None],
        on_refused: Callable[[Job, Outcome, MillraceError], None],
        on_directory_failed: Callable[[OpenDirectory, LogDirFailedError], None],
        on_failure: Callable[[BaseException], None],
        misses_a_directory: bool,
        retry_ms: int = RETRY_MS,
    ) -> None:
        self._reader = reader
        self._log_config = log_config
        self._confirm = confirm
        self._open_here = open_here
        self._on_disk = on_disk
        self._on_done = on_done
        self._on_refused = on_refused
        self._on_directory_failed = on_directory_failed
        self._jobs = FileJobs(retry_ms)
        self._tasks = Tasks(on_failure)
        self._under_way: dict[asyncio.Task[None], Job] = {}
        self.kept_ms = 0
        self._mover = ReplicaMover(
            mailbox,
            bytes_per_second=config.catch_up_bytes_per_second,
            is_wanted=self._is_to_move,
            on_taken_in=self._on_taken_in,
        )
        self.placement = ReplicaPlacement(
            broker,
            [self._open_directory(directory, mailbox) for directory in directories],
            moves_max=config.replica_moves_max,
            misses_a_directory=misses_a_directory,
        )

    def _open_directory(self, directory: LogDirectory, mailbox: Mailbox) -> OpenDirectory:
        opened: OpenDirectory

        def on_failed(error: LogDirFailedError) -> None:
            if not error.is_about(directory.path):
                for other in self.placement.directories:
                    if other.directory.path == error.log_dir:
                        other.appender.fail(error)
            elif self.placement.on_failed(opened, error):
                self._on_directory_failed(opened, error)

        appender = Appender(
            directory.path,
            mailbox,
            directory.checkpoint,
            on_disk=self._on_disk,
            on_failed=on_failed,
            check_room=directory.ballast.check,
            give_room=directory.ballast.give_up,
            may_append_cached=lambda: (
                directory.can_append_cached and not directory.ballast.is_missing
            ),
        )
        opened = OpenDirectory(
            media=directory.media,
            replicas=set(directory.found),
            directory=directory,
            appender=appender,
        )
        return opened

    # --- Requests ----------------------------------------------------------------------------

    def want(self, job: QueuedJob) -> None:
        """Do a job after the earlier ones on its partition."""
        self._jobs.want(job)
        self._begin()

    def change(self, job: ChangeLog) -> None:
        """Change the log of a replica that is open."""
        self._jobs.change(job)
        self._begin()

    def delete(self, topic_ids: Sequence[TopicId]) -> None:
        """Delete the data of topics; each image names them until the deletion is confirmed."""
        self._jobs.delete(topic_ids)
        self._begin()

    def on_closed(self, topic_partition: TopicPartition) -> None:
        """A replica is given up, or offline."""
        self.placement.on_tier(topic_partition, None)
        self.placement.moves.on_closed(topic_partition)
        self._jobs.on_closed(topic_partition)
        self._begin()

    def tick(self, now: MonotonicMs) -> None:
        """Begin jobs that are due: retries, and moves."""
        for move in self.placement.begin_moves(now):
            self._jobs.want(move)
        self._begin()

    async def settled(self) -> None:
        """Return once the files agree with the metadata, as far as the disks allow."""
        await self._until_over(self._jobs.leads_to_opening)
        for opened in self.placement.working:
            with suppress(StorageError):  # Housekeeping tries it again.
                await opened.appender.call_beside(opened.directory.keep_points)
        await self._until_over(lambda job: isinstance(job, DeleteTopics))

    async def _until_over(self, is_meant: Callable[[Job], bool]) -> None:
        """Wait for some of the jobs; a job that is retried later counts as over."""
        while tasks := [task for task, job in self._under_way.items() if is_meant(job)]:
            await asyncio.wait(tasks)

    async def stop(self) -> None:
        """End what is under way, but for what the append threads have been told."""
        await self._tasks.cancel()
        await asyncio.to_thread(self._mover.close)

    # --- Jobs --------------------------------------------------------------------------------

    def _begin(self) -> None:
        for job in self._jobs.ready(monotonic_now()):
            if isinstance(job, ChangeLog) and job.change is Change.FLUSH:
                self._flush(job)
            else:
                task = self._tasks.begin(self._do(job))
                self._under_way[task] = job
                task.add_done_callback(self._under_way.pop)

    async def _do(self, job: Job) -> None:
        try:
            match job:
                case OpenLog():
                    await self._open(job)
                case ChangeLog():
                    await self._change(job)
                case CloseReplica(topic_partition):
                    await self._close(topic_partition)
                case DropReplica(topic_partition):
                    await self._drop(topic_partition)
                case SetAside():
                    await self._set_aside(job)
                case Move():
                    await self._move(job)
                case DeleteTopics(topic_ids):
                    await self._delete_topics(topic_ids)
                case _:
                    assert_never(job)
        except MillraceError as error:
            self._on_failed(job, error)
        else:
            self._jobs.on_done(job)
        self._begin()

    def _on_failed(self, job: Job, error: MillraceError) -> None:
        now, is_log_lost = monotonic_now(), False
        if isinstance(job, Move):
            partition = self._open_here.find(job.topic_partition)
            is_log_lost = partition is not None and (
                isinstance(partition.appender, HeldAppends) or partition.log.failure is not None
            )
            self.placement.moves.on_ended(job.topic_partition, now, is_refused=True)
            self._tell(events.REPLICA_NOT_MOVED, job, error=error.message)
        outcome = self._jobs.on_failed(job, error, now, is_log_lost=is_log_lost)
        self._on_refused(job, outcome, error)

    async def _open(self, job: OpenLog) -> None:
        topic_partition, topic = job.topic_partition, job.topic
        opened = self.placement.place(topic_partition, topic, is_first=job.is_first)
        try:
            log: PartitionLog = await self._reader.call(
                opened.directory.path,
                _open_log,
                opened.directory,
                topic_partition,
                self._log_config(topic.config),
                topic.config.durability,
            )
        except LogDirFailedError as error:
            opened.appender.fail(error)
            raise
        if self._jobs.is_void(job):
            return
        opened.check()  # It may have failed before this log was open.
        self._note_tier(topic_partition, log)
        self._on_done(job, Opened(log, opened.appender))

    def _note_tier(self, topic_partition: TopicPartition, log: PartitionLog) -> None:
        """Note in which log directory the oldest segments of a replica lie.

        Raises:
            LogDirFailedError: it has failed.
        """
        for directory in self.placement.directories:
            if log.tier is not None and directory.directory.path == log.tier.log_dir:
                directory.check()
                self.placement.on_tier(topic_partition, directory)

    async def _change(self, job: ChangeLog) -> None:
        partition = self._open_here.find(job.topic_partition)
        if partition is None or self._jobs.is_void(job):
            return
        await partition.appender.call(_change, partition, job, wall_now())
        if not self._jobs.is_void(job):
            partition.unchanged = None
            self._on_disk(partition, partition.changed(job.change))

    def _flush(self, job: ChangeLog) -> None:
        """Make a log durable; no later write is reported before that."""
        partition = self._open_here.find(job.topic_partition)
        assert partition is not None

        def done(flushed: Offset | None, error: BaseException | None) -> None:
            if flushed is not None:
                self._jobs.on_done(job)
                partition.unchanged = None
                self._on_disk(partition, Flushed(flushed))
            elif isinstance(error, MillraceError):
                self._on_failed(job, error)
            else:
                assert error is not None
                raise error

        partition.appender.call_then(done, _flush, partition)

    async def _close(self, topic_partition: TopicPartition) -> None:
        holder = self.placement.holder(topic_partition)
        if holder is not None:
            await holder.appender.call(_nothing)  # Wait for all earlier appends and changes.
            await holder.appender.call_beside(holder.directory.close_partition, topic_partition)

    async def _drop(self, topic_partition: TopicPartition) -> None:
        holder = self.placement.holder(topic_partition)
        if holder is not None:
            await self._delete_files(holder, [topic_partition], wall_now())

    async def _delete_topics(self, topic_ids: Sequence[TopicId]) -> None:
        for opened, replicas in self.placement.of_topics(frozenset(topic_ids)):
            for at in range(0, len(replicas), _DELETED_AT_ONCE):
                some = replicas[at : at + _DELETED_AT_ONCE]
                # The time since the deletion, when they could be brought back, counts already.
                await self._delete_files(opened, some, WallMs(max(wall_now() - self.kept_ms, 0)))
        left, kept = {}, set[TopicId]()
        for directory in self.placement.directories:
            there = directory.directory.retired.left_of(frozenset(topic_ids))
            if directory.failure is None:
                left[directory.directory.path] = there
            else:
                kept.update(topic_partition.topic_id for topic_partition in there)
        await self._retire_tiers(left, wall_now())
        # When its disk comes back, only the metadata knows what is deleted there.
        kept |= self.placement.kept_of(topic_ids)
        if gone := [topic_id for topic_id in topic_ids if topic_id not in kept]:
            await self._confirm(gone)

    async def _delete_files(
        self, opened: OpenDirectory, topic_partitions: Sequence[TopicPartition], since: WallMs
    ) -> None:
        if opened.failure is None:
            directory, call = opened.directory, opened.appender.call
            # First the other disks: a crash leaves what names them.
            await self._retire_tiers(await call(directory.let_go, topic_partitions), since)
            await call(directory.retired.delete, topic_partitions, since)
            self.placement.on_deleted(opened, topic_partitions)

    async def _retire_tiers(
        self,
        topic_partitions: Mapping[str, Sequence[TopicPartition]],
        now: WallMs,
        *,
        is_damaged: bool = False,
    ) -> None:
        """Put segments of logs that are closed into the trash of other disks, or set them aside.

        By log directory, each on its own thread. What a disk refuses stays there.
        """
        for opened in self.placement.directories:
            there = topic_partitions.get(opened.directory.path)
            if not there:
                continue
            try:
                opened.check()
                retire = opened.directory.retired.retire_tiers
                await opened.appender.call(retire, there, now, is_damaged)
            except StorageError as error:
                if opened.failure is not None and not is_damaged:
                    opened.tiers.update(there)  # Their topics are not confirmed as deleted.
                events.TIERS_KEPT.log(
                    _log,
                    log_dir=opened.directory.path,
                    partitions=len(there),
                    kept=[str(replica) for replica in there[:_NAMED_MAX]],
                    error=error.message,
                )

    async def _set_aside(self, job: SetAside) -> None:
        topic_partition = job.topic_partition
        opened = self.placement.holder(topic_partition)
        assert opened is not None
        directory, call, now = opened.directory, opened.appender.call, wall_now()
        tiers = await call(directory.tiers_of, [topic_partition])
        path: str = await call(directory.retired.set_aside, topic_partition, now)
        await self._retire_tiers(tiers, now, is_damaged=True)
        self._on_done(job, path)

    async def _move(self, move: Move[Any]) -> None:
        topic_partition = move.topic_partition
        source: OpenDirectory = move.source
        target: OpenDirectory = move.target
        partition = self._open_here.find(topic_partition)
        if partition is not None:
            self._tell(events.REPLICA_MOVES, move)
            log = partition.log
            await self._mover.move(partition, source, target)
            if topic_partition in target.replicas:
                self._tell(events.REPLICA_MOVED, move)
                if log.tier is not None:
                    await self._retire_tiers({log.tier.log_dir: [topic_partition]}, wall_now())
        self.placement.moves.on_ended(topic_partition, monotonic_now())

    def _tell(self, event: Event, move: Move[OpenDirectory], **more: Any) -> None:
        event.log(
            _log,
            partition=self._open_here.named(move.topic_partition),
            source=move.source.directory.path,
            target=move.target.directory.path,
            **more,
        )

    def _is_to_move(self, partition: Partition, target: OpenDirectory) -> bool:
        topic_partition = partition.topic_partition
        is_open = self._open_here.find(topic_partition) is partition
        return is_open and self.placement.is_to_move(topic_partition, target)

    def _on_taken_in(
        self,
        partition: Partition,
        log: PartitionLog,
        source: OpenDirectory,
        target: OpenDirectory,
    ) -> None:
        """Continue with another log, which has everything of the one before, all of it flushed."""
        topic_partition = partition.topic_partition
        self.placement.on_moved(Move(topic_partition, source, target))
        partition.log = log
        if self._open_here.find(topic_partition) is partition:
            log.config = self._log_config(partition.config)
            log.high_watermark = partition.replica.high_watermark
            self.placement.on_opened(topic_partition, partition.config.media)
            partition.replica.log = log
            # Retention may have run just before.
            self._on_disk(partition, partition.changed(Change.ADVANCE_START))
            self._on_disk(partition, Flushed(log.flushed_offset))


def _nothing() -> None:
    pass


# The log may have moved since these were submitted: they take the present one.


def _change(partition: Partition, job: ChangeLog, now: WallMs) -> None:
    log = partition.log
    match job.change:
        case Change.TRUNCATE:
            log.truncation.truncate_to(job.offset, now)
        case Change.START_OVER:
            log.truncation.start_over(job.offset)
        case Change.ADVANCE_START:
            log.retention.advance_log_start(job.offset)


def _flush(partition: Partition) -> Offset:
    return partition.log.flusher.flush()


def _open_log(
    directory: LogDirectory,
    topic_partition: TopicPartition,
    config: LogConfig,
    durability: Durability,
) -> PartitionLog:
    log = directory.open_partition(topic_partition, config, wall_now())
    for path in log.mended:
        events.FILE_REBUILT.log(_log, partition=str(topic_partition), path=path)
    if durability is Durability.FSYNC:
        # Recovered records are committed, so they must be as durable as the rest.
        log.flusher.flush()
    return log
