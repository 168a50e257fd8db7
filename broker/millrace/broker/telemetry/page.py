"""The page `/metrics` of a broker for Prometheus."""

from collections.abc import Collection

from prometheus_client import CollectorRegistry

from millrace.broker.address import Address, not_served
from millrace.core.broker_config import MetricsConfig
from millrace.runtime.telemetry_server import TelemetryServer, names_in


def serve_metrics(
    config: MetricsConfig, registry: CollectorRegistry, names: Collection[str] = ()
) -> TelemetryServer:
    """Serve the page.

    Args:
        config: where it is.
        registry: holds the metrics.
        names: of this machine that are configured elsewhere.

    Raises:
        InvalidConfigError: the address cannot be bound.
    """
    try:
        return TelemetryServer(
            (config.host, config.port),
            registry,
            thread_name="metrics-page",
            names=frozenset({*names, config.host, *names_in(config.names)}),
            names_setting="the broker's setting metrics.names",
        )
    except OSError as error:
        address = Address(config.host, config.port)
        raise not_served("the metrics page", address, "metrics", error) from error
