"""The pages of a broker: `/metrics` for Prometheus, `/ready` for probes (G5)."""

import logging
from collections.abc import Callable, Collection
from http import HTTPStatus
from typing import Final

from prometheus_client import CollectorRegistry

from millrace.broker import events
from millrace.broker.address import Address, not_served
from millrace.core.broker_config import MetricsConfig
from millrace.core.errors import InvalidConfigError
from millrace.runtime.page_guard import PageFiles, PageGuard
from millrace.runtime.telemetry_server import TelemetryServer, names_in

_log = logging.getLogger(__name__)

READY_PATH: Final = "/ready"
_NOT_READY: Final = HTTPStatus.SERVICE_UNAVAILABLE


def serve_metrics(
    config: MetricsConfig,
    registry: CollectorRegistry,
    names: Collection[str] = (),
    *,
    is_ready: Callable[[], bool],
) -> TelemetryServer:
    """Serve the pages.

    Args:
        config: where it is.
        registry: holds the metrics.
        names: of this machine that are configured elsewhere.
        is_ready: whether the broker serves clients; called on the pages' thread.

    Raises:
        InvalidConfigError: the address cannot be bound, or a file cannot be used.
    """

    def ready() -> tuple[HTTPStatus, str]:
        return (HTTPStatus.OK, "ready") if is_ready() else (_NOT_READY, "not ready")

    files = PageFiles(config.tls_certificate_file, config.tls_key_file, config.token_file)
    try:
        guard = PageGuard(
            files,
            config.host,
            lambda problem: events.METRICS_FILES_UNUSABLE.log(_log, error=problem),
        )
    except InvalidConfigError as error:
        raise InvalidConfigError(f"metrics: {error.message}") from error
    try:
        return TelemetryServer(
            (config.host, config.port),
            registry,
            thread_name="metrics-page",
            names=frozenset({*names, config.host, *names_in(config.names)}),
            names_setting="the broker's setting metrics.names",
            pages={READY_PATH: ready},
            guard=guard,
        )
    except OSError as error:
        address = Address(config.host, config.port)
        raise not_served("the metrics page", address, "metrics", error) from error
