"""The cluster's metadata in the API server, watched from outside: it shows a fault's effect.

The watch's history is merged into that of the load's pod. Both use this machine's clock, which no
namespace changes.
"""

import json
import threading
from collections.abc import Mapping
from typing import Any, Final

import urllib3
from e2e.cluster.native import NativeCluster
from tests.faults.history import History
from tests.faults.load import Places
from tests.faults.metadata import Metadata, View

from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.model import CLUSTER_KEY
from millrace.core.metadata.objects.stored_object import StoredObject

_KINDS: Final = (
    "apis/millrace.dev/v1/namespaces/{}/clusterstates",
    "apis/millrace.dev/v1/namespaces/{}/stateshards",
    "apis/coordination.k8s.io/v1/namespaces/{}/leases",
)
_PAUSE_SECONDS: Final = 0.5
_TIMEOUT: Final = urllib3.Timeout(connect=5.0, read=30.0)


class Watcher:
    """Watches every object of a cluster's metadata.

    Args:
        namespace: of the Kubernetes cluster.
        cluster: name of the Cluster, the only one of the namespace.
    """

    def __init__(
        self,
        kubernetes: NativeCluster,
        namespace: str,
        cluster: str,
        places: Places,
        history: History,
    ) -> None:
        self._pool = kubernetes.connect(_TIMEOUT)
        self._cluster = cluster
        self._metadata = Metadata(history, places)
        self._versions: dict[str, int] = {}
        self._holder = ""
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=[f"/{kind.format(namespace)}"], daemon=True)
            for kind in _KINDS
        ]

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop watching."""
        self._is_over.set()  # Its thread ends with its request's time-out, or with this process.
        self._pool.close()

    @property
    def view(self) -> View | None:
        """The latest view; None before there is one."""
        with self._lock:
            return self._metadata.view(self._holder)

    def _watch(self, path: str) -> None:
        while not self._is_over.is_set():
            try:
                self._watch_once(path)
            except (urllib3.exceptions.HTTPError, ValueError, KeyError):
                self._is_over.wait(_PAUSE_SECONDS)  # The API server is away, slow or restarted.

    def _watch_once(self, path: str) -> None:
        listed = self._pool.request("GET", path).json()
        for found in listed["items"]:
            self._take(found)
        since = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"]}
        news = self._pool.request("GET", path, fields=since, preload_content=False)
        rest = b""
        for piece in news.stream(1 << 16):
            *lines, rest = (rest + piece).split(b"\n")
            for event in map(json.loads, lines):
                if event["type"] == "ERROR" or self._is_over.is_set():
                    return
                if event["type"] != "DELETED":
                    self._take(event["object"])

    def _take(self, document: Mapping[str, Any]) -> None:
        name, spec = document["metadata"]["name"], document["spec"]
        with self._lock:
            if "holderIdentity" in spec or "state" not in spec:
                if name == f"{self._cluster}-controller":
                    self._holder = spec.get("holderIdentity") or ""
                return
            if spec["version"] <= self._versions.get(name, 0):
                return
            self._versions[name] = spec["version"]
            key = CLUSTER_KEY if name == self._cluster else f"shards/{name.rpartition('-')[2]}"
            epoch = ControllerEpoch(spec["controllerEpoch"])
            self._metadata.take(key, StoredObject(spec["state"].encode(), spec["version"], epoch))
