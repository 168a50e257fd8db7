"""Appends batches to a log, and begins a new segment when the active one is full or old.

An append is all or nothing, also when the disk is full half-way: the file is cut back to its last
good length, which is verified, and the log is unchanged (P64). If the process lacks descriptors or
memory, nothing is changed either. Any other error of a write fails the log for good (P63).

A file system that can write without a wait lets the event loop append what is small
(`append_cached`). What it has written of a batch when it would wait is cut off before the next
append, which is the same batch by the append thread.
"""

import errno
from collections.abc import Mapping, Sequence
from typing import Final

from millrace.broker.storage import scan, segment
from millrace.broker.storage.aborted_index import aborts_of
from millrace.broker.storage.file_system import BUFFERS_MAX, is_passing
from millrace.broker.storage.log.flusher import LogFlusher
from millrace.broker.storage.log.health import may_pass
from millrace.broker.storage.log.state import LogState, Tail
from millrace.broker.storage.log.truncation import LogTruncation
from millrace.broker.storage.segment import Segment
from millrace.broker.storage.sparse_index import Place
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import InvalidRecordError, StorageBusyError, StorageError
from millrace.core.ids import NO_PRODUCER_ID, NO_TIMESTAMP, LeaderEpoch, Offset, WallMs
from millrace.core.records.header import Attributes, Buffer, parse_header
from millrace.core.records.markers import WrittenMarker, read_markers

_Ends = Mapping[Offset, Sequence[WrittenMarker]]
"""The markers of control batches, by the first offset of each batch."""
_NO_ENDS: Final[_Ends] = {}
_IN_TRANSACTION: Final = Attributes.TRANSACTIONAL | Attributes.CONTROL
_CHECKPOINTS_BEHIND_MAX: Final = 2


class LogWriter:
    """The one part of a log that makes it longer."""

    __slots__ = ("_flusher", "_state", "_truncation")

    def __init__(self, state: LogState, flusher: LogFlusher, truncation: LogTruncation) -> None:
        self._state = state
        self._flusher = flusher
        self._truncation = truncation

    def count_fitting(self, batches: Sequence[StampedBatch]) -> int:
        """Return how many of the first batches one segment takes: at least one."""
        if len(batches) == 1:
            return 1
        segment_bytes = self._state.config.segment_bytes
        size = self._state.segments[-1].size
        if size + batches[0].length > segment_bytes:
            size = 0  # They go into a new one.
        for number, batch in enumerate(batches):
            size += batch.length
            if size > segment_bytes:
                return max(number, 1)
        return len(batches)

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
        state = self._state
        if self._must_checkpoint:
            self._flusher.checkpoint()
        with state.lock:
            state.health.check_open()
            length = kinds = 0
            for batch in batches:
                length += batch.length
                kinds |= batch.attributes
            assert self._follow_on(batches)
            ends = self._ends(batches) if kinds & _IN_TRANSACTION else None
            epochs = state.epochs.current
            try:
                self._truncation.finish()
                if self._must_roll(length, batches[-1].next_offset, now):
                    self.roll_held(now)
                if self._begins_epoch(batches[-1].leader_epoch):
                    self._begin_epochs(batches)
            except OSError as error:
                raise state.health.refusal(error, "appending to") from error
            active = state.segments[-1]
            try:
                self._write(active, batches, length)
            except StorageError:
                state.epochs.take_back(epochs)
                raise
            self._note(active, batches, length, now, ends)

    def append_cached(self, batch: StampedBatch, now: WallMs) -> bool:
        """Append a batch if nothing has to be waited for, neither a disk nor another thread.

        No other thread may be appending.

        Returns:
            Whether it was appended. If not, the log is unchanged: `append` appends it, or says why
            not.
        """
        state = self._state
        if not state.lock.acquire(blocking=False):
            return False
        try:
            if not self._is_simple(batch, now):
                return False
            assert self._follow_on([batch])
            active = state.segments[-1]
            written = active.file.append_cached((batch.header, batch.body))
            if written == batch.length:
                ends = _NO_ENDS if batch.attributes & Attributes.TRANSACTIONAL else None
                self._note(active, [batch], batch.length, now, ends)
                return True
            if written > 0:
                self._truncation.cut_later()
            return False
        finally:
            state.lock.release()

    def _is_simple(self, batch: StampedBatch, now: WallMs) -> bool:
        """Whether an append of a batch changes nothing but the active segment."""
        state = self._state
        return not (
            state.health.failure is not None
            or batch.attributes & Attributes.CONTROL
            or state.health.is_closed
            or self._truncation.is_pending
            or self._must_checkpoint
            or self._must_roll(batch.length, batch.next_offset, now)
            or self._begins_epoch(batch.leader_epoch)
        )

    def _note(
        self,
        active: Segment,
        batches: Sequence[StampedBatch],
        length: int,
        now: WallMs,
        ends: _Ends | None,
    ) -> None:
        """End the log after batches that are written.

        Args:
            active: the segment.
            batches: that were written.
            length: their bytes.
            now: the time.
            ends: as `_ends` returned them; None: no batch is in a transaction, or ends one.
        """
        state = self._state
        aborts = (
            [abort for at, found in ends.items() for abort in aborts_of(found, at)] if ends else ()
        )
        active.extend(
            [(batch.base_offset, batch.length, batch.largest_timestamp) for batch in batches],
            batches[-1].next_offset,
            state.config.index_interval_bytes,
            now,
            aborts,
        )
        if aborts:
            state.has_aborts = True
        states = state.producer_states
        for batch in batches:
            # The leader's own states have this time: the next ones, from the log, have it, too.
            came_at = now if batch.came_at == NO_TIMESTAMP else batch.came_at
            if batch.producer_id != NO_PRODUCER_ID:
                states.update(batch, batch.base_offset, came_at)
            elif ends and batch.base_offset in ends:
                states.end(ends[batch.base_offset], batch.base_offset, came_at)
        if ends is not None:
            states.transactions.settle(state.high_watermark)
            state.undecided = states.transactions.undecided()
        state.uncheckpointed_bytes += length
        state.tail = Tail(active, Place(active.next_offset, active.size))

    def _ends(self, batches: Sequence[StampedBatch]) -> _Ends:
        """Return the markers of the control batches, with the first offset of each batch.

        Raises:
            StorageBusyError: they are of a later release; nothing was changed.
        """
        topic_partition = self._state.topic_partition
        ends = {}
        for batch in batches:
            if batch.attributes & Attributes.CONTROL:
                whole = batch.header + bytes(batch.body)
                try:
                    markers = read_markers(topic_partition, parse_header(whole), whole)
                except (InvalidRecordError, *scan.DAMAGE) as error:
                    raise StorageBusyError(
                        f"the control batch at offset {batch.base_offset} was not written: "
                        f"{error.message}",
                        topic_partition=topic_partition,
                    ) from error
                ends[batch.base_offset] = markers
        return ends

    def roll(self, now: WallMs) -> None:
        """Close the active segment, unless it is empty, and begin another.

        Raises:
            StorageFullError, StorageBusyError, LogDirFailedError: as in `append`.
        """
        state = self._state
        with state.lock:
            state.health.check_open()
            if state.segments[-1].size:
                try:
                    self.roll_held(now)
                except OSError as error:
                    raise state.health.refusal(error, "rolling") from error

    def roll_held(self, now: WallMs) -> None:
        """Close the active segment, which is not empty; the caller holds `lock`.

        Raises:
            OSError: the disk refused; the log is unchanged.
        """
        state = self._state
        self._truncation.finish()
        old = state.segments[-1]
        with state.flush_lock:
            self._flusher.flush_held()
            # Retention may delete the batches that it was made from.
            self._flusher.save_snapshot(old.next_offset, state.producer_states, durable=True)
        old.closed_at = now
        new = state.open_segment(old.next_offset)
        try:
            old.index.save(old.coverage)
            self._begin_file(new)
        except OSError:
            old.closed_at = NO_TIMESTAMP
            raise
        state.segments = (*state.segments, new)
        state.tail = Tail(new, Place(new.base_offset, 0))
        self._flusher.advance_point(old.next_offset)

    def _begin_file(self, new: Segment) -> None:
        """Make the empty file of a segment, durably.

        If the disk refuses, the file is removed, at the latest before the next append: the old
        segment may grow beyond its offset, and would be taken for damaged.
        """
        files = self._state.files
        try:
            file = files.open(new.path, create=True, writable=True)
            file.truncate(0)  # A move of a segment may have left one of that name.
            file.close()
            files.fsync_directory(new.folder)
        except OSError:
            self._truncation.cut_later(new)
            self._truncation.finish()
            raise

    def _follow_on(self, batches: Sequence[StampedBatch]) -> bool:
        next_offset = self._state.log_end_offset
        epoch = self._state.epochs.current.latest_epoch
        for batch in batches:
            if batch.base_offset != next_offset or batch.leader_epoch < max(epoch, 0):
                return False
            next_offset, epoch = batch.next_offset, batch.leader_epoch
        return bool(batches)

    def _must_roll(self, length: int, next_offset: Offset, now: WallMs) -> bool:
        active, config = self._state.segments[-1], self._state.config
        return active.size > 0 and (
            active.folder != self._state.directory  # The log was cut in its tier.
            or active.size + length > config.segment_bytes
            or active.has_lasted(config.segment_ms, now)
            or next_offset - active.base_offset > segment.SEGMENT_BYTES_MAX
        )

    @property
    def _must_checkpoint(self) -> bool:
        state = self._state
        return state.uncheckpointed_bytes >= _CHECKPOINTS_BEHIND_MAX * state.config.checkpoint_bytes

    def _begins_epoch(self, leader_epoch: LeaderEpoch) -> bool:
        epochs = self._state.epochs
        return leader_epoch != epochs.current.latest_epoch or not epochs.is_saved

    def _begin_epochs(self, batches: Sequence[StampedBatch]) -> None:
        """Make the start of every new epoch durable before its first batch is written (P2)."""
        self._flusher.make_names_durable()  # Epochs without a segment count as a lost log.
        self._flusher.begin_line()
        self._state.epochs.begin((batch.leader_epoch, batch.base_offset) for batch in batches)

    def _write(self, active: Segment, batches: Sequence[StampedBatch], length: int) -> None:
        buffers: list[Buffer] = []
        for batch in batches:
            buffers += (batch.header, batch.body)
        error: OSError | None = None
        written = 0
        try:
            while buffers:
                part, buffers = buffers[:BUFFERS_MAX], buffers[BUFFERS_MAX:]
                done = active.file.append(part)
                written += done
                if buffers and done != sum(map(len, part)):
                    break
        except OSError as raised:
            error = raised
        if written == length:
            return
        health = self._state.health
        if error is not None and is_passing(error) and active.file.size() == active.size:
            raise health.refusal(error, "appending to") from error
        try:
            active.file.truncate(active.size)
            if active.file.size() != active.size:
                raise OSError("the file could not be cut back")
        except OSError as raised:
            raise health.fail(raised, "cutting back") from raised
        if error is not None and not may_pass(error):
            raise health.fail(error, "appending to") from error
        full = error or OSError(errno.ENOSPC, "short write")
        raise health.refusal(full, "appending to") from error
