"""A port beside a gRPC listener that serves another protocol, whose connections are bounded here.

It is bound before the broker registers, as the registration has its address. Its connections are
not found among the process's descriptors, as gRPC's are.
"""

import logging
from typing import Any, Final

from millrace.broker import events
from millrace.broker.address import Address, not_served
from millrace.broker.rpc.server import advertised_address, age_ms_max
from millrace.broker.telemetry.metrics import BrokerMetrics
from millrace.core.broker_config import LimitsConfig
from millrace.core.ids import MonotonicMs
from millrace.core.listeners_config import ListenerEntry
from millrace.core.metadata.model import Listener
from millrace.runtime.clock import monotonic_now
from millrace.runtime.handshakes import TOO_OFTEN
from millrace.runtime.transport.credentials import ServerCredentials
from millrace.runtime.transport.framed_connection import ConnectionLimits
from millrace.runtime.transport.served_connections import (
    TOO_MANY_OF_HOST,
    TOO_MANY_UNKNOWN,
    ConnectionServer,
    ServerLimits,
)

_log = logging.getLogger(__name__)

_QUIET_MS: Final = 10_000
"""Pause between two lines in the log."""


_LIMITS: Final = {
    TOO_OFTEN: "connections_per_host_rate_max",
    TOO_MANY_OF_HOST: "connections_per_host_max",
    TOO_MANY_UNKNOWN: "connections_unknown_max",
}
"""The setting that is the reason for the end of a connection."""


class ByteListener:
    """A listener from the bound port to its stop; the subclass makes the server.

    Args:
        entry: which one of the broker it is, and where.
        metrics: count its connections.
        credentials: of its connections; None: they are in plain text.

    Attributes:
        entry: as given.
        port: that it is bound to.
        address: for callers, unless another one is known.
    """

    port: int
    address: Address

    def __init__(
        self, entry: ListenerEntry, metrics: BrokerMetrics, credentials: ServerCredentials | None
    ) -> None:
        self.entry = entry
        self._credentials = credentials
        self._metrics = metrics
        self._open = metrics.connections.labels(entry.label)
        self._closed = metrics.connections_closed.labels(entry.label)
        self._quiet_until = MonotonicMs(0)
        self._closed_since = 0

    def bind(self, server: ConnectionServer[Any]) -> None:
        """Bind the port for a server.

        Raises:
            InvalidConfigError: the address cannot be bound.
        """
        self._bound = server
        self._open.set_function(lambda: len(server.connections))
        config = self.entry.config
        wanted = Address(config.host, config.port)
        try:
            self.port = server.bind(str(wanted))
        except OSError as error:
            who = "brokers" if self.entry.side is Listener.BROKERS else "clients"
            raise not_served(who, wanted, f"listeners.{self.entry.name}", error) from error
        self.address = advertised_address(config, self.port)

    async def serve(self) -> None:
        """Answer from now on."""
        await self._bound.serve(self._credentials)

    async def run(self) -> None:
        """Look at the connections, for as long as the broker runs."""
        await self._bound.watch()

    async def stop(self, grace_seconds: float) -> None:
        """Take no more calls; return once those in flight have ended, or the grace is over."""
        await self._bound.stop(grace_seconds)

    def on_ended(self, address: str, reason: str) -> None:
        """A connection was refused, or was ended for what it did."""
        self._closed.inc()
        if limit := _LIMITS.get(reason):
            self._metrics.limit_reached(limit)
        self._closed_since += 1
        now = monotonic_now()
        if now < self._quiet_until:
            return
        events.CONNECTION_REFUSED.log(
            _log,
            listener=self.entry.label,
            address=address,
            reason=reason,
            closed=self._closed_since,
        )
        self._quiet_until = MonotonicMs(now + _QUIET_MS)
        self._closed_since = 0

    def on_failure(self, error: BaseException) -> None:
        """A handler failed: a bug, which must not end the broker."""
        events.CALL_FAILED.log(_log, cause=error)


def server_limits(
    limits: LimitsConfig, credentials: ServerCredentials | None, *, is_for_brokers: bool
) -> ServerLimits:
    """Return the bounds of a listener by the broker's settings."""
    keepalive_ms, dead_after_ms = limits.keepalive_interval_ms, limits.keepalive_timeout_ms
    if is_for_brokers:
        keepalive_ms = dead_after_ms = limits.replica_keepalive_ms
    return ServerLimits(
        connection=ConnectionLimits(
            message_bytes_max=limits.message_bytes_max,
            keepalive_ms=keepalive_ms,
            dead_after_ms=dead_after_ms,
        ),
        connections_max=limits.connections_max,
        connections_per_host_max=limits.connections_per_host_max,
        received_bytes_max=limits.incomplete_bytes_max,
        silence_ms_max=limits.connection_silence_ms_max,
        idle_ms_max=limits.connection_idle_ms_max,
        age_ms_max=age_ms_max(limits, credentials),
        message_ms_max=limits.message_ms_max,
        handshake_ms_max=limits.handshake_ms_max,
        host_rate_max=limits.connections_per_host_rate_max,
        unknown_max=limits.connections_unknown_max,
    )
