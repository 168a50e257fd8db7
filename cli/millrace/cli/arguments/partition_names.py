"""Partitions as users name them on a command line, `TOPIC:PARTITION`, and as they are shown."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from millrace.cli.console.output import say
from millrace.core.ids import PARTITION_MAX
from millrace.core.numbers import parse_whole_number
from millrace.core.topics import PartitionName
from millrace.core.words import shown

if TYPE_CHECKING:
    from millrace.client import SyncAdmin
    from millrace.core.errors import MillraceError

_REFUSED_SAID_MAX = 50

partitions_option = click.option(
    "--partition",
    "-p",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition; may be repeated.",
)


def documents(places: Iterable[PartitionName]) -> list[dict[str, Any]]:
    """Return places for a program."""
    return [{"topic": topic, "partition": number} for topic, number in sorted(places)]


def refused_documents(refused: "Mapping[PartitionName, MillraceError]") -> list[dict[str, Any]]:
    """Return which partitions were refused, and why, for a program."""
    return [
        {"topic": topic, "partition": number, "error": error.name(), "message": error.message}
        for (topic, number), error in sorted(refused.items())
    ]


def say_refused(refused: "Mapping[PartitionName, MillraceError]") -> None:
    """Print the refused partitions and the reasons; of very many, the first ones."""
    for place, error in list(refused.items())[:_REFUSED_SAID_MAX]:
        name = shown(place)
        where = "" if name in error.message else f"{name}: "
        say(f"{where}{error.message} ({error.name()})")
    if len(refused) > _REFUSED_SAID_MAX:
        say(f"... and {len(refused) - _REFUSED_SAID_MAX:,} more: --output json has them all")


def parse(text: str) -> tuple[str, int | None]:
    """Return a topic and, if `:N` follows it, a partition's number.

    Raises:
        click.BadParameter: the part after the colon is no number.
    """
    topic, colon, number = text.rpartition(":")
    if not colon:
        return text, None
    partition = parse_whole_number(number, PARTITION_MAX)
    if partition is None or not topic:
        raise click.BadParameter(f"{text!r}: write TOPIC, or TOPIC:PARTITION such as flights:0")
    return topic, partition


def resolve(admin: "SyncAdmin", names: Iterable[str]) -> list[PartitionName]:
    """Return the named partitions; a topic stands for all of its partitions.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
    """
    places: dict[PartitionName, None] = {}
    for topic, partition in map(parse, names):
        if partition is None:
            described = admin.describe_topic(topic)
            places |= {
                (described.name, partition.partition): None for partition in described.partitions
            }
        else:
            places[topic, partition] = None
    return list(places)
