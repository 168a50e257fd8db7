"""The events that the data source and the sink log, in Spark's driver and executors.

`millrace.core.events` has the idea.
"""

from typing import Final

from millrace.core.events import Event, Level

ROWS_WRITTEN: Final = Event(
    name="rows_written",
    level=Level.INFO,
    text="rows written: %(rows)d (%(bytes)d bytes, in %(ms)d ms, of which the commit "
    "%(commit_ms)d)",
    meaning="A batch query has written its rows, which are readable.",
    fields=("bytes", "commit_ms", "ms", "rows"),
)
ROWS_STAY: Final = Event(
    name="rows_stay",
    level=Level.WARNING,
    text="the batch failed: what ended tasks have written stays, and a repeat writes it again "
    "(rows: %(rows)d)",
    meaning="A batch query with `delivery=at-least-once` failed after some of its tasks had "
    "written their rows.",
    action="Look at the error of the query.",
    fields=("rows",),
)
BATCH_ROWS_WRITTEN: Final = Event(
    name="batch_rows_written",
    level=Level.INFO,
    text="micro-batch %(batch)d: rows written: %(rows)d (%(bytes)d bytes, in %(ms)d ms, of which "
    "the commit %(commit_ms)d)",
    meaning="A streaming query has written the rows of a micro-batch, which are readable.",
    fields=("batch", "bytes", "commit_ms", "ms", "rows"),
)
BATCH_ROWS_STAY: Final = Event(
    name="batch_rows_stay",
    level=Level.WARNING,
    text="micro-batch %(batch)d failed: what ended tasks have written stays, and its repeat writes "
    "it again (rows: %(rows)d)",
    meaning="A micro-batch with `delivery=at-least-once` failed after some of its tasks had "
    "written their rows.",
    action="Look at the error of the query.",
    fields=("batch", "rows"),
)
WRITE_SKIPPED: Final = Event(
    name="write_skipped",
    level=Level.INFO,
    text="%(write)s was written before, to %(application)s: nothing is written again",
    meaning="A micro-batch, or a version of a batch, was committed before, and is repeated: as "
    "after a crash between its commit and Spark's note of it.",
    fields=("application", "write"),
)
WRITE_UNDONE: Final = Event(
    name="write_undone",
    level=Level.WARNING,
    text="%(write)s failed: nothing of it counts (rows that were written: %(rows)d)",
    meaning="The transaction of a micro-batch or a batch was aborted, as a task, or the commit, "
    "has failed.",
    action="Look at the error of the query.",
    fields=("rows", "write"),
)
ABORT_LEFT: Final = Event(
    name="abort_left",
    level=Level.WARNING,
    text="%(write)s failed before a task of it had ended: nothing of it counts. Readers of what "
    "its tasks have written wait until the query begins again, or for transactions.lease_ms",
    meaning="Ended tasks alone tell the driver which transaction is theirs, so it could abort "
    "none. One that is open is aborted when the query begins again, or when its lease has run out, "
    "by default a minute after the last of its tasks.",
    action="Look at the error of the query, and begin it again. `millrace transaction list` shows "
    "what is open, and `millrace transaction abort` ends it at once.",
    fields=("write",),
)
ABORT_FAILED: Final = Event(
    name="abort_failed",
    level=Level.WARNING,
    text="%(write)s failed, and its transaction was not aborted: %(error)s",
    meaning="The coordinator did not abort the transaction of a failed write. If it is open, it is "
    "aborted when the query begins again, or after its lease, and readers of its partitions wait "
    "for that. If it is committed, it stays so: a repeat writes nothing.",
    action="Do what the error says. `millrace transaction describe` shows its state.",
    fields=("error", "write"),
)
COMMIT_UNSEEN: Final = Event(
    name="commit_unseen",
    level=Level.WARNING,
    text="the batch is committed, and readers may not see all of it yet: %(error)s",
    meaning="A batch is readable when all its partitions know of the commit. Whether they do the "
    "coordinator has not said: it was not asked in the name of somebody who may `describe` the "
    "transaction, or a partition has no leader. What is loaded at once may lack rows.",
    action="Give the job that right, or do what the error says. `millrace transaction describe` "
    "shows the partitions that do not know yet.",
    fields=("error",),
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
    "application": "its id and that of its target",
    "batch": "number of the micro-batch",
    "bytes": "of the rows' columns, as Spark has handed them over",
    "commit_ms": "how long the coordinator took to decide",
    "ms": "from the beginning of the first task to the decision",
    "query": "the name of a Spark query",
    "rows": "how many rows",
    "write": "which micro-batch, or that it is a batch",
}
"""The meaning of each field that only these events have. `millrace.core.events` has the others."""
