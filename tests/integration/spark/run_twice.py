"""A query of which Spark runs the first task of each micro-batch twice, as it is slow.

Arguments: Spark's master, the brokers, and a folder, where each second attempt leaves a file.
It passes numbers on from `in` to `out`, shuffled by chance. In even micro-batches the second
attempt ends first, when the first one has written half of its rows; in odd ones it is the other way
round.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

SLOW_S = 6.0
SLOWER_S = 60.0
"""Spark kills an attempt when the other one has ended."""


def main() -> None:
    """Read what is there, then end."""
    master, brokers, folder = sys.argv[1:]

    def and_be_slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import time

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        batch, attempt = int(context.getLocalProperty("streaming.sql.batchId") or ""), 0
        if context.partitionId() == 0:
            attempt = context.attemptNumber()
            if attempt == 1:
                Path(folder, f"twice-{batch}").touch()
        for rows in batches:
            half = len(rows) // 2
            yield rows.slice(0, half)
            if context.partitionId() == 0 and not (batch % 2 == 0 and attempt == 1):
                time.sleep(SLOW_S if attempt == 0 and batch % 2 else SLOWER_S)
            yield rows.slice(half)

    spark = (
        SparkSession.builder.master(master)
        .appName("run_twice")
        .config("spark.executor.memory", "512m")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.minTaskRuntime", "1s")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.multiplier", "1.1")
        .getOrCreate()
    )
    query = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", brokers)
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 100)
        .load()
        .selectExpr("value", "rand() AS place")
        .repartition(3, "place")
        .select("value")
        .mapInArrow(and_be_slow, "value binary")
        .writeStream.format("millrace")
        .option("bootstrap.servers", brokers)
        .option("topic", "out")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
