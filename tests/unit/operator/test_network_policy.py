"""Who reaches brokers' pods, and whom these reach, judged as a network does that enforces it."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from millrace.operator.model.objects import Decided, desired_objects
from millrace.operator.reconcile.resources import cluster_of

POOL = {"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}
BROKER = {"millrace.dev/cluster": "c", "app.kubernetes.io/component": "broker"}
OUTSIDE = {"outside": {"type": "NodePort"}, "outsideDrpc": {}}
KAFKA = {"kafka": {"enabled": True}, "outside": {"type": "NodePort"}, "outsideKafka": {}}


class End(NamedTuple):
    """The other end of a connection: a pod, or an address outside of the pods' network."""

    namespace: str = ""
    labels: Mapping[str, str] = MappingProxyType({})
    address: str = ""


PEER = End("logs", BROKER)
OTHER_CLUSTER = End("logs", {**BROKER, "millrace.dev/cluster": "d"})
SAME_NAME_ELSEWHERE = End("shop", BROKER)
CLIENT = End("shop", {"app": "orders"})
OPERATOR = End("millrace-system", {"app.kubernetes.io/component": "operator"})
PROMETHEUS = End("monitoring", {"app": "prometheus"})
SOMEWHERE = End(address="203.0.113.0/24")


class Judged:
    """The policy of a Cluster `c` in namespace `logs`, as a network applies it."""

    def __init__(self, api_ports: Sequence[int] = (443, 6443), **spec: Any) -> None:
        cluster = cluster_of(
            {
                "metadata": {"namespace": "logs", "name": "c", "uid": "u1", "generation": 1},
                "spec": {"pools": [POOL], **spec},
            }
        )
        decided = Decided(image="m:1", api_ports=api_ports, operator_namespace="millrace-system")
        made = {each["kind"]: each for each in desired_objects(cluster, decided)}
        self.spec = made["NetworkPolicy"]["spec"]
        template = made["StatefulSet"]["spec"]["template"]
        chosen = self.spec["podSelector"]["matchLabels"]
        assert chosen.items() <= template["metadata"]["labels"].items()
        (container,) = template["spec"]["containers"]
        self.ports = {port["name"]: port["containerPort"] for port in container["ports"]}

    def entered(self, by: End) -> set[str]:
        """Return the ports of a broker's pod that somebody reaches."""
        return {
            name
            for name, number in self.ports.items()
            if self._allows("ingress", by, ("TCP", name, number))
        }

    def leaves(self, to: End, port: int, protocol: str = "TCP") -> bool:
        """Return whether a broker's pod reaches a port."""
        names = [name for name, number in self.ports.items() if number == port]
        name = names[0] if names and to.labels.items() >= BROKER.items() else ""
        return self._allows("egress", to, (protocol, name, port))

    def _allows(self, way: str, end: End, port: tuple[str, str, int]) -> bool:
        assert way.capitalize() in self.spec["policyTypes"], "what is not named is open"
        side, (protocol, *known_as) = {"ingress": "from", "egress": "to"}[way], port
        return any(
            any(
                each["protocol"] == protocol and each.get("port", port[2]) in known_as
                for each in rule["ports"]
            )
            and (side not in rule or any(self._fits(peer, end) for peer in rule[side]))
            for rule in self.spec[way]
        )

    def _fits(self, peer: Any, end: End) -> bool:
        if "ipBlock" in peer:
            return bool(peer["ipBlock"]["cidr"] == end.address)
        if end.address:
            return False
        namespaces = peer.get("namespaceSelector")
        if namespaces is None:
            is_there = end.namespace == "logs"
        else:
            wanted = namespaces.get("matchLabels", {})
            is_there = wanted.items() <= {"kubernetes.io/metadata.name": end.namespace}.items()
        labels = peer.get("podSelector", {}).get("matchLabels", {})
        return is_there and labels.items() <= end.labels.items()


CLIENTS = {"client", "client-drpc"}
REPLICAS = {"replica", "replica-drpc"}


def test_everybody_may_be_a_client_and_read_metrics_and_only_brokers_are_replicas() -> None:
    judged = Judged()
    assert judged.ports.keys() == {*CLIENTS, *REPLICAS, "metrics"}
    for end in (CLIENT, OTHER_CLUSTER, SAME_NAME_ELSEWHERE, SOMEWHERE, OPERATOR):
        assert judged.entered(end) == {*CLIENTS, "metrics"}, end
    assert judged.entered(PEER) == {*CLIENTS, *REPLICAS, "metrics"}


def test_a_cluster_says_who_its_clients_are_and_brokers_and_the_operator_are_always() -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "shop"}}}
    judged = Judged(networkPolicy={"clients": [peer]})
    for end in (CLIENT, PEER, OPERATOR):
        assert judged.entered(end) >= CLIENTS, end
    for end in (PROMETHEUS, OTHER_CLUSTER, SOMEWHERE):
        assert not judged.entered(end) & CLIENTS, end
    other = OPERATOR._replace(namespace="shop-of-somebody")
    assert not judged.entered(other) & CLIENTS


def test_a_cluster_says_who_reads_metrics() -> None:
    peer = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "prometheus"}}}
    judged = Judged(networkPolicy={"metrics": [peer]})
    assert "metrics" in judged.entered(PROMETHEUS)
    assert judged.entered(CLIENT) == CLIENTS


def test_clients_of_kafka_are_clients_as_all_others() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "orders"}}}
    judged = Judged(listeners=KAFKA, networkPolicy={"clients": [peer]})
    assert "client-kafka" in judged.entered(OPERATOR)
    assert judged.entered(SOMEWHERE) == {"outside", "outside-kafka", "metrics"}


def test_clients_outside_come_from_any_address() -> None:
    peer = {"podSelector": {"matchLabels": {"app": "orders"}}}
    judged = Judged(listeners=OUTSIDE, networkPolicy={"clients": [peer], "metrics": [peer]})
    assert judged.entered(SOMEWHERE) == {"outside", "outside-drpc"}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"tls": {}},
        {"tls": {}, "listeners": OUTSIDE},
        {"listeners": KAFKA},
        {"tls": {}, "listeners": KAFKA},
    ],
)
def test_each_port_of_a_pod_is_open_to_those_whom_it_is_for(spec: dict[str, Any]) -> None:
    judged = Judged(**spec)
    assert judged.entered(PEER) == judged.ports.keys()
    for_clients = {name for name in judged.ports if not name.startswith("replica")}
    assert judged.entered(CLIENT) == for_clients
    for name, number in judged.ports.items():
        is_of_brokers = name.startswith(("client", "replica"))
        assert judged.leaves(PEER, number) is is_of_brokers, name


def test_pods_that_are_a_step_behind_on_the_way_to_tls_are_open_outside_too() -> None:
    """G4: the policy is of the next step, and pods come there one after the other."""
    given = {**OUTSIDE, **KAFKA}
    both = Judged(tls={"mode": "Optional"}, listeners=given)
    ends = {"outside", "outside-tls", "outside-drpc", "outside-kafka", "outside-kafka-s"}
    assert {name for name in both.entered(SOMEWHERE) if name.startswith("outside")} == ends
    behind = Judged(tls={"mode": "Required"}, listeners=given)
    behind.ports = both.ports
    assert behind.entered(SOMEWHERE) == both.entered(SOMEWHERE)


def test_a_port_that_is_switched_off_is_not_open() -> None:
    off = {"enabled": False}
    judged = Judged(listeners={"clientsDrpc": off, "replicasDrpc": off})
    assert judged.entered(PEER) == {"client", "replica", "metrics"}
    assert "drpc" not in str(judged.spec)


@pytest.mark.parametrize("port", ["client", "client-drpc", "replica", "replica-drpc"])
def test_brokers_reach_each_other_as_brokers_and_as_clients(port: str) -> None:
    judged = Judged()
    assert judged.leaves(PEER, judged.ports[port])
    for end in (OTHER_CLUSTER, SAME_NAME_ELSEWHERE, CLIENT, SOMEWHERE):
        assert not judged.leaves(end, judged.ports[port]), end


def test_brokers_reach_the_api_server_and_dns_and_nothing_else() -> None:
    judged = Judged()
    for port in (443, 6443):
        assert judged.leaves(SOMEWHERE, port)
    dns = End("kube-system", {"k8s-app": "kube-dns"})
    for protocol in ("UDP", "TCP"):
        assert judged.leaves(dns, 53, protocol)
    for port in (22, 80, 2379, 8080, 10250):
        assert not judged.leaves(SOMEWHERE, port)
        assert not judged.leaves(CLIENT, port)
    assert not judged.leaves(SOMEWHERE, 443, "UDP")


def test_where_nobody_knows_the_api_servers_port_brokers_reach_it_at_any() -> None:
    """As under the chart of an earlier release: without it no broker would stay the controller."""
    judged = Judged(api_ports=())
    assert judged.leaves(SOMEWHERE, 16443)
    assert not judged.leaves(SOMEWHERE, 16443, "UDP")
    judged = Judged(api_ports=(), networkPolicy={"apiServer": ["203.0.113.0/24"]})
    assert judged.leaves(SOMEWHERE, 16443)
    assert not judged.leaves(CLIENT, 16443)


def test_a_cluster_says_where_its_api_server_is() -> None:
    judged = Judged(networkPolicy={"apiServer": ["203.0.113.0/24"]})
    assert judged.leaves(SOMEWHERE, 6443)
    assert not judged.leaves(End(address="198.51.100.0/24"), 443)
    assert not judged.leaves(CLIENT, 443)


def test_a_cluster_may_have_no_policy() -> None:
    document = {
        "metadata": {"namespace": "logs", "name": "c", "uid": "u1", "generation": 1},
        "spec": {"pools": [POOL], "networkPolicy": {"enabled": False}},
    }
    made = desired_objects(cluster_of(document), Decided(image="m:1"))
    assert "NetworkPolicy" not in {each["kind"] for each in made}
