"""Number of kills of drivers and brokers after which the output of all Spark jobs was exact.

A round is one run of each job in `spark-on-k8s/jobs` on a year of real flights; one of the jobs
also writes to a topic. Leaders and whole drivers are killed in turn, with -9, at random moments of
a micro-batch. At the end the Parquet files that Spark lists must hold exactly the rows that are
computed without Spark; so must the committed records of topics. See `tests/spark_jobs`.
"""

import importlib.util
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from demo.dataset import DatasetError
from tests.spark_jobs import kills
from tests.spark_jobs.flights import DAYS_OF_YEAR, read_source

KILLS_A_JOB = 4


def measure(bench: Bench) -> Outcome:
    """Run the jobs one after another, with other dice in each round."""
    victims = [kills.Victim.DRIVER, kills.Victim.BROKER]
    return measure_jobs(bench, list(kills.RUNS), KILLS_A_JOB, lambda job: victims)


def measure_jobs(
    bench: Bench,
    jobs: Sequence[str],
    kills_a_job: int,
    victims_of: Callable[[str], Sequence[kills.Victim]],
) -> Outcome:
    """Run these jobs one after another, with other dice in each round.

    Raises:
        LoadFailedError: something is missing, or did not happen in time.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise LoadFailedError("PySpark is not installed: sh requirements/install.sh spark demo")
    try:
        source = read_source(DAYS_OF_YEAR)
    except DatasetError as error:
        raise LoadFailedError(str(error)) from error
    outcomes: list[kills.Outcome] = []
    for number in range(bench.rounds):
        for place, job in enumerate(jobs):
            folder = bench.directory / f"{number}-{job}"
            folder.mkdir()
            plan = kills.plan_of(kills_a_job, len(jobs) * number + place, victims_of(job))
            try:
                outcomes.append(kills.run(job, plan, source, folder, say))
            except (AssertionError, RuntimeError) as error:
                raise LoadFailedError(f"{job}, round {number + 1}: {error}") from error
            say(f"round {number + 1}/{bench.rounds} {job}: {_told(outcomes[-1])}")
    exact = [outcome for outcome in outcomes if not outcome.difference]
    interrupted: Counter[str] = Counter()
    for outcome in outcomes:
        interrupted.update(outcome.interrupted)
    return Outcome(
        values={
            "kills in runs whose output is exact": sum(outcome.kills for outcome in exact),
            "runs whose output is not exact": len(outcomes) - len(exact),
        },
        detail={
            "driver_kills": sum(outcome.driver_kills for outcome in outcomes),
            "broker_kills": sum(outcome.broker_kills for outcome in outcomes),
            "coordinator_kills": sum(outcome.coordinator_kills for outcome in outcomes),
            "executor_kills": sum(outcome.executor_kills for outcome in outcomes),
            "last_batch_when_the_driver_was_killed": dict(interrupted),
            "files_of_killed_tasks": _leftovers(outcomes, to_topics=False),
            "records_and_markers_that_do_not_count": _leftovers(outcomes, to_topics=True),
            "rows": sum(outcome.rows for outcome in outcomes),
            "runs": [asdict(outcome) for outcome in outcomes],
        },
    )


def _leftovers(outcomes: list[kills.Outcome], *, to_topics: bool) -> int:
    return sum(
        outcome.leftovers
        for outcome in outcomes
        if bool(kills.RUNS[outcome.job].topics) is to_topics
    )


def _told(outcome: kills.Outcome) -> str:
    verdict = outcome.difference or "exact"
    return f"{outcome.kills} kills, {outcome.rows:,} rows in {outcome.seconds:.0f} s: {verdict}"
