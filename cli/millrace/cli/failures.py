"""What a person sees when something went wrong: one message, its code, and what to do about it."""

import difflib
import os
import sys
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import IO, Any

import click

from millrace.core import errors


class ExitCode(IntEnum):
    """What a script can tell from the end of a command. Stable."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    TIMED_OUT = 5
    DAMAGED = 6
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """One line for `--help`."""
        return _MEANINGS[self]


_MEANINGS = {
    ExitCode.DONE: "done",
    ExitCode.FAILED: "refused or failed; the message says why",
    ExitCode.USAGE: "the command line is wrong",
    ExitCode.UNREACHABLE: "no broker can be reached",
    ExitCode.NOT_FOUND: "no such topic, partition or offset",
    ExitCode.TIMED_OUT: "not confirmed in time; a write may have been done",
    ExitCode.DAMAGED: "damaged data was found",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
}

_EXIT_CODES: dict[type[errors.MillraceError], ExitCode] = {
    errors.ConnectionFailedError: ExitCode.UNREACHABLE,
    errors.UnknownTopicOrPartitionError: ExitCode.NOT_FOUND,
    errors.OffsetOutOfRangeError: ExitCode.NOT_FOUND,
    errors.LogTruncatedError: ExitCode.NOT_FOUND,
    errors.RequestTimedOutError: ExitCode.TIMED_OUT,
    errors.DeliveryTimedOutError: ExitCode.TIMED_OUT,
    errors.BufferExhaustedError: ExitCode.TIMED_OUT,
    errors.CorruptBatchError: ExitCode.DAMAGED,
    errors.CorruptLogError: ExitCode.DAMAGED,
}

_HINTS: dict[type[errors.MillraceError], str] = {
    errors.ConnectionFailedError: (
        "start a broker on this machine with `millrace up`, "
        "or name one with --bootstrap HOST:PORT or MILLRACE_BOOTSTRAP"
    ),
    errors.TopicAlreadyExistsError: (
        "see it with `millrace topic describe {topic}`, "
        "change it with `millrace topic alter {topic}`"
    ),
    errors.OffsetOutOfRangeError: "see which offsets there are with `millrace offsets {topic}`",
    errors.LogTruncatedError: "see which offsets there are with `millrace offsets {topic}`",
    errors.StorageFullError: (
        "free space on the broker's disk, or keep less: "
        "`millrace topic alter {topic} --set retention.bytes=...`"
    ),
    errors.LogDirFailedError: "the broker's log says which disk failed",
    errors.BufferExhaustedError: "the broker does not keep up; try again, or send less at a time",
    errors.CorruptBatchError: "examine the broker's files with `millrace log verify DIRECTORY`",
    errors.CorruptLogError: "examine the broker's files with `millrace log verify DIRECTORY`",
    errors.UnsupportedFeatureError: "compare `millrace --version` on both sides",
    errors.UnsupportedFormatError: "compare `millrace --version` on both sides",
}

_REFUSED = "Connection refused"
"""In gRPC's long text: all that it has to say is that nobody is there."""
_MAYBE_APPENDED = "it is not known whether the write was done: look before you repeat it"


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


def explain(error: errors.MillraceError, parameters: Mapping[str, Any]) -> Failure:
    """Turn an error of Millrace into what a person needs.

    Args:
        error: what happened.
        parameters: the parameters of the command that met it.
    """
    topics = _topics(parameters)
    hint = _HINTS.get(type(error), "").format(topic=topics[0] if topics else "TOPIC")
    if isinstance(error, errors.UnknownTopicOrPartitionError):
        hint = _hint_for_unknown_topic(topics, parameters.get("bootstrap"))
    elif not hint and error.appended is errors.Appended.MAYBE:
        hint = _MAYBE_APPENDED
    message = error.message
    if isinstance(error, errors.ConnectionFailedError) and _REFUSED in message:
        message = f"no broker listens at {parameters.get('bootstrap')}"
    return Failure(
        message,
        hint,
        code_name=error.name(),
        exit_code=_EXIT_CODES.get(type(error), ExitCode.FAILED),
    )


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Return the word that was probably meant, if any is near enough."""
    return next(iter(difflib.get_close_matches(word, words, 1)), None)


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return a hint that names the nearest word, or lists what there is."""
    known = list(words)
    match = nearest(word, known)
    if match:
        return f"did you mean {match!r}?"
    return "there are: " + ", ".join(known) if known else ""


def _topics(parameters: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the topics that the command was about."""
    topic = parameters.get("topic")
    return (topic,) if isinstance(topic, str) else tuple(parameters.get("topics") or ())


def _hint_for_unknown_topic(topics: tuple[str, ...], bootstrap: str | None) -> str:
    if not topics or not bootstrap:
        return "list the topics with `millrace topic list`"
    from millrace.cli.cluster import topic_names

    known = topic_names(bootstrap)
    missing = next((topic for topic in topics if topic not in known), None)
    if missing is None:
        return f"see its partitions with `millrace topic describe {topics[0]}`"
    match = nearest(missing, known)
    if match:
        return f"did you mean {match!r}?"
    return (
        f"list the topics with `millrace topic list`, or make it: `millrace topic create {missing}`"
    )
