"""Metrics that the event loop counts with each request: an addition or two, without locks.

The library's own counters and histograms are for any thread. They take up to six calls and two
locks for each number, which is a tenth of the broker's calls for a small request. Here one thread
counts. A page that another thread writes meanwhile may lack the number that is being counted.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Durations:
    """How long something took, each time; made by `LoopHistogram.labels`."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """In each bucket alone; the last one has no bound."""
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class LoopHistogram(Collector):
    """A histogram with one label.

    Args:
        name: in queries, without `_bucket`, `_sum` and `_count`.
        meaning: in sentences.
        label: its name.
        bounds: of the buckets, ascending.
        registry: that it joins.
    """

    def __init__(
        self,
        name: str,
        meaning: str,
        label: str,
        bounds: Sequence[float],
        registry: CollectorRegistry,
    ) -> None:
        self._name = name
        self._meaning = meaning
        self._labelnames = (label,)
        self._bounds = bounds
        self._series: dict[str, Durations] = {}
        registry.register(self)

    def labels(self, value: str) -> Durations:
        """Return the series of a value."""
        return self._series.setdefault(value, Durations(self._bounds))

    def collect(self) -> Iterable[Metric]:
        """Implement `Collector`."""
        family = HistogramMetricFamily(self._name, self._meaning, labels=self._labelnames)
        for value, durations in self._series.items():
            buckets: list[tuple[str, float]] = []
            count = 0
            for bound, found in zip((*self._bounds, inf), durations.counts, strict=True):
                count += found
                text: str = floatToGoString(bound)  # type: ignore[no-untyped-call]
                buckets.append((text, float(count)))
            family.add_metric([value], buckets, durations.total)
        return [family]


@dataclass(slots=True)
class TopicTraffic:
    """What this broker has taken and sent of a topic."""

    appended_bytes: int = 0
    appended_records: int = 0
    fetched_bytes: int = 0


_TRAFFIC: Final[tuple[tuple[str, str, Callable[[TopicTraffic], int]], ...]] = (
    (
        "millrace_topic_appended_bytes",
        "Bytes of batches appended, by topic.",
        lambda traffic: traffic.appended_bytes,
    ),
    (
        "millrace_topic_appended_records",
        "Records appended, by topic.",
        lambda traffic: traffic.appended_records,
    ),
    (
        "millrace_topic_fetched_bytes",
        "Bytes of batches sent to readers and followers, by topic.",
        lambda traffic: traffic.fetched_bytes,
    ),
)


class TrafficCounters(Collector):
    """The traffic of all topics, by the value of their label."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._labelnames = ("topic",)
        self._by_label: dict[str, TopicTraffic] = {}
        registry.register(self)

    def labels(self, value: str) -> TopicTraffic:
        """Return the series of a value."""
        return self._by_label.setdefault(value, TopicTraffic())

    def remove(self, value: str) -> None:
        """Show a value no longer."""
        self._by_label.pop(value, None)

    def collect(self) -> Iterable[Metric]:
        """Implement `Collector`."""
        series = list(self._by_label.items())
        for name, meaning, number_of in _TRAFFIC:
            family = CounterMetricFamily(name, meaning, labels=self._labelnames)
            for value, traffic in series:
                family.add_metric([value], number_of(traffic))
            yield family
