"""The topic of positions: made when the first one is to be kept, and the cluster's own."""

import pytest
from tests.fakes.controller_driver import ControllerDriver, Objects

from millrace.core.errors import (
    InvalidReplicationFactorError,
    InvalidTopicError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import TopicId, WallMs
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import Topic
from millrace.core.metadata.requests import (
    AlterTopics,
    CreatePositionsTopic,
    DeleteTopics,
    RegisterBroker,
    TopicChange,
    TopicRef,
)
from millrace.core.metadata.topic_config import Durability
from millrace.core.topics import POSITIONS_TOPIC


def asked(number: int = 1) -> CreatePositionsTopic:
    return CreatePositionsTopic(topic_id=TopicId(bytes([number]) * 16))


def cluster(brokers: int, config: ClusterConfig | None = None) -> ControllerDriver:
    driver = ControllerDriver(Objects(), config).take_over()
    for number in range(brokers):
        start(driver, number)
    return driver


def start(driver: ControllerDriver, number: int) -> None:
    driver.start_broker(
        RegisterBroker(
            name=f"b{number}",
            rack="",
            host="h",
            port=7092,
            incarnation_id=str(number),
            directory_ids=[f"d{number}"],
            broker_id=None,
        )
    )


def only(answers: object) -> object:
    assert isinstance(answers, list)
    (answer,) = answers
    return answer


@pytest.mark.parametrize(("brokers", "replicas"), [(1, 1), (2, 2), (3, 3), (4, 3)])
def test_it_has_three_replicas_or_as_many_as_there_are_brokers(brokers: int, replicas: int) -> None:
    config = ClusterConfig(default_partitions=5, default_replication_factor=1)
    topic = cluster(brokers, config).ask(asked())
    assert isinstance(topic, Topic)
    assert topic.name == POSITIONS_TOPIC
    assert (len(topic.partitions), topic.replication_factor) == (16, replicas)
    assert topic.config.durability is Durability.FSYNC
    assert topic.config.retention_ms == topic.config.retention_bytes == -1


def test_whoever_asks_for_it_next_gets_the_same_one() -> None:
    driver = cluster(1)
    first = driver.ask(asked(1))
    assert driver.ask(asked(2)) == driver.ask(asked(1)) == first
    assert len(driver.image.topics) == 1


def test_it_waits_for_the_brokers_that_it_is_to_have() -> None:
    config = ClusterConfig(positions_replication_factor=2, positions_partitions=3)
    driver = cluster(1, config)
    assert isinstance(driver.ask(asked()), InvalidReplicationFactorError)
    assert not driver.image.topics
    start(driver, 1)
    topic = driver.ask(asked())
    assert isinstance(topic, Topic)
    assert (len(topic.partitions), topic.replication_factor) == (3, 2)


def test_clients_neither_alter_nor_delete_it() -> None:
    driver = cluster(1)
    topic = driver.ask(asked())
    assert isinstance(topic, Topic)
    for ref in (TopicRef(name="__positions"), TopicRef(topic_id=topic.topic_id)):
        for request in (
            DeleteTopics(deleted_at=WallMs(1), topics=[ref]),
            AlterTopics(changes=[TopicChange(topic=ref, partitions=17)]),
        ):
            error = only(driver.ask(request))
            assert isinstance(error, InvalidTopicError)
            assert "the cluster itself" in error.message
    assert driver.image.topics == {POSITIONS_TOPIC: topic}
    error = only(
        cluster(1).ask(DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(name="__positions")]))
    )
    assert isinstance(error, UnknownTopicOrPartitionError)
