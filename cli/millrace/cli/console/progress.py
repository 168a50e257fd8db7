"""Progress bars on standard error, for people only: without a terminal they show nothing."""

import sys
from collections.abc import Set
from typing import TYPE_CHECKING, Self

from millrace.cli.console.measures import Transfer

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress:
    """Shows how far a transfer is, and its rate; a context manager.

    Args:
        title: what is going on, in two or three words.
        total: the whole, in the caller's unit; None: not known.
        is_shown: whether to show it at all: not if the terminal shows something else.
    """

    def __init__(self, title: str, total: float | None = None, *, is_shown: bool = True) -> None:
        self._title, self._total, self._is_shown = title, total, is_shown
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._is_shown and sys.stderr.isatty():
            self._bar = _new_bar()
            self._task = self._bar.add_task(self._title, total=self._total, rate="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: float, transfer: Transfer) -> None:
        """Show that so much of the whole is done; the bar redraws itself at its own pace."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, rate=str(transfer))


class Bars:
    """Shows how far several things are, a bar for each; a context manager.

    Args:
        most: bars at the most; others wait until one is taken away.
    """

    def __init__(self, most: int = 12) -> None:
        self._most = most
        self._bar: Bar | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._bar = _new_bar()
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def are_seen(self) -> bool:
        """Return whether they are on a terminal."""
        return self._bar is not None

    def keep(self, names: Set[str]) -> None:
        """Remove all other bars; their places are free for new ones."""
        for name in [known for known in self._tasks if known not in names]:
            task = self._tasks.pop(name)
            if self._bar is not None:
                self._bar.remove_task(task)

    def show(self, name: str, share: float, note: str = "") -> None:
        """Show the progress of one, from 0 to 1, with a note beside it."""
        if self._bar is None:
            return
        if name not in self._tasks:
            if len(self._tasks) >= self._most:
                return
            self._tasks[name] = self._bar.add_task(name, total=1.0, rate="")
        self._bar.update(self._tasks[name], completed=share, rate=note)


def _new_bar() -> "Bar":
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=Console(stderr=True),
        transient=True,
        refresh_per_second=8,
    )
