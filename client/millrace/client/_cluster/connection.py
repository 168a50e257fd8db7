"""A connection to one broker, which many users share.

The first that finds it broken closes it for all. Closing the channel cancels the calls and streams
of the others. They must not treat that as a cancellation of their own task: they would end
silently, and their waiters would wait for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millrace.client._cluster import wire
from millrace.client._cluster.broker_channel import BrokerChannel
from millrace.core.errors import ConnectionFailedError
from millrace.proto.v1 import (
    cluster_pb2_grpc,
    common_pb2,
    fetch_pb2_grpc,
    groups_pb2_grpc,
    positions_pb2_grpc,
    produce_pb2_grpc,
    shared_transactions_pb2_grpc,
    transactions_pb2_grpc,
)
from millrace.runtime.transport.calls import CallError, ClientStream


def _service(kind: Callable[[BrokerChannel], Any], about: str) -> property:
    """Return the methods of one service, as an attribute of a connection."""

    def stub(connection: "Connection") -> Any:
        if connection.is_given_up:  # By another user, maybe between two calls.
            raise connection.given_up()
        found = connection._stubs.get(kind)
        if found is None:
            found = connection._stubs[kind] = kind(connection.channel)
        return found

    return property(stub, doc=about)


@dataclass(slots=True)
class Connection:
    """A channel to one broker that has answered `Hello`.

    The services raise `ConnectionFailedError` once another user has given the connection up.
    """

    address: str
    channel: BrokerChannel
    hello: common_pb2.HelloResponse = field(default_factory=common_pb2.HelloResponse)
    is_given_up: bool = False
    """One of its users found it broken: the calls of the others are cancelled."""
    _stubs: dict[Callable[[BrokerChannel], Any], Any] = field(default_factory=dict)
    """Those in use, by their class: a stub makes an object for each of its methods."""

    def given_up(self) -> ConnectionFailedError:
        """Return what its other users are told."""
        return ConnectionFailedError(
            f"the connection to the broker at {self.address} was given up meanwhile"
        )

    cluster = _service(cluster_pb2_grpc.ClusterStub, "Metadata and administration.")
    produce = _service(produce_pb2_grpc.ProduceStub, "Producer ids; the stream has its own codec.")
    positions = _service(positions_pb2_grpc.PositionsStub, "Positions kept under names.")
    groups = _service(groups_pb2_grpc.GroupsStub, "Consumer groups.")
    transactions = _service(transactions_pb2_grpc.TransactionsStub, "Transactions.")
    shared_transactions = _service(
        shared_transactions_pb2_grpc.SharedTransactionsStub, "Transactions with participants."
    )
    fetch = _service(fetch_pb2_grpc.FetchStub, "Offsets; the stream has its own codec.")

    async def open_stream(self, method: str) -> ClientStream:
        """Begin a call with a stream in each direction.

        Args:
            method: `/package.Service/Method`.

        Raises:
            ConnectionFailedError: the broker cannot be reached.
        """
        try:
            stream = await self.channel.stream(method)
        except CallError as error:
            raise wire.error_from_call(error, self.address) from error
        if self.is_given_up:
            stream.cancel()
            raise self.given_up()
        return stream

    async def give_up(self) -> None:
        """Close it for all of its users."""
        self.is_given_up = True
        await self.channel.close()
