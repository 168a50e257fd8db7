"""Pages of the operator and of Spark's driver, by their own registries, without Kubernetes and JVM.

Their numbers are made up; names, labels and kinds are the product's.
"""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Metric, start_http_server
from prometheus_client.registry import Collector
from tests.background import repeated

from millrace.operator.telemetry import WORKS, OperatorMetrics, Signs, serve_telemetry
from millrace.spark.cluster.offsets import LogPosition, Offsets
from millrace.spark.watching.query_metrics import query_metrics, report_failures
from millrace.spark.watching.query_states import QueryStates

_PAUSE_SECONDS = 0.2


@contextmanager
def operator_page() -> Iterator[str]:
    """Serve the metrics of an operator that acts; yield the address."""
    metrics = OperatorMetrics()
    metrics.acts.set(1)
    page = serve_telemetry(metrics, Signs(), port=0)

    def look() -> None:
        for work in WORKS:
            with metrics.reconcile_seconds.labels(work).time():
                for method in ("GET", "PATCH"):
                    metrics.api_requests.labels(method).inc()
            metrics.succeeded(work, "shop", "orders", time.time())

    try:
        with repeated(look, _PAUSE_SECONDS):
            yield f"127.0.0.1:{page.port}"
    finally:
        page.close()


class RunningQuery(Collector):
    """The metrics of a streaming query that reads a topic and is a little behind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._goes_on = True
        self._states = QueryStates()
        self._states.on_started("etl", "run", time.monotonic())
        self._batches = 0

    def advance(self) -> None:
        """Do a micro-batch, unless the query stands still or has ended."""
        with self._lock:
            if self._goes_on:
                self._batches += 1
                self._states.on_progress(self._progress(), time.monotonic())

    def stand_still(self) -> None:
        """Do no micro-batch from now on, but run."""
        with self._lock:
            self._goes_on = False

    def go_on(self) -> None:
        """Do micro-batches again."""
        with self._lock:
            self._goes_on = True

    def fail(self) -> None:
        """End with an error."""
        with self._lock:
            self._goes_on = False
            self._states.on_terminated("run", "Py4JJavaError: the sink refused a row")

    def _progress(self) -> dict[str, Any]:
        def offsets(at: int) -> dict[str, Any]:
            return Offsets({("orders", 0): LogPosition(at, 1)}, {"orders": "ab"}).to_dict()

        end = 100 * self._batches
        return {
            "name": "etl",
            "runId": "run",
            "numInputRows": 100,
            "inputRowsPerSecond": 500.0,
            "processedRowsPerSecond": 800.0,
            "durationMs": {"latestOffset": 20, "addBatch": 90, "triggerExecution": 130},
            "stateOperators": [{"numRowsTotal": 42, "memoryUsedBytes": 4096}],
            "sources": [{"endOffset": offsets(end), "latestOffset": offsets(end + 7)}],
        }

    def collect(self) -> Iterable[Metric]:
        with self._lock:
            yield from [*query_metrics(self._states, time.monotonic()), report_failures(0)]


@contextmanager
def spark_page(query: RunningQuery | None = None) -> Iterator[str]:
    """Serve the metrics of a driver with one query; yield the address."""
    registry = CollectorRegistry()
    query = query or RunningQuery()
    registry.register(query)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        with repeated(query.advance, _PAUSE_SECONDS):
            yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
