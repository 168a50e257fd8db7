"""What each replica holds in its files, when nobody writes any more: for the last checker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import crc32c
from tests.checkers.history import INFO
from tests.faults.cluster import Cluster
from tests.faults.history import History
from tests.faults.metadata import PLACES

from millrace.broker.storage import inspection
from millrace.broker.storage.posix_file_system import PosixFileSystem


def report_replicas(cluster: Cluster, history: History, ends: dict[int, int]) -> None:
    """Add every replica to the history.

    Args:
        cluster: whose brokers do not run.
        history: told of them.
        ends: by key, the offset before which everything is committed.
    """
    names = {topic.topic_id: name for name, topic in cluster.view.topics.items()}
    files = PosixFileSystem()
    for node in cluster.nodes:
        for partition in inspection.partitions(files, str(node.log_dirs[0])):
            topic_id, number = partition.topic_partition
            if topic_id not in names or (key := _key(names[topic_id], number)) not in ends:
                continue
            history.record(
                node.name,
                INFO,
                "replica",
                details={
                    "key": key,
                    "log_start": partition.segments[0].base_offset,
                    "high_watermark": ends[key],
                    "batches": list(_batches(files, partition, ends[key])),
                    "epochs": [list(each) for each in partition.leader_epochs or ()],
                },
            )


def _key(topic: str, number: int) -> int:
    try:
        return PLACES.key_of(topic, number)
    except ValueError:
        return -1


def _batches(
    files: PosixFileSystem, partition: inspection.PartitionFiles, end: int
) -> Iterator[list[Any]]:
    contents: dict[str, bytes] = {}
    for path, position, header in inspection.batches(files, partition):
        if header.base_offset >= end:
            return
        if path not in contents:
            contents[path] = Path(path).read_bytes()
        batch = contents[path][position : position + header.length]
        yield [header.base_offset, header.next_offset - 1, crc32c.crc32c(batch)]
