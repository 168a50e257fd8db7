"""The objects that a Cluster needs."""

import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.arch.settings import known_to_last_release, last_release

from millrace.broker import config as broker_config
from millrace.core.broker_config import BrokerConfig
from millrace.core.coordinator.transactions.config import TransactionsConfig
from millrace.core.errors import InvalidConfigError
from millrace.core.kafka_config import KafkaConfig
from millrace.core.listeners_config import KafkaListenerConfig
from millrace.core.settings import sections_of, settings_of
from millrace.operator.model.broker_settings import LACKING_BEFORE
from millrace.operator.model.cluster import POD_VOLUMES
from millrace.operator.model.definitions import cluster_definition
from millrace.operator.model.images import version_of
from millrace.operator.model.objects import (
    CONFIG_ANNOTATION,
    Decided,
    desired_objects,
)
from millrace.operator.model.ports import METRICS_PORT
from millrace.operator.reconcile.resources import cluster_of

INSECURE = {"MILLRACE_BROKER_IF_KNOWN__INSECURE": "true"}
POOL = {"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}


def objects(*, decided: Decided | None = None, **spec: Any) -> dict[tuple[str, str], Any]:
    cluster = cluster_of(
        {
            "metadata": {"namespace": "logs", "name": "c", "uid": "u1", "generation": 1},
            "spec": {"pools": [POOL], **spec},
        }
    )
    made = desired_objects(cluster, decided or Decided(image="millrace:1"))
    return {(document["kind"], document["metadata"]["name"]): document for document in made}


def pod_of(stateful_set: Any) -> Any:
    return stateful_set["spec"]["template"]["spec"]


def loaded(tmp_path: Path, made: dict[tuple[str, str], Any]) -> BrokerConfig:
    """Return the settings of a broker, as it finds them in its pod."""
    path = tmp_path / "broker.toml"
    path.write_text(made["ConfigMap", "c-b"]["data"]["broker.toml"])
    (container,) = pod_of(made["StatefulSet", "c-b"])["containers"]
    return broker_config.load(
        path, {variable["name"]: variable.get("value", "") for variable in container["env"]}
    )


def test_every_object_is_owned_by_the_cluster_so_that_it_goes_with_it() -> None:
    for document in objects().values():
        (owner,) = document["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"], owner["controller"]) == ("Cluster", "u1", True)
        assert document["metadata"]["namespace"] == "logs"


def test_no_volume_of_a_pool_can_have_the_name_of_another_one() -> None:
    """The definition refuses such a volume by a list of names: it has to be all of them."""
    listeners = {"outside": {"type": "NodePort"}}
    made = pod_of(objects(listeners=listeners)["StatefulSet", "c-b"])
    assert {volume["name"] for volume in made["volumes"]} == set(POD_VOLUMES)


def test_a_broker_takes_the_settings_that_are_written_for_it(tmp_path: Path) -> None:
    settings = {"storage": {"slow_flush_ms": "3s"}, "cluster": {"default_partitions": 6}}
    text = objects(config=settings)["ConfigMap", "c-b"]["data"]["broker.toml"]
    path = tmp_path / "broker.toml"
    path.write_text(text)
    loaded = broker_config.load(path, {**INSECURE, "MILLRACE_BROKER__NODE__NAME": "c-b-0"})
    assert loaded.storage.slow_flush_ms == 3000
    assert loaded.cluster.default_partitions == 6
    assert loaded.coordination.kubernetes.cluster_name == "c"
    assert loaded.coordination.kubernetes.namespace == "logs"
    assert loaded.node.name == "c-b-0"
    assert tomllib.loads(text)["listener"]["host"] == "0.0.0.0"


def test_a_cluster_may_say_all_about_its_metrics_but_where_they_are(tmp_path: Path) -> None:
    settings = {"metrics": {"names": "logs.example.org", "topics_max": 7}}
    found = loaded(tmp_path, objects(config=settings)).metrics
    assert (found.names, found.topics_max) == ("logs.example.org", 7)
    assert (found.host, found.port) == ("0.0.0.0", METRICS_PORT)


@pytest.mark.parametrize(
    ("spec", "is_insecure"),
    [
        ({}, True),
        ({"tls": {}}, True),
        ({"tls": {"mode": "Optional"}, "access": {}}, True),
        ({"tls": {}, "access": {"mode": "Logged"}}, True),
        ({"tls": {}, "access": {}}, False),
    ],
)
def test_brokers_start_in_pods_also_without_tls_or_access(
    tmp_path: Path, spec: dict[str, Any], is_insecure: bool
) -> None:
    made = objects(listeners={"outside": {"type": "NodePort"}}, **spec)
    assert loaded(tmp_path, made).insecure is is_insecure


def test_a_broker_knows_what_its_volumes_lie_on(tmp_path: Path) -> None:
    volumes = [
        {"name": "fast", "size": "1Gi"},
        {"name": "large0", "size": "9Gi", "media": "hdd"},
    ]
    made = objects(pools=[{"name": "b", "volumes": volumes}])
    found = loaded(tmp_path, made).log_directories
    assert [directory.media for directory in found] == ["ssd", "hdd"]
    mounts = [mount["mountPath"] for mount in made_mounts(made)]
    assert all(directory.path.removesuffix("/log") in mounts for directory in found)


def made_mounts(made: dict[tuple[str, str], Any]) -> Any:
    return pod_of(made["StatefulSet", "c-b"])["containers"][0]["volumeMounts"]


def test_other_settings_make_another_revision_of_the_pods() -> None:
    def annotation(**spec: Any) -> str:
        template = objects(**spec)["StatefulSet", "c-b"]["spec"]["template"]
        found: str = template["metadata"]["annotations"][CONFIG_ANNOTATION]
        return found

    assert annotation() == annotation()
    assert annotation() != annotation(config={"threads": {"check": 3}})


@pytest.mark.parametrize(("replicas", "initial"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_brokers_know_with_how_many_others_their_cluster_begins(
    tmp_path: Path, replicas: int, initial: int
) -> None:
    made = objects(pools=[{**POOL, "replicas": replicas}])
    assert told_initial_brokers(tmp_path, made) == initial


def test_a_cluster_may_say_itself_with_how_many_brokers_it_begins(tmp_path: Path) -> None:
    made = objects(config={"cluster": {"initial_brokers": 5}})
    assert told_initial_brokers(tmp_path, made) == 5


def told_initial_brokers(tmp_path: Path, made: dict[tuple[str, str], Any]) -> int:
    """Return the number in the file that a broker's settings name, as it is mounted."""
    file = Path(loaded(tmp_path, made).node.initial_brokers_file)
    (mount,) = [found_mount for found_mount in made_mounts(made) if found_mount["name"] == "config"]
    assert str(file.parent) == mount["mountPath"]
    return int(made["ConfigMap", "c-b"]["data"][file.name])


def test_another_number_of_brokers_restarts_none_of_them() -> None:
    def template(replicas: int, **settings: int) -> Any:
        made = objects(pools=[{**POOL, "replicas": replicas}], config={"cluster": settings})
        return made["StatefulSet", "c-b"]["spec"]["template"]

    assert template(1) == template(3)
    assert template(3) == template(3, initial_brokers=2) == template(3, initial_brokers=1)


def test_prometheus_finds_the_metrics_by_annotations_unless_the_pool_says_otherwise() -> None:
    def annotations(**template: Any) -> Any:
        pool = {
            "name": "b",
            "volumes": [{"name": "data", "size": "1Gi"}],
            "template": template,
        }
        made = objects(pools=[pool])["StatefulSet", "c-b"]["spec"]["template"]
        port = made["metadata"]["annotations"]["prometheus.io/port"]
        (container,) = made["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert port == str(ports["metrics"])
        return made["metadata"]["annotations"]["prometheus.io/scrape"]

    assert annotations() == "true"
    assert annotations(annotations={"prometheus.io/scrape": "false"}) == "false"


def test_pods_are_not_root_and_can_change_nothing_but_their_volumes() -> None:
    pod = pod_of(objects()["StatefulSet", "c-b"])
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def test_a_broker_serves_drpc_on_the_ports_that_pod_and_service_name(tmp_path: Path) -> None:
    made = objects()
    (container,) = pod_of(made["StatefulSet", "c-b"])["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert len(set(ports.values())) == len(ports)
    found = {entry.name: entry.config for entry in loaded(tmp_path, made).listeners.entries}
    assert found.keys() == {"clients", "replicas", "clients_drpc", "replicas_drpc"}
    host = "$(POD_NAME).c-brokers.logs.svc"
    for name, port in (("clients_drpc", "client-drpc"), ("replicas_drpc", "replica-drpc")):
        assert (found[name].host, found[name].port) == ("0.0.0.0", ports[port])
        assert (found[name].advertised_host, found[name].advertised_port) == (host, 0)
    named = {port["name"] for port in made["Service", "c-brokers"]["spec"]["ports"]}
    assert named == set(ports)
    (first,) = made["Service", "c-bootstrap"]["spec"]["ports"]
    assert first["name"] == "client"


@pytest.mark.parametrize(
    ("side", "port", "name"),
    [
        ("clientsDrpc", "client-drpc", "clients_drpc"),
        ("replicasDrpc", "replica-drpc", "replicas_drpc"),
    ],
)
def test_drpc_is_switched_off_for_a_side(side: str, port: str, name: str, tmp_path: Path) -> None:
    made = objects(listeners={side: {"enabled": False}})
    entries = [entry.name for entry in loaded(tmp_path, made).listeners.entries]
    assert name not in entries
    assert len(entries) == 3
    for document in made.values():
        assert f"'{port}'" not in str(document)


def test_kafkas_clients_in_pods_begin_at_the_bootstrap_service_and_are_told_pods(
    tmp_path: Path,
) -> None:
    made = objects(listeners={"kafka": {"enabled": True, "namespace": "shop"}})
    (container,) = pod_of(made["StatefulSet", "c-b"])["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert len(set(ports.values())) == len(ports)
    entries = {entry.name: entry.config for entry in loaded(tmp_path, made).listeners.entries}
    listener = entries["clients_kafka"]
    assert isinstance(listener, KafkaListenerConfig)
    assert (listener.host, listener.port) == ("0.0.0.0", ports["client-kafka"])
    assert (listener.advertised_host, listener.advertised_port) == (
        "$(POD_NAME).c-brokers.logs.svc",
        0,
    )
    assert listener.namespace == "shop"
    named = {port["name"] for port in made["Service", "c-brokers"]["spec"]["ports"]}
    assert named == set(ports)
    first = made["Service", "c-bootstrap"]["spec"]["ports"]
    assert [(port["name"], port["port"], port["targetPort"]) for port in first] == [
        ("client", 7092, 7092),
        ("client-kafka", 9092, 9092),
    ]


def test_kafkas_clients_are_served_only_where_the_cluster_says_so() -> None:
    outside = {"outside": {"type": "NodePort"}}
    for document in [*objects().values(), *objects(listeners=outside).values()]:
        assert "kafka" not in str(document).lower()


@pytest.mark.parametrize(
    "spec",
    [
        {"version": "0.2.0"},
        {"listeners": {"clientsDrpc": {"enabled": False}, "replicasDrpc": {"enabled": False}}},
    ],
)
def test_brokers_without_drpc_are_not_restarted_by_an_operator_that_knows_it(
    spec: dict[str, Any],
) -> None:
    for document in objects(**spec).values():
        assert "drpc" not in str(document).lower()


def test_a_guarded_metrics_page_speaks_tls_and_asks_for_the_token_of_its_secret(
    tmp_path: Path,
) -> None:
    """G5."""
    made = objects(tls={}, metricsPage={"tokenSecret": "prometheus"})
    metrics = loaded(tmp_path, made).metrics
    assert metrics.tls_certificate_file == "/etc/millrace-tls/$(POD_NAME).crt"
    assert metrics.tls_key_file == "/etc/millrace-tls/$(POD_NAME).key"
    assert metrics.token_file == "/etc/millrace-metrics/token"
    template = made["StatefulSet", "c-b"]["spec"]["template"]
    assert template["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    (volume,) = (each for each in template["spec"]["volumes"] if each["name"] == "metrics-token")
    assert volume["secret"]["secretName"] == "prometheus"
    (container,) = template["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {
            "path": "/ready",
            "port": METRICS_PORT,
            "scheme": "HTTPS",
        }


def test_the_metrics_page_is_in_plain_text_while_brokers_are_not_there_yet() -> None:
    """On its way to TLS a Cluster has brokers without (G4)."""
    made = objects(metricsPage={"tokenSecret": "prometheus"})
    template = made["StatefulSet", "c-b"]["spec"]["template"]
    assert "prometheus.io/scheme" not in template["metadata"]["annotations"]
    assert "HTTPS" not in str(template)
    assert "metrics-token" not in str(template)


def test_a_broker_with_tls_takes_its_files_and_is_probed_by_its_page(tmp_path: Path) -> None:
    """G5."""
    outside = {"outside": {"type": "NodePort"}}
    made = objects(tls={}, access={}, listeners=outside)
    config = loaded(tmp_path, made)
    assert config.access.kubernetes
    for entry in config.listeners.entries:
        files = entry.config.tls_certificate_file, entry.config.tls_key_file
        assert files == ("/etc/millrace-tls/$(POD_NAME).crt", "/etc/millrace-tls/$(POD_NAME).key")
        is_of_brokers = entry.name.startswith("replicas")
        trusted = "/etc/millrace-tls/ca.crt" if is_of_brokers else ""
        assert entry.config.tls_client_ca_file == trusted
    pod = pod_of(made["StatefulSet", "c-b"])
    (container,) = pod["containers"]
    assert {"name": "broker-tls", "mountPath": "/etc/millrace-tls", "readOnly": True} in container[
        "volumeMounts"
    ]
    (volume,) = (volume for volume in pod["volumes"] if volume["name"] == "broker-tls")
    assert volume["secret"]["secretName"] == "c-b-tls"
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/ready", "port": METRICS_PORT}


def test_a_cluster_without_tls_is_as_it_was() -> None:
    for document in objects().values():
        assert "tls" not in str(document).lower()
        assert "/ready" not in str(document)


def test_no_broker_may_be_evicted_unless_that_was_decided() -> None:
    assert objects()["PodDisruptionBudget", "c"]["spec"]["maxUnavailable"] == 0
    decided = Decided(image="millrace:1", may_be_disrupted=True)
    budget = objects(decided=decided)["PodDisruptionBudget", "c"]
    assert budget["spec"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("ConfigMap", {"configMap": {"name": "company"}}),
        ("Secret", {"secret": {"secretName": "company"}}),
    ],
)
def test_clients_outside_show_a_certificate_where_a_cluster_has_their_authorities(
    tmp_path: Path, kind: str, source: dict[str, dict[str, Any]]
) -> None:
    """G6: at a listener of their own, beside that of pods with tokens."""
    reference = {"kind": kind, "name": "company", "key": "clients.crt"}
    outside = {"type": "NodePort", "clientsCA": reference}
    made = objects(tls={}, access={}, listeners={"outside": outside, "outsideDrpc": {}})
    for entry in loaded(tmp_path, made).listeners.entries:
        asks = {"outside": "clients-ca", "outside_drpc": "clients-ca"}.get(entry.name, "")
        asks = {"replicas": "tls", "replicas_drpc": "tls"}.get(entry.name, asks)
        trusted = f"/etc/millrace-{asks}/ca.crt" if asks else ""
        assert entry.config.tls_client_ca_file == trusted, entry.name
    (found,) = [
        volume
        for volume in pod_of(made["StatefulSet", "c-b"])["volumes"]
        if volume["name"] == "clients-ca"
    ]
    ((of, named),) = source.items()
    items = [{"key": "clients.crt", "path": "ca.crt"}]
    assert found == {"name": "clients-ca", of: {**named, "items": items}}
    assert {"name": "clients-ca", "mountPath": "/etc/millrace-clients-ca", "readOnly": True} in (
        made_mounts(made)
    )


def test_brokers_may_touch_the_objects_of_their_own_cluster_only() -> None:
    for rule in objects()["Role", "c-broker"]["rules"]:
        assert rule["verbs"] == ["create"] or all(
            name == "c" or name.startswith("c-") for name in rule["resourceNames"]
        )


def test_a_pool_in_a_zone_runs_there_and_its_brokers_know() -> None:
    made = objects(pools=[{**POOL, "zone": "a"}])
    pod = pod_of(made["StatefulSet", "c-b"])
    assert pod["nodeSelector"] == {"topology.kubernetes.io/zone": "a"}
    assert tomllib.loads(made["ConfigMap", "c-b"]["data"]["broker.toml"])["node"]["rack"] == "a"
    assert "initContainers" not in pod


def test_brokers_of_a_pool_without_a_zone_wait_until_they_are_told_their_node_s(
    tmp_path: Path,
) -> None:
    pod = pod_of(objects()["StatefulSet", "c-b"])
    (waiting,), (broker,) = pod["initContainers"], pod["containers"]
    assert waiting["securityContext"] == broker["securityContext"]
    told = tmp_path / "node"
    command = [part.replace("/etc/millrace-placed", str(tmp_path)) for part in waiting["command"]]
    with subprocess.Popen(command) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
        told.write_text("node-1")
        assert process.wait(timeout=10) == 0
    (rack,) = (
        variable for variable in broker["env"] if variable["name"] == "MILLRACE_BROKER__NODE__RACK"
    )
    path = "metadata.annotations['millrace.dev/zone']"
    assert rack["valueFrom"] == {"fieldRef": {"fieldPath": path}}
    settings = tmp_path / "broker.toml"
    settings.write_text(objects()["ConfigMap", "c-b"]["data"]["broker.toml"])
    for zone in ("b", ""):
        assert broker_config.load(settings, {**INSECURE, rack["name"]: zone}).node.rack == zone


def test_volumes_stay_unless_the_cluster_says_that_they_go() -> None:
    def retention(**spec: Any) -> str:
        spec_ = objects(**spec)["StatefulSet", "c-b"]["spec"]
        found: str = spec_["persistentVolumeClaimRetentionPolicy"]["whenDeleted"]
        return found

    assert retention() == "Retain"
    assert retention(volumeDeletion="Delete") == "Delete"


@pytest.mark.parametrize(
    ("own", "release", "image"),
    [
        ("millrace", "0.2.0", "millrace:0.2.0"),
        ("millrace:0.1.0", "0.2.0", "millrace:0.2.0"),
        ("registry:5000/team/millrace", "0.2.0", "registry:5000/team/millrace:0.2.0"),
        ("registry:5000/millrace:0.1.0@sha256:12ab", "0.2.0", "registry:5000/millrace:0.2.0"),
    ],
)
def test_a_release_is_a_tag_of_the_operators_own_image(own: str, release: str, image: str) -> None:
    found = objects(decided=Decided(image=own), version=release)
    (container,) = pod_of(found["StatefulSet", "c-b"])["containers"]
    assert container["image"] == image
    assert version_of(image) == release


def test_what_an_image_is_told_by_without_a_tag() -> None:
    assert version_of("registry:5000/millrace") == "latest"
    assert version_of("millrace:0.1.0@sha256:12ab") == "sha256:12ab"


def test_a_broker_accepts_the_older_copy_of_its_volume_that_its_pod_s_annotation_names(
    tmp_path: Path,
) -> None:
    made = objects()
    (container,) = pod_of(made["StatefulSet", "c-b"])["containers"]
    (variable,) = [
        found_variable["name"]
        for found_variable in container["env"]
        if "accept-older-copy" in str(found_variable)
    ]
    path = tmp_path / "broker.toml"
    path.write_text(made["ConfigMap", "c-b"]["data"]["broker.toml"])
    for annotation in ("", "17/20"):  # It is empty as long as there is none.
        loaded = broker_config.load(path, {**INSECURE, variable: annotation})
        assert loaded.node.accept_older_copy == annotation
    for annotation in ("yes", "17", "17/", "17/20/21", "-1/2", "\u0661/2"):
        with pytest.raises(InvalidConfigError, match="the two broker epochs that the refusal"):
            broker_config.load(path, {**INSECURE, variable: annotation})


def every_setting() -> dict[str, dict[str, Any]]:
    """Return a `spec.config` with all settings that there are."""
    schema: Any = cluster_definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    config = schema["properties"]["spec"]["properties"]["config"]["properties"]
    return {
        section: {
            name: settings_of(sections_of(BrokerConfig)[section])[name].default
            for name in settings["properties"]
        }
        for section, settings in config.items()
    }


@pytest.mark.parametrize("zone", [None, "a"])
def test_brokers_of_the_release_before_know_all_settings_that_they_look_at(
    zone: str | None,
) -> None:
    pools = [POOL if zone is None else {**POOL, "zone": zone}]
    made = objects(pools=pools, listeners={"outside": {"type": "NodePort"}}, config=every_setting())
    given: set[str] = set()

    def take(values: dict[str, Any], path: str = "") -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                take(value, f"{path}{name}.")
            else:
                given.add(path + name)

    take(tomllib.loads(made["ConfigMap", "c-b"]["data"]["broker.toml"]))
    (container,) = pod_of(made["StatefulSet", "c-b"])["containers"]
    for variable in container["env"]:
        if variable["name"].startswith("MILLRACE_BROKER__"):
            given.add(variable["name"].removeprefix("MILLRACE_BROKER__").lower().replace("__", "."))
    assert given <= known_to_last_release()


def test_settings_that_the_last_release_knows_are_in_broker_toml() -> None:
    lacking = {f"{section}.{name}" for section, names in LACKING_BEFORE.items() for name in names}
    assert not lacking & last_release(), "they go from `LACKING_BEFORE` after `make release`"


def test_a_broker_gets_settings_also_those_that_the_release_before_lacks(tmp_path: Path) -> None:
    config = every_setting()
    config["metrics"]["names"] = "logs.example.org"
    config["positions"]["left_topic_retention_ms"] = "3h"
    config["cluster"]["transactions_partitions"] = 32
    config["groups"]["classic_rebalance_delay_ms"] = "1s"
    config["groups"]["classic_session_timeout_ms_min"] = "2s"
    config["groups"]["classic_session_timeout_ms_max"] = "5min"
    config["groups"]["classic_group_bytes_max"] = "1MiB"
    config["groups"]["classic_partition_bytes_max"] = "3MiB"
    config["kafka"] = {
        "auto_create_topics": True,
        "requests_in_flight_max": 7,
        "fetch_session_partitions_max": 500,
        "fetch_response_bytes_max": "2MiB",
        "large_answers_bytes_max": "3MiB",
        "converted_bytes_max": "1MiB",
    }
    config["transactions"] = {
        "timeout_ms_max": "5min",
        "id_expiration_ms": "3d",
        "partition_ids_max": 20,
        "partitions_max": 30,
        "partition_participants_max": 40,
        "participants_max": 50,
        "lease_ms": "30s",
        "lease_ms_max": "1h",
    }
    made = objects(config=config)
    found = loaded(tmp_path, made)
    assert found.metrics.names == "logs.example.org"
    assert found.positions.left_topic_retention_ms == 3 * 3_600_000
    assert found.cluster.transactions_partitions == 32
    assert found.groups.classic_rebalance_delay_ms == 1000
    assert found.groups.classic_session_timeout_ms_min == 2000
    assert found.groups.classic_session_timeout_ms_max == 300_000
    assert found.groups.classic_group_bytes_max == 1 << 20
    assert found.groups.classic_partition_bytes_max == 3 << 20
    assert found.kafka == KafkaConfig(
        auto_create_topics=True,
        requests_in_flight_max=7,
        fetch_session_partitions_max=500,
        fetch_response_bytes_max=2 << 20,
        large_answers_bytes_max=3 << 20,
        converted_bytes_max=1 << 20,
    )
    assert found.transactions == TransactionsConfig(
        timeout_ms_max=300_000,
        id_expiration_ms=3 * 86_400_000,
        partition_ids_max=20,
        partitions_max=30,
        partition_participants_max=40,
        participants_max=50,
        lease_ms=30_000,
        lease_ms_max=3_600_000,
    )
    stateful_set = made["StatefulSet", "c-b"]
    (container,) = pod_of(stateful_set)["containers"]
    given = {variable["name"] for variable in container["env"]}
    for section, names in LACKING_BEFORE.items():
        for name in names:
            assert f"MILLRACE_BROKER_IF_KNOWN__{section}__{name}".upper() in given
    assert stateful_set != objects(config={})["StatefulSet", "c-b"], "another revision"
