"""The table of `docs/security.md` that comes from the code: what each call demands."""

import re
from typing import Final

from millrace.broker.guard.demands import Clause, Demands
from millrace.broker.rpc import (
    cluster,
    fetch,
    groups,
    positions,
    produce,
    shared_transactions,
    transactions,
)
from millrace.broker.rpc.resources import TopicResources
from millrace.core.guard.access import ResourceKind

_NO_TOPICS: Final = TopicResources(lambda: None)
_SERVICES: Final = {
    "Cluster": cluster.demands(_NO_TOPICS),
    "Produce": produce.DEMANDS,
    "Fetch": fetch.DEMANDS,
    "Positions": positions.DEMANDS,
    "Groups": groups.DEMANDS,
    "Transactions": transactions.demands(_NO_TOPICS),
    "SharedTransactions": shared_transactions.DEMANDS,
}
"""What the calls of the listeners for clients demand, by service and method."""
_TABLE: Final = re.compile(
    r"(<!-- calls: made by make docs -->\n).*?(<!-- end of calls -->\n)", re.DOTALL
)
_ONE: Final = {
    ResourceKind.TOPICS: "topic",
    ResourceKind.GROUPS: "group",
    ResourceKind.TRANSACTIONS: "transaction",
    ResourceKind.CLUSTER: "cluster",
}


def declared() -> dict[str, Demands]:
    """Return what each call demands, by service and method."""
    return {
        f"{service}.{method}": demands
        for service, methods in _SERVICES.items()
        for method, demands in methods.items()
    }


def security(text: str) -> str:
    """Return the page with a new table of calls."""
    rows = [
        f"| `{name}` | {'; '.join(map(_words, demands.clauses))} |"
        for name, demands in declared().items()
    ]
    table = "\n".join(["", "| call | demands |", "|---|---|", *rows, "", ""])
    return _TABLE.sub(lambda found: found[1] + table + found[2], text)


def _words(clause: Clause) -> str:
    one = _ONE[clause.kind]
    on = f"each {one}" if clause.resources is None else f"the {one}"
    if clause.kind is ResourceKind.TOPICS and clause.resources is not None:
        on = "all topics"
    condition = f" {clause.condition}" if clause.condition else ""
    return f"`{clause.operation}` on {on}{condition}"
