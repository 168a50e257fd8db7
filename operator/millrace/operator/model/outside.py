"""The objects by which clients outside of the Kubernetes cluster reach brokers.

    <cluster>-outside   Service that they connect to first; ConfigMap with brokers' addresses
    <broker>-outside    Service of one broker

Clients connect to the leader of a partition, so each broker needs an address of its own. Ports and
load balancers exist only after the Services; the addresses are written into the ConfigMap, which
brokers read while they run: no address needs a restart.

A broker's Service has a port for each protocol, and the ConfigMap an address for each. The first
connection is gRPC's.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from millrace.operator.model.cluster import Cluster
from millrace.operator.model.listeners import (
    Listeners,
    OutsideListener,
    OutsideType,
)
from millrace.operator.model.objects import (
    Document,
    labels,
    outside_file,
    outside_name,
    owned_object,
    selector,
)
from millrace.operator.model.ports import (
    CLIENT_DRPC_PORT,
    CLIENT_DRPC_PORT_NAME,
    CLIENT_PORT,
    OUTSIDE_DRPC_PORT_NAME,
    OUTSIDE_PORT_NAME,
)

OUTSIDE_COMPONENT: Final = "outside"
_POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"


class Way(NamedTuple):
    """How clients outside reach a broker by one protocol.

    Attributes:
        name: of the Service's port.
        port: of the Service.
        target: name of the pod's port.
        node_port: of the Service on every node, if the user chose one.
        host: that clients are told, likewise.
        advertised_port: likewise.
        file: in the ConfigMap, with the address.
    """

    name: str
    port: int
    target: str
    node_port: int | None = None
    host: str | None = None
    advertised_port: int | None = None
    file: str = ""


def ways(listeners: Listeners, broker: str) -> list[Way]:
    """Return how clients outside reach a broker, gRPC first."""
    assert listeners.outside is not None
    chosen = listeners.outside.broker(broker)
    found = [
        _grpc(chosen.node_port)._replace(
            host=chosen.advertised_host,
            advertised_port=chosen.advertised_port,
            file=outside_file(broker),
        )
    ]
    if listeners.outside_drpc is not None:
        twin = listeners.outside_drpc.broker(broker)
        found.append(
            Way(
                name=CLIENT_DRPC_PORT_NAME,
                port=CLIENT_DRPC_PORT,
                target=OUTSIDE_DRPC_PORT_NAME,
                node_port=twin.node_port,
                host=twin.advertised_host or chosen.advertised_host,
                advertised_port=twin.advertised_port,
                file=outside_file(broker, drpc=True),
            )
        )
    return found


def _grpc(node_port: int | None) -> Way:
    return Way("client", CLIENT_PORT, OUTSIDE_PORT_NAME, node_port)


def outside_selector(cluster_name: str) -> dict[str, str]:
    """Return the labels by which a cluster's outside Services are found."""
    return {**labels(cluster_name), "app.kubernetes.io/component": OUTSIDE_COMPONENT}


def bootstrap_service(cluster: Cluster) -> Document:
    """Return the Service that clients outside connect to first."""
    first = _listener(cluster).bootstrap
    spec = {"selector": selector(cluster.name)}
    return _service(cluster, cluster.name, [_grpc(first.node_port)], spec, first.annotations)


def broker_service(cluster: Cluster, broker: str) -> Document:
    """Return the Service of one broker."""
    chosen = _listener(cluster).broker(broker)
    spec = {
        "selector": {**selector(cluster.name), _POD_NAME_LABEL: broker},
        # This Service has one broker. It is not ready while it hands over, and redirects clients.
        "publishNotReadyAddresses": True,
    }
    reached = ways(cluster.spec.listeners, broker)
    return _service(cluster, broker, reached, spec, chosen.annotations)


def address_map(cluster: Cluster, addresses: Mapping[str, str]) -> Document:
    """Return the ConfigMap with brokers' addresses, by file."""
    return owned_object(
        cluster, "v1", "ConfigMap", outside_name(cluster.name), data=dict(sorted(addresses.items()))
    )


def _listener(cluster: Cluster) -> OutsideListener:
    listener = cluster.spec.listeners.outside
    assert listener is not None
    return listener


def _service(
    cluster: Cluster,
    of: str,
    reached: Sequence[Way],
    spec: Document,
    annotations: Mapping[str, str],
) -> Document:
    listener = _listener(cluster)
    ports: list[Document] = [
        {
            "name": way.name,
            "port": way.port,
            "targetPort": way.target,
            "protocol": "TCP",
            **({} if way.node_port is None else {"nodePort": way.node_port}),
        }
        for way in reached
    ]
    spec = {"type": listener.type.value, "ports": ports, **spec}
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
    if merged := {**listener.annotations, **annotations}:
        metadata["annotations"] = merged
    return document
