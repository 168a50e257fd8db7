"""Spark's drivers and executors as pods, beside the brokers that they read."""

import re
from typing import Any

import pyarrow as pa
import pytest
from e2e import spark_kills
from e2e.cluster.native import NativeCluster
from e2e.flights import produce_all
from e2e.installed import Namespace, until
from e2e.spark_job import SparkJob
from e2e.spark_kills import OF_FILES, Story
from e2e.spark_topics import VICTIMS, TopicsStory
from tests.spark_jobs import expected
from tests.spark_jobs.flights import DAYS_OF_YEAR, FLIGHTS, Source, read_source

pytestmark = pytest.mark.timeout(900)
DAYS = 30


@pytest.fixture(scope="session")
def source() -> Source:
    return read_source(DAYS)


def test_a_stream_writes_what_plain_arrow_computes(
    with_spark: NativeCluster, with_flights: Namespace, source: Source
) -> None:
    job = SparkJob(with_spark, with_flights, "delays")
    sent = produce_all(with_flights, source)
    job.install("carrier_delays", "--every=0 seconds")
    wanted = expected.carrier_delays(sent)
    job.wait_for_rows(wanted.num_rows)
    assert expected.difference(job.written().table(), wanted) == ""


READING = {
    "apiGroups": ["millrace.dev"],
    "resources": ["topics"],
    "resourceNames": [FLIGHTS],
    "verbs": ["describe", "consume"],
}


@pytest.mark.parametrize("submission", ["client", "cluster"])
def test_a_job_reads_a_guarded_cluster_as_its_account_once_that_may(
    with_spark: NativeCluster, with_guarded_flights: Namespace, source: Source, submission: str
) -> None:
    job = SparkJob(with_spark, with_guarded_flights, "delays")
    sent = produce_all(with_guarded_flights, source)
    only_seen = {**READING, "verbs": ["describe"]}
    job.install("carrier_delays", submission=submission, **job.guarded(only_seen))
    refusal = f"delays' may not consume topic '{with_guarded_flights.name}/{FLIGHTS}'"
    until(lambda: refusal in job.last_words(), "the job says which right it lacks")
    job.install("carrier_delays", submission=submission, **job.guarded(READING))
    wanted = expected.carrier_delays(sent)
    job.wait_for_rows(wanted.num_rows)
    assert expected.difference(job.written().table(), wanted) == ""


def test_whatever_is_killed_the_stream_goes_on_by_itself_and_is_right(
    with_spark: NativeCluster, namespace: Namespace
) -> None:
    story = Story(with_spark, namespace, read_source(DAYS_OF_YEAR))
    outcome = spark_kills.run(story, OF_FILES)
    assert outcome.difference == ""
    assert outcome.rows > 0


def test_whatever_is_killed_or_slow_topics_have_each_record_once(
    with_spark: NativeCluster, namespace: Namespace
) -> None:
    story = TopicsStory(with_spark, namespace, read_source(DAYS_OF_YEAR))
    outcome = spark_kills.run(story, VICTIMS)
    assert outcome.difference == ""
    assert outcome.rows > 0


def test_spark_submit_in_cluster_mode_runs_the_same(
    with_spark: NativeCluster, with_flights: Namespace, source: Source
) -> None:
    job = SparkJob(with_spark, with_flights, "delays")
    sent = produce_all(with_flights, source)
    job.install("carrier_delays", submission="cluster")
    wanted = expected.carrier_delays(sent)
    job.wait_for_rows(wanted.num_rows)
    assert expected.difference(job.written().table(), wanted) == ""


def test_a_cron_job_goes_on_exactly_where_its_last_run_ended(
    with_spark: NativeCluster, with_flights: Namespace
) -> None:
    """The second run is killed half-way, and its Job runs it again."""
    source = read_source(2 * DAYS)
    halves = source.parts(2)
    job = SparkJob(with_spark, with_flights, "ingest")
    job.install("ingest_flights", "--batch-size=100KiB", schedule="0 0 1 1 *")
    sent = [produce_all(with_flights, halves[0])]
    with_flights("create", "job", "first", "--from=cronjob/ingest")
    with_flights.wait("job/first", "Complete")
    first = job.written().table()
    assert expected.difference(first.select(expected.INGESTED), _ingested(sent)) == ""

    sent.append(produce_all(with_flights, halves[1]))
    with_flights("create", "job", "second", "--from=cronjob/ingest")
    job.wait_for_batch()
    with_spark.signal_pod(job.driver(), "SIGKILL", with_flights.name)
    with_flights.wait("job/second", "Complete")
    found = job.written().table()
    assert expected.difference(found.select(expected.INGESTED), _ingested(sent)) == ""
    places = set(zip(found["partition"].to_pylist(), found["offset"].to_pylist(), strict=True))
    assert len(places) == found.num_rows


def _ingested(sent: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(sent).select(expected.INGESTED)


def test_any_user_may_run_it_and_other_executors_change_nothing(
    with_spark: NativeCluster, with_flights: Namespace, source: Source
) -> None:
    """Root file systems are read-only in all tests."""
    job = SparkJob(with_spark, with_flights, "delays")
    halves = source.parts(2)
    sent = [produce_all(with_flights, halves[0])]
    chosen: dict[str, Any] = {"user": 123456, "group": 4321}
    job.install("carrier_delays", executor__instances=1, **chosen)
    job.wait_for_batch(after=-1)
    job.install("carrier_delays", executor__instances=3, **chosen)
    sent.append(produce_all(with_flights, halves[1]))
    until(lambda: len(job.executors()) == 3, "there are three executors")
    wanted = expected.carrier_delays(pa.concat_tables(sent))
    job.wait_for_rows(wanted.num_rows)
    assert expected.difference(job.written().table(), wanted) == ""


def test_executors_read_from_the_replica_in_their_zone(
    with_spark: NativeCluster, namespace: Namespace, source: Source
) -> None:
    namespace.make_cluster()
    namespace.make_topic(FLIGHTS, partitions=1, replicas=3)
    namespace.make_client()
    sent = produce_all(namespace, source)
    brokers = [f"logs-brokers-{number}" for number in range(3)]
    near, far = (broker for broker in brokers if not namespace.led_by(FLIGHTS, broker))
    job = SparkJob(with_spark, namespace, "delays")
    node = with_spark.node_of(near, namespace.name).name
    job.install("carrier_delays", nodeSelector={"kubernetes.io/hostname": node})
    job.wait_for_rows(expected.carrier_delays(sent).num_rows)
    assert _fetched_bytes(namespace, far) == 0
    assert _fetched_bytes(namespace, near) > 0


def _fetched_bytes(namespace: Namespace, broker: str) -> float:
    """Return the bytes that a follower has sent to readers."""
    pages = f"/api/v1/namespaces/{namespace.name}/pods/{broker}:7093/proxy/metrics"
    pattern = rf'^millrace_topic_fetched_bytes_total{{topic="{namespace.name}/{FLIGHTS}"}} (\S+)$'
    found = re.search(pattern, namespace.kubectl("get", "--raw", pages), re.M)
    return float(found[1]) if found else 0.0


def test_two_tenants_read_their_own_topics_of_one_cluster(
    with_spark: NativeCluster, namespace: Namespace
) -> None:
    """Both jobs read the topic `flights`, without naming a namespace."""
    other = Namespace(with_spark.kubectl, f"{namespace.name}-b")
    other.create()
    try:
        namespace.make_cluster(allowedTopics={"namespaces": {"from": "All"}})
        namespace.make_client()
        there = {"name": "logs", "namespace": namespace.name}
        halves = read_source(2 * DAYS).parts(2)
        jobs = []
        for tenant, half in zip((namespace, other), halves, strict=True):
            tenant.make_topic(FLIGHTS, partitions=4, replicas=3, clusterRef=there)
            sent = produce_all(namespace, half, to=tenant.name)
            job = SparkJob(with_spark, tenant, "delays")
            bootstrap = f"logs-bootstrap.{namespace.name}:7092"
            job.install("carrier_delays", bootstrap=bootstrap, executor__instances=1)
            jobs.append((job, expected.carrier_delays(sent)))
        for job, wanted in jobs:
            job.wait_for_rows(wanted.num_rows)
            assert expected.difference(job.written().table(), wanted) == ""
    finally:
        other.delete()
