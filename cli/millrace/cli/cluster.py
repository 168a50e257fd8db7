"""Queries that several commands share: topics, and where their partitions begin and end."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from millrace.cli.arguments.partition_names import say_refused
from millrace.cli.arguments.read_start import AtOffset, AtTime, Beginning, End, Last, Position
from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.output import say
from millrace.cli.credentials import OF_ENVIRONMENT, Credentials
from millrace.core.errors import MillraceError, NotLeaderError
from millrace.core.isolation import READ_COMMITTED, Isolation
from millrace.core.topics import PartitionName

if TYPE_CHECKING:
    from millrace.client import (
        BrokerInfo,
        ClusterDescription,
        OffsetAndTimestamp,
        SyncAdmin,
        SyncProducer,
    )

DEFAULT_BOOTSTRAP = "127.0.0.1:7092"
CLIENT_ID = "millrace-cli"
SUGGESTION_TIMEOUT_MS = 1000
"""How long a look-up of names may take, for a suggestion or a completion."""


def connect_admin(
    bootstrap: str,
    *,
    request_timeout_ms: int = 30_000,
    credentials: Credentials = OF_ENVIRONMENT,
) -> "SyncAdmin":
    """Return a client for administration; a context manager."""
    from millrace.client import SyncAdmin

    return SyncAdmin(
        bootstrap,
        client_id=CLIENT_ID,
        request_timeout_ms=request_timeout_ms,
        **credentials._asdict(),
    )


def state_of(broker: "BrokerInfo", cluster: "ClusterDescription") -> str:
    """Return the state to show: the broker's own, or that it did not answer."""
    return "unreachable" if broker.broker_id in cluster.unreachable else broker.state


def topic_names(bootstrap: str) -> list[str]:
    """Return the names of all topics; none when no broker answers, as it is only for
    suggestions."""
    return _asked(bootstrap, lambda admin: admin.list_topics())


def ranges_of(
    admin: "SyncAdmin",
    topic: str,
    partitions: Sequence[int] = (),
    isolation: Isolation = READ_COMMITTED,
) -> dict[int, tuple[int, int]]:
    """Return log start offset and end offset of a topic's partitions, in their order.

    Args:
        partitions: only these; none: all.
        isolation: of who reads: it says where a partition ends.

    Raises:
        Failure: the topic has not all of these partitions.
    """
    if partitions:
        there = len(admin.describe_topic(topic).partitions)
        for partition in partitions:
            if partition >= there:
                raise _no_partition(topic, partition, there)
    wanted = sorted((topic, partition) for partition in partitions) if partitions else topic
    earliest = admin.list_offsets(wanted, "beginning")
    latest = admin.list_offsets(wanted, "end", isolation=isolation)
    return {place[1]: (at.offset, latest[place].offset) for place, at in earliest.items()}


def offsets_at(
    admin: "SyncAdmin",
    ranges: Mapping[PartitionName, tuple[int, int]],
    position: Position,
    isolation: Isolation = READ_COMMITTED,
) -> dict[PartitionName, int]:
    """Return the offset of a position in each partition, which may lie outside of its range.

    Nothing may be as new as a time: then it is the end.

    Args:
        ranges: log start offset and end offset of each partition. A time is looked up now, after
            them: a record of an earlier time that was appended meanwhile lies after them.
        isolation: as for `ranges_of`.
    """
    times = {}
    if isinstance(position, AtTime):
        times = admin.list_offsets(list(ranges), position.timestamp_ms, isolation=isolation)
    offsets = {}
    for place, (start, end) in ranges.items():
        match position:
            case Beginning():
                offsets[place] = start
            case End():
                offsets[place] = end
            case AtOffset(offset):
                offsets[place] = offset
            case Last(records):
                offsets[place] = end - records
            case AtTime():
                found = times[place].offset
                offsets[place] = end if found < 0 else found
    return offsets


def try_offsets(
    admin: "SyncAdmin",
    topic: str,
    at: Literal["beginning", "end"] | int,
    partitions: Iterable[int] | None = None,
    isolation: Isolation = READ_COMMITTED,
) -> "dict[int, OffsetAndTimestamp | MillraceError]":
    """Return an offset for each partition, or the error.

    It does not wait for a leader: that may take for ever, and a person waits.

    Args:
        at: an end of the log, or a time in ms.
        partitions: only these; None: all.
        isolation: as for `ranges_of`.
    """
    leaders = {
        partition.partition: partition.leader
        for partition in admin.describe_topic(topic).partitions
    }
    wanted = sorted(leaders if partitions is None else partitions)
    led = [(topic, partition) for partition in wanted if leaders.get(partition, 0) >= 0]
    found = admin.list_offsets(led, at, return_errors=True, isolation=isolation)
    return {
        partition: found.get((topic, partition), NotLeaderError("it has no leader"))
        for partition in wanted
    }


def say_unknown(unknown: "Mapping[PartitionName, MillraceError]") -> None:
    """Print why something is not known about partitions, if so, and what to do."""
    if unknown:
        say_refused(unknown)
        say("what is missing, and what to do about it: `millrace cluster health`")


def check_topic(producer: "SyncProducer", topic: str, partition: int | None = None) -> None:
    """Check that a topic exists, before a producer waits for its creation.

    Raises:
        UnknownTopicOrPartitionError: it does not exist.
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


def completed(ask: "Callable[[SyncAdmin], Iterable[str]]") -> Callable[..., list[str]]:
    """Return click's hook that completes a word, from the names that a broker knows."""

    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        bootstrap = context.params.get("bootstrap")
        names = _asked(bootstrap, ask) if bootstrap else []
        return [name for name in names if name.startswith(incomplete)]

    return complete


_complete_topic = completed(lambda admin: admin.list_topics())


def topic_argument(
    name: str = "topic", *, complete: bool = True, **attributes: Any
) -> Callable[..., Any]:
    """Add an argument that names topics, which the shell can complete."""
    return click.argument(name, shell_complete=_complete_topic if complete else None, **attributes)


def _asked(bootstrap: str, ask: "Callable[[SyncAdmin], Iterable[str]]") -> list[str]:
    try:
        with connect_admin(bootstrap, request_timeout_ms=SUGGESTION_TIMEOUT_MS) as admin:
            return list(ask(admin))
    except MillraceError:
        return []
