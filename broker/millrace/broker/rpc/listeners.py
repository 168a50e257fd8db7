"""The ports of a broker: for clients, for clients outside of its network, and for other brokers.

All are bound before the broker registers, as the registration has their addresses.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millrace.broker.address import Address
from millrace.broker.guard.guard import Guard
from millrace.broker.quotas import Quotas
from millrace.broker.rpc.broker_calls import BrokerCalls
from millrace.broker.rpc.byte_listener import ByteListener
from millrace.broker.rpc.client_listener import ClientListener, Service
from millrace.broker.rpc.connection_watch import ConnectionWatch
from millrace.broker.rpc.drpc_listener import DrpcListener
from millrace.broker.rpc.grpc_calls import grpc_handlers
from millrace.broker.rpc.outside_address import OutsideAddress
from millrace.broker.rpc.refusals import Refusals
from millrace.broker.rpc.server import bind, make_server
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import BrokerConfig, LimitsConfig
from millrace.core.broker_names import BrokerName
from millrace.core.errors import InvalidConfigError
from millrace.core.listeners_config import ListenerEntry, ListenerProtocol
from millrace.core.metadata.model import KafkaAddresses, Listener, SideAddresses
from millrace.core.quotas.concurrency import CallsUnderWay
from millrace.runtime.transport.credentials import ServerCredentials
from millrace.runtime.turns import Turns

if TYPE_CHECKING:
    from millrace.broker.rpc.listener_tls import ListenerTls


class ReplicaListener:
    """The port that other brokers connect to; two while they change to TLS.

    Args:
        entry: where it listens.
        limits: of its connections and messages.
        refusals: records refused requests.
        watch: of its connections.
        turns: of the loop.
        credentials: of its connections; None: they are in plain text.
        name: of this broker, as its certificate has it; None: brokers show none.

    Attributes:
        calls: for its services.
        ports: that it is bound to: one, or that of plain text and that of TLS.
        address: for other brokers.
        tls_address: where they connect by TLS; empty: nowhere.
        twin: serves the same by DRPC; None: there is none.
    """

    def __init__(
        self,
        entry: ListenerEntry,
        limits: LimitsConfig,
        refusals: Refusals,
        *,
        watch: ConnectionWatch,
        turns: Turns,
        credentials: ServerCredentials | None,
        name: BrokerName | None,
    ) -> None:
        self.twin: DrpcListener | None = None
        has_both = entry.config.has_both
        self._server = make_server(limits, watch, is_for_brokers=True, credentials=credentials)
        self.calls = BrokerCalls(name, entry.side, limits, refusals, turns, has_plain=has_both)
        self._watch = watch
        self._asks_who_calls = name is not None and not has_both
        self.credentials = None if has_both else credentials
        port, self.address = bind(self._server, entry, self.credentials)
        self.ports = [port]
        self.tls_address = "" if credentials is None else str(self.address)
        if has_both:
            other = replace(entry.config, port=entry.config.tls_port, advertised_port=0)
            port, by_tls = bind(self._server, entry._replace(config=other), credentials)
            self.ports.append(port)
            self.tls_address = str(by_tls)

    def add(self, service: Service, *, by_drpc: bool = True) -> None:
        """Answer for a service, too; the twin does so as well, unless `by_drpc` is False."""
        methods = service.methods()
        self._server.add_generic_rpc_handlers([grpc_handlers(methods, self._watch.on_known)])
        if self.twin is not None and by_drpc:
            self.twin.add(methods)

    async def serve(self) -> None:
        """Answer from now on."""
        await self._server.start()
        if self.twin is not None:
            if self._asks_who_calls:
                self.twin.admit_by(self.calls.admit)
            await self.twin.serve()

    async def stop(self) -> None:
        """Take no more calls, and end those in flight."""
        if self.twin is not None:
            await self.twin.stop(0)
        await self._server.stop(None)


class Addresses:
    """What callers are told to connect to, listener by listener, at present.

    Args:
        listeners: all that are bound, each with its own address.
        replica_tls_address: of brokers by TLS; empty: there is none.
        begin: runs a task for as long as the broker does.
    """

    def __init__(
        self,
        listeners: Iterable[tuple[ListenerEntry, Address]],
        replica_tls_address: str,
        begin: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._replica_tls_address = replica_tls_address
        self._places: dict[tuple[ListenerProtocol, Listener], OutsideAddress] = {}
        for entry, own in listeners:
            place = OutsideAddress(own, entry.config.address_file)
            if entry.config.address_file:
                begin(place.run())
            self._places[entry.protocol, entry.side] = place

    def of(self, protocol: ListenerProtocol, side: Listener) -> str:
        """Return a listener's `host:port`; empty: there is none, or it is not known yet.

        That of a side without TLS is the one with TLS where there is no other.
        """
        place = self._places.get((protocol, side))
        if place is None and side in (Listener.CLIENTS, Listener.OUTSIDE):
            place = self._places.get((protocol, side.with_tls))
        return "" if place is None else place.current

    def drpc(self) -> SideAddresses:
        """Return those of DRPC, of all sides."""
        sides = (Listener.CLIENTS, Listener.OUTSIDE, Listener.BROKERS)
        return SideAddresses(*(self.of(ListenerProtocol.DRPC, side) for side in sides))

    def tls(self) -> SideAddresses:
        """Return those of gRPC by TLS, of all sides."""
        sides = (Listener.CLIENTS_TLS, Listener.OUTSIDE_TLS)
        clients, outside = (self.of(ListenerProtocol.GRPC, side) for side in sides)
        return SideAddresses(clients, outside, self._replica_tls_address)

    def kafka(self) -> KafkaAddresses:
        """Return those of Kafka's protocol, of all listeners that there are."""
        return KafkaAddresses(
            **{
                side.value: place.current
                for (protocol, side), place in self._places.items()
                if protocol is ListenerProtocol.KAFKA
            }
        )


@dataclass(frozen=True, slots=True)
class SharedByListeners:
    """What the listeners of all clients share.

    Attributes:
        limits: of connections and messages.
        refusals: records refused requests.
        turns: of the loop.
        quotas: of clients.
        guard: knows clients; None: they may do everything.
        under_way: counts the calls of each client, over all listeners; None: nobody is counted.
    """

    limits: LimitsConfig
    refusals: Refusals
    turns: Turns
    quotas: Quotas
    guard: Guard | None
    under_way: CallsUnderWay | None


class Listeners:
    """All ports of a broker, bound.

    Args:
        begin: runs a task for as long as the broker does.

    Raises:
        InvalidConfigError: an address cannot be bound.

    Attributes:
        of_clients: those that clients connect to; the first one is always there.
        replica: for other brokers.
        shared: by those of clients.
    """

    replica: ReplicaListener

    def __init__(
        self,
        config: BrokerConfig,
        limits: LimitsConfig,
        *,
        metrics: BrokerMetrics,
        refusals: Refusals,
        turns: Turns,
        quotas: Quotas,
        guard: Guard | None,
        begin: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._begin = begin
        self._grace_seconds = config.shutdown.grace_ms / 1000
        self._bound: list[tuple[ListenerEntry, Address]] = []
        self.of_clients: list[ClientListener] = []
        self._others: list[ByteListener] = []
        under_way = None
        if guard is not None:
            under_way = CallsUnderWay(limits.principal_calls_max, limits.principal_connections_max)
        self.shared = SharedByListeners(limits, refusals, turns, quotas, guard, under_way)
        for entry in config.listeners.entries:
            if entry.protocol is ListenerProtocol.DRPC:
                self._add_twin(entry, limits, metrics)
                continue
            if entry.protocol is not ListenerProtocol.GRPC:
                continue  # Its part of the broker adds it.
            watch = ConnectionWatch(entry.side, limits, metrics)
            tls = self._tls_of(entry, config.node.name, metrics)
            credentials = None if tls is None else tls.credentials
            bound: ClientListener | ReplicaListener
            if entry.side is Listener.BROKERS:
                bound = self.replica = ReplicaListener(
                    entry,
                    limits,
                    refusals,
                    watch=watch,
                    turns=turns,
                    credentials=credentials,
                    name=None if tls is None else tls.name,
                )
            else:
                bound = ClientListener(
                    entry,
                    limits,
                    refusals,
                    watch=watch,
                    turns=turns,
                    quotas=quotas,
                    credentials=credentials,
                    guard=guard,
                    under_way=under_way,
                )
                self.of_clients.append(bound)
            begin(watch.run(bound.ports))
            self._bound.append((entry, bound.address))

    def _tls_of(
        self, entry: ListenerEntry, node_name: str, metrics: BrokerMetrics
    ) -> "ListenerTls | None":
        if not entry.config.tls_certificate_file:
            return None
        # Only now: it brings a library that brokers without TLS do not need.
        from millrace.broker.rpc.listener_tls import ListenerTls

        tls = ListenerTls(entry, node_name, metrics)
        self._begin(tls.run())
        return tls

    def _add_twin(self, entry: ListenerEntry, limits: LimitsConfig, metrics: BrokerMetrics) -> None:
        """Serve by DRPC what the listener of the same side serves, which is there already."""
        listener = self._beside(entry)
        listener.twin = DrpcListener(entry, limits, metrics, listener.credentials)
        self._begin(listener.twin.run())
        self._bound.append((entry, listener.twin.address))

    def _beside(self, entry: ListenerEntry) -> ClientListener | ReplicaListener:
        """Return the gRPC listener of an entry's side.

        Raises:
            InvalidConfigError: there is none.
        """
        listeners: list[ClientListener | ReplicaListener] = [*self.of_clients, self.replica]
        listener = next((one for one in listeners if one.calls.listener is entry.side), None)
        if listener is None:
            raise InvalidConfigError(
                f"listeners.{entry.name}: it serves what the gRPC listener of its side serves, and "
                "there is none: give that one a port, or this one none (-1)"
            )
        return listener

    def credentials_of(self, entry: ListenerEntry) -> ServerCredentials | None:
        """Return what a listener shows that has its TLS of the gRPC listener of its side.

        Raises:
            InvalidConfigError: there is none.
        """
        return self._beside(entry).credentials

    def add(self, listener: ByteListener) -> None:
        """Watch and announce a listener of clients of another protocol; it stops with the rest."""
        self._begin(listener.run())
        self._bound.append((listener.entry, listener.address))
        self._others.append(listener)

    @property
    def clients(self) -> ClientListener:
        """The one for clients inside of the broker's network."""
        return self.of_clients[0]

    @property
    def are_serving(self) -> bool:
        """Whether clients are served, and the broker is not about to stop."""
        return all(listener.is_serving for listener in self.of_clients)

    def follow_addresses(self) -> Addresses:
        """Return the addresses of all listeners, which from now on follow their files."""
        return Addresses(self._bound, self.replica.tls_address, self._begin)

    async def report_stopping(self) -> None:
        """Report in health checks that this broker is about to stop; it still serves clients."""
        for listener in self.of_clients:
            await listener.report_stopping()

    async def stop_clients(self) -> None:
        """End the calls of all clients at the same time, with one common grace."""
        stops = [listener.stop(self._grace_seconds) for listener in self.of_clients]
        stops += [listener.stop(self._grace_seconds) for listener in self._others]
        await asyncio.gather(*stops)
