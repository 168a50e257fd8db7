"""Opens a partition's files, after a clean stop or a crash.

Closed segments are not read: their indexes describe them, and must fit one another and the sizes of
the files. The active one is read from where its index ends. A damaged batch there is a torn tail,
which is cut off, if it lies at or beyond the recovery point and the stop was unclean; any other
damage is corruption, and then no batch is changed (P65).

The recovery point is the highest that a witness knows: the directory's checkpoint, an index, a
producer snapshot. A log that ends before it has lost flushed bytes.

`log_start.py` finds the start of the log. A log without files, but with a line in the checkpoint,
epochs or indexes, is lost, and not new.

The bytes of a failed flush may still be in the page cache, where they can be read but no later
flush writes them (P63). A log that failed leaves a mark, which need not be durable: a power cut
that loses it loses the page cache, too. With the mark, everything beyond the recovery point is
written again.

The files beside the batches are bound to their partition and segment (P66). Epochs, indexes and
producer snapshots that are damaged, or another log's, are rebuilt from the batches, and `mended`
names them. The last batch is always read: it must be the partition's own, and epochs that do not
know it are older than the log.

A cleaned segment that was replacing others goes on to do so: see `segment_swap.py`. A segment
counts in the one of two places that the file `tier` says: see `tier.py`.

A full disk keeps no log from being opened (P64): what must be written is small, and may take the
ballast's room.

A log that was found damaged leaves a mark, too: recovery alone would not see the damage (P65). Then
all of it is verified, and the mark is removed once all is sound, for example after a person has
restored the files.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

from millrace.broker.storage import scan, segment, segment_swap, sparse_index
from millrace.broker.storage.cleaner_point import read_point
from millrace.broker.storage.epoch_checkpoint import FILE_NAME as EPOCHS
from millrace.broker.storage.epoch_checkpoint import read_epochs, write_epochs
from millrace.broker.storage.file_system import FileSystem, is_full, is_passing
from millrace.broker.storage.log_start import known_log_start
from millrace.broker.storage.producer_snapshots import ProducerSnapshots
from millrace.broker.storage.recovery_checkpoint import RecoveryPoint
from millrace.broker.storage.refusals import corrupt_log
from millrace.broker.storage.replay import headers_between, replay
from millrace.broker.storage.sealed_file import TEMPORARY_SUFFIX
from millrace.broker.storage.segment import Segment, offset_name, parse_offset_name
from millrace.broker.storage.sparse_index import IndexCache, Place, SparseIndex
from millrace.broker.storage.tier import Tier, write_tier
from millrace.core.errors import CorruptLogError
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_TIMESTAMP,
    Offset,
    TopicPartition,
    WallMs,
)
from millrace.core.records.header import BatchHeader
from millrace.core.replica.compaction.cleanable import CleanerPoint
from millrace.core.replica.log.leader_epochs import LeaderEpochs
from millrace.core.replica.log.producer_states import ProducerStates

FAILED: Final = "failed"
"""Name of the mark of a log that failed."""
DAMAGED: Final = "damaged"
"""Name of the mark of a log that was found damaged."""


@dataclass(slots=True)
class RecoveredLog:
    """A log that may be served. Everything before `recovery_point` is flushed."""

    segments: tuple[Segment, ...]
    leader_epochs: LeaderEpochs
    producer_states: ProducerStates
    snapshots: ProducerSnapshots
    log_start_offset: Offset
    recovery_point: Offset
    cleaner_point: CleanerPoint
    tier: Tier | None
    names_are_durable: bool
    scanned_bytes: int
    truncated_bytes: int
    mended: tuple[str, ...]


class LogRecovery:
    """Opens one partition's directory, once.

    Args:
        files: where.
        directory: of the partition; made if it is missing.
        topic_partition: the partition that the batches must belong to.
        point: of the log directory's checkpoint; None when it has no line.
        is_checkpoint_lost: whether that is because it is gone or damaged.
        index_interval_bytes: for an index that must be rebuilt.
        cache: the indexes that are loaded.
        is_clean: whether the log directory was closed cleanly.
        now: the time.
        with_room: runs a write of a small file, and once more with room if the disk is full.
        tier: where the oldest segments lie, if not in the directory.
    """

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        *,
        point: RecoveryPoint | None,
        is_checkpoint_lost: bool = False,
        index_interval_bytes: int,
        cache: IndexCache,
        is_clean: bool,
        now: WallMs,
        with_room: Callable[[Callable[[], None]], None],
        tier: Tier | None = None,
    ) -> None:
        self._tier = tier
        self._files = files
        self._directory = directory
        self._topic_partition = topic_partition
        self._point = point
        self._is_checkpoint_lost = is_checkpoint_lost
        self._index_interval_bytes = index_interval_bytes
        self._cache = cache
        self._is_clean = is_clean
        self._now = now
        self._with_room = with_room
        self._mended: list[str] = []

    def run(self) -> RecoveredLog:
        """Open the files.

        Raises:
            CorruptLogError: flushed bytes are damaged or missing.
            OSError: the disk refused.
        """
        if self._point is not None and not self._files.exists(self._directory):
            raise self._corrupt("the directory is missing")
        self._files.make_directory(self._directory)
        self._finish_swaps()
        names = self._files.list(self._directory)
        bases = self._bases()
        if not bases:
            return self._begin(names)
        bases = self._without_empty(bases)
        epochs = self._read_epochs(names)
        log_start_offset = known_log_start(
            bases[0],
            self._point,
            () if epochs is None else epochs.entries,
            is_checkpoint_lost=self._is_checkpoint_lost,
        )
        if log_start_offset is None:
            raise self._corrupt(
                f"it begins with the segment of offset {bases[0]}, and nothing says that earlier "
                "ones were deleted"
            )
        if bases[0] > log_start_offset:
            raise self._corrupt(f"the segment of offset {log_start_offset} is missing")
        bases = bases[max(_last_at_most(bases, log_start_offset), 0) :]
        closed = [self._open_closed(base, next_base) for base, next_base in pairwise(bases)]
        active = self._open_active(bases[-1])
        snapshots = self._snapshots(names)
        states = ProducerStates()
        kept = snapshots.offsets
        snapshot_offset = snapshots.load(states)
        self._mended += [
            snapshots.path(offset) for offset in kept if offset not in snapshots.offsets
        ]
        recovery_point = max(
            active.next_offset,
            self._point.recovery_point if self._point else log_start_offset,
            snapshot_offset or Offset(0),
            self._orphans(names, bases),
        )

        segments = (*closed, active)
        if DAMAGED in names:
            self._verify(segments)
        must_save_epochs = not self._fits(epochs, segments, log_start_offset)
        if epochs is None or must_save_epochs:
            epochs = LeaderEpochs()
            for header in self._headers(segments, log_start_offset):
                epochs.append(header.leader_epoch, header.base_offset)
        # Also batches before the log's start, while they exist.
        replay_from = bases[0] if snapshot_offset is None else snapshot_offset
        try:
            replay(states, segments, replay_from, segments[-1].next_offset, self._now)
        except scan.DAMAGE as error:
            raise self._corrupt(error.message) from None

        file_bytes = active.file.size()
        scan_from = active.size
        known_epochs = epochs.entries
        damage = self._scan(active, file_bytes, epochs, states, replay_from)
        must_save_epochs |= epochs.entries != known_epochs
        if active.next_offset < recovery_point or (damage and self._is_clean):
            raise self._corrupt(
                f"it was flushed up to offset {recovery_point} and ends at "
                f"{active.next_offset}{damage}"
            )
        if active.size < file_bytes:
            active.file.truncate(active.size)
            active.file.fdatasync()
        if FAILED in names:
            active.file.rewrite(active.size - scan_from, scan_from)
            active.file.fdatasync()
            self._files.unlink(f"{self._directory}/{FAILED}")
        self._remove_leftovers(bases)
        self._lower_tier(active)
        must_save_epochs |= epochs.truncate_from_end(active.next_offset)
        must_save_epochs |= epochs.truncate_from_start(log_start_offset)
        if must_save_epochs and epochs.entries:
            self._with_room(
                partial(write_epochs, self._files, self._directory, self._topic_partition, epochs)
            )
        return RecoveredLog(
            segments,
            epochs,
            states,
            snapshots,
            log_start_offset,
            recovery_point,
            read_point(self._files, self._directory, self._topic_partition),
            self._tier,
            names_are_durable=self._is_clean,
            scanned_bytes=file_bytes - scan_from,
            truncated_bytes=file_bytes - active.size,
            mended=tuple(self._mended),
        )

    def _scan(
        self,
        active: Segment,
        end_position: int,
        epochs: LeaderEpochs,
        states: ProducerStates,
        replay_from: Offset,
    ) -> str:
        """Read what the index of the active segment does not know; return what is damaged."""
        damage = ""
        try:
            for header, markers in active.rescan(
                end_position,
                epochs.epoch_of(Offset(active.next_offset - 1)),
                self._index_interval_bytes,
                self._now,
            ):
                epochs.append(header.leader_epoch, header.base_offset)
                if header.base_offset >= replay_from:
                    states.update(header, header.base_offset, self._now)
                    states.end(markers, header.base_offset, self._now)
        except scan.ScanStop as stop:
            damage = f": {active.path} {stop}"
        if self._point is not None:
            states.transactions.settle(self._point.high_watermark)
        return damage

    def _finish_swaps(self) -> None:
        for folder, name in self._listed():
            swap = segment_swap.parse_swap(name)
            if swap is not None:
                segment_swap.carry_out(self._files, folder, swap, indexes=self._directory)

    def _listed(self) -> list[tuple[str, str]]:
        """Return the files that may be segments, with their directory: the tier's, then others."""
        tier: list[str] = []
        if self._tier is not None:
            folder = self._tier.folder(self._topic_partition)
            with suppress(FileNotFoundError):
                tier = self._files.list(folder)
        home = self._files.list(self._directory)
        return [*((folder, name) for name in tier), *((self._directory, name) for name in home)]

    def _folder_of(self, base: Offset) -> str:
        """Return the only directory in which a segment counts."""
        if self._tier is None or base >= self._tier.end_offset:
            return self._directory
        return self._tier.folder(self._topic_partition)

    def _bases(self) -> list[Offset]:
        """Return the first offsets of the segments, ascending."""
        found = (
            (folder, parse_offset_name(name, segment.SUFFIX)) for folder, name in self._listed()
        )
        return [
            base for folder, base in found if base is not None and folder == self._folder_of(base)
        ]

    def _without_empty(self, bases: list[Offset]) -> list[Offset]:
        """Return the segments without those that never began: the ones before them went on.

        A disk that refused the beginning of a segment may have left its file.
        """
        begun = bases[:1]
        for base in bases[1:]:
            path = f"{self._folder_of(base)}/{offset_name(base)}{segment.SUFFIX}"
            if self._files.size(path) or not self._goes_beyond(begun[-1], base):
                begun.append(base)
        return begun

    def _goes_beyond(self, base: Offset, next_base: Offset) -> bool:
        """Return whether a segment is sound up to an offset, and has bytes after it."""
        found = self._segment(base)
        size = found.file.size()
        coverage = found.index.open(whole=False)
        if coverage is not None and coverage.next_offset >= next_base:
            found.restore(coverage)
        else:
            rebuild(found, size, self._index_interval_bytes, self._now)
        return found.next_offset > next_base or (
            found.next_offset == next_base and found.size < size
        )

    def _lower_tier(self, active: Segment) -> None:
        """Complete a cut of the log within its tier: see `LogTruncation`."""
        tier = self._tier
        if tier is not None and active.folder != self._directory:
            self._tier = tier._replace(end_offset=Offset(active.base_offset + 1))
            if self._tier != tier:
                self._with_room(
                    partial(
                        write_tier,
                        self._files,
                        self._directory,
                        self._topic_partition,
                        self._tier,
                    )
                )

    def _begin(self, names: list[str]) -> RecoveredLog:
        snapshots = self._snapshots(names)
        epochs = read_epochs(self._files, self._directory, self._topic_partition)
        had_records = (
            snapshots.offsets
            or (epochs is not None and epochs.entries)
            or self._orphans(names, [Offset(-1)])
            or self._tier is not None
        )
        if self._point is not None or had_records:
            raise self._corrupt("all its segments are missing")
        path = f"{self._directory}/{offset_name(Offset(0))}{segment.SUFFIX}"
        self._files.open(path, create=True, writable=True).close()
        active = self._segment(Offset(0))
        return RecoveredLog(
            (active,),
            LeaderEpochs(),
            ProducerStates(),
            snapshots,
            Offset(0),
            Offset(0),
            CleanerPoint(Offset(0)),
            self._tier,
            names_are_durable=False,
            scanned_bytes=0,
            truncated_bytes=0,
            mended=(),
        )

    def _read_epochs(self, names: list[str]) -> LeaderEpochs | None:
        epochs = read_epochs(self._files, self._directory, self._topic_partition)
        if epochs is None and EPOCHS in names:
            self._mended.append(f"{self._directory}/{EPOCHS}")
        return epochs

    def _open_closed(self, base: Offset, next_base: Offset) -> Segment:
        """Open a segment that another one follows; rebuild its index if it does not fit."""
        found = self._segment(base)
        size = found.file.size()
        coverage = found.index.open(whole=False)
        if (
            coverage is not None
            and coverage.end_position == size
            and coverage.next_offset == next_base
        ):
            found.restore(coverage)
            if coverage.closed_at != NO_TIMESTAMP:
                return found
        else:
            self._note_damaged(found.index)
            found.index.reset()
            rebuild(found, size, self._index_interval_bytes, self._now)
            if found.size != size or found.next_offset != next_base:
                raise self._corrupt(
                    f"{found.path} is damaged at byte {found.size}: it ends at offset "
                    f"{found.next_offset}, but the next segment begins at {next_base}"
                )
        found.closed_at = self._now
        try:
            found.index.save(found.coverage)
        except OSError as error:
            if not is_full(error):
                raise
            # It stays in memory, and the ballast is left to files that must be written.
        return found

    def _open_active(self, base: Offset) -> Segment:
        """Open the last segment as far as its index knows it."""
        found = self._segment(base)
        coverage = found.index.open(whole=True)
        if coverage is None:
            self._note_damaged(found.index)
            return found
        if coverage.end_position > found.file.size():
            raise self._corrupt(
                f"{found.path} has {found.file.size()} bytes, but {coverage.end_position} were "
                "flushed"
            )
        found.restore(coverage)
        found.closed_at = NO_TIMESTAMP
        return found

    def _note_damaged(self, index: SparseIndex) -> None:
        if self._files.exists(index.path):
            self._mended.append(index.path)

    def _orphans(self, names: list[str], bases: list[Offset]) -> Offset:
        """Return the flushed offset by the indexes of missing segments."""
        known = Offset(0)
        for name in names:
            base = parse_offset_name(name, sparse_index.SUFFIX)
            if base is not None and base > bases[-1]:
                stem = f"{self._directory}/{offset_name(base)}"
                index = SparseIndex(self._files, stem, self._topic_partition, base, self._cache)
                coverage = index.open(whole=True)
                if coverage is not None:
                    known = max(known, coverage.next_offset)
        return known

    def _headers(self, segments: tuple[Segment, ...], start: Offset) -> Iterator[BatchHeader]:
        """Yield the headers from `start` on, as far as indexes know the segments."""
        try:
            yield from headers_between(segments, start, segments[-1].next_offset)
        except scan.DAMAGE as error:
            raise self._corrupt(error.message) from None

    def _verify(self, segments: tuple[Segment, ...]) -> None:
        """Verify all indexed batches, and remove the mark; the rest is always scanned."""
        for found in segments:
            for _ in self._verified(found, Place(found.base_offset, 0)):
                pass
        self._files.unlink(f"{self._directory}/{DAMAGED}")

    def _fits(
        self,
        epochs: LeaderEpochs | None,
        segments: tuple[Segment, ...],
        log_start_offset: Offset,
    ) -> bool:
        """Verify the last indexed batch; return whether the epochs are the log's."""
        last = self._last_batch(segments)
        if epochs is None or epochs.epoch_of(log_start_offset) == NO_LEADER_EPOCH:
            return False
        if last is None or last.next_offset <= log_start_offset:
            return True
        if epochs.epoch_of(max(last.base_offset, log_start_offset)) == last.leader_epoch:
            return True
        self._mended.append(f"{self._directory}/{EPOCHS}")
        return False

    def _last_batch(self, segments: tuple[Segment, ...]) -> BatchHeader | None:
        """Verify the last indexed batch, with the few before it; None: there is none."""
        last = None
        for found in reversed(segments):
            if found.size:
                *_, last = self._verified(found, found.index.floor_of_position(found.size - 1))
                break
        return last

    def _verified(self, found: Segment, place: Place) -> Iterator[BatchHeader]:
        """Yield the headers of the batches from `place` on, as far as the index knows them."""
        try:
            for _, header in scan.verified_batches(
                found.file,
                self._topic_partition,
                position=place.position,
                end_position=found.size,
                next_offset=place.offset,
                leader_epoch=NO_LEADER_EPOCH,
            ):
                yield header
        except (*scan.DAMAGE, scan.ScanStop, OSError) as error:
            if isinstance(error, OSError) and is_passing(error):
                raise
            raise self._corrupt(f"{found.path}: {error}") from None

    def _remove_leftovers(self, bases: list[Offset]) -> None:
        """Remove the leftovers of an interrupted deletion or file write."""
        for folder, name in self._listed():
            is_segment = parse_offset_name(name, segment.SUFFIX)
            is_index = parse_offset_name(name, sparse_index.SUFFIX)
            base = is_segment if is_segment is not None else is_index
            does_not_count = base is not None and (
                base not in bases or (is_segment is not None and folder != self._folder_of(base))
            )
            if name.endswith(TEMPORARY_SUFFIX) or does_not_count:
                self._files.unlink(f"{folder}/{name}")

    def _segment(self, base: Offset) -> Segment:
        return Segment(
            self._files,
            self._directory,
            self._topic_partition,
            base,
            self._cache,
            folder=self._folder_of(base),
        )

    def _snapshots(self, names: list[str]) -> ProducerSnapshots:
        return ProducerSnapshots(self._files, self._directory, self._topic_partition, names)

    def _corrupt(self, reason: str) -> CorruptLogError:
        return corrupt_log(self._topic_partition, self._directory, reason)


def rebuild(
    found: Segment,
    end_position: int,
    index_interval_bytes: int,
    now: WallMs,
) -> None:
    """Read an opened segment, whose index is empty, from its first byte as far as it is sound."""
    found.restore(found.empty_coverage)
    try:
        for _ in found.rescan(end_position, NO_LEADER_EPOCH, index_interval_bytes, now):
            pass
    except scan.ScanStop:
        return


def _last_at_most(bases: list[Offset], offset: Offset) -> int:
    return sum(base <= offset for base in bases) - 1
