"""The calls to one listener: their callers, their decoding, and their errors.

Each call has one `Caller`, made when it begins: a stream of requests costs one. A `MillraceError`
in a handler ends the call, is named in its trailing metadata, and is recorded with the caller.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import grpc
from google.protobuf.message import Message

from millrace.broker.quotas import Quotas
from millrace.broker.rpc.audit import AuditLog, printable
from millrace.broker.rpc.errors import abort
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.rpc.requests import RequestKind, decode_request
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import ANONYMOUS, Caller
from millrace.core.errors import Appended, MessageTooLargeError, MillraceError
from millrace.core.metadata.model import Listener
from millrace.core.quotas.quota import QuotaKind
from millrace.proto.callers import client_id_from_metadata
from millrace.runtime import host
from millrace.runtime.loop_time import LoopTime
from millrace.runtime.turns import Turns

Stream = grpc.aio.ServicerContext[bytes, bytes]
"""A call with a stream in each direction; its messages are bytes."""
UnaryMethod = tuple[Callable[[Any, Caller], Awaitable[Message]], RequestKind[Any]]
"""A method with one request and one response, and the class of its request."""
ForwardMethod = tuple[
    Callable[[bytes, Caller], Awaitable[Message]], RequestKind[Any], Callable[[Any], None]
]
"""A method that passes its request on as it came, what decodes the request, and what refuses one
before."""
StreamMethod = Callable[[Stream, Caller], Awaitable[None]]
"""A method with a stream in each direction."""

_SOFTWARE_CHARACTERS_MAX: Final = 100
_CALL_DELAY_SECONDS_MAX: Final = 1.0
"""Longest delay of a call by a quota: its client waits for the answer, and not for long."""

_R = TypeVar("_R")


class Calls:
    """Makes handlers for gRPC from the methods of a service.

    Args:
        listener: which one of the broker it is.
        limits: of requests and answers.
        refusals: records each.
        turns: of the loop.
        quotas: of clients; None: brokers have none.

    Attributes:
        listener: as given.
        refusals: as given.
    """

    def __init__(
        self,
        listener: Listener,
        limits: LimitsConfig,
        refusals: Refusals,
        turns: Turns,
        quotas: Quotas | None = None,
    ) -> None:
        self._turns = turns
        self._quotas = quotas
        self.listener = listener
        self._limits = limits
        self.refusals = refusals

    @property
    def audit(self) -> AuditLog:
        """The broker's audit log."""
        return self.refusals.audit

    def handlers(
        self,
        service: str,
        *,
        unary: Mapping[str, UnaryMethod] | None = None,
        forwards: Mapping[str, ForwardMethod] | None = None,
        streams: Mapping[str, StreamMethod] | None = None,
    ) -> grpc.GenericRpcHandler:
        """Return the handlers of a service.

        Args:
            service: its full name.
            unary: its methods with one request and one response, by name. A request has at most
                `request_entries_max` entries in a list, an answer at most `message_bytes_max`
                bytes.
            forwards: likewise, those that get the bytes of a request, which are valid.
            streams: its other methods, by name.
        """
        handlers: dict[str, Any] = {}
        for name, (method, kind) in (unary or {}).items():
            handlers[name] = grpc.unary_unary_rpc_method_handler(self._unary(name, method, kind))
        for name, (forward, kind, check) in (forwards or {}).items():
            handlers[name] = grpc.unary_unary_rpc_method_handler(
                self._unary(name, forward, kind, check)
            )
        for name, serve in (streams or {}).items():
            handlers[name] = grpc.stream_stream_rpc_method_handler(self._stream(name, serve))
        return grpc.method_handlers_generic_handler(service, handlers)

    def _unary(
        self,
        name: str,
        method: Callable[[Any, Caller], Awaitable[Message]],
        kind: RequestKind[_R],
        check: Callable[[_R], None] | None = None,
    ) -> Callable[[bytes, Stream], Awaitable[bytes]]:
        async def call(data: bytes, context: Stream) -> bytes:
            begun = host.monotonic_s()
            try:
                async with self._begun(context, name) as caller:
                    if self._quotas is None or not self._quotas.limits_requests:
                        return await answer(data, caller)
                    return await self._within_quota(self._quotas, answer(data, caller), caller)
            finally:
                self.refusals.metrics.requests.called(name, host.monotonic_s() - begun)

        async def answer(data: bytes, caller: Caller) -> bytes:
            await self._turns.give_way_to(len(data))
            request: Any = decode_request(kind, data, self._limits.request_entries_max)
            if check is not None:
                check(request)
                request = data  # Of the message, nothing stays while the controller works.
            response = await method(request, caller)
            await self._turns.give_way_to(self._checked_size(response))
            return response.SerializeToString()

        return call

    async def _within_quota(
        self, quotas: Quotas, answer: Coroutine[Any, Any, bytes], caller: Caller
    ) -> bytes:
        """Begin a call once its client has paid for the earlier ones, and charge its time."""
        throttle = quotas.throttle(QuotaKind.REQUEST, caller, lambda: None)
        timed = LoopTime(answer)
        try:
            throttle.begin()
            with suppress(TimeoutError):
                async with asyncio.timeout(_CALL_DELAY_SECONDS_MAX):
                    await throttle.wait()
            return await timed
        finally:
            answer.close()  # Unless it has run.
            throttle.charge_time(timed.nanoseconds)
            throttle.close()

    def _stream(
        self, name: str, serve: StreamMethod
    ) -> Callable[[object, Stream], Awaitable[None]]:
        async def call(_: object, context: Stream) -> None:
            async with self._begun(context, name) as caller:
                try:
                    # Otherwise gRPC sends them with the first message, and cannot end the stream
                    # before it.
                    await context.send_initial_metadata(())
                    await serve(context, caller)
                except grpc.aio.InternalError:
                    pass  # The peer went away in the middle of a message, which is allowed.

        return call

    @asynccontextmanager
    async def _begun(self, context: Stream, method: str) -> AsyncIterator[Caller]:
        """Provide a call's caller; end the call with the error of its handler."""
        caller = _nameless(context, self.listener)
        try:
            client_id = client_id_from_metadata(context.invocation_metadata() or ())
            caller = replace(caller, client_id=client_id)
            yield caller
        except MillraceError as error:
            self.refusals.on_refused(error, caller, method)
            # The error is in a frame that its trace refers to, by way of `asynccontextmanager`.
            await abort(context, error.with_traceback(None))

    def _checked_size(self, response: Message) -> int:
        """Return the bytes of an answer.

        Raises:
            MessageTooLargeError: they are too many.
        """
        size, size_max = response.ByteSize(), self._limits.message_bytes_max
        if size > size_max:
            raise MessageTooLargeError(
                f"the answer has {size} bytes, and the setting limits.message_bytes_max allows "
                f"{size_max}: ask for less at a time, or raise it",
                appended=Appended.MAYBE,
            )
        return size


def principal_of(context: Stream) -> str:
    """Return the principal that a connection's credentials prove (`runtime/host.py`)."""
    identities = context.peer_identities()
    return printable(next(iter(identities)).decode(errors="replace")) if identities else ANONYMOUS


def _nameless(context: Stream, listener: Listener) -> Caller:
    """Return the caller of a call, without the client id, which may be malformed."""
    metadata = context.invocation_metadata() or ()
    software = next((str(value) for key, value in metadata if key == "user-agent"), "")
    return Caller(
        principal=principal_of(context),
        client_id="",
        address=unquote(context.peer()).partition(":")[2],
        listener=listener,
        software=printable(software[:_SOFTWARE_CHARACTERS_MAX]),
    )
