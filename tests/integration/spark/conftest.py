"""A real Spark on two threads, one for all tests; they skip, and say why, where there is none."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from demo.spark_program import missing


@pytest.fixture(scope="session")
def has_spark() -> None:
    """Skips a test, and says why, where no Spark can run."""
    if lacks := missing():
        pytest.skip(lacks)


@pytest.fixture(scope="session")
def spark(has_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session as a user would make one: nothing is registered, the format is found."""
    from pyspark import sql

    before = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.python.filterPushdown.enabled", "true")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
    if before is None:
        del os.environ["PYSPARK_PYTHON"]
    else:
        os.environ["PYSPARK_PYTHON"] = before
