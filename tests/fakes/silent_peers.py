"""Peers that connect and say nothing, or not enough."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager


@contextmanager
def silent_peers(host: str, port: int, count: int) -> Iterator[list[socket.socket]]:
    """Keep so many connections open."""
    with ExitStack() as peers:
        connected = []
        for number in range(count):
            peer = peers.enter_context(socket.create_connection((host, port), timeout=10))
            peer.sendall((b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\nHost:")[number % 3])
            connected.append(peer)
        yield connected


def is_closed(peer: socket.socket) -> bool:
    """Return whether the server has closed the connection of a peer that reads nothing else."""
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
