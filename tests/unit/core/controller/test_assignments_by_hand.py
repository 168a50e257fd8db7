"""Topics, and more partitions, whose replicas the client chooses."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.fakes.controller_driver import ControllerDriver, Objects

from millrace.core.errors import (
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    MalformedRequestError,
)
from millrace.core.ids import BrokerId, TopicId
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import Topic
from millrace.core.metadata.requests import (
    AlterTopics,
    CreateTopics,
    DrainBroker,
    NewTopic,
    RegisterBroker,
    TopicChange,
    TopicRef,
)


def brokers(*replicas: Sequence[int]) -> list[tuple[BrokerId, ...]]:
    return [tuple(map(BrokerId, those)) for those in replicas]


def create(*replicas: Sequence[int], **more: Any) -> CreateTopics:
    new = NewTopic(name="t", assignment=brokers(*replicas), **more)
    return CreateTopics(topics=[new], topic_ids=[TopicId(b"\1" * 16)])


def grow(*replicas: Sequence[int], partitions: int = 0) -> AlterTopics:
    change = TopicChange(
        topic=TopicRef(name="t"), partitions=partitions, assignment=brokers(*replicas)
    )
    return AlterTopics(changes=[change])


def replicas_of(driver: ControllerDriver) -> list[tuple[int, ...]]:
    (topic,) = driver.image.topics.values()
    return [tuple(partition.replicas) for partition in topic.partitions]


@pytest.fixture
def driver() -> ControllerDriver:
    config = ClusterConfig(topic_partitions_max=10)
    driver = ControllerDriver(Objects(), config).take_over()
    for number in range(3):
        driver.start_broker(
            RegisterBroker(
                name=f"b{number}",
                rack="",
                host="h",
                port=7092,
                incarnation_id="1",
                directory_ids=[f"d{number}"],
                broker_id=None,
            )
        )
    return driver


def only(results: object) -> object:
    assert isinstance(results, list)
    (result,) = results
    return result


def test_replicas_go_where_the_client_says_and_the_first_one_leads(
    driver: ControllerDriver,
) -> None:
    topic = only(driver.ask(create((2, 0), (1, 2), (2, 1))))
    assert isinstance(topic, Topic)
    assert replicas_of(driver) == [(2, 0), (1, 2), (2, 1)]
    assert [partition.leader for partition in topic.partitions] == [2, 1, 2]


def test_numbers_may_be_named_as_well_if_they_are_the_same(driver: ControllerDriver) -> None:
    created = only(driver.ask(create((2, 0), (1, 2), partitions=2, replication_factor=2)))
    assert isinstance(created, Topic)


def test_added_partitions_go_where_the_client_says(driver: ControllerDriver) -> None:
    driver.ask(create((2, 0)))
    assert isinstance(only(driver.ask(grow((0, 1), partitions=2))), Topic)
    assert isinstance(only(driver.ask(grow((1, 2), (2, 1)))), Topic)
    assert replicas_of(driver) == [(2, 0), (0, 1), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (create(()), "at least one broker"),
        (create((0, 0)), "each once"),
        (create((0, 1), (2,)), "each partition has 2"),
        (create((0, 1), partitions=3), "there are 3"),
        (create((0, 1), replication_factor=3), "each partition has 3"),
        (create((0, 7)), "broker 7 is not registered"),
        (create((0, -1)), "broker -1 is not registered"),
    ],
)
def test_replicas_that_cannot_be_are_refused(
    driver: ControllerDriver, request_: CreateTopics, message: str
) -> None:
    error = only(driver.ask(request_))
    assert isinstance(error, InvalidReplicaAssignmentError)
    assert message in error.message
    assert not driver.image.topics


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (grow((0,)), "each partition has 2"),
        (grow((0, 1), (1, 2), partitions=2), "there are 1"),
        (grow((0, 1), partitions=1), "there are 0"),
        (grow((0, 0)), "each once"),
    ],
)
def test_added_replicas_that_cannot_be_are_refused(
    driver: ControllerDriver, request_: AlterTopics, message: str
) -> None:
    driver.ask(create((2, 0)))
    error = only(driver.ask(request_))
    assert isinstance(error, InvalidReplicaAssignmentError)
    assert message in error.message
    assert replicas_of(driver) == [(2, 0)]


def test_a_drained_broker_gets_no_replicas_by_hand_either(driver: ControllerDriver) -> None:
    driver.ask(DrainBroker(broker_id=BrokerId(1)))
    error = only(driver.ask(create((0, 1))))
    assert isinstance(error, InvalidReplicaAssignmentError)


def test_partitions_that_are_placed_by_hand_count_towards_the_bounds(
    driver: ControllerDriver,
) -> None:
    assert isinstance(only(driver.ask(create(*[(0,)] * 11))), InvalidPartitionsError)
    driver.ask(create((0,)))
    assert isinstance(only(driver.ask(grow(*[(0,)] * 10))), InvalidPartitionsError)
    many = CreateTopics(
        topics=[NewTopic(name=f"t{number}", assignment=brokers(*[(0,)] * 6)) for number in "ab"],
        topic_ids=[TopicId(bytes([number]) * 16) for number in (2, 3)],
    )
    assert isinstance(driver.ask(many), MalformedRequestError)
