"""Partitions as users name them on a command line, `TOPIC:PARTITION`, and as they are shown."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from millrace.cli.output import say

if TYPE_CHECKING:
    from millrace.client import SyncAdmin
    from millrace.core.errors import MillraceError

Place = tuple[str, int]
"""Topic and number of a partition."""


def shown(place: Place) -> str:
    """Return `topic-partition`."""
    return f"{place[0]}-{place[1]}"


def listed(places: Iterable[Place], most: int = 10) -> str:
    """Return places for a person, not more than `most` of them."""
    names = [shown(place) for place in places]
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")


def count(number: int, noun: str) -> str:
    """Return `1 partition`, `2 partitions`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def say_refused(refused: "Mapping[Place, MillraceError]") -> None:
    """Tell the person which partitions were refused, and why."""
    for place, error in refused.items():
        name = shown(place)
        where = "" if name in error.message else f"{name}: "
        say(f"{where}{error.message} ({error.name()})")


def parse(text: str) -> tuple[str, int | None]:
    """Return a topic and, if `:N` follows it, a partition's number.

    Raises:
        click.BadParameter: what follows the colon is no number.
    """
    topic, colon, number = text.rpartition(":")
    if not colon:
        return text, None
    if not number.isdecimal() or not topic:
        raise click.BadParameter(f"{text!r}: write TOPIC, or TOPIC:PARTITION such as flights:0")
    return topic, int(number)


def resolve(admin: "SyncAdmin", names: Iterable[str]) -> list[Place]:
    """Return the partitions that are named, a topic for all of its own.

    Raises:
        UnknownTopicOrPartitionError: there is no such topic.
    """
    places: dict[Place, None] = {}
    for topic, partition in map(parse, names):
        if partition is None:
            described = admin.describe_topic(topic)
            places |= {(described.name, each.partition): None for each in described.partitions}
        else:
            places[topic, partition] = None
    return list(places)
