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
from millrace.proto.callers import client_id_to_metadata
from millrace.proto.errors import error_from_trailers
from millrace.runtime import host
from millrace.runtime.software import USER_AGENT
from millrace.runtime.transport.calls import CallError, Status, do_nothing, joined

OnCalled = Callable[[str, float], None]
"""Takes the name of a method, without its service, and seconds."""

_NUMBER: Final = 0
"""Where a status of gRPC has its number."""


class Channel:
    """The part of `grpc.aio.Channel` that the product uses, with the caller's name in each call.

    gRPC's interceptors could name the caller, too, but put a task and a queue into every stream.

    Args:
        address: `host:port` of the server; nothing is sent before the first call.
        options: of gRPC.
        client_id: of the caller.
        on_called: called with the method and the seconds of each call with one request and one
            response, whether it was answered or not.
    """

    def __init__(
        self,
        address: str,
        options: host.ChannelOptions,
        *,
        client_id: str,
        on_called: OnCalled | None = None,
    ) -> None:
        user_agent = ("grpc.primary_user_agent", USER_AGENT)
        self._channel = host.current.channel(address, [*options, user_agent])
        self._metadata = client_id_to_metadata(client_id)
        self._on_called = on_called

    def unary_unary(self, method: str, *coders: Any, **more: Any) -> Callable[..., Any]:
        """Return a function that calls a method with one request and one response.

        It raises `CallError`.
        """
        call = self._channel.unary_unary(method, *coders, **more)
        name = method.rpartition("/")[2]

        async def calling(request: Any) -> Any:
            begun = host.monotonic_s()
            try:
                return await call(request, metadata=self._metadata)
            except grpc.RpcError as error:
                raise_call_error(error)
            finally:
                if self._on_called is not None:
                    self._on_called(name, host.monotonic_s() - begun)

        return calling

    def stream(self, method: str) -> "GrpcStream":
        """Begin a call with a stream in each direction; its messages are bytes."""
        return GrpcStream(self._channel.stream_stream(method)(metadata=self._metadata))

    def stream_stream(self, method: str, **_: Any) -> Callable[[], "GrpcStream"]:
        """Return `stream` for a method: generated stubs make one for each of theirs."""
        return partial(self.stream, method)

    async def close(self) -> None:
        """Close the connection; calls under way are cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class GrpcStream:
    """A call with a stream in each direction; implements `ClientStream`."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self.on_draining: Callable[[], None] = do_nothing

    @property
    def is_draining(self) -> bool:
        """No: gRPC ends its connections in good order by itself."""
        return False

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
