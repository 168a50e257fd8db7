"""Moving replicas: add, catch up, join, and only then remove (P33)."""

import pytest
from tests.fakes.cluster import Cluster, ids, registration

from millrace.core.errors import (
    EligibleLeadersNotAvailableError,
    InvalidReplicaAssignmentError,
    MillraceError,
    ReassignmentReason,
    ReassignmentRefusedError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import BrokerId, TopicId
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import PartitionState, Reluctance
from millrace.core.metadata.requests import DrainBroker, Reassignment, ReassignPartitions


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(6)


@pytest.fixture
def topic(cluster: Cluster) -> TopicId:
    """One partition on brokers 0, 1 and 2, led by 0."""
    topic_id = cluster.create()
    assert cluster.state(topic_id).replicas == (0, 1, 2)
    return topic_id


def reassign(
    cluster: Cluster, topic: TopicId, *replicas: int, partition: int = 0
) -> PartitionState | MillraceError:
    """Ask for new replicas; for none: cancel."""
    asked = Reassignment(
        topic_id=topic,
        partition=partition,
        replicas=tuple(map(BrokerId, replicas)) if replicas else None,
    )
    (answer,) = cluster.ask_each(ReassignPartitions(reassignments=[asked]))
    assert isinstance(answer, PartitionState | MillraceError)
    return answer


def reason_of(answer: object) -> ReassignmentReason | None:
    return answer.reason if isinstance(answer, ReassignmentRefusedError) else None


def test_old_replicas_stay_until_all_new_ones_are_in_sync(cluster: Cluster, topic: TopicId) -> None:
    begun = reassign(cluster, topic, 3, 4, 5)
    assert isinstance(begun, PartitionState)
    assert begun.replicas == (3, 4, 5, 0, 1, 2)
    assert (begun.adding, begun.removing) == ((3, 4, 5), (0, 1, 2))
    assert (begun.leader, ids(begun.isr), begun.leader_epoch) == (0, [0, 1, 2], 1)
    cluster.change_isr(topic, 0, 1, 2, 3, 4)
    cluster.driver.pass_time(300)
    assert cluster.state(topic).adding == (3, 4, 5)
    cluster.change_isr(topic, 0, 1, 2, 3, 4, 5)
    cluster.driver.tick()
    done = cluster.state(topic)
    assert (done.replicas, done.adding, done.removing) == ((3, 4, 5), (), ())
    assert (done.leader, ids(done.isr)) == (3, [3, 4, 5])
    assert done.leader_epoch == 2


def test_a_leader_that_stays_goes_on_leading_in_a_new_epoch(
    cluster: Cluster, topic: TopicId
) -> None:
    reassign(cluster, topic, 0, 1, 3)
    cluster.change_isr(topic, 0, 1, 2, 3)
    cluster.driver.tick()
    done = cluster.state(topic)
    assert (done.replicas, done.leader, done.leader_epoch) == ((0, 1, 3), 0, 2)


def test_it_is_never_completed_with_fewer_than_min_isr(cluster: Cluster) -> None:
    """The new replica has joined, but of those that stay one is not in sync."""
    other = cluster.create("other", config={"min.insync.replicas": "3"})
    first, second, third = cluster.state(other).replicas
    new = next(number for number in range(6) if number not in (first, second, third))
    reassign(cluster, other, first, second, new)
    cluster.change_isr(other, first, third, new)
    cluster.driver.pass_time(1000)
    assert cluster.state(other).removing == (third,)
    cluster.change_isr(other, first, second, third, new)
    cluster.driver.tick()
    assert ids(cluster.state(other).isr) == [first, second, new]


def test_only_the_order_changes_at_once_and_the_preferred_leader_takes_over(
    cluster: Cluster, topic: TopicId
) -> None:
    answer = reassign(cluster, topic, 2, 1, 0)
    assert isinstance(answer, PartitionState)
    assert (answer.replicas, answer.adding, answer.leader_epoch) == ((2, 1, 0), (), 0)
    cluster.driver.pass_time(600)
    assert cluster.state(topic).leader == 2


def test_fewer_replicas_are_had_at_once(cluster: Cluster, topic: TopicId) -> None:
    reassign(cluster, topic, 1)
    cluster.driver.tick()
    state = cluster.state(topic)
    assert (state.replicas, state.leader, ids(state.isr)) == ((1,), 1, [1])


def test_more_replicas_ask_for_no_larger_min_isr_before_they_are_there(cluster: Cluster) -> None:
    topic = cluster.create("one", replication_factor=1)
    (holder,) = cluster.state(topic).replicas
    others = [number for number in range(6) if number != holder][:2]
    reassign(cluster, topic, holder, *others)
    assert cluster.state(topic).replication_factor == 1
    cluster.change_isr(topic, holder, *others)
    cluster.driver.tick()
    assert cluster.state(topic).replication_factor == 3


def test_a_cancelled_one_goes_back_to_the_old_replicas(cluster: Cluster, topic: TopicId) -> None:
    reassign(cluster, topic, 3, 4, 0)
    cluster.change_isr(topic, 0, 1, 2, 3)
    back = reassign(cluster, topic)
    assert isinstance(back, PartitionState)
    assert (back.replicas, back.adding, back.removing) == ((0, 1, 2), (), ())
    assert ids(back.isr) == [0, 1, 2]
    assert reason_of(reassign(cluster, topic)) is ReassignmentReason.NOT_IN_PROGRESS


def test_it_is_not_cancelled_when_the_old_replicas_alone_are_too_few(
    cluster: Cluster, topic: TopicId
) -> None:
    reassign(cluster, topic, 3, 4, 5)
    cluster.change_isr(topic, 0, 3, 4)
    assert isinstance(reassign(cluster, topic), EligibleLeadersNotAvailableError)
    cluster.change_isr(topic, 0, 1, 3, 4)
    assert isinstance(reassign(cluster, topic), PartitionState)


@pytest.mark.parametrize("min_isr", [1, 2])
def test_it_is_not_cancelled_while_only_new_replicas_are_last_known(
    cluster: Cluster, min_isr: int
) -> None:
    """P31: they alone have what was committed last, and are waited for."""
    config = {"durability": "replicated", "min.insync.replicas": str(min_isr)}
    topic = cluster.create("t", config=config)
    old = cluster.state(topic).replicas
    new = [BrokerId(number) for number in range(6) if number not in old]
    reassign(cluster, topic, *new)
    joined = new[:min_isr]
    cluster.change_isr(topic, *old, *joined)
    for broker_id in old:
        cluster.driver.kill(broker_id)
    assert ids(cluster.state(topic).isr) == joined  # They go on committing alone.
    for broker_id in joined:
        cluster.driver.kill(broker_id)
    for broker_id in old:
        cluster.restart(broker_id, "2")
    for broker_id in joined:  # Their power was cut.
        cluster.driver.ask(registration(broker_id, "2"))
    state = cluster.state(topic)
    assert (state.isr, state.elr, state.last_known_elr) == ((), (), tuple(joined))
    assert isinstance(reassign(cluster, topic), EligibleLeadersNotAvailableError)
    assert cluster.state(topic) == state


def test_it_ends_on_reluctant_brokers_too_and_a_willing_one_of_them_leads(
    cluster: Cluster, topic: TopicId
) -> None:
    for broker_id in (3, 4):
        cluster.driver.beat(cluster.life(broker_id), reluctance=Reluctance.SLOW_DISK)
    reassign(cluster, topic, 3, 4)
    cluster.change_isr(topic, 0, 1, 2, 3, 4)
    cluster.driver.tick()
    assert (cluster.state(topic).replicas, cluster.state(topic).leader) == ((3, 4), 3)
    reassign(cluster, topic, 4, 5)
    cluster.change_isr(topic, 3, 4, 5)
    cluster.driver.tick()
    assert (cluster.state(topic).replicas, cluster.state(topic).leader) == ((4, 5), 5)


def test_another_controller_goes_on_with_it(cluster: Cluster, topic: TopicId) -> None:
    reassign(cluster, topic, 0, 1, 3)
    cluster.replace_controller()
    cluster.change_isr(topic, 0, 1, 2, 3)
    cluster.driver.tick()
    assert cluster.state(topic).replicas == (0, 1, 3)


def test_what_cannot_be_is_refused(cluster: Cluster, topic: TopicId) -> None:
    cluster.driver.kill(BrokerId(5))
    cluster.driver.ask(DrainBroker(broker_id=BrokerId(4)))
    for replicas in ((0, 0), (0, 9), (0, 5), (0, 4)):
        answer = reassign(cluster, topic, *replicas)
        assert isinstance(answer, InvalidReplicaAssignmentError), replicas
    assert isinstance(reassign(cluster, topic, 0, partition=3), UnknownTopicOrPartitionError)
    reassign(cluster, topic, 0, 1, 3)
    assert isinstance(reassign(cluster, topic, 0, 1, 3), PartitionState)
    elsewhere = reassign(cluster, topic, 1, 2, 3)
    assert reason_of(elsewhere) is ReassignmentReason.IN_PROGRESS


def test_a_broker_is_given_no_more_than_it_may_hold() -> None:
    cluster = Cluster(2, ClusterConfig(broker_partitions_max=1))
    topic = cluster.create("t", replication_factor=1)
    other = cluster.create("other", replication_factor=1)
    answer = reassign(cluster, topic, *cluster.state(other).replicas)
    assert isinstance(answer, ReassignmentRefusedError)
    assert answer.reason is ReassignmentReason.LIMIT_REACHED
    assert "broker_partitions_max" in answer.message


def test_so_many_are_under_way_at_a_time() -> None:
    cluster = Cluster(2, ClusterConfig(reassigning_partitions_max=2))
    topic = cluster.create("t", partitions=4, replication_factor=1)
    everywhere = [
        Reassignment(topic_id=topic, partition=number, replicas=(BrokerId(0), BrokerId(1)))
        for number in range(4)
    ]
    answers = cluster.ask_each(ReassignPartitions(reassignments=everywhere))
    refused = [reason_of(answer) is ReassignmentReason.LIMIT_REACHED for answer in answers]
    assert refused == [False, False, True, True]


def test_what_is_there_or_on_its_way_already_is_not_counted_again() -> None:
    cluster = Cluster(2, ClusterConfig(reassigning_partitions_max=1))
    topic = cluster.create("t", partitions=3, replication_factor=1)
    kept = cluster.state(topic, 0).replicas
    reassign(cluster, topic, 0, 1, partition=1)
    again = [
        Reassignment(topic_id=topic, partition=0, replicas=kept),
        Reassignment(topic_id=topic, partition=1, replicas=(BrokerId(0), BrokerId(1))),
    ]
    answers = cluster.ask_each(ReassignPartitions(reassignments=again))
    assert [isinstance(answer, PartitionState) for answer in answers] == [True, True]
