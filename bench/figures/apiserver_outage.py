"""No node and no pod reaches the API server for 60 s: number of writes that fail at clients
meanwhile, and the longest time that a write waited.

Brokers keep their metadata there, and the controller its lease. A round is one outage of
`--seconds`; the cluster is whole again before the next one.
"""

import time

from bench.comparisons.kubernetes_load import cluster_under_load, longest_by_key, writes
from bench.measure import Bench, Outcome, say
from bench.real_kubernetes import native_kubernetes


def measure(bench: Bench) -> Outcome:
    """Make the API server unreachable once a round, under one load."""
    with native_kubernetes() as kubernetes, cluster_under_load(kubernetes) as (namespace, load):
        outages = []
        for number in range(1, bench.rounds + 1):
            with kubernetes.api_server_away():
                began_ns = time.monotonic_ns()
                time.sleep(bench.seconds)
                outages.append((began_ns, time.monotonic_ns()))
            namespace.wait("cluster.millrace.dev/logs", "Healthy")
            load.wait_for_all()
            say(f"round {number}/{bench.rounds}: {load.status().acknowledged} records so far")
        found = writes(load.finish())
    longest = longest_by_key(found)
    failed = sum(not write.is_acknowledged for write in found)
    acknowledged = [
        sum(write.is_acknowledged and begin < write.ended_ns < end for write in found)
        for begin, end in outages
    ]
    return Outcome(
        values={"writes that failed": failed, "fewest writes done in an outage": min(acknowledged)},
        detail={
            "writes": len(found),
            "done_in_each_outage": acknowledged,
            "longest_wait_s": max(write.seconds for write in longest.values()),
        },
    )
