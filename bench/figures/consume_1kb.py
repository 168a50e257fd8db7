"""1 KB records with key and value as bytes: records/s over confluent-kafka-python."""

from functools import partial

from bench.comparisons.consume import compare_consumers
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "consume_1kb",
        unit="times",
        goal=">= 2",
        measure=partial(compare_consumers, record_bytes=1000, over_confluent=2),
    )
