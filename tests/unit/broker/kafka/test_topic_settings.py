import pytest
from docs.generate import COMING_FROM_KAFKA
from docs.kafka_page import coming_from_kafka

from millrace.broker.kafka.administration.topic_settings import (
    WITHOUT_EFFECT,
    ConfigSource,
    ConfigType,
    is_list,
    markdown_table,
    shown,
    to_ours,
    type_of,
)
from millrace.core.errors import InvalidConfigError
from millrace.core.metadata.topic_config import SETTINGS
from millrace.proto.v1 import cluster_pb2 as pb

KAFKAS = frozenset(
    [
        "cleanup.policy",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "delete.retention.ms",
        "file.delete.delay.ms",
        "flush.messages",
        "flush.ms",
        "follower.replication.throttled.replicas",
        "index.interval.bytes",
        "leader.replication.throttled.replicas",
        "local.retention.bytes",
        "local.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.compaction.lag.ms",
        "min.insync.replicas",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "retention.bytes",
        "retention.ms",
        "segment.bytes",
        "segment.index.bytes",
        "segment.jitter.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    ]
)
"""Topics' settings as Kafka 4.1 describes them."""


def test_settings_with_a_meaning_pass_and_the_others_do_not() -> None:
    said = [
        ("retention.ms", "5"),
        ("cleanup.policy", "compact"),
        ("no.such", "1"),
        ("segment.bytes", None),
        *((name, others.value) for name, others in WITHOUT_EFFECT.items()),
    ]
    assert to_ours(said) == {
        "retention.ms": "5",
        "cleanup.policy": "compact",
        "no.such": "1",
        "segment.bytes": None,
    }


def test_each_setting_of_kafkas_is_known() -> None:
    """MirrorMaker takes back, of a topic that it copies, all that have their default."""
    assert WITHOUT_EFFECT.keys() | SETTINGS.keys() >= KAFKAS
    kept = to_ours((name, None) for name in KAFKAS)
    assert kept.keys() == KAFKAS & SETTINGS.keys()


def test_what_means_nothing_is_no_setting_of_ours() -> None:
    """K9."""
    assert not WITHOUT_EFFECT.keys() & SETTINGS.keys()


def test_kafkas_value_for_as_long_as_retention_is_our_default() -> None:
    assert to_ours([("local.retention.ms", "-2"), ("local.retention.bytes", "-2")]) == {
        "local.retention.ms": None,
        "local.retention.bytes": None,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flush.ms", "soon"),
        ("flush.ms", ""),
        ("flush.ms", "1" * 20),
        ("preallocate", "1"),
        ("remote.storage.enable", "true"),
        ("leader.replication.throttled.replicas", "x" * 5000),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError, match=name.replace(".", "[.]")):
        to_ours([(name, value)])


def test_types_are_kafkas() -> None:
    found = {name: type_of(SETTINGS[name]) for name in SETTINGS}
    assert found["retention.ms"] is ConfigType.LONG
    assert found["segment.bytes"] is ConfigType.INT
    assert found["min.insync.replicas"] is ConfigType.INT
    assert found["min.cleanable.dirty.ratio"] is ConfigType.DOUBLE
    assert found["unclean.leader.election.enable"] is ConfigType.BOOLEAN
    assert found["message.timestamp.type"] is ConfigType.STRING
    assert found["cleanup.policy"] is ConfigType.LIST
    assert is_list("leader.replication.throttled.replicas")
    assert not is_list("no.such")


def test_all_settings_are_shown_with_their_defaults() -> None:
    topic = pb.TopicMetadata(
        partitions=[pb.PartitionMetadata(replicas=[0, 1, 2])],
        config=[
            pb.ConfigEntry(name="min.insync.replicas", value="-1", source=pb.CONFIG_SOURCE_DEFAULT),
            pb.ConfigEntry(name="retention.ms", value="5", source=pb.CONFIG_SOURCE_TOPIC),
            pb.ConfigEntry(
                name="unclean.leader.election.enable",
                value="true",
                source=pb.CONFIG_SOURCE_BROKER,
            ),
            pb.ConfigEntry(name="of.a.later.release", value="x", source=pb.CONFIG_SOURCE_TOPIC),
        ],
    )
    found = {setting.name: setting for setting in shown(topic)}
    assert [*found] == sorted(found)
    assert found.keys() - WITHOUT_EFFECT.keys() == {
        "min.insync.replicas",
        "retention.ms",
        "unclean.leader.election.enable",
    }
    assert found["min.insync.replicas"].value == "2"
    assert found["retention.ms"].source is ConfigSource.TOPIC
    assert (found["retention.ms"].value, found["retention.ms"].default) == ("5", "604800000")
    assert found["unclean.leader.election.enable"].source is ConfigSource.STATIC_BROKER
    assert found["preallocate"].documentation.startswith("It has no effect: ")


def test_the_table_of_the_documentation_has_each() -> None:
    table = markdown_table()
    assert all(f"| `{name}` |" in table for name in WITHOUT_EFFECT)


def test_the_documentation_has_the_table() -> None:
    said = COMING_FROM_KAFKA.read_text(encoding="utf-8")
    assert coming_from_kafka(said) == said
    assert markdown_table() in said
