"""What each replica's files hold after all writers have stopped: for the last checker."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import crc32c
from tests.checkers.history import INFO
from tests.faults.history import History
from tests.faults.metadata import View

from millrace.broker.storage import inspection
from millrace.broker.storage.posix_file_system import PosixFileSystem


def report_replicas(
    log_dirs: Mapping[str, Path], view: View, history: History, ends: Mapping[int, int]
) -> None:
    """Add every replica to the history.

    Args:
        log_dirs: of the stopped brokers, by name.
        view: of the metadata.
        history: gets a report of each replica.
        ends: by key, the offset below which everything is committed.
    """
    names = {topic.topic_id: name for name, topic in view.topics.items()}
    files = PosixFileSystem()
    for broker, log_dir in log_dirs.items():
        for partition in inspection.partitions(files, str(log_dir)):
            topic_id, number = partition.topic_partition
            if names.get(topic_id) not in view.places.topics:
                continue
            key = view.places.key_of(names[topic_id], number)
            if key not in ends:
                continue
            history.record(
                broker,
                INFO,
                "replica",
                details={
                    "key": key,
                    "log_start": partition.segments[0].base_offset,
                    "high_watermark": ends[key],
                    "batches": list(_batches(files, partition, ends[key])),
                    "epochs": [
                        list(leader_epoch) for leader_epoch in partition.leader_epochs or ()
                    ],
                },
            )


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
