"""The table of `docs/security.md` that comes from the code: what each call demands."""

import re
from typing import Any, Final
from unittest.mock import MagicMock

from millrace.broker.guard.demands import Clause, Demands
from millrace.broker.rpc.cluster import ClusterService
from millrace.broker.rpc.fetch import FetchService
from millrace.broker.rpc.groups import GroupsService
from millrace.broker.rpc.positions import PositionsService
from millrace.broker.rpc.produce import ProduceService
from millrace.broker.rpc.shared_transactions import SharedTransactionsService
from millrace.broker.rpc.transactions import TransactionsService
from millrace.core.guard.access import ResourceKind

_SERVICES: Final = (
    ClusterService,
    ProduceService,
    FetchService,
    PositionsService,
    GroupsService,
    TransactionsService,
    SharedTransactionsService,
)
"""The services of the listeners for clients."""
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
    found: dict[str, Demands] = {}
    for service in _SERVICES:
        # Declarations refer to a service's parts, and use none.
        instance = MagicMock()
        service.methods(instance)
        (call,) = (
            call
            for calls in (instance.calls, instance._calls)
            for call in calls.methods.call_args_list
        )
        methods: dict[str, Any] = {}
        for kind in ("unary", "forwards", "streams"):
            methods |= call.kwargs.get(kind, {})
        name = service.NAME.rpartition(".")[2]
        found |= {f"{name}.{method}": said[-1] for method, said in methods.items()}
    return found


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
