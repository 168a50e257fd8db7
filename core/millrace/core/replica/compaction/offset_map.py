"""The latest offset of each key in the head of a log, in bounded memory.

An open hash table with linear probing. A slot has three columns of 8 bytes: a key's number in two,
its offset in one. They lie side by side, so that a probe costs one access to memory and not three.
All keys of a call are looked up together, one probe at a time, and those that are done leave; so a
call costs a few passes over columns, and no Python for each key.

The map takes records in the order of the log. Within a call, a later record of a key overwrites an
earlier one, because numpy's assignment to repeated places keeps the last value.

The table is as full as Kafka's at the most, 90 %: then the average search for a key that is not
there takes some fifty probes, and few keys take more.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from millrace.core.ids import UNKNOWN_OFFSET, Offset
from millrace.core.records.arrow_views import Bools
from millrace.core.replica.compaction.key_hashes import KeyHashes

ENTRY_BYTES: Final = 24
"""Memory of one key."""
FULL: Final = 0.9
_COMFORTABLE: Final = 0.5
_SLOTS_MIN: Final = 64
_SLOTS_AT_ONCE: Final = 1 << 16
_HALF: Final = np.uint64(32)
_EMPTY: Final = np.uint64(0)


class OffsetMap:
    """Maps keys' numbers to offsets.

    Args:
        memory_bytes: of the table, at the most.
        records: how many records there are to take, at the most: a small log gets a small table.
    """

    __slots__ = ("_high", "_low", "_offsets", "_slots", "keys", "keys_max")

    def __init__(self, memory_bytes: int, records: int) -> None:
        wanted = int(records / _COMFORTABLE)
        self._slots = max(min(memory_bytes // ENTRY_BYTES, wanted), _SLOTS_MIN)
        self._high, self._low, offsets = np.zeros((self._slots, 3), np.uint64).T
        self._offsets = offsets.view(np.int64)
        self.keys = 0
        self.keys_max = int(self._slots * FULL)

    @property
    def room(self) -> int:
        """How many new keys fit."""
        return self.keys_max - self.keys

    def put(self, hashes: KeyHashes, offsets: npt.NDArray[np.int64]) -> None:
        """Take keys with their offsets, which ascend; the caller has checked the room."""
        high, low = hashes
        slots = self._first_slots(high)
        while len(slots):
            there = self._high[slots]
            free = there == _EMPTY
            if free.any():
                claimed = slots[free]
                # The last claim of a slot wins; its number tells which slots were claimed.
                self._offsets[claimed] = claims = np.arange(len(claimed))
                self.keys += int(np.count_nonzero(self._offsets[claimed] == claims))
                self._high[claimed], self._low[claimed] = high[free], low[free]
                there = self._high[slots]
            found = (there == high) & (self._low[slots] == low)
            self._offsets[slots[found]] = offsets[found]
            left = ~found
            high, low, offsets = high[left], low[left], offsets[left]
            slots = self._next_slots(slots[left])

    def latest(self, hashes: KeyHashes) -> npt.NDArray[np.int64]:
        """Return the latest offset of each key; `UNKNOWN_OFFSET` of a key that was not taken."""
        high, low = hashes
        latest = np.full(len(high), UNKNOWN_OFFSET, np.int64)
        places = np.arange(len(high))
        slots = self._first_slots(high)
        while len(slots):
            there = self._high[slots]
            found = (there == high) & (self._low[slots] == low)
            latest[places[found]] = self._offsets[slots[found]]
            left = ~found & (there != _EMPTY)
            high, low, places = high[left], low[left], places[left]
            slots = self._next_slots(slots[left])
        return latest

    def latest_in(self, start: Offset, end: Offset) -> Bools:
        """Return which offsets in `[start, end)` are the latest ones of their keys."""
        flags = np.zeros(end - start, np.bool_)
        for at in range(0, self._slots, _SLOTS_AT_ONCE):
            part = slice(at, at + _SLOTS_AT_ONCE)
            offsets = self._offsets[part][self._high[part] != _EMPTY]
            flags[offsets[(offsets >= start) & (offsets < end)] - start] = True
        return flags

    def _first_slots(self, high: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        # The upper half, scaled to the table: no division.
        return (((high >> _HALF) * np.uint64(self._slots)) >> _HALF).astype(np.int64)

    def _next_slots(self, slots: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        following = slots + 1
        following[following == self._slots] = 0
        return following
