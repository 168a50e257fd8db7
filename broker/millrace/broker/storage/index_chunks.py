"""The file of a segment's index: chunks of entries, each sealed.

Each chunk, little-endian:

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

A chunk with aborted transactions (`aborted_index`) has version 3. Then bytes 56 to 75 are:

| offset | size | field                                                                        |
|-------:|-----:|------------------------------------------------------------------------------|
|     56 |    4 | aborted transactions whose markers the chunk covers                          |
|     60 |    8 | the smallest of their first offsets                                          |
|     68 |    4 | CRC-32C of the entries and the aborted transactions                          |
|     72 |    4 | CRC-32C of the topic id, the partition (i32), and bytes 0 to 71              |

The entries begin at byte 76, and each aborted transaction follows them: i64 producer id, i64 first
offset, i64 last offset of its records, i64 first offset of the control batch with its marker;
ascending by the last. A log without aborted transactions has version 2, which earlier releases
read.

The checksums bind a chunk to its partition, the base offset to its segment: an index copied beside
another segment counts as damaged (P66).
"""

import struct
from typing import Final, NamedTuple

import crc32c
import numpy as np
import numpy.typing as npt

from millrace.broker.storage import aborted_index
from millrace.core.ids import Offset, TopicPartition, WallMs

_MAGIC: Final = b"MRX\x02"
_CHUNK: Final = struct.Struct("<4sIqqqqqqI")
_CRC: Final = struct.Struct("<I")
_BINDING: Final = struct.Struct("<16si")
_CHUNK_BYTES: Final = _CHUNK.size + _CRC.size
_MAGIC_3: Final = b"MRX\x03"
_CHUNK_3: Final = struct.Struct("<4sIqqqqqqIqI")
HEAD_BYTES_MAX: Final = _CHUNK_3.size + _CRC.size
"""Bytes of a chunk before its entries, at the most."""
ENTRY: Final = np.dtype([("offset", "<u4"), ("position", "<u4"), ("timestamp", "<i8")])
"""An entry in the file."""
assert _CHUNK_BYTES == 64
assert HEAD_BYTES_MAX == 76


class Coverage(NamedTuple):
    """The part of a segment that an index file covers."""

    next_offset: Offset
    end_position: int
    largest_timestamp: WallMs
    created_at: WallMs
    closed_at: WallMs


class Head(NamedTuple):
    """The head of a chunk."""

    coverage: Coverage
    entries: int
    aborts: int
    smallest_first: Offset
    entries_crc: int
    nbytes: int

    @property
    def entries_bytes(self) -> int:
        """Bytes of entries and aborted transactions."""
        return self.entries * ENTRY.itemsize + self.aborts * aborted_index.ENTRY.itemsize


class Contents(NamedTuple):
    """The sound part of a file."""

    coverage: Coverage | None
    rows: npt.NDArray[np.void]
    aborts: aborted_index.Rows
    chunks: int
    nbytes: int


def binding_of(topic_partition: TopicPartition) -> int:
    """Return the checksum with which those of the partition's chunks begin."""
    return crc32c.crc32c(_BINDING.pack(*topic_partition))


def read(data: bytes, binding: int, base_offset: Offset) -> Contents:
    """Return the contents of a file, up to a chunk that is damaged or another segment's."""
    at = chunks = 0
    coverage = None
    parts = [np.empty(0, ENTRY)]
    aborts = [np.empty(0, aborted_index.ENTRY)]
    while (found := parse_head(data, at, binding, base_offset)) is not None:
        start = at + found.nbytes
        end = start + found.entries_bytes
        if len(data) < end or crc32c.crc32c(memoryview(data)[start:end]) != found.entries_crc:
            break
        parts.append(np.frombuffer(data, ENTRY, found.entries, start))
        start += found.entries * ENTRY.itemsize
        aborts.append(np.frombuffer(data, aborted_index.ENTRY, found.aborts, start))
        coverage = found.coverage
        at = end
        chunks += 1
    return Contents(coverage, np.concatenate(parts), np.concatenate(aborts), chunks, at)


def parse_head(data: bytes, at: int, binding: int, base_offset: Offset) -> Head | None:
    """Return the head of the chunk at byte `at`; None: there is none, or it is damaged."""
    layout = _CHUNK_3 if data[at : at + len(_MAGIC_3)] == _MAGIC_3 else _CHUNK
    nbytes = layout.size + _CRC.size
    if len(data) - at < nbytes:
        return None
    head = data[at : at + layout.size]
    (crc,) = _CRC.unpack_from(data, at + layout.size)
    if crc32c.crc32c(head, binding) != crc:
        return None
    magic, entries, found_offset, *fields = layout.unpack(head)
    if magic not in (_MAGIC, _MAGIC_3) or found_offset != base_offset:
        return None
    *coverage, entries_crc = fields
    aborts, smallest_first = 0, aborted_index.NEVER
    if layout is _CHUNK_3:
        *coverage, aborts, smallest_first = coverage
    return Head(Coverage(*coverage), entries, aborts, smallest_first, entries_crc, nbytes)


def write(
    coverage: Coverage,
    rows: npt.NDArray[np.void],
    aborts: aborted_index.Rows,
    binding: int,
    base_offset: Offset,
) -> bytes:
    """Return a chunk with these entries and aborted transactions."""
    body = rows.tobytes() + aborts.tobytes()
    crc = crc32c.crc32c(body)
    if len(aborts):
        head = _CHUNK_3.pack(
            _MAGIC_3,
            len(rows),
            base_offset,
            *coverage,
            len(aborts),
            aborted_index.smallest_first(aborts),
            crc,
        )
    else:
        head = _CHUNK.pack(_MAGIC, len(rows), base_offset, *coverage, crc)
    return head + _CRC.pack(crc32c.crc32c(head, binding)) + body
