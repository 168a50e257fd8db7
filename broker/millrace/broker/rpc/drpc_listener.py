"""A port that serves the services of its gRPC twin by DRPC."""

from collections.abc import Awaitable, Callable

from millrace.broker.rpc.byte_listener import ByteListener, server_limits
from millrace.broker.rpc.calls import ServiceMethods
from millrace.broker.rpc.errors import status_of
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.listeners_config import ListenerEntry
from millrace.core.metadata.model import Listener
from millrace.runtime.transport.calls import ServerCall
from millrace.runtime.transport.credentials import ServerCredentials
from millrace.runtime.transport.drpc.server import DrpcServer


class DrpcListener(ByteListener):
    """A listener of DRPC, from the bound port to its stop.

    Args:
        entry: which one of the broker it is, and where.
        limits: of its connections and messages.
        metrics: count them.
        credentials: of its connections; None: they are in plain text.

    Raises:
        InvalidConfigError: the address cannot be bound.
    """

    def __init__(
        self,
        entry: ListenerEntry,
        limits: LimitsConfig,
        metrics: BrokerMetrics,
        credentials: ServerCredentials | None,
    ) -> None:
        super().__init__(entry, metrics, credentials)
        is_for_brokers = entry.side is Listener.BROKERS
        self._server = DrpcServer(
            server_limits(limits, credentials, is_for_brokers=is_for_brokers),
            status_of=status_of,
            on_failure=self.on_failure,
            on_ended=self.on_ended,
        )
        self.bind(self._server)

    def add(self, service: ServiceMethods) -> None:
        """Answer for a service, too."""
        self._server.methods.update(service.by_path())

    def admit_by(self, admit: Callable[[ServerCall, str], Awaitable[None]]) -> None:
        """Have callers known before anything of their connections is read but who calls."""
        self._server.admit = admit
