"""A call as gRPC shows it to the broker, and who makes it."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import grpc

from millrace.broker.rpc.calls import Calls
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import ANONYMOUS, Caller
from millrace.core.metadata.model import Listener

CALLER = Caller(
    principal=ANONYMOUS,
    client_id="test",
    address="10.0.0.1:4711",
    listener=Listener.CLIENTS,
    software="own/7",
)


class CallContext:
    """What the broker uses of `grpc.aio.ServicerContext`.

    Args:
        metadata: of the call.
        peer: where it comes from, as gRPC names it.
        identities: what the connection has proved; None: nothing.

    Attributes:
        requests: what the client sends; `grpc.aio.EOF` last.
        responses: what the broker has sent.
        status: that the broker has ended the call with; None: it has not.
        details: of it.
        trailers: of it.
    """

    def __init__(
        self,
        *metadata: tuple[str, str | bytes],
        peer: str = "ipv4:10.0.0.1:4711",
        identities: list[bytes] | None = None,
    ) -> None:
        self.requests: asyncio.Queue[bytes | object] = asyncio.Queue()
        self.responses: asyncio.Queue[bytes] = asyncio.Queue()
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self.trailers: Any = ()
        self._metadata = metadata
        self._peer = peer
        self._identities = identities

    def peer(self) -> str:
        return self._peer

    def peer_identities(self) -> list[bytes] | None:
        return self._identities

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata

    async def send_initial_metadata(self, _: object) -> None:
        pass

    async def read(self) -> bytes | object:
        return await self.requests.get()

    async def write(self, message: bytes) -> None:
        self.responses.put_nowait(message)

    async def abort(self, status: grpc.StatusCode, details: str, trailers: Any) -> None:
        self.status, self.details, self.trailers = status, details, trailers
        raise grpc.aio.AbortError


def calls_of(
    listener: Listener = Listener.CLIENTS,
    limits: LimitsConfig | None = None,
    metrics: BrokerMetrics | None = None,
) -> Calls:
    """Return the calls to a listener."""
    refusals = Refusals(BrokerMetrics() if metrics is None else metrics)
    return Calls(listener, LimitsConfig() if limits is None else limits, refusals)


async def serve_call(
    handlers: grpc.GenericRpcHandler, path: str, context: Any, request: bytes | None = None
) -> Any:
    """Have a call served until it ends; return the response, where there is one.

    Args:
        handlers: of the service.
        path: of the method that is called.
        context: of the call: says how it was ended, if the broker has.
        request: of a method with one.
    """
    found: Any = handlers.service(SimpleNamespace(method=path))
    serve = found.stream_stream if request is None else found.unary_unary
    with contextlib.suppress(grpc.aio.AbortError):
        return await serve(request, context)
