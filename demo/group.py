"""A group of three members reads the flights; one is killed on the way, and one is added.

Each member writes down what it has processed before it commits. So the files together prove that
every flight was processed at least once, and that the flights of a partition, and so those of an
aircraft, were processed for the first time in their order. What the killed member had not committed
is processed again by the one that takes over.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from demo.checks import Check
from demo.members import Members, wait_for_lag

from millrace.client import SyncAdmin

GROUP = "dashboard"
MEMBERS = 3


class Processed(NamedTuple):
    """A batch that a member has processed: in nanoseconds when, and offsets, inclusive."""

    at: int
    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class GroupRun:
    """What the group did.

    Attributes:
        ends: the end of each partition.
        processed: all batches of all members, in the order of time.
    """

    ends: Mapping[int, int]
    processed: Sequence[Processed]


def _processed(folder: Path) -> list[Processed]:
    """Return what all members have processed, in the order of time; a torn last line counts not."""
    found = []
    for path in folder.glob("member-*"):
        lines = path.read_text(encoding="ascii").split("\n")[:-1]
        found += [Processed(*map(int, line.split())) for line in lines]
    return sorted(found)


def run_group(address: str, topic: str, folder: Path) -> GroupRun:
    """Let the group read a topic to its end; print what happens.

    Raises:
        RuntimeError: it did not come to the end.
        MillraceError: the lag cannot be had.
    """

    def words(number: int) -> list[str]:
        return ["demo.group_member", address, GROUP, topic, str(folder / f"member-{number}")]

    members = Members(words)
    with SyncAdmin(address) as admin:
        ends = {partition: end.offset for (_, partition), end in admin.list_offsets(topic).items()}
        try:
            for _ in range(MEMBERS):
                members.start()
            left = wait_for_lag(admin, GROUP, topic, members, until=2 / 3)
            members.kill(0)
            members.start()
            killed_at = time.monotonic()
            print(f"group    {MEMBERS} members; kill -9 of one, and one more, at a lag of {left:,}")
            wait_for_lag(admin, GROUP, topic, members, until=0)
            print(f"group    lag 0, {time.monotonic() - killed_at:.1f} s after that")
        finally:
            members.stop()
    return GroupRun(ends, _processed(folder))


def check_group(run: GroupRun) -> Iterator[Check]:
    """Yield what the files of the members prove."""
    seen = dict.fromkeys(run.ends, 0)
    missed, again = 0, 0
    for batch in run.processed:
        expected = seen[batch.partition]
        missed += max(0, batch.first - expected)
        again += max(0, min(batch.last + 1, expected) - batch.first)
        seen[batch.partition] = max(expected, batch.last + 1)
    unread = sum(run.ends[partition] - seen[partition] for partition in run.ends)
    yield Check(
        "the group has processed every flight at least once",
        not unread and not missed,
        f"{unread + missed:,} never, {again:,} again after the kill",
    )
    yield Check(
        "and each partition in its order, across members",
        not missed,
        f"{len(run.processed):,} batches of {len(run.ends)} partitions",
    )
