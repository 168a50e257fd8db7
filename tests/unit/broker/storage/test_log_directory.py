"""Whose a log directory is, how it was left, and what happens to deleted partitions."""

import contextlib
from functools import partial

import pytest
from tests.fakes.disk import Disk, PowerCut
from tests.fakes.log_on_disk import NOW, PARTITION, ROOT, LogOnDisk, open_directory
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import (
    DirectoryConfig,
    LogDirectory,
    read_seen,
)
from millrace.broker.storage.sealed_file import write_sealed
from millrace.core.errors import CorruptLogError, LogDirFailedError, StorageFullError
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    MonotonicMs,
    Offset,
    TopicId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.objects.store_versions import NOTHING_SEEN, StoreVersions

OTHER = TopicPartition(TopicId(bytes(16)), 0)


def open_as(disk: Disk, cluster_id: str, broker_id: int) -> LogDirectory:
    return LogDirectory.open(
        disk,
        ROOT,
        DirectoryConfig(ballast_bytes=0),
        cluster_id=cluster_id,
        broker_id=BrokerId(broker_id),
        new_directory_id="another",
    )


def used(*, clean: bool) -> Disk:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0))
    opened.directory.close(clean=clean)
    return opened.disk


def test_a_new_directory_gets_an_identity_that_outlives_a_power_cut() -> None:
    disk = Disk()
    directory = open_directory(disk)
    assert directory.identity == ("cluster", 1, "directory")
    disk.cut_power()
    assert open_as(disk, "cluster", 1).identity.directory_id == "directory"


@pytest.mark.parametrize(("cluster_id", "broker_id"), [("other", 1), ("cluster", 2)])
def test_a_directory_of_somebody_else_is_refused(cluster_id: str, broker_id: int) -> None:
    disk = used(clean=True)
    with pytest.raises(LogDirFailedError, match="belongs to broker 1 of cluster cluster"):
        open_as(disk, cluster_id, broker_id)
    assert open_as(disk, "cluster", 1).was_clean, "nothing was touched"


def test_a_broker_without_an_id_gives_its_directory_one_later() -> None:
    disk = Disk()
    directory = open_as(disk, "cluster", -1)
    directory.begin_life(BrokerId(4), BrokerEpoch(7))
    directory.close(clean=True)
    with pytest.raises(LogDirFailedError, match="belongs to broker 4"):
        open_as(disk, "cluster", 5)
    assert open_as(disk, "cluster", -1).identity.broker_id == 4


def test_a_directory_is_used_by_one_process_at_a_time() -> None:
    disk = Disk()
    directory = open_directory(disk)
    with pytest.raises(LogDirFailedError, match="another process"):
        open_directory(disk)
    directory.close(clean=True)
    open_directory(disk)


def test_the_marker_of_a_clean_stop_names_the_life_that_ended() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0))
    opened.directory.close(clean=True, broker_epoch=BrokerEpoch(7))
    assert open_directory(opened.disk).closed_by == 7
    assert open_directory(used(clean=True)).closed_by is None


def test_what_was_seen_of_the_metadata_survives_a_power_cut() -> None:
    disk = Disk()
    directory = open_directory(disk)
    assert read_seen(disk, ROOT) == NOTHING_SEEN
    seen = StoreVersions(ControllerEpoch(3), (*range(33),))
    directory.keep_seen(seen)
    disk.cut_power()
    assert read_seen(disk, ROOT) == seen


@pytest.mark.parametrize("kept", [b"3\n", b"3 0 0\n"])
def test_a_release_that_kept_less_of_the_metadata_is_understood(kept: bytes) -> None:
    disk = Disk()
    open_directory(disk)
    write_sealed(disk, f"{ROOT}/controller-epoch", "controller-epoch", kept)
    assert read_seen(disk, ROOT) == StoreVersions(ControllerEpoch(3))


def test_the_life_that_uses_a_directory_survives_a_power_cut() -> None:
    disk = Disk()
    directory = open_directory(disk)
    assert open_directory(Disk()).used_by is None
    directory.begin_life(BrokerId(1), BrokerEpoch(7))
    disk.cut_power()
    assert open_directory(disk).used_by == 7


def full(disk: Disk) -> None:
    disk.capacity = sum(map(disk.size, disk.files()))


def test_a_life_begins_on_a_full_disk_and_what_was_seen_is_kept_there() -> None:
    """Else a broker that was killed on a full disk would not start, nor ever give anything up."""
    disk = Disk()
    open_directory(disk, ballast_bytes=2000).close(clean=False)
    for broker_epoch in (7, 8):
        full(disk)
        directory = open_directory(disk, ballast_bytes=2000)
        directory.keep_seen(StoreVersions(ControllerEpoch(broker_epoch)))
        directory.begin_life(BrokerId(1), BrokerEpoch(broker_epoch), ["x"])
        disk.capacity = None
        assert directory.ballast.take()
        directory.close(clean=False)
        assert read_seen(disk, ROOT) == StoreVersions(ControllerEpoch(broker_epoch))
    assert open_directory(disk).used_by == 8


def test_appends_wait_until_the_ballast_is_taken_again() -> None:
    disk = Disk()
    directory = open_directory(disk, ballast_bytes=2000)
    directory.ballast.check()
    full(disk)
    directory.begin_life(BrokerId(1), BrokerEpoch(7))
    assert disk.room() > 0
    with pytest.raises(StorageFullError, match=r"storage\.ballast_bytes"):
        directory.ballast.check()
    assert disk.room() > 0  # Left for what needs it next.
    disk.capacity = None
    directory.ballast.check()
    assert disk.size(f"{ROOT}/ballast") == 2000


@pytest.mark.parametrize("size", [500, 0, 3000])
def test_a_ballast_has_the_size_that_is_set_at_the_start(size: int) -> None:
    disk = Disk()
    open_directory(disk, ballast_bytes=2000).close(clean=True)
    disk.capacity = sum(map(disk.size, disk.files())) + 1500
    directory = open_directory(disk, ballast_bytes=size)
    path = f"{ROOT}/ballast"
    assert (disk.size(path) if disk.exists(path) else 0) == size
    directory.ballast.check()


def test_a_directory_without_a_ballast_takes_appends() -> None:
    disk = Disk()
    directory = open_directory(disk)
    full(disk)
    with contextlib.suppress(StorageFullError):
        directory.begin_life(BrokerId(1), BrokerEpoch(7))
    directory.ballast.check()


def test_the_companions_of_a_directory_survive_a_power_cut() -> None:
    disk = Disk()
    directory = open_directory(disk)
    assert directory.companions == frozenset()
    directory.begin_life(BrokerId(1), BrokerEpoch(7), ["x", "y"])
    disk.cut_power()
    directory = open_directory(disk)
    assert directory.companions == frozenset(("x", "y"))
    directory.close(clean=True)
    disk.flip_bit(f"{ROOT}/companions", 30)
    assert (
        open_directory(disk).companions is None
    )  # That they are not known is not that it has none.


def test_a_directory_that_is_a_broker_s_says_which_life_it_was() -> None:
    """Wherever the power goes: else it would count as one whose life was lost."""
    for crash_at in range(1, 12):
        disk = Disk()
        directory = open_as(disk, "cluster", -1)
        disk.cut_power_at = disk.calls + crash_at
        with contextlib.suppress(PowerCut):
            directory.begin_life(BrokerId(4), BrokerEpoch(7))
        disk.cut_power()
        found = open_as(disk, "cluster", -1)
        assert found.used_by == 7 or found.identity.broker_id == -1


def test_the_marker_of_a_clean_stop_is_gone_after_the_start() -> None:
    disk = used(clean=True)
    assert f"{ROOT}/clean-shutdown" in disk.files()
    assert open_directory(disk).was_clean
    disk.cut_power()
    assert not open_directory(disk).was_clean


def test_an_unclean_stop_leaves_no_marker() -> None:
    assert not open_directory(used(clean=False)).was_clean


def test_a_stop_is_not_clean_while_a_log_was_not_opened() -> None:
    opened = LogOnDisk(used(clean=True))
    opened.append(stamped_batch(1))
    opened.directory.close(clean=False)
    open_directory(opened.disk).close(clean=True)
    assert not open_directory(opened.disk).was_clean


def test_an_empty_directory_is_closed_in_order_as_any_other() -> None:
    """Else a broker with more directories than partitions counted as one that crashed (P27)."""
    disk = Disk()
    open_directory(disk).close(clean=True, broker_epoch=BrokerEpoch(7))
    assert open_directory(disk).closed_by == 7


def test_what_is_not_the_broker_s_need_not_be_opened_and_is_not_taken_for_in_order() -> None:
    disk = used(clean=True)
    open_directory(disk).close(clean=True, broker_epoch=BrokerEpoch(7), others=[TOPIC_PARTITION])
    segment = next(path for path in disk.files() if path.endswith(".log"))
    disk.write(segment, disk.contents(segment) + b"torn")
    opened = LogOnDisk(disk)
    assert opened.directory.closed_by == 7
    assert opened.end == 1
    opened.directory.close(clean=True, broker_epoch=BrokerEpoch(8))
    disk.write(segment, disk.contents(segment) + b"torn")
    with pytest.raises(CorruptLogError):
        LogOnDisk(disk)


def tear(disk: Disk) -> None:
    """Leave half a batch at the end of the only log."""
    segment = next(path for path in disk.files() if path.endswith(".log"))
    disk.write(segment, disk.contents(segment) + b"torn")


def test_a_log_that_is_closed_alone_is_durable_and_recovered_when_it_is_opened_again() -> None:
    """A marker of an earlier stop does not say that its end is whole (P75)."""
    opened = LogOnDisk(used(clean=True))
    opened.append(stamped_batch(1))
    opened.directory.close_partition(TOPIC_PARTITION)
    opened.directory.close_partition(TOPIC_PARTITION)
    assert opened.directory.logs == {}
    opened.disk.cut_power()
    tear(opened.disk)
    log = opened.directory.open_partition(TOPIC_PARTITION, LogConfig(), WallMs(0))
    assert log.log_end_offset == 2


def test_a_log_that_was_closed_alone_is_not_taken_for_in_order_after_a_stop() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0))
    opened.directory.close_partition(TOPIC_PARTITION)
    opened.directory.close(clean=True, broker_epoch=BrokerEpoch(7), others=[TOPIC_PARTITION])
    tear(opened.disk)
    again = LogOnDisk(opened.disk)
    assert again.directory.closed_by == 7
    assert again.end == 1


def test_a_log_whose_last_flush_is_refused_is_closed_all_the_same() -> None:
    opened = LogOnDisk(used(clean=True))
    opened.append(stamped_batch(1))
    opened.disk.fail_flush_at = opened.disk.flushes + 1
    with pytest.raises(LogDirFailedError):
        opened.directory.close_partition(TOPIC_PARTITION)
    assert opened.directory.logs == {}


def test_a_stop_whose_flush_fails_is_not_clean() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0))
    opened.disk.fail_flush_at = opened.disk.flushes + 1
    with pytest.raises(LogDirFailedError):
        opened.directory.close(clean=True)
    opened.disk.restart()
    assert not open_directory(opened.disk).was_clean


def test_partitions_that_were_there_are_found_again() -> None:
    disk = used(clean=True)
    assert open_directory(disk).found == [TOPIC_PARTITION]


def test_a_partition_whose_directory_vanished_is_missing_and_not_new() -> None:
    disk = used(clean=True)
    for path in disk.files():
        if path.startswith(PARTITION):
            disk.unlink(path)
    disk.remove_directory(PARTITION)
    directory = open_directory(disk)
    assert directory.found == [TOPIC_PARTITION]
    with pytest.raises(CorruptLogError, match="missing"):
        directory.open_partition(TOPIC_PARTITION, LogConfig(), NOW)
    assert TOPIC_PARTITION in directory.corrupt


def test_partitions_without_an_identity_are_refused() -> None:
    disk = used(clean=True)
    disk.unlink(f"{ROOT}/identity")
    with pytest.raises(LogDirFailedError, match="no identity"):
        open_directory(disk)


def test_one_damaged_partition_leaves_the_others_alone() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0), stamped_batch(1))
    other = opened.directory.open_partition(OTHER, LogConfig(), NOW)
    other.writer.append([stamped_batch(0, topic_partition=OTHER)], NOW)
    opened.directory.close(clean=True)
    opened.disk.write(f"{PARTITION}/{0:020}.log", b"")
    directory = open_directory(opened.disk)
    with pytest.raises(CorruptLogError):
        directory.open_partition(TOPIC_PARTITION, LogConfig(), NOW)
    assert directory.open_partition(OTHER, LogConfig(), NOW).log_end_offset == 1
    directory.close(clean=True)
    assert not open_directory(opened.disk).was_clean


def test_a_deleted_partition_is_kept_under_another_name_for_a_while() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0))
    opened.checkpoint()
    directory = opened.directory
    directory.retired.delete([TOPIC_PARTITION], WallMs(5000))
    trash = f"{PARTITION}.5000.deleted"
    assert opened.disk.exists(trash)
    opened.disk.cut_power()
    assert opened.disk.exists(trash)
    directory = open_directory(opened.disk)
    assert directory.found == []
    delay = DirectoryConfig().file_delete_delay_ms
    assert directory.retired.empty_trash(WallMs(5000 + delay - 1)) == 0
    assert directory.retired.empty_trash(WallMs(5000 + delay)) == 1
    assert not opened.disk.exists(trash)


def test_a_damaged_log_is_set_aside_and_another_begins_in_its_place() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0), stamped_batch(1))
    opened.checkpoint()
    directory, disk = opened.directory, opened.disk
    kept = directory.retired.set_aside(TOPIC_PARTITION, WallMs(5000))
    assert kept == f"{PARTITION}.5000.damaged"
    disk.cut_power()
    assert disk.exists(f"{kept}/{0:020}.log")
    directory = open_directory(disk)
    assert directory.retired.damaged_of(TOPIC_PARTITION) == [kept]
    log = directory.open_partition(TOPIC_PARTITION, LogConfig(), NOW)
    assert (log.log_end_offset, log.high_watermark) == (0, 0)
    log.writer.append([stamped_batch(0)], NOW)
    directory.close(clean=True)
    assert (
        open_directory(disk).open_partition(TOPIC_PARTITION, LogConfig(), NOW).log_end_offset == 1
    )


def test_a_checkpoint_that_is_under_way_does_not_speak_for_the_log_that_comes_next() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0), stamped_batch(1))
    old = opened.log
    opened.directory.retired.set_aside(TOPIC_PARTITION, WallMs(5000))
    log = opened.directory.open_partition(TOPIC_PARTITION, LogConfig(), NOW)
    log.flusher.flush()
    old.flusher.advance_point(Offset(2), 0)
    opened.directory.keep_points()
    opened.disk.restart()
    assert LogOnDisk(opened.disk).end == 0


def test_only_so_many_damaged_logs_are_set_aside() -> None:
    opened = LogOnDisk(Disk())
    directory = opened.directory
    for number in range(DirectoryConfig().damaged_logs_max):
        directory.retired.set_aside(
            TOPIC_PARTITION, WallMs(5000)
        )  # Of clocks that stand still, too.
        directory.open_partition(TOPIC_PARTITION, LogConfig(), NOW)
        assert len(directory.retired.damaged) == number + 1
    with pytest.raises(CorruptLogError, match="damaged_logs_max"):
        directory.retired.set_aside(TOPIC_PARTITION, WallMs(6000))
    assert TOPIC_PARTITION in directory.logs  # It stays where it is.
    people = directory.retired.damaged[0]
    opened.disk.rename(people, f"{ROOT}/looked-at")
    directory.retired.set_aside(TOPIC_PARTITION, WallMs(6000))


def test_many_partitions_are_deleted_with_as_many_flushes_as_one() -> None:
    disk = Disk()
    directory = open_directory(disk)
    partitions = [TopicPartition(TopicId(b"m" * 16), number) for number in range(50)]
    for partition in partitions:
        directory.open_partition(partition, LogConfig(), NOW)
    directory.keep_points()

    def flushes_to_delete(some: list[TopicPartition]) -> int:
        before = disk.flushes
        directory.retired.delete(some, WallMs(5000))
        return disk.flushes - before

    assert flushes_to_delete(partitions[:1]) == flushes_to_delete(partitions[1:])
    disk.cut_power()
    names = disk.list(directory.path)
    assert sum(name.endswith(".5000.deleted") for name in names) == 50
    assert open_directory(disk).found == []


def test_a_deleted_partition_takes_its_damaged_logs_to_the_trash() -> None:
    opened = LogOnDisk(Disk())
    directory = opened.directory
    for now in (1000, 2000):
        directory.retired.set_aside(TOPIC_PARTITION, WallMs(now))
        directory.open_partition(TOPIC_PARTITION, LogConfig(), NOW)
    directory.retired.delete([TOPIC_PARTITION], WallMs(5000))
    assert directory.retired.damaged == []
    delay = DirectoryConfig().file_delete_delay_ms
    assert directory.retired.empty_trash(WallMs(4999 + delay)) == 0
    assert directory.retired.empty_trash(WallMs(5002 + delay)) == 3


class SharedDisk(Disk):
    """Somebody removes a directory just before the broker's n-th step in it."""

    steps = 0
    removed_at = 0
    doomed = ""

    def list(self, path: str) -> list[str]:
        self._step(path)
        return super().list(path)

    def unlink(self, path: str) -> None:
        self._step(path)
        super().unlink(path)

    def remove_directory(self, path: str) -> None:
        self._step(path)
        super().remove_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._step(source)
        super().rename(source, target)

    def _step(self, path: str) -> None:
        if self.doomed and path.startswith(self.doomed):
            self.steps += 1
            if self.steps == self.removed_at:
                self.remove(self.doomed)


def test_trash_that_somebody_removes_at_the_same_time_is_gone_and_the_disk_is_sound() -> None:
    removed_at = 0
    while True:
        removed_at += 1
        disk = SharedDisk()
        opened = LogOnDisk(disk)
        opened.append(stamped_batch(0))
        other = opened.directory.open_partition(OTHER, LogConfig(), NOW)
        other.writer.append([stamped_batch(0, topic_partition=OTHER)], NOW)
        for partition in (TOPIC_PARTITION, OTHER):
            opened.directory.retired.delete([partition], WallMs(5000))
        trash = [f"{ROOT}/{name}" for name in disk.list(ROOT) if name.endswith(".deleted")]
        disk.doomed, disk.removed_at = trash[0], removed_at
        opened.directory.retired.empty_trash(WallMs(10**15))
        assert not any(map(disk.exists, trash))
        if disk.steps < removed_at:
            break
    assert removed_at > 4  # It was listed, had several files, and was removed.


def test_what_people_put_into_the_trash_stays_there_and_the_rest_goes() -> None:
    opened = LogOnDisk(Disk())
    opened.append(stamped_batch(0))
    opened.directory.open_partition(OTHER, LogConfig(), NOW)
    for partition in (TOPIC_PARTITION, OTHER):
        opened.directory.retired.delete([partition], WallMs(5000))
    opened.disk.make_directory(f"{PARTITION}.5000.deleted/0-looked-at")
    opened.disk.write(f"{PARTITION}.1.deleted", b"no directory")
    assert opened.directory.retired.empty_trash(WallMs(10**15)) == 1
    assert opened.disk.list(f"{PARTITION}.5000.deleted") == ["0-looked-at"]
    assert opened.disk.exists(f"{PARTITION}.1.deleted")
    assert not opened.disk.exists(f"{ROOT}/{OTHER}.5000.deleted")


def test_a_damaged_log_that_somebody_removes_meanwhile_does_not_hold_a_deletion_up() -> None:
    disk = SharedDisk()
    opened = LogOnDisk(disk)
    disk.doomed = opened.directory.retired.set_aside(TOPIC_PARTITION, WallMs(1000))
    disk.removed_at = 1
    opened.directory.retired.delete([TOPIC_PARTITION], WallMs(5000))
    assert disk.steps == 1
    assert opened.directory.retired.damaged == []


def test_a_log_directory_that_is_gone_has_failed_when_its_trash_is_to_be_emptied() -> None:
    opened = LogOnDisk(Disk())
    opened.disk.remove(ROOT)
    for look in (
        partial(opened.directory.retired.empty_trash, NOW),
        opened.directory.retired.look_again_for_damaged,
    ):
        with pytest.raises(LogDirFailedError):
            look()


def test_directories_that_nobody_knows_are_left_alone() -> None:
    disk = used(clean=True)
    strangers = ["lost+found", f"{OTHER}.x.deleted", "photos.1.deleted", f"{OTHER}.1.damaged"]
    for name in strangers:
        disk.make_directory(f"{ROOT}/{name}")
    directory = open_directory(disk)
    assert directory.retired.empty_trash(WallMs(10**15)) == 0
    assert set(strangers) <= set(disk.list(ROOT))


def test_recovery_points_are_durable_once_the_checkpoint_is() -> None:
    opened = LogOnDisk(Disk(), LogConfig(checkpoint_ms=100))
    opened.append(stamped_batch(0))
    assert opened.directory.checkpoint(MonotonicMs(0)) == 0
    assert opened.directory.checkpoint(MonotonicMs(100)) == 1
    opened.disk.cut_power()
    assert LogOnDisk(opened.disk).log.state.recovery_point == 1


def test_the_scrub_goes_through_all_partitions_in_turn() -> None:
    config = LogConfig(segment_bytes=1)
    opened = LogOnDisk(Disk(), config)
    other = opened.directory.open_partition(OTHER, config, NOW)
    for offset in range(4):
        opened.append(stamped_batch(offset))
        other.writer.append([stamped_batch(offset, topic_partition=OTHER)], NOW)
    length = stamped_batch(0).length
    steps = [opened.directory.scrub(2 * length) for _ in range(4)]
    assert steps == [2 * length, 2 * length, 2 * length, 0]
    opened.disk.flip_bit(f"{ROOT}/{OTHER}/{1:020}.log", length - 1)
    while opened.directory.scrub(2 * length):
        pass
    assert list(opened.directory.corrupt) == [OTHER]


def start_append_and_flush(disk: Disk) -> None:
    opened = LogOnDisk(disk)
    opened.append(stamped_batch(0))
    opened.log.flusher.flush()


@pytest.mark.parametrize("failing", range(1, 9))
def test_a_disk_that_fails_at_the_start_is_a_typed_error(failing: int) -> None:
    disk = Disk()
    disk.fail_flush_at = failing
    with pytest.raises(LogDirFailedError):
        start_append_and_flush(disk)
    assert disk.flushes == failing, "and nothing is flushed after it"
