"""AlterPartitions: a compare-and-swap with everything that it rests on (P19)."""

import pytest
from tests.fakes.cluster import Cluster, ids

from millrace.core.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidReplicaAssignmentError,
    InvalidUpdateVersionError,
    MalformedRequestError,
    MillraceError,
    NotControllerError,
    NotLeaderError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NOTHING_WRITTEN,
    BrokerEpoch,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    TopicId,
)
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import BrokerLife, PartitionState, Reluctance
from millrace.core.metadata.requests import AlterPartitions, DrainBroker


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(4)


@pytest.fixture
def topic(cluster: Cluster) -> TopicId:
    """One partition on brokers 0, 1 and 2, led by 0."""
    topic_id = cluster.create()
    assert cluster.state(topic_id).replicas == (0, 1, 2)
    return topic_id


def accepted(answer: PartitionState | MillraceError) -> PartitionState:
    assert isinstance(answer, PartitionState), answer
    return answer


def test_a_leader_shrinks_and_expands_its_isr(cluster: Cluster, topic: TopicId) -> None:
    before = cluster.state(topic)
    fewer = accepted(cluster.change_isr(topic, 0, 2))
    assert ids(fewer.isr) == [0, 2]
    assert fewer.partition_epoch == before.partition_epoch + 1
    assert fewer.leader_epoch == before.leader_epoch
    assert cluster.state(topic) == fewer
    assert ids(accepted(cluster.change_isr(topic, 2, 1, 0)).isr) == [0, 1, 2]


def test_changes_of_many_partitions_come_in_one_request_and_one_write(cluster: Cluster) -> None:
    topic = cluster.create("m", partitions=8)
    states = [cluster.state(topic, number) for number in range(8)]
    changes = [
        cluster.isr_change(topic, state.leader, partition=number)
        for number, state in enumerate(states)
    ]
    request_id = cluster.driver.send(AlterPartitions(changes=changes))
    assert [write.key for write in cluster.driver.writes] == ["shards/00"]
    cluster.driver.settle()
    answers = cluster.driver.results[request_id]
    assert isinstance(answers, list)
    assert [ids(answer.isr) for answer in answers] == [[state.leader] for state in states]


def stale(broker_id: int) -> BrokerLife:
    return BrokerLife(BrokerId(broker_id), BrokerEpoch(0))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"topic_id": TopicId(b"\xff" * 16)}, UnknownTopicOrPartitionError),
        ({"partition": 7}, UnknownTopicOrPartitionError),
        ({"leader_epoch": LeaderEpoch(9)}, NotControllerError),
        ({"partition_epoch": PartitionEpoch(9)}, NotControllerError),
        ({"leader": BrokerLife(BrokerId(1), BrokerEpoch(2))}, NotLeaderError),
        ({"leader": stale(0)}, StaleBrokerEpochError),
        ({"is_recovering": True}, MalformedRequestError),
    ],
    ids=str,
)
def test_what_does_not_fit_the_partition_is_refused(
    cluster: Cluster, topic: TopicId, changes: dict[str, object], error: type[MillraceError]
) -> None:
    before = cluster.state(topic)
    number = changes.pop("partition", 0)
    change = cluster.isr_change(topic, 0, 1)
    fields = {name: getattr(change, name) for name in change.__dataclass_fields__}
    answer = cluster.ask_each(
        AlterPartitions(changes=[type(change)(**{**fields, "partition": number, **changes})])
    )[0]
    assert isinstance(answer, error)
    assert cluster.state(topic) == before


def test_the_epochs_of_an_earlier_state_are_refused(cluster: Cluster, topic: TopicId) -> None:
    first = cluster.isr_change(topic, 0, 1)
    cluster.change_isr(topic, 0, 1)
    (answer,) = cluster.ask_each(AlterPartitions(changes=[first]))
    assert isinstance(answer, InvalidUpdateVersionError)
    cluster.driver.kill(BrokerId(0))
    (answer,) = cluster.ask_each(AlterPartitions(changes=[first]))
    assert isinstance(answer, FencedLeaderEpochError)


@pytest.mark.parametrize("members", [(0, 3), (0, 1, 1), (1, 2), ()])
def test_an_isr_is_some_of_the_replicas_and_the_leader_among_them(
    cluster: Cluster, topic: TopicId, members: tuple[int, ...]
) -> None:
    """P24 too: the leader never leaves by itself."""
    assert isinstance(cluster.change_isr(topic, *members), MalformedRequestError)


def test_a_fenced_broker_does_not_join(cluster: Cluster, topic: TopicId) -> None:
    cluster.driver.kill(BrokerId(1))
    assert isinstance(cluster.change_isr(topic, 0, 1, 2), IneligibleReplicaError)


def test_an_earlier_life_does_not_join(cluster: Cluster, topic: TopicId) -> None:
    """B8: a delayed request must not bring back who has restarted with an empty disk."""
    old = cluster.life(1)
    cluster.driver.kill(BrokerId(1))
    cluster.restart(1, "2")
    isr = (cluster.life(0), old, cluster.life(2))
    assert isinstance(cluster.change_isr(topic, isr=isr), IneligibleReplicaError)
    assert ids(accepted(cluster.change_isr(topic, 0, 1, 2)).isr) == [0, 1, 2]


def test_a_draining_broker_does_not_join_but_may_stay(cluster: Cluster, topic: TopicId) -> None:
    cluster.change_isr(topic, 0, 1)
    cluster.driver.ask(DrainBroker(broker_id=BrokerId(2)))
    assert isinstance(cluster.change_isr(topic, 0, 1, 2), IneligibleReplicaError)
    cluster.driver.ask(DrainBroker(broker_id=BrokerId(1)))
    cluster.driver.ask(DrainBroker(broker_id=BrokerId(2), is_drained=False))
    assert ids(accepted(cluster.change_isr(topic, 0, 1, 2)).isr) == [0, 1, 2]


def test_a_reluctant_broker_joins(cluster: Cluster, topic: TopicId) -> None:
    cluster.change_isr(topic, 0, 1)
    cluster.driver.beat(cluster.life(2), reluctance=Reluctance.SLOW_DISK)
    assert ids(accepted(cluster.change_isr(topic, 0, 1, 2)).isr) == [0, 1, 2]


def test_a_partition_is_changed_once_in_a_request(cluster: Cluster, topic: TopicId) -> None:
    change = cluster.isr_change(topic, 0, 1)
    first, second = cluster.ask_each(AlterPartitions(changes=[change, change]))
    assert isinstance(first, PartitionState)
    assert isinstance(second, InvalidReplicaAssignmentError)
    assert cluster.state(topic) == first


def test_too_many_at_once_are_refused() -> None:
    cluster = Cluster(1, ClusterConfig(request_partitions_max=1))
    topic = cluster.create(replication_factor=1)
    change = cluster.isr_change(topic, 0)
    answer = cluster.driver.ask(AlterPartitions(changes=[change, change]))
    assert isinstance(answer, MalformedRequestError)


def test_a_recovering_leader_is_alone_until_it_says_that_it_is_done(cluster: Cluster) -> None:
    """P30."""
    topic = cluster.create(
        "open", replication_factor=2, config={"unclean.leader.election.enable": "true"}
    )
    leader, follower = cluster.state(topic).replicas
    cluster.change_isr(topic, leader)
    cluster.driver.kill(leader)
    state = cluster.state(topic)
    assert (state.leader, state.is_recovering) == (follower, True)
    cluster.restart(leader, "2")
    both = (leader, follower)
    refused = cluster.change_isr(topic, *both, is_recovering=True)
    assert isinstance(refused, MalformedRequestError)
    assert cluster.change_isr(topic, follower, is_recovering=True) == state
    done = accepted(cluster.change_isr(topic, follower))
    assert (done.is_recovering, done.leader_epoch) == (False, state.leader_epoch)
    assert ids(accepted(cluster.change_isr(topic, *both)).isr) == [*both]


def test_what_a_leader_says_is_committed_is_kept_for_those_who_are_eligible(
    cluster: Cluster, topic: TopicId
) -> None:
    """P26."""
    first, second = (EpochEnd(LeaderEpoch(0), Offset(at)) for at in (10, 12))
    assert accepted(cluster.change_isr(topic, 0, 1, committed_end=first)).elr == ()
    assert cluster.state(topic).committed_end == NOTHING_WRITTEN
    accepted(cluster.change_isr(topic, 0, committed_end=first))
    assert cluster.state(topic).committed_end == first
    accepted(cluster.change_isr(topic, 0, committed_end=second))
    assert cluster.state(topic).committed_end == second
    before = cluster.state(topic)
    assert accepted(cluster.change_isr(topic, 0, committed_end=first)) is before
    accepted(cluster.change_isr(topic, 0, 2))
    assert cluster.state(topic).committed_end == NOTHING_WRITTEN
