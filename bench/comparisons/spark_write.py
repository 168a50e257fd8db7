"""Spark writes the same rows to either system, in one session on two cores.

Here exactly once, each write as one transaction: its sink for Kafka can write at least once only.

The rows, with keys, lie in Spark's memory. A run writes all of them to a new topic, over and over;
planning and start count. Before the clock starts, both write the rows once, and the topic must then
hold exactly those rows.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
from bench.comparisons.spark_read import read_options
from bench.loads.spec import Moved
from bench.measure import Bench, Outcome, Run, median_ratio, summaries
from bench.millrace_broker import running_millrace
from bench.peers.kafka import running_kafka
from bench.processes import LoadFailedError, usage
from bench.records import KEY_BYTES, keys_for, read_records, write_random_records
from bench.settings import KAFKA_TOPIC, MILLRACE_TOPIC, SPARK_SINKS
from bench.sides import GRACE_S, Broker, fresh_topic
from bench.spark import Spark, running_spark

PARTITIONS = 4
FILES = 4
ROWS = {100: 1_000_000, 1_000: 200_000}
"""Rows that one write writes, by the bytes of their values."""


def compare_spark_writers(bench: Bench) -> Outcome:
    """Compare batch writes of rows with values of 100 B, and of 1 KB."""
    with ExitStack() as stack:
        brokers: dict[str, Broker] = {
            "kafka": stack.enter_context(running_kafka(bench.directory / "kafka")),
            "millrace": stack.enter_context(running_millrace(bench.directory / "millrace")),
        }
        spark = stack.enter_context(
            running_spark(bench.directory / "spark", {"spark.master": "local[2]"})
        )
        sides: dict[str, Callable[[float], Run]] = {}
        for value_bytes, count in ROWS.items():
            rows = Rows.write(bench.directory, value_bytes, count)
            for name in ("millrace", "kafka"):
                side = _Side(spark=spark, broker=brokers[name], format=name, rows=rows)
                side.check()
                sides[f"{name}_{value_bytes}b"] = side
        runs = bench.interleave(sides)
    small, large = (
        median_ratio(runs[f"millrace_{value_bytes}b"], runs[f"kafka_{value_bytes}b"])
        for value_bytes in ROWS
    )
    return Outcome(
        values={"over Spark's Kafka sink, 100 B": small, "over Spark's Kafka sink, 1 KB": large},
        detail=summaries(runs),
    )


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows to write, as Parquet files, and the expected content of the topic."""

    folder: Path
    count: int
    row_bytes: int
    in_topic: dict[str, int]

    @staticmethod
    def write(directory: Path, value_bytes: int, count: int) -> "Rows":
        """Write so many random records as files."""
        folder = directory / f"rows-{value_bytes}"
        folder.mkdir()
        known = read_records(write_random_records(folder.with_suffix(".txt"), value_bytes))
        values = [known[row % len(known)] for row in range(count)]
        table = pa.table({"key": keys_for(values), "value": values})
        rows = -(-count // FILES)
        for number in range(FILES):
            pq.write_table(table.slice(number * rows, rows), folder / f"{number}.parquet")
        return Rows(
            folder=folder,
            count=count,
            row_bytes=value_bytes + KEY_BYTES,
            in_topic={
                "records": count,
                "bytes": count * value_bytes,
                "crc_sum": sum(map(crc32, values)),
            },
        )


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One sink in the session."""

    spark: Spark
    broker: Broker
    format: str
    rows: Rows

    def check(self) -> None:
        """Write the rows once, and compare the topic with them.

        Raises:
            LoadFailedError: they differ.
        """
        with fresh_topic(self.broker, PARTITIONS, self._topic_config()) as topic:
            self._write(topic, 0.001)
            counted = self.spark.do(
                "count",
                GRACE_S,
                format=self.format,
                options=read_options(self.format, self.broker, topic),
            )
        if counted != self.rows.in_topic:
            raise LoadFailedError(
                f"{self.format} has {counted}, and {self.rows.in_topic} was written"
            )

    def __call__(self, seconds: float) -> Run:
        """Write the rows for at least so many seconds."""
        with fresh_topic(self.broker, PARTITIONS, self._topic_config()) as topic:
            of_spark, of_broker = self.spark.usage(), usage(*self.broker.pids)
            answer = self._write(topic, seconds)
            records = answer["times"] * self.rows.count
            return Run(
                moved=Moved(
                    records=records,
                    bytes=records * self.rows.row_bytes,
                    seconds=answer["seconds"],
                ),
                client=self.spark.usage().since(of_spark),
                broker=usage(*self.broker.pids).since(of_broker),
            )

    def _write(self, topic: str, seconds: float) -> dict[str, Any]:
        return self.spark.do(
            "write",
            seconds + GRACE_S,
            format=self.format,
            options={
                "kafka.bootstrap.servers": self.broker.address,
                "topic": topic,
                **SPARK_SINKS[self.format],
            },
            folder=str(self.rows.folder),
            seconds=seconds,
        )

    def _topic_config(self) -> dict[str, str]:
        topics = MILLRACE_TOPIC if self.format == "millrace" else KAFKA_TOPIC
        return topics["replicated"]
