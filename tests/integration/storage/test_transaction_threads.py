"""One thread writes transactions, others checkpoint, scrub, clean and read what was committed.

As in a broker, all at a time: no reader ever gets a record of an aborted transaction, or misses
one of a committed one.
"""

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.appending_process import open_directory
from tests.fakes.keyed_batches import keyed_batch
from tests.fakes.stamped_batches import TOPIC_PARTITION, control_batch

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.core.errors import OffsetOutOfRangeError
from millrace.core.ids import LeaderEpoch, MonotonicMs, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.batch import open_batch, walk
from millrace.core.records.markers import Marker
from millrace.core.replica.compaction.cleanable import CompactionLags
from millrace.core.replica.compaction.key_hashes import KeyHasher

NOW = WallMs(1)
TRANSACTIONS = 1200
PRODUCERS = 4
PLAIN = LogConfig(
    segment_bytes=20_000, checkpoint_bytes=20_000, checkpoint_ms=0, retention_bytes=150_000
)
COMPACTED = LogConfig(
    segment_bytes=20_000,
    checkpoint_bytes=20_000,
    checkpoint_ms=0,
    is_compacted=True,
    delete_retention_ms=50,
    lags=CompactionLags(min_dirty_ratio=0.0),
)
COMMITTED, ABORTED = b"committed", b"aborted"


def write(log: PartitionLog, done: threading.Event) -> None:
    """Write transactions of several producers, each decided when it begins."""
    rng = random.Random(7)
    outcomes: dict[int, bool] = {}
    written = 0
    while written < TRANSACTIONS or outcomes:
        producer = rng.randrange(PRODUCERS)
        producer_id = ProducerId(producer)
        entry = log.producer_states.entry(producer_id)
        if producer in outcomes and rng.random() < 0.5:
            states = log.producer_states
            assert entry is not None
            epoch, is_commit = ProducerEpoch(entry.epoch + 1), outcomes.pop(producer)
            ended = states.check_marker(Marker(producer_id, epoch, is_commit, LeaderEpoch(1)))
            assert ended is not None
            log.writer.append([control_batch(log.log_end_offset, ended)], NOW)
        elif producer in outcomes or written < TRANSACTIONS:
            if producer not in outcomes:
                outcomes[producer] = rng.random() < 0.5
                written += 1
            value = COMMITTED if outcomes[producer] else ABORTED
            batch = keyed_batch(
                log.log_end_offset,
                [(b"%d" % rng.randrange(50), value)] * rng.randrange(1, 4),
                producer_id=producer,
                producer_epoch=entry.epoch if entry else 0,
                sequence=entry.batches[-1].last_sequence + 1 if entry and entry.batches else 0,
                in_transaction=True,
            )
            log.writer.append([batch], NOW)
        log.high_watermark = log.log_end_offset
    done.set()


def read_committed(log: PartitionLog, at: Offset) -> Iterator[tuple[Offset, list[bytes]]]:
    """Read once to the last stable offset; yield where the reader is, and the values it gets."""
    while True:
        high_watermark = log.high_watermark
        end = log.undecided.last_stable_offset(high_watermark)
        try:
            plan = log.reader.plan_read(at, 5_000, end) if at < end else None
        except OffsetOutOfRangeError:
            assert at < log.log_start_offset
            at = log.log_start_offset
            continue
        if plan is None:
            return
        aborted = log.reader.aborted(at, plan.end_offset)
        data = log.reader.read(plan)
        if len(data) < plan.length:
            continue  # Deleted meanwhile, or cleaned.
        for header, batch in walk(data):
            is_aborted = header.is_transactional and any(
                one.producer_id == header.producer_id
                and one.first_offset <= header.base_offset <= one.last_offset
                for one in aborted
            )
            values: list[bytes] = []
            if not header.is_control and not is_aborted:
                opened = open_batch(TOPIC_PARTITION, header, batch, header.inflated_length)
                values = opened.column("value").to_pylist()
            at = header.next_offset
            yield at, values


def follow(log: PartitionLog, done: threading.Event) -> None:
    """Read again and again, from the start or from where the last read ended."""
    at = Offset(0)
    rng = random.Random(1)
    while True:
        is_last = done.is_set()
        start = at if rng.random() < 0.8 else Offset(0)
        for end, values in read_committed(log, start):
            assert ABORTED not in values
            at = end
        if is_last:
            assert at == log.log_end_offset
            return
        done.wait(0.001)


@pytest.mark.parametrize("config", [PLAIN, COMPACTED], ids=["plain", "compacted"])
def test_no_reader_gets_what_was_aborted_whatever_else_goes_on(
    tmp_path: Path, config: LogConfig
) -> None:
    directory = open_directory(str(tmp_path))
    log = directory.open_partition(TOPIC_PARTITION, config, NOW)
    log.cleaner.tombstones_end = Offset(1 << 62)
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

    def checkpoint() -> None:
        while not done.wait(0.001):
            directory.checkpoint(MonotonicMs(0))

    def scrub() -> None:
        while not done.wait(0.001):
            directory.scrub(50_000)

    def clean() -> None:
        hasher, now = KeyHasher(b"a secret of the test"), NOW
        while not done.wait(0.002):
            if config.is_compacted:
                now = WallMs(now + 20)
                for _ in log.cleaner.clean(hasher, 1 << 16, now):
                    pass
            else:
                log.retention.apply(NOW, log.high_watermark)

    threads = [guarded(work) for work in (lambda: write(log, done), checkpoint, scrub, clean)]
    threads += [guarded(lambda: follow(log, done)) for _ in range(2)]
    for thread in threads:
        thread.join()
    assert failures == []
    assert directory.corrupt == {}
    assert log.undecided.last_stable_offset(log.log_end_offset) == log.log_end_offset
    found = [values for _, values in read_committed(log, Offset(0))]
    directory.close(clean=True)

    directory = open_directory(str(tmp_path))
    log = directory.open_partition(TOPIC_PARTITION, config, NOW)
    log.high_watermark = log.log_end_offset
    assert [values for _, values in read_committed(log, Offset(0))] == found
    directory.close(clean=True)
