"""The operator's metrics for Prometheus, and its probes.

`/livez` fails when the event loop stands still, or when watches have missed a change that a look at
everything found long ago. `/readyz` fails until the API server was reached once.
"""

import logging
import threading
import time
from collections.abc import Callable, Container
from http import HTTPStatus
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.process_collector import ProcessCollector

from millrace.operator.events import OPERATOR_PAGE_FILES_UNUSABLE
from millrace.runtime.page_guard import PageFiles, PageGuard
from millrace.runtime.telemetry_server import TelemetryServer, names_in

PORT: Final = 7095
_log = logging.getLogger(__name__)
_HOST: Final = "0.0.0.0"

NAMES_VARIABLE: Final = "MILLRACE_OPERATOR_METRICS_NAMES"
FILES_VARIABLES: Final = {
    "certificate": "MILLRACE_OPERATOR_METRICS_TLS_CERTIFICATE_FILE",
    "key": "MILLRACE_OPERATOR_METRICS_TLS_KEY_FILE",
    "token": "MILLRACE_OPERATOR_METRICS_TOKEN_FILE",
}
"""By the fields of `PageFiles`."""
WORKS: Final = ("cluster", "topics", "quotas")
"""The kinds of work: a cluster, its topics, its quotas."""


class OperatorMetrics:
    """The operator's metrics."""

    def __init__(self) -> None:
        # They would double the series of each counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry: Final = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.reconcile_seconds: Final = Histogram(
            "millrace_operator_reconcile_seconds",
            "How long one look at a cluster, or at its topics or quotas, took.",
            ["work"],
            registry=self.registry,
            buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30),
        )
        self.failures: Final = Counter(
            "millrace_operator_reconcile_failures_total",
            "Looks that failed, and were tried again.",
            ["work"],
            registry=self.registry,
        )
        self._last_success: Final = Gauge(
            "millrace_operator_last_success_timestamp_seconds",
            "When a cluster, or its topics or quotas, was looked at last without a failure.",
            ["work", "namespace", "name"],
            registry=self.registry,
        )
        self._formed: Final = Gauge(
            "millrace_operator_cluster_formed",
            "1 for a Cluster that has had a controller, 0 for one whose first brokers have yet to "
            "start.",
            ["namespace", "name"],
            registry=self.registry,
        )
        self._formed_known: set[tuple[str, str]] = set()
        self._succeeded: set[tuple[str, str, str]] = set()
        for work in WORKS:
            self.failures.labels(work)
        self.waiting: Final = Gauge(
            "millrace_operator_waiting",
            "Clusters that wait to be looked at, or are just now.",
            registry=self.registry,
        )
        self.acts: Final = Gauge(
            "millrace_operator_acts",
            "1 for the operator that holds the Lease, 0 for one that waits.",
            registry=self.registry,
        )
        self.api_requests: Final = Counter(
            "millrace_operator_api_requests_total",
            "Requests to the API server, watches left out.",
            ["method"],
            registry=self.registry,
        )

    def succeeded(self, work: str, namespace: str, name: str, now_s: float) -> None:
        """Note that a cluster, or its topics or quotas, was looked at without a failure."""
        self._succeeded.add((work, namespace, name))
        self._last_success.labels(work, namespace, name).set(now_s)

    def show_formed(self, namespace: str, name: str, is_formed: bool | None) -> None:
        """Show whether a Cluster has had a controller; None: it is gone."""
        if is_formed is not None:
            self._formed_known.add((namespace, name))
            self._formed.labels(namespace, name).set(is_formed)
        elif (namespace, name) in self._formed_known:
            self._formed_known.remove((namespace, name))
            self._formed.remove(namespace, name)

    def keep_only(self, known: Container[tuple[str, str, str]]) -> None:
        """Forget what is gone, or is another operator's, whose state and age say nothing.

        Args:
            known: work, namespace and name of what this operator looks after.
        """
        for key in [succeeded for succeeded in self._succeeded if succeeded not in known]:
            self.forget(*key)
        for namespace, name in list(self._formed_known):
            if ("cluster", namespace, name) not in known:
                self.show_formed(namespace, name, None)

    def forget(self, work: str, namespace: str, name: str) -> None:
        """Forget the success of what is gone."""
        key = work, namespace, name
        if key in self._succeeded:
            self._succeeded.discard(key)
            self._last_success.remove(*key)


class Signs:
    """Signs of life, each with the time it may be silent for; given by any thread.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: dict[str, tuple[float, float]] = {}
        self.is_ready = False

    def give(self, name: str, silent_seconds_max: float) -> None:
        """Give a sign of life of a part."""
        with self._lock:
            self._seen[name] = (self._clock(), silent_seconds_max)

    def forget(self, name: str) -> None:
        """Expect no more signs of a part, until it gives one."""
        with self._lock:
            self._seen.pop(name, None)

    def silent(self) -> list[str]:
        """Return the parts that were silent for too long."""
        now = self._clock()
        with self._lock:
            return [name for name, (at, most) in self._seen.items() if now - at > most]


def serve_telemetry(
    metrics: OperatorMetrics,
    signs: Signs,
    port: int = PORT,
    further_names: str = "",
    files: PageFiles | None = None,
) -> TelemetryServer:
    """Serve `/metrics`, `/livez` and `/readyz`.

    Args:
        further_names: names under which it is asked for besides this machine's, with commas.
        files: of the certificate, and of the token that `/metrics` asks for; None: there are none.

    Raises:
        InvalidConfigError: the files cannot be used.
    """
    guard = PageGuard(
        files or PageFiles(),
        _HOST,
        lambda problem: OPERATOR_PAGE_FILES_UNUSABLE.log(_log, error=problem),
    )

    def live() -> tuple[HTTPStatus, str]:
        silent = signs.silent()
        return _probe(not silent, f"silent for too long: {', '.join(silent)}")

    def ready() -> tuple[HTTPStatus, str]:
        return _probe(signs.is_ready, "the API server was not reached yet")

    return TelemetryServer(
        (_HOST, port),
        metrics.registry,
        thread_name="telemetry-page",
        names=names_in(further_names),
        names_setting=NAMES_VARIABLE,
        pages={"/livez": live, "/readyz": ready},
        guard=guard,
    )


def _probe(is_well: bool, why: str) -> tuple[HTTPStatus, str]:
    return (HTTPStatus.OK, "ok") if is_well else (HTTPStatus.SERVICE_UNAVAILABLE, why)
