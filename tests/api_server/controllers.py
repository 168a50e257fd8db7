"""Plays what a Kubernetes has beside its API server: controllers, scheduler, kubelets, volumes.

Only as far as the operator can see it, one `step` at a time: pods and claims of StatefulSets, pods
that start and end, claims that are bound and grow, objects that go with their owner. Brokers in
pods that are ready join a fake cluster.
"""

import hashlib
import json
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.api_server.running import RunningApiServer
from tests.fakes.administered_clusters import FakeBrokers

from millrace.core.media import Media

Document = dict[str, Any]

STATEFUL_SETS = "/apis/apps/v1/%s/statefulsets"
PODS = "/api/v1/%s/pods"
CLAIMS = "/api/v1/%s/persistentvolumeclaims"
CONFIG_MAPS = "/api/v1/%s/configmaps"
SERVICES = "/api/v1/%s/services"
"""This one and those above are paths of collections: `%s` stands for `namespaces/<name>`."""

_OWNED = (
    STATEFUL_SETS,
    PODS,
    CLAIMS,
    CONFIG_MAPS,
    SERVICES,
    "/api/v1/%s/serviceaccounts",
    "/apis/rbac.authorization.k8s.io/v1/%s/roles",
    "/apis/rbac.authorization.k8s.io/v1/%s/rolebindings",
    "/apis/networking.k8s.io/v1/%s/networkpolicies",
    "/apis/policy/v1/%s/poddisruptionbudgets",
    "/apis/coordination.k8s.io/v1/%s/leases",
    "/apis/millrace.dev/v1/%s/clusterstates",
    "/apis/millrace.dev/v1/%s/stateshards",
)
_CLUSTERS = "/apis/millrace.dev/v1beta1/%s/clusters"


class Controllers:
    """What runs in one namespace beside the operator.

    Args:
        namespace: that it works in.

    Attributes:
        bad_images: with which no broker starts.
        grows_while_used: whether volumes grow under a pod that runs.
    """

    def __init__(self, server: RunningApiServer, brokers: FakeBrokers, namespace: str) -> None:
        self._server = server
        self._brokers = brokers
        self._namespace = namespace
        self.bad_images: set[str] = set()
        self.grows_while_used = True

    def step(self) -> None:
        """Let everybody do what there is to do."""
        self._collect_garbage()
        for stateful_set in self.items(STATEFUL_SETS):
            if "deletionTimestamp" in stateful_set["metadata"]:
                self._orphan(stateful_set)
            else:
                self._run_stateful_set(stateful_set)
        self._run_volumes()
        self._run_pods()
        for fake in self._brokers.clusters.values():
            fake.arrive()

    def items(self, path: str) -> list[Document]:
        """Return the objects below a path, `%s` of which stands for the namespace."""
        status, answer = self._server.request("GET", path % f"namespaces/{self._namespace}")
        assert status == 200, answer
        items: list[Document] = answer["items"]
        return items

    def put(self, path: str, document: Document, *, subresource: str = "") -> None:
        """Replace an object."""
        name = document["metadata"]["name"] + (f"/{subresource}" if subresource else "")
        path = f"{path % f'namespaces/{self._namespace}'}/{name}"
        status, answer = self._server.request("PUT", path, document)
        assert status in (200, 404, 409), answer

    def _post(self, path: str, document: Document) -> Document:
        path = path % f"namespaces/{self._namespace}"
        status, answer = self._server.request("POST", path, document)
        assert status in (201, 409), answer
        return answer

    def _delete(self, path: str, name: str) -> None:
        path = f"{path % f'namespaces/{self._namespace}'}/{name}"
        status, answer = self._server.request("DELETE", path, {"gracePeriodSeconds": 0})
        assert status in (200, 202, 404), answer

    def _collect_garbage(self) -> None:
        alive = {cluster["metadata"]["uid"] for cluster in self.items(_CLUSTERS)}
        objects = [(path, found) for path in _OWNED for found in self.items(path)]
        alive |= {found["metadata"]["uid"] for _, found in objects}
        for path, found in objects:
            owners = found["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in alive for owner in owners):
                self._delete(path, found["metadata"]["name"])
                if path == PODS:
                    self._leave(found)

    def _orphan(self, stateful_set: Document) -> None:
        """End a deletion that leaves what the StatefulSet owns."""
        metadata = stateful_set["metadata"]
        for path in (PODS, CLAIMS):
            for owned in self.items(path):
                owners = owned["metadata"].get("ownerReferences") or []
                if any(owner["uid"] == metadata["uid"] for owner in owners):
                    owned["metadata"]["ownerReferences"] = [
                        owner for owner in owners if owner["uid"] != metadata["uid"]
                    ]
                    self.put(path, owned)
        metadata["finalizers"] = [
            finalizer for finalizer in metadata.get("finalizers") or () if finalizer != "orphan"
        ]
        self.put(STATEFUL_SETS, stateful_set)

    def _run_stateful_set(self, stateful_set: Document) -> None:
        metadata, spec = stateful_set["metadata"], stateful_set["spec"]
        name, template = metadata["name"], spec["template"]
        text = json.dumps(template, sort_keys=True).encode()
        revision = f"{name}-{hashlib.sha256(text).hexdigest()[:8]}"
        owner = {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "name": name,
            "uid": metadata["uid"],
            "controller": True,
        }
        of_pods = {
            "labels": {**template["metadata"]["labels"], "controller-revision-hash": revision},
            "annotations": template["metadata"].get("annotations") or {},
            "ownerReferences": [owner],
        }
        template = {**template, "metadata": of_pods}
        pods = {pod["metadata"]["name"]: pod for pod in self.items(PODS)}
        for number in range(spec["replicas"]):
            pod_name = f"{name}-{number}"
            claims = [
                self._claim(claim_template, pod_name, owner, spec)
                for claim_template in spec["volumeClaimTemplates"]
            ]
            if pod_name not in pods:
                self._post(PODS, _pod(template, number, claims, name=pod_name))
            elif not pods[pod_name]["metadata"].get("ownerReferences"):
                pods[pod_name]["metadata"]["ownerReferences"] = [owner]
                self.put(PODS, pods[pod_name])
        for pod_name, pod in pods.items():
            prefix, _, number_text = pod_name.rpartition("-")
            if prefix == name and int(number_text) >= spec["replicas"]:
                self._delete(PODS, pod_name)
                self._leave(pod)
        status = {
            "observedGeneration": metadata["generation"],
            "updateRevision": revision,
            "replicas": spec["replicas"],
        }
        if stateful_set.get("status") != status:
            self.put(
                STATEFUL_SETS,
                {**stateful_set, "status": status},
                subresource="status",
            )

    def _claim(
        self, template: Document, pod_name: str, owner: Document, spec: Document
    ) -> Document:
        """Have a broker's claim be there, owned or not; return the volume of its pod."""
        path = CLAIMS
        claims = {claim["metadata"]["name"]: claim for claim in self.items(path)}
        metadata = {
            "name": f"{template['metadata']['name']}-{pod_name}",
            "labels": template["metadata"].get("labels") or {},
        }
        goes = spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
        metadata["ownerReferences"] = [owner] if goes else []
        claim = {"metadata": metadata, "spec": {**template["spec"], "volumeName": "some"}}
        found = claims.get(metadata["name"])
        if found is None:
            self._post(path, claim)
        elif bool(found["metadata"].get("ownerReferences")) != goes:
            found["metadata"]["ownerReferences"] = metadata["ownerReferences"]
            self.put(path, found)
        return {
            "name": template["metadata"]["name"],
            "persistentVolumeClaim": {"claimName": metadata["name"]},
        }

    def _run_volumes(self) -> None:
        pods = self.items(PODS)
        started = {
            name
            for pod in pods
            if not pod.get("status", {}).get("conditions")
            for name in _claims_of(pod)
        }
        used = {name for pod in pods for name in _claims_of(pod)}
        for claim in self.items(CLAIMS):
            if "deletionTimestamp" in claim["metadata"] and claim["metadata"]["name"] not in used:
                claim["metadata"]["finalizers"] = []  # That protects what pods use.
                self.put(CLAIMS, claim)
                continue
            before = claim.get("status") or {}
            wanted = claim["spec"]["resources"]["requests"]["storage"]
            there = (before.get("capacity") or {}).get("storage")
            status: Document = {"phase": "Bound", "capacity": {"storage": wanted}}
            is_new = before.get("phase") != "Bound"
            name = claim["metadata"]["name"]
            if not is_new and there != wanted and not self.grows_while_used and name not in started:
                waits = {
                    "type": "FileSystemResizePending",
                    "status": "True",
                    "lastTransitionTime": (
                        datetime.now(UTC) + timedelta(seconds=2)  # After the pod was made.
                    ).strftime("%Y-%m-%dT%H:%M:%SZ"),
                }
                status = {"phase": "Bound", "capacity": {"storage": there}, "conditions": [waits]}
            is_told = bool(before.get("conditions")) and bool(status.get("conditions"))
            if before != status and not is_told:
                self.put(
                    CLAIMS,
                    {**claim, "status": status},
                    subresource="status",
                )

    def _run_pods(self) -> None:
        for pod in self.items(PODS):
            metadata = pod["metadata"]
            if "deletionTimestamp" in metadata:
                self._delete(PODS, metadata["name"])
                self._leave(pod)
                continue
            if pod["spec"]["containers"][0]["name"] != "broker":
                continue
            status = self._status(pod)
            if any(pod.get("status", {}).get(key) != value for key, value in status.items()):
                status = {**pod.get("status", {}), **status}
                self.put(PODS, {**pod, "status": status}, subresource="status")

    def _status(self, pod: Document) -> Document:
        (container,) = pod["spec"]["containers"]
        annotations = pod["metadata"].get("annotations") or {}
        is_told = "initContainers" not in pod["spec"] or "millrace.dev/node" in annotations
        is_bad = container["image"] in self.bad_images
        is_ready = is_told and not is_bad
        if is_ready:
            media = {
                Media(directory.partition(":")[0])
                for directory in self._log_dirs(pod)
                if ":" in directory
            } or {Media.SSD}
            self._brokers.of(
                self._namespace, pod["metadata"]["labels"]["millrace.dev/cluster"]
            ).join(
                pod["metadata"]["name"],
                zone=annotations.get("millrace.dev/zone", ""),
                media=sorted(media),
            )
        host_ip = f"192.0.2.{1 + int(pod['spec']['nodeName'].rpartition('-')[2])}"
        status: Document = {
            "hostIP": host_ip,
            "hostIPs": [{"ip": host_ip}],
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Ready", "status": "True" if is_ready else "False"},
            ],
        }
        if is_bad:
            waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
            status["containerStatuses"] = [
                {
                    "name": "broker",
                    "image": container["image"],
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": waiting,
                }
            ]
        return status

    def _log_dirs(self, pod: Document) -> list[str]:
        (name,) = (
            volume["configMap"]["name"]
            for volume in pod["spec"]["volumes"]
            if volume["name"] == "config"
        )
        for config in self.items(CONFIG_MAPS):
            if config["metadata"]["name"] == name:
                first = config["data"]["broker.toml"].splitlines()[0]
                found: list[str] = json.loads(first.partition("= ")[2])
                return found
        return []

    def _leave(self, pod: Document) -> None:
        fake = self._brokers.of(self._namespace, pod["metadata"]["labels"]["millrace.dev/cluster"])
        if pod["metadata"]["name"] in fake.brokers:
            fake.leave(pod["metadata"]["name"])


def _pod(template: Document, number: int, claims: list[Document], *, name: str) -> Document:
    spec = {**template["spec"], "nodeName": f"node-{number % 3}"}
    spec["volumes"] = [*spec.get("volumes", ()), *claims]
    return {"metadata": {**template["metadata"], "name": name}, "spec": spec}


def _claims_of(pod: Document) -> list[str]:
    return [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    ]
