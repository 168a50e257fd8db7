"""Connections of Kafka's protocol whose requests the test writes."""

import socket
import struct
from typing import Any

from tests.fakes.kafka_ends import request_frame
from tests.integration.running_broker import RunningBroker

from millrace.broker.kafka import codec
from millrace.broker.kafka.requests import ApiKey

TIMEOUT_S = 60


class Hand:
    """One connection, on which requests follow each other.

    Attributes:
        socket: for what is no request.
    """

    def __init__(self, broker: RunningBroker) -> None:
        host, _, port = broker.kafka_address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._reader = self.socket.makefile("rb")

    def __enter__(self) -> "Hand":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._reader.close()
        self.socket.close()

    def send(self, key: int, version: int, message: Any = None) -> None:
        """Send a request, and wait for nothing."""
        self.socket.sendall(request_frame(key, version, message))

    def frame(self) -> bytes:
        """Return the next answer without its length; empty: the connection is ended."""
        try:
            begin = self._reader.read(4)
            return self._reader.read(struct.unpack(">i", begin)[0]) if len(begin) == 4 else b""
        except ConnectionError:
            return b""

    def answer(self, key: int, version: int) -> Any:
        """Return the next answer, which is to such a request."""
        data = self.frame()
        assert data, "the connection is ended"
        begin = 5 if codec.is_flexible(key, version) and key != ApiKey.API_VERSIONS else 4
        return codec.response_class(key).decode(data[begin:], version=version)

    def ask(self, key: int, version: int, message: Any = None) -> Any:
        """Return the answer to a request."""
        self.send(key, version, message)
        return self.answer(key, version)


def asked(broker: RunningBroker, key: int, version: int, message: Any = None) -> Any:
    """Return the answer to one request on a connection of its own."""
    with Hand(broker) as hand:
        return hand.ask(key, version, message)
