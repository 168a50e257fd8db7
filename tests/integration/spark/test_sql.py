"""Topics in SQL: by temporary views, and by tables to which each query gives the options."""

from pathlib import Path
from typing import Any

import pytest
from tests.integration.running_broker import RunningBroker
from tests.integration.spark.conftest import append


@pytest.fixture
def clicks(shared_broker: RunningBroker, topic_name: str) -> str:
    """A topic of two partitions with the numbers below 20."""
    shared_broker.create_topic(topic_name, 2)
    append(shared_broker.address, topic_name, range(20), 2)
    return topic_name


@pytest.fixture
def table(spark: Any) -> Any:
    """A table of the catalog."""
    spark.sql("CREATE TABLE clicks USING millrace")
    yield "clicks"
    spark.sql("DROP TABLE clicks")


def sql_options(**options: str) -> str:
    return ", ".join(f"'{name.replace('_', '.')}'='{text}'" for name, text in options.items())


def numbers(rows: list[Any]) -> list[int]:
    return sorted(int(row.value) for row in rows)


def test_a_temporary_view_is_read_and_another_one_written(
    spark: Any, shared_broker: RunningBroker, clicks: str
) -> None:
    read = sql_options(bootstrap_servers=shared_broker.address, subscribe=clicks)
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW source USING millrace OPTIONS ({read})")
    for _ in range(2):
        assert numbers(spark.sql("SELECT value FROM source").collect()) == list(range(20))
    odd = spark.sql("SELECT value FROM source WHERE partition = 1").collect()
    assert numbers(odd) == list(range(1, 20, 2))
    write = sql_options(bootstrap_servers=shared_broker.address, topic=clicks)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW sink (key STRING, value STRING) USING millrace "
        f"OPTIONS ({write})"
    )
    spark.sql("INSERT INTO sink SELECT CAST(id AS STRING), CAST(id AS STRING) FROM range(20, 25)")
    assert numbers(spark.sql("SELECT value FROM source").collect()) == list(range(20))
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW source USING millrace OPTIONS ({read})")
    rows = spark.sql("SELECT key, value FROM source").collect()
    assert numbers(rows) == list(range(25))
    assert sum(row.key is not None for row in rows) == 5


def test_a_table_is_read_and_written_with_the_options_of_each_query(
    spark: Any, shared_broker: RunningBroker, clicks: str, table: str, tmp_path: Path
) -> None:
    write = sql_options(bootstrap_servers=shared_broker.address, topic=clicks)
    spark.sql(f"INSERT INTO {table} WITH ({write}) (value) VALUES (CAST('20' AS BINARY))")
    read = sql_options(bootstrap_servers=shared_broker.address, subscribe=clicks)
    found = spark.sql(f"SELECT value FROM {table} WITH ({read})").collect()
    assert numbers(found) == list(range(21))
    options = {"bootstrap.servers": shared_broker.address, "subscribe": clicks}
    assert numbers(spark.read.options(**options).table(table).collect()) == list(range(21))
    stream = spark.readStream.options(**options, startingOffsets="earliest").table(table)
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert numbers(spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(21))


def test_what_sql_cannot_do_is_told(spark: Any, shared_broker: RunningBroker, table: str) -> None:
    given = sql_options(bootstrap_servers=shared_broker.address, subscribe="clicks")
    for statement, told in (
        (f"CREATE TABLE other USING millrace OPTIONS ({given})", "keeps the OPTIONS of a table"),
        (f"SELECT * FROM {table}", "With a table, Spark hands over what the query gives alone"),
        (f"INSERT INTO {table} (value) VALUES (CAST('1' AS BINARY))", "With a table, Spark hands"),
        (f"SELECT * FROM {table} WITH ({given}, 'startingOffsets'='x')", "it is no JSON"),
        (f"INSERT OVERWRITE {table} (value) VALUES (CAST('1' AS BINARY))", "cannot be overwritten"),
    ):
        with pytest.raises(Exception, match="InvalidOptionError") as raised:
            spark.sql(statement).collect()
        assert told in str(raised.value), statement
