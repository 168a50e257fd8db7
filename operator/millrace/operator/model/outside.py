"""The objects by which clients outside of the Kubernetes cluster reach brokers.

    <cluster>-outside   Service that they connect to first; ConfigMap with brokers' addresses
    <broker>-outside    Service of one broker

Clients connect to the leader of a partition, so each broker needs an address of its own. Ports and
load balancers exist only after the Services; the addresses are written into the ConfigMap, which
brokers read while they run: no address needs a restart.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from millrace.operator.model.cluster import Cluster
from millrace.operator.model.listeners import (
    OutsideBootstrap,
    OutsideBroker,
    OutsideListener,
    OutsideType,
)
from millrace.operator.model.objects import (
    CLIENT_PORT,
    Document,
    labels,
    outside_name,
    owned_object,
    selector,
)

OUTSIDE_COMPONENT: Final = "outside"
_POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"


def outside_selector(cluster_name: str) -> dict[str, str]:
    """Return the labels by which a cluster's outside Services are found."""
    return {**labels(cluster_name), "app.kubernetes.io/component": OUTSIDE_COMPONENT}


def bootstrap_service(cluster: Cluster, listener: OutsideListener) -> Document:
    """Return the Service that clients outside connect to first."""
    spec = {"selector": selector(cluster.name)}
    return _service(cluster, listener, cluster.name, listener.bootstrap, spec)


def broker_service(cluster: Cluster, listener: OutsideListener, broker: str) -> Document:
    """Return the Service of one broker."""
    spec = {
        "selector": {**selector(cluster.name), _POD_NAME_LABEL: broker},
        # This Service has one broker. It is not ready while it hands over, and redirects clients.
        "publishNotReadyAddresses": True,
    }
    return _service(cluster, listener, broker, listener.broker(broker), spec)


def address_map(cluster: Cluster, addresses: Mapping[str, str]) -> Document:
    """Return the ConfigMap with brokers' addresses, by broker."""
    return owned_object(
        cluster, "v1", "ConfigMap", outside_name(cluster.name), data=dict(sorted(addresses.items()))
    )


def outside_brokers(replicas: Mapping[str, int]) -> Sequence[str]:
    """Return the brokers of pools, by how many each StatefulSet has."""
    return [f"{name}-{number}" for name, count in replicas.items() for number in range(count)]


def _service(
    cluster: Cluster,
    listener: OutsideListener,
    of: str,
    chosen: OutsideBootstrap | OutsideBroker,
    spec: Document,
) -> Document:
    port: Document = {
        "name": "client",
        "port": CLIENT_PORT,
        "targetPort": "outside",
        "protocol": "TCP",
    }
    if chosen.node_port is not None:
        port["nodePort"] = chosen.node_port
    spec = {"type": listener.type.value, "ports": [port], **spec}
    if listener.external_traffic_policy is not None:
        spec["externalTrafficPolicy"] = listener.external_traffic_policy.value
    if listener.type is OutsideType.LOAD_BALANCER:
        if listener.load_balancer_class is not None:
            spec["loadBalancerClass"] = listener.load_balancer_class
        if listener.load_balancer_source_ranges:
            spec["loadBalancerSourceRanges"] = listener.load_balancer_source_ranges
    document = owned_object(cluster, "v1", "Service", outside_name(of), spec=spec)
    metadata = document["metadata"]
    metadata["labels"] = outside_selector(cluster.name)
    if merged := {**listener.annotations, **chosen.annotations}:
        metadata["annotations"] = merged
    return document
