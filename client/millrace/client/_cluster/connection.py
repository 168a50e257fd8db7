"""A connection to one broker, which many users share.

The first that finds it broken closes it for all. Closing the channel cancels the calls and streams
of the others. They must not treat that as a cancellation of their own task: they would end
silently, and their waiters would wait for ever.
"""

from dataclasses import dataclass, field

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

    @property
    def cluster(self) -> cluster_pb2_grpc.ClusterStub:
        """Metadata and administration."""
        return cluster_pb2_grpc.ClusterStub(self._open_channel)  # type: ignore[no-untyped-call]

    @property
    def produce(self) -> produce_pb2_grpc.ProduceStub:
        """Producer ids; the stream is opened by its own raw codec."""
        return produce_pb2_grpc.ProduceStub(self._open_channel)  # type: ignore[no-untyped-call]

    @property
    def positions(self) -> positions_pb2_grpc.PositionsStub:
        """Positions kept under names."""
        return positions_pb2_grpc.PositionsStub(self._open_channel)  # type: ignore[no-untyped-call]

    @property
    def groups(self) -> groups_pb2_grpc.GroupsStub:
        """Consumer groups."""
        return groups_pb2_grpc.GroupsStub(self._open_channel)  # type: ignore[no-untyped-call]

    @property
    def fetch(self) -> fetch_pb2_grpc.FetchStub:
        """Offsets; the stream is opened by its own raw codec."""
        return fetch_pb2_grpc.FetchStub(self._open_channel)  # type: ignore[no-untyped-call]

    async def give_up(self) -> None:
        """Close it for all of its users."""
        self.is_given_up = True
        await self.channel.close()
