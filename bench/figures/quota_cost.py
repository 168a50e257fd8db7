"""The share of the throughput of `produce_1kb` that quotas cost which no client exceeds.

One producer sends as fast as it can to one broker. Meanwhile quotas are set and deleted again, in
turn, of each kind that counts for it: for its client id, its topic and the topic's namespace, of
bytes and of request time. So both sides are slices of the same run, a quarter of a second each
(`bench/slices.py`).
"""

from typing import Any

from bench.measure import Bench, Outcome, say
from bench.metrics_page import appended_bytes
from bench.slices import Sides, broker_in_memory, cost

from millrace.client import SyncAdmin

SLICE_S = 0.25
_BYTES = {"produce_bytes_per_second": 1 << 40, "fetch_bytes_per_second": 1 << 40}
QUOTAS: dict[str, dict[str, Any]] = {
    "client": {"client_id": "", "request_percent": 10_000, **_BYTES},
    "topic": {"topic": "", **_BYTES},
    "namespace": {"namespace": "", **_BYTES},
}
"""For each client, topic and namespace, the largest that there can be."""


def measure(bench: Bench) -> Outcome:
    """Let a producer run once a round, and compare its slices with and without quotas."""
    rounds: list[Sides] = []
    with broker_in_memory(bench) as (broker, records):

        def appended(_: SyncAdmin, topic: str) -> float:
            return appended_bytes(broker.metrics_addresses, topic) / 1e6

        for number in range(bench.rounds):
            rounds.append(
                Sides.of(broker, records, bench.seconds, SLICE_S, appended=appended, switch=_switch)
            )
            say(f"round {number + 1}/{bench.rounds} {rounds[-1].lost():.4f} lost")
    return cost("quotas cost", rounds, "mb_per_second")


def _switch(admin: SyncAdmin, has_quotas: bool) -> None:
    """Have all quotas, or none."""
    if has_quotas:
        for name, quota in QUOTAS.items():
            admin.set_quota(name, **quota)
    else:
        for name in admin.describe_quotas():
            admin.delete_quota(name)
