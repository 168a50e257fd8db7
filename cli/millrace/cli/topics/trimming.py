"""Up to where the records of a topic's partitions are to be deleted: from words to offsets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from millrace.cli.arguments.read_start import AtOffset, Position
from millrace.cli.cluster import offsets_at, ranges_of

if TYPE_CHECKING:
    from millrace.client import SyncAdmin


@dataclass(frozen=True, slots=True)
class Cut:
    """A deletion of the records `[start_offset, before_offset)` of a partition."""

    start_offset: int
    before_offset: int

    @property
    def records(self) -> int:
        """How many records that is."""
        return max(self.before_offset - self.start_offset, 0)


def find_cuts(
    admin: "SyncAdmin", topic: str, partitions: Sequence[int], before: Position
) -> dict[int, Cut]:
    """Return where to cut each partition.

    Args:
        partitions: only these; none: all.
        before: the records before it are to go.

    Raises:
        click.UsageError: an offset for several partitions: each has offsets of its own.
        Failure: the topic has not all of these partitions.
    """
    ranges = ranges_of(admin, topic, partitions)
    if isinstance(before, AtOffset) and len(ranges) > 1:
        raise click.UsageError(
            f"each partition has offsets of its own, and {topic} has several: name one with "
            "--partition, or a time, or how many records to keep (-1000)"
        )
    offsets = offsets_at(
        admin, {(topic, partition): at for partition, at in ranges.items()}, before
    )
    return {
        partition: Cut(start, max(offsets[topic, partition], start))
        for partition, (start, _) in ranges.items()
    }
