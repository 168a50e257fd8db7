"""What thousands of partitions cost the controller while nothing happens to them."""

import pytest
from tests.fakes.calls import calls_in
from tests.fakes.cluster import Cluster

from millrace.core.ids import BrokerId, MonotonicMs, TopicId
from millrace.core.metadata.requests import Heartbeat

MANY = 3000
FEW_CALLS = 200


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(3)
    for shard in range(6):
        made.create(f"many-{shard}", partitions=MANY // 6, shard=shard)
    return made


def topics(cluster: Cluster) -> list[TopicId]:
    return list(cluster.driver.image.topics_by_id)


def calls_in_tick(cluster: Cluster, ms: int) -> int:
    """Return the most that a tick cost while time passed, in which all live brokers were heard."""
    driver = cluster.driver
    most = 0
    for _ in range(0, ms, 100):
        for life in driver.live():
            driver.beat(life)
        driver.now += 100
        now = MonotonicMs(driver.now)
        most = max(most, calls_in(lambda: driver.perform(driver.machine.tick(now))))  # noqa: B023
        driver.settle()
    return most


def test_partitions_whose_preferred_leader_is_dead_cost_nothing_once_they_are_led(
    cluster: Cluster,
) -> None:
    cluster.driver.kill(BrokerId(0))
    cluster.driver.pass_time(1000)
    assert all(
        state.leader in (1, 2)
        for topic_id in topics(cluster)
        for state in cluster.driver.image.topics_by_id[topic_id].partitions
    )
    assert calls_in_tick(cluster, 2000) < FEW_CALLS


def test_leaderships_return_after_a_time_in_which_there_was_nothing_to_do(
    cluster: Cluster,
) -> None:
    cluster.driver.kill(BrokerId(0))
    cluster.driver.pass_time(2000)
    cluster.restart(0, "2")
    (topic_id, *_) = topics(cluster)
    preferred = [cluster.state(topic_id, number).replicas[0] for number in range(6)]
    for number in range(6):
        replicas = cluster.state(topic_id, number).replicas
        cluster.change_isr(topic_id, *replicas, partition=number)
    cluster.driver.pass_time(1500)
    assert [cluster.state(topic_id, number).leader for number in range(6)] == preferred


def test_a_broker_that_waits_to_stop_costs_nothing_while_nothing_changes(
    cluster: Cluster,
) -> None:
    driver = cluster.driver
    life = cluster.life(0)
    for _ in range(3):  # The others have not seen yet that it may.
        assert not driver.beat(life, wants_shutdown=True).may_stop
    beat = Heartbeat(
        life=life,
        metadata_epoch=driver.image.epoch,
        wants_shutdown=True,
        log_ends=(),
        offline=(),
    )
    now = MonotonicMs(driver.now)
    assert calls_in(lambda: driver.perform(driver.machine.handle(999, beat, now))) < FEW_CALLS
