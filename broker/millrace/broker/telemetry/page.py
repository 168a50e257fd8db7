"""The page `/metrics` of a broker for Prometheus."""

from collections.abc import Collection
from typing import Self

from prometheus_client import CollectorRegistry

from millrace.broker.address import Address, not_served
from millrace.core.broker_config import MetricsConfig
from millrace.runtime.page_server import PageHandler, PageServer, names_in


class MetricsPage:
    """See the module. Made by `MetricsPage.serve`.

    Attributes:
        address: where it is.
    """

    def __init__(self, server: PageServer, host: str) -> None:
        self._server = server
        self.address = Address(host, server.server_port)

    @classmethod
    def serve(
        cls, config: MetricsConfig, registry: CollectorRegistry, names: Collection[str] = ()
    ) -> Self:
        """Serve the page.

        Args:
            config: where it is.
            registry: holds the metrics.
            names: of this machine that are configured elsewhere.

        Raises:
            InvalidConfigError: the address cannot be bound.
        """
        handler: type[PageHandler] = PageHandler.factory(registry)
        handler.names = frozenset({*names, config.host, *names_in(config.names)})
        handler.names_setting = "the broker's setting metrics.names"
        try:
            server = PageServer(config.host, config.port, handler, "metrics-page")
        except OSError as error:
            address = Address(config.host, config.port)
            raise not_served("the metrics page", address, "metrics", error) from error
        return cls(server, config.host)

    def close(self) -> None:
        """Stop serving; waits for the thread."""
        self._server.close()
