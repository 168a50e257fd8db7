"""Three brokers: what was acknowledged by all in-sync replicas outlives any one of them."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from tests.integration.raw_client import RawClient
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer
from millrace.proto.v1 import cluster_pb2

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


def log_of(broker: RunningBroker) -> cluster_pb2.LogDescription:
    """Return the only log that a broker has."""
    with RawClient(broker.address) as client:
        (log,) = client.cluster.DescribeLogs(cluster_pb2.DescribeLogsRequest(), timeout=20).logs
        return log


def read_all(cluster: RunningCluster, topic: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    with SyncConsumer(cluster.bootstrap) as consumer:
        consumer.subscribe([topic])
        for record in consumer:
            found.append(record.value)
            if len(found) == count:
                return found
    raise AssertionError(f"only {len(found)} records came")


def test_a_leader_that_is_killed_costs_nothing_and_catches_up(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        admin.create_topic("t", replication_factor=3)
        sent: dict[bytes, int] = {}

        def produce(producer: SyncProducer, texts: Iterable[str]) -> None:
            futures = {text.encode(): producer.send("t", text.encode()) for text in texts}
            for value, future in futures.items():
                sent[value] = future.result(30).offset

        with SyncProducer(cluster.bootstrap, acks="all") as producer:
            produce(producer, (f"before {number}" for number in range(100)))
            first = admin.describe_topic("t").partitions[0]
            assert set(first.isr) == {0, 1, 2}
            killed = next(each for each in cluster.brokers if each.address == first.leader_address)
            killed.kill()
            produce(producer, (f"after {number}" for number in range(100)))
            second = admin.describe_topic("t").partitions[0]
            assert second.leader != first.leader
            assert second.leader_epoch > first.leader_epoch
            killed.start()
            wait_until(
                lambda: set(admin.describe_topic("t").partitions[0].isr) == {0, 1, 2},
                "the killed broker is in sync again",
            )
            produce(producer, (f"at last {number}" for number in range(100)))
        assert sorted(sent.values()) == list(range(300))
        in_order = sorted(sent, key=sent.__getitem__)
        assert read_all(cluster, "t", 300) == in_order
        wait_until(
            lambda: {log_of(each).high_watermark for each in cluster.brokers} == {300},
            "every replica has everything, and knows that it is committed",
        )
