"""Makes a log durable: flushes it, and advances the point from which recovery reads it.

The recovery point advances by a checkpoint, which leaves three witnesses of it: the chunk of the
index, the producer snapshot, and the line in the directory's recovery checkpoint. Recovery uses the
highest.

The directory makes the line durable later. A failed flush is never repeated: the log takes no more
appends (P63).
"""

from millrace.broker.storage.file_system import is_passing
from millrace.broker.storage.log.health import may_pass
from millrace.broker.storage.log.state import LogState
from millrace.broker.storage.log_recovery import RecoveredLog
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint, RecoveryPoint
from millrace.core.ids import MonotonicMs, Offset
from millrace.core.replica.log.producer_states import ProducerStates


class LogFlusher:
    """Flushes one log. `state` says which locks each method takes or needs."""

    __slots__ = ("_checkpoints", "_due_since", "_names_are_durable", "_state")

    def __init__(
        self, state: LogState, checkpoints: RecoveryCheckpoint, recovered: RecoveredLog
    ) -> None:
        self._state = state
        self._checkpoints = checkpoints
        self._names_are_durable = recovered.names_are_durable
        self._due_since: MonotonicMs | None = None
        self.note_point()

    # --- Flushing ----------------------------------------------------------------------------

    def flush(self) -> Offset:
        """Return the flushed offset once all batches written before the call survive a power cut.

        Raises:
            LogDirFailedError: they may not; the log takes no more calls.
            StorageBusyError: nothing was flushed; try again.
        """
        state = self._state
        with state.flush_lock:
            end_offset = self.flush_held()
        if not self._has_line:
            with state.lock:
                self.note_point()
        return end_offset

    def flush_held(self) -> Offset:
        """Flush written batches; the caller holds `flush_lock`. Return the flushed offset."""
        state = self._state
        state.health.check_open()
        active, end = state.tail
        try:
            if end.offset > state.flushed_offset:
                active.file.fdatasync()
            self.make_names_durable()
        except OSError as error:
            if is_passing(error):  # Then nothing was flushed, and nothing is lost.
                raise state.health.refusal(error, "flushing") from error
            raise state.health.fail(error, "flushing") from error
        state.flushed_offset = end.offset
        return end.offset

    def make_names_durable(self) -> None:
        """Make the names of the first segment and its directory durable (P69).

        Either lock suffices: two threads at a time only flush the directories twice.

        Raises:
            OSError: the disk refused.
        """
        if not self._names_are_durable:
            state = self._state
            state.files.fsync_directory(state.directory)
            state.files.fsync_directory(state.directory.rpartition("/")[0])
            self._names_are_durable = True

    # --- Checkpoints -------------------------------------------------------------------------

    def is_due(self, now: MonotonicMs) -> bool:
        """Return whether the recovery point must advance; to be called about once a second."""
        state = self._state
        if state.uncheckpointed_bytes == 0:
            self._due_since = None
            return False
        if self._due_since is None:
            self._due_since = now
        return (
            state.uncheckpointed_bytes >= state.config.checkpoint_bytes
            or now - self._due_since >= state.config.checkpoint_ms
        )

    def checkpoint(self) -> None:
        """Advance the recovery point to the written offset; appends go on while it flushes.

        The log directory makes the point durable afterwards. It advances on a full disk, too.

        Raises:
            LogDirFailedError: the disk failed.
            CorruptLogError: the log was found damaged before.
        """
        state = self._state
        with state.lock:
            state.health.check_open()
            active = state.segments[-1]
            coverage = active.coverage
            states = state.producer_states.copy()
            covered_bytes = state.uncheckpointed_bytes
        try:
            with state.flush_lock:
                self.flush_held()
                if active is state.segments[-1]:
                    self.save_snapshot(coverage.next_offset, states)
        except OSError as error:
            if not may_pass(error):
                raise state.health.fail(error, "checkpointing") from error
        with state.lock:
            if state.health.is_closed or active is not state.segments[-1]:
                return  # Closed or truncated meanwhile: each of them is a checkpoint, too.
            try:
                active.index.save(coverage)
            except OSError as error:
                if not may_pass(error):
                    raise state.health.fail(error, "checkpointing") from error
            self.advance_point(coverage.next_offset, covered_bytes)

    def save_snapshot(
        self, offset: Offset, states: ProducerStates, *, durable: bool = False
    ) -> None:
        """Save the producer states as of `offset`; the caller holds `flush_lock`.

        Raises:
            OSError: the disk refused.
        """
        snapshots = self._state.snapshots
        if durable or offset not in snapshots.offsets:  # Else it is the same.
            snapshots.save(offset, states.snapshot(), durable=durable)
        snapshots.keep({kept.base_offset for kept in self._state.segments})

    # --- The recovery point; the caller holds `lock` -----------------------------------------

    def advance_point(self, offset: Offset, covered_bytes: int | None = None) -> None:
        """Advance the recovery point after a checkpoint.

        It may lie further already: records beyond the checkpoint were flushed, and deleted,
        meanwhile. It only goes back by `lower_point`.

        Args:
            offset: everything before it is flushed and indexed.
            covered_bytes: the appended bytes before it; None: all of them.
        """
        state = self._state
        state.recovery_point = max(state.recovery_point, offset)
        if covered_bytes is None:
            covered_bytes = state.uncheckpointed_bytes
        state.uncheckpointed_bytes -= covered_bytes
        self._due_since = None
        self.note_point()

    def lower_point(self, offset: Offset) -> None:
        """Lower the recovery point, durably, before the log is cut at `offset`.

        Raises:
            OSError: the disk refused.
        """
        state = self._state
        # The log start may lie inside the batch that is cut.
        start = min(state.log_start_offset, offset)
        point = min(state.recovery_point, offset)
        committed = max(start, min(state.high_watermark, point))
        if offset < max(state.recovery_point, state.log_start_offset):
            self._checkpoints.put(state.topic_partition, RecoveryPoint(start, point, committed))
            self._checkpoints.write()
        state.recovery_point = point

    def begin_line(self) -> None:
        """Note the recovery point of a log that has no line in the directory's checkpoint yet."""
        if not self._has_line:
            self.note_point()

    def note_point(self) -> None:
        """Put the log's recovery point into the next write of the directory's checkpoint.

        Not before the names of its files are durable: a line without files means that they are
        lost. And not once it is closed: then its partition is deleted, or another log has replaced
        it, and a checkpoint under way must not write a line for that one.
        """
        state = self._state
        if state.health.is_closed or not (self._has_line or self._names_are_durable):
            return
        self._put_point(state.log_start_offset)

    def write_start(self, offset: Offset) -> None:
        """Make a later log start durable; it counts once this returns.

        Raises:
            OSError: the disk refused. After a crash either start may be the log's.
        """
        self._put_point(offset)
        self._checkpoints.write()

    def _put_point(self, start: Offset) -> None:
        state = self._state
        committed = max(start, min(state.high_watermark, state.recovery_point))
        self._checkpoints.put(
            state.topic_partition, RecoveryPoint(start, state.recovery_point, committed)
        )

    @property
    def _has_line(self) -> bool:
        return self._checkpoints.get(self._state.topic_partition) is not None
