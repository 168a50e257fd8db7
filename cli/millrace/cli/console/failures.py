"""The failure of a command: one message, its code, a hint, and an exit code for scripts."""

import difflib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import IO, Any

import click


class ExitCode(IntEnum):
    """Exit codes of commands, for scripts. Stable."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    TIMED_OUT = 5
    DAMAGED = 6
    UNHEALTHY = 7
    HUNG_UP = 129
    INTERRUPTED = 130
    READER_LEFT = 141
    TERMINATED = 143

    @property
    def meaning(self) -> str:
        """One line for `--help`."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "refused or failed; the message says why",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.UNREACHABLE: "no broker can be reached",
    ExitCode.NOT_FOUND: "no such topic, partition, offset or quota",
    ExitCode.TIMED_OUT: "not done in time; a write may have been done all the same",
    ExitCode.DAMAGED: "damaged data was found",
    ExitCode.UNHEALTHY: "the cluster lacks a leader, a replica or a controller",
    ExitCode.HUNG_UP: "its terminal was closed (SIGHUP)",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
    ExitCode.READER_LEFT: "the reader of standard output left, as `head` does",
    ExitCode.TERMINATED: "ended by SIGTERM",
}


class Failure(click.ClickException):
    """Ends a command with one message.

    Args:
        message: what was wrong, as a sentence for a person.
        hint: what to do about it; empty when the message says it.
        code_name: the error's stable name, for searches and bug reports.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        code_name: str = "",
        exit_code: ExitCode = ExitCode.FAILED,
    ) -> None:
        super().__init__(message)
        self.hint = hint
        self.code_name = code_name
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance.

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the message and the hint to standard error."""
        file = sys.stderr if file is None else file
        code = f" ({self.code_name})" if self.code_name else ""
        color = False if os.environ.get("NO_COLOR") else None
        error, hint = click.style("error:", fg="red"), click.style("hint:", fg="cyan")
        click.echo(f"{error} {self.message}{code}", file=file, color=color)
        if self.hint:
            click.echo(f"{hint}  {self.hint}", file=file, color=color)


class JsonFailure(click.ClickException):
    """Ends a command with one line of JSON for programs.

    Its fields: `error`, the stable name where there is one, else null; `message`; `hint`, empty
    where the message says it; `exit_code`.
    """

    def __init__(self, error: click.ClickException) -> None:
        super().__init__(error.format_message())
        self.exit_code = error.exit_code  # type: ignore[misc]  # As in `Failure`.
        self._document = {
            "error": getattr(error, "code_name", "") or None,
            "message": self.message,
            "hint": getattr(error, "hint", ""),
            "exit_code": int(error.exit_code),
        }

    def show(self, file: IO[Any] | None = None) -> None:
        """Write the document to standard error."""
        document = json.dumps(self._document, ensure_ascii=False)
        click.echo(document, file=sys.stderr if file is None else file)


@contextmanager
def importing_the_operator() -> Iterator[None]:
    """Say what to install if a library of the operator is missing."""
    try:
        yield
    except ImportError as error:
        raise Failure(
            f"the operator's libraries are not installed: {error}",
            "they are Millrace's extra `operator`: pip install '.[operator]' in its checkout",
        ) from error


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the word that was probably meant, if any is near enough."""
    return next(iter(difflib.get_close_matches(word, words, 1)), None)


def did_you_mean(word: str, words: Iterable[str], otherwise: str = "") -> str:
    """Return a hint that names the nearest word, or says what else there is."""
    known = list(words)
    match = nearest(word, known)
    if match:
        return f"did you mean {match!r}?"
    return otherwise or ("there are: " + ", ".join(known) if known else "")
