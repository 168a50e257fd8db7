"""No descriptor stays open on a removed file: the disk keeps its bytes until it is closed."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

from tests.fakes.appending_process import open_directory
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch

from millrace.broker.replica.mover import ReplicaMover
from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import LogDirectory
from millrace.core.ids import Offset, WallMs
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
    assert not [open_file for open_file in open_files(tmp_path) if "deleted" in open_file]
    directory.close(clean=True)
    assert open_files(tmp_path) == []


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
