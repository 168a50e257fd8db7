"""Keys must land where Kafka's clients would put them."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.client.producer.murmur2 import (
    murmur2,
    murmur2_column,
    partition_of,
    partitions_of,
)

DOCUMENT = Path(__file__).resolve().parents[5] / "docs" / "protocol.md"

# From Kafka's own UtilsTest.testMurmur2, as signed 32-bit numbers.
KAFKA = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "signed"), KAFKA)
def test_hashes_are_kafkas(key: bytes, signed: int) -> None:
    assert murmur2(key) == signed & 0xFFFFFFFF


def test_the_document_for_other_clients_says_where_keys_land() -> None:
    rows = re.findall(r"^\| (\S+) \| `(0x\w{8})` \| (\d) \|$", DOCUMENT.read_text(), re.MULTILINE)
    assert len(rows) == 4
    for text, said, partition in rows:
        key = b"" if text == "(empty)" else text.strip("`").encode()
        assert (f"{murmur2(key):#010x}", partition_of(key, 7)) == (said, int(partition))


def test_a_partition_is_the_positive_hash_modulo_their_number() -> None:
    assert partition_of(b"21", 7) == (-973932308 & 0x7FFFFFFF) % 7


@given(st.lists(st.binary(max_size=40) | st.binary(min_size=250, max_size=300)), st.integers(0, 3))
def test_a_column_hashes_as_its_keys_do_one_by_one(keys: list[bytes], start: int) -> None:
    column = pa.array(keys, pa.binary())[start:]
    assert murmur2_column(column).tolist() == [murmur2(key) for key in keys[start:]]
    assert partitions_of(column, 5).tolist() == [partition_of(key, 5) for key in keys[start:]]


@given(st.integers(0, 300), st.data())
def test_keys_of_one_length_hash_as_others_do(length: int, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.binary(min_size=length, max_size=length), min_size=1))
    column = pa.array([b"another", *keys], pa.binary())[1:]
    assert murmur2_column(column).tolist() == [murmur2(key) for key in keys]
