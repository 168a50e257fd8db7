"""Where clients in the Kubernetes cluster connect first: at the Service `<cluster>-bootstrap`."""

from millrace.operator.model.cluster import Cluster
from millrace.operator.model.ports import (
    CLIENT_KAFKA_PORT,
    CLIENT_KAFKA_TLS_PORT,
    CLIENT_PORT,
    CLIENT_TLS_PORT,
)


def bootstrap_of(namespace: str, name: str, port: int = CLIENT_PORT) -> str:
    """Return the address (`host:port`) of the Cluster with this name; by default of gRPC."""
    return f"{name}-bootstrap.{namespace}.svc:{port}"


def bootstrap_address(cluster: Cluster) -> str:
    """Return where clients connect first."""
    return bootstrap_of(cluster.namespace, cluster.name)


def tls_bootstrap_address(cluster: Cluster) -> str:
    """Return where they do so by TLS, also while the other address is in plain text."""
    return bootstrap_of(cluster.namespace, cluster.name, CLIENT_TLS_PORT)


def kafka_bootstrap_address(cluster: Cluster) -> str | None:
    """Return where clients of Kafka connect first; None: they are not served."""
    if not cluster.spec.listeners.kafka.enabled:
        return None
    return bootstrap_of(cluster.namespace, cluster.name, CLIENT_KAFKA_PORT)


def kafka_tls_bootstrap_address(cluster: Cluster) -> str | None:
    """Return where they do so by TLS, also while the other address is in plain text."""
    if not cluster.spec.listeners.kafka.enabled:
        return None
    return bootstrap_of(cluster.namespace, cluster.name, CLIENT_KAFKA_TLS_PORT)
