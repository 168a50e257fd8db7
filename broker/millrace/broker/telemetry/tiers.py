"""Metrics of the segments of tiered topics, and of their moves between SSDs and HDDs.

Labels are bounded: HDDs, errors by the number of codes, and the two ways, `to` and `from` an HDD.
"""

from collections import Counter as Count
from collections.abc import Iterable
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge

from millrace.core.errors import MillraceError


class TieredReplica(Protocol):
    """What is shown of a replica with segments on an HDD."""

    @property
    def log(self) -> "TieredLog":
        """Its log."""

    @property
    def unmovable(self) -> MillraceError | None:
        """Why its last move was refused."""


class TieredLog(Protocol):
    """Likewise, of its log."""

    @property
    def tier_bytes(self) -> int:
        """Bytes of its segments on the HDD."""


class TierMetrics:
    """Counters and gauges by their Prometheus names.

    Args:
        registry: that they join.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.moved_bytes = Counter(
            "millrace_tier_moved_bytes",
            "Bytes of segments that were copied or verified, `to` an HDD and `from` one.",
            ["way"],
            registry=registry,
        )
        self.moved_segments = Counter(
            "millrace_tier_moved_segments",
            "Segments that have moved `to` an HDD, or back `from` one.",
            ["way"],
            registry=registry,
        )
        self._bytes = Gauge(
            "millrace_tier_bytes",
            "Bytes of segments of tiered logs, by the log directory on an HDD.",
            ["log_dir"],
            registry=registry,
        )
        self._refused = Gauge(
            "millrace_tier_refused_partitions",
            "Replicas whose last move to an HDD, or back, was refused, by HDD and error.",
            ["log_dir", "error"],
            registry=registry,
        )
        self._errors: dict[str, set[str]] = {}

    def on_logs(self, log_dir: str, replicas: Iterable[TieredReplica]) -> None:
        """Show the replicas that have segments on an HDD, or get some there."""
        here = list(replicas)
        self._bytes.labels(log_dir).set(sum(replica.log.tier_bytes for replica in here))
        errors = Count(
            type(replica.unmovable).name() for replica in here if replica.unmovable is not None
        )
        for name in self._errors.get(log_dir, set()) - errors.keys():
            self._refused.remove(log_dir, name)
        for name, count in errors.items():
            self._refused.labels(log_dir, name).set(count)
        self._errors[log_dir] = set(errors)
