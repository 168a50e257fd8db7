"""Part of the resource `Cluster`: which pods reach its brokers, and whom brokers reach."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from millrace.operator.model.fields import Rule
from millrace.operator.model.scheduling import LabelSelector

PEERS_MAX = 32

Network = Annotated[
    str, Meta(pattern=r"^[0-9a-fA-F.:]{2,45}/[0-9]{1,3}$", min_length=1, max_length=49)
]


class IpBlock(Struct, frozen=True, kw_only=True, rename="camel"):
    """Addresses outside of the pods' network."""

    cidr: Network
    """The network, as `203.0.113.0/24`."""


class NetworkPeer(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Who connects, as in a NetworkPolicy: all that is said has to fit."""

    RULES: ClassVar = (
        Rule(
            "has(self.ipBlock) != (has(self.namespaceSelector) || has(self.podSelector))",
            "write either ipBlock, or namespaceSelector or podSelector or both of these",
        ),
    )

    namespace_selector: LabelSelector | None = None
    """Pods of namespaces with these labels; `{}`: of all. Unset: of the Cluster's own namespace."""
    pod_selector: LabelSelector | None = None
    """Pods with these labels. Unset: all pods."""
    ip_block: IpBlock | None = None
    """Addresses."""


Peers = Annotated[list[NetworkPeer], Meta(max_length=PEERS_MAX)]


class NetworkRules(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the NetworkPolicy of the brokers' pods allows. Whatever it does not name is closed, both
    ways, where the network enforces such policies.
    """

    enabled: bool = True
    """`false`: there is no NetworkPolicy. To allow more, write another one for these pods beside
    it: they add up."""
    clients: Peers = []
    """Who reaches the ports for clients in the Kubernetes cluster, beside brokers and the operator.
    Unset: everybody."""
    metrics: Peers = []
    """Who reaches the metrics page, as Prometheus, beside the node of the pod with its probes.
    Unset: everybody."""
    api_server: Annotated[list[Network], Meta(max_length=PEERS_MAX)] = []
    """Networks of the API server, as brokers' pods connect to it. Unset: any address, at the API
    server's ports."""
