"""The page about metrics, from the registries of broker, operator, Spark's pages and clients."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from dashboards.alerts import ALERTS, RECORDS, Alert
from prometheus_client import CollectorRegistry

from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.client.metrics import ClientCollector
from millrace.operator.telemetry import OperatorMetrics
from millrace.spark.watching.query_metrics import query_metrics, report_failures

_METRICS: Final = """\
# Metrics

This page is generated from the code by `make docs`.

Each broker serves its metrics for Prometheus at `/metrics` of the address that it prints when it is
ready (`[metrics]` in its configuration). The names of counters end in `_total`. Labels are bounded:
topics by `metrics.topics_max`, followers by the number of brokers, errors and methods by how many
there are, groups by `groups.lag_series_max`. The page also has the `process_*` metrics of
Prometheus's Python client: CPU time, memory and open files.

All pages answer in OpenMetrics where Prometheus asks for it, and in its older text format else.
Brokers do not read the traces of their clients. So only the histogram
`millrace_producer_delivery_seconds` of clients with `tracing=True` has exemplars: the `trace_id` of
a `send()`, or of a `send_batch()`, that took so long. Prometheus keeps them with
`--enable-feature=exemplar-storage`.

The column "when to worry" names the alerts that look at a metric.

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
_CLIENTS: Final = """
## Clients

Producers, consumers and administration clients of the Python library count what they do, and a
program shows it on a page of its own: [watching.md](watching.md#programs-that-use-the-client) has
an example. `client_id` is the setting of the client; clients that share it are summed up. Topics
are bounded by `topics_max` of `ClientCollector`, 100 by default; all others are `(others)`.

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
| name | kind | labels | meaning | when to worry |
|---|---|---|---|---|
"""
_WORRY: Final = " Worry "
"""Begins the sentence in the text of a metric that says when to worry."""


@dataclass(frozen=True)
class Family:
    """A metric.

    Attributes:
        name: in queries; histograms have it with `_bucket`, `_sum` and `_count`.
        kind: counter, gauge or histogram.
        labels: their names.
        meaning: one or more sentences.
        worry: when to worry; empty: nothing is said.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str
    worry: str = ""


def metrics() -> str:
    """Return the page; the metrics of the processes themselves are Prometheus's own."""
    sections = (
        (_METRICS, broker_families()),
        (_OPERATOR, operator_families()),
        (_SPARK, spark_families()),
        (_CLIENTS, client_families()),
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
    return [_family(metric, metric) for metric in (*query_metrics([], 0.0), report_failures(0))]


def client_families() -> list[Family]:
    """Return what a program shows of its clients."""
    return [_family(metric, metric) for metric in ClientCollector().describe()]


def _table(families: Iterable[Family]) -> str:
    rows = [
        f"| `{family.name}` | {family.kind} | {', '.join(f'`{name}`' for name in family.labels)} "
        f"| {family.meaning} | {family.worry or _watched(family.name)} |\n"
        for family in families
        if family.name.startswith("millrace_")
    ]
    return _HEAD + "".join(rows)


def _watched(name: str) -> str:
    """Return the alerts that ask for a metric."""
    recorded = {record.name: record.expr for record in RECORDS}
    found = []
    for alert in ALERTS:
        asked = " ".join([alert.expr, *(recorded[name] for name in recorded if name in alert.expr)])
        if re.search(rf"\b{name}(?:_bucket|_sum|_count)?\b", asked):
            found.append(f"[`{alert.name}`](runbooks/{alert.runbook}.md)")
    return ", ".join(found)


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
    meaning, _, worry = family.documentation.partition(_WORRY)
    return Family(name, family.type, labels, meaning, worry.removesuffix("."))
