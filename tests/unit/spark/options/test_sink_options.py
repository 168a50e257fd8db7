"""Options of writers: parsed, checked, and refused with what to do."""

import pytest

from millrace.spark.errors import InvalidOptionError
from millrace.spark.options.option import Use
from millrace.spark.options.sink_options import SinkOptions, parse_sink_options

LEAST = {"bootstrap.servers": "localhost:7092", "topic": "clicks"}


def test_a_user_of_kafka_s_sink_changes_the_format_only() -> None:
    options = parse_sink_options(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "topic": "default/clicks",
            "kafka.linger.ms": "20",
            "kafka.batch.size": "16384",
            "kafka.buffer.memory": "33554432",
            "kafka.compression.type": "zstd",
            "kafka.delivery.timeout.ms": "60000",
            "checkpointlocation": "checkpoint",
            "queryname": "copying",
        },
        Use.STREAM,
    )
    assert options == SinkOptions(
        bootstrap_servers="a:1,b:2",
        topic="clicks",
        linger_ms=20,
        batch_bytes=16384,
        buffer_bytes=32 << 20,
        compression="zstd",
        delivery_timeout_ms=60_000,
    )
    assert options.delivery == "exactly-once"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("topc", "x", "topc: there is no such setting; did you mean 'topic'?"),
        ("topic", "a b", "topic='a b': topic 'a b': the name must be"),
        ("delivery", "at-most-once", "must be exactly-once or at-least-once"),
        ("transactionalIdPrefix", "x", "give it an applicationId"),
        ("kafka.transactional.id", "x", "an application id and a target make it"),
        ("txnAppId", "loads", "txnAppId=loads is without txnVersion: give both, or none"),
        ("txnVersion", "7", "txnVersion=7 is without txnAppId: give both, or none"),
        ("txnVersion", "-1", "txnVersion = '-1'"),
        ("txnTarget", " ", "txnTarget = ' ': must not be empty"),
        ("applicationId", "loads", "applicationId has no meaning in a batch: leave it out"),
        ("kafka.acks", "1", "acks is not an option: a row counts as written when all in-sync"),
        ("kafka.enable.idempotence", "true", "never duplicated"),
        ("startingOffsets", "earliest", "startingOffsets is not an option: it is for reading"),
        ("includeHeaders", "true", "it is for reading: leave it out"),
        ("path", "clicks", "the topic is named by the option topic"),
        ("checkpointLocation", "x", "checkpointlocation: there is no such setting"),
        ("partitioner", "murmur2", "must be keyed or round_robin"),
        (
            "bootstrap.servers",
            "broker",
            "bootstrap.servers = 'broker': 'broker' is no address: write",
        ),
        ("lingerMs", "2h", "lingerMs = '2h': must be 0 to 3600000 ms"),
        (
            "lingerMs",
            "3m",
            "lingerMs=3m is not less than deliveryTimeoutMs, by default 120000 (2min),",
        ),
    ],
)
def test_a_wrong_option_is_refused_with_what_to_do(name: str, text: str, told: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        parse_sink_options({**LEAST, name: text}, Use.BATCH)
    assert told in raised.value.message


def test_what_is_missing_or_contradicts_is_told() -> None:
    with pytest.raises(InvalidOptionError, match=r"bootstrap\.servers is missing"):
        parse_sink_options({"topic": "clicks"}, Use.BATCH)
    with pytest.raises(InvalidOptionError, match="batchBytes=2MiB is more than bufferBytes=1MiB"):
        parse_sink_options({**LEAST, "batchBytes": "2MiB", "bufferBytes": "1MiB"}, Use.BATCH)
    assert parse_sink_options({"bootstrap.servers": "a:1"}, Use.BATCH).topic is None


STREAM = {"bootstrap.servers": "a:1"}


def test_an_application_and_a_target_are_a_transactional_id() -> None:
    def made(use: Use = Use.STREAM, **given: str) -> str:
        options = parse_sink_options({**STREAM, **given}, use)
        return options.transactional_id("query")

    assert made(topic="clicks") == "default/query@clicks"
    assert made() == "default/query@all-topics"
    assert made(topic="t" * 249) == f"default/query@{'t' * 200}"
    assert made(topic="clicks", txnTarget="good") == "default/query@good"
    assert made(topic="clicks", applicationId="etl", namespace="shop") == "shop/etl@shop/clicks"
    assert made(topic="clicks", applicationId="shop/etl") == "shop/etl@clicks"
    version = {"txnAppId": "etl", "txnVersion": "0"}
    assert made(Use.BATCH, topic="clicks", **version) == "default/etl@clicks"
    assert made(Use.BATCH, txnTarget="both", **version) == "default/etl@both"


@pytest.mark.parametrize(
    ("use", "given", "told"),
    [
        (Use.STREAM, {"applicationId": "etl"}, "applicationId=etl is without a target"),
        (Use.BATCH, {"txnAppId": "etl", "txnVersion": "1"}, "txnAppId=etl is without a target"),
        (Use.STREAM, {"txnVersion": "1", "topic": "t"}, "txnVersion has no meaning in a stream"),
        (
            Use.STREAM,
            {"applicationId": "etl", "topic": "t", "delivery": "At-Least-Once"},
            "applicationId=etl needs delivery=exactly-once",
        ),
        (Use.STREAM, {"applicationId": "Shop/etl", "topic": "t"}, "its namespace"),
        (
            Use.STREAM,
            {"applicationId": "x" * 200, "topic": "t" * 100},
            "choose one of 1 to 255 bytes. The id is that of the application, @, and",
        ),
    ],
)
def test_what_a_transaction_lacks_is_told(use: Use, given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        parse_sink_options({**STREAM, **given}, use)
    assert told in raised.value.message


def test_the_former_name_of_delivery_still_works() -> None:
    options = parse_sink_options({**LEAST, "deliveryGuarantee": "at-least-once"}, Use.BATCH)
    assert not options.is_exactly_once
