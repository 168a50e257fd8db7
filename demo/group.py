"""A group of three members reads the flights; one is killed on the way, and one is added.

Each member writes down what it has processed before it commits. So the files together prove that
every flight was processed at least once, and that the flights of a partition, and so those of an
aircraft, were processed for the first time in their order. What the killed member had not committed
is processed again by the one that takes over.
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from demo.checks import Check

from millrace.cli.console.measures import Transfer
from millrace.cli.console.progress import Progress
from millrace.client import Lag, SyncAdmin

GROUP = "dashboard"
MEMBERS = 3
QUIET_SECONDS_MAX = 60.0
POLL_SECONDS = 0.1


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


class Members:
    """The members' processes, and what they have written."""

    def __init__(self, address: str, topic: str, folder: Path) -> None:
        self._address, self._topic, self._folder = address, topic, folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start another one."""
        path = self._folder / f"member-{len(self._processes)}"
        command = ["-m", "demo.group_member", self._address, GROUP, self._topic, str(path)]
        self._processes.append(subprocess.Popen([sys.executable, *command]))

    def kill(self) -> None:
        """End the first one as a crash would."""
        self._processes[0].kill()
        self._processes[0].wait()

    def check(self) -> None:
        """Check that the others run.

        Raises:
            RuntimeError: one has ended.
        """
        for number, process in enumerate(self._processes):
            if number and process.poll() is not None:
                raise RuntimeError(f"member {number} ended with {process.returncode}")

    def stop(self) -> None:
        """Let all of them leave the group."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(QUIET_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def processed(self) -> list[Processed]:
        """Return what all have processed, in the order of time; a torn last line does not count."""
        found = []
        for path in self._folder.glob("member-*"):
            lines = path.read_text(encoding="ascii").split("\n")[:-1]
            found += [Processed(*map(int, line.split())) for line in lines]
        return sorted(found)


def run_group(address: str, topic: str, folder: Path) -> GroupRun:
    """Let the group read a topic to its end; print what happens.

    Raises:
        RuntimeError: it did not come to the end.
        MillraceError: the lag cannot be had.
    """
    members = Members(address, topic, folder)
    with SyncAdmin(address) as admin:
        ends = {partition: end.offset for (_, partition), end in admin.list_offsets(topic).items()}
        total = sum(ends.values())
        try:
            for _ in range(MEMBERS):
                members.start()
            left = _wait(admin, topic, members, total, until=total * 2 // 3)
            members.kill()
            members.start()
            killed_at = time.monotonic()
            print(f"group    {MEMBERS} members; kill -9 of one, and one more, at a lag of {left:,}")
            _wait(admin, topic, members, total, until=0)
            print(f"group    lag 0, {time.monotonic() - killed_at:.1f} s after that")
        finally:
            members.stop()
    return GroupRun(ends, members.processed())


def _wait(admin: SyncAdmin, topic: str, members: Members, total: int, *, until: int) -> int:
    """Return the lag once it is that small."""
    started = moved_at = time.monotonic()
    before = total
    with Progress(f"group {GROUP}", total) as progress:
        while (left := _lag(admin, topic, total)) > until:
            members.check()
            now = time.monotonic()
            progress.update(total - left, Transfer(records=total - left, seconds=now - started))
            if left != before:
                before, moved_at = left, now
            if now - moved_at > QUIET_SECONDS_MAX:
                raise RuntimeError(f"the group stands still, with a lag of {left:,} records")
            time.sleep(POLL_SECONDS)
    return left


def _lag(admin: SyncAdmin, topic: str, total: int) -> int:
    """Return how many records the group has to read; what is not committed counts whole."""
    group = admin.describe_group(GROUP)
    if group is None:
        return total
    lags = admin.describe_lags(group.positions).values()
    read = sum(lag.position for lag in lags if isinstance(lag, Lag))
    return total - read


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
