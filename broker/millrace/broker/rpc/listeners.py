"""The ports of a broker: for clients, for clients outside of its network, and for other brokers.

All are bound before the broker registers, as the registration has their addresses.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from millrace.broker.quotas import Quotas
from millrace.broker.rpc.calls import Calls
from millrace.broker.rpc.client_listener import ClientListener, Service
from millrace.broker.rpc.connection_watch import ConnectionWatch
from millrace.broker.rpc.outside_address import OutsideAddress
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.rpc.server import bind, make_server
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import BrokerConfig, LimitsConfig, ReplicaListenerConfig
from millrace.core.metadata.model import Listener
from millrace.runtime.turns import Turns


class ReplicaListener:
    """The port that other brokers connect to.

    Args:
        config: where it listens.
        limits: of its connections and messages.
        refusals: records refused requests.
        watch: of its connections.
        turns: of the loop.

    Attributes:
        calls: for its services.
        port: that it is bound to.
        address: for other brokers.
    """

    def __init__(
        self,
        config: ReplicaListenerConfig,
        limits: LimitsConfig,
        refusals: Refusals,
        *,
        watch: ConnectionWatch,
        turns: Turns,
    ) -> None:
        self._server = make_server(limits, watch, is_for_brokers=True)
        self.calls = Calls(Listener.BROKERS, limits, refusals, turns)
        self.port, self.address = bind(
            self._server, config, who="brokers", section="replica_listener"
        )

    def add(self, service: Service) -> None:
        """Answer for a service, too."""
        self._server.add_generic_rpc_handlers([service.handlers()])

    async def serve(self) -> None:
        """Answer from now on."""
        await self._server.start()

    async def stop(self) -> None:
        """Take no more calls, and end those in flight."""
        await self._server.stop(None)


class Listeners:
    """All ports of a broker, bound.

    Args:
        begin: runs a task for as long as the broker does.

    Raises:
        InvalidConfigError: an address cannot be bound.

    Attributes:
        clients: always there.
        outside: None unless it is configured.
        replica: for other brokers.
    """

    def __init__(
        self,
        config: BrokerConfig,
        limits: LimitsConfig,
        *,
        metrics: BrokerMetrics,
        refusals: Refusals,
        turns: Turns,
        quotas: Quotas,
        begin: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._begin = begin
        self._grace_seconds = config.shutdown.grace_ms / 1000
        self._address_file = config.outside_listener.address_file

        def watch(listener: Listener) -> ConnectionWatch:
            return ConnectionWatch(listener, limits, metrics)

        def for_clients(listener: Listener) -> ClientListener:
            place = config.listener if listener is Listener.CLIENTS else config.outside_listener
            watched = watch(listener)
            bound = ClientListener(
                listener, place, limits, refusals, watch=watched, turns=turns, quotas=quotas
            )
            begin(watched.run(bound.port))
            return bound

        self.clients = for_clients(Listener.CLIENTS)
        self.outside = for_clients(Listener.OUTSIDE) if config.outside_listener.port >= 0 else None
        watched = watch(Listener.BROKERS)
        self.replica = ReplicaListener(
            config.replica_listener, limits, refusals, watch=watched, turns=turns
        )
        begin(watched.run(self.replica.port))

    @property
    def of_clients(self) -> list[ClientListener]:
        """Those that clients connect to."""
        return [self.clients] if self.outside is None else [self.clients, self.outside]

    def find_outside_address(self) -> Callable[[], str]:
        """Return a function for the address of the outside listener's clients; empty: none."""
        if self.outside is None:
            return lambda: ""
        outside = OutsideAddress(self.outside.address, self._address_file)
        if self._address_file:
            self._begin(outside.run())
        return lambda: outside.current

    async def report_stopping(self) -> None:
        """Report in health checks that this broker is about to stop; it still serves clients."""
        for listener in self.of_clients:
            await listener.report_stopping()

    async def stop_clients(self) -> None:
        """End the calls of all clients at the same time, with one common grace."""
        stops = (listener.stop(self._grace_seconds) for listener in self.of_clients)
        await asyncio.gather(*stops)
