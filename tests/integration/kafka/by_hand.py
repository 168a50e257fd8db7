"""Connections of Kafka's protocol whose requests the test writes."""

import socket
import ssl
import struct
from pathlib import Path
from typing import Any, Self

from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.metadata import FindCoordinatorRequest
from kafka.protocol.producer import ProduceRequest
from tests.fakes.kafka_ends import request_frame
from tests.integration.running_broker import RunningBroker, wait_until

from millrace.broker.kafka.requests import ApiKey
from millrace.broker.kafka.wire import codec

TIMEOUT_S = 60


class Hand:
    """One connection, on which requests follow each other.

    Args:
        broker: to connect to.
        ca: of its certificate; None: the connection is in plain text.
        certificate: files of a client's certificate and key.

    Attributes:
        socket: for what is no request.
    """

    def __init__(
        self,
        broker: RunningBroker,
        ca: Path | None = None,
        certificate: tuple[str, str] | None = None,
    ) -> None:
        host, _, port = broker.kafka_address.rpartition(":")
        self.socket: socket.socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        if ca is not None:
            context = ssl.create_default_context(cafile=str(ca))
            if certificate is not None:
                context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self._reader = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self._reader.close()
        self.socket.close()

    def send_bytes(self, data: bytes) -> None:
        """Send bytes, and wait for nothing."""
        self.socket.sendall(data)

    def send(self, key: int, version: int, message: Any = None) -> None:
        """Send a request, and wait for nothing."""
        self.send_bytes(request_frame(key, version, message))

    def frame(self) -> bytes | None:
        """Return the next answer without its length; None: the connection is ended."""
        try:
            begin = self._reader.read(4)
            return self._reader.read(struct.unpack(">i", begin)[0]) if len(begin) == 4 else None
        except (ConnectionError, ssl.SSLError):
            return None

    def answer(self, key: int, version: int) -> Any:
        """Return the next answer, which is to such a request; None: the connection is ended."""
        data = self.frame()
        if data is None:
            return None
        begin = 5 if codec.is_flexible(key, version) and key != ApiKey.API_VERSIONS else 4
        return codec.response_class(key).decode(data[begin:], version=version)

    def ask(self, key: int, version: int, message: Any = None) -> Any:
        """Return the answer to a request; None: the connection is ended."""
        self.send(key, version, message)
        return self.answer(key, version)


def produce_request(topic: str, batch: bytes) -> Any:
    """Return a request that writes a batch to a topic's first partition."""
    kind: Any = ProduceRequest.TopicProduceData
    data = kind.PartitionProduceData(index=0, records=batch)
    return ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[kind(name=topic, partition_data=[data])],
    )


def wait_for_coordinators(hand: Hand) -> None:
    """Return once a broker that is alone coordinates all groups.

    The first question makes their topic. Its partitions are loaded a little later, one after the
    other; until then a group's requests are refused, and clients send them again.
    """
    finding = FindCoordinatorRequest(key_type=0, coordinator_keys=["first"])
    listing = ListGroupsRequest(states_filter=[], types_filter=[])

    def are_loaded() -> bool:
        (found,) = hand.ask(ApiKey.FIND_COORDINATOR, 6, finding).coordinators
        return (found.error_code, hand.ask(ApiKey.LIST_GROUPS, 5, listing).error_code) == (0, 0)

    wait_until(are_loaded, "all groups are coordinated")


def asked(broker: RunningBroker, key: int, version: int, message: Any = None) -> Any:
    """Return the answer to one request on a connection of its own."""
    with Hand(broker) as hand:
        return hand.ask(key, version, message)
