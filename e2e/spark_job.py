"""A Spark job in pods, as a release of the chart `charts/spark-job`."""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from e2e.cluster.directories import ROOT
from e2e.cluster.images import SPARK
from e2e.cluster.native import NativeCluster
from e2e.guard.accounts import audience_of
from e2e.installed import READY_S, Namespace, helm, until
from tests.spark_jobs.written import Written

CHART = ROOT / "charts" / "spark-job"
JOBS = "/opt/millrace/jobs"


class SparkJob:
    """One release of the chart.

    Args:
        kubernetes: the cluster, from which the shared volume can be read.
        namespace: of the pods.
        name: of the release.
    """

    def __init__(self, kubernetes: NativeCluster, namespace: Namespace, name: str) -> None:
        self.name = name
        self._kubernetes = kubernetes
        self._namespace = namespace

    def install(
        self, program: str, *arguments: str, output: str = "/data/out", **values: Any
    ) -> None:
        """Install or upgrade it; it may not be ready when this returns.

        Args:
            program: a file of `spark-on-k8s/jobs`, without its suffix.
            arguments: of the program, in addition to the places of its checkpoint and output.
            output: the place of its output; empty: it is in topics.
            values: additional values of the chart; `__` stands for a dot.
        """
        repository, _, tag = SPARK.partition(":")
        places = ["--checkpoint=/data/checkpoint", "--pages=0.0.0.0:8099"]
        if output:
            places.append(f"--output={output}")
        chosen = {
            "image": {"repository": repository, "tag": tag},
            "job": {"file": f"{JOBS}/{program}.py", "arguments": [*places, *arguments]},
            "storage": {"storageClassName": "shared", "size": "1Gi"},
            "driver": {"cpu": "200m"},
            "executor": {"cpu": "200m"},
        }
        for name, value in values.items():
            *path, last = name.split("__")
            place: dict[str, Any] = chosen
            for part in path:
                place = place[part]
            place[last] = value
        helm(
            self._kubernetes,
            *("upgrade", "--install", self.name, CHART, "--namespace", self._namespace.name),
            *("--values", "-"),
            input=json.dumps(chosen),
        )

    def guarded(self, *rules: dict[str, Any], cluster: str = "logs") -> dict[str, Any]:
        """Return the values with which it uses a Cluster that asks who calls.

        Args:
            rules: what brokers let it do.
        """
        return {
            "tls": {"authorities": f"{cluster}-ca"},
            "access": {
                "audience": audience_of(cluster, self._namespace.name),
                "rules": list(rules),
            },
        }

    def start(self) -> None:
        """Let the driver of a stopped job run."""
        self._namespace("scale", f"deployment/{self.name}", "--replicas=1")

    def stop(self) -> None:
        """Let its driver end after the micro-batch under way; return once it is gone."""
        self._namespace("scale", f"deployment/{self.name}", "--replicas=0")
        labels = f"--selector=app.kubernetes.io/instance={self.name}"
        self._namespace("wait", "pods", labels, "--for=delete", f"--timeout={READY_S}s")

    def uninstall(self) -> None:
        """Uninstall it; its volume stays."""
        helm(
            self._kubernetes, "uninstall", self.name, "--namespace", self._namespace.name, "--wait"
        )

    def pods(self, component: str) -> list[dict[str, Any]]:
        """Return its pods that are not being deleted: `spark-driver` or `spark-executor`."""
        labels = f"app.kubernetes.io/instance={self.name},app.kubernetes.io/component={component}"
        items = self._namespace.get("pods", f"--selector={labels}")["items"]
        return [item for item in items if "deletionTimestamp" not in item["metadata"]]

    def driver(self) -> str:
        """Return the name of the driver's pod, once one runs."""
        until(lambda: len(self._running("spark-driver")) == 1, f"{self.name} has one driver")
        return self._running("spark-driver")[0]

    def executors(self) -> list[str]:
        """Return the names of the executors' pods that run."""
        return self._running("spark-executor")

    def _running(self, component: str) -> list[str]:
        pods = self.pods(component)
        return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Running"]

    def written(self) -> Written:
        """Return its output, as the nodes see it."""
        claim = f"{self.name}-data"
        self._namespace.wait(f"pvc/{claim}", "jsonpath={.status.phase}=Bound")
        node, path = self._kubernetes.volume_of(claim, self._namespace.name)
        return Written(Path(f"{node.machine.root}{path}"))

    def wait_for_batch(self, after: int | None = None, seconds: float = READY_S) -> int:
        """Return the last committed batch, once it is later than another one.

        Args:
            after: the other one; None: the last one now.
            seconds: the time-out.
        """
        written = self.written()
        last = written.committed() if after is None else after
        deadline = time.monotonic() + seconds
        while written.committed() <= last:
            assert time.monotonic() < deadline, (
                f"{self.name} commits no batch after {last}: {self.last_words()}"
            )
            time.sleep(0.2)
        return written.committed()

    def wait_for_rows(self, count: int, seconds: float = READY_S) -> None:
        """Wait until its output has so many rows."""
        self.wait_for_batch(after=-1, seconds=seconds)
        deadline = time.monotonic() + seconds
        while self.written().table().num_rows < count:
            assert time.monotonic() < deadline, f"{self.name} wrote less: {self.last_words()}"
            time.sleep(0.5)

    def last_words(self) -> str:
        """Return the end of the driver's log, or why there is none."""
        with contextlib.suppress(Exception):
            return self._namespace(
                "logs", "--tail=15", f"--selector=app.kubernetes.io/instance={self.name}"
            )
        return "no driver"
