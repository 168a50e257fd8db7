"""docs/protocol.md and docs/format.md are enough to write a client by DRPC in sixty lines."""

import socket

import pytest
from docs.generate import PROTOCOL
from docs.protocol_page import chunks_of, packets
from tests.integration.running_broker import RunningBroker
from tests.interop import drpc_client
from tests.interop.drpc_capture import capture
from tests.interop.drpc_client import Connection


def test_sixty_lines_write_and_read_a_record(shared_broker: RunningBroker, topic_name: str) -> None:
    topic_id = shared_broker.create_topic(topic_name).topic_id
    host, _, port = shared_broker.drpc_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as to:
        connection = Connection(to)
        assert drpc_client.hello(connection).drpc_address == shared_broker.drpc_address
        assert drpc_client.write(connection, topic_id, b"first") == 0
        assert drpc_client.write(connection, topic_id, b"second") == 1
        assert drpc_client.read(connection, topic_id, 1) == b"second"
        with pytest.raises(RuntimeError, match="status 12: unknown rpc"):
            connection.call("Replica/Fetch")
        assert drpc_client.hello(connection).broker_name


def test_a_broker_sends_and_takes_the_packets_that_the_page_shows(
    shared_broker: RunningBroker, topic_name: str
) -> None:
    recorded = capture(shared_broker, shared_broker.create_topic(topic_name).topic_id)
    shown = chunks_of(PROTOCOL.read_text())
    for side in "<>":
        now, then = (
            [
                (header.control, header.stream, header.message)
                for by, header, *_ in found
                if by == side
            ]
            for found in (list(packets(recorded)), list(packets(shown)))
        )
        assert now == then
