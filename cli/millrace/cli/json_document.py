"""JSON that a user hands in as a whole: whatever is wrong with it is one message."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from millrace.cli.failures import Failure

TOO_DEEP = "JSON that is nested too deeply to be read"


def parse_document(data: bytes, name: str, hint: str) -> Any:
    """Return what a document says.

    Args:
        data: the file.
        name: of the file, for the message.
        hint: what to do if it is none.

    Raises:
        Failure: it is no JSON, or too deep, or an object has a name twice.
    """
    try:
        return json.loads(data, object_pairs_hook=unique_members)
    except RecursionError as error:
        raise Failure(f"{name}: {TOO_DEEP}", hint) from error
    except ValueError as error:  # Also of bytes that are no text, and of very long numbers.
        raise Failure(f"{name} is no JSON: {error}", hint) from error


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; readers of one with a name twice would not agree on it.

    Raises:
        ValueError: a name is there twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = repeated(name for name, _ in pairs)
        raise ValueError(f"an object with the name {', '.join(map(repr, twice))} twice")
    return found


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that are there more than once, in their order."""
    return [name for name, count in Counter(names).items() if count > 1]
