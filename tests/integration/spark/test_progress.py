"""What is told of running queries is what they do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import Position, SyncAdmin, SyncProducer

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from millrace.spark.cluster.offsets import LogPosition
from millrace.spark.errors import InvalidColumnsError, InvalidOptionError
from millrace.spark.progress import QueryWatch, watch_queries, with_written_bytes
from millrace.spark.watching.position_reports import PositionReporter

REPORTS = "millrace.spark.watching.position_reports"


@pytest.fixture
def broker(start_broker: StartBroker) -> RunningBroker:
    broker = start_broker()
    broker.create_topic("clicks", 2)
    return broker


@pytest.fixture
def watch(spark: Any, broker: RunningBroker) -> Iterator[QueryWatch]:
    with watch_queries(spark, port=0, bootstrap_servers=broker.address) as watch:
        yield watch


def send(broker: RunningBroker, count: int) -> None:
    with SyncProducer(broker.address) as producer:
        for number in range(count):
            producer.send("clicks", b"%d" % number, partition=number % 2)


def source(spark: Any, broker: RunningBroker, **options: str) -> Any:
    return (
        spark.readStream.format("millrace")
        .option("bootstrap.servers", broker.address)
        .option("subscribe", "clicks")
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )


def start(
    spark: Any, broker: RunningBroker, folder: Path, sink: str = "noop", **options: str
) -> Any:
    return (
        source(spark, broker, **options)
        .writeStream.format(sink)
        .queryName("etl")
        .option("checkpointLocation", str(folder / "checkpoint"))
    )


def metrics(watch: QueryWatch) -> dict[str, float]:
    with urlopen(f"http://{watch.address}/metrics", timeout=10) as page:
        text = page.read().decode()
    return {
        ",".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def health(watch: QueryWatch) -> tuple[int, str]:
    try:
        with urlopen(f"http://{watch.address}/healthz", timeout=10) as page:
            return page.status, page.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def committed(broker: RunningBroker, name: str) -> dict[tuple[str, int], int]:
    with SyncAdmin(broker.address) as admin:
        found = admin.fetch_positions(name)
    return {place: position.offset for place, position in found.items()}


def test_metrics_health_and_positions_of_a_running_query(
    spark: Any, broker: RunningBroker, watch: QueryWatch, tmp_path: Path
) -> None:
    send(broker, 100)
    query = start(spark, broker, tmp_path, maxOffsetsPerTrigger="60").start()
    try:
        query.processAllAvailable()
        end = {("clicks", 0): 50, ("clicks", 1): 50}
        wait_until(lambda: committed(broker, "etl") == end, "the position is reported")
        found = metrics(watch)
        assert found["millrace_spark_active,etl"] == 1
        assert found["millrace_spark_rows_total,etl"] == 100
        assert found["millrace_spark_batches_total,etl"] == 2
        assert found["millrace_spark_lag_records,etl,clicks"] == 0
        assert found["millrace_spark_batch_duration_seconds,triggerExecution,etl"] > 0
        assert found["millrace_spark_processed_rows_per_second,etl"] > 0
        assert 0 <= found["millrace_spark_last_progress_age_seconds,etl"] < 60
        assert found["millrace_spark_position_report_failures_total"] == 0
        assert health(watch) == (200, "ok\n")
    finally:
        query.stop()
    wait_until(lambda: metrics(watch)["millrace_spark_active,etl"] == 0, "its end is heard of")
    assert health(watch) == (200, "ok\n")


def test_progress_and_metrics_of_a_query_that_writes_have_rows_bytes_and_the_time(
    spark: Any, broker: RunningBroker, watch: QueryWatch, tmp_path: Path
) -> None:
    send(broker, 100)
    broker.create_topic("copy", 2)
    rows = source(spark, broker, maxOffsetsPerTrigger="60").select("key", "value")
    query = (
        with_written_bytes(rows)
        .writeStream.format("millrace")
        .queryName("etl")
        .option("bootstrap.servers", broker.address)
        .option("topic", "copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [progress for progress in query.recentProgress if progress.numInputRows]
    assert [progress.sink.numOutputRows for progress in done] == [60, 40]
    counted = [progress.observedMetrics["millrace_written"].bytes for progress in done]
    assert counted == [60 * 2 - 10, 40 * 2], "numbers below 100 have two digits, or one"
    assert all(progress.durationMs["addBatch"] > 0 for progress in done)
    wait_until(lambda: metrics(watch)["millrace_spark_active,etl"] == 0, "its end is heard of")
    found = metrics(watch)
    assert found["millrace_spark_written_rows_total,etl"] == 100
    assert found["millrace_spark_written_bytes_total,etl"] == 190
    assert found["millrace_spark_batch_duration_seconds,addBatch,etl"] > 0
    with pytest.raises(InvalidColumnsError, match="call this last"):
        with_written_bytes(rows.drop("value"))


def test_the_last_batch_of_a_query_that_ends_is_reported(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    send(broker, 100)
    with watch_queries(spark, port=0, bootstrap_servers=broker.address):
        query = start(spark, broker, tmp_path, maxOffsetsPerTrigger="30")
        query.trigger(availableNow=True).start().awaitTermination()
    assert committed(broker, "etl") == {("clicks", 0): 50, ("clicks", 1): 50}


def test_a_query_that_has_failed_is_not_healthy(
    spark: Any, broker: RunningBroker, watch: QueryWatch, tmp_path: Path
) -> None:
    send(broker, 1)
    query = (
        start(spark, broker, tmp_path, "millrace")
        .option("bootstrap.servers", broker.address)
        .option("topic", "not-there")
        .start()
    )
    with pytest.raises(Exception, match="there is no topic"):
        query.awaitTermination()
    wait_until(lambda: health(watch)[0] == 503, "its failure is told")
    assert health(watch)[1].startswith("query etl has failed: ")


def test_a_query_that_is_silent_is_not_healthy(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    with watch_queries(spark, port=0, stale_after_s=0.0) as watch:
        query = start(spark, broker, tmp_path).start()
        try:
            wait_until(lambda: health(watch)[0] == 503, "nothing was heard of it")
            assert health(watch)[1] == "query etl has not made progress for 0 s\n"
        finally:
            query.stop()


def test_other_pages_and_ports_that_are_taken_are_told(spark: Any, watch: QueryWatch) -> None:
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://{watch.address}/", timeout=10)
    port = int(watch.address.rpartition(":")[2])
    with pytest.raises(InvalidOptionError, match="in use: choose another port"):
        watch_queries(spark, port=port)


def test_the_pages_are_there_under_the_names_that_they_are_given(spark: Any) -> None:
    with watch_queries(spark, port=0, names="a.example.org, b.example.org") as watch:
        for name in ("b.example.org", watch.address):
            request = Request(f"http://{watch.address}/metrics", headers={"Host": name})
            with urlopen(request, timeout=10) as page:
                assert page.status == 200
        request = Request(f"http://{watch.address}/metrics", headers={"Host": "c.example.org"})
        with pytest.raises(HTTPError, match="421") as refused:
            urlopen(request, timeout=10)
        with refused.value as answer:
            assert b"add the name to `names` of watch_queries" in answer.read()


def test_pages_that_ask_for_a_token_tell_probes_a_status_alone(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("t" * 32)
    monkeypatch.setenv("MILLRACE_PAGES_TOKEN_FILE", str(tmp_path / "token"))
    with watch_queries(spark, port=0) as watch:
        with urlopen(f"http://{watch.address}/healthz", timeout=10) as answer:
            assert answer.read() == b"OK\n"
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"http://{watch.address}/metrics", timeout=10)
        shown = Request(
            f"http://{watch.address}/metrics", headers={"Authorization": f"Bearer {'t' * 32}"}
        )
        with urlopen(shown, timeout=10) as answer:
            assert b"millrace_spark" in answer.read()
    with pytest.raises(InvalidOptionError, match="others could read it"):
        watch_queries(spark, port=0, host="0.0.0.0")
    with pytest.raises(InvalidOptionError, match="certificate and key, or neither"):
        watch_queries(spark, port=0, key_file="key")


def test_brokers_that_are_none_are_told_at_once(spark: Any) -> None:
    with pytest.raises(InvalidOptionError, match="bootstrap_servers: 'localhost' is no address"):
        watch_queries(spark, port=0, bootstrap_servers="localhost")


def test_a_reader_with_a_name_reports_how_far_it_is(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    send(broker, 100)
    options = {"groupId": "reader", "maxOffsetsPerTrigger": "40"}
    query = start(spark, broker, tmp_path, **options).trigger(availableNow=True).start()
    query.awaitTermination()
    # Two of three: Spark tells of a batch when the next one begins.
    end = {("clicks", 0): 40, ("clicks", 1): 40}
    wait_until(lambda: committed(broker, "reader") == end, "the position is reported")


def test_positions_are_reported_once_brokers_are_back(broker: RunningBroker) -> None:
    reporter = PositionReporter(broker.address)
    try:
        broker.kill()
        reporter.report("etl", {("clicks", 0): LogPosition(1)})
        wait_until(lambda: reporter.failures > 0, "it fails")
        reporter.report("etl", {("clicks", 0): LogPosition(2, 0)})
        broker.abandon()
        broker.start()
        with SyncAdmin(broker.address) as admin:
            wait_until(
                lambda: admin.fetch_positions("etl") == {("clicks", 0): Position(2, 0)},
                "the newest position is there",
            )
        reporter.report("etl", {("clicks", 0): LogPosition(3)})
    finally:
        reporter.close()
    assert committed(broker, "etl") == {("clicks", 0): 3}


@pytest.mark.nightly
def test_a_report_that_fails_again_and_again_does_not_hold_others_back(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    reporter = PositionReporter(broker.address)
    try:
        reporter.report("gone", {("not-there", 0): LogPosition(1)})
        reporter.report("etl", {("clicks", 0): LogPosition(1)})
        wait_until(lambda: committed(broker, "etl") != {}, "it is reported")
        failures = reporter.failures
        wait_until(lambda: reporter.failures > failures, "the other is tried again")
    finally:
        reporter.close()
    told = [record.getMessage() for record in caplog.records if record.name == REPORTS]
    assert len(told) == 1
    assert told[0].startswith("the position of gone was not reported to the brokers: ")


def test_a_report_that_is_refused_for_good_is_counted_and_dropped(
    broker: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    too_long = "x" * 256
    reporter = PositionReporter(broker.address)
    try:
        reporter.report(too_long, {("clicks", 0): LogPosition(1)})
        wait_until(lambda: reporter.failures == 1, "it is refused")
        reporter.report("etl", {("clicks", 0): LogPosition(1)})
        wait_until(lambda: committed(broker, "etl") != {}, "it is reported")
    finally:
        reporter.close()
    assert reporter.failures == 1
    told = [record.getMessage() for record in caplog.records if record.name == REPORTS]
    assert [too_long in message for message in told] == [True]


def test_a_query_that_ran_before_is_watched_too(
    spark: Any, broker: RunningBroker, tmp_path: Path
) -> None:
    query = start(spark, broker, tmp_path).trigger(processingTime="1 second").start()
    try:
        with watch_queries(spark, port=0, stale_after_s=0.0) as watch:
            assert metrics(watch)["millrace_spark_active,etl"] == 1
            assert health(watch)[0] == 503
    finally:
        query.stop()
