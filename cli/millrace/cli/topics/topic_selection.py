"""Topics as users name them on a command line: by their names, or by regular expressions."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millrace.cli.cluster import topic_argument
from millrace.cli.console.failures import ExitCode, Failure
from millrace.core.topics import parse_topic_name

if TYPE_CHECKING:
    from millrace.client import SyncAdmin


_Decorated = TypeVar("_Decorated", bound=Callable[..., Any])


def topics_argument(
    *, required: bool = True, more_help: str = ""
) -> Callable[[_Decorated], _Decorated]:
    """Add an argument of any number of topics, and `--regex` with its help."""

    option = click.option(
        "--regex",
        "-r",
        "is_regex",
        is_flag=True,
        help="TOPICS are regular expressions, such as 'metrics/.*'; each must match a whole name."
        + more_help,
    )
    argument = topic_argument("topics", nargs=-1, required=required)

    def add(command: _Decorated) -> _Decorated:
        decorated: _Decorated = argument(option(command))
        return decorated

    return add


def joined(patterns: Iterable[str]) -> str:
    """Return one regular expression for several."""
    return "|".join(f"(?:{pattern})" for pattern in patterns)


def selected(
    admin: "SyncAdmin", topics: Sequence[str], *, is_regex: bool, internal: bool = False
) -> list[str]:
    """Return the names of the topics that a command is about, as brokers write them, each once.

    Names are not looked up.

    Args:
        topics: names, or regular expressions.
        internal: these can match topics of the cluster itself, too.

    Raises:
        InvalidTopicError: one is no name.
        click.UsageError: one is no regular expression.
        Failure: they match no topic.
    """
    if not is_regex:
        return list(dict.fromkeys(str(parse_topic_name(topic)) for topic in topics))
    return matching(topics, admin.list_topics(internal=internal))


def matching(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the names that one of the patterns matches as a whole, in their order.

    Raises:
        click.UsageError: a pattern is no regular expression.
        Failure: no name does.
    """
    compiled = []
    for pattern in patterns:
        try:
            compiled.append(re.compile(pattern))
        except re.error as error:
            raise click.UsageError(f"{pattern!r} is no regular expression: {error}") from error
    found = [name for name in names if any(pattern.fullmatch(name) for pattern in compiled)]
    if not found:
        raise Failure(
            f"no topic matches {' or '.join(pattern.pattern for pattern in compiled)}",
            "a regular expression must match the whole name: 'metrics/.*' and not 'metrics/'",
            exit_code=ExitCode.NOT_FOUND,
        )
    return found
