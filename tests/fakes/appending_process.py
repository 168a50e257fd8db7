"""A program that appends to a log until it is killed, and prints what it acknowledges.

    python -m tests.fakes.appending_process DIRECTORY (fsync | replicated)

In `fsync` an offset is printed once it is flushed, in `replicated` once it is written.
"""

import sys

from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import DirectoryConfig, LogDirectory
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.core.ids import BrokerId, MonotonicMs, WallMs

CONFIG = LogConfig(segment_bytes=400_000, checkpoint_bytes=100_000)


def open_directory(path: str) -> LogDirectory:
    return LogDirectory.open(
        PosixFileSystem(),
        path,
        DirectoryConfig(ballast_bytes=0),
        cluster_id="cluster",
        broker_id=BrokerId(1),
        new_directory_id="directory",
    )


def value_at(offset: int) -> bytes:
    return offset.to_bytes(8, "little") * (1 + offset % 2000)


def main(path: str, durability: str) -> None:
    directory = open_directory(path)
    log = directory.open_partition(TOPIC_PARTITION, CONFIG, WallMs(1))
    while True:
        base = log.log_end_offset
        batches = [
            stamped_batch(offset, value=value_at(offset), producer_id=5, sequence=offset)
            for offset in range(base, base + 3)
        ]
        log.writer.append(batches, WallMs(1))
        if durability == "fsync":
            log.flusher.flush()
        sys.stdout.write(f"{log.log_end_offset}\n")
        sys.stdout.flush()
        if log.flusher.is_due(MonotonicMs(0)):
            directory.checkpoint(MonotonicMs(0))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
