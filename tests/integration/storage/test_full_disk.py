"""A real file system that fills up: refused, recovered, nothing lost."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.appending_process import open_directory
from tests.fakes.log_on_disk import batches_of
from tests.fakes.stamped_batches import TOPIC_PARTITION, bytes_of, stamped_batch
from tests.integration.small_disk import small_disk

from millrace.broker.storage.log_config import LogConfig
from millrace.core.errors import StorageFullError
from millrace.core.ids import MonotonicMs, WallMs

SIZE = 4 << 20
NOW = WallMs(1)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", SIZE) as mounted:
        yield mounted


def test_a_full_disk_refuses_whole_appends_and_goes_on_when_there_is_room(disk: Path) -> None:
    filler = disk / "filler"
    filler.write_bytes(os.urandom(2 << 20))
    directory = open_directory(str(disk / "log"))
    log = directory.open_partition(TOPIC_PARTITION, LogConfig(segment_bytes=500_000), NOW)
    appended: dict[int, bytes] = {}
    refused = 0
    while refused < 5:
        base = log.log_end_offset
        batches = [stamped_batch(base + n, value=os.urandom(30_000)) for n in range(3)]
        try:
            log.writer.append(batches, NOW)
        except StorageFullError:
            refused += 1
            assert log.log_end_offset == base
        else:
            appended |= {batch.base_offset: bytes_of(batch) for batch in batches}
    assert batches_of(log) == appended
    filler.unlink()
    log.writer.append([stamped_batch(log.log_end_offset)], NOW)
    assert len(batches_of(log)) == len(appended) + 1
    log.flusher.flush()
    directory.checkpoint(MonotonicMs(0))
    directory.close(clean=True)
    reopened = open_directory(str(disk / "log"))
    assert reopened.was_clean
    log = reopened.open_partition(TOPIC_PARTITION, LogConfig(), NOW)
    assert len(batches_of(log)) == len(appended) + 1
    reopened.close(clean=False)
