"""The calls to one broker: by DRPC where it is reached so, else by gRPC.

gRPC is what every broker has at its address, and the `Hello` there tells the DRPC address beside
it. Then gRPC's connection is closed. A stream has a connection of DRPC to itself. Calls with one
request and one response share another one, where they go one after the other; what would wait for
its turn for long goes by gRPC, which takes many at a time. So do calls that the broker answers late
on purpose, as a member's heartbeat: others would wait for them. So there are at most three
connections. Every connection begins with `Hello`: it may lead to another broker by now.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError

from millrace.client._cluster import wire
from millrace.proto.features import CLIENT_PROTOCOL
from millrace.proto.v1.common_pb2 import HelloRequest, HelloResponse
from millrace.runtime import host
from millrace.runtime.transport.calls import CallError, ClientStream, Metadata, Status
from millrace.runtime.transport.credentials import ClientCredentials
from millrace.runtime.transport.drpc.client import DrpcConnection, call
from millrace.runtime.transport.drpc.connector import Connector
from millrace.runtime.transport.grpc_channel import Channel, OnCalled
from millrace.runtime.transport.tokens import Token

_HELLO: Final = "/millrace.proto.v1.Cluster/Hello"
_TURN_SECONDS_MAX: Final = 0.05
"""How long a call waits for the end of the one before it."""

Answer = TypeVar("Answer")


class BrokerChannel:
    """The connections to one broker.

    Args:
        address: of its gRPC listener.
        client_id: of the caller.
        on_called: called with the method and the seconds of each call with one request and one
            response, whether it was answered or not.
        connector: opens connections of DRPC; None: all calls go by gRPC.
        credentials: of connections of gRPC; None: they are in plain text.
        token: goes with each call; None: there is none.
    """

    def __init__(
        self,
        address: str,
        *,
        client_id: str,
        on_called: OnCalled,
        connector: Connector | None,
        credentials: ClientCredentials | None = None,
        token: Token | None = None,
    ) -> None:
        self._address = address
        self._client_id = client_id
        self._on_called = on_called
        self._connector = connector
        self._credentials = credentials
        self._token = token
        self._drpc_address = ""
        self._hello = HelloResponse()
        self._cluster_id = ""
        self._grpc: Channel | None = None
        self._drpc: DrpcConnection | None = None
        self._turn = asyncio.Lock()
        self._is_closed = False

    async def greet(self, cluster_id: str, drpc_address: str) -> HelloResponse:
        """Connect, and return what the broker says of itself.

        Args:
            cluster_id: that it has to belong to; empty: any.
            drpc_address: of its DRPC listener; empty: unknown.

        Raises:
            CallError: it cannot be reached.
            MillraceError: it refuses this client.
        """
        self._cluster_id, self._drpc_address = cluster_id, drpc_address
        if await self._reach_by_drpc():
            return self._hello
        await self._greet_by_grpc()
        if self._hello.drpc_address != drpc_address:
            self._drpc_address = self._hello.drpc_address
            if not await self._reach_by_drpc():
                self._avoid_drpc()
        return self._hello

    async def _greet_by_grpc(self) -> None:
        """Greet by gRPC. When that works, DRPC, which did not, is avoided."""
        self._hello = await self._say_hello(self._by_grpc().unary_unary(_HELLO))
        wire.raise_if_refused(self._hello)
        self._avoid_drpc()

    def _avoid_drpc(self) -> None:
        if self._connector is not None:
            self._connector.avoid(self._drpc_address)

    async def _reach_by_drpc(self) -> bool:
        if self._connector is None:
            return False
        self._drpc = await self._connector.connect(self._drpc_address, self._greet)
        if self._drpc is None:
            return False
        if self._grpc is not None:  # It was for the first call only.
            grpc, self._grpc = self._grpc, None
            await grpc.close()
        return True

    async def _greet(self, connection: DrpcConnection, metadata: Metadata) -> None:
        """Make sure that it is the broker that is meant which listens there."""
        hello = await self._say_hello(partial(call, connection, _HELLO, metadata=metadata))
        if hello.error.code:
            raise CallError(Status.FAILED_PRECONDITION, hello.error.message)
        known = self._hello
        if known.cluster_id and known.broker_id != hello.broker_id:
            raise CallError(Status.FAILED_PRECONDITION, "another broker listens there")
        self._hello = hello

    async def _say_hello(self, ask: Callable[[bytes], Awaitable[bytes]]) -> HelloResponse:
        request = HelloRequest(cluster_id=self._cluster_id, features=[CLIENT_PROTOCOL])
        begun = host.monotonic_s()
        try:
            return _decoded(HelloResponse.FromString, await ask(request.SerializeToString()))
        finally:
            self._on_called("Hello", host.monotonic_s() - begun)

    # --- Calls -------------------------------------------------------------------------------

    def unary_unary(
        self, method: str, request_serializer: Any, response_deserializer: Any, **_: Any
    ) -> Callable[[Any], Any]:
        """Return a function that makes a call with one request and one response, for stubs.

        It raises `CallError`.
        """
        name = method.rpartition("/")[2]

        async def calling(request: Any) -> Any:
            begun = host.monotonic_s()
            try:
                is_slow = _waits_by_design(request)
                connection = None if is_slow else await self._take_turn()
                if connection is not None:
                    try:
                        answer = await call(
                            connection, method, request_serializer(request), self._metadata()
                        )
                        return _decoded(response_deserializer, answer)
                    finally:
                        self._turn.release()
                by_grpc = self._by_grpc().unary_unary(
                    method,
                    request_serializer=request_serializer,
                    response_deserializer=response_deserializer,
                )
                response = await by_grpc(request)
                if not is_slow:
                    self._avoid_drpc_if_it_failed()
                return response
            finally:
                self._on_called(name, host.monotonic_s() - begun)

        return calling

    def stream_stream(self, method: str, **_: Any) -> Callable[[], Any]:
        """Return `stream` for a method: stubs make one for each of theirs."""
        return partial(self.stream, method)

    async def stream(self, method: str) -> ClientStream:
        """Begin a call with a stream in each direction.

        Args:
            method: `/package.Service/Method`.
        """
        if self._connector is not None and self._connector.tries(self._drpc_address):
            stream = await self._connector.stream(self._drpc_address, method, self._greet)
            if stream is not None:
                return stream
            await self._greet_by_grpc()
        return self._by_grpc().stream(method)

    async def close(self) -> None:
        """Close the connections; calls under way are cancelled, but for streams of DRPC."""
        self._is_closed = True
        if self._drpc is not None:
            self._drpc.abort("the client closed it")
        if self._grpc is not None:
            await self._grpc.close()

    # --- Connections -------------------------------------------------------------------------

    def _metadata(self) -> Metadata:
        assert self._connector is not None
        return self._connector.metadata_for(self._drpc_address)

    async def _take_turn(self) -> DrpcConnection | None:
        """Return the connection once no call is under way, with the lock held; None: use gRPC."""
        connector, known = self._connector, self._drpc
        if connector is None:
            return None
        if (known is None or known.is_closed) and not connector.tries(self._drpc_address):
            return None
        if self._turn.locked():
            try:
                async with asyncio.timeout(_TURN_SECONDS_MAX):
                    await self._turn.acquire()
            except TimeoutError:
                return None
        else:
            await self._turn.acquire()
        connection = self._drpc
        if connection is not None and connection.is_free:
            return connection
        try:
            if connection is not None:
                connection.abort("it is of no use any more")
                self._drpc = None
            self._drpc = await connector.connect(self._drpc_address, self._greet)
            if self._is_closed and self._drpc is not None:
                self._drpc.abort("the client closed it")
                self._drpc = None
        finally:
            if self._drpc is None:
                self._turn.release()
        return self._drpc

    def _avoid_drpc_if_it_failed(self) -> None:
        if self._drpc is None and self._drpc_address:
            self._avoid_drpc()

    def _by_grpc(self) -> Channel:
        if self._is_closed:
            raise CallError(Status.CANCELLED, "the client closed the connection")
        if self._grpc is None:
            self._grpc = Channel(
                self._address,
                wire.channel_options(),
                client_id=self._client_id,
                credentials=self._credentials,
                token=self._token,
            )
        return self._grpc


def _waits_by_design(request: Any) -> bool:
    """Whether a request asks the broker to wait for news before it answers."""
    return bool(getattr(request, "wait_ms", 0) or getattr(request, "max_wait_ms", 0))


def _decoded(decode: Callable[[bytes], Answer], data: bytes) -> Answer:
    """Return an answer.

    Raises:
        CallError: it is none, as gRPC would say.
    """
    try:
        return decode(data)
    except DecodeError as error:
        raise CallError(Status.INTERNAL, f"the answer cannot be read: {error}") from error
