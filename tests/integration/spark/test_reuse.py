"""A DataFrame that is used again: in other queries, in views, and twice in one query.

With Spark's filter push-down and without: the setting decides what Spark plans again.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.running_broker import RunningBroker
from tests.integration.spark.conftest import append

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(params=["true", "false"])
def pushdown(spark: Any, request: pytest.FixtureRequest) -> Iterator[str]:
    """Spark's setting, once on and once off."""
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param
    spark.conf.set(PUSHDOWN, before)


@pytest.fixture
def clicks(shared_broker: RunningBroker, topic_name: str) -> str:
    """A topic of two partitions with the numbers below 200."""
    shared_broker.create_topic(topic_name, 2)
    append(shared_broker.address, topic_name, range(200), 2)
    return topic_name


def load(spark: Any, broker: RunningBroker, topic: str, **options: str) -> Any:
    return (
        spark.read.format("millrace")
        .option("bootstrap.servers", broker.address)
        .options(subscribe=topic, **options)
        .load()
    )


def count(spark: Any, query: str) -> int:
    return int(spark.sql(query).first()[0])


def test_the_filters_of_one_query_do_not_narrow_the_next(
    spark: Any, shared_broker: RunningBroker, clicks: str, pushdown: str
) -> None:
    frame = load(spark, shared_broker, clicks)
    some = frame.where("partition = 1")
    assert [asked.count() for asked in (frame, some, frame, some)] == [200, 100, 200, 100]
    assert frame.where("offset < 5").count() == 10
    assert frame.where("offset < 5 or partition = 1").count() == 105
    assert frame.where("topic = 'another'").count() == 0
    assert frame.count() == 200


def test_a_view_is_narrowed_by_no_query(
    spark: Any, shared_broker: RunningBroker, clicks: str, pushdown: str
) -> None:
    load(spark, shared_broker, clicks).createOrReplaceTempView("reused")
    assert count(spark, "SELECT count(*) FROM reused WHERE partition = 1") == 100
    assert count(spark, "SELECT count(*) FROM reused") == 200
    assert count(spark, "SELECT count(*) FROM reused WHERE offset < 5 OR partition = 0") == 105


def test_both_sides_of_a_self_join_have_their_own_filters(
    spark: Any, shared_broker: RunningBroker, clicks: str, pushdown: str
) -> None:
    frame = load(spark, shared_broker, clicks)
    some = frame.where("partition = 1")
    assert some.join(frame, ["partition", "offset"], "full").count() == 200
    assert frame.where("partition = 0").join(some, "offset").count() == 100
    assert some.union(frame).count() == 300


def test_all_uses_of_a_dataframe_read_what_was_there_when_it_was_loaded(
    spark: Any, shared_broker: RunningBroker, clicks: str, pushdown: str
) -> None:
    frame = load(spark, shared_broker, clicks)
    frame.createOrReplaceTempView("reused")
    some = frame.where("partition = 1")
    append(shared_broker.address, clicks, range(200, 250), 2)
    assert frame.count() == 200
    append(shared_broker.address, clicks, range(250, 300), 2)
    assert [asked.count() for asked in (some, frame, some)] == [100, 200, 100]
    assert frame.where("offset >= 100").count() == 0
    assert count(spark, "SELECT count(*) FROM reused WHERE partition = 1") == 100
    assert count(spark, "SELECT count(*) FROM reused") == 200
    assert some.join(frame, ["partition", "offset"], "full").count() == 200
    assert some.union(frame).count() == 300
    assert load(spark, shared_broker, clicks).count() == 300


def test_spark_still_keeps_the_filters_of_one_query_for_the_next(spark: Any) -> None:
    """Where this fails, Spark is mended: filterPushdown needs no warning from that version on."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo

    class Numbers(DataSource):  # type: ignore[misc]
        def schema(self) -> str:
            return "a int"

        def reader(self, schema: Any) -> Any:
            return Reader()

    class Reader(DataSourceReader):  # type: ignore[misc]
        wanted = frozenset([1, 2, 3])

        def pushFilters(self, filters: Any) -> Any:
            for pushed in filters:
                if isinstance(pushed, EqualTo):
                    self.wanted &= {pushed.value}
            return [pushed for pushed in filters if not isinstance(pushed, EqualTo)]

        def read(self, partition: Any) -> Any:
            return iter([(number,) for number in self.wanted])

    assert spark.conf.get(PUSHDOWN) == "true"
    spark.dataSource.register(Numbers)
    frame = spark.read.format("Numbers").load()
    counts = [asked.count() for asked in (frame, frame.where("a = 1"), frame)]
    assert counts == [3, 1, 1], "Spark is mended: see docs/spark.md, Filters"
