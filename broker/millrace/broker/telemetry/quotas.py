"""Metrics of quotas: who is delayed, and by how much.

Labels are bounded: quotas by their number, and of clients only the most delayed are named.
"""

import heapq
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from millrace.core.quotas.meters import BucketState
from millrace.core.quotas.quota import Bucket

NAMED_MAX: Final = 20
"""Clients and topics that are named at a time."""


class QuotaMetrics:
    """The metrics of quotas and of the clients that they delay most."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._throttled_seconds = Counter(
            "millrace_quota_throttled_seconds",
            "Time for which clients or topics were delayed, each counted by itself, by quota and "
            "by kind of limit.",
            ["quota", "kind"],
            registry=registry,
        )
        self._delay_seconds = Gauge(
            "millrace_quota_delay_seconds",
            f"Present delay, of the {NAMED_MAX} clients or topics that are delayed most.",
            ["quota", "kind", "principal", "client_id", "topic", "topic_namespace"],
            registry=registry,
        )
        self._buckets = Gauge(
            "millrace_quota_buckets",
            "Clients and topics whose use is counted for quotas. Should stay below "
            "quotas.buckets_max.",
            registry=registry,
        )
        self._seen: dict[Bucket, int] = {}
        self._quotas: dict[tuple[str, str], Counter] = {}

    def on_states(self, states: Sequence[BucketState]) -> None:
        """Take up the state of all buckets, from time to time."""
        self._buckets.set(len(states))
        seen = {state.bucket: state.throttled_ms for state in states}
        for bucket, throttled_ms in seen.items():
            # One that was forgotten meanwhile begins at 0 again.
            grown = throttled_ms - min(self._seen.get(bucket, 0), throttled_ms)
            if grown:
                self._quota(bucket).inc(grown / 1000)
        self._seen = seen
        for quota, kind in self._quotas.keys() - {(b.quota, b.kind.value) for b in seen}:
            del self._quotas[quota, kind]
            self._throttled_seconds.remove(quota, kind)
        self._delay_seconds.clear()
        delayed = (state for state in states if state.delay_ms)
        for state in heapq.nlargest(NAMED_MAX, delayed, key=lambda state: state.delay_ms):
            self._delay_seconds.labels(*state.bucket).set(state.delay_ms / 1000)

    def _quota(self, bucket: Bucket) -> Counter:
        key = bucket.quota, bucket.kind.value
        counter = self._quotas.get(key)
        if counter is None:
            counter = self._quotas[key] = self._throttled_seconds.labels(*key)
        return counter
