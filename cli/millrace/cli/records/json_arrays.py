"""The elements of a JSON array of objects, one at a time, so that a file need not fit into memory.

An element keeps its text: only white space between its tokens is left out, so that a value is one
line however the file was laid out, and no number or text in it changes.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from millrace.cli.console.failures import Failure
from millrace.cli.files.json_document import TOO_DEEP
from millrace.cli.records.json_texts import DECODER

ELEMENT_CHARACTERS_MAX: Final = 64 << 20
_TOKEN_CHARACTERS_MAX: Final = 16
"""More than the longest word or escape of JSON, which the end of a block may cut."""
_scan: Final = DECODER.raw_decode
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_TOKENS: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[^" \t\n\r]+')

Element = tuple[bytes, dict[str, Any]]
"""The text of an object, and what it says."""


def blocks_of_elements(
    read: Callable[[int], bytes], block_bytes: int, name: str
) -> Iterator[tuple[int, list[Element]]]:
    """Yield the elements of an array as soon as they are there, with the number of the first.

    Args:
        read: returns some bytes of the array, which begins with `[` after white space; none at its
            end.
        block_bytes: asked for at a time, and more for an element that is longer.
        name: the file's, for messages.

    Raises:
        Failure: it is no array of objects.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    text, number, wanted, is_open = "", 1, block_bytes, False
    while True:
        data = read(wanted)
        try:
            text += decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise Failure(f"{name}: not UTF-8 after element {number - 1:,}") from error
        at = _after_space(text, 0)
        if not is_open and at < len(text):
            is_open, at = True, _after_space(text, at + 1)
        elements: list[Element] = []
        problem: Failure | None = None
        while at < len(text) and text[at] != "]":
            try:
                found = _element(text, at, is_last=not data)
            except (ValueError, RecursionError) as error:
                why = TOO_DEEP if isinstance(error, RecursionError) else error
                problem = Failure(f"{name}, element {number + len(elements):,}: {why}")
                problem.__cause__ = error
                break
            if found is None:
                break
            element, at = found
            elements.append(element)
        if elements:
            yield number, elements
        if problem is not None:
            raise problem
        number, text = number + len(elements), text[at:]
        if text.startswith("]"):
            rest = text[1:].encode()
            while not rest.strip() and (rest := read(block_bytes)):
                pass
            if rest:
                raise Failure(f"{name}: something follows the array")
            return
        if not data or len(text) > ELEMENT_CHARACTERS_MAX:
            why = "the array does not end" if not data else "too long"
            raise Failure(f"{name}, element {number:,}: {why}")
        wanted = max(block_bytes, len(text))  # So that a long element is scanned a few times only.


def _element(text: str, at: int, *, is_last: bool) -> tuple[Element, int] | None:
    """Return the element that begins there, and where the next one does.

    Args:
        is_last: nothing follows the text.

    Returns:
        None if more of the text is needed.

    Raises:
        ValueError: the text is not the JSON of a value.
    """
    try:
        row, end = _scan(text, at)
    except json.JSONDecodeError as error:
        if is_last or not _may_go_on(error, text):
            raise ValueError(f"not JSON: {error.msg}") from error
        return None
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    following = _after_space(text, end)
    if following == len(text):
        return None  # The next block says what follows, which also ends a number.
    if text[following] not in ",]":
        raise ValueError("a comma or ] must follow it")
    element = "".join(_TOKENS.findall(text, at, end)).encode(), row
    return element, _after_space(text, following + (text[following] == ","))


def _may_go_on(error: json.JSONDecodeError, text: str) -> bool:
    """Return whether the rest of an element may be missing, and nothing else be wrong."""
    return error.msg.startswith("Unterminated") or error.pos >= len(text) - _TOKEN_CHARACTERS_MAX


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches the empty text"
    return found.end()
