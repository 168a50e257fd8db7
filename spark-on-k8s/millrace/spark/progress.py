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
import os
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from http import HTTPStatus
from operator import add
from typing import Final, Self

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from millrace.core.addresses import parse_addresses
from millrace.core.errors import InvalidConfigError
from millrace.runtime.page_guard import PageFiles, PageGuard
from millrace.runtime.telemetry_server import TelemetryServer, names_in
from millrace.spark.errors import InvalidColumnsError, InvalidOptionError
from millrace.spark.pod_settings import silent_s_max
from millrace.spark.watching.position_reports import PositionReporter
from millrace.spark.watching.query_metrics import query_metrics, report_failures
from millrace.spark.watching.query_states import OBSERVED, QueryStates

_LAST_EVENTS_S: Final = 5.0
"""How long `close` waits for the events of ended queries: Spark sends them later."""


def with_written_bytes(rows: DataFrame) -> DataFrame:
    """Return rows that are about to be written, and let the query's progress tell their bytes.

        with_written_bytes(pages).writeStream.format("millrace")...

    Spark tells nothing of a sink in Python but the number of rows. So Spark counts the bytes of
    keys and values before that: `observedMetrics` of each progress has them, and so has `/metrics`.

    Args:
        rows: of a stream, as the sink takes them.

    Raises:
        InvalidColumnsError: there is no column `value`.
    """
    if "value" not in rows.columns:
        raise InvalidColumnsError(
            "there is no column value whose bytes could be counted: call this last, before "
            "writeStream"
        )
    sizes = (
        F.coalesce(F.octet_length(name), F.lit(0)).cast("long")
        for name in ("key", "value")
        if name in rows.columns
    )
    bytes_of_all = F.coalesce(F.sum(reduce(add, sizes)), F.lit(0))
    return rows.observe(OBSERVED, bytes_of_all.alias("bytes"))


def _guard(host: str, certificate: str, key: str, token: str) -> PageGuard:
    """Return what guards the pages: files that are given, or those of the environment.

    Raises:
        InvalidOptionError: a file cannot be used.
    """
    certificate = certificate or os.environ.get("MILLRACE_PAGES_TLS_CERTIFICATE_FILE", "")
    key = key or os.environ.get("MILLRACE_PAGES_TLS_KEY_FILE", "")
    token = token or os.environ.get("MILLRACE_PAGES_TOKEN_FILE", "")
    if bool(certificate) != bool(key):
        raise InvalidOptionError("the pages about queries need certificate and key, or neither")
    try:
        return PageGuard(PageFiles(certificate, key, token), host)
    except InvalidConfigError as error:
        raise InvalidOptionError(f"the pages about queries: {error.message}") from error


class QueryWatch:
    """Watches all streaming queries of a session, to the end of a `with` block or to `close`.

    Args:
        port: of the pages; 0: any that is free.
        host: address to listen on; `0.0.0.0` in a pod.
        bootstrap_servers: brokers to report positions to; None: none.
        stale_after_s: how long a query may be silent before `/healthz` fails. None: the variable
            `MILLRACE_SILENT_SECONDS_MAX`, which the chart sets; without it 60 s.
        names: names in the public DNS under which the pages are asked for, with commas. This
            machine's name, IP addresses, names without a dot, and names in `svc`, `local` and
            `internal` need none. Others are refused: a web site could read the pages in the name of
            its visitors (DNS rebinding).
        certificate_file, key_file: PEM files with which the pages speak TLS. Empty: the variables
            `MILLRACE_PAGES_TLS_CERTIFICATE_FILE` and `..._KEY_FILE`, or else plain text.
        token_file: has the token that `/metrics` asks for; without it `/healthz` says a status
            alone. Empty: `MILLRACE_PAGES_TOKEN_FILE`, or else nobody is asked.

    Raises:
        InvalidOptionError: the port cannot be bound, `bootstrap_servers` are no addresses, a file
            cannot be used, or the variable is no number.

    Attributes:
        address: host and port of the pages.
    """

    def __init__(
        self,
        spark: SparkSession,
        *,
        port: int = 8099,
        host: str = "127.0.0.1",
        bootstrap_servers: str | None = None,
        stale_after_s: float | None = None,
        names: str = "",
        certificate_file: str = "",
        key_file: str = "",
        token_file: str = "",
    ) -> None:
        guard = _guard(host, certificate_file, key_file, token_file)
        silent_s = silent_s_max() if stale_after_s is None else stale_after_s
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
            with self._seen.states() as states:
                problems = states.problems(time.monotonic(), silent_s)
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
                guard=guard,
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
        running = spark.streams.active  # There is no start event for them.
        with self._seen.states() as states:
            for query in running:
                name = query.name or str(query.id)
                states.on_started(name, str(query.runId), time.monotonic())

    def close(self) -> None:
        """Stop watching, after reporting known positions. Closing twice is harmless."""
        if self._listener is None:
            return
        deadline = time.monotonic() + _LAST_EVENTS_S
        while time.monotonic() < deadline and self._has_ended_unheard():
            time.sleep(0.02)
        self._spark.streams.removeListener(self._listener)
        self._listener = None
        self._seen.close()
        self._server.close()

    def _has_ended_unheard(self) -> bool:
        """Return whether a query has ended, and the event of that has yet to come."""
        running = {str(query.runId) for query in self._spark.streams.active}
        with self._seen.states() as states:
            return bool(states.active_runs() - running)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


watch_queries: Final = QueryWatch


class _Seen:
    """The state from events, shared by Spark's thread and the threads that show it."""

    def __init__(self, bootstrap_servers: str | None) -> None:
        self._lock = threading.Lock()
        self._states = QueryStates()
        self.reporter = None if bootstrap_servers is None else PositionReporter(bootstrap_servers)

    @contextmanager
    def states(self) -> Iterator[QueryStates]:
        """Lend the states to one thread at a time."""
        with self._lock:
            yield self._states

    def close(self) -> None:
        if self.reporter is not None:
            self.reporter.close()


class _Listener(StreamingQueryListener):
    """Takes Spark's events. It must not wait: all listeners of a session share a thread."""

    def __init__(self, seen: _Seen) -> None:
        self._seen = seen

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # Spark's, as those below.
        with self._seen.states() as states:
            states.on_started(event.name or str(event.id), str(event.runId), time.monotonic())

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = json.loads(event.progress.json)
        with self._seen.states() as states:
            positions = states.on_progress(progress, time.monotonic())
        if self._seen.reporter is not None and progress.get("name"):
            self._seen.reporter.report(progress["name"], positions)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        with self._seen.states() as states:
            states.on_idle(str(event.runId), time.monotonic())

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._seen.states() as states:
            states.on_terminated(str(event.runId), event.exception)


class _QueryMetrics(Collector):
    """Reads the states when Prometheus asks, so that ages are true at that moment."""

    def __init__(self, seen: _Seen) -> None:
        self._seen = seen

    def collect(self) -> Iterable[Metric]:
        with self._seen.states() as states:
            found = list(query_metrics(states, time.monotonic()))
        yield from found
        if self._seen.reporter is not None:
            yield report_failures(self._seen.reporter.failures)
