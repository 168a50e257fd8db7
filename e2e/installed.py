"""A user's actions: install the operator; create clusters, topics and clients in a namespace."""

import base64
import json
import subprocess
import time
from collections.abc import Callable
from typing import IO, Any

import yaml
from e2e import programs
from e2e.cluster.commands import run
from e2e.cluster.directories import ROOT
from e2e.cluster.images import PRODUCT
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.providers import Cluster

from millrace.client import Record
from millrace.core.ids import Offset, WallMs

CHART = ROOT / "charts" / "millrace"
SYSTEM = "millrace-system"
READY_S = 180


def install_operator(cluster: Cluster, *settings: str) -> None:
    """Install or upgrade the operator by helm; return once it is ready.

    Args:
        settings: additional values of the chart, as `name=value`.
    """
    repository, _, tag = PRODUCT.partition(":")
    values = (f"image.repository={repository}", f"image.tag={tag}", *settings)
    helm(
        cluster,
        *("upgrade", "--install", "millrace", CHART, "--namespace", SYSTEM, "--create-namespace"),
        *(part for value in values for part in ("--set", value)),
        *("--wait", "--timeout", "180s"),
    )
    # The image may have changed under the same name.
    deployment = (f"--namespace={SYSTEM}", "deployment/millrace-operator")
    cluster.kubectl("rollout", "restart", *deployment)
    cluster.kubectl("rollout", "status", "--timeout=180s", *deployment)


def helm(cluster: Cluster, *arguments: object, input: str | None = None) -> str:
    """Run helm on the cluster."""
    programs.HELM.main()
    config = f"--kubeconfig={cluster.kubectl.kubeconfig}"
    return run(programs.path("helm"), config, *map(str, arguments), input=input)


class Namespace:
    """A namespace, and what its user does there.

    Attributes:
        name: of the namespace.
    """

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.name = name
        self.kubectl = kubectl

    def create(self) -> None:
        """Make it."""
        self.kubectl("create", "namespace", self.name)

    def delete(self) -> None:
        """Delete it with everything in it; return when it is gone.

        Raises:
            CommandError: it does not end.
        """
        self.kubectl("delete", "namespace", self.name, "--wait", "--timeout=180s")

    def __call__(self, *arguments: str, input: str | None = None) -> str:
        """Run kubectl in the namespace."""
        return self.kubectl(f"--namespace={self.name}", *arguments, input=input)

    def start(
        self, *arguments: str, output: IO[bytes] | int = subprocess.DEVNULL
    ) -> "subprocess.Popen[bytes]":
        """Start kubectl in the namespace; see `Kubectl.start`."""
        return self.kubectl.start(f"--namespace={self.name}", *arguments, output=output)

    def get(self, *arguments: str) -> dict[str, Any]:
        """Return an object, or a list."""
        return self.kubectl.get(f"--namespace={self.name}", *arguments)

    def apply(self, *documents: dict[str, Any]) -> None:
        """Apply resources."""
        self("apply", "--filename=-", input=yaml.safe_dump_all(documents))

    def make_cluster(self, name: str = "logs", **spec: Any) -> None:
        """Apply a Cluster of three brokers, or as in `spec`, and wait until it is ready.

        It is in plain text unless `spec` has `tls`.
        """
        volumes = [{"name": "data", "size": "1Gi", "storageClassName": "local-ssd"}]
        pool = {"name": "brokers", "replicas": 3, "volumes": volumes}
        self.apply(cluster(name, **{"pools": [pool], "tls": {"mode": "Disabled"}, **spec}))
        self.wait(f"cluster.millrace.dev/{name}", "Ready")

    def make_topic(self, name: str, cluster: str = "logs", **spec: Any) -> None:
        """Apply a Topic, and wait until it is ready."""
        self.apply(topic(name, cluster, **spec))
        self.wait(f"topic.millrace.dev/{name}", "Ready")

    def wait(self, resource: str, condition: str, seconds: int = READY_S) -> None:
        """Wait for a condition of a resource, or for a `jsonpath=` expression."""
        what = condition if condition.startswith("jsonpath=") else f"condition={condition}"
        self("wait", resource, f"--for={what}", f"--timeout={seconds}s")

    def make_client(
        self,
        cluster: str = "logs",
        *,
        name: str = "client",
        image: str = PRODUCT,
        outside: str = "",
        change: Callable[[dict[str, Any]], None] = lambda _: None,
    ) -> None:
        """Start a pod in which `millrace` finds the cluster's brokers.

        Args:
            cluster: the name of the cluster to which it connects first.
            name: of the pod. `millrace` and others that run something run it in `client`.
            image: of its only container.
            change: is given the pod's spec, and may change it.
            outside: another address to connect to first. The pod is then like a program on a node:
                outside of the pods' network, and without the names of the cluster's DNS.
        """
        host = {"hostNetwork": True, "dnsPolicy": "Default"} if outside else {}
        bootstrap = outside or f"{cluster}-bootstrap.{self.name}.svc:7092"
        container = {
            "name": "client",
            "image": image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["sleep", "infinity"],
            "env": [{"name": "MILLRACE_BOOTSTRAP", "value": bootstrap}],
        }
        spec = {**host, "terminationGracePeriodSeconds": 0, "containers": [container]}
        change(spec)
        self.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
        self.wait(f"pod/{name}", "Ready")

    def millrace(self, *arguments: str, input: str | None = None) -> str:
        """Run the command line in the client's pod."""
        stdin = ("--stdin",) if input is not None else ()
        return self("exec", *stdin, "client", "--", "millrace", *arguments, input=input)

    def broker_uids(self) -> set[str]:
        """Return the uids of all brokers' pods, which change when a pod is replaced."""
        pods = self.get("pods", "--selector=app.kubernetes.io/component=broker")
        return {pod["metadata"]["uid"] for pod in pods["items"]}

    def led_by(self, topic: str, broker: str) -> list[int]:
        """Return the partitions of a topic that a broker leads."""
        described = json.loads(
            self.millrace("topic", "describe", f"{self.name}/{topic}", "--output", "json")
        )
        return [
            partition["partition"]
            for partition in described["partitions"]
            if partition["leader_address"].startswith(f"{broker}.")
        ]

    def produce(self, topic: str, records: list[str]) -> None:
        """Write records, one text each."""
        self.millrace("produce", topic, input="".join(f"{record}\n" for record in records))

    def consume(self, topic: str, count: int) -> list[str]:
        """Read so many records from the beginning."""
        arguments = ("--from", "beginning", "--max", str(count), "--output", "json")
        lines = self.millrace("consume", topic, *arguments, "--timeout", "60").splitlines()
        return [json.loads(line)["value"] for line in lines]

    def records(self, topic: str) -> list[Record]:
        """Return all committed records that a topic has now; their times are left out."""
        lines = self.millrace("consume", f"{self.name}/{topic}", "--output", "json").splitlines()
        found = []
        for row in map(json.loads, lines):
            headers = tuple((name, _bytes(cell)) for name, cell in row.get("headers", ()))
            found.append(
                Record(
                    topic,
                    row["partition"],
                    Offset(row["offset"]),
                    WallMs(0),
                    _bytes(row["key"]),
                    _bytes(row["value"]),
                    headers,
                )
            )
        return found


def _bytes(cell: str | dict[str, str] | None) -> bytes | None:
    """Return the bytes that `millrace consume --output json` shows so."""
    if isinstance(cell, dict):
        return base64.b64decode(cell["base64"])
    return None if cell is None else cell.encode()


def cluster(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Cluster."""
    return {
        "apiVersion": "millrace.dev/v1beta1",
        "kind": "Cluster",
        "metadata": {"name": name},
        "spec": spec,
    }


def topic(name: str, cluster: str, **spec: Any) -> dict[str, Any]:
    """Return a Topic."""
    return {
        "apiVersion": "millrace.dev/v1beta1",
        "kind": "Topic",
        "metadata": {"name": name},
        "spec": {"clusterRef": {"name": cluster}, **spec},
    }


def until(is_so: Callable[[], bool], what: str, seconds: float = READY_S) -> None:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {seconds:g} s: {what}"
        time.sleep(0.5)
