"""Ends streaming queries between two micro-batches: on SIGTERM, as Kubernetes ends pods.

    from millrace.spark.stopping import await_queries

    await_queries(query)  # Instead of query.awaitTermination().

A micro-batch that is broken off is run again at the next start, and a sink that writes at least
once has written some of it twice then; one that has ended is not.

The signal must reach Python: let the container run `python job.py`, and not spark-submit, whose JVM
would get it, and stop at once.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from pyspark.sql.streaming import StreamingQuery

from millrace.spark.pod_settings import micro_batch_grace_s

_POLL_S: Final = 0.2
_LOOK_S: Final = 0.01
"""Pause between looks at a query to be stopped: the time between two batches is short."""
_AT_WORK: Final = ("Processing new data", "No new data but cleaning up state")
"""Spark's status of a query with running tasks."""


def await_queries(*queries: StreamingQuery, grace_s: float | None = None) -> None:
    """Return when all queries have ended; SIGTERM makes them end after their micro-batch. So does
    the failure of one of them. Call it from the main thread, as signals need that.

    Args:
        grace_s: how long all micro-batches may take to end; then they are interrupted. Set it below
            the pod's `terminationGracePeriodSeconds`. None: three quarters of that, by the variable
            `MILLRACE_GRACE_SECONDS`, which the chart sets; without it 90 s.

    Raises:
        InvalidOptionError: the variable is no number.
        StreamingQueryException: a query has failed: let the program end with an error by it.
    """
    grace_s = micro_batch_grace_s() if grace_s is None else grace_s
    with _told_to_end() as is_told:
        try:
            while not is_told.is_set() and any(query.isActive for query in queries):
                for query in queries:
                    if query.isActive or query.exception() is not None:
                        query.awaitTermination(_POLL_S)
        finally:
            stop_between_batches(*queries, grace_s=grace_s)
    for query in queries:
        failure = query.exception()
        if failure is not None:
            raise failure


def stop_between_batches(*queries: StreamingQuery, grace_s: float = 90.0) -> None:
    """Stop queries as soon as none of their tasks runs, or after `grace_s` seconds."""
    deadline = time.monotonic() + grace_s
    left = [query for query in queries if query.isActive]
    while left:
        for query in left:
            if not _is_at_work(query) or time.monotonic() >= deadline:
                query.stop()
        left = [query for query in left if query.isActive]
        if left:
            time.sleep(_LOOK_S)


def _is_at_work(query: StreamingQuery) -> bool:
    status = query.status
    return bool(status["isTriggerActive"]) and status["message"].startswith(_AT_WORK)


@contextmanager
def _told_to_end() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets."""
    is_told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield is_told
        return
    before = signal.signal(signal.SIGTERM, lambda *_: is_told.set())
    try:
        yield is_told
    finally:
        signal.signal(signal.SIGTERM, before)
