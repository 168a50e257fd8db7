"""Judges of PromQL: which metrics and labels of an expression do not exist."""

import re
from collections.abc import Iterator

from docs.metrics_page import (
    Family,
    broker_families,
    client_families,
    operator_families,
    spark_families,
)

FAMILIES: dict[str, Family] = {
    broker_family.name: broker_family
    for broker_family in (
        *broker_families(),
        *client_families(),
        *operator_families(),
        *spark_families(),
    )
}
TARGET_LABELS = {"namespace", "millrace_cluster", "instance", "job"}
"""Labels that Prometheus gives to what it scrapes."""

METRIC = re.compile(r"\b(?:millrace_(?!cluster\b)|process_)[a-z0-9_]+")
SUFFIX = re.compile(r"_(?:bucket|sum|count)$")
MATCHERS = re.compile(r"\{([^}]*)\}")
MATCHED = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPED = re.compile(r"\b(?:by|on|without|ignoring|group_left)\s*\(([^)]*)\)")
LEGEND = re.compile(r"\{\{(\w+)\}\}")


def family_of(metric: str) -> Family | None:
    """Return the family of a metric's series; of a histogram only they can be asked for."""
    family = FAMILIES.get(metric)
    if family is not None:
        return None if family.kind == "histogram" else family
    family = FAMILIES.get(SUFFIX.sub("", metric))
    return family if family is not None and family.kind == "histogram" else None


def problems(expr: str, legend: str = "") -> Iterator[str]:
    """Yield the metrics and labels of a query that do not exist."""
    labels = set(TARGET_LABELS)
    for metric in METRIC.findall(expr):
        family = family_of(metric)
        if family is None:
            yield f"no metric {metric}"
            continue
        labels |= {*family.labels} | ({"le"} if family.kind == "histogram" else set())
    used = {name for part in MATCHERS.findall(expr) for name in MATCHED.findall(part)}
    for part in GROUPED.findall(expr):
        used |= {name.strip() for name in part.split(",")}
    for label in sorted((used | {*LEGEND.findall(legend)}) - labels):
        yield f"no label {label}"
