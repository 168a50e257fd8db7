"""Records flushed before their acknowledgement: records/s over Kafka with flush.messages=1."""

from functools import partial

from bench.comparisons.produce import compare_fsync
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "produce_fsync_1kb",
        unit="times",
        goal=">= 2",
        measure=partial(compare_fsync, record_bytes=1000, over_java=2),
    )
