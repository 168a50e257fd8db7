"""Administration by clients of Kafka: topics, partitions, settings, replicas, quotas."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ACLFilter, ACLOperation, ACLPermissionType, ConfigResource, ResourcePattern
from kafka.admin import ResourceType as AclResourceType
from kafka.errors import (
    InvalidPartitionsError,
    InvalidTopicError,
    SecurityDisabledError,
    TopicAlreadyExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from kafka.protocol.admin import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeClientQuotasRequest,
    DescribeConfigsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
)
from tests.integration.conftest import StartBroker
from tests.integration.kafka.by_hand import asked
from tests.integration.kafka.ends import KAFKA, bootstrap, closing
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.broker.kafka.administration.topic_settings import WITHOUT_EFFECT
from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.client import SyncAdmin, SyncProducer
from millrace.core.metadata.topic_config import SETTINGS

confluent = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")


def own_settings(broker: RunningBroker, topic: str) -> dict[str, str]:
    """Return the settings that a topic keeps, as Millrace's own client sees them."""
    with SyncAdmin(broker.address) as admin:
        config = admin.describe_topics([topic])[topic].config
    return {name: found.value for name, found in config.items() if found.source == "topic"}


@pytest.fixture
def librdkafka(kafka_broker: RunningBroker) -> Any:
    return confluent_admin.AdminClient({"bootstrap.servers": bootstrap(kafka_broker)})


@pytest.fixture
def python(kafka_broker: RunningBroker) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap(kafka_broker))) as client:
        yield client


def result_of(futures: Mapping[Any, Any]) -> Any:
    """Return the only result of a call of confluent-kafka."""
    (future,) = futures.values()
    return future.result(20)


def refusal_of(futures: Mapping[Any, Any]) -> Any:
    """Return the error of a call of confluent-kafka."""
    with pytest.raises(confluent.KafkaException) as caught:
        result_of(futures)
    return caught.value.args[0]


def new(name: str, **more: Any) -> Any:
    """Return a topic for CreateTopics."""
    numbers: dict[str, Any] = {"num_partitions": -1, "replication_factor": -1}
    more = {**numbers, "assignments": [], "configs": [], **more}
    return CreateTopicsRequest.CreatableTopic(name=name, **more)


def setting(name: str, value: str | None) -> Any:
    """Return a setting for CreateTopics."""
    return CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=name, value=value)


def by_hand(*replicas: list[int], first: int = 0) -> list[Any]:
    """Return an assignment for CreateTopics."""
    kind = CreateTopicsRequest.CreatableTopic.CreatableReplicaAssignment
    return [
        kind(partition_index=number, broker_ids=those)
        for number, those in enumerate(replicas, first)
    ]


# Topics.


def test_librdkafka_creates_grows_and_deletes_a_topic(
    librdkafka: Any, kafka_broker: RunningBroker, topic_name: str
) -> None:
    topic = confluent_admin.NewTopic(
        topic_name, 2, 1, config={"retention.ms": "3600000", "compression.type": "zstd"}
    )
    result_of(librdkafka.create_topics([topic]))
    assert len(librdkafka.list_topics(topic_name, timeout=20).topics[topic_name].partitions) == 2
    assert own_settings(kafka_broker, topic_name) == {"retention.ms": "3600000"}
    again = refusal_of(librdkafka.create_topics([topic]))
    assert again.code() == confluent.KafkaError.TOPIC_ALREADY_EXISTS
    assert "exists" in again.str()
    result_of(librdkafka.create_partitions([confluent_admin.NewPartitions(topic_name, 5)]))
    assert len(librdkafka.list_topics(topic_name, timeout=20).topics[topic_name].partitions) == 5
    result_of(librdkafka.delete_topics([topic_name]))
    assert topic_name not in librdkafka.list_topics(timeout=20).topics
    gone = refusal_of(librdkafka.delete_topics([topic_name]))
    assert gone.code() == confluent.KafkaError.UNKNOWN_TOPIC_OR_PART


def test_kafka_python_creates_grows_and_deletes_a_topic(
    python: KafkaAdminClient, topic_name: str
) -> None:
    made = python.create_topics({topic_name: {"configs": {"cleanup.policy": "compact"}}})
    (topic,) = made["topics"]
    assert topic["num_partitions"] >= 1
    assert topic["replication_factor"] == 1
    assert topic["configs"]["cleanup.policy"]["value"] == "compact"
    assert topic["configs"]["cleanup.policy"]["config_source"] == "DYNAMIC_TOPIC_CONFIG"
    with pytest.raises(TopicAlreadyExistsError):
        python.create_topics([topic_name])
    python.create_partitions({topic_name: 4})
    with pytest.raises(InvalidPartitionsError):
        python.create_partitions({topic_name: 4})
    with pytest.raises(InvalidPartitionsError):
        python.create_partitions({topic_name: 3})
    python.delete_topics([topic_name])
    with pytest.raises(UnknownTopicOrPartitionError):
        python.delete_topics([topic_name])


def test_a_topic_is_deleted_by_its_id(python: KafkaAdminClient, topic_name: str) -> None:
    (made,) = python.create_topics([topic_name])["topics"]
    python.delete_topics([UUID(str(made["topic_id"]))])
    assert topic_name not in python.list_topics()


def test_validation_changes_nothing(
    librdkafka: Any, kafka_broker: RunningBroker, topic_name: str
) -> None:
    topic = confluent_admin.NewTopic(topic_name, 2, 1)
    result_of(librdkafka.create_topics([topic], validate_only=True))
    assert topic_name not in librdkafka.list_topics(timeout=20).topics
    too_many = confluent_admin.NewTopic(topic_name, 2, 7)
    refused = refusal_of(librdkafka.create_topics([too_many], validate_only=True))
    assert refused.code() == confluent.KafkaError.INVALID_REPLICATION_FACTOR
    result_of(librdkafka.create_topics([topic]))
    more = confluent_admin.NewPartitions(topic_name, 3)
    result_of(librdkafka.create_partitions([more], validate_only=True))
    assert len(librdkafka.list_topics(topic_name, timeout=20).topics[topic_name].partitions) == 2
    message = CreateTopicsRequest(topics=[new(f"{topic_name}-")], validate_only=True)
    (validated,) = asked(kafka_broker, ApiKey.CREATE_TOPICS, 7, message).topics
    assert (validated.error_code, validated.topic_id) == (0, None)


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (new("t", num_partitions=0), Code.INVALID_PARTITIONS),
        (new("t", num_partitions=-2), Code.INVALID_PARTITIONS),
        (new("t", num_partitions=1_000_000), Code.INVALID_PARTITIONS),
        (new("t", replication_factor=0), Code.INVALID_REPLICATION_FACTOR),
        (new("t", replication_factor=-3), Code.INVALID_REPLICATION_FACTOR),
        (new("t", replication_factor=2), Code.INVALID_REPLICATION_FACTOR),
        (new("no spaces"), Code.INVALID_TOPIC_EXCEPTION),
        (new("other/t"), Code.INVALID_TOPIC_EXCEPTION),
        (new(""), Code.INVALID_TOPIC_EXCEPTION),
        (new("__positions"), Code.INVALID_TOPIC_EXCEPTION),
        (new("t", configs=[setting("retention.m", "1")]), Code.INVALID_CONFIG),
        (new("t", configs=[setting("retention.ms", "a")]), Code.INVALID_CONFIG),
        (new("t", configs=[setting("retention.ms", None)]), Code.INVALID_CONFIG),
        (new("t", configs=[setting("flush.ms", "a")]), Code.INVALID_CONFIG),
        (new("t", configs=[setting("remote.storage.enable", "true")]), Code.INVALID_CONFIG),
        (new("t", assignments=by_hand([0]), num_partitions=1), Code.INVALID_REQUEST),
        (new("t", assignments=by_hand([0]), replication_factor=1), Code.INVALID_REQUEST),
        (new("t", assignments=by_hand([9])), Code.INVALID_REPLICA_ASSIGNMENT),
        (new("t", assignments=by_hand([])), Code.INVALID_REPLICA_ASSIGNMENT),
        (new("t", assignments=by_hand([0], first=1)), Code.INVALID_REPLICA_ASSIGNMENT),
        (new("t", assignments=by_hand([0]) * 2), Code.INVALID_REPLICA_ASSIGNMENT),
    ],
)
def test_a_topic_that_cannot_be_is_refused_as_by_kafka(
    kafka_broker: RunningBroker, topic: Any, code: int
) -> None:
    (answer,) = asked(
        kafka_broker, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[topic])
    ).topics
    assert (answer.name, answer.error_code) == (topic.name, code)
    assert answer.error_message


@pytest.mark.parametrize("version", range(2, 8))
def test_every_version_of_create_topics_is_answered(
    kafka_broker: RunningBroker, topic_name: str, version: int
) -> None:
    topics = [new(topic_name, num_partitions=3), new("no spaces"), new("a"), new("a")]
    found = asked(
        kafka_broker, ApiKey.CREATE_TOPICS, version, CreateTopicsRequest(topics=topics)
    ).topics
    codes = {topic.name: topic.error_code for topic in found}
    assert codes == {
        topic_name: 0,
        "no spaces": Code.INVALID_TOPIC_EXCEPTION,
        "a": Code.INVALID_REQUEST,
    }
    if version >= 5:
        made = next(topic for topic in found if topic.name == topic_name)
        assert (made.num_partitions, made.replication_factor) == (3, 1)
        assert {entry.name for entry in made.configs} == SETTINGS.keys() | WITHOUT_EFFECT.keys()


@pytest.mark.parametrize("version", range(1, 7))
def test_every_version_of_delete_topics_is_answered(
    kafka_broker: RunningBroker, topic_name: str, version: int
) -> None:
    topics = [new(topic_name, num_partitions=1)]
    asked(kafka_broker, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics))
    names = [topic_name, "nowhere", "twice", "twice"]
    state = DeleteTopicsRequest.DeleteTopicState
    message = (
        DeleteTopicsRequest(topics=[state(name=name, topic_id=UUID(int=0)) for name in names])
        if version >= 6
        else DeleteTopicsRequest(topic_names=names)
    )
    found = asked(kafka_broker, ApiKey.DELETE_TOPICS, version, message).responses
    assert {topic.name: topic.error_code for topic in found} == {
        topic_name: 0,
        "nowhere": Code.UNKNOWN_TOPIC_OR_PARTITION,
        "twice": Code.INVALID_REQUEST,
    }


def test_topics_that_are_named_badly_for_deletion_are_refused(kafka_broker: RunningBroker) -> None:
    state = DeleteTopicsRequest.DeleteTopicState
    unknown = UUID("00112233-4455-6677-8899-aabbccddeeff")
    topics = [
        state(name=None, topic_id=unknown),
        state(name="a", topic_id=unknown),
        state(name=None, topic_id=UUID(int=0)),
        state(name="__positions", topic_id=UUID(int=0)),
    ]
    message = DeleteTopicsRequest(topics=topics)
    found = asked(kafka_broker, ApiKey.DELETE_TOPICS, 6, message).responses
    assert [topic.error_code for topic in found] == [
        Code.UNKNOWN_TOPIC_ID,
        Code.INVALID_REQUEST,
        Code.INVALID_REQUEST,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert found[0].name is None


def test_a_topic_that_is_protected_is_not_deleted(
    python: KafkaAdminClient, kafka_broker: RunningBroker, topic_name: str
) -> None:
    python.create_topics({topic_name: {"configs": {"deletion.protection": "true"}}})
    message = DeleteTopicsRequest(topic_names=[topic_name])
    (found,) = asked(kafka_broker, ApiKey.DELETE_TOPICS, 5, message).responses
    assert found.error_code == Code.POLICY_VIOLATION
    assert "protected" in found.error_message


@pytest.mark.parametrize("version", range(4))
def test_every_version_of_create_partitions_is_answered(
    kafka_broker: RunningBroker, topic_name: str, version: int
) -> None:
    topics = [new(topic_name, num_partitions=1)]
    asked(kafka_broker, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics))
    kind = CreatePartitionsRequest.CreatePartitionsTopic
    hand = [kind.CreatePartitionsAssignment(broker_ids=[0])]
    message = CreatePartitionsRequest(
        topics=[
            kind(name=topic_name, count=2, assignments=hand),
            kind(name="nowhere", count=2, assignments=None),
            kind(name="twice", count=2, assignments=None),
            kind(name="twice", count=2, assignments=None),
            kind(name="none", count=-1, assignments=None),
        ]
    )
    found = asked(kafka_broker, ApiKey.CREATE_PARTITIONS, version, message).results
    assert {topic.name: topic.error_code for topic in found} == {
        topic_name: 0,
        "nowhere": Code.UNKNOWN_TOPIC_OR_PARTITION,
        "twice": Code.INVALID_REQUEST,
        "none": Code.INVALID_PARTITIONS,
    }
    wrong = [kind.CreatePartitionsAssignment(broker_ids=[0])] * 2
    message = CreatePartitionsRequest(topics=[kind(name=topic_name, count=3, assignments=wrong)])
    (refused,) = asked(kafka_broker, ApiKey.CREATE_PARTITIONS, version, message).results
    assert refused.error_code == Code.INVALID_REPLICA_ASSIGNMENT


def test_topics_are_described_in_pages(python: KafkaAdminClient, topic_name: str) -> None:
    names = [f"{topic_name}-{letter}" for letter in "abc"]
    python.create_topics({name: {"num_partitions": 3} for name in names})
    seen: list[tuple[str, int]] = []
    cursor = None
    pages = 0
    while True:
        page = python.describe_topic_partitions(names, 4, cursor)
        pages += 1
        for topic in page["topics"]:
            assert topic["error_code"] == 0
            seen += [(topic["name"], part["partition_index"]) for part in topic["partitions"]]
            assert {part["leader_id"] for part in topic["partitions"]} == {0}
        if (cursor := page["next_cursor"]) is None:
            break
    assert pages == 3
    assert seen == [(name, number) for name in names for number in range(3)]
    (unknown,) = python.describe_topic_partitions(["nowhere"])["topics"]
    assert unknown["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
    everything = python.describe_topic_partitions([])["topics"]
    assert {*names} <= {topic["name"] for topic in everything}


# Settings.


def test_librdkafka_sees_and_changes_settings(librdkafka: Any, topic_name: str) -> None:
    resource = confluent_admin.ConfigResource("topic", topic_name)
    topic = confluent_admin.NewTopic(topic_name, 1, 1, config={"retention.bytes": "1048576"})
    result_of(librdkafka.create_topics([topic]))
    found = result_of(librdkafka.describe_configs([resource]))
    assert found.keys() == SETTINGS.keys() | WITHOUT_EFFECT.keys()
    assert (found["retention.bytes"].value, found["retention.bytes"].source) == ("1048576", 1)
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("604800000", 5)
    assert found["retention.ms"].is_default
    assert found["min.insync.replicas"].value == "1"
    assert found["compression.type"].value == "producer"
    assert not any(entry.is_sensitive or entry.is_read_only for entry in found.values())
    assert [*found["retention.bytes"].synonyms] == ["retention.bytes"]
    operation = confluent_admin.AlterConfigOpType
    entry = confluent_admin.ConfigEntry
    resource = confluent_admin.ConfigResource(
        "topic",
        topic_name,
        incremental_configs=[
            entry("retention.ms", "1000", incremental_operation=operation.SET),
            entry("retention.bytes", None, incremental_operation=operation.DELETE),
            entry("cleanup.policy", "compact", incremental_operation=operation.APPEND),
            entry("segment.jitter.ms", "5", incremental_operation=operation.SET),
        ],
    )
    result_of(librdkafka.incremental_alter_configs([resource]))
    resource = confluent_admin.ConfigResource("topic", topic_name)
    found = result_of(librdkafka.describe_configs([resource]))
    assert found["retention.ms"].value == "1000"
    assert found["retention.bytes"].value == "-1"
    assert found["cleanup.policy"].value == "compact,delete"
    assert found["segment.jitter.ms"].value == "0"


def test_kafka_python_sees_and_changes_settings(python: KafkaAdminClient, topic_name: str) -> None:
    python.create_topics({topic_name: {"configs": {"retention.ms": "5000"}}})

    def modified() -> dict[str, str]:
        resource = ConfigResource("topic", topic_name)
        found = python.describe_configs([resource], include_synonyms=True)["topic"][topic_name]
        return {name: config["value"] for name, config in found.items()}

    assert modified() == {"retention.ms": "5000"}
    # Without `incremental`, what is not named gets its default.
    change = ConfigResource("topic", topic_name, {"retention.bytes": "1000000"})
    assert python.alter_configs([change], incremental=True) == {"topic": {topic_name: "OK"}}
    assert modified() == {"retention.ms": "5000", "retention.bytes": "1000000"}
    validated = ConfigResource("topic", topic_name, {"retention.bytes": "5"})
    python.alter_configs([validated], validate_only=True)
    assert modified()["retention.bytes"] == "1000000"
    unknown = ConfigResource("topic", topic_name, {"no.such": "1"})
    (said,) = python.alter_configs([unknown], raise_on_unknown=False)["topic"].values()
    assert "InvalidConfig" in said
    python.reset_configs([ConfigResource("topic", topic_name, {"retention.ms": None})])
    assert modified() == {"retention.bytes": "1000000"}


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_resets_what_it_does_not_name(
    kafka_broker: RunningBroker, python: KafkaAdminClient, topic_name: str, version: int
) -> None:
    python.create_topics({topic_name: {"configs": {"retention.ms": "5000"}}})
    kind = AlterConfigsRequest.AlterConfigsResource
    resource = kind(
        resource_type=2,
        resource_name=topic_name,
        configs=[kind.AlterableConfig(name="retention.bytes", value="1000")],
    )
    (found,) = asked(
        kafka_broker, ApiKey.ALTER_CONFIGS, version, AlterConfigsRequest(resources=[resource])
    ).responses
    assert (found.error_code, found.resource_name) == (0, topic_name)
    found = python.describe_configs([ConfigResource("topic", topic_name)])["topic"][topic_name]
    assert found.keys() == {"retention.bytes"}


def incremental(name: str, operation: int, value: str | None, topic: str, kind: int = 2) -> Any:
    """Return a resource for IncrementalAlterConfigs."""
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    config = resource.AlterableConfig(name=name, config_operation=operation, value=value)
    return resource(resource_type=kind, resource_name=topic, configs=[config])


@pytest.mark.parametrize(
    ("name", "operation", "value", "code"),
    [
        ("retention.ms", 0, None, Code.INVALID_REQUEST),
        ("retention.ms", 0, "x", Code.INVALID_CONFIG),
        ("retention.ms", 7, "1", Code.INVALID_REQUEST),
        ("retention.ms", 2, "1", Code.INVALID_CONFIG),
        ("no.such.setting", 0, "1", Code.INVALID_CONFIG),
        ("no.such.setting", 3, "1", Code.INVALID_CONFIG),
        ("preallocate", 0, "maybe", Code.INVALID_CONFIG),
        ("cleanup.policy", 3, "delete", Code.INVALID_CONFIG),
        ("cleanup.policy", 2, "shred", Code.INVALID_CONFIG),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    kafka_broker: RunningBroker, name: str, operation: int, value: str | None, code: int
) -> None:
    topics = [new("changed")]
    asked(kafka_broker, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics))
    for version in range(2):
        message = IncrementalAlterConfigsRequest(
            resources=[incremental(name, operation, value, "changed")]
        )
        (found,) = asked(kafka_broker, ApiKey.INCREMENTAL_ALTER_CONFIGS, version, message).responses
        assert found.error_code == code
        assert found.error_message


def test_resources_that_cannot_be_changed_are_refused_each_by_itself(
    kafka_broker: RunningBroker, topic_name: str
) -> None:
    asked(kafka_broker, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[new(topic_name)]))
    message = IncrementalAlterConfigsRequest(
        resources=[
            incremental("retention.ms", 0, "1", "nowhere"),
            incremental("retention.ms", 0, "9", topic_name),
            incremental("log.retention.ms", 0, "1", "0", kind=4),
            incremental("leader.replication.throttled.rate", 1, None, "1", kind=4),
            incremental("interval.ms", 0, "1", "metrics", kind=16),
            incremental("retention.ms", 0, "1", "twice"),
            incremental("retention.ms", 0, "1", "twice"),
            incremental("retention.ms", 0, "1", "a/b"),
        ]
    )
    found = asked(kafka_broker, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, message).responses
    assert [result.error_code for result in found] == [
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        0,
        Code.INVALID_REQUEST,
        0,
        Code.UNSUPPORTED_VERSION,
        Code.INVALID_REQUEST,
        Code.INVALID_REQUEST,
        Code.INVALID_TOPIC_EXCEPTION,
    ]


def test_kafkas_settings_without_a_meaning_are_accepted_shown_and_not_kept(
    kafka_broker: RunningBroker, topic_name: str
) -> None:
    configs = [setting(name, others.value) for name, others in WITHOUT_EFFECT.items()]
    message = CreateTopicsRequest(topics=[new(topic_name, configs=configs)])
    (made,) = asked(kafka_broker, ApiKey.CREATE_TOPICS, 7, message).topics
    assert made.error_code == 0, made.error_message
    shown = {entry.name: entry.value for entry in made.configs}
    assert WITHOUT_EFFECT.keys() <= shown.keys()
    assert own_settings(kafka_broker, topic_name) == {}


@pytest.mark.parametrize("version", range(1, 5))
def test_every_version_of_describe_configs_is_answered(
    kafka_broker: RunningBroker, topic_name: str, version: int
) -> None:
    topics = [new(topic_name, configs=[setting("retention.ms", "77")])]
    asked(kafka_broker, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics))
    kind = DescribeConfigsRequest.DescribeConfigsResource

    def resource(number: int, name: str, *keys: str) -> Any:
        return kind(resource_type=number, resource_name=name, configuration_keys=list(keys) or None)

    message = DescribeConfigsRequest(
        resources=[
            resource(2, topic_name, "retention.ms", "no.such"),
            resource(2, "nowhere"),
            resource(4, "0", "log.dirs", "num.partitions", "limits.connections_max"),
            resource(4, "5"),
            resource(4, ""),
            resource(8, "0"),
        ],
        include_synonyms=True,
        include_documentation=True,
    )
    found = asked(kafka_broker, ApiKey.DESCRIBE_CONFIGS, version, message).results
    assert [result.error_code for result in found] == [
        0,
        Code.UNKNOWN_TOPIC_OR_PARTITION,
        0,
        Code.INVALID_REQUEST,
        0,
        Code.UNSUPPORTED_VERSION,
    ]
    (retention,) = found[0].configs
    assert (retention.value, retention.config_source) == ("77", 1)
    assert [(entry.value, entry.source) for entry in retention.synonyms] == [
        ("77", 1),
        ("604800000", 5),
    ]
    if version >= 3:
        assert retention.config_type == 5
        assert "deleted" in retention.documentation
    of_broker = {entry.name: entry for entry in found[2].configs}
    assert of_broker.keys() == {"log.dirs", "num.partitions", "limits.connections_max"}
    assert all(entry.read_only for entry in of_broker.values())
    assert of_broker["limits.connections_max"].config_source == 5
    assert not found[4].configs


def test_a_group_shows_what_counts_for_its_members(librdkafka: Any) -> None:
    resource = confluent_admin.ConfigResource("group", "of-nobody-yet")
    found = result_of(librdkafka.describe_configs([resource]))
    assert {name: entry.value for name, entry in found.items()} == {
        "consumer.heartbeat.interval.ms": "3000",
        "consumer.session.timeout.ms": "10000",
    }
    assert all(entry.is_read_only for entry in found.values())


def test_a_broker_shows_all_its_settings(librdkafka: Any) -> None:
    resource = confluent_admin.ConfigResource("broker", "0")
    found = result_of(librdkafka.describe_configs([resource]))
    assert found["broker.id"].value == "0"
    assert found["advertised.listeners"].value.startswith("127.0.0.1:")
    assert found["auto.create.topics.enable"].value == "false"
    assert found["storage.trash_delay_ms"].value
    assert found["file.delete.delay.ms"].value == found["storage.trash_delay_ms"].value


def test_resources_with_settings_are_listed(python: KafkaAdminClient, topic_name: str) -> None:
    python.create_topics([topic_name])
    found = python.list_config_resources()
    assert topic_name in found["topic"]
    assert found["broker"] == ["0"]
    assert python.list_config_resources(["BROKER"]) == {"broker": ["0"]}
    assert python.list_config_resources(["GROUP"]) == {}


# Replicas.


def test_log_directories_are_described(
    python: KafkaAdminClient, kafka_broker: RunningBroker, topic_name: str
) -> None:
    python.create_topics({topic_name: {"num_partitions": 2}})
    with SyncProducer(kafka_broker.address) as producer:
        producer.send(topic_name, b"x", partition=0).result()
    (broker,) = python.describe_log_dirs()
    (directory,) = broker["log_dirs"]
    assert directory["error_code"] == 0
    assert directory["log_dir"] == str(kafka_broker.log_dirs[0])
    assert 0 < directory["usable_bytes"] <= directory["total_bytes"]
    sizes = {
        partition["partition_index"]: partition["partition_size"]
        for topic in directory["topics"]
        if topic["name"] == topic_name
        for partition in topic["partitions"]
    }
    assert sizes.keys() == {0, 1}
    assert sizes[0] > 0
    assert sizes[1] == 0
    (broker,) = python.describe_log_dirs({topic_name: [1]})
    ((topic,),) = [directory["topics"] for directory in broker["log_dirs"]]
    assert [partition["partition_index"] for partition in topic["partitions"]] == [1]


def test_producers_of_a_partition_are_described(
    python: KafkaAdminClient, kafka_broker: RunningBroker, topic_name: str
) -> None:
    python.create_topics({topic_name: {"num_partitions": 1}})
    with SyncProducer(kafka_broker.address) as producer:
        producer.send(topic_name, b"x").result()
    place = TopicPartition(topic_name, 0)
    found = python.describe_producers([place])[place]
    (state,) = found["active_producers"] if isinstance(found, dict) else found
    assert state is not None


def test_quotas_are_described(start_broker: StartBroker) -> None:
    broker = start_broker(KAFKA)
    with SyncAdmin(broker.address) as admin:
        admin.set_quota(
            "alice", principal="alice", produce_bytes_per_second=1 << 20, request_percent=50
        )
        admin.set_quota("each", principal="", client_id="app", fetch_bytes_per_second=1 << 21)
        admin.set_quota("topic", topic="t", fetch_bytes_per_second=1 << 21)
    component = DescribeClientQuotasRequest.ComponentData

    def entities(*components: Any, strict: bool = False) -> Any:
        message = DescribeClientQuotasRequest(components=[*components], strict=strict)
        found = asked(broker, ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, message)
        if found.error_code:
            return found.error_code
        return [
            (
                {entity.entity_type: entity.entity_name for entity in entry.entity},
                {value.key: value.value for value in entry.values},
            )
            for entry in found.entries
        ]

    alice = ({"user": "alice"}, {"producer_byte_rate": 1048576.0, "request_percentage": 50.0})
    each = ({"user": None, "client-id": "app"}, {"consumer_byte_rate": 2097152.0})
    any_user = component(entity_type="user", match_type=2, match=None)
    assert entities() == [alice, each]
    assert entities(any_user) == [alice, each]
    assert entities(any_user, strict=True) == [alice]
    assert entities(component(entity_type="user", match_type=0, match="alice")) == [alice]
    assert entities(component(entity_type="user", match_type=1, match=None)) == [each]
    assert entities(component(entity_type="ip", match_type=2, match=None)) == []
    for wrong in (
        [any_user, any_user],
        [component(entity_type="moon", match_type=2, match=None)],
        [component(entity_type="user", match_type=9, match=None)],
        [component(entity_type="user", match_type=0, match=None)],
    ):
        assert entities(*wrong) == Code.INVALID_REQUEST


def test_there_are_no_acls(python: KafkaAdminClient) -> None:
    every = ACLFilter(
        principal=None,
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePattern(AclResourceType.TOPIC, "t"),
    )
    with pytest.raises(SecurityDisabledError):
        python.describe_acls(every)


def test_replicas_are_assigned_moved_and_led_by_hand(tmp_path: Any) -> None:
    with (
        RunningCluster(tmp_path, KAFKA) as cluster,
        closing(KafkaAdminClient(bootstrap_servers=bootstrap(cluster[0]))) as client,
    ):
        client.create_topics({"t": {"assignments": {0: [2, 0], 1: [1, 2]}}}, wait_for_metadata=True)

        def partitions() -> list[tuple[int, list[int]]]:
            """Ask any broker, which hears of a change a little later than the controller."""
            (topic,) = client.describe_topics(["t"])
            return [
                (partition["leader_id"], partition["replica_nodes"])
                for partition in topic["partitions"]
            ]

        wait_until(lambda: partitions() == [(2, [2, 0]), (1, [1, 2])], "the topic is told")
        client.create_partitions({"t": {"count": 3, "assignments": [[0, 1]]}})
        wait_until(lambda: partitions()[2:] == [(0, [0, 1])], "the new partition is told")
        place = TopicPartition("t", 0)
        nowhere = TopicPartition("nowhere", 0)
        results = client.alter_partition_reassignments({place: [1, 0], nowhere: [1]})
        assert results[place] is None
        assert results[nowhere] is UnknownTopicOrPartitionError
        wait_until(lambda: partitions()[0][1] == [1, 0], "the replica has moved")
        wait_until(lambda: client.list_partition_reassignments() == {}, "nothing moves any more")
        (cancelled,) = client.alter_partition_reassignments({place: None}).values()
        assert cancelled.__name__ == "NoReassignmentInProgressError"
        wait_until(lambda: partitions()[0][0] == 1, "the preferred leader leads")
        message = ElectLeadersRequest(
            election_type=0,
            topic_partitions=[ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0, 9])],
        )
        for version in range(3):
            found = asked(cluster[0], ApiKey.ELECT_LEADERS, version, message)
            (topic,) = found.replica_election_results
            codes = {
                partition.partition_id: partition.error_code for partition in topic.partition_result
            }
            assert codes == {
                0: Code.ELECTION_NOT_NEEDED,
                9: Code.UNKNOWN_TOPIC_OR_PARTITION,
            }
        assert client.elect_leaders(0) is not None


# Large requests.


def test_a_resource_that_is_named_often_is_described_once(
    kafka_broker: RunningBroker, topic_name: str
) -> None:
    asked(kafka_broker, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=[new(topic_name)]))
    kind = DescribeConfigsRequest.DescribeConfigsResource
    resource = kind(resource_type=2, resource_name=topic_name, configuration_keys=None)
    message = DescribeConfigsRequest(resources=[resource] * 2000, include_documentation=True)
    (found,) = asked(kafka_broker, ApiKey.DESCRIBE_CONFIGS, 4, message).results
    assert len(found.configs) == len(SETTINGS) + len(WITHOUT_EFFECT)


def test_an_answer_about_settings_is_bounded(start_broker: StartBroker) -> None:
    limits = {"limits.message_bytes_max": 1 << 20, "limits.fetch_response_bytes_max": 1 << 19}
    broker = start_broker({**KAFKA, **limits})
    topics = [new(f"t{number}", num_partitions=1) for number in range(200)]
    asked(broker, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics))
    kind = DescribeConfigsRequest.DescribeConfigsResource
    message = DescribeConfigsRequest(
        resources=[
            kind(resource_type=2, resource_name=topic.name, configuration_keys=None)
            for topic in topics
        ],
        include_documentation=True,
    )
    found = asked(broker, ApiKey.DESCRIBE_CONFIGS, 4, message).results
    codes = [result.error_code for result in found]
    assert codes[0] == 0
    assert codes[-1] == Code.MESSAGE_TOO_LARGE
    assert not found[-1].configs


def test_more_topics_than_a_request_may_have_are_refused(kafka_broker: RunningBroker) -> None:
    topics = [new(f"many-{number}") for number in range(1001)]
    found = asked(kafka_broker, ApiKey.CREATE_TOPICS, 7, CreateTopicsRequest(topics=topics)).topics
    assert {topic.error_code for topic in found} == {Code.INVALID_REQUEST}
    assert "request_topics_max" in found[0].error_message


# Namespaces.


def test_topics_of_other_namespaces_are_not_there(start_broker: StartBroker) -> None:
    """K7: by name or by id, also for who may do everything."""
    broker = start_broker({**KAFKA, "listeners.clients_kafka.namespace": "pay"})
    with SyncAdmin(broker.address) as admin:
        for name in ("pay/mine", "other/theirs"):
            admin.create_topic(name, 1, 1)
        theirs = UUID(bytes=bytes(admin.describe_topics(["other/theirs"])["other/theirs"].topic_id))
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap(broker))) as client:
        (shown,) = client.describe_topic_partitions([])["topics"]
        assert shown["name"] == "mine"
        assert client.list_config_resources(["TOPIC"]) == {"topic": ["mine"]}
        (described,) = client.describe_log_dirs()
        (directory,) = described["log_dirs"]
        assert [topic["name"] for topic in directory["topics"]] == ["mine"]
        for name in ("theirs", "other/theirs"):
            with pytest.raises((UnknownTopicOrPartitionError, InvalidTopicError)):
                client.delete_topics([name])
            with pytest.raises((UnknownTopicOrPartitionError, InvalidTopicError)):
                client.create_partitions({name: 2})
        with pytest.raises(UnknownTopicIdError):
            client.delete_topics([theirs])
        elections = client.elect_leaders(0).replica_election_results
        assert [election.topic for election in elections] == ["mine"]
    with SyncAdmin(broker.address) as admin:
        assert set(admin.list_topics()) >= {"pay/mine", "other/theirs"}
