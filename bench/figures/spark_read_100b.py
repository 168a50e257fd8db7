"""Spark's batch read of 10,000,000 records of 100 B: rows/s over Spark's Kafka source."""

from functools import partial

from bench.comparisons.spark_read import compare_spark_readers
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "spark_read_100b",
        unit="times",
        goal=">= 2",
        measure=partial(compare_spark_readers, record_bytes=100, records=10_000_000, over_kafka=2),
    )
