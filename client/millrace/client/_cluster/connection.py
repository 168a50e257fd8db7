"""A connection to one broker, which many users share.

The first that finds it broken closes it for all. Closing the channel cancels the calls and streams
of the others. They must not treat that as a cancellation of their own task: they would end
silently, and their waiters would wait for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from millrace.core.errors import ConnectionFailedError
from millrace.proto.features import CLIENT_PROTOCOL
from millrace.proto.v1 import (
    cluster_pb2_grpc,
    common_pb2,
    fetch_pb2_grpc,
    groups_pb2_grpc,
    positions_pb2_grpc,
    produce_pb2_grpc,
)
from millrace.runtime.transport.calls import CallError, ClientStream, Metadata, Status
from millrace.runtime.transport.drpc.client import DrpcConnection, call
from millrace.runtime.transport.drpc.connector import Connector
from millrace.runtime.transport.grpc_channel import Channel

_HELLO: Final = "/millrace.proto.v1.Cluster/Hello"


def _service(kind: Callable[[Channel], Any], about: str) -> property:
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
    channel: Channel
    hello: common_pb2.HelloResponse = field(default_factory=common_pb2.HelloResponse)
    connector: Connector | None = None
    """Opens the streams by DRPC; None: they use the channel."""
    is_given_up: bool = False
    """One of its users found it broken: the calls of the others are cancelled."""
    _stubs: dict[Callable[[Channel], Any], Any] = field(default_factory=dict)
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
    fetch = _service(fetch_pb2_grpc.FetchStub, "Offsets; the stream has its own codec.")

    async def open_stream(self, method: str) -> ClientStream:
        """Begin a call with a stream in each direction: by DRPC, where the broker is reached so.

        Args:
            method: `/package.Service/Method`.
        """
        address = self.hello.drpc_address
        if self.connector is not None and address:
            stream = await self.connector.stream(address, method, self._greet)
            if stream is not None:
                return stream
        if self.is_given_up:
            raise self.given_up()
        return self.channel.stream(method)

    async def _greet(self, connection: DrpcConnection, metadata: Metadata) -> None:
        """Make sure that it is the same broker that listens there."""
        request = common_pb2.HelloRequest(
            cluster_id=self.hello.cluster_id, features=[CLIENT_PROTOCOL]
        )
        answer = await call(connection, _HELLO, request.SerializeToString(), metadata)
        hello = common_pb2.HelloResponse.FromString(answer)
        if hello.error.code or hello.broker_id != self.hello.broker_id:
            raise CallError(Status.FAILED_PRECONDITION, "another broker listens there")

    async def give_up(self) -> None:
        """Close it for all of its users."""
        self.is_given_up = True
        await self.channel.close()
