"""The load that runs in pods, as a process: marks come in, and a history comes out."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.checkers.check import check
from tests.checkers.history import Op, read
from tests.checkers.report import Expectations
from tests.checkers.transactional import judge
from tests.faults.transactional import KEYS, TOPICS
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import SyncAdmin

TOPIC = "load-of-a-pod"
NAMESPACE = "transactions-of-a-pod"


@pytest.fixture
def folder(shared_broker: RunningBroker, tmp_path: Path) -> Iterator[Path]:
    """The folder of a load that runs, on two partitions."""
    shared_broker.create_topic(TOPIC, partitions=2)
    settings = tmp_path / "settings.json"
    settings.write_text(
        json.dumps(
            {
                "bootstrap": shared_broker.address,
                "topics": [TOPIC],
                "partitions": 2,
                "transactions_in": NAMESPACE,
                "replicas": 1,
            }
        )
    )
    command = (sys.executable, "-m", "e2e.load.program", settings, tmp_path)
    program = subprocess.Popen(command)
    yield tmp_path
    program.kill()
    program.wait()
    with SyncAdmin(shared_broker.address) as admin:
        for topic in (TOPIC, *(f"{NAMESPACE}/{name}" for name in TOPICS)):
            admin.delete_topic(topic)


def test_a_load_takes_marks_from_a_file_and_leaves_a_history_that_can_be_judged(
    folder: Path,
) -> None:
    wait_until((folder / "status.json").exists, "it works", 60)
    _mark(folder, {"window": "open"}, {"fault": ["F01", "nothing"]})
    # What is written before it has read the marks is not in the window.
    wait_until(lambda: _status(folder)["marks"] == 2, "the window is open")
    before = _counts(folder)

    def has_written() -> bool:
        counts = _counts(folder)
        return all(count >= before.get(key, 0) + 10 for key, count in counts.items())

    wait_until(has_written, "partitions take writes, and transactions", 60)
    _mark(folder, {"finish": True})
    wait_until(lambda: _status(folder)["is_finished"], "it has read everything", 60)
    assert not _status(folder)["failure"]
    history = _history(folder, "history")
    assert [(op.f, op.details) for op in history if op.f in ("window", "fault")] == [
        ("window", "open"), ("fault", ["F01", "nothing"]), ("window", "close"),
    ]  # fmt: skip
    report = check(history, expectations=Expectations(ok_shares={"send": 1.0, "poll": 1.0}))
    assert report.is_good, report.text()
    assert report.measures["acknowledged"] >= 20
    assert report.measures["acknowledged"] == _status(folder)["acknowledged"]
    judged = judge(_history(folder, "original"), _history(folder, "copied"), KEYS, commit_ns=10**10)
    assert not judged.failures, judged.failures
    assert judged.in_window >= 3
    assert judged.copied == judged.committed >= 10


def _mark(folder: Path, *marks: dict[str, object]) -> None:
    with (folder / "marks").open("a") as file:
        file.writelines(json.dumps(mark) + "\n" for mark in marks)


def _status(folder: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "status.json").read_text())
    return found


def _counts(folder: Path) -> dict[str, int]:
    """Return how many writes each partition has taken, and how many transactions are seen."""
    status = _status(folder)
    acknowledged, seen = status["acknowledged_of"], status["seen"]
    assert isinstance(acknowledged, dict)
    assert isinstance(seen, dict)
    return {**acknowledged, **seen}


def _history(folder: Path, name: str) -> list[Op]:
    with (folder / f"{name}.jsonl").open() as lines:
        return list(read(lines))
