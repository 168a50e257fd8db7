"""A process that appends is killed with -9 again and again; what it acknowledged is all there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakes.appending_process import CONFIG, open_directory, value_at
from tests.fakes.log_on_disk import batches_of
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.core.ids import WallMs
from millrace.core.records.batch import open_batch
from millrace.core.records.header import parse_header

KILLS = 5
ACKNOWLEDGED_PER_LIFE = 60


def one_life(path: Path, durability: str) -> int:
    """Start the process, let it acknowledge a while, kill it; return the last acknowledged end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.appending_process", str(path), durability],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process:
        acknowledged = [process.stdout.readline() for _ in range(ACKNOWLEDGED_PER_LIFE)]
        process.kill()
        acknowledged += process.stdout.readlines()
    return max(int(line) for line in acknowledged if line.endswith("\n"))


@pytest.mark.parametrize("durability", ["fsync", "replicated"])
def test_nothing_acknowledged_is_lost_doubled_or_changed(tmp_path: Path, durability: str) -> None:
    for _ in range(KILLS):
        acknowledged = one_life(tmp_path, durability)
        directory = open_directory(str(tmp_path))
        assert not directory.was_clean
        log = directory.open_partition(TOPIC_PARTITION, CONFIG, WallMs(2))
        assert log.log_end_offset >= acknowledged
        assert log.scanned_bytes <= CONFIG.checkpoint_bytes * 2
        entry = log.producer_states.entry(5)  # type: ignore[arg-type]
        assert entry is not None
        assert entry.batches[-1].last_sequence == log.log_end_offset - 1
        found = batches_of(log)
        assert list(found) == list(range(log.log_end_offset))
        for offset, batch in found.items():
            records = open_batch(TOPIC_PARTITION, parse_header(batch), batch, 1 << 20)
            assert records.column("value").to_pylist() == [value_at(offset)]
        directory.close(clean=False)
