"""100 B records with key and value as bytes: records/s over confluent-kafka-python."""

from functools import partial

from bench.comparisons.consume import compare_consumers
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "consume_100b",
        unit="times",
        goal=">= 3",
        measure=partial(compare_consumers, record_bytes=100, over_confluent=3),
    )
