"""Provides the volumes for the claims of a native cluster, like a driver of local disks.

    python -m e2e.cluster.volumes CLUSTER

A claim waits for its first pod, and the scheduler chooses that pod's node. There it gets a volume
of the requested size with its own file system, so that the volume can be full. The volume grows
with its claim, and is removed with it. A claim of the class `shared` gets a volume that all nodes
have, as from a file server; it does not grow.

It looks at all claims and volumes twice a second, and keeps no state.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import urllib3
from e2e.cluster.commands import CommandError
from e2e.cluster.native import NativeCluster

PROVISIONER = "e2e.millrace.dev/local"
SHARED_PROVISIONER = "e2e.millrace.dev/shared"

_MINE = "pv.kubernetes.io/provisioned-by"
_WANTED_OF = "volume.kubernetes.io/storage-provisioner"
_NODE = "volume.kubernetes.io/selected-node"
_PROVISIONERS = (PROVISIONER, SHARED_PROVISIONER)
_SECONDS_BETWEEN = 0.5
_SIZE_BYTES_MIN = 300 << 20  # The minimum of XFS.
_UNITS = {
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
}

Object = dict[str, Any]


def size_bytes(quantity: str) -> int:
    """Return the bytes of a quantity such as `10Gi`."""
    for unit, factor in _UNITS.items():
        if quantity.endswith(unit):
            return int(float(quantity.removesuffix(unit)) * factor)
    return int(quantity)


class Provisioner:
    """Makes and removes volumes until the process ends."""

    def __init__(self, cluster: NativeCluster) -> None:
        self._nodes = {node.name: node for node in cluster.nodes}
        self._pool = cluster.connect(urllib3.Timeout(10.0))

    def serve(self) -> None:
        """Reconcile until killed."""
        while True:
            with _reported():
                self.reconcile()
            time.sleep(_SECONDS_BETWEEN)

    def reconcile(self) -> None:
        """Do one pass."""
        claims = self._list("/api/v1/persistentvolumeclaims")
        volumes = {
            volume["metadata"]["name"]: volume
            for volume in self._list("/api/v1/persistentvolumes")
            if volume["metadata"].get("annotations", {}).get(_MINE) in _PROVISIONERS
        }
        for claim in claims:
            with _reported():
                self._serve_claim(claim, volumes)
        for volume in volumes.values():
            with _reported():
                self._reclaim(volume)

    def _serve_claim(self, claim: Object, volumes: dict[str, Object]) -> None:
        metadata = claim["metadata"]
        annotations = metadata.get("annotations", {})
        wanted_of = annotations.get(_WANTED_OF)
        if wanted_of not in _PROVISIONERS or "deletionTimestamp" in metadata:
            return
        volume = volumes.get(f"pvc-{metadata['uid']}")
        if wanted_of == SHARED_PROVISIONER:
            if volume is None:
                self._provide(claim, SHARED_PROVISIONER, list(self._nodes))
        elif volume is not None:
            self._grow(claim, volume)
        elif annotations.get(_NODE) in self._nodes:
            self._provide(claim, PROVISIONER, [annotations[_NODE]])

    def _provide(self, claim: Object, provisioner: str, nodes: list[str]) -> None:
        metadata, spec = claim["metadata"], claim["spec"]
        name = f"pvc-{metadata['uid']}"
        requested = spec["resources"]["requests"]["storage"]
        size = max(size_bytes(requested), _SIZE_BYTES_MIN)
        if provisioner == SHARED_PROVISIONER:
            (path,) = {self._nodes[node].share_volume(name, size) for node in nodes}
        else:
            (path,) = (self._nodes[node].make_volume(name, size) for node in nodes)
        named = {"key": "kubernetes.io/hostname", "operator": "In", "values": nodes}
        of_claim = {key: metadata[key] for key in ("name", "namespace", "uid")}
        self._send(
            "POST",
            "/api/v1/persistentvolumes",
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": name, "annotations": {_MINE: provisioner}},
                "spec": {
                    "capacity": {"storage": requested},
                    "accessModes": spec["accessModes"],
                    "volumeMode": "Filesystem",
                    "persistentVolumeReclaimPolicy": "Delete",
                    "storageClassName": spec["storageClassName"],
                    "local": {"path": path},
                    "nodeAffinity": {
                        "required": {"nodeSelectorTerms": [{"matchExpressions": [named]}]}
                    },
                    "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **of_claim},
                },
            },
        )

    def _grow(self, claim: Object, volume: Object) -> None:
        requested = claim["spec"]["resources"]["requests"]["storage"]
        if size_bytes(requested) <= size_bytes(volume["spec"]["capacity"]["storage"]):
            return
        name = volume["metadata"]["name"]
        (node,) = nodes_of(volume)
        self._nodes[node].grow_volume(name, size_bytes(requested))
        capacity = {"capacity": {"storage": requested}}
        self._send("PATCH", f"/api/v1/persistentvolumes/{name}", {"spec": capacity})
        namespace, claim_name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim_name}/status"
        self._send("PATCH", path, {"status": capacity})

    def _reclaim(self, volume: Object) -> None:
        name = volume["metadata"]["name"]
        is_wanted = volume["spec"]["persistentVolumeReclaimPolicy"] != "Delete"
        if not is_wanted and volume.get("status", {}).get("phase") in ("Released", "Failed"):
            for node in nodes_of(volume):
                self._nodes[node].remove_volume(name)
            self._send("DELETE", f"/api/v1/persistentvolumes/{name}", {})

    def _list(self, path: str) -> list[Object]:
        items: list[Object] = self._send("GET", path, None)["items"]
        return items

    def _send(self, method: str, path: str, document: Object | None) -> Object:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        body = None if document is None else json.dumps(document).encode()
        answer = self._pool.request(method, path, body, headers={"Content-Type": kind})
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.data.decode()}")
        result: Object = json.loads(answer.data)
        return result


def nodes_of(volume: Object) -> list[str]:
    """Return the names of a volume's nodes."""
    term = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]
    names: list[str] = term["matchExpressions"][0]["values"]
    return names


@contextlib.contextmanager
def _reported() -> Iterator[None]:
    """Log an error: the next pass tries again."""
    try:
        yield
    except (CommandError, OSError, RuntimeError, urllib3.exceptions.HTTPError) as error:
        sys.stderr.write(f"{error}\n")
        sys.stderr.flush()


def main() -> None:
    """Serve until killed."""
    Provisioner(NativeCluster(sys.argv[1])).serve()


if __name__ == "__main__":
    main()
