"""What Spark cannot write is told by an error that says what to do, and nothing of it is readable.

`test_sink_transactions` has the same of sinks without Spark, in more orders.
"""

import re
import shutil
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker
from tests.integration.spark.copying import Copying
from tests.integration.spark.written import create, records, write

from millrace.client import SyncAdmin

pytestmark = pytest.mark.timeout(300)

SHORT_LEASE: Final[dict[str, object]] = {"transactions.lease_ms": 5000}
"""Readers wait for it where a micro-batch has failed before a task of it had ended."""


def test_a_copied_checkpoint_and_a_new_one_under_an_old_application_id_are_refused(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    copying = Copying(spark, start_broker(), tmp_path / "first")
    for application in ({}, {"applicationId": "copying"}):
        copying.send(range(10))
        copying.run(**application)
        before = copying.numbers()
        copying.send(range(10))
        if application:
            copying.folder = tmp_path / "new"
            forget = "millrace transaction forget-version copying@out"
        else:
            shutil.copytree(copying.folder, tmp_path / "copied")
            copying.folder = tmp_path / "copied"
            forget = "millrace transaction forget-version "
        with pytest.raises(Exception, match="VersionConflictError") as raised:
            copying.run(**application)
        assert forget in str(raised.value)
        assert copying.numbers() == before
        copying.folder = tmp_path / "first"
    with SyncAdmin(copying.broker.address) as admin:
        admin.forget_version("copying@out")
    copying.folder = tmp_path / "new"
    copying.run(applicationId="copying")
    assert copying.numbers() == sorted([*before, *range(10), *range(10), *range(10), *range(10)])


def test_a_checkpoint_whose_query_id_was_changed_is_refused_until_it_is_put_back(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    copying = Copying(spark, start_broker(), tmp_path)
    copying.send(range(10))
    copying.run(applicationId="copying")
    copying.send(range(10, 20))
    query_id = copying.query_id()
    copying.change_query_id(str(uuid4()))
    with pytest.raises(Exception, match="VersionConflictError") as raised:
        copying.run(applicationId="copying")
    assert f"version 0 is of query '{query_id}'" in str(raised.value)
    assert "by `millrace transaction forget-version copying@out`" in str(raised.value)
    copying.change_query_id(query_id)
    copying.run(applicationId="copying")
    assert copying.numbers() == list(range(20))


def test_more_tasks_than_a_transaction_takes_are_refused_and_fewer_write_the_same(
    spark: Any, start_broker: StartBroker
) -> None:
    broker = start_broker({"transactions.participants_max": 3})
    create(broker, "out")
    rows = "STRING(id) AS value"
    with pytest.raises(Exception, match=r"transactions\.participants_max allows: write with fewer"):
        write(spark.range(0, 10**6, numPartitions=10**6).selectExpr(rows), broker, topic="out")
    assert records(broker, "out") == []
    write(spark.range(0, 100, numPartitions=2).selectExpr(rows), broker, topic="out")
    assert len(records(broker, "out")) == 100


def test_a_topic_that_is_deleted_under_a_query_is_told_and_the_micro_batch_is_nowhere(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    """Each partition that is read has rows for both topics, so each micro-batch has."""
    copying = Copying(spark, start_broker(SHORT_LEASE), tmp_path)
    create(copying.broker, "upper")
    rows = copying.read().selectExpr(
        "value", "IF(INT(STRING(value)) % 4 > 1, 'upper', 'out') AS topic"
    )
    query = copying.write(rows, "", txnTarget="both", deliveryTimeoutMs="5s").start()
    try:
        copying.send(range(10))
        query.processAllAvailable()
        with SyncAdmin(copying.broker.address) as admin:
            admin.delete_topic("upper")
        copying.send(range(10, 20))
        with pytest.raises(Exception, match="UnknownTopicOrPartitionError") as raised:
            query.awaitTermination(60)
        assert "(millrace topic create upper)" in str(raised.value)
    finally:
        query.stop()
    assert copying.numbers() == [0, 1, 4, 5, 8, 9]
    create(copying.broker, "upper")
    copying.write(rows, "", txnTarget="both").trigger(availableNow=True).start().awaitTermination()
    assert copying.numbers() == [0, 1, 4, 5, 8, 9, 12, 13, 16, 17]
    upper = sorted(int(record.value) for record in records(copying.broker, "upper"))
    assert upper == [10, 11, 14, 15, 18, 19]


def test_no_broker_for_longer_than_the_time_out_is_told_and_the_micro_batch_is_nowhere(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    """It is killed when the first task has rows, and comes back when the query has failed."""
    copying = Copying(spark, start_broker(SHORT_LEASE), tmp_path)
    copying.send(range(20))
    pid = copying.broker.pid

    def and_kill(batches: Any) -> Any:
        import os
        import signal
        from contextlib import suppress

        for batch in batches:
            yield batch
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            yield batch

    rows = copying.read().select("value").mapInArrow(and_kill, "value binary")
    query = copying.write(rows, deliveryTimeoutMs="3s", requestTimeoutMs="3s")
    with pytest.raises(Exception, match="ython") as raised:
        query.trigger(availableNow=True).start().awaitTermination()
    copying.broker.abandon()
    assert "ConnectionFailedError: no broker can be reached: no broker listens at" in str(
        raised.value
    )
    copying.broker.start()
    assert copying.numbers() == []
    copying.run()
    assert copying.numbers() == list(range(20))


def test_a_stream_that_cannot_be_written_fails_before_it_writes(
    spark: Any, start_broker: StartBroker, tmp_path: Path
) -> None:
    copying = Copying(spark, start_broker(SHORT_LEASE), tmp_path)
    copying.send(range(10))
    for columns, options, told in (
        (["value"], {"delivery": "twice"}, "must be exactly-once or at-least-once"),
        (
            ["offset AS value"],
            {},
            "InvalidColumnsError: these rows cannot be written: column value",
        ),
        (["value"], {"topic": "not-there"}, "UnknownTopicOrPartitionError: there is no topic"),
        (["value"], {"topic": ""}, "there is neither a column topic nor the option topic"),
        (
            ["value", "IF(INT(STRING(value)) = 7, NULL, 'out') AS topic"],
            {"topic": ""},
            "has no topic: fill the column topic, or give the option topic",
        ),
        (
            ["IF(INT(STRING(value)) = 7, repeat('x', 3000000), STRING(value)) AS value"],
            {},
            r"MessageTooLargeError: row \d of task 1 for topic 'out'",
        ),
    ):
        with pytest.raises(Exception, match="ython") as raised:
            copying.run(*columns, **options)
        assert re.search(told, str(raised.value)), raised.value
    assert copying.numbers() == []
    copying.run()
    assert copying.numbers() == list(range(10))


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ("value", {}, "InvalidColumnsError: these rows cannot be written: there is neither a col"),
        ("value", {"topic": "not-there"}, "UnknownTopicOrPartitionError: there is no topic 'not-"),
        ("value, 'not-there' AS topic", {}, "there is no topic 'not-there' (row 0 of task"),
        ("value, IF(id = 7, NULL, 'spark-bad') AS topic", {}, "has no topic: fill the column"),
        ("value, 'a b' AS topic", {}, "InvalidTopicError: row 0 of task"),
        ("value, id", {"topic": "spark-bad"}, "there is no place for column id"),
        ("id AS value", {"topic": "spark-bad"}, "column value is bigint, not binary or string"),
        ("value, 3 AS partition", {"topic": "spark-bad"}, "names partition 3, and the topic has"),
        (
            "value",
            {"topic": "spark-bad", "topc": "x"},
            "topc: there is no such setting; did you mean 'top",
        ),
        ("value", {"topic": "spark-bad", "kafka.acks": "1"}, "acks is not an option"),
        ("value", {"topic": "spark-bad", "subscribe": "x"}, "it is for reading"),
        ("value", {"topic": "spark-bad", "txnVersion": "1"}, "txnVersion=1 is without txnAppId"),
        (
            "value",
            {"topic": "spark-bad", "kafka.bootstrap.servers": "127.0.0.1:1"},
            "ConnectionFailedError: no broker can be reached",
        ),
    ],
)
def test_what_cannot_be_written_is_told_before_anything_is(
    spark: Any, bad: RunningBroker, columns: str, options: dict[str, str], told: str
) -> None:
    frame = spark.range(10, numPartitions=1).selectExpr("CAST(id AS STRING) AS value", "id")
    with pytest.raises(Exception, match="ython") as raised:
        write(frame.selectExpr(*columns.split(", ", 1)), bad, **options)
    assert told in str(raised.value)
    assert records(bad, "spark-bad") == []


@pytest.fixture(scope="module")
def bad(shared_broker: RunningBroker) -> RunningBroker:
    create(shared_broker, "spark-bad")
    return shared_broker


def test_a_batch_whose_rows_cannot_be_computed_leaves_no_transaction_open(
    spark: Any, shared_broker: RunningBroker, topic_name: str
) -> None:
    create(shared_broker, topic_name)
    value = "IF(id = 7, raise_error('not to be computed'), STRING(id)) AS value"
    frame = spark.range(10, numPartitions=2).selectExpr(value)
    for rows in (frame, frame.repartition(2)):
        with pytest.raises(Exception, match="not to be computed"):
            write(rows, shared_broker, topic=topic_name)
    with SyncAdmin(shared_broker.address) as admin:
        ongoing = [found.transactional_id for found in admin.list_transactions(["ongoing"])]
    assert not [name for name in ongoing if name.endswith(f"@{topic_name}")]
    assert records(shared_broker, topic_name) == []


def test_a_log_is_not_overwritten(spark: Any, bad: RunningBroker) -> None:
    writer = spark.range(1).selectExpr("'' AS value").write.format("millrace")
    with pytest.raises(Exception, match="a log cannot be overwritten"):
        writer.option("topic", "spark-bad").mode("overwrite").save()


def test_an_oversized_record_is_named(
    spark: Any, shared_broker: RunningBroker, topic_name: str
) -> None:
    create(shared_broker, topic_name, max_message_bytes="20000")
    frame = spark.range(1000, numPartitions=1).selectExpr(
        "CAST(id AS STRING) AS key", "IF(id = 700, repeat('x', 30000), 'x') AS value"
    )
    with pytest.raises(Exception, match="MessageTooLargeError") as raised:
        write(frame, shared_broker, topic=topic_name)
    assert f"row 700 of task 0 (key '700') for topic '{topic_name}' was not wri" in str(
        raised.value
    )
    assert records(shared_broker, topic_name) == []
