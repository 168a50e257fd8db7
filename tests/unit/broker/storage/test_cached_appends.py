"""Appends that wait for nothing, on a file system that can do that."""

import threading

import pytest
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import NOW, LogOnDisk
from tests.fakes.stamped_batches import bytes_of, stamped_batch

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import LogDirFailedError
from millrace.core.ids import ProducerId, WallMs

CONFIG = LogConfig(segment_ms=2**62)  # Its first segment is of long ago.


def opened(config: LogConfig = CONFIG) -> LogOnDisk:
    """Return a log with one batch, on a disk that takes cached appends."""
    disk = Disk()
    disk.cached_bytes_max = 1 << 20
    made = LogOnDisk(disk, config)
    made.append(stamped_batch(0))
    return made


def append_cached(the: LogOnDisk, batch: StampedBatch, now: WallMs = NOW) -> bool:
    return the.log.writer.append_cached(batch, now)


def test_a_batch_that_is_written_without_a_wait_is_in_the_log_like_any_other() -> None:
    the = opened()
    batches = [stamped_batch(0)]
    for offset in range(1, 4):
        batches.append(stamped_batch(offset, producer_id=7, sequence=offset - 1))
        assert append_cached(the, batches[-1])
    assert list(the.batches().values()) == [bytes_of(batch) for batch in batches]
    assert the.log.producer_states.entry(ProducerId(7)) is not None
    the.log.flusher.flush()
    the.disk.cut_power()
    after = LogOnDisk(the.disk, CONFIG)
    assert list(after.batches().values()) == [bytes_of(batch) for batch in batches]


@pytest.mark.parametrize("cached_bytes_max", [0, None])
def test_a_batch_whose_write_would_wait_is_left_to_the_thread(cached_bytes_max: int | None) -> None:
    the = opened()
    assert the.directory.can_append_cached
    the.disk.cached_bytes_max = cached_bytes_max
    assert not append_cached(the, stamped_batch(1))
    assert the.end == 1
    the.append(stamped_batch(1))
    assert the.end == 2


@pytest.mark.parametrize("power_is_cut", [False, True])
def test_a_part_of_a_batch_is_cut_off_before_the_next_append(power_is_cut: bool) -> None:
    the = opened()
    the.disk.cached_bytes_max = 50
    assert not append_cached(the, stamped_batch(1))
    assert not append_cached(the, stamped_batch(1))  # Nothing is written behind the part.
    assert the.end == 1
    if power_is_cut:
        the.log.flusher.flush()
        the.disk.cut_power()
        the = LogOnDisk(the.disk, CONFIG)
        assert the.end == 1
    whole = stamped_batch(1, value=b"another")
    the.append(whole)
    assert the.batches() == {0: bytes_of(stamped_batch(0)), 1: bytes_of(whole)}


def test_a_segment_is_not_closed_with_a_part_of_a_batch() -> None:
    the = opened()
    the.disk.cached_bytes_max = 50
    assert not append_cached(the, stamped_batch(1))
    the.log.writer.roll(NOW)
    the.append(stamped_batch(1))
    the.disk.restart()
    after = LogOnDisk(the.disk, CONFIG)
    assert list(after.batches()) == [0, 1]


def test_what_takes_more_than_a_write_is_left_to_the_thread() -> None:
    length = stamped_batch(0).length
    the = opened(LogConfig(segment_ms=2**62, segment_bytes=2 * length))
    assert not append_cached(
        the, stamped_batch(1, epoch=1)
    )  # Its start is made durable first (P2).
    assert append_cached(the, stamped_batch(1))
    assert not append_cached(the, stamped_batch(2))  # It goes into another segment.
    behind = opened(LogConfig(segment_ms=2**62, checkpoint_bytes=length // 2))
    assert not append_cached(behind, stamped_batch(1))  # A checkpoint has to be waited for.


def test_a_log_that_another_thread_changes_is_not_waited_for() -> None:
    the = opened()
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with the.log.state.lock:
            is_held.set()
            is_over.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(10)
    assert not append_cached(the, stamped_batch(1))
    is_over.set()
    thread.join()
    assert append_cached(the, stamped_batch(1))


def test_a_log_whose_disk_failed_or_that_is_closed_takes_nothing() -> None:
    the = opened()
    the.disk.fail_flush_at = the.disk.flushes + 1
    with pytest.raises(LogDirFailedError):
        the.log.flusher.flush()
    assert not append_cached(the, stamped_batch(1))
    closed = opened()
    closed.directory.close_partition(closed.log.topic_partition)
    assert not append_cached(closed, stamped_batch(1))
