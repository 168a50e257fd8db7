"""Spark's drivers and executors as pods, beside the brokers that they read."""

import pytest
from e2e import spark_kills
from e2e.cluster.native import NativeCluster
from e2e.cluster.providers import Cluster
from e2e.flights import produce_all
from e2e.installed import Namespace, until
from e2e.spark_job import SparkJob
from e2e.spark_kills import Victim
from tests.spark_jobs import expected
from tests.spark_jobs.flights import DAYS_OF_YEAR, FLIGHTS, Source, read_source

pytestmark = pytest.mark.timeout(900)
DAYS = 30


@pytest.fixture(scope="session")
def source() -> Source:
    return read_source(DAYS)


@pytest.fixture(scope="session")
def with_spark(operator: Cluster) -> NativeCluster:
    """The cluster, whose nodes have the image of Spark's pods."""
    if not isinstance(operator, NativeCluster):
        pytest.skip("what Spark writes is read on the nodes of a native cluster")
    operator.load_spark_image()
    return operator


@pytest.fixture
def with_flights(with_spark: NativeCluster, namespace: Namespace) -> Namespace:
    """A namespace with three brokers and a topic for flights, and a client's pod."""
    namespace.make_cluster()
    namespace.make_topic(FLIGHTS, partitions=4, replicas=3)
    namespace.make_client()
    return namespace


def test_a_stream_writes_what_plain_arrow_computes(
    with_spark: NativeCluster, with_flights: Namespace, source: Source
) -> None:
    job = SparkJob(with_spark, with_flights, "delays")
    sent = produce_all(with_flights, source)
    job.install("carrier_delays", "--every=0 seconds")
    wanted = expected.carrier_delays(sent)
    job.wait_for_batch(after=-1)
    until(
        lambda: job.written().table().num_rows >= wanted.num_rows,
        f"all hours are written: {job.last_words()}",
    )
    assert expected.difference(job.written().table(), wanted) == ""


def test_whatever_is_killed_the_stream_goes_on_by_itself_and_is_right(
    with_spark: NativeCluster, namespace: Namespace
) -> None:
    outcome = spark_kills.run(with_spark, namespace, read_source(DAYS_OF_YEAR), list(Victim))
    assert outcome.difference == ""
    assert outcome.rows > 0
