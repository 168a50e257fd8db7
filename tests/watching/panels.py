"""The dashboards' files as Grafana uses them: their variables resolved, their queries run."""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from typing import Any

from dashboards.generate import FOLDER
from tests.watching.prometheus import Prometheus

RATE_INTERVAL = "5s"
"""What Grafana takes for `$__rate_interval` is four scrapes; one more makes up for a late one."""
SHOWN_SECONDS = 30
_LABEL_VALUES = re.compile(r"label_values\((?P<selector>.+), (?P<label>\w+)\)")


@dataclass(frozen=True)
class PanelQuery:
    """A query of a panel, with its variables resolved.

    Attributes:
        panel_id: unique in its board.
        legend: what its series are called, with `{{label}}`; empty: that of a table.
    """

    board: str
    panel: str
    panel_id: int
    expr: str
    legend: str
    is_instant: bool

    def __str__(self) -> str:
        return f"{self.board}: {self.panel}: {self.expr}"


def dashboards() -> list[dict[str, Any]]:
    """Return all dashboards as they are checked in."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.json"))]


def panel_queries(prometheus: Prometheus) -> Iterator[PanelQuery]:
    """Yield all queries of all panels."""
    for board in dashboards():
        yield from board_queries(board, prometheus)


def board_queries(
    board: dict[str, Any], prometheus: Prometheus, shown_seconds: int = SHOWN_SECONDS
) -> Iterator[PanelQuery]:
    """Yield all queries of a dashboard that shows so much time."""
    chosen = {"__rate_interval": RATE_INTERVAL, "__range": f"{shown_seconds}s"}
    chosen |= resolved_variables(board, prometheus)
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield PanelQuery(
                board=board["title"],
                panel=panel["title"],
                panel_id=panel["id"],
                expr=_replaced(target["expr"], chosen),
                legend=target.get("legendFormat", ""),
                is_instant=target["instant"],
            )


def resolved_variables(board: dict[str, Any], prometheus: Prometheus) -> dict[str, str]:
    """Return each variable's value where "All" is chosen; an empty one has no choices."""
    chosen: dict[str, str] = {}
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        found = _LABEL_VALUES.fullmatch(_replaced(variable["query"], chosen))
        assert found is not None, variable["query"]
        values = prometheus.ask(f"label/{found['label']}/values", **{"match[]": found["selector"]})
        # In a text of PromQL a backslash is written as two.
        every = "|".join(re.escape(value).replace("\\", "\\\\") for value in values)
        chosen[variable["name"]] = variable.get("allValue") or (f"({every})" if every else "")
    return chosen


def without_data(prometheus: Prometheus, since: float) -> list[PanelQuery]:
    """Return the queries that show nothing from a time on.

    Args:
        prometheus: runs them.
        since: seconds of the wall clock.
    """
    return [
        panel_query
        for panel_query in panel_queries(prometheus)
        if not _has_data(prometheus, panel_query, since)
    ]


def _has_data(prometheus: Prometheus, query: PanelQuery, since: float) -> bool:
    if query.is_instant:
        return any(not isnan(value) for value in prometheus.values(query.expr))
    now = time.time()
    start = max(since, now - SHOWN_SECONDS)
    found = prometheus.ask("query_range", query=query.expr, start=start, end=now, step=1)
    return any(
        not isnan(float(value)) for series in found["result"] for _, value in series["values"]
    )


def _replaced(text: str, chosen: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda name: chosen[name[1]], text)
