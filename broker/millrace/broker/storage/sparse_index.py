"""One sparse index per segment that answers by offset and by time.

An entry has the base offset of a batch, its position in the segment, and the largest timestamp of
the batches before it. Offsets, positions and those timestamps all ascend, so each allows binary
search. Entries are `index.interval.bytes` apart or more; from the entry found a reader walks batch
headers. Beside them it has the aborted transactions whose markers lie in the segment
(`aborted_index`).

The file is a sequence of chunks (`index_chunks`). A chunk is added when the log was flushed, and
covers the batches since the chunk before; closing the segment replaces all chunks by one.

An index is a cache: it is verified when it is read and rebuilt from the log when it does not fit
(P68). But it is also a witness: the batches of a chunk were flushed before the chunk was written,
so a log that ends earlier has lost bytes.

Entries that no chunk holds yet are in memory; those of chunks are loaded on first use, and the
`IndexCache` bounds how many bytes of them stay.
"""

import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.broker.storage import aborted_index, index_chunks
from millrace.broker.storage.aborted_index import Abort, AbortTable, PendingAborts
from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.index_chunks import Coverage
from millrace.broker.storage.sealed_file import read_whole, replace_file
from millrace.core.ids import NO_TIMESTAMP, Offset, TopicPartition, WallMs
from millrace.core.records.markers import AbortedTransaction

SUFFIX: Final = ".index"
CHUNKS_MAX: Final = 1024
"""Chunks at which they are replaced by one, so that a slow partition's index opens quickly."""

_U32_MAX: Final = 2**32 - 1


class Place(NamedTuple):
    """A batch's beginning in a segment."""

    offset: Offset
    position: int


class Entries(NamedTuple):
    """The entries of a file, column by column: ascending, of one length.

    `version` counts the file's changes: as of the last one that is surely among the entries.
    """

    offsets: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.uint32]
    timestamps: npt.NDArray[np.int64]
    aborts: AbortTable
    version: int

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        columns = self.offsets.nbytes + self.positions.nbytes + self.timestamps.nbytes
        return columns + self.aborts.nbytes


class IndexCache:
    """Loaded entries of many indexes, least recently used first, bounded by their bytes."""

    __slots__ = ("_bytes", "_bytes_max", "_loaded", "_lock")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._lock = threading.Lock()  # Not held while files are read.
        self._loaded: OrderedDict[SparseIndex, Entries] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """Bytes of all entries that are loaded."""
        return self._bytes

    def get(self, index: "SparseIndex") -> Entries | None:
        """Return the loaded entries of `index`."""
        with self._lock:
            entries = self._loaded.get(index)
            if entries is not None:
                self._loaded.move_to_end(index)
            return entries

    def put(self, index: "SparseIndex", entries: Entries) -> None:
        """Keep loaded entries, and drop those that were idle longest."""
        with self._lock:
            self._drop(index)
            self._loaded[index] = entries
            self._bytes += entries.nbytes
            while self._bytes > self._bytes_max and len(self._loaded) > 1:
                self._drop(next(iter(self._loaded)))

    def drop(self, index: "SparseIndex") -> None:
        """Forget the loaded entries of `index`."""
        with self._lock:
            self._drop(index)

    def _drop(self, index: "SparseIndex") -> None:
        entries = self._loaded.pop(index, None)
        if entries is not None:
            self._bytes -= entries.nbytes


class _Pending:
    """Entries that are only in memory."""

    __slots__ = ("offsets", "positions", "timestamps")

    def __init__(self) -> None:
        self.offsets = array("q")  # Grows last: readers use its length.
        self.positions = array("q")
        self.timestamps = array("q")

    @classmethod
    def of(cls, rows: "npt.NDArray[np.void]") -> "_Pending":
        """Return rows of a file as they are in memory."""
        made = cls()
        made.timestamps.frombytes(rows["timestamp"].astype(np.int64).tobytes())
        made.positions.frombytes(rows["position"].astype(np.int64).tobytes())
        made.offsets.frombytes(rows["offset"].astype(np.int64).tobytes())
        return made

    def split(self, position: int) -> "tuple[npt.NDArray[np.void], _Pending | None]":
        """Return the entries before `position` as rows of a file, and the others."""
        at = bisect_left(self.positions, position)
        rows = np.empty(at, index_chunks.ENTRY)
        rows["offset"], rows["position"] = self.offsets[:at], self.positions[:at]
        rows["timestamp"] = self.timestamps[:at]
        if at == len(self.offsets):
            return rows, None
        rest = _Pending()
        rest.timestamps, rest.positions = self.timestamps[at:], self.positions[at:]
        rest.offsets = self.offsets[at:]
        return rows, rest


class SparseIndex:
    """The index of one segment: its file, and the entries in memory. One thread at a time changes
    it; any thread searches.

    Attributes:
        path: of the file.
        is_damaged: the file was found damaged after it had been opened; searches then begin at the
            segment's first byte, until the owner rebuilds it.
        smallest_first: of the aborted transactions; `aborted_index.NEVER`: there are none.
    """

    __slots__ = (
        "_aborts",
        "_base_offset",
        "_binding",
        "_cache",
        "_chunks",
        "_coverage",
        "_file_bytes",
        "_files",
        "_pending",
        "_version",
        "is_damaged",
        "path",
        "smallest_first",
    )

    def __init__(
        self,
        files: FileSystem,
        segment_path: str,
        topic_partition: TopicPartition,
        base_offset: Offset,
        cache: IndexCache,
    ) -> None:
        self._files = files
        self.path = segment_path + SUFFIX
        self._binding = index_chunks.binding_of(topic_partition)
        self._base_offset = base_offset
        self._cache = cache
        self._chunks = 0
        self._file_bytes = 0
        self._coverage: Coverage | None = None  # The file's.
        self._pending: _Pending | None = None
        self._aborts: PendingAborts | None = None
        self._version = 0
        self.is_damaged = False
        self.smallest_first = aborted_index.NEVER

    def open(self, *, whole: bool) -> Coverage | None:
        """Read what the file covers; None when it is missing or damaged from its first chunk on.

        Args:
            whole: verify the entries too, as for a segment that goes on growing. Otherwise that is
                left to the first search, and only a file of one chunk is accepted.
        """
        coverage = None
        try:
            if whole:
                found_whole = self._read()
                coverage = found_whole.coverage
                self._chunks, self._file_bytes = found_whole.chunks, found_whole.nbytes
                self.smallest_first = aborted_index.smallest_first(found_whole.aborts)
            else:
                size = self._files.size(self.path)
                file = self._files.open(self.path)
                try:
                    head = file.pread(index_chunks.HEAD_BYTES_MAX, 0)
                finally:
                    file.close()
                found = index_chunks.parse_head(head, 0, self._binding, self._base_offset)
                if found is not None and size == found.nbytes + found.entries_bytes:
                    coverage, self._chunks, self._file_bytes = found.coverage, 1, size
                    self.smallest_first = found.smallest_first
        except FileNotFoundError:
            return None
        self._coverage = coverage
        return coverage

    def add(self, offset: Offset, position: int, largest_timestamp_before: WallMs) -> None:
        """Note where a batch begins; in ascending order."""
        if self._pending is None:
            self._pending = _Pending()
        pending = self._pending
        pending.timestamps.append(largest_timestamp_before)
        pending.positions.append(position)
        pending.offsets.append(offset - self._base_offset)

    def add_abort(self, abort: Abort) -> None:
        """Note an aborted transaction; in ascending order of their markers."""
        if self._aborts is None:
            self._aborts = PendingAborts()
        self._aborts.add(abort)
        self.smallest_first = min(self.smallest_first, abort.transaction.first_offset)

    def reset(self) -> None:
        """Forget all entries and remove the file."""
        self.smallest_first = aborted_index.NEVER
        self.is_damaged = False
        self._remove()

    def _remove(self) -> None:
        self._pending = self._aborts = None
        self._version += 1
        self._coverage = None
        self._chunks = self._file_bytes = 0
        self._cache.drop(self)
        if self._files.exists(self.path):
            self._files.unlink(self.path)

    def discard(self) -> None:
        """Give up the entries and the file, of a segment that readers may still have.

        They must not take it that nothing was aborted there: then the index counts as damaged.
        """
        if self.smallest_first == aborted_index.NEVER:
            self.reset()
            return
        self.is_damaged = True  # First, and `aborted` looks last.
        self._remove()

    def save(self, coverage: Coverage) -> None:
        """Write the covered entries that are only in memory; covered batches are flushed.

        Closing coverage (`closed_at` set), or many chunks, make one chunk of all. An index that has
        lost aborted transactions is not written: it would count as whole.
        """
        if self._lacks_aborts():
            return
        pending = self._pending or _Pending()
        rows, rest = pending.split(coverage.end_position)
        aborts, later = (self._aborts or PendingAborts()).split(coverage.next_offset)
        if coverage.closed_at != NO_TIMESTAMP or self._chunks >= CHUNKS_MAX:
            if self._chunks:
                saved = self._read()
                self.is_damaged = self.is_damaged or saved.nbytes < self._file_bytes
                if self._lacks_aborts():
                    return
                rows = np.concatenate([saved.rows, rows])
                aborts = np.concatenate([saved.aborts, aborts])
            chunk = index_chunks.write(coverage, rows, aborts, self._binding, self._base_offset)
            replace_file(self._files, self.path, chunk, durable=False)
            self._chunks, self._file_bytes = 1, len(chunk)
            self.is_damaged = False
        else:
            chunk = index_chunks.write(coverage, rows, aborts, self._binding, self._base_offset)
            file = self._files.open(self.path, create=True, writable=True)
            try:
                file.truncate(self._file_bytes)  # Without the leftovers of a crash or a full disk.
                if file.append([chunk]) != len(chunk):
                    return  # The disk is full. The entries stay in memory, for the next time.
            finally:
                file.close()
            self._chunks += 1
            self._file_bytes += len(chunk)
        self._version += 1
        self._cache.drop(self)
        self._coverage = coverage
        self._pending = rest
        self._aborts = later if len(later) else None  # Last: see `aborted`.

    def stored_aborts(self) -> aborted_index.Rows:
        """Return the aborted transactions in the file, up to a chunk that is damaged.

        Raises:
            FileNotFoundError: there is no file.
        """
        return self._read().aborts

    def take_before(self, other: "SparseIndex", position: int) -> tuple[Place, WallMs] | None:
        """Take another index's entries before a byte of the segment; this one has none yet.

        The other's file becomes this one's if it covers no more than that. Else it is removed, as a
        witness of batches about to be cut must not stay, and its entries are only in memory.

        Returns:
            The place up to which the entries reach, and the largest timestamp before; None:
            nowhere.
        """
        known: tuple[Place, WallMs] | None = None
        coverage = other._coverage
        pending = other._pending or _Pending()
        rows, _ = pending.split(position)
        aborts = (other._aborts or PendingAborts()).rows()
        kept_first = aborted_index.NEVER
        if coverage is not None and coverage.end_position > position:
            entries = other._load(may_block=True)
            if entries is not None:
                count = int(entries.positions.searchsorted(_u32(position), "left"))
                saved = np.empty(count, index_chunks.ENTRY)
                saved["offset"], saved["position"] = (
                    entries.offsets[:count],
                    entries.positions[:count],
                )
                saved["timestamp"] = entries.timestamps[:count]
                rows = np.concatenate([saved, rows])
                aborts = np.concatenate([entries.aborts.before(aborted_index.NEVER), aborts])
            other.discard()
        elif coverage is not None and not other.is_damaged:
            self._chunks, self._file_bytes = other._chunks, other._file_bytes
            self._coverage = coverage
            kept_first = other.smallest_first
            known = Place(coverage.next_offset, coverage.end_position), coverage.largest_timestamp
        else:
            rows = rows[:0] if other.is_damaged else rows
            other.discard()
        if len(rows):
            self._pending = _Pending.of(rows)
            last = rows[-1]
            place = self._place(int(last["offset"]), int(last["position"]))
            known = place, WallMs(int(last["timestamp"]))
        end = self._base_offset if known is None else known[0].offset
        aborts = aborts[aborts["marker_offset"] < end]  # Those after it are scanned again.
        self._aborts = PendingAborts.of(aborts) if len(aborts) else None
        self.smallest_first = min(kept_first, aborted_index.smallest_first(aborts))
        return known

    def aborted(
        self, start_offset: Offset, end_offset: Offset, *, may_block: bool = True
    ) -> list[AbortedTransaction] | None:
        """Return the aborted transactions that concern a reader, by their markers in this segment.

        Those whose marker and last record are not before `start_offset`, and whose first record
        lies before `end_offset`. None: the index is damaged.

        Raises:
            BlockingIOError: entries must be loaded, and `may_block` is false.
        """
        pending = self._aborts  # First: what is saved meanwhile is in the file, then.
        found: list[AbortedTransaction] = []
        after = -1
        if self._chunks:
            entries = self._load_current(may_block)
            if entries is None:
                return None
            found = entries.aborts.between(start_offset, end_offset)
            after = entries.aborts.last_marker_offset
        if self._lacks_aborts():  # Perhaps since a moment ago.
            if not may_block:
                raise BlockingIOError
            return None
        if pending is not None:
            found += pending.between(start_offset, end_offset, after=after)
        return found

    def floor_of_offset(self, offset: Offset, *, may_block: bool = True) -> Place:
        """Return the last entry of at most `offset`; the segment's beginning when there is none.

        Raises:
            BlockingIOError: entries must be loaded, and `may_block` is false.
        """
        relative = offset - self._base_offset
        pending = self._pending
        if pending is not None:
            at = bisect_right(pending.offsets, relative)
            if at:
                return self._place(pending.offsets[at - 1], pending.positions[at - 1])
        entries = self._load(may_block)
        if entries is not None:
            at = int(entries.offsets.searchsorted(_u32(relative), "right"))
            if at:
                return self._place(int(entries.offsets[at - 1]), int(entries.positions[at - 1]))
        return Place(self._base_offset, 0)

    def floor_of_position(self, position: int, *, may_block: bool = True) -> Place:
        """Return the last entry at or before byte `position`; raises as `floor_of_offset`."""
        pending = self._pending
        if pending is not None:
            at = bisect_right(pending.positions, position, 0, len(pending.offsets))
            if at:
                return self._place(pending.offsets[at - 1], pending.positions[at - 1])
        entries = self._load(may_block)
        if entries is not None:
            at = int(entries.positions.searchsorted(_u32(position), "right"))
            if at:
                return self._place(int(entries.offsets[at - 1]), int(entries.positions[at - 1]))
        return Place(self._base_offset, 0)

    def floor_of_time(self, timestamp: WallMs) -> Place:
        """Return the last entry before which no batch reaches `timestamp`."""
        pending = self._pending
        if pending is not None:
            at = bisect_left(pending.timestamps, timestamp, 0, len(pending.offsets))
            if at:
                return self._place(pending.offsets[at - 1], pending.positions[at - 1])
        entries = self._load(may_block=True)
        if entries is not None:
            at = int(entries.timestamps.searchsorted(timestamp, "left"))
            if at:
                return self._place(int(entries.offsets[at - 1]), int(entries.positions[at - 1]))
        return Place(self._base_offset, 0)

    def largest_before(self, offset: Offset) -> tuple[Place, WallMs]:
        """Return `floor_of_offset`, and the largest timestamp of the batches before it."""
        relative = offset - self._base_offset
        pending = self._pending
        if pending is not None:
            at = bisect_right(pending.offsets, relative) - 1
            if at >= 0:
                place = self._place(pending.offsets[at], pending.positions[at])
                return place, WallMs(pending.timestamps[at])
        entries = self._load(may_block=True)
        if entries is not None:
            at = int(entries.offsets.searchsorted(_u32(relative), "right")) - 1
            if at >= 0:
                place = self._place(int(entries.offsets[at]), int(entries.positions[at]))
                return place, WallMs(int(entries.timestamps[at]))
        return Place(self._base_offset, 0), NO_TIMESTAMP

    def _place(self, relative: int, position: int) -> Place:
        return Place(Offset(self._base_offset + relative), position)

    def verify(self) -> int:
        """Read the file again, even if it is loaded, to find out whether it is damaged.

        Returns:
            Its bytes.
        """
        if self._chunks and not self.is_damaged:
            self.is_damaged = self._read_sound() is None
        return self._file_bytes

    def close(self) -> None:
        """Release the loaded entries."""
        self._cache.drop(self)

    def _lacks_aborts(self) -> bool:
        """Whether there were aborted transactions, and not all of them are known any more."""
        return self.is_damaged and self.smallest_first < aborted_index.NEVER

    def _load_current(self, may_block: bool) -> Entries | None:
        """As `_load`, but surely with what the last change of the file has brought."""
        while True:
            version = self._version
            entries = self._load(may_block)
            if entries is None or entries.version >= version:
                return entries
            self._cache.drop(self)  # Another thread has loaded it before that change.

    def _load(self, may_block: bool) -> Entries | None:
        if self._chunks == 0:
            return None
        if self.is_damaged:
            if not may_block:
                raise BlockingIOError
            return None
        entries = self._cache.get(self)
        if entries is not None:
            return entries
        if not may_block:
            raise BlockingIOError
        version = self._version
        found = self._read_sound()
        if found is None:
            self.is_damaged = True
            return None
        rows = found.rows
        entries = Entries(
            rows["offset"].copy(),
            rows["position"].copy(),
            rows["timestamp"].copy(),
            AbortTable(found.aborts),
            version,
        )
        self._cache.put(self, entries)
        return entries

    def _read_sound(self) -> index_chunks.Contents | None:
        """Read all chunks; None when one is damaged, or the file is gone."""
        expected = self._file_bytes
        try:
            found = self._read()
        except FileNotFoundError:
            return None
        return found if found.nbytes >= expected else None

    def _read(self) -> index_chunks.Contents:
        """Read all chunks up to the first that is damaged."""
        data = read_whole(self._files, self.path)
        return index_chunks.read(data, self._binding, self._base_offset)


def _u32(number: int) -> np.uint32:
    """Return a number of the columns' own type: another type would make numpy copy the column."""
    return np.uint32(min(number, _U32_MAX))
