"""Clients outside of the Kubernetes cluster: the objects for them, and where they find brokers."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.broker import config as broker_config
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.listeners import OutsideListener
from millrace.operator.model.objects import CLIENT_PORT, OUTSIDE_PORT, Decided, desired_objects
from millrace.operator.model.outside import (
    address_map,
    bootstrap_service,
    broker_service,
    outside_brokers,
)
from millrace.operator.plan.outside import Outside, outside
from millrace.operator.reconcile.outside import outside_condition
from millrace.operator.reconcile.resources import cluster_of

POOL = {"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}
NODE_PORT = {"type": "NodePort"}
LOAD_BALANCER = {"type": "LoadBalancer"}


def cluster(given: dict[str, Any] | None = None) -> Cluster:
    spec = {"pools": [POOL], **({} if given is None else {"listeners": {"outside": given}})}
    return cluster_of(
        {
            "metadata": {"namespace": "logs", "name": "c", "uid": "u1", "generation": 1},
            "spec": spec,
        }
    )


def listener(given: dict[str, Any]) -> OutsideListener:
    return msgspec.convert(given, OutsideListener)


def objects(given: dict[str, Any] | None = None) -> dict[tuple[str, str], Any]:
    made = desired_objects(cluster(given), Decided(image="millrace:1"))
    return {(document["kind"], document["metadata"]["name"]): document for document in made}


def container(made: dict[tuple[str, str], Any]) -> Any:
    (found,) = made["StatefulSet", "c-b"]["spec"]["template"]["spec"]["containers"]
    return found


def service(
    name: str, node_port: int | None = None, ingress: dict[str, str] | None = None
) -> dict[str, Any]:
    """A Service as the API server has it."""
    port = {"port": CLIENT_PORT, **({} if node_port is None else {"nodePort": node_port})}
    status = {"loadBalancer": {"ingress": [ingress]} if ingress else {}}
    return {"metadata": {"name": name}, "spec": {"ports": [port]}, "status": status}


def pod(
    name: str, node: str | None, host_ip: str | None = None, *, listens: bool = True
) -> dict[str, Any]:
    ports = [{"name": "outside"}] if listens else []
    spec: dict[str, Any] = {"containers": [{"name": "broker", "ports": ports}]}
    return {
        "metadata": {"name": name},
        "spec": {**spec, "nodeName": node} if node else spec,
        "status": {"hostIP": host_ip} if host_ip else {},
    }


def node(name: str, **addresses: str) -> dict[str, Any]:
    found = [{"type": kind, "address": address} for kind, address in addresses.items()]
    return {"metadata": {"name": name}, "status": {"addresses": found}}


# --- Objects


def test_without_such_a_listener_nothing_is_different() -> None:
    made = objects()
    assert "outside_listener" not in tomllib.loads(made["ConfigMap", "c-b"]["data"]["broker.toml"])
    assert "outside" not in str(container(made))
    assert "outside" not in str(made["NetworkPolicy", "c"])


def test_a_broker_listens_outside_and_reads_where_that_is(tmp_path: Path) -> None:
    made = objects(NODE_PORT)
    path = tmp_path / "broker.toml"
    path.write_text(made["ConfigMap", "c-b"]["data"]["broker.toml"])
    environment = {
        variable["name"]: variable.get("value", "").replace("$(POD_NAME)", "c-b-0")
        for variable in container(made)["env"]
    }
    loaded = broker_config.load(path, environment).listeners.outside
    assert (loaded.host, loaded.port) == ("0.0.0.0", OUTSIDE_PORT)
    assert loaded.address_file == "/etc/millrace-outside/c-b-0"
    assert loaded.advertised_host == "$(HOST_IP)"  # Which the kubelet puts in.
    (mount,) = [
        found_mount
        for found_mount in container(made)["volumeMounts"]
        if found_mount["name"] == "outside"
    ]
    assert mount["mountPath"] == "/etc/millrace-outside"
    assert {"name": "outside", "containerPort": OUTSIDE_PORT} in container(made)["ports"]
    volumes = made["StatefulSet", "c-b"]["spec"]["template"]["spec"]["volumes"]
    (source,) = [volume["configMap"] for volume in volumes if volume["name"] == "outside"]
    assert source == {"name": "c-outside", "optional": True}
    assert address_map(cluster(NODE_PORT), {})["metadata"]["name"] == source["name"]


def test_everybody_may_be_a_client_outside() -> None:
    rules = objects(NODE_PORT)["NetworkPolicy", "c"]["spec"]["ingress"]
    (open_to_all,) = [rule for rule in rules if "from" not in rule]
    assert {"protocol": "TCP", "port": "outside"} in open_to_all["ports"]


def test_the_first_connection_goes_to_any_broker_and_the_others_each_to_one() -> None:
    first = bootstrap_service(cluster(NODE_PORT), listener(NODE_PORT))
    one = broker_service(cluster(NODE_PORT), listener(NODE_PORT), "c-b-1")
    assert first["metadata"]["name"] == "c-outside"
    assert one["metadata"]["name"] == "c-b-1-outside"
    labels = objects(NODE_PORT)["StatefulSet", "c-b"]["spec"]["template"]["metadata"]["labels"]
    assert first["spec"]["selector"].items() <= labels.items()
    named = "statefulset.kubernetes.io/pod-name"
    assert one["spec"]["selector"] == {**first["spec"]["selector"], named: "c-b-1"}
    for made in (first, one):
        assert made["spec"]["type"] == "NodePort"
        assert [port["targetPort"] for port in made["spec"]["ports"]] == ["outside"]
        assert made["metadata"]["ownerReferences"][0]["uid"] == "u1"


def test_services_are_as_the_listener_says() -> None:
    given = {
        **LOAD_BALANCER,
        "externalTrafficPolicy": "Local",
        "loadBalancerClass": "example.org/lb",
        "loadBalancerSourceRanges": ["203.0.113.0/24"],
        "annotations": {"a": "all", "b": "all"},
        "bootstrap": {"annotations": {"b": "first"}, "nodePort": 30001},
        "brokers": [{"name": "c-b-1", "annotations": {"b": "one"}, "nodePort": 30002}],
    }
    first = bootstrap_service(cluster(given), listener(given))
    one = broker_service(cluster(given), listener(given), "c-b-1")
    other = broker_service(cluster(given), listener(given), "c-b-2")
    annotations = [made["metadata"]["annotations"] for made in (first, one, other)]
    assert [annotation["b"] for annotation in annotations] == ["first", "one", "all"]
    ports = [made["spec"]["ports"][0].get("nodePort") for made in (first, one, other)]
    assert ports == [30001, 30002, None]
    for made in (first, one, other):
        assert made["spec"]["externalTrafficPolicy"] == "Local"
        assert made["spec"]["loadBalancerClass"] == "example.org/lb"
        assert made["spec"]["loadBalancerSourceRanges"] == ["203.0.113.0/24"]


def test_every_broker_of_every_pool_has_one() -> None:
    assert outside_brokers({"c-a": 2, "c-b": 0, "c-d": 1}) == ["c-a-0", "c-a-1", "c-d-0"]


# --- Addresses


def test_at_node_ports_a_broker_is_where_its_node_is() -> None:
    found = outside(
        listener(NODE_PORT),
        service("c-outside", node_port=30000),
        {
            "c-b-0": service("c-b-0-outside", node_port=30001),
            "c-b-1": service("c-b-1-outside", node_port=30002),
        },
        [pod("c-b-0", "n2", "10.0.0.2"), pod("c-b-1", "n1", "10.0.0.1")],
        [],
    )
    assert found == Outside(
        {"c-b-0": ":30001", "c-b-1": ":30002"}, "10.0.0.1:30000,10.0.0.2:30000", []
    )


def test_a_broker_that_has_not_started_has_its_address_before() -> None:
    services = {"c-b-0": service("c-b-0-outside", node_port=30001)}
    found = outside(listener(NODE_PORT), service("c-outside", node_port=30000), services, [], [])
    assert (found.addresses, found.bootstrap) == ({"c-b-0": ":30001"}, "")
    assert outside_condition(found).is_true is False
    assert "no broker runs on a node yet" in outside_condition(found).message


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("ExternalIP", "[2001:db8::1]:30001"), ("ExternalDNS", "n1.example.org:30001")],
)
def test_another_address_of_the_node_may_be_asked_for(asked: str, expected: str) -> None:
    nodes = [node("n1", ExternalIP="2001:db8::1", ExternalDNS="n1.example.org")]
    found = outside(
        listener({**NODE_PORT, "nodeAddress": asked}),
        service("c-outside", node_port=30001),
        {"c-b-0": service("c-b-0-outside", node_port=30001)},
        [pod("c-b-0", "n1", "10.0.0.1")],
        nodes,
    )
    assert found == Outside({"c-b-0": expected}, expected, [])


def test_a_node_without_such_an_address_is_named() -> None:
    found = outside(
        listener({**NODE_PORT, "nodeAddress": "ExternalIP"}),
        service("c-outside", node_port=30000),
        {name: service(f"{name}-outside", node_port=30001) for name in ("c-b-0", "c-b-1", "c-b-2")},
        [pod("c-b-0", "n1", "10.0.0.1"), pod("c-b-1", None), pod("c-b-2", "n2", "10.0.0.2")],
        [node("n1", InternalIP="10.0.0.1"), node("n2", ExternalIP="203.0.113.2")],
    )
    assert found.addresses == {"c-b-2": "203.0.113.2:30001"}
    assert found.bootstrap == "203.0.113.2:30000"
    assert [text.partition(":")[0] for text in found.waits] == ["c-b-0", "c-b-1"]
    assert "its node n1 has no ExternalIP" in found.waits[0]
    assert "runs on no node yet" in found.waits[1]


@pytest.mark.parametrize(
    ("ingress", "host"),
    [
        ({"ip": "203.0.113.5"}, "203.0.113.5"),
        ({"hostname": "lb.example.org"}, "lb.example.org"),
        ({"ip": "2001:db8::5"}, "[2001:db8::5]"),
    ],
)
def test_behind_a_load_balancer_a_broker_is_where_that_is(
    ingress: dict[str, str], host: str
) -> None:
    found = outside(
        listener(LOAD_BALANCER),
        service("c-outside", ingress=ingress),
        {"c-b-0": service("c-b-0-outside", ingress=ingress)},
        [],
        [],
    )
    assert found == Outside({"c-b-0": f"{host}:{CLIENT_PORT}"}, f"{host}:{CLIENT_PORT}", [])


def test_load_balancers_without_an_address_are_waited_for() -> None:
    services = {f"c-b-{number}": service(f"c-b-{number}-outside") for number in range(9)}
    found = outside(listener(LOAD_BALANCER), service("c-outside"), services, [], [])
    assert found.addresses == {}
    assert found.bootstrap == ""
    assert len(found.waits) == 10
    condition = outside_condition(found)
    assert condition.is_true is False
    assert "no load balancer has given Service c-b-0-outside an address" in condition.message
    assert condition.message.endswith("; and 5 more")


@pytest.mark.parametrize(
    ("given", "chosen", "expected"),
    [
        (NODE_PORT, {"advertisedHost": "b0.example.org"}, "b0.example.org:30001"),
        (NODE_PORT, {"advertisedPort": 9000}, ":9000"),
        (
            {**NODE_PORT, "nodeAddress": "ExternalIP"},
            {"advertisedHost": "b0.example.org"},
            "b0.example.org:30001",
        ),
        (LOAD_BALANCER, {"advertisedHost": "b0.example.org"}, f"b0.example.org:{CLIENT_PORT}"),
        (LOAD_BALANCER, {"advertisedHost": "::1", "advertisedPort": 9000}, "[::1]:9000"),
    ],
)
def test_what_a_broker_is_to_say_of_itself_comes_first(
    given: dict[str, Any], chosen: dict[str, Any], expected: str
) -> None:
    given = {**given, "brokers": [{"name": "c-b-0", **chosen}]}
    services = {"c-b-0": service("c-b-0-outside", node_port=30001)}
    found = outside(listener(given), None, services, [pod("c-b-0", "n1", "10.0.0.1")], [])
    assert found.addresses == {"c-b-0": expected}
    assert not found.waits


def test_a_broker_that_was_not_restarted_with_the_listener_has_no_outside_address_yet() -> None:
    services = {"c-b-0": service("c-b-0-outside", node_port=30001)}
    old = pod("c-b-0", "n1", "10.0.0.1", listens=False)
    found = outside(listener(NODE_PORT), None, services, [old], [])
    assert outside_condition(found).is_true is False
    assert "c-b-0: its pod has yet to be restarted" in outside_condition(found).message


@pytest.mark.parametrize("listens", [True, False])
def test_sidecars_that_webhooks_add_to_a_pod_are_not_the_broker(listens: bool) -> None:
    services = {"c-b-0": service("c-b-0-outside", node_port=30001)}
    injected = pod("c-b-0", "n1", "10.0.0.1", listens=listens)
    proxy = {"name": "istio-proxy", "ports": [{"containerPort": 15090}]}
    injected["spec"]["containers"] = [proxy, *injected["spec"]["containers"], {"name": "vault"}]
    found = outside(listener(NODE_PORT), None, services, [injected], [])
    assert found.addresses == {"c-b-0": ":30001"}
    assert bool(found.waits) is not listens
