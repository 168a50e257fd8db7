"""The page `/metrics` for Prometheus, served by threads of its own.

A peer may connect and stay silent, or vanish. So a silent peer is disconnected, and with too many
connections the oldest one is closed: the page stays available for the next request.
"""

import socket
import sys
import threading
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry, MetricsHandler

from millrace.broker.address import Address, not_served
from millrace.core.broker_config import MetricsConfig

CONNECTIONS_MAX: Final = 16
"""Connections at a time. Each request has its own, and takes milliseconds."""
_SILENT_SECONDS_MAX: Final = 10


class MetricsPage:
    """See the module. Made by `MetricsPage.serve`.

    Attributes:
        address: where it is.
    """

    def __init__(self, server: ThreadingHTTPServer, host: str) -> None:
        self._server = server
        self.address = Address(host, server.server_port)
        threading.Thread(target=server.serve_forever, name="metrics-page", daemon=True).start()

    @classmethod
    def serve(cls, config: MetricsConfig, registry: CollectorRegistry) -> Self:
        """Serve the page.

        Raises:
            InvalidConfigError: the address cannot be bound.
        """
        try:
            server = _Server(config, _Handler.factory(registry))
        except OSError as error:
            address = Address(config.host, config.port)
            raise not_served("the metrics page", address, "metrics", error) from error
        return cls(server, config.host)

    def close(self) -> None:
        """Stop serving; waits for the thread."""
        self._server.shutdown()
        self._server.server_close()


class _Handler(MetricsHandler):
    timeout = _SILENT_SECONDS_MAX


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # Further peers try again a second later.

    def __init__(self, config: MetricsConfig, handler: type) -> None:
        found = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        self.address_family, _, _, _, address = found[0]
        self._room = threading.Semaphore(CONNECTIONS_MAX)
        self._lock = threading.Lock()
        self._open: dict[Any, bool] = {}  # Sockets, in order of arrival.
        super().__init__((str(address[0]), config.port), handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = True
            first = next(iter(self._open)) if len(self._open) > CONNECTIONS_MAX else None
        if first is not None:
            with suppress(OSError):  # It has just ended by itself.
                first.shutdown(socket.SHUT_RDWR)  # This ends its thread's read or write.
        self._room.acquire()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._lock:
            if self._open.pop(request, False):
                self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # A peer may go away.
            super().handle_error(request, client_address)
