"""Metrics of the lags of groups: the sums of one round at a time, as the last round found them.

A lag that is not known has no sample: 0 would say that the group has read everything.

Labels are bounded by `groups.lag_series_max`.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millrace.core.coordinator.groups.lags import GroupLag

_LABELS = ("group", "topic")


class GroupLagMetrics(Collector):
    """The sums of the last round. The event loop stores them, and the threads of the metrics page
    read them.

    Attributes:
        kept: returns those of some groups that this broker coordinates now: a round may last for
            minutes, and another coordinator shows the group meanwhile. Called from any thread.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.kept: Callable[[Iterable[str]], Container[str]] = frozenset
        self._shown: tuple[Sequence[GroupLag], int] = ((), 0)
        registry.register(self)

    def show(self, lags: Sequence[GroupLag], left_out: int) -> None:
        """Show a round instead of the one before.

        Args:
            lags: of the groups that were measured.
            left_out: how many groups were not.
        """
        self._shown = lags, left_out

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics."""
        found, left_out = self._shown
        kept = self.kept(dict.fromkeys(row.group for row in found))
        lags = [row for row in found if row.group in kept]
        yield _family(
            "millrace_group_lag_records",
            "Records that a group, Spark query or other reader has not read, by topic, as far as "
            "no transaction is open; all of a partition in which it has stored no position. Each "
            "group is shown by its coordinator. Absent as long as the lag in a partition is "
            "unknown; so are the next three.",
            [(row, row.lag.records) for row in lags],
        )
        yield _family(
            "millrace_group_lag_records_max",
            "Those of them in the partition with the most.",
            [(row, row.lag.records_max) for row in lags],
        )
        yield _family(
            "millrace_group_lag_bytes",
            "Stored bytes of the batches that hold the unread records.",
            [(row, row.lag.bytes) for row in lags],
        )
        yield _family(
            "millrace_group_lag_seconds_max",
            "Age of the oldest unread record, by the timestamp of its batch; 0: all is read. "
            "Absent also where a batch has no timestamp.",
            [
                (row, None if row.lag.milliseconds is None else row.lag.milliseconds / 1000)
                for row in lags
            ],
        )
        yield _family(
            "millrace_group_lag_unknown_partitions",
            "Partitions in which the lag of a group is unknown: its position is beyond the end of "
            "the log, or the leader does not answer.",
            [(row, row.lag.unknown) for row in lags],
        )
        yield GaugeMetricFamily(
            "millrace_group_lag_left_out_groups",
            "Groups whose lags are not measured, as groups.lag_series_max leaves no room. Should "
            "be 0.",
            value=left_out,
        )


def _family(name: str, meaning: str, values: list[tuple[GroupLag, float | None]]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=_LABELS)
    for row, value in values:
        if value is not None:
            family.add_metric((row.group, row.topic), value)
    return family
