"""A damaged replica begins anew with an empty log: who may still count on it, and who may not."""

import pytest
from tests.fakes.cluster import Cluster, ids

from millrace.core.errors import (
    EligibleLeadersNotAvailableError,
    FencedLeaderEpochError,
    InvalidUpdateVersionError,
    MalformedRequestError,
    MillraceError,
    NotControllerError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import BrokerEpoch, BrokerId, PartitionEpoch, TopicId, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import RenewReplicas, ReplicaRenewal

SPARE = 3


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(4)


@pytest.fixture
def topic(cluster: Cluster) -> TopicId:
    """One partition on brokers 0, 1 and 2, led by 0."""
    return cluster.create(config={"min.insync.replicas": "2"})


def renew(
    cluster: Cluster,
    broker_id: int,
    topic: TopicId,
    *,
    partition_epoch: int | None = None,
    life: BrokerLife | None = None,
) -> PartitionState | MillraceError:
    state = cluster.driver.image.partition(TopicPartition(topic, 0))
    epoch = state.partition_epoch if state is not None else PartitionEpoch(0)
    asked = ReplicaRenewal(
        TopicPartition(topic, 0),
        epoch if partition_epoch is None else PartitionEpoch(partition_epoch),
    )
    request = RenewReplicas(replica=life or cluster.life(broker_id), renewals=[asked])
    answer = cluster.driver.ask(request)
    if isinstance(answer, list):
        (answer,) = answer
    assert isinstance(answer, PartitionState | MillraceError)
    return answer


def test_a_replica_that_begins_anew_counts_nowhere_and_a_new_leader_epoch_begins(
    cluster: Cluster, topic: TopicId
) -> None:
    before = cluster.state(topic)
    cluster.report_offline(2, topic)
    renew(cluster, 2, topic)
    after = cluster.state(topic)
    assert (after.leader, ids(after.isr), after.elr) == (0, [0, 1], ())
    assert after.leader_epoch == before.leader_epoch + 1
    assert not cluster.driver.unclean


def test_a_member_that_was_not_reported_yet_leaves_in_the_same_step(
    cluster: Cluster, topic: TopicId
) -> None:
    renew(cluster, 2, topic)
    assert ids(cluster.state(topic).isr) == [0, 1]


def test_a_leader_that_begins_anew_hands_over_in_the_same_step(
    cluster: Cluster, topic: TopicId
) -> None:
    renew(cluster, 0, topic)
    after = cluster.state(topic)
    assert (after.leader, ids(after.isr)) == (1, [1, 2])


def test_a_change_of_the_isr_that_was_under_way_cannot_bring_it_back(
    cluster: Cluster, topic: TopicId
) -> None:
    cluster.change_isr(topic, 0, 1)
    late = cluster.state(topic)
    renew(cluster, 2, topic)
    answer = cluster.change_isr(
        topic,
        0,
        1,
        2,
        leader_epoch=late.leader_epoch,
        partition_epoch=late.partition_epoch,
    )
    assert isinstance(answer, FencedLeaderEpochError)
    assert ids(cluster.state(topic).isr) == [0, 1]


def test_it_joins_again_as_any_follower_does(cluster: Cluster, topic: TopicId) -> None:
    cluster.report_offline(2, topic)
    renew(cluster, 2, topic)
    assert isinstance(cluster.change_isr(topic, 0, 1, 2), PartitionState)
    assert ids(cluster.state(topic).isr) == [0, 1, 2]


def test_a_report_of_the_old_log_that_comes_late_does_not_keep_the_new_one_out(
    cluster: Cluster, topic: TopicId
) -> None:
    cluster.report_offline(2, topic)
    late = cluster.driver.image.epoch
    renew(cluster, 2, topic)
    key = TopicPartition(topic, 0)
    cluster.driver.beat(cluster.life(2), metadata_epoch=late, offline=[key])
    assert isinstance(cluster.change_isr(topic, 0, 1, 2), PartitionState)
    cluster.driver.beat(cluster.life(2), offline=[key])  # And this is of the new one.
    assert ids(cluster.state(topic).isr) == [0, 1]


def test_an_eligible_replica_is_that_no_more(cluster: Cluster, topic: TopicId) -> None:
    cluster.change_isr(topic, 0)
    assert ids(cluster.state(topic).elr) == [1, 2]
    renew(cluster, 2, topic)
    assert (ids(cluster.state(topic).elr), cluster.state(topic).last_known_elr) == ([1], ())


def test_one_that_was_last_known_is_not_elected_as_if_it_had_its_records() -> None:
    cluster = Cluster(4)
    topic = cluster.create(config={"min.insync.replicas": "2", "durability": "replicated"})
    cluster.change_isr(topic, 0, 2)
    cluster.change_isr(topic, 0)
    cluster.driver.kill(BrokerId(2))
    cluster.restart(2, "again")  # Unclean, and nothing had to be flushed: last known.
    assert cluster.state(topic).last_known_elr == (2,)
    renew(cluster, 2, topic)
    assert cluster.state(topic).last_known_elr == ()


@pytest.mark.parametrize("members", [(0,), (0, 1, 2)])
def test_the_only_copy_is_never_given_up(
    cluster: Cluster, topic: TopicId, members: tuple[int, ...]
) -> None:
    cluster.change_isr(topic, *members)
    for broker_id in (1, 2):
        cluster.driver.kill(BrokerId(broker_id))
    before = cluster.state(topic)
    assert isinstance(renew(cluster, 0, topic), EligibleLeadersNotAvailableError)
    assert cluster.state(topic) == before


def test_a_replica_that_others_lead_may_begin_anew_also_where_it_alone_was_behind(
    cluster: Cluster, topic: TopicId
) -> None:
    cluster.change_isr(topic, 0, 1)
    before = cluster.state(topic)
    renew(cluster, 2, topic)
    after = cluster.state(topic)
    assert (after.isr, after.leader_epoch) == (before.isr, before.leader_epoch + 1)


def test_what_it_rests_on_must_be_so_still(cluster: Cluster, topic: TopicId) -> None:
    before = cluster.state(topic)
    epoch = before.partition_epoch
    earlier = BrokerLife(BrokerId(2), BrokerEpoch(0))
    cases: list[tuple[object, type[MillraceError]]] = [
        (renew(cluster, 2, topic, partition_epoch=epoch - 1), InvalidUpdateVersionError),
        (renew(cluster, 2, topic, partition_epoch=epoch + 1), NotControllerError),
        (renew(cluster, SPARE, topic), MalformedRequestError),
        (renew(cluster, 2, TopicId(b"?" * 16)), UnknownTopicOrPartitionError),
        (renew(cluster, 2, topic, life=earlier), StaleBrokerEpochError),
    ]
    for answer, error in cases:
        assert type(answer) is error
    assert cluster.state(topic) == before


def test_a_request_has_a_bound() -> None:
    cluster = Cluster(1, ClusterConfig(request_partitions_max=2))
    key = TopicPartition(TopicId(b"?" * 16), 0)
    request = RenewReplicas(
        replica=cluster.life(0), renewals=[ReplicaRenewal(key, PartitionEpoch(0))] * 3
    )
    assert isinstance(cluster.driver.ask(request), MalformedRequestError)
