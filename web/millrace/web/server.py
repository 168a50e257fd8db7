"""Serves the site over HTTP, to this machine alone.

Each connection carries one request. A peer may connect and stay silent, send its request byte by
byte, or never read its answer, so each step has a time limit. With too many connections the server
closes the one that has waited longest without a whole request. So the page stays available.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Final, Self, TypeAlias

from millrace.web.clusters import Clusters
from millrace.web.messages import HEAD_BYTES_MAX, RefusedError, Request, Response, parse_request
from millrace.web.site import Site, refusal

CONNECTIONS_MAX: Final = 64
"""Connections at a time; browsers open several, also in advance."""
HEAD_S_MAX: Final = 10.0
"""How long a request may take to arrive."""
WRITE_S_MAX: Final = 30.0
"""How long an answer may take to be read."""

Respond: TypeAlias = Callable[[Request], Awaitable[Response]]


class WebServer:
    """See the module. Made by `serve`."""

    def __init__(self, respond: Respond, clusters: Clusters) -> None:
        self._respond, self._clusters = respond, clusters
        self._server: asyncio.Server | None = None
        self._waiting: dict[asyncio.Task[None], None] = {}
        """Connections without a whole request, in order of arrival."""
        self._all: set[asyncio.Task[None]] = set()

    @classmethod
    async def serve(cls, listening: socket.socket, clusters: Clusters) -> Self:
        """Serve the pages of clusters on a socket."""
        server = cls(Site(clusters).respond, clusters)
        server._server = await asyncio.start_server(
            server._on_connection, sock=listening, limit=HEAD_BYTES_MAX
        )
        return server

    async def close(self) -> None:
        """Stop serving, and close all connections."""
        if self._server is not None:
            self._server.close()
        for each in self._all:
            each.cancel()
        await asyncio.gather(*self._all, return_exceptions=True)
        await self._clusters.close()

    async def _on_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._all.add(task)
        self._waiting[task] = None
        if len(self._all) > CONNECTIONS_MAX:
            # Perhaps this one. It is not in the dict from now on: many may arrive before it ends.
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.cancel()
        try:
            method, response = await self._response(reader, task)
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
            request = parse_request(head)
        except asyncio.LimitOverrunError:
            error = RefusedError(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head of the request is too long"
            )
            return "GET", refusal(error)
        except TimeoutError:
            error = RefusedError(HTTPStatus.REQUEST_TIMEOUT, "the request did not come in time")
            return "GET", refusal(error)
        except RefusedError as error:
            return "GET", refusal(error)
        self._waiting.pop(task, None)
        return request.method, await self._respond(request)
