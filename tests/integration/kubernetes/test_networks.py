"""The NetworkPolicy that the operator keeps in a real API server."""

from typing import Any

import pytest
from tests.integration.kubernetes.operated import Operated

POLICIES = "/apis/networking.k8s.io/v1/%s/networkpolicies"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
SPEC: dict[str, Any] = {"pools": [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}]}
PEER: dict[str, Any] = {"namespaceSelector": {"matchLabels": {"team": "shop"}}}


def test_the_api_server_takes_all_that_a_cluster_says_of_its_network(operated: Operated) -> None:
    block = {"ipBlock": {"cidr": "2001:db8::/32"}}
    rules = {"clients": [PEER, block], "metrics": [{"podSelector": {}}]}
    operated.apply(
        "clusters", "c", {**SPEC, "networkPolicy": {**rules, "apiServer": ["10.0.0.0/8"]}}
    )
    operated.look()
    found = operated.get(POLICIES, "c")
    assert found is not None
    assert found["spec"]["policyTypes"] == ["Ingress", "Egress"]
    clients, _, metrics = found["spec"]["ingress"]
    assert clients["from"][:2] == [PEER, block]
    assert operated.namespace in str(clients["from"]), "the operator's own"
    assert metrics["from"] == [{"podSelector": {}}]


def test_a_policy_goes_when_none_is_wanted_and_comes_back(operated: Operated) -> None:
    operated.apply("clusters", "c", SPEC)
    operated.look()
    assert operated.get(POLICIES, "c") is not None
    operated.apply("clusters", "c", {**SPEC, "networkPolicy": {"enabled": False}})
    operated.look()
    assert operated.get(POLICIES, "c") is None
    operated.apply("clusters", "c", SPEC)
    operated.look()
    assert operated.get(POLICIES, "c") is not None


def test_a_policy_of_somebody_else_is_left_alone(operated: Operated) -> None:
    operated.apply("clusters", "c", {**SPEC, "networkPolicy": {"enabled": False}})
    theirs = {"metadata": {"name": "c"}, "spec": {"podSelector": {}}}
    operated.request("POST", POLICIES % f"namespaces/{operated.namespace}", theirs)
    operated.look()
    assert operated.get(POLICIES, "c") is not None


@pytest.fixture
def unusual_port(operated: Operated) -> Any:
    """An API server that listens at 16443, as its slice says."""
    made = {
        "metadata": {"name": "kubernetes", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4",
        "ports": [{"name": "https", "port": 16443, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["192.0.2.1"]}],
    }
    operated.request("POST", SLICES, made)
    yield 16443
    operated.request("DELETE", f"{SLICES}/kubernetes")


def test_brokers_reach_an_api_server_at_an_unusual_port(
    operated: Operated, unusual_port: int
) -> None:
    operated.apply("clusters", "c", SPEC)
    operated.look()
    found = operated.get(POLICIES, "c")
    assert found is not None
    ports = [port["port"] for rule in found["spec"]["egress"] for port in rule["ports"]]
    assert {443, 6443, unusual_port} <= set(ports)
