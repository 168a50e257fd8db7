"""Batch API, 1 KB records, `acks=all`: records/s over confluent-kafka-python on Kafka."""

from functools import partial

from bench.comparisons.produce import compare_batches
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "produce_1kb",
        unit="times",
        goal=">= 2, and >= 3 over Java's perf tool",
        measure=partial(compare_batches, record_bytes=1000, over_confluent=2, over_java=3),
    )
