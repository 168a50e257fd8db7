"""Up to where the records of a topic's partitions are to be deleted: from words to offsets."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from millrace.cli.cluster import ranges_of
from millrace.cli.read_start import AtOffset, AtTime, Beginning, End, Last, Position

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
        admin: a client for administration.
        topic: the topic.
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
    # After the ends: a record of an earlier time, appended meanwhile, lies behind them.
    times = {}
    if isinstance(before, AtTime):
        places = [(topic, each) for each in ranges]
        times = admin.list_offsets(places, before.timestamp_ms)
    cuts = {}
    for partition, (start, end) in ranges.items():
        match before:
            case Beginning():
                offset = start
            case End():
                offset = end
            case AtOffset(offset):
                pass
            case Last(records):
                offset = end - records
            case AtTime():
                found = times[topic, partition].offset
                offset = end if found < 0 else found
        cuts[partition] = Cut(start, max(offset, start))
    return cuts
