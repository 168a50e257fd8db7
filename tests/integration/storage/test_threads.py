"""One thread appends, one checkpoints, others read and scrub: as in a broker, all at a time."""

import threading
from collections.abc import Callable
from pathlib import Path

from tests.fakes.appending_process import open_directory, value_at
from tests.fakes.stamped_batches import TOPIC_PARTITION, bytes_of, stamped_batch

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.core.errors import OffsetOutOfRangeError
from millrace.core.ids import MonotonicMs, Offset, WallMs
from millrace.core.records.batch import walk
from millrace.core.records.header import verify_body

NOW = WallMs(1)
BATCHES = 5000
CONFIG = LogConfig(
    segment_bytes=200_000,
    checkpoint_bytes=100_000,
    checkpoint_ms=0,
    retention_bytes=1_500_000,
)


def follow(log: PartitionLog, done: threading.Event) -> None:
    """Read to the end as a broker does: from memory if it can, starting over where it must."""
    at = Offset(0)
    buffer = memoryview(bytearray(1 << 20))
    while not (done.is_set() and at == log.log_end_offset):
        try:
            try:
                plan = log.reader.plan_read(at, 100_000, log.log_end_offset, may_block=False)
            except BlockingIOError:
                plan = log.reader.plan_read(at, 100_000, log.log_end_offset)
        except OffsetOutOfRangeError:
            assert at < log.log_start_offset
            at = log.log_start_offset
            continue
        if plan is None:
            done.wait(0.001)  # Leave the processor to the others.
            continue
        size = log.reader.read_cached(plan, buffer)
        data = buffer[:size] if size >= 0 else memoryview(log.reader.read(plan))
        if len(data) < plan.length:
            continue  # Deleted by retention meanwhile.
        for header, batch in walk(data):
            assert header.base_offset == at
            verify_body(TOPIC_PARTITION, header, batch)
            at = header.next_offset
        assert at == plan.end_offset


def test_readers_see_what_was_appended_whatever_else_goes_on(tmp_path: Path) -> None:
    directory = open_directory(str(tmp_path))
    log = directory.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    done = threading.Event()
    failures: list[BaseException] = []

    def guarded(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)
                done.set()

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def append() -> None:
        for offset in range(BATCHES):
            batch = stamped_batch(offset, value=value_at(offset), producer_id=1, sequence=offset)
            log.writer.append([batch], NOW)
            if offset % 50 == 0:
                assert log.flusher.flush() == offset + 1
            if offset % 200 == 0:
                log.retention.apply(NOW, log.flushed_offset)
        done.set()

    def checkpoint() -> None:
        while not done.wait(0.001):
            directory.checkpoint(MonotonicMs(0))

    def scrub() -> None:
        while not done.wait(0.001):
            directory.scrub(50_000)

    threads = [guarded(work) for work in (append, checkpoint, scrub)]
    threads += [guarded(lambda: follow(log, done)) for _ in range(2)]
    for thread in threads:
        thread.join()
    assert failures == []
    assert directory.corrupt == {}
    assert log.log_end_offset == BATCHES
    assert log.size_bytes <= CONFIG.retention_bytes + 4_000_000
    directory.close(clean=True)

    directory = open_directory(str(tmp_path))
    log = directory.open_partition(TOPIC_PARTITION, CONFIG, NOW)
    assert (directory.was_clean, log.scanned_bytes, log.log_end_offset) == (True, 0, BATCHES)
    last = log.reader.plan_read(Offset(BATCHES - 1), 1, Offset(BATCHES))
    assert last is not None
    expected = stamped_batch(
        BATCHES - 1, value=value_at(BATCHES - 1), producer_id=1, sequence=BATCHES - 1
    )
    assert log.reader.read(last) == bytes_of(expected)
    directory.close(clean=True)
