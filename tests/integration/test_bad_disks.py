"""A leader whose disk is full lets others lead until that is over (F22)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.machine import Need, missing
from tests.faults.preload import Control, compile_library
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.ids import BrokerId


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (reason := missing().get(Need.PRELOAD)) is not None:
        pytest.skip(reason)
    return compile_library(tmp_path_factory.mktemp("library"))


class BadDisks:
    """A cluster with a topic of three partitions, and what can be done to its brokers' disks."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.cluster = RunningCluster(folder)
        self.controls = [Control(folder / f"control-{number}", library) for number in range(3)]
        for broker, control in zip(self.cluster.brokers, self.controls, strict=True):
            broker.wrapper = ["env", *control.environment]

    def state(self, broker_id: BrokerId) -> str:
        with SyncAdmin(self.cluster.bootstrap) as admin:
            return admin.describe_cluster().brokers[broker_id].state

    def leaders(self) -> list[BrokerId]:
        with SyncAdmin(self.cluster.bootstrap) as admin:
            return [partition.leader for partition in admin.describe_topic("t").partitions]

    def start(self) -> BrokerId:
        """Return a leader that is not the controller."""
        self.cluster.start()
        with SyncAdmin(self.cluster.bootstrap) as admin:
            admin.create_topic("t", partitions=3, replication_factor=3)
            controller = admin.describe_cluster().controller_id
        return next(leader for leader in self.leaders() if leader != controller)


@pytest.fixture
def disks(tmp_path: Path, library: Path) -> Iterator[BadDisks]:
    made = BadDisks(tmp_path, library)
    try:
        yield made
    finally:
        made.cluster.abandon()


def test_a_leader_with_a_full_disk_hands_over_and_leads_again_when_it_is_well(
    disks: BadDisks,
) -> None:
    leader = disks.start()
    first = disks.leaders()
    with SyncProducer(disks.cluster.bootstrap, acks="all") as producer:

        def write() -> None:
            for partition in range(3):
                producer.send("t", b"v", partition=partition)

        def has_handed_over() -> bool:
            write()
            return leader not in disks.leaders()

        disks.controls[leader]["write_room"] = 0
        wait_until(has_handed_over, "others lead", 30)
        assert disks.state(leader) == "full disk"
        gauge = 'millrace_reluctance{reason="full disk"}'
        assert disks.cluster[leader].metrics()[gauge] == 1
        disks.controls[leader].heal()
        wait_until(lambda: disks.leaders() == first, "the leaderships are back", 60)
        assert disks.state(leader) == "alive"
        write()
        producer.flush()
    with SyncAdmin(disks.cluster.bootstrap) as admin:
        wait_until(lambda: admin.describe_health().is_healthy, "all are in sync", 30)
