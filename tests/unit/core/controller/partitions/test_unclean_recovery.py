"""Partitions that nobody leads until logs were looked at (P26, P31)."""

import pytest
from tests.fakes.cluster import Cluster, ids, registration

from millrace.core.controller.effects import AskLogEnds, LackingCommitted
from millrace.core.errors import MalformedRequestError
from millrace.core.ids import (
    NO_BROKER,
    NOTHING_WRITTEN,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
)
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.requests import ElectionKind, ElectLeaders, Heartbeat, LogEnd
from millrace.core.topics import TopicName

REPLICATED = {"durability": "replicated"}


def forget(cluster: Cluster, *broker_ids: int) -> None:
    """Let brokers lose what was not on disk, all before one is back."""
    for broker_id in broker_ids:
        cluster.driver.kill(BrokerId(broker_id))


def log_end(topic: TopicId, leader_epoch: int, end_offset: int, committed: int = 0) -> LogEnd:
    key = TopicPartition(topic, 0)
    return LogEnd(key, LeaderEpoch(leader_epoch), Offset(end_offset), Offset(committed))


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
    for number in (0, 1):
        cluster.driver.beat(cluster.life(number), log_ends=[log_end(topic, 1, 10)])
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
    for number in (1, 2):
        life = cluster.life(1) if number == 1 else cluster.restart(2, "2")
        cluster.driver.beat(life, log_ends=[log_end(topic, 1, 9)])
    cluster.driver.pass_time(600)
    assert cluster.state(topic).leader == 0
    cluster.change_isr(topic, 0, 1)
    forget(cluster, 2, 1, 0)
    for number in range(3):
        cluster.restart(number, "5")
    forget(cluster, 0)
    for number in (1, 2):
        cluster.driver.beat(cluster.life(number), log_ends=[log_end(topic, 3, 20)])
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
    asks = [AskLogEnds(life, (TopicPartition(topic, 0),)) for life in lives]
    assert cluster.driver.asks == 2 * asks
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
    assert {ask.broker for ask in cluster.driver.asks} == {cluster.life(1), life}


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
    lives = [cluster.life(number) for number in range(3)]
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
    assert {len(ask.partitions) for ask in cluster.driver.asks} == {2}
    assert {ask.broker for ask in cluster.driver.asks} == {cluster.life(0), cluster.life(1)}
    ends = [log_end(topic, 0, 0) for _ in range(3)]
    beat = Heartbeat(life=cluster.life(0), metadata_epoch=0, log_ends=ends)
    assert isinstance(cluster.driver.ask(beat), MalformedRequestError)


def test_partitions_that_are_well_are_not_reported_on(cluster: Cluster) -> None:
    topic = cluster.create()
    cluster.driver.beat(cluster.life(1), log_ends=[log_end(topic, 99, 99)])
    cluster.driver.pass_time(600)
    assert cluster.state(topic).leader == 0


# Eligible replicas (P26).

END = EpochEnd(LeaderEpoch(0), Offset(70))
MIN_ISR = {"min.insync.replicas": "2"}


def lose(cluster: Cluster, topic: TopicId) -> None:
    """Let 2 die, then 1, so that it is eligible; the leader 0 says what is committed, and dies."""
    for broker_id in (2, 1):
        cluster.driver.kill(BrokerId(broker_id))
    cluster.change_isr(topic, 0, committed_end=END)
    cluster.driver.kill(BrokerId(0))
    state = cluster.state(topic)
    assert (state.leader, ids(state.elr), state.committed_end) == (NO_BROKER, [0, 1], END)
    cluster.driver.asks.clear()


@pytest.fixture
def lost(cluster: Cluster) -> TopicId:
    """A partition that nobody leads: 0 and 1 are eligible, all are dead."""
    topic_id = cluster.create(config=MIN_ISR)
    lose(cluster, topic_id)
    return topic_id


def test_an_eligible_replica_is_asked_for_its_log_as_soon_as_it_is_back_and_then_leads(
    cluster: Cluster, lost: TopicId
) -> None:
    back = cluster.restart(1, "2")
    assert cluster.state(lost).leader == NO_BROKER
    cluster.driver.pass_time(100)
    assert cluster.driver.asks == [AskLogEnds(back, (TopicPartition(lost, 0),))]
    cluster.driver.beat(back, log_ends=[log_end(lost, 0, 75, committed=70)])
    cluster.driver.pass_time(100)
    state = cluster.state(lost)
    assert (state.leader, ids(state.isr), ids(state.elr)) == (1, [1], [0])
    assert (state.is_recovering, state.committed_end) == (False, END)
    assert not cluster.driver.lacking


@pytest.mark.parametrize("committed", [-1, 0, 69])
def test_one_that_lacks_committed_records_does_not_lead_and_another_is_waited_for(
    cluster: Cluster, lost: TopicId, committed: int
) -> None:
    """Its disk was put back from a snapshot of the same life, or damage cut its log off."""
    copy = cluster.restart(1, "2")
    said = log_end(lost, 0, 69, committed=committed)
    cluster.driver.beat(copy, log_ends=[said])
    cluster.driver.pass_time(3000)
    assert cluster.state(lost).leader == NO_BROKER
    assert cluster.driver.lacking == [
        LackingCommitted(copy, ((TopicName("default", "t"), said, END),))
    ]
    third = cluster.restart(2, "2")
    cluster.driver.beat(third, log_ends=[log_end(lost, 0, 99, committed=70)])
    cluster.driver.pass_time(1000)
    assert cluster.state(lost).leader == NO_BROKER  # It is not eligible, whatever it says.
    newest = cluster.restart(0, "2")
    cluster.driver.beat(newest, log_ends=[log_end(lost, 0, 70, committed=70)])
    cluster.driver.pass_time(100)
    state = cluster.state(lost)
    assert (state.leader, ids(state.isr), ids(state.elr)) == (0, [0], [1])


def test_one_of_whose_log_nothing_is_known_does_not_lead_and_is_asked_again(
    cluster: Cluster, lost: TopicId
) -> None:
    back = cluster.restart(1, "2")
    cluster.driver.pass_time(1000)
    cluster.driver.asks.clear()
    cluster.driver.pass_time(500)
    assert [ask.broker for ask in cluster.driver.asks] == [back]
    assert cluster.state(lost).leader == NO_BROKER


def test_what_an_earlier_life_has_shown_counts_for_nothing(cluster: Cluster, lost: TopicId) -> None:
    back = cluster.restart(1, "2")
    cluster.driver.send(
        Heartbeat(
            life=back,
            metadata_epoch=cluster.driver.image.epoch,
            log_ends=[log_end(lost, 0, 70, committed=70)],
        )
    )
    again = cluster.restart(1, "3", previous_broker_epoch=back.broker_epoch)
    cluster.driver.pass_time(600)
    assert cluster.state(lost).leader == NO_BROKER
    cluster.driver.beat(again, log_ends=[log_end(lost, 0, 60, committed=-1)])
    cluster.driver.pass_time(600)
    assert cluster.state(lost).leader == NO_BROKER


def test_another_controller_asks_again(cluster: Cluster, lost: TopicId) -> None:
    back = cluster.restart(1, "2")
    cluster.driver.tick()
    cluster.replace_controller()
    cluster.driver.pass_time(100)
    assert cluster.state(lost).leader == NO_BROKER
    assert cluster.driver.asks == [AskLogEnds(back, (TopicPartition(lost, 0),))]


def test_a_live_eligible_replica_shows_its_log_too_when_the_last_in_sync_one_dies(
    cluster: Cluster,
) -> None:
    topic = cluster.create(config=MIN_ISR)
    cluster.change_isr(topic, 0, committed_end=END)
    cluster.driver.kill(BrokerId(0))
    assert (cluster.state(topic).leader, ids(cluster.state(topic).elr)) == (NO_BROKER, [0, 1, 2])
    cluster.driver.beat(cluster.life(2), log_ends=[log_end(topic, 0, 70, committed=70)])
    cluster.driver.pass_time(100)
    assert (cluster.state(topic).leader, cluster.state(topic).committed_end) == (2, END)


def test_nobody_is_asked_where_no_leader_has_said_what_is_committed(cluster: Cluster) -> None:
    """Neither where all die at once, nor where there is one replica, nor where nothing was written.

    5,000 partitions that are back together cost no questions.
    """
    topic = cluster.create(config=MIN_ISR)
    alone = cluster.create("alone", replication_factor=1)
    cluster.driver.pass_time(4100, silent=map(BrokerId, range(3)))
    assert (cluster.state(topic).leader, ids(cluster.state(topic).elr)) == (NO_BROKER, [0, 1, 2])
    assert cluster.state(topic).committed_end == NOTHING_WRITTEN
    for broker_id in range(3):
        cluster.restart(broker_id, "2")
    cluster.driver.pass_time(600)
    assert NO_BROKER not in (cluster.state(topic).leader, cluster.state(alone).leader)
    assert not cluster.driver.asks


def test_a_person_may_elect_one_that_lacks_records(cluster: Cluster, lost: TopicId) -> None:
    copy = cluster.restart(1, "2")
    cluster.restart(2, "2")
    said = log_end(lost, 0, 69, committed=-1)
    cluster.driver.beat(copy, log_ends=[said])
    cluster.driver.pass_time(600)
    key = TopicPartition(lost, 0)
    cluster.driver.ask(ElectLeaders(kind=ElectionKind.UNCLEAN, partitions=[key]))
    state = cluster.state(lost)
    assert (state.leader, ids(state.isr), state.elr) == (1, [1], ())
    assert (state.is_recovering, state.committed_end) == (True, NOTHING_WRITTEN)
    (report,) = cluster.driver.unclean
    assert (report.leader, report.log_end) == (copy, said)


def test_where_it_is_allowed_one_that_lacks_records_leads_uncleanly_once_that_is_known(
    cluster: Cluster,
) -> None:
    topic = cluster.create(config=MIN_ISR | {"unclean.leader.election.enable": "true"})
    cluster.driver.kill(BrokerId(2))
    cluster.driver.kill(BrokerId(1))
    cluster.change_isr(topic, 0, committed_end=END)
    copy = cluster.restart(1, "2")
    cluster.driver.kill(BrokerId(0))
    cluster.driver.pass_time(1000)
    assert cluster.state(topic).leader == NO_BROKER
    cluster.driver.beat(copy, log_ends=[log_end(topic, 0, 60, committed=-1)])
    cluster.driver.pass_time(600)
    assert (cluster.state(topic).leader, cluster.state(topic).is_recovering) == (1, True)


def test_a_damaged_leader_is_replaced_by_an_eligible_replica_that_shows_its_log(
    cluster: Cluster,
) -> None:
    """P65."""
    topic = cluster.create(config=MIN_ISR)
    cluster.change_isr(topic, 0, committed_end=END)
    cluster.report_offline(0, topic)
    assert (cluster.state(topic).leader, ids(cluster.state(topic).elr)) == (NO_BROKER, [0, 1, 2])
    cluster.driver.pass_time(600)
    assert {ask.broker.broker_id for ask in cluster.driver.asks} == {1, 2}
    cluster.driver.beat(cluster.life(1), log_ends=[log_end(topic, 0, 70, committed=70)])
    cluster.driver.pass_time(600)
    assert (cluster.state(topic).leader, ids(cluster.state(topic).elr)) == (1, [0, 2])
    cluster.report_offline(0, topic)
    assert (cluster.state(topic).leader, ids(cluster.state(topic).elr)) == (1, [2])
