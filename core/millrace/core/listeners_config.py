"""Where a broker listens: one list, each entry of a protocol and a side.

The side (`Listener`) says who connects, and of which side the addresses are that they are told.
A side has one gRPC listener, and may have twins beside it: a DRPC listener, which serves the same,
and one for clients of Kafka, to whom the topics of one namespace are all there are. What a twin is
not told, it takes from the gRPC listener: all of a side are reached in the same way.

A gRPC listener may have a second port, `tls_port`, where it speaks TLS while the first one stays in
plain text: so a running cluster goes to TLS, and back. For clients that is an entry of its own,
whose callers are told addresses with TLS. For brokers it is the same entry, as they are served
alike.

A later protocol is a row of `_ENTRIES`; what all listeners get, such as TLS, is a setting of
`ListenerConfig`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple, cast

from millrace.core.addresses import PORT_MAX, is_loopback
from millrace.core.metadata.model import Listener
from millrace.core.settings import constant, section, setting
from millrace.core.topics import DEFAULT_NAMESPACE, is_namespace

DEFAULT_PORT: Final = 7092
DEFAULT_REPLICA_PORT: Final = 7094
# 7093 is the metrics page, and 7095 the outside listener of a pod on Kubernetes.
DEFAULT_DRPC_PORT: Final = 7096
DEFAULT_REPLICA_DRPC_PORT: Final = 7097
DEFAULT_KAFKA_PORT: Final = 9092
"""Where `millrace up --kafka` listens, as clients of Kafka expect it."""

_PORT: Final = "Port to listen on; 0: one that is free."
_OR_INSECURE: Final = (
    "or set insecure (--insecure) if all who reach it are trusted: docs/security.md"
)
_NO_SUCH_LISTENER: Final = "no such listener"
_ADDRESS_FILE: Final = (
    "File of one line, `host:port`, that replaces the two settings above; with `:port` only the "
    "port. It is read again every second, so that a running broker can get its address; while the "
    "file is missing or empty, clients get no address. The operator for Kubernetes writes it."
)


class ListenerProtocol(StrEnum):
    """What a listener speaks."""

    GRPC = "grpc"
    DRPC = "drpc"
    KAFKA = "kafka"


_CERTIFICATE: Final = (
    "PEM file of the certificate that this listener shows, with those between it and its "
    "authority. It makes the listener speak TLS. The files are read again when they change."
)
_KEY: Final = "PEM file of the certificate's key, without a password."


@dataclass(frozen=True, kw_only=True)
class ListenerConfig:
    """One listener, and what its callers are told to connect to."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on. Where other machines reach it, it needs TLS, and rules of who may "
        "do what, or else `insecure`: [security](security.md).",
    )
    port: int = setting(-1, _PORT, maximum=PORT_MAX, minus_one=_NO_SUCH_LISTENER)
    advertised_host: str = setting(
        "",
        "Host name that callers are told to connect to. Empty: `host`, or this machine's name "
        "when that is a wildcard.",
    )
    advertised_port: int = setting(
        0,
        "Port that callers are told to connect to. 0: the port of the listener.",
        maximum=PORT_MAX,
    )
    tls_certificate_file: str = setting("", f"{_CERTIFICATE} Empty: connections are in plain text.")
    tls_key_file: str = setting("", _KEY)
    tls_port: int = setting(
        -1,
        "Port that speaks TLS, while `port` stays in plain text: for clients that change to TLS "
        "one after the other. 0: one that is free. DRPC stays in plain text, too.",
        maximum=PORT_MAX,
        minus_one="`port` speaks TLS, if there is a certificate",
    )
    tls_client_ca_file: str = setting(
        "",
        "PEM file of authorities. Callers then have to show a certificate of one of them, which "
        "names them. Empty: they are not asked for one.",
    )

    address_file: str = constant("")
    tls_address_file: str = constant("")
    """Only outside listeners have them."""

    @property
    def has_both(self) -> bool:
        """Whether it has a port with TLS beside one in plain text."""
        return self.tls_port >= 0


@dataclass(frozen=True, kw_only=True)
class ClientsListenerConfig(ListenerConfig):
    """Where clients connect by gRPC."""

    port: int = setting(DEFAULT_PORT, _PORT, maximum=PORT_MAX)


@dataclass(frozen=True, kw_only=True)
class OutsideListenerConfig(ListenerConfig):
    """Where clients connect that need other addresses, such as clients outside of Kubernetes.

    These clients get these addresses of all brokers; clients of `[listeners.clients]` get the
    addresses of that listener. The limits of connections count for each of the two.
    """

    address_file: str = setting("", _ADDRESS_FILE)
    tls_address_file: str = setting("", "Likewise, with the address of `tls_port`.")


@dataclass(frozen=True, kw_only=True)
class ReplicasListenerConfig(ListenerConfig):
    """Where the cluster's other brokers connect: followers, and all brokers to the controller."""

    host: str = setting(
        "127.0.0.1",
        "Address to listen on. Without certificates, any host that reaches it can change "
        "everything: where other machines reach it, it needs them, or else `insecure`.",
    )
    port: int = setting(DEFAULT_REPLICA_PORT, _PORT, maximum=PORT_MAX)
    tls_port: int = setting(
        -1,
        "Port that speaks TLS, while `port` stays in plain text: for brokers that change to TLS "
        "one after the other. A broker calls by TLS those that have such a port, and the others in "
        'plain text. It goes with `coordination.kind = "kubernetes"`.',
        maximum=PORT_MAX,
        minus_one="`port` speaks TLS, if there is a certificate",
    )
    tls_certificate_file: str = setting(
        "",
        "PEM file of this broker's certificate: it shows it to other brokers, whether they connect "
        "or it does. It has one URI, `spiffe://<trust domain>/ns/<namespace>/cluster/<cluster>/"
        "broker/<name>`, and `node.name` is that name; other brokers differ in the name alone. The "
        "files are read again when they change. Empty: connections are in plain text.",
    )
    tls_client_ca_file: str = setting(
        "",
        "PEM file of the authorities of brokers' certificates. It must be set if the certificate "
        "is. Best is an authority that signs for this cluster's brokers alone.",
    )


@dataclass(frozen=True, kw_only=True)
class TwinListenerConfig(ListenerConfig):
    """A listener beside a gRPC listener, from which it takes what it is not told."""

    host: str = setting(
        "",
        "Address to listen on. Empty: that of the gRPC listener. Its TLS is that one's, too.",
    )
    advertised_host: str = setting(
        "",
        "Host name that callers are told to connect to. Empty: that of the gRPC listener, or else "
        "`host`, or this machine's name when that is a wildcard.",
    )

    tls_port: int = constant(-1)
    tls_certificate_file: str = constant("")
    tls_key_file: str = constant("")
    tls_client_ca_file: str = constant("")
    """A twin has its TLS of the gRPC listener."""


@dataclass(frozen=True, kw_only=True)
class ClientsDrpcListenerConfig(TwinListenerConfig):
    """Where the clients of `[listeners.clients]` connect by DRPC, for speed."""

    port: int = setting(DEFAULT_DRPC_PORT, _PORT, maximum=PORT_MAX, minus_one=_NO_SUCH_LISTENER)


@dataclass(frozen=True, kw_only=True)
class OutsideDrpcListenerConfig(TwinListenerConfig):
    """Where the clients of `[listeners.outside]` connect by DRPC, for speed."""

    address_file: str = setting("", _ADDRESS_FILE)


@dataclass(frozen=True, kw_only=True)
class ReplicasDrpcListenerConfig(TwinListenerConfig):
    """Where followers connect by DRPC, for speed."""

    port: int = setting(
        DEFAULT_REPLICA_DRPC_PORT, _PORT, maximum=PORT_MAX, minus_one=_NO_SUCH_LISTENER
    )


@dataclass(frozen=True, kw_only=True)
class KafkaListenerConfig(TwinListenerConfig):
    """A listener that speaks Kafka's protocol."""

    tls_port: int = setting(
        -1,
        "Port that speaks TLS, while `port` stays in plain text, as that of the gRPC listener, "
        "which has a `tls_port`, too: for clients that change to TLS one after the other. 0: one "
        "that is free.",
        maximum=PORT_MAX,
        minus_one="`port` is in plain text until that of the gRPC listener speaks TLS",
    )

    namespace: str = setting(
        DEFAULT_NAMESPACE,
        "The namespace whose topics, groups and transactional ids its clients see, by their names "
        "without it. They see no others. All brokers need the same.",
    )


@dataclass(frozen=True, kw_only=True)
class ClientsKafkaListenerConfig(KafkaListenerConfig):
    """Where clients of Kafka connect: librdkafka, Java's, franz-go and all others."""


@dataclass(frozen=True, kw_only=True)
class OutsideKafkaListenerConfig(KafkaListenerConfig):
    """Where clients of Kafka connect that need the addresses of `[listeners.outside]`."""

    address_file: str = setting("", _ADDRESS_FILE)
    tls_address_file: str = setting("", "Likewise, with the address of `tls_port`.")


class ListenerEntry(NamedTuple):
    """One listener of a broker.

    Attributes:
        name: of its section, without `listeners.`.
        protocol: that it speaks.
        side: which callers it is for.
        config: where it is, with everything that it takes from its twin.
    """

    name: str
    protocol: ListenerProtocol
    side: Listener
    config: ListenerConfig

    @property
    def label(self) -> str:
        """Its name in the log and the metrics, which for Kafka says whether it speaks TLS."""
        by_tls = self.protocol is ListenerProtocol.KAFKA and self.side.has_tls
        return f"{self.name}_tls" if by_tls else self.name


class _Place(NamedTuple):
    protocol: ListenerProtocol
    side: Listener


_ENTRIES: Final = {
    "clients": _Place(ListenerProtocol.GRPC, Listener.CLIENTS),
    "outside": _Place(ListenerProtocol.GRPC, Listener.OUTSIDE),
    "replicas": _Place(ListenerProtocol.GRPC, Listener.BROKERS),
    "clients_drpc": _Place(ListenerProtocol.DRPC, Listener.CLIENTS),
    "outside_drpc": _Place(ListenerProtocol.DRPC, Listener.OUTSIDE),
    "replicas_drpc": _Place(ListenerProtocol.DRPC, Listener.BROKERS),
    "clients_kafka": _Place(ListenerProtocol.KAFKA, Listener.CLIENTS),
    "outside_kafka": _Place(ListenerProtocol.KAFKA, Listener.OUTSIDE),
}
_GRPC_OF: Final = {
    place.side: name for name, place in _ENTRIES.items() if place.protocol is ListenerProtocol.GRPC
}


def drpc_twin_of(name: str) -> str:
    """Return the name of the DRPC listener beside a gRPC listener."""
    place = _Place(ListenerProtocol.DRPC, _ENTRIES[name].side)
    return next(other for other, found in _ENTRIES.items() if found == place)


@dataclass(frozen=True, kw_only=True)
class ListenersConfig:
    """The ports of a broker, one section for each protocol and side."""

    clients: ClientsListenerConfig = section(ClientsListenerConfig)
    outside: OutsideListenerConfig = section(OutsideListenerConfig)
    replicas: ReplicasListenerConfig = section(ReplicasListenerConfig)
    clients_drpc: ClientsDrpcListenerConfig = section(ClientsDrpcListenerConfig)
    outside_drpc: OutsideDrpcListenerConfig = section(OutsideDrpcListenerConfig)
    replicas_drpc: ReplicasDrpcListenerConfig = section(ReplicasDrpcListenerConfig)
    clients_kafka: ClientsKafkaListenerConfig = section(ClientsKafkaListenerConfig)
    outside_kafka: OutsideKafkaListenerConfig = section(OutsideKafkaListenerConfig)

    @property
    def entries(self) -> tuple[ListenerEntry, ...]:
        """The listeners that there are, those of gRPC first."""
        return tuple(entry for name in _ENTRIES for entry in self._entries_of(name))

    def _entries_of(self, name: str) -> Iterator[ListenerEntry]:
        protocol, side = _ENTRIES[name]
        config = self._resolved(name)
        if config.port < 0:
            return
        if side is Listener.BROKERS:
            yield ListenerEntry(name, protocol, side, config)
        elif not self._config(_GRPC_OF[side]).has_both:
            told = side.with_tls if config.tls_certificate_file else side
            yield ListenerEntry(name, protocol, told, config)
        else:
            plain = replace(config, tls_certificate_file="", tls_key_file="", tls_client_ca_file="")
            yield ListenerEntry(name, protocol, side, replace(plain, tls_port=-1))
            if config.has_both:
                other = replace(config, port=config.tls_port, tls_port=-1, advertised_port=0)
                other = replace(other, address_file=config.tls_address_file)
                yield ListenerEntry(name, protocol, side.with_tls, other)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that the listeners are given: where they listen, and what callers are told."""
        configs = [entry.config for entry in self.entries]
        return tuple(name for each in configs for name in (each.host, each.advertised_host) if name)

    def validate(self) -> Iterator[str]:
        """Yield what is wrong between the settings."""
        for name, place in _ENTRIES.items():
            twin = _GRPC_OF[place.side]
            if self._config(name).port >= 0 > self._config(twin).port:
                yield f"{name}.port: {twin}.port must be set, too: clients begin there"
            config = self._config(name)
            if name == twin:
                yield from self._tls_problems(name)
            elif config.has_both and not (self._config(twin).has_both and config.port >= 0):
                yield f"{name}.tls_port: it needs {twin}.tls_port, and a port"
            elif config.has_both and 0 < config.tls_port == config.port:
                yield f"{name}.tls_port: it must differ from port, which stays in plain text"
            if isinstance(config, KafkaListenerConfig) and not is_namespace(config.namespace):
                yield f"{name}.namespace: {config.namespace!r} is no name of a namespace"

    def exposures(self, *, has_rules: bool) -> Iterator[str]:
        """Yield which listeners other machines reach that are not guarded, and what guards them.

        A listener of this machine alone needs nothing. Any other one needs TLS. One for clients
        needs rules, too, or else asks for certificates: then at least no stranger gets in.

        Args:
            has_rules: something says what each client may do.
        """
        told = set()
        for entry in self.entries:
            config = entry.config
            if is_loopback(config.host) or (entry.side, config.host) in told:
                continue
            told.add((entry.side, config.host))  # A twin on the same address has nothing to add.
            reached = f"{entry.name}.host = {config.host!r}: other machines reach it"
            section = f"listeners.{_GRPC_OF[_ENTRIES[entry.name].side]}"
            if not config.tls_certificate_file or config.has_both:
                wanted = "tls_certificate_file and tls_key_file"
                if entry.side is Listener.BROKERS:
                    wanted = "tls_certificate_file, tls_key_file and tls_client_ca_file"
                yield (
                    f"listeners.{reached}, in plain text: give [{section}] {wanted} (`millrace "
                    f"certificate` makes them), {_OR_INSECURE}"
                )
            is_open = not has_rules and not config.tls_client_ca_file
            if is_open and entry.side is not Listener.BROKERS:
                yield (
                    f"listeners.{reached}, and every client may do everything: give [access] "
                    f"rules_file and tokens_file (`millrace token` makes tokens), {_OR_INSECURE}"
                )

    def _tls_problems(self, name: str) -> Iterator[str]:
        config = self._config(name)
        certificate, key = config.tls_certificate_file, config.tls_key_file
        if bool(certificate) != bool(key):
            given, missing = ("certificate", "key") if certificate else ("key", "certificate")
            yield f"{name}.tls_{missing}_file: it must be set, as tls_{given}_file is"
        if config.has_both and not (certificate and config.port >= 0):
            yield f"{name}.tls_port: it needs tls_certificate_file and tls_key_file, and a port"
        if config.has_both and 0 < config.tls_port == config.port:
            yield f"{name}.tls_port: it must differ from port, which stays in plain text"
        if config.tls_client_ca_file and not certificate:
            yield f"{name}.tls_client_ca_file: it needs tls_certificate_file and tls_key_file"
        if certificate and not config.tls_client_ca_file and name == _GRPC_OF[Listener.BROKERS]:
            yield (
                f"{name}.tls_client_ca_file: it must be set, as tls_certificate_file is: brokers "
                "know each other by certificates"
            )

    def _config(self, name: str) -> ListenerConfig:
        return cast(ListenerConfig, getattr(self, name))

    def _resolved(self, name: str) -> ListenerConfig:
        config, twin = self._config(name), self._config(_GRPC_OF[_ENTRIES[name].side])
        return replace(
            config,
            host=config.host or twin.host,
            advertised_host=config.advertised_host or twin.advertised_host,
            tls_certificate_file=twin.tls_certificate_file,
            tls_key_file=twin.tls_key_file,
            tls_client_ca_file=twin.tls_client_ca_file,
        )
