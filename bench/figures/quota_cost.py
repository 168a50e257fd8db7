"""The share of the throughput of `produce_1kb` that quotas cost which no client exceeds.

One producer sends as fast as it can to one broker. Meanwhile quotas are set and deleted again, in
turn, of each kind that counts for it: for its client id, its topic and the topic's namespace, of
bytes and of request time. So both sides are slices of the same run, a quarter of a second each
(`bench/slices.py`).
"""

import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.directories import run_directory
from bench.measure import Bench, Outcome, say
from bench.metrics_page import appended_bytes
from bench.millrace_broker import Millrace, running_millrace
from bench.processes import until
from bench.records import write_random_records
from bench.sides import fresh_topic
from bench.slices import MEMORY, TOPIC_CONFIG, Sides, measured, producing

from millrace.client import SyncAdmin

RECORD_BYTES = 1000
PARTITIONS = 4
SLICE_S = 0.25
WARM_UP_S = 2.0
START_TIMEOUT_S = 30
SWITCH_S = 0.2
"""How long all quotas may take to be set or deleted."""
_BYTES = {"produce_bytes_per_second": 1 << 40, "fetch_bytes_per_second": 1 << 40}
QUOTAS: dict[str, dict[str, Any]] = {
    "client": {"client_id": "", "request_percent": 10_000, **_BYTES},
    "topic": {"topic": "", **_BYTES},
    "namespace": {"namespace": "", **_BYTES},
}
"""For each client, topic and namespace, the largest that there can be."""


def measure(bench: Bench) -> Outcome:
    """Let a producer run once a round, and compare its slices with and without quotas."""
    records = write_random_records(bench.directory / "records", RECORD_BYTES)
    rounds: list[Sides] = []
    with (
        run_directory(MEMORY if MEMORY.is_dir() else bench.directory) as directory,
        running_millrace(directory / "millrace") as broker,
    ):
        for number in range(bench.rounds):
            rounds.append(_round(broker, records, bench.seconds))
            say(f"round {number + 1}/{bench.rounds} {rounds[-1].lost():.4f} lost")
    both = Sides.together(rounds)
    return Outcome(
        values={"share of the throughput that quotas cost": both.lost()},
        detail={
            "rounds": [each.lost() for each in rounds],
            "pairs": len(both.off),
            "mb_per_second": median(each.rate for each in both.off) / 1e6,
            "broker_cpu_lost": both.cpu_lost(),
        },
    )


def _round(broker: Millrace, records: Path, seconds: float) -> Sides:
    """Measure for so many seconds with quotas, and for as many without."""
    pairs = max(1, round(seconds / SLICE_S))
    sides = Sides()
    with (
        SyncAdmin(broker.address) as admin,
        fresh_topic(broker, PARTITIONS, TOPIC_CONFIG) as topic,
        producing(broker, topic, PARTITIONS, records, WARM_UP_S + 2 * pairs * (SLICE_S + SWITCH_S)),
    ):
        until(lambda: _bytes(broker, topic) or None, "the first record", START_TIMEOUT_S)
        time.sleep(WARM_UP_S)
        sides.add_pairs(
            pairs,
            partial(_switch, admin),
            lambda: measured(lambda: _bytes(broker, topic), broker.pids, SLICE_S),
        )
    return sides


def _bytes(broker: Millrace, topic: str) -> float:
    return appended_bytes(broker.metrics_addresses, topic)


def _switch(admin: SyncAdmin, has_quotas: bool) -> None:
    """Have all quotas, or none."""
    if has_quotas:
        for name, quota in QUOTAS.items():
            admin.set_quota(name, **quota)
    else:
        for name in admin.describe_quotas():
            admin.delete_quota(name)
