"""The gRPC server: its options, which are the first line against hostile or broken peers.

Its port is bound before it is announced.
"""

import errno
import os
import socket
from dataclasses import replace
from typing import Final

import grpc

from millrace.broker.address import Address, advertised_host, not_served
from millrace.broker.rpc.connection_watch import ConnectionWatch
from millrace.core.broker_config import LimitsConfig
from millrace.core.listeners_config import ListenerConfig, ListenerEntry
from millrace.core.metadata.model import Listener
from millrace.core.settings import INT32_MAX
from millrace.runtime import host
from millrace.runtime.transport.credentials import ServerCredentials

_CLIENT_PING_INTERVAL_MS_MIN: Final = 10_000
"""Clients that ping more often than this, and do so three times, are cut off."""
_CALL_METADATA_BYTES_MAX: Final = 16 << 10
"""The largest headers of a call, decoded. It counts from when the peer acknowledges settings."""
_AGE_GRACE_MS: Final = 60_000
"""How long the calls on a connection of the greatest age may take to finish."""
_PROVED_MS_MAX: Final = 3_600_000
"""The greatest age where callers show certificates."""
_NO_COMPRESSION: Final = 1
"""A set of bits: of the algorithms, only the one that changes nothing."""
_WINDOW_BYTES: Final = 4 << 20
"""Bytes that a stream may send beyond the message that is being read."""


def make_server(
    limits: LimitsConfig,
    watch: ConnectionWatch | None = None,
    *,
    is_for_brokers: bool = False,
    credentials: ServerCredentials | None = None,
) -> grpc.aio.Server:
    """Return a server without services or ports.

    Args:
        limits: of its connections and messages.
        watch: hears of its calls.
        is_for_brokers: a dead connection has to be detected soon (`replica_keepalive_ms`).
        credentials: of its connections; None: they are in plain text.
    """
    ping_interval_ms_min = _CLIENT_PING_INTERVAL_MS_MIN
    if is_for_brokers:
        limits = replace(
            limits,
            keepalive_interval_ms=limits.replica_keepalive_ms,
            keepalive_timeout_ms=limits.replica_keepalive_ms,
        )
        ping_interval_ms_min = limits.replica_keepalive_ms // 2
    idle_ms, age_ms = limits.connection_idle_ms_max, age_ms_max(limits, credentials)
    return host.current.server(
        interceptors=[] if watch is None else [watch],
        options=[
            ("grpc.max_receive_message_length", limits.message_bytes_max),
            # Sent messages are bounded where they are made; metadata to brokers is not.
            ("grpc.max_send_message_length", -1),
            ("grpc.max_allowed_incoming_connections", limits.connections_max),
            ("grpc.max_concurrent_streams", limits.connection_streams_max),
            ("grpc.server_handshake_timeout_ms", limits.handshake_ms_max),
            ("grpc.max_connection_idle_ms", INT32_MAX if idle_ms < 0 else idle_ms),
            ("grpc.max_connection_age_ms", INT32_MAX if age_ms < 0 else age_ms),
            ("grpc.max_connection_age_grace_ms", _AGE_GRACE_MS),
            ("grpc.keepalive_time_ms", limits.keepalive_interval_ms),
            ("grpc.keepalive_timeout_ms", limits.keepalive_timeout_ms),
            ("grpc.http2.ping_timeout_ms", limits.keepalive_timeout_ms),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", ping_interval_ms_min),
            ("grpc.http2.max_ping_strikes", 3),
            ("grpc.absolute_max_metadata_size", _CALL_METADATA_BYTES_MAX),
            ("grpc.max_metadata_size", _CALL_METADATA_BYTES_MAX // 2),
            # Sent and unread bytes wait at the client. With the probe on, gRPC opens the window by
            # its estimate of the network; a peer that answers its probes late makes that hundreds
            # of megabytes.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
            # Messages are few and large: frames of the default 16 KiB would cost a read each.
            ("grpc.optimization_target", "throughput"),
            ("grpc.http2.max_frame_size", 1 << 20),
            # Batches come compressed; a second pass would cost and could be a bomb.
            ("grpc.per_message_compression", 0),
            ("grpc.per_message_decompression", 0),
            ("grpc.compression_enabled_algorithms_bitset", _NO_COMPRESSION),
            ("grpc.so_reuseport", 0),
        ],
    )


def age_ms_max(limits: LimitsConfig, credentials: ServerCredentials | None) -> int:
    """Return how old a connection may get; below 0: there is no bound.

    Who had to show a certificate has to show it again: it may have ended, or have been withdrawn.
    """
    age_ms = limits.connection_age_ms_max
    if credentials is None or not credentials.requires_certificates:
        return age_ms
    return _PROVED_MS_MAX if age_ms < 0 else min(age_ms, _PROVED_MS_MAX)


def bind(
    server: grpc.aio.Server, entry: ListenerEntry, credentials: ServerCredentials | None
) -> tuple[int, Address]:
    """Bind a server to a listener's port; return the port, and the address for callers.

    Args:
        server: that gets the port.
        entry: of the listener.
        credentials: of its connections; None: they are in plain text.

    Raises:
        InvalidConfigError: the address cannot be bound.
    """
    address = Address(entry.config.host, entry.config.port)
    try:
        secrets = None if credentials is None else credentials.for_grpc()
        port = host.current.listen(server, str(address), secrets)
    except RuntimeError as error:  # All that gRPC says.
        who = "brokers" if entry.side is Listener.BROKERS else "clients"
        section = f"listeners.{entry.name}"
        raise not_served(who, address, section, _refusal(address)) from error
    return port, advertised_address(entry.config, port)


def advertised_address(config: ListenerConfig, port: int) -> Address:
    """Return what callers of a listener are told to connect to, unless a file says otherwise.

    Args:
        config: of the listener.
        port: that it is bound to.
    """
    return Address(
        config.advertised_host or advertised_host(config.host), config.advertised_port or port
    )


def _refusal(address: Address) -> OSError:
    """Return the system's error for an address that gRPC could not bind."""
    try:
        for family, kind, protocol, _, place in socket.getaddrinfo(
            *address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                tried.bind(place)
    except OSError as error:
        return error
    return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))  # It was, a moment ago.
