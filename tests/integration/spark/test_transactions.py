"""Spark reads topics with transactions: what is decided, and no record of an aborted one."""

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.spark.written import wait_until_decided

from millrace.client import AbortedError, SyncProducer

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from millrace.spark.progress import QueryWatch, watch_queries

COMMITTED = [b"a0", b"a1", b"plain"]
ABORTED = [b"x0", b"x1", b"x2"]
OPEN = [b"o0", b"o1"]
NO_LAG = 'millrace_spark_lag_records{query="orders",topic="orders"} 0.0'
OPEN_AT = 8
"""Partition 0: two committed records and their marker, a plain one, three aborted ones and their
marker; then what is open. Partition 1 has one committed record, and its marker is the tail."""


class Orders:
    """A topic, and the producer of what is open in it."""

    def __init__(self, broker: RunningBroker) -> None:
        self.address = broker.address
        broker.create_topic("orders", 2)
        with self.producer("first") as producer:
            with producer.transaction() as t:
                for value in COMMITTED[:2]:
                    t.send("orders", value, partition=0)
                t.send("orders", b"other", partition=1)
            wait_until_decided(self.address, "orders")  # Its markers are before what follows.
            with SyncProducer(self.address) as plain:
                plain.send("orders", COMMITTED[2], partition=0)
            self.begin(producer, ABORTED)
            producer.abort_transaction()
            wait_until_decided(self.address, "orders")
        self.open = self.producer("second")
        self.begin(self.open, OPEN)

    def commit(self) -> None:
        """Commit what is open, and see that readers get it."""
        self.open.commit_transaction()
        wait_until_decided(self.address, "orders")

    def abort(self) -> None:
        """Abort what is open, and see that readers pass it."""
        self.open.abort_transaction()
        wait_until_decided(self.address, "orders")

    def producer(self, name: str) -> SyncProducer:
        # Spark's queries take their time meanwhile: by default a transaction ends after a minute.
        return SyncProducer(self.address, transactional_id=name, transaction_timeout_ms=300_000)

    def begin(self, producer: SyncProducer, values: list[bytes]) -> None:
        producer.begin_transaction()
        for value in values:
            producer.send("orders", value, partition=0)
        producer.flush()


@pytest.fixture
def orders(start_broker: StartBroker) -> Iterator[Orders]:
    made = Orders(start_broker())
    yield made
    with suppress(AbortedError):
        made.open.close()


def source(reader: Any, orders: Orders, **options: str) -> Any:
    chosen = {"subscribe": "orders", "startingOffsets": "earliest", **options}
    return (
        reader.format("millrace")
        .option("bootstrap.servers", orders.address)
        .options(**chosen)
        .load()
    )


def page(watch: QueryWatch) -> str:
    with urlopen(f"http://{watch.address}/metrics", timeout=10) as metrics:
        return str(metrics.read().decode())


def values(rows: Any, partition: int = 0) -> list[bytes]:
    """Return the values of one partition, in the order of its log."""
    found = rows.where(f"partition = {partition}").orderBy("offset").select("value").collect()
    return [bytes(row.value) for row in found]


def test_a_batch_reads_what_is_committed(spark: Any, orders: Orders) -> None:
    read = source(spark.read, orders, endingOffsets="latest")
    assert values(read) == COMMITTED
    assert values(read, 1) == [b"other"]
    assert values(source(spark.read, orders, minPartitions="7")) == COMMITTED
    everything = source(spark.read, orders, isolation="read_uncommitted")
    assert values(everything) == COMMITTED + ABORTED + OPEN
    within = json.dumps({"orders": {"0": 6, "1": 1}})
    assert values(source(spark.read, orders, endingOffsets=within)) == COMMITTED
    orders.commit()
    assert values(source(spark.read, orders)) == COMMITTED + OPEN


class Query:
    """A query that ends, and what its batches have said."""

    def __init__(self, spark: Any, orders: Orders, folder: Path, **options: str) -> None:
        self.spark, self.orders, self.folder, self.options = spark, orders, folder, options

    def run(self) -> list[Any]:
        """Read what is there; return the progress of each batch."""
        stream = (
            source(self.spark.readStream, self.orders, **self.options)
            .writeStream.format("parquet")
            .option("path", str(self.folder / "out"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        stream.awaitTermination()
        return [progress for progress in stream.recentProgress if is_batch(progress)]

    def values(self) -> list[bytes]:
        return values(self.spark.read.parquet(str(self.folder / "out")))


def is_batch(progress: Any) -> bool:
    (told,) = progress["sources"]
    return bool(told["startOffset"] != told["endOffset"])


def ends(progress: list[Any], partition: str = "0") -> list[int]:
    """Return where each batch ends."""
    return [json.loads(p["sources"][0]["endOffset"])["orders"][partition] for p in progress]


def test_a_query_that_ends_comes_to_a_tail_of_aborted_records_and_markers(
    spark: Any, orders: Orders, tmp_path: Path
) -> None:
    limits = {"maxOffsetsPerTrigger": "3"}
    query = Query(spark, orders, tmp_path, **limits)
    progress = query.run()
    assert query.values() == COMMITTED
    assert ends(progress)[-1] == OPEN_AT
    assert ends(progress, "1")[-1] == 2
    assert all(0 < end - start <= 3 for start, end in pairwise([0, *ends(progress)]))
    assert sum(batch["numInputRows"] for batch in progress) == len(COMMITTED) + 1
    assert {batch["numInputRows"] for batch in progress[-2:]} == {0}, "they read aborted records"
    latest = json.loads(progress[-1]["sources"][0]["latestOffset"])["orders"]
    assert latest == {"0": OPEN_AT, "1": 2}, "as far as nothing is open"
    assert query.run() == []
    orders.commit()
    assert [batch["numInputRows"] for batch in query.run()] == [len(OPEN)]
    assert query.values() == COMMITTED + OPEN


def test_a_query_of_uncommitted_records_reads_open_and_aborted_ones(
    spark: Any, orders: Orders, tmp_path: Path
) -> None:
    query = Query(spark, orders, tmp_path, isolation="read_uncommitted")
    (progress,) = query.run()
    assert query.values() == COMMITTED + ABORTED + OPEN
    assert ends([progress]) == [OPEN_AT + len(OPEN)]
    orders.abort()
    assert [batch["numInputRows"] for batch in query.run()] == [0]  # The marker.


def test_a_running_query_goes_on_with_what_is_committed_and_its_lag_leaves_markers_out(
    spark: Any, orders: Orders, tmp_path: Path
) -> None:
    query = (
        source(spark.readStream, orders, latestOffsetMaxWaitMs="100", maxBytesPerTrigger="100")
        .writeStream.format("memory")
        .queryName("orders")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    with watch_queries(spark, port=0) as watch:
        stream = query.start()
        try:
            stream.processAllAvailable()
            assert values(spark.table("orders")) == COMMITTED
            orders.commit()
            stream.processAllAvailable()
            assert values(spark.table("orders")) == COMMITTED + OPEN
            orders.begin(orders.open, ABORTED)
            orders.abort()
            stream.processAllAvailable()
            assert values(spark.table("orders")) == COMMITTED + OPEN
            wait_until(lambda: NO_LAG in page(watch), "nothing is left to read")
        finally:
            stream.stop()
