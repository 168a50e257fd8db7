"""All replicas of this broker: performs what the machine of them, `Replicas`, says.

Events go in, from the metadata, the append threads, the streams to leaders, followers and the
clock; the effects are performed in their order, on the event loop, and those that touch files by
the append thread of the partition's log directory. Everything that decides is in the machine.

A log on disk that no image names is left alone: data is deleted only on a deletion that the
metadata states, or when a later state gives the partition to others (P33, P39, P70).

A log directory that fails takes its partitions offline, and only those (P63). The last one takes
the process with it: `on_all_failed`.

A log that cannot be opened for want of space, descriptors or memory is offline, and is tried again
for as long as the metadata wants it here (P64): so it is back as soon as there is room.

A replica that lies on another media than its topic asks for, and whose broker has that media, is
moved there (`replica_mover`). Nobody else touches its files meanwhile: whoever is to delete them or
to set them aside waits for that.

A log that is damaged is set aside once nobody counts on the replica, and a new one is fetched from
the leader (P65); people are told at each step, and the damaged files are theirs.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from millrace.broker.runtime.appender import Appender, HeldAppends
from millrace.broker.runtime.clock import monotonic_now, wall_now
from millrace.broker.runtime.mailbox import Mailbox
from millrace.broker.runtime.open_directory import OpenDirectory
from millrace.broker.runtime.partition import Partition
from millrace.broker.runtime.reader import LogReader
from millrace.broker.runtime.replica_mover import ReplicaMover
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import LogDirectory
from millrace.core.errors import (
    Appended,
    CorruptLogError,
    LogDirFailedError,
    MillraceError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicPartition,
    parse_topic_partition,
)
from millrace.core.media import Media, TopicMedia
from millrace.core.metadata.image import MetadataChanges, MetadataImage
from millrace.core.metadata.model import BrokerLife, Topic
from millrace.core.metadata.requests import (
    AlterPartition,
    AlterPartitions,
    ConfirmDeletions,
    LogEnd,
    RenewReplicas,
    ReplicaRenewal,
)
from millrace.core.metadata.topic_config import Durability, TopicConfig
from millrace.core.replication.follower import AdvanceLogStart, Append, StartAnew, Truncate
from millrace.core.replication.in_sync import IsrProposal
from millrace.core.replication.progress import FollowerProgress
from millrace.core.replication.replica_moves import ReplicaMoves
from millrace.core.replication.replicas import (
    Advanced,
    CloseReplica,
    Completed,
    Configure,
    DropReplica,
    Effect,
    Extended,
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

_log = logging.getLogger(__name__)

AskController = Callable[[AlterPartitions | RenewReplicas | ConfirmDeletions], Awaitable[Any]]
"""Asks the controller for a change, and returns its answers; raises what refuses it as a whole."""

_TICK_SECONDS: Final = 0.1
"""How often the machine looks at the time; `replica_lag_time_max_ms` is at least as long."""
_DELETED_AT_ONCE: Final = 200
"""Partitions that the append thread deletes in one go: to rename them keeps appends some 20 ms."""
_PAUSE_SECONDS: Final = 1.0
"""Before a disk that is full, or busy, is asked again."""


class Partitions:
    """See the module. Iterates over the replicas that are open here.

    Attributes:
        replicas: the machine.
        moves: the replicas that lie on the wrong media, and which of them move.
        image: the metadata that was applied last.
        on_sessions_concerned: called when there may be something to say to leaders.
        on_opened: called with each replica whose log was opened.
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
        on_all_failed: Callable[[LogDirFailedError], None],
        on_failure: Callable[[BaseException], None],
        reader: LogReader,
        misses_a_directory: bool,
    ) -> None:
        on_disk = [found for each in directories for found in each.found]
        self.replicas = Replicas(broker, config, on_disk)
        self.image: MetadataImage | None = None
        self.on_sessions_concerned: Callable[[], None] = lambda: None
        self.on_opened: Callable[[Partition], None] = lambda _: None
        self._broker = broker
        self._ask_controller = ask_controller
        self._log_config = log_config
        self._inflated_bytes_max = inflated_bytes_max
        self._on_changes = on_changes
        self._on_lost = on_lost
        self._on_all_failed = on_all_failed
        self._on_failure = on_failure
        self._reader = reader
        self._misses_a_directory = misses_a_directory
        self._is_first_image = True
        self._open_here: dict[TopicPartition, Partition] = {}
        self.moves = ReplicaMoves(config.replica_moves_max)
        self._mover = ReplicaMover(
            mailbox,
            bytes_per_second=config.catch_up_bytes_per_second,
            is_wanted=self._is_to_move,
            on_taken_in=self._on_taken_in,
        )
        self._moving: dict[TopicPartition, asyncio.Task[None]] = {}
        self._opening: dict[TopicPartition, asyncio.Task[None]] = {}
        self._dropping: dict[TopicPartition, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._deleting: asyncio.Task[None] | None = None
        self._deletes_again_at: MonotonicMs | None = None
        self.directories = [self._open_directory(each, mailbox) for each in directories]

    def _open_directory(self, directory: LogDirectory, mailbox: Mailbox) -> OpenDirectory:
        opened: OpenDirectory

        def on_failed(error: LogDirFailedError) -> None:
            self._on_directory_failed(opened, error)

        appender = Appender(
            directory.path, mailbox, directory.checkpoint, on_failed, directory.check_room
        )
        opened = OpenDirectory(directory, appender, set(directory.found))
        return opened

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._open_here)

    def __len__(self) -> int:
        return len(self._open_here)

    def all(self) -> list[Partition]:
        """Return every replica that is open here."""
        return list(self._open_here.values())

    def find(self, topic_partition: TopicPartition) -> Partition | None:
        """Return a replica that is open here; from any thread."""
        return self._open_here.get(topic_partition)

    def get(self, topic_partition: TopicPartition) -> Partition:
        """Return a replica that is open here; from any thread.

        Raises:
            UnknownTopicOrPartitionError: this broker has no such replica.
            LogDirFailedError, CorruptLogError: it has, but its log is offline.
        """
        partition = self._open_here.get(topic_partition)
        if partition is None:
            self.replicas.get(topic_partition)  # Says why.
            raise UnknownTopicOrPartitionError(
                f"this broker has no partition {topic_partition}: refresh the metadata"
            )
        return partition

    def is_in_sync(self, topic_partition: TopicPartition) -> bool:
        """Return whether this broker's replica is in sync, as of the latest metadata."""
        state = None if self.image is None else self.image.partition(topic_partition)
        return state is not None and self._broker in state.isr

    def not_ours(self) -> list[TopicPartition]:
        """Return what lies on the directories, and this broker has no replica of by the metadata.

        Nobody counts on that here: others have it, or nobody knows whose it is.
        """
        if self.image is None:
            return []
        states = {
            found: self.image.partition(found)
            for each in self.directories
            for found in each.directory.found
        }
        return [
            found
            for found, state in states.items()
            if state is None or self._broker.broker_id not in state.replicas
        ]

    # --- Events ------------------------------------------------------------------------------

    def on_image(self, image: MetadataImage) -> None:
        """Follow the metadata."""
        before, self.image = self.image, image
        self.perform(self.replicas.on_image(image, monotonic_now()))
        self._is_first_image = False
        if before is not None:
            self._on_changes(image.changes_since(before))
        self._begin_deleting()

    async def settled(self) -> None:
        """Return once this broker's files are as the metadata of this moment wants them."""
        await self._opened()
        for opened in self.directories:
            if opened.failure is None:
                with suppress(StorageError):  # Housekeeping tries it again.
                    await opened.appender.call_beside(opened.directory.keep_points)
        if self._deleting is not None:
            await asyncio.wait([self._deleting])

    async def _opened(self) -> None:
        while self._opening:
            await asyncio.wait(list(self._opening.values()))

    async def tick(self) -> None:
        """Tell the machine the time, for as long as the broker runs."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = monotonic_now()
            self.perform(self.replicas.tick(now))
            self._begin_moves(now)
            if self._deletes_again_at is not None and now >= self._deletes_again_at:
                self._begin_deleting()

    def on_written(self, partition: Partition, end_offset: Offset) -> None:
        """All before `end_offset` is in the file."""
        if self._open_here.get(partition.topic_partition) is partition:
            self.perform(
                self.replicas.on_written(partition.topic_partition, end_offset, monotonic_now())
            )

    def on_flushed(self, partition: Partition, end: Offset, flushed: Offset) -> None:
        """All before `end` is in the file, and before `flushed` durable."""
        if self._open_here.get(partition.topic_partition) is partition:
            now = monotonic_now()
            effects = self.replicas.on_written(partition.topic_partition, end, now)
            self.perform(effects)
            self.perform(self.replicas.on_flushed(partition.topic_partition, flushed, now))

    def on_write_failed(
        self, partition: Partition, base_offset: Offset, error: MillraceError
    ) -> None:
        """The batches from `base_offset` on were not written."""
        if self._open_here.get(partition.topic_partition) is partition:
            self.perform(
                self.replicas.on_write_failed(
                    partition.topic_partition, base_offset, error, monotonic_now()
                )
            )

    def on_follower_progress(
        self,
        topic_partition: TopicPartition,
        life: BrokerLife,
        leader_epoch: LeaderEpoch,
        progress: FollowerProgress,
    ) -> None:
        """Take what a follower says of its log.

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

        What somebody read of an earlier log, which was set aside meanwhile, says nothing of the
        one that took its place.
        """
        partition = self._open_here.get(topic_partition)
        if partition is not None and partition.log.failure is not None:
            self._go_offline(topic_partition, error)

    def _go_offline(self, topic_partition: TopicPartition, error: MillraceError) -> None:
        _log.error(
            "partition is offline",
            extra={"partition": str(topic_partition), "error": error.message},
        )
        # Of what is under way nobody knows whether it was written.
        maybe = type(error)(error.message, appended=Appended.MAYBE)
        self.perform(self.replicas.on_failed(topic_partition, maybe))
        self._open_here.pop(topic_partition, None)
        self.moves.on_closed(topic_partition)

    def _on_directory_failed(self, opened: OpenDirectory, error: LogDirFailedError) -> None:
        if opened.failure is not None:
            return
        _log.error(
            "log directory failed", extra={"log_dir": opened.directory.path, "error": error.message}
        )
        opened.failure = error
        for topic_partition in list(self._open_here):
            if topic_partition in opened.known:
                self.perform(self.replicas.on_failed(topic_partition, error))
                self._open_here.pop(topic_partition, None)
                self.moves.on_closed(topic_partition)
        if all(each.failure is not None for each in self.directories):
            self._on_all_failed(error)

    def working_media(self) -> tuple[Media, ...]:
        """Return of which media there are directories that work."""
        there = {each.directory.media for each in self.directories if each.failure is None}
        return tuple(each for each in Media if each in there)

    def media_of(self, topic_partition: TopicPartition) -> Media:
        """Return what a replica that is open here lies on."""
        return self._holder(topic_partition).directory.media

    def _holder(self, topic_partition: TopicPartition) -> OpenDirectory:
        return next(each for each in self.directories if topic_partition in each.known)

    def log_ends(self, asked: Iterable[TopicPartition]) -> list[LogEnd]:
        """Return where these logs end that nobody leads, as they lie on disk (P31)."""
        ends = map(self.replicas.log_end, asked)
        return [each for each in ends if each is not None]

    # --- Effects -----------------------------------------------------------------------------

    def perform(self, effects: Iterable[Effect]) -> None:
        """Do what the machine said."""
        for effect in effects:
            match effect:
                case LogChange():
                    self._change_log(effect)
                case Completed(_, waiters):
                    for waiter in waiters:
                        waiter.owner.on_append_done(waiter)  # type: ignore[attr-defined]
                case Advanced(topic_partition):
                    partition = self._open_here.get(topic_partition)
                    if partition is not None:
                        partition.log.high_watermark = partition.replica.high_watermark
                        partition.on_readers_concerned()
                case Extended(topic_partition):
                    partition = self._open_here.get(topic_partition)
                    if partition is not None:
                        partition.on_followers_concerned()
                case OpenLog(topic_partition, topic):
                    self._opening[topic_partition] = self._spawn(
                        self._open_log(topic_partition, topic, is_first=self._is_first_image)
                    )
                case Configure(topic_partition, topic):
                    self._configure(topic_partition, topic.config)
                case CloseReplica(topic_partition):
                    self._close(topic_partition)
                case DropReplica(topic_partition):
                    self._close(topic_partition)
                    self._dropping[topic_partition] = self._spawn(
                        self._drop(topic_partition, self._opening.get(topic_partition))
                    )
                case Halted(topic_partition, error):
                    _log.error(
                        "replica is halted",
                        extra={"partition": str(topic_partition), "error": error.message},
                    )
                case Lost(topic_partition):
                    self._report_lost(self._open_here[topic_partition].topic, effect)
                case ProposeIsr() | ProposeRenewals() | SetAside():
                    self._spawn(self._carry_out(effect))
        self.on_sessions_concerned()

    async def _carry_out(self, effect: ProposeIsr | ProposeRenewals | SetAside) -> None:
        """Do what takes a while; the machine is told how it ended."""
        match effect:
            case ProposeIsr(proposals):
                await self._propose(proposals)
            case ProposeRenewals(renewals):
                await self._ask_for_renewals(renewals)
            case SetAside(topic_partition):
                await self._set_aside(topic_partition)

    def _report_lost(self, topic: str, lost: Lost) -> None:
        records = lost.records
        _log.warning(
            "an unclean election took back records that this replica had",
            extra={
                "topic": topic,
                "partition": lost.topic_partition.partition,
                "start_offset": records.start_offset,
                "end_offset": records.end_offset,
                # Those before were acknowledged for certain; of the rest nobody here knows.
                "committed_offset": records.committed_offset,
                "leader_epoch": records.leader_epoch,
            },
        )
        self._on_lost(topic, records.end_offset - records.start_offset)

    def _change_log(self, effect: LogChange) -> None:
        partition = self._open_here[effect.topic_partition]
        match effect.change:
            case Append(batches):
                partition.append_replicated(batches, effect.generation)  # type: ignore[arg-type]
            case Truncate(end_offset):
                self._spawn(self._truncate(partition, end_offset))
            case StartAnew(start_offset):
                self._spawn(self._start_anew(partition, start_offset))
            case AdvanceLogStart(start_offset):
                self.advance_log_start(partition, start_offset)

    async def _truncate(self, partition: Partition, end_offset: Offset) -> None:
        if await self._change(partition, PartitionLog.truncate_to, end_offset, wall_now()):
            self.perform(self.replicas.on_truncated(partition.topic_partition, monotonic_now()))

    async def _start_anew(self, partition: Partition, start_offset: Offset) -> None:
        if await self._change(partition, PartitionLog.start_anew, start_offset):
            self.perform(self.replicas.on_started_anew(partition.topic_partition, monotonic_now()))

    def advance_log_start(self, partition: Partition, start_offset: Offset) -> None:
        """Begin to give up all records before an offset; all of them are committed."""
        self._spawn(self._advance_log_start(partition, start_offset))

    async def _advance_log_start(self, partition: Partition, start_offset: Offset) -> None:
        if await self._change(partition, PartitionLog.advance_log_start, start_offset):
            partition.on_readers_concerned()

    async def _change(
        self, partition: Partition, change: Callable[..., object], *args: object
    ) -> bool:
        """Have the append thread change a log; return whether it has, and is still open here."""
        while self._open_here.get(partition.topic_partition) is partition:
            try:
                await partition.appender.call(_with_log, partition, change, *args)
            except (StorageFullError, StorageBusyError) as error:
                _log.warning("a log cannot be changed yet", extra={"error": error.message})
                await asyncio.sleep(_PAUSE_SECONDS)
            except LogDirFailedError:
                return False  # The appender takes the consequences.
            except MillraceError as error:
                if self._open_here.get(partition.topic_partition) is partition:
                    self._go_offline(partition.topic_partition, error)
                return False
            else:
                return self._open_here.get(partition.topic_partition) is partition
        return False

    def _configure(self, topic_partition: TopicPartition, config: TopicConfig) -> None:
        partition = self._open_here[topic_partition]
        self.moves.on_placed(topic_partition, self.media_of(topic_partition), config.media)
        if config == partition.config:
            return
        becomes_durable = (
            config.durability is Durability.FSYNC and not partition.is_flushed_before_ack
        )
        partition.log.config = self._log_config(config)
        partition.configure(config)
        if becomes_durable:
            self._flush(partition)

    def _flush(self, partition: Partition) -> None:
        """Make durable what was written while it did not have to be, or it were waited for."""

        def done(flushed: Offset | None, error: BaseException | None) -> None:
            if flushed is not None:
                self.on_flushed(partition, flushed, flushed)
            elif isinstance(error, StorageBusyError):
                asyncio.get_running_loop().call_later(_PAUSE_SECONDS, self._flush, partition)
            elif not isinstance(error, StorageError):  # The appender takes the consequences.
                assert error is not None
                raise error

        if self._open_here.get(partition.topic_partition) is partition:
            partition.appender.call_then(done, _with_log, partition, PartitionLog.flush)

    async def _propose(self, proposals: Sequence[tuple[TopicPartition, IsrProposal]]) -> None:
        request = AlterPartitions(
            changes=[
                AlterPartition(
                    topic_id=topic_partition.topic_id,
                    partition=topic_partition.partition,
                    leader=self._broker,
                    leader_epoch=proposal.leader_epoch,
                    partition_epoch=proposal.partition_epoch,
                    isr=proposal.isr,
                    is_unflushed=proposal.is_unflushed,
                )
                for topic_partition, proposal in proposals
            ]
        )
        answers: Sequence[MillraceError | None] | MillraceError
        try:
            answers = await self._ask_controller(request)
        except MillraceError as error:
            answers = error
        self.perform(self.replicas.on_isr_answers(answers, monotonic_now()))

    # --- Moves to another media --------------------------------------------------------------

    def _begin_moves(self, now: MonotonicMs) -> None:
        """Have misplaced replicas move, as many as may at a time."""
        if not self.moves:
            return
        for topic_partition in self.moves.begin(self.working_media(), now):
            working = [each for each in self.directories if each.failure is None]
            target = min(
                (
                    each
                    for each in working
                    if self.moves.is_wanted_on(topic_partition, each.directory.media)
                ),
                key=lambda opened: len(opened.known),
            )
            partition = self._open_here[topic_partition]
            self._moving[topic_partition] = self._spawn(
                self._move(partition, self._holder(topic_partition), target)
            )

    async def _move(
        self, partition: Partition, source: OpenDirectory, target: OpenDirectory
    ) -> None:
        topic_partition = partition.topic_partition
        told = {
            "partition": self._named(topic_partition),
            "from": source.directory.path,
            "to": target.directory.path,
        }
        _log.info("a replica moves to the media that its topic asks for", extra=told)
        is_refused = False
        try:
            await self._mover.move(partition, source, target)
        except StorageError as error:
            is_refused = True
            _log.warning("a replica was not moved", extra={**told, "error": error.message})
            if isinstance(partition.appender, HeldAppends):  # Neither of its logs can be used.
                if self._open_here.get(topic_partition) is partition:
                    self._go_offline(topic_partition, error)
            else:
                self.take_offline(topic_partition, error)  # Its log may be damaged.
        else:
            if topic_partition in target.known:
                _log.info("a replica has moved", extra=told)
        finally:
            del self._moving[topic_partition]
            self.moves.on_ended(topic_partition, monotonic_now(), is_refused=is_refused)

    def _is_to_move(self, partition: Partition, target: OpenDirectory) -> bool:
        return (
            self._open_here.get(partition.topic_partition) is partition
            and target.failure is None
            and self.moves.is_wanted_on(partition.topic_partition, target.directory.media)
        )

    def _on_taken_in(
        self,
        partition: Partition,
        log: PartitionLog,
        source: OpenDirectory,
        target: OpenDirectory,
    ) -> None:
        """Go on with another log, which has what the one before has, all of it flushed."""
        topic_partition = partition.topic_partition
        source.known.discard(topic_partition)
        target.known.add(topic_partition)
        partition.log = log
        if self._open_here.get(topic_partition) is partition:
            log.config = self._log_config(partition.config)
            log.high_watermark = partition.replica.high_watermark
            media = target.directory.media
            self.moves.on_placed(topic_partition, media, partition.config.media)
            self.replicas.replace_log(topic_partition, log)
            self.on_flushed(partition, log.log_end_offset, log.flushed_offset)

    async def _moved(self, topic_partition: TopicPartition) -> None:
        """Return once a replica does not move any more."""
        if (moving := self._moving.get(topic_partition)) is not None:
            await asyncio.wait([moving])

    # --- Damaged logs ------------------------------------------------------------------------

    async def _ask_for_renewals(self, renewals: Sequence[ReplicaRenewal]) -> None:
        answers: Sequence[MillraceError | None] | MillraceError
        try:
            answers = await self._ask_controller(
                RenewReplicas(replica=self._broker, renewals=renewals)
            )
        except MillraceError as error:
            answers = error
        self.perform(self.replicas.on_renewal_answers(answers, monotonic_now()))

    async def _set_aside(self, topic_partition: TopicPartition) -> None:
        """Free the name of a damaged log for a new one."""
        await self._moved(topic_partition)
        opened = self._holder(topic_partition)
        try:
            path = await opened.appender.call(
                opened.directory.set_aside, topic_partition, wall_now()
            )
        except LogDirFailedError as error:
            self.perform(self.replicas.on_failed(topic_partition, error))
            return
        except StorageError as error:
            known = self.replicas.failure(topic_partition)
            if known is None or known.message != error.message:
                _log.error("a damaged log stays in its place", extra={"error": error.message})
            self.replicas.on_set_aside_failed(topic_partition, error, monotonic_now())
            return
        _log.warning(
            "a damaged log was set aside, and the replica is fetched anew",
            extra={"partition": self._named(topic_partition), "kept_in": path},
        )
        self.perform(self.replicas.on_set_aside(topic_partition))

    def damaged_logs(self, topic_partition: TopicPartition) -> list[str]:
        """Return where the logs of a partition are that were set aside here."""
        return [
            path for each in self.directories for path in each.directory.damaged_of(topic_partition)
        ]

    def damaged(self) -> list[TopicPartition]:
        """Return the partitions whose log is offline here, or of which one was set aside."""
        kept = {
            found
            for each in self.directories
            for path in each.directory.damaged
            if (found := parse_topic_partition(path.rpartition("/")[2].split(".")[0])) is not None
        }
        return sorted({*self.replicas.failed, *kept})

    def _named(self, topic_partition: TopicPartition) -> str:
        topic = None if self.image is None else self.image.topics_by_id.get(topic_partition[0])
        return str(topic_partition if topic is None else f"{topic.name}-{topic_partition[1]}")

    # --- Files -------------------------------------------------------------------------------

    async def _open_log(
        self, topic_partition: TopicPartition, topic: Topic, *, is_first: bool
    ) -> None:
        try:
            await self._open_log_of(topic_partition, topic, is_first=is_first)
        finally:
            if self._opening.get(topic_partition) is asyncio.current_task():
                del self._opening[topic_partition]

    async def _open_log_of(
        self, topic_partition: TopicPartition, topic: Topic, *, is_first: bool
    ) -> None:
        if (dropping := self._dropping.pop(topic_partition, None)) is not None:
            await asyncio.wait([dropping])  # It comes back, and begins with nothing.
        config = topic.config
        usable = [each for each in self.directories if each.failure is None]
        opened = self._directory_of(topic_partition, config.media, usable)
        try:
            if is_first and self._is_lost(topic_partition, topic):
                raise CorruptLogError(
                    f"{topic_partition} was on a log directory that is not here any more: it was "
                    "left out of log_dirs, or an empty one stands in its place. Bring the old one "
                    "back, or delete the topic"
                )
            opened.check()
            log: PartitionLog = await self._reader.call(
                opened.directory.path,
                _open_log,
                opened.directory,
                topic_partition,
                self._log_config(config),
                config.durability,
            )
            opened.check()  # It may have failed meanwhile, when this log was not open yet.
        except (StorageFullError, StorageBusyError) as error:
            self._open_again(topic_partition, error)
            return
        except StorageError as error:
            if isinstance(error, LogDirFailedError):
                opened.appender.fail(error)
            if self._opening.get(topic_partition) is asyncio.current_task():
                self._go_offline(topic_partition, error)
            return
        if self._opening.get(topic_partition) is not asyncio.current_task():
            return  # It was dropped meanwhile, and is begun anew by another task.
        now = monotonic_now()
        partition = Partition(
            topic=str(topic.name),
            topic_partition=topic_partition,
            config=config,
            log=log,
            appender=opened.appender,
            inflated_bytes_max=self._inflated_bytes_max,
            owner=self,
        )
        effects = self.replicas.on_opened(topic_partition, log, log.high_watermark, now)
        replica = self.replicas.find(topic_partition)
        if replica is not None:
            partition.replica = replica
            self._open_here[topic_partition] = partition
        self.perform(effects)
        if self._open_here.get(topic_partition) is partition:
            self.on_opened(partition)

    def _open_again(self, topic_partition: TopicPartition, error: StorageError) -> None:
        """Take a log for offline that cannot be opened now, and try again in a while."""
        if self._opening.get(topic_partition) is not asyncio.current_task():
            return
        known = self.replicas.failure(topic_partition)
        if known is None or known.message != error.message:
            _log.warning(
                "a log cannot be opened yet",
                extra={"partition": self._named(topic_partition), "error": error.message},
            )
        self.replicas.on_opening_refused(topic_partition, error)
        self._spawn(self._open_after_pause(topic_partition))

    async def _open_after_pause(self, topic_partition: TopicPartition) -> None:
        await asyncio.sleep(_PAUSE_SECONDS)
        # It may have been given up meanwhile, or that and come back.
        if self.replicas.is_opening(topic_partition) and topic_partition not in self._opening:
            assert self.image is not None
            topic = self.image.topics_by_id[topic_partition.topic_id]
            self._opening[topic_partition] = self._spawn(
                self._open_log(topic_partition, topic, is_first=False)
            )

    def _is_lost(self, topic_partition: TopicPartition, topic: Topic) -> bool:
        """Whether a partition from before this start is on none of the directories.

        A broker that crashed between a topic's creation and the making of its directory has not
        lost anything: nothing was ever acknowledged. But where a directory is new, which took the
        place of another, or one is left out, that one may have held the partition, and beginning
        anew would hide the loss, unless others have it.
        """
        state = topic.partitions[topic_partition.partition]
        return (
            self._misses_a_directory
            and (len(state.replicas) == 1 or self._broker in state.isr)
            and not any(topic_partition in each.directory.found for each in self.directories)
        )

    def _directory_of(
        self, topic_partition: TopicPartition, media: TopicMedia, usable: Sequence[OpenDirectory]
    ) -> OpenDirectory:
        """Return the directory that has the partition, or the one of its media with the fewest.

        Where none of its media works any more it is the one with the fewest of all: it is wanted
        here, and on another media it serves as well.

        It may be one that has failed: what is on it must not begin anew on another, for with the
        next start there were two logs, and nobody could say which of them counts.
        """
        for opened in self.directories:
            if topic_partition in opened.known:
                return opened
        chosen = min(
            usable or self.directories,
            key=lambda opened: (not media.is_among([opened.directory.media]), len(opened.known)),
        )
        chosen.known.add(topic_partition)
        return chosen

    def _close(self, topic_partition: TopicPartition) -> None:
        """Serve a partition no more; its log is closed with its files or its directory."""
        self.moves.on_closed(topic_partition)
        partition = self._open_here.pop(topic_partition, None)
        if partition is not None:
            partition.on_readers_concerned()

    async def _drop(
        self, topic_partition: TopicPartition, opening: asyncio.Task[None] | None
    ) -> None:
        try:
            if opening is not None:
                await asyncio.wait([opening])
            await self._moved(topic_partition)
            while (refusal := await self._try_to_drop(topic_partition)) is not None:
                _log.warning("a replica is not deleted yet", extra={"error": refusal.message})
                await asyncio.sleep(_PAUSE_SECONDS)
        finally:
            if self._dropping.get(topic_partition) is asyncio.current_task():
                del self._dropping[topic_partition]

    async def _try_to_drop(self, topic_partition: TopicPartition) -> StorageError | None:
        """Delete a replica's files; return what was refused that may go well later."""
        try:
            await self._delete_files([topic_partition])
        except (StorageFullError, StorageBusyError) as refusal:
            return refusal
        except StorageError:
            pass  # They stay where they are, and nobody reads them.
        return None

    def _begin_deleting(self) -> None:
        if self._deleting is None or self._deleting.done():
            self._deletes_again_at = None
            self._deleting = self._spawn(self._delete_deleted())

    async def _delete_deleted(self) -> None:
        """Delete the data of topics that were deleted, and confirm that."""
        while self.image is not None and (
            deleted := self.image.deletions_of(self._broker.broker_id)
        ):
            image = self.image
            await self._opened()
            try:
                topic_ids = frozenset(deleted)
                for each in [each for each in self._moving if each.topic_id in topic_ids]:
                    await self._moved(each)
                on_disk = [each for opened in self.directories for each in opened.known]
                await self._delete_files([each for each in on_disk if each.topic_id in topic_ids])
                await self._ask_controller(
                    ConfirmDeletions(broker_id=self._broker.broker_id, topic_ids=deleted)
                )
            except MillraceError as error:
                # The tombstones stay, and are looked at again.
                _log.warning("a deletion is not done yet", extra={"error": error.message})
                pause_ms = int(_PAUSE_SECONDS * 1000)
                self._deletes_again_at = MonotonicMs(monotonic_now() + pause_ms)
                return
            if self.image is image:
                return

    async def _delete_files(self, topic_partitions: Sequence[TopicPartition]) -> None:
        for opened in self.directories:
            here = [each for each in topic_partitions if each in opened.known]
            for at in range(0, len(here), _DELETED_AT_ONCE):
                some = here[at : at + _DELETED_AT_ONCE]
                if opened.failure is None:
                    delete = opened.directory.delete_partitions
                    await opened.appender.call(delete, some, wall_now())
                    opened.known.difference_update(some)

    # --- Tasks -------------------------------------------------------------------------------

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)

    async def stop(self) -> None:
        """End what is under way, but for what the append threads have been told."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._mover.close)


def _with_log(partition: Partition, job: Callable[..., object], *args: object) -> object:
    """Do something with the log that a partition has by now: it may have moved."""
    return job(partition.log, *args)


def _open_log(
    directory: LogDirectory,
    topic_partition: TopicPartition,
    config: LogConfig,
    durability: Durability,
) -> PartitionLog:
    log = directory.open_partition(topic_partition, config, wall_now())
    for path in log.mended:
        _log.warning(
            "a file beside a log was damaged, or another log's: it was made again from the log",
            extra={"partition": str(topic_partition), "path": path},
        )
    if durability is Durability.FSYNC:
        log.flush()  # What recovery kept is committed, so it must be as durable as the rest.
    return log
