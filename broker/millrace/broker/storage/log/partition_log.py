"""A partition's log as the broker sees it."""

from collections.abc import Mapping

from millrace.broker.storage import new_beginning
from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.log.cleaner import LogCleaner
from millrace.broker.storage.log.flusher import LogFlusher
from millrace.broker.storage.log.reader import LogReader
from millrace.broker.storage.log.retention import LogRetention
from millrace.broker.storage.log.scrubber import LogScrubber
from millrace.broker.storage.log.state import LogState
from millrace.broker.storage.log.tiering import LogTiering
from millrace.broker.storage.log.truncation import LogTruncation
from millrace.broker.storage.log.writer import LogWriter
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_recovery import LogRecovery, RecoveredLog
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint
from millrace.broker.storage.refusals import refusal
from millrace.broker.storage.segment import Segment
from millrace.broker.storage.sparse_index import IndexCache
from millrace.broker.storage.tier import NO_LOG_DIRS, Tier, read_tier
from millrace.core.errors import LogDirFailedError, StorageError
from millrace.core.ids import Offset, TopicPartition, WallMs
from millrace.core.replica.log.leader_epochs import LeaderEpochs
from millrace.core.replica.log.open_transactions import Undecided
from millrace.core.replica.log.producer_states import ProducerStates


class PartitionLog:
    """One partition's log, and the parts that work on it; made by `open_log`.

    Any thread may call methods that change or read it; `state.py` documents the locks.

    Attributes:
        state: the segments, offsets, epochs and producers that all parts work on.
        reader, scrubber, tier_scrubber: read and verify batches.
        writer, flusher: append batches, and make them durable.
        truncation, retention: end the log earlier, and begin it later.
        cleaner, tiering: replace segments by compacted copies, and move them to another disk.
        scanned_bytes: how much opening it had to read.
        truncated_bytes: how much of that was a torn tail, and cut off.
        mended: paths of the files beside the log that were damaged, or another log's, and that
            opening it made again from its batches.
    """

    __slots__ = (
        "cleaner",
        "flusher",
        "mended",
        "reader",
        "retention",
        "scanned_bytes",
        "scrubber",
        "state",
        "tier_scrubber",
        "tiering",
        "truncated_bytes",
        "truncation",
        "writer",
    )

    def __init__(
        self, state: LogState, checkpoints: RecoveryCheckpoint, recovered: RecoveredLog
    ) -> None:
        self.state = state
        self.reader = LogReader(state)
        self.scrubber = LogScrubber(state, in_tier=False)
        self.tier_scrubber = LogScrubber(state, in_tier=True)
        self.flusher = LogFlusher(state, checkpoints, recovered)
        self.truncation = LogTruncation(state, self.flusher, checkpoints)
        self.writer = LogWriter(state, self.flusher, self.truncation)
        self.retention = LogRetention(state, self.flusher, self.writer, checkpoints)
        self.cleaner = LogCleaner(state)
        self.tiering = LogTiering(state, checkpoints)
        self.scanned_bytes = recovered.scanned_bytes
        self.truncated_bytes = recovered.truncated_bytes
        self.mended = recovered.mended

    # --- State -------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The partition's directory."""
        return self.state.directory

    @property
    def log_dir(self) -> str:
        """The path of the log directory that it is in."""
        return self.state.log_dir

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of its batches."""
        return self.state.topic_partition

    @property
    def config(self) -> LogConfig:
        """The topic's settings; may be replaced at any time."""
        return self.state.config

    @config.setter
    def config(self, config: LogConfig) -> None:
        self.state.config = config

    @property
    def log_start_offset(self) -> Offset:
        """Offset of the first record that is not deleted."""
        return self.state.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        """Offset after the last batch that is written."""
        return self.state.log_end_offset

    @property
    def flushed_offset(self) -> Offset:
        """Offset after the last batch that survives a power cut."""
        return self.state.flushed_offset

    @property
    def high_watermark(self) -> Offset:
        """Everything before it is committed, by the replica's last report; set on the event loop.

        Until the first report it is the stored one, and may be far behind (P68).
        """
        return self.state.high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: Offset) -> None:
        self.state.high_watermark = offset

    @property
    def leader_epochs(self) -> LeaderEpochs:
        """The leader epochs of its batches; any thread may read them."""
        return self.state.leader_epochs

    @property
    def producer_states(self) -> ProducerStates:
        """As of `log_end_offset`; belongs to the thread that appends."""
        return self.state.producer_states

    @property
    def compacted_offset(self) -> Offset:
        """Everything before it is compacted, also after a power cut."""
        return self.state.cleaner_point.offset

    @property
    def undecided(self) -> Undecided:
        """What keeps its last stable offset back; any thread may read it."""
        return self.state.undecided

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments as they are now, ascending; the last one is active."""
        return self.state.segments

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(found.size for found in self.state.segments)

    @property
    def failure(self) -> StorageError | None:
        """Why the log takes no more calls; None while it does."""
        return self.state.health.failure

    @property
    def failed_log_dir(self) -> str:
        """The path of the log directory whose disk failed it; empty if none did."""
        return self.state.health.failed_log_dir

    @property
    def is_closed(self) -> bool:
        """Whether its files were given back."""
        return self.state.health.is_closed

    # --- Keeping in order --------------------------------------------------------------------

    def expire_producers(self, seen_before: WallMs) -> int:
        """Forget producers that were silent since; return how many (P45)."""
        with self.state.lock:
            return self.state.producer_states.expire(seen_before)

    def notice_clock(self, now: WallMs) -> None:
        """Let all segments that a clock ahead has closed age from now on; see `closing_time`.

        To be called now and then, as decisions look at the oldest ones alone.
        """
        for found in self.state.segments:
            found.notice_clock(now)

    # --- Compaction --------------------------------------------------------------------------

    def has_old_segment(self, now: WallMs) -> bool:
        """Return whether the active segment has batches, all committed, and is to end by its age.

        An append would end it; a log that gets none has it ended by the broker, to clean it.
        """
        state = self.state
        active = state.tail.active
        return (
            active.size > 0
            and active.has_lasted(state.config.segment_ms, now)
            and active.next_offset <= state.high_watermark
        )

    def hold_cleaning(self, *, is_held: bool) -> None:
        """Let no segment be cleaned, or moved to another disk, until the next call."""
        with self.state.lock:
            self.cleaner.is_held = self.tiering.is_held = is_held

    # --- Tiers -------------------------------------------------------------------------------

    @property
    def tier(self) -> Tier | None:
        """Where its oldest segments lie; None while all of them are in its directory."""
        return self.state.tier

    @property
    def tier_bytes(self) -> int:
        """Bytes of the segments in the tier."""
        return self.tiering.size_bytes

    def log_dir_of(self, offset: Offset) -> str:
        """Return the path of the log directory in which the segment of an offset lies."""
        tier = self.state.tier
        is_there = tier is not None and offset < tier.end_offset
        return tier.log_dir if tier is not None and is_there else self.log_dir

    @property
    def has_leftovers(self) -> bool:
        """Whether files of the tier are to be removed."""
        return bool(self.state.tier_leftovers)

    # --- Verifying and closing ---------------------------------------------------------------

    def close(self, *, clean: bool) -> None:
        """Close the files for good: the descriptor of a late reader would keep their room.

        Args:
            clean: checkpoint first, so that the next start reads nothing.

        Raises:
            StorageFullError, LogDirFailedError, CorruptLogError: as in `checkpoint`.
        """
        state = self.state
        try:
            if clean:
                self.flusher.checkpoint()
        finally:
            with state.lock, state.flush_lock:  # No checkpoint is under way, and none comes.
                state.health.is_closed = True
            for found in self.truncation.all_segments():
                found.file.retire()
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
            with_room=checkpoints.with_room,
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
