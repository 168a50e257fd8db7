"""gRPC between simulated processes: the part of `grpc.aio` that the product uses.

A call is a pair of ends. What one end sends arrives at the other in order, after a delay from the
seed. The bytes in flight are bounded, as by HTTP/2's windows. The simulated network decides how
calls break.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import grpc
import grpc.aio
from tests.sim.judges.telling import message as told_message
from tests.sim.lines import Line
from tests.sim.machines.network import CONNECT_US, Network, Process

from millrace.proto.callers import Metadata

WINDOW_BYTES = 4 << 20
_EOF = grpc.aio.EOF
_OK = grpc.StatusCode.OK


class Status(NamedTuple):
    """How a call has ended."""

    code: grpc.StatusCode
    details: str = ""
    trailers: tuple[tuple[str, Any], ...] = ()

    def error(self) -> grpc.aio.AioRpcError:
        metadata = grpc.aio.Metadata(*self.trailers)
        return grpc.aio.AioRpcError(self.code, grpc.aio.Metadata(), metadata, self.details)


class End(Line):
    """One end of a call: what it has received, and what it may send."""

    is_kept_by_machine = False
    peer: "End"

    def __init__(self, network: Network, process: Process, method: str, *, is_client: bool) -> None:
        super().__init__(network, process, method)
        self._is_client = is_client
        self.status: Status | None = None
        """How the call has ended, as far as this end knows."""
        self.is_half_closed = False
        """The peer will send no more messages."""
        self.is_connecting = False
        """Nobody has answered yet, and no transport takes messages."""
        self.on_ended: Callable[[], None] = lambda: None
        self._inbox: deque[bytes] = deque()
        self._unread_bytes = 0  # Received or in flight, and not read yet.
        self._news: asyncio.Future[None] | None = None
        self._room: asyncio.Future[None] | None = None

    # --- Sending -----------------------------------------------------------------------------

    async def send(self, message: bytes) -> None:
        """Send a message; return once the transport has accepted it."""
        while self.status is None and not self._takes_messages:
            self._room = self.process.loop.create_future()
            await self._room
        if self.status is not None:
            return
        self.peer._unread_bytes += len(message)
        world = self.network.world
        if world.trace.is_detailed:
            said = told_message(self.method, message, is_request=self._is_client)
            world.trace.add_message(world.now, f"{self._link().label} {said}")
        self._post(self.peer._on_message, message)
        # The transport needs some time.
        await asyncio.sleep(0)

    @property
    def _takes_messages(self) -> bool:
        return not self.is_connecting and self.peer._unread_bytes < WINDOW_BYTES

    def half_close(self) -> None:
        """Announce that this end will send no more."""
        self._post(self.peer._on_half_close)

    def close(self, status: Status) -> None:
        """End the call; the peer learns of it after all messages that were sent before."""
        self._post(self._close, status)

    def _close(self, status: Status) -> None:
        # Only now: a link that works again must find an end that has still something to say.
        self.network.forget(self)
        self.peer.end(status)

    # --- Receiving ---------------------------------------------------------------------------

    def _on_message(self, message: bytes) -> None:
        if self.status is None and not self.process.is_dead:
            self._inbox.append(message)
            self._wake()

    def _on_half_close(self) -> None:
        self.is_half_closed = True
        self._wake()

    def end(self, status: Status) -> None:
        """Note that the call has ended."""
        if self.status is None and not self.process.is_dead:
            self.status = status
            self.network.forget(self)
            self._wake()
            if self._room is not None and not self._room.done():
                self._room.set_result(None)
            self.on_ended()

    def fail(self, details: str) -> None:
        """Note that the network has broken the call, or that its other end is gone."""
        self.end(Status(grpc.StatusCode.UNAVAILABLE, details))

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def receive(self) -> bytes | None:
        """Return the next message; None when the call or this direction has ended."""
        while not self._inbox:
            if self.status is not None or self.is_half_closed:
                return None
            self._news = self.process.loop.create_future()
            await self._news
        message = self._inbox.popleft()
        self._unread_bytes -= len(message)
        room = self.peer._room
        if room is not None and not room.done():
            link = self._link()
            self.network.world.after(link.delay(), link.label, _settle, room)
        return message


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


# --- Servers -----------------------------------------------------------------------------------


class _Details(NamedTuple):
    method: str
    invocation_metadata: tuple[()] = ()


class SimulatedServer:
    """The part of `grpc.aio.Server` that the product uses."""

    def __init__(self, network: Network, process: Process, interceptors: Sequence[Any]) -> None:
        self.process = process
        self.is_serving = False
        self._network = network
        self._interceptors = interceptors
        self._handlers: list[Any] = []
        self._calls: dict[asyncio.Task[None], None] = {}
        self._addresses: list[str] = []

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Do nothing: the generic handlers serve these methods; gRPC keeps both for old clients."""

    def listen(self, address: str) -> int:
        host, _, port = address.rpartition(":")
        number = int(port) or self._network.new_port()
        self._addresses.append(f"{host}:{number}")
        self._network.listen(f"{host}:{number}", self)
        return number

    async def start(self) -> None:
        self.is_serving = True

    async def stop(self, grace: float | None) -> None:
        self.is_serving = False
        calls = list(self._calls)
        if calls and grace:
            await asyncio.wait(calls, timeout=grace)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)

    def accept(self, method: str, end: End, peer: str, metadata: Metadata) -> None:
        """Serve a call that arrives from the network."""
        if self.process.is_dead or not self.is_serving:
            end.close(Status(grpc.StatusCode.UNAVAILABLE, "Socket closed"))
            return

        def begin() -> None:
            task = self.process.loop.create_task(self._serve(method, end, peer, metadata))
            self._calls[task] = None
            task.add_done_callback(lambda done: self._calls.pop(done, None))
            end.on_ended = task.cancel

        self.process.loop.call_soon(begin)

    async def _serve(self, method: str, end: End, peer: str, metadata: Metadata) -> None:
        context = ServerContext(end, peer, metadata)
        try:
            status = await self._handle(method, end, context)
        except grpc.aio.AbortError:
            status = context.aborted or Status(grpc.StatusCode.UNKNOWN)
        except asyncio.CancelledError:
            end.close(Status(grpc.StatusCode.UNAVAILABLE, "the server stops"))
            raise
        end.on_ended = lambda: None
        end.close(status)

    async def _handle(self, method: str, end: End, context: "ServerContext") -> Status:
        async def registered(details: Any) -> Any:
            found = (service.service(details) for service in self._handlers)
            return next((handler for handler in found if handler is not None), None)

        find: Callable[[Any], Any] = registered
        for interceptor in reversed(self._interceptors):
            find = _intercepted(interceptor, find)
        found = await find(_Details(method))
        if found is None:
            return Status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        if found.stream_stream is not None:
            await found.stream_stream(context, context)
            return Status(_OK)
        request = await end.receive()
        if request is None:
            return Status(grpc.StatusCode.CANCELLED)
        if found.request_deserializer is not None:
            request = found.request_deserializer(request)
        response = await found.unary_unary(request, context)
        if found.response_serializer is not None:
            response = found.response_serializer(response)
        await end.send(response)
        return Status(_OK)


def _intercepted(interceptor: Any, find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def intercepted(details: Any) -> Any:
        return await interceptor.intercept_service(find, details)

    return intercepted


class ServerContext:
    """The part of `grpc.aio.ServicerContext` that the product uses."""

    def __init__(self, end: End, peer: str, metadata: Metadata) -> None:
        self.aborted: Status | None = None
        self._end = end
        self._peer = peer
        self._metadata = metadata

    def peer(self) -> str:
        return self._peer

    def peer_identities(self) -> None:
        """Return None: no client authenticates."""

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    async def read(self) -> Any:
        message = await self._end.receive()
        return _EOF if message is None else message

    async def write(self, message: bytes) -> None:
        await self._end.send(message)

    async def send_initial_metadata(self, metadata: object) -> None:
        """Do nothing: the client gets the metadata with the first message."""

    async def abort(self, code: grpc.StatusCode, details: str = "", *trailers: Any) -> None:
        self.aborted = Status(code, details, tuple(*trailers))
        raise grpc.aio.AbortError


# --- Clients -----------------------------------------------------------------------------------


class SimulatedChannel:
    """The part of `grpc.aio.Channel` that the product uses."""

    def __init__(self, network: Network, process: Process, address: str) -> None:
        self._network = network
        self._process = process
        self._address = address
        self._calls: dict[Call, None] = {}
        self._is_closed = False
        self._peer = f"ipv4:10.0.0.1:{network.new_port()}"

    async def __aenter__(self) -> "SimulatedChannel":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self, grace: float | None = None) -> None:
        self._is_closed = True
        for call in list(self._calls):
            call.cancel()

    def unary_unary(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        **_: Any,
    ) -> Callable[..., Any]:
        async def unary(request: Any, metadata: Metadata = ()) -> Any:
            call = self._call(method, request_serializer, response_deserializer, metadata)
            try:
                await call.write(request)
                response = await call.read()
                if response is _EOF:
                    raise call.status().error()
                return response
            finally:
                call.cancel()

        return unary

    def stream_stream(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        **_: Any,
    ) -> Callable[..., "Call"]:
        def stream(metadata: Metadata = ()) -> Call:
            return self._call(method, request_serializer, response_deserializer, metadata)

        return stream

    def _call(self, method: str, serialize: Any, deserialize: Any, metadata: Metadata) -> "Call":
        if self._is_closed:
            raise grpc.aio.UsageError("Channel is closed.")
        call = Call(self._network, self._process, method, serialize, deserialize)
        self._calls[call] = None
        call.when_over = lambda: self._calls.pop(call, None)
        network, here = self._network, self._process.machine.name
        server = network.server_at(self._address)
        there = network.name_of(self._address.rpartition(":")[0])
        if isinstance(server, SimulatedServer) and server.is_serving and not server.process.is_dead:
            theirs = End(network, server.process, method, is_client=False)
            call.end.peer, theirs.peer = theirs, call.end
            network.remember(call.end)
            network.remember(theirs)
            call.end._post(server.accept, method, theirs, self._peer, metadata)
            network.watch(call.end)
        elif network.is_reachable(here, there):
            link = network.link(here, there)
            network.world.after(link.delay(), link.label, call.end.fail, self._why("refused"))
        else:
            call.end.is_connecting = True
            network.world.after(CONNECT_US, "no answer", call.end.fail, self._why("timed out"))
        return call

    def _why(self, what: str) -> str:
        return (
            "failed to connect to all addresses; last error: UNKNOWN: "
            f"ipv4:{self._address}: Connection {what}"
        )


class Call:
    """The part of `grpc.aio.StreamStreamCall` that the product uses."""

    def __init__(
        self,
        network: Network,
        process: Process,
        method: str,
        serialize: Any,
        deserialize: Any,
    ) -> None:
        self.end = End(network, process, method, is_client=True)
        self.end.peer = End(
            network, process, method, is_client=False
        )  # It hears nothing until the call is connected.
        self.when_over: Callable[[], object] = lambda: None
        self._serialize = serialize
        self._deserialize = deserialize
        self._is_cancelled = False
        self._waiting: dict[asyncio.Task[Any], None] = {}

    def status(self) -> Status:
        assert self.end.status is not None
        return self.end.status

    def done(self) -> bool:
        return self._is_cancelled or self.end.status is not None

    def cancel(self) -> bool:
        if self._is_cancelled:
            return False
        self._is_cancelled = True
        self.when_over()
        if self.end.status is None:
            self.end.close(Status(grpc.StatusCode.CANCELLED, "cancelled by the client"))
        for task in list(self._waiting):
            task.cancel()
        return True

    async def write(self, request: Any) -> None:
        self._raise_if_over()
        message = request if self._serialize is None else self._serialize(request)
        await self._cancellable(self.end.send(message))
        status = self.end.status
        if status is not None:
            raise status.error()

    async def done_writing(self) -> None:
        self.end.half_close()

    async def read(self) -> Any:
        message = await self._cancellable(self.end.receive())
        if message is not None:
            return message if self._deserialize is None else self._deserialize(message)
        self.when_over()
        if self.status().code is not _OK:
            raise self.status().error()
        return _EOF

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (message := await self.read()) is not _EOF:
            yield message

    async def code(self) -> grpc.StatusCode:
        return self.status().code

    async def details(self) -> str:
        return self.status().details

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        return grpc.aio.Metadata(*self.status().trailers)

    def _raise_if_over(self) -> None:
        if self._is_cancelled:
            raise asyncio.CancelledError
        if self.end.status is not None:
            raise asyncio.InvalidStateError("RPC already finished.")

    async def _cancellable(self, waiting: Any) -> Any:
        """Wait for something; cancelling the call cancels that."""
        if self._is_cancelled:
            waiting.close()
            raise asyncio.CancelledError
        task = self.end.process.loop.create_task(waiting)
        self._waiting[task] = None
        try:
            return await task
        finally:
            self._waiting.pop(task, None)
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
