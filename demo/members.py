"""The members of a group, each a process of its own, and how far the group has come."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from millrace.cli.console.measures import Transfer
from millrace.cli.console.progress import Progress
from millrace.client import Lag, SyncAdmin

QUIET_SECONDS_MAX: Final = 60.0
_POLL_SECONDS: Final = 0.1


class Members:
    """The members' processes.

    Args:
        words: what a member's program is started with, by the member's number.
    """

    def __init__(self, words: Callable[[int], Sequence[str]]) -> None:
        self._words = words
        self._processes: list[subprocess.Popen[bytes]] = []
        self._killed: set[int] = set()

    def start(self) -> None:
        """Start another one."""
        words = self._words(len(self._processes))
        self._processes.append(subprocess.Popen([sys.executable, "-m", *words]))

    def kill(self, number: int) -> None:
        """End one as a crash would."""
        self._killed.add(number)
        self._processes[number].kill()
        self._processes[number].wait()

    def check(self) -> None:
        """Check that the others run.

        Raises:
            RuntimeError: one has ended.
        """
        for number, process in enumerate(self._processes):
            if number not in self._killed and process.poll() is not None:
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


def wait_for_lag(
    admin: SyncAdmin, group: str, topic: str, members: Members, *, until: float
) -> int:
    """Wait until a group has read and committed a topic up to a share of it; return the lag then.

    Raises:
        RuntimeError: a member has ended, or nothing moves.
        MillraceError: the lag cannot be had.
    """
    total: int = sum(end.offset for end in admin.list_offsets(topic).values())
    started = moved_at = time.monotonic()
    before: int = total
    with Progress(f"group {group}", total) as progress:
        while (left := _lag(admin, group, total)) > total * until:
            members.check()
            now = time.monotonic()
            progress.update(total - left, Transfer(records=total - left, seconds=now - started))
            if left != before:
                before, moved_at = left, now
            if now - moved_at > QUIET_SECONDS_MAX:
                raise RuntimeError(
                    f"the group {group} stands still, with a lag of {left:,} records"
                )
            time.sleep(_POLL_SECONDS)
    return left


def _lag(admin: SyncAdmin, name: str, total: int) -> int:
    """Return how many records the group has to read; what is not committed counts whole."""
    group = admin.describe_group(name)
    if group is None:
        return total
    lags = admin.describe_lags(group.positions).values()
    read = sum(lag.position for lag in lags if isinstance(lag, Lag))
    return total - read
