"""The server has a bound on connections, however they arrive."""

import asyncio
import socket
import time

import pytest
from tests.fakes.shown_clusters import ShownAdmin, ShownClusters, cluster

from millrace.web.listening import listening_socket
from millrace.web.server import CONNECTIONS_MAX, HEAD_S_MAX, WebServer

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("burst", [CONNECTIONS_MAX, CONNECTIONS_MAX + 1, 2 * CONNECTIONS_MAX])
def test_of_a_burst_of_connections_the_newest_stay(burst: int) -> None:
    async def answered() -> bytes:
        listening = listening_socket(0)
        # They wait in the backlog, so that the server accepts many of them in one turn.
        peers = [socket.create_connection(listening.getsockname()) for _ in range(burst)]
        server = await WebServer.serve(listening, ShownClusters(cluster(ShownAdmin())))
        try:
            deadline = time.monotonic() + HEAD_S_MAX / 2
            while sum(map(is_closed, peers)) < burst - CONNECTIONS_MAX:
                assert time.monotonic() < deadline, sum(map(is_closed, peers))
                await asyncio.sleep(0.01)
            assert [is_closed(each) for each in peers[-CONNECTIONS_MAX:]] == (
                [False] * CONNECTIONS_MAX
            )
            reader, writer = await asyncio.open_connection(sock=peers.pop())
            writer.write(REQUEST)
            answer = await reader.read()
            writer.close()
            return answer
        finally:
            await server.close()
            for each in peers:
                each.close()

    assert asyncio.run(answered()).startswith(b"HTTP/1.1 200 ")


def is_closed(peer: socket.socket) -> bool:
    """Return whether the server has closed the connection of a peer that has sent nothing."""
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
