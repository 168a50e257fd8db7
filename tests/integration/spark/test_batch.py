"""A batch read by Spark is what was produced."""

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.integration.running_broker import RunningBroker

from millrace.client import SyncProducer

COUNT = 1000


@pytest.fixture(scope="module")
def topic(shared_broker: RunningBroker) -> str:
    """A topic of three partitions with nulls, headers and times that do not ascend."""
    name = "spark-batch"
    shared_broker.create_topic(name, 3, config={"retention.ms": "-1"})  # Its times are of 2023.
    with SyncProducer(shared_broker.address, batch_size=3000) as producer:
        for number in range(COUNT):
            producer.send(name, value(number), key(number), partition=number % 3,
                          timestamp=time_ms(number), headers=headers(number))  # fmt: skip
    return name


def value(number: int) -> bytes | None:
    return None if number % 10 == 0 else b"v%d" % number


def key(number: int) -> bytes | None:
    return None if number % 7 == 0 else b"k%d" % number


def time_ms(number: int) -> int:
    return 1_700_000_000_000 + number * 1000 - (500 if number % 2 else 0)


def headers(number: int) -> list[tuple[str, bytes | None]]:
    return [("n", b"%d" % number), ("n", None)] if number % 5 == 0 else []


def read(spark: Any, broker: RunningBroker, **options: str) -> Any:
    return (
        spark.read.format("millrace")
        .option("kafka.bootstrap.servers", broker.address)
        .options(**options)
        .load()
    )


def test_every_column_of_every_record(spark: Any, shared_broker: RunningBroker, topic: str) -> None:
    frame = read(spark, shared_broker, subscribe=topic, includeHeaders="true", batchRows="64")
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    rows = (
        frame.toArrow().sort_by([("offset", "ascending"), ("partition", "ascending")]).to_pylist()
    )
    assert len(rows) == COUNT
    for number, row in enumerate(rows):
        expected = headers(number)
        assert row == {
            "key": key(number),
            "value": value(number),
            "topic": topic,
            "partition": number % 3,
            "offset": number // 3,
            "timestamp": row["timestamp"],
            "timestampType": 0,
            "headers": [{"key": name, "value": value} for name, value in expected] or None,
        }
        assert row["timestamp"].timestamp() * 1000 == time_ms(number)


def test_bounds_by_offset_and_by_time(spark: Any, shared_broker: RunningBroker, topic: str) -> None:
    ranged = read(
        spark, shared_broker, subscribe=topic, minPartitions="7",
        startingOffsets=f'{{"{topic}":{{"0":10,"1":-2,"2":300}}}}',
        endingOffsets=f'{{"{topic}":{{"0":12,"1":3,"2":-1}}}}',
    )  # fmt: skip
    rows = [(row.partition, row.offset) for row in ranged.select("partition", "offset").collect()]
    assert sorted(rows) == [(0, 10), (0, 11), (1, 0), (1, 1), (1, 2)] + [
        (2, at) for at in range(300, 333)
    ]
    by_time = read(
        spark, shared_broker, assign=f'{{"{topic}":[0]}}',
        startingTimestamp=str(time_ms(30)), endingTimestamp=str(time_ms(60)),
    )  # fmt: skip
    assert sorted(row.offset for row in by_time.select("offset").collect()) == list(range(10, 20))
    same = f'{{"{topic}":{{"0":5,"1":5,"2":5}}}}'
    empty = read(spark, shared_broker, subscribe=topic, startingOffsets=same, endingOffsets=same)
    assert empty.count() == 0


def test_partitions_share_a_task_or_are_split(
    spark: Any, shared_broker: RunningBroker, topic: str
) -> None:
    packed = read(spark, shared_broker, subscribe=topic, maxPartitions="2")
    assert (packed.rdd.getNumPartitions(), packed.count()) == (2, COUNT)
    split = read(spark, shared_broker, subscribePattern="spark-b.*", maxRecordsPerPartition="50")
    assert (split.rdd.getNumPartitions(), split.count()) == (21, COUNT)


def test_filters_decide_what_is_read(spark: Any, shared_broker: RunningBroker, topic: str) -> None:
    frame = read(spark, shared_broker, subscribe=topic, filterPushdown="true")
    some = frame.where("partition = 1 and offset >= 20 and offset < 25")
    assert sorted(row.offset for row in some.collect()) == list(range(20, 25))
    assert some.rdd.getNumPartitions() == 1
    since = datetime.fromtimestamp(time_ms(900) / 1000, UTC)
    late = frame.where(frame.timestamp >= since)
    assert late.count() == sum(time_ms(number) >= time_ms(900) for number in range(COUNT))
    assert frame.where("offset > 100000").count() == 0


def test_a_limit_ends_the_reading_early(
    spark: Any, shared_broker: RunningBroker, topic: str
) -> None:
    frame = read(spark, shared_broker, subscribe=topic, batchRows="10")
    assert len(frame.limit(5).collect()) == 5
    assert frame.count() == COUNT


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"subscribe": "not-there"}, "there is no topic not-there"),
        ({"subscribe": "spark-batch", "subscibe": "x"}, "did you mean 'subscribe'?"),
        ({"subscribe": "spark-batch", "startingOffsets": "latest"}, "reads nothing"),
        ({"assign": '{"spark-batch":[7]}'}, "partitions that do not exist"),
        (
            {"assign": '{"spark-batch":[0]}', "endingOffsets": '{"spark-batch":{"0":9999}}'},
            "0 to 9999 were asked for",
        ),
        ({"subscribe": "spark-batch", "startingTimestamp": "99999999999999"}, "no records so late"),
        (
            {"subscribe": "spark-batch", "kafka.ssl.key.password": "x"},
            "secrets must not be in them",
        ),
    ],
)
def test_what_cannot_be_read_is_told(
    spark: Any, shared_broker: RunningBroker, topic: str, options: dict[str, str], told: str
) -> None:
    with pytest.raises(Exception, match="Python data source") as raised:
        read(spark, shared_broker, **options).count()
    assert told in str(raised.value)


def test_a_schema_of_the_user_s_own_is_refused(
    spark: Any, shared_broker: RunningBroker, topic: str
) -> None:
    reader = spark.read.format("millrace").option("bootstrap.servers", shared_broker.address)
    with pytest.raises(Exception, match="the columns of a topic are always"):
        reader.option("subscribe", topic).schema("value string").load().count()
