"""What was done and seen, as Markdown for people: written where `MILLRACE_TRANSCRIPT` says."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


class Transcript:
    """The pages, in the order in which they came.

    Args:
        head: what the page begins with.
        names: to be shown instead of others, which differ in each run.
    """

    def __init__(self, head: str, names: Mapping[str, str]) -> None:
        self._names = names
        self._parts = [head]

    def title(self, text: str) -> None:
        """Begin a part."""
        self._add(f"## {text}")

    def say(self, text: str) -> None:
        """Add a sentence."""
        self._add(text)

    def ran(self, command: str, output: str) -> None:
        """Add a command and what it wrote."""
        lines = [f"$ {command}", *output.strip().splitlines()]
        self._add("\n".join(f"    {line}" for line in lines))

    def table(self, head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a table."""
        lines = [head, ["---"] * len(head), *rows]
        self._add("\n".join(f"| {' | '.join(line)} |" for line in lines))

    def write(self) -> None:
        """Write it, if somebody wants it."""
        if path := os.environ.get("MILLRACE_TRANSCRIPT"):
            Path(path).write_text("\n\n".join(self._parts) + "\n")

    def _add(self, text: str) -> None:
        for name, shown in self._names.items():
            text = re.sub(rf"\b{re.escape(name)}\b", shown, text)
        self._parts.append(text)
