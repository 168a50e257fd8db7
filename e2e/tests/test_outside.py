"""A client outside of the pods' network writes and reads by node ports."""

import json

import pytest
from e2e.installed import Namespace, until

pytestmark = pytest.mark.timeout(900)

CLUSTER = "cluster.millrace.dev/logs"


def test_a_client_outside_of_the_pods_network_writes_and_reads(namespace: Namespace) -> None:
    namespace.make_cluster(listeners={"outside": {"type": "NodePort"}})
    namespace.wait(CLUSTER, "OutsideAddressed")
    bootstrap = namespace.get(CLUSTER)["status"]["outsideBootstrap"]
    nodes = {
        address["address"]
        for node in namespace.get("nodes")["items"]
        for address in node["status"]["addresses"]
        if address["type"] == "InternalIP"
    }
    assert {each.rpartition(":")[0] for each in bootstrap.split(",")} <= nodes
    namespace.make_topic("orders", partitions=6)
    namespace.make_client(outside=bootstrap)
    topic = f"{namespace.name}/orders"
    ports = {
        service["spec"]["ports"][0]["nodePort"]: service["metadata"]["name"]
        for service in namespace.get("services")["items"]
        if service["spec"]["type"] == "NodePort"
    }

    def leaders() -> list[str]:
        """Of the partitions, the Service by which each is reached."""
        described = namespace.millrace("topic", "describe", topic, "--output", "json")
        found = [each["leader_address"] for each in json.loads(described)["partitions"]]
        assert {each.rpartition(":")[0] for each in found if each} <= nodes
        return [ports[int(each.rpartition(":")[2])] for each in found if each]

    # A broker tells of its address with its first heartbeat, before it is ready.
    assert set(leaders()) == {f"logs-brokers-{number}-outside" for number in range(3)}
    fruits = [f"fruit {number}" for number in range(100)]
    namespace.produce(topic, fruits)
    assert sorted(namespace.consume(topic, 100)) == sorted(fruits)

    namespace("delete", "pod", "logs-brokers-0", "--grace-period=0", "--force", "--wait=false")
    more = [f"late {number}" for number in range(100)]
    namespace.produce(topic, more)
    assert sorted(namespace.consume(topic, 200)) == sorted(fruits + more)
    until(lambda: "logs-brokers-0-outside" in leaders(), "the broker that went leads again")
