"""A real Spark on two threads, one for all tests; they skip, and say why, where there is none."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def has_spark() -> None:
    """Skips a test, and says why, where no Spark can run."""
    pytest.importorskip("pyspark.sql", reason="needs pyspark: sh requirements/install.sh spark")
    home = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (home and (Path(home) / "bin" / "java").exists()):
        pytest.skip("needs Java 17 or later: apt-get install openjdk-17-jre-headless")


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
