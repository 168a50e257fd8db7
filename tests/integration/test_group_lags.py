"""The lags of groups in the metrics of three brokers: they follow what is written and committed."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.running_cluster import RunningCluster

from millrace.client import Position, SyncAdmin, SyncConsumer, SyncProducer

PARTITIONS = 6
DEADLINE_S = 30.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(
        tmp_path, {"groups.lag_interval_ms": 100, "groups.lag_series_max": 3}
    ) as running:
        yield running


def shown(cluster: RunningCluster, group: str, topic: str = "t") -> dict[str, float]:
    """Return what the brokers that run show of a group."""
    label = f'{{group="{group}",topic="{topic}"}}'
    return {
        name.removeprefix("millrace_group_lag_").removesuffix(label): value
        for broker in cluster.brokers
        if broker.is_running
        for name, value in broker.metrics().items()
        if name.endswith(label)
    }


def left_out(cluster: RunningCluster) -> float:
    name = "millrace_group_lag_left_out_groups"
    return sum(broker.metrics()[name] for broker in cluster.brokers)


def wait_until(is_so: Callable[[], bool], shows: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, shows()
        time.sleep(0.05)


def test_a_lag_follows_records_and_commits_and_is_never_0_while_it_is_unknown(
    cluster: RunningCluster,
) -> None:
    def becomes(**wanted: float) -> None:
        def is_so() -> bool:
            found = shown(cluster, "g")
            return {name: found.get(name) for name in wanted} == wanted

        wait_until(is_so, lambda: shown(cluster, "g"))

    with SyncAdmin(cluster.bootstrap) as admin, SyncProducer(cluster.bootstrap) as producer:
        admin.create_topic("t", PARTITIONS, 1)
        admin.commit_positions("g", {("t", number): Position(0) for number in range(PARTITIONS)})
        becomes(records=0, records_max=0, bytes=0, seconds_max=0, unknown_partitions=0)
        for number in range(60):
            producer.send("t", b"x" * 100, partition=number % 2)
        producer.flush()
        becomes(records=60, records_max=30, unknown_partitions=0)
        found = shown(cluster, "g")
        assert found["bytes"] > 6000
        assert 0 < found["seconds_max"] < DEADLINE_S
        admin.commit_positions("g", {("t", 0): Position(30)})
        becomes(records=30, records_max=30)

        led = admin.describe_topic("t").partitions[1].leader
        positions = admin.describe_topic("__positions").partitions
        coordinator = next(
            broker.broker_id
            for broker in admin.describe_cluster().brokers
            if 'group="g"' in str(cluster[broker.broker_id].metrics().keys())
        )
        assert coordinator in {position.leader for position in positions}
        victim = led if led != coordinator else (coordinator + 1) % len(cluster.brokers)
        lost = sum(partition.leader == victim for partition in admin.describe_topic("t").partitions)
        cluster[victim].kill()
        becomes(unknown_partitions=lost)
        assert set(shown(cluster, "g")) == {"unknown_partitions"}
        cluster[victim].start()
        becomes(records=30, unknown_partitions=0)


def test_a_member_without_a_position_has_read_nothing(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin, SyncProducer(cluster.bootstrap) as producer:
        admin.create_topic("t", 1, 3)
        producer.send("t", b"a record")
        producer.flush()
        with SyncConsumer(cluster.bootstrap, group="g", enable_auto_commit=False) as consumer:
            consumer.subscribe(["t"])
            assert next(iter(consumer)).value == b"a record"
            wait_until(lambda: shown(cluster, "g").get("records") == 1, lambda: shown(cluster, "g"))
            assert shown(cluster, "g")["unknown_partitions"] == 0
            consumer.commit()
            wait_until(lambda: shown(cluster, "g").get("records") == 0, lambda: shown(cluster, "g"))


def test_groups_that_do_not_fit_are_counted(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", 1, 3)
        for number in range(20):
            admin.commit_positions(f"r{number}", {("t", 0): Position(0)})

        def groups_shown() -> int:
            return sum(bool(shown(cluster, f"r{number}")) for number in range(20))

        wait_until(lambda: left_out(cluster) > 0, lambda: left_out(cluster))
        wait_until(lambda: groups_shown() + left_out(cluster) == 20, groups_shown)
        assert groups_shown() <= 3 * len(cluster.brokers)
