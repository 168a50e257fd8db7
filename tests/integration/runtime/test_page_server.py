"""The server has a bound on connections, however they arrive, and serves the next one."""

import asyncio
import socket
import time
from collections.abc import Callable
from http import HTTPStatus

import pytest
from tests.fakes.silent_peers import is_closed

from millrace.runtime.page_messages import OwnHosts, RefusedError, Request, Response
from millrace.runtime.page_server import HEAD_S_MAX, PageServer

CONNECTIONS_MAX = 64
LARGE = 20 << 20
REQUEST = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Shown:
    """A small page, a large one, and one that is made for ever."""

    hosts = OwnHosts("localhost".__eq__, "ask for localhost")

    def __init__(self) -> None:
        self.made = 0

    def takes_form(self, path: str) -> bool:
        return path == "/form"

    async def respond(self, request: Request) -> Response:
        self.made += 1
        if request.path == "/never":
            await asyncio.Event().wait()
        return Response(bytes(LARGE) if request.path == "/large" else b"small")

    def refuse(self, error: RefusedError) -> Response:
        return Response(error.why.encode(), status=error.status)


def connected(to: socket.socket, count: int) -> list[socket.socket]:
    return [socket.create_connection(to.getsockname()) for _ in range(count)]


async def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HEAD_S_MAX / 2
    while not is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def answer(peer: socket.socket) -> bytes:
    reader, writer = await asyncio.open_connection(sock=peer)
    writer.write(REQUEST % b"small")
    read = await asyncio.wait_for(reader.read(), HEAD_S_MAX / 2)
    writer.close()
    return read


@pytest.mark.parametrize("burst", [CONNECTIONS_MAX, CONNECTIONS_MAX + 1, 2 * CONNECTIONS_MAX])
def test_of_a_burst_of_connections_the_newest_stay(burst: int) -> None:
    async def answered() -> bytes:
        listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        # They wait in the backlog, so that the server accepts many of them in one turn.
        peers = connected(listening, burst)
        server = await PageServer.serve(listening, Shown(), CONNECTIONS_MAX)
        try:
            await until(lambda: sum(map(is_closed, peers)) >= burst - CONNECTIONS_MAX)
            assert [is_closed(peer) for peer in peers[-CONNECTIONS_MAX:]] == (
                [False] * CONNECTIONS_MAX
            )
            return await answer(peers.pop())
        finally:
            await server.close()
            for peer in peers:
                peer.close()

    assert asyncio.run(answered()).startswith(b"HTTP/1.1 200 ")


def test_peers_that_never_read_their_answers_make_room_for_the_next_one() -> None:
    async def answered() -> bytes:
        listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        pages = Shown()
        server = await PageServer.serve(listening, pages, 4)
        peers = connected(listening, 4)
        try:
            for peer in peers:
                peer.send(REQUEST % b"large")
            await until(lambda: pages.made == len(peers))
            return await answer(connected(listening, 1)[0])
        finally:
            await server.close()
            for peer in peers:
                peer.close()

    assert asyncio.run(answered()).startswith(b"HTTP/1.1 200 ")


def test_a_page_that_is_being_made_is_not_given_up_for_further_connections() -> None:
    async def closed() -> list[bool]:
        listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        pages = Shown()
        server = await PageServer.serve(listening, pages, 4)
        peers = connected(listening, 4)
        try:
            for peer in peers:
                peer.send(REQUEST % b"never")
            await until(lambda: pages.made == len(peers))
            peers += connected(listening, 1)
            await until(lambda: is_closed(peers[-1]))
            return [is_closed(peer) for peer in peers[:-1]]
        finally:
            await server.close()
            for peer in peers:
                peer.close()

    assert asyncio.run(closed()) == [False] * 4


def test_what_is_no_request_is_answered() -> None:
    async def answered() -> bytes:
        listening = socket.create_server(("127.0.0.1", 0))
        server = await PageServer.serve(listening, Shown(), 4)
        try:
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            writer.write(b"EHLO example.org\r\n\r\n")
            read = await asyncio.wait_for(reader.read(), HEAD_S_MAX / 2)
            writer.close()
            return read
        finally:
            await server.close()

    assert asyncio.run(answered()).startswith(b"HTTP/1.1 %d " % HTTPStatus.BAD_REQUEST)
