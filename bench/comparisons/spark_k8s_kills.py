"""A streaming job on Kubernetes takes flights in while its parts are killed one after another.

See `e2e/spark_kills.py`. `measure_kills` kills drivers, executors and brokers and drains nodes, and
counts those that the job survived; if its final output differs, none counts. `measure_recovery`
kills the driver's pod: it gets a SIGKILL on its node and is deleted, and the Deployment creates
another one. The time ends when the next micro-batch is committed; the median over kills.
"""

from collections.abc import Sequence
from statistics import median

from bench.measure import Bench, Outcome, say
from bench.real_kubernetes import fresh_namespace, native_kubernetes
from e2e import spark_kills
from e2e.spark_kills import Victim
from tests.spark_jobs.flights import DAYS_OF_YEAR, read_source

KILLS_PER_ROUND = 6
DRIVER_KILLS_PER_ROUND = 3
SEED = 19


def measure_kills(bench: Bench) -> Outcome:
    """Make so many kills a round, under one job."""
    outcome = _run(spark_kills.plan_of(KILLS_PER_ROUND * bench.rounds, SEED))
    if outcome.difference:
        say(outcome.difference)
    exact = 0 if outcome.difference else len(outcome.back_s)
    taken = {str(victim): seconds for victim in Victim if (seconds := outcome.seconds_of(victim))}
    return Outcome(
        values={"kills and drains with exact output": exact},
        detail={
            "rows": outcome.rows,
            "difference": outcome.difference,
            "median_s": {victim: round(median(seconds), 1) for victim, seconds in taken.items()},
            "slowest_s": {victim: round(max(seconds), 1) for victim, seconds in taken.items()},
        },
    )


def measure_recovery(bench: Bench) -> Outcome:
    """Kill the driver so many times a round, under one job."""
    outcome = _run([Victim.DRIVER] * DRIVER_KILLS_PER_ROUND * bench.rounds)
    seconds = outcome.seconds_of(Victim.DRIVER)
    return Outcome(
        values={"median in s": median(seconds), "outputs that differ": bool(outcome.difference)},
        detail={"slowest_s": max(seconds), "fastest_s": min(seconds), "rows": outcome.rows},
    )


def _run(plan: Sequence[Victim]) -> spark_kills.Outcome:
    with native_kubernetes() as kubernetes:
        kubernetes.load_spark_image()
        with fresh_namespace(kubernetes) as namespace:
            source = read_source(DAYS_OF_YEAR)
            return spark_kills.run(kubernetes, namespace, source, plan, say)
