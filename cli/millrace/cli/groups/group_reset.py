"""Where a group reads on after a reset, and positions in a file.

[{"topic": "orders", "partition": 0, "position": 1200}]
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from millrace.cli.arguments.read_start import FORMS, parse_start
from millrace.cli.arguments.read_start import Position as ReadStart
from millrace.cli.cluster import offsets_at
from millrace.cli.console.failures import Failure
from millrace.cli.files.json_document import parse_document
from millrace.core.coordinator.positions.position import Position
from millrace.core.settings import INT32_MAX, INT64_MAX
from millrace.core.topics import PartitionName

if TYPE_CHECKING:
    from millrace.client import GroupDescription, SyncAdmin

CURRENT = "current"


@dataclass(slots=True, frozen=True)
class Reset:
    """The change of one position.

    Attributes:
        place: topic and number.
        before: the offset that is committed; None: none is.
        position: what is to be committed.
    """

    place: PartitionName
    before: int | None
    position: Position


def plan_reset(
    admin: "SyncAdmin",
    group: "GroupDescription | None",
    ranges: Mapping[PartitionName, tuple[int, int]],
    *,
    offsets: Mapping[PartitionName, int] | None = None,
    to: str | None = None,
    shift: int | None = None,
) -> list[Reset]:
    """Return what to commit: for each partition an offset that it has.

    Args:
        group: as it is; None: there is none yet.
        ranges: log start offset and end offset of the partitions.
        offsets: where to, by partition.
        to: or where to, in words.
        shift: or by how many records.

    Raises:
        click.BadParameter: `to` is no position.
    """
    before = {} if group is None else group.positions
    if offsets is not None:
        wanted = dict(offsets)
    elif shift is not None:
        wanted = {place: before[place] + shift for place in ranges if place in before}
    elif to == CURRENT:
        wanted = {place: before[place] for place in ranges if place in before}
    else:
        wanted = offsets_at(admin, ranges, _position(to or ""))
    plan = []
    for place, offset in wanted.items():
        start, end = ranges[place]
        plan.append(Reset(place, before.get(place), Position(min(max(offset, start), end))))
    return plan


def _position(words: str) -> ReadStart:
    try:
        return parse_start(words, int(datetime.now(UTC).timestamp() * 1000))
    except ValueError as error:
        raise click.BadParameter(
            f"{words!r} is not a position: use 'current', {FORMS}", param_hint="--to"
        ) from error


def read_positions(data: bytes, name: str) -> dict[PartitionName, int]:
    """Return the positions in a file.

    Args:
        name: of the file, for the message.

    Raises:
        Failure: it is no such document; says where.
    """
    hint = "`millrace group reset NAME --to current --dry-run --output json` writes one"
    found = parse_document(data, name, hint)
    if not isinstance(found, list):
        raise Failure(f"{name} is no list of positions", hint)
    positions: dict[PartitionName, int] = {}
    for number, entry in enumerate(found, 1):
        match entry:
            case {"topic": str(topic), "partition": int(partition), "position": int(offset)} if (
                0 <= partition <= INT32_MAX and 0 <= offset <= INT64_MAX
            ):
                if (topic, partition) in positions:
                    raise Failure(f"{name}: {topic} {partition} is named twice", "keep one of them")
                positions[topic, partition] = offset
            case _:
                raise Failure(
                    f"{name}: entry {number} has no topic, partition and position from 0 on", hint
                )
    return positions
