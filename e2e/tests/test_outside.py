"""A client outside of the pods' network writes and reads by node ports, and by load balancers."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from e2e.installed import Namespace, until

pytestmark = pytest.mark.timeout(900)

CLUSTER = "cluster.millrace.dev/logs"


def _node_ports(namespace: Namespace) -> dict[str, str]:
    """Return the name of each broker's Service by the addresses that clients may be told."""
    nodes = [
        address["address"]
        for node in namespace.get("nodes")["items"]
        for address in node["status"]["addresses"]
        if address["type"] == "InternalIP"
    ]
    return {
        f"{node}:{service['spec']['ports'][0]['nodePort']}": service["metadata"]["name"]
        for service in _services(namespace)
        for node in nodes
    }


def _load_balancers(namespace: Namespace) -> dict[str, str]:
    """Give each Service an address as a cloud would, and return its name by that.

    The addresses come from the range for documentation (RFC 5737). kube-proxy forwards a connection
    to one of them, from any node, to the Service.
    """
    until(lambda: len(_services(namespace)) == 4, "each broker has a Service, and all have one")
    given = {}
    for number, service in enumerate(_services(namespace), start=1):
        name, address = service["metadata"]["name"], f"203.0.113.{number}"
        status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
        namespace("patch", "service", name, "--subresource=status", f"--patch={json.dumps(status)}")
        given[f"{address}:{service['spec']['ports'][0]['port']}"] = name
    return given


def _services(namespace: Namespace) -> list[dict[str, Any]]:
    found = namespace.get("services", "--selector=app.kubernetes.io/component=outside")
    return list(found["items"])


@pytest.mark.parametrize(
    ("kind", "addresses"), [("NodePort", _node_ports), ("LoadBalancer", _load_balancers)]
)
def test_a_client_outside_of_the_pods_network_writes_and_reads(
    namespace: Namespace, kind: str, addresses: Callable[[Namespace], dict[str, str]]
) -> None:
    namespace.make_cluster(listeners={"outside": {"type": kind}, "outsideDrpc": {}})
    services = addresses(namespace)
    namespace.wait(CLUSTER, "OutsideAddressed")
    bootstrap = namespace.get(CLUSTER)["status"]["outsideBootstrap"]
    assert {services[address] for address in bootstrap.split(",")} == {"logs-outside"}
    namespace.make_topic("orders", partitions=6)
    namespace.make_client(outside=bootstrap)
    topic = f"{namespace.name}/orders"

    def leaders() -> list[str]:
        """The Services of the partitions' leaders."""
        described = namespace.millrace("topic", "describe", topic, "--output", "json")
        found = [partition["leader_address"] for partition in json.loads(described)["partitions"]]
        return [services[address] for address in found if address]

    # A broker reports its address with its first heartbeat, before it is ready; if the address is
    # not known by then, with the first heartbeat after the file with the address has changed.
    every_one = {f"logs-brokers-{number}-outside" for number in range(3)}
    until(lambda: set(leaders()) == every_one, "each broker is reached by its Service")
    fruits = [f"fruit {number}" for number in range(100)]
    namespace.produce(topic, fruits)
    assert sorted(namespace.consume(topic, 100)) == sorted(fruits)

    namespace("delete", "pod", "logs-brokers-0", "--grace-period=0", "--force", "--wait=false")
    more = [f"late {number}" for number in range(100)]
    namespace.produce(topic, more)
    assert sorted(namespace.consume(topic, 200)) == sorted(fruits + more)
    until(lambda: "logs-brokers-0-outside" in leaders(), "the broker that went leads again")
