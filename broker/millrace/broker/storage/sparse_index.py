"""One sparse index per segment that answers by offset and by time.

An entry has the base offset of a batch, its position in the segment, and the largest timestamp of
the batches before it. Offsets, positions and those timestamps all ascend, so each allows binary
search. Entries are `index.interval.bytes` apart or more; from the entry found a reader walks batch
headers.

The file is a sequence of chunks. A chunk is added when the log was flushed, and covers the batches
since the chunk before; closing the segment replaces all chunks by one. Little-endian:

| offset | size | field                                                                        |
|-------:|-----:|------------------------------------------------------------------------------|
|      0 |    4 | magic `MRX` and the version, 2                                               |
|      4 |    4 | entries in this chunk                                                        |
|      8 |    8 | base offset of the segment                                                   |
|     16 |    8 | next offset: end of what is covered, exclusive                               |
|     24 |    8 | end position: bytes of the segment that are covered                          |
|     32 |    8 | largest timestamp of all batches covered, -1 when there are none             |
|     40 |    8 | ms UTC of the first append to the segment                                    |
|     48 |    8 | ms UTC when the segment was closed, -1 while it is open                      |
|     56 |    4 | CRC-32C of the entries                                                       |
|     60 |    4 | CRC-32C of the topic id, the partition (i32), and bytes 0 to 59              |
|     64 |   16 | each entry: u32 offset - base offset, u32 position, i64 timestamp            |

The checksums bind a chunk to its partition, the base offset to its segment: an index copied beside
another segment counts as damaged (P66).

An index is a cache: it is verified when it is read and rebuilt from the log when it does not fit
(P68). But it is also a witness: the batches of a chunk were flushed before the chunk was written,
so a log that ends earlier has lost bytes.

Entries that no chunk holds yet are in memory; those of chunks are loaded on first use, and the
`IndexCache` bounds how many bytes of them stay.
"""

import struct
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from typing import Final, NamedTuple

import crc32c
import numpy as np
import numpy.typing as npt

from millrace.broker.storage.file_system import FileSystem
from millrace.broker.storage.sealed_file import read_whole, replace_file
from millrace.core.ids import NO_TIMESTAMP, Offset, TopicPartition, WallMs

SUFFIX: Final = ".index"
CHUNKS_MAX: Final = 1024
"""Chunks at which they are replaced by one, so that a slow partition's index opens quickly."""

_MAGIC: Final = b"MRX\x02"
_CHUNK: Final = struct.Struct("<4sIqqqqqqI")
_CRC: Final = struct.Struct("<I")
_BINDING: Final = struct.Struct("<16si")
_CHUNK_BYTES: Final = _CHUNK.size + _CRC.size
_ENTRY: Final = np.dtype([("offset", "<u4"), ("position", "<u4"), ("timestamp", "<i8")])
assert _CHUNK_BYTES == 64

_U32_MAX: Final = 2**32 - 1


class Coverage(NamedTuple):
    """The part of a segment that an index file covers."""

    next_offset: Offset
    end_position: int
    largest_timestamp: WallMs
    created_at: WallMs
    closed_at: WallMs


class Place(NamedTuple):
    """A batch's beginning in a segment."""

    offset: Offset
    position: int


class Entries(NamedTuple):
    """The entries of a file, column by column: ascending, of one length."""

    offsets: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.uint32]
    timestamps: npt.NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.offsets.nbytes + self.positions.nbytes + self.timestamps.nbytes


class _Contents(NamedTuple):
    """The sound part of a file."""

    coverage: Coverage | None
    rows: npt.NDArray[np.void]
    chunks: int
    nbytes: int


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
        rows = np.empty(at, _ENTRY)
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
    """

    __slots__ = (
        "_base_offset",
        "_binding",
        "_cache",
        "_chunks",
        "_coverage",
        "_file_bytes",
        "_files",
        "_pending",
        "is_damaged",
        "path",
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
        self._binding = crc32c.crc32c(_BINDING.pack(*topic_partition))
        self._base_offset = base_offset
        self._cache = cache
        self._chunks = 0
        self._file_bytes = 0
        self._coverage: Coverage | None = None  # The file's.
        self._pending: _Pending | None = None
        self.is_damaged = False

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
            else:
                size = self._files.size(self.path)
                file = self._files.open(self.path)
                try:
                    head = file.pread(_CHUNK_BYTES, 0)
                finally:
                    file.close()
                found = self._parse(head, 0)
                if found is not None and size == _CHUNK_BYTES + found[1] * _ENTRY.itemsize:
                    coverage, self._chunks, self._file_bytes = found[0], 1, size
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

    def reset(self) -> None:
        """Forget all entries and remove the file."""
        self._pending = None
        self._coverage = None
        self._chunks = self._file_bytes = 0
        self.is_damaged = False
        self._cache.drop(self)
        if self._files.exists(self.path):
            self._files.unlink(self.path)

    def save(self, coverage: Coverage) -> None:
        """Write the covered entries that are only in memory; covered batches are flushed.

        Closing coverage (`closed_at` set), or many chunks, make one chunk of all.
        """
        pending = self._pending or _Pending()
        rows, rest = pending.split(coverage.end_position)
        if coverage.closed_at != NO_TIMESTAMP or self._chunks >= CHUNKS_MAX:
            if self._chunks:
                rows = np.concatenate([self._read().rows, rows])
            chunk = self._chunk(coverage, rows)
            replace_file(self._files, self.path, chunk, durable=False)
            self._chunks, self._file_bytes = 1, len(chunk)
            self.is_damaged = False
        else:
            chunk = self._chunk(coverage, rows)
            file = self._files.open(self.path, create=True, writable=True)
            try:
                file.truncate(self._file_bytes)  # Without the leftovers of a crash or a full disk.
                if file.append([chunk]) != len(chunk):
                    return  # The disk is full. The entries stay in memory, for the next time.
            finally:
                file.close()
            self._chunks += 1
            self._file_bytes += len(chunk)
        self._cache.drop(self)
        self._coverage = coverage
        self._pending = rest

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
        if coverage is not None and coverage.end_position > position:
            entries = other._load(may_block=True)
            if entries is not None:
                count = int(entries.positions.searchsorted(_u32(position), "left"))
                saved = np.empty(count, _ENTRY)
                saved["offset"], saved["position"] = (
                    entries.offsets[:count],
                    entries.positions[:count],
                )
                saved["timestamp"] = entries.timestamps[:count]
                rows = np.concatenate([saved, rows])
            other.reset()
        elif coverage is not None and not other.is_damaged:
            self._chunks, self._file_bytes = other._chunks, other._file_bytes
            self._coverage = coverage
            known = Place(coverage.next_offset, coverage.end_position), coverage.largest_timestamp
        else:
            rows = rows[:0] if other.is_damaged else rows
            other.reset()
        if len(rows):
            self._pending = _Pending.of(rows)
            last = rows[-1]
            place = self._place(int(last["offset"]), int(last["position"]))
            known = place, WallMs(int(last["timestamp"]))
        return known

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
        found = self._read_sound()
        if found is None:
            self.is_damaged = True
            return None
        rows = found.rows
        entries = Entries(rows["offset"].copy(), rows["position"].copy(), rows["timestamp"].copy())
        self._cache.put(self, entries)
        return entries

    def _read_sound(self) -> "_Contents | None":
        """Read all chunks; None when one is damaged, or the file is gone."""
        expected = self._file_bytes
        try:
            found = self._read()
        except FileNotFoundError:
            return None
        return found if found.nbytes >= expected else None

    def _read(self) -> "_Contents":
        """Read all chunks up to the first that is damaged."""
        data = read_whole(self._files, self.path)
        at = chunks = 0
        coverage = None
        parts = [np.empty(0, _ENTRY)]
        while (found := self._parse(data, at)) is not None:
            start = at + _CHUNK_BYTES
            end = start + found[1] * _ENTRY.itemsize
            if len(data) < end or crc32c.crc32c(memoryview(data)[start:end]) != found[2]:
                break
            parts.append(np.frombuffer(data, _ENTRY, found[1], start))
            coverage = found[0]
            at = end
            chunks += 1
        return _Contents(coverage, np.concatenate(parts), chunks, at)

    def _parse(self, data: bytes, at: int) -> tuple[Coverage, int, int] | None:
        """Return coverage, count and checksum of the entries of the chunk at byte `at`."""
        if len(data) - at < _CHUNK_BYTES:
            return None
        head = data[at : at + _CHUNK.size]
        (crc,) = _CRC.unpack_from(data, at + _CHUNK.size)
        if crc32c.crc32c(head, self._binding) != crc:
            return None
        magic, count, base_offset, *coverage, entries_crc = _CHUNK.unpack(head)
        if magic != _MAGIC or base_offset != self._base_offset:
            return None
        return Coverage(*coverage), count, entries_crc

    def _chunk(self, coverage: Coverage, rows: npt.NDArray[np.void]) -> bytes:
        body = rows.tobytes()
        head = _CHUNK.pack(_MAGIC, len(rows), self._base_offset, *coverage, crc32c.crc32c(body))
        return head + _CRC.pack(crc32c.crc32c(head, self._binding)) + body


def _u32(number: int) -> np.uint32:
    """Return a number of the columns' own type: another type would make numpy copy the column."""
    return np.uint32(min(number, _U32_MAX))
