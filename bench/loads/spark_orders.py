"""A Spark session that executes orders, so that all sides are measured in one warm JVM.

`python -m bench.loads.spark_orders '{"spark.master": "local[2]", ...}'` reads one order a line, as
JSON with `what`, and prints its answer as a line that begins with `ANSWER`. It ends at the end of
its input.

Orders: `write` rows to a topic, and `read` a topic in batches, over and over; `stream` a topic's
present content, as one query that ends; `count` a topic's records, by reading every value; `follow`
a topic until the order `stop`, which answers with the time of each micro-batch; `sent`: the due
times of a topic's records, from their values (`bench.loads.paced`); `copy` the present content of a
topic to another one, by a query that ends: the time of each micro-batch.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from bench.loads.paced import STAMP_BYTES
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery

ANSWER = "ANSWER "
Order = dict[str, Any]


class Orders:
    """The orders of a session; each method takes an order and returns its answer."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._query: StreamingQuery | None = None
        self._rows: dict[str, DataFrame] = {}

    def count(self, order: Order) -> dict[str, Any]:
        """Return the number of records, the bytes of their values, and the sum of their CRC-32s."""
        values = self._batch(order)
        row = values.agg(f.count("*"), f.sum(f.length("value")), f.sum(f.crc32("value"))).first()
        assert row is not None
        return {"records": row[0], "bytes": row[1], "crc_sum": row[2]}

    def read(self, order: Order) -> dict[str, Any]:
        """Read all columns of the topic until the time is over; planning and start count."""
        reads = 0
        started = time.perf_counter()
        while (seconds := time.perf_counter() - started) < order["seconds"]:
            self._batch(order).write.format("noop").mode("overwrite").save()
            reads += 1
        return {"times": reads, "seconds": seconds}

    def write(self, order: Order) -> dict[str, Any]:
        """Write the rows of a folder to the topic until the time is over; they are in memory."""
        if order["folder"] not in self._rows:
            rows = self._spark.read.parquet(order["folder"]).cache()
            rows.count()
            self._rows[order["folder"]] = rows
        writer = (
            self._rows[order["folder"]]
            .write.format(order["format"])
            .options(**order["options"])
            .mode("append")
        )
        writes = 0
        started = time.perf_counter()
        while (seconds := time.perf_counter() - started) < order["seconds"]:
            writer.save()
            writes += 1
        return {"times": writes, "seconds": seconds}

    def stream(self, order: Order) -> dict[str, Any]:
        """Stream the present content, as one query that ends, until the time is over."""
        reads = 0
        started = time.perf_counter()
        while (seconds := time.perf_counter() - started) < order["seconds"]:
            query = self._to_noop(order, {"availableNow": True})
            query.awaitTermination()
            reads += 1
        return {"times": reads, "seconds": seconds}

    def copy(self, order: Order) -> dict[str, Any]:
        """Copy the present content to a topic; return the time of each micro-batch and its rows."""
        stream = self._spark.readStream.format(order["format"]).options(**order["options"]).load()
        query = (
            stream.select("key", "value")
            .repartition(order["tasks"])
            .writeStream.format(order["format"])
            .options(**order["sink"])
            .option("checkpointLocation", tempfile.mkdtemp(dir=order["directory"]))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        told = [json.loads(progress.json) for progress in query.recentProgress]
        return {
            "rows": [each["numInputRows"] for each in told],
            "ms": [each["durationMs"]["triggerExecution"] for each in told],
        }

    def follow(self, order: Order) -> dict[str, Any]:
        """Begin a query that follows the topic."""
        self._query = self._to_noop(order, {"processingTime": "0 seconds"})
        return {}

    def stop(self, _: Order) -> dict[str, Any]:
        """End it when it has read all; return each micro-batch's end offsets and time."""
        assert self._query is not None
        self._query.processAllAvailable()
        self._query.stop()
        batches = []
        for progress in self._query.recentProgress:
            told = json.loads(progress.json)
            if not told["numInputRows"]:
                continue
            began = datetime.fromisoformat(told["timestamp"]).timestamp() * 1000
            end = told["sources"][0]["endOffset"]
            batches.append(
                {
                    "done_ms": began + told["durationMs"]["triggerExecution"],
                    "rows": told["numInputRows"],
                    "took_ms": told["durationMs"],
                    "end": json.loads(end) if isinstance(end, str) else end,
                }
            )
        return {"batches": batches}

    def sent(self, order: Order) -> dict[str, Any]:
        """Return partition, offset and due time of every record, as three columns."""
        table = self._batch(order).select("partition", "offset", "value").toArrow()
        to_wall_ms = (time.time() - time.monotonic()) * 1000
        due = [
            int.from_bytes(value[:STAMP_BYTES], "little") / 1e6 + to_wall_ms
            for value in table["value"].to_pylist()
        ]
        return {
            "partitions": table["partition"].to_pylist(),
            "offsets": table["offset"].to_pylist(),
            "due_ms": due,
        }

    def _batch(self, order: Order) -> DataFrame:
        return self._spark.read.format(order["format"]).options(**order["options"]).load()

    def _to_noop(self, order: Order, trigger: dict[str, Any]) -> StreamingQuery:
        stream = self._spark.readStream.format(order["format"]).options(**order["options"]).load()
        with_checkpoint = stream.writeStream.format("noop").option(
            "checkpointLocation", tempfile.mkdtemp(dir=order["directory"])
        )
        return with_checkpoint.trigger(**trigger).start()


def main() -> None:
    """Serve until the input ends."""
    builder = SparkSession.builder
    for name, value in json.loads(sys.argv[1]).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    orders = Orders(spark)
    known: dict[str, Callable[[Order], dict[str, Any]]] = {
        order.__name__: order
        for order in (
            orders.count, orders.write, orders.read, orders.stream, orders.follow, orders.stop,
            orders.sent, orders.copy,
        )
    }  # fmt: skip
    print(ANSWER + "{}", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(ANSWER + json.dumps(known[order["what"]](order)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
