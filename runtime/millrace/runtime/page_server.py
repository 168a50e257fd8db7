"""Pages over HTTP for Prometheus and probes, served by threads of their own.

A peer may connect and stay silent, or vanish. So a silent peer is disconnected, and with too many
connections the oldest one is closed: the pages stay available for the next request. Broker,
operator and Spark's driver serve theirs so; this is no part of the public API.

A page is there for GET and HEAD, at its own path, and under an address or a name of this machine.
Another name in `Host` means DNS rebinding: a page of another site lets a name of its own point to
this address, and reads here what its visitor's network may read. It needs a name in the public DNS
for that, so a name that cannot be there is let in. Source: RFC 9110, RFC 6761, RFC 6762.
"""

import socket
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from io import BytesIO
from ipaddress import ip_address
from typing import Any, Final

from prometheus_client import MetricsHandler

CONNECTIONS_MAX: Final = 16
"""Connections at a time. Each request has its own, and takes milliseconds."""
SILENT_S_MAX: Final = 10
"""How long a peer may be silent."""

METRICS_PATH: Final = "/metrics"
_METHODS: Final = ("GET", "HEAD")
_PRIVATE_DOMAINS: Final = frozenset({"internal", "local", "localhost", "svc"})
"""Last labels of names that the public DNS does not have; Kubernetes' are `svc` and `local`."""


class PageHandler(MetricsHandler):
    """Answers one request: with the metrics of `registry`, or with a page of a subclass.

    Attributes:
        names: of this machine, besides its host name.
        names_setting: where more of them are set; empty: nowhere.
    """

    timeout = SILENT_S_MAX
    names: Collection[str] = ()
    names_setting = ""

    def page(self, path: str) -> tuple[int, str] | None:
        """Return status and text of a page besides the metrics; None: there is no such page."""

    def parse_request(self) -> bool:
        """Implement `BaseHTTPRequestHandler`: refuse what no page is for."""
        if not super().parse_request():
            return False
        hosts = self.headers.get_all("Host", [])
        if self.command not in _METHODS:
            self.answer(HTTPStatus.METHOD_NOT_ALLOWED, "it answers GET and HEAD")
        # HTTP/1.0 may leave it out. A browser does not.
        elif not all(is_own_host(host, self.names) for host in hosts):
            advice = f", or add the name to {self.names_setting}" if self.names_setting else ""
            self.answer(
                HTTPStatus.MISDIRECTED_REQUEST,
                "this is no name of this machine that is known here: ask by its IP address or a "
                f"name without a dot{advice}",
            )
        else:
            return True
        return False

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == METRICS_PATH:
            super().do_GET()
            return
        status, text = self.page(path) or (HTTPStatus.NOT_FOUND, f"ask for {METRICS_PATH}")
        self.answer(status, text)

    def do_HEAD(self) -> None:
        peer, self.wfile = self.wfile, BytesIO()
        try:
            self.do_GET()
            head, end, _ = self.wfile.getvalue().partition(b"\r\n\r\n")
        finally:
            self.wfile = peer
        self.wfile.write(head + end)

    def answer(self, status: int, text: str) -> None:
        """Answer with lines of text."""
        body = f"{text}\n".encode()
        self.send_response(status)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", ", ".join(_METHODS))
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def names_in(text: str) -> frozenset[str]:
    """Return the names of a setting, which stand between commas."""
    return frozenset(text.replace(",", " ").split())


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Return whether a `Host` can be this machine's: see the module.

    Args:
        host: the value of the field.
        names: further names of the machine.
    """
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    with suppress(ValueError):
        return bool(ip_address(name))
    name = name.removesuffix(".")
    _, dot, last = name.rpartition(".")
    is_public = bool(dot) and last not in _PRIVATE_DOMAINS
    return not is_public or name in {socket.gethostname().lower(), *map(str.lower, names)}


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
