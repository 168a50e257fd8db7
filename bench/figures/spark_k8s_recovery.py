"""The driver's pod of a streaming job is killed while flights stream in: seconds until the next
micro-batch is committed, the median over kills.

The pod gets a SIGKILL on its node and is deleted; the Deployment creates another one.
"""

from statistics import median

from bench.measure import Bench, Outcome, say
from bench.processes import LoadFailedError
from bench.real_kubernetes import fresh_namespace, running_kubernetes
from e2e import spark_kills
from e2e.cluster.native import NativeCluster
from e2e.spark_kills import Victim
from tests.spark_jobs.flights import DAYS_OF_YEAR, read_source

KILLS_PER_ROUND = 3


def measure(bench: Bench) -> Outcome:
    """Kill the driver so many times a round, under one job."""
    plan = [Victim.DRIVER] * KILLS_PER_ROUND * bench.rounds
    with running_kubernetes() as kubernetes:
        if not isinstance(kubernetes, NativeCluster):
            raise LoadFailedError("the native provider alone kills what runs on its nodes")
        kubernetes.load_spark_image()
        with fresh_namespace(kubernetes) as namespace:
            source = read_source(DAYS_OF_YEAR)
            outcome = spark_kills.run(kubernetes, namespace, source, plan, say)
    seconds = outcome.seconds_of(Victim.DRIVER)
    return Outcome(
        values={"median in s": median(seconds), "outputs that differ": bool(outcome.difference)},
        detail={"slowest_s": max(seconds), "fastest_s": min(seconds), "rows": outcome.rows},
    )
