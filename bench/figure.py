"""Every figure: its name, unit and goal, and what measures it.

    python -m bench.figure NAME... [--rounds 1 --seconds 2]

A figure that is more than another one with other numbers has a module of its name in
`bench/figures`, whose `measure` is called; the others name a function of `bench/comparisons`.
"""

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any

from bench.measure import NOT_MEASURED, SECONDS_MIN, Measure, Named, figures


@dataclass(frozen=True, kw_only=True)
class Figure(Named):
    """One figure.

    Attributes:
        by: module and function that measure it.
        seconds: of each run, unless the command line says otherwise.
        settings: further arguments of the function.
    """

    by: str
    seconds: float
    settings: dict[str, Any]

    def measure(self) -> Measure:
        """Return the function with its settings; imports what it needs."""
        module, _, function = self.by.partition(":")
        measured: Measure = partial(
            getattr(importlib.import_module(f"bench.{module}"), function), **self.settings
        )
        return measured


def _figure(
    name: str,
    unit: str,
    *bounds: str,
    goal: str = "",
    by: str = "",
    seconds: float = SECONDS_MIN,
    **settings: Any,
) -> Figure:
    """Return a figure with its bounds, whose first one is the goal unless there is another text."""
    return Figure(
        name=name,
        unit=unit,
        goal=goal or bounds[0],
        bounds=bounds,
        by=f"comparisons.{by}" if by else f"figures.{name}:measure",
        seconds=seconds,
        settings=settings,
    )


_BATCHES, _SENDS = "produce:compare_batches", "produce:compare_single_sends"
_READERS = "consume:compare_consumers"
_FAILOVER, _TOPICS = "failover:measure", "kubernetes_topics:measure"
_SPARK = "spark_read:compare_spark_readers"
_KAFKA = "kafka_clients"

# fmt: off
FIGURES = (
    _figure("produce_100b", "times", ">= 3", ">= 1", goal=">= 3, and >= 1 over Java's perf tool",
            by=_BATCHES, record_bytes=100),
    _figure("produce_1kb", "times", ">= 2", ">= 3", goal=">= 2, and >= 3 over Java's perf tool",
            by=_BATCHES, record_bytes=1000),
    _figure("send_100b", "times", ">= 1.5", by=_SENDS, record_bytes=100),
    _figure("send_keyed_100b", "times", ">= 1", by=_SENDS, record_bytes=100),
    _figure("send_handle_100b", "times", ">= 1", by=_SENDS, record_bytes=100),
    _figure("send_1kb", "times", ">= 1.2", by=_SENDS, record_bytes=1000),
    _figure("send_keyed_1kb", "times", ">= 1", by=_SENDS, record_bytes=1000),
    _figure("send_handle_1kb", "times", ">= 1", by=_SENDS, record_bytes=1000),
    _figure("consume_100b", "times", ">= 3", by=_READERS, record_bytes=100),
    _figure("consume_1kb", "times", ">= 2", by=_READERS, record_bytes=1000),
    _figure("produce_fsync_1kb", "times", ">= 2", by="produce:compare_fsync", record_bytes=1000),
    _figure("transactions", "share", ">= 0.95"),
    _figure("transaction_commit", "times", ">= 1", ">= 1", goal=">= 1, p50 and p99"),
    _figure("exactly_once_copy", "times", ">= 2"),
    _figure("cpu_per_gb", "times", "<= 0.5", "<= 0.8", goal="<= 0.5 to produce, <= 0.8 to consume"),
    _figure("tls_share", "times", ">= 1", ">= 1", goal=">= 1, to produce and to consume"),
    _figure("auth_cost", "times", "<= 1.02", "<= 1.02", "<= 0.1",
            goal="<= 1.02, to produce and to consume; decisions <= 0.1 ms"),
    _figure("carrier_share", "share of bare DRPC frames", ">= 0.5"),
    _figure("disk_share", "share of the disk", ">= 0.7"),
    _figure("latency_10k", "times", *[">= 1"] * 4, goal=">= 1, p50 and p99, linger 0 and 5 ms"),
    _figure("wakeups", "times", "<= 1"),
    _figure("many_clients", "ms", "<= 25", "<= 3", goal="<= 25, with <= 3 connections a client"),
    _figure("hostile_clients", "times", "<= 2"),
    _figure("abuse", "share", ">= 1.0", ">= 40",
            goal="1.0; a p99 before that is less than 10 ms counts as 10", seconds=5),
    _figure("restart_10gb", "s", "<= 2"),
    _figure("idle_rss", "MB", "<= 150"),
    _figure("load_rss", "MB", "<= 177"),
    _figure("partitions_1000", "times", "<= 1.2"),
    _figure("failover", "s", "<= 1", by=_FAILOVER),
    _figure("failover_p99", "s", "<= 3", by=_FAILOVER),
    _figure("handover", "ms", "<= 200"),
    _figure("produce_r3_100b", "times", ">= 2.5", ">= 2",
            goal=">= 2.5, and >= 2 over Java's perf tool", by=_BATCHES,
            record_bytes=100, brokers=3),
    _figure("produce_r3_1kb", "times", ">= 2", ">= 1.5",
            goal=">= 2, and >= 1.5 over Java's perf tool", by=_BATCHES,
            record_bytes=1000, brokers=3),
    _figure("controller_failover", "s", "<= 3", "<= 8"),
    _figure("dead_broker_5000", "s", "<= 4", "<= 8"),
    _figure("start_2000", "s", "<= 10"),
    _figure("rebalance", "s", "<= 1", "<= 0"),
    _figure("offset_commits", "positions/s", ">= 5,000"),
    _figure("lag_1000", "ms", "<= 50"),
    _figure("lag_truth", "s", "<= 2", "<= 2"),
    _figure("group_consume", "times", ">= 1.5", by="consume:compare_groups"),
    _figure("compaction", "times", ">= 2", ">= 1.5", by="compaction:measure"),
    _figure("compaction_memory", "MB", "<= 200"),
    _figure("compaction_reads", "times", "<= 2"),
    _figure("tier_moves", "times", "<= 2"),
    _figure("quota_precision", "share", "<= 0.05"),
    _figure("quota_cost", "share", "<= 0.02"),
    _figure("dashboards", "share", ">= 1.0"),
    _figure("alerts", "share", ">= 1.0", seconds=120),
    _figure("metrics_cost", "share", "<= 0.02", seconds=20),
    _figure("scrape_10k", "s", "<= 1", "<= 5"),
    _figure("faults", "real faults", ">= 450", ">= 20", "<= 0"),
    _figure("sim_hours", "h/h", ">= 100", seconds=710),
    _figure("sim_share", "share", ">= 0.85", seconds=240),
    _figure("sim_speed", "events/s", ">= 20,000"),
    _figure("fuzz", "executions", ">= 10,000,000", goal=">= 10 million, and none crashes or grows"),
    _figure("mutants", "share", ">= 0.95", ">= 30", seconds=240),
    _figure("spark_read_100b", "times", ">= 2", by=_SPARK, record_bytes=100, records=10_000_000),
    _figure("spark_read_1kb", "times", ">= 2", by=_SPARK, record_bytes=1000, records=2_000_000),
    _figure("spark_latency", "times", ">= 1"),
    _figure("spark_memory", "MB", "<= 300"),
    _figure("spark_write", "times", ">= 1", ">= 1", goal=">= 1 at 100 B and at 1 KB",
            by="spark_write:compare_spark_writers"),
    _figure("spark_commit", "ms", "<= 100"),
    _figure("kafka_produce_1kb", "times", ">= 1.2", "<= 0.5",
            goal=">= 1.2, with <= 0.5 of the broker's CPU",
            by=f"{_KAFKA}:compare_producers", record_bytes=1000),
    _figure("kafka_produce_100b", "times", ">= 1.2", "<= 1",
            goal=">= 1.2, with <= 1 of the broker's CPU",
            by=f"{_KAFKA}:compare_producers", record_bytes=100),
    _figure("kafka_consume_1kb", "times", ">= 1", "<= 1",
            goal=">= 1, with <= 1 of the broker's CPU",
            by=f"{_KAFKA}:compare_consumers", record_bytes=1000),
    _figure("kafka_consume_100b", "times", ">= 1", "<= 1",
            goal=">= 1, with <= 1 of the broker's CPU",
            by=f"{_KAFKA}:compare_consumers", record_bytes=100),
    _figure("kafka_produce_r3_1kb", "times", ">= 1.5",
            by=f"{_KAFKA}:compare_replicated_producers", record_bytes=1000),
    _figure("kafka_latency_10k", "times", *[">= 1.2"] * 4,
            goal=">= 1.2, p50 and p99, linger 0 and 5 ms", by=f"{_KAFKA}:compare_latencies"),
    _figure("kafka_to_arrow", "times", ">= 2", by=f"{_KAFKA}:compare_arrow", record_bytes=100),
    _figure("kafka_suites", "share", ">= 1.0", ">= 250", goal="1.0"),
    _figure("spark_kills", "kills", ">= 50", "<= 0"),
    _figure("spark_exactly_once_kills", "kills", ">= 100", "<= 0"),
    _figure("cluster_ready", "s", "<= 30"),
    _figure("topic_ready", "s", "<= 2", by=_TOPICS),
    _figure("topics_500", "s", "<= 60", by=_TOPICS),
    _figure("rolling_restart", "failed writes", "<= 0", "<= 1", goal="0"),
    _figure("pod_kill", "s", "<= 1.5", "<= 0"),
    _figure("apiserver_outage", "failed writes", "<= 0", ">= 1", goal="0", seconds=60),
    _figure("rotation", "failed writes", "<= 0", "<= 0", ">= 18", seconds=120,
            goal="0, and 0 restarts, while each broker takes 18 of 20 changes"),
    _figure("operator_idle", "writes/s", "<= 0.1", "<= 150", seconds=60),
    _figure("bad_resources", "share", ">= 1.0", ">= 60", "<= 0", goal="1.0"),
    _figure("e2e_faults", "faults on a real Kubernetes", ">= 50", "<= 0", "<= 0"),
    _figure("spark_k8s_start", "s", "<= 40"),
    _figure("spark_k8s_kills", "kills", ">= 30", by="spark_k8s_kills:measure_kills"),
    _figure("spark_k8s_exactly_once", "kills", ">= 14",
            by="spark_k8s_kills:measure_exactly_once"),
    _figure("spark_k8s_recovery", "s", "<= 60", "<= 0", by="spark_k8s_kills:measure_recovery"),
)
# fmt: on
"""All figures, in the order in which `make figures` measures and lists them."""


def main() -> None:
    """Measure the figures that the command line names, and those of the same measurements."""
    names = list(takewhile(lambda argument: not argument.startswith("-"), sys.argv[1:]))
    measure_each(names, sys.argv[1 + len(names) :])


def measure_each(
    names: Sequence[str], options: Sequence[str], table: Sequence[Figure] = FIGURES
) -> None:
    """Measure figures one after another; print each, and those of the same measurement, once.

    Args:
        names: of the figures; a single one has the last line.
        options: of the command line, the same for each measurement.
        table: all figures that there are.

    Raises:
        SystemExit: a name is unknown, or some figure could not be measured. The others were.
    """
    by_name = {figure.name: figure for figure in table}
    if not names or not by_name.keys() >= set(names):
        known = "\n".join(f"  {name}" for name in by_name)
        print(f"Which figure? make figure NAME=x, where x is of these:\n{known}", file=sys.stderr)
        raise SystemExit(2)
    left = dict.fromkeys(names)
    are_missing = False
    while left:
        wanted = by_name[next(iter(left))]
        together = [
            figure
            for figure in table
            if (figure.by, figure.settings) == (wanted.by, wanted.settings)
        ]
        for figure in together:
            left.pop(figure.name, None)
        try:
            figures(
                together,
                wanted=wanted.name,
                measure=wanted.measure(),
                seconds=wanted.seconds,
                options=options,
            )
        except SystemExit as ended:
            if ended.code != NOT_MEASURED:
                raise
            are_missing = True
    if are_missing:
        raise SystemExit(NOT_MEASURED)


if __name__ == "__main__":
    main()
