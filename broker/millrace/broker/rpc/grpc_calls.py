"""Serves the methods of a service over gRPC."""

from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import grpc

from millrace.broker.rpc.calls import ServiceMethods, StreamCall, UnaryCall
from millrace.broker.rpc.errors import abort
from millrace.core.errors import MillraceError
from millrace.core.records.header import Buffer
from millrace.runtime.transport.calls import joined
from millrace.runtime.transport.credentials import principal_of

Context = grpc.aio.ServicerContext[bytes, bytes]


class GrpcCall:
    """A call of gRPC; implements `ServerCall`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The metadata of the call."""
        return tuple(self._context.invocation_metadata() or ())

    @property
    def address(self) -> str:
        """`host:port` of the other end."""
        return unquote(self._context.peer()).partition(":")[2]

    @cached_property
    def principal(self) -> str:
        """Whom the connection's credentials prove (`runtime/host.py`)."""
        if not self._context.peer_identities():
            return ""
        found = self._context.auth_context()
        uris = [uri.decode(errors="replace") for uri in found.get("peer_uri", ())]
        name = next(iter(found.get("x509_common_name", ())), b"")
        return principal_of(uris, name.decode(errors="replace"))

    async def read(self) -> bytes | None:
        """Return the next message; None: the caller sends no more."""
        message = await self._context.read()
        return message if isinstance(message, bytes) else None  # Else it is EOF.

    async def write(self, *parts: Buffer) -> None:
        """Send a message."""
        await self._context.write(joined(parts))

    def try_write(self, *parts: Buffer) -> bool:
        """Send nothing: gRPC takes no message at once."""
        del parts
        return False


def grpc_handlers(service: ServiceMethods) -> grpc.GenericRpcHandler:
    """Return gRPC's handlers of a service; messages stay bytes."""
    handlers: dict[str, Any] = {}
    for name, unary in service.unary.items():
        handlers[name] = grpc.unary_unary_rpc_method_handler(_unary(unary))
    for name, stream in service.streams.items():
        handlers[name] = grpc.stream_stream_rpc_method_handler(_stream(stream))
    return grpc.method_handlers_generic_handler(service.name, handlers)


def _unary(serve: UnaryCall) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def call(data: bytes, context: Context) -> bytes:
        try:
            return await serve(data, GrpcCall(context))
        except MillraceError as error:
            # The error is in a frame that its trace refers to.
            await abort(context, error.with_traceback(None))

    return call


def _stream(serve: StreamCall) -> Callable[[object, Context], Awaitable[None]]:
    async def call(_: object, context: Context) -> None:
        try:
            # Otherwise gRPC sends them with the first message, and cannot end the stream before it.
            await context.send_initial_metadata(())
            await serve(GrpcCall(context))
        except MillraceError as error:
            await abort(context, error.with_traceback(None))
        except grpc.aio.InternalError:
            pass  # The peer went away in the middle of a message, which is allowed.

    return call
