"""Kafka's key hash: MurmurHash2 of the key's bytes, 32 bits, with Kafka's seed.

Part of the contract with users: a key goes to the same partition as in Kafka, from any client
(KAFKA `Utils.murmur2`). One key, or a whole column at a time.
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_BITS: Final = 0xFFFFFFFF
_POSITIVE: Final = 0x7FFFFFFF
_COLUMN_KEY_BYTES_MAX: Final = 256
"""Longer keys are hashed one by one: the column's loop runs as often as its longest key needs."""

Hashes = np.ndarray[tuple[int], np.dtype[np.uint32]]


def murmur2(key: bytes) -> int:
    """Return the hash of one key as an unsigned 32-bit number."""
    length = len(key)
    mixed = _SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(key[at : at + 4], "little") * _MULTIPLIER & _BITS
        word = (word ^ word >> 24) * _MULTIPLIER & _BITS
        mixed = (mixed * _MULTIPLIER & _BITS) ^ word
    if length & 3:
        mixed = (mixed ^ int.from_bytes(key[whole:], "little")) * _MULTIPLIER & _BITS
    mixed = (mixed ^ mixed >> 13) * _MULTIPLIER & _BITS
    return mixed ^ mixed >> 15


def partition_of(key: bytes, partition_count: int) -> int:
    """Return the partition of one key."""
    return (murmur2(key) & _POSITIVE) % partition_count


def partitions_of(keys: pa.Array, partition_count: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the partition of every key of a binary array; for a null the number is meaningless."""
    return ((murmur2_column(keys) & np.uint32(_POSITIVE)) % np.uint32(partition_count)).astype(
        np.int32
    )


def murmur2_column(keys: pa.Array) -> Hashes:
    """Return the hash of every key of an array of type binary or string."""
    count = len(keys)
    _, offsets_buffer, data_buffer = keys.buffers()
    if not count or data_buffer is None or not data_buffer.size:
        return np.full(count, murmur2(b""), np.uint32)
    offsets = np.frombuffer(offsets_buffer, "<i4")[keys.offset : keys.offset + count + 1]
    lengths = np.diff(offsets)
    length = int(lengths[0])
    if length <= _COLUMN_KEY_BYTES_MAX and (lengths == length).all():
        return _murmur2_of_equal_lengths(data_buffer, int(offsets[0]), count, length)
    starts = offsets[:-1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8)
    if len(data) < int(offsets[-1]) + 4:  # A tail's word is read whole and then masked.
        data = np.concatenate([data[: int(offsets[-1])], np.zeros(4, np.uint8)])
    # Words at every byte: numpy reads them unaligned, so that one index fetches four bytes.
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))
    multiplier = np.uint32(_MULTIPLIER)
    mixed = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    in_columns = lengths <= _COLUMN_KEY_BYTES_MAX
    longest = int(lengths[in_columns].max(initial=0))
    rows = np.flatnonzero(in_columns)
    for at in range(0, longest & ~3, 4):
        rows = rows[lengths[rows] >= at + 4]
        word = words[starts[rows] + at] * multiplier
        word = (word ^ word >> np.uint32(24)) * multiplier
        mixed[rows] = mixed[rows] * multiplier ^ word
    tails = lengths & 3
    has_tail = np.flatnonzero((tails > 0) & in_columns)
    if len(has_tail):
        masks = (np.uint32(1) << (tails[has_tail] * 8).astype(np.uint32)) - np.uint32(1)
        tail = words[starts[has_tail] + (lengths[has_tail] & ~3)] & masks
        mixed[has_tail] = (mixed[has_tail] ^ tail) * multiplier
    _finish(mixed)
    for row in np.flatnonzero(~in_columns).tolist():
        mixed[row] = murmur2(data[offsets[row] : offsets[row + 1]].tobytes())
    return mixed


def _murmur2_of_equal_lengths(data: pa.Buffer, first: int, count: int, length: int) -> Hashes:
    """Return the hashes of neighbouring keys of one length: no index but the keys' distance."""
    multiplier = np.uint32(_MULTIPLIER)
    mixed = np.full(count, _SEED ^ length, np.uint32)
    whole, tail = length >> 2, length & 3
    if whole:
        words = np.ndarray((whole, count), "<u4", data, first, (4, length)) * multiplier
        words ^= words >> np.uint32(24)
        words *= multiplier
        for word in words:
            mixed *= multiplier
            mixed ^= word
    if tail:
        for byte in range(tail):
            at = first + 4 * whole + byte
            bits = np.ndarray((count,), np.uint8, data, at, (length,)).astype(np.uint32)
            mixed ^= bits << np.uint32(8 * byte)
        mixed *= multiplier
    _finish(mixed)
    return mixed


def _finish(mixed: Hashes) -> None:
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(_MULTIPLIER)
    mixed ^= mixed >> np.uint32(15)
