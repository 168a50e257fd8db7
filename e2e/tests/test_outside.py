"""Clients outside of the pods' network write and read by node ports, and by load balancers.

Those of Kafka are kafka-python's, which the image has; in pods, too.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest
from e2e.installed import Namespace, until

pytestmark = pytest.mark.timeout(900)

CLUSTER = "cluster.millrace.dev/logs"

BY_KAFKA = """
import json, sys
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
bootstrap, topic, count = sys.argv[1].split(","), sys.argv[2], int(sys.argv[3])
producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all")
partitions = sorted(producer.partitions_for(topic))
sent = [
    producer.send(topic, line.strip().encode(), partition=partitions[number % len(partitions)])
    for number, line in enumerate(sys.stdin)
]
for future in sent:
    future.get(60)
brokers = {f"{broker.host}:{broker.port}" for broker in producer._metadata.brokers()}
producer.close()
consumer = KafkaConsumer(
    bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=60_000
)
consumer.assign([TopicPartition(topic, partition) for partition in partitions])
found = []
while len(found) < count:
    found.append(next(consumer).value.decode())
consumer.close()
print(json.dumps({"values": found, "brokers": sorted(brokers)}))
"""
"""Writes the lines of its input in turn to all partitions, and reads: BOOTSTRAP TOPIC COUNT."""


def by_kafka(
    namespace: Namespace, bootstrap: str, topic: str, lines: list[str], count: int
) -> dict[str, list[str]]:
    """Write lines in the client's pod, and read so many; return `values`, and told `brokers`."""
    command = ("python", "-c", BY_KAFKA, bootstrap, topic, str(count))
    text = "".join(f"{line}\n" for line in lines)
    printed = namespace("exec", "--stdin", "client", "--", *command, input=text)
    found: dict[str, list[str]] = json.loads(printed)
    return found


def _kafka_ports(namespace: Namespace) -> dict[str, str]:
    """Return the name of each Service by where clients of Kafka may be told that it is."""
    found = {}
    for address, name in _node_ports(namespace).items():
        (service,) = [one for one in _services(namespace) if one["metadata"]["name"] == name]
        (port,) = [one for one in service["spec"]["ports"] if one["name"] == "client-kafka"]
        found[f"{address.rpartition(':')[0]}:{port['nodePort']}"] = name
    return found


def test_clients_of_kafka_write_and_read_in_pods_and_outside(namespace: Namespace) -> None:
    """And Millrace's own see the same topics, by the names of the listener's namespace."""
    kafka = {"namespace": namespace.name}
    listeners = {
        "kafka": {"enabled": True, **kafka},
        "outside": {"type": "NodePort"},
        "outsideKafka": kafka,
    }
    namespace.make_cluster(listeners=listeners)
    namespace.wait(CLUSTER, "OutsideAddressed")
    status = namespace.get(CLUSTER)["status"]
    namespace.make_topic("orders", partitions=6)
    topic = f"{namespace.name}/orders"
    assert status["kafkaBootstrap"] == f"logs-bootstrap.{namespace.name}.svc:9092"

    namespace.make_client()
    inside = [f"inside {number}" for number in range(60)]
    found = by_kafka(namespace, status["kafkaBootstrap"], "orders", inside, 60)
    assert sorted(found["values"]) == sorted(inside)
    pods = [f"logs-brokers-{number}.logs-brokers.{namespace.name}.svc" for number in range(3)]
    assert found["brokers"] == [f"{pod}:9092" for pod in pods]
    assert sorted(namespace.consume(topic, 60)) == sorted(inside)
    namespace("delete", "pod", "client", "--now")

    first = status["outsideKafkaBootstrap"]
    services = _kafka_ports(namespace)
    assert {services[address] for address in first.split(",")} == {"logs-outside"}
    namespace.make_client(outside=status["outsideBootstrap"])

    def told() -> set[str]:
        """The Services of the brokers that clients outside are told now."""
        return {services[each] for each in by_kafka(namespace, first, "orders", [], 0)["brokers"]}

    # The kubelet brings the addresses to pods.
    every_one = {f"logs-brokers-{number}-outside" for number in range(3)}
    until(lambda: told() == every_one, "clients of Kafka outside are told each broker's Service")
    outside = [f"outside {number}" for number in range(60)]
    found = by_kafka(namespace, first, "orders", outside, 120)
    assert sorted(found["values"]) == sorted(inside + outside)
    assert sorted(namespace.consume(topic, 120)) == sorted(inside + outside)


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
