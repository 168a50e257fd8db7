"""A port that clients connect to, with its services and their health.

It is bound before the broker registers, as the registration has its address, and answers only once
everything behind it is open. Streams do not end by themselves: without `end_streams` every stop
would take the whole grace.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from millrace.broker.guard.guard import Guard
from millrace.broker.quotas import Quotas
from millrace.broker.rpc.calls import Calls, ServiceMethods
from millrace.broker.rpc.connection_watch import ConnectionWatch
from millrace.broker.rpc.drpc_listener import DrpcListener
from millrace.broker.rpc.grpc_calls import grpc_handlers
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.rpc.server import bind, make_server
from millrace.core.broker_config import LimitsConfig
from millrace.core.listeners_config import ListenerEntry
from millrace.core.quotas.concurrency import CallsUnderWay
from millrace.runtime.transport.credentials import ServerCredentials
from millrace.runtime.turns import Turns


class Service(Protocol):
    """One service of the protocol, by its full name."""

    NAME: str

    def methods(self) -> ServiceMethods:
        """Return what serves its calls."""


class StreamingService(Service, Protocol):
    """A service whose calls do not end by themselves."""

    def end_streams(self) -> None:
        """End all streams, also later ones, because the broker stops."""


class ClientListener:
    """A listener for clients, from the bound port to its stop.

    Args:
        entry: which one of the broker it is, and where.
        limits: of its connections and messages.
        refusals: records refused requests.
        watch: of its connections.
        turns: of the loop.
        quotas: of its clients.
        credentials: of its connections; None: they are in plain text.
        guard: knows its clients; None: they may do everything.
        under_way: counts the calls of each client; None: calls are not counted.

    Attributes:
        calls: for its services.
        ports: that it is bound to: one.
        address: the address for clients, unless another one is known.
        twin: serves the same by DRPC; None: there is none.
        is_serving: whether it answers, and the broker is not about to stop.
    """

    def __init__(
        self,
        entry: ListenerEntry,
        limits: LimitsConfig,
        refusals: Refusals,
        *,
        watch: ConnectionWatch,
        turns: Turns,
        quotas: Quotas,
        credentials: ServerCredentials | None,
        guard: Guard | None,
        under_way: CallsUnderWay | None,
    ) -> None:
        self.twin: DrpcListener | None = None
        self.is_serving = False
        self._server = make_server(limits, watch, credentials=credentials)
        self.calls = Calls(
            entry.side, limits, refusals, turns, quotas=quotas, guard=guard, under_way=under_way
        )
        self._watch = watch
        self._asks_who_calls = guard is not None
        self.credentials = credentials
        port, self.address = bind(self._server, entry, credentials)
        self.ports = [port]
        self._health = health.aio.HealthServicer()
        self._streaming: Sequence[StreamingService] = ()

    async def serve(self, unary: Sequence[Service], streaming: Sequence[StreamingService]) -> None:
        """Answer clients from now on."""
        self._streaming = streaming
        services = (*streaming, *unary)
        if self.twin is not None and self._asks_who_calls:
            self.twin.admit_by(self.calls.admit)
        for service in services:
            methods = service.methods()
            self._server.add_generic_rpc_handlers([grpc_handlers(methods, self._watch.on_known)])
            if self.twin is not None:
                self.twin.add(methods)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        names = [service.NAME for service in services]
        reflection.enable_server_reflection(
            [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._server
        )
        for name in ("", *names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        if self.twin is not None:
            await self.twin.serve()
        self.is_serving = True

    async def report_stopping(self) -> None:
        """Report in health checks that this broker is about to stop; it still serves."""
        self.is_serving = False
        await self._health.enter_graceful_shutdown()

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls; return once those in flight have ended, or the grace is over."""
        stops = [self._server.stop(grace_seconds)]
        if self.twin is not None:
            stops.append(self.twin.stop(grace_seconds))
        stopping = asyncio.gather(*stops)
        await asyncio.sleep(0)  # They take no more calls from now on.
        for service in self._streaming:
            service.end_streams()
        await stopping
