"""Keys as numbers: equal ones have one number, others have another."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.replica.compaction.key_hashes import KeyHasher

HASHER = KeyHasher(b"a secret of the test")
LENGTHS = [0, 1, 3, 4, 5, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 128, 255, 256, 257, 1000, 10**6]


def numbers_of(keys: list[bytes | None], hasher: KeyHasher = HASHER) -> list[tuple[int, int]]:
    hashes = hasher.hash(pa.array(keys, pa.binary()))
    return list(zip(hashes.high.tolist(), hashes.low.tolist(), strict=True))


@given(keys=st.lists(st.binary(max_size=300), max_size=30), before=st.integers(0, 3))
def test_a_key_has_one_number_wherever_it_stands(keys: list[bytes], before: int) -> None:
    alone = [numbers_of([key])[0] for key in keys]
    assert numbers_of(list(keys)) == alone
    column = pa.array([b"other"] * before + keys, pa.binary()).slice(before)
    hashes = HASHER.hash(column)
    assert list(zip(hashes.high.tolist(), hashes.low.tolist(), strict=True)) == alone
    assert len(set(alone)) == len(set(keys))


def test_keys_that_differ_in_zeros_or_length_alone_differ() -> None:
    keys: list[bytes | None] = [bytes(length) for length in LENGTHS]
    keys += [b"x" * length for length in LENGTHS[1:]]
    keys += [b"x" * length + b"\0" for length in LENGTHS[1:]]
    assert len(set(numbers_of(keys))) == len(set(keys))


@pytest.mark.parametrize("length", [4, 6, 8, 20, 300])
def test_no_two_of_many_keys_share_half_of_a_number(length: int) -> None:
    count = 200 if length > 256 else 50_000
    keys = [number.to_bytes(length, "little") for number in range(count)]
    hashes = HASHER.hash(pa.array(keys, pa.binary()))
    assert len(np.unique(hashes.high)) == len(np.unique(hashes.low)) == count
    assert hashes.high.min() > 0
    # Every slot of a table is as likely as another: the upper bits are spread.
    spread = np.bincount((hashes.high >> np.uint64(60)).astype(np.int64), minlength=16)
    assert spread.min() > count / 16 * 0.5


def test_another_secret_gives_other_numbers() -> None:
    other = KeyHasher(b"another secret of the test")
    assert numbers_of([b"key", b"k" * 300]) != numbers_of([b"key", b"k" * 300], other)


def test_a_column_without_cells_has_no_numbers() -> None:
    assert numbers_of([]) == []
    assert numbers_of([None, b""])[0] == numbers_of([b""])[0]
