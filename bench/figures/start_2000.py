"""Seconds from the start of three brokers with 2,000 partitions until all have leaders.

Each partition has three replicas and a record. The brokers stop cleanly before each start; `detail`
also has a start after kill -9. The value is the slowest start after a clean stop.
"""

import os
import signal
import time
from pathlib import Path
from statistics import median

from bench.many_partitions import fill
from bench.measure import Bench, Outcome, say
from bench.millrace_cluster import running_millrace_cluster
from bench.processes import until

from millrace.client import RetriableError

PARTITIONS = 2000
POLL_S = 0.02
TIMEOUT_S = 120


def measure(bench: Bench) -> Outcome:
    """Fill, then stop and start once a round; at the end kill and start."""
    data = bench.directory / "millrace"
    with running_millrace_cluster(data) as cluster:
        topics = fill(cluster, PARTITIONS)
        time.sleep(bench.seconds)
    taken = []
    for number in range(1, bench.rounds + 1):
        taken.append(_start(data, topics, bench.seconds, is_killed=number == bench.rounds))
        say(f"round {number}/{bench.rounds} {taken[-1]:.2f} s")
    after_kill = _start(data, topics, 0, is_killed=False)
    return Outcome(
        values={"slowest start in s": max(taken)},
        detail={
            "partitions": PARTITIONS,
            "median": median(taken),
            "rounds": taken,
            "after_kill": after_kill,
        },
    )


def _start(data: Path, topics: list[str], seconds: float, *, is_killed: bool) -> float:
    """Start, wait until all partitions have leaders, and run for a while; return the wait."""
    started = time.monotonic()
    with running_millrace_cluster(data) as cluster:

        def led() -> float | None:
            try:
                partitions = cluster.partitions(topics).values()
            except RetriableError:
                return None
            if any(partition.leader < 0 for partition in partitions):
                return None
            return time.monotonic() - started

        taken = until(led, "a leader for every partition", TIMEOUT_S, POLL_S)
        cluster.wait_until_in_sync(topics)
        time.sleep(seconds)
        if is_killed:
            pids = cluster.pids
            with cluster.without_restarts():
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                os.kill(cluster.supervisor, signal.SIGTERM)
    return taken
