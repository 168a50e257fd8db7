"""A replica whose log is damaged or gone, as its broker says in heartbeats (P63, P65)."""

import pytest
from tests.fakes.cluster import Cluster, ids, registration

from millrace.core.errors import (
    IneligibleReplicaError,
    MalformedRequestError,
    MillraceError,
)
from millrace.core.ids import NO_BROKER, BrokerId, TopicId, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import BrokerRegistration
from millrace.core.metadata.requests import (
    ElectionKind,
    ElectLeaders,
    Heartbeat,
    Reassignment,
    ReassignPartitions,
    UnregisterBroker,
)

SPARE = 3


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(4)


@pytest.fixture
def topic(cluster: Cluster) -> TopicId:
    """One partition on brokers 0, 1 and 2, led by 0."""
    return cluster.create(config={"min.insync.replicas": "2"})


def test_a_leader_that_is_damaged_is_taken_over_from_at_once(
    cluster: Cluster, topic: TopicId
) -> None:
    before = cluster.state(topic)
    cluster.report_offline(0, topic)
    after = cluster.state(topic)
    assert (after.leader, ids(after.isr)) == (1, [1, 2])
    assert after.leader_epoch == before.leader_epoch + 1
    assert not cluster.driver.unclean


def test_a_follower_that_is_damaged_leaves_and_the_leader_cannot_take_it_back(
    cluster: Cluster, topic: TopicId
) -> None:
    cluster.report_offline(2, topic)
    assert ids(cluster.state(topic).isr) == [0, 1]
    assert isinstance(cluster.change_isr(topic, 0, 1, 2), IneligibleReplicaError)
    assert ids(cluster.state(topic).isr) == [0, 1]


def test_one_that_is_started_again_may_come_back(cluster: Cluster, topic: TopicId) -> None:
    cluster.report_offline(2, topic)
    cluster.driver.kill(BrokerId(2))
    cluster.restart(2, "again")
    cluster.driver.pass_time(1000)
    assert not isinstance(cluster.change_isr(topic, 0, 1, 2), IneligibleReplicaError)
    assert ids(cluster.state(topic).isr) == [0, 1, 2]


def test_one_whose_broker_was_unregistered_is_forgotten(cluster: Cluster, topic: TopicId) -> None:
    cluster.report_offline(2, topic)
    cluster.driver.kill(BrokerId(2))
    kept = (BrokerId(0), BrokerId(1))
    cluster.ask_each(
        ReassignPartitions(reassignments=[Reassignment(topic_id=topic, partition=0, replicas=kept)])
    )
    cluster.driver.tick()
    assert cluster.state(topic).replicas == kept
    gone = cluster.driver.ask(UnregisterBroker(broker_id=BrokerId(2)))
    assert isinstance(gone, BrokerRegistration)
    assert not isinstance(cluster.change_isr(topic, 0), MillraceError)
    cluster.driver.pass_time(1000)
    assert not isinstance(cluster.change_isr(topic, 0, 1), MillraceError)


def reassign(cluster: Cluster, topic: TopicId, *replicas: int) -> None:
    target = tuple(map(BrokerId, replicas))
    asked = Reassignment(topic_id=topic, partition=0, replicas=target)
    cluster.ask_each(ReassignPartitions(reassignments=[asked]))
    cluster.driver.tick()


def test_one_that_was_moved_away_and_back_has_another_log(cluster: Cluster, topic: TopicId) -> None:
    cluster.report_offline(2, topic)
    before = cluster.driver.image.epoch
    reassign(cluster, topic, 0, 1)
    assert cluster.state(topic).replicas == (0, 1)
    reassign(cluster, topic, 0, 1, 2)
    late = [TopicPartition(topic, 0)]
    cluster.driver.beat(cluster.life(2), metadata_epoch=before, offline=late)
    assert not isinstance(cluster.change_isr(topic, 0, 1, 2), MillraceError)
    assert ids(cluster.state(topic).isr) == [0, 1, 2]
    cluster.report_offline(2, topic)
    assert ids(cluster.state(topic).isr) == [0, 1]
    assert isinstance(cluster.change_isr(topic, 0, 1, 2), IneligibleReplicaError)


def test_one_that_is_damaged_before_its_addition_ends_is_not_forgotten_when_that_is_repeated(
    cluster: Cluster, topic: TopicId
) -> None:
    reassign(cluster, topic, 0, 1, SPARE)
    cluster.report_offline(SPARE, topic)
    reassign(cluster, topic, 0, 1, SPARE)
    assert isinstance(cluster.change_isr(topic, 0, 1, 2, SPARE), IneligibleReplicaError)


def test_one_that_stays_is_not_forgotten_when_others_move(cluster: Cluster, topic: TopicId) -> None:
    cluster.report_offline(2, topic)
    reassign(cluster, topic, 0, 2, SPARE)
    assert isinstance(cluster.change_isr(topic, 0, 1, 2), IneligibleReplicaError)


def test_an_eligible_replica_leads_where_no_other_is_in_sync(
    cluster: Cluster, topic: TopicId
) -> None:
    cluster.change_isr(topic, 0)
    assert ids(cluster.state(topic).elr) == [1, 2]
    cluster.report_offline(1, topic)
    assert ids(cluster.state(topic).elr) == [2]
    cluster.report_offline(0, topic)
    after = cluster.state(topic)
    assert (after.leader, ids(after.isr), after.elr) == (2, [2], ())
    assert not after.is_recovering


def test_where_nobody_else_can_lead_nothing_is_forgotten(cluster: Cluster, topic: TopicId) -> None:
    cluster.change_isr(topic, 0, 1)
    before = cluster.state(topic)
    cluster.report_offline(1, topic)
    cluster.change_isr(topic, 0)
    alone = cluster.state(topic)
    assert alone.leader == before.leader == 0
    cluster.report_offline(0, topic)
    assert cluster.state(topic) == alone
    cluster.driver.pass_time(2000)
    assert cluster.state(topic) == alone


def test_an_operator_may_have_one_elected_that_lacks_records_and_never_a_damaged_one(
    cluster: Cluster, topic: TopicId
) -> None:
    cluster.change_isr(topic, 0, 1)
    cluster.report_offline(1, topic)
    cluster.change_isr(topic, 0)
    cluster.report_offline(0, topic)
    cluster.ask_each(ElectLeaders(kind=ElectionKind.UNCLEAN, partitions=[TopicPartition(topic, 0)]))
    after = cluster.state(topic)
    assert (after.leader, ids(after.isr), after.is_recovering) == (2, [2], True)


def test_an_unclean_election_that_the_topic_allows_passes_over_all_damaged_ones(
    cluster: Cluster,
) -> None:
    allowed = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    topic = cluster.create("u", config=allowed)
    first, second, third = cluster.state(topic).replicas
    cluster.change_isr(topic, first)
    cluster.report_offline(second, topic)  # Counts for nothing already.
    cluster.report_offline(first, topic)
    assert cluster.state(topic).leader == third


def test_the_next_controller_hears_it_again(cluster: Cluster, topic: TopicId) -> None:
    cluster.change_isr(topic, 0)
    cluster.driver.kill(BrokerId(1))
    cluster.driver.kill(BrokerId(2))
    cluster.report_offline(0, topic)
    assert cluster.state(topic).leader == 0
    cluster.replace_controller()
    cluster.restart(1, "again")
    cluster.report_offline(0, topic)
    assert cluster.state(topic).leader == 1


def test_reports_of_what_is_not_there_change_nothing(cluster: Cluster, topic: TopicId) -> None:
    before = cluster.driver.image
    unknown = [TopicPartition(topic, 7), TopicPartition(TopicId(b"?" * 16), 0)]
    cluster.driver.beat(cluster.life(0), offline=unknown)
    cluster.driver.beat(cluster.life(SPARE), offline=[TopicPartition(topic, 0)])
    assert cluster.driver.image is before


def test_a_report_has_a_bound() -> None:
    cluster = Cluster(1, ClusterConfig(request_partitions_max=2))
    heartbeat = Heartbeat(
        life=cluster.life(0),
        metadata_epoch=0,
        offline=[TopicPartition(TopicId(b"?" * 16), number) for number in range(3)],
    )
    assert isinstance(cluster.driver.ask(heartbeat), MalformedRequestError)


def test_a_fenced_broker_reports_in_vain(cluster: Cluster, topic: TopicId) -> None:
    cluster.driver.kill(BrokerId(0))
    led = cluster.state(topic)
    assert led.leader not in (0, NO_BROKER)
    request = registration(0, "again")
    life = cluster.driver.ask(request).life  # type: ignore[attr-defined]
    before = cluster.state(topic)
    cluster.driver.beat(life, metadata_epoch=0, offline=[TopicPartition(topic, 0)])
    assert cluster.state(topic) == before
