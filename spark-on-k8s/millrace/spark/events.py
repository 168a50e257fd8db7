"""The events that the data source and the sink log, in Spark's driver and executors.

`millrace.core.events` has the idea.
"""

from typing import Final

from millrace.core.events import Event, Level

ROWS_WRITTEN: Final = Event(
    name="rows_written",
    level=Level.INFO,
    text="rows written: %(rows)d",
    meaning="A batch query has written its rows, which are readable.",
    fields=("rows",),
)
ROWS_STAY: Final = Event(
    name="rows_stay",
    level=Level.WARNING,
    text="the batch failed: what ended tasks have written stays, and a repeat writes it again "
    "(rows: %(rows)d)",
    meaning="A batch query failed after some of its tasks had written their rows.",
    action="Look at the error of the query.",
    fields=("rows",),
)
BATCH_ROWS_WRITTEN: Final = Event(
    name="batch_rows_written",
    level=Level.INFO,
    text="micro-batch %(batch)d: rows written: %(rows)d",
    meaning="A streaming query has written the rows of a micro-batch, which are readable.",
    fields=("batch", "rows"),
)
BATCH_ROWS_STAY: Final = Event(
    name="batch_rows_stay",
    level=Level.WARNING,
    text="micro-batch %(batch)d failed: what ended tasks have written stays, and its repeat writes "
    "it again (rows: %(rows)d)",
    meaning="A micro-batch failed after some of its tasks had written their rows.",
    action="Look at the error of the query.",
    fields=("batch", "rows"),
)
RANGE_SHORTENED: Final = Event(
    name="range_shortened",
    level=Level.WARNING,
    text="%(problem)s",
    meaning="A batch query asked for offsets that the log does not hold, with "
    "`failOnDataLoss=false`.",
    action="Correct the offsets, or accept that fewer records are read.",
    fields=("problem",),
)
TASK_RECORDS_GONE: Final = Event(
    name="task_records_gone",
    level=Level.WARNING,
    text="records are gone, and the task goes on: %(problem)s",
    meaning="Records of a task were deleted before it read them, with `failOnDataLoss=false`.",
    action="Keep records for longer, or read faster.",
    fields=("problem",),
)
QUERY_RECORDS_GONE: Final = Event(
    name="query_records_gone",
    level=Level.WARNING,
    text="records are gone, and the query goes on: %(problem)s",
    meaning="Records of a query were deleted before it read them, with `failOnDataLoss=false`.",
    action="Keep records for longer, or read faster.",
    fields=("problem",),
)
POSITION_UNREPORTED: Final = Event(
    name="position_unreported",
    level=Level.WARNING,
    text="the position of %(query)s was not reported to the brokers: %(error)s",
    meaning="The lag of this query is not up to date. It is said once until it succeeds.",
    action="Do what the error says. The query itself goes on.",
    fields=("query", "error"),
)
LOOKUP_POSTPONED: Final = Event(
    name="lookup_postponed",
    level=Level.DEBUG,
    text="what a batch reads is looked up when it is planned: %(error)s",
    meaning="No broker answered when the DataFrame was loaded.",
    fields=("error",),
)

FIELDS: Final = {
    "batch": "number of the micro-batch",
    "query": "the name of a Spark query",
    "rows": "how many rows",
}
"""The meaning of each field that only these events have. `millrace.core.events` has the others."""
