"""Single keys of a terminal, without Enter."""

import os
import select
import sys
import termios
import tty
from typing import Any, Self


class Keyboard:
    """Reads keys while it is entered; a context manager. Without a terminal there are none."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)  # Ctrl-C goes on to be a signal.
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """Return the first key that is pressed in this time; empty: none."""
        readers = [] if self._before is None else [sys.stdin.fileno()]
        ready, _, _ = select.select(readers, [], [], seconds)
        return os.read(sys.stdin.fileno(), 1).decode("ascii", "ignore") if ready else ""
