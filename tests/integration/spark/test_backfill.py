"""The job that reads a past time range: `spark-on-k8s/jobs/backfill_routes.py`."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from demo.dataset import Records
from demo.spark_program import JOBS, SparkProgram
from tests.integration.running_cluster import RunningCluster
from tests.spark_jobs import expected
from tests.spark_jobs.flights import Source

from millrace.client import SyncAdmin, SyncProducer

pytestmark = pytest.mark.timeout(300)
BEGIN, END = datetime(2013, 1, 10, 12, tzinfo=UTC), datetime(2013, 1, 25, tzinfo=UTC)
SECONDS_MAX = 120.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    running = RunningCluster(tmp_path).start()
    yield running
    running.abandon()


def send(bootstrap: str, flights: Records) -> None:
    """Send flights as records of the time at which they were to leave."""
    times = flights.table.column("time_hour").combine_chunks().cast(pa.timestamp("ms", "UTC"))
    with SyncProducer(bootstrap) as producer:
        producer.send_batch(
            "flights", flights.values, flights.keys, timestamps=times.cast(pa.int64())
        ).result()


def start(folder: Path, bootstrap: str, begin: datetime = BEGIN) -> SparkProgram:
    return SparkProgram(
        JOBS / "backfill_routes.py",
        *("--bootstrap", bootstrap, "--output", str(folder / "out")),
        *("--from", begin.isoformat(), "--until", END.isoformat()),
        log=folder / "driver.log",
    ).start()


def written(folder: Path) -> pa.Table:
    return pyarrow.parquet.read_table(folder / "out")


@pytest.mark.nightly
def test_a_time_range_is_the_same_each_time_although_a_run_is_killed_and_more_comes(
    source: Source, cluster: RunningCluster, tmp_path: Path
) -> None:
    bootstrap = cluster.bootstrap
    with SyncAdmin(bootstrap) as admin:
        admin.create_topic("flights", 4, 3, config={"retention.ms": "-1"})
    first, middle, last = source.parts(3)
    leave = source.flights.table.column("time_hour")
    inside = pc.and_(
        pc.greater_equal(leave, pa.scalar(BEGIN, leave.type)),
        pc.less(leave, pa.scalar(END, leave.type)),
    )
    wanted = expected.routes(source.flights.table.filter(inside))
    for part in (first, middle):
        send(bootstrap, part.flights)

    killed = start(tmp_path, bootstrap)
    deadline = time.monotonic() + SECONDS_MAX
    while not (tmp_path / "out").exists():
        assert killed.exit_code() is None, killed.log_end()
        assert time.monotonic() < deadline, killed.log_end()
        time.sleep(0.01)
    killed.kill()
    for _ in range(2):
        run = start(tmp_path, bootstrap)
        assert run.wait(SECONDS_MAX) == 0, run.log_end()
        assert expected.difference(written(tmp_path), wanted) == ""
        send(bootstrap, last.flights)  # All of them come after the range.


def test_a_range_that_is_not_over_is_refused(has_spark: None, tmp_path: Path) -> None:
    run = start(tmp_path, "localhost:1", begin=END)
    assert run.wait(SECONDS_MAX) == 2
    assert "--from must be before --until" in run.log_end()
