"""Partitions of which nobody is known to have all records (P31)."""

import pytest
from tests.fakes.cluster import Cluster, ids, registration

from millrace.core.errors import MalformedRequestError
from millrace.core.ids import NO_BROKER, BrokerId, LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.effects import AskLogEnds
from millrace.core.metadata.requests import Heartbeat, LogEnd

REPLICATED = {"durability": "replicated"}


def forget(cluster: Cluster, *broker_ids: int) -> None:
    """Let brokers lose what was not on disk, all before one is back."""
    for broker_id in broker_ids:
        cluster.driver.kill(BrokerId(broker_id))


def log_end(topic: TopicId, leader_epoch: int, end_offset: int) -> LogEnd:
    return LogEnd(TopicPartition(topic, 0), LeaderEpoch(leader_epoch), Offset(end_offset))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(3)


@pytest.fixture
def topic(cluster: Cluster) -> TopicId:
    """A partition whose replicas have all lost what was not on disk, 2 of them are back."""
    topic_id = cluster.create(config=REPLICATED)
    assert cluster.state(topic_id).replicas == (0, 1, 2)
    forget(cluster, 2, 1, 0)
    cluster.restart(0, "2")
    cluster.restart(1, "2")
    cluster.driver.asks.clear()
    return topic_id


def test_it_is_waited_for_all_replicas(cluster: Cluster, topic: TopicId) -> None:
    cluster.driver.pass_time(2000)
    state = cluster.state(topic)
    assert (state.leader, state.isr, state.elr) == (NO_BROKER, (), ())
    assert state.last_known_elr == (0, 1)
    for each in (0, 1):
        cluster.driver.beat(cluster.life(each), log_ends=[log_end(topic, 1, 10)])
    cluster.driver.pass_time(2000)
    assert cluster.state(topic).leader == NO_BROKER


def test_they_need_not_all_be_alive_at_one_time(cluster: Cluster, topic: TopicId) -> None:
    """Else brokers that go on dying in turn are waited for without end."""
    cluster.driver.beat(cluster.life(0), log_ends=[log_end(topic, 1, 10)])
    forget(cluster, 0)
    third = cluster.restart(2, "2")
    cluster.driver.beat(cluster.life(1), log_ends=[log_end(topic, 1, 10)])
    cluster.driver.beat(third, log_ends=[log_end(topic, 1, 9)])
    cluster.driver.pass_time(600)
    state = cluster.state(topic)
    assert (state.leader, ids(state.isr), state.is_recovering) == (1, [1], True)


def test_the_best_is_waited_for_while_its_broker_is_dead(cluster: Cluster, topic: TopicId) -> None:
    cluster.driver.beat(cluster.life(0), log_ends=[log_end(topic, 1, 10)])
    forget(cluster, 0)
    third = cluster.restart(2, "2")
    for life in (cluster.life(1), third):
        cluster.driver.beat(life, log_ends=[log_end(topic, 1, 9)])
    cluster.driver.pass_time(2000)
    assert cluster.state(topic).leader == NO_BROKER
    again = cluster.restart(0, "3")
    cluster.driver.pass_time(600)
    assert cluster.state(topic).leader == NO_BROKER  # It may have lost some of that since.
    cluster.driver.beat(again, log_ends=[log_end(topic, 1, 10)])
    cluster.driver.pass_time(600)
    assert cluster.state(topic).leader == 0


def test_what_was_reported_before_somebody_led_counts_for_nothing(
    cluster: Cluster, topic: TopicId
) -> None:
    cluster.driver.beat(cluster.life(0), log_ends=[log_end(topic, 1, 10)])
    for each in (1, 2):
        life = cluster.life(1) if each == 1 else cluster.restart(2, "2")
        cluster.driver.beat(life, log_ends=[log_end(topic, 1, 9)])
    cluster.driver.pass_time(600)
    assert cluster.state(topic).leader == 0
    cluster.change_isr(topic, 0, 1)
    forget(cluster, 2, 1, 0)
    for each in range(3):
        cluster.restart(each, "5")
    forget(cluster, 0)
    for each in (1, 2):
        cluster.driver.beat(cluster.life(each), log_ends=[log_end(topic, 3, 20)])
    cluster.driver.pass_time(2000)
    state = cluster.state(topic)
    assert (state.leader, state.isr, state.elr) == (NO_BROKER, (), ())
    life = cluster.restart(0, "6")
    cluster.driver.beat(life, log_ends=[log_end(topic, 3, 21)])
    cluster.driver.pass_time(600)
    assert cluster.state(topic).leader == 0


def test_the_greatest_epoch_and_then_the_longest_log_is_elected_and_loss_reported(
    cluster: Cluster, topic: TopicId
) -> None:
    lives = [cluster.life(0), cluster.life(1), cluster.restart(2, "2")]
    cluster.driver.pass_time(600)
    assert cluster.driver.asks == [AskLogEnds(life, (TopicPartition(topic, 0),)) for life in lives]
    cluster.driver.beat(lives[0], log_ends=[log_end(topic, 2, 900)])
    cluster.driver.beat(lives[1], log_ends=[log_end(topic, 3, 100)])
    cluster.driver.pass_time(1000)
    assert cluster.state(topic).leader == NO_BROKER
    cluster.driver.beat(lives[2], log_ends=[log_end(topic, 3, 101)])
    cluster.driver.pass_time(600)
    state = cluster.state(topic)
    assert (state.leader, ids(state.isr), state.is_recovering) == (2, [2], True)
    (report,) = cluster.driver.unclean
    assert (report.leader, report.log_end) == (lives[2], log_end(topic, 3, 101))


def test_who_has_not_reported_is_asked_again(cluster: Cluster, topic: TopicId) -> None:
    life = cluster.restart(2, "2")
    cluster.driver.pass_time(600)
    cluster.driver.beat(cluster.life(0), log_ends=[log_end(topic, 1, 5)])
    cluster.driver.asks.clear()
    cluster.driver.pass_time(500)
    assert [each.broker for each in cluster.driver.asks] == [cluster.life(1), life]


def test_a_report_is_of_one_life(cluster: Cluster, topic: TopicId) -> None:
    """What a broker said before it lost more counts for nothing."""
    lives = [cluster.life(0), cluster.life(1), cluster.restart(2, "2")]
    cluster.driver.beat(lives[0], log_ends=[log_end(topic, 9, 999)])
    forget(cluster, 0)
    again = cluster.restart(0, "3")
    for life, end_offset in ((lives[1], 7), (lives[2], 6)):
        cluster.driver.beat(life, log_ends=[log_end(topic, 1, end_offset)])
    cluster.driver.pass_time(1000)
    assert cluster.state(topic).leader == NO_BROKER
    cluster.driver.beat(again, log_ends=[log_end(topic, 1, 5)])
    cluster.driver.pass_time(600)
    assert cluster.state(topic).leader == 1


def test_a_single_replica_is_elected_without_being_asked(cluster: Cluster) -> None:
    topic = cluster.create(replication_factor=1, config=REPLICATED)
    (holder,) = cluster.state(topic).replicas
    forget(cluster, holder)
    assert cluster.state(topic).leader == NO_BROKER
    life = cluster.restart(holder, "2")
    state = cluster.state(topic)
    assert (state.leader, state.isr, state.is_recovering) == (holder, (life,), True)
    assert [report.leader for report in cluster.driver.unclean] == [life]


def test_with_records_on_disk_nobody_has_to_be_asked(cluster: Cluster) -> None:
    """Issue's rule 6: with `fsync` an unclean restart leaves a replica eligible."""
    topic = cluster.create(replication_factor=2)
    first, second = cluster.state(topic).replicas
    forget(cluster, second, first)
    cluster.restart(first, "2")
    state = cluster.state(topic)
    assert (state.leader, state.is_recovering) == (first, False)
    assert cluster.driver.unclean == []


def test_an_empty_disk_is_no_restart_with_everything_on_disk(cluster: Cluster) -> None:
    topic = cluster.create(replication_factor=2, config={"min.insync.replicas": "2"})
    first, second = cluster.state(topic).replicas
    forget(cluster, second, first)
    cluster.driver.start_broker(registration(first, "2", directories=["another"]))
    state = cluster.state(topic)
    assert (state.leader, ids(state.elr), state.last_known_elr) == (NO_BROKER, [second], ())
    cluster.restart(second, "2")
    assert cluster.state(topic).leader == second


def test_who_alone_was_in_sync_is_not_elected_with_an_empty_disk(cluster: Cluster) -> None:
    topic = cluster.create(config={"min.insync.replicas": "1"})
    cluster.change_isr(topic, 0)
    cluster.driver.kill(BrokerId(0))
    cluster.driver.start_broker(registration(0, "2", directories=["another"]))
    lives = [cluster.life(each) for each in range(3)]
    cluster.driver.pass_time(600)
    state = cluster.state(topic)
    assert (state.leader, state.elr, state.last_known_elr) == (NO_BROKER, (), ())
    for life, end_offset in zip(lives, (0, 9, 8), strict=True):
        cluster.driver.beat(life, log_ends=[log_end(topic, 0, end_offset)])
    cluster.driver.pass_time(600)
    state = cluster.state(topic)
    assert (state.leader, ids(state.isr), state.is_recovering) == (1, [1], True)


def test_a_broker_is_asked_for_so_many_at_a_time_and_may_report_no_more() -> None:
    cluster = Cluster(2, ClusterConfig(log_end_partitions_max=2))
    topic = cluster.create(partitions=5, replication_factor=2, config=REPLICATED)
    for number in range(5):  # Both were in sync last: neither is the only one last known.
        assert len(cluster.state(topic, number).isr) == 2
    cluster.driver.pass_time(4100, silent=[BrokerId(0), BrokerId(1)])
    cluster.restart(0, "2")
    cluster.restart(1, "2")
    cluster.driver.pass_time(600)
    assert [len(each.partitions) for each in cluster.driver.asks] == [2, 2]
    ends = [LogEnd(TopicPartition(topic, each), LeaderEpoch(0), Offset(0)) for each in range(3)]
    beat = Heartbeat(life=cluster.life(0), metadata_epoch=0, log_ends=ends)
    assert isinstance(cluster.driver.ask(beat), MalformedRequestError)


def test_partitions_that_are_well_are_not_reported_on(cluster: Cluster) -> None:
    topic = cluster.create()
    cluster.driver.beat(cluster.life(1), log_ends=[log_end(topic, 99, 99)])
    cluster.driver.pass_time(600)
    assert cluster.state(topic).leader == 0
