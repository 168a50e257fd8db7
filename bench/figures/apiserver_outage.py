"""No node and no pod reaches the API server for 60 s: writes that clients saw fail meanwhile; and
the longest that a write waited.

Brokers keep their metadata there, and their controller its lease. A round is one outage of
`--seconds`; the cluster is whole again before the next one.
"""

import time

from bench.comparisons.kubernetes_load import cluster_under_load, longest_by_key, writes
from bench.measure import Bench, Bound, Outcome, figure, say
from bench.processes import LoadFailedError
from bench.real_kubernetes import running_kubernetes
from e2e.cluster.native import NativeCluster

SECONDS = 60.0
FAILURES_MAX = 0


def measure(bench: Bench) -> Outcome:
    """Take the API server away, once a round, under one load."""
    with running_kubernetes() as kubernetes, cluster_under_load(kubernetes) as (namespace, load):
        if not isinstance(kubernetes, NativeCluster):
            raise LoadFailedError("the native provider alone takes the API server away")
        for number in range(1, bench.rounds + 1):
            before = load.status().acknowledged
            with kubernetes.api_server_away():
                time.sleep(bench.seconds)
                during = load.status().acknowledged - before
            namespace.wait("cluster.millrace.dev/logs", "Healthy")
            load.wait_for_all()
            say(f"round {number}/{bench.rounds}: {during} records were acknowledged meanwhile")
        found = writes(load.finish())
    longest = longest_by_key(found)
    failed = sum(not each.is_acknowledged for each in found)
    return Outcome(
        bounds=[Bound(what="writes that failed", value=failed, at_most=FAILURES_MAX)],
        detail={
            "writes": len(found),
            "longest_wait_s": max(each.seconds for each in longest.values()),
        },
    )


if __name__ == "__main__":
    figure("apiserver_outage", unit="failed writes", goal="0", measure=measure, seconds=SECONDS)
