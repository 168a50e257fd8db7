"""The records of `__positions`, byte for byte: they are on disks for years."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.coordinator.positions import records
from millrace.core.coordinator.positions.position import CommitNumber, Kind, Position, PositionKey
from millrace.core.coordinator.positions.records import PositionRecord, decode, encode
from millrace.core.errors import UnsupportedFormatError
from millrace.core.ids import TopicId, TopicPartition, WallMs

TOPIC_ID = TopicId(bytes(range(16)))
KEY = PositionKey(Kind.COMMITTED, "é", TopicPartition(TOPIC_ID, 258))
NOW = WallMs(7)
DOCUMENT = (Path(__file__).resolve().parents[5] / "docs" / "format.md").read_text()
KEY_BYTES = b"\x02" + TOPIC_ID + b"\x02\x01\x00\x00" + b"\xc3\xa9"
VALUE_BYTES = b"\x01" + b"\x05" + bytes(7) + b"\xff\xff\xff\xff" + b"x"
NUMBERED_BYTES = (
    b"\x02" + VALUE_BYTES[1:-1] + b"\x07" + bytes(7) + b"\x03\x00" + b"m\xc3\xa9" + b"x"
)


def test_a_record_is_these_bytes() -> None:
    record = PositionRecord(KEY, Position(5, -1, "x"), NOW)
    assert encode(record) == (KEY_BYTES, VALUE_BYTES)
    assert decode(KEY_BYTES, VALUE_BYTES, NOW) == record


def test_a_position_of_a_numbered_commit_is_these_bytes() -> None:
    record = PositionRecord(KEY, Position(5, -1, "x"), NOW, CommitNumber("mé", 7))
    assert encode(record) == (KEY_BYTES, NUMBERED_BYTES)
    assert decode(KEY_BYTES, NUMBERED_BYTES, NOW) == record


def test_the_document_has_the_tables_of_the_code() -> None:
    lines = [line for line in (records.__doc__ or "").splitlines() if line.startswith("|")]
    assert len(lines) == 36
    assert all(line in DOCUMENT for line in lines)


def test_a_null_value_forgets() -> None:
    record = PositionRecord(KEY, None, NOW)
    assert encode(record) == (KEY_BYTES, None)
    assert decode(KEY_BYTES, None, NOW) == record


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, VALUE_BYTES),
        (b"", VALUE_BYTES),
        (KEY_BYTES[:20], VALUE_BYTES),
        (b"\x03" + KEY_BYTES[1:], VALUE_BYTES),
        (KEY_BYTES[:-1], VALUE_BYTES),
        (KEY_BYTES, b""),
        (KEY_BYTES, b"\x03" + VALUE_BYTES[1:]),
        (KEY_BYTES, NUMBERED_BYTES[:20]),
        (KEY_BYTES, NUMBERED_BYTES[:25]),
        (KEY_BYTES, NUMBERED_BYTES[:-2] + b"\xff" + b"x"),
        (KEY_BYTES, VALUE_BYTES[:-1] + b"\xff"),
    ],
)
def test_what_a_later_release_wrote_is_refused_and_not_passed_over(
    key: bytes | None, value: bytes | None
) -> None:
    with pytest.raises(UnsupportedFormatError, match="later release"):
        decode(key, value, NOW)


@given(key=st.binary(max_size=40), value=st.none() | st.binary(max_size=40), known=st.booleans())
def test_any_bytes_are_refused_or_mean_just_one_record(
    key: bytes, value: bytes | None, known: bool
) -> None:
    if known:  # Else hardly any come so far.
        key, value = b"\x01" + key, value and bytes([1 + value[0] % 2]) + value
    try:
        record = decode(key, value, NOW)
    except UnsupportedFormatError:
        return
    assert encode(record) == (key, value)
