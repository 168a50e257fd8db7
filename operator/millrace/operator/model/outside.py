"""The objects by which clients outside of the Kubernetes cluster reach brokers.

    <cluster>-outside   Service that they connect to first; ConfigMap with brokers' addresses
    <broker>-outside    Service of one broker

Clients connect to the leader of a partition, so each broker needs an address of its own. Ports and
load balancers exist only after the Services; the addresses are written into the ConfigMap, which
brokers read while they run: no address needs a restart.

A broker's Service has a port for each protocol, and the ConfigMap an address for each. The Service
for the first connection has gRPC's, and Kafka's.

Where a Cluster has TLS, its Services have a further port that speaks TLS at each step on the way
there, as the Service for clients inside has. The first one is in plain text while there is both,
and for TLS once there is nothing else. Who connects at the other one by then, may go on with it.
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
    CLIENT_KAFKA_PORT,
    CLIENT_KAFKA_PORT_NAME,
    CLIENT_KAFKA_TLS_PORT,
    CLIENT_KAFKA_TLS_PORT_NAME,
    CLIENT_PORT,
    CLIENT_TLS_PORT,
    CLIENT_TLS_PORT_NAME,
    OUTSIDE_DRPC_PORT_NAME,
    OUTSIDE_KAFKA_PORT,
    OUTSIDE_KAFKA_TLS_PORT_NAME,
    OUTSIDE_PORT,
    OUTSIDE_TLS_PORT_NAME,
)
from millrace.operator.model.security import TlsMode, mode_of

OUTSIDE_COMPONENT: Final = "outside"
_POD_NAME_LABEL: Final = "statefulset.kubernetes.io/pod-name"


class Way(NamedTuple):
    """How clients outside reach a broker by one protocol.

    Attributes:
        name: of the Service's port.
        port: of the Service.
        target: name of the pod's port, or its number where its name is another one at each step.
        has_tls: whether it speaks TLS.
        node_port: of the Service on every node, if the user chose one.
        host: that clients are told, likewise.
        advertised_port: likewise.
        file: in the ConfigMap, with the address.
    """

    name: str
    port: int
    target: str | int
    has_tls: bool
    node_port: int | None = None
    host: str | None = None
    advertised_port: int | None = None
    file: str = ""


def ways(listeners: Listeners, broker: str, tls: TlsMode) -> list[Way]:
    """Return how clients outside reach a broker, gRPC first."""
    assert listeners.outside is not None
    chosen = listeners.outside.broker(broker)
    told = (
        (chosen.advertised_port, outside_file(broker)),
        (chosen.tls_advertised_port, outside_file(broker, "tls")),
    )
    found = [
        way._replace(host=chosen.advertised_host, advertised_port=port, file=file)
        for way, (port, file) in zip(
            _by_grpc(tls, chosen.node_port, chosen.tls_node_port), told, strict=False
        )
    ]
    if listeners.outside_drpc is not None:
        twin = listeners.outside_drpc.broker(broker)
        found.append(
            Way(
                name=CLIENT_DRPC_PORT_NAME,
                port=CLIENT_DRPC_PORT,
                target=OUTSIDE_DRPC_PORT_NAME,
                has_tls=tls is TlsMode.REQUIRED,
                node_port=twin.node_port,
                host=twin.advertised_host or chosen.advertised_host,
                advertised_port=twin.advertised_port,
                file=outside_file(broker, "drpc"),
            )
        )
    if listeners.outside_kafka is not None:
        own = listeners.outside_kafka.broker(broker)
        host = own.advertised_host or chosen.advertised_host
        told = (
            (own.advertised_port, outside_file(broker, "kafka")),
            (own.tls_advertised_port, outside_file(broker, "kafka-tls")),
        )
        found += [
            way._replace(host=host, advertised_port=port, file=file)
            for way, (port, file) in zip(
                _by_kafka(tls, own.node_port, own.tls_node_port), told, strict=False
            )
        ]
    return found


def first_ways(listeners: Listeners, tls: TlsMode) -> list[Way]:
    """Return how clients outside connect first."""
    assert listeners.outside is not None
    first = listeners.outside.bootstrap
    found = _by_grpc(tls, first.node_port, first.tls_node_port)
    if listeners.outside_kafka is not None:
        by_kafka = listeners.outside_kafka.bootstrap
        found += _by_kafka(tls, by_kafka.node_port, by_kafka.tls_node_port)
    return found


def _by_grpc(tls: TlsMode, node_port: int | None, tls_node_port: int | None) -> list[Way]:
    """Return how clients outside connect by gRPC: at one port, or at two where there is TLS."""
    first = Way("client", CLIENT_PORT, OUTSIDE_PORT, tls is TlsMode.REQUIRED, node_port)
    if tls is TlsMode.DISABLED:
        return [first]
    name = CLIENT_TLS_PORT_NAME
    return [first, Way(name, CLIENT_TLS_PORT, OUTSIDE_TLS_PORT_NAME, True, tls_node_port)]


def _by_kafka(tls: TlsMode, node_port: int | None, tls_node_port: int | None) -> list[Way]:
    """Return how clients of Kafka outside connect: likewise."""
    name, port, target = CLIENT_KAFKA_PORT_NAME, CLIENT_KAFKA_PORT, OUTSIDE_KAFKA_PORT
    first = Way(name, port, target, tls is TlsMode.REQUIRED, node_port)
    if tls is TlsMode.DISABLED:
        return [first]
    name, port = CLIENT_KAFKA_TLS_PORT_NAME, CLIENT_KAFKA_TLS_PORT
    return [first, Way(name, port, OUTSIDE_KAFKA_TLS_PORT_NAME, True, tls_node_port)]


def outside_selector(cluster_name: str) -> dict[str, str]:
    """Return the labels by which a cluster's outside Services are found."""
    return {**labels(cluster_name), "app.kubernetes.io/component": OUTSIDE_COMPONENT}


def bootstrap_service(cluster: Cluster) -> Document:
    """Return the Service that clients outside connect to first."""
    first = _listener(cluster).bootstrap
    spec = {"selector": selector(cluster.name)}
    reached = first_ways(cluster.spec.listeners, mode_of(cluster.spec.tls))
    return _service(cluster, cluster.name, reached, spec, first.annotations)


def broker_service(cluster: Cluster, broker: str) -> Document:
    """Return the Service of one broker."""
    chosen = _listener(cluster).broker(broker)
    spec = {
        "selector": {**selector(cluster.name), _POD_NAME_LABEL: broker},
        # This Service has one broker. It is not ready while it hands over, and redirects clients.
        "publishNotReadyAddresses": True,
    }
    reached = ways(cluster.spec.listeners, broker, mode_of(cluster.spec.tls))
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
