"""The operator: does it act, does it succeed, how long does it take?

Not called `operator`: a script of this folder would import it in the place of the standard
library's.
"""

from typing import Final

from dashboards.board import (
    ANY_IS_TO_WATCH,
    BAD,
    GOOD,
    OPERATOR,
    WATCH,
    Board,
    Kind,
    Panel,
    Unit,
    p99,
)

BOARD: Final = Board(
    uid="millrace-operator",
    title="Operator",
    description="What the operator does, and whether it succeeds.",
    variables=(OPERATOR,),
    rows={
        "Health": [
            Panel(
                title="Operators that act",
                description="Exactly one holds the Lease; the others wait.",
                queries={"acting": "sum(millrace_operator_acts)"},
                kind=Kind.NUMBER,
                steps=((0, BAD), (1, GOOD), (2, BAD)),
                runbook="operator-stuck",
            ),
            Panel(
                title="Time since the last success",
                description="Of each cluster, and of its topics and quotas. Each is looked at "
                "after a change, and again after minutes without one.",
                queries={
                    "{{work}} of {{namespace}}/{{name}}": (
                        "time() - max by (work, namespace, name) "
                        "(millrace_operator_last_success_timestamp_seconds)"
                    )
                },
                unit=Unit.SECONDS,
                steps=((0, GOOD), (900, WATCH), (1800, BAD)),
                runbook="operator-stuck",
            ),
            Panel(
                title="Failures",
                description="Looks that failed and were tried again, by kind of work. The "
                "operator's log and the status of the resource say why.",
                queries={
                    "{{work}}": (
                        "sum by (work) (rate(millrace_operator_reconcile_failures_total"
                        "[$__rate_interval]))"
                    )
                },
                unit=Unit.PER_SECOND,
                kind=Kind.STACKED,
                runbook="operator-stuck",
            ),
        ],
        "Work": [
            Panel(
                title="Looks",
                description="Looks at clusters, topics and quotas.",
                queries={
                    "{{work}}": (
                        "sum by (work) (rate(millrace_operator_reconcile_seconds_count"
                        "[$__rate_interval]))"
                    )
                },
                unit=Unit.PER_SECOND,
                kind=Kind.STACKED,
            ),
            Panel(
                title="Time of a look, 99th percentile",
                description="A look at a cluster that restarts brokers ends before they are "
                "ready: the next look goes on.",
                queries={"{{work}}": p99("millrace_operator_reconcile_seconds", "work")},
                unit=Unit.SECONDS,
            ),
            Panel(
                title="Waiting",
                description="Clusters that wait to be looked at, or are just now.",
                queries={"{{instance}}": "millrace_operator_waiting"},
                steps=ANY_IS_TO_WATCH,
            ),
            Panel(
                title="Requests to the API server",
                description="By method, watches left out.",
                queries={
                    "{{method}}": (
                        "sum by (method) (rate(millrace_operator_api_requests_total"
                        "[$__rate_interval]))"
                    )
                },
                unit=Unit.PER_SECOND,
                kind=Kind.STACKED,
            ),
        ],
        "Process": [
            Panel(
                title="Memory",
                description="Resident memory of each operator.",
                queries={"{{instance}}": "process_resident_memory_bytes"},
                unit=Unit.BYTES,
            ),
            Panel(
                title="CPU",
                description="Processors that each operator uses.",
                queries={"{{instance}}": "rate(process_cpu_seconds_total[$__rate_interval])"},
                steps=((0, GOOD), (0.9, WATCH)),
            ),
        ],
    },
)
