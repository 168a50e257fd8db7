"""Number of kills and drains that a Spark job on Kubernetes survived with exact output: drivers,
executors and brokers are killed and nodes drained, one after another, while flights stream in.

See `e2e/spark_kills.py`. If the final output differs, none counts.
"""

from statistics import median

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from bench.real_kubernetes import fresh_namespace, running_kubernetes
from e2e import spark_kills
from e2e.cluster.native import NativeCluster
from e2e.spark_kills import Victim
from tests.spark_jobs.flights import DAYS_OF_YEAR, read_source

KILLS_PER_ROUND = 6
SEED = 19


def measure(bench: Bench) -> Outcome:
    """Make so many kills a round, under one job."""
    plan = spark_kills.plan_of(KILLS_PER_ROUND * bench.rounds, SEED)
    with running_kubernetes() as kubernetes:
        if not isinstance(kubernetes, NativeCluster):
            raise LoadFailedError("the native provider alone kills what runs on its nodes")
        kubernetes.load_spark_image()
        with fresh_namespace(kubernetes) as namespace:
            source = read_source(DAYS_OF_YEAR)
            outcome = spark_kills.run(kubernetes, namespace, source, plan, say)
    if outcome.difference:
        say(outcome.difference)
    exact = 0 if outcome.difference else len(outcome.back_s)
    return Outcome(
        values={"kills and drains with exact output": exact},
        detail={
            "rows": outcome.rows,
            "difference": outcome.difference,
            "median_s": {
                str(victim): round(median(seconds), 1)
                for victim in Victim
                if (seconds := outcome.seconds_of(victim))
            },
            "slowest_s": {
                str(victim): round(max(seconds), 1)
                for victim in Victim
                if (seconds := outcome.seconds_of(victim))
            },
        },
    )
