"""Dashboards as values: what they show, without Grafana's own words for it.

A query is written in plain PromQL. Each metric in it gets the matchers of the dashboard's variables
(`scoped`), so no query can forget them. `grafana.py` makes Grafana's JSON of a board.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

RUNBOOKS: Final = "docs/runbooks"
"""Where the runbooks are, from the root of the repository."""

_METRIC: Final = re.compile(r"\b(?:millrace_(?!cluster\b)|process_)[a-z0-9_]+\b(\{)?")


class Kind(StrEnum):
    """How a panel looks."""

    GRAPH = "graph"
    STACKED = "stacked graph"
    NUMBER = "number"
    TABLE = "table"


class Unit(StrEnum):
    """Units by Grafana's names."""

    NONE = "none"
    COUNT = "short"
    BYTES = "bytes"
    BYTES_PER_SECOND = "binBps"
    SECONDS = "s"
    PER_SECOND = "cps"
    SHARE = "percentunit"


GOOD: Final = "green"
WATCH: Final = "orange"
BAD: Final = "red"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        title: what it shows.
        description: what that means, and when to worry.
        queries: PromQL, which `scoped` completes, by the legend of its series, with `{{label}}`. A
            table has one.
        unit: of all values.
        kind: how it looks.
        steps: from which value on it has which colour; the first value counts from minus infinity.
        runbook: name of the page in `RUNBOOKS`; None: there is none.
    """

    title: str
    description: str
    queries: Mapping[str, str]
    unit: Unit = Unit.COUNT
    kind: Kind = Kind.GRAPH
    steps: Sequence[tuple[float, str]] = ()
    runbook: str | None = None


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a board.

    Attributes:
        name: in queries, as `$name`.
        label: for people.
        metric: it has the label.
        target_label: of the values to choose from.
        may_be_missing: whether series may lack the label; then "all" includes those.
    """

    name: str
    label: str
    metric: str
    target_label: str
    may_be_missing: bool = False


@dataclass(frozen=True, kw_only=True)
class Board:
    """One dashboard.

    Attributes:
        uid: stable, in its address; with `.json` the name of its file.
        title: without "Millrace".
        description: one sentence.
        variables: in their order; all queries and the choices of later ones obey them.
        rows: panels under headings.
        optional: variables that only those queries obey that name them.
    """

    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    rows: Mapping[str, Sequence[Panel]]
    optional: Sequence[Variable] = field(default=())

    def panels(self) -> Iterator[Panel]:
        """Yield all panels."""
        for row in self.rows.values():
            yield from row

    def expr(self, query: str) -> str:
        """Return the PromQL of a query, with Grafana's variables."""
        return scoped(query, self.variables)

    def choices(self, variable: Variable) -> str:
        """Return Grafana's query for the choices of a variable."""
        known = list(self.variables)
        earlier = known[: known.index(variable)] if variable in known else known
        return f"label_values({scoped(variable.metric, earlier)}, {variable.target_label})"


def scoped(expr: str, variables: Sequence[Variable]) -> str:
    """Give each metric of an expression the matchers of the variables."""
    matchers = ",".join(f'{variable.target_label}=~"${variable.name}"' for variable in variables)
    if not matchers:
        return expr

    def completed(found: re.Match[str]) -> str:
        return f"{found[0]}{matchers}," if found[1] else f"{found[0]}{{{matchers}}}"

    return _METRIC.sub(completed, expr)


NAMESPACE: Final = Variable(
    "namespace", "Namespace", "millrace_build_info", "namespace", may_be_missing=True
)
CLUSTER: Final = Variable(
    "cluster", "Cluster", "millrace_build_info", "millrace_cluster", may_be_missing=True
)
BROKER: Final = Variable("broker", "Broker", "millrace_build_info", "instance")
BROKERS: Final = (NAMESPACE, CLUSTER, BROKER)
"""The variables of every board about brokers."""

TOPIC: Final = Variable("topic", "Topic", "millrace_topic_log_bytes", "topic")
GROUP: Final = Variable("group", "Group", "millrace_group_lag_unknown_partitions", "group")
QUOTA: Final = Variable("quota", "Quota", "millrace_quota_throttled_seconds_total", "quota")
OPERATOR: Final = Variable("operator", "Operator", "millrace_operator_acts", "instance")
SPARK_NAMESPACE: Final = Variable(
    "namespace", "Namespace", "millrace_spark_active", "namespace", may_be_missing=True
)
SPARK_QUERY: Final = Variable("query", "Query", "millrace_spark_active", "query")

ANY_IS_BAD: Final = ((0, GOOD), (1, BAD))
ANY_IS_TO_WATCH: Final = ((0, GOOD), (1, WATCH))


def p99(histogram: str, *labels: str) -> str:
    """Return the query for the 99th percentile of a histogram, by labels."""
    by = ", ".join(("le", *labels))
    return f"histogram_quantile(0.99, sum by ({by}) (rate({histogram}_bucket[$__rate_interval])))"
