"""What the operator makes for clients outside, at a real API server, which gives ports and refuses.

Nobody runs pods here, and no load balancers are made: the tests write what they would.
"""

from datetime import timedelta
from typing import Any

import pytest
from tests.api_server.controllers import CONFIG_MAPS, PODS, SERVICES, STATEFUL_SETS
from tests.integration.kubernetes.operated import Operated

from millrace.operator.reconcile.outside import WAITING_S

Listener = dict[str, Any]
BALANCED = {"loadBalancerSourceRanges": ["203.0.113.0/24"], "loadBalancerClass": "example.org/lb"}


class Stage:
    """A Cluster `c` of two brokers with a listener outside."""

    def __init__(self, operated: Operated) -> None:
        self.operated = operated

    def write(
        self,
        outside: Listener | None,
        *,
        replicas: int = 2,
        drpc: Listener | None = None,
        kafka: Listener | None = None,
    ) -> None:
        """Write the Cluster, as a person would, and have the operator look at it."""
        spec = cluster_spec(outside, replicas=replicas)
        if drpc is not None:
            spec["listeners"]["outsideDrpc"] = drpc
        if kafka is not None:
            spec["listeners"] |= {"kafka": {"enabled": True}, "outsideKafka": kafka}
        self.operated.apply("clusters", "c", spec)
        self.operated.look()

    def service(self, name: str) -> Any:
        found = self.operated.get(SERVICES, name)
        assert found is not None, f"there is no Service {name}"
        return found

    def services(self) -> set[str]:
        """The names of the outside Services."""
        found = self.operated.controllers.items(SERVICES)
        names = [service["metadata"]["name"] for service in found]
        return {name for name in names if name.endswith("outside")}

    def ports(self) -> dict[str, int]:
        """On the nodes, by Service."""
        return {
            name: self.service(name)["spec"]["ports"][0]["nodePort"] for name in self.services()
        }

    def addresses(self) -> dict[str, str]:
        """What brokers read."""
        config = self.operated.get(CONFIG_MAPS, "c-outside")
        assert config is not None
        return config.get("data") or {}

    def bootstrap(self, of: str = "outsideBootstrap") -> str | None:
        """What the status says of it."""
        found = self.operated.get("/apis/millrace.dev/v1beta1/%s/clusters", "c")
        assert found is not None
        bootstrap: str | None = found["status"].get(of)
        return bootstrap

    def told(self) -> tuple[str, str, str]:
        """Status, reason and message of the condition."""
        return self.operated.told()["OutsideAddressed"]

    def balance(self, name: str, **ingress: str) -> None:
        """Do what a cloud's controller does: say where the load balancer of a Service is."""
        status = {"loadBalancer": {"ingress": [ingress]}}
        document = {**self.service(name), "status": status}
        self.operated.controllers.put(SERVICES, document, subresource="status")


def cluster_spec(outside: Listener | None, *, replicas: int = 2) -> dict[str, Any]:
    pool = {"name": "b", "replicas": replicas, "volumes": [{"name": "data", "size": "1Gi"}]}
    listeners = {} if outside is None else {"listeners": {"outside": outside}}
    return {"pools": [pool], **listeners}


@pytest.fixture
def stage(operated: Operated) -> Stage:
    return Stage(operated)


def test_node_ports_are_told_to_brokers_before_they_start(stage: Stage) -> None:
    stage.write({"type": "NodePort"})
    assert stage.services() == {"c-outside", "c-b-0-outside", "c-b-1-outside"}
    ports = stage.ports()
    assert len(set(ports.values())) == 3
    told = {"c-b-0": f":{ports['c-b-0-outside']}", "c-b-1": f":{ports['c-b-1-outside']}"}
    assert stage.addresses() == told
    assert stage.bootstrap() is None  # No broker runs on any node yet.
    stage.operated.settle()
    first = ports["c-outside"]
    assert stage.bootstrap() == f"192.0.2.1:{first},192.0.2.2:{first}"
    assert stage.addresses() == told
    assert stage.told()[0] == "True"


def test_a_pod_that_only_has_the_labels_of_brokers_adds_no_address(stage: Stage) -> None:
    stage.write({"type": "NodePort"})
    stage.operated.settle()
    before = stage.bootstrap()
    (first, *_) = stage.operated.controllers.items(PODS)
    labels = first["metadata"]["labels"]
    stranger = {
        "metadata": {"name": "debugged-0", "labels": labels},
        "spec": {"containers": [{"name": "theirs", "image": "theirs:1"}], "nodeName": "node-2"},
    }
    made = stage.operated.request("POST", PODS % f"namespaces/{stage.operated.namespace}", stranger)
    made["status"] = {"hostIP": "192.0.2.9", "hostIPs": [{"ip": "192.0.2.9"}]}
    stage.operated.controllers.put(PODS, made, subresource="status")
    stage.operated.look()
    assert stage.bootstrap() == before


def test_ports_stay_whatever_else_changes(stage: Stage) -> None:
    stage.write({"type": "NodePort"})
    before = stage.ports()
    stage.write({"type": "NodePort", "externalTrafficPolicy": "Local", "annotations": {"a": "b"}})
    assert stage.ports() == before
    assert stage.service("c-b-0-outside")["metadata"]["annotations"] == {"a": "b"}
    assert stage.service("c-outside")["spec"]["externalTrafficPolicy"] == "Local"
    stage.write({"type": "NodePort"})
    assert stage.ports() == before
    assert stage.service("c-outside")["spec"]["externalTrafficPolicy"] == "Cluster"  # The default.


def test_services_come_and_go_with_brokers(stage: Stage) -> None:
    stage.write({"type": "NodePort"})
    stage.operated.settle()
    stage.write({"type": "NodePort"}, replicas=3)
    stage.operated.settle()
    assert set(stage.addresses()) == {"c-b-0", "c-b-1", "c-b-2"}
    stage.write({"type": "NodePort"}, replicas=2)
    stage.operated.settle()
    assert set(stage.addresses()) == {"c-b-0", "c-b-1"}
    assert stage.services() == {"c-outside", "c-b-0-outside", "c-b-1-outside"}


def test_a_port_that_cannot_be_had_is_told_and_keeps_nothing_else_waiting(stage: Stage) -> None:
    def outside(node_port: int) -> Listener:
        chosen = {"name": "c-b-1", "nodePort": node_port}
        return {"type": "NodePort", "bootstrap": {"nodePort": 30001}, "brokers": [chosen]}

    stage.write(outside(80))
    stage.operated.until(lambda: stage.operated.conditions()["Ready"][0] == "True")
    assert stage.ports()["c-outside"] == 30001
    assert stage.services() == {"c-outside", "c-b-0-outside"}
    assert list(stage.addresses()) == ["c-b-0"]
    status, reason, message = stage.told()
    assert (status, reason) == ("False", "AddressesMissing")
    assert "c-b-1-outside" in message
    assert "30000-32767" in message
    stage.write(outside(30002))
    assert stage.addresses()["c-b-1"] == ":30002"
    assert stage.told()[0] == "True"


def test_drpc_is_added_to_the_services_and_taken_from_them(stage: Stage) -> None:
    stage.write({"type": "NodePort"})
    stage.operated.settle()
    before, told = stage.ports(), stage.addresses()
    stage.write({"type": "NodePort"}, drpc={"brokers": [{"name": "c-b-1", "nodePort": 30003}]})
    stage.operated.settle()
    assert stage.ports() == before
    assert stage.services() == {"c-outside", "c-b-0-outside", "c-b-1-outside"}
    (_, other) = stage.service("c-b-0-outside")["spec"]["ports"]
    by_drpc = {"c-b-0.drpc": f":{other['nodePort']}", "c-b-1.drpc": ":30003"}
    assert stage.addresses() == {**told, **by_drpc}
    assert stage.told()[0] == "True"
    stage.write({"type": "NodePort"})
    assert (stage.ports(), stage.addresses()) == (before, told)
    assert len(stage.service("c-b-0-outside")["spec"]["ports"]) == 1


def test_clients_of_kafka_are_added_to_the_services_and_taken_from_them(stage: Stage) -> None:
    stage.write({"type": "NodePort"})
    stage.operated.settle()
    before, told = stage.ports(), stage.addresses()
    kafka = {
        "namespace": "shop",
        "bootstrap": {"nodePort": 30004},
        "brokers": [{"name": "c-b-1", "nodePort": 30005}],
    }
    stage.write({"type": "NodePort"}, kafka=kafka)
    stage.operated.settle()
    assert stage.ports() == before
    (_, other) = stage.service("c-b-0-outside")["spec"]["ports"]
    by_kafka = {"c-b-0.kafka": f":{other['nodePort']}", "c-b-1.kafka": ":30005"}
    assert stage.addresses() == {**told, **by_kafka}
    assert stage.told()[0] == "True"
    inside = f"c-bootstrap.{stage.operated.namespace}.svc:9092"
    assert stage.bootstrap("kafkaBootstrap") == inside
    (first, *_) = (stage.bootstrap("outsideKafkaBootstrap") or "").split(",")
    assert first.endswith(":30004")
    stage.write({"type": "NodePort"})
    assert (stage.ports(), stage.addresses()) == (before, told)
    assert stage.bootstrap("kafkaBootstrap") is None
    assert stage.bootstrap("outsideKafkaBootstrap") is None


def test_a_change_that_is_refused_takes_no_address_from_clients(stage: Stage) -> None:
    stage.write({"type": "NodePort"})
    stage.operated.settle()
    before = stage.addresses()
    stage.write({"type": "NodePort"}, drpc={"brokers": [{"name": "c-b-1", "nodePort": 80}]})
    addresses = stage.addresses()
    assert {name: addresses[name] for name in before} == before
    assert addresses.keys() - before.keys() == {"c-b-0.drpc"}
    assert "c-b-1-outside is refused" in stage.told()[2]


def test_load_balancers_are_waited_for_and_then_told(stage: Stage) -> None:
    stage.write({"type": "LoadBalancer", "loadBalancerSourceRanges": ["203.0.113.0/24"]})
    assert stage.addresses() == {}
    stage.operated.until(lambda: stage.operated.conditions()["RolledOut"][0] == "True")
    assert stage.told()[0] == "False"
    assert "c-b-0-outside" in stage.told()[2]
    assert "c-b-1-outside" in stage.told()[2]
    assert stage.operated.look() == WAITING_S
    stage.balance("c-outside", hostname="first.example.org")
    stage.balance("c-b-0-outside", ip="203.0.113.10")
    stage.balance("c-b-1-outside", ip="203.0.113.11")
    stage.operated.look()
    assert stage.addresses() == {"c-b-0": "203.0.113.10:7092", "c-b-1": "203.0.113.11:7092"}
    assert stage.bootstrap() == "first.example.org:7092"
    assert stage.told()[0] == "True"


def test_no_address_that_comes_or_changes_restarts_a_broker(stage: Stage) -> None:
    def generation() -> int:
        found = stage.operated.get(STATEFUL_SETS, "c-b")
        assert found is not None
        return int(found["metadata"]["generation"])

    stage.write({"type": "LoadBalancer"})
    before = generation()
    for name, last in (("c-outside", 9), ("c-b-0-outside", 10), ("c-b-1-outside", 11)):
        stage.balance(name, ip=f"203.0.113.{last}")
    stage.operated.look()
    stage.balance("c-b-0-outside", ip="203.0.113.99")
    stage.operated.look()
    assert stage.addresses()["c-b-0"] == "203.0.113.99:7092"
    assert generation() == before


def test_another_address_of_the_nodes_is_looked_up(stage: Stage) -> None:
    stage.write({"type": "NodePort", "nodeAddress": "Hostname"})
    stage.operated.until(lambda: len(stage.addresses()) == 2)
    ports = stage.ports()
    assert stage.addresses() == {
        "c-b-0": f"host-0.example.org:{ports['c-b-0-outside']}",
        "c-b-1": f"host-1.example.org:{ports['c-b-1-outside']}",
    }
    stage.write({"type": "NodePort", "nodeAddress": "ExternalIP"})
    assert stage.addresses() == {}
    assert "its node node-0 has no ExternalIP" in stage.told()[2]


@pytest.mark.parametrize(
    ("first", "then"), [("NodePort", "LoadBalancer"), ("LoadBalancer", "NodePort")]
)
def test_one_kind_may_become_the_other(stage: Stage, first: str, then: str) -> None:
    options: dict[str, Listener] = {"NodePort": {}, "LoadBalancer": BALANCED}
    stage.write({"type": first, **options[first]})
    stage.write({"type": then, **options[then]})
    assert len(stage.services()) == 3
    for name in stage.services():
        spec = stage.service(name)["spec"]
        assert spec["type"] == then
        assert ("loadBalancerSourceRanges" in spec) is (then == "LoadBalancer")


def test_what_nobody_wants_any_more_goes(stage: Stage) -> None:
    stage.write({"type": "NodePort"})
    stage.operated.settle()
    stage.write(None)
    assert stage.services() == set()
    assert stage.operated.get(CONFIG_MAPS, "c-outside") is None
    assert "OutsideAddressed" not in stage.operated.told()
    assert stage.operated.get(SERVICES, "c-bootstrap") is not None
    stage.operated.settle()


def test_a_service_of_somebody_else_is_let_be_and_told(stage: Stage) -> None:
    theirs = {"ports": [{"port": 1}], "selector": {"a": "b"}}
    document = {"metadata": {"name": "c-b-0-outside"}, "spec": theirs}
    where = f"/api/v1/namespaces/{stage.operated.namespace}/services"
    stage.operated.request("POST", where, document)
    stage.write({"type": "NodePort"})
    assert stage.service("c-b-0-outside")["spec"]["selector"] == {"a": "b"}
    assert list(stage.addresses()) == ["c-b-1"]
    assert "c-b-0-outside is there already and is not ours" in stage.told()[2]
    stage.write(None)
    assert stage.services() == {"c-b-0-outside"}


@pytest.mark.parametrize(
    ("outside", "told"),
    [
        ({}, "type: Required value"),
        ({"type": "Ingress"}, "NodePort"),
        ({"type": "LoadBalancer", "nodeAddress": "ExternalIP"}, "nodeAddress goes with"),
        ({"type": "NodePort", "loadBalancerClass": "a"}, "go with `type: LoadBalancer`"),
        ({"type": "NodePort", "loadBalancerSourceRanges": ["::/0"]}, "go with `type: LoadB"),
        ({"type": "NodePort", "bootstrap": {"nodePort": 0}}, "greater than or equal to 1"),
        ({"type": "NodePort", "bootstrap": {"nodePort": 65536}}, "less than or equal to 65535"),
        ({"type": "NodePort", "brokers": [{"nodePort": 30001}]}, "name: Required value"),
        ({"type": "NodePort", "brokers": [{"name": "a"}, {"name": "a"}]}, "Duplicate value"),
        (
            {"type": "NodePort", "brokers": [{"name": "a", "advertisedHost": "a b"}]},
            "advertisedHost",
        ),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_applied(
    operated: Operated, outside: Listener, told: str
) -> None:
    document = {
        "apiVersion": "millrace.dev/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": "c"},
        "spec": cluster_spec(outside),
    }
    where = f"/apis/millrace.dev/v1beta1/namespaces/{operated.namespace}/clusters"
    status, answer = operated.server.request("POST", where, document)
    assert status == 422, answer
    assert told in answer["message"]


@pytest.mark.parametrize("node_address", ["InternalIP", "Hostname"])
def test_a_broker_whose_pod_is_replaced_keeps_its_address_and_the_names_of_its_certificate(
    stage: Stage, node_address: str
) -> None:
    """G9: it comes back before a kubelet would bring others to it."""
    operated = stage.operated
    listener = {"type": "NodePort", "nodeAddress": node_address}
    operated.apply("clusters", "c", {**cluster_spec(listener), "tls": {}})
    operated.until(lambda: len(operated.controllers.items(PODS)) == 2)
    operated.look()
    operated.ahead = timedelta(minutes=4)
    operated.settle()
    assert len(stage.addresses()) == 4  # Each broker has two ports with TLS.

    def shown() -> Any:
        found = operated.get("/api/v1/%s/secrets", "c-b-tls")
        assert found is not None
        return stage.addresses(), found["data"]

    before = shown()
    path = PODS % f"namespaces/{operated.namespace}"
    operated.request("DELETE", f"{path}/c-b-0", {"gracePeriodSeconds": 0})
    operated.look()
    assert "its pod runs on no node yet" in stage.told()[2]
    assert shown() == before
    operated.settle()
    assert shown() == before


def test_pods_find_each_broker_at_a_service_of_its_own(stage: Stage) -> None:
    stage.write({"type": "ClusterIP"}, drpc={})
    where = stage.operated.namespace
    assert {stage.service(name)["spec"]["type"] for name in stage.services()} == {"ClusterIP"}
    stage.operated.settle()
    assert stage.addresses() == {
        f"c-b-{number}{file}": f"c-b-{number}-outside.{where}.svc:{port}"
        for number in range(2)
        for file, port in (("", 7092), (".drpc", 7096))
    }
    assert stage.bootstrap() == f"c-outside.{where}.svc:7092"
