"""A connection that many users share."""

from typing import Any, cast

import pytest

from millrace.client import ConnectionFailedError
from millrace.client._cluster.cluster import Cluster
from millrace.client._cluster.connection import Connection
from millrace.proto.v1 import cluster_pb2


class Channel:
    """Counts the methods that are made on it."""

    def __init__(self) -> None:
        self.made = 0

    def unary_unary(self, *_: object, **__: object) -> object:
        self.made += 1
        return object()

    stream_stream = unary_unary

    async def close(self) -> None:
        pass


def test_the_methods_of_a_service_are_made_once() -> None:
    channel = Channel()
    connection = Connection("b:1", cast(Any, channel))
    assert channel.made == 0
    method, made = connection.cluster.GetMetadata, channel.made
    assert connection.cluster.GetMetadata is method
    assert channel.made == made
    assert connection.fetch.ListOffsets
    assert channel.made > made


async def test_no_call_begins_on_a_connection_that_was_given_up() -> None:
    connection = Connection("b:1", cast(Any, Channel()))
    assert connection.cluster
    await connection.give_up()
    with pytest.raises(ConnectionFailedError, match="b:1 was given up"):
        _ = connection.cluster


async def test_a_broker_with_a_wrong_address_is_one_more_that_cannot_be_reached() -> None:
    class Away(Cluster):
        async def _connect(self, address: str) -> Connection:
            raise ConnectionFailedError(f"no broker listens at {address}")

    cluster = Away("localhost:1", client_id="c", timeout_ms=100)
    broker = cluster_pb2.BrokerMetadata(broker_id=1, address="b")
    cluster.metadata.learn(cluster_pb2.GetMetadataResponse(brokers=[broker]), is_full=False)
    with pytest.raises(ConnectionFailedError, match=r"at localhost:1; .* at b\."):
        await cluster.refresh()
    await cluster.close()
