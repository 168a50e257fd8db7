"""The files of one partition's replica, and every rule about them.

    <topic id>-<partition>/
        00000000000000000000.log        batches, byte for byte as the leader stamped them
        00000000000000000000.index      sparse index by offset and time, see sparse_index.py
        00000000000000004711.log        ... the last one is active and grows
        00000000000000004711.snapshot   producer states as of that offset
        leader-epochs                   see core/log/leader_epochs.py
        failed                          the disk failed, see recovery.py
        damaged                         it was found damaged, likewise
        begins-anew                     nothing here counts any more, see new_beginning.py

Three ends, in ascending order, and one rule about each:

- `recovery_point`: flushed, and known to be so after a crash. A damaged batch below it is
  corruption: the partition is kept as it is and refused, never truncated (P65).
- `flushed_offset`: flushed. Never runs ahead of what the disk confirmed.
- `log_end_offset`: written.

A segment is flushed before the next one begins, so whatever is not flushed lies in the active one:
recovery reads nothing else. `checkpoint` advances the recovery point, and leaves three witnesses of
it: the chunk of the index, the producer snapshot, and the directory's recovery checkpoint. Recovery
goes by the highest.

An append is all or nothing, also when the disk is full half-way: the file is cut back to its last
good length, which is verified, and the log is as before (P64). Where the process lacks descriptors
or memory nothing is changed either. Any other error of a write, and any error of a flush, fails the
log for good (P63); which is which, `refusals.py` says.

A cut is prepared while the log is as it was; then it ends there for all who read it, and then the
files are cut. Where the disk refuses that, it is tried again: until it is done nothing is appended,
and the directory is not closed in order.

Threads: what changes the log takes `_lock`; flushes and producer snapshots, which wait for the
disk, take `_flush_lock`; who needs both takes them in this order. So a checkpoint may run in a
thread beside the one that appends, and appends go on while it waits. Reads take no lock: they go by
the tuple of segments and by `_tail`, both replaced as a whole. A read of a segment that is deleted
or truncated meanwhile returns fewer bytes than planned, or none.
"""

import contextlib
import errno
import threading
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

from millrace.broker.storage import new_beginning, scan, segment
from millrace.broker.storage.epoch_checkpoint import write_epochs
from millrace.broker.storage.file_system import BUFFERS_MAX, FileSystem, is_full, is_passing
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.producer_snapshots import ProducerSnapshots
from millrace.broker.storage.recovery import (
    DAMAGED,
    FAILED,
    RecoveredLog,
    Recovery,
    headers_between,
    rebuild,
)
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint, RecoveryPoint
from millrace.broker.storage.refusals import corrupt_log, failed, refusal
from millrace.broker.storage.retention import is_old, overtaken
from millrace.broker.storage.segment import ReadPlan, Segment, offset_name
from millrace.broker.storage.sparse_index import IndexCache, Place
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.broker.storage.time_search import TimestampedOffset, first_record
from millrace.core.errors import (
    CorruptLogError,
    OffsetOutOfRangeError,
    StorageBusyError,
    StorageError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    MonotonicMs,
    Offset,
    TopicPartition,
    WallMs,
)
from millrace.core.log.leader_epochs import LeaderEpochs
from millrace.core.log.producer_states import ProducerStates
from millrace.core.records.header import (
    Buffer,
)

_CHECKPOINTS_BEHIND_MAX: Final = 2


class _Tail(NamedTuple):
    """The end of the log at one moment."""

    active: Segment
    end: Place


class _ToCut(NamedTuple):
    """What the files hold behind the end of the log: in the active one, and in later ones."""

    segments: tuple[Segment, ...]
    was_flushed: bool


class PartitionLog:
    """See the module. Made by `PartitionLog.open`.

    Attributes:
        config: the settings; may be replaced at any time.
        high_watermark: everything before it is committed, as its replica said last, or, until it
            does, as was remembered: then it may be far behind (P68). Set on the event loop.
        leader_epochs: read by any thread.
        producer_states: as of `log_end_offset`; belongs to the thread that appends.
        scanned_bytes: how much opening it had to read.
        truncated_bytes: how much of that was a torn tail, and cut off.
        mended: paths of the files beside the log that were damaged, or another log's, and that
            opening it made again from its batches.
    """

    __slots__ = (
        "_are_epochs_saved",
        "_cache",
        "_checkpoints",
        "_directory",
        "_due_since",
        "_failure",
        "_files",
        "_flush_lock",
        "_flushed_offset",
        "_is_closed",
        "_lock",
        "_names_are_durable",
        "_recovery_point",
        "_scrub_offset",
        "_segments",
        "_snapshots",
        "_tail",
        "_to_cut",
        "_uncheckpointed_bytes",
        "config",
        "high_watermark",
        "leader_epochs",
        "log_start_offset",
        "mended",
        "producer_states",
        "scanned_bytes",
        "topic_partition",
        "truncated_bytes",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        checkpoints: RecoveryCheckpoint,
        cache: IndexCache,
        recovered: RecoveredLog,
    ) -> None:
        self._files = files
        self._directory = directory
        self._checkpoints = checkpoints
        self._cache = cache
        self._lock = threading.Lock()
        self._flush_lock = threading.Lock()
        self._failure: StorageError | None = None
        self._is_closed = False
        self._to_cut: _ToCut | None = None
        self._segments = recovered.segments
        active = self._segments[-1]
        self._tail = _Tail(active, Place(active.next_offset, active.size))
        self._snapshots = recovered.snapshots
        self._names_are_durable = recovered.names_are_durable
        self._flushed_offset = self._recovery_point = recovered.recovery_point
        self._uncheckpointed_bytes = recovered.scanned_bytes - recovered.truncated_bytes
        self._due_since: MonotonicMs | None = None
        self._scrub_offset = Offset(0)
        self.topic_partition = topic_partition
        self.config = config
        self.leader_epochs = recovered.leader_epochs
        self._are_epochs_saved = True
        self.producer_states = recovered.producer_states
        self.log_start_offset = recovered.log_start_offset
        self.scanned_bytes = recovered.scanned_bytes
        self.truncated_bytes = recovered.truncated_bytes
        self.mended = recovered.mended
        known = checkpoints.get(topic_partition)
        self.high_watermark = Offset(0)
        if known is not None:
            self.high_watermark = min(known.high_watermark, self.log_end_offset)
        self.high_watermark = max(self.high_watermark, self.log_start_offset)
        self._note_point()

    @classmethod
    def open(
        cls,
        files: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        config: LogConfig,
        *,
        checkpoints: RecoveryCheckpoint,
        cache: IndexCache,
        is_clean: bool,
        now: WallMs,
    ) -> Self:
        """Open a replica's files, or begin with none; recover what a crash left.

        Args:
            files: where.
            directory: of this partition; made if it is missing.
            topic_partition: whose batches these must be.
            config: the topic's settings.
            checkpoints: the log directory's recovery points.
            cache: the indexes that are loaded.
            is_clean: whether the log directory was closed cleanly; then nothing may be damaged.
            now: the time.

        Raises:
            CorruptLogError: bytes that were flushed are damaged or missing; nothing was changed.
            LogDirFailedError, StorageFullError: the disk refused.
        """
        try:
            new_beginning.carry_out(files, directory, topic_partition, checkpoints)
            recovered = Recovery(
                files,
                directory,
                topic_partition,
                point=checkpoints.get(topic_partition),
                is_checkpoint_lost=checkpoints.is_lost,
                index_interval_bytes=config.index_interval_bytes,
                cache=cache,
                is_clean=is_clean,
                now=now,
            ).run()
        except OSError as error:
            raise refusal(error, f"{topic_partition}: opening {directory}") from error
        return cls(
            files,
            directory,
            topic_partition,
            config,
            checkpoints=checkpoints,
            cache=cache,
            recovered=recovered,
        )

    # --- What is there -----------------------------------------------------------------------

    @property
    def files(self) -> FileSystem:
        """Where its files are."""
        return self._files

    @property
    def directory(self) -> str:
        """The partition's directory."""
        return self._directory

    @property
    def log_dir(self) -> str:
        """The path of the log directory that it is in."""
        return self._directory.rpartition("/")[0]

    @property
    def log_end_offset(self) -> Offset:
        """Offset behind the last batch that is written."""
        return self._tail.end.offset

    @property
    def flushed_offset(self) -> Offset:
        """Offset behind the last batch that survives a power cut."""
        return self._flushed_offset

    @property
    def recovery_point(self) -> Offset:
        """Offset up to which recovery trusts the log."""
        return self._recovery_point

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(found.size for found in self._segments)

    @property
    def failure(self) -> StorageError | None:
        """Why the log takes nothing any more; None while it does."""
        return self._failure

    @property
    def is_being_cut(self) -> bool:
        """Whether files hold more than the log, as the disk refused to cut them."""
        return self._to_cut is not None

    @property
    def is_closed(self) -> bool:
        """Whether its files were given back."""
        return self._is_closed

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments as they are now, ascending; the last one is active."""
        return self._segments

    @property
    def segment_count(self) -> int:
        """Number of segments; at least one."""
        return len(self._segments)

    # --- Writing -----------------------------------------------------------------------------

    def append(self, batches: Sequence[StampedBatch], now: WallMs) -> None:
        """Write batches behind the others, all of them or none.

        The active segment is closed first when it is old or the batches would make it too large;
        they go into one segment together, which they may make larger than `segment_bytes`. When
        checkpoints cannot keep up, the append waits for one: recovery must stay short.

        Raises:
            StorageFullError, StorageBusyError: not now; the log is as before.
            LogDirFailedError: the disk failed; the log takes nothing any more.
        """
        if self._uncheckpointed_bytes >= _CHECKPOINTS_BEHIND_MAX * self.config.checkpoint_bytes:
            self.checkpoint()
        with self._lock:
            self._check_open()
            length = sum(batch.length for batch in batches)
            assert self._follow_on(batches)
            epochs = self.leader_epochs
            try:
                self._cut_files()
                if self._must_roll(length, batches[-1].next_offset, now):
                    self._roll(now)
                self._begin_epochs(batches)
            except OSError as error:
                raise self._refusal(error, "appending to") from error
            active = self._segments[-1]
            try:
                self._write(active, batches, length)
            except StorageError:
                # New epochs have no batch then. What comes instead may be of an earlier one, and
                # nobody may be told that they began; the file says so until the next append.
                self._are_epochs_saved = self._are_epochs_saved and self.leader_epochs is epochs
                self.leader_epochs = epochs
                raise
            active.extend(
                [(batch.base_offset, batch.length, batch.largest_timestamp) for batch in batches],
                batches[-1].next_offset,
                self.config.index_interval_bytes,
                now,
            )
            for batch in batches:
                if batch.producer_id != NO_PRODUCER_ID:
                    self.producer_states.update(batch, batch.base_offset, now)
            self._uncheckpointed_bytes += length
            self._tail = _Tail(active, Place(active.next_offset, active.size))

    def _follow_on(self, batches: Sequence[StampedBatch]) -> bool:
        next_offset, epoch = self.log_end_offset, self.leader_epochs.latest_epoch
        for batch in batches:
            if batch.base_offset != next_offset or batch.leader_epoch < max(epoch, 0):
                return False
            next_offset, epoch = batch.next_offset, batch.leader_epoch
        return bool(batches)

    def _must_roll(self, length: int, next_offset: Offset, now: WallMs) -> bool:
        active = self._segments[-1]
        return active.size > 0 and (
            active.size + length > self.config.segment_bytes
            or now - active.created_at >= self.config.segment_ms
            or next_offset - active.base_offset > segment.SEGMENT_BYTES_MAX
        )

    def _begin_epochs(self, batches: Sequence[StampedBatch]) -> None:
        """Make the start of every new epoch durable before its first batch is written (P2)."""
        if batches[-1].leader_epoch == self.leader_epochs.latest_epoch and self._are_epochs_saved:
            return
        self._make_names_durable()  # Epochs without a segment are a log that lost it.
        if self._checkpoints.get(self.topic_partition) is None:
            self._note_point()
        epochs = LeaderEpochs(self.leader_epochs.entries)
        for batch in batches:
            epochs.append(batch.leader_epoch, batch.base_offset)
        write_epochs(self._files, self._directory, self.topic_partition, epochs)
        self.leader_epochs = epochs
        self._are_epochs_saved = True

    def _write(self, active: Segment, batches: Sequence[StampedBatch], length: int) -> None:
        buffers: list[Buffer] = []
        for batch in batches:
            buffers += (batch.header, batch.body)
        error: OSError | None = None
        written = 0
        try:
            for at in range(0, len(buffers), BUFFERS_MAX):
                part = buffers[at : at + BUFFERS_MAX]
                done = active.file.append(part)
                written += done
                if done != sum(map(len, part)):
                    break
        except OSError as raised:
            error = raised
        if written == length:
            return
        if error is not None and is_passing(error) and active.file.size() == active.size:
            raise self._refusal(error, "appending to") from error
        try:
            active.file.truncate(active.size)
            if active.file.size() != active.size:
                raise OSError("the file could not be cut back")
        except OSError as raised:
            raise self._fail(raised, "cutting back") from raised
        if error is not None and not _may_pass(error):
            raise self._fail(error, "appending to") from error
        full = error or OSError(errno.ENOSPC, "short write")
        raise self._refusal(full, "appending to") from error

    def roll(self, now: WallMs) -> None:
        """Close the active segment, unless it is empty, and begin another.

        Raises:
            StorageFullError, LogDirFailedError: as in `append`.
        """
        with self._lock:
            self._check_open()
            if self._segments[-1].size:
                try:
                    self._roll(now)
                except OSError as error:
                    raise self._refusal(error, "rolling") from error

    def _roll(self, now: WallMs) -> None:
        self._cut_files()
        old = self._segments[-1]
        with self._flush_lock:
            self._flush()
            # Retention may delete all that it was made of.
            self._save_snapshot(old.next_offset, self.producer_states, durable=True)
        old.closed_at = now
        try:
            old.index.save(old.coverage)
        except OSError:
            old.closed_at = NO_TIMESTAMP
            raise
        path = f"{self._directory}/{offset_name(old.next_offset)}{segment.SUFFIX}"
        self._files.open(path, create=True, writable=True).close()
        self._files.fsync_directory(self._directory)
        new = Segment(
            self._files, self._directory, self.topic_partition, old.next_offset, self._cache
        )
        self._segments = (*self._segments, new)
        self._tail = _Tail(new, Place(new.base_offset, 0))
        self._checkpointed(old.next_offset, self._uncheckpointed_bytes)

    # --- Flushing ----------------------------------------------------------------------------

    def flush(self) -> Offset:
        """Return once all that was written before the call survives a power cut; up to where.

        Raises:
            LogDirFailedError: it may not; the log takes nothing any more.
            StorageBusyError: nothing was flushed; it is to be tried again.
        """
        with self._flush_lock:
            end_offset = self._flush()
        if self._checkpoints.get(self.topic_partition) is None:
            with self._lock:
                self._note_point()
        return end_offset

    def _flush(self) -> Offset:
        self._check_open()
        active, end = self._tail
        try:
            if end.offset > self._flushed_offset:
                active.file.fdatasync()
            self._make_names_durable()
        except OSError as error:
            if is_passing(error):  # Then nothing was flushed, and nothing is lost.
                raise self._refusal(error, "flushing") from error
            raise self._fail(error, "flushing") from error
        self._flushed_offset = end.offset
        return end.offset

    def _make_names_durable(self) -> None:
        """Have the first segment and its directory be found after a power cut (P69)."""
        if not self._names_are_durable:
            self._files.fsync_directory(self._directory)
            self._files.fsync_directory(self._directory.rpartition("/")[0])
            self._names_are_durable = True

    def checkpoint_due(self, now: MonotonicMs) -> bool:
        """Return whether the recovery point must advance; to be asked about once a second."""
        if self._uncheckpointed_bytes == 0:
            self._due_since = None
            return False
        if self._due_since is None:
            self._due_since = now
        return (
            self._uncheckpointed_bytes >= self.config.checkpoint_bytes
            or now - self._due_since >= self.config.checkpoint_ms
        )

    def checkpoint(self) -> None:
        """Advance the recovery point to what is written now; see the module for threads.

        The log directory makes the point durable afterwards. A full disk does not keep it from
        advancing: index and snapshot are caches, and wait until there is room.

        Raises:
            LogDirFailedError: the disk failed.
            CorruptLogError: the log was found damaged before.
        """
        with self._lock:
            self._check_open()
            active = self._segments[-1]
            coverage = active.coverage
            states = self.producer_states.copy()
            covered_bytes = self._uncheckpointed_bytes
        try:
            with self._flush_lock:
                self._flush()
                if active is self._segments[-1]:
                    self._save_snapshot(coverage.next_offset, states)
        except OSError as error:
            if not _may_pass(error):
                raise self._fail(error, "checkpointing") from error
        with self._lock:
            if self._is_closed or active is not self._segments[-1]:
                return  # Closed or truncated meanwhile: each of them is a checkpoint, too.
            try:
                active.index.save(coverage)
            except OSError as error:
                if not _may_pass(error):
                    raise self._fail(error, "checkpointing") from error
            self._checkpointed(coverage.next_offset, covered_bytes)

    def _save_snapshot(
        self, offset: Offset, states: ProducerStates, *, durable: bool = False
    ) -> None:
        if durable or offset not in self._snapshots.offsets:  # Else it says the same.
            self._snapshots.save(offset, states.snapshot(), durable=durable)
        self._snapshots.keep({kept.base_offset for kept in self._segments})

    def _checkpointed(self, offset: Offset, covered_bytes: int) -> None:
        self._recovery_point = offset
        self._uncheckpointed_bytes -= covered_bytes
        self._due_since = None
        self._note_point()

    def _note_point(self) -> None:
        """Have the next write of the checkpoint say where the log stands.

        Not before its files are sure to be found: a line without files means that they are lost.
        And not once it is closed: then its partition is deleted, or another log took its place,
        and a checkpoint that was under way must not speak for that one.
        """
        is_known = self._checkpoints.get(self.topic_partition) is not None
        if self._is_closed or not (is_known or self._names_are_durable):
            return
        committed = max(self.log_start_offset, min(self.high_watermark, self._recovery_point))
        self._checkpoints.put(
            self.topic_partition,
            RecoveryPoint(self.log_start_offset, self._recovery_point, committed),
        )

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
        self._check()
        tail = self._tail
        found, end = tail
        if not self.log_start_offset <= start_offset <= end.offset:
            raise self._out_of_range(start_offset)
        limit_offset = min(limit_offset, end.offset)
        if start_offset >= limit_offset:
            return None
        if start_offset < found.base_offset:
            segments = self._segments
            at = segment.segment_of(segments, start_offset)
            if at < 0:
                raise self._out_of_range(start_offset)
            found = segments[at]
            end = Place(found.next_offset, found.size)
        try:
            return found.plan(start_offset, max_bytes, limit_offset, end, may_block=may_block)
        except FileNotFoundError:  # Deleted by retention meanwhile.
            self._check_not_closed()
            raise self._out_of_range(start_offset) from None
        except BlockingIOError:
            raise
        except (*scan.DAMAGE, OSError) as error:
            if found not in self._segments:  # Cut meanwhile: what is left of it is another one's.
                return self.plan_read(start_offset, max_bytes, limit_offset, may_block=may_block)
            raise self._unread(error, found.path) from error

    def offset_after_bytes(self, start_offset: Offset, size: int, limit_offset: Offset) -> Offset:
        """Return where the whole batches from `start_offset` on end that take at most `size` bytes.

        Args:
            start_offset: before the log's start: from there.
            size: as they are stored; one batch counts even if it is larger.
            limit_offset: only batches that end at or before it.

        Raises:
            As `plan_read`.
        """
        start = at = Offset(max(start_offset, self.log_start_offset))
        left = size
        while left > 0 and (plan := self.plan_read(at, left, limit_offset)) is not None:
            if at > start and plan.length > left:
                break
            at, left = plan.end_offset, left - plan.length
        return at

    def _out_of_range(self, offset: Offset) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"{self.topic_partition} has the offsets {self.log_start_offset} to "
            f"{self.log_end_offset}, not {offset}: seek to one of them"
        )

    def read(self, plan: ReadPlan) -> bytes:
        """Return the batches of a plan; fewer bytes, or none, when they were deleted meanwhile.

        Raises:
            CorruptLogError: the disk cannot read them; this partition takes nothing more.
        """
        try:
            return plan.segment.file.pread(plan.length, plan.position)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise self._unread(error, plan.segment.path) from error

    def read_cached(self, plan: ReadPlan, buffer: memoryview) -> int:
        """Read the batches of a plan into `buffer` if all of them are in memory.

        Returns:
            `plan.length`, or -1 when a thread must `read` them.
        """
        done = plan.segment.file.pread_into_cached(buffer[: plan.length], plan.position)
        return done if done == plan.length else -1

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
        self._check()
        limit = self.log_end_offset if limit_offset is None else limit_offset
        for found in self._segments:
            if found.base_offset >= limit:
                break
            try:
                record = first_record(found, timestamp, self.log_start_offset, limit)
            except FileNotFoundError:
                self._check_not_closed()
                continue  # Deleted by retention meanwhile.
            except (*scan.DAMAGE, OSError) as error:
                if found not in self._segments:  # Cut meanwhile.
                    return self.offset_for_timestamp(timestamp, limit_offset)
                raise self._unread(error, found.path) from error
            if record is not None:
                return record
        return None

    def offset_of_largest_timestamp(
        self, limit_offset: Offset | None = None
    ) -> TimestampedOffset | None:
        """Return the first record of the largest timestamp; None when the log is empty."""
        largest = max(found.largest_timestamp for found in self._segments)
        return self.offset_for_timestamp(largest, limit_offset)

    # --- Deleting ----------------------------------------------------------------------------

    def apply_retention(self, now: WallMs, limit_offset: Offset) -> int:
        """Delete the oldest segments that time or size have overtaken; return how many.

        Args:
            now: the time.
            limit_offset: the high watermark; nothing behind it is deleted.

        Raises:
            StorageFullError, LogDirFailedError: as in `append`.
        """
        with self._lock:
            self._check_open()
            try:
                active = self._segments[-1]
                if (
                    active.size
                    and active.next_offset <= limit_offset
                    and is_old(active, self.config.retention_ms, now)
                ):
                    self._roll(now)
                doomed = overtaken(self._segments, self.config, now, limit_offset)
                if doomed:
                    self._delete_before(self._segments[doomed].base_offset)
            except OSError as error:
                raise self._refusal(error, "deleting segments of") from error
        return doomed

    def advance_log_start(self, offset: Offset) -> None:
        """Give up all records before `offset`, durably, and delete segments that end there.

        Raises:
            OffsetOutOfRangeError: the log does not reach as far.
            StorageFullError, LogDirFailedError: as in `append`.
        """
        with self._lock:
            self._check_open()
            if offset > self.log_end_offset:
                raise self._out_of_range(offset)
            if offset < self.log_start_offset:
                return
            try:
                self._delete_before(offset)
            except OSError as error:
                raise self._refusal(error, "advancing the start of") from error

    def _delete_before(self, offset: Offset) -> None:
        """Advance the log start durably, then remove what lies before it, the oldest first.

        Where the disk refuses, what is left is removed when this is called again.
        """
        with self._flush_lock:
            if offset > self._recovery_point:
                self._flush()
            else:
                self._make_names_durable()
        self._recovery_point = max(self._recovery_point, offset)
        self.log_start_offset = offset
        self._note_point()
        self._checkpoints.write()
        first = segment.segment_of(self._segments, offset)
        for found in self._segments[:first]:
            if self._files.exists(found.path):
                self._files.unlink(found.path)
            found.index.reset()
            self._segments = self._segments[1:]
            found.file.close()  # A reader in between would open it again.
        with self._flush_lock:
            self._snapshots.remove_before(offset)
        epochs = LeaderEpochs(self.leader_epochs.entries)
        if epochs.truncate_from_start(offset):
            write_epochs(self._files, self._directory, self.topic_partition, epochs)
            self.leader_epochs = epochs
        self._files.fsync_directory(self._directory)

    def truncate_to(self, offset: Offset, now: WallMs) -> None:
        """End the log at `offset`, or where the batch that holds it begins (KIP-101).

        Where the disk refuses, it is to be called again; until then the log may be as before, or
        end there and take no appends.

        Raises:
            OffsetOutOfRangeError: the log starts behind `offset`.
            StorageFullError, StorageBusyError, LogDirFailedError: as in `append`.
            CorruptLogError: what remains is damaged.
        """
        with self._lock:
            self._check_open()
            try:
                with self._flush_lock:
                    self._cut_files()
                    if offset >= self.log_end_offset:
                        return
                    if offset < self.log_start_offset:
                        raise self._out_of_range(offset)
                    self._truncate_to(offset, now)
            except (*scan.DAMAGE, scan.ScanStop) as error:
                raise self._corrupt(str(error)) from error
            except OSError as error:
                raise self._refusal(error, "truncating") from error

    def start_anew(self, offset: Offset) -> None:
        """Give up all records; the log is empty then and begins at `offset`.

        After an error it is to be called again, and a crash is no other thing: what was decided is
        done at the next start.

        Raises:
            StorageFullError, StorageBusyError, LogDirFailedError: as in `append`.
        """
        with self._lock:
            self._check_open()
            try:
                with self._flush_lock:
                    self._begin_at(offset)
            except OSError as error:
                raise self._refusal(error, "beginning anew") from error

    def _begin_at(self, offset: Offset) -> None:
        self._make_names_durable()
        new_beginning.decide(self._files, self._directory, self.topic_partition, offset)
        given_up = self._all_segments()
        active = Segment(self._files, self._directory, self.topic_partition, offset, self._cache)
        self._segments = (active,)
        self._tail = _Tail(active, Place(offset, 0))
        self._recovery_point = self.log_start_offset = self._flushed_offset = offset
        self.high_watermark = offset
        self._uncheckpointed_bytes = 0
        self._snapshots = ProducerSnapshots(self._files, self._directory, self.topic_partition, [])
        self.producer_states = ProducerStates()
        self.leader_epochs = LeaderEpochs()
        self._are_epochs_saved = True
        self._to_cut = None
        for found in given_up:
            found.index.reset()
            found.file.close()
        new_beginning.carry_out(
            self._files, self._directory, self.topic_partition, self._checkpoints
        )

    def _truncate_to(self, offset: Offset, now: WallMs) -> None:
        self._make_names_durable()
        last = segment.segment_of(self._segments, offset)
        kept, later = self._segments[last], self._segments[last + 1 :]
        place = kept.locate(offset, kept.size)
        active = kept.successor(self._files, self._directory, self._cache, place)
        segments = (*self._segments[:last], active)
        try:
            interval = self.config.index_interval_bytes
            for _ in active.rescan(place.position, NO_LEADER_EPOCH, interval, now):
                pass
            if active.next_offset != place.offset:
                raise scan.ScanStop("a batch is damaged", active.size, active.next_offset)
            states = self._producers_at(segments, place.offset, now)
            self._give_up(place, later)
        except BaseException:
            active.file.close()
            raise

        # So far the log is as it was. Now it ends there, for all who read it, before a file does.
        was_flushed = place.offset < self._flushed_offset
        self._segments = segments
        self._tail = _Tail(active, place)
        self._flushed_offset = min(self._flushed_offset, place.offset)
        self.log_start_offset = min(self.log_start_offset, place.offset)
        self.high_watermark = min(self.high_watermark, place.offset)
        epochs = LeaderEpochs(self.leader_epochs.entries)
        if epochs.truncate_from_end(place.offset):
            self.leader_epochs, self._are_epochs_saved = epochs, False
        self.producer_states = states
        self._note_point()
        self._to_cut = _ToCut(later, was_flushed)
        self._cut_files()
        if was_flushed:
            self._save_snapshot(place.offset, states)
            active.index.save(active.coverage)
            self._checkpointed(place.offset, self._uncheckpointed_bytes)

    def _give_up(self, place: Place, later: tuple[Segment, ...]) -> None:
        """Remove what witnesses that batches behind a place were flushed.

        It goes before they do: a crash in between leaves a longer log, not one that seems to have
        lost bytes. A tail that nobody flushed has none.
        """
        # The log start may lie inside of the batch that goes.
        start = min(self.log_start_offset, place.offset)
        point = min(self._recovery_point, place.offset)
        committed = max(start, min(self.high_watermark, point))
        if place.offset < max(self._recovery_point, self.log_start_offset):
            self._checkpoints.put(self.topic_partition, RecoveryPoint(start, point, committed))
            self._checkpoints.write()
        self._recovery_point = point
        self._snapshots.remove_after(place.offset)
        for found in reversed(later):
            found.index.reset()
        if place.offset < self._flushed_offset:
            self._files.fsync_directory(self._directory)

    def _cut_files(self) -> None:
        """Cut what lies behind the end off the files; nothing is appended before that is done."""
        while self._to_cut is not None and self._to_cut.segments:  # A crash must not leave a hole.
            *others, found = self._to_cut.segments
            found.file.close()
            if self._files.exists(found.path):  # Not when this is tried again.
                self._files.unlink(found.path)
            self._files.fsync_directory(self._directory)
            self._to_cut = self._to_cut._replace(segments=tuple(others))
        if self._to_cut is not None:
            active = self._segments[-1]
            active.file.truncate(active.size)
            if self._to_cut.was_flushed:
                active.file.fdatasync()
            if not self._are_epochs_saved:  # Last: a longer log would lack them.
                write_epochs(self._files, self._directory, self.topic_partition, self.leader_epochs)
                self._are_epochs_saved = True
            self._to_cut = None

    def _all_segments(self) -> tuple[Segment, ...]:
        """Also those behind the end that are to be removed."""
        return self._segments if self._to_cut is None else self._segments + self._to_cut.segments

    def _producers_at(
        self, segments: tuple[Segment, ...], offset: Offset, now: WallMs
    ) -> ProducerStates:
        """What is remembered of the producers whose batches lie before `offset`."""
        states = ProducerStates()
        since = self._snapshots.load(states, offset)
        start = segments[0].base_offset if since is None else since
        for header in headers_between(segments, start, offset):
            states.update(header, header.base_offset, now)
        return states

    # --- Keeping in order --------------------------------------------------------------------

    def scrub(self, max_bytes: int) -> int:
        """Verify about `max_bytes` of closed segments (P67), going on where the last call ended.

        Their indexes are verified too, and rebuilt where they are damaged.

        Returns:
            The bytes that were verified; 0 once after all of them, then it begins anew.

        Raises:
            CorruptLogError: a batch is damaged; this partition takes nothing more.
            StorageFullError, StorageBusyError: a damaged index stays so until the next round, or
                nothing could be read; the next call goes on.
            LogDirFailedError: the disk takes no new index.
        """
        self._check()
        segments = self._segments
        offset = max(self._scrub_offset, self.log_start_offset)
        found = segments[max(segment.segment_of(segments, offset), 0)]
        if found is segments[-1]:
            self._scrub_offset = Offset(0)
            return 0
        verified = 0
        fresh: Segment | None = None
        try:
            if offset in (found.base_offset, self.log_start_offset):  # Once for each segment.
                found.index.verify()
                if found.index.is_damaged:
                    fresh = self._indexed_anew(found)
            place = found.locate(offset, found.size)
            for position, header in scan.verified_batches(
                found.file,
                self.topic_partition,
                position=place.position,
                end_position=found.size,
                next_offset=place.offset,
                leader_epoch=NO_LEADER_EPOCH,
            ):
                verified = position + header.length - place.position
                self._scrub_offset = header.next_offset
                if verified >= max_bytes:
                    break
        except FileNotFoundError:  # Deleted by retention meanwhile.
            self._scrub_offset = found.next_offset
        except (*scan.DAMAGE, scan.ScanStop, OSError) as error:
            with self._lock:  # While a segment is cut, it is still one of the log's.
                is_whole = found in self._segments
            if is_whole:
                raise self._unread(error, found.path) from error
        if fresh is not None:
            self._replace(found, fresh)
        return max(verified, 1)

    def _indexed_anew(self, found: Segment) -> Segment:
        """Read a closed segment for a new index; appends go on meanwhile."""
        fresh = Segment(
            self._files, self._directory, self.topic_partition, found.base_offset, self._cache
        )
        fresh.file = found.file
        interval = self.config.index_interval_bytes
        rebuild(fresh, found.size, interval, found.created_at)
        fresh.restore(found.coverage)
        return fresh

    def _replace(self, found: Segment, fresh: Segment) -> None:
        """Go on with a segment's new index; one that finds no room is left to the next round."""
        with self._lock:
            if self._is_closed or found not in self._segments[:-1]:
                return  # Deleted or cut meanwhile.
            try:
                fresh.index.save(fresh.coverage)
            except OSError as error:
                raise self._refusal(error, "rebuilding an index of") from error
            self._segments = tuple(fresh if each is found else each for each in self._segments)

    def expire_producers(self, seen_before: WallMs) -> int:
        """Forget producers that were silent since; return how many (P45)."""
        with self._lock:
            return self.producer_states.expire(seen_before)

    def close(self, *, clean: bool) -> None:
        """Give the files back.

        Args:
            clean: checkpoint first, so that the next start reads nothing.

        Raises:
            StorageFullError, LogDirFailedError, CorruptLogError: as in `checkpoint`.
        """
        try:
            if clean:
                self.checkpoint()
        finally:
            with self._lock, self._flush_lock:  # No checkpoint is under way, and none comes.
                self._is_closed = True
            for found in self._all_segments():
                found.file.close()
                found.index.close()

    # --- Refusing ----------------------------------------------------------------------------

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # Each time anew, or the trace would grow.

    def _check_open(self) -> None:
        """Refuse to change files that are another log's by now, or nobody's."""
        self._check()
        if self._is_closed:
            raise CorruptLogError(
                f"the log of {self.topic_partition} in {self._directory} is closed: it was "
                "deleted, or set aside"
            )

    def _check_not_closed(self) -> None:
        """Refuse to say that records are gone whose files lie elsewhere by now."""
        if self._is_closed:
            raise StorageBusyError(
                f"the log of {self.topic_partition} in {self._directory} was deleted or moved "
                "meanwhile: ask again"
            )

    def _corrupt(self, reason: str) -> CorruptLogError:
        error = corrupt_log(self.topic_partition, self._directory, reason)
        if self._failure is None:
            self._failure = error
            self._leave_mark(DAMAGED)
        return error

    def _refusal(self, error: OSError, doing: str) -> StorageError:
        if _may_pass(error):
            return refusal(error, f"{doing} {self.topic_partition} in {self._directory}")
        return self._fail(error, doing)

    def _unread(self, error: Exception, path: str) -> StorageError:
        """Return what a failed read means: damage, unless the process lacked something."""
        if isinstance(error, OSError) and is_passing(error):
            return self._refusal(error, "reading")
        return self._corrupt(f"{path}: {error}")

    def _fail(self, error: OSError, doing: str) -> StorageError:
        self._failure = failed(error, f"{doing} {self.topic_partition} in {self._directory}")
        self._leave_mark(FAILED)
        return self._failure

    def _leave_mark(self, name: str) -> None:
        """Have the next process know; a disk that takes no mark takes no writes of it, either."""
        if not self._is_closed:
            with contextlib.suppress(OSError):
                self._files.open(f"{self._directory}/{name}", create=True).close()


def _may_pass(error: OSError) -> bool:
    """Whether the log may go on: the disk is full, or the process lacks something for now."""
    return is_full(error) or is_passing(error)
