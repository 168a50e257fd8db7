"""Measures something that takes seconds on three brokers with many partitions: with an SQLite file
for their metadata, and with an API server; the slowest time of each counts.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.many_partitions import fill
from bench.measure import Bench, Outcome, say
from bench.millrace_cluster import MillraceCluster, running_millrace_cluster
from bench.peers.api_server import running_api_server

TakeOver = Callable[[MillraceCluster, list[str]], dict[str, float]]
"""Does something to a cluster with these topics; returns the time of each step, in seconds."""


def measure_with_either_store(
    bench: Bench,
    take_over: TakeOver,
    *,
    what: str,
    counts: Sequence[str],
    partitions: int,
) -> Outcome:
    """Measure once a round, with either store.

    Args:
        what: the name of the measurement, for the table.
        counts: the one of the times of `take_over` that counts.
        partitions: of the cluster, each with three replicas and a record.
    """

    def rounds(directory: Path, settings: Mapping[str, str]) -> dict[str, Any]:
        taken: list[dict[str, float]] = []
        with running_millrace_cluster(directory, settings) as cluster:
            topics = fill(cluster, partitions)
            for number in range(1, bench.rounds + 1):
                taken.append(take_over(cluster, topics))
                say(f"round {number}/{bench.rounds} {taken[-1]}")
                cluster.wait_until_in_sync(topics)
        slowest = [max(times[name] for name in counts) for times in taken]
        return {"slowest": max(slowest), "median": median(slowest), "rounds": taken}

    sqlite = rounds(bench.directory / "sqlite", {})
    with running_api_server(bench.directory / "api-server") as settings:
        api_server = rounds(bench.directory / "kubernetes", settings)
    return Outcome(
        values={
            f"slowest {what} in s": sqlite["slowest"],
            "likewise with an API server": api_server["slowest"],
        },
        detail={"partitions": partitions, "sqlite": sqlite, "api_server": api_server},
    )
