"""Serves pages over HTTP: one server for the web page, for Prometheus and for probes.

Each connection carries one request. A peer may connect and stay silent, send its request byte by
byte, or never read its answer, so each step has a time limit. With too many connections the server
closes the one that has waited longest for its peer. So the pages stay available.

With credentials it speaks TLS, and each handshake has the certificate of its moment.
"""

import asyncio
import socket
import ssl
import time
from http import HTTPStatus
from typing import Final, Protocol, Self

from millrace.runtime.listening import BACKLOG
from millrace.runtime.page_messages import (
    HEAD_BYTES_MAX,
    OwnHosts,
    RefusedError,
    Request,
    Response,
    parse_request,
)
from millrace.runtime.transport.credentials import LOOK_SECONDS, ServerCredentials

HEAD_S_MAX: Final = 10.0
"""How long a request may take to arrive."""
WRITE_S_MAX: Final = 30.0
"""How long an answer may take to be read."""


class Pages(Protocol):
    """What a server serves."""

    hosts: OwnHosts

    def takes_form(self, path: str) -> bool:
        """Return whether a form may be sent to a path."""

    async def respond(self, request: Request) -> Response:
        """Return the response to a request."""

    def refuse(self, error: RefusedError) -> Response:
        """Return the response to what is no request for a page."""


class PageServer:
    """Serves pages on an event loop. Made by `serve`.

    Args:
        connections_max: open at a time; those count as well whose handshake is under way.
        credentials: for TLS, from files that are looked at again; None: in plain text.
    """

    def __init__(
        self, pages: Pages, connections_max: int, credentials: ServerCredentials | None
    ) -> None:
        self._pages, self._connections_max = pages, connections_max
        self._credentials = credentials
        self._looked_at = time.monotonic()
        self._server: asyncio.Server | None = None
        self._waiting: dict[asyncio.Task[None], None] = {}
        """Connections that wait for their peer, the one that has waited longest first."""
        self._all: set[asyncio.Task[None]] = set()

    @classmethod
    async def serve(
        cls,
        listening: socket.socket,
        pages: Pages,
        connections_max: int,
        credentials: ServerCredentials | None = None,
    ) -> Self:
        """Serve pages on a socket."""
        server = cls(pages, connections_max, credentials)
        server._server = await asyncio.start_server(
            server._on_connection, sock=listening, limit=HEAD_BYTES_MAX, backlog=BACKLOG
        )
        return server

    async def close(self) -> None:
        """Stop serving, and close all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._all:
            task.cancel()
        await asyncio.gather(*self._all, return_exceptions=True)

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._all.add(task)
        self._waiting[task] = None
        if len(self._all) > self._connections_max:
            # Perhaps this one. It is not in the dict from now on: many may arrive before it ends.
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
        try:
            if self._credentials is not None:
                await writer.start_tls(self._context(), ssl_handshake_timeout=HEAD_S_MAX)
            method, response = await self._response(reader, task)
            self._waiting[task] = None
            writer.write(response.encode(method))
            async with asyncio.timeout(WRITE_S_MAX):
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError):
            pass  # The peer has gone, or is too slow.
        except asyncio.CancelledError:
            pass  # There are too many connections, or the server ends: so does this one.
        finally:
            self._all.discard(task)
            self._waiting.pop(task, None)
            writer.transport.abort()

    def _context(self) -> ssl.SSLContext:
        """Return what a handshake that begins now is made with."""
        assert self._credentials is not None
        if time.monotonic() - self._looked_at >= LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self._credentials.look()
        return self._credentials.context

    async def _response(
        self, reader: asyncio.StreamReader, task: "asyncio.Task[None]"
    ) -> tuple[str, Response]:
        """Return the method of a request, and the response to it.

        Raises:
            EOFError: the peer has closed the connection.
        """
        try:
            async with asyncio.timeout(HEAD_S_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
                request = parse_request(head, self._pages.hosts, self._pages.takes_form)
                if request.method == "POST":
                    request = request.with_form(await reader.readexactly(request.form_bytes))
        except asyncio.LimitOverrunError:
            error = RefusedError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request is too long"
            )
            return "GET", self._pages.refuse(error)
        except TimeoutError:
            error = RefusedError(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time")
            return "GET", self._pages.refuse(error)
        except RefusedError as error:
            return "GET", self._pages.refuse(error)
        self._waiting.pop(task, None)
        return request.method, await self._pages.respond(request)
