"""Shows the progress of streaming queries: metrics for Prometheus, a health page, positions.

    from millrace.spark.progress import watch_queries

    with watch_queries(spark, port=8099, bootstrap_servers="localhost:7092"):
        query = stream.writeStream.queryName("delays")...start()
        query.awaitTermination()

`/metrics` is for Prometheus; `/healthz` answers 200, or 503 with the problems, when a query has
failed or has not made progress for `stale_after_s`.

With `bootstrap_servers` the positions of each named query are stored on the brokers after each
micro-batch (`millrace group describe delays`). A query without new data reports that every 10 s,
but one that waits for its trigger does not: set `stale_after_s` above the trigger's interval and
the longest micro-batch.
"""

import json
import threading
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from millrace.core.addresses import parse_addresses
from millrace.runtime.telemetry_server import TelemetryServer, names_in
from millrace.spark.errors import InvalidOptionError
from millrace.spark.watching.position_reports import PositionReporter
from millrace.spark.watching.query_metrics import query_metrics, report_failures
from millrace.spark.watching.query_states import QueryStates

_LAST_EVENTS_S: Final = 5.0
"""How long `close` waits for the events of ended queries: Spark sends them later."""


def watch_queries(
    spark: SparkSession,
    *,
    port: int = 8099,
    host: str = "127.0.0.1",
    bootstrap_servers: str | None = None,
    stale_after_s: float = 60.0,
    names: str = "",
) -> "QueryWatch":
    """Watch all streaming queries of a session from now on.

    Args:
        port: of the pages; 0: any that is free.
        host: address to listen on; `0.0.0.0` in a pod.
        bootstrap_servers: brokers to report positions to; None: none.
        stale_after_s: how long a query may be silent before `/healthz` fails.
        names: names in the public DNS under which the pages are asked for, with commas. This
            machine's name, IP addresses, names without a dot, and names in `svc`, `local` and
            `internal` need none. Others are refused: a web site could read the pages in the name of
            its visitors (DNS rebinding).

    Raises:
        InvalidOptionError: the port cannot be bound, or `bootstrap_servers` are no addresses.
    """
    return QueryWatch(
        spark,
        port,
        host,
        bootstrap_servers=bootstrap_servers,
        stale_after_s=stale_after_s,
        names=names,
    )


class QueryWatch:
    """See `watch_queries`. Closed at the end of a `with` block, or with `close`.

    Attributes:
        address: host and port of the pages.
    """

    def __init__(
        self,
        spark: SparkSession,
        port: int,
        host: str,
        *,
        bootstrap_servers: str | None,
        stale_after_s: float,
        names: str,
    ) -> None:
        if bootstrap_servers is not None:
            try:
                parse_addresses(bootstrap_servers)
            except ValueError as error:
                raise InvalidOptionError(f"bootstrap_servers: {error}") from error
        self._spark = spark
        self._seen = _Seen(bootstrap_servers)
        registry = CollectorRegistry()
        registry.register(_QueryMetrics(self._seen))

        def health() -> tuple[HTTPStatus, str]:
            problems = self._seen.problems(stale_after_s)
            status = HTTPStatus.SERVICE_UNAVAILABLE if problems else HTTPStatus.OK
            return status, "\n".join(problems or ["ok"])

        try:
            self._server = TelemetryServer(
                (host, port),
                registry,
                thread_name="millrace-pages",
                names=names_in(f"{host},{names}"),
                names_setting="`names` of watch_queries (--page-names of a job)",
                pages={"/healthz": health},
            )
        except OSError as error:
            self._seen.close()
            raise InvalidOptionError(
                f"the pages about queries cannot listen on {host}:{port}: {error.strerror}: choose "
                "another port, or 0 for any"
            ) from error
        self.address = f"{host}:{self._server.port}"
        self._listener: _Listener | None = _Listener(self._seen)
        spark.streams.addListener(self._listener)
        for query in spark.streams.active:  # There is no start event for them.
            self._seen.on_started(query.name, str(query.id), str(query.runId))

    def close(self) -> None:
        """Stop watching, after reporting known positions. Closing twice is harmless."""
        if self._listener is None:
            return
        deadline = time.monotonic() + _LAST_EVENTS_S
        while time.monotonic() < deadline and self._seen.active_runs() - {
            str(query.runId) for query in self._spark.streams.active
        }:
            time.sleep(0.02)
        self._spark.streams.removeListener(self._listener)
        self._listener = None
        self._seen.close()
        self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Seen:
    """The state from events, shared by Spark's thread and the threads that show it."""

    def __init__(self, bootstrap_servers: str | None) -> None:
        self._lock = threading.Lock()
        self._states = QueryStates()
        self.reporter = None if bootstrap_servers is None else PositionReporter(bootstrap_servers)

    def on_started(self, name: str | None, query_id: str, run_id: str) -> None:
        with self._lock:
            self._states.on_started(name or query_id, run_id, time.monotonic())

    def on_progress(self, progress: dict[str, Any]) -> None:
        with self._lock:
            positions = self._states.on_progress(progress, time.monotonic())
        if self.reporter is not None and progress.get("name"):
            self.reporter.report(progress["name"], positions)

    def on_idle(self, run_id: str) -> None:
        with self._lock:
            self._states.on_idle(run_id, time.monotonic())

    def on_terminated(self, run_id: str, failure: str | None) -> None:
        with self._lock:
            self._states.on_terminated(run_id, failure)

    def active_runs(self) -> set[str]:
        with self._lock:
            return self._states.active_runs()

    def problems(self, stale_after_s: float) -> list[str]:
        with self._lock:
            return self._states.problems(time.monotonic(), stale_after_s)

    def metrics(self) -> list[Metric]:
        with self._lock:
            return list(query_metrics(self._states, time.monotonic()))

    def close(self) -> None:
        if self.reporter is not None:
            self.reporter.close()


class _Listener(StreamingQueryListener):
    """Takes Spark's events. It must not wait: all listeners of a session share a thread."""

    def __init__(self, seen: _Seen) -> None:
        self._seen = seen

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # Spark's, as those below.
        self._seen.on_started(event.name, str(event.id), str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._seen.on_progress(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        self._seen.on_idle(str(event.runId))

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        self._seen.on_terminated(str(event.runId), event.exception)


class _QueryMetrics(Collector):
    """Reads the states when Prometheus asks, so that ages are true at that moment."""

    def __init__(self, seen: _Seen) -> None:
        self._seen = seen

    def collect(self) -> Iterable[Metric]:
        yield from self._seen.metrics()
        if self._seen.reporter is not None:
            yield report_failures(self._seen.reporter.failures)
