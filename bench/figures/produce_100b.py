"""Batch API, 100 B records, `acks=all`: records/s over confluent-kafka-python on Kafka."""

from functools import partial

from bench.comparisons.produce import compare_batches
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "produce_100b",
        unit="times",
        goal=">= 3, and >= 1 over Java's perf tool",
        measure=partial(compare_batches, record_bytes=100, over_confluent=3, over_java=1),
    )
