"""A leader whose disk is full lets others lead until that is over (F22)."""

from pathlib import Path

import pytest
from tests.faults.machine import Need, missing
from tests.faults.preload import Control, compile_library
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.ids import BrokerId


@pytest.mark.timeout(240)  # More than its waits together.
def test_a_leader_with_a_full_disk_hands_over_and_leads_again_when_it_is_well(
    tmp_path: Path,
) -> None:
    if (reason := missing().get(Need.PRELOAD)) is not None:
        pytest.skip(reason)
    library = compile_library(tmp_path)
    cluster = RunningCluster(tmp_path)
    controls = [Control(tmp_path / f"control-{number}", library) for number in range(3)]
    for broker, control in zip(cluster.brokers, controls, strict=True):
        broker.wrapper = ["env", *control.environment]
    with (
        cluster,
        SyncAdmin(cluster.bootstrap) as admin,
        SyncProducer(cluster.bootstrap, acks="all") as producer,
    ):
        admin.create_topic("t", partitions=3, replication_factor=3)

        def leaders() -> list[BrokerId]:
            return [partition.leader for partition in admin.describe_topic("t").partitions]

        def state() -> str:
            return admin.describe_cluster().brokers[leader].state

        def write() -> None:
            for partition in range(3):
                producer.send("t", b"v", partition=partition)

        def has_handed_over() -> bool:
            write()
            return leader not in leaders()

        first = leaders()
        controller = admin.describe_cluster().controller_id
        leader = next(broker_id for broker_id in first if broker_id != controller)
        controls[leader]["write_room"] = 0
        wait_until(has_handed_over, "others lead", 30)
        wait_until(lambda: state() == "full disk", "all know why")
        shown = 'millrace_reluctance{reason="full disk"}'
        wait_until(lambda: cluster[leader].metrics()[shown] == 1, "it is shown")
        controls[leader].heal()
        wait_until(lambda: leaders() == first, "the leaderships are back", 60)
        wait_until(lambda: state() == "alive", "all know that it is well")
        write()
        producer.flush()
        wait_until(lambda: admin.describe_health().is_healthy, "all are in sync", 30)
