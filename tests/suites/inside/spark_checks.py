"""Spark's own source and sink for Kafka, by what its documentation shows, as checks.

They share a session; the class path with the source's jars comes with the command (`--jars`).
"""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.suites.inside.checks import Bench, expect, main, named

WAIT_S = 60
COUNT = 200
PARTITIONS = 2
NOON = 1_700_000_000_000


@functools.cache
def session() -> Any:
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def admin_of(bench: Bench) -> Any:
    return admin_at(bench.bootstrap)


@functools.cache
def admin_at(bootstrap: str) -> Any:
    return AdminClient({"bootstrap.servers": bootstrap})  # Kept: its requests end with it.


def create(bench: Bench, of: str = "", partitions: int = PARTITIONS) -> str:
    topic = f"{bench.topic}{of}"
    admin_of(bench).create_topics([NewTopic(topic, partitions, bench.replication)])[topic].result()
    return topic


def producer_of(bench: Bench, **settings: Any) -> Any:
    named_so = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": bench.bootstrap, **named_so})


def fill(bench: Bench, topic: str, numbers: range) -> None:
    producer = producer_of(bench)
    for number in numbers:
        producer.produce(
            topic, b"value-%d" % number, b"%d" % number, number % PARTITIONS,
            timestamp=NOON + number,
        )  # fmt: skip
    expect(producer.flush(WAIT_S), 0)


def reader(bench: Bench, topic: str, **options: str) -> Any:
    """Return the rows of a topic, as a batch."""
    read = session().read.format("kafka").option("kafka.bootstrap.servers", bench.bootstrap)
    return with_options(read, {"subscribe": topic, **options}).load()


def stream_of(bench: Bench, topic: str, **options: str) -> Any:
    read = session().readStream.format("kafka").option("kafka.bootstrap.servers", bench.bootstrap)
    chosen = {"subscribe": topic, "startingOffsets": "earliest", **options}
    return with_options(read, chosen).load()


def with_options(builder: Any, options: dict[str, str]) -> Any:
    for name, value in options.items():
        if value:
            builder = builder.option(name.replace("__", "."), value)
    return builder


def values_of(rows: Any) -> list[str]:
    found = rows.select(f.col("value").cast("string")).collect()
    return sorted((row.value for row in found), key=lambda value: int(value.rpartition("-")[2]))


def values(numbers: range) -> list[str]:
    return [f"value-{number}" for number in numbers]


@contextlib.contextmanager
def copying(
    bench: Bench, topic: str, copy: str, trigger: dict[str, Any], **options: str
) -> Iterator[Any]:
    """A query that copies a topic; its checkpoint stays for the next one of this check."""
    query = (
        stream_of(bench, topic, **options)
        .select("key", "value")
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", bench.bootstrap)
        .option("topic", copy)
        .option("checkpointLocation", str(bench.folder / f"{bench.prefix}-checkpoint"))
        .trigger(**trigger)
        .start()
    )
    try:
        yield query
    finally:
        query.stop()


def until(what: str, holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in time: {what}")
        time.sleep(0.2)


def check_write_and_read(bench: Bench) -> None:
    topic = create(bench)
    rows = session().range(COUNT).select(
        f.lit(topic).alias("topic"),
        f.col("id").cast("string").alias("key"),
        f.when(f.col("id") % 10 != 0, f.concat(f.lit("value-"), f.col("id"))).alias("value"),
        (f.col("id") % PARTITIONS).cast("int").alias("partition"),
        f.array(
            f.struct(f.lit("trace").alias("key"), f.lit(b"abc").alias("value")),
            f.struct(f.lit("none").alias("key"), f.lit(None).cast("binary").alias("value")),
        ).alias("headers"),
    )  # fmt: skip
    rows.write.format("kafka").option("kafka.bootstrap.servers", bench.bootstrap).save()
    found = {int(row.key): row for row in reader(bench, topic, includeHeaders="true").collect()}
    expect(sorted(found), list(range(COUNT)))
    for number, row in found.items():
        expect(row.value, b"value-%d" % number if number % 10 else None)
        expect((row.topic, row.partition), (topic, number % PARTITIONS))
        expect([(one.key, one.value) for one in row.headers], [("trace", b"abc"), ("none", None)])
        expect(row.timestampType, 0)
    expect({row.offset for row in found.values()}, set(range(COUNT // PARTITIONS)))


def check_compression(bench: Bench) -> None:
    topic = create(bench)
    for at, codec in enumerate(("gzip", "snappy", "lz4", "zstd")):
        numbers = session().range(at * COUNT, (at + 1) * COUNT)
        numbers.select(f.concat(f.lit("value-"), f.col("id")).alias("value")).write.format(
            "kafka"
        ).option("kafka.bootstrap.servers", bench.bootstrap).option(
            "kafka.compression.type", codec
        ).option("topic", topic).save()
    expect(values_of(reader(bench, topic)), values(range(4 * COUNT)))


def check_batch_offsets(bench: Bench) -> None:
    topic = create(bench)
    fill(bench, topic, range(COUNT))
    between = {
        "startingOffsets": json.dumps({topic: {"0": 10, "1": -2}}),
        "endingOffsets": json.dumps({topic: {"0": 20, "1": 5}}),
    }
    found = values_of(reader(bench, topic, **between))
    expect(found, values_of_both(range(10, 20), range(5)))
    by_time = {
        "startingOffsetsByTimestamp": json.dumps({topic: {"0": NOON + 100, "1": NOON + 100}}),
        "endingTimestamp": str(NOON + 150),
    }
    expect(values_of(reader(bench, topic, **by_time)), values(range(100, 150)))


def values_of_both(first: range, second: range) -> list[str]:
    """Return the values at these offsets of partition 0, and those at these of partition 1."""
    numbers = sorted([2 * offset for offset in first] + [2 * offset + 1 for offset in second])
    return [f"value-{number}" for number in numbers]


def check_batch_assign(bench: Bench) -> None:
    topic = create(bench)
    fill(bench, topic, range(COUNT))
    rows = reader(bench, topic, subscribe="", assign=json.dumps({topic: [1]}))
    expect(values_of(rows), values_of_both(range(0), range(COUNT // 2)))


def check_batch_min_partitions(bench: Bench) -> None:
    topic = create(bench)
    fill(bench, topic, range(COUNT))
    rows = reader(bench, topic, minPartitions="7")
    assert rows.rdd.getNumPartitions() >= 7
    expect(values_of(rows), values(range(COUNT)))


def check_batch_times(bench: Bench) -> None:
    topic = create(bench)
    fill(bench, topic, range(COUNT))
    rows = reader(bench, topic).filter(f.col("key") == b"7").collect()
    expect([row.timestamp.astimezone(UTC) for row in rows],
        [datetime.fromtimestamp((NOON + 7) / 1000, UTC)])  # fmt: skip


def check_stream_checkpoint(bench: Bench) -> None:
    topic, copy = create(bench), create(bench, "-copy")
    for begin in (0, COUNT):
        fill(bench, topic, range(begin, begin + COUNT))
        with copying(bench, topic, copy, {"availableNow": True}) as query:
            assert query.awaitTermination(WAIT_S)
        expect(values_of(reader(bench, copy)), values(range(begin + COUNT)))


def check_stream_running(bench: Bench) -> None:
    topic, copy = create(bench), create(bench, "-copy")
    for begin in (0, COUNT):
        with copying(bench, topic, copy, {"processingTime": "200 milliseconds"}) as query:
            fill(bench, topic, range(begin, begin + COUNT))
            until("all is copied", lambda: reader(bench, copy).count() >= begin + COUNT)  # noqa: B023
            metrics = query.lastProgress["sources"][0]["metrics"]
            expect(metrics["maxOffsetsBehindLatest"], "0")
    expect(values_of(reader(bench, copy)), values(range(2 * COUNT)))


def check_stream_bounded(bench: Bench) -> None:
    topic, copy = create(bench), create(bench, "-copy")
    fill(bench, topic, range(COUNT))
    now, bound = {"availableNow": True}, {"maxOffsetsPerTrigger": "50"}
    with copying(bench, topic, copy, now, **bound) as query:
        assert query.awaitTermination(WAIT_S)
        sizes = [progress["numInputRows"] for progress in query.recentProgress]
    expect([size for size in sizes if size], [50] * (COUNT // 50))
    expect(values_of(reader(bench, copy)), values(range(COUNT)))


def check_stream_pattern(bench: Bench) -> None:
    first, copy = create(bench, "-in-1"), create(bench, "-copy")
    fill(bench, first, range(COUNT))
    pattern = {"subscribe": "", "subscribePattern": f"{bench.topic}-in-.*"}
    more = {"kafka__metadata__max__age__ms": "500"}
    trigger = {"processingTime": "200 milliseconds"}
    with copying(bench, first, copy, trigger, **pattern, **more):
        until("the first is copied", lambda: reader(bench, copy).count() == COUNT)
        second = create(bench, "-in-2")  # It is found while the query runs.
        fill(bench, second, range(COUNT, 2 * COUNT))
        until("the second is copied", lambda: reader(bench, copy).count() == 2 * COUNT)
    expect(values_of(reader(bench, copy)), values(range(2 * COUNT)))


def check_stream_more_partitions(bench: Bench) -> None:
    from confluent_kafka.admin import NewPartitions

    topic, copy = create(bench, partitions=1), create(bench, "-copy")
    trigger = {"processingTime": "200 milliseconds"}
    with copying(bench, topic, copy, trigger, kafka__metadata__max__age__ms="500"):
        admin_of(bench).create_partitions([NewPartitions(topic, PARTITIONS)])[topic].result()
        fill(bench, topic, range(COUNT))
        until("all is copied", lambda: reader(bench, copy).count() >= COUNT)
    expect(values_of(reader(bench, copy)), values(range(COUNT)))


def transactions(bench: Bench, topic: str) -> None:
    """Write ten records in each of ten transactions, of which every second one is aborted."""
    producer = producer_of(bench, transactional_id=bench.group)
    producer.init_transactions(WAIT_S)
    for begin in range(0, 100, 10):
        producer.begin_transaction()
        for number in range(begin, begin + 10):
            producer.produce(topic, b"value-%d" % number, partition=number % PARTITIONS)
        producer.flush(WAIT_S)  # Else an abort drops them before they are sent.
        if begin % 20:
            producer.abort_transaction(WAIT_S)
        else:
            producer.commit_transaction(WAIT_S)


COMMITTED = [number for number in range(100) if number % 20 < 10]


def check_isolation(bench: Bench) -> None:
    topic = create(bench)
    transactions(bench, topic)
    committed = reader(bench, topic, kafka__isolation__level="read_committed")
    expect(values_of(committed), [f"value-{number}" for number in COMMITTED])
    expect(values_of(reader(bench, topic)), values(range(100)))


def check_stream_isolation(bench: Bench) -> None:
    topic, copy = create(bench), create(bench, "-copy")
    transactions(bench, topic)
    committed = {"kafka__isolation__level": "read_committed"}
    with copying(bench, topic, copy, {"availableNow": True}, **committed) as query:
        assert query.awaitTermination(WAIT_S)
    expect(values_of(reader(bench, copy)), [f"value-{number}" for number in COMMITTED])


def check_stream_counts(bench: Bench) -> None:
    topic, counts = create(bench), create(bench, "-counts")
    fill(bench, topic, range(COUNT))
    query = (
        stream_of(bench, topic)
        .groupBy((f.col("key").cast("string").cast("int") % 10).cast("string").alias("key"))
        .agg(f.count("*").cast("string").alias("value"))
        .writeStream.format("kafka")
        .outputMode("update")
        .option("kafka.bootstrap.servers", bench.bootstrap)
        .option("topic", counts)
        .option("checkpointLocation", str(bench.folder / f"{bench.prefix}-counts"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    found = {row.key: row.value for row in reader(bench, counts).collect()}
    expect(found, {b"%d" % key: b"%d" % (COUNT // 10) for key in range(10)})


def check_stream_data_loss(bench: Bench) -> None:
    topic, copy = create(bench), create(bench, "-copy")
    fill(bench, topic, range(COUNT))
    now = {"availableNow": True}
    with copying(bench, topic, copy, now) as query:
        assert query.awaitTermination(WAIT_S)
    fill(bench, topic, range(COUNT, 2 * COUNT))
    gone = [TopicPartition(topic, partition, COUNT // 2 + 50) for partition in range(PARTITIONS)]
    for future in admin_of(bench).delete_records(gone).values():
        future.result()
    with copying(bench, topic, copy, now) as query:
        try:
            query.awaitTermination(WAIT_S)
        except StreamingQueryException as error:
            expect("data may have been lost" in str(error) or error, True)
        else:
            raise AssertionError("records that were deleted were not missed")
    with copying(bench, topic, copy, now, failOnDataLoss="false") as query:
        assert query.awaitTermination(WAIT_S)
    left = [*range(COUNT), *range(COUNT + 100, 2 * COUNT)]
    expect(values_of(reader(bench, copy)), [f"value-{number}" for number in left])


def check_unknown_topic(bench: Bench) -> None:
    try:
        reader(bench, f"{bench.topic}-none").collect()
    except Exception as error:
        expect("UnknownTopicOrPartition" in str(error) or error, True)
    else:
        raise AssertionError("a topic that is not there was read")


if __name__ == "__main__":
    main(named(globals()))  # type: ignore[arg-type]
