"""What several commands ask of a cluster: its topics, and where their partitions begin and end."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from millrace.cli.failures import ExitCode, Failure
from millrace.core.errors import MillraceError

if TYPE_CHECKING:
    from millrace.client import SyncAdmin, SyncProducer

DEFAULT_BOOTSTRAP = "127.0.0.1:7092"
CLIENT_ID = "millrace-cli"
SUGGESTION_TIMEOUT_MS = 1000
"""How long the names of topics may take, for a suggestion or a completion."""


def connect_admin(bootstrap: str, *, request_timeout_ms: int = 30_000) -> "SyncAdmin":
    """Return a client for administration; a context manager."""
    from millrace.client import SyncAdmin

    return SyncAdmin(bootstrap, client_id=CLIENT_ID, request_timeout_ms=request_timeout_ms)


def topic_names(bootstrap: str) -> list[str]:
    """Return the names of all topics; none when nobody answers, as it is only for suggestions."""
    try:
        with connect_admin(bootstrap, request_timeout_ms=SUGGESTION_TIMEOUT_MS) as admin:
            return admin.list_topics()
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
    earliest = admin.list_offsets(topic, "beginning")
    latest = admin.list_offsets(topic, "end")
    for partition in partitions:
        if partition not in earliest:
            raise _no_partition(topic, partition, len(earliest))
    return {
        each: (earliest[each].offset, latest[each].offset)
        for each in partitions or sorted(earliest)
    }


def check_topic(producer: "SyncProducer", topic: str, partition: int | None = None) -> None:
    """Find out whether a topic is there, before a producer waits for it to be made.

    Raises:
        UnknownTopicOrPartitionError: it is not there.
        Failure: it has no such partition.
    """
    partitions = producer.partitions_for(topic)
    if partition is not None and partition not in partitions:
        raise _no_partition(topic, partition, len(partitions))


def _no_partition(topic: str, partition: int, count: int) -> Failure:
    return Failure(
        f"{topic} has no partition {partition}",
        f"it has {count}, counted from 0",
        exit_code=ExitCode.NOT_FOUND,
    )


def offsets_at(admin: "SyncAdmin", topic: str, timestamp_ms: int) -> dict[int, int | None]:
    """Return by partition the offset of the first record of this time or later, None: no record."""
    found = admin.list_offsets(topic, timestamp_ms)
    return {partition: at.offset if at.offset >= 0 else None for partition, at in found.items()}


def topic_argument(
    name: str = "topic", *, complete: bool = True, **attributes: Any
) -> Callable[..., Any]:
    """Add an argument that names topics, which the shell can complete."""
    return click.argument(name, shell_complete=_complete_topic if complete else None, **attributes)


def _complete_topic(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    bootstrap = context.params.get("bootstrap")
    names = topic_names(bootstrap) if bootstrap else []
    return [name for name in names if name.startswith(incomplete)]
