"""Pages for Prometheus and probes, on a thread of their own: `/metrics`, and pages of lines.

They are there under an address or a name of this machine. A name that means DNS rebinding needs to
be in the public DNS, so a name that cannot be there is let in. Source: RFC 6761, RFC 6762.

Where a token has to be shown, metrics are for who shows it. Probes have none: they get the status
of the other pages, without their words (G5).
"""

import asyncio
import gzip
import socket
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from millrace.runtime.listening import listen
from millrace.runtime.page_guard import PageFiles, PageGuard
from millrace.runtime.page_messages import (
    OwnHosts,
    RefusedError,
    Request,
    Response,
    no_forms,
)
from millrace.runtime.page_server import PageServer

CONNECTIONS_MAX: Final = 16
"""Connections at a time. Each request has its own, and takes milliseconds."""
METRICS_PATH: Final = "/metrics"
_PRIVATE_DOMAINS: Final = frozenset({"internal", "local", "localhost", "svc"})
"""Last labels of names that the public DNS does not have; Kubernetes' are `svc` and `local`."""


class TelemetryServer:
    """Serves the pages until it is closed; implements `Pages`.

    Args:
        address: host, by name or address, and port to listen on; 0: any that is free.
        registry: holds the metrics.
        thread_name: of the thread that serves.
        names: of this machine, besides its host name.
        names_setting: where more of them are set; empty: nowhere.
        pages: further ones, by path: each returns status and text, on the server's thread.
        guard: TLS, and a token that has to be shown; None: everybody is let in.

    Attributes:
        port: where it listens.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(
        self,
        address: tuple[str, int],
        registry: CollectorRegistry,
        *,
        thread_name: str,
        names: Collection[str] = (),
        names_setting: str = "",
        pages: Mapping[str, Callable[[], tuple[HTTPStatus, str]]] | None = None,
        guard: PageGuard | None = None,
    ) -> None:
        self._registry, self._pages = registry, pages or {}
        self._guard = PageGuard(PageFiles(), address[0]) if guard is None else guard
        self.hosts = OwnHosts(
            lambda host: is_own_host(host, names),
            "this is no name of this machine that is known here: ask by its IP address or a name "
            "without a dot" + (f", or add the name to {names_setting}" if names_setting else ""),
        )
        listening = listen(*address)
        self.port: Final[int] = listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._is_closed = asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, args=(listening,), name=thread_name, daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving; waits for the thread. Closing twice is harmless."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._is_closed.set)
            self._thread.join()

    def takes_form(self, path: str) -> bool:
        return no_forms(path)

    async def respond(self, request: Request) -> Response:
        is_let_in = self._guard.lets_in(request)
        if request.path == METRICS_PATH:
            return self._metrics(request) if is_let_in else _UNKNOWN
        page = self._pages.get(request.path)
        if page is None:
            return _lines(HTTPStatus.NOT_FOUND, f"ask for {METRICS_PATH}")
        status, text = page()
        return _lines(status, text if is_let_in else status.phrase)

    def refuse(self, error: RefusedError) -> Response:
        return _lines(error.status, error.why)

    def _run(self, listening: socket.socket) -> None:
        async def serve() -> None:
            server = await PageServer.serve(
                listening, self, CONNECTIONS_MAX, self._guard.credentials
            )
            await self._is_closed.wait()
            await server.close()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(serve())

    def _metrics(self, request: Request) -> Response:
        encode, content_type = choose_encoder(request.fields.get("accept", ""))
        body = encode(self._registry)
        encodings = request.fields.get("accept-encoding", "").split(",")
        if "gzip" not in {encoding.partition(";")[0].strip() for encoding in encodings}:
            return Response(body, content_type=content_type)
        zipped = {"Content-Encoding": "gzip"}
        return Response(gzip.compress(body), content_type=content_type, fields=zipped)


def names_in(text: str) -> frozenset[str]:
    """Return the names of a setting, which stand between commas."""
    return frozenset(text.replace(",", " ").split())


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Return whether a host can be this machine's.

    Args:
        host: in lower case; an IPv6 address is in brackets. HTTP/1.0 may leave it out, and a
            browser does not: empty is this machine.
        names: further names of the machine.
    """
    with suppress(ValueError):
        return bool(ip_address(host.strip("[]")))
    name = host.removesuffix(".")
    _, dot, last = name.rpartition(".")
    is_public = bool(dot) and last not in _PRIVATE_DOMAINS
    return not is_public or name in {socket.gethostname().lower(), *map(str.lower, names)}


def _lines(status: HTTPStatus, text: str) -> Response:
    return Response(f"{text}\n".encode(), status, "text/plain; charset=utf-8")


_UNKNOWN: Final = Response(
    b"show the token that this page asks for, as Prometheus does by authorization\n",
    HTTPStatus.UNAUTHORIZED,
    "text/plain; charset=utf-8",
    {"WWW-Authenticate": "Bearer"},
)
