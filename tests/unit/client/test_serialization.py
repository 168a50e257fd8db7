"""The ready-made serializers."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.client import serialization as s

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(st.text().filter(lambda text: text.isprintable()))
def test_text_comes_back(text: str) -> None:
    assert s.to_str(s.from_str(text)) == text


@given(st.integers(-(2**63), 2**63 - 1))
def test_numbers_come_back(number: int) -> None:
    assert s.to_int64(s.from_int64(number)) == number


@given(JSON)
def test_json_comes_back(value: Any) -> None:
    assert s.to_json(s.from_json(value)) == value


def test_numbers_are_big_endian_as_kafkas_are() -> None:
    assert s.from_int64(1) == b"\0\0\0\0\0\0\0\1"


def test_json_is_compact_utf_8() -> None:
    assert s.from_json({"name": "Zoë", "n": [1, 2]}) == '{"name":"Zoë","n":[1,2]}'.encode()


def test_what_does_not_fit_raises() -> None:
    with pytest.raises(struct.error):
        s.from_int64(2**63)
    with pytest.raises(TypeError):
        s.from_bytes("text")  # type: ignore[arg-type]
    with pytest.raises(struct.error):
        s.to_int64(b"short")


def test_bytes_are_copied_out_of_buffers_that_may_change() -> None:
    buffer = bytearray(b"abc")
    taken = s.from_bytes(buffer)
    buffer[0] = 0
    assert taken == b"abc" == s.to_bytes(taken)
