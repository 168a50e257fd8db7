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
OnKnown = Callable[[str], None]


def _nobody_asks(peer: str) -> None:
    del peer


class GrpcCall:
    """A call of gRPC; implements `ServerCall`.

    Args:
        context: of gRPC.
        on_known: called with the peer, as gRPC names it, when its caller is known.
    """

    def __init__(self, context: Context, on_known: OnKnown = _nobody_asks) -> None:
        self._context = context
        self._on_known = on_known

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

    def on_known(self) -> None:
        """Pass it on."""
        self._on_known(self._context.peer())

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


def grpc_handlers(
    service: ServiceMethods, on_known: OnKnown = _nobody_asks
) -> grpc.GenericRpcHandler:
    """Return gRPC's handlers of a service; messages stay bytes.

    Args:
        service: its methods.
        on_known: called with the peer of a call, as gRPC names it, when the caller is known.
    """
    handlers: dict[str, Any] = {}
    for name, unary in service.unary.items():
        handlers[name] = grpc.unary_unary_rpc_method_handler(_unary(unary, on_known))
    for name, stream in service.streams.items():
        handlers[name] = grpc.stream_stream_rpc_method_handler(_stream(stream, on_known))
    return grpc.method_handlers_generic_handler(service.name, handlers)


def _unary(serve: UnaryCall, on_known: OnKnown) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def call(data: bytes, context: Context) -> bytes:
        try:
            return await serve(data, GrpcCall(context, on_known))
        except MillraceError as error:
            # The error is in a frame that its trace refers to.
            await abort(context, error.with_traceback(None))

    return call


def _stream(serve: StreamCall, on_known: OnKnown) -> Callable[[object, Context], Awaitable[None]]:
    async def call(_: object, context: Context) -> None:
        try:
            # Otherwise gRPC sends them with the first message, and cannot end the stream before it.
            await context.send_initial_metadata(())
            await serve(GrpcCall(context, on_known))
        except MillraceError as error:
            await abort(context, error.with_traceback(None))
        except grpc.aio.InternalError:
            pass  # The peer went away in the middle of a message, which is allowed.

    return call
