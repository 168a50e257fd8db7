"""Connections from this broker to another one's replica listener.

While a cluster goes to TLS, brokers with and without it must reach each other (G4). A broker with
both ports uses TLS to peers that have it, and plain text to the others. A broker whose own plain
port is closed never uses plain text.
"""

from collections.abc import Callable
from typing import Final, NamedTuple, Self

from millrace.core.broker_config import BrokerConfig, LimitsConfig
from millrace.core.broker_names import BrokerName
from millrace.core.errors import InvalidConfigError
from millrace.core.listeners_config import ListenerConfig
from millrace.core.metadata.model import BrokerRegistration, Listener
from millrace.runtime.transport.credentials import ClientCredentials, TlsFiles
from millrace.runtime.transport.drpc.connector import Connector, PeerRefusedError
from millrace.runtime.transport.framed_connection import ConnectionLimits
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


class OwnName:
    """The name that all certificates of this broker have, from the first to the last (rule G2).

    Args:
        node_name: of this broker.
    """

    def __init__(self, node_name: str) -> None:
        self._node_name = node_name
        self.value: BrokerName | None = None  # None: no certificate was seen yet.

    def check(self, certificate: bytes) -> None:
        """Take the name of the first certificate, and refuse one with another name.

        Raises:
            InvalidConfigError: says which name it has to have.
        """
        # Only now: it brings a library that brokers without TLS do not need.
        from millrace.runtime.certificates import read

        uris = read(certificate).uris
        name = BrokerName.parse(uris[0]) if len(uris) == 1 else None
        if name is None or name.broker != self._node_name or self.value not in (None, name):
            wanted = (
                "spiffe://TRUST-DOMAIN/ns/NAMESPACE/cluster/CLUSTER/broker/" + self._node_name
                if self.value is None
                else self.value.uri
            )
            raise InvalidConfigError(
                f"tls_certificate_file: the certificate has to name this broker, node.name "
                f"{self._node_name!r}, by one URI ({wanted}), and it has: "
                f"{', '.join(uris) or 'none'}"
            )
        self.value = name


class Way(NamedTuple):
    """How a broker is reached.

    Attributes:
        address: of gRPC, `host:port`.
        has_tls: whether TLS is spoken.
        drpc_address: likewise, of DRPC; empty: nowhere.
    """

    address: str
    has_tls: bool
    drpc_address: str = ""


class PeerConnections:
    """Opens connections to other brokers. It belongs to the event loop.

    Args:
        limits: of the connections.
        credentials: that this broker shows; None: connections are in plain text.
        own: this broker's name in its certificate; None: it shows none.
        has_both: whether brokers without TLS are called in plain text.
    """

    def __init__(
        self,
        limits: LimitsConfig,
        credentials: ClientCredentials | None = None,
        own: BrokerName | None = None,
        *,
        has_both: bool = False,
    ) -> None:
        self._limits = limits
        self._credentials = credentials
        self._own = own
        self._has_both = has_both

    @classmethod
    def of(cls, config: BrokerConfig) -> Self:
        """Return those by a broker's settings: it shows the certificate of its own listener.

        Raises:
            InvalidConfigError: the files cannot be used.
        """
        files = files_of(config.listeners.replicas)
        if not files.certificate:
            return cls(config.limits)
        name = OwnName(config.node.name)
        # The listener tells what is wrong with changed files, which are the same.
        credentials = ClientCredentials(files, lambda _: None, name.check)
        has_both = config.listeners.replicas.has_both
        return cls(config.limits, credentials, name.value, has_both=has_both)

    def check_of(self, name: str) -> Callable[[str], None]:
        """Return what refuses a connection on which another one than a broker answers (rule G2).

        It is for DRPC: the calling end of Python's gRPC does not see the certificate, beyond that
        it is of the right authority, and for the host.

        Args:
            name: of the broker that is called.
        """

        def check(principal: str) -> None:
            if self._own is not None and principal != self._own._replace(broker=name).uri:
                raise PeerRefusedError(
                    f"the certificate there is of {principal or 'nobody'}, and not of broker "
                    f"{name!r} of this cluster"
                )

        return check

    def way(self, address: str, tls_address: str, drpc_address: str = "") -> Way:
        """Return how a broker is reached.

        Args:
            address: of its replica listener.
            tls_address: where that speaks TLS; empty: it has only that address.
            drpc_address: by DRPC, which speaks what `address` does; empty: nowhere.
        """
        if self._credentials is None:
            return Way(address, False, drpc_address)
        if tls_address and tls_address != address:
            return Way(tls_address, True)
        return Way(address, bool(tls_address) or not self._has_both, drpc_address)

    def way_to(self, broker: BrokerRegistration) -> Way:
        """Return how a broker is reached; without an address: nobody knows yet."""
        return self.way(
            broker.replica_address,
            broker.tls_addresses.brokers,
            broker.drpc_address_at(Listener.BROKERS),
        )

    def connect(self, way: Way) -> Channel:
        """Return a connection; nothing is sent before the first call.

        Metadata and batches come whole, and another broker may be set to larger ones than this one.
        """
        keepalive_ms = self._limits.replica_keepalive_ms
        return Channel(
            way.address,
            client_id=_CLIENT_ID,
            credentials=self._credentials if way.has_tls else None,
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

    def new_connector(self, *, has_tls: bool) -> Connector:
        """Return what opens connections of DRPC to other brokers."""
        return Connector(
            ConnectionLimits(
                message_bytes_max=RECEIVED_BYTES_MAX,
                keepalive_ms=self._limits.replica_keepalive_ms,
                dead_after_ms=self._limits.replica_keepalive_ms,
            ),
            received_bytes_max=_KEPT_BYTES_MAX,
            client_id=_CLIENT_ID,
            credentials=self._credentials if has_tls else None,
        )
