"""A data directory examined with and without its broker."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.cli.broker_process import BrokerProcess
from tests.integration.cli.command_line import CommandLine

from millrace.cli.console.failures import ExitCode

OFFLINE = CommandLine("127.0.0.1:1")


@pytest.fixture
def data_dir(own_broker: BrokerProcess) -> Path:
    """Of a broker that still runs, with two batches in one partition."""
    millrace = CommandLine(own_broker.address)
    millrace.ok("topic", "create", "metrics/cpu", "--partitions", "1")
    for lines in ("a:1\nb:2\n", "a:3\n"):
        millrace.ok("produce", "metrics/cpu", "--key-separator", ":", stdin=lines)
    return own_broker.data_dir


def segment(data_dir: Path) -> Path:
    (path,) = data_dir.rglob("*.log")
    return path


def test_batches_and_records_are_shown_by_the_names_of_their_topics(data_dir: Path) -> None:
    words = ("log", "dump", str(data_dir), "--topic", "metrics/cpu")
    batches = [json.loads(line) for line in OFFLINE.ok(*words, "-o", "json").splitlines()]
    assert [(b["base_offset"], b["last_offset"], b["records"]) for b in batches] == [
        (0, 1, 2),
        (2, 2, 1),
    ]
    assert batches[0]["producer_id"] >= 0
    assert batches[1]["position"] == batches[0]["bytes"]
    records = [json.loads(line) for line in OFFLINE.ok(*words, "--records").splitlines()]
    assert [(r["offset"], r["key"], r["value"]) for r in records] == [
        (0, "a", "1"),
        (1, "b", "2"),
        (2, "a", "3"),
    ]


def test_a_dump_can_begin_in_the_middle_and_end_early(data_dir: Path) -> None:
    words = ("log", "dump", str(data_dir), "-o", "json")
    assert json.loads(OFFLINE.ok(*words, "--from", "2"))["base_offset"] == 2
    assert json.loads(OFFLINE.ok(*words, "--max", "1"))["base_offset"] == 0


def test_the_table_has_a_line_for_each_batch(data_dir: Path) -> None:
    header, *lines = OFFLINE.ok("log", "dump", str(data_dir)).splitlines()
    assert header.split()[:4] == ["TOPIC", "PARTITION", "BASE_OFFSET", "LAST_OFFSET"]
    assert [line.split()[:4] for line in lines] == [
        ["metrics/cpu", "0", "0", "1"],
        ["metrics/cpu", "0", "2", "2"],
    ]


def test_a_sound_log_is_verified_while_its_broker_runs_and_after(
    data_dir: Path, own_broker: BrokerProcess
) -> None:
    for _ in range(2):
        (partition,) = json.loads(OFFLINE.ok("log", "verify", str(data_dir), "-o", "json"))
        assert partition["topic"] == "metrics/cpu"
        assert (partition["records"], partition["batches"]) == (3, 2)
        assert partition["is_sound"]
        own_broker.stop()
    assert "sound" in OFFLINE.ok("log", "verify", str(data_dir / "log"))


def test_one_flipped_bit_is_found_and_ends_with_its_own_code(
    data_dir: Path, own_broker: BrokerProcess
) -> None:
    own_broker.stop()
    path = segment(data_dir)
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)
    result = OFFLINE.run("log", "verify", str(data_dir))
    assert result.exit_code == ExitCode.DAMAGED
    assert "DAMAGED" in result.stdout
    assert f"corrupt: {path}, byte 0" in result.stderr
    assert "damaged: metrics/cpu-0" in result.stderr


def test_a_reader_that_leaves_does_not_make_damage_a_success(
    data_dir: Path, own_broker: BrokerProcess
) -> None:
    own_broker.stop()
    segment(data_dir).write_bytes(b"no batch")
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "millrace.cli", "log", "verify", str(data_dir)],
            stdout=gone,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == ExitCode.DAMAGED, done.stderr


def test_examining_changes_nothing(data_dir: Path, own_broker: BrokerProcess) -> None:
    def contents() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in data_dir.rglob("*") if path.is_file()}

    own_broker.stop()
    before = contents()
    OFFLINE.ok("log", "verify", str(data_dir))
    OFFLINE.ok("log", "dump", str(data_dir))
    assert contents() == before


def test_what_is_not_there_is_answered_with_what_is(data_dir: Path, tmp_path: Path) -> None:
    result = OFFLINE.run("log", "dump", str(data_dir), "--topic", "metrics/cpus")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "did you mean 'metrics/cpu'?" in result.stderr
    (tmp_path / "empty").mkdir()
    result = OFFLINE.run("log", "verify", str(tmp_path / "empty"))
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "--data-dir" in result.stderr
