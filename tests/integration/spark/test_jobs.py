"""The jobs' output is exact although a broker and the driver are killed on the way.

One kill of each here; `python -m tests.spark_jobs` and the figure `spark_kills` do any number.
Each job takes a minute or two, so `make test` runs one; `make test-spark` and `make nightly` run
all. `demo/test_pipeline.py` kills jobs by day, too.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from demo.spark_program import JOBS
from tests.spark_jobs import kills
from tests.spark_jobs.flights import Source
from tests.spark_jobs.kills import Kill, Moment

PLANS = {
    "carrier_delays": [Kill("broker", Moment.PLANNED), Kill("driver", Moment.LISTED)],
    "carrier_delays_topic": [Kill("broker", Moment.PLANNED), Kill("driver", Moment.WRITING)],
    "flights_with_weather": [Kill("broker", Moment.WRITING), Kill("driver", Moment.PLANNED)],
    "aircraft_sessions": [Kill("broker", Moment.LISTED), Kill("driver", Moment.COMMITTED)],
    "airport_events": [Kill("broker", Moment.WRITING), Kill("driver", Moment.WRITING)],
    "ingest_flights": [Kill("broker", Moment.COMMITTED), Kill("driver", Moment.WRITING)],
}
BY_DAY = "flights_with_weather"


def test_every_job_is_killed() -> None:
    programs = {run.program for run in kills.RUNS.values()}
    assert {path.stem for path in JOBS.glob("*.py")} == programs | {"backfill_routes"}
    assert kills.RUNS.keys() == PLANS.keys()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "job",
    [pytest.param(job, marks=() if job == BY_DAY else pytest.mark.nightly) for job in kills.RUNS],
)
def test_the_output_is_exact_after_kills_of_a_broker_and_of_the_driver(
    job: str, source: Source, tmp_path: Path
) -> None:
    outcome = kills.run(job, PLANS[job], source, tmp_path)
    assert outcome.difference == ""
    assert (outcome.driver_kills, outcome.broker_kills, outcome.driver_starts >= 2) == (1, 1, True)


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
