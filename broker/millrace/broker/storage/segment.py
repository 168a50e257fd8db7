"""One file of a partition's log: consecutive batches, named by the offset of the first.

A segment is *active* while it is the last of its log and grows; then it is *closed*, flushed and
never changed again. Its sparse index lies beside it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from millrace.broker.storage import scan
from millrace.broker.storage.aborted_index import Abort, aborts_of, in_range
from millrace.broker.storage.file_system import File, FileSystem
from millrace.broker.storage.index_chunks import Coverage
from millrace.broker.storage.sparse_index import IndexCache, Place, SparseIndex
from millrace.core.errors import CorruptBatchError, InvalidRecordError
from millrace.core.ids import NO_TIMESTAMP, LeaderEpoch, Offset, TopicPartition, WallMs
from millrace.core.records.header import BatchHeader
from millrace.core.records.markers import AbortedTransaction, WrittenMarker, read_markers

SUFFIX: Final = ".log"
SEGMENT_BYTES_MAX: Final = 2**31 - 1
"""Positions are u32 in the index; one append may overshoot the limit it was rolled by."""

_KNOWN_MAX: Final = 64
_NAME_DIGITS: Final = 20


def offset_name(offset: Offset) -> str:
    """Return how an offset is written in a file's name, so that names sort as offsets do."""
    return f"{offset:0{_NAME_DIGITS}d}"


def parse_offset_name(name: str, suffix: str) -> Offset | None:
    """Return the offset in a file's name; None for any other name."""
    stem = name.removesuffix(suffix)
    if stem == name or len(stem) != _NAME_DIGITS or not (stem.isascii() and stem.isdigit()):
        return None
    return Offset(int(stem))


@dataclass(slots=True)
class ReadPlan:
    """Consecutive whole batches in one file.

    `[base_offset, end_offset)` are the offsets of those batches; the first may begin before the
    offset that was asked for.
    """

    segment: "Segment"
    position: int
    length: int
    end_offset: Offset


class Segment:
    """One segment and its index. One thread at a time changes it; any thread reads.

    It only ever grows: a log that is cut goes on with a `successor`, and one that is cleaned with
    another segment.

    Args:
        files: where.
        directory: of the log, with the index.
        topic_partition: the partition that the batches must belong to.
        base_offset: the first offset.
        cache: the indexes that are loaded.
        folder: where the file is; None: in the log's directory.

    Attributes:
        topic_partition: the partition that the batches must belong to.
        folder: the directory of the file.
        size: bytes of whole batches; never more than the file has.
        next_offset: offset after the last batch.
        largest_timestamp: of all its batches, -1 when it is empty.
        created_at: when the first batch was appended, -1 when it is empty.
        closed_at: when it was closed, -1 while it is active.
        is_retired: whether another segment took, or takes, its name. What a reader has found here
            since does not count: the index may be the other's.
    """

    __slots__ = (
        "_known",
        "_last_indexed",
        "_noticed_at",
        "base_offset",
        "closed_at",
        "created_at",
        "file",
        "folder",
        "index",
        "is_retired",
        "largest_timestamp",
        "next_offset",
        "path",
        "size",
        "topic_partition",
    )

    def __init__(
        self,
        files: FileSystem,
        directory: str,
        topic_partition: TopicPartition,
        base_offset: Offset,
        cache: IndexCache,
        *,
        folder: str | None = None,
    ) -> None:
        stem = f"{directory}/{offset_name(base_offset)}"
        self.folder = directory if folder is None else folder
        self.path = f"{self.folder}/{offset_name(base_offset)}{SUFFIX}"
        self.topic_partition = topic_partition
        self.base_offset = base_offset
        self.next_offset = base_offset
        self.size = 0
        self.largest_timestamp = NO_TIMESTAMP
        self.created_at = NO_TIMESTAMP
        self.closed_at = NO_TIMESTAMP
        self._noticed_at = NO_TIMESTAMP  # When `closed_at` was first seen to be in the future.
        self.is_retired = False
        self.file: File = files.open(self.path, writable=True)
        self.index = SparseIndex(files, stem, topic_partition, base_offset, cache)
        self._last_indexed = 0
        # Positions of batches that will soon be read: where appends and reads ended.
        self._known: dict[Offset, int] = {}

    def closing_time(self, now: WallMs) -> WallMs:
        """Return when it was closed, for its age; at most `now`. Any thread may call.

        A later stamp is of a clock that was ahead, or the clock is behind by now. The age counts
        from when that was noticed until the clock reaches the stamp, so that neither clock lets
        records go too early, and the one that was ahead keeps none for as long as it was.
        """
        if self.closed_at <= now:
            return self.closed_at
        self.notice_clock(now)
        return self._noticed_at

    def notice_clock(self, now: WallMs) -> None:
        """Let the age begin to count if the stamp of the closing is in the future."""
        if self.closed_at > now and not NO_TIMESTAMP < self._noticed_at <= now:
            self._noticed_at = now

    def has_lasted(self, segment_ms: int, now: WallMs) -> bool:
        """Return whether its first batch is so old, or of a time that has not come yet.

        The latter is of a clock that was ahead; a segment may end early.
        """
        return not 0 <= now - self.created_at < segment_ms

    @property
    def coverage(self) -> Coverage:
        """The coverage of an index that is saved now."""
        return Coverage(
            self.next_offset, self.size, self.largest_timestamp, self.created_at, self.closed_at
        )

    @property
    def empty_coverage(self) -> Coverage:
        """The coverage of an empty index."""
        return Coverage(self.base_offset, 0, NO_TIMESTAMP, NO_TIMESTAMP, NO_TIMESTAMP)

    def restore(self, coverage: Coverage) -> None:
        """Take over the index's data about the segment."""
        self.next_offset = coverage.next_offset
        self.size = self._last_indexed = coverage.end_position
        self.largest_timestamp = coverage.largest_timestamp
        self.created_at = coverage.created_at
        self.closed_at = coverage.closed_at

    def note(
        self,
        batch: BatchHeader,
        index_interval_bytes: int,
        now: WallMs,
        markers: Iterable[WrittenMarker] = (),
    ) -> None:
        """Take a batch that is in the file after all others into account.

        Args:
            batch: its header.
            index_interval_bytes: as the topic's settings say.
            now: the time.
            markers: of a control batch.
        """
        self.extend(
            [(batch.base_offset, batch.length, batch.largest_timestamp)],
            batch.next_offset,
            index_interval_bytes,
            now,
            aborts_of(markers, batch.base_offset),
        )

    def extend(
        self,
        batches: Iterable[tuple[Offset, int, WallMs]],
        next_offset: Offset,
        index_interval_bytes: int,
        now: WallMs,
        aborts: Iterable[Abort] = (),
    ) -> None:
        """Take batches into account: (base offset, length, largest timestamp), ascending.

        `aborts` are the transactions whose end is among them.
        """
        for abort in aborts:
            self.index.add_abort(abort)
        position = self.size
        largest = self.largest_timestamp
        for base_offset, length, timestamp in batches:
            if position - self._last_indexed >= index_interval_bytes:
                self.index.add(base_offset, position, largest)
                self._last_indexed = position
            largest = max(largest, timestamp)
            position += length
        if self.created_at == NO_TIMESTAMP:
            self.created_at = now
        self.largest_timestamp = largest
        self.know(next_offset, position)
        self.size = position
        self.next_offset = next_offset

    def know(self, offset: Offset, position: int) -> None:
        """Remember where a batch begins or will begin."""
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[offset] = position

    def rescan(
        self,
        end_position: int,
        leader_epoch: LeaderEpoch,
        index_interval_bytes: int,
        now: WallMs,
    ) -> Iterable[tuple[BatchHeader, Sequence[WrittenMarker]]]:
        """Verify the batches beyond `size`, take them into account, and yield their headers.

        With them the markers of control batches.

        Raises:
            ScanStop: a batch is damaged; the segment ends before it.
        """
        for position, header in scan.verified_batches(
            self.file,
            self.topic_partition,
            position=self.size,
            end_position=end_position,
            next_offset=self.next_offset,
            leader_epoch=leader_epoch,
        ):
            markers: Sequence[WrittenMarker] = ()
            if header.is_control:
                try:
                    markers = self.markers_at(position, header)
                except scan.DAMAGE as error:
                    raise scan.ScanStop(error.message, position, header.base_offset) from None
            self.note(header, index_interval_bytes, now, markers)
            yield header, markers

    def markers_at(self, position: int, header: BatchHeader) -> list[WrittenMarker]:
        """Read the markers of a control batch.

        Raises:
            CorruptBatchError, UnsupportedFormatError: it is damaged, or of a later release.
            OSError: the disk refused.
        """
        batch = self.file.pread(header.length, position)
        try:
            return read_markers(self.topic_partition, header, batch)
        except InvalidRecordError as error:
            raise CorruptBatchError(error.message) from None

    def aborted(
        self, start_offset: Offset, end_offset: Offset, *, may_block: bool
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions with markers here that concern a reader.

        See `SparseIndex.aborted`. A damaged index is replaced by the control batches themselves.

        Raises:
            CorruptBatchError, UnsupportedFormatError, BlockingIOError, OSError: see `headers`.
        """
        found = self.index.aborted(start_offset, end_offset, may_block=may_block)
        if found is not None:
            return found
        aborts = [
            abort
            for position, header in scan.headers(self.file, 0, self.size)
            if header.is_control
            for abort in aborts_of(self.markers_at(position, header), header.base_offset)
        ]
        return in_range(aborts, start_offset, end_offset)

    def retire(self) -> None:
        """Give up the name, before another segment takes it."""
        self.is_retired = True
        self.file.retire()
        self.index.close()

    @property
    def log_dir(self) -> str:
        """The path of the log directory that the file is in."""
        return self.folder.rpartition("/")[0]

    def moved_to(
        self, files: FileSystem, directory: str, cache: IndexCache, folder: str
    ) -> "Segment":
        """Return the segment with an equal file in another folder, and with this one's index."""
        made = Segment(
            files, directory, self.topic_partition, self.base_offset, cache, folder=folder
        )
        made.restore(self.coverage)
        made._noticed_at = self._noticed_at
        made.index = self.index
        return made

    def move_away(self) -> None:
        """Give up the file, now that another object has it elsewhere, and the index, too."""
        self.is_retired = True
        self.file.retire()

    def successor(
        self, files: FileSystem, directory: str, cache: IndexCache, place: Place
    ) -> "Segment":
        """Return the segment that replaces this one as the active one when the log ends inside it.

        It knows the batches before the last remaining entry of the index; those between that and
        the place are for `rescan`. The caller cuts the file. Readers of this object go on. Both
        have one file: its descriptor knows of writes that fail before the next flush (P63).
        """
        made = Segment(
            files, directory, self.topic_partition, self.base_offset, cache, folder=self.folder
        )
        made.file = self.file
        last = made.index.take_before(self.index, place.position)
        if last is not None:
            start, largest_timestamp = last
            coverage = Coverage(
                start.offset, start.position, largest_timestamp, self.created_at, NO_TIMESTAMP
            )
            made.restore(coverage)
        return made

    def locate(self, offset: Offset, end_position: int, *, may_block: bool = True) -> Place:
        """Return the beginning of the batch that holds `offset`, or of the next one.

        Raises:
            CorruptBatchError, UnsupportedFormatError, BlockingIOError, OSError: see `headers`.
        """
        start = self._floor(offset, may_block=may_block)
        if start.offset == offset:
            return start
        found = self._first_after(start, offset, end_position, may_block=may_block)
        if found is None:
            return Place(self.next_offset, end_position)
        position, header = found
        return Place(header.base_offset, position)

    def batch_at(self, offset: Offset, end_position: int) -> tuple[int, BatchHeader]:
        """Return position and header of the batch that holds `offset`.

        Raises:
            CorruptBatchError, UnsupportedFormatError, OSError: see `headers`.
        """
        start = self._floor(offset, may_block=True)
        found = self._first_after(start, offset, end_position, may_block=True)
        if found is None:
            raise CorruptBatchError(f"no batch before byte {end_position} holds offset {offset}")
        return found

    def _first_after(
        self, start: Place, offset: Offset, end_position: int, *, may_block: bool
    ) -> tuple[int, BatchHeader] | None:
        """Return position and header of the first batch from `start` on that ends after `offset`.

        None: there is none before `end_position`.
        """
        for position, header in scan.headers(
            self.file, start.position, end_position, may_block=may_block
        ):
            if header.next_offset > offset:
                return position, header
        return None

    def _floor(self, offset: Offset, *, may_block: bool) -> Place:
        """Return a batch at or before `offset` whose place is known."""
        known = self._known.get(offset)
        if known is not None:
            return Place(offset, known)
        if offset == self.base_offset:
            return Place(offset, 0)
        return self.index.floor_of_offset(offset, may_block=may_block)

    def plan(
        self,
        start_offset: Offset,
        max_bytes: int,
        limit_offset: Offset,
        end: Place,
        *,
        may_block: bool,
    ) -> ReadPlan | None:
        """Return where the batches from `start_offset` on lie; None when none ends by the limit.

        Args:
            start_offset: lies in `[base_offset, end.offset)`.
            max_bytes: at least one batch is planned even if it is larger.
            limit_offset: batches that reach beyond it are left out.
            end: where the segment ends.
            may_block: whether headers and index may come from the disk.
        """
        start = self.locate(start_offset, end.position, may_block=may_block)
        if limit_offset >= end.offset and end.position - start.position <= max_bytes:
            stop = end
        else:
            stop = self._last_boundary(start, max_bytes, limit_offset, end, may_block)
            self.know(stop.offset, stop.position)
        if stop.position <= start.position:
            return None
        return ReadPlan(self, start.position, stop.position - start.position, stop.offset)

    def _last_boundary(
        self, start: Place, max_bytes: int, limit_offset: Offset, end: Place, may_block: bool
    ) -> Place:
        position_max = start.position + max_bytes
        known = self._known.get(limit_offset)
        if known is not None and start.position < known <= position_max:
            return Place(limit_offset, known)
        stop = self.index.floor_of_position(position_max, may_block=may_block)
        if stop.offset > limit_offset:
            stop = self.index.floor_of_offset(limit_offset, may_block=may_block)
        stop = max(stop, start)
        if stop.position - start.position >= max(max_bytes // 2, 1):
            return stop  # The missing part is not worth reading headers.
        for position, header in scan.headers(
            self.file, stop.position, end.position, may_block=may_block
        ):
            next_position = position + header.length
            if header.next_offset > limit_offset:
                break
            if next_position > position_max and position > start.position:
                break
            stop = Place(header.next_offset, next_position)
            if next_position >= position_max:
                break  # No header need be read to know that no more fits.
        return stop


def segment_of(segments: tuple[Segment, ...], offset: Offset) -> int:
    """Return the number of the segment that `offset` lies in; -1 before the first."""
    return bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1
