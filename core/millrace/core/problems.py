"""Problems of settings as texts: of names that do not exist, with the nearest known one.

Messages repeat only the beginning of long names and values: an answer must not be much larger than
its request."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Final

PROBLEMS_TOLD_MAX: Final = 10
"""Problems that one message lists; of more it gives the number."""

_HINTS_MAX: Final = 3
"""Unknown names for which the nearest known one is searched, which is costly."""

_NEAREST_MAX: Final = 1024
"""Names whose nearest one is remembered: to find it takes a tenth of a millisecond, and a request
may have the same name in each of a thousand topics."""

_TEXT_TOLD_MAX: Final = 80
"""Characters of a name or a value that a message repeats."""

DOCS: Final = "docs/configuration.md"
"""The page with all settings except Spark's options."""


def unknown_names(
    names: Sequence[str], known: Mapping[str, str], path: str = "", docs: str = DOCS
) -> list[str]:
    """Return a problem for each unknown name; the first ones name the nearest setting.

    Args:
        names: that do not exist.
        known: every name of a setting, and its name here.
        path: of the section.
        docs: the page that lists all settings.
    """
    return [
        f"{path}{told(name)}: there is no such setting"
        + (_hint(name, known, docs) if number < _HINTS_MAX else "")
        for number, name in enumerate(names)
    ]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant, if any is near enough."""
    if len(name) > _TEXT_TOLD_MAX:
        return None
    return _nearest(name, tuple(known))


@lru_cache(maxsize=_NEAREST_MAX)
def _nearest(name: str, known: tuple[str, ...]) -> str | None:
    return next(iter(get_close_matches(name, known, n=1, cutoff=0.6)), None)


def _hint(name: str, known: Mapping[str, str], docs: str) -> str:
    near = nearest(name, known)
    return f"; {docs} lists all" if near is None else f"; did you mean {known[near]!r}?"


def told(text: str) -> str:
    """Return the beginning of a user's text that a message may repeat."""
    return text if len(text) <= _TEXT_TOLD_MAX else f"{text[:_TEXT_TOLD_MAX]}..."


def problem_text(problems: Sequence[str]) -> str:
    """Return problems as one text, a line for each of the first ones."""
    more = len(problems) - PROBLEMS_TOLD_MAX
    lines = [*problems[:PROBLEMS_TOLD_MAX], *([f"and {more} more problems"] if more > 0 else [])]
    return "\n".join(lines)
