"""How jobs end.

One that is told to end does so between two micro-batches, and writes nothing twice. One whose Spark
has stopped by itself says so.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.conftest import StartBroker
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer

COUNT = 40_000
START_SECONDS_MAX = 180
JOB = Path(__file__).with_name("stoppable_job.py")
FAILING_JOB = Path(__file__).with_name("failing_job.py")


def written(broker: RunningBroker) -> int:
    with SyncAdmin(broker.address) as admin:
        return admin.list_offsets("out", "end")["out", 0].offset


def run_for_a_while(broker: RunningBroker, folder: Path) -> None:
    """Run the job until it has written some, tell it to end, and wait until it has."""
    with (folder / "job.log").open("ab") as log:
        job = subprocess.Popen(
            [sys.executable, str(JOB), broker.address, str(folder)],
            stdout=log,
            stderr=log,
            cwd=folder,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: written(broker) >= 1000 or job.poll() is not None,
            "it has written some",
            START_SECONDS_MAX,
        )
        job.send_signal(signal.SIGTERM)
        code = job.wait(60)
    finally:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)  # The JVM, too.
            job.wait()
    assert code == 0, (folder / "job.log").read_text()[-3000:]


@pytest.mark.timeout(START_SECONDS_MAX + 120)
@pytest.mark.nightly
def test_a_job_that_is_told_to_end_does_so_when_a_micro_batch_has_ended(
    has_spark: None, start_broker: StartBroker, tmp_path: Path
) -> None:
    broker = start_broker()
    with SyncAdmin(broker.address) as admin:
        admin.create_topic("in", 1)
        admin.create_topic("out", 1)
    with SyncProducer(broker.address) as producer:
        producer.send_batch("in", [b"%d" % number for number in range(COUNT)])
    run_for_a_while(broker, tmp_path)
    end = written(broker)
    assert 1000 <= end < COUNT, "it was told to end in the midst of its work"
    with SyncConsumer(broker.address) as consumer:
        consumer.subscribe(["out"])
        found: list[int] = []
        while len(found) < end:
            found += map(int, consumer.poll().values())
    assert found == list(range(end))
    # What was written was also noted as done, so the next start repeats nothing.
    commits = list((tmp_path / "checkpoint" / "commits").glob("[0-9]*"))
    assert end == 200 * len(commits)


@pytest.mark.timeout(START_SECONDS_MAX)
@pytest.mark.parametrize("how", ["its context stops", "its JVM ends"])
def test_a_job_whose_spark_stopped_by_itself_says_so(
    has_spark: None, how: str, tmp_path: Path
) -> None:
    ended = subprocess.run(
        [sys.executable, str(FAILING_JOB), how],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable},
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("error: Spark has no executors"), ended.stderr
