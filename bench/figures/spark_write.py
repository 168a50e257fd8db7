"""Spark's batch write of rows with keys: rows/s over Spark's Kafka sink, both at least once."""

from functools import partial

from bench.comparisons.spark_write import compare_spark_writers
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "spark_write",
        unit="times",
        goal=">= 1, at 100 B and at 1 KB",
        measure=partial(compare_spark_writers, over_kafka=1),
    )
