"""Values become columns and columns values, in batches and in streams, through a real topic."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.integration.running_broker import RunningBroker

from millrace.client import SyncConsumer, SyncProducer

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from millrace.spark import values
from millrace.spark.errors import InvalidColumnsError, InvalidOptionError

FIELDS = "page string, count long, at timestamp, tags array<string>"


@pytest.fixture
def topic(shared_broker: RunningBroker, topic_name: str) -> str:
    shared_broker.create_topic(topic_name, 2)
    return topic_name


def pages(spark: Any) -> Any:
    return spark.range(100, numPartitions=2).selectExpr(
        "CAST(id % 5 AS STRING) AS key",
        "IF(id % 10 = 0, NULL, CONCAT('p', id)) AS page",
        "id AS count",
        "timestamp_millis(id) AS at",
        "array('a', 'b') AS tags",
    )


def write(frame: Any, broker: RunningBroker, topic: str) -> None:
    writer = frame.write.format("millrace").option("bootstrap.servers", broker.address)
    writer.option("topic", topic).mode("append").save()


def read(spark: Any, broker: RunningBroker, topic: str) -> Any:
    reader = spark.read.format("millrace").option("bootstrap.servers", broker.address)
    return reader.option("subscribe", topic).load()


def rows(frame: Any) -> list[Any]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


def test_json_comes_back(spark: Any, shared_broker: RunningBroker, topic: str) -> None:
    packed = values.columns_to_json(pages(spark))
    assert packed.columns == ["key", "value"]
    write(packed, shared_broker, topic)
    found = values.json_to_columns(read(spark, shared_broker, topic), FIELDS)
    assert found.columns[:2] == ["key", "topic"]
    told = found.selectExpr("CAST(key AS STRING)", "page", "count", "at", "tags")
    assert rows(told) == rows(pages(spark))
    with SyncConsumer(shared_broker.address) as consumer:
        consumer.subscribe([topic])
        assert b'"tags":["a","b"]}' in next(iter(consumer)).value


def test_json_that_is_none_is_told_with_its_record_or_is_null(
    spark: Any, shared_broker: RunningBroker, topic: str
) -> None:
    with SyncProducer(shared_broker.address) as producer:
        for value in (b'{"page":"a"}', None, b'{"page":"b","count":"many"}', b"oops"):
            producer.send(topic, value, partition=1)
    records = read(spark, shared_broker, topic)
    lenient = values.json_to_columns(records, "page string, count long", strict=False)
    assert rows(lenient.select("offset", "page", "count")) == [
        (0, "a", None), (1, None, None), (2, "b", None), (3, None, None),
    ]  # fmt: skip
    strict = values.json_to_columns(records.where("offset >= 2"), "page string, count long")
    with pytest.raises(Exception, match=f"at offset 2 of {topic}-1 is not the JSON that was asked"):
        strict.collect()
    fine = values.json_to_columns(records.where("offset < 2"), "page string, count long")
    assert rows(fine.select("page")) == [("a",), (None,)]


@pytest.mark.parametrize("value", [b"", b" \n", b"[]", b"null"])
def test_a_value_that_is_there_and_holds_nothing_is_no_json(
    spark: Any, shared_broker: RunningBroker, topic: str, value: bytes
) -> None:
    with SyncProducer(shared_broker.address) as producer:
        producer.send(topic, value, partition=1)
    records = read(spark, shared_broker, topic)
    lenient = values.json_to_columns(records, "page string, count long", strict=False)
    assert rows(lenient.select("offset", "page", "count")) == [(0, None, None)]
    strict = values.json_to_columns(records, "page string, count long")
    with pytest.raises(Exception, match=f"at offset 0 of {topic}-1 is not the JSON that was asked"):
        strict.collect()


def test_arrow_rows_come_back(spark: Any, shared_broker: RunningBroker, topic: str) -> None:
    packed = values.columns_to_arrow(pages(spark).drop("key"), rows_per_record=30)
    assert packed.columns == ["value"]
    write(packed, shared_broker, topic)
    with SyncConsumer(shared_broker.address) as consumer:
        consumer.subscribe([topic])
        first = pa.ipc.open_stream(next(iter(consumer)).value).read_all()
    assert 20 <= len(first) <= 30
    assert first.schema.names == ["page", "count", "at", "tags"]
    found = values.arrow_to_columns(read(spark, shared_broker, topic), FIELDS)
    told = found.select("page", "count", "at", "tags")
    assert rows(told) == rows(pages(spark).drop("key"))
    assert found.select("partition", "offset").distinct().count() == 4
    again = values.columns_to_arrow(found)
    assert again.count() == 4
    assert rows(values.arrow_to_columns(again.select("value"), FIELDS)) == rows(told)


def test_arrow_rows_keep_their_key(spark: Any, shared_broker: RunningBroker, topic: str) -> None:
    by_key = pages(spark).repartition(2, "key").sortWithinPartitions("key")
    write(values.columns_to_arrow(by_key), shared_broker, topic)
    records = read(spark, shared_broker, topic)
    assert records.count() == 5
    found = values.arrow_to_columns(records, FIELDS)
    told = found.selectExpr("CAST(key AS STRING)", "page", "count", "at", "tags")
    assert rows(told) == rows(pages(spark))


def test_a_value_that_is_no_arrow_stream_is_told_with_its_record(
    spark: Any, shared_broker: RunningBroker, topic: str
) -> None:
    with SyncProducer(shared_broker.address) as producer:
        producer.send(topic, b"oops", partition=1)
    frame = values.arrow_to_columns(read(spark, shared_broker, topic), "page string")
    with pytest.raises(Exception, match="InvalidValueError: the value of the record at offset 0"):
        frame.collect()


def test_values_of_a_stream(
    spark: Any, shared_broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    write(values.columns_to_arrow(pages(spark)), shared_broker, topic)
    stream = (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", shared_broker.address)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    fields = values.arrow_to_columns(stream.select("value"), "count long, at timestamp")
    query = (
        values.columns_to_json(fields)
        .writeStream.format("memory")
        .queryName("values")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = values.json_to_columns(spark.table("values"), "count long, at timestamp")
    assert rows(found) == sorted(map(tuple, pages(spark).select("count", "at").collect()), key=str)


def test_columns_that_cannot_be_are_told(spark: Any) -> None:
    frame = pages(spark)
    with pytest.raises(InvalidColumnsError, match="there is no column value among key, page"):
        values.json_to_columns(frame, FIELDS)
    with pytest.raises(InvalidColumnsError, match="key: a field of the value and a column"):
        values.arrow_to_columns(values.columns_to_arrow(frame), "key string")
    with pytest.raises(InvalidColumnsError, match="there is no column pages among"):
        values.columns_to_json(frame, ["pages"])
    with pytest.raises(InvalidColumnsError, match="nothing to make a value of: key belong"):
        values.columns_to_json(frame.select("key"))
    with pytest.raises(InvalidColumnsError, match="cannot keep tags: drop it, or name it"):
        values.columns_to_arrow(frame, ["page"])
    with pytest.raises(InvalidOptionError, match="it is a number from 1"):
        values.columns_to_arrow(frame, rows_per_record=0)
