"""Stored batches as Kafka's readers get them.

A batch of format 2 is Kafka's own behind our header. One of columns is laid out again, a record
after another, without a loop over records: the numbers of all records are written as columns of
varints, and Arrow joins the columns cell by cell. What it joined lies in one buffer, which is what
an encoder of Kafka's would have written. Offsets, leader epoch, producer, times and codec stay.

Our control batch ends many transactions, one record each; Kafka's has the producer in its header,
and one record. So it becomes a batch for each record. Each begins where the one before ends, and
the last one ends with ours, also where a cleaner has taken records away: so a reader's position
comes to the end of the log.

Source: Kafka's message format, KIP-98's control records.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.ids import NO_SEQUENCE, NO_TIMESTAMP, Offset, WallMs
from millrace.core.records import column_reader, kafka_compression
from millrace.core.records.arrow_views import Int64s, numbers_of, scalar_of, validity_of
from millrace.core.records.column_reader import Body
from millrace.core.records.columns import RECORDS_MAX
from millrace.core.records.compression import inflate
from millrace.core.records.header import (
    HEADER_BYTES,
    KAFKA_FORMAT,
    KAFKA_HEADER_BYTES,
    Attributes,
    BatchHeader,
    Buffer,
)
from millrace.core.records.kafka_batch import KafkaAttributes, write_header
from millrace.core.records.markers import markers_of

_MARKER_KEY: Final = struct.Struct(">hh")  # Version 0; 0: aborted, 1: committed.
_MARKER_VALUE: Final = struct.Struct(">hi")  # Version 0; the coordinator's epoch.

_NULL: Final = b"\x01"
_ZERO: Final = b"\x00"
_SEPARATOR: Final = scalar_of(b"")
_TABLE_MAX: Final = RECORDS_MAX
"""The table of varints has the numbers up to this one: so it has all dense offsets."""
_JOINING: Final = pc.JoinOptions(null_handling="replace", null_replacement="")


def to_kafka(header: BatchHeader, batch: Buffer) -> Buffer:
    """Return a batch, or several, of Kafka's with the records of a stored one.

    Args:
        header: of the batch.
        batch: all of it, and its producer's checksum is verified (`header.verify_body`): the result
            has another checksum, which would hide what is damaged.

    Raises:
        CorruptBatchError, UnsupportedFormatError, InvalidRecordError: the batch is not what its
            leader accepted.
    """
    body = memoryview(batch)[HEADER_BYTES : header.length]
    if header.format == KAFKA_FORMAT:
        return body
    if not header.record_count:
        return _batch(header, b"", 0, NO_TIMESTAMP, NO_TIMESTAMP)
    inflated = inflate(header.codec, body, header.inflated_length)
    columns = column_reader.read(inflated, header)
    if header.is_control:
        return _control_batches(header, columns)
    return of_columns(header, columns).batch


class WrittenBatch(NamedTuple):
    """A batch of Kafka's.

    Attributes:
        batch: all of it.
        codec: of its records; none where compressing saves nothing.
        inflated_length: bytes of the batch with its records inflated.
    """

    batch: bytes
    codec: int
    inflated_length: int


def of_columns(header: BatchHeader, columns: Body) -> WrittenBatch:
    """Return records as a batch of Kafka's.

    Args:
        header: what the batch is to say, at least one record; of `attributes` codec, transactional
            and those of empty columns count.
        columns: the records.
    """
    records = _records(header, columns)
    codec, stored = kafka_compression.compress(header.codec, records)
    attributes, base, top = int(codec), header.base_timestamp, header.max_timestamp
    if header.has_append_time:
        attributes |= KafkaAttributes.APPEND_TIME
        base = top = header.append_timestamp
    batch = _batch(header, stored, attributes, base, top)
    return WrittenBatch(batch, codec, KAFKA_HEADER_BYTES + len(records))


def _batch(
    header: BatchHeader,
    stored: Buffer,
    attributes: int,
    base_timestamp: WallMs,
    max_timestamp: WallMs,
) -> bytes:
    if header.is_transactional:
        attributes |= KafkaAttributes.TRANSACTIONAL
    written = write_header(
        stored,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=header.record_count,
    )
    return b"".join((written, stored))


def _control_batches(header: BatchHeader, columns: Body) -> bytes:
    """Return a batch for each marker of a control batch."""
    markers = markers_of(columns.values)
    deltas: Sequence[int] = range(len(markers))
    if columns.offset_deltas is not None:
        deltas = numbers_of(columns.offset_deltas).tolist()
    # Each begins where the one before ends, and ends with its record; the last one with ours.
    begins = [0, *(delta + 1 for delta in deltas[:-1])]
    ends = [*deltas[:-1], header.last_offset_delta]
    batches: list[bytes] = []
    for written, delta, begin, end in zip(markers, deltas, begins, ends, strict=True):
        marker = written.marker
        key = _MARKER_KEY.pack(0, marker.is_commit)
        value = _MARKER_VALUE.pack(0, marker.coordinator_epoch)
        parts = [_ZERO, _ZERO, _varint(delta - begin), *_cell(key), *_cell(value), _ZERO]
        content = b"".join(parts)
        record = _varint(len(content)) + content
        batches += (
            write_header(
                record,
                base_offset=Offset(header.base_offset + begin),
                leader_epoch=header.leader_epoch,
                attributes=KafkaAttributes.TRANSACTIONAL | KafkaAttributes.CONTROL,
                last_offset_delta=end - begin,
                base_timestamp=header.max_timestamp,
                max_timestamp=header.max_timestamp,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                base_sequence=NO_SEQUENCE,
                record_count=1,
            ),
            record,
        )
    return b"".join(batches)


# Records, from columns.

_Cells: TypeAlias = bytes | pa.Array
"""Bytes of each record; the same of all where they are `bytes`."""


class _Part(NamedTuple):
    """A field of all records, with its length in front where it has one.

    Attributes:
        cells: columns that are joined.
        sizes: bytes of each record's field.
    """

    cells: Sequence[_Cells]
    sizes: Int64s | int


def _records(header: BatchHeader, columns: Body) -> memoryview:
    """Return the records one after another, as Kafka lays them out."""
    count, attributes = header.record_count, header.attributes
    fields = [
        _Part([_ZERO], 1),  # The attributes.
        _times(header, columns),
        _offsets(columns, count),
        _column(columns.keys, attributes & Attributes.KEYS_EMPTY),
        _column(columns.values, attributes & Attributes.VALUES_EMPTY),
        _headers(columns.headers),
    ]
    sizes = np.zeros(count, np.int64)
    for field in fields:
        sizes += field.sizes
    return _data(_joined([*_varints(sizes).cells, *(c for field in fields for c in field.cells)]))


def _times(header: BatchHeader, columns: Body) -> _Part:
    if header.has_append_time or columns.timestamps is None:
        return _Part([_ZERO], 1)
    return _varints(numbers_of(columns.timestamps) - header.base_timestamp)


def _offsets(columns: Body, count: int) -> _Part:
    if columns.offset_deltas is not None:
        varints, sizes = _encoded(numbers_of(columns.offset_deltas).astype(np.int64))
        return _Part([varints], sizes)
    table, sizes = _table()
    return _Part([table.slice(1, count)], sizes[1 : count + 1])


def _column(column: pa.Array | None, empty: int) -> _Part:
    """Return keys or values; without the column they are all empty, or all null."""
    if column is None:
        return _Part([_ZERO if empty else _NULL], 1)
    lengths = np.diff(_ends(column)).astype(np.int64)
    bytes_of_each = lengths
    if column.null_count:
        # There are no bytes under a null cell.
        lengths = np.where(validity_of(column), lengths, -1)
    numbers = _varints(lengths)
    return _Part([*numbers.cells, column], numbers.sizes + bytes_of_each)


def _headers(column: pa.Array | None) -> _Part:
    if column is None or not len(column.values):
        return _Part([_ZERO], 1)
    begins = _ends(column)
    names, values = column.values.field(0), column.values.field(1)
    names = pa.Array.from_buffers(pa.binary(), len(names), names.buffers())
    entries = _joined([*_column(names, 0).cells, *_column(values, 0).cells])
    # A record's headers lie one after another, so all of them are one cell.
    ends = _ends(entries)[begins]
    buffers = [None, pa.py_buffer(ends), entries.buffers()[2]]
    counts = _varints(np.diff(begins).astype(np.int64))
    cells = pa.Array.from_buffers(pa.binary(), len(column), buffers, 0)
    return _Part([*counts.cells, cells], counts.sizes + np.diff(ends))


def _joined(cells: Sequence[_Cells]) -> pa.Array:
    """Return the cells of several columns joined, each with those of its row."""
    columns: list[pa.Scalar | pa.Array] = []
    constant = b""
    for cell in cells:
        if isinstance(cell, bytes):
            constant += cell
            continue
        if constant:
            columns.append(scalar_of(constant))
            constant = b""
        columns.append(cell)
    if constant:
        columns.append(scalar_of(constant))
    return pc.binary_join_element_wise(*columns, _SEPARATOR, options=_JOINING)


def _ends(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return where the cells of a binary or list column begin, and where the last one ends."""
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1)


def _data(column: pa.Array) -> memoryview:
    return memoryview(column.buffers()[2]).cast("B")[: _ends(column)[-1]]


def _varints(numbers: Int64s) -> _Part:
    """Return numbers as zigzag varints."""
    low, high = int(numbers.min()), int(numbers.max())
    if low < -1 or high > _TABLE_MAX:
        varints, sizes = _encoded(numbers)
        return _Part([varints], sizes)
    table, sizes = _table()
    if low == high:
        return _Part([_varint(low)], int(sizes[low + 1]))
    rows = numbers + 1
    indices = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)], 0)
    return _Part([table.take(indices)], sizes[rows])


@cache
def _table() -> tuple[pa.Array, Int64s]:
    """Return the varints of the numbers from -1 to `_TABLE_MAX`, and their sizes."""
    return _encoded(np.arange(-1, _TABLE_MAX + 1))


def _encoded(numbers: Int64s) -> tuple[pa.Array, Int64s]:
    raw = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    sizes = np.ones(len(raw), np.int64)
    for bits in range(7, 64, 7):
        sizes += raw >= np.uint64(1 << bits)
    ends = np.zeros(len(raw) + 1, np.int32)
    np.cumsum(sizes, out=ends[1:])
    data = np.empty(ends[-1], np.uint8)
    rows = np.arange(len(raw))
    place = 0
    while len(rows):
        last = sizes[rows] == place + 1
        low = (raw[rows] >> np.uint64(7 * place) & np.uint64(127)).astype(np.uint8)
        data[ends[rows] + place] = np.where(last, low, low | 128)
        rows = rows[~last]
        place += 1
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(raw), buffers, 0), sizes


def _varint(number: int) -> bytes:
    raw = (number << 1) ^ (number >> 63)
    written = bytearray()
    while raw > 127:
        written.append(raw & 127 | 128)
        raw >>= 7
    written.append(raw)
    return bytes(written)


def _cell(content: bytes) -> tuple[bytes, bytes]:
    return _varint(len(content)), content
