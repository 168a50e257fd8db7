"""A streaming job is applied to Kubernetes, with present images and a topic with a month of
flights: seconds until its first micro-batch is committed.

Kubernetes creates driver, executors and the shared volume; Spark starts, plans and commits a batch.
"""

import time
from statistics import median

from bench.measure import Bench, Outcome, say
from bench.real_kubernetes import fresh_namespace, native_kubernetes
from e2e.flights import produce_all
from e2e.spark_job import SparkJob
from tests.spark_jobs.flights import FLIGHTS, PARTITIONS, REPLICAS, read_source

DAYS = 30


def measure(bench: Bench) -> Outcome:
    """Start one job after another, one a round."""
    seconds = []
    with native_kubernetes() as kubernetes:
        kubernetes.load_spark_image()
        with fresh_namespace(kubernetes) as namespace:
            namespace.make_cluster()
            namespace.make_topic(FLIGHTS, partitions=PARTITIONS, replicas=REPLICAS)
            namespace.make_client()
            produce_all(namespace, read_source(DAYS))
            for number in range(1, bench.rounds + 1):
                job = SparkJob(kubernetes, namespace, f"delays-{number}")
                begun = time.monotonic()
                job.install("carrier_delays")
                job.wait_for_batch(after=-1)
                seconds.append(time.monotonic() - begun)
                say(f"round {number}/{bench.rounds}: {seconds[-1]:.1f} s")
                job.uninstall()
    return Outcome(
        values={"median in s": median(seconds)},
        detail={"slowest_s": max(seconds), "fastest_s": min(seconds)},
    )
