"""`kubectl rollout restart` of three brokers under load: number of writes that fail at clients, and
the longest time that a write to any partition waited.

A round restarts all three brokers once, one at a time, by the operator.
"""

from bench.comparisons.kubernetes_load import cluster_under_load, longest_by_key, writes
from bench.measure import Bench, Outcome, say
from bench.real_kubernetes import running_kubernetes
from e2e.installed import until

_RESTART_SECONDS_MAX = 300


def measure(bench: Bench) -> Outcome:
    """Restart all brokers, once a round, under one load."""
    with running_kubernetes() as kubernetes, cluster_under_load(kubernetes) as (namespace, load):
        for number in range(1, bench.rounds + 1):
            before = namespace.broker_uids()
            namespace("rollout", "restart", "statefulset/logs-brokers")
            until(
                lambda before=before: not namespace.broker_uids() & before,  # type: ignore[misc]
                "every broker was restarted",
                _RESTART_SECONDS_MAX,
            )
            namespace.wait("cluster.millrace.dev/logs", "RolledOut", _RESTART_SECONDS_MAX)
            namespace.wait("cluster.millrace.dev/logs", "Healthy", _RESTART_SECONDS_MAX)
            load.wait_for_all()
            say(f"round {number}/{bench.rounds}: {load.status().acknowledged} records so far")
        found = writes(load.finish())
    longest = longest_by_key(found)
    failed = sum(not write.is_acknowledged for write in found)
    stall_s = max(write.seconds for write in longest.values())
    return Outcome(
        values={"writes that failed": failed, "longest stall in s": stall_s},
        detail={
            "writes": len(found),
            "longest_stall_of_each_partition_s": sorted(
                write.seconds for write in longest.values()
            ),
        },
    )
