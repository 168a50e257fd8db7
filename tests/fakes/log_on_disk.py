"""A log directory with one partition on a `Disk`, and its contents as plain lists."""

from tests.fakes.disk import Disk
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import DirectoryConfig, LogDirectory
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.ids import BrokerId, MonotonicMs, Offset, WallMs
from millrace.core.records.batch import walk

ROOT = "/data"
PARTITION = f"{ROOT}/{TOPIC_PARTITION}"
NOW = WallMs(1_000_000)
EVERYWHERE = Offset(1 << 62)
"""As `LogCleaner.tombstones_end`: no other replica holds a tombstone back."""


def open_directory(disk: Disk, ballast_bytes: int = 0) -> LogDirectory:
    return LogDirectory.open(
        disk,
        ROOT,
        DirectoryConfig(ballast_bytes=ballast_bytes),
        cluster_id="cluster",
        broker_id=BrokerId(1),
        new_directory_id="directory",
    )


class LogOnDisk:
    """Opens everything; `log` and `directory` are what a broker has."""

    def __init__(self, disk: Disk, config: LogConfig | None = None, ballast_bytes: int = 0) -> None:
        self.disk = disk
        self.directory = open_directory(disk, ballast_bytes)
        self.log: PartitionLog = self.directory.open_partition(
            TOPIC_PARTITION, config or LogConfig(), NOW
        )

    @property
    def end(self) -> Offset:
        return self.log.log_end_offset

    def append(self, *batches: StampedBatch, now: WallMs = NOW) -> None:
        self.log.writer.append(batches, now)

    def checkpoint(self) -> None:
        """Advance the recovery point and make it durable."""
        self.log.flusher.checkpoint()
        self.directory.checkpoint(MonotonicMs(0))

    def batches(self, max_bytes: int = 1 << 20) -> dict[int, bytes]:
        """Read everything there is, by base offset."""
        return batches_of(self.log, max_bytes)


def batches_of(log: PartitionLog, max_bytes: int = 1 << 20) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = log.log_start_offset
    while (plan := log.reader.plan_read(at, max_bytes, log.log_end_offset)) is not None:
        data = log.reader.read(plan)
        assert len(data) == plan.length
        for header, batch in walk(data):
            found[header.base_offset] = bytes(batch)
        at = plan.end_offset
    assert at == log.log_end_offset
    return found
