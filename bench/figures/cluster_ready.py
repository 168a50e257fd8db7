"""Seconds until an applied Cluster of three brokers is Ready, with present images: the median.

A round applies a Cluster in a new namespace: Kubernetes makes volumes, schedules and starts pods,
and the brokers elect their controller.
"""

import time
from statistics import median

from bench.measure import Bench, Outcome, say
from bench.real_kubernetes import fresh_namespace, running_kubernetes


def measure(bench: Bench) -> Outcome:
    """Make a cluster, once a round."""
    taken = []
    with running_kubernetes() as kubernetes:
        for number in range(1, bench.rounds + 1):
            with fresh_namespace(kubernetes) as namespace:
                since = time.monotonic()
                namespace.make_cluster()
                taken.append(time.monotonic() - since)
            say(f"round {number}/{bench.rounds} {taken[-1]:.1f} s")
    return Outcome(
        values={"median in s": median(taken)},
        detail={"rounds": taken},
    )
