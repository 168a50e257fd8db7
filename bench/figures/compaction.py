"""Compacting 10 M records of 1 M keys, of 100 B and of 1 KB: MB/s over Kafka's cleaner."""

from bench.comparisons.compaction import clean_side_by_side, outcome
from bench.measure import Bench, Outcome, figure

LARGE_RECORDS = 2_000_000
LARGE_KEYS = 200_000
"""Of 1 KB: 10 M of them would take a disk longer to write than all else together."""


def measure(bench: Bench) -> Outcome:
    """Compact both logs on both sides, in turn."""
    small = clean_side_by_side(bench, 100)
    large = clean_side_by_side(bench, 1000, LARGE_RECORDS, LARGE_KEYS)
    return outcome(small, large)


if __name__ == "__main__":
    figure("compaction", unit="times", goal=">= 2", measure=measure)
