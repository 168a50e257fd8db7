"""Part of the resource `Cluster`: where clients outside of the Kubernetes cluster connect."""

from enum import StrEnum
from typing import Annotated, ClassVar

from msgspec import Meta, Struct, field

from millrace.core.addresses import PORT_MAX
from millrace.operator.model.fields import DnsLabel, LabelKey, Rule

BROKERS_MAX = 250


class OutsideType(StrEnum):
    """The type of the Services for clients outside."""

    NODE_PORT = "NodePort"
    LOAD_BALANCER = "LoadBalancer"


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

    node_port: Annotated[
        Port | None, Meta(description="Its port on every node. Unset: Kubernetes chooses one.")
    ] = None
    annotations: Annotated[
        Annotations, Meta(description="Annotations of this Service, over those of all.")
    ] = field(default_factory=dict)


class OutsideBroker(Struct, frozen=True, kw_only=True, rename="camel"):
    """Settings of one broker."""

    name: Annotated[
        DnsLabel, Meta(description="Which broker: `<cluster>-<pool>-<number>`, as its pod.")
    ]
    advertised_host: Annotated[
        Host | None,
        Meta(
            description="Host name or address that clients outside are told instead, such as one "
            "of your DNS."
        ),
    ] = None
    advertised_port: Annotated[
        Port | None, Meta(description="Port that clients outside are told instead.")
    ] = None
    node_port: Annotated[
        Port | None,
        Meta(description="Port of its Service on every node. Unset: Kubernetes chooses one."),
    ] = None
    annotations: Annotated[
        Annotations, Meta(description="Annotations of its Service, over those of all.")
    ] = field(default_factory=dict)


class OutsideListener(Struct, frozen=True, kw_only=True, rename="camel"):
    """A second port of each broker, and Services that bring clients outside to it."""

    RULES: ClassVar = (
        Rule(
            "self.type == 'NodePort' || self.nodeAddress == 'InternalIP'",
            "nodeAddress goes with `type: NodePort`: a load balancer has an address of its own",
        ),
        Rule(
            "self.type == 'LoadBalancer' || "
            "(!has(self.loadBalancerClass) && !has(self.loadBalancerSourceRanges))",
            "loadBalancerClass and loadBalancerSourceRanges go with `type: LoadBalancer`",
        ),
    )

    type: Annotated[
        OutsideType,
        Meta(
            description="`NodePort`: clients connect to nodes, each broker at a port of its own. "
            "`LoadBalancer`: each broker gets a load balancer, and one more is for the first "
            "connection."
        ),
    ]
    node_address: Annotated[
        NodeAddress,
        Meta(
            description="With NodePort, which address of a broker's node clients are told. It has "
            "to be one that they reach."
        ),
    ] = NodeAddress.INTERNAL_IP
    external_traffic_policy: Annotated[
        TrafficPolicy | None,
        Meta(
            description="`Local`: only the node of a broker passes its traffic on, which saves a "
            "hop and shows clients' addresses. Unset: Kubernetes' default, `Cluster`."
        ),
    ] = None
    load_balancer_class: Annotated[
        LabelKey | None,
        Meta(description="The implementation of the load balancers. Unset: the default one."),
    ] = None
    load_balancer_source_ranges: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=64)]],
        Meta(
            description="Networks from which load balancers take clients, as `203.0.113.0/24`. "
            "Unset: all.",
            max_length=64,
        ),
    ] = field(default_factory=list)
    annotations: Annotated[
        Annotations,
        Meta(description="Annotations of all these Services, such as a load balancer asks for."),
    ] = field(default_factory=dict)
    bootstrap: Annotated[
        OutsideBootstrap, Meta(description="The Service that clients connect to first.")
    ] = field(default_factory=OutsideBootstrap)
    brokers: Annotated[
        list[OutsideBroker],
        Meta(
            description="What is particular to single brokers.",
            max_length=BROKERS_MAX,
            extra_json_schema={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ] = field(default_factory=list)

    def broker(self, name: str) -> OutsideBroker:
        """Return the settings of a broker."""
        return next((each for each in self.brokers if each.name == name), OutsideBroker(name=name))


class Listeners(Struct, frozen=True, kw_only=True, rename="camel"):
    """Where clients connect beside the Service `<cluster>-bootstrap`, which is always there."""

    outside: Annotated[
        OutsideListener | None,
        Meta(
            description="For clients outside of the Kubernetes cluster. There is no access "
            "control yet: any client that reaches it may read, write and delete. Unset: none."
        ),
    ] = None
