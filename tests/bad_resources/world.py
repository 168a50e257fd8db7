"""A real API server, the operator as a process of its own, and a good Cluster of one real broker.

No kubelet runs. `_StatefulSets` does for the operator what the controller of StatefulSets does: it
makes pods, or says in an event why the API server refuses them.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.api_server.running import RunningApiServer
from tests.bad_resources.cases import (
    ELSEWHERE,
    GOOD,
    GOOD_QUOTA,
    GOOD_TOPIC,
    NAMESPACE,
    Case,
    Document,
    cluster,
    pool,
    quota,
    topic,
)
from tests.integration.running_broker import RunningBroker

from millrace.client import SyncAdmin

ROOT = Path(__file__).resolve().parents[2]
CONDITION_SECONDS_MAX = 100.0
_PLURALS = {
    "Cluster": "clusters",
    "Topic": "topics",
    "Quota": "quotas",
    "ConfigMap": "configmaps",
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What somebody was told.

    Attributes:
        reason: of the condition; empty: the API server refused.
        message: all of it.
        missing: what should have been told, and was not.
    """

    reason: str
    message: str
    missing: tuple[str, ...]


PLAIN = {"mode": "Disabled"}
"""Of the Cluster with a real broker, which is in plain text."""


class World:
    """Everything that a bad resource is tried in.

    Args:
        folder: for all files.
    """

    def __init__(self, folder: Path) -> None:
        self.api_server = RunningApiServer(folder)
        self._folder = folder
        self._broker = RunningBroker(folder / "broker", {"node.name": f"{GOOD}-b-0"})
        self._stateful_sets = _StatefulSets(self.api_server)
        self._operator: subprocess.Popen[bytes] | None = None
        self._number = 0
        self._refused: set[str] = set()

    def start(self) -> "World":
        """Start everything; return once the good Cluster, its Topic and its Quota are ready."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Leave nothing running."""
        self._stateful_sets.stop()
        if self._operator is not None:
            self._operator.terminate()
            try:
                self._operator.wait(20)
            except subprocess.TimeoutExpired:
                self._operator.kill()
                self._operator.wait()
        self._broker.abandon()
        self.api_server.stop()

    def outcome(self, case: Case) -> Outcome:
        """Apply the resource of a case as `kubectl` would, and return what it says."""
        self._number += 1
        for needed in case.others:
            made = self._must("POST", needed)
            if needed["kind"] == "Cluster":  # Its objects are there once the operator tells of it.
                self._condition(made, lambda condition: True)
        resource = _named(case.resource, f"case-{self._number}")
        if case.before is None:
            status, answer = self._send("POST", resource)
        else:
            self._must("POST", {**resource, "spec": _complete(resource, case.before)})
            status, answer = self._send("PUT", resource)
        if status not in (200, 201):
            return _judged(case, "", answer["message"])
        condition = self._condition(answer, lambda told: _tells(told, case), case.condition)
        if condition is None:
            return _judged(case, "", "it was accepted, and no condition tells of it")
        if condition["reason"] == "Refused":
            self._refused.add(f"{answer['metadata']['namespace']}/{answer['metadata']['name']}")
        return _judged(case, condition["reason"], condition["message"])

    def problems(self) -> list[str]:
        """Return what is not as it was before: of the operator, of the good resources."""
        found = []
        assert self._operator is not None
        if self._operator.poll() is not None:
            return [f"the operator ended with {self._operator.returncode}: {self._log()[-2000:]}"]
        lines = self._log().splitlines()
        failures = [line for line in lines if "is tried again" in line]
        # What the API server refuses fails, and is asked again.
        found += [line for line in failures if json.loads(line).get("cluster") not in self._refused]
        found += [line for line in lines if "Traceback" in line]
        wanted = self._partitions() + 1
        grown = topic(named=GOOD_TOPIC, replicas=1, partitions=wanted)
        logging = {"logging": {"level": "debug"}}
        limited = quota({"clientId": GOOD_QUOTA}, named=GOOD_QUOTA, produceBytesPerSecond="3Mi")
        for resource in (grown, limited, cluster(pool(), named=GOOD, tls=PLAIN, config=logging)):
            condition = self._change(resource)
            if condition is None or not _is_true(condition):
                kind = resource["kind"]
                found.append(f"the good {kind} is not ready after a change: {condition}")
        if self._partitions() != wanted:
            found.append(f"the good Topic has {self._partitions()} partitions, not {wanted}")
        with SyncAdmin(self._broker.address) as admin:
            quotas = {quota.name: quota.produce_bytes_per_second for quota in admin.list_quotas()}
        if quotas.get(f"{NAMESPACE}/{GOOD_QUOTA}") != 3 << 20:
            found.append(f"the brokers do not have the good Quota's limit, but {quotas}")
        path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{GOOD}-b"
        settings = self.api_server.request("GET", path)[1]["data"]["broker.toml"]
        if 'level = "debug"' not in settings:
            found.append("the good Cluster's settings did not change")
        return found

    def _start(self) -> None:
        self.api_server.start()
        self._broker.start()
        self._must(
            "POST", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}}
        )
        self._must("POST", cluster(pool(), named=GOOD, tls=PLAIN))
        self._must("POST", topic(named=GOOD_TOPIC, replicas=1, partitions=1))
        self._must("POST", quota({"clientId": GOOD_QUOTA}, named=GOOD_QUOTA))
        kubeconfig = self._folder / "kubeconfig"
        kubeconfig.write_text(self.api_server.kubeconfig("admin"))
        with (self._folder / "operator.log").open("wb") as log:
            self._operator = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.bad_resources.operator_process"),
                    self._broker.address,
                ],
                cwd=ROOT,
                env=os.environ | {"KUBECONFIG": str(kubeconfig)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._stateful_sets.start()
        for kind, name in (("Cluster", GOOD), ("Topic", GOOD_TOPIC), ("Quota", GOOD_QUOTA)):
            _, document = self.api_server.request("GET", _path(kind, NAMESPACE, name))
            found = self._condition(document, _is_true)
            if found is None or not _is_true(found):
                raise RuntimeError(f"{kind} {name} is not ready: {found}\n{self._log()}")

    def _change(self, document: Document) -> Document | None:
        """Apply what a resource should be from now on; return its condition after that."""
        after = self._must("PUT", document)
        return self._condition(after, _is_true)

    def _partitions(self) -> int:
        _, document = self.api_server.request("GET", _path("Topic", NAMESPACE, GOOD_TOPIC))
        partitions: int = document["status"]["partitions"]
        return partitions

    def _condition(
        self, document: Document, fits: Callable[[Document], bool], type_: str = "Ready"
    ) -> Document | None:
        """Return the condition of this state of the resource, or a later one, once it fits.

        Or whatever there is in the end; None: there is none.
        """
        metadata = document["metadata"]
        path = _path(document["kind"], metadata["namespace"], metadata["name"])
        deadline = time.monotonic() + CONDITION_SECONDS_MAX
        while True:
            found = _condition(self.api_server.request("GET", path)[1], type_)
            if time.monotonic() > deadline or (found is not None and fits(found)):
                return found
            time.sleep(0.1)

    def _must(self, method: str, document: Document) -> Document:
        status, answer = self._send(method, document)
        assert status in (200, 201), answer
        return answer

    def _send(self, method: str, document: Document) -> tuple[int, Document]:
        """Send an object, with the strictness of `kubectl`."""
        metadata = document["metadata"]
        name = metadata["name"] if method == "PUT" else ""
        path = _path(document["kind"], metadata.get("namespace", ""), name)
        while True:
            if method == "PUT":
                now = self.api_server.request("GET", path)[1]["metadata"]["resourceVersion"]
                document = {**document, "metadata": {**metadata, "resourceVersion": now}}
            with _deep_documents():
                status, answer = self.api_server.request(
                    method, f"{path}?fieldValidation=Strict", document
                )
            if status != 409 or method != "PUT":  # The operator writes a status meanwhile.
                return status, answer

    def _log(self) -> str:
        return (self._folder / "operator.log").read_text(errors="replace")


class _StatefulSets(threading.Thread):
    """Makes pods. Those of the good Cluster are ready; all others stay as they were made."""

    def __init__(self, api_server: RunningApiServer) -> None:
        super().__init__(name="stateful-sets", daemon=True)
        self._api_server = api_server
        self._ends = threading.Event()
        self._told: set[str] = set()

    def stop(self) -> None:
        """End it."""
        self._ends.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        """Look at all StatefulSets again and again."""
        while not self._ends.wait(0.2):
            for stateful_set in self._list("/apis/apps/v1/statefulsets"):
                self._make_pods(stateful_set)

    def _list(self, path: str) -> Iterable[Document]:
        items: list[Document] = self._api_server.request("GET", path)[1]["items"]
        return items

    def _make_pods(self, stateful_set: Document) -> None:
        metadata, spec = stateful_set["metadata"], stateful_set["spec"]
        pods = f"/api/v1/namespaces/{metadata['namespace']}/pods"
        is_good = metadata["name"] == f"{GOOD}-b"
        self._observe(stateful_set)
        for number in range(spec["replicas"]):
            name = f"{metadata['name']}-{number}"
            if self._api_server.request("GET", f"{pods}/{name}")[0] == 200:
                continue
            template = spec["template"]
            claimed = [template["metadata"]["name"] for template in spec["volumeClaimTemplates"]]
            volumes = [
                {"name": claim, "persistentVolumeClaim": {"claimName": f"{claim}-{name}"}}
                for claim in claimed
            ]
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**template["metadata"], "name": name},
                "spec": {
                    **template["spec"],
                    "volumes": [*volumes, *template["spec"]["volumes"]],
                },
            }
            status, answer = self._api_server.request("POST", pods, pod)
            if status != 201:
                self._tell(stateful_set, answer["message"])
            elif is_good:
                conditions = [{"type": "Ready", "status": "True"}]
                answer["status"] = {"phase": "Running", "conditions": conditions}
                self._api_server.request("PUT", f"{pods}/{name}/status", answer)

    def _observe(self, stateful_set: Document) -> None:
        """Have its status be of its newest state; no revision: all pods count as current."""
        metadata = stateful_set["metadata"]
        if stateful_set["status"].get("observedGeneration") == metadata["generation"]:
            return
        where = f"/apis/apps/v1/namespaces/{metadata['namespace']}/statefulsets/{metadata['name']}"
        status = {"replicas": 0, "observedGeneration": metadata["generation"]}
        self._api_server.request("PUT", f"{where}/status", {**stateful_set, "status": status})

    def _tell(self, stateful_set: Document, why: str) -> None:
        metadata = stateful_set["metadata"]
        if metadata["uid"] in self._told:
            return
        self._told.add(metadata["uid"])
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "failed-", "namespace": metadata["namespace"]},
            "involvedObject": {
                "apiVersion": "apps/v1",
                "kind": "StatefulSet",
                "name": metadata["name"],
                "namespace": metadata["namespace"],
                "uid": metadata["uid"],
            },
            "reason": "FailedCreate",
            "message": f"create Pod in StatefulSet {metadata['name']} failed error: {why}",
            "type": "Warning",
            "lastTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/events"
        status, answer = self._api_server.request("POST", path, event)
        assert status == 201, answer


@contextlib.contextmanager
def _deep_documents() -> Iterator[None]:
    """Have Python write documents that are deeper than its own limit."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _judged(case: Case, reason: str, message: str) -> Outcome:
    missing = [text for text in case.says if text not in message]
    if reason != case.reason:
        missing.insert(0, f"the reason {case.reason!r}" if case.reason else "a refusal")
    return Outcome(reason=reason, message=message, missing=tuple(missing))


def _tells(condition: Document, case: Case) -> bool:
    told = [text in condition["message"] for text in case.says]
    return bool(condition["reason"] == case.reason and all(told))


def _condition(document: Document, type_: str) -> Document | None:
    """Return a condition, if it is of the resource as it is now."""
    generation = document["metadata"]["generation"]
    conditions: list[Document] = (document.get("status") or {}).get("conditions") or []
    for condition in conditions:
        if condition["type"] == type_ and condition["observedGeneration"] == generation:
            return condition
    return None


def _is_true(condition: Document) -> bool:
    return bool(condition["status"] == "True")


def _named(resource: Document, name: str) -> Document:
    return {**resource, "metadata": {"name": name, **resource["metadata"]}}


def _complete(resource: Document, before: Any) -> Document:
    """Return the spec that is changed; what it does not say is as afterwards."""
    kept = {"clusterRef": {"name": GOOD}} if resource["kind"] != "Cluster" else {}
    return {**kept, **before}


def _path(kind: str, namespace: str, name: str) -> str:
    if kind == "Namespace":
        return "/api/v1/namespaces"
    root = "/api/v1" if kind == "ConfigMap" else "/apis/millrace.dev/v1beta1"
    path = f"{root}/namespaces/{namespace}/{_PLURALS[kind]}"
    return f"{path}/{name}" if name else path
