"""The page `/metrics` for Prometheus, served by a thread of its own."""

from typing import Self
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from millrace.broker.address import Address
from millrace.broker.config import MetricsConfig
from millrace.core.errors import InvalidConfigError


class MetricsPage:
    """See the module. Made by `MetricsPage.serve`.

    Attributes:
        address: where it is.
    """

    def __init__(self, server: WSGIServer, host: str) -> None:
        self._server = server
        self.address = Address(host, server.server_port)

    @classmethod
    def serve(cls, config: MetricsConfig, registry: CollectorRegistry) -> Self:
        """Serve the page.

        Raises:
            InvalidConfigError: the port cannot be had.
        """
        try:
            server, _ = start_http_server(config.port, config.host, registry)
        except OSError as error:
            raise InvalidConfigError(
                f"the metrics page cannot listen on {Address(config.host, config.port)}: "
                f"{error.strerror}: set metrics.port to another port, or to -1 for none"
            ) from error
        return cls(server, config.host)

    def close(self) -> None:
        """Serve it no more; waits for the thread."""
        self._server.shutdown()
        self._server.server_close()
