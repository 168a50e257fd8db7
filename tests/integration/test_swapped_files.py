"""Files of a stopped follower's partitions change places; it notices, and is in sync again."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.running_broker import wait_until
from tests.integration.running_cluster import RunningCluster, read_all

from millrace.client import SyncAdmin, SyncProducer
from millrace.core.ids import BrokerId

SWAPPED = {"leader-epochs": (0, 1), ".index": (2, 3), ".log": (4, 5)}
"""Between which partitions, by how the names of the files end."""
PARTITIONS = 6
RECORD = random.Random(1).randbytes(100_000)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path) as made:
        yield made


def write(cluster: RunningCluster, records: int) -> None:
    with SyncProducer(cluster.bootstrap, acks="all") as producer:
        for _ in range(records):
            for partition in range(PARTITIONS):
                producer.send("t", bytes([partition]) + RECORD, partition=partition)


def is_whole(cluster: RunningCluster) -> bool:
    with SyncAdmin(cluster.bootstrap) as admin:
        partitions = admin.describe_topic("t").partitions
    return all(len(partition.isr) == 3 for partition in partitions)


def swap(one: Path, other: Path, suffix: str) -> None:
    names = {path.name for path in one.iterdir() if path.name.endswith(suffix)}
    both = [name for name in sorted(names) if (other / name).exists()]
    assert both
    for name in both:
        here, there = (one / name).read_bytes(), (other / name).read_bytes()
        assert here != there
        (one / name).write_bytes(there)
        (other / name).write_bytes(here)


def test_a_follower_with_swapped_files_is_in_sync_again(cluster: RunningCluster) -> None:
    with SyncAdmin(cluster.bootstrap) as admin:
        config = {"durability": "replicated", "segment.bytes": str(1 << 20)}
        created = admin.create_topic(
            "t", partitions=PARTITIONS, replication_factor=3, config=config
        )
        controller = admin.describe_cluster().controller_id
    victim = cluster[BrokerId((controller + 1) % 3)]
    write(cluster, 15)
    wait_until(lambda: is_whole(cluster), "all are in sync", 30)
    victim.stop()
    write(cluster, 5)
    for suffix, pair in SWAPPED.items():
        one, other = (victim.partition_directory(created.topic_id, each) for each in pair)
        swap(one, other, suffix)
    victim.start()
    wait_until(lambda: is_whole(cluster), "all are in sync", 60)
    log = [
        line
        for line in victim.log_path.read_text().splitlines()
        if "it was made again from the log" in line or "partition is offline" in line
    ]
    for suffix, pair in SWAPPED.items():
        what = "partition is offline" if suffix == ".log" else "it was made again from the log"
        for each in pair:
            name = f"{created.topic_id.hex()}-{each}"
            assert any(what in line and name in line for line in log), (name, log)
    write(cluster, 5)
    assert len(read_all(cluster.bootstrap, "t", 25 * PARTITIONS)) == 25 * PARTITIONS
