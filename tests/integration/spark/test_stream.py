"""A stream is read once, whatever restarts: each query's output is compared with what was sent."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import SyncAdmin, SyncProducer

pytestmark = pytest.mark.timeout(300)  # Several queries on a machine that is busy.


def send(broker: RunningBroker, topic: str, numbers: Iterable[int], partitions: int = 2) -> None:
    with SyncProducer(broker.address) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=number % partitions)


class Query:
    """A query that writes what it reads to Parquet, with a checkpoint of its own."""

    def __init__(self, spark: Any, broker: RunningBroker, folder: Path, **options: str) -> None:
        self.spark, self.broker, self.folder, self.options = spark, broker, folder, options

    def run(self, **others: str) -> list[Any]:
        """Read what is there; return the progress of each batch that read something."""
        stream = (
            self.spark.readStream.format("millrace")
            .option("bootstrap.servers", self.broker.address)
            .options(**{"startingOffsets": "earliest", **self.options, **others})
            .load()
            .writeStream.format("parquet")
            .option("path", str(self.folder / "out"))
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        stream.awaitTermination()
        return [progress for progress in stream.recentProgress if progress["numInputRows"]]

    def numbers(self) -> list[int]:
        """Return what it has written."""
        rows = self.spark.read.parquet(str(self.folder / "out")).select("value").collect()
        return sorted(int(row.value) for row in rows)

    def offsets(self, batch: int) -> dict[str, Any]:
        """Return what the checkpoint says where a batch ends."""
        lines = (self.folder / "checkpoint" / "offsets" / str(batch)).read_text().splitlines()
        found: dict[str, Any] = json.loads(lines[-1])
        return found


@pytest.fixture
def broker(start_broker: StartBroker) -> RunningBroker:
    return start_broker()


def create(broker: RunningBroker, topic: str, partitions: int = 2) -> None:
    broker.create_topic(topic, partitions)


def uncommit(folder: Path, batch: int) -> None:
    """Leave a checkpoint as after a crash in the middle of a batch: planned, never committed."""
    (folder / "checkpoint" / "commits" / f"{batch}").unlink()
    (folder / "checkpoint" / "commits" / f".{batch}.crc").unlink(missing_ok=True)


def test_what_is_there_is_read_in_limited_batches_and_a_restart_goes_on(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    create(broker, "clicks")
    send(broker, "clicks", range(1000))
    query = Query(spark, broker, tmp_path, subscribe="clicks", maxOffsetsPerTrigger="400")
    assert [batch["numInputRows"] for batch in query.run()] == [400, 400, 200]
    assert query.numbers() == list(range(1000))
    end = query.offsets(2)
    assert end["clicks"] == {"0": 500, "1": 500}
    assert end["__meta"].keys() == {"v", "ids", "epoch"}
    assert query.run() == []  # Nothing new, nothing twice.
    send(broker, "clicks", range(1000, 1300))
    progress = query.run()
    assert [batch["numInputRows"] for batch in progress] == [300]
    assert progress[0]["sources"][0]["latestOffset"]
    assert query.numbers() == list(range(1300))


def test_a_batch_that_was_planned_before_a_crash_is_read_again_to_the_same_end(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    create(broker, "clicks")
    send(broker, "clicks", range(100))
    query = Query(spark, broker, tmp_path, subscribe="clicks")
    query.run()
    send(broker, "clicks", range(100, 200))
    query.run()
    uncommit(tmp_path, 1)
    send(broker, "clicks", range(200, 300))
    query.run()
    assert query.offsets(1)["clicks"] == {"0": 100, "1": 100}
    assert query.numbers() == list(range(300))


def test_partitions_that_come_are_read_from_their_beginning(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    create(broker, "clicks-a")
    send(broker, "clicks-a", range(10))
    query = Query(spark, broker, tmp_path, subscribePattern="clicks-.*")
    query.run()
    with SyncAdmin(broker.address) as admin:
        admin.alter_topic("clicks-a", partitions=3)
        admin.create_topic("clicks-b", 1)
    send(broker, "clicks-a", [11], partitions=3)
    send(broker, "clicks-b", [12], partitions=1)
    query.run()
    assert query.numbers() == [*range(10), 11, 12]


def test_a_running_query_reads_what_comes_and_makes_no_batch_of_nothing(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    create(broker, "clicks")
    send(broker, "clicks", range(10))
    stream = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .option("latestOffsetMaxWaitMs", "100")
        .load()
        .writeStream.format("memory")
        .queryName("clicks")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        stream.processAllAvailable()
        send(broker, "clicks", range(10, 20))
        stream.processAllAvailable()
        batches = stream.lastProgress["batchId"]
        stream.processAllAvailable()
        stream.awaitTermination(2)
        offsets = [
            path for path in (tmp_path / "checkpoint" / "offsets").iterdir() if path.name.isdigit()
        ]
        assert len(offsets) <= batches + 1 <= 3
        assert spark.table("clicks").count() == 20
    finally:
        stream.stop()


def test_a_topic_that_was_made_anew_is_refused_or_read_from_its_beginning(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    create(broker, "clicks")
    send(broker, "clicks", range(10))
    query = Query(spark, broker, tmp_path, subscribe="clicks")
    query.run()
    with SyncAdmin(broker.address) as admin:
        admin.delete_topic("clicks")
    create(broker, "clicks")
    send(broker, "clicks", range(100, 130))
    with pytest.raises(Exception, match="was deleted and created again"):
        query.run()
    assert query.numbers() == list(range(10))
    query.run(failOnDataLoss="false")
    assert query.numbers() == [*range(10), *range(100, 130)]


def test_a_named_topic_that_is_gone_is_refused_or_left_out(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    for topic, numbers in (("clicks", range(10)), ("views", range(10, 15))):
        create(broker, topic)
        send(broker, topic, numbers)
    query = Query(spark, broker, tmp_path, subscribe="clicks,views")
    query.run()
    with SyncAdmin(broker.address) as admin:
        admin.delete_topic("views")
    send(broker, "clicks", range(15, 20))
    with pytest.raises(Exception, match="there is no topic views"):
        query.run()
    query.run(failOnDataLoss="false")
    assert query.numbers() == list(range(20))
    create(broker, "views")
    send(broker, "views", range(20, 25))
    query.run()
    assert query.numbers() == list(range(25))


def test_what_retention_has_passed_is_refused_or_left_out(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker({"storage.retention_check_interval_ms": 50})
    broker.create_topic("clicks", 1, config={"segment.bytes": str(1 << 20)})
    send(broker, "clicks", range(10), partitions=1)
    query = Query(spark, broker, tmp_path, subscribe="clicks")
    query.run()
    # Uncompressed, so that how many records a batch takes decides nothing about the log's size.
    with SyncProducer(broker.address, compression="none") as producer:
        for number in range(10, 4000):
            producer.send("clicks", b"%01000d" % number)
    with SyncAdmin(broker.address) as admin:
        admin.alter_topic("clicks", set_config={"retention.bytes": str(1 << 20)})

        def begins() -> int:
            return admin.list_offsets("clicks", "beginning")["clicks", 0].offset

        wait_until(lambda: begins() > 10, "retention has deleted what was not read")
        with pytest.raises(Exception, match=r"clicks-0: the log begins at \d+, after 10"):
            query.run()
        assert query.numbers() == list(range(10))
        query.run(failOnDataLoss="false")
    numbers = query.numbers()
    assert numbers[:10] == list(range(10))
    assert numbers[10] > 10
    assert numbers[10:] == list(range(numbers[10], 4000))


def test_a_checkpoint_of_another_topic_is_refused(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    create(broker, "clicks")
    create(broker, "views")
    send(broker, "clicks", range(10))
    send(broker, "views", range(20))
    Query(spark, broker, tmp_path, subscribe="clicks").run()
    for ended in (True, False):
        if not ended:
            uncommit(tmp_path, 0)
        with pytest.raises(Exception, match=r"the checkpoint is of \['clicks'\]"):
            Query(spark, broker, tmp_path, subscribe="views").run()


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}])
def test_options_that_a_stream_cannot_have_are_told_when_it_starts(
    spark: Any, shared_broker: RunningBroker, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    stream = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", shared_broker.address)
        .option("subscribe", "clicks")
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    with pytest.raises(Exception, match="terminated with exception") as raised:
        stream.trigger(**trigger).start().awaitTermination(60)
    told = str(raised.value)
    assert "InvalidOptionError: a stream begins at the latest offset by default, which" in told
    assert "UnboundLocalError" not in told


def test_spark_still_has_no_real_time_mode_for_sources_in_python(
    spark: Any, shared_broker: RunningBroker, topic_name: str, tmp_path: Path
) -> None:
    """When it has, docs/spark.md is to be corrected, and the source to be made for it."""
    shared_broker.create_topic(topic_name, 1)
    stream = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", shared_broker.address)
        .option("subscribe", topic_name)
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.format("console")
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path))
        .trigger(realTime="5 seconds")
    )
    with pytest.raises(Exception, match="INPUT_STREAM_NOT_SUPPORTED") as raised:
        stream.start().awaitTermination(60)
    assert "PythonMicroBatchStream" in str(raised.value)
