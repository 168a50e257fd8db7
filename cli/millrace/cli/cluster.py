"""What several commands ask of a cluster: its topics, and where their partitions begin and end."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from millrace.cli.failures import ExitCode, Failure
from millrace.core.errors import MillraceError

if TYPE_CHECKING:
    from millrace.client import SyncAdmin

CLIENT_ID = "millrace-cli"
COMPLETION_TIMEOUT_MS = 1000


def connect_admin(bootstrap: str) -> "SyncAdmin":
    """Return a client for administration; a context manager."""
    from millrace.client import SyncAdmin

    return SyncAdmin(bootstrap, client_id=CLIENT_ID)


def topic_names(bootstrap: str) -> list[str]:
    """Return the names of all topics; none when nobody answers, as it is only for suggestions."""
    try:
        with connect_admin(bootstrap) as admin:
            return sorted(topic.name for topic in admin.list_topics() if not topic.is_internal)
    except MillraceError:
        return []


def ranges_of(
    admin: "SyncAdmin", topic: str, partitions: Sequence[int] = ()
) -> dict[int, tuple[int, int]]:
    """Return log start offset and end offset of a topic's partitions, in their order.

    Args:
        admin: a client for administration.
        topic: the topic.
        partitions: only these; none: all.

    Raises:
        Failure: the topic has not all of these partitions.
    """
    earliest = admin.list_offsets(topic, "earliest")
    latest = admin.list_offsets(topic, "latest")
    missing = sorted(set(partitions) - earliest.keys())
    if missing:
        raise Failure(
            f"{topic} has no partition {missing[0]}",
            f"it has {len(earliest)}, counted from 0",
            exit_code=ExitCode.NOT_FOUND,
        )
    return {each: (earliest[each], latest[each]) for each in partitions or sorted(earliest)}


def offsets_at(admin: "SyncAdmin", topic: str, timestamp_ms: int) -> dict[int, int | None]:
    """Return by partition the offset of the first record of this time or later, None: no record."""
    return admin.list_offsets(topic, timestamp_ms)


def topic_argument(
    name: str = "topic", *, complete: bool = True, **attributes: Any
) -> Callable[..., Any]:
    """Add an argument that names topics, which the shell can complete."""
    return click.argument(name, shell_complete=_complete_topic if complete else None, **attributes)


def _complete_topic(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    bootstrap = context.params.get("bootstrap")
    names = topic_names(bootstrap) if bootstrap else []
    return [name for name in names if name.startswith(incomplete)]
