"""Clients outside of the Kubernetes cluster: the objects for them, and where they find brokers."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millrace.broker import config as broker_config
from millrace.core.listeners_config import KafkaListenerConfig
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.listeners import Listeners
from millrace.operator.model.objects import Decided, brokers_of, desired_objects
from millrace.operator.model.outside import (
    address_map,
    bootstrap_service,
    broker_service,
)
from millrace.operator.model.ports import (
    CLIENT_DRPC_PORT,
    CLIENT_PORT,
    CLIENT_TLS_PORT,
    OUTSIDE_PORT,
)
from millrace.operator.model.security import TlsMode
from millrace.operator.plan.outside import Outside, hosts_outside, outside, told_outside
from millrace.operator.reconcile.outside import outside_condition
from millrace.operator.reconcile.resources import cluster_of

POOL = {"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}
NODE_PORT = {"type": "NodePort"}
LOAD_BALANCER = {"type": "LoadBalancer"}


def cluster(
    given: dict[str, Any] | None = None, *, tls: str | None = None, **others: dict[str, Any]
) -> Cluster:
    outside = {} if given is None else {"outside": given}
    spec: dict[str, Any] = {"pools": [POOL], "listeners": {**outside, **others}}
    if tls is not None:
        spec["tls"] = {"mode": tls}
    return cluster_of(
        {
            "metadata": {"namespace": "logs", "name": "c", "uid": "u1", "generation": 1},
            "spec": spec,
        }
    )


def listeners(
    given: dict[str, Any],
    drpc: dict[str, Any] | None = None,
    kafka: dict[str, Any] | None = None,
) -> Listeners:
    chosen = {"outside": given, "outsideDrpc": drpc, "outsideKafka": kafka}
    named = {name: value for name, value in chosen.items() if value is not None}
    return msgspec.convert(named, Listeners)


def objects(
    given: dict[str, Any] | None = None, *, tls: str | None = None, **others: dict[str, Any]
) -> dict[tuple[str, str], Any]:
    made = desired_objects(cluster(given, tls=tls, **others), Decided(image="millrace:1"))
    return {(document["kind"], document["metadata"]["name"]): document for document in made}


def container(made: dict[tuple[str, str], Any]) -> Any:
    (found,) = made["StatefulSet", "c-b"]["spec"]["template"]["spec"]["containers"]
    return found


def service(
    name: str,
    node_port: int | None = None,
    ingress: dict[str, str] | None = None,
    *,
    drpc_node_port: int | None = None,
    kafka_node_port: int | None = None,
    tls_node_port: int | None = None,
) -> dict[str, Any]:
    """A Service as the API server has it."""
    ports: list[dict[str, Any]] = [{"name": "client", "port": CLIENT_PORT}]
    if node_port is not None:
        ports[0]["nodePort"] = node_port
    if drpc_node_port is not None:
        ports.insert(0, {"name": "client-drpc", "nodePort": drpc_node_port})
    if kafka_node_port is not None:
        ports.append({"name": "client-kafka", "port": 9092, "nodePort": kafka_node_port})
    if tls_node_port is not None:
        ports.append({"name": "client-tls", "port": CLIENT_TLS_PORT, "nodePort": tls_node_port})
    status = {"loadBalancer": {"ingress": [ingress]} if ingress else {}}
    return {"metadata": {"name": name}, "spec": {"ports": ports}, "status": status}


def pod(
    name: str,
    node: str | None,
    host_ip: str | None = None,
    *,
    listens: bool = True,
    drpc: bool = False,
    kafka: bool = False,
) -> dict[str, Any]:
    ports: list[dict[str, Any]] = []
    if listens:
        ports.append({"name": "outside", "containerPort": OUTSIDE_PORT})
    ports += [{"name": "outside-drpc"}] if drpc else []
    ports += [{"name": "outside-kafka", "containerPort": 9094}] if kafka else []
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


def test_the_first_connection_goes_to_any_broker_and_the_others_each_to_one() -> None:
    first = bootstrap_service(cluster(NODE_PORT))
    one = broker_service(cluster(NODE_PORT), "c-b-1")
    assert first["metadata"]["name"] == "c-outside"
    assert one["metadata"]["name"] == "c-b-1-outside"
    labels = objects(NODE_PORT)["StatefulSet", "c-b"]["spec"]["template"]["metadata"]["labels"]
    assert first["spec"]["selector"].items() <= labels.items()
    named = "statefulset.kubernetes.io/pod-name"
    assert one["spec"]["selector"] == {**first["spec"]["selector"], named: "c-b-1"}
    for made in (first, one):
        assert made["spec"]["type"] == "NodePort"
        assert [port["targetPort"] for port in made["spec"]["ports"]] == [OUTSIDE_PORT]
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
    first = bootstrap_service(cluster(given))
    one = broker_service(cluster(given), "c-b-1")
    other = broker_service(cluster(given), "c-b-2")
    annotations = [made["metadata"]["annotations"] for made in (first, one, other)]
    assert [annotation["b"] for annotation in annotations] == ["first", "one", "all"]
    ports = [made["spec"]["ports"][0].get("nodePort") for made in (first, one, other)]
    assert ports == [30001, 30002, None]
    for made in (first, one, other):
        assert made["spec"]["externalTrafficPolicy"] == "Local"
        assert made["spec"]["loadBalancerClass"] == "example.org/lb"
        assert made["spec"]["loadBalancerSourceRanges"] == ["203.0.113.0/24"]


def test_by_drpc_a_broker_is_reached_at_the_same_service(tmp_path: Path) -> None:
    drpc = {"brokers": [{"name": "c-b-1", "nodePort": 30003}]}
    made = objects(NODE_PORT, outsideDrpc=drpc)
    found = broker_service(cluster(NODE_PORT, outsideDrpc=drpc), "c-b-1")["spec"]["ports"]
    assert [(port["name"], port["targetPort"], port.get("nodePort")) for port in found] == [
        ("client", OUTSIDE_PORT, None),
        ("client-drpc", "outside-drpc", 30003),
    ]
    first = bootstrap_service(cluster(NODE_PORT, outsideDrpc=drpc))["spec"]["ports"]
    assert [port["name"] for port in first] == ["client"]
    container_ports = {port["name"]: port["containerPort"] for port in container(made)["ports"]}
    reached = {*container_ports, *container_ports.values()}
    assert {port["targetPort"] for port in found} <= reached
    assert len(set(container_ports.values())) == len(container_ports)
    path = tmp_path / "broker.toml"
    path.write_text(made["ConfigMap", "c-b"]["data"]["broker.toml"])
    environment = {
        variable["name"]: variable.get("value", "").replace("$(POD_NAME)", "c-b-1")
        for variable in container(made)["env"]
    }
    entries = {
        entry.name: entry.config
        for entry in broker_config.load(path, environment).listeners.entries
    }
    twin = entries["outside_drpc"]
    assert (twin.host, twin.port) == ("0.0.0.0", container_ports["outside-drpc"])
    assert twin.advertised_host == "$(HOST_IP)"
    assert twin.address_file == "/etc/millrace-outside/c-b-1.drpc"


def test_clients_of_kafka_outside_begin_at_the_same_services(tmp_path: Path) -> None:
    kafka = {
        "namespace": "shop",
        "bootstrap": {"nodePort": 30004},
        "brokers": [{"name": "c-b-1", "nodePort": 30005}],
    }
    made = objects(NODE_PORT, outsideKafka=kafka)
    given = cluster(NODE_PORT, outsideKafka=kafka)
    for service_of, node_port in (
        (bootstrap_service(given), 30004),
        (broker_service(given, "c-b-0"), None),
        (broker_service(given, "c-b-1"), 30005),
    ):
        found = service_of["spec"]["ports"]
        assert [
            (port["name"], port["port"], port["targetPort"], port.get("nodePort")) for port in found
        ] == [
            ("client", CLIENT_PORT, OUTSIDE_PORT, None),
            ("client-kafka", 9092, 9094, node_port),
        ]
    container_ports = {port["name"]: port["containerPort"] for port in container(made)["ports"]}
    assert len(set(container_ports.values())) == len(container_ports)
    path = tmp_path / "broker.toml"
    path.write_text(made["ConfigMap", "c-b"]["data"]["broker.toml"])
    environment = {
        variable["name"]: variable.get("value", "").replace("$(POD_NAME)", "c-b-1")
        for variable in container(made)["env"]
    }
    entries = {
        entry.name: entry.config
        for entry in broker_config.load(path, environment).listeners.entries
    }
    twin = entries["outside_kafka"]
    assert isinstance(twin, KafkaListenerConfig)
    assert (twin.host, twin.port) == ("0.0.0.0", container_ports["outside-kafka"])
    assert (twin.advertised_host, twin.namespace) == ("$(HOST_IP)", "shop")
    assert twin.address_file == "/etc/millrace-outside/c-b-1.kafka"


def test_on_the_way_to_tls_a_broker_has_both_ports_and_two_addresses(tmp_path: Path) -> None:
    """G4: and clients are told one that they can use."""
    reference = {"name": "company"}
    made = objects(
        {**NODE_PORT, "clientsCA": reference}, tls="Optional", outsideDrpc={}, outsideKafka={}
    )
    path = tmp_path / "broker.toml"
    path.write_text(made["ConfigMap", "c-b"]["data"]["broker.toml"])
    environment = {
        variable["name"]: variable.get("value", "").replace("$(POD_NAME)", "c-b-0")
        for variable in container(made)["env"]
    }
    entries = broker_config.load(path, environment).listeners.entries
    plain, with_tls, drpc, kafka, kafka_tls = (
        entry.config for entry in entries if entry.name[:7] == "outside"
    )
    found = (plain, with_tls, drpc, kafka, kafka_tls)
    kinds = ("", ".tls", ".drpc", ".kafka", ".kafka-tls")
    assert [each.address_file for each in found] == [
        f"/etc/millrace-outside/c-b-0{kind}" for kind in kinds
    ]
    speak_tls = [each for each in found if each.tls_certificate_file]
    assert speak_tls == [with_tls, kafka_tls]
    assert kafka_tls.tls_client_ca_file == with_tls.tls_client_ca_file
    assert with_tls.tls_client_ca_file == "/etc/millrace-clients-ca/ca.crt"
    ports = {each["name"]: each["containerPort"] for each in container(made)["ports"]}
    assert (ports["outside"], ports["outside-tls"]) == (plain.port, with_tls.port)
    assert (ports["outside-kafka"], ports["outside-kafka-s"]) == (kafka.port, kafka_tls.port)
    assert len(set(ports.values())) == len(ports)


@pytest.mark.parametrize(
    ("tls", "reached"),
    [
        (None, {"client": {None}, "client-kafka": {None}}),
        (
            "Optional",
            {
                "client": {None, "Optional", "Required"},
                "client-tls": {"Optional"},
                "client-kafka": {None, "Optional", "Required"},
                "client-kafka-s": {"Optional"},
            },
        ),
        (
            "Required",
            {
                "client": {"Optional", "Required"},
                "client-tls": {"Optional", "Required"},
                "client-kafka": {"Optional", "Required"},
                "client-kafka-s": {"Optional", "Required"},
            },
        ),
    ],
)
def test_at_each_step_a_service_finds_the_pods_of_it_and_of_those_beside_it(
    tls: str | None, reached: dict[str, set[str | None]]
) -> None:
    """A roll takes its time: each port leads to brokers before and after their restart (G4)."""
    for made in (
        bootstrap_service(cluster(NODE_PORT, tls=tls, outsideKafka={})),
        broker_service(cluster(NODE_PORT, tls=tls, outsideKafka={}), "c-b-0"),
    ):
        assert [port["name"] for port in made["spec"]["ports"]] == list(reached)
        for port in made["spec"]["ports"]:
            for step in reached[port["name"]]:
                names = container(objects(NODE_PORT, tls=step, outsideKafka={}))["ports"]
                known = {value for each in names for value in each.values()}
                assert port["targetPort"] in known, (port["name"], step)


def test_the_port_with_tls_may_be_chosen_and_told() -> None:
    given = {
        **NODE_PORT,
        "bootstrap": {"nodePort": 30001, "tlsNodePort": 30011},
        "brokers": [
            {
                "name": "c-b-0",
                "nodePort": 30002,
                "tlsNodePort": 30012,
                "advertisedHost": "b0.example.org",
                "advertisedPort": 9000,
                "tlsAdvertisedPort": 9001,
            }
        ],
    }
    between = cluster(given, tls="Optional")
    for made, ports in (
        (bootstrap_service(between), [30001, 30011]),
        (broker_service(between, "c-b-0"), [30002, 30012]),
    ):
        assert [port["nodePort"] for port in made["spec"]["ports"]] == ports
    services = {"c-b-0": service("c-b-0-outside", 30002, tls_node_port=30012)}
    found = outside(listeners(given), None, services, [], [], tls=TlsMode.OPTIONAL)
    assert found.addresses == {"c-b-0": "b0.example.org:9000", "c-b-0.tls": "b0.example.org:9001"}


def test_every_broker_of_every_pool_has_one() -> None:
    assert brokers_of({"c-a": 2, "c-b": 0, "c-d": 1}) == ["c-a-0", "c-a-1", "c-d-0"]


# --- Addresses


def test_at_node_ports_a_broker_is_where_its_node_is() -> None:
    found = outside(
        listeners(NODE_PORT),
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
    found = outside(listeners(NODE_PORT), service("c-outside", node_port=30000), services, [], [])
    assert (found.addresses, found.bootstrap) == ({"c-b-0": ":30001"}, "")
    assert outside_condition(found).is_true is False
    assert "no broker runs on a node yet" in outside_condition(found).message


def test_a_broker_keeps_its_address_while_its_pod_is_replaced_and_no_longer() -> None:
    given = {**NODE_PORT, "nodeAddress": "Hostname"}
    services = {"c-b-0": service("c-b-0-outside", node_port=30001)}
    told = {"c-b-0": "n1.example.org:30001", "c-b-7": "n7.example.org:30001"}
    nodes = [node("n1", Hostname="n1.example.org"), node("n2", Hostname="n2.example.org")]

    def found(*pods: dict[str, Any]) -> Outside:
        return outside(listeners(given), None, services, pods, nodes, told=told)

    for pods in ((), (pod("c-b-0", None),)):
        assert found(*pods).addresses == {"c-b-0": "n1.example.org:30001"}
        assert found(*pods).away == {"c-b-0"}
    moved = found(pod("c-b-0", "n2"))
    assert (moved.addresses, moved.away) == ({"c-b-0": "n2.example.org:30001"}, frozenset())
    nodes.clear()  # Its node has no such address any more.
    assert found(pod("c-b-0", "n1")).addresses == {}


def test_with_both_clients_in_plain_text_keep_their_addresses() -> None:
    """G4: a Cluster that begins to change takes nothing from them, while others wait (G9)."""
    services = {"c-b-0": service("c-b-0-outside", 30001, tls_node_port=30011)}
    first = service("c-outside", 30000, tls_node_port=30010)
    pods = [pod("c-b-0", "n1", "10.0.0.1")]
    told = {"c-b-0": ":30001"}
    found = outside(
        listeners(NODE_PORT), first, services, pods, [], told=told, tls=TlsMode.OPTIONAL
    )
    assert found.addresses == {"c-b-0": ":30001", "c-b-0.tls": "10.0.0.1:30011"}
    assert (found.bootstrap, found.tls_bootstrap) == ("10.0.0.1:30000", "10.0.0.1:30010")
    assert found.waits == ["c-b-0: its pod has yet to be restarted with the listener"]
    hosts = hosts_outside(found, ["c-b-0"], {})
    assert hosts == {"c-b-0": {"10.0.0.1"}}
    early = told_outside(found, ["c-b-0"], {}, told, TlsMode.OPTIONAL)
    assert early.addresses == told
    assert early.tls_bootstrap == "10.0.0.1:30010"
    late = told_outside(found, ["c-b-0"], hosts, told, TlsMode.OPTIONAL)
    assert late.addresses == found.addresses
    closing = outside(
        listeners(NODE_PORT), first, services, pods, [], told=told, tls=TlsMode.REQUIRED
    )
    both = {"c-b-0": "10.0.0.1:30001", "c-b-0.tls": "10.0.0.1:30011"}
    assert told_outside(closing, ["c-b-0"], hosts, told).addresses == both


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("ExternalIP", "[2001:db8::1]:30001"), ("ExternalDNS", "n1.example.org:30001")],
)
def test_another_address_of_the_node_may_be_asked_for(asked: str, expected: str) -> None:
    nodes = [node("n1", ExternalIP="2001:db8::1", ExternalDNS="n1.example.org")]
    found = outside(
        listeners({**NODE_PORT, "nodeAddress": asked}),
        service("c-outside", node_port=30001),
        {"c-b-0": service("c-b-0-outside", node_port=30001)},
        [pod("c-b-0", "n1", "10.0.0.1")],
        nodes,
    )
    assert found == Outside({"c-b-0": expected}, expected, [])


def test_a_node_without_such_an_address_is_named() -> None:
    found = outside(
        listeners({**NODE_PORT, "nodeAddress": "ExternalIP"}),
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
        listeners(LOAD_BALANCER),
        service("c-outside", ingress=ingress),
        {"c-b-0": service("c-b-0-outside", ingress=ingress)},
        [],
        [],
    )
    assert found == Outside({"c-b-0": f"{host}:{CLIENT_PORT}"}, f"{host}:{CLIENT_PORT}", [])


def test_pods_and_gateways_find_a_broker_by_the_name_of_its_service() -> None:
    chosen = {"brokers": [{"name": "c-b-1", "advertisedHost": "b1.example.org"}]}
    services = {}
    for name in ("c-b-0", "c-b-1"):
        services[name] = service(f"{name}-outside")
        services[name]["metadata"]["namespace"] = "logs"
    first = service("c-outside")
    first["metadata"]["namespace"] = "logs"
    given = {"type": "ClusterIP", **chosen}
    found = outside(listeners(given, {}), first, services, [], [])
    assert found == Outside(
        {
            "c-b-0": f"c-b-0-outside.logs.svc:{CLIENT_PORT}",
            "c-b-0.drpc": "c-b-0-outside.logs.svc:7096",
            "c-b-1": f"b1.example.org:{CLIENT_PORT}",
            "c-b-1.drpc": "b1.example.org:7096",
        },
        f"c-outside.logs.svc:{CLIENT_PORT}",
        [],
    )
    assert broker_service(cluster(given), "c-b-0")["spec"]["type"] == "ClusterIP"


def test_load_balancers_without_an_address_are_waited_for() -> None:
    services = {f"c-b-{number}": service(f"c-b-{number}-outside") for number in range(9)}
    found = outside(listeners(LOAD_BALANCER), service("c-outside"), services, [], [])
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
    found = outside(listeners(given), None, services, [pod("c-b-0", "n1", "10.0.0.1")], [])
    assert found.addresses == {"c-b-0": expected}
    assert not found.waits


def test_a_broker_that_was_not_restarted_with_the_listener_has_no_outside_address_yet() -> None:
    services = {"c-b-0": service("c-b-0-outside", node_port=30001)}
    old = pod("c-b-0", "n1", "10.0.0.1", listens=False)
    found = outside(listeners(NODE_PORT), None, services, [old], [])
    assert outside_condition(found).is_true is False
    assert "c-b-0: its pod has yet to be restarted" in outside_condition(found).message


@pytest.mark.parametrize("listens", [True, False])
def test_sidecars_that_webhooks_add_to_a_pod_are_not_the_broker(listens: bool) -> None:
    services = {"c-b-0": service("c-b-0-outside", node_port=30001)}
    injected = pod("c-b-0", "n1", "10.0.0.1", listens=listens)
    proxy = {"name": "istio-proxy", "ports": [{"containerPort": 15090}]}
    injected["spec"]["containers"] = [proxy, *injected["spec"]["containers"], {"name": "vault"}]
    found = outside(listeners(NODE_PORT), None, services, [injected], [])
    assert found.addresses == {"c-b-0": ":30001"}
    assert bool(found.waits) is not listens


@pytest.mark.parametrize(
    ("given", "chosen", "drpc", "expected"),
    [
        (NODE_PORT, {}, {}, ":30003"),
        (NODE_PORT, {"advertisedHost": "b0.example.org"}, {}, "b0.example.org:30003"),
        (
            NODE_PORT,
            {"advertisedHost": "b0.example.org", "advertisedPort": 9000},
            {"advertisedPort": 9001},
            "b0.example.org:9001",
        ),
        (NODE_PORT, {}, {"advertisedHost": "fast.example.org"}, "fast.example.org:30003"),
        (LOAD_BALANCER, {}, {}, f"203.0.113.5:{CLIENT_DRPC_PORT}"),
    ],
)
def test_by_drpc_a_broker_has_an_address_of_its_own(
    given: dict[str, Any], chosen: dict[str, Any], drpc: dict[str, Any], expected: str
) -> None:
    given = {**given, "brokers": [{"name": "c-b-0", **chosen}]}
    ingress = {"ip": "203.0.113.5"}
    services = {"c-b-0": service("c-b-0-outside", 30001, ingress, drpc_node_port=30003)}
    found = outside(
        listeners(given, {"brokers": [{"name": "c-b-0", **drpc}]}),
        None,
        services,
        [pod("c-b-0", "n1", "10.0.0.1", drpc=True)],
        [],
    )
    assert found.addresses.keys() == {"c-b-0", "c-b-0.drpc"}
    assert found.addresses["c-b-0.drpc"] == expected
    assert not found.waits


@pytest.mark.parametrize(
    ("given", "kafka", "expected", "first"),
    [
        (NODE_PORT, {}, ":30005", "10.0.0.1:30004"),
        (NODE_PORT, {"advertisedHost": "k0.example.org"}, "k0.example.org:30005", "10.0.0.1:30004"),
        (NODE_PORT, {"advertisedPort": 9093}, ":9093", "10.0.0.1:30004"),
        (LOAD_BALANCER, {}, "203.0.113.5:9092", "203.0.113.6:9092"),
    ],
)
def test_clients_of_kafka_outside_are_told_addresses_of_their_own(
    given: dict[str, Any], kafka: dict[str, Any], expected: str, first: str
) -> None:
    services = {
        "c-b-0": service("c-b-0-outside", 30001, {"ip": "203.0.113.5"}, kafka_node_port=30005)
    }
    found = outside(
        listeners(given, kafka={"brokers": [{"name": "c-b-0", **kafka}]}),
        service("c-outside", 30000, {"ip": "203.0.113.6"}, kafka_node_port=30004),
        services,
        [pod("c-b-0", "n1", "10.0.0.1", kafka=True)],
        [],
    )
    assert found.addresses.keys() == {"c-b-0", "c-b-0.kafka"}
    assert (found.addresses["c-b-0.kafka"], found.kafka_bootstrap) == (expected, first)
    assert not found.waits


def test_with_tls_clients_of_kafka_are_told_what_certificates_have() -> None:
    """G9: their port speaks TLS with the others."""
    services = {"c-b-0": service("c-b-0-outside", 30001, kafka_node_port=30005)}
    first = service("c-outside", 30000, kafka_node_port=30004)
    given = {**NODE_PORT, "brokers": [{"name": "c-b-0", "advertisedHost": "b0.example.org"}]}
    kafka = {"brokers": [{"name": "c-b-0", "advertisedHost": "k0.example.org"}]}
    pods = [pod("c-b-0", "n1", "10.0.0.1", kafka=True)]
    found = outside(listeners(given, kafka=kafka), first, services, pods, [], tls=TlsMode.REQUIRED)
    hosts = hosts_outside(found, ["c-b-0"], {})
    assert hosts == {"c-b-0": {"10.0.0.1", "b0.example.org", "k0.example.org"}}
    early = told_outside(found, ["c-b-0"], {"c-b-0": frozenset({"b0.example.org"})}, {})
    assert "c-b-0.kafka" not in early.addresses
    assert any("k0.example.org:30005" in wait for wait in early.waits)
    assert told_outside(found, ["c-b-0"], hosts, {}).addresses == found.addresses


def test_clients_outside_reach_a_broker_by_grpc_while_drpc_is_waited_for() -> None:
    services = {"c-b-0": service("c-b-0-outside", node_port=30001)}
    before = [pod("c-b-0", "n1", "10.0.0.1")]
    found = outside(listeners(NODE_PORT, {}), None, services, before, [])
    assert found.addresses == {"c-b-0": ":30001"}
    assert found.waits == [
        "c-b-0: its pod has yet to be restarted with the listener",
        "c-b-0: Service c-b-0-outside has no port on the nodes yet",
    ]
