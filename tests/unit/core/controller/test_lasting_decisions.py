"""What lasts is decided by the brokers that the cluster has, not by those that are alive (P77)."""

import pytest
from tests.fakes.cluster import Cluster, ids, registration

from millrace.core.errors import (
    BrokerBusyError,
    InvalidReplicationFactorError,
    MillraceError,
    RetriableError,
)
from millrace.core.ids import BrokerId, TopicId
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import Reluctance, Topic
from millrace.core.metadata.requests import (
    AlterTopics,
    CreateTopics,
    DrainBroker,
    NewTopic,
    Reassignment,
    ReassignPartitions,
    TopicChange,
    TopicRef,
)


def refusal(cluster: Cluster, replication_factor: int = 0) -> MillraceError:
    new = NewTopic(name="refused", replication_factor=replication_factor)
    (answer,) = cluster.ask_each(CreateTopics(topics=[new], topic_ids=[TopicId(b"r" * 16)]))
    assert isinstance(answer, MillraceError), answer
    return answer


def kill(cluster: Cluster, *broker_ids: int) -> None:
    for broker_id in broker_ids:
        cluster.driver.kill(BrokerId(broker_id))


def drain(cluster: Cluster, broker_id: int) -> None:
    cluster.driver.ask(DrainBroker(broker_id=BrokerId(broker_id), is_drained=True))


def stop(cluster: Cluster, broker_id: int) -> None:
    """Let a broker begin to shut down."""
    cluster.driver.beat(cluster.life(broker_id), wants_shutdown=True)


@pytest.mark.parametrize("away", [(0,), (1,), (0, 1), (1, 2)])
def test_brokers_that_are_away_count_for_the_default_replication(away: tuple[int, ...]) -> None:
    cluster = Cluster(3)
    kill(cluster, *away)
    topic = cluster.create(partitions=6, replication_factor=0)
    for number in range(6):
        state = cluster.state(topic, number)
        assert sorted(state.replicas) == [0, 1, 2]
        assert {*ids(state.isr)} == {0, 1, 2}.difference(away)
        assert state.leader in ids(state.isr)


def test_a_replica_on_a_broker_that_was_away_joins_when_it_is_back() -> None:
    cluster = Cluster(3)
    kill(cluster, 2)
    topic = cluster.create(replication_factor=0)
    cluster.restart(2, "2")
    assert not isinstance(cluster.change_isr(topic, 0, 1, 2), MillraceError)
    assert ids(cluster.state(topic).isr) == [0, 1, 2]


def test_a_preferred_leader_that_was_away_leads_when_it_is_back() -> None:
    cluster = Cluster(3)
    kill(cluster, 0)
    topic = cluster.create(partitions=3, replication_factor=0)
    (number,) = (number for number in range(3) if cluster.state(topic, number).replicas[0] == 0)
    assert cluster.state(topic, number).leader != 0
    cluster.restart(0, "2")
    cluster.change_isr(topic, *cluster.state(topic, number).replicas, partition=number)
    cluster.driver.pass_time(600)
    assert cluster.state(topic, number).leader == 0


def test_a_broker_that_is_just_stopping_counts_and_is_not_in_sync() -> None:
    cluster = Cluster(3)
    stop(cluster, 1)
    topic = cluster.create(replication_factor=0)
    assert sorted(cluster.state(topic).replicas) == [0, 1, 2]
    assert ids(cluster.state(topic).isr) == [0, 2]


def test_an_asked_number_of_replicas_is_not_refused_as_brokers_are_away() -> None:
    cluster = Cluster(3)
    kill(cluster, 0, 2)
    topic = cluster.create(replication_factor=3)
    assert sorted(cluster.state(topic).replicas) == [0, 1, 2]


def test_a_drained_broker_does_not_count() -> None:
    cluster = Cluster(3)
    drain(cluster, 2)
    topic = cluster.create(replication_factor=0)
    assert sorted(cluster.state(topic).replicas) == [0, 1]
    error = refusal(cluster, 3)
    assert isinstance(error, InvalidReplicationFactorError)
    assert "the cluster has 2 brokers that are not drained" in error.message


def test_a_topic_waits_while_no_broker_that_can_hold_it_is_there() -> None:
    cluster = Cluster(2)
    drain(cluster, 1)
    stop(cluster, 0)
    error = refusal(cluster)
    assert isinstance(error, BrokerBusyError)
    assert "broker 0 has none (draining); broker 1 has none (drained)" in error.message


def test_more_partitions_get_as_many_replicas_as_the_others_while_brokers_are_away() -> None:
    cluster = Cluster(3)
    topic = cluster.create(replication_factor=3)
    kill(cluster, 1, 2)
    change = TopicChange(topic=TopicRef(name="t"), partitions=4)
    (answer,) = cluster.ask_each(AlterTopics(changes=[change]))
    assert isinstance(answer, Topic)
    assert all(len(cluster.state(topic, number).replicas) == 3 for number in range(4))


def test_more_partitions_get_the_replicas_that_the_others_are_about_to_have() -> None:
    cluster = Cluster(3)
    topic = cluster.create(replication_factor=1)
    every = tuple(map(BrokerId, range(3)))
    asked = Reassignment(topic_id=topic, partition=0, replicas=every)
    cluster.ask_each(ReassignPartitions(reassignments=[asked]))
    assert cluster.state(topic).is_reassigning
    cluster.ask_each(AlterTopics(changes=[TopicChange(topic=TopicRef(name="t"), partitions=2)]))
    assert sorted(cluster.state(topic, 1).replicas) == [0, 1, 2]


def test_a_broker_with_a_new_address_gets_its_part_of_the_replicas() -> None:
    cluster = Cluster(4)
    cluster.driver.beat(cluster.life(3), reluctance=Reluctance.NEW_ADDRESS)
    topic = cluster.create(partitions=8, replication_factor=3)
    states = [cluster.state(topic, number) for number in range(8)]
    assert sum(3 in state.replicas for state in states) == 6
    assert all(state.leader != 3 for state in states)


def test_a_cluster_that_is_just_starting_makes_no_topic_with_too_few_replicas() -> None:
    cluster = Cluster(1, ClusterConfig(initial_brokers=3))
    for factor in (0, 2, 3):
        error = refusal(cluster, factor)
        assert isinstance(error, RetriableError)
        assert "1 of its first 3 brokers have registered" in error.message
    assert isinstance(refusal(cluster, 4), InvalidReplicationFactorError)
    assert len(cluster.state(cluster.create(replication_factor=1)).replicas) == 1
    assert isinstance(refusal(cluster), BrokerBusyError), "that topic says nothing about others"


@pytest.mark.parametrize("is_restarted", [True, False])
def test_a_cluster_that_has_begun_does_not_wait_for_the_brokers_by_which_it_is_to_grow(
    is_restarted: bool,
) -> None:
    cluster = Cluster(1)
    if is_restarted:
        cluster.config = ClusterConfig(initial_brokers=3)
        cluster.replace_controller()
    else:
        cluster.driver.machine.set_initial_brokers(3)
    assert cluster.state(cluster.create(replication_factor=0)).replicas == (0,)
    error = refusal(cluster, 2)
    assert isinstance(error, InvalidReplicationFactorError), "to try again would not help"


def test_a_cluster_that_becomes_smaller_before_its_first_brokers_came_waits_for_none() -> None:
    cluster = Cluster(1, ClusterConfig(initial_brokers=3))
    assert isinstance(refusal(cluster), BrokerBusyError)
    cluster.driver.machine.set_initial_brokers(1)
    assert cluster.state(cluster.create(replication_factor=0)).replicas == (0,)


@pytest.mark.parametrize("is_used", [True, False])
def test_a_cluster_that_began_smaller_than_planned_does_not_wait_when_it_is_to_grow(
    is_used: bool,
) -> None:
    cluster = Cluster(1, ClusterConfig(initial_brokers=3))
    cluster.driver.machine.set_initial_brokers(1)
    if is_used:
        cluster.create("used", replication_factor=0)
    else:
        cluster.driver.pass_time(600)
    cluster.driver.machine.set_initial_brokers(3)
    assert cluster.state(cluster.create(replication_factor=0)).replicas == (0,)
    cluster.replace_controller()
    assert cluster.state(cluster.create("later", replication_factor=0)).replicas == (0,)


def test_a_cluster_that_has_begun_may_become_smaller() -> None:
    cluster = Cluster(3, ClusterConfig(initial_brokers=3))
    drain(cluster, 1)
    drain(cluster, 2)
    assert cluster.state(cluster.create(replication_factor=0)).replicas == (0,)


def test_a_broker_that_does_not_know_its_zone_at_a_start_is_in_the_one_that_it_had() -> None:
    cluster = Cluster(0)
    for number, (rack, expected) in enumerate([("a", "a"), ("", "a"), ("b", "b"), ("", "b")]):
        request = registration(0, str(number), rack=rack)
        assert cluster.driver.start_broker(request).rack == expected
        kill(cluster, 0)
