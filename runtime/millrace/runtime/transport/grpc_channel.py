"""A connection of gRPC, whose calls carry the client id and the library's name.

A call that fails raises `CallError`, as with DRPC: nothing else of gRPC is seen above.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, NoReturn, Self

import grpc
import grpc.aio

from millrace.core.records.header import Buffer
from millrace.proto.callers import Metadata, client_id_to_metadata
from millrace.proto.errors import error_from_trailers
from millrace.runtime import host
from millrace.runtime.software import USER_AGENT
from millrace.runtime.transport.calls import CallError, Status, do_nothing, joined
from millrace.runtime.transport.credentials import ClientCredentials
from millrace.runtime.transport.tokens import Token

RETIRED_SECONDS_MAX: Final = 60.0
"""How long calls may go on whose connection was made with earlier credentials."""

OnCalled = Callable[[str, float], None]
"""Takes the name of a method, without its service, and seconds."""

_NUMBER: Final = 0
"""Where a status of gRPC has its number."""


class Channel:
    """The part of `grpc.aio.Channel` that the product uses, with the caller's name in each call.

    gRPC's interceptors could name the caller, too, but put a task and a queue into every stream.
    When the credentials have changed, the calls that follow have another connection; the one before
    is closed when its own calls have ended, and its streams are asked to.

    Args:
        address: `host:port` of the server; nothing is sent before the first call.
        options: of gRPC.
        client_id: of the caller.
        on_called: called with the method and the seconds of each call with one request and one
            response, whether it was answered or not.
        credentials: of the connection; None: it is in plain text.
        token: goes with each call; None: there is none.
    """

    def __init__(
        self,
        address: str,
        options: host.ChannelOptions,
        *,
        client_id: str,
        on_called: OnCalled | None = None,
        credentials: ClientCredentials | None = None,
        token: Token | None = None,
    ) -> None:
        user_agent = ("grpc.primary_user_agent", USER_AGENT)
        self._address = address
        self._options = [*options, user_agent]
        self._client_id = client_id_to_metadata(client_id)
        self._token = token
        self._on_called = on_called
        self._credentials = credentials
        self._retired: set[_Connection] = set()
        self._connection = self._new_connection()

    def unary_unary(self, method: str, *coders: Any, **more: Any) -> Callable[..., Any]:
        """Return a function that calls a method with one request and one response.

        It raises `CallError`.
        """
        name = method.rpartition("/")[2]
        used, call = self._connection, self._connection.channel.unary_unary(method, *coders, **more)

        async def calling(request: Any) -> Any:
            nonlocal used, call
            begun = host.monotonic_s()
            if (connection := self._current()) is not used:
                used, call = connection, connection.channel.unary_unary(method, *coders, **more)
            connection.calls += 1
            try:
                return await call(request, metadata=self._metadata())
            except grpc.RpcError as error:
                raise_call_error(error)
            finally:
                connection.on_call_ended()
                if self._on_called is not None:
                    self._on_called(name, host.monotonic_s() - begun)

        return calling

    def stream(self, method: str) -> "GrpcStream":
        """Begin a call with a stream in each direction; its messages are bytes.

        Raises:
            CallError: the token cannot be sent.
        """
        connection = self._current()
        stream = GrpcStream(
            connection.channel.stream_stream(method)(metadata=self._metadata()),
        )
        if self._credentials is not None:
            connection.hold(stream)
        return stream

    def stream_stream(self, method: str, **_: Any) -> Callable[[], "GrpcStream"]:
        """Return `stream` for a method: generated stubs make one for each of theirs."""
        return partial(self.stream, method)

    def _metadata(self) -> Metadata:
        """Return what goes with a call.

        Raises:
            CallError: the token cannot be sent.
        """
        if self._token is None:
            return self._client_id
        is_private = self._credentials is not None
        return self._client_id + self._token.metadata(self._address, is_private=is_private)

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        for connection in (self._connection, *self._retired):
            await connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _current(self) -> "_Connection":
        if self._credentials is not None:
            self._credentials.refresh()
            if self._connection.is_retired:
                self._connection = self._new_connection()
        return self._connection

    def _new_connection(self) -> "_Connection":
        made = _Connection(self._address, self._options, self._credentials, self._retired)
        if self._credentials is not None:
            self._credentials.join(made)
        return made


class _Connection:
    """gRPC's channel as long as its credentials count, and the calls that it carries.

    Args:
        retired: of the same owner; it is there until it is closed.
    """

    def __init__(
        self,
        address: str,
        options: host.ChannelOptions,
        credentials: ClientCredentials | None,
        retired: "set[_Connection]",
    ) -> None:
        secrets = None if credentials is None else credentials.for_grpc()
        self.channel = host.current.channel(address, options, secrets)
        self.calls = 0
        self.is_retired = False
        self._streams: set[GrpcStream] = set()
        self._retired = retired
        self._closing: asyncio.Task[None] | None = None
        self._late: asyncio.TimerHandle | None = None

    def hold(self, stream: "GrpcStream") -> None:
        """Know of a stream until it ends."""
        self.calls += 1
        self._streams.add(stream)
        stream.on_ended(partial(self._on_stream_ended, stream))

    def _on_stream_ended(self, stream: "GrpcStream") -> None:
        self._streams.discard(stream)
        self.on_call_ended()

    def on_call_ended(self) -> None:
        """A call is over."""
        self.calls -= 1
        if self.is_retired and not self.calls:
            self._close_soon()

    def retire(self) -> None:
        """Implement `Retiring`: calls have `RETIRED_SECONDS_MAX` to end."""
        self.is_retired = True
        self._retired.add(self)
        for stream in list(self._streams):
            stream.drain()
        if self.calls:
            loop = asyncio.get_running_loop()
            self._late = loop.call_later(RETIRED_SECONDS_MAX, self._close_soon)
        else:
            self._close_soon()

    def _close_soon(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.close())

    async def close(self) -> None:
        """Close it; calls under way are cancelled."""
        if self._late is not None:
            self._late.cancel()
        self._retired.discard(self)
        await self.channel.close()


class GrpcStream:
    """A call with a stream in each direction; implements `ClientStream`."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._is_draining = False
        self.on_draining: Callable[[], None] = do_nothing

    @property
    def is_draining(self) -> bool:
        """Whether this end's credentials have changed; gRPC's servers do not ask for it."""
        return self._is_draining

    def drain(self) -> None:
        """Ask for the end of the stream in good order."""
        self._is_draining = True
        self.on_draining()

    def on_ended(self, told: Callable[[], None]) -> None:
        """Call a function when the stream has ended."""
        self._call.add_done_callback(lambda _: told())

    async def read(self) -> bytes | None:
        """Implement `ClientStream`."""
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise_call_error(error)
        if message is not grpc.aio.EOF:
            return bytes(message)
        if (failure := await self._end()) is not None:
            raise failure
        return None

    async def write(self, *parts: Buffer) -> None:
        """Implement `ClientStream`."""
        try:
            await self._call.write(joined(parts))
        except grpc.RpcError as error:
            raise_call_error(error)
        except asyncio.InvalidStateError:
            raise await self._end() or CallError(Status.UNAVAILABLE, "the call has ended") from None

    def try_write(self, *parts: Buffer) -> bool:
        """Implement `ClientStream`: gRPC takes nothing at once."""
        del parts
        return False

    async def end_writing(self) -> None:
        """Implement `ClientStream`."""
        try:
            await self._call.done_writing()
        except grpc.RpcError as error:
            raise_call_error(error)
        except asyncio.InvalidStateError:
            pass  # It has ended already.

    def cancel(self) -> None:
        """Implement `ClientStream`."""
        self._call.cancel()

    async def _end(self) -> CallError | None:
        """Return the error of a call that has ended; None: it ended well."""
        call = self._call
        code: grpc.StatusCode = await call.code()
        if code is grpc.StatusCode.OK:
            return None
        return _call_error(code, await call.details(), await call.trailing_metadata())


def raise_call_error(error: grpc.RpcError) -> NoReturn:
    """Raise the error of a call of gRPC as that of any call."""
    if isinstance(error, grpc.aio.AioRpcError):
        raise _call_error(error.code(), error.details(), error.trailing_metadata()) from error
    raise CallError(Status.UNKNOWN, str(error)) from error


def _call_error(code: grpc.StatusCode, details: str | None, trailers: Any) -> CallError:
    refusal = error_from_trailers(trailers or (), details or "")
    return CallError(Status(code.value[_NUMBER]), details or "", refusal)
