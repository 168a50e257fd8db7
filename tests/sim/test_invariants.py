"""When invariants are judged: what an event touched after it, and now and then everything."""

import pytest
from tests.sim.cluster import SimulatedCluster
from tests.sim.world import SECOND, Violation, World

from millrace.core.ids import Offset, TopicPartition
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
