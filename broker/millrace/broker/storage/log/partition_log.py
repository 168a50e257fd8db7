"""A partition's log as the broker sees it."""

from collections.abc import Iterator, Mapping, Sequence

from millrace.broker.storage import new_beginning
from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.log.cleaner import CleaningStep, LogCleaner
from millrace.broker.storage.log.flusher import LogFlusher
from millrace.broker.storage.log.reader import LogReader, Unread
from millrace.broker.storage.log.retention import LogRetention
from millrace.broker.storage.log.scrubber import LogScrubber
from millrace.broker.storage.log.state import LogState
from millrace.broker.storage.log.tiering import LogTiering, Moving
from millrace.broker.storage.log.truncation import LogTruncation
from millrace.broker.storage.log.writer import LogWriter
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_recovery import LogRecovery, RecoveredLog
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint
from millrace.broker.storage.refusals import refusal
from millrace.broker.storage.segment import ReadPlan, Segment
from millrace.broker.storage.sparse_index import IndexCache
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.broker.storage.tier import NO_LOG_DIRS, Tier, read_tier
from millrace.broker.storage.time_search import TimestampedOffset
from millrace.core.errors import LogDirFailedError, StorageError
from millrace.core.ids import MonotonicMs, Offset, TopicPartition, WallMs
from millrace.core.replica.compaction.cleanable import Cleanable, CleanerPoint
from millrace.core.replica.compaction.key_hashes import KeyHasher
from millrace.core.replica.log.leader_epochs import LeaderEpochs
from millrace.core.replica.log.producer_states import ProducerStates
from millrace.core.replica.tiers import Movable


class PartitionLog:
    """One partition's log; made by `open_log`.

    Any thread may call methods that change or read it; `state.py` documents the locks.

    Attributes:
        scanned_bytes: how much opening it had to read.
        truncated_bytes: how much of that was a torn tail, and cut off.
        mended: paths of the files beside the log that were damaged, or another log's, and that
            opening it made again from its batches.
    """

    __slots__ = (
        "_cleaner",
        "_flusher",
        "_reader",
        "_retention",
        "_scrubber",
        "_state",
        "_tier_scrubber",
        "_tiering",
        "_truncation",
        "_writer",
        "mended",
        "scanned_bytes",
        "truncated_bytes",
    )

    def __init__(
        self, state: LogState, checkpoints: RecoveryCheckpoint, recovered: RecoveredLog
    ) -> None:
        self._state = state
        self._reader = LogReader(state)
        self._scrubber = LogScrubber(state, in_tier=False)
        self._tier_scrubber = LogScrubber(state, in_tier=True)
        self._flusher = LogFlusher(state, checkpoints, recovered)
        self._truncation = LogTruncation(state, self._flusher, checkpoints)
        self._writer = LogWriter(state, self._flusher, self._truncation)
        self._retention = LogRetention(state, self._flusher, self._writer)
        self._cleaner = LogCleaner(state)
        self._tiering = LogTiering(state, checkpoints)
        self.scanned_bytes = recovered.scanned_bytes
        self.truncated_bytes = recovered.truncated_bytes
        self.mended = recovered.mended

    # --- State -------------------------------------------------------------------------------

    @property
    def files(self) -> FileSystem:
        """The file system of its files."""
        return self._state.files

    @property
    def directory(self) -> str:
        """The partition's directory."""
        return self._state.directory

    @property
    def log_dir(self) -> str:
        """The path of the log directory that it is in."""
        return self._state.directory.rpartition("/")[0]

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of its batches."""
        return self._state.topic_partition

    @property
    def config(self) -> LogConfig:
        """The topic's settings; may be replaced at any time."""
        return self._state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self._state.config = config

    @property
    def log_start_offset(self) -> Offset:
        """Offset of the first record that is not deleted."""
        return self._state.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset after the last batch that is written."""
        return self._state.tail.end.offset

    @property
    def flushed_offset(self) -> Offset:
        """Offset after the last batch that survives a power cut."""
        return self._state.flushed_offset

    @property
    def recovery_point(self) -> Offset:
        """Offset up to which recovery trusts the log."""
        return self._state.recovery_point

    @property
    def high_watermark(self) -> Offset:
        """Everything before it is committed, by the replica's last report; set on the event loop.

        Until the first report it is the stored one, and may be far behind (P68).
        """
        return self._state.high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: Offset) -> None:
        self._state.high_watermark = offset

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The leader epochs of its batches; any thread may read them."""
        return self._state.epochs.current

    @property
    def producer_states(self) -> ProducerStates:
        """As of `log_end_offset`; belongs to the thread that appends."""
        return self._state.producer_states

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments as they are now, ascending; the last one is active."""
        return self._state.segments

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(found.size for found in self._state.segments)

    @property
    def failure(self) -> StorageError | None:
        """Why the log takes no more calls; None while it does."""
        return self._state.health.failure

    @property
    def failed_log_dir(self) -> str:
        """The path of the log directory whose disk failed it; empty if none did."""
        return self._state.health.failed_log_dir

    @property
    def is_being_cut(self) -> bool:
        """Whether files hold more than the log, as the disk refused to cut them."""
        return self._truncation.is_pending

    @property
    def is_closed(self) -> bool:
        """Whether its files were given back."""
        return self._state.health.is_closed

    # --- Writing -----------------------------------------------------------------------------

    def count_fitting(self, batches: Sequence[StampedBatch]) -> int:
        """Return how many of the first batches one segment takes: at least one."""
        return self._writer.count_fitting(batches)

    def append(self, batches: Sequence[StampedBatch], now: WallMs) -> None:
        """Append batches, all of them or none.

        The active segment is closed first when it is old or the batches would make it too large;
        they go into one segment together, so that the caller appends no more than `count_fitting`
        at once. When checkpoints cannot keep up, the append waits for one: recovery must stay
        short.

        Raises:
            StorageFullError, StorageBusyError: not now; the log is unchanged. LogDirFailedError:
                the disk failed; the log takes no more calls.
        """
        self._writer.append(batches, now)

    def roll(self, now: WallMs) -> None:
        """Close the active segment, unless it is empty, and begin another.

        Raises:
            StorageFullError, StorageBusyError, LogDirFailedError: as in `append`.
        """
        self._writer.roll(now)

    def expire_producers(self, seen_before: WallMs) -> int:
        """Forget producers that were silent since; return how many (P45)."""
        with self._state.lock:
            return self._state.producer_states.expire(seen_before)

    # --- Flushing ----------------------------------------------------------------------------

    def flush(self) -> Offset:
        """Return the flushed offset once all batches written before the call survive a power cut.

        Raises:
            LogDirFailedError: they may not; the log takes no more calls.
            StorageBusyError: nothing was flushed; try again.
        """
        return self._flusher.flush()

    def checkpoint_due(self, now: MonotonicMs) -> bool:
        """Return whether the recovery point must advance; to be called about once a second."""
        return self._flusher.is_due(now)

    def checkpoint(self) -> None:
        """Advance the recovery point to the written offset; appends go on while it flushes.

        The log directory makes the point durable afterwards. It advances on a full disk, too.

        Raises:
            LogDirFailedError: the disk failed.
            CorruptLogError: the log was found damaged before.
        """
        self._flusher.checkpoint()

    # --- Reading -----------------------------------------------------------------------------

    def plan_read(
        self,
        start_offset: Offset,
        max_bytes: int,
        limit_offset: Offset,
        *,
        may_block: bool = True,
    ) -> ReadPlan | None:
        """Return where whole batches from `start_offset` on lie, in one file.

        Args:
            start_offset: the first batch is the one that holds it, and may begin earlier.
            max_bytes: one batch is planned even if it is larger.
            limit_offset: only batches that end at or before it.
            may_block: whether headers and indexes may be read from the disk.

        Returns:
            None when no batch ends by the limit.

        Raises:
            OffsetOutOfRangeError: `start_offset` lies outside of the log.
            CorruptLogError: no batch begins where one should; this partition takes nothing more.
            BlockingIOError: `may_block` is false, and the disk would have to be read.
        """
        return self._reader.plan_read(start_offset, max_bytes, limit_offset, may_block=may_block)

    def read(self, plan: ReadPlan) -> bytes:
        """Return the batches of a plan; fewer bytes, or none, when they were deleted meanwhile.

        Raises:
            CorruptLogError: the disk cannot read them; this partition takes nothing more.
        """
        return self._reader.read(plan)

    def read_cached(self, plan: ReadPlan, buffer: memoryview) -> int:
        """Read the batches of a plan into `buffer` if all of them are in memory.

        Returns:
            `plan.length`, or -1 when a thread must `read` them.
        """
        return self._reader.read_cached(plan, buffer)

    def offset_after_bytes(self, start_offset: Offset, size: int, limit_offset: Offset) -> Offset:
        """Return where the whole batches from `start_offset` on end that take at most `size` bytes.

        Args:
            start_offset: before the log's start: from there.
            size: as they are stored; one batch counts even if it is larger.
            limit_offset: only batches that end at or before it.

        Raises:
            As `plan_read`.
        """
        return self._reader.offset_after_bytes(start_offset, size, limit_offset)

    def unread(self, start_offset: Offset, limit_offset: Offset) -> Unread:
        """Return what lies between two offsets; what is deleted does not count.

        Raises:
            CorruptLogError: as in `plan_read`.
        """
        return self._reader.unread(start_offset, limit_offset)

    def offset_for_timestamp(
        self, timestamp: WallMs, limit_offset: Offset | None = None
    ) -> TimestampedOffset | None:
        """Return the first record whose timestamp is `timestamp` or later; None if there is none.

        Args:
            timestamp: what to look for.
            limit_offset: the record must lie before it.

        Raises:
            CorruptLogError: as in `plan_read`.
        """
        return self._reader.offset_for_timestamp(timestamp, limit_offset)

    def offset_of_largest_timestamp(
        self, limit_offset: Offset | None = None
    ) -> TimestampedOffset | None:
        """Return the first record of the largest timestamp; None when there is no record.

        Args:
            limit_offset: the record must lie before it.

        Raises:
            CorruptLogError: as in `plan_read`.
        """
        return self._reader.offset_of_largest_timestamp(limit_offset)

    # --- Deleting records --------------------------------------------------------------------

    def apply_retention(self, now: WallMs, limit_offset: Offset) -> int:
        """Delete the oldest segments beyond the limits of time, size or number; return how many.

        Args:
            now: the time.
            limit_offset: the high watermark; retention deletes no record from there on.

        Raises:
            StorageFullError, LogDirFailedError: as in `append`.
        """
        return self._retention.apply(now, limit_offset)

    def advance_log_start(self, offset: Offset) -> None:
        """Delete all records before `offset`, durably, with the segments that end there.

        Raises:
            OffsetOutOfRangeError: the log does not reach as far.
            StorageFullError, LogDirFailedError: as in `append`.
        """
        self._retention.advance_log_start(offset)

    def truncate_to(self, offset: Offset, now: WallMs) -> None:
        """End the log at `offset`, or where the batch that holds it begins (KIP-101).

        If the disk refuses, call it again; until then the log may be unchanged, or end there and
        take no appends.

        Raises:
            OffsetOutOfRangeError: the log starts after `offset`.
            StorageFullError, StorageBusyError, LogDirFailedError: as in `append`.
            CorruptLogError: what remains is damaged.
        """
        self._truncation.truncate_to(offset, now)

    def start_over(self, offset: Offset) -> None:
        """Delete all records; the log is empty then and begins at `offset`.

        After an error call it again; after a crash the next start completes it.

        Raises:
            StorageFullError, StorageBusyError, LogDirFailedError: as in `append`.
        """
        self._truncation.start_over(offset)

    # --- Compaction --------------------------------------------------------------------------

    @property
    def cleaner_point(self) -> CleanerPoint:
        """How far the log is compacted."""
        return self._state.cleaner_point

    def cleanable(self, now: WallMs) -> Cleanable:
        """Return which part of the log may be cleaned."""
        return self._cleaner.cleanable(now)

    def clean(self, hasher: KeyHasher, map_bytes: int, now: WallMs) -> Iterator[CleaningStep]:
        """Clean the log once, a step with each item; appends and reads go on meanwhile.

        Args:
            hasher: of keys.
            map_bytes: memory of the map of keys; if it is too small for all, the head is cleaned
                as far as it goes.
            now: the time.

        Raises:
            CorruptLogError: a batch is damaged; this partition takes nothing more.
            StorageFullError, StorageBusyError: not now; what was cleaned until then stays so.
            LogDirFailedError: the disk failed; the log takes no more calls.
        """
        return self._cleaner.clean(hasher, map_bytes, now)

    def has_old_segment(self, now: WallMs) -> bool:
        """Return whether the active segment has batches, all committed, and is to end by its age.

        An append would end it; a log that gets none has it ended by the broker, to clean it.
        """
        state = self._state
        active = state.tail.active
        return (
            active.size > 0
            and now - active.created_at >= state.config.segment_ms
            and active.next_offset <= state.high_watermark
        )

    def keep_tombstones(self, *, are_kept: bool) -> None:
        """Let tombstones stay from the next cleaning on, or let them go; at first they stay."""
        self._state.keeps_tombstones = are_kept

    def hold_cleaning(self, *, is_held: bool) -> None:
        """Let no segment be cleaned, or moved to another disk, until the next call."""
        with self._state.lock:
            self._cleaner.is_held = self._tiering.is_held = is_held

    # --- Tiers -------------------------------------------------------------------------------

    @property
    def tier(self) -> Tier | None:
        """Where its oldest segments lie; None while all of them are in its directory."""
        return self._state.tier

    @property
    def tier_bytes(self) -> int:
        """Bytes of the segments in the tier."""
        return self._tiering.size_bytes

    def log_dir_of(self, offset: Offset) -> str:
        """Return the path of the log directory in which the segment of an offset lies."""
        tier = self._state.tier
        is_there = tier is not None and offset < tier.end_offset
        return tier.log_dir if tier is not None and is_there else self.log_dir

    def movable(self, now: WallMs) -> Movable | None:
        """Return the segment that may move to the tier next; None: there is none."""
        return self._tiering.movable(now)

    def move_out(self, log_dir: str, directory_id: str) -> Moving:
        """Move the oldest closed segment at home to the tier; yield the bytes of each step.

        Appends and reads go on meanwhile.

        Args:
            log_dir: path of the log directory on the other disk; if the log has a tier, that one's.
            directory_id: its id.

        Raises:
            CorruptLogError: the segment is damaged; this partition takes nothing more.
            StorageFullError, StorageBusyError: not now; the segment stays where it is.
            LogDirFailedError: the other disk failed; or the log's own, then the log takes no more
                calls.
        """
        return self._tiering.move_out(log_dir, directory_id)

    def bring_back(self) -> Moving:
        """Move the newest closed segment of the tier home; yield the bytes of each step.

        A tier that retention has emptied ends.

        Raises:
            As `move_out`.
        """
        return self._tiering.bring_back()

    @property
    def has_leftovers(self) -> bool:
        """Whether files of the tier are to be removed."""
        return bool(self._state.tier_leftovers)

    def remove_leftovers(self) -> None:
        """Remove the files of the tier that retention has left.

        Raises:
            LogDirFailedError, StorageFullError, StorageBusyError: the other disk refused.
        """
        self._tiering.remove_leftovers()

    # --- Verifying and closing ---------------------------------------------------------------

    def verify(self, plan: ReadPlan) -> None:
        """Verify the batches of a plan, unless they were deleted or cut meanwhile.

        Raises:
            CorruptLogError: one is damaged; this partition takes nothing more.
            StorageFullError, StorageBusyError: nothing could be read.
        """
        self._reader.verify(plan)

    def scrub(self, max_bytes: int, *, in_tier: bool = False) -> int:
        """Verify about `max_bytes` of closed segments (P67), from the end of the last call on.

        Their indexes are verified too, and rebuilt where they are damaged.

        Args:
            max_bytes: about as many, of at least one batch.
            in_tier: those that lie in the tier; else the others, and the indexes of all.

        Returns:
            The bytes that were verified; 0 once after all of them, then it begins again.

        Raises:
            CorruptLogError: a batch is damaged; this partition takes nothing more.
            StorageFullError, StorageBusyError: a damaged index stays so until the next round, or
                nothing could be read; the next call goes on.
            LogDirFailedError: the disk takes no new index.
        """
        return (self._tier_scrubber if in_tier else self._scrubber).scrub(max_bytes)

    def close(self, *, clean: bool) -> None:
        """Close the files.

        Args:
            clean: checkpoint first, so that the next start reads nothing.

        Raises:
            StorageFullError, LogDirFailedError, CorruptLogError: as in `checkpoint`.
        """
        state = self._state
        try:
            if clean:
                self.checkpoint()
        finally:
            with state.lock, state.flush_lock:  # No checkpoint is under way, and none comes.
                state.health.is_closed = True
            for found in self._truncation.all_segments():
                found.file.close()
                found.index.close()


def open_log(
    files: FileSystem,
    directory: str,
    topic_partition: TopicPartition,
    config: LogConfig,
    *,
    checkpoints: RecoveryCheckpoint,
    cache: IndexCache,
    is_clean: bool,
    now: WallMs,
    log_dirs: Mapping[str, str] = NO_LOG_DIRS,
) -> PartitionLog:
    """Open a replica's files, or begin an empty log; recover after a crash.

    Args:
        files: where.
        directory: of this partition; made if it is missing.
        topic_partition: the partition that the batches must belong to.
        config: the topic's settings.
        checkpoints: the log directory's recovery points.
        cache: the indexes that are loaded.
        is_clean: whether the log directory was closed cleanly; then nothing may be damaged.
        now: the time.
        log_dirs: paths of the broker's log directories, by id: segments may lie in another one.

    Raises:
        CorruptLogError: bytes that were flushed are damaged or missing; nothing was changed.
        LogDirFailedError, StorageFullError: the disk refused. A `LogDirFailedError` says which.
    """
    tier: Tier | None = None
    try:
        new_beginning.carry_out(files, directory, topic_partition, checkpoints)
        tier = read_tier(files, directory, topic_partition, log_dirs)
        recovered = LogRecovery(
            files,
            directory,
            topic_partition,
            point=checkpoints.get(topic_partition),
            is_checkpoint_lost=checkpoints.is_lost,
            index_interval_bytes=config.index_interval_bytes,
            cache=cache,
            is_clean=is_clean,
            now=now,
            tier=tier,
        ).run()
    except OSError as error:
        folder = directory if tier is None else tier.folder(topic_partition)
        if not str(error.filename).startswith(folder):
            folder = directory
        refused = refusal(error, f"opening {folder}", topic_partition)
        if isinstance(refused, LogDirFailedError):
            refused.log_dir = folder.rpartition("/")[0]
        raise refused from error
    state = LogState(
        files,
        directory,
        topic_partition,
        config,
        cache=cache,
        recovered=recovered,
        known=checkpoints.get(topic_partition),
    )
    return PartitionLog(state, checkpoints, recovered)
