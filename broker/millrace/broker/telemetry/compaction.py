"""Metrics of the cleaner threads, which compact logs.

Labels are bounded: errors by the number of codes.
"""

from collections import Counter as Count
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from millrace.core.errors import MillraceError


class CompactionMetrics:
    """Counters and gauges by their Prometheus names.

    Args:
        registry: that they join.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, meaning: str) -> Counter:
            return Counter(f"millrace_cleaner_{name}", meaning, registry=registry)

        self.read_bytes = counter("read_bytes", "Bytes of segments that cleanings read.")
        self.written_bytes = counter("written_bytes", "Bytes of segments that they wrote.")
        self.removed_records = counter("removed_records", "Records that they removed.")
        self.cleanings = counter("cleanings", "Logs that were cleaned as far as possible.")
        self.seconds = counter("seconds", "Time that cleanings took, without pauses.")
        self.dirtiest_ratio = Gauge(
            "millrace_cleaner_dirtiest_ratio",
            "The largest dirty part of a compacted log, of what may be cleaned, 0 to 1.",
            registry=registry,
        )
        self._uncleanable = Gauge(
            "millrace_cleaner_uncleanable_partitions",
            "Replicas whose last cleaning was refused, by error. The log names them.",
            ["error"],
            registry=registry,
        )

    def on_uncleanable(self, errors: Iterable[MillraceError]) -> None:
        """Show the replicas that could not be cleaned."""
        self._uncleanable.clear()
        for name, count in Count(type(error).name() for error in errors).items():
            self._uncleanable.labels(name).set(count)
