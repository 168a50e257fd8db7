"""Ends a log at an earlier offset, or empties it, so that a replica agrees with its leader.

A truncation is prepared while the log is unchanged. Then the log ends there for all readers, and
only then the files are cut. If the disk refuses that, it is tried again (`finish`): until then
nothing is appended, and the directory is not closed cleanly. Witnesses of flushed batches are
removed before the batches: a crash in between leaves a longer log, and not one that seems to have
lost bytes.

On a full disk the small files that it writes may take the ballast's room (P64).

Source: KIP-101.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeVar

from millrace.broker.storage import new_beginning, scan
from millrace.broker.storage.cleaner_point import write_point
from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.log import replacement
from millrace.broker.storage.log.flusher import LogFlusher
from millrace.broker.storage.log.state import LogState, Tail
from millrace.broker.storage.producer_snapshots import ProducerSnapshots
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint
from millrace.broker.storage.replay import replay
from millrace.broker.storage.segment import Segment, segment_of
from millrace.broker.storage.sparse_index import Place
from millrace.broker.storage.tier import write_tier
from millrace.core.ids import NO_LEADER_EPOCH, Offset, TopicPartition, WallMs
from millrace.core.replica.compaction.cleanable import CleanerPoint
from millrace.core.replica.log.open_transactions import NOTHING_UNDECIDED
from millrace.core.replica.log.producer_states import ProducerStates

_T = TypeVar("_T")


class _ToCut(NamedTuple):
    """Bytes beyond the end of the log, in the active file and in later ones."""

    segments: tuple[Segment, ...]
    was_flushed: bool


class LogTruncation:
    """Cuts one log, and finishes a cut that the disk refused."""

    __slots__ = ("_checkpoints", "_flusher", "_state", "_to_cut")

    def __init__(
        self, state: LogState, flusher: LogFlusher, checkpoints: RecoveryCheckpoint
    ) -> None:
        self._state = state
        self._flusher = flusher
        self._checkpoints = checkpoints
        self._to_cut: _ToCut | None = None

    @property
    def is_pending(self) -> bool:
        """Whether files hold more than the log, as they could not be cut yet."""
        return self._to_cut is not None

    def cut_later(self, *segments: Segment) -> None:
        """Have what lies after the log's end cut off before the next append, as a write left it.

        The caller holds `lock`.

        Args:
            segments: whose files are to be removed.
        """
        assert self._to_cut is None
        self._to_cut = _ToCut(segments, was_flushed=False)

    def all_segments(self) -> tuple[Segment, ...]:
        """Return the log's segments, and those beyond its end that will be removed."""
        segments = self._state.segments
        return segments if self._to_cut is None else segments + self._to_cut.segments

    def truncate_to(self, offset: Offset, now: WallMs) -> None:
        """End the log at `offset`, or where the batch that holds it begins (KIP-101).

        If the disk refuses, call it again; until then the log may be unchanged, or end there and
        take no appends.

        Raises:
            OffsetOutOfRangeError: the log starts after `offset`.
            StorageFullError, StorageBusyError, LogDirFailedError: as in `append`.
            CorruptLogError: what remains is damaged.
        """
        state = self._state
        with state.lock:
            state.health.check_open()
            try:
                with state.flush_lock:
                    self.finish()
                    replacement.finish(state)
                    if offset >= state.log_end_offset:
                        return
                    if offset < state.log_start_offset:
                        raise state.out_of_range(offset)
                    self._truncate_to(offset, now)
            except (*scan.DAMAGE, scan.ScanStop) as error:
                raise state.health.corrupt(str(error)) from error
            except OSError as error:
                raise state.health.refusal(error, "truncating") from error

    def start_over(self, offset: Offset) -> None:
        """Delete all records; the log is empty then and begins at `offset`.

        After an error call it again; after a crash the next start completes it.

        Raises:
            StorageFullError, StorageBusyError, LogDirFailedError: as in `append`.
        """
        state = self._state
        with state.lock:
            state.health.check_open()
            try:
                with state.flush_lock:
                    replacement.finish(state)
                    self._begin_at(offset)
            except OSError as error:
                raise state.health.refusal(error, "emptying") from error

    def finish(self) -> None:
        """Cut the files at the end of the log, if that is still to be done.

        The caller holds `lock`.

        Raises:
            OSError: the disk refused; to be called again.
        """
        if self._to_cut is None:
            return
        state = self._state
        while self._to_cut.segments:  # The last one first: a crash must not leave a hole.
            *others, found = self._to_cut.segments
            found.file.retire()  # A descriptor of it would keep its bytes on the disk.
            if state.files.exists(found.path):  # Removed already if this is a retry.
                state.files.unlink(found.path)
            state.files.fsync_directory(found.folder)
            self._to_cut = self._to_cut._replace(segments=tuple(others))
        active = state.segments[-1]
        active.file.truncate(active.size)
        if self._to_cut.was_flushed:
            active.file.fdatasync()
        self._checkpoints.with_room(state.epochs.save)  # Last: a longer log would lack them.
        self._lower_tier(active)
        self._to_cut = None

    def _lower_tier(self, active: Segment) -> None:
        """Let the segments after an active one in the tier begin at home.

        Last: earlier, the segments that are cut off would leave a hole.
        """
        state = self._state
        if state.tier is not None and not state.is_at_home(active):
            end_offset = Offset(active.base_offset + 1)
            if end_offset != state.tier.end_offset:
                tier = state.tier._replace(end_offset=end_offset)
                self._write(write_tier, tier)
                state.tier = tier

    def _write(
        self, write: Callable[[FileSystem, str, TopicPartition, _T], None], said: _T
    ) -> None:
        """Write a small file of the log, with the ballast's room if there is no other."""
        state = self._state
        self._checkpoints.with_room(
            partial(write, state.files, state.directory, state.topic_partition, said)
        )

    def _truncate_to(self, offset: Offset, now: WallMs) -> None:
        state = self._state
        self._flusher.make_names_durable()
        last = segment_of(state.segments, offset)
        kept, later = state.segments[last], state.segments[last + 1 :]
        place = kept.locate(offset, kept.size)
        active = kept.successor(state.files, state.directory, state.cache, place)
        segments = (*state.segments[:last], active)
        interval = state.config.index_interval_bytes
        for _ in active.rescan(place.position, NO_LEADER_EPOCH, interval, now):
            pass
        if active.next_offset != place.offset:
            raise scan.ScanStop("a batch is damaged", active.size, active.next_offset)
        states = self._producers_at(segments, place.offset, now)
        self._remove_witnesses(place.offset, later)

        # So far the log is unchanged. Now it ends there for all readers, before the files are cut.
        was_flushed = place.offset < state.flushed_offset
        state.segments = segments
        state.tail = Tail(active, place)
        state.flushed_offset = min(state.flushed_offset, place.offset)
        state.log_start_offset = min(state.log_start_offset, place.offset)
        state.high_watermark = min(state.high_watermark, place.offset)
        state.epochs.truncate_from_end(place.offset)
        state.producer_states = states
        state.undecided = states.transactions.undecided()
        self._flusher.note_point()
        self._to_cut = _ToCut(later, was_flushed)
        self.finish()
        if was_flushed:
            with_room = self._checkpoints.with_room
            with_room(partial(self._flusher.save_snapshot, place.offset, states))
            with_room(partial(active.index.save, active.coverage))
            self._flusher.advance_point(place.offset)

    def _remove_witnesses(self, offset: Offset, later: tuple[Segment, ...]) -> None:
        """Remove the witnesses of flushed batches beyond `offset`.

        An unflushed tail has no witnesses.
        """
        state = self._state
        # A new object, also where it says the same: a cleaning under way must not move it.
        point = state.cleaner_point._replace(offset=min(state.cleaner_point.offset, offset))
        if point != state.cleaner_point:
            self._write(write_point, point)
        state.cleaner_point = point
        self._flusher.lower_point(offset)
        state.snapshots.remove_after(offset)
        for found in reversed(later):
            found.index.discard()
        if offset < state.flushed_offset:
            state.files.fsync_directory(state.directory)

    def _producers_at(
        self, segments: tuple[Segment, ...], offset: Offset, now: WallMs
    ) -> ProducerStates:
        """Return the states of the producers with batches before `offset`."""
        states = ProducerStates()
        since = self._state.snapshots.load(states, offset)
        start = segments[0].base_offset if since is None else since
        replay(states, segments, start, offset, now)
        states.transactions.settle(self._state.high_watermark)
        return states

    def _begin_at(self, offset: Offset) -> None:
        state = self._state
        self._flusher.make_names_durable()
        self._write(new_beginning.decide, offset)
        given_up = self.all_segments()
        # Appends do not wait for the other disk.
        state.tier_leftovers += [
            segment.path for segment in given_up if not state.is_at_home(segment)
        ]
        state.tier = None
        active = state.open_segment(offset)
        state.segments = (active,)
        state.tail = Tail(active, Place(offset, 0))
        state.recovery_point = state.log_start_offset = state.flushed_offset = offset
        state.high_watermark = offset
        state.uncheckpointed_bytes = 0
        state.snapshots = ProducerSnapshots(
            state.files, state.directory, state.topic_partition, names=[]
        )
        state.producer_states = ProducerStates()
        state.undecided = NOTHING_UNDECIDED
        state.epochs.clear()
        state.cleaner_point = CleanerPoint(offset)
        self._to_cut = None
        for found in given_up:
            found.index.discard()
            if state.is_at_home(found) and state.files.exists(found.path):
                found.file.remove()
            found.file.retire()
        new_beginning.carry_out(
            state.files, state.directory, state.topic_partition, self._checkpoints
        )
