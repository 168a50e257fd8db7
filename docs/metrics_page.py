"""The page about metrics, from the registries of broker, operator and Spark's pages."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dashboards.alerts import ALERTS, Alert
from prometheus_client import CollectorRegistry

from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.operator.telemetry import OperatorMetrics
from millrace.spark.query_metrics import query_metrics, report_failures

_METRICS: Final = """\
# Metrics

This page is generated from the code by `make docs`.

Each broker serves its metrics for Prometheus at `/metrics` of the address that it prints when it is
ready (`[metrics]` in its configuration). The names of counters end in `_total`. Labels are bounded:
topics by `metrics.topics_max`, followers by the number of brokers, errors by the number of codes,
groups by `groups.lag_series_max`. The page also has the `process_*` metrics of
Prometheus's Python client: CPU time, memory and open files.

[watching.md](watching.md) says how Prometheus finds the pages, and has Grafana's dashboards.

## Brokers

"""
_OPERATOR: Final = """
## The operator

The operator serves its metrics at `/metrics` of port 7095. Only the one that acts does work.

"""
_SPARK: Final = """
## Spark

The driver of a Spark job serves the metrics of its streaming queries at `/metrics` of port 8099:
[spark.md](spark.md) says how to switch that on.

"""
_ALERTS: Final = """
## Alerts

`dashboards/rules/millrace.yaml` has these alerts. A `page` wakes somebody: records are lost,
refused or out of reach, or will be within hours. A `ticket` waits for working hours. All names
begin with `Millrace`. Each alert has a runbook.

| alert | severity | when it lasts | runbook |
|---|---|---|---|
"""
_HEAD: Final = """\
| name | kind | labels | meaning |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Family:
    """A metric.

    Attributes:
        name: in queries; histograms have it with `_bucket`, `_sum` and `_count`.
        kind: counter, gauge or histogram.
        labels: their names.
        meaning: one or more sentences.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


def metrics() -> str:
    """Return the page; the metrics of the processes themselves are Prometheus's own."""
    sections = (
        (_METRICS, broker_families()),
        (_OPERATOR, operator_families()),
        (_SPARK, spark_families()),
    )
    tables = [introduction + _table(families) for introduction, families in sections]
    return "".join([*tables, _ALERTS, *map(_row, ALERTS)])


def _row(alert: Alert) -> str:
    page = f"[{alert.runbook}](runbooks/{alert.runbook}.md)"
    return f"| `{alert.name}` | {alert.severity} | {alert.hold} | {page} |\n"


def broker_families() -> list[Family]:
    """Return what a broker shows."""
    return _registered(BrokerMetrics().registry)


def operator_families() -> list[Family]:
    """Return what the operator shows."""
    return _registered(OperatorMetrics().registry)


def spark_families() -> list[Family]:
    """Return what the driver of a Spark job shows."""
    return [_family(each, each) for each in (*query_metrics([], 0.0), report_failures(0))]


def _table(families: Iterable[Family]) -> str:
    rows = [
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{name}`' for name in each.labels)} "
        f"| {each.meaning} |\n"
        for each in families
        if each.name.startswith("millrace_")
    ]
    return _HEAD + "".join(rows)


def _registered(registry: CollectorRegistry) -> list[Family]:
    # The library shows the labels of a metric without samples to nobody, so this looks inside.
    collectors: Iterable[Any] = registry._collector_to_names
    return [
        _family(family, collector if hasattr(collector, "_labelnames") else family)
        for collector in collectors
        for family in collector.collect()
    ]


def _family(family: Any, labelled: Any) -> Family:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = tuple(getattr(labelled, "_labelnames", ()))
    return Family(name, family.type, labels, family.documentation)
