"""What Spark writes is in the topics: every row with all that it has.

`test_sink_transactions` has how often.
"""

import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.spark.copying import Copying
from tests.integration.spark.written import create, records, write

from millrace.core.client.producer.murmur2 import partition_of

pytestmark = pytest.mark.timeout(300)  # Several queries on a machine that is busy.
COUNT = 5000


def test_rows_have_their_keys_headers_times_partitions_and_topics(
    spark: Any, shared_broker: RunningBroker, topic_name: str
) -> None:
    one, two = f"{topic_name}-one", f"{topic_name}-two"
    create(shared_broker, one, two, retention_ms="-1")  # The records are of 2023.
    frame = (
        spark.range(COUNT, numPartitions=3)
        .selectExpr("id", "CAST(CAST(id AS STRING) AS BINARY) AS text")
        .selectExpr(
            f"IF(id % 5 = 0, '{two}', '{one}') AS topic",
            "IF(id % 7 = 0, NULL, CAST(id AS STRING)) AS key",
            "IF(id % 10 = 0, NULL, CAST(CONCAT('v', id) AS BINARY)) AS value",
            "IF(id % 3 = 0, array(named_struct('key', 'n', 'value', text),"
            " named_struct('key', 'none', 'value', CAST(NULL AS BINARY))), NULL) AS headers",
            "timestamp_millis(1700000000000 + id) AS timestamp",
            "IF(id % 2 = 0, CAST(id % 3 AS INT), NULL) AS partition",
        )
    )
    write(frame, shared_broker)
    found = [*records(shared_broker, one), *records(shared_broker, two)]
    numbers = [record.timestamp - 1_700_000_000_000 for record in found]
    assert sorted(numbers) == list(range(COUNT))
    for number, record in zip(numbers, found, strict=True):
        assert record.topic == (two if number % 5 == 0 else one)
        assert record.key == (None if number % 7 == 0 else b"%d" % number)
        assert record.value == (None if number % 10 == 0 else b"v%d" % number)
        assert record.headers == (
            (("n", b"%d" % number), ("none", None)) if number % 3 == 0 else ()
        )
        if number % 2 == 0:
            assert record.partition == number % 3
        elif record.key is not None:
            assert record.partition == partition_of(record.key, 3)


def test_rows_of_one_task_and_key_keep_their_order(
    spark: Any, shared_broker: RunningBroker, topic_name: str
) -> None:
    create(shared_broker, topic_name)
    frame = spark.range(COUNT, numPartitions=1).selectExpr(
        "CAST(id % 10 AS STRING) AS key", "CAST(id AS STRING) AS value"
    )
    write(frame, shared_broker, topic=topic_name, batchBytes="1000", compression="zstd")
    last: dict[bytes, int] = {}
    for record in records(shared_broker, topic_name):
        assert last.get(record.key, -1) < int(record.value)
        last[record.key] = int(record.value)
    assert len(last) == 10


def test_a_topic_can_be_copied_as_it_is_read(
    spark: Any, shared_broker: RunningBroker, topic_name: str
) -> None:
    copy = f"{topic_name}-copy"
    create(shared_broker, topic_name, copy, retention_ms="-1")  # The records are of 1970.
    rows = spark.range(100).selectExpr(
        "CAST(id AS STRING) AS value", "timestamp_millis(id) AS timestamp",
        "array(named_struct('key', 'n', 'value', CAST(CAST(id AS STRING) AS BINARY))) AS headers",
    )  # fmt: skip
    write(rows, shared_broker, topic=topic_name)
    read = (
        spark.read.format("millrace")
        .option("bootstrap.servers", shared_broker.address)
        .option("subscribe", topic_name)
        .option("includeHeaders", "true")
        .load()
    )
    write(read, shared_broker, topic=copy)
    before, after = records(shared_broker, topic_name), records(shared_broker, copy)
    assert len(after) == 100
    assert [row._replace(topic=copy) for row in before] == after


def test_no_rows_are_nothing(spark: Any, shared_broker: RunningBroker, topic_name: str) -> None:
    create(shared_broker, topic_name)
    write(spark.range(0).selectExpr("'' AS value"), shared_broker, topic=topic_name)
    without_tasks = spark.createDataFrame([], "value string")
    write(without_tasks, shared_broker, topic=topic_name)
    write(without_tasks, shared_broker, topic=topic_name, txnAppId=topic_name, txnVersion="1")
    assert records(shared_broker, topic_name) == []


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once"])
def test_a_stream_writes_what_it_reads_and_a_repeated_micro_batch_once_or_again(
    spark: Any, start_broker: StartBroker, tmp_path: Path, delivery: str
) -> None:
    copying = Copying(spark, start_broker(), tmp_path)
    for numbers in (range(1000), range(1000, 1500)):
        copying.send(numbers)
        copying.run(delivery=delivery)
    copying.run(delivery=delivery)
    assert copying.numbers() == list(range(1500))
    # As after a crash when batch 1 was written, and not yet noted as done.
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink(missing_ok=True)
    copying.send(range(1500, 1600))
    copying.run(delivery=delivery)
    again = range(1000, 1500) if delivery == "at-least-once" else ()
    assert copying.numbers() == sorted([*range(1600), *again])


def test_the_lines_of_the_documents_write_exactly_once(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    copying = Copying(spark, start_broker(), tmp_path)
    create(copying.broker, "pages")
    pages = (Path(__file__).parents[3] / "docs" / "spark.md").read_text()
    (lines,) = (
        block
        for block in re.findall("```python\n(.*?)```", pages, re.S)
        if "checkpoints/pages" in block
    )
    lines = lines.replace("localhost:7092", copying.broker.address)
    lines = lines.replace("checkpoints/pages", str(tmp_path / "checkpoint"))
    for numbers in (range(10), range(10, 20)):
        copying.send(numbers)
        exec(lines, {"clicks": copying.read()})
    found = sorted(int(record.value) for record in records(copying.broker, "pages"))
    assert found == list(range(20))


def test_foreach_batch_writes_each_target_once_when_its_call_is_repeated(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    """It fails between the two targets the first time, and Spark calls it again with the batch."""
    copying = Copying(spark, start_broker(), tmp_path)
    copying.send(range(100))
    failed: list[int] = []

    def write_both(frame: Any, batch_id: int) -> None:
        version = {"txnAppId": "both", "txnVersion": str(batch_id)}
        numbers = frame.selectExpr("CAST(value AS STRING) AS value").repartition(2)
        write(numbers.selectExpr("'out' AS topic", "*"), copying.broker, txnTarget="all", **version)
        if not failed:
            failed.append(batch_id)
            raise RuntimeError("between the two")
        write(numbers.where("INT(value) < 50"), copying.broker, topic="out", **version)

    def run() -> None:
        query = copying.read().writeStream.foreachBatch(write_both)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="between the two"):
        run()
    assert copying.numbers() == list(range(100))
    run()
    assert copying.numbers() == sorted([*range(100), *range(50)])


def test_output_mode_complete_writes_all_rows_in_every_micro_batch(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    copying = Copying(spark, start_broker(), tmp_path)
    for numbers in (range(4), range(4, 6)):
        copying.send(numbers)
        (
            copying.read()
            .groupBy("partition")
            .count()
            .selectExpr("CAST(partition AS STRING) AS key", "CAST(count AS STRING) AS value")
            .writeStream.format("millrace")
            .outputMode("complete")
            .option("bootstrap.servers", copying.broker.address)
            .option("topic", "out")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
    counts = sorted((record.key, record.value) for record in records(copying.broker, "out"))
    assert counts == [(b"0", b"2"), (b"0", b"3"), (b"1", b"2"), (b"1", b"3")]


def test_a_broker_that_is_killed_loses_no_row(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    """It is killed by the first row of the second Arrow batch, and comes back a little later."""
    broker = start_broker()
    create(broker, "clicks")
    killed = tmp_path / "killed"
    pid = broker.pid

    def and_kill(batches: Any) -> Any:
        import os
        import signal

        for number, batch in enumerate(batches):
            if number == 1 and not killed.exists():
                killed.touch()
                os.kill(pid, signal.SIGKILL)
            yield batch

    def restart() -> None:
        wait_until(killed.exists, "the broker is killed", 60)
        broker.abandon()
        broker.start()

    restarter = threading.Thread(target=restart)
    restarter.start()
    try:
        frame = spark.range(50_000, numPartitions=1).selectExpr("CAST(id AS STRING) AS value")
        write(frame.mapInArrow(and_kill, "value string"), broker, topic="clicks")
    finally:
        restarter.join()
    assert sorted(int(record.value) for record in records(broker, "clicks")) == list(range(50_000))


def test_rows_without_a_time_have_that_of_their_writing(
    spark: Any, shared_broker: RunningBroker, topic_name: str
) -> None:
    create(shared_broker, topic_name)
    begun_ms = datetime.now(UTC).timestamp() * 1000
    frame = spark.range(10).selectExpr(
        "CAST(id AS STRING) AS value", "IF(id = 3, timestamp_millis(5), NULL) AS timestamp"
    )
    write(frame, shared_broker, topic=topic_name)
    times = sorted(record.timestamp for record in records(shared_broker, topic_name))
    assert times[0] == 5
    assert begun_ms - 1 <= times[1] <= times[9] <= datetime.now(UTC).timestamp() * 1000
