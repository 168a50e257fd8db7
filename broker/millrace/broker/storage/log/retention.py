"""Deletes the oldest records of a log: by the topic's retention, and where its start is advanced.

Segments are deleted whole, the oldest first, and never the active one. The new log start is durable
before a file is removed, and before anybody sees it: followers and clients rely on it (P71).
Appends wait until names are gone, and not until the room of large files is free.

On a full disk this is what makes room. So the small files that it writes may take the ballast's,
and closed segments go before the active one is closed, which needs room (P64).
"""

from functools import partial

from millrace.broker.storage.file_system import is_full
from millrace.broker.storage.log import replacement
from millrace.broker.storage.log.flusher import LogFlusher
from millrace.broker.storage.log.state import LogState
from millrace.broker.storage.log.writer import LogWriter
from millrace.broker.storage.log_config import UNLIMITED, LogConfig
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint
from millrace.broker.storage.segment import Segment, segment_of
from millrace.core.ids import NO_TIMESTAMP, Offset, WallMs


class LogRetention:
    """Moves the start of one log, and deletes the segments before it."""

    __slots__ = ("_checkpoints", "_flusher", "_state", "_writer")

    def __init__(
        self,
        state: LogState,
        flusher: LogFlusher,
        writer: LogWriter,
        checkpoints: RecoveryCheckpoint,
    ) -> None:
        self._state = state
        self._flusher = flusher
        self._writer = writer
        self._checkpoints = checkpoints

    def apply(self, now: WallMs, limit_offset: Offset) -> int:
        """Delete the oldest segments beyond the limits of time, size or number; return how many.

        Args:
            now: the time.
            limit_offset: the high watermark; retention deletes no record from there on.

        Raises:
            StorageFullError, LogDirFailedError: as in `append`.
        """
        state = self._state
        with state.lock:
            state.health.check_open()
            try:
                deleted = self._delete_overtaken(now, limit_offset)
                if self._close_if_old(now, limit_offset, has_deleted=deleted > 0):
                    deleted += self._delete_overtaken(now, limit_offset)
            except OSError as error:
                raise state.health.refusal(error, "deleting segments of") from error
        return deleted

    def advance_log_start(self, offset: Offset) -> None:
        """Delete all records before `offset`, durably, with the segments that end there.

        Raises:
            OffsetOutOfRangeError: the log does not reach as far.
            StorageFullError, LogDirFailedError: as in `append`.
        """
        state = self._state
        with state.lock:
            state.health.check_open()
            if offset > state.log_end_offset:
                raise state.out_of_range(offset)
            if offset < state.log_start_offset:
                return
            try:
                self._delete_before(offset)
            except OSError as error:
                raise state.health.refusal(error, "advancing the start of") from error

    def _delete_overtaken(self, now: WallMs, limit_offset: Offset) -> int:
        """Delete the closed segments beyond the limits; return how many."""
        state = self._state
        doomed = overtaken(state.segments, state.config, now, limit_offset)
        if doomed:
            # Files before the start may be left, which the disk refused to remove.
            kept = state.segments[doomed].base_offset
            self._delete_before(max(kept, state.log_start_offset))
        return doomed

    def _close_if_old(self, now: WallMs, limit_offset: Offset, *, has_deleted: bool) -> bool:
        """Close the active segment if all its records may be deleted; return whether it did.

        Also if a clock was ahead when its first batch came, so that its age begins to count.

        A full disk may refuse that for now if segments were deleted before: their number must
        reach the caller, and their room is there at the next call.
        """
        active = self._state.segments[-1]
        retention_ms = self._state.config.retention_ms
        must_close = is_old(active, retention_ms, now) or (
            retention_ms != UNLIMITED and active.created_at > now
        )
        if not active.size or active.next_offset > limit_offset or not must_close:
            return False
        try:
            self._checkpoints.with_room(partial(self._writer.roll_held, now))
        except OSError as error:
            if not (has_deleted and is_full(error)):
                raise
            return False
        return True

    def _delete_before(self, offset: Offset) -> None:
        """Advance the log start durably, then remove the files before it, the oldest first.

        If the disk refuses, the next call removes the rest.
        """
        state = self._state
        replacement.finish(state)
        with state.flush_lock:
            if offset > state.recovery_point:
                self._flusher.flush_held()
            else:
                self._flusher.make_names_durable()
        state.recovery_point = max(state.recovery_point, offset)
        self._flusher.write_start(offset)
        state.log_start_offset = offset  # Readers, and the leader's followers, may rely on it now.
        first = segment_of(state.segments, offset)
        for found in state.segments[:first]:
            if not state.is_at_home(found):  # Appends do not wait for the other disk.
                state.tier_leftovers.append(found.path)
            elif state.files.exists(found.path):
                found.file.remove()
            found.index.discard()
            state.segments = state.segments[1:]
            found.file.retire()  # A reader that opened it again would keep its bytes on the disk.
        with state.flush_lock:
            # That of the first segment stays: a later one need not survive a power cut.
            state.snapshots.remove_before(state.segments[0].base_offset)
        self._checkpoints.with_room(partial(state.epochs.truncate_from_start, offset))
        state.files.fsync_directory(state.directory)


def overtaken(
    segments: tuple[Segment, ...], config: LogConfig, now: WallMs, limit_offset: Offset
) -> int:
    """Return how many of the oldest segments may be deleted; never the last, which is active.

    Args:
        segments: of a log, ascending.
        config: how much and how long to keep.
        now: the time.
        limit_offset: the high watermark; the log keeps every record from there on.
    """
    size = sum(segment.size for segment in segments)
    for number, segment in enumerate(segments[:-1]):
        size -= segment.size
        records = segments[-1].next_offset - segment.next_offset
        is_too_much = (
            UNLIMITED != config.retention_bytes <= size
            or UNLIMITED != config.retention_records <= records
        )
        if segment.next_offset > limit_offset or not (
            is_too_much or is_old(segment, config.retention_ms, now)
        ):
            return number
    return len(segments) - 1


def is_old(segment: Segment, retention_ms: int, now: WallMs) -> bool:
    """Return whether all records of a segment have been kept for long enough.

    Its time is its largest timestamp, but not later than its closing: records with timestamps in
    the future are not kept longer.
    """
    closed_at = now if segment.closed_at == NO_TIMESTAMP else segment.closing_time(now)
    newest = closed_at if segment.largest_timestamp < 0 else segment.largest_timestamp
    return retention_ms != UNLIMITED and now - min(newest, closed_at) > retention_ms
