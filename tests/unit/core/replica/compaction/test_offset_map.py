"""The offset map against a dictionary."""

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.ids import UNKNOWN_OFFSET, Offset
from millrace.core.replica.compaction.key_hashes import KeyHasher, KeyHashes
from millrace.core.replica.compaction.offset_map import ENTRY_BYTES, FULL, OffsetMap

HASHER = KeyHasher(b"a secret of the test")


def hashes_of(keys: list[bytes]) -> KeyHashes:
    return HASHER.hash(pa.array(keys, pa.binary()))


@given(calls=st.lists(st.lists(st.integers(0, 60), max_size=50), max_size=6))
def test_it_knows_the_last_offset_of_each_key(calls: list[list[int]]) -> None:
    table = OffsetMap(1 << 20, records=300)
    expected: dict[bytes, int] = {}
    offset = 0
    for call in calls:
        keys = [b"key-%d" % number for number in call]
        offsets = np.arange(offset, offset + len(keys), dtype=np.int64)
        offset += len(keys)
        table.put(hashes_of(keys), offsets)
        expected.update(zip(keys, offsets.tolist(), strict=True))
    asked = [b"key-%d" % number for number in range(80)]
    found = table.latest(hashes_of(asked)).tolist()
    assert found == [expected.get(key, UNKNOWN_OFFSET) for key in asked]
    assert table.keys == len(expected)


@given(
    keys=st.lists(st.integers(0, 20), max_size=60),
    start=st.integers(0, 60),
    size=st.integers(0, 60),
)
def test_it_knows_which_offsets_are_the_last_of_their_keys(
    keys: list[int], start: int, size: int
) -> None:
    table = OffsetMap(1 << 20, records=100)
    table.put(hashes_of([b"%d" % key for key in keys]), np.arange(len(keys), dtype=np.int64))
    last = set({key: offset for offset, key in enumerate(keys)}.values())
    found = table.latest_in(Offset(start), Offset(start + size)).tolist()
    assert found == [offset in last for offset in range(start, start + size)]


def test_keys_of_one_slot_are_told_apart_up_to_a_full_table() -> None:
    table = OffsetMap(100 * ENTRY_BYTES, records=10_000)
    assert table.keys_max == int(100 * FULL)
    high = np.full(table.keys_max, 7, np.uint64)  # All of them begin their search in one slot.
    low = np.arange(table.keys_max, dtype=np.uint64)
    offsets = np.arange(1000, 1000 + table.keys_max, dtype=np.int64)
    table.put(KeyHashes(high, low), offsets)
    assert table.room == 0
    assert table.latest(KeyHashes(high, low)).tolist() == offsets.tolist()
    other = KeyHashes(high[:1], np.array([10**6], np.uint64))
    assert table.latest(other).tolist() == [UNKNOWN_OFFSET]


def test_a_search_goes_on_at_the_first_slot_after_the_last() -> None:
    table = OffsetMap(64 * ENTRY_BYTES, records=10_000)
    high = np.full(3, 2**64 - 1, np.uint64)
    low = np.arange(3, dtype=np.uint64)
    table.put(KeyHashes(high, low), np.array([5, 6, 7], np.int64))
    assert table.latest(KeyHashes(high, low)).tolist() == [5, 6, 7]


def test_a_small_log_gets_a_small_table() -> None:
    assert OffsetMap(128 << 20, records=1000).keys_max < 3000
    assert OffsetMap(128 << 20, records=10**9).keys_max == int((128 << 20) // ENTRY_BYTES * FULL)
