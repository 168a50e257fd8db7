"""A gRPC call and its client, as the broker sees them."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType, SimpleNamespace
from typing import Any

import grpc

from millrace.broker.guard.callers import GuardedCaller
from millrace.broker.guard.guard import Guard
from millrace.broker.rpc.audit import AuditLog
from millrace.broker.rpc.calls import Calls, ServiceMethods
from millrace.broker.rpc.grpc_calls import grpc_handlers
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.callers import ANONYMOUS
from millrace.core.metadata.model import Listener
from millrace.core.quotas.concurrency import CallsUnderWay
from millrace.runtime.turns import Turns

CALLER = GuardedCaller(
    principal=ANONYMOUS,
    client_id="test",
    address="10.0.0.1:4711",
    listener=Listener.CLIENTS,
    software="own/7",
)


class CallContext:
    """The part of `grpc.aio.ServicerContext` that the broker uses.

    Args:
        metadata: of the call.
        peer: the client's address, as gRPC writes it.
        identities: the authenticated identities of the connection; None: none.

    Attributes:
        requests: the client's messages; `grpc.aio.EOF` last.
        responses: the broker's messages.
        status: the status with which the broker has ended the call; None: it has not.
        details: of it.
        trailers: of it.
    """

    def __init__(
        self,
        *metadata: tuple[str, str | bytes],
        peer: str = "ipv4:10.0.0.1:4711",
        certificate: Mapping[str, Sequence[bytes]] = MappingProxyType({}),
    ) -> None:
        self.requests: asyncio.Queue[bytes | object] = asyncio.Queue()
        self.responses: asyncio.Queue[bytes] = asyncio.Queue()
        self.status: grpc.StatusCode | None = None
        self.details = ""
        self.trailers: Any = ()
        self._metadata = metadata
        self._aborted: grpc.aio.AbortError | None = None
        self._peer = peer
        self._certificate = certificate

    def peer(self) -> str:
        return self._peer

    def peer_identities(self) -> Sequence[bytes] | None:
        return [b"of a certificate"] if self._certificate else None

    def auth_context(self) -> Mapping[str, Sequence[bytes]]:
        return self._certificate

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self._metadata

    async def send_initial_metadata(self, _: object) -> None:
        pass

    async def read(self) -> bytes | object:
        return await self.requests.get()

    async def write(self, message: bytes) -> None:
        self.responses.put_nowait(message)

    async def abort(self, status: grpc.StatusCode, details: str, trailers: Any = ()) -> None:
        self.status, self.details, self.trailers = status, details, trailers
        self._aborted = grpc.aio.AbortError()  # gRPC keeps it, too.
        raise self._aborted


def calls_of(
    listener: Listener = Listener.CLIENTS,
    limits: LimitsConfig | None = None,
    metrics: BrokerMetrics | None = None,
    guard: Guard | None = None,
    under_way: CallsUnderWay | None = None,
) -> Calls:
    """Return the calls of a listener."""
    refusals = Refusals(BrokerMetrics() if metrics is None else metrics, AuditLog(lines_max=100))
    return Calls(
        listener,
        LimitsConfig() if limits is None else limits,
        refusals,
        Turns(),
        guard=guard,
        under_way=under_way,
    )


async def serve_call(
    methods: ServiceMethods, path: str, context: Any, request: bytes | None = None
) -> Any:
    """Serve a call until it ends; return the response, if there is one.

    Args:
        methods: of the service.
        path: of the method.
        context: of the call; it shows the status, if the broker has ended the call with one.
        request: of a method with one request.
    """
    found: Any = grpc_handlers(methods).service(SimpleNamespace(method=path))
    serve = found.stream_stream if request is None else found.unary_unary
    with contextlib.suppress(grpc.aio.AbortError):
        return await serve(request, context)
