"""When invariants are judged: what an event touched after it, and now and then everything."""

import dataclasses
from collections.abc import Callable

import pytest
from tests.sim.cluster import SimulatedCluster
from tests.sim.world import SECOND, Violation, World

from millrace.core.ids import NO_BROKER, ControllerEpoch, Offset, TopicPartition
from millrace.core.metadata import elections
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.replication.leader import PartitionLeader


def running_cluster() -> SimulatedCluster:
    world = World(4)
    cluster = SimulatedCluster(world)
    cluster.start()
    world.run_until(10 * SECOND, cluster.check)
    return cluster


def any_leader(cluster: SimulatedCluster) -> tuple[TopicPartition, PartitionLeader]:
    for node in cluster.nodes().values():
        assert node.replicas is not None
        for topic_partition in node.replicas:
            leader = node.replicas.get(topic_partition).leader
            if leader is not None:
                return topic_partition, leader
    raise AssertionError("nobody leads")


def test_what_an_event_touched_is_judged_after_it() -> None:
    cluster = running_cluster()
    topic_partition, leader = any_leader(cluster)
    leader.high_watermark = Offset(leader.high_watermark + 1000)
    cluster.invariants.touched[topic_partition] = None
    with pytest.raises(Violation, match="which is in sync, keeps"):
        cluster.check()


def test_what_nothing_seems_to_happen_to_is_judged_now_and_then() -> None:
    cluster = running_cluster()
    _, leader = any_leader(cluster)
    leader.high_watermark = Offset(leader.high_watermark - 1)

    def many_events() -> None:
        for _ in range(600):
            cluster.check()

    with pytest.raises(Violation, match="takes its high watermark back"):
        many_events()


def test_brokers_say_what_they_touch() -> None:
    cluster = running_cluster()
    touched: dict[TopicPartition, None] = {}

    def check() -> None:
        touched.update(cluster.invariants.touched)
        cluster.check()
        assert not cluster.invariants.touched

    cluster._world.run_until(15 * SECOND, check)
    assert touched.keys() == cluster.states.keys()


def test_records_that_nobody_had_to_flush_may_be_lost_by_restarts() -> None:
    cluster = running_cluster()
    topic_partition, _ = any_leader(cluster)
    led = cluster.states[topic_partition]
    leader = led.leader_life
    assert leader is not None
    before = dataclasses.replace(
        led, leader=NO_BROKER, isr=(), last_known_elr=led.replicas, is_unflushed=True
    )
    cluster.invariants.on_state(topic_partition, before, elections.unclean(before, leader))
    flushed = dataclasses.replace(before, is_unflushed=False)
    with pytest.raises(Violation, match="that nobody wanted"):
        cluster.invariants.on_state(topic_partition, flushed, elections.unclean(flushed, leader))


def test_retention_gives_up_what_any_leader_has_committed_and_nothing_else() -> None:
    """Who was replaced, and has not heard of it, commits what all that were in sync have."""
    cluster = running_cluster()
    topic_partition, _ = any_leader(cluster)
    committed = cluster.invariants.committed[topic_partition]
    assert committed == cluster.witness.replicas.committed[topic_partition]
    node = next(
        node
        for node in cluster.nodes().values()
        if node.replicas is not None and node.replicas.get(topic_partition).leads
    )
    node.logs[topic_partition].log_start_offset = Offset(committed + 2)
    cluster.witness.replicas.committed[topic_partition] = Offset(committed + 1)
    cluster.invariants.touched[topic_partition] = None
    with pytest.raises(Violation, match=f"and only {committed + 1} is committed"):
        cluster.check()
    node.logs[topic_partition].log_start_offset = Offset(committed + 1)
    cluster.invariants.log_starts.clear()
    cluster.invariants.touched[topic_partition] = None
    cluster.check()


def unclean_election_in(cluster: SimulatedCluster) -> None:
    """As if a controller had taken the last resort, with no need."""
    topic_partition, state = next(iter(cluster.states.items()))
    after = dataclasses.replace(state, unclean_epoch=state.leader_epoch)
    cluster.invariants.on_state(topic_partition, state, after)


def replace_disk(cluster: SimulatedCluster) -> str:
    name, machine = next(iter(cluster.machines.items()))
    machine.cut_power()
    machine.disk.wipe()
    machine.start()
    return name


def forget_the_life(cluster: SimulatedCluster) -> str:
    """Damage what says which life used a disk last: then nobody knows how old the disk is."""
    name, machine = next(iter(cluster.machines.items()))
    machine.cut_power()
    machine.disk.damaged.append("/data/broker-epoch")
    machine.disk.flip_bit("/data/broker-epoch", 0, 0)
    machine.start()
    return name


@pytest.mark.parametrize("lose", [replace_disk, forget_the_life])
def test_an_unclean_election_is_a_violation_again_when_who_lost_its_disk_has_everything(
    lose: Callable[[SimulatedCluster], str],
) -> None:
    cluster = running_cluster()
    with pytest.raises(Violation, match="nobody wanted"):
        unclean_election_in(cluster)
    lose(cluster)
    unclean_election_in(cluster)
    cluster._world.run_until(30 * SECOND, cluster.check)
    assert all(len(state.isr) == 3 for state in cluster.states.values())
    with pytest.raises(Violation, match="nobody wanted"):
        unclean_election_in(cluster)


def test_only_the_broker_that_lost_its_disk_may_follow_an_earlier_controller() -> None:
    cluster = running_cluster()
    replaced = replace_disk(cluster)
    cluster._world.run_until(30 * SECOND, cluster.check)
    for name, node in cluster.nodes().items():
        image = node.metadata
        assert image is not None
        earlier = dataclasses.replace(
            image, cluster=dataclasses.replace(image.cluster, controller_epoch=ControllerEpoch(0))
        )
        with pytest.raises(Violation, match="after"):
            cluster.invariants.on_image(name, earlier)
        if name == replaced:
            cluster.machines[name].disk.wipe()
            cluster.invariants.on_image(name, earlier)


def test_a_cluster_has_a_configuration_that_brokers_would_take() -> None:
    class Wrong(SimulatedCluster):
        config = ClusterConfig(broker_heartbeat_interval_ms=500, broker_reconnect_grace_ms=400)

    with pytest.raises(AssertionError, match="must hold"):
        Wrong(World(1))
