"""Spark's source and sink where brokers ask who reads and writes."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.integration.guarded import GuardedBroker

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from millrace.client import AuthenticationFailedError, SyncAdmin, TopicAuthorizationFailedError
from millrace.spark.cluster.lookups import Lookups
from millrace.spark.options.option import Use
from millrace.spark.options.sink_options import parse_sink_options
from millrace.spark.options.source_options import parse_options
from millrace.spark.sink.writer import open_producer
from millrace.spark.source.range_reader import _ConsumerKind, _open_consumer


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    running = GuardedBroker(tmp_path_factory.mktemp("guarded"))
    try:
        running.start()
        with SyncAdmin(running.address, token_file=str(running.token_file("root"))) as admin:
            admin.create_topic("team/orders")
        yield running
    finally:
        running.abandon()


def options(broker: GuardedBroker, token_file: Path | None, **others: str) -> dict[str, str]:
    said = {"bootstrap.servers": broker.address, **others}
    return said if token_file is None else said | {"tokenFile": str(token_file)}


def test_the_source_and_the_sink_have_the_token_of_their_option(broker: GuardedBroker) -> None:
    writing = parse_sink_options(
        options(broker, broker.token_file("producer"), topic="team/orders"), Use.BATCH
    )
    with open_producer(writing) as producer:
        producer.send("team/orders", b"row").result(20)
    reading = parse_options(
        options(broker, broker.token_file("consumer"), subscribe="team/orders"), Use.BATCH
    )
    with closing(Lookups(reading)) as lookups:
        assert lookups.ask(lambda admin: admin.list_topics()) == ["team/orders"]
    with _open_consumer(_ConsumerKind.of(reading)) as consumer:
        consumer.assign([("team/orders", 0)], start="beginning")
        assert [record.value for record in consumer.poll(timeout_ms=10_000)] == [b"row"]
    with (
        open_producer(
            parse_sink_options(
                options(broker, broker.token_file("consumer"), topic="team/orders"), Use.BATCH
            )
        ) as producer,
        pytest.raises(TopicAuthorizationFailedError),
    ):
        producer.send("team/orders", b"row").result(20)


def test_a_query_without_a_token_is_told_before_it_begins(
    broker: GuardedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = options(broker, None, subscribe="team/orders")
    with (
        closing(Lookups(parse_options(said, Use.BATCH))) as lookups,
        pytest.raises(AuthenticationFailedError, match="MILLRACE_TOKEN_FILE"),
    ):
        lookups.ask(lambda admin: admin.list_topics())
    monkeypatch.setenv("MILLRACE_TOKEN_FILE", str(broker.token_file("consumer")))
    with closing(Lookups(parse_options(said, Use.BATCH))) as lookups:
        assert lookups.ask(lambda admin: admin.list_topics()) == ["team/orders"]
