"""An array of JSON gives its elements, however its text is cut into blocks."""

import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from millrace.cli.console.failures import Failure
from millrace.cli.records.json_arrays import blocks_of_elements
from millrace.cli.records.json_texts import text_of

ROWS = [
    {"a": 1, "text": 'x ] , "y" \\ {'},
    {},
    {"n": 12345678901234567890, "f": -1.50e3, "deep": [[{"ä": None}]]},
    {"long": "z" * 500},
]


def elements(data: bytes, cut: int = 1 << 20) -> list[tuple[int, bytes, dict[str, Any]]]:
    stream = io.BytesIO(data)

    def read(count: int) -> bytes:
        return stream.read(min(count, cut))

    return [
        (number, text, row)
        for first, block in blocks_of_elements(read, cut, "x")
        for number, (text, row) in enumerate(block, first)
    ]


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 64, 1 << 20])
@pytest.mark.parametrize("write", [json.dumps, lambda rows: json.dumps(rows, indent="\t")])
def test_every_element_comes_once_with_its_number(write: Callable[[Any], str], cut: int) -> None:
    found = elements(f" \n{write(ROWS)}\n".encode(), cut)
    assert [number for number, _, _ in found] == [1, 2, 3, 4]
    assert [json.loads(text_of(row)) for _, _, row in found] == ROWS
    assert [json.loads(text) for _, text, _ in found] == ROWS


def test_the_text_of_an_element_stays_but_for_the_space_between_its_tokens() -> None:
    data = b'[ { "n" : 1.50e3 ,\n  "text" : "a  \\u00e4\\n  b" } , {"n":1E1}]'
    assert [text for _, text, _ in elements(data)] == [
        b'{"n":1.50e3,"text":"a  \\u00e4\\n  b"}',
        b'{"n":1E1}',
    ]


def test_an_empty_array_has_no_elements() -> None:
    assert elements(b"[]") == elements(b" [ \n] \n") == []


@pytest.mark.parametrize("cut", [1, 1 << 20])
@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'[{"a": 1}, {"b" 2}, {}]', "x, element 2: not JSON"),
        (b"[{}, nonsense" + b" " * 100 + b"]", "x, element 2: not JSON"),
        (b"[{}, 17]", "x, element 2: not a JSON object"),
        (b"[{} {}]", "x, element 1: a comma or ] must follow it"),
        (b'[{}, {"a": "1', "x, element 2: not JSON"),
        (b"[{}, {}", "x, element [23]: the array does not end"),
        (b"[{}, ", "x, element 2: the array does not end"),
        (b"[{}] {}", "x: something follows the array"),
        (b'[{"a": "\xff"}]', "x: not UTF-8"),
        (b'[{}, {"a": 1, "a": 2}]', "x, element 2: an object has the name 'a' twice"),
        (b'[{}, {"a": NaN}]', "x, element 2: JSON has no NaN"),
    ],
)
def test_what_is_wrong_is_named_by_its_element(data: bytes, problem: str, cut: int) -> None:
    with pytest.raises(Failure, match=problem):
        elements(data, cut)


def test_an_error_is_told_where_it_is_and_not_at_the_end_of_the_file() -> None:
    stream = io.BytesIO(b'[{"a" 1},' + b"{}," * 100_000 + b"{}]")
    with pytest.raises(Failure, match="element 1"):
        list(blocks_of_elements(stream.read, 1000, "x"))
    assert stream.tell() <= 2000


def test_the_elements_before_a_wrong_one_are_yielded() -> None:
    stream = io.BytesIO(b'[{"a": 1}, {"a": 2}, 3]')
    blocks = blocks_of_elements(stream.read, 1 << 20, "x")
    assert [text for text, _ in next(blocks)[1]] == [b'{"a":1}', b'{"a":2}']
    with pytest.raises(Failure, match="x, element 3: not a JSON object"):
        next(blocks)
