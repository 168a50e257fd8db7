"""Registration, sessions, fencing and leaving, as a controller with several brokers does them."""

from collections import Counter
from dataclasses import replace

import pytest
from tests.fakes.cluster import Cluster, ids, registration

from millrace.core.controller.decisions import LEADER_BALANCE_INTERVAL_MS
from millrace.core.controller.effects import ElectedUncleanly, OlderCopyAccepted
from millrace.core.controller.lease import Deposed
from millrace.core.errors import (
    BrokerIdNotRegisteredError,
    BrokerInUseError,
    DuplicateBrokerRegistrationError,
    InvalidConfigError,
    NotControllerError,
    PreferredLeaderNotAvailableError,
    StaleBrokerEpochError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    MonotonicMs,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import (
    CLUSTER_KEY,
    NOWHERE,
    SHARD_KEYS,
    BrokerLife,
    BrokerRegistration,
    Listener,
    PartitionState,
    Reluctance,
    SideAddresses,
    next_shard,
)
from millrace.core.metadata.objects.encoding import decode_shard, encode_shard
from millrace.core.metadata.requests import (
    AcceptedCopy,
    AlterTopics,
    ConfirmDeletions,
    DeleteTopics,
    DrainBroker,
    ElectionKind,
    ElectLeaders,
    Heartbeat,
    HeartbeatAnswer,
    PurgeTopics,
    TopicChange,
    TopicRef,
    UnregisterBroker,
)

A, B, C, D = (BrokerId(number) for number in range(4))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(3)


def leaders(cluster: Cluster, topic: TopicId) -> Counter[BrokerId]:
    states = cluster.driver.image.topics_by_id[topic].partitions
    return Counter(state.leader for state in states)


# Starting (P28, P37).


def test_a_broker_is_fenced_until_it_has_seen_its_registration(cluster: Cluster) -> None:
    driver = cluster.driver
    before = driver.image.epoch
    registered = driver.ask(registration(3))
    assert isinstance(registered, BrokerRegistration)
    assert registered.is_fenced
    assert driver.beat(registered.life, metadata_epoch=before).is_fenced
    assert not driver.image.cluster.brokers[D].is_there
    assert not driver.beat(registered.life, metadata_epoch=before + 1).is_fenced
    assert driver.image.cluster.brokers[D].is_there


def test_an_unfenced_broker_hears_of_it_when_that_is_stored(cluster: Cluster) -> None:
    driver = cluster.driver
    registered = driver.ask(registration(3))
    assert isinstance(registered, BrokerRegistration)
    beats = [
        driver.send(Heartbeat(life=registered.life, metadata_epoch=driver.image.epoch))
        for _ in range(2)
    ]
    assert driver.results.keys().isdisjoint(beats)
    driver.settle()
    assert driver.results[beats[1]] == HeartbeatAnswer(is_fenced=False, may_stop=False)


def test_a_second_process_is_refused_while_the_first_one_lives(cluster: Cluster) -> None:
    error = cluster.driver.ask(registration(0, "2"))
    assert isinstance(error, DuplicateBrokerRegistrationError)
    cluster.driver.kill(A)
    assert cluster.restart(0, "2").broker_epoch == 4


def test_a_new_controller_lets_nobody_take_the_place_of_who_may_live_on(cluster: Cluster) -> None:
    """It has not heard of the first process yet, and the second one has other disks."""
    cluster.replace_controller()
    cluster.driver.tick()
    other_disks = registration(0, "2", directories=["other"])
    assert isinstance(cluster.driver.ask(other_disks), DuplicateBrokerRegistrationError)
    cluster.driver.pass_time(cluster.config.broker_session_timeout_ms + 100, silent=[A])
    assert isinstance(cluster.driver.ask(other_disks), BrokerRegistration)


def test_who_has_the_disks_of_a_dead_process_need_not_wait_for_a_new_controller(
    cluster: Cluster,
) -> None:
    """Only one process can lock them."""
    cluster.replace_controller()
    cluster.driver.tick()
    assert isinstance(cluster.driver.ask(registration(0, "2")), BrokerRegistration)


def test_a_clean_marker_of_the_life_itself_proves_that_it_is_over(cluster: Cluster) -> None:
    life = cluster.life(0)
    stale = registration(0, "2", previous_broker_epoch=life.broker_epoch - 1)
    assert isinstance(cluster.driver.ask(stale), DuplicateBrokerRegistrationError)
    new = cluster.restart(0, "3", previous_broker_epoch=life.broker_epoch)
    assert new.broker_epoch > life.broker_epoch


def test_a_replaced_process_is_told_to_stop(cluster: Cluster) -> None:
    old = cluster.life(0)
    cluster.driver.kill(A)
    cluster.restart(0, "2")
    answer = cluster.driver.ask(Heartbeat(life=old, metadata_epoch=999))
    assert isinstance(answer, StaleBrokerEpochError)
    unknown = BrokerLife(BrokerId(9), BrokerEpoch(1))
    answer = cluster.driver.ask(Heartbeat(life=unknown, metadata_epoch=999))
    assert isinstance(answer, StaleBrokerEpochError)


def test_a_controller_that_was_replaced_does_not_stop_a_later_life(cluster: Cluster) -> None:
    later = BrokerLife(A, BrokerEpoch(99))
    answer = cluster.driver.ask(Heartbeat(life=later, metadata_epoch=999))
    assert isinstance(answer, NotControllerError)


def test_of_two_starts_at_once_the_later_one_gets_the_life(cluster: Cluster) -> None:
    driver = cluster.driver
    cluster.create()
    driver.kill(A)
    first = driver.send(registration(0, "2"))
    second = driver.send(registration(0, "3"))
    driver.settle()
    assert isinstance(driver.results[first], DuplicateBrokerRegistrationError)
    granted = driver.results[second]
    assert isinstance(granted, BrokerRegistration)
    assert granted.incarnation_id == "3"
    assert driver.image.cluster.brokers[A] == granted


def test_between_the_phases_the_old_life_is_nowhere_and_cannot_come_back(
    cluster: Cluster,
) -> None:
    topic = cluster.create()
    cluster.replace_controller()  # It has not heard of the life that is there.
    driver = cluster.driver
    driver.tick()
    old = cluster.life(1)
    request_id = driver.send(registration(1, "2"))
    beat = driver.send(Heartbeat(life=old, metadata_epoch=driver.image.epoch))
    driver.settle()
    assert isinstance(driver.results[request_id], BrokerRegistration)
    assert isinstance(driver.results[beat], StaleBrokerEpochError)
    assert ids(cluster.state(topic).isr) == [0, 2]


@pytest.mark.parametrize("written", [0, 1, 2])
def test_a_controller_that_dies_between_the_phases_leaves_nothing_that_counts(
    cluster: Cluster, written: int
) -> None:
    """P37: whatever of the first phase was stored, the next controller mends it."""
    topic = cluster.create(config={"durability": "replicated"})
    cluster.driver.kill(A)
    cluster.driver.send(registration(0, "2"))
    for _ in range(min(written, len(cluster.driver.writes))):
        cluster.driver.write()
    cluster.replace_controller()
    cluster.driver.tick()
    state = cluster.state(topic)
    assert (state.leader, ids(state.isr)) == (1, [1, 2])
    new = cluster.restart(0, "3")
    assert new not in (*state.isr, *state.elr)
    cluster.change_isr(topic, 0, 1, 2)
    assert new in cluster.state(topic).isr


def test_a_zombie_s_entry_of_an_earlier_life_is_removed(cluster: Cluster) -> None:
    """P37: nobody honours it, and the live controller takes it out."""
    topic = cluster.create()
    old = cluster.life(1)
    cluster.driver.kill(B)
    cluster.restart(1, "2")
    shard = decode_shard(0, cluster.objects[SHARD_KEYS[0]])
    state = shard.topics[topic].partitions[0]
    assert state.leader_life is not None
    bad = replace(
        shard.topics[topic], partitions=(state.successor(leader=A, isr=(*state.isr, old)),)
    )
    written = next_shard(shard, {topic: bad}, {}, {}, shard.controller_epoch)
    assert cluster.objects.swap(SHARD_KEYS[0], encode_shard(written))
    cluster.replace_controller()
    assert old in cluster.state(topic).isr
    cluster.driver.tick()
    assert cluster.state(topic).isr == state.isr


# Sessions and fencing (P29).


def test_a_new_controller_gives_the_one_that_let_the_lease_run_out_less_time(
    cluster: Cluster,
) -> None:
    topic = cluster.create(partitions=6)
    cluster.replace_controller(Deposed(holder="b1", since=MonotonicMs(0), grace_ms=500))
    cluster.driver.tick()  # The first one: from now on it counts.
    cluster.driver.pass_time(400, silent=[B])
    assert set(leaders(cluster, topic)) == {A, B, C}
    cluster.driver.pass_time(100, silent=[B])
    assert set(leaders(cluster, topic)) == {A, C}


def test_nobody_falls_silent_because_the_store_takes_no_writes(cluster: Cluster) -> None:
    """P40: each heartbeat is sent after the answer to the one before."""
    driver, topic = cluster.driver, cluster.create(partitions=3)
    driver.send(registration(3))  # Its write is never answered.
    for life in driver.live():
        usual = Heartbeat(life=life, metadata_epoch=driver.image.epoch)
        for said in (
            usual,
            replace(usual, reluctance=Reluctance.SLOW_DISK),
            replace(usual, offline=(TopicPartition(topic, 0),)),
            replace(usual, wants_shutdown=True),
            usual,
        ):
            beat = driver.send(said)
            assert driver.results[beat] == HeartbeatAnswer(is_fenced=False, may_stop=False)
    assert CLUSTER_KEY in [write.key for write in driver.writes]


def test_a_session_s_end_is_not_waited_for_with_the_usual_look_at_the_clock(
    cluster: Cluster,
) -> None:
    driver, life = cluster.driver, cluster.life(1)
    tick_ms = cluster.config.controller_tick_ms
    assert driver.machine.pause_ms(MonotonicMs(driver.now)) == tick_ms
    driver.perform(driver.machine.on_connection_broken(life, MonotonicMs(driver.now + 30)))
    assert driver.machine.pause_ms(MonotonicMs(driver.now + 400)) == 30
    assert driver.machine.pause_ms(MonotonicMs(driver.now + 440)) == 0


def test_a_controller_that_has_just_taken_over_looks_at_the_clock_at_once(
    cluster: Cluster,
) -> None:
    cluster.replace_controller()
    assert cluster.driver.machine.pause_ms(MonotonicMs(cluster.driver.now)) == 0
    cluster.driver.tick()
    tick_ms = cluster.config.controller_tick_ms
    assert cluster.driver.machine.pause_ms(MonotonicMs(cluster.driver.now)) == tick_ms


def test_the_one_that_let_the_lease_run_out_stays_when_it_is_heard_of(cluster: Cluster) -> None:
    topic = cluster.create(partitions=6)
    cluster.replace_controller(Deposed(holder="b1", since=MonotonicMs(0), grace_ms=500))
    cluster.driver.tick()
    cluster.driver.pass_time(3000, silent=[A])  # Silent for less than a session.
    assert set(leaders(cluster, topic)) == {A, B, C}


def test_a_dead_broker_s_partitions_are_led_by_the_others_in_one_write_for_each_shard(
    cluster: Cluster,
) -> None:
    for shard in (1, 2):
        cluster.create(f"t{shard}", partitions=6, shard=shard)
    versions = {key: cluster.objects[key].version for key in cluster.objects}
    cluster.driver.kill(A)
    grown = {key: cluster.objects[key].version - versions[key] for key in versions}
    assert {key: each for key, each in grown.items() if each} == {
        CLUSTER_KEY: 1,
        "shards/01": 1,
        "shards/02": 1,
    }
    for topic in cluster.driver.image.topics_by_id:
        assert set(leaders(cluster, topic)) == {B, C}


def test_brokers_that_die_together_are_fenced_together() -> None:
    cluster = Cluster(4)
    topic = cluster.create(partitions=4)
    version = cluster.objects["shards/00"].version
    cluster.driver.pass_time(4100, silent=[A, B])
    assert cluster.objects["shards/00"].version == version + 1
    assert set(leaders(cluster, topic)) <= {C, D, NO_BROKER}


def test_a_fenced_broker_that_is_back_leads_again_in_the_same_life(cluster: Cluster) -> None:
    """P29: fencing alone is no new life. Preferred leaders return by themselves."""
    topic = cluster.create(partitions=3)
    life = cluster.life(0)
    cluster.driver.pass_time(4100, silent=[A])
    assert leaders(cluster, topic)[A] == 0
    assert not cluster.driver.beat(life).is_fenced
    cluster.driver.pass_time(1000)
    assert leaders(cluster, topic)[A] == 0  # Not in sync yet.
    for number in range(3):
        cluster.change_isr(topic, 0, 1, 2, partition=number)
    cluster.driver.pass_time(1000)
    assert leaders(cluster, topic) == {A: 1, B: 1, C: 1}


def test_a_new_controller_fences_nobody_before_a_whole_session(cluster: Cluster) -> None:
    topic = cluster.create(partitions=3)
    states = cluster.driver.image.topics_by_id[topic]
    cluster.replace_controller()
    cluster.driver.tick()
    cluster.driver.pass_time(3900, silent=[A, B, C])
    assert cluster.driver.image.topics_by_id[topic] == states
    cluster.driver.pass_time(200, silent=[A, B, C])
    assert cluster.driver.live() == []
    assert leaders(cluster, topic) == {NO_BROKER: 3}


def test_everybody_comes_back_after_all_were_dead(cluster: Cluster) -> None:
    """Replication 3 and all killed at once: the last ones in sync are waited for."""
    topic = cluster.create()
    for broker_id in (C, B, A):
        cluster.driver.kill(broker_id)
    state = cluster.state(topic)
    assert (state.leader, ids(state.elr)) == (NO_BROKER, [0, 1])
    cluster.restart(2, "2")
    cluster.driver.pass_time(1000)
    assert cluster.state(topic).leader == NO_BROKER  # It has not all that was committed.
    cluster.restart(1, "2")
    state = cluster.state(topic)
    assert (state.leader, ids(state.isr), ids(state.elr)) == (1, [1], [0])


def test_all_dead_with_unclean_elections_takes_the_first_one_back_and_says_so() -> None:
    cluster = Cluster(3)
    topic = cluster.create(config={"unclean.leader.election.enable": "true"})
    for broker_id in (C, B, A):
        cluster.driver.kill(broker_id)
    life = cluster.restart(2, "2")
    state = cluster.state(topic)
    assert (state.leader, state.is_recovering) == (2, True)
    (report,) = cluster.driver.unclean
    assert report == ElectedUncleanly(
        report.topic, TopicPartition(topic, 0), life, state.leader_epoch, None
    )
    assert str(report.topic) == "t"


def test_an_older_copy_of_a_disk_is_refused_until_a_person_accepts_this_one() -> None:
    cluster = Cluster(2)
    topic = cluster.create(replication_factor=2)
    copy = cluster.driver.image.cluster.brokers[B].broker_epoch
    cluster.driver.kill(B)
    newest = cluster.restart(1, "2").broker_epoch
    cluster.driver.kill(B)

    def begin(accepted: tuple[int, int] | None) -> object:
        request = replace(
            registration(1, "3"),
            directory_epoch=copy,
            accepted_copy=None if accepted is None else AcceptedCopy(*map(BrokerEpoch, accepted)),
        )
        return cluster.driver.ask(request)

    for accepted in (None, (copy - 1, newest), (copy, newest - 1), (newest, copy)):
        error = begin(accepted)
        assert isinstance(error, InvalidConfigError)
        assert f"node.accept_older_copy = '{copy}/{newest}'" in error.message
    assert cluster.driver.accepted == []
    accepted_copy = AcceptedCopy(copy, newest)
    request = replace(registration(1, "3"), directory_epoch=copy, accepted_copy=accepted_copy)
    cluster.driver.send(request)  # Its connection breaks before the answer.
    assert isinstance(cluster.driver.ask(request), BrokerRegistration)
    assert cluster.driver.accepted == [OlderCopyAccepted(B, copy, newest)]
    state = cluster.state(topic)
    assert (ids(state.isr), ids(state.elr)) == ([0], []), "it counts as a lost disk"


def test_a_copy_that_was_accepted_once_is_refused_when_it_is_put_back_again() -> None:
    cluster = Cluster(2)
    copy = cluster.life(1).broker_epoch
    cluster.driver.kill(B)
    newest = cluster.restart(1, "2").broker_epoch
    cluster.driver.kill(B)
    accepted = replace(
        registration(1, "3"),
        directory_epoch=copy,
        accepted_copy=AcceptedCopy(copy, newest),
    )
    granted = cluster.driver.start_broker(accepted)
    assert cluster.life(1) == granted.life
    cluster.driver.kill(B)  # It has written with that life.
    error = cluster.driver.ask(replace(accepted, incarnation_id="4"))
    assert isinstance(error, InvalidConfigError)
    assert f"'{copy}/{granted.broker_epoch}'" in error.message


def test_four_brokers_and_three_topics_survive_each_broker_evenly() -> None:
    """The slides' picture."""
    cluster = Cluster(4)
    topics = [cluster.create(f"t{number}", partitions=4) for number in range(3)]

    def loads() -> Counter[BrokerId]:
        return sum((leaders(cluster, topic) for topic in topics), Counter())

    assert loads() == {A: 3, B: 3, C: 3, D: 3}
    for dead in (A, B, C, D):
        cluster.driver.kill(dead)
        assert loads() == {broker: 4 for broker in (A, B, C, D) if broker != dead}
        cluster.restart(dead, f"{dead}-again")
        for topic in topics:
            for number in range(4):
                replicas = cluster.state(topic, number).replicas
                cluster.change_isr(topic, *replicas, partition=number)
        cluster.driver.pass_time(1000)
        assert loads() == {A: 3, B: 3, C: 3, D: 3}


# Leaving (P32).


def test_a_broker_that_wants_to_stop_hands_over_leaves_and_waits_until_all_have_seen_it(
    cluster: Cluster,
) -> None:
    topic = cluster.create(partitions=3)
    driver = cluster.driver
    life = cluster.life(0)
    seen = driver.image.epoch
    for _ in range(3):
        assert not driver.beat(life, wants_shutdown=True).may_stop
    assert leaders(cluster, topic)[A] == 0
    states = driver.image.topics_by_id[topic].partitions
    assert all(sorted(ids(state.isr)) == [1, 2] for state in states)
    driver.beat(cluster.life(1))
    driver.beat(cluster.life(2), metadata_epoch=seen)
    assert not driver.beat(life, wants_shutdown=True).may_stop
    driver.beat(cluster.life(2))
    assert driver.beat(life, wants_shutdown=True).may_stop


def test_a_stopping_broker_stays_in_the_isr_while_the_others_are_too_few(
    cluster: Cluster,
) -> None:
    topic = cluster.create()
    driver = cluster.driver
    leader, follower, late = cluster.state(topic).replicas
    cluster.change_isr(topic, leader, follower)
    life = cluster.life(leader)
    for _ in range(3):
        assert not driver.beat(life, wants_shutdown=True).may_stop
    state = cluster.state(topic)
    assert (state.leader, ids(state.isr)) == (follower, [leader, follower])
    cluster.change_isr(topic, leader, follower, late)
    for _ in range(2):
        driver.beat(life, wants_shutdown=True)
        driver.pass_time(100, silent=[leader])
    assert ids(cluster.state(topic).isr) == [follower, late]
    assert driver.beat(life, wants_shutdown=True).may_stop


def test_the_wait_is_bounded(cluster: Cluster) -> None:
    topic = cluster.create()
    leader, follower, _ = cluster.state(topic).replicas
    cluster.change_isr(topic, leader, follower)
    life, begun = cluster.life(leader), cluster.driver.now
    while not cluster.driver.beat(life, wants_shutdown=True).may_stop:
        cluster.driver.pass_time(100, silent=[leader])
    assert cluster.driver.now - begun == cluster.config.controlled_shutdown_wait_ms
    assert ids(cluster.state(topic).isr) == [leader, follower]


def test_who_holds_partitions_alone_need_not_wait_for_anybody() -> None:
    cluster = Cluster(1)
    topic = cluster.create(replication_factor=1)
    life = cluster.life(0)
    assert not cluster.driver.beat(life, wants_shutdown=True).may_stop  # Not stored yet.
    assert cluster.driver.beat(life, wants_shutdown=True).may_stop
    assert cluster.state(topic).leader == 0


def test_a_stopped_broker_is_back_with_its_next_start(cluster: Cluster) -> None:
    life = cluster.life(0)
    cluster.driver.beat(life, wants_shutdown=True)
    assert cluster.driver.image.cluster.brokers[A].is_draining
    cluster.restart(0, "2", previous_broker_epoch=life.broker_epoch)
    assert not cluster.driver.image.cluster.brokers[A].is_draining


def test_addresses_of_drpc_are_kept_for_one_life_of_a_broker(cluster: Cluster) -> None:
    cluster.give_drpc_addresses(0, SideAddresses(clients="a:1", brokers="a:2"))
    before = cluster.driver.image.epoch
    cluster.driver.beat(cluster.life(0))
    assert cluster.driver.image.epoch == before, "it is not stored again"
    cluster.replace_controller()
    assert cluster.driver.image.cluster.brokers[A].drpc_address_at(Listener.BROKERS) == "a:2"
    # Another process may have these ports by now.
    cluster.driver.drpc_addresses.clear()
    cluster.driver.kill(A)
    registered = cluster.driver.ask(replace(registration(0), incarnation_id="2"))
    assert isinstance(registered, BrokerRegistration)
    assert registered.drpc_addresses == NOWHERE


def test_a_fenced_broker_may_stop_at_once(cluster: Cluster) -> None:
    life = cluster.life(0)
    cluster.driver.pass_time(4100, silent=[A])
    assert cluster.driver.beat(life, wants_shutdown=True).may_stop


def test_a_drained_broker_hands_over_and_gets_nothing_until_it_is_taken_back(
    cluster: Cluster,
) -> None:
    topic = cluster.create(partitions=6)
    answer = cluster.driver.ask(DrainBroker(broker_id=A))
    assert isinstance(answer, BrokerRegistration)
    assert (answer.is_drained, answer.is_draining) == (True, True)
    assert leaders(cluster, topic) == {B: 3, C: 3}
    states = cluster.driver.image.topics_by_id[topic].partitions
    assert all(ids(state.isr) == [*state.replicas] for state in states)
    other = cluster.create("other", partitions=2, replication_factor=2)
    assert all(A not in cluster.state(other, number).replicas for number in range(2))
    life = cluster.life(0)
    cluster.restart(0, "2", previous_broker_epoch=life.broker_epoch)
    assert cluster.driver.image.cluster.brokers[A].is_draining
    cluster.driver.ask(DrainBroker(broker_id=A, is_drained=False))
    for number in range(6):
        cluster.change_isr(topic, 0, 1, 2, partition=number)
    cluster.driver.pass_time(1000)
    assert leaders(cluster, topic) == {A: 2, B: 2, C: 2}
    unknown = cluster.driver.ask(DrainBroker(broker_id=BrokerId(9)))
    assert isinstance(unknown, BrokerIdNotRegisteredError)


def test_a_drained_broker_leads_what_nobody_else_can(cluster: Cluster) -> None:
    alone = cluster.create("alone", replication_factor=1)
    (holder,) = cluster.state(alone).replicas
    topic = cluster.create()
    cluster.driver.ask(DrainBroker(broker_id=holder))
    assert cluster.state(alone).leader == holder
    assert cluster.state(topic).leader != holder
    cluster.driver.kill(holder)
    assert cluster.state(alone).leader == NO_BROKER
    life = cluster.restart(holder, "2")
    assert cluster.state(alone).isr == (life,)
    cluster.driver.pass_time(1000)
    assert cluster.state(topic).leader != holder


# Brokers that would rather not lead (F22, F33).


def test_a_reluctant_broker_hands_over_stays_in_sync_and_leads_again_afterwards(
    cluster: Cluster,
) -> None:
    topic = cluster.create(partitions=6)
    life = cluster.life(0)
    cluster.driver.beat(life, reluctance=Reluctance.SLOW_DISK)
    assert cluster.driver.image.cluster.brokers[A].reluctance is Reluctance.SLOW_DISK
    assert leaders(cluster, topic) == {B: 3, C: 3}
    cluster.driver.pass_time(2000)
    states = cluster.driver.image.topics_by_id[topic].partitions
    assert leaders(cluster, topic) == {B: 3, C: 3}
    assert all(ids(state.isr) == [*state.replicas] for state in states)
    cluster.driver.beat(life, reluctance=Reluctance.NONE)
    cluster.driver.pass_time(1000)
    assert leaders(cluster, topic) == {A: 2, B: 2, C: 2}


def test_a_reluctance_is_stored_once_and_not_with_every_heartbeat(cluster: Cluster) -> None:
    cluster.driver.beat(cluster.life(0), reluctance=Reluctance.FULL_DISK)
    before = cluster.driver.image.epoch
    for _ in range(3):
        cluster.driver.beat(cluster.life(0))
    assert cluster.driver.image.epoch == before
    cluster.replace_controller()
    assert cluster.driver.image.cluster.brokers[A].reluctance is Reluctance.FULL_DISK


def test_where_all_are_reluctant_nothing_moves_and_who_recovers_first_leads(
    cluster: Cluster,
) -> None:
    topic = cluster.create()
    leader, second, third = cluster.state(topic).replicas
    for broker_id in (third, second, leader):
        cluster.driver.beat(cluster.life(broker_id), reluctance=Reluctance.SLOW_DISK)
    cluster.driver.pass_time(1000)
    assert cluster.state(topic).leader == leader
    cluster.driver.beat(cluster.life(third), reluctance=Reluctance.NONE)
    assert cluster.state(topic).leader == third


def test_new_replicas_go_to_a_reluctant_broker_only_where_the_others_are_too_few(
    cluster: Cluster,
) -> None:
    cluster.driver.beat(cluster.life(0), reluctance=Reluctance.FULL_DISK)
    two = cluster.create("two", partitions=3, replication_factor=2)
    assert all(A not in cluster.state(two, number).replicas for number in range(3))
    three = cluster.create("three", partitions=3, replication_factor=3)
    cluster.driver.pass_time(1000)
    assert leaders(cluster, three)[A] == 0


def test_another_life_of_a_reluctant_broker_leads_like_any(cluster: Cluster) -> None:
    cluster.driver.beat(cluster.life(0), reluctance=Reluctance.SLOW_DISK)
    cluster.driver.kill(A)
    cluster.restart(0, "2")
    assert cluster.driver.image.cluster.brokers[A].reluctance is Reluctance.NONE


def test_who_stops_waits_until_a_reluctant_broker_leads_for_it() -> None:
    cluster = Cluster(2)
    topic = cluster.create(replication_factor=2)
    leader, follower = cluster.state(topic).replicas
    cluster.driver.beat(cluster.life(follower), reluctance=Reluctance.SLOW_DISK)
    life = cluster.life(leader)
    beats = 0
    while not cluster.driver.beat(life, wants_shutdown=True).may_stop:
        assert (beats := beats + 1) < 5
        cluster.driver.beat(cluster.life(follower))
    assert cluster.state(topic).leader == follower


# Brokers that are gone for good.


def unregister(cluster: Cluster, broker_id: BrokerId) -> object:
    return cluster.driver.ask(UnregisterBroker(broker_id=broker_id))


def test_a_dead_broker_without_replicas_is_forgotten_and_its_id_is_never_given_again(
    cluster: Cluster,
) -> None:
    life = cluster.life(2)
    cluster.driver.kill(C)
    answer = unregister(cluster, C)
    assert isinstance(answer, BrokerRegistration)
    assert answer.name == "b2"
    assert cluster.driver.image.cluster.brokers.keys() == {A, B}
    stranger = cluster.driver.ask(Heartbeat(life=life, metadata_epoch=999))
    assert isinstance(stranger, StaleBrokerEpochError)
    cluster.replace_controller()
    assert cluster.restart(2, "2").broker_id == D
    assert isinstance(unregister(cluster, C), BrokerIdNotRegisteredError)


def test_brokers_of_other_names_are_refused_when_there_are_too_many() -> None:
    """As where each start makes another one: all of them are in one object of the store."""
    cluster = Cluster(3, ClusterConfig(brokers_max=3))
    refused = cluster.driver.ask(registration(3))
    assert isinstance(refused, InvalidConfigError)
    assert "cluster.brokers_max allows 3" in refused.message
    cluster.driver.kill(C)
    assert cluster.restart(2, "2").broker_id == C
    cluster.driver.kill(C)
    unregister(cluster, C)
    assert cluster.restart(3, "1").broker_id == D


def test_a_broker_that_is_alive_or_starting_is_not_forgotten(cluster: Cluster) -> None:
    for broker_id in (A, B):
        answer = unregister(cluster, broker_id)
        assert isinstance(answer, BrokerInUseError)
        assert "stop it first" in answer.message
    cluster.driver.kill(C)
    restarts = cluster.driver.send(registration(2, "2"))
    begun = cluster.driver.send(UnregisterBroker(broker_id=C))
    cluster.driver.settle()
    assert isinstance(cluster.driver.results[restarts], BrokerRegistration)
    assert isinstance(cluster.driver.results[begun], BrokerInUseError)


def test_a_broker_with_replicas_is_not_forgotten_and_they_are_named(cluster: Cluster) -> None:
    cluster.create("t", partitions=12)
    cluster.driver.kill(C)
    answer = unregister(cluster, C)
    assert isinstance(answer, BrokerInUseError)
    assert "replicas of 12 partitions: t-0, t-1, t-10" in answer.message
    assert "and 2 more" in answer.message


def test_a_broker_is_forgotten_only_once_no_stored_partition_has_it(cluster: Cluster) -> None:
    cluster.create("t")
    cluster.driver.kill(C)
    deleted = cluster.driver.send(
        DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(name="t")])
    )  # Decided on, and not stored yet.
    early = cluster.driver.send(UnregisterBroker(broker_id=C))
    cluster.driver.settle()
    assert isinstance(cluster.driver.results[early], BrokerInUseError)
    assert isinstance(cluster.driver.results[deleted], list)
    assert isinstance(unregister(cluster, C), BrokerRegistration)


def test_deleted_topics_do_not_wait_for_a_broker_that_was_forgotten(cluster: Cluster) -> None:
    topic = cluster.create("t")
    cluster.driver.kill(C)
    cluster.driver.ask(DeleteTopics(deleted_at=WallMs(1), topics=[TopicRef(name="t")]))
    cluster.driver.ask(PurgeTopics(topics=[TopicRef(name="t")]))
    for broker_id in (A, B):
        cluster.driver.ask(ConfirmDeletions(broker_id=broker_id, topic_ids=[topic]))
    unregister(cluster, C)
    assert cluster.driver.image.deletions_of(C) == [topic]
    cluster.driver.pass_time(LEADER_BALANCE_INTERVAL_MS, silent=[C])
    cluster.driver.settle()
    assert not any(shard.deletions for shard in cluster.driver.image.shards)


# Elections on request.


def elect(cluster: Cluster, kind: ElectionKind, topic: TopicId, partition: int = 0) -> object:
    request = ElectLeaders(kind=kind, partitions=[TopicPartition(topic, partition)])
    return cluster.ask_each(request)[0]


def test_the_preferred_leader_is_elected_on_request(cluster: Cluster) -> None:
    topic = cluster.create()
    preferred, second, _ = cluster.state(topic).replicas
    cluster.driver.kill(preferred)
    kind = ElectionKind.PREFERRED
    assert isinstance(elect(cluster, kind, topic), PreferredLeaderNotAvailableError)
    cluster.restart(preferred, "2")
    assert isinstance(elect(cluster, kind, topic), PreferredLeaderNotAvailableError)
    cluster.change_isr(topic, 0, 1, 2)
    state = elect(cluster, kind, topic)
    assert isinstance(state, PartitionState)
    assert state.leader == preferred != second
    assert elect(cluster, kind, topic) == state
    assert isinstance(elect(cluster, kind, topic, 7), UnknownTopicOrPartitionError)


def test_an_unclean_leader_is_elected_on_request_only_where_nobody_leads(
    cluster: Cluster,
) -> None:
    topic = cluster.create()
    first, second, third = cluster.state(topic).replicas
    led = cluster.state(topic)
    assert elect(cluster, ElectionKind.UNCLEAN, topic) == led
    for broker_id in (third, second, first):
        cluster.driver.kill(broker_id)
    cluster.restart(third, "2")
    state = elect(cluster, ElectionKind.UNCLEAN, topic)
    assert isinstance(state, PartitionState)
    assert (state.leader, state.is_recovering) == (third, True)
    assert [report.leader for report in cluster.driver.unclean] == [cluster.life(third)]


# Settings.


def test_a_lower_min_isr_and_the_end_of_the_elr_are_one_change(cluster: Cluster) -> None:
    topic = cluster.create()
    cluster.change_isr(topic, 0)
    assert ids(cluster.state(topic).elr) == [1, 2]
    stale = cluster.state(topic).partition_epoch
    change = TopicChange(topic=TopicRef(name="t"), set_config={"min.insync.replicas": "1"})
    cluster.driver.ask(AlterTopics(changes=[change]))
    state = cluster.state(topic)
    assert (state.elr, state.partition_epoch) == ((), stale + 1)
    same = TopicChange(topic=TopicRef(name="t"), set_config={"retention.ms": "1"})
    cluster.driver.ask(AlterTopics(changes=[same]))
    assert cluster.state(topic) == state
