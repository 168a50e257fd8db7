"""One transaction for each micro-batch, and for each batch: all of its rows count once, or none.

Spark says nothing to the driver's side of a sink in Python but the batch's number, when it commits,
and makes another writer for it. What a micro-batch is, its tasks know: the query, the run and the
number are local properties of Spark's jobs. So each task opens the transaction of its micro-batch,
or attaches to the one that another task has opened; the coordinator gives all the same answer
(T22). It says whether the micro-batch was committed before, and then nobody writes. A batch with a
version does the same, as in `foreachBatch` its tasks alone know the query. One without has the same
writer for planning, tasks and commit, so planning opens its transaction. Each task that ends names
the transaction and its participant in its message to the driver, which commits what the messages
name (T19): a task that was tried again, was slow, or ran twice has no message, so its rows never
count.

| | transactional id | run (T20) | version and origin (T21) |
|---|---|---|---|
| micro-batch | `applicationId`, else the query's id; the target | the query's run | number of the micro-batch; query, checkpoint |
| batch in `foreachBatch` | `txnAppId`; the target | the query's run | `txnVersion`; query |
| other batch | `txnAppId`; the target | each write | `txnVersion` |
| batch without `txnAppId` | a new one | each write | none |

The target is `txnTarget`, else the topic. A transaction that the driver cannot end, because no task
has told it which one it is, or because it was killed, is aborted when another run opens one, or
when its lease runs out, as nobody renews it (T23).

Source: Delta Lake's `txnAppId` and `txnVersion`; SPARK-28908.
"""  # noqa: E501

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from millrace.client import (
    ApplicationVersion,
    MillraceError,
    Participant,
    SharedTransaction,
    SyncAdmin,
)
from millrace.spark.errors import IncompleteWriteError
from millrace.spark.options.sink_options import AT_LEAST_ONCE, SinkOptions

_PAUSE_S: Final = 0.01
_RUN: Final = "spark.jobGroup.id"
_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """A task's message to the driver."""

    rows: int
    bytes: int
    began_at: float
    """Seconds since 1970."""
    shared: SharedTransaction | None = None
    """The transaction that has the rows; None: they count already."""
    participant: Participant | None = None
    """Of the transaction; None: there were no rows."""


def open_for_batch(admin: SyncAdmin, options: SinkOptions) -> SharedTransaction:
    """Open the transaction of a batch without a version; on the driver.

    Raises:
        MillraceError: the coordinator could not be asked.
    """
    run_id = new_run_id()
    return admin.open_shared_transaction(options.transactional_id(f"batch-{run_id}"), run_id)


def new_run_id() -> str:
    """Return the run of a batch that belongs to no stream."""
    return str(uuid.uuid4())


def open_for_version(admin: SyncAdmin, options: SinkOptions, run_id: str) -> SharedTransaction:
    """Open the transaction of a version of a batch, or attach to it; in a task.

    In `foreachBatch` it is of the query, and of its run.

    Args:
        admin: asks the coordinator.
        options: of the batch.
        run_id: where there is no stream.

    Raises:
        VersionConflictError: another query has written, or a later version.
        ProducerFencedError: another run of the query has begun, or another batch.
        MillraceError: the coordinator could not be asked.
    """
    assert options.txn_version is not None, "the options were checked"
    told = _told()
    query_id = told[_QUERY] or ""
    return admin.open_shared_transaction(
        options.transactional_id(),
        (query_id and told[_RUN]) or run_id,
        ApplicationVersion(options.txn_version, query_id),
        may_attach=True,
    )


def _told() -> dict[str, str | None]:
    """Return what Spark tells a task of its micro-batch."""
    context = TaskContext.get()
    return {
        name: None if context is None else context.getLocalProperty(name)
        for name in (_RUN, _QUERY, _BATCH)
    }


def open_for_micro_batch(
    admin: SyncAdmin, options: SinkOptions, checkpoint: str
) -> SharedTransaction:
    """Open the transaction of a micro-batch, or attach to it; in a task.

    Raises:
        VersionConflictError: another query or checkpoint has written under the application id.
        ProducerFencedError: another run of the query has begun.
        IncompleteWriteError: Spark does not say which micro-batch it is.
        MillraceError: the coordinator could not be asked.
    """
    told = _told()
    run_id, query_id, batch = told.values()
    if not run_id or not query_id or not batch:
        lacks = ", ".join(name for name, value in told.items() if not value)
        raise IncompleteWriteError(
            f"Spark does not tell the task which micro-batch it writes (no {lacks}): update Spark, "
            f"or write with delivery={AT_LEAST_ONCE}"
        )
    return admin.open_shared_transaction(
        options.transactional_id(query_id),
        run_id,
        ApplicationVersion(int(batch), query_id, checkpoint),
        may_attach=True,
    )


@contextmanager
def kept_open(shared: SharedTransaction, open_admin: Callable[[], SyncAdmin]) -> Iterator[None]:
    """Renew the lease of a transaction during the block, if that is long.

    A task joins with its first row, which may come late: after an hour of another task's sort. The
    tasks that have ended renew no longer then, as Spark ends workers that are idle for a minute.
    """
    over = threading.Event()
    threading.Thread(target=_renew, args=(shared, open_admin, over), daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _renew(
    shared: SharedTransaction, open_admin: Callable[[], SyncAdmin], over: threading.Event
) -> None:
    if over.wait(shared.renew_ms / 1000):
        return
    with open_admin() as admin:  # The task's own one is not for two threads.
        while True:
            with suppress(MillraceError):  # If it is over, the task hears of it when it joins.
                admin.renew_shared_transaction(shared)
            if over.wait(shared.renew_ms / 1000):
                return


def transaction_of(messages: Sequence[Written | None]) -> SharedTransaction:
    """Return the transaction that all tasks have written (T22).

    Raises:
        IncompleteWriteError: there is not one message of each task, or they name several.
    """
    found = {message.shared for message in messages if message is not None}
    missing = sum(message is None for message in messages)
    if missing or not messages:
        raise IncompleteWriteError(
            f"{missing} of {len(messages)} tasks have not told what they wrote: nothing counts"
        )
    if len(found) > 1:
        numbers = ", ".join(str(shared and shared.number) for shared in found)
        raise IncompleteWriteError(
            f"the tasks have written several transactions (numbers {numbers}), as one was aborted "
            "while they ran: nothing counts"
        )
    (shared,) = found
    assert shared is not None, "each task has told it"
    return shared


def commit(admin: SyncAdmin, shared: SharedTransaction, messages: Sequence[Written | None]) -> None:
    """Commit what the messages name.

    Raises:
        MillraceError: it is not committed, or that is in doubt, as the message says.
    """
    participants = [
        message.participant
        for message in messages
        if message is not None and message.participant is not None
    ]
    admin.commit_shared_transaction(shared, participants)


def wait_until_over(admin: SyncAdmin, shared: SharedTransaction, limit_s: float) -> str:
    """Wait until readers see what was committed: it is decided before the partitions know of it.

    Return after `limit_s` in any case, or when nobody can say: it is committed.

    Returns:
        Why readers may not see all of it yet; empty: they do.
    """
    until = time.monotonic() + limit_s
    try:
        while True:
            found = admin.describe_transaction(shared.transactional_id)
            if found is None or (found.number, found.state) != (shared.number, "prepare_commit"):
                return ""
            if time.monotonic() >= until:
                return f"some partitions have not been told of it for {limit_s:g} s"
            time.sleep(_PAUSE_S)
    except MillraceError as error:
        return str(error)


def abort(admin: SyncAdmin, transactions: set[SharedTransaction]) -> MillraceError | None:
    """Abort what is open of these, the last one if any; return why that may stay open.

    It does until its lease has run out, or is committed.
    """
    failure = None
    for shared in sorted(transactions, key=lambda each: (each.generation, each.number)):
        try:
            admin.abort_shared_transaction(shared)
            failure = None
        except MillraceError as error:
            failure = error
    return failure
