"""A Prometheus in a pod, as `charts/prometheus.yaml` has it, and its API.

It differs from that file by its image, its namespace, and how often it scrapes.
"""

import re
import subprocess
import threading
from collections.abc import Iterator
from typing import IO, Any, Final

import yaml
from e2e.cluster.directories import ROOT
from e2e.cluster.kubectl import Kubectl
from e2e.installed import Namespace
from tests.watching.prometheus import Prometheus

MANIFEST: Final = ROOT / "charts" / "prometheus.yaml"

_PORT: Final = 9090
_INTERVAL: Final = "1s"
_END_SECONDS_MAX: Final = 10.0

Document = dict[str, Any]


class PrometheusPod(Prometheus):
    """The pod, from its manifest to its removal.

    Args:
        kubectl: of the cluster.
        namespace: made for it.
        image: in the place of the manifest's; empty: that one.
        rules: as Prometheus reads them.
        scrape_configs: in the place of the manifest's; None: that one.
    """

    def __init__(
        self,
        kubectl: Kubectl,
        namespace: str,
        image: str,
        rules: Document,
        scrape_configs: list[Document] | None = None,
    ) -> None:
        self._namespace = Namespace(kubectl, namespace)
        self._image = image
        self._rules = rules
        self._scrape_configs = scrape_configs
        self._forward: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; return once it answers at `url`."""
        self._namespace.create()
        self._namespace("create", "configmap", "millrace-rules", f"--from-literal={self._text()}")
        self._namespace.apply(*self._documents())
        self._namespace("rollout", "status", "--timeout=180s", "deployment/prometheus")
        self._forward = self._namespace.start(
            *("port-forward", "--address=127.0.0.1", "deployment/prometheus", f":{_PORT}"),
            output=subprocess.PIPE,
        )
        assert self._forward.stdout is not None
        self.url = f"http://{_forwarded(self._forward.stdout)}"
        # It has a line for each connection, and would stand still once nobody reads them.
        threading.Thread(target=_read_all, args=(self._forward.stdout,)).start()

    def stop(self) -> None:
        """Remove it with its namespace."""
        if self._forward is not None:
            self._forward.terminate()
            with self._forward:  # Closes its input, too.
                self._forward.wait(timeout=_END_SECONDS_MAX)
        for kind in ("clusterrolebinding", "clusterrole"):
            self._namespace.kubectl("delete", kind, self._name, "--ignore-not-found")
        self._namespace.delete()

    @property
    def _name(self) -> str:
        """Of what is in no namespace."""
        return f"prometheus-{self._namespace.name}"

    def _text(self) -> str:
        return f"millrace.yaml={yaml.safe_dump(self._rules)}"

    def _documents(self) -> Iterator[Document]:
        """Yield the objects of the manifest, but for the namespace, which is there."""
        for document in yaml.safe_load_all(MANIFEST.read_text()):
            metadata = document["metadata"]
            match document["kind"]:
                case "Namespace":
                    continue
                case "ClusterRole":
                    metadata["name"] = self._name
                case "ClusterRoleBinding":
                    metadata["name"] = document["roleRef"]["name"] = self._name
                    (subject,) = document["subjects"]
                    subject["namespace"] = self._namespace.name
                case "ConfigMap":
                    document["data"] = {"prometheus.yml": self._config(document["data"])}
                case "Deployment" if self._image:
                    (container,) = document["spec"]["template"]["spec"]["containers"]
                    container |= {"image": self._image, "imagePullPolicy": "IfNotPresent"}
            if "namespace" in metadata:
                metadata["namespace"] = self._namespace.name
            yield document

    def _config(self, data: dict[str, str]) -> str:
        config = yaml.safe_load(data["prometheus.yml"])
        config["global"] = dict.fromkeys(config["global"], _INTERVAL)
        if self._scrape_configs is not None:
            config["scrape_configs"] = self._scrape_configs
        return yaml.safe_dump(config)


def _read_all(output: IO[bytes]) -> None:
    with output:
        for _ in output:
            pass


def _forwarded(output: IO[bytes]) -> str:
    """Return the address on this machine that `kubectl port-forward` tells."""
    line = output.readline().decode()
    found = re.search(r"Forwarding from (\S+) ->", line)
    assert found is not None, f"kubectl port-forward said: {line}"
    return found[1]
