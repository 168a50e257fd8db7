"""An older volume is put back under a broker, and a person accepts it by the command that it says.

Only here does a kubelet read the annotation of a pod again, for each start of its container.
"""

import re
from typing import Any

import pytest
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.providers import Cluster, ExistingCluster
from e2e.installed import Namespace, until

pytestmark = pytest.mark.timeout(900)

BROKER = "logs-brokers-2"
HELPER = "copies"
_BACKOFF_S = 330
"""Kubernetes starts a container that fails again after five minutes at the most."""


def mount_beside(namespace: Namespace, broker: dict[str, Any]) -> None:
    """Start a pod on a broker's node that has its volume, too."""
    volume = {"name": "v", "persistentVolumeClaim": {"claimName": f"data-{BROKER}"}}
    container = {
        "name": "copies",
        "image": broker["spec"]["containers"][0]["image"],
        "imagePullPolicy": "Never",
        "command": ["sleep", "3600"],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    }
    spec = {
        "nodeName": broker["spec"]["nodeName"],
        "securityContext": broker["spec"]["securityContext"],
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
        "volumes": [volume],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": HELPER}, "spec": spec}
    namespace.apply(pod)
    namespace.wait(f"pod/{HELPER}", "Ready")


def while_away(namespace: Namespace, kubectl: Kubectl, node: str, command: str) -> None:
    """Change the volume of a broker while it is not there."""
    kubectl("cordon", node)
    try:
        namespace("delete", "pod", BROKER, "--timeout=120s")
        namespace("exec", HELPER, "--", "sh", "-ec", command)
    finally:
        kubectl("uncordon", node)


def command_told(namespace: Namespace) -> list[str]:
    """Wait until the Cluster says why the broker refuses; return the command that it names."""
    found: list[str] = []

    def is_told() -> bool:
        conditions = namespace.get("cluster.millrace.dev", "logs")["status"]["conditions"]
        (message,) = [
            condition["message"] for condition in conditions if condition["type"] == "Ready"
        ]
        found[:] = re.findall(r"`kubectl (annotate [^`]+)`", message)
        return bool(found)

    until(is_told, "the refusal is told")
    return found[0].split()


def test_an_older_volume_is_accepted_once_by_the_command_that_the_cluster_tells(
    operator: Cluster, namespace: Namespace
) -> None:
    if isinstance(operator, ExistingCluster):
        pytest.skip("its nodes must not be cordoned")
    kubectl = operator.kubectl
    namespace.make_cluster()
    namespace.make_topic("orders", partitions=3, replicas=3)
    namespace.make_client()
    topic = f"{namespace.name}/orders"
    broker = namespace.get("pod", BROKER)
    node = broker["spec"]["nodeName"]
    mount_beside(namespace, broker)
    records: list[str] = []

    def produce() -> None:
        more = [f"fruit {len(records) + number}" for number in range(50)]
        namespace.produce(topic, more)
        records.extend(more)

    produce()
    while_away(namespace, kubectl, node, "cp -a /v/log /v/old")
    namespace.wait("cluster.millrace.dev/logs", "Healthy")
    earlier: list[str] = []
    for _ in range(2):
        produce()
        while_away(namespace, kubectl, node, "rm -rf /v/log; cp -a /v/old /v/log")
        told = command_told(namespace)
        assert told != earlier, "what accepted it once would accept it again"
        kubectl(*told)
        namespace.wait("cluster.millrace.dev/logs", "Ready", _BACKOFF_S)
        namespace.wait("cluster.millrace.dev/logs", "Healthy")
        assert sorted(namespace.consume(topic, len(records))) == sorted(records)
        earlier = told
