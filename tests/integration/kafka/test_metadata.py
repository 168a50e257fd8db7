"""What clients of Kafka are told of brokers and topics."""

from typing import Any
from uuid import UUID

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaTimeoutError
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from tests.integration.conftest import StartBroker
from tests.integration.kafka.by_hand import asked
from tests.integration.kafka.ends import KAFKA, bootstrap, closing
from tests.integration.running_broker import RunningBroker, wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire.errors import Code
from millrace.client import SyncAdmin

confluent = pytest.importorskip("confluent_kafka")
confluent_admin = pytest.importorskip("confluent_kafka.admin")


def metadata_of(broker: RunningBroker, *names: str, version: int = 12) -> list[Any]:
    """Return the topics that a broker describes."""
    topics = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    found: MetadataResponse = asked(
        broker, ApiKey.METADATA, version, MetadataRequest(topics=topics)
    )
    return found.topics


def test_librdkafka_sees_brokers_and_topics(kafka_broker: RunningBroker, topic_name: str) -> None:
    with SyncAdmin(kafka_broker.address) as admin:
        admin.create_topic(topic_name, 3, 1)
    client = confluent_admin.AdminClient({"bootstrap.servers": bootstrap(kafka_broker)})
    found = client.list_topics(timeout=20)
    assert [f"{broker.host}:{broker.port}" for broker in found.brokers.values()] == [
        kafka_broker.kafka_address
    ]
    topic = found.topics[topic_name]
    assert sorted(topic.partitions) == [0, 1, 2]
    assert {partition.leader for partition in topic.partitions.values()} == {0}
    cluster = client.describe_cluster(request_timeout=20).result(20)
    assert cluster.cluster_id == found.cluster_id
    assert cluster.controller.id == 0


def test_kafka_python_sees_brokers_and_topics(kafka_broker: RunningBroker, topic_name: str) -> None:
    with SyncAdmin(kafka_broker.address) as admin:
        admin.create_topic(topic_name, 2, 1)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap(kafka_broker))) as client:
        assert topic_name in client.list_topics()
        described = client.describe_topics([topic_name])[0]
        assert [partition["partition_index"] for partition in described["partitions"]] == [0, 1]
        assert client.describe_cluster()["controller_id"] == 0


def test_produce_is_listed_from_the_first_version_on(kafka_broker: RunningBroker) -> None:
    found = asked(kafka_broker, ApiKey.API_VERSIONS, 0)
    listed = {key.api_key: (key.min_version, key.max_version) for key in found.api_keys}
    assert listed[ApiKey.PRODUCE] == (0, 13)
    assert listed[ApiKey.METADATA] == (0, 13)
    assert all(least <= most for least, most in listed.values())


@pytest.mark.parametrize("version", range(14))
def test_every_version_of_metadata_is_answered(kafka_broker: RunningBroker, version: int) -> None:
    found = asked(kafka_broker, ApiKey.METADATA, version)
    assert [broker.node_id for broker in found.brokers] == [0]
    if version > 0:
        assert found.controller_id == 0


def test_a_topic_that_is_not_there_is_not_made_by_a_look_up(
    kafka_broker: RunningBroker, topic_name: str
) -> None:
    (found,) = metadata_of(kafka_broker, topic_name)
    assert found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    assert found.name == topic_name
    (found,) = metadata_of(kafka_broker, "no name/at all")
    assert found.error_code == Code.INVALID_TOPIC_EXCEPTION
    settings = {"bootstrap_servers": bootstrap(kafka_broker), "max_block_ms": 500}
    with closing(KafkaProducer(**settings)) as producer, pytest.raises(KafkaTimeoutError):
        producer.send(topic_name, b"x")


def test_a_look_up_makes_a_topic_where_that_is_allowed(start_broker: StartBroker) -> None:
    broker = start_broker({**KAFKA, "kafka.auto_create_topics": "true"})
    (made,) = metadata_of(broker, "made")
    assert made.error_code == 0
    assert len(made.partitions) >= 1
    topics = [MetadataRequest.MetadataRequestTopic(name="unwanted")]
    refused = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    (found,) = asked(broker, ApiKey.METADATA, 12, refused).topics
    assert found.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION
    (again,) = metadata_of(broker, "made", version=1)
    assert len(again.partitions) == len(made.partitions)
    (bad,) = metadata_of(broker, "a/b")
    assert bad.error_code == Code.INVALID_TOPIC_EXCEPTION


def test_a_topic_is_found_by_its_id(kafka_broker: RunningBroker, topic_name: str) -> None:
    with SyncAdmin(kafka_broker.address) as admin:
        admin.create_topic(topic_name, 1, 1)
    (named,) = metadata_of(kafka_broker, topic_name)
    by_id = MetadataRequest.MetadataRequestTopic(name=None, topic_id=named.topic_id)
    unknown = MetadataRequest.MetadataRequestTopic(
        name=None, topic_id=UUID("00112233-4455-6677-8899-aabbccddeeff")
    )
    found = asked(
        kafka_broker, ApiKey.METADATA, 12, MetadataRequest(topics=[by_id, unknown])
    ).topics
    assert [topic.name for topic in found] == [topic_name, None]
    assert [topic.error_code for topic in found] == [0, Code.UNKNOWN_TOPIC_ID]


def test_a_client_is_told_what_it_may_do_if_it_asks(
    kafka_broker: RunningBroker, topic_name: str
) -> None:
    with SyncAdmin(kafka_broker.address) as admin:
        admin.create_topic(topic_name, 1, 1)
    topics = [MetadataRequest.MetadataRequestTopic(name=topic_name)]
    for is_asked, told in ((True, {3, 4, 5, 6, 7, 8, 10, 11}), (False, None)):
        request = MetadataRequest(topics=topics, include_topic_authorized_operations=is_asked)
        (found,) = asked(kafka_broker, ApiKey.METADATA, 12, request).topics
        assert found.authorized_operations == told


def test_a_listener_shows_one_namespace(start_broker: StartBroker) -> None:
    broker = start_broker({**KAFKA, "listeners.clients_kafka.namespace": "pay"})
    with SyncAdmin(broker.address) as admin:
        for name in ("mine.not-shown", "pay/shown.here", "payments/not-shown"):
            admin.create_topic(name, 1, 1)
    with closing(KafkaAdminClient(bootstrap_servers=bootstrap(broker))) as client:
        assert client.list_topics() == ["shown.here"]
    assert metadata_of(broker, "mine.not-shown")[0].error_code == Code.UNKNOWN_TOPIC_OR_PARTITION


def test_each_broker_is_reached_where_its_own_listener_is(tmp_path: Any) -> None:
    with RunningCluster(tmp_path, KAFKA) as cluster:
        cluster.create_topic("t", 6, 3)
        client = confluent_admin.AdminClient({"bootstrap.servers": bootstrap(cluster[2])})
        found: Any = None

        def is_known() -> bool:
            """Whether a broker has heard of the topic that perhaps another one was asked for."""
            nonlocal found
            found = client.list_topics(timeout=20)
            return "t" in found.topics

        wait_until(is_known, "the topic is known")
        addresses = [f"{broker.host}:{broker.port}" for _, broker in sorted(found.brokers.items())]
        assert addresses == [broker.kafka_address for broker in cluster.brokers]
        leaders = {partition.leader for partition in found.topics["t"].partitions.values()}
        assert leaders == {0, 1, 2}
