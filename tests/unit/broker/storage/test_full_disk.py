"""What goes on while a disk is full: retention makes room, and small files take the ballast's."""

import errno

import pytest
from tests.fakes.disk import Disk, Inode
from tests.fakes.log_on_disk import PARTITION, LogOnDisk
from tests.fakes.stamped_batches import stamped_batch

from millrace.broker.storage.log_config import LogConfig
from millrace.core.ids import Offset, WallMs

LENGTH = stamped_batch(0, records=2).length
CONFIG = LogConfig(segment_bytes=4 * LENGTH, index_interval_bytes=2 * LENGTH)
BALLAST_BYTES = 4000
MUCH_LATER = WallMs(10**12)


def filled(disk: Disk, batches: int = 10) -> LogOnDisk:
    """A log of batches of two records, four in a segment, each of an epoch of its own."""
    opened = LogOnDisk(disk, CONFIG, ballast_bytes=BALLAST_BYTES)
    for number in range(batches):
        opened.append(stamped_batch(2 * number, records=2, epoch=number))
    opened.log.high_watermark = opened.end
    return opened


def full(disk: Disk) -> None:
    disk.capacity = sum(map(disk.size, disk.files()))


def test_retention_by_time_makes_room_on_a_full_disk() -> None:
    opened = filled(Disk())
    full(opened.disk)
    opened.log.config = LogConfig(segment_bytes=4 * LENGTH, retention_ms=500)
    assert opened.log.retention.apply(MUCH_LATER, opened.end) == 3
    assert [found.size for found in opened.log.segments] == [0]
    assert opened.log.log_start_offset == opened.end == 20
    assert opened.disk.room() > 8 * LENGTH


class DiskOfOthers(Disk):
    """A disk whose room others take, but for one kind of files."""

    refused = ""

    def inode_of(self, path: str) -> Inode:
        if self.refused and path.endswith(self.refused):
            raise OSError(errno.ENOSPC, "full", path)
        return super().inode_of(path)


def test_retention_keeps_its_deletions_where_the_active_segment_cannot_be_closed() -> None:
    disk = DiskOfOthers()
    opened = filled(disk)
    opened.log.config = LogConfig(segment_bytes=4 * LENGTH, retention_ms=500)
    disk.refused = ".snapshot.new"
    assert opened.log.retention.apply(MUCH_LATER, opened.end) == 2
    assert opened.log.log_start_offset == 16
    assert [path for path in disk.files() if path.endswith(".log")] == [
        f"{PARTITION}/{16:020d}.log"
    ]
    disk.refused = ""
    assert opened.log.retention.apply(MUCH_LATER, opened.end) == 1


@pytest.mark.parametrize("damaged", [f"{8:020d}.index", "leader-epochs"])
def test_a_log_whose_small_files_were_lost_opens_on_a_full_disk(damaged: str) -> None:
    opened = filled(Disk())
    batches = opened.batches()
    disk = opened.disk
    disk.restart()
    disk.write(f"{PARTITION}/{damaged}", b"")
    full(disk)
    again = LogOnDisk(disk, CONFIG, ballast_bytes=BALLAST_BYTES)
    assert again.batches() == batches
    assert again.log.leader_epochs.entries == opened.log.leader_epochs.entries
    assert again.log.mended == (f"{PARTITION}/{damaged}",)


def test_a_log_is_cut_on_a_full_disk() -> None:
    opened = filled(Disk(), batches=200)
    full(opened.disk)
    opened.log.truncation.truncate_to(Offset(398), MUCH_LATER)
    assert opened.end == 398
    assert not opened.log.truncation.is_pending
    batches = opened.batches()
    opened.disk.restart()
    again = LogOnDisk(opened.disk, CONFIG, ballast_bytes=BALLAST_BYTES)
    assert again.batches() == batches
    assert again.log.leader_epochs.entries[-1] == (198, 396)


def test_a_log_starts_over_on_a_full_disk() -> None:
    opened = filled(Disk())
    full(opened.disk)
    opened.log.truncation.start_over(Offset(100))
    assert opened.end == opened.log.log_start_offset == 100
