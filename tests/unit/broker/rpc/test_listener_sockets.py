"""The connections of a listener, found among the process's own descriptors."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from millrace.broker.rpc.listener_sockets import ListenerSockets, peer_name


@pytest.fixture(params=[(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def listener(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    family, host = request.param
    with socket.socket(family) as bound:
        try:
            bound.bind((host, 0))
        except OSError:
            pytest.skip(f"there is no {host} here")
        bound.listen()
        yield bound


def test_connections_are_told_by_their_peers_and_shut_down(listener: socket.socket) -> None:
    host, port = listener.getsockname()[:2]
    sockets = ListenerSockets([port])
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection((host, port), timeout=10))
            for _ in range(3)
        ]
        for _ in clients:
            stack.enter_context(listener.accept()[0])
        names = {f"{host} {client.getsockname()[1]}": client for client in clients}
        found = sockets.peers()
        assert sorted(found.values()) == sorted(names)
        assert sockets.peers() == found
        connection, peer = next(iter(found.items()))
        sockets.shut_down([connection])
        assert names.pop(peer).recv(1) == b"", "it was closed"
        for other in names.values():
            other.settimeout(0.01)
            with pytest.raises(TimeoutError):
                other.recv(1)
    assert sockets.peers() == {}


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        ("ipv4:127.0.0.1:7092", "127.0.0.1 7092"),
        ("ipv6:%5B::1%5D:7092", "::1 7092"),
        ("ipv6:[::ffff:10.0.0.1]:7092", "10.0.0.1 7092"),
        ("ipv6:%5Bfe80::1%252%5D:7092", "fe80::1 7092"),
        ("unix:", "unix:"),
    ],
)
def test_peers_are_called_as_grpc_means_them(peer: str, name: str) -> None:
    assert peer_name(peer) == name
