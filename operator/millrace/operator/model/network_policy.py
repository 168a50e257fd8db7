"""The NetworkPolicy of the brokers' pods: what it does not name is closed, in both directions.

| direction | ports | from or to |
|---|---|---|
| in | clients' | everybody, or `spec.networkPolicy.clients` with brokers and the operator |
| in | outside's | everybody: load balancers and nodes show their own addresses |
| in | replicas' | brokers |
| in | metrics page | everybody, or `spec.networkPolicy.metrics`; the pod's node always may |
| out | replicas' and clients' | brokers; the command line in a pod connects as clients do |
| out | the API server's | any address, or `spec.networkPolicy.apiServer` |
| out | DNS | any address: it may be a pod, or run on the node |

Policies see the ports of pods: after a Service has been resolved to them. Which addresses the API
server has is not known for sure, and some networks know it by no address.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from millrace.operator.model.cluster import Cluster
from millrace.operator.model.network import NetworkPeer
from millrace.operator.model.ports import (
    BESIDE_PORTS,
    BROKER_PORTS,
    CLIENT_KAFKA_PORT,
    CLIENT_KAFKA_PORT_NAME,
    CLIENT_KAFKA_TLS_PORT,
    CLIENT_KAFKA_TLS_PORT_NAME,
    OUTSIDE_KAFKA_PORT,
    OUTSIDE_KAFKA_PORT_NAME,
    OUTSIDE_PORT,
    OUTSIDE_PORT_NAME,
    outside_ports,
    twin_ports,
)

USUAL_API_PORTS: Final = (443, 6443)
"""Ports of API servers: that of the Service, and the usual one behind it."""
_DNS_PORTS: Final = (53, 5353)
"""As clients ask, and as the pods of some DNS listen."""
_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"

Rule = dict[str, Any]


def policy_spec(
    cluster: Cluster,
    brokers: dict[str, str],
    *,
    api_ports: Sequence[int],
    operator_namespace: str,
) -> dict[str, Any]:
    """Return the specification of the policy.

    Args:
        brokers: labels of the brokers' pods.
        api_ports: of the API server; none: unknown, so brokers reach every port: without the API
            server, the cluster would stop.
        operator_namespace: where the operator runs; empty: in no pod.
    """
    rules = cluster.spec.network_policy
    numbers = {**BROKER_PORTS, **twin_ports(cluster), **outside_ports(cluster)}
    if cluster.spec.tls is not None:  # Pods may be a step behind.
        numbers |= BESIDE_PORTS
        if cluster.spec.listeners.kafka.enabled:
            numbers |= {
                CLIENT_KAFKA_PORT_NAME: CLIENT_KAFKA_PORT,
                CLIENT_KAFKA_TLS_PORT_NAME: CLIENT_KAFKA_TLS_PORT,
            }
        if cluster.spec.listeners.outside is not None:
            numbers.setdefault(OUTSIDE_PORT_NAME, OUTSIDE_PORT)
        if cluster.spec.listeners.outside_kafka is not None:
            numbers.setdefault(OUTSIDE_KAFKA_PORT_NAME, OUTSIDE_KAFKA_PORT)

    def of(side: str) -> list[str]:
        """Return the ports of a side, which their names begin with."""
        return [name for name in numbers if name.partition("-")[0] == side]

    ours: Rule = {"podSelector": {"matchLabels": brokers}}
    clients, replicas, ends = of("client"), of("replica"), of("outside")
    allowed = [*_peers(rules.clients), ours, *_operator(operator_namespace)]
    ingress = [
        {"ports": _tcp(clients), **_from(allowed if rules.clients else [])},
        {"ports": _tcp(replicas), **_from([ours])},
        {"ports": _tcp(of("metrics")), **_from(_peers(rules.metrics))},
    ]
    if ends:
        ingress.append({"ports": _tcp(ends)})
    api_server: Rule = {"ports": _tcp(sorted({*api_ports})) or [{"protocol": "TCP"}]}
    if rules.api_server:
        api_server["to"] = [{"ipBlock": {"cidr": network}} for network in rules.api_server]
    return {
        "podSelector": ours["podSelector"],
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": [
            # By numbers: not all networks know the names of the other end's ports.
            {"ports": _tcp([numbers[name] for name in (*clients, *replicas)]), "to": [ours]},
            api_server,
            {"ports": [*_ports("UDP", _DNS_PORTS), *_tcp(_DNS_PORTS)]},
        ],
    }


def _peers(chosen: Iterable[NetworkPeer]) -> list[Rule]:
    return [msgspec.to_builtins(peer) for peer in chosen]


def _operator(namespace: str) -> list[Rule]:
    """Return who the operator is: it asks brokers how they are."""
    if not namespace:
        return []
    return [
        {
            "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: namespace}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/component": "operator"}},
        }
    ]


def _from(peers: list[Rule]) -> Rule:
    return {"from": peers} if peers else {}


def _tcp(ports: Iterable[int | str]) -> list[Rule]:
    return _ports("TCP", ports)


def _ports(protocol: str, ports: Iterable[int | str]) -> list[Rule]:
    return [{"protocol": protocol, "port": port} for port in ports]
