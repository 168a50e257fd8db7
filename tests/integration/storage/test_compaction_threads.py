"""A log on real files is read by threads, and appended to, while another thread compacts it.

Few descriptors are open, so that reads open files again and again, also those that have the names
of replaced ones.
"""

import threading
from pathlib import Path

import pytest
from tests.fakes.keyed_batches import keyed_batch, records_in
from tests.fakes.log_on_disk import NOW
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.broker.storage.log import PartitionLog
from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.log_directory import DirectoryConfig, LogDirectory
from millrace.broker.storage.posix_file_system import PosixFileSystem
from millrace.core.ids import BrokerId, Offset, WallMs
from millrace.core.replica.compaction.cleanable import CompactionLags
from millrace.core.replica.compaction.key_hashes import KeyHasher

KEYS = 40
ROUNDS = 80
READERS = 3
CONFIG = LogConfig(
    is_compacted=True,
    segment_bytes=4_000,
    index_interval_bytes=300,
    lags=CompactionLags(min_dirty_ratio=0.0),
)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    directory = LogDirectory.open(
        PosixFileSystem(open_files_max=2),
        f"{tmp_path}/log",
        DirectoryConfig(ballast_bytes=0),
        cluster_id="cluster",
        broker_id=BrokerId(1),
        new_directory_id="directory",
    )
    return directory.open_partition(TOPIC_PARTITION, CONFIG, NOW)


def test_readers_see_each_key_with_a_value_that_never_goes_back(log: PartitionLog) -> None:
    is_over = threading.Event()
    failures: list[BaseException] = []
    passes = [0] * READERS

    def read(number: int) -> None:
        seen: dict[bytes, int] = {}
        try:
            while not is_over.is_set() or not passes[number]:
                found: dict[bytes, int] = {}
                for record in records_in(log):
                    assert record.key is not None
                    assert record.value is not None
                    assert found.get(record.key, -1) < int(record.value)
                    found[record.key] = int(record.value)
                assert all(found.get(key, -1) >= value for key, value in seen.items())
                seen = found
                at = log.reader.offset_for_timestamp(WallMs(0))
                assert at is None or at.offset >= log.log_start_offset
                assert log.reader.unread(Offset(0), log.log_end_offset).size >= 0
                passes[number] += 1
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
    hasher = KeyHasher(b"a secret of the test")
    replaced = 0
    try:
        for reader in readers:
            reader.start()
        for number in range(ROUNDS):
            cells = [(b"key-%d" % key, b"%d" % number) for key in range(number % 3, KEYS, 2)]
            log.writer.append([keyed_batch(log.log_end_offset, cells)], NOW)
            log.flusher.flush()
            log.high_watermark = log.log_end_offset
            before = log.segments
            for _ in log.cleaner.clean(hasher, 1 << 20, NOW):
                if failures:
                    break
            replaced += log.segments != before
    finally:
        is_over.set()
        for reader in readers:
            reader.join()
    assert not failures, failures[0]
    assert replaced > 10
    assert min(passes) > 0
