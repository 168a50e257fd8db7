"""Waiting for reassignments, with a bar for all of them and one for each replica that is copied."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from millrace.cli.console.failures import ExitCode, Failure
from millrace.cli.console.output import say
from millrace.cli.console.progress import Bars
from millrace.cli.moves.moves import Copy, under_way, wait_until
from millrace.cli.moves.reassignment_queue import ReassignmentQueue
from millrace.core.errors import ConnectionFailedError, RetriableError
from millrace.core.topics import PartitionName
from millrace.core.words import count, listed, shown

if TYPE_CHECKING:
    from millrace.client import SyncAdmin

_ALL = "all"
_SILENCE_SECONDS_MAX = 120.0
"""Time without an answer after which `apply` gives up: brokers restart, controllers change."""
_SAID_EVERY_SECONDS = 60.0
"""Pause between progress messages when there are no bars."""


def work_through(admin: "SyncAdmin", waves: ReassignmentQueue, timeout_s: float) -> None:
    """Work until all is done or the time is up; brokers may restart meanwhile."""
    heard_at: float | None = None
    said_at = time.monotonic()
    with Bars() as bars:

        def look() -> bool:
            nonlocal heard_at, said_at
            try:
                topics = waves.go_on(admin)
                if bars.are_seen:
                    _show_waves(bars, waves, under_way(admin, topics, with_progress=True))
            except (RetriableError, ConnectionFailedError):
                if heard_at is None or time.monotonic() - heard_at > _SILENCE_SECONDS_MAX:
                    raise
                return False
            heard_at = time.monotonic()
            if not bars.are_seen and heard_at - said_at > _SAID_EVERY_SECONDS:
                said_at = heard_at
                say(so_far(waves))
            return waves.is_over

        wait_until(look, timeout_s)


def _show_waves(
    bars: Bars, waves: ReassignmentQueue, found: Mapping[PartitionName, list[Copy]]
) -> None:
    moving = {place: found[place] for place in waves.under_way if place in found}
    shares = (
        sum(copy.share for copy in copies) / len(copies) for copies in moving.values() if copies
    )
    over = len(waves.done) + len(waves.refused)
    _show(bars, (over + sum(shares)) / max(waves.total, 1), so_far(waves), moving)


def so_far(waves: ReassignmentQueue) -> str:
    """Return how much of a plan is done, under way, not begun and refused."""
    parts = [f"{len(waves.done):,} of {count(waves.total, 'partition')} done"]
    if waves.under_way:
        parts.append(f"{len(waves.under_way):,} under way")
    if waves.waiting:
        parts.append(f"{len(waves.waiting):,} not begun")
    if waves.refused:
        parts.append(f"{len(waves.refused):,} refused")
    return ", ".join(parts)


def wait_for_all(admin: "SyncAdmin", timeout_s: float) -> None:
    """Wait until no reassignment is left, and show the progress of each.

    Raises:
        Failure: something still is when the time is over.
    """
    left: dict[PartitionName, list[Copy]] = {}
    with Bars() as bars:
        total = 0

        def look() -> bool:
            nonlocal left, total
            topics = admin.describe_topics().values()
            left = under_way(admin, topics, with_progress=bars.are_seen)
            total = max(total, len(left))
            if left:
                _show(bars, 1 - len(left) / total, f"{len(left):,} of {total:,} to go", left)
            return not left

        is_done = wait_until(look, timeout_s)
    if not is_done:
        raise Failure(
            f"{count(len(left), 'partition')} still being reassigned after {timeout_s:g} s: "
            f"{listed(left)}",
            "they go on: `millrace reassign status --wait`, or `millrace reassign cancel`",
            exit_code=ExitCode.TIMED_OUT,
        )


def _show(bars: Bars, share: float, note: str, moving: Mapping[PartitionName, list[Copy]]) -> None:
    """Show a bar for all, and one for each replica that is copied."""
    bars.show(_ALL, share, note)
    named = {
        f"{shown(copy.place)} to {copy.broker_id}": copy
        for copies in moving.values()
        for copy in copies
    }
    bars.keep({_ALL, *named})
    for name, copy in named.items():
        records = f"{copy.copied:,} of {count(copy.total, 'record')}"
        bars.show(name, copy.share, "in sync" if copy.is_in_sync else records)
