"""A file of a few characters that others may replace while a broker runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, TypeVar

READING_SECONDS: Final = 1.0
"""How often such a file is read."""

Value = TypeVar("Value")


class SmallFile(Generic[Value]):
    """A file that `read` reads.

    Args:
        path: of the file.
        characters_max: how much of it is looked at.
        parse: returns what its text says; raises a `ValueError` for another text.
        on_problem: called with each new reason why the file cannot be used.
    """

    def __init__(
        self,
        path: str,
        characters_max: int,
        parse: Callable[[str], Value],
        on_problem: Callable[[str], object],
    ) -> None:
        self._path = Path(path)
        self._characters_max = characters_max
        self._parse = parse
        self._on_problem = on_problem
        self._problem = ""

    def read(self) -> Value | None:
        """Return what the file says; None: it is missing or empty, or cannot be used."""
        try:
            with self._path.open(encoding="utf-8") as file:
                text = file.read(self._characters_max).strip()
            value = self._parse(text) if text else None
        except FileNotFoundError:
            value = None
        except (OSError, ValueError) as error:
            problem = f"{self._path}: {error}"
            if problem != self._problem:
                self._problem = problem
                self._on_problem(problem)
            return None
        self._problem = ""
        return value
