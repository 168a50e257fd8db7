"""Three brokers: what was acknowledged by all in-sync replicas outlives any one of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.ids import TopicPartition

BROKERS = 3


class RunningCluster:
    """Brokers of one cluster, which share a file of metadata."""

    def __init__(self, folder: Path) -> None:
        self.brokers = [
            RunningBroker(
                folder / f"broker-{number}",
                {
                    "node.name": f"broker-{number}",
                    "coordination.path": folder / "coordination.sqlite",
                    "coordination.shared": "true",
                },
            )
            for number in range(BROKERS)
        ]

    def start(self) -> "RunningCluster":
        for broker in self.brokers:
            broker.start()
        return self

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def named(self, name: str) -> RunningBroker:
        return next(each for each in self.brokers if each.settings["node.name"] == name)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    running = RunningCluster(tmp_path)
    try:
        yield running.start()
    finally:
        for broker in running.brokers:
            broker.abandon()


def test_a_leader_that_is_killed_costs_nothing_and_catches_up(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        topic = admin.create_topic("t", replication_factor=3)
        print(topic)
