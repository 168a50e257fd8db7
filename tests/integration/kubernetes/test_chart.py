"""The chart and the manifests made from it, and the operator's own objects: a real API server takes
them all.

It checks with `fieldValidation=Strict` and writes nothing: unknown fields, wrong types, and
whatever its own validation knows, which no schema does.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts.generate import CHART, EXPECTED, KUSTOMIZE, SPARK_JOB, helm, rendered
from dashboards.alerts import ALERTS
from dashboards.generate import FOLDER, RULES
from tests.api_server.running import CRDS, NAMESPACE, RunningApiServer
from tests.integration.kubernetes.conftest import started_api_server
from tests.integration.running_broker import wait_until

from millrace.operator.model.issued import certificate
from millrace.operator.model.objects import Decided, desired_objects
from millrace.operator.reconcile.resources import cluster_of

Document = dict[str, Any]

# A run without `make helm` builds it first.
pytestmark = pytest.mark.timeout(1200)

_CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace"}


_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_MONITORING = "monitoring.coreos.com"


@pytest.fixture(scope="module")
def api_server(api_server: RunningApiServer) -> RunningApiServer:
    """The shared one, which also knows the kinds of the Prometheus operator."""
    for path in sorted((EXPECTED.parent / "monitoring").glob("*.yaml")):
        query = "fieldManager=tests&force=true"
        where = f"{_DEFINITIONS}/{path.stem}"
        status, answer = api_server.request("PATCH", f"{where}?{query}", path.read_bytes())
        assert status in (200, 201), answer
        listed = f"/apis/{_MONITORING}/v1/{path.stem.partition('.')[0]}"
        wait_until(partial(_is_there, api_server, listed), listed)
    return api_server


def _is_there(server: RunningApiServer, path: str) -> bool:
    try:
        return server.request("GET", path)[0] == 200
    except json.JSONDecodeError:  # "404 page not found", as long as it knows no such group.
        return False


class StrictLoader(yaml.SafeLoader):
    """Refuses a key that is there twice, as kustomize does."""


def _mapping(loader: StrictLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    assert len(keys) == len(set(keys)), f"a key twice {node.start_mark}: {keys}"
    return loader.construct_mapping(node, deep=True)


StrictLoader.add_constructor("tag:yaml.org,2002:map", _mapping)


def documents(text: str) -> list[Document]:
    return [document for document in yaml.load_all(text, StrictLoader) if document]


def apply(server: RunningApiServer, document: Document) -> str:
    """Have the server say what it would do; return what it refuses."""
    group = document["apiVersion"]
    kind, metadata = document["kind"], document["metadata"]
    plural = {"NetworkPolicy": "networkpolicies"}.get(kind, f"{kind.lower()}s")
    root = f"/api/{group}" if group == "v1" else f"/apis/{group}"
    # A dry run cannot be in a namespace that another one would have made.
    where = "" if kind in _CLUSTER_WIDE else f"/namespaces/{NAMESPACE}"
    if where:
        document = {**document, "metadata": {**metadata, "namespace": NAMESPACE}}
    path = f"{root}{where}/{plural}/{metadata['name']}"
    query = "fieldManager=tests&force=true&dryRun=All&fieldValidation=Strict"
    status, answer = server.request("PATCH", f"{path}?{query}", document)
    return "" if status in (200, 201) else f"{kind} {metadata['name']}: {answer['message']}"


def refusals(server: RunningApiServer, found: Iterable[Document]) -> list[str]:
    """Return what the server refuses of these."""
    return [refused for document in found if (refused := apply(server, document))]


def of_kind(found: Iterable[Document], *kinds: str) -> Iterator[Document]:
    return (document for document in found if document["kind"] in kinds)


@pytest.mark.parametrize("name", ["default.yaml", "all.yaml"])
def test_the_api_server_takes_every_object_of_the_chart(
    api_server: RunningApiServer, name: str
) -> None:
    found = documents((EXPECTED / name).read_text())
    assert {"Deployment", "ClusterRole", "Pod"} <= {document["kind"] for document in found}
    assert refusals(api_server, found) == []


def test_the_api_server_takes_the_prometheus_that_follows_annotations(
    api_server: RunningApiServer,
) -> None:
    found = documents((CHART.parent / "prometheus.yaml").read_text())
    assert {"ConfigMap", "Deployment"} <= {document["kind"] for document in found}
    assert refusals(api_server, found) == []


@pytest.mark.nightly
def test_the_chart_has_every_definition_as_it_is_and_keeps_it() -> None:
    """With a definition all its objects go, and the records of clusters with them."""
    found = [*of_kind(documents(rendered()), "CustomResourceDefinition")]
    assert found == [yaml.safe_load(path.read_text()) for path in CRDS]
    for document in found:
        assert document["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    sample = documents((EXPECTED / "all.yaml").read_text())
    reviewers = [
        document for document in sample if document["metadata"]["name"].endswith("-reviewers")
    ]
    assert {document["kind"] for document in reviewers} == {"ClusterRole", "ClusterRoleBinding"}
    for document in reviewers:  # Without it brokers would refuse everybody.
        assert document["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    for document in sample:
        if document["apiVersion"].startswith("millrace.dev"):
            assert document["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"


def test_our_helm_knows_its_version_and_renders_for_the_kubernetes_of_today() -> None:
    assert helm("version", "--template", "{{.Version}}").stdout == "v3.19.0"
    done = helm("template", "x", str(CHART))  # It refuses a Kubernetes before the chart's.
    assert done.returncode == 0, done.stderr


def test_the_operators_prefer_two_nodes_and_a_drain_takes_one_at_a_time() -> None:
    made = {
        document["kind"]: document for document in documents(rendered("--set", "definitions=false"))
    }
    (spread,) = made["Deployment"]["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert spread["whenUnsatisfiable"] == "ScheduleAnyway", "one node is enough for both"
    budget = made["PodDisruptionBudget"]["spec"]
    assert budget["maxUnavailable"] == 1
    pods = made["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    for selector in (budget["selector"], spread["labelSelector"]):
        assert selector["matchLabels"].items() <= pods


def test_definitions_that_helm_has_installed_can_be_applied_by_the_server(
    api_server: RunningApiServer,
) -> None:
    """As with `kubectl apply --server-side -k`, without `--force-conflicts`."""
    where = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for path in CRDS:
        wanted = yaml.safe_load(path.read_text())
        name = wanted["metadata"]["name"]
        found = api_server.request("GET", f"{where}/{name}")[1]
        found["spec"] = {**found["spec"], **wanted["spec"]}
        status, answer = api_server.request("PUT", f"{where}/{name}?fieldManager=helm", found)
        assert status == 200, answer
        applied = f"{where}/{name}?fieldManager=kubectl&force=false"
        status, answer = api_server.request("PATCH", applied, wanted)
        assert status == 200, answer


@pytest.mark.parametrize("chart", [CHART, SPARK_JOB], ids=lambda chart: chart.name)
def test_helm_finds_nothing_to_say_of_the_chart(chart: Path) -> None:
    done = helm("lint", str(chart), "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("replicas=9", "at '/replicas': maximum: got 9, want 5"),
        ("replicas=two", "at '/replicas': got string, want integer"),
        ("replica=3", "additional properties 'replica' not allowed"),
        ("image.repository=", "at '/image/repository': minLength"),
        ("image.tag=12", "at '/image/tag': got number, want string"),
        ("image.pullPolicy=Sometimes", "'Always', 'IfNotPresent', 'Never'"),
        ("imagePullSecrets=login", "at '/imagePullSecrets': got string, want array"),
        ("definitions=maybe", "at '/definitions': got string, want boolean"),
        ("sample.size=", "at '/sample/size': minLength"),
        ("monitoring.podMonitors.interval=soon", "'soon' does not match pattern"),
        ("monitoring.runbooks=docs", "at '/monitoring/runbooks': 'docs' does not match pattern"),
        ("webPage.enabled=maybe", "at '/webPage/enabled': got string, want boolean"),
        ("webPage.port=80", "at '/webPage': additional properties 'port' not allowed"),
    ],
)
def test_a_wrong_value_is_refused_by_name(value: str, said: str) -> None:
    with pytest.raises(ValueError, match="values don't meet the specifications") as refused:
        rendered("--set", value)
    assert said in str(refused.value)


def test_a_sample_before_its_definitions_says_what_to_do() -> None:
    done = helm("template", "x", str(CHART), "--set", "sample.enabled=true")
    assert "install without it, then run helm upgrade x" in done.stderr


def test_the_sample_has_an_account_that_may_write_and_read_its_topic() -> None:
    """A new Cluster has access control: without rights nobody could try it."""
    found = {
        (document["kind"], document["metadata"]["name"]): document
        for document in documents(rendered("--set", "definitions=false,sample.enabled=true"))
    }
    own = {
        (document["kind"], document["metadata"]["name"]): document
        for document in documents((CHART.parent / "sample.yaml").read_text())
    }
    assert found["Cluster", "sample"]["spec"].keys() == own["Cluster", "logs"]["spec"].keys()
    role, binding = found["Role", "orders"], found["RoleBinding", "orders"]
    assert role["rules"] == own["Role", "orders"]["rules"]
    assert binding["roleRef"] == own["RoleBinding", "orders"]["roleRef"]
    (subject,) = binding["subjects"]
    where = "millrace-system"
    assert subject == {"kind": "ServiceAccount", "name": "orders", "namespace": where}
    for kind in ("ServiceAccount", "Role", "RoleBinding", "Topic"):
        metadata = found[kind, "orders"]["metadata"]
        assert metadata["namespace"] == where
        assert metadata["annotations"] == {"helm.sh/resource-policy": "keep"}


def monitoring(*values: str) -> list[Document]:
    """Return the release's objects for Prometheus and Grafana."""
    chosen = [part for value in values for part in ("--set", f"monitoring.{value}")]
    return [
        document
        for document in documents(rendered("--set", "definitions=false", *chosen))
        if _MONITORING in document["apiVersion"] or document["kind"] == "ConfigMap"
    ]


def test_every_part_for_prometheus_and_grafana_has_a_switch() -> None:
    assert monitoring() == []
    kinds = {
        part: {document["kind"] for document in monitoring(f"{part}.enabled=true")}
        for part in ("podMonitors", "rules", "dashboards")
    }
    assert kinds == {
        "podMonitors": {"PodMonitor"},
        "rules": {"PrometheusRule"},
        "dashboards": {"ConfigMap"},
    }


def test_a_cluster_whose_page_asks_for_a_token_has_a_pod_monitor_that_shows_it() -> None:
    where = "podMonitors.guarded[0]"
    found = monitoring(
        *("podMonitors.enabled=true", f"{where}.namespace=shop", f"{where}.cluster=logs"),
        f"{where}.tokenSecret=prometheus",
    )
    (monitor,) = (each for each in found if each["metadata"]["namespace"] == "shop")
    assert monitor["spec"]["selector"]["matchLabels"]["millrace.dev/cluster"] == "logs"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "ca": {"configMap": {"name": "logs-ca", "key": "ca.crt"}},
        "serverName": "logs-bootstrap.shop.svc",
    }
    assert endpoint["authorization"] == {"credentials": {"name": "prometheus", "key": "token"}}


def test_the_operators_page_speaks_tls_and_asks_for_a_token_if_that_is_wanted(
    api_server: RunningApiServer,
) -> None:
    chosen = [
        "monitoring.page.tlsSecret=operator-page,monitoring.page.tokenSecret=prometheus",
        "monitoring.page.serverName=operator.example,monitoring.podMonitors.enabled=true",
    ]
    found = documents(rendered(*(part for value in chosen for part in ("--set", value))))
    (deployment,) = of_kind(found, "Deployment")
    pod = deployment["spec"]["template"]
    assert pod["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    (container,) = pod["spec"]["containers"]
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTPS"
    folders = {each["mountPath"] for each in container["volumeMounts"]}
    files = [each["value"] for each in container["env"] if each["name"].endswith("_FILE")]
    assert len(files) == 3
    assert {str(Path(file).parent) for file in files} <= folders
    (monitor,) = (
        each
        for each in of_kind(found, "PodMonitor")
        if each["metadata"]["name"] == "millrace-operator"
    )
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": "operator-page", "key": "ca.crt"}},
        "serverName": "operator.example",
    }
    assert endpoint["authorization"] == {"credentials": {"name": "prometheus", "key": "token"}}
    assert refusals(api_server, [deployment, monitor]) == []


def test_dashboards_come_as_they_are_with_the_label_of_grafanas_sidecar() -> None:
    found = monitoring("dashboards.enabled=true", "dashboards.namespace=grafana")
    assert {document["metadata"]["namespace"] for document in found} == {"grafana"}
    assert {document["metadata"]["labels"]["grafana_dashboard"] for document in found} == {"1"}
    held = {name: text for document in found for name, text in document["data"].items()}
    assert held == {path.name: path.read_text() for path in FOLDER.glob("*.json")}
    (link,) = {
        variable["query"]
        for document in monitoring("dashboards.enabled=true", "runbooks=https://example.com/r")
        for text in document["data"].values()
        for variable in json.loads(text)["templating"]["list"]
        if variable["name"] == "runbooks"
    }
    assert link == "https://example.com/r"


def test_rules_come_as_they_are_and_link_to_where_runbooks_are_served() -> None:
    (found,) = monitoring("rules.enabled=true")
    assert found["spec"] == yaml.safe_load(RULES.read_text())
    (found,) = monitoring("rules.enabled=true", "runbooks=https://example.com/r")
    links = [
        rule["annotations"]["runbook_url"]
        for group in found["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert len(links) == len(ALERTS)
    assert all(link.startswith("https://example.com/r/") for link in links)


def test_kustomize_gives_what_the_chart_does(api_server: RunningApiServer) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not on this machine")
    done = subprocess.run(
        [kubectl, "kustomize", str(KUSTOMIZE)], capture_output=True, text=True, check=True
    )
    by_kustomize = documents(done.stdout)
    by_helm = documents(rendered("--no-hooks"))
    ours = {_key(document): document for document in by_kustomize}
    for document in by_helm:
        text = yaml.safe_dump(document).replace("managed-by: Helm", "managed-by: kustomize")
        assert ours.pop(_key(document)) == yaml.safe_load(text)
    assert [document["kind"] for document in ours.values()] == ["Namespace"]
    assert refusals(api_server, by_kustomize) == []


def _key(document: Document) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


MINIMAL: Document = {"pools": [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}]}
_SELECTOR: Document = {
    "matchLabels": {"a": "b"},
    "matchExpressions": [{"key": "c", "operator": "Exists"}],
}
_TERM: Document = {"topologyKey": "kubernetes.io/hostname", "labelSelector": _SELECTOR}
_NODES: Document = {
    "matchExpressions": [{"key": "disk", "operator": "In", "values": ["nvme"]}],
    "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}],
}
_PODS: Document = {
    "requiredDuringSchedulingIgnoredDuringExecution": [
        {**_TERM, "namespaces": ["x"], "matchLabelKeys": ["e"], "mismatchLabelKeys": ["f"]}
    ],
    "preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 3, "podAffinityTerm": {**_TERM, "namespaceSelector": _SELECTOR}}
    ],
}
FULL: Document = {
    "image": "registry.example.org:5000/team/millrace@sha256:" + "0" * 64,
    "imagePullPolicy": "Always",
    "imagePullSecrets": ["registry-login"],
    "pools": [
        {
            "name": "fast-1",
            "replicas": 5,
            "zone": "eu-west-1a",
            "volumes": [
                {"name": "d0", "size": "100Gi", "media": "ssd", "storageClassName": "local-ssd"},
                {"name": "d1", "size": 1073741824, "media": "hdd"},
            ],
            "resources": {
                "requests": {"cpu": "500m", "memory": "1Gi", "ephemeral-storage": "1G"},
                "limits": {"cpu": 2, "memory": "2Gi"},
            },
            "template": {
                "labels": {"team": "logs", "app.kubernetes.io/part-of": "shop"},
                "annotations": {"example.org/note": "any text, ü\\n"},
                "nodeSelector": {"kubernetes.io/os": "linux"},
                "tolerations": [
                    {"operator": "Exists"},
                    {"key": "dedicated", "value": "logs", "effect": "NoSchedule"},
                    {
                        "key": "node.kubernetes.io/unreachable",
                        "operator": "Exists",
                        "effect": "NoExecute",
                        "tolerationSeconds": 60,
                    },
                ],
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [_NODES]
                        },
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 1, "preference": _NODES}
                        ],
                    },
                    "podAffinity": _PODS,
                    "podAntiAffinity": _PODS,
                },
                "topologySpreadConstraints": [
                    {
                        "maxSkew": 1,
                        "topologyKey": "topology.kubernetes.io/zone",
                        "whenUnsatisfiable": "DoNotSchedule",
                        "labelSelector": _SELECTOR,
                        "minDomains": 2,
                        "matchLabelKeys": ["pod-template-hash"],
                        "nodeAffinityPolicy": "Honor",
                        "nodeTaintsPolicy": "Ignore",
                    }
                ],
                "priorityClassName": "system-cluster-critical",
                "runtimeClassName": "gvisor",
            },
        },
        {"name": "b", "replicas": 0, "volumes": [{"name": "data", "size": "1e9"}]},
    ],
    "config": {
        "cluster": {"default_partitions": 6},
        "storage": {"slow_flush_ms": "3s", "trash_delay_ms": 0},
        "positions": {"retention_ms": 86_400_000},
    },
    "listeners": {
        "outside": {
            "type": "NodePort",
            "nodeAddress": "ExternalIP",
            "externalTrafficPolicy": "Local",
            "annotations": {"example.org/note": "all"},
            "bootstrap": {"nodePort": 30_001},
            "brokers": [{"name": f"{'c' * 30}-b-0", "advertisedHost": "b0.example.org"}],
        },
        "clientsDrpc": {"enabled": True},
        "outsideDrpc": {"brokers": [{"name": f"{'c' * 30}-b-0", "nodePort": 30_003}]},
        "replicasDrpc": {"enabled": True},
        "kafka": {"enabled": True, "namespace": "n" * 63},
        "outsideKafka": {
            "namespace": "n",
            "bootstrap": {"nodePort": 30_004},
            "brokers": [{"name": f"{'c' * 30}-b-0", "nodePort": 30_005}],
        },
    },
    "allowedTopics": {"namespaces": {"from": "Selector", "selector": _SELECTOR}},
    "volumeDeletion": "Delete",
    "lostVolumes": "Replace",
    "paused": False,
}


@pytest.mark.parametrize("spec", [MINIMAL, FULL], ids=["minimal", "full"])
def test_the_api_server_takes_a_cluster_and_every_object_that_it_needs(
    api_server: RunningApiServer, spec: Document
) -> None:
    """Names are as long as they can be, so that those of objects are."""
    pools = [{**spec["pools"][0], "name": "p" * 20}, *spec["pools"][1:]]
    resource: Document = {
        "apiVersion": "millrace.dev/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": "c" * 30, "namespace": NAMESPACE},
        "spec": {**spec, "pools": pools},
    }
    assert apply(api_server, resource) == ""
    taken = {**resource["metadata"], "uid": "f3b5c9d0-0000-4000-8000-000000000000", "generation": 1}
    made = desired_objects(
        cluster_of({**resource, "metadata": taken}), Decided(image="millrace:0.1.0")
    )
    assert refusals(api_server, made) == []
    kinds = {document["kind"] for document in made}
    assert {"StatefulSet", "Service", "Role", "NetworkPolicy", "PodDisruptionBudget"} <= kinds


@pytest.mark.parametrize(
    "config",
    [
        {"retention.ms": 604_800_000, "segment.ms": 3_600_000},
        {"retention.ms": "7d", "segment.bytes": "64MiB", "retention.bytes": -1},
        {"retention.ms": -1, "min.insync.replicas": -1, "durability": "replicated"},
        {"message.timestamp.before.max.ms": 2**53, "unclean.leader.election.enable": True},
    ],
)
def test_the_api_server_takes_settings_of_topics(
    api_server: RunningApiServer, config: Document
) -> None:
    resource: Document = {
        "apiVersion": "millrace.dev/v1beta1",
        "kind": "Topic",
        "metadata": {"name": "t", "namespace": NAMESPACE},
        "spec": {"clusterRef": {"name": "c"}, "partitions": 1, "config": config},
    }
    assert apply(api_server, resource) == ""


def test_the_operator_may_do_to_its_objects_what_it_does() -> None:
    """The chart's ClusterRole names every kind that a Cluster needs."""
    (role,) = (
        document
        for document in documents((EXPECTED / "default.yaml").read_text())
        if document["kind"] == "ClusterRole" and document["metadata"]["name"] == "millrace-operator"
    )
    allowed = {
        (group, resource)
        for rule in role["rules"]
        if {"get", "create", "patch"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    cluster = cluster_of(
        {
            "metadata": {"name": "c", "namespace": "n", "uid": "u", "generation": 1},
            "spec": {**MINIMAL, "tls": {"issuerRef": {"name": "i"}}},
        }
    )
    made = [*desired_objects(cluster, Decided(image="millrace")), certificate(cluster, ())]
    for document in made:
        group = document["apiVersion"].rpartition("/")[0]
        plural = {"NetworkPolicy": "networkpolicies"}.get(
            document["kind"], document["kind"].lower() + "s"
        )
        assert (group, plural) in allowed, document["kind"]


@pytest.mark.nightly
def test_helm_uninstall_leaves_definitions_and_clusters(tmp_path: Path) -> None:
    """And a release that is installed again takes them up."""
    with started_api_server(tmp_path) as server:
        server.delete_definitions()  # Helm brings them.
        config = tmp_path / "kubeconfig"
        config.write_text(server.kubeconfig("admin"))

        def release(*arguments: str) -> str:
            done = helm(*arguments, f"--kubeconfig={config}", f"--namespace={NAMESPACE}")
            assert done.returncode == 0, done.stderr
            return done.stdout

        def status(path: str) -> int:
            return server.request("GET", path)[0]

        deployment = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/millrace-operator"
        clusters = f"/apis/millrace.dev/v1beta1/namespaces/{NAMESPACE}/clusters"
        release("install", "millrace", str(CHART))
        assert status(deployment) == 200
        # As NOTES say: a sample once the definitions are there.
        told = release("upgrade", "millrace", str(CHART), "--set", "sample.enabled=true")
        topic = "orders" if NAMESPACE == "default" else f"{NAMESPACE}/orders"
        assert f"--namespace {NAMESPACE} --account orders sample produce {topic}\n" in told
        assert status(f"{clusters}/sample") == 200

        release("uninstall", "millrace")
        assert status(deployment) == 404
        assert status(f"{clusters}/sample") == 200
        release("install", "millrace", str(CHART), "--set", "sample.enabled=true")
        assert (status(deployment), status(f"{clusters}/sample")) == (200, 200)
