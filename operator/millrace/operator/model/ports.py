"""The ports of a broker's pod, by name: its listeners, and its metrics page.

Pods, Services, the NetworkPolicy and the brokers' settings all go by these names and numbers.
"""

from typing import Final

from millrace.operator.model.cluster import Cluster
from millrace.operator.model.security import TlsMode, mode_of

CLIENT_PORT: Final = 7092
METRICS_PORT: Final = 7093
REPLICA_PORT: Final = 7094
OUTSIDE_PORT: Final = 7095
CLIENT_DRPC_PORT: Final = 7096
REPLICA_DRPC_PORT: Final = 7097
OUTSIDE_DRPC_PORT: Final = 7098
CLIENT_KAFKA_PORT: Final = 9092
CLIENT_KAFKA_TLS_PORT: Final = 9192
OUTSIDE_KAFKA_PORT: Final = 9094
OUTSIDE_KAFKA_TLS_PORT: Final = 9194

CLIENT_DRPC_PORT_NAME: Final = "client-drpc"
REPLICA_DRPC_PORT_NAME: Final = "replica-drpc"
CLIENT_KAFKA_PORT_NAME: Final = "client-kafka"
OUTSIDE_PORT_NAME: Final = "outside"
OUTSIDE_DRPC_PORT_NAME: Final = "outside-drpc"
OUTSIDE_KAFKA_PORT_NAME: Final = "outside-kafka"
CLIENT_KAFKA_TLS_PORT_NAME: Final = "client-kafka-s"
OUTSIDE_KAFKA_TLS_PORT_NAME: Final = "outside-kafka-s"
"""A pod's port has a name of at most 15 characters."""

BROKER_PORTS: Final = {"client": CLIENT_PORT, "metrics": METRICS_PORT, "replica": REPLICA_PORT}
"""Those that each broker has."""
CLIENT_TLS_PORT: Final = 7192
TLS_PORTS: Final = {"CLIENTS": CLIENT_TLS_PORT, "REPLICAS": 7194, "OUTSIDE": 7195}
"""Those that speak TLS while the others stay in plain text, by the listener's name."""
CLIENT_TLS_PORT_NAME: Final = "client-tls"
REPLICA_TLS_PORT_NAME: Final = "replica-tls"
OUTSIDE_TLS_PORT_NAME: Final = "outside-tls"
BESIDE_PORTS: Final = {
    CLIENT_TLS_PORT_NAME: CLIENT_TLS_PORT,
    REPLICA_TLS_PORT_NAME: TLS_PORTS["REPLICAS"],
}
"""Likewise, by name, of those that each broker has."""
_WITHOUT_DRPC: Final = ("0.1.0", "0.2.0")
"""Releases without DRPC. Pods of a Cluster that names one stay as they were: a newer operator does
not restart them."""


def broker_ports(cluster: Cluster) -> dict[str, int]:
    """Return the ports that each broker of a cluster has for gRPC, and for its page, by name.

    The port of clients that speaks TLS has the same name at each step on the way to TLS: a Service
    finds it by that, whatever its number is.
    """
    tls = cluster.spec.tls
    if tls is None:
        return BROKER_PORTS
    if tls.mode is TlsMode.OPTIONAL:
        return {**BROKER_PORTS, **BESIDE_PORTS}
    others = {name: port for name, port in BROKER_PORTS.items() if name != "client"}
    return {CLIENT_TLS_PORT_NAME: CLIENT_PORT, **others}


def inside_ports(cluster: Cluster) -> dict[str, int]:
    """Return the ports for pods and brokers by all protocols, and of the page, by name."""
    return {**broker_ports(cluster), **twin_ports(cluster)}


def twin_ports(cluster: Cluster) -> dict[str, int]:
    """Return the ports by which pods and brokers are served beside gRPC, by name."""
    listeners, ports = cluster.spec.listeners, dict[str, int]()
    if cluster.spec.version in _WITHOUT_DRPC:
        return ports
    if listeners.clients_drpc.enabled:
        ports[CLIENT_DRPC_PORT_NAME] = CLIENT_DRPC_PORT
    if listeners.replicas_drpc.enabled:
        ports[REPLICA_DRPC_PORT_NAME] = REPLICA_DRPC_PORT
    if listeners.kafka.enabled:
        plain = (CLIENT_KAFKA_PORT_NAME, CLIENT_KAFKA_PORT)
        ports |= _at_step(cluster, plain, (CLIENT_KAFKA_TLS_PORT_NAME, CLIENT_KAFKA_TLS_PORT))
    return ports


def outside_ports(cluster: Cluster) -> dict[str, int]:
    """Return the ports for clients outside, by name; that with TLS has one name, as inside."""
    listeners, tls, ports = cluster.spec.listeners, cluster.spec.tls, dict[str, int]()
    if listeners.outside is None:
        return ports
    if tls is None or tls.mode is TlsMode.OPTIONAL:
        ports[OUTSIDE_PORT_NAME] = OUTSIDE_PORT
    if tls is not None:
        has_both = tls.mode is TlsMode.OPTIONAL
        ports[OUTSIDE_TLS_PORT_NAME] = TLS_PORTS["OUTSIDE"] if has_both else OUTSIDE_PORT
    if listeners.outside_drpc is not None:
        ports[OUTSIDE_DRPC_PORT_NAME] = OUTSIDE_DRPC_PORT
    if listeners.outside_kafka is not None:
        plain = (OUTSIDE_KAFKA_PORT_NAME, OUTSIDE_KAFKA_PORT)
        ports |= _at_step(cluster, plain, (OUTSIDE_KAFKA_TLS_PORT_NAME, OUTSIDE_KAFKA_TLS_PORT))
    return ports


def _at_step(cluster: Cluster, plain: tuple[str, int], by_tls: tuple[str, int]) -> dict[str, int]:
    """Return a listener's port, or both while there are; that with TLS has one name, as above."""
    match mode_of(cluster.spec.tls):
        case TlsMode.DISABLED:
            return dict([plain])
        case TlsMode.OPTIONAL:
            return dict([plain, by_tls])
        case TlsMode.REQUIRED:
            return {by_tls[0]: plain[1]}
