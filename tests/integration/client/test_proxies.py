"""Clients behind a proxy that lets only HTTP/2 through, in front of every address of a broker."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.api_server.running import free_port
from tests.integration.running_broker import RunningBroker

from millrace.client import SyncAdmin, SyncConsumer, SyncProducer

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
RECORDS = 20
PARTITIONS = 3
CLIENTS = 3


class Proxy:
    """Passes connections on to a port; closes one whose first bytes are not HTTP/2's preface.

    Attributes:
        passed: connections that were HTTP/2.
        refused: others, also those that never said anything.
        passes_all: whether it takes others, too.
    """

    def __init__(self, upstream_port: int) -> None:
        self._upstream = ("127.0.0.1", upstream_port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.passed = self.refused = 0
        self.passes_all = False
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        for each in (self._listening, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # It was closed.
            while True:
                client, _ = self._listening.accept()
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError):
            first = client.recv(len(PREFACE))
            while PREFACE.startswith(first) and 0 < len(first) < len(PREFACE):
                first += client.recv(len(PREFACE) - len(first))
            if first != PREFACE and not self.passes_all:
                self.refused += 1
                client.close()
                return
            self.passed += 1
            broker = socket.create_connection(self._upstream)
            self._open.append(broker)
            broker.sendall(first)
            threading.Thread(target=_pump, args=(broker, client), daemon=True).start()
            _pump(client, broker)


def _pump(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


class Proxied:
    """A broker that clients reach through proxies alone."""

    def __init__(self, folder: Path) -> None:
        ports = free_port(), free_port()
        self.grpc, self.drpc = map(Proxy, ports)
        self.broker = RunningBroker(
            folder,
            {
                "listeners.clients.port": ports[0],
                "listeners.clients.advertised_port": self.grpc.port,
                "listeners.clients_drpc.port": ports[1],
                "listeners.clients_drpc.advertised_port": self.drpc.port,
            },
        )
        self.address = f"127.0.0.1:{self.grpc.port}"

    def write_and_read(self, topic: str, transport: str = "auto") -> None:
        """Have clients of each kind do their work."""
        with SyncAdmin(self.address, transport=transport) as admin:
            admin.create_topic(topic, partitions=PARTITIONS)
        sent = {b"%d" % row for row in range(RECORDS)}
        with SyncProducer(self.address, transport=transport) as producer:
            for value in sent:
                producer.send(topic, value)
        found: set[bytes | None] = set()
        with SyncConsumer(self.address, group=topic, transport=transport) as consumer:
            consumer.subscribe([topic])
            while len(found) < RECORDS:
                records = consumer.poll(timeout_ms=20_000)
                assert records, f"{len(found)} of {RECORDS} records came"
                found.update(record.value for record in records)
            consumer.commit()
        assert found == sent


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    the = Proxied(tmp_path_factory.mktemp("proxied"))
    with the.broker:
        yield the
    the.grpc.close()
    the.drpc.close()


def test_clients_use_grpc_where_a_proxy_lets_only_http_2_through(
    proxied: Proxied, topic_name: str
) -> None:
    proxied.write_and_read(topic_name)
    assert proxied.grpc.passed
    assert not proxied.drpc.passed
    # Each tries once, and not again for a while.
    assert proxied.drpc.refused == CLIENTS


def test_a_client_with_transport_grpc_opens_no_connection_by_drpc(
    proxied: Proxied, topic_name: str
) -> None:
    before = proxied.drpc.refused
    proxied.write_and_read(topic_name, transport="grpc")
    assert proxied.drpc.refused == before
    assert not proxied.drpc.passed


def test_clients_use_drpc_where_a_proxy_lets_it_through(proxied: Proxied, topic_name: str) -> None:
    proxied.drpc.passes_all = True
    try:
        proxied.write_and_read(topic_name)
        # The admin's calls, the producer's, the consumer's, and two streams of records.
        assert proxied.drpc.passed >= 5
    finally:
        proxied.drpc.passes_all, proxied.drpc.passed = False, 0
