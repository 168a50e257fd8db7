"""How this broker asks others: a connection to each one's replica listener, made when it is needed.

A broker that starts again may have another address: then the connection is replaced.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from millrace.broker.peer_connection import PeerConnections, Way
from millrace.broker.replica.partitions import Partitions
from millrace.core.errors import MillraceError
from millrace.core.ids import BrokerId
from millrace.runtime.transport.calls import CallError, Status
from millrace.runtime.transport.grpc_channel import Channel

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")

_SERVICE: Final = "/millrace.proto.v1.Replica/"


class PeerMethod(NamedTuple, Generic[RequestT, ResponseT]):
    """A method of the service `Replica` with one request and one response."""

    name: str
    request: type[RequestT]
    response: type[ResponseT]


class _Peer(NamedTuple):
    way: Way
    channel: Channel
    calls: dict[str, Callable[..., Any]]


class Peers:
    """Asks brokers, this one included. It belongs to the event loop.

    Args:
        broker_id: of this broker, which asks itself without a connection.
        partitions: of this broker, with the metadata.
        connections: to other brokers.
    """

    def __init__(
        self, broker_id: BrokerId, partitions: Partitions, connections: PeerConnections
    ) -> None:
        self._broker_id = broker_id
        self._partitions = partitions
        self._connections = connections
        self._peers: dict[BrokerId, _Peer] = {}
        self._here: dict[str, Callable[[Any], Awaitable[Any]]] = {}

    def serve_here(
        self,
        method: PeerMethod[RequestT, ResponseT],
        handler: Callable[[RequestT], Awaitable[ResponseT]],
    ) -> None:
        """Let this broker answer its own calls of a method."""
        self._here[method.name] = handler

    async def ask(
        self, broker_id: BrokerId, method: PeerMethod[RequestT, ResponseT], request: RequestT
    ) -> ResponseT:
        """Ask a broker.

        Raises:
            CallError: its address is unknown, it cannot be reached, or it refused.
        """
        if broker_id == self._broker_id:
            try:
                answer: ResponseT = await self._here[method.name](request)
            except MillraceError as error:
                raise CallError(Status.FAILED_PRECONDITION, error.message, error) from error
            return answer
        peer = await self._peer(broker_id)
        call = peer.calls.get(method.name)
        if call is None:
            call = peer.calls[method.name] = peer.channel.unary_unary(
                _SERVICE + method.name,
                request_serializer=method.request.SerializeToString,  # type: ignore[attr-defined]
                response_deserializer=method.response.FromString,  # type: ignore[attr-defined]
            )
        response: ResponseT = await call(request)
        return response

    async def _peer(self, broker_id: BrokerId) -> _Peer:
        image = self._partitions.image
        broker = None if image is None else image.broker(broker_id)
        way = Way("", False) if broker is None else self._connections.way_to(broker)
        known = self._peers.get(broker_id)
        if known is not None and known.way == way:
            return known
        if known is not None:  # It has started again.
            del self._peers[broker_id]
            await known.channel.close()
        if not way.address:
            raise CallError(Status.UNAVAILABLE, f"the address of broker {broker_id} is unknown")
        made = self._peers[broker_id] = _Peer(way, self._connections.connect(way), {})
        return made

    async def close(self) -> None:
        """Close all connections; calls under way fail."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            await peer.channel.close()
