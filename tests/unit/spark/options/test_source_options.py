"""Options: parsed, checked, and refused with what to do."""

import re

import pytest
from docs.generate import SPARK_OPTIONS, spark_options

from millrace.core.settings import settings_of
from millrace.spark.errors import InvalidOptionError
from millrace.spark.options.option import Use
from millrace.spark.options.source_options import REFUSED, SourceOptions, parse_options
from millrace.spark.options.subscriptions import (
    AtOffset,
    AtTime,
    OffsetsOption,
    Partitions,
    TopicPattern,
    Topics,
)

LEAST = {"bootstrap.servers": "localhost:7092", "subscribe": "clicks"}


def parsed(use: Use = Use.BATCH, **others: str) -> SourceOptions:
    return parse_options({**LEAST, **others}, use)


def refusal(given: dict[str, str], use: Use = Use.BATCH) -> str:
    with pytest.raises(InvalidOptionError) as raised:
        parse_options(given, use)
    return raised.value.message


def test_a_user_of_kafka_s_source_changes_the_format_only() -> None:
    options = parse_options(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "subscribepattern": "click.*",
            "startingoffsets": "earliest",
            "maxoffsetspertrigger": "1000",
            "failondataloss": "false",
            "kafkaconsumer.polltimeoutms": "5",
            "kafka.group.id": "etl",
        },
        Use.STREAM,
    )
    assert options.bootstrap_servers == "a:1,b:2"
    assert options.subscription == TopicPattern("click.*")
    assert options.max_offsets_per_trigger == 1000
    assert not options.fail_on_data_loss
    assert (options.poll_timeout_ms, options.group_id) == (5, "etl")


def test_topics_and_partitions_are_named() -> None:
    assert parsed().subscription == Topics(("clicks",))
    assert parsed(subscribe=" a, b,a ").subscription == Topics(("a", "b"))
    chosen = {"bootstrap.servers": "a:1", "assign": '{"a":[1,0],"b":[2]}'}
    assert parse_options(chosen, Use.BATCH).subscription == Partitions(
        frozenset([("a", 0), ("a", 1), ("b", 2)])
    )
    assert TopicPattern("click").matches("click")
    assert not TopicPattern("click").matches("clicks")


def test_positions_are_parsed_and_the_more_exact_option_counts() -> None:
    assert parsed().start(Use.BATCH) == ("startingOffsets", OffsetsOption("earliest"))
    assert parsed().end() == ("endingOffsets", OffsetsOption("latest"))
    stream = parsed(Use.STREAM, startingOffsets='{"clicks":{"0":23,"1":-2}}')
    assert stream.start(Use.STREAM)[1].places == {
        ("clicks", 0): AtOffset(23),
        ("clicks", 1): "earliest",
    }
    without_zone = parsed(startingTimestamp="1970-01-01T00:00:01").start(Use.BATCH)
    assert without_zone == ("startingTimestamp", OffsetsOption(AtTime(1000)))
    both = parsed(startingTimestamp="1000", startingOffsets="earliest")
    assert both.start(Use.BATCH) == ("startingTimestamp", OffsetsOption(AtTime(1000)))
    assert parsed(startingTimestamp="2013-01-01T00:00:00.25Z").start(Use.BATCH)[1] == OffsetsOption(
        AtTime(1356998400250)
    )
    by_time = parsed(endingOffsetsByTimestamp='{"clicks":{"0":5}}').end()
    assert by_time[1].places == {("clicks", 0): AtTime(5)}


def test_positions_must_name_every_partition() -> None:
    where = OffsetsOption(places={("a", 0): AtOffset(1), ("b", 7): AtOffset(1)})
    with pytest.raises(InvalidOptionError, match=r"Missing: a-1; not read: b-7"):
        where.of("startingOffsets", frozenset([("a", 0), ("a", 1)]))


def test_units() -> None:
    stream = parsed(Use.STREAM, startingOffsets="earliest", maxBytesPerTrigger="64MB")
    assert stream.max_bytes_per_trigger == 64_000_000
    assert parsed(fetchMaxBytes="1MiB").fetch_max_bytes == 1 << 20
    delayed = parsed(
        Use.STREAM, startingOffsets="earliest", minOffsetsPerTrigger="9", maxTriggerDelay="30s"
    )
    assert delayed.max_trigger_delay_ms == 30_000


def test_kafkas_name_of_the_isolation_works_and_its_default_does_not() -> None:
    assert parsed().isolation == "read_committed"
    for name in ("isolation", "kafka.isolation.level"):
        chosen = parsed(Use.BATCH, **{name: "read_uncommitted"})
        assert chosen.isolation == "read_uncommitted"


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("subscibe", "x", "subscibe: there is no such setting; did you mean 'subscribe'?"),
        ("maxoffsetpertrigger", "1", "maxOffsetsPerTrigger has no meaning in a batch"),
        ("zzz", "1", "docs/spark-options.md lists all"),
        ("path", "x", "topics are named by subscribe"),
        ("pushdown", "true", "keeps the filters of one query for the next one"),
        ("kafka.auto.offset.reset", "x", "auto.offset.reset is not an option: say where to begin"),
        ("value.deserializer", "x", "decode the column in Spark"),
        ("isolation.level", "x", "it is isolation here, by default read_committed"),
        ("maxOffsetsPerTrigger", "5", "has no meaning in a batch"),
        ("minPartitions", "0", "minPartitions = '0': must be 1 to 100000"),
        ("minPartitions", "two", "must be a whole number"),
        ("failOnDataLoss", "maybe", "must be true or false"),
        ("fetchMaxBytes", "1", "must be 65536 to 1073741824 bytes"),
        ("fetchMaxBytes", "8m", "must be bytes as a whole number, or with one of B, KiB, MiB"),
        ("startingOffsets", "soon", "it is no JSON"),
        ("startingOffsets", '{"a":{"0":-3}}', "-3 is no whole number from 0"),
        ("startingOffsets", '{"a":{"x":3}}', "is no partition of topic"),
        ("startingOffsets", '{"a":{"00":3}}', "'00' is no partition of topic 'a': write 0, 1"),
        ("startingOffsets", '{"a":{"٣":3}}', "'٣' is no partition of topic 'a'"),
        ("startingOffsets", '{"a":{"0":3,"0":4}}', "an object has the name '0' twice"),
        ("startingOffsets", '{"a":{"0":3},"a":{"1":4}}', "an object has the name 'a' twice"),
        (
            "startingOffsets",
            '{"a":{"0":3},"default/a":{"0":4}}',
            "name a topic twice, once with its namespace and once without",
        ),
        ("startingOffsets", '{"a":{"0":1.0}}', "1.0 is no whole number"),
        ("startingOffsets", '{"a":{"0":-2.0}}', "-2.0 is no whole number"),
        ("startingOffsets", '{"a":{"0":true}}', "True is no whole number"),
        ("startingOffsets", f'{{"a":{{"0":{"9" * 5000}}}}}', "startingOffsets = "),
        ("startingOffsets", '{"a":' * 100_000 + "1" + "}" * 100_000, "it is nested too deeply"),
        ("assign", '{"a":[1.0]}', "1.0 is no whole number"),
        ("assign", "[" * 100_000, "it is nested too deeply"),
        ("startingTimestamp", "١٢", "give ms since 1970 UTC"),
        ("startingTimestamp", "9" * 5000, "give ms since 1970 UTC"),
        ("minPartitions", "1.0", "must be a whole number"),
        ("minPartitions", "٣", "must be a whole number"),
        ("minPartitions", "9" * 5000, "must be a whole number"),
        ("startingOffsets", "latest", "a batch that begins at the latest offset reads nothing"),
        ("endingOffsets", "earliest", "a batch that ends at the earliest offset reads nothing"),
        ("startingTimestamp", "yesterday", "give ms since 1970 UTC"),
        ("startingTimestamp", str(2**63), f"is no whole number from 0 to {2**63 - 1}"),
        ("startingOffsets", f'{{"a":{{"0":{2**63}}}}}', "is no whole number from 0"),
        ("startingOffsetsByTimestamp", f'{{"a":{{"0":{2**63}}}}}', "is no whole number from 0"),
        ("startingOffsetsByTimestampStrategy", "guess", "must be error or latest"),
        ("subscribePattern", "a.*", "exactly one of subscribe, subscribePattern and assign"),
        (
            "kafka.bootstrap.servers",
            "a:1",
            "kafka.bootstrap.servers means the same: give one of them",
        ),
        ("bootstrap.servers", "a:1,b", "'b' is no address: write host:port, such as localhost:7"),
        ("bootstrap.servers", " , ", "name at least one broker"),
    ],
)
def test_a_wrong_option_is_refused_with_what_to_do(name: str, text: str, told: str) -> None:
    assert told in refusal({**LEAST, name: text})


def test_all_that_is_wrong_is_told_at_once() -> None:
    told = refusal({**LEAST, "bootstrap.servers": "a", "zzz": "1", "minPartitions": "0"})
    assert "'a' is no address" in told
    assert "zzz" in told
    assert "minPartitions" in told


@pytest.mark.parametrize("name", ["kafka.sasl.jaas.config", "kafka.ssl.key.password", "auth.token"])
def test_a_secret_is_refused_and_never_shown(name: str) -> None:
    told = refusal({**LEAST, name: "hunter2"})
    assert "secrets must not be in them" in told
    assert "hunter2" not in told


def test_what_is_missing_or_contradicts_is_told() -> None:
    assert "bootstrap.servers is missing" in refusal({"subscribe": "a"})
    assert "With a table, Spark hands over what the query gives alone" in refusal({})
    assert "exactly one of" in refusal({"bootstrap.servers": "a:1"})
    both = {**LEAST, "minPartitions": "9", "maxPartitions": "2"}
    assert "minPartitions=9 is more than maxPartitions=2" in refusal(both)
    both = {**LEAST, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "2"}
    assert "is more than" in refusal({**both, "startingOffsets": "earliest"}, Use.STREAM)
    alias = {**LEAST, "minOffsetsPerTrigger": "9", "maxRecordsPerTrigger": "2"}
    told = refusal({**alias, "startingOffsets": "earliest"}, Use.STREAM)
    assert "minOffsetsPerTrigger=9 is more than maxRecordsPerTrigger=2" in told


def test_a_stream_that_begins_at_the_latest_offset_needs_a_name() -> None:
    told = refusal(LEAST, Use.STREAM)
    assert (
        "a stream begins at the latest offset by default, which needs groupId in a stream" in told
    )
    told = refusal({**LEAST, "startingOffsets": "latest"}, Use.STREAM)
    assert "startingOffsets may be the latest offset, which needs groupId" in told
    late = {**LEAST, "startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "latest"}
    assert "startingTimestamp may be the latest offset" in refusal(late, Use.STREAM)
    assert parsed(Use.STREAM, groupId="etl").group_id == "etl"
    assert "commitOffsets needs groupId" in refusal({**LEAST, "commitOffsets": "true"}, Use.STREAM)
    assert "endingOffsets has no meaning in a stream" in refusal(
        {**LEAST, "endingOffsets": "latest"}, Use.STREAM
    )


def test_the_page_about_options_is_what_the_code_says() -> None:
    assert SPARK_OPTIONS.read_text(encoding="utf-8") == spark_options(), "run `make docs`"
    assert re.search(r"\| `maxPartitions` \|", spark_options())


def test_topics_without_a_namespace_are_of_that_of_the_query() -> None:
    found = parsed(
        subscribe="clicks, other/clicks,default/clicks,shop/clicks",
        namespace="shop",
        startingOffsets='{"clicks":{"0":7},"other/clicks":{"0":-2}}',
    )
    assert found.subscription == Topics(("shop/clicks", "other/clicks", "clicks"))
    assert found.starting_offsets == OffsetsOption(
        places={("shop/clicks", 0): AtOffset(7), ("other/clicks", 0): "earliest"}
    )
    brokers = {"bootstrap.servers": "localhost:7092"}
    assigned = parse_options(
        {**brokers, "namespace": "shop", "assign": '{"clicks":[0],"default/clicks":[1]}'}, Use.BATCH
    )
    assert assigned.subscription == Partitions(frozenset({("shop/clicks", 0), ("clicks", 1)}))
    pattern = {**brokers, "namespace": "shop", "subscribePattern": "shop/.*"}
    assert parse_options(pattern, Use.BATCH).subscription == TopicPattern("shop/.*")


def test_a_namespace_that_cannot_be_is_told() -> None:
    assert "namespace = 'Shop': must be a Kubernetes namespace" in refusal(
        {**LEAST, "namespace": "Shop"}
    )
    assert "must be 1 to 249 ASCII letters" in refusal({**LEAST, "subscribe": "a b"})


@pytest.mark.parametrize(
    ("name", "in_batch", "in_stream"),
    [
        ("enable.auto.commit", "a batch keeps no offsets", "the checkpoint keeps the offsets"),
        ("groupIdPrefix", "a batch is of no group", "name the query with groupId"),
        ("pushdown", "filterPushdown=true", "Spark pushes no filters into a stream"),
        ("endingOffset", "did you mean 'endingOffsets'?", "endingOffsets has no meaning in a str"),
        ("groupIdd", "groupId has no meaning in a batch", "did you mean 'groupId'?"),
    ],
)
def test_advice_is_of_the_kind_of_the_query(name: str, in_batch: str, in_stream: str) -> None:
    given = {**LEAST, "startingOffsets": "earliest", name: "1"}
    for use, mine, other in (
        (Use.BATCH, in_batch, in_stream),
        (Use.STREAM, in_stream, in_batch),
    ):
        told = refusal(given, use)
        assert mine in told
        assert other not in told


@pytest.mark.parametrize("use", [Use.BATCH, Use.STREAM])
def test_no_advice_names_an_option_that_the_query_cannot_have(use: Use) -> None:
    others = [
        setting.name
        for setting in settings_of(SourceOptions).values()
        if setting.description.scope not in (None, use)
    ]
    assert others
    for name in REFUSED:
        told = refusal({**LEAST, "startingOffsets": "earliest", name: "1"}, use)
        assert not [other for other in others if re.search(rf"\b{other}\b", told)]


@pytest.mark.parametrize("name", ["subscribe", "assign", "startingOffsets"])
def test_a_name_that_is_no_topic_s_is_told_with_its_option(name: str) -> None:
    bad = {"subscribe": "a b", "assign": '{"a b":[0]}', "startingOffsets": '{"a b":{"0":1}}'}[name]
    given = {**LEAST, name: bad}
    if name == "assign":
        del given["subscribe"]
    assert refusal(given).startswith(f"{name}: topic 'a b'")
