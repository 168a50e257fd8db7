"""Part of the resource `Cluster`: the listeners of its brokers, by protocol and side.

Names are those of `[listeners]` in a broker's settings. A listener is here if there is something to
say of it: those of gRPC for clients in the Kubernetes cluster, and for brokers, are always there.
"""

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Literal

from msgspec import Meta, Struct, field

from millrace.core.addresses import PORT_MAX
from millrace.core.topics import DEFAULT_NAMESPACE
from millrace.operator.model.fields import DnsLabel, LabelKey, NamespaceName, Rule

BROKERS_MAX = 250


_BY_NAME: Final = Meta(
    max_length=BROKERS_MAX,
    extra_json_schema={
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
    },
)
"""A list with an entry for each broker, at most one of a name."""


class OutsideType(StrEnum):
    """The type of the Services for clients outside."""

    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"
    CLUSTER_IP = "ClusterIP"


class NodeAddress(StrEnum):
    """Which of a node's addresses is meant, by the types that Kubernetes has."""

    INTERNAL_IP = "InternalIP"
    EXTERNAL_IP = "ExternalIP"
    HOSTNAME = "Hostname"
    INTERNAL_DNS = "InternalDNS"
    EXTERNAL_DNS = "ExternalDNS"


class TrafficPolicy(StrEnum):
    """Which nodes pass traffic on, as in a Service."""

    CLUSTER = "Cluster"
    LOCAL = "Local"


Host = Annotated[str, Meta(pattern=r"^[-.:A-Za-z0-9]+$", min_length=1, max_length=253)]
Port = Annotated[int, Meta(ge=1, le=PORT_MAX)]
Annotations = Annotated[dict[str, str], Meta(max_length=32)]


class OutsideBootstrap(Struct, frozen=True, kw_only=True, rename="camel"):
    """The Service that clients outside connect to first."""

    node_port: Port | None = None
    """Its port on every node. Unset: Kubernetes chooses one."""
    tls_node_port: Port | None = None
    """Likewise, of the port that speaks TLS also while the other one is in plain text."""
    annotations: Annotations = {}
    """Annotations of this Service, over those of all."""


class OutsideBroker(Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of one broker."""

    name: DnsLabel
    """Which broker: `<cluster>-<pool>-<number>`, as its pod."""
    advertised_host: Host | None = None
    """Host name or address that clients outside are told instead, such as one of your DNS."""
    advertised_port: Port | None = None
    """Port that clients outside are told instead."""
    tls_advertised_port: Port | None = None
    """Port that clients outside with TLS are told instead, while others have plain text."""
    node_port: Port | None = None
    """Port of its Service on every node. Unset: Kubernetes chooses one."""
    tls_node_port: Port | None = None
    """Likewise, of the port that speaks TLS also while the other one is in plain text."""
    annotations: Annotations = {}
    """Annotations of its Service, over those of all."""


class ClientsAuthorities(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where the authorities of clients' certificates are: in the Cluster's namespace."""

    RULES: ClassVar = (
        Rule(
            "self.kind == 'ConfigMap' || self.key.endsWith('.crt')",
            "key of a Secret must end in .crt: brokers' pods get no keys or passwords by it",
        ),
    )

    kind: Literal["ConfigMap", "Secret"] = "ConfigMap"
    """Kind of the object."""
    name: DnsLabel
    """Name of the object."""
    key: Annotated[str, Meta(pattern=r"^[-._A-Za-z0-9]+$", min_length=1, max_length=253)] = "ca.crt"
    """Which of its texts: certificates in PEM form."""


class OutsideListener(Struct, frozen=True, kw_only=True, rename="camel"):
    """A second port of each broker, and Services that bring clients outside to it."""

    RULES: ClassVar = (
        Rule(
            "self.type == 'NodePort' || self.nodeAddress == 'InternalIP'",
            "nodeAddress goes with `type: NodePort`: others have addresses of their own",
        ),
        Rule(
            "self.type == 'LoadBalancer' || "
            "(!has(self.loadBalancerClass) && !has(self.loadBalancerSourceRanges))",
            "loadBalancerClass and loadBalancerSourceRanges go with `type: LoadBalancer`",
        ),
    )

    type: OutsideType
    """`NodePort`: clients connect to nodes, each broker at a port of its own. `LoadBalancer`: each
    broker gets a load balancer, and one more is for the first connection. `ClusterIP`: Services
    that pods reach, or a gateway of your own that has each broker's `advertisedHost`."""
    node_address: NodeAddress = NodeAddress.INTERNAL_IP
    """With NodePort, which address of a broker's node clients are told. It has to be one that they
    reach."""
    external_traffic_policy: TrafficPolicy | None = None
    """`Local`: only the node of a broker passes its traffic on, which saves a hop and shows
    clients' addresses. Unset: Kubernetes' default, `Cluster`."""
    load_balancer_class: LabelKey | None = None
    """The implementation of the load balancers. Unset: the default one."""
    load_balancer_source_ranges: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=64)
    ] = []
    """Networks from which load balancers take clients, as `203.0.113.0/24`. Unset: all."""
    clients_ca: ClientsAuthorities | None = field(default=None, name="clientsCA")
    """Authorities. Clients then have to show a certificate of one of them, which names them. Unset:
    they are not asked for one."""
    annotations: Annotations = {}
    """Annotations of all these Services, such as a load balancer asks for."""
    bootstrap: OutsideBootstrap = field(default_factory=OutsideBootstrap)
    """The Service that clients connect to first."""
    brokers: Annotated[list[OutsideBroker], _BY_NAME] = []
    """What is particular to single brokers."""

    def broker(self, name: str) -> OutsideBroker:
        """Return the settings of a broker."""
        return next(
            (broker for broker in self.brokers if broker.name == name), OutsideBroker(name=name)
        )


class OutsideDrpcBroker(Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of one broker."""

    name: DnsLabel
    """Which broker: `<cluster>-<pool>-<number>`, as its pod."""
    advertised_host: Host | None = None
    """Host name or address that clients outside are told instead. Unset: that of
    `outside.brokers`."""
    advertised_port: Port | None = None
    """Port that clients outside are told instead."""
    node_port: Port | None = None
    """Port of DRPC of its Service on every node. Unset: Kubernetes chooses one."""


class OutsideDrpcListener(Struct, frozen=True, kw_only=True, rename="camel"):
    """A further port of each broker's Service for clients outside, who begin with gRPC."""

    brokers: Annotated[list[OutsideDrpcBroker], _BY_NAME] = []
    """What is particular to single brokers."""

    def broker(self, name: str) -> OutsideDrpcBroker:
        """Return the settings of a broker."""
        return next(
            (broker for broker in self.brokers if broker.name == name), OutsideDrpcBroker(name=name)
        )


class OutsideKafkaBootstrap(Struct, frozen=True, kw_only=True, rename="camel"):
    """The port that clients of Kafka outside connect to first, of the Service of `outside`."""

    node_port: Port | None = None
    """Its port on every node. Unset: Kubernetes chooses one."""
    tls_node_port: Port | None = None
    """Likewise, of the port that speaks TLS also while the other one is in plain text."""


class OutsideKafkaBroker(Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of one broker."""

    name: DnsLabel
    """Which broker: `<cluster>-<pool>-<number>`, as its pod."""
    advertised_host: Host | None = None
    """Host name or address that clients of Kafka outside are told instead. Unset: that of
    `outside.brokers`."""
    advertised_port: Port | None = None
    """Port that clients of Kafka outside are told instead."""
    tls_advertised_port: Port | None = None
    """Port that those with TLS are told instead, while others have plain text."""
    node_port: Port | None = None
    """Port of its Service on every node for clients of Kafka. Unset: Kubernetes chooses one."""
    tls_node_port: Port | None = None
    """Likewise, of the port that speaks TLS also while the other one is in plain text."""


class OutsideKafkaListener(Struct, frozen=True, kw_only=True, rename="camel"):
    """A further port of all Services for clients outside, for clients of Kafka."""

    namespace: NamespaceName = DEFAULT_NAMESPACE
    """The namespace of Millrace's topics that they see, by names without it. They see no others."""
    bootstrap: OutsideKafkaBootstrap = field(default_factory=OutsideKafkaBootstrap)
    """The port that they connect to first."""
    brokers: Annotated[list[OutsideKafkaBroker], _BY_NAME] = []
    """What is particular to single brokers."""

    def broker(self, name: str) -> OutsideKafkaBroker:
        """Return the settings of a broker."""
        return next(
            (broker for broker in self.brokers if broker.name == name),
            OutsideKafkaBroker(name=name),
        )


class DrpcListener(Struct, frozen=True, kw_only=True, rename="camel"):
    """A port for DRPC beside that of gRPC."""

    enabled: bool = True
    """`false`: there is none."""


class KafkaListener(Struct, frozen=True, kw_only=True, rename="camel"):
    """A port for clients of Kafka beside that of gRPC."""

    enabled: bool = False
    """`true`: clients of Kafka in the Kubernetes cluster connect to port 9092 of the Service
    `<cluster>-bootstrap`."""
    namespace: NamespaceName = DEFAULT_NAMESPACE
    """The namespace of Millrace's topics that they see, by names without it. They see no others."""


class Listeners(Struct, frozen=True, kw_only=True, rename="camel"):
    """The listeners of the brokers, beside those of gRPC for pods and brokers."""

    RULES: ClassVar = (
        Rule(
            "!has(self.outsideDrpc) || has(self.outside)",
            "outsideDrpc goes with `outside`: clients connect there first",
        ),
        Rule(
            "!has(self.outsideKafka) || has(self.outside)",
            "outsideKafka goes with `outside`, which says by which Services brokers are reached",
        ),
    )

    outside: OutsideListener | None = None
    """For clients outside of the Kubernetes cluster. Without `access` any client that reaches it
    may read, write and delete. Unset: none."""
    clients_drpc: DrpcListener = field(default_factory=DrpcListener)
    """DRPC for clients in the Kubernetes cluster: faster than gRPC, to which clients fall back."""
    outside_drpc: OutsideDrpcListener | None = None
    """DRPC for clients outside, who reach it at the Service of each broker, and fall back to gRPC.
    `{}` suffices. Unset: none."""
    kafka: KafkaListener = field(default_factory=KafkaListener)
    """Kafka's protocol for clients in the Kubernetes cluster. Unset: not served."""
    outside_kafka: OutsideKafkaListener | None = None
    """Kafka's protocol for clients outside, who reach it at the Services of `outside`. `{}`
    suffices. Unset: not served."""
    replicas_drpc: DrpcListener = field(default_factory=DrpcListener)
    """DRPC between brokers, which fall back to gRPC."""
