"""Objects of JSON in which each name stands once: readers would not agree on another one."""

from collections import Counter
from collections.abc import Iterable
from typing import Any


def unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; for `object_pairs_hook` of `json`.

    Raises:
        ValueError: a name is there twice.
    """
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = repeated(name for name, _ in pairs)
        raise ValueError(f"an object has the name {', '.join(map(repr, twice))} twice")
    return found


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that are there more than once, in their order."""
    return [name for name, count in Counter(names).items() if count > 1]
