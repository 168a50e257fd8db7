"""Number of kills after which topics that Spark wrote held each row exactly once.

A round is one run of each job that writes to topics, on a year of real flights: windows with a
state, two topics into two, and rows that are shuffled by chance, so that a repeat has them in
another order and in other tasks. Drivers, brokers that lead what is read, coordinators of the
query's transactions, and executors are killed in turn, with -9, at random moments of a micro-batch.
At the end the committed records must be exactly the rows that are computed without Spark: none is
missing, and none is there twice. See `tests/spark_jobs`.
"""

from bench.figures.spark_kills import measure_jobs
from bench.measure import Bench, Outcome
from tests.spark_jobs import kills

KILLS_A_JOB = 8


def measure(bench: Bench) -> Outcome:
    """Run the jobs one after another, with other dice in each round."""
    jobs = [job for job, run in kills.RUNS.items() if run.topics]
    return measure_jobs(bench, jobs, KILLS_A_JOB, kills.victims_of)
