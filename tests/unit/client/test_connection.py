"""A connection that many users share."""

from typing import Any, cast

import pytest

from millrace.client import ConnectionFailedError
from millrace.client._cluster.connection import Connection


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
