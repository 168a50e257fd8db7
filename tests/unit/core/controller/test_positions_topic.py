"""The topic of positions: made when the first one is to be kept, and the cluster's own."""

from dataclasses import replace

import pytest
from tests.fakes.cluster import registration
from tests.fakes.controller_driver import ControllerDriver, Objects

from millrace.core.errors import (
    BrokerBusyError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import BrokerId, TopicId, WallMs
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import Topic
from millrace.core.metadata.requests import (
    AlterPartition,
    AlterPartitions,
    AlterTopics,
    CreatePositionsTopic,
    CreateTopics,
    CreateTransactionsTopic,
    DeleteTopics,
    DrainBroker,
    NewTopic,
    Reassignment,
    ReassignPartitions,
    TopicChange,
    TopicRef,
)
from millrace.core.metadata.topic_config import Durability
from millrace.core.topics import POSITIONS_TOPIC, TRANSACTIONS_TOPIC


def asked(number: int = 1) -> CreatePositionsTopic:
    return CreatePositionsTopic(topic_id=TopicId(bytes([number]) * 16))


def cluster(brokers: int, config: ClusterConfig | None = None) -> ControllerDriver:
    driver = ControllerDriver(Objects(), config).take_over()
    for number in range(brokers):
        driver.start_broker(registration(number))
    return driver


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


def test_who_does_not_flush_his_topics_need_not_flush_those_of_coordinators() -> None:
    config = ClusterConfig(
        positions_durability=Durability.REPLICATED, transactions_durability=Durability.REPLICATED
    )
    driver = cluster(1, config)
    positions = driver.ask(asked())
    transactions = driver.ask(CreateTransactionsTopic(topic_id=TopicId(b"t" * 16)))
    for topic in (positions, transactions):
        assert isinstance(topic, Topic)
        assert topic.config.durability is Durability.REPLICATED


def test_whoever_asks_for_it_next_gets_the_same_one() -> None:
    driver = cluster(1)
    first = driver.ask(asked(1))
    assert driver.ask(asked(2)) == driver.ask(asked(1)) == first
    assert len(driver.image.topics) == 1


def test_transactions_have_a_topic_of_their_own_that_grows_likewise() -> None:
    """T11: it gets more replicas, and never more partitions."""
    config = ClusterConfig(transactions_partitions=2, positions_partitions=1)
    driver = cluster(1, config)
    driver.ask(asked())
    request = CreateTransactionsTopic(topic_id=TopicId(b"transactions".ljust(16)))
    topic = driver.ask(request)
    assert isinstance(topic, Topic)
    assert topic.name == TRANSACTIONS_TOPIC
    assert driver.ask(replace(request, topic_id=TopicId(b"another".ljust(16)))) == topic
    assert (len(topic.partitions), topic.replication_factor) == (2, 1)
    more = TopicChange(topic=TopicRef(name="__transactions"), partitions=3)
    assert isinstance(only(driver.ask(AlterTopics(changes=[more]))), InvalidTopicError)
    assert topic.config.retention_ms == topic.config.retention_bytes == -1
    driver.start_broker(registration(1))
    driver.pass_time(600)
    assert [(str(raised.topic), raised.partitions) for raised in driver.raised] == [
        ("__positions", 1),
        ("__transactions", 2),
    ]


def test_it_waits_for_the_brokers_that_it_is_to_have() -> None:
    config = ClusterConfig(positions_replication_factor=2, positions_partitions=3)
    driver = cluster(1, config)
    assert isinstance(driver.ask(asked()), InvalidReplicationFactorError)
    assert not driver.image.topics
    driver.start_broker(registration(1))
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


def kill(driver: ControllerDriver, *numbers: int) -> None:
    for number in numbers:
        driver.kill(BrokerId(number))


def positions(driver: ControllerDriver) -> Topic:
    return driver.image.topics[POSITIONS_TOPIC]


def join(driver: ControllerDriver, *members: int) -> None:
    """Let the leaders take these brokers into the in-sync replicas, and let the moves end."""
    brokers = driver.image.cluster.brokers
    for number, state in enumerate(positions(driver).partitions):
        leader = state.leader_life
        assert leader is not None
        isr = {*(life.broker_id for life in state.isr), *members} & {*state.replicas}
        change = AlterPartition(
            topic_id=positions(driver).topic_id,
            partition=number,
            leader=leader,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            isr=tuple(brokers[BrokerId(broker)].life for broker in sorted(isr)),
        )
        driver.ask(AlterPartitions(changes=[change]))
    driver.pass_time(600)


def test_the_first_position_during_an_outage_goes_on_as_many_disks_as_ever() -> None:
    driver = cluster(3, ClusterConfig(positions_partitions=2))
    kill(driver, 0, 2)
    topic = driver.ask(asked())
    assert isinstance(topic, Topic)
    for partition in topic.partitions:
        assert sorted(partition.replicas) == [0, 1, 2]
        assert [life.broker_id for life in partition.isr] == [partition.leader] == [1]


def test_it_gets_more_replicas_when_more_brokers_come() -> None:
    driver = cluster(1, ClusterConfig(positions_partitions=2))
    driver.ask(asked())
    for number in (1, 2, 3):
        driver.start_broker(registration(number))
        driver.pass_time(600)
        join(driver, number)
    assert [len(partition.replicas) for partition in positions(driver).partitions] == [3, 3]
    assert [(str(raised.topic), raised.partitions) for raised in driver.raised] == [
        ("__positions", 2)
    ] * 2
    assert not any(partition.is_reassigning for partition in positions(driver).partitions)


def reassign(driver: ControllerDriver, *replicas: int) -> None:
    """Move the first partition to these brokers, and let the reassignment end."""
    asked = Reassignment(
        topic_id=positions(driver).topic_id,
        partition=0,
        replicas=tuple(BrokerId(replica) for replica in replicas),
    )
    assert not isinstance(only(driver.ask(ReassignPartitions(reassignments=[asked]))), Exception)
    driver.pass_time(600)
    join(driver, *replicas)


def test_a_reassignment_to_fewer_replicas_is_undone_and_one_to_more_stays() -> None:
    driver = cluster(4, ClusterConfig(positions_partitions=1))
    driver.ask(asked())
    reassign(driver, 0, 1, 2, 3)
    assert positions(driver).partitions[0].replicas == (0, 1, 2, 3)
    assert not driver.raised
    reassign(driver, 1, 2)
    join(driver, 0, 1, 2, 3)
    (state,) = positions(driver).partitions
    assert (state.replicas[:2], len(state.replicas)) == ((1, 2), 3)
    assert [raised.partitions for raised in driver.raised] == [1]


def drain(driver: ControllerDriver, number: int, *, is_drained: bool) -> None:
    driver.ask(DrainBroker(broker_id=BrokerId(number), is_drained=is_drained))


@pytest.mark.parametrize("asked_for", [-1, 3])
def test_it_has_fewer_replicas_while_a_broker_is_drained_and_is_raised_again_afterwards(
    asked_for: int,
) -> None:
    config = ClusterConfig(positions_partitions=1, positions_replication_factor=asked_for)
    driver = cluster(3, config)
    driver.ask(asked())
    drain(driver, 2, is_drained=True)
    reassign(driver, 0, 1)
    assert positions(driver).partitions[0].replicas == (0, 1)
    assert not driver.raised
    drain(driver, 2, is_drained=False)
    driver.pass_time(600)
    join(driver, 0, 1, 2)
    assert sorted(positions(driver).partitions[0].replicas) == [0, 1, 2]
    assert [raised.partitions for raised in driver.raised] == [1]


def test_a_controller_that_takes_over_raises_what_the_last_one_did_not() -> None:
    driver = cluster(1, ClusterConfig(positions_partitions=2))
    driver.ask(asked())
    driver.start_broker(registration(1))
    successor = ControllerDriver(driver.objects, ClusterConfig(positions_partitions=2)).take_over()
    for life in driver.live():
        successor.beat(life)
    successor.pass_time(600)
    assert [sorted(partition.replicas) for partition in positions(successor).partitions] == [
        [0, 1]
    ] * 2


def test_a_drained_broker_or_one_that_is_away_gets_no_more_replicas_of_it() -> None:
    driver = cluster(1, ClusterConfig(positions_partitions=2))
    driver.ask(asked())
    for number in (1, 2):
        driver.now += 1  # Both come at once, before the controller looks.
        driver.start_broker(registration(number))
    driver.ask(DrainBroker(broker_id=BrokerId(1), is_drained=True))
    kill(driver, 2)
    driver.pass_time(1200)
    assert all(len(partition.replicas) <= 2 for partition in positions(driver).partitions)
    assert all(1 not in partition.replicas for partition in positions(driver).partitions)


def test_a_cluster_that_is_to_grow_does_not_let_the_first_position_wait() -> None:
    driver = cluster(1)
    driver.machine.set_initial_brokers(3)
    topic = driver.ask(asked())
    assert isinstance(topic, Topic)
    assert topic.replication_factor == 1


def test_a_cluster_that_is_just_starting_lets_the_first_position_wait() -> None:
    driver = cluster(2, ClusterConfig(initial_brokers=3))
    new = NewTopic(name="t", replication_factor=1)
    driver.ask(CreateTopics(topics=[new], topic_ids=[TopicId(b"t" * 16)]))
    error = driver.ask(asked())
    assert isinstance(error, BrokerBusyError)
    assert "2 of its first 3 brokers have registered" in error.message
    driver.start_broker(registration(2))
    topic = driver.ask(asked())
    assert isinstance(topic, Topic)
    assert topic.replication_factor == 3
