"""Spark reads the same keyed records from either system, in one session on two cores.

A batch read takes all columns to Spark's `noop` sink; planning and start count. `detail` has a
streaming query over the same backlog, which ends when it has read all. Before the clock starts,
both count the topic's records and the bytes of its values, which must be those that were written.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from bench.comparisons.pair import running_pair
from bench.loads.spec import Moved
from bench.measure import Bench, Outcome, Run, median_ratio, summaries
from bench.processes import LoadFailedError, usage
from bench.records import KEY_BYTES, read_records
from bench.settings import SPARK_SETTINGS
from bench.sides import GRACE_S, Broker
from bench.spark import Spark, running_spark

TOPIC = "filled"
PARTITIONS = 4
QUICK_PART = 10
"""A quick look reads fewer records, by this factor."""


def compare_spark_readers(bench: Bench, record_bytes: int, *, records: int) -> Outcome:
    """Compare batch reads of a topic of so many records."""
    wanted = records if bench.is_full else records // QUICK_PART
    with (
        running_pair(bench.directory, record_bytes) as pair,
        running_spark(bench.directory / "spark", {"spark.master": "local[2]"}) as spark,
    ):
        filled = pair.fill(TOPIC, PARTITIONS, wanted)
        sides: dict[str, Callable[[float], Run]] = {}
        for name, broker in (("millrace", pair.millrace), ("kafka", pair.kafka)):
            side = _Side(
                spark=spark,
                broker=broker,
                format=name,
                options=read_options(name, broker, TOPIC),
                record_bytes=record_bytes + KEY_BYTES,
                directory=bench.directory,
                what="read",
                records=0,
            )
            counted = side.count()
            check_counted(counted, filled[name], pair.records)
            sides[name] = replace(side, records=counted["records"])
            sides[f"{name}_stream"] = replace(side, records=counted["records"], what="stream")
        runs = bench.interleave(sides)
    return Outcome(
        values={"over Spark's Kafka source": median_ratio(runs["millrace"], runs["kafka"])},
        detail={
            "stream_over_kafka": median_ratio(runs["millrace_stream"], runs["kafka_stream"]),
            "records": filled,
            **summaries(runs),
        },
    )


def read_options(name: str, broker: Broker, topic: str) -> dict[str, Any]:
    """Return the options by which Spark reads a topic of one of the systems from its beginning."""
    return {
        "kafka.bootstrap.servers": broker.address,
        "subscribe": topic,
        "startingOffsets": "earliest",
        **SPARK_SETTINGS[name],
    }


def check_counted(counted: dict[str, Any], filled: int, records_file: Path) -> None:
    """Compare what Spark counted in a filled topic with what its producer wrote.

    The producer wrote the first record before its clock, and then all of them, over and over.

    Raises:
        LoadFailedError: they differ.
    """
    values = read_records(records_file)
    checksums = [crc32(value) for value in values]
    times, more = divmod(filled, len(values))
    wanted = {
        "records": filled + 1,
        "bytes": (filled + 1) * len(values[0]),
        "crc_sum": checksums[0] + times * sum(checksums) + sum(checksums[:more]),
    }
    if counted != wanted:
        raise LoadFailedError(f"Spark has read {counted}, and {wanted} was written")


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One source in the session."""

    spark: Spark
    broker: Broker
    format: str
    options: dict[str, Any]
    record_bytes: int
    directory: Path
    what: str
    """`read` or `stream` (`bench.loads.spark_orders`)."""
    records: int
    """Number of records of one read."""

    def count(self) -> dict[str, Any]:
        """Return what is in the topic."""
        return self.spark.do("count", GRACE_S, format=self.format, options=self.options)

    def __call__(self, seconds: float) -> Run:
        """Read the topic for at least so many seconds."""
        of_spark, of_broker = self.spark.usage(), usage(*self.broker.pids)
        answer = self.spark.do(
            self.what,
            seconds + GRACE_S,
            format=self.format,
            options=self.options,
            seconds=seconds,
            directory=str(self.directory),
        )
        records = answer["times"] * self.records
        return Run(
            moved=Moved(
                records=records, bytes=records * self.record_bytes, seconds=answer["seconds"]
            ),
            client=self.spark.usage().since(of_spark),
            broker=usage(*self.broker.pids).since(of_broker),
        )
