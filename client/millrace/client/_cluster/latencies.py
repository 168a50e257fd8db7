"""Latencies that a client measures: a histogram of requests, batches or calls, never of records.

The client's loop adds to it, and any thread may read it, such as that of a scrape. It knows nothing
of the library that shows it.
"""

from bisect import bisect_left
from typing import Final, NamedTuple

from millrace.runtime import host

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
"""Upper bounds of the buckets, in seconds; the last bucket has none."""


class Example(NamedTuple):
    """A latency whose trace is recorded."""

    trace_id: str
    """32 hexadecimal digits."""
    seconds: float
    at_s: float
    """Seconds UTC since 1970."""


class Latencies:
    """A histogram of seconds.

    Attributes:
        counts: of each bucket, not cumulative.
        sum_s: of all latencies, in seconds.
        examples: the latest one of each bucket.
    """

    __slots__ = ("counts", "examples", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0
        self.examples: list[Example | None] = [None] * len(self.counts)

    def observe(self, seconds: float) -> None:
        """Add a latency."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def mark(self, seconds: float, trace_id: str) -> None:
        """Keep a latency as an example of its bucket; it is not added."""
        now = host.current.wall_ns() / 1e9
        self.examples[bisect_left(BOUNDS_S, seconds)] = Example(trace_id, seconds, now)
