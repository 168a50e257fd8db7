"""A log whose first segments are gone: never a log that silently begins later (P65)."""

from contextlib import suppress

import pytest
from tests.fakes.disk import Disk, PowerCut
from tests.fakes.log_on_disk import NOW, PARTITION, ROOT, LogOnDisk, open_directory
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.recovery_checkpoint import FILE_NAME
from millrace.core.errors import CorruptLogError
from millrace.core.ids import Offset

ONE_EACH = LogConfig(segment_bytes=1)
CHECKPOINT = f"{ROOT}/{FILE_NAME}"
EPOCHS = f"{PARTITION}/leader-epochs"


def crashed(*, is_known: bool) -> Disk:
    """A log of three segments of one batch each, whose broker was killed.

    Args:
        is_known: whether that was after the recovery checkpoint was written.
    """
    opened = LogOnDisk(Disk(), ONE_EACH)
    for offset in range(3):
        opened.append(stamped_batch(offset))
    opened.log.flusher.flush()
    if is_known:
        opened.directory.keep_points()
    opened.disk.restart()
    return opened.disk


def lose_segments(disk: Disk, count: int) -> None:
    for offset in range(count):
        disk.unlink(f"{PARTITION}/{offset:020}.log")


def lose_everything(disk: Disk) -> None:
    for path in disk.files():
        if path.startswith(PARTITION):
            disk.unlink(path)
    disk.remove_directory(PARTITION)


def damage(disk: Disk, path: str) -> None:
    if disk.exists(path):
        disk.flip_bit(path, disk.size(path) - 1)


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize("lost", [1, 2, 3])
def test_segments_that_are_gone_are_missed_from_the_first_append_on(
    is_known: bool, lost: int
) -> None:
    disk = crashed(is_known=is_known)
    lose_segments(disk, lost)
    with pytest.raises(CorruptLogError, match=r"nothing says|missing"):
        LogOnDisk(disk)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_segments_that_are_gone_are_missed_also_without_the_checkpoint(lost: int) -> None:
    disk = crashed(is_known=True)
    lose_segments(disk, lost)
    damage(disk, CHECKPOINT)
    with pytest.raises(CorruptLogError):
        LogOnDisk(disk)


def test_a_log_that_lost_its_first_segment_and_all_witnesses_is_not_served() -> None:
    disk = crashed(is_known=True)
    lose_segments(disk, 1)
    damage(disk, CHECKPOINT)
    damage(disk, EPOCHS)
    with pytest.raises(CorruptLogError, match="nothing says"):
        LogOnDisk(disk)


def test_a_directory_that_is_gone_is_missed_as_soon_as_it_was_noted() -> None:
    opened = LogOnDisk(Disk())
    opened.log.flusher.flush()
    opened.directory.keep_points()
    opened.disk.restart()
    lose_everything(opened.disk)
    with pytest.raises(CorruptLogError, match="missing"):
        LogOnDisk(opened.disk)


def test_a_log_that_was_never_made_durable_is_not_missed() -> None:
    opened = LogOnDisk(Disk())
    opened.directory.keep_points()
    opened.disk.restart()
    lose_everything(opened.disk)
    assert LogOnDisk(opened.disk).end == 0


def test_the_first_epoch_says_where_a_log_begins_when_the_checkpoint_is_lost() -> None:
    opened = LogOnDisk(Disk(), ONE_EACH)
    for offset in range(3):
        opened.append(stamped_batch(offset))
    opened.log.retention.advance_log_start(Offset(1))
    opened.disk.cut_power()
    damage(opened.disk, CHECKPOINT)
    assert LogOnDisk(opened.disk).log.log_start_offset == 1


def test_records_deleted_within_the_first_segment_stay_deleted_without_the_checkpoint() -> None:
    opened = LogOnDisk(Disk())
    for offset in range(6):
        opened.append(stamped_batch(offset, epoch=offset // 4))
    opened.log.retention.advance_log_start(Offset(2))
    opened.disk.cut_power()
    damage(opened.disk, CHECKPOINT)
    again = LogOnDisk(opened.disk)
    assert again.log.log_start_offset == 2
    assert list(again.batches()) == [2, 3, 4, 5]


@pytest.mark.parametrize("cut", [0, 2, 4])
def test_no_record_is_hidden_where_a_log_was_cut_and_the_checkpoint_is_lost(cut: int) -> None:
    opened = LogOnDisk(Disk())
    for offset in range(6):
        opened.append(stamped_batch(offset, epoch=offset // 4))
    opened.checkpoint()
    opened.log.truncation.truncate_to(Offset(cut), NOW)
    for offset in range(cut, 8):
        opened.append(stamped_batch(offset, epoch=5))
    opened.log.flusher.flush()
    opened.disk.cut_power()
    damage(opened.disk, CHECKPOINT)
    assert list(LogOnDisk(opened.disk).batches()) == list(range(8))


def test_a_log_that_retention_emptied_is_opened_without_the_checkpoint() -> None:
    opened = LogOnDisk(Disk(), ONE_EACH)
    for offset in range(3):
        opened.append(stamped_batch(offset))
    opened.log.writer.roll(NOW)
    opened.log.retention.advance_log_start(Offset(3))
    opened.directory.close(clean=True)
    damage(opened.disk, CHECKPOINT)
    log = LogOnDisk(opened.disk).log
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)


def test_a_lost_checkpoint_is_written_anew_with_what_is_there() -> None:
    disk = crashed(is_known=True)
    damage(disk, CHECKPOINT)
    again = LogOnDisk(disk, ONE_EACH)
    again.log.flusher.flush()
    again.directory.close(clean=True)
    assert open_directory(disk).found == [TOPIC_PARTITION]
    disk.restart()
    lose_everything(disk)
    with pytest.raises(CorruptLogError, match="missing"):
        LogOnDisk(disk)


@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_at_the_beginning_of_a_log_is_no_loss(seed: int) -> None:
    for at in range(1, 40):
        disk = Disk(seed)
        opened = LogOnDisk(disk)
        disk.cut_power_at = disk.calls + at
        acknowledged = 0
        with suppress(PowerCut):
            for offset in range(3):
                opened.append(stamped_batch(offset))
                acknowledged = opened.log.flusher.flush()
                opened.directory.keep_points()
        disk.cut_power()
        assert LogOnDisk(disk).end >= acknowledged
