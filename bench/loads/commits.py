"""Transactions one after another at a steady pace, and when a reader sees each of them.

Each has one record a partition, with its number, and they are acknowledged before it commits. So
the time from the beginning of the commit to the last of its records at the reader is that of the
decision, of its markers, and of the fetch. All processes of a machine share the monotonic clock.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.loads.paced import percentiles
from bench.loads.spec import Load, Moved

WARM_UP_COMMITS = 20
_NUMBER_BYTES = 8


def commit_count(load: Load) -> int:
    """Return how many transactions a load commits, those of the warm-up included."""
    return WARM_UP_COMMITS + round(load.seconds * load.rate)


def due_commits(load: Load) -> Iterator[bytes]:
    """Yield the records' value of each transaction when it is due."""
    started = time.monotonic()
    for number in range(commit_count(load)):
        ahead = started + number / load.rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        yield number.to_bytes(_NUMBER_BYTES, "little")


def committed(load: Load, commits_ns: Sequence[int]) -> Moved:
    """Return what the producer did: when it began to commit each transaction."""
    return Moved(
        records=len(commits_ns) * load.partitions,
        bytes=0,
        seconds=load.seconds,
        detail={"commits_ns": list(commits_ns)},
    )


def receive(load: Load, poll: Callable[[], Sequence[bytes]]) -> Moved:
    """Receive all records, and report when each transaction was there.

    Args:
        load: the load, as the producer got it.
        poll: returns the received values; none if none came in time.
    """
    left = Counter(dict.fromkeys(range(commit_count(load)), load.partitions))
    seen_ns = [0] * len(left)
    while left:
        values = poll()
        if not values:
            raise SystemExit(f"{len(left)} transactions did not come")
        now = time.monotonic_ns()
        for value in values:
            number = int.from_bytes(value, "little")
            left[number] -= 1
            if not left[number]:
                del left[number]
                seen_ns[number] = now
    return Moved(
        records=len(seen_ns) * load.partitions,
        bytes=0,
        seconds=load.seconds,
        detail={"seen_ns": seen_ns},
    )


def until_seen(produced: Mapping[str, Any], consumed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the percentiles of the time from a commit to its reader, in milliseconds."""
    pairs = zip(produced["commits_ns"], consumed["seen_ns"], strict=True)
    took = [(seen - begun) / 1e6 for begun, seen in pairs]
    return percentiles(took[WARM_UP_COMMITS:])
