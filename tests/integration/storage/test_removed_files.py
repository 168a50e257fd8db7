"""No descriptor stays open on a removed file: the disk keeps its bytes until it is closed."""

import asyncio
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.fakes.appending_process import open_directory
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch
from tests.integration.running_broker import wait_until

from millrace.broker.replica.mover import ReplicaMover
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import DirectoryConfig, LogDirectory
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.core.errors import StorageBusyError
from millrace.core.ids import BrokerId, Offset, WallMs
from millrace.runtime.mailbox import Mailbox

NOW = WallMs(1)
CONFIG = LogConfig(segment_bytes=1000)
"""A segment has three batches."""


def open_files(directory: Path) -> list[str]:
    """Return the names of the files in a directory, or removed from it, that are open here."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # The listing's own.
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith(f"{directory}/") and ".log" in target:
                found.append(target.rpartition("/")[2])
    return sorted(found)


def wait_until_closed(directory: Path) -> None:
    """Wait for the thread that closes removed files."""
    wait_until(
        lambda: not any("deleted" in open_file for open_file in open_files(directory)),
        "removed files are closed",
    )


def log_of(directory: LogDirectory, value_bytes: int = 150) -> PartitionLog:
    log = directory.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    for number in range(10):
        log.writer.append([stamped_batch(number, value=bytes(value_bytes))], NOW)
    return log


def name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"


def test_a_cut_log_has_one_descriptor_of_its_last_file(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    log = log_of(directory)
    for end in (8, 7):
        log.truncation.truncate_to(Offset(end), NOW)
        log.writer.append([stamped_batch(end, value=bytes(150))], NOW)
        log.flusher.flush()
        assert open_files(tmp_path).count(name(6)) == 1, end
    log.writer.roll(NOW)
    log.retention.advance_log_start(Offset(8))
    wait_until_closed(tmp_path)
    directory.close(clean=True)
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("starts_over", [False, True])
def test_nothing_waits_until_the_room_of_removed_segments_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, starts_over: bool
) -> None:
    """On ext4 that takes 0.3 s for a GB, in which the thread would append nothing."""
    directory = open_directory(str(tmp_path))
    log = log_of(directory)
    close, is_free = os.close, threading.Event()

    def slow_close(descriptor: int) -> None:
        """Close; the last descriptor of a removed file takes its time, as on a large one."""
        target = os.readlink(f"/proc/self/fd/{descriptor}")
        if ".log" in target and target.endswith(" (deleted)"):
            assert threading.current_thread() is not threading.main_thread()
            is_free.wait(10)
        close(descriptor)

    monkeypatch.setattr(os, "close", slow_close)
    try:
        if starts_over:
            log.truncation.start_over(Offset(100))
        else:
            log.retention.advance_log_start(Offset(8))
        log.writer.append([stamped_batch(int(log.log_end_offset))], NOW)
        assert any("deleted" in open_file for open_file in open_files(tmp_path))
    finally:
        is_free.set()
    wait_until_closed(tmp_path)
    directory.close(clean=True)


def test_a_reader_does_not_open_a_file_again_that_is_deleted(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    log = log_of(directory)
    first, second, *_ = log.segments
    log.retention.advance_log_start(second.base_offset)
    (tmp_path / str(TOPIC_PARTITION) / name(0)).write_bytes(bytes(1000))  # As if it was there yet.
    with suppress(FileNotFoundError):
        first.file.pread(1, 0)
    assert name(0) not in open_files(tmp_path)
    log.truncation.start_over(Offset(100))
    with suppress(FileNotFoundError):
        second.file.pread(1, 0)
    assert name(3) not in open_files(tmp_path)
    directory.close(clean=True)


@pytest.mark.parametrize("deletes", [False, True])
def test_a_late_reader_of_a_closed_log_does_not_open_its_files_again(
    tmp_path: Path, deletes: bool
) -> None:
    files = PosixFileSystem()
    directory = LogDirectory.open(
        files,
        str(tmp_path),
        DirectoryConfig(ballast_bytes=0, file_delete_delay_ms=0),
        cluster_id="cluster",
        broker_id=BrokerId(1),
        new_directory_id="directory",
    )
    log = log_of(directory)
    plan = log.reader.plan_read(Offset(0), 1000, Offset(10))
    assert plan is not None
    if deletes:
        directory.let_go([TOPIC_PARTITION])
    else:
        directory.close_partition(TOPIC_PARTITION)
    assert log.reader.read(plan) == b""
    with pytest.raises(StorageBusyError):
        log.reader.unread(Offset(4), Offset(10))
    log.scrubber.scrub(1 << 20)
    assert (files.open_files, open_files(tmp_path), log.failure) == (0, [], None)
    if deletes:
        directory.retired.delete([TOPIC_PARTITION], NOW)
        assert directory.retired.empty_trash(WallMs(NOW + 10)) == 1
        assert open_files(tmp_path) == []
    else:
        again = directory.open_partition(TOPIC_PARTITION, CONFIG, NOW)
        plan = again.reader.plan_read(Offset(0), 1000, Offset(10))
        assert plan is not None
        assert len(again.reader.read(plan)) == plan.length
    directory.close(clean=True)


def test_a_copy_of_a_log_that_is_closed_meanwhile_ends(tmp_path: Path) -> None:
    here, there = (open_directory(f"{tmp_path}/{place}") for place in ("here", "there"))
    copy = there.moves.begin_copy(log_of(here))
    here.close_partition(TOPIC_PARTITION)
    with pytest.raises(StorageBusyError):
        copy.complete()
    copy.close()
    for directory in (here, there):
        directory.close(clean=True)


def test_a_copy_that_is_given_up_is_closed(tmp_path: Path) -> None:
    here, there = (open_directory(f"{tmp_path}/{place}") for place in ("here", "there"))
    log = log_of(here, value_bytes=200_000)
    copied: list[list[str]] = []

    def is_wanted(*_: object) -> bool:
        copied.append(open_files(tmp_path / "there"))
        return len(copied) < 3

    async def move() -> None:
        mover = ReplicaMover(
            Mailbox(asyncio.get_running_loop()),
            bytes_per_second=-1,
            is_wanted=is_wanted,
            on_taken_in=lambda *_: None,
        )
        partition = SimpleNamespace(log=log, topic_partition=TOPIC_PARTITION)
        target = SimpleNamespace(directory=there, failure=None, check=lambda: None)
        await mover.move(partition, SimpleNamespace(directory=here), target)  # type: ignore[arg-type]
        mover.close()

    asyncio.run(move())
    assert any(copied)
    assert open_files(tmp_path / "there") == []
    for directory in (here, there):
        directory.close(clean=True)


def test_the_copy_of_a_segment_that_was_cut_is_closed(tmp_path: Path) -> None:
    here, there = (open_directory(f"{tmp_path}/{place}") for place in ("here", "there"))
    log = log_of(here)
    copy = there.moves.begin_copy(log)
    while copy.advance():
        pass
    log.truncation.truncate_to(Offset(7), NOW)
    while copy.advance():
        pass
    assert open_files(tmp_path / "there") == [name(6), name(9)]
    log.truncation.truncate_to(Offset(2), NOW)
    log.flusher.flush()
    log.flusher.checkpoint()
    copy.complete()
    assert open_files(tmp_path / "there") == []
    for directory in (here, there):
        directory.close(clean=True)
