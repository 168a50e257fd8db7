"""A connection to one broker, which many users share.

The first that finds it broken closes it for all. Closing the channel cancels the calls and streams
of the others. They must not treat that as a cancellation of their own task: they would end
silently, and their waiters would wait for ever.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from millrace.core.errors import ConnectionFailedError
from millrace.proto.v1 import (
    cluster_pb2_grpc,
    common_pb2,
    fetch_pb2_grpc,
    groups_pb2_grpc,
    positions_pb2_grpc,
    produce_pb2_grpc,
)
from millrace.runtime.channel import Channel


def _stub(kind: Callable[[Channel], Any], about: str) -> property:
    """Return the methods of one service, as an attribute of a connection."""
    return property(lambda connection: kind(connection._open_channel), doc=about)


@dataclass(slots=True)
class Connection:
    """A channel to one broker that has answered `Hello`."""

    address: str
    channel: Channel
    hello: common_pb2.HelloResponse = field(default_factory=common_pb2.HelloResponse)
    is_given_up: bool = False
    """One of its users found it broken: the calls of the others are cancelled."""

    def given_up(self) -> ConnectionFailedError:
        """Return what its other users are told."""
        return ConnectionFailedError(
            f"the connection to the broker at {self.address} was given up meanwhile"
        )

    @property
    def _open_channel(self) -> Channel:
        """For another call.

        Raises:
            ConnectionFailedError: another user gave the connection up, maybe between two calls.
        """
        if self.is_given_up:
            raise self.given_up()
        return self.channel

    cluster = _stub(cluster_pb2_grpc.ClusterStub, "Metadata and administration.")
    produce = _stub(produce_pb2_grpc.ProduceStub, "Producer ids; the stream has its own raw codec.")
    positions = _stub(positions_pb2_grpc.PositionsStub, "Positions kept under names.")
    groups = _stub(groups_pb2_grpc.GroupsStub, "Consumer groups.")
    fetch = _stub(fetch_pb2_grpc.FetchStub, "Offsets; the stream has its own raw codec.")

    async def give_up(self) -> None:
        """Close it for all of its users."""
        self.is_given_up = True
        await self.channel.close()
