"""Keys as 128-bit numbers, so that an offset map needs the same few bytes for each key.

Two keys of one number would be taken for one, and the older of them deleted. So the numbers come
from a strongly universal family: four multilinear hashes of 32 bits, each over 32-bit words with
64-bit coefficients. For any two keys that do not depend on the coefficients, the chance to collide
is 2^-128. The coefficients are made from a secret that the broker draws at its start; a client that
knows how keys are hashed still cannot find two that collide, as it could for a fixed hash.

A key's words are its bytes, padded with zeros, and its length: so a key that ends with zeros is
another one. Keys above `_SHORT_BYTES` would need many coefficients, and are few in the same memory:
BLAKE2b, keyed with the same secret, hashes each of them.

Source: Lemire and Kaser, "Strongly universal string hashing is fast", 2014.
"""

import hashlib
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.uint64]

_WORD_BYTES: Final = 4
_SHORT_BYTES: Final = 256
_WORDS_MAX: Final = _SHORT_BYTES // _WORD_BYTES
_FUNCTIONS: Final = 4
_CELLS_AT_ONCE: Final = 1 << 16
"""Bytes of padded keys that are hashed at a time: their columns stay in the processor's cache."""
_HIGH: Final = np.uint64(0xFFFFFFFF_00000000)
_HALF: Final = np.uint64(32)
_ONE: Final = np.uint64(1)


class KeyHashes(NamedTuple):
    """The two halves of each key's number. `high` is never 0, so that 0 can mean "no key"."""

    high: Hashes
    low: Hashes


class _Cells(NamedTuple):
    """The cells of a column: bytes, where each cell begins, and how long it is."""

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int32]
    lengths: npt.NDArray[np.int32]


class KeyHasher:
    """Turns columns of keys into columns of numbers.

    Args:
        secret: at least 16 bytes that clients do not know.
    """

    __slots__ = ("_coefficients", "_secret")

    def __init__(self, secret: bytes) -> None:
        count = _FUNCTIONS * (2 + _WORDS_MAX)  # For a constant, the length, and the words.
        drawn = hashlib.shake_256(secret).digest(8 * count)
        self._coefficients = np.frombuffer(drawn, "<u8").reshape(2 + _WORDS_MAX, _FUNCTIONS)
        self._secret = hashlib.blake2b(secret, digest_size=32).digest()

    def hash(self, keys: pa.Array) -> KeyHashes:
        """Return the numbers of a binary column's cells; a null cell counts as an empty key."""
        count = len(keys)
        hashes = KeyHashes(np.empty(count, np.uint64), np.empty(count, np.uint64))
        if not count:
            return hashes
        offsets = np.frombuffer(keys.buffers()[1], "<i4")[keys.offset : keys.offset + count + 1]
        lengths = np.diff(offsets)
        held = keys.buffers()[2]
        data = np.frombuffer(b"" if held is None else held, np.uint8)
        widest = int(lengths.max())
        if widest == int(lengths.min()) and widest <= _SHORT_BYTES:
            self._hash_equal(data[offsets[0] : offsets[-1]], widest, hashes)
            return hashes
        lower = -1
        upper = 16
        while lower < min(widest, _SHORT_BYTES):
            places = np.flatnonzero((lengths > lower) & (lengths <= upper))
            self._hash_up_to(upper, _Cells(data, offsets, lengths), places, hashes)
            lower, upper = upper, 2 * upper
        for place in np.flatnonzero(lengths > _SHORT_BYTES).tolist():
            self._hash_long(data[offsets[place] : offsets[place + 1]], place, hashes)
        return hashes

    def _hash_equal(self, data: npt.NDArray[np.uint8], length: int, hashes: KeyHashes) -> None:
        """Hash keys of one length that lie side by side."""
        count = len(hashes.high)
        words = -(-length // _WORD_BYTES)
        rows = max(_CELLS_AT_ONCE // max(words * _WORD_BYTES, 1), 1)
        of_length = np.full(1, length, np.uint64)
        for start in range(0, count, rows):
            end = min(start + rows, count)
            cells = data[start * length : end * length].reshape(end - start, length)
            if length % _WORD_BYTES:
                padded = np.zeros((end - start, words * _WORD_BYTES), np.uint8)
                padded[:, :length] = cells
                cells = padded
            self._mix(cells, of_length, slice(start, end), hashes)

    def _hash_up_to(
        self,
        width: int,
        keys: "_Cells",
        places: npt.NDArray[np.intp],
        hashes: KeyHashes,
    ) -> None:
        """Hash the keys at `places`, each of at most `width` bytes."""
        data, offsets, lengths = keys
        rows = _CELLS_AT_ONCE // width
        for start in range(0, len(places), rows):
            some = places[start : start + rows]
            sizes = lengths[some].astype(np.int64)
            cells = np.zeros(len(some) * width, np.uint8)
            ends = np.cumsum(sizes)
            within = np.arange(int(ends[-1])) - np.repeat(ends - sizes, sizes)
            source = within + np.repeat(offsets[some].astype(np.int64), sizes)
            cells[within + np.repeat(np.arange(len(some)) * width, sizes)] = data[source]
            self._mix(cells.reshape(len(some), width), sizes.astype(np.uint64), some, hashes)

    def _mix(
        self,
        cells: npt.NDArray[np.uint8],
        lengths: Hashes,
        places: slice | npt.NDArray[np.intp],
        hashes: KeyHashes,
    ) -> None:
        words = np.ascontiguousarray(cells).view("<u4").T.astype(np.uint64)
        constant, of_length, *of_words = self._coefficients[:, :, np.newaxis]
        totals = np.empty((_FUNCTIONS, len(cells)), np.uint64)
        totals[:] = constant + of_length * lengths
        product = np.empty_like(totals)
        for word, coefficients in zip(words, of_words, strict=False):
            totals += np.multiply(coefficients, word, out=product)
        first, second, third, fourth = totals
        hashes.high[places] = np.maximum((first & _HIGH) | (second >> _HALF), _ONE)
        hashes.low[places] = (third & _HIGH) | (fourth >> _HALF)

    def _hash_long(self, key: npt.NDArray[np.uint8], place: int, hashes: KeyHashes) -> None:
        digest = hashlib.blake2b(key.tobytes(), digest_size=16, key=self._secret).digest()
        hashes.high[place] = int.from_bytes(digest[:8], "little") or 1
        hashes.low[place] = int.from_bytes(digest[8:], "little")
