"""Where the fields of records lie in a record batch of Kafka's (version 2), once it is inflated.

Records lie one after another, and each begins with its own length. So one has to be passed to find
the next: that is a loop over all of them, but for those of one size in a row. Everything else is
read from all records at once: eight bytes of each, which hold several fields where records are laid
out as most are, else the first field of each, then the second. For a few records that costs several
times what plain Python does, so these are read one by one.

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
from functools import cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.core.errors import InvalidRecordError, MessageTooLargeError
from millrace.core.records.arrow_views import Int32s, Int64s, slices
from millrace.core.records.columns import RECORDS_MAX
from millrace.core.records.header import Buffer

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
_ROW_MIN: Final = 64
_ROW_MAX: Final = 2048
"""Records of one size in a row that are found at once. Fewer of them are found faster one by one,
and with more, too many bytes are read for nothing where rows are short."""
_SMALL_BYTES: Final = 400
"""Mean size up to which looking for records in all bytes costs less than passing them."""
_PRUNINGS_MAX: Final = 3
_USUAL_BYTES_MIN: Final = 17
"""What is looked at of a record begins in its first nine bytes, and has eight."""
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


_NO_ROW: Final = np.empty(0, np.int64)


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


# Many records: where each begins.


def _walk_many(records: Buffer, count: int) -> Walked:
    data = np.frombuffer(records, np.uint8)
    at = _boundaries(records, data, count)
    return _walk_usual(data, at) or _walk_any(records, data, at)


def _boundaries(records: Buffer, data: Bytes, count: int) -> Int64s:
    """Return where each record's length begins, and where the last record ends.

    Often many records in a row have one size, and that is tried first. If they have not, all small
    records are looked for at once. If that fails, too, the next records are passed one by one, and
    more of them each time.

    A negative length is taken as a positive one, and so the way goes forward always; the caller
    checks the signs.
    """
    parts: list[Int64s] = []
    number = at = 0
    one_by_one = _ROW_MIN
    while number < count:
        row = _row_of_one_size(records, data, at, count - number)
        if len(row) <= _ROW_MIN:
            are_small = len(data) <= count * _SMALL_BYTES
            if one_by_one == _ROW_MIN and are_small and (found := _small(data, count)) is not None:
                return found
            row = _passed(records, at, number, min(one_by_one, count - number))
            one_by_one *= 4
        parts.append(row[:-1])
        number += len(row) - 1
        at = int(row[-1])
    _check_end(count, at, records)
    parts.append(np.array([at]))
    return np.concatenate(parts)


def _row_of_one_size(records: Buffer, data: Bytes, at: int, count: int) -> Int64s:
    """Return where records begin that have the length of the one at `at`, and where the last ends.

    Args:
        records, data: all bytes.
        at: where the first one begins.
        count: how many there may be.

    Returns:
        Nothing, where the bytes have no room for a row that is worth it.
    """
    try:
        size = _long_length(records, at)
    except IndexError:
        return _NO_ROW
    most = min(count, _ROW_MAX, (len(records) - at) // size)
    if most <= _ROW_MIN:
        return _NO_ROW
    rows = data[at : at + most * size].reshape(most, size)
    place, is_equal = 0, rows[:, 0] == rows[0, 0]
    while rows[0, place] > 127:
        place += 1
        is_equal &= rows[:, place] == rows[0, place]
    number = most if is_equal.all() else int(is_equal.argmin())
    return np.arange(at, at + (number + 1) * size, size)


def _small(data: Bytes, count: int) -> Int64s | None:
    """Return where all records begin, and where the last one ends; None: they are not found so.

    Without headers a record ends with a zero, and after a length of one or two bytes the next one
    has another one. What looks so and is a part of a value ends at no beginning, or begins at no
    end. A chain of as many records as there are from the first byte to the last is the only one.
    """
    is_zero = data == 0
    are_near = is_zero[2:-1] | is_zero[3:]
    are_near &= is_zero[:-3]
    at = np.flatnonzero(are_near)
    if not count - 1 <= len(at) <= 4 * count or len(data) < _INT_BYTES:
        return None
    at += 1
    at = np.concatenate((np.zeros(1, np.int64), at))
    low, high = data[at].astype(np.int64), data[at + 1].astype(np.int64)
    is_long = low > 127
    after = at + (low >> 1) + np.where(is_long, (high << 6) - 62, 1)
    is_begin = np.where(is_long, (high < 128) & is_zero[at + 2], high == 0)
    is_begin &= after <= len(data)
    at, after = at[is_begin], after[is_begin]
    for _ in range(_PRUNINGS_MAX):
        if len(at) == count:
            break
        begins, ends = np.zeros(len(data) + 1, np.bool_), np.zeros(len(data) + 1, np.bool_)
        begins[at], ends[after] = True, True
        begins[-1] = ends[0] = True
        are_joined = begins[after] & ends[at]
        at, after = at[are_joined], after[are_joined]
    if len(at) != count or at[0] or (after[:-1] != at[1:]).any() or after[-1] != len(data):
        return None
    return np.append(at, after[-1])


def _passed(records: Buffer, at: int, number: int, count: int) -> Int64s:
    """Return where records begin, passing one after another, and where the last one ends.

    This is the one loop over records, so it is made to be short: a length of up to 8191 bytes
    takes two look-ups and no masks.

    Args:
        records: all bytes.
        at: where the first one begins.
        number: of that one.
        count: how many.
    """
    found: list[int] = []
    append = found.append
    try:
        for _ in range(count):
            append(at)
            low = records[at]
            if low < 128:
                at += (low >> 1) + 1
            else:
                high = records[at + 1]
                if high < 128:
                    at += (low >> 1) + (high << 6) - 62
                else:
                    at += _long_length(records, at)
    except IndexError:
        raise _WrongRecordError(number + len(found) - 1, _OUTSIDE) from None
    append(at)
    return np.array(found)


def _long_length(data: Buffer, at: int) -> int:
    """Return the bytes of a record and its length, which has three bytes or more."""
    number = 0
    for place in range(_INT_BYTES):
        byte = data[at + place]
        number |= (byte & 127) << 7 * place
        if byte < 128:
            return place + 1 + (number >> 1)
    raise IndexError


# The fields of many records, several at a time.


def _walk_usual(data: Bytes, at: Int64s) -> Walked | None:
    """Find the fields of records that are laid out as most producers' are; None: these are not.

    Those have dense offsets, no headers, keys that are all null or all short ones, no null value,
    and numbers of at most two bytes otherwise. So the eight bytes at the beginning of a record hold
    its first numbers, and those after these its key's length, and without a key its value's.

    Args:
        data: all bytes.
        at: where records begin, and where the last one ends.
    """
    begins, ends = at[:-1], at[1:]
    count = len(begins)
    if ends[-1] - begins[-1] < _USUAL_BYTES_MIN:  # Else there are eight bytes wherever it looks.
        return None
    words = np.ndarray((len(data) - 7,), np.int64, data, strides=(1,))
    first = words[begins]
    lengths, length_bytes = _short(first)
    if lengths is None or (lengths & 1).any():
        return None
    first >>= 8 * length_bytes + 8  # With the attributes.
    times, time_bytes = _short(first)
    if times is None:
        return None
    first >>= 8 * time_bytes
    encoded, masks, offset_bytes = (column[:count] for column in _dense_offsets())
    first ^= encoded
    first &= masks
    if first.any():
        return None
    starts = begins + length_bytes
    keys_at = starts + offset_bytes
    keys_at += time_bytes
    keys_at += 1
    second = words[keys_at]
    keys = second & 0xFF
    if (keys == 1).all():
        key_lengths, values_at = -keys, keys_at + 1
        second >>= 8
    elif (keys & 0x81).any():
        return None
    else:
        key_lengths = keys >> 1
        values_at = keys_at + key_lengths
        values_at += 1
        if (values_at > ends - 2).any():
            return None
        pairs = np.ndarray((len(data) - 1,), np.uint16, data, strides=(1,))
        second = pairs[values_at].astype(np.int64)
    values, value_bytes = _short(second)
    if values is None or (values & 1).any():
        return None
    values >>= 1
    value_starts = values_at + value_bytes
    after = value_starts + values
    after += 1
    if (after != ends).any() or data[ends - 1].any():
        return None  # Bytes are left over, or there are headers.
    times = (times >> 1) ^ -(times & 1)
    offsets = np.arange(count)
    return Walked(starts, times, offsets, keys_at + 1, key_lengths, value_starts, values, None)


def _short(words: Int64s) -> tuple[Int64s | None, Int64s | int]:
    """Return the varints that words begin with, and how many bytes each has, which are one or two.

    They are not decoded from zigzag yet. None: a number has more bytes.
    """
    more = words & 0x80
    if not more.any():
        return words & 0x7F, 1
    if (more << 8 & words).any():
        return None, 0
    more >>= 7
    high = words >> 1
    high &= 0x3F80
    if more.all():
        return (words & 0x7F) | high, 2
    high *= more
    high |= words & 0x7F
    more += 1
    return high, more


@cache
def _dense_offsets() -> tuple[Int64s, Int64s, Int64s]:
    """Return the varints of dense offsets, the bits of each, and its bytes."""
    raw = 2 * np.arange(RECORDS_MAX)
    low, middle, high = raw & 127, raw >> 7 & 127, raw >> 14
    sizes = 1 + (raw > 127) + (raw >> 14 > 0)
    encoded = low | (sizes > 1) << 7 | middle << 8 | (sizes > 2) << 15 | high << 16
    return encoded, (1 << 8 * sizes) - 1, sizes


# The fields of many records, one of all after another.


def _walk_any(records: Buffer, data: Bytes, at: Int64s) -> Walked:
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
        starts, timestamp_deltas, offset_deltas, key_starts, key_lengths, value_starts,
        value_lengths, headers,
    )  # fmt: skip


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
