"""Connections from this broker to another one's replica listener."""

from typing import Final, Self

from millrace.core.broker_config import BrokerConfig, LimitsConfig
from millrace.core.listeners_config import ListenerConfig
from millrace.runtime.transport.credentials import ClientCredentials, TlsFiles
from millrace.runtime.transport.drpc.connection import ConnectionLimits
from millrace.runtime.transport.drpc.connector import Connector
from millrace.runtime.transport.grpc_channel import Channel

RECEIVED_BYTES_MAX: Final = 1 << 30
"""Bytes of one message: the most that any broker's settings allow, and the largest metadata."""
_CLIENT_ID: Final = "millrace-broker"
_KEPT_BYTES_MAX: Final = 256 << 20
"""Bytes that have arrived from other brokers and were not taken yet; one message may exceed it."""


def files_of(config: ListenerConfig) -> TlsFiles:
    """Return where a listener has its certificates."""
    return TlsFiles(
        ca=config.tls_client_ca_file,
        certificate=config.tls_certificate_file,
        key=config.tls_key_file,
    )


class PeerConnections:
    """Opens connections to other brokers. It belongs to the event loop.

    Args:
        limits: of the connections.
        credentials: that this broker shows; None: connections are in plain text.
    """

    def __init__(self, limits: LimitsConfig, credentials: ClientCredentials | None = None) -> None:
        self._limits = limits
        self._credentials = credentials

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """Return those by a broker's settings: it shows the certificate of its own listener.

        Raises:
            InvalidConfigError: the files cannot be used.
        """
        files = files_of(config.listeners.replicas)
        if not files.certificate:
            return cls(config.limits)
        # The listener tells what is wrong with changed files, which are the same.
        return cls(config.limits, ClientCredentials(files, lambda _: None))

    def connect(self, address: str) -> Channel:
        """Return a connection; nothing is sent before the first call.

        Metadata and batches come whole, and another broker may be set to larger ones than this one.
        """
        keepalive_ms = self._limits.replica_keepalive_ms
        return Channel(
            address,
            client_id=_CLIENT_ID,
            credentials=self._credentials,
            options=[
                ("grpc.max_receive_message_length", RECEIVED_BYTES_MAX),
                ("grpc.max_send_message_length", -1),
                ("grpc.enable_http_proxy", 0),
                ("grpc.optimization_target", "throughput"),
                ("grpc.http2.max_frame_size", 1 << 20),
                ("grpc.http2.lookahead_bytes", 4 << 20),
                ("grpc.http2.bdp_probe", 0),
                # One end may give the connection up without the other noticing: a silent follower
                # would wait for its leader's batches until a ping is not answered.
                ("grpc.keepalive_time_ms", keepalive_ms),
                ("grpc.keepalive_timeout_ms", keepalive_ms),
                ("grpc.http2.ping_timeout_ms", keepalive_ms),  # Default: a minute.
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.use_local_subchannel_pool", 1),
            ],
        )

    def new_connector(self) -> Connector:
        """Return what opens connections of DRPC to other brokers."""
        return Connector(
            ConnectionLimits(
                message_bytes_max=RECEIVED_BYTES_MAX,
                keepalive_ms=self._limits.replica_keepalive_ms,
                dead_after_ms=self._limits.replica_keepalive_ms,
            ),
            received_bytes_max=_KEPT_BYTES_MAX,
            client_id=_CLIENT_ID,
            credentials=self._credentials,
        )
