"""Spark's batch read of 2,000,000 records of 1000 B: rows/s over Spark's Kafka source."""

from functools import partial

from bench.comparisons.spark_read import compare_spark_readers
from bench.measure import figure

if __name__ == "__main__":
    figure(
        "spark_read_1kb",
        unit="times",
        goal=">= 1.3",
        measure=partial(
            compare_spark_readers, record_bytes=1000, records=2_000_000, over_kafka=1.3
        ),
    )
