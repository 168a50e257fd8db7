"""Streaming queries of Spark: do they run, do they keep up, what takes the time?"""

from typing import Final

from dashboards.board import (
    ANY_IS_BAD,
    ANY_IS_TO_WATCH,
    BAD,
    GOOD,
    SPARK_NAMESPACE,
    SPARK_QUERY,
    WATCH,
    Board,
    Kind,
    Panel,
    Unit,
)

BOARD: Final = Board(
    uid="millrace-spark",
    title="Spark pipelines",
    description="Streaming queries: whether they run, keep up, and what takes the time.",
    variables=(SPARK_NAMESPACE,),
    optional=(SPARK_QUERY,),
    rows={
        "Health": [
            Panel(
                title="Queries that run",
                description="As Spark's drivers tell.",
                queries={"running": 'sum(millrace_spark_active{query=~"$query"})'},
                kind=Kind.NUMBER,
            ),
            Panel(
                title="Queries that failed",
                description="Queries that ended with an error, while their driver lives.",
                queries={"failed": 'sum(millrace_spark_failed{query=~"$query"})'},
                kind=Kind.NUMBER,
                steps=ANY_IS_BAD,
                runbook="spark-query-failed",
            ),
            Panel(
                title="Time since the last progress",
                description="Since a running query ended a micro-batch, or found nothing to do.",
                queries={"{{query}}": 'millrace_spark_last_progress_age_seconds{query=~"$query"}'},
                unit=Unit.SECONDS,
                steps=((0, GOOD), (300, WATCH), (900, BAD)),
                runbook="spark-query-stalled",
            ),
        ],
        "Progress": [
            Panel(
                title="Rows",
                description="Rows that came and rows that were processed, by the last "
                "micro-batch. More that come than are processed: the query falls behind.",
                queries={
                    "{{query}} came": 'millrace_spark_input_rows_per_second{query=~"$query"}',
                    "{{query}} processed": (
                        'millrace_spark_processed_rows_per_second{query=~"$query"}'
                    ),
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Unread records",
                description="Records of each topic that the last micro-batch left unread.",
                queries={
                    "{{query}} in {{topic}}": (
                        'sum by (query, topic) (millrace_spark_lag_records{query=~"$query"})'
                    )
                },
                runbook="group-lag",
            ),
            Panel(
                title="Micro-batches and rows",
                description="Done, in each second.",
                queries={
                    "{{query}} micro-batches": (
                        'rate(millrace_spark_batches_total{query=~"$query"}[$__rate_interval])'
                    ),
                    "{{query}} rows": (
                        'rate(millrace_spark_rows_total{query=~"$query"}[$__rate_interval])'
                    ),
                },
                unit=Unit.PER_SECOND,
            ),
            Panel(
                title="Last micro-batch by phase",
                description="latestOffset and queryPlanning are the driver's work, addBatch is "
                "the job, walCommit and commitOffsets are the checkpoint's.",
                queries={
                    "{{query}} {{phase}}": (
                        "millrace_spark_batch_duration_seconds"
                        '{query=~"$query",phase!="triggerExecution"}'
                    )
                },
                unit=Unit.SECONDS,
                kind=Kind.STACKED,
            ),
        ],
        "State": [
            Panel(
                title="Rows of state",
                description="Of aggregations, joins and deduplications. Without a watermark they "
                "only grow.",
                queries={"{{query}}": 'millrace_spark_state_rows{query=~"$query"}'},
            ),
            Panel(
                title="Memory of state",
                description="As the state store tells.",
                queries={"{{query}}": 'millrace_spark_state_memory_bytes{query=~"$query"}'},
                unit=Unit.BYTES,
            ),
            Panel(
                title="Position reports that failed",
                description="Reports to the brokers, in the time that is shown. The checkpoint "
                "counts, so nothing is lost; the brokers show an older lag.",
                queries={
                    "failed": (
                        "sum(increase(millrace_spark_position_report_failures_total[$__range]))"
                    )
                },
                kind=Kind.NUMBER,
                steps=ANY_IS_TO_WATCH,
            ),
        ],
    },
)
