"""A document of a user's: whatever is wrong with it is one message with the file's name."""

import pytest

from millrace.cli.console.failures import Failure
from millrace.cli.files.json_document import parse_document
from millrace.cli.groups.group_reset import read_positions

POSITION = b'{"topic": "t", "partition": 0, "position": %d}'


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"{", "x is no JSON"),
        (b"\xff\xfe\xff", "x is no JSON"),
        (b"[" * 100_000, "x: JSON that is nested too deeply"),
        (b"9" * 5_000, "x is no JSON: .* digits"),
        (b'{"a": 1, "b": 2, "a": 3}', "x is no JSON: an object has the name 'a' twice"),
    ],
)
def test_what_cannot_be_read_is_one_message(data: bytes, problem: str) -> None:
    with pytest.raises(Failure, match=problem) as failure:
        parse_document(data, "x", "a hint")
    assert failure.value.hint == "a hint"


def test_a_document_may_begin_with_a_byte_order_mark() -> None:
    assert parse_document(b'\xef\xbb\xbf{"a": [1]}', "x", "") == {"a": [1]}


def test_positions_are_numbers_that_an_offset_can_be() -> None:
    assert read_positions(b"[" + POSITION % 7 + b"]", "x") == {("t", 0): 7}
    for number in (-1, 2**63):
        with pytest.raises(Failure, match="x: entry 1 has no topic, partition and position"):
            read_positions(b"[" + POSITION % number + b"]", "x")
