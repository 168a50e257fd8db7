"""Spark's source and sink where brokers ask who reads and writes."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.guarded import GuardedBroker, replace_file, token_of
from tests.integration.running_broker import wait_until
from tests.integration.spark.written import wait_until_decided

pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")

from millrace.client import (
    AuthenticationFailedError,
    SyncAdmin,
    SyncProducer,
    TopicAuthorizationFailedError,
)
from millrace.core.guard.token_file import new_entry, tokens_to_text
from millrace.spark.cluster.lookups import Lookups
from millrace.spark.options.option import Use
from millrace.spark.options.sink_options import parse_sink_options
from millrace.spark.options.source_options import parse_options
from millrace.spark.sink.writer import open_producer
from millrace.spark.source.range_reader import _ConsumerKind, _open_consumer

pytestmark = pytest.mark.timeout(300)  # Several queries on a machine that is busy.


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


def tokens(broker: GuardedBroker, *owners: str) -> None:
    """Have these tokens prove the owner, and those of the others themselves."""
    proved = {token_of(name): name for name in ("consumer", "producer", "root")}
    proved |= dict.fromkeys(owners, "owner")
    entries = [new_entry(token, name, [], None, b"s" * 16) for token, name in proved.items()]
    replace_file(broker.tokens, tokens_to_text(entries))


def test_a_long_query_goes_on_with_the_token_that_its_file_has_now(
    broker: GuardedBroker, spark: Any, tmp_path: Path
) -> None:
    first, second = (f"mlr_{name}_{'x' * 30}" for name in ("first", "second"))
    root, file = str(broker.token_file("root")), tmp_path / "token"
    file.write_text(first)
    tokens(broker, first, second)
    wait_until(lambda: is_known(broker, str(file)), "the first token counts")
    with SyncAdmin(broker.address, token_file=root) as admin:
        for topic in ("team/in", "team/out"):
            admin.create_topic(topic)

    def send(numbers: range) -> None:
        with SyncProducer(broker.address, token_file=root) as producer:
            for number in numbers:
                producer.send("team/in", b"%d" % number)

    said = {"bootstrap.servers": broker.address, "tokenFile": str(file)}
    query = (
        spark.readStream.format("millrace")
        .options(**said, subscribe="team/in", startingOffsets="earliest")
        .load()
        .select("value")
        .writeStream.format("millrace")
        .options(**said, topic="team/out", applicationId="team/copy")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        send(range(10))
        query.processAllAvailable()
        replace_file(file, second)
        time.sleep(2)  # Clients look at the file every second.
        tokens(broker, second)  # The first one is taken back: its streams end within 10 s.
        refused = str(tmp_path / "first")
        Path(refused).write_text(first)
        wait_until(lambda: not is_known(broker, refused), "the first token is refused")
        for start in range(10, 40, 10):
            send(range(start, start + 10))
            query.processAllAvailable()
            query.awaitTermination(5)
        assert query.exception() is None
    finally:
        query.stop()
    wait_until_decided(broker.address, "team/out", token_file=root)
    found = spark.read.format("millrace").options(**said, subscribe="team/out").load()
    assert sorted(int(row.value) for row in found.select("value").collect()) == list(range(40))


def is_known(broker: GuardedBroker, token_file: str) -> bool:
    try:
        with SyncAdmin(broker.address, token_file=token_file) as admin:
            admin.list_topics()
    except AuthenticationFailedError:
        return False
    return True


@pytest.mark.parametrize(
    ("who", "topic", "told"),
    [
        ("producer", "team/orders", "'producer' may not consume topic 'team/orders'"),
        ("consumer", "other/secret", "'consumer' may not describe topic 'other/secret'"),
    ],
)
def test_a_query_without_the_right_to_read_fails_and_says_which_one_is_missing(
    broker: GuardedBroker, spark: Any, who: str, topic: str, told: str
) -> None:
    with SyncAdmin(broker.address, token_file=str(broker.token_file("root"))) as admin:
        if topic not in admin.list_topics():
            admin.create_topic(topic)
    with SyncProducer(broker.address, token_file=str(broker.token_file("root"))) as producer:
        producer.send(topic, b"row").result(20)
    said = options(broker, broker.token_file(who), subscribe=topic)
    with pytest.raises(Exception, match="TopicAuthorizationFailedError") as raised:
        spark.read.format("millrace").options(**said).load().collect()
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("who", "given", "told"),
    [
        (
            "consumer",
            {"delivery": "at-least-once"},
            "'consumer' may not produce topic 'team/orders'",
        ),
        ("producer", {}, "'producer' may not transact"),
        (
            "consumer",
            {"txnAppId": "team/copy", "txnVersion": "1"},
            "'consumer' may not transact",
        ),
    ],
)
def test_a_query_without_the_right_to_write_fails_says_which_one_is_missing_and_shows_nothing(
    broker: GuardedBroker, spark: Any, who: str, given: dict[str, str], told: str
) -> None:
    root = options(broker, broker.token_file("root"), subscribe="team/orders")

    def count() -> int:
        return int(spark.read.format("millrace").options(**root).load().count())

    before = count()
    said = options(broker, broker.token_file(who), topic="team/orders", **given)
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value")
    with pytest.raises(Exception, match="AuthorizationFailedError") as raised:
        rows.write.format("millrace").options(**said).mode("append").save()
    assert told in str(raised.value)
    assert count() == before
