"""Where the fields of records lie in a record batch of Kafka's (version 2), once it is inflated.

Records lie one after another, and each begins with its own length. So one has to be passed to find
the next, and that alone is a loop over all of them. Everything else is read from all records at
once: the first field of each, then the second. For a few records that costs several times what
plain Python does, so these are read one by one.

A record; each number is a zigzag varint of at most 32 bits, of the timestamp 64:

| field           | meaning                                         |
|-----------------|-------------------------------------------------|
| length          | bytes of the rest                               |
| attributes      | one byte, 0                                     |
| timestamp delta | to the batch's base timestamp, ms               |
| offset delta    | to the batch's base offset                      |
| key length      | -1: null                                        |
| key             |                                                 |
| value length    | -1: null                                        |
| value           |                                                 |
| header count    |                                                 |
| headers         | of each: name's length, UTF-8, value's, value   |

The bytes are a stranger's. No position is used before it is known to lie within its record, and
nothing is allocated for a number that the bytes do not hold: memory is bounded by `RECORDS_MAX`,
`HEADERS_MAX`, and what came.

Source: Kafka's message format, "Record" and "Record Header" (KIP-98, KIP-82).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import InvalidRecordError, MessageTooLargeError
from millrace.core.records.columns import RECORDS_MAX
from millrace.core.records.header import Buffer

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bytes = npt.NDArray[np.uint8]

RECORD_BYTES_MIN: Final = 7
"""A record without key, value and headers."""
_HEADER_BYTES_MIN: Final = 2
RECORD_HEADERS_MAX: Final = 1000
"""Headers of one record: each takes a step for the whole batch."""
HEADERS_MAX: Final = 1_000_000
"""Headers of all records of a batch."""

_FIELDS: Final = 8
"""Of a record: those of `Walked`, and the count of its headers."""
FEW_MAX: Final = 40
"""Records up to which they are read one by one."""
_INT_BYTES: Final = 5
_LONG_BYTES: Final = 10
_LAST_BYTE_MAX: Final = {_INT_BYTES: 0b1111, _LONG_BYTES: 0b1}
"""Of the last byte of a varint only these bits fit into 32 and 64."""


@dataclass(slots=True, eq=False)
class WalkedHeaders:
    """The headers of all records, in order.

    Attributes:
        counts: how many each record has.
        name_starts, name_lengths, value_starts, value_lengths: of each header; a value's length
            is -1 where it is null.
    """

    counts: Int64s
    name_starts: Int32s
    name_lengths: Int32s
    value_starts: Int32s
    value_lengths: Int32s


@dataclass(slots=True, eq=False)
class Walked:
    """Places in the bytes that were walked, and numbers, one of each for each record.

    Attributes:
        starts: of each record, after its length.
        key_lengths, value_lengths: -1: null.
        headers: None: no record has any.
    """

    starts: Int64s
    timestamp_deltas: Int64s
    offset_deltas: Int64s
    key_starts: Int64s
    key_lengths: Int64s
    value_starts: Int64s
    value_lengths: Int64s
    headers: WalkedHeaders | None


def walk(records: Buffer, count: int) -> Walked:
    """Find the fields of all records.

    Args:
        records: exactly the inflated records of a batch, without its header.
        count: how many there are, by that header.

    Raises:
        MessageTooLargeError: more records or headers than a batch may have.
        InvalidRecordError: a length or count that the bytes do not hold, a number that is longer
            than its kind, a name that is null or no UTF-8, or bytes that are left over.
    """
    if count > RECORDS_MAX:
        raise MessageTooLargeError(f"the batch holds {count} records; the limit is {RECORDS_MAX}")
    if not 0 <= count * RECORD_BYTES_MIN <= len(records):
        raise InvalidRecordError(f"{count} records cannot be in {len(records)} bytes")
    try:
        return _walk_many(records, count) if count > FEW_MAX else _walk_few(records, count)
    except _WrongRecordError as error:
        raise InvalidRecordError(f"record {error.number} of the batch: {error.why}") from None


class _WrongRecordError(Exception):
    def __init__(self, number: int, why: str) -> None:
        super().__init__(number, why)
        self.number, self.why = number, why


_OUTSIDE: Final = "a length or count points outside of it"
_TOO_LONG: Final = "a number is longer than its kind may be"
_NEGATIVE: Final = "a length or count is negative"
_LEFT_OVER: Final = "bytes are left over"


def _check_end(count: int, at: int, data: Buffer) -> None:
    if at != len(data):
        raise InvalidRecordError(f"{count} records end at byte {at}, but {len(data)} bytes came")


def _check_header_counts(largest: int, total: int) -> None:
    if largest > RECORD_HEADERS_MAX or total > HEADERS_MAX:
        raise MessageTooLargeError(
            f"the batch has {total} headers, and a record up to {largest}; the limits are "
            f"{HEADERS_MAX} and {RECORD_HEADERS_MAX}: send smaller batches, or fewer headers"
        )


def _check_names(data: Buffer, headers: WalkedHeaders) -> None:
    try:
        slices(data, headers.name_starts, headers.name_lengths, pa.string()).validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidRecordError(f"a header's name is not UTF-8: {error}") from error


# Many records, a field at a time.


def _walk_many(records: Buffer, count: int) -> Walked:
    data = np.frombuffer(records, np.uint8)
    at = np.array(_boundaries(records, count), np.int64)
    ends = at[1:]
    lengths, starts = _varints(data, at[:-1], ends)
    _check(lengths >= 0, _NEGATIVE)
    timestamp_deltas, p = _varints(data, starts + 1, ends, _LONG_BYTES)
    offset_deltas, p = _varints(data, p, ends)
    key_lengths, key_starts, p = _cells(data, p, ends)
    value_lengths, value_starts, p = _cells(data, p, ends)
    counts, p = _varints(data, p, ends)
    headers = None
    if counts.any():
        headers, p = _headers(data, counts, p, ends)
        _check_names(records, headers)
    _check(p == ends, _LEFT_OVER)
    return Walked(
        starts,
        timestamp_deltas,
        offset_deltas,
        key_starts,
        key_lengths,
        value_starts,
        value_lengths,
        headers,
    )


def _boundaries(data: Buffer, count: int) -> list[int]:
    """Return where each record's length begins, and where the last record ends.

    This is the one loop over records, so it is made to be short: a length of up to 8191 bytes
    takes two look-ups and no masks. It takes a negative length as a positive one, and so goes
    forward always; the caller checks the signs.
    """
    found: list[int] = []
    append = found.append
    at = 0
    try:
        for _ in range(count):
            append(at)
            low = data[at]
            if low < 128:
                at += (low >> 1) + 1
            else:
                high = data[at + 1]
                if high < 128:
                    at += (low >> 1) + (high << 6) - 62
                else:
                    at += _long_length(data, at)
    except IndexError:
        raise _WrongRecordError(len(found) - 1, _OUTSIDE) from None
    _check_end(count, at, data)
    append(at)
    return found


def _long_length(data: Buffer, at: int) -> int:
    """Return the bytes of a record and its length, which has three bytes or more."""
    number = 0
    for place in range(_INT_BYTES):
        byte = data[at + place]
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return place + 1 + (number >> 1)
    raise IndexError


def _check(are_right: npt.NDArray[np.bool_], why: str) -> None:
    if not are_right.all():
        raise _WrongRecordError(int(np.argmin(are_right)), why)


def _varints(
    data: Bytes, at: Int64s, ends: Int64s, bytes_max: int = _INT_BYTES
) -> tuple[Int64s, Int64s]:
    """Return the zigzag numbers that begin at `at`, and where each ends.

    Args:
        data: all bytes.
        at: a position in each record.
        ends: where each record ends.
        bytes_max: of a number.
    """
    _check(at < ends, _OUTSIDE)
    first = data[at]
    raw, after = first.astype(np.uint64), at + 1
    longer = np.flatnonzero(first > 127)
    raw[longer] &= np.uint64(127)
    size = 1
    while len(longer):
        positions = after[longer]
        _check_rows(longer, positions < ends[longer], _OUTSIDE)
        byte = data[positions]
        size += 1
        if size == bytes_max:
            _check_rows(longer, byte <= _LAST_BYTE_MAX[bytes_max], _TOO_LONG)
        raw[longer] |= (byte & 127).astype(np.uint64) << np.uint64(7 * (size - 1))
        after[longer] = positions + 1
        longer = longer[byte > 127]
    return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), after


def _check_rows(rows: Int64s, are_right: npt.NDArray[np.bool_], why: str) -> None:
    if not are_right.all():
        raise _WrongRecordError(int(rows[np.argmin(are_right)]), why)


def _cells(data: Bytes, at: Int64s, ends: Int64s) -> tuple[Int64s, Int64s, Int64s]:
    """Return lengths (-1: null) and starts of cells, and where each ends."""
    lengths, starts = _varints(data, at, ends)
    _check(lengths >= -1, _NEGATIVE)
    after = starts + np.maximum(lengths, 0)
    _check(after <= ends, _OUTSIDE)
    return lengths, starts, after


def _headers(data: Bytes, counts: Int64s, at: Int64s, ends: Int64s) -> tuple[WalkedHeaders, Int64s]:
    """Return the headers, and where the last one of each record ends.

    The first header of all records that have one is read at once, then the second.
    """
    _check(counts >= 0, _NEGATIVE)
    _check(counts * _HEADER_BYTES_MIN <= ends - at, _OUTSIDE)
    total = int(counts.sum())
    _check_header_counts(int(counts.max()), total)
    found = WalkedHeaders(counts, *(np.empty(total, np.int32) for _ in range(4)))
    places = np.cumsum(counts) - counts
    rows, step = np.flatnonzero(counts), 0
    after = at.copy()
    while len(rows):
        limits = ends[rows]
        try:
            name_lengths, name_starts, p = _cells(data, after[rows], limits)
            _check(name_lengths >= 0, _NEGATIVE)
            value_lengths, value_starts, p = _cells(data, p, limits)
        except _WrongRecordError as error:
            raise _WrongRecordError(int(rows[error.number]), error.why) from None
        place = places[rows] + step
        found.name_starts[place], found.name_lengths[place] = name_starts, name_lengths
        found.value_starts[place], found.value_lengths[place] = value_starts, value_lengths
        after[rows] = p
        step += 1
        rows = rows[counts[rows] > step]
    return found, after


# A few records, one by one.


def _walk_few(records: Buffer, count: int) -> Walked:
    rows: list[tuple[int, ...]] = []
    headers: list[tuple[int, int, int, int]] = []
    at = 0
    try:
        for _ in range(count):
            row, at = _record(records, at, headers)
            rows.append(row)
    except ValueError as error:
        raise _WrongRecordError(len(rows), str(error)) from None
    _check_end(count, at, records)
    columns = np.array(rows, np.int64).reshape(count, _FIELDS).T
    starts, timestamps, offsets, key_starts, keys, value_starts, values, counts = columns
    found = None
    if headers:
        found = WalkedHeaders(counts, *np.array(headers, np.int32).T)
        _check_names(records, found)
    return Walked(starts, timestamps, offsets, key_starts, keys, value_starts, values, found)


def _record(
    data: Buffer, at: int, headers: list[tuple[int, int, int, int]]
) -> tuple[tuple[int, ...], int]:
    """Return the fields of the record at `at`, and where it ends; add its headers to the others.

    Raises:
        ValueError: why it is wrong.
    """
    length, start = _varint(data, at, len(data))
    end = _cell_end(start, length, len(data), length_min=0)
    timestamp_delta, at = _varint(data, start + 1, end, _LONG_BYTES)
    offset_delta, at = _varint(data, at, end)
    key_length, key_start = _varint(data, at, end)
    value_length, value_start = _varint(data, _cell_end(key_start, key_length, end), end)
    count, at = _varint(data, _cell_end(value_start, value_length, end), end)
    if count:
        _cell_end(at, count * _HEADER_BYTES_MIN, end, length_min=0)
        _check_header_counts(count, len(headers) + count)
        for _ in range(count):
            name_length, name_start = _varint(data, at, end)
            cell, cell_start = _varint(
                data, _cell_end(name_start, name_length, end, length_min=0), end
            )
            at = _cell_end(cell_start, cell, end)
            headers.append((name_start, name_length, cell_start, cell))
    if at != end:
        raise ValueError(_LEFT_OVER)
    fields = (
        start, timestamp_delta, offset_delta, key_start, key_length, value_start, value_length,
        count,
    )  # fmt: skip
    return fields, end


def _varint(data: Buffer, at: int, end: int, bytes_max: int = _INT_BYTES) -> tuple[int, int]:
    """Return the zigzag number at `at`, and where it ends."""
    if at < end and (byte := data[at]) < 128:
        return (byte >> 1) ^ -(byte & 1), at + 1
    raw = 0
    for place in range(bytes_max):
        if at >= end:
            raise ValueError(_OUTSIDE)
        byte = data[at]
        at += 1
        raw |= (byte & 127) << 7 * place
        if byte < 128:
            if place == bytes_max - 1 and byte > _LAST_BYTE_MAX[bytes_max]:
                break
            return (raw >> 1) ^ -(raw & 1), at
    raise ValueError(_TOO_LONG)


def _cell_end(start: int, length: int, end: int, *, length_min: int = -1) -> int:
    """Return where the bytes of a cell end that begins at `start`."""
    if length < length_min:
        raise ValueError(_NEGATIVE)
    after = start + length if length > 0 else start
    if after > end:
        raise ValueError(_OUTSIDE)
    return after


_BINARY: Final = pa.binary()


def slices(
    data: Buffer,
    starts: Int64s | Int32s,
    lengths: Int64s | Int32s,
    kind: pa.DataType = _BINARY,
) -> pa.Array:
    """Return pieces of `data` as a column of their own memory.

    Args:
        data: bytes; fewer than 2^31.
        starts, lengths: of pieces that lie within `data` one after another; a length of -1 is null.
        kind: `binary` or `string`.
    """
    count = len(starts)
    # Every second cell is a piece, and those between are what lies between two pieces.
    offsets = np.zeros(2 * count + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = starts + np.maximum(lengths, 0)
    offsets[-1] = starts[-1] + max(lengths[-1], 0) if count else 0
    bits, nulls = None, 0
    present = lengths >= 0
    if not present.all():
        nulls = count - int(np.count_nonzero(present))
        both = np.ones(2 * count, np.bool_)
        both[0::2] = present
        bits = pa.py_buffer(np.packbits(both, bitorder="little"))
    pieces = pa.Array.from_buffers(
        kind, 2 * count, [bits, pa.py_buffer(offsets), pa.py_buffer(data)], nulls
    )
    every_second = np.arange(0, 2 * count, 2, dtype=np.int32)
    indices = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(every_second)], 0)
    return pieces.take(indices)
