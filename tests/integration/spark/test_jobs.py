"""The jobs' output is exact although brokers, executors and the driver are killed on the way.

Two or three kills of each here; `python -m tests.spark_jobs`, and the figures `spark_kills` and
`spark_exactly_once_kills`, do any number. Each job takes a minute or two, so `make test` runs one;
`make test-spark` and `make nightly` run all. `demo/test_pipeline.py` kills jobs by day, too.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from demo.spark_program import JOBS
from tests.spark_jobs import kills
from tests.spark_jobs.flights import Source
from tests.spark_jobs.kills import Kill, Moment, Victim

PLANS = {
    "carrier_delays": [Kill(Victim.BROKER, Moment.PLANNED), Kill(Victim.DRIVER, Moment.LISTED)],
    "carrier_delays_topic": [
        Kill(Victim.BROKER, Moment.PLANNED),
        Kill(Victim.DRIVER, Moment.WRITING),
    ],
    "flights_with_weather": [
        Kill(Victim.BROKER, Moment.WRITING),
        Kill(Victim.DRIVER, Moment.PLANNED),
    ],
    "aircraft_sessions": [
        Kill(Victim.BROKER, Moment.LISTED),
        Kill(Victim.DRIVER, Moment.COMMITTED),
    ],
    "airport_events": [Kill(Victim.BROKER, Moment.WRITING), Kill(Victim.DRIVER, Moment.WRITING)],
    "shuffled": [
        Kill(Victim.EXECUTOR, Moment.WRITING),
        Kill(Victim.COORDINATOR, Moment.WRITING),
        Kill(Victim.DRIVER, Moment.WRITING),
    ],
    "ingest_flights": [Kill(Victim.BROKER, Moment.COMMITTED), Kill(Victim.DRIVER, Moment.WRITING)],
}
BY_DAY = "flights_with_weather"


def test_every_job_is_killed() -> None:
    programs = {run.program for run in kills.RUNS.values() if run.folder == JOBS}
    assert {path.stem for path in JOBS.glob("*.py")} == programs | {"backfill_routes"}
    assert kills.RUNS.keys() == PLANS.keys()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "job",
    [pytest.param(job, marks=() if job == BY_DAY else pytest.mark.nightly) for job in kills.RUNS],
)
def test_the_output_is_exact_after_kills_of_all_that_it_needs(
    job: str, source: Source, tmp_path: Path
) -> None:
    outcome = kills.run(job, PLANS[job], source, tmp_path)
    assert outcome.difference == ""
    assert (outcome.kills, outcome.driver_starts >= 2) == (len(PLANS[job]), True)


@pytest.mark.parametrize("job", sorted(path.stem for path in JOBS.glob("*.py")))
def test_help_says_what_a_job_shows_and_what_it_takes(job: str) -> None:
    pytest.importorskip("pyspark", reason="needs pyspark: sh requirements/install.sh spark")
    done = subprocess.run(
        [sys.executable, JOBS / f"{job}.py", "--help"],
        check=True,
        capture_output=True,
        text=True,
    )
    for word in ("What it shows:", "--bootstrap", "killed"):
        assert word in done.stdout
