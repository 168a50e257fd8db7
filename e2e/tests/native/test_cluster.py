"""The cluster itself: the properties on which other tests rely."""

import json
import sys
import time
from collections.abc import Callable

import pytest
from e2e.cluster.commands import CommandError, wait_until
from e2e.cluster.images import PRODUCT
from e2e.cluster.native import NativeCluster
from e2e.cluster.network import API_SERVICE
from e2e.cluster.node import ZONES
from e2e.cluster.volumes import size_bytes

pytestmark = pytest.mark.timeout(600)

_CONNECT = f"import socket; socket.create_connection(('{API_SERVICE}', 443), 2)"

_CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {
        "storageClassName": "local-ssd",
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "300Mi"}},
    },
}

RunPod = Callable[..., None]
InPod = Callable[..., str]


@pytest.fixture
def run_pod(cluster: NativeCluster, namespace: str) -> RunPod:
    """Starts a pod of the product's image, with a volume if it has to; returns once it runs."""

    def run(name: str, *, node: str = "", has_volume: bool = False) -> None:
        container: dict[str, object] = {
            "name": "main",
            "image": PRODUCT,
            "imagePullPolicy": "Never",
            "command": ["sleep", "infinity"],
        }
        spec: dict[str, object] = {
            "containers": [container],
            "securityContext": {"runAsNonRoot": True, "fsGroup": 65532},
            "terminationGracePeriodSeconds": 0,
        }
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        if has_volume:
            container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
            _create(cluster, namespace, _CLAIM)
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        _create(cluster, namespace, pod)
        ready = ("--for=condition=Ready", "--timeout=120s")
        cluster.kubectl("wait", f"--namespace={namespace}", *ready, f"pod/{name}")

    return run


@pytest.fixture
def in_pod(cluster: NativeCluster, namespace: str) -> InPod:
    """Runs a command in a pod of the test's namespace."""

    def run(pod: str, *command: str) -> str:
        return cluster.kubectl.exec(pod, *command, namespace=namespace)

    return run


def test_three_nodes_are_ready_in_three_zones(cluster: NativeCluster) -> None:
    nodes = cluster.kubectl.get("nodes")["items"]
    assert [node["metadata"]["labels"]["topology.kubernetes.io/zone"] for node in nodes] == [*ZONES]
    assert [_is_ready(node) for node in nodes] == [True] * 3


def test_a_cluster_that_runs_goes_on_when_it_is_started_once_more(cluster: NativeCluster) -> None:
    """kube-proxy ends when its settings file is written again, even with the same content."""
    settings = [node.machine.folder / "kube-proxy.json" for node in cluster.nodes]
    before = [path.stat().st_mtime_ns for path in settings]
    cluster.up()
    assert [path.stat().st_mtime_ns for path in settings] == before
    assert all(node.machine.is_running("kube-proxy") for node in cluster.nodes)


def test_a_pod_runs_the_command_line_without_root(run_pod: RunPod, in_pod: InPod) -> None:
    run_pod("tool")
    assert in_pod("tool", "millrace", "--version").startswith("millrace, version ")
    assert in_pod("tool", "id", "-u").strip() == "65532"


def test_pods_of_two_nodes_reach_each_other_by_name_through_a_service(
    cluster: NativeCluster, namespace: str, run_pod: RunPod, in_pod: InPod
) -> None:
    run_pod("server", node="node1")
    for node in ("node1", "node2"):
        run_pod(f"client-{node}", node=node)
    _create(
        cluster,
        namespace,
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "greeting"},
            "spec": {"selector": {"role": "server"}, "ports": [{"port": 80, "targetPort": 8000}]},
        },
    )
    cluster.kubectl("label", f"--namespace={namespace}", "pod/server", "role=server")
    in_pod(
        "server", "sh", "-c", "cd /tmp; echo hello >greeting; python3 -m http.server >log 2>&1 &"
    )
    url = f"http://greeting.{namespace}/greeting"
    read = f"from urllib.request import urlopen; print(urlopen('{url}', timeout=2).read())"

    def is_read_from(node: str) -> bool:
        return _says(in_pod, f"client-{node}", "hello", "python3", "-c", read)

    wait_until(lambda: is_read_from("node1"), "a pod of the same node reads", 30.0)
    wait_until(lambda: is_read_from("node2"), "a pod of another node reads", 30.0)


def test_a_volume_is_full_at_its_size_and_grows_with_its_claim(
    cluster: NativeCluster, namespace: str, run_pod: RunPod, in_pod: InPod
) -> None:
    run_pod("tool", has_volume=True)
    write = ("dd", "if=/dev/zero", "of=/data/file", "bs=1M", "count=400")
    with pytest.raises(CommandError, match="No space left on device"):
        in_pod("tool", *write)
    wanted = {"spec": {"resources": {"requests": {"storage": "600Mi"}}}}
    merge = ("--type=merge", "--patch", json.dumps(wanted))
    cluster.kubectl("patch", f"--namespace={namespace}", "pvc/data", *merge)

    def has_grown() -> bool:
        claim = cluster.kubectl.get("pvc/data", f"--namespace={namespace}")
        return bool(claim["status"]["capacity"]["storage"] == "600Mi")

    wait_until(has_grown, "the volume grows", 30.0)
    in_pod("tool", *write)


def test_a_volume_goes_with_its_claim(
    cluster: NativeCluster, namespace: str, run_pod: RunPod
) -> None:
    run_pod("tool", has_volume=True)
    node = cluster.node_of("tool", namespace)
    claim = cluster.kubectl.get("pvc/data", f"--namespace={namespace}")
    volume = claim["spec"]["volumeName"]
    assert volume in node.volumes()
    cluster.kubectl("delete", f"--namespace={namespace}", "pod/tool", "pvc/data")
    wait_until(lambda: volume not in node.volumes(), "the volume is gone", 30.0)
    with pytest.raises(CommandError, match="not found"):
        cluster.kubectl.get("pv", volume)


def test_a_wiped_volume_is_empty(
    cluster: NativeCluster, namespace: str, run_pod: RunPod, in_pod: InPod
) -> None:
    run_pod("tool", has_volume=True)
    in_pod("tool", "touch", "/data/file")
    cluster.wipe_volume("data", namespace)
    assert in_pod("tool", "ls", "-A", "/data") == ""


def test_a_node_whose_power_was_cut_is_lost_and_comes_back_with_its_volumes(
    cluster: NativeCluster, namespace: str, run_pod: RunPod, in_pod: InPod
) -> None:
    run_pod("tool", has_volume=True)
    in_pod("tool", "sh", "-c", "echo hello >/data/greeting; sync")
    node = cluster.node_of("tool", namespace)
    node.power_off()
    try:
        lost = ("--for=condition=Ready=Unknown", "--timeout=120s")
        cluster.kubectl("wait", *lost, f"node/{node.name}")
    finally:
        node.start()
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=120s", f"node/{node.name}")
    wait_until(
        lambda: _says(in_pod, "tool", "hello", "cat", "/data/greeting"), "the pod is back", 120.0
    )


def test_a_node_without_its_cable_is_not_reached_and_goes_on(
    cluster: NativeCluster, run_pod: RunPod, in_pod: InPod, namespace: str
) -> None:
    run_pod("tool")
    node = cluster.node_of("tool", namespace)
    connect = f"import socket; socket.create_connection(('{node.address}', 10250), 2)"
    cluster.run_outside(sys.executable, "-c", connect)
    node.set_link(is_up=False)
    try:
        with pytest.raises(CommandError, match=r"timed out|No route to host"):
            cluster.run_outside(sys.executable, "-c", connect)
        assert node.machine.is_running("kubelet")
    finally:
        node.set_link(is_up=True)
    wait_until(lambda: _says(in_pod, "tool", "here", "echo", "here"), "it is back", 60.0)


def test_pods_lose_the_api_server_while_it_is_away_and_kubectl_does_not(
    cluster: NativeCluster, run_pod: RunPod, in_pod: InPod
) -> None:
    run_pod("tool")
    node_pod = ("tool", "python3", "-c", _CONNECT)
    in_pod(*node_pod)
    with cluster.api_server_away():
        with pytest.raises(CommandError, match="timed out"):
            in_pod(*node_pod)
        assert cluster.kubectl.is_ready()
    in_pod(*node_pod)


def test_a_slow_api_server_answers_late(cluster: NativeCluster) -> None:
    with cluster.api_server_slow(stopped_s=3.0):
        slowest = 0.0
        deadline = time.monotonic() + 60.0
        while slowest < 2.0 and time.monotonic() < deadline:
            begun = time.monotonic()
            cluster.kubectl("get", "nodes")
            slowest = max(slowest, time.monotonic() - begun)
    assert slowest >= 2.0


def test_the_api_server_is_back_after_it_was_killed(cluster: NativeCluster) -> None:
    before = cluster.kubectl.get("nodes")["items"]
    cluster.restart_api_server()
    after = cluster.kubectl.get("nodes")["items"]
    assert [pod["metadata"]["uid"] for pod in after] == [pod["metadata"]["uid"] for pod in before]


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [("1Gi", 1 << 30), ("1.5Gi", 3 << 29), ("500M", 500_000_000), ("300Mi", 300 << 20), ("7", 7)],
)
def test_quantities_are_bytes(quantity: str, expected: int) -> None:
    assert size_bytes(quantity) == expected


def _create(cluster: NativeCluster, namespace: str, document: object) -> None:
    create = ("create", f"--namespace={namespace}", "--filename=-")
    cluster.kubectl(*create, input=json.dumps(document))


def _is_ready(node: dict[str, object]) -> bool:
    status = node["status"]
    assert isinstance(status, dict)
    return any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in status["conditions"]
    )


def _says(in_pod: InPod, pod: str, text: str, *command: str) -> bool:
    try:
        return text in in_pod(pod, *command)
    except CommandError:
        return False
