"""Pages over HTTP for Prometheus and probes, served by threads of their own.

A peer may connect and stay silent, or vanish. So a silent peer is disconnected, and with too many
connections the oldest one is closed: the pages stay available for the next request. Broker,
operator and Spark's driver serve theirs so; this is no part of the public API.
"""

import socket
import sys
import threading
from contextlib import suppress
from http.server import ThreadingHTTPServer
from typing import Any, Final

from prometheus_client import MetricsHandler

CONNECTIONS_MAX: Final = 16
"""Connections at a time. Each request has its own, and takes milliseconds."""
SILENT_S_MAX: Final = 10
"""How long a peer may be silent."""


class PageHandler(MetricsHandler):
    """Answers one request: with the metrics of `registry`, or with a page of a subclass."""

    timeout = SILENT_S_MAX

    def answer(self, status: int, text: str) -> None:
        """Answer with lines of text."""
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class PageServer(ThreadingHTTPServer):
    """See the module. It serves until it is closed.

    Args:
        host: name or address to listen on.
        port: 0: any that is free.
        handler: answers the requests.
        name: of the thread that accepts connections.

    Raises:
        OSError: the address cannot be bound.
    """

    request_queue_size = 128  # Further peers try again a second later.

    def __init__(self, host: str, port: int, handler: type[PageHandler], name: str) -> None:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = found[0]
        self._room = threading.Semaphore(CONNECTIONS_MAX)
        self._lock = threading.Lock()
        self._open: dict[Any, bool] = {}  # Sockets, in order of arrival.
        super().__init__((str(address[0]), port), handler)
        self._thread = threading.Thread(target=self.serve_forever, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving; waits for the thread."""
        self.shutdown()
        self.server_close()
        self._thread.join()

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
