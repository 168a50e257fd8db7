"""Faults on a real Kubernetes, by their names, and the scene that they are injected in.

A fault breaks something, or requests a change, and repairs machines and the API server itself;
afterwards the round waits until the product has repaired the rest.
"""

import json
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from e2e.cluster.commands import CommandError
from e2e.cluster.native import NativeCluster
from e2e.cluster.node import Node
from e2e.faults.metadata import Watcher
from e2e.installed import SYSTEM, Namespace, cluster
from e2e.load.pod import LoadPod
from tests.faults.catalogue import Catalogue, NotSeenError, Seeing
from tests.faults.metadata import View

Document = dict[str, Any]

CLUSTER: Final = "logs"
POOL: Final = "brokers"
BROKERS: Final = 3
TOPICS: Final = ("t0", "t1", "t2")
PARTITIONS: Final = 3
"""Of each topic of the load."""
SETTINGS: Final = {"cluster": {"address_settle_ms": 12_000}}
"""Of the brokers: this cluster's DNS caches an address for 10 s."""

_FAILED: Final = '"event": "broker_failed"'
_WHOLE_SECONDS_MAX: Final = 300.0
_LOOK_AGAIN_SECONDS: Final = 1.0
_BROKERS: Final = "--selector=app.kubernetes.io/component=broker"
_OPERATORS: Final = "--selector=app.kubernetes.io/component=operator"
_LEASE: Final = "lease/millrace-operator"


def failures_of(pod: Document) -> list[str]:
    """Return what a broker's pod said before it ended by an error, and not by a signal."""
    ended = (
        status.get("lastState", {}).get("terminated", {})
        for status in pod.get("status", {}).get("containerStatuses", ())
    )
    return [
        f"{pod['metadata']['name']} ended at {state['finishedAt']}: {state['message']}"
        for state in ended
        if _FAILED in state.get("message", "")
    ]


@dataclass
class Scene(Seeing):
    """The setting of faults.

    Attributes:
        home: name of the load's node, which is never broken.
        releases: versions of two images of the product; brokers begin with the first.
        spec: of the Cluster, as it was last applied.
        told: what `failed_brokers` has returned.
    """

    seen_seconds_max: ClassVar[float] = 60.0

    kubernetes: NativeCluster
    namespace: Namespace
    load: LoadPod
    watcher: Watcher
    dice: random.Random
    home: str
    releases: list[str]
    spec: dict[str, Any] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    # --- The Cluster -------------------------------------------------------------------------

    def apply(self, **spec: Any) -> None:
        """Apply the Cluster with some fields changed."""
        self.spec |= spec
        self.namespace.apply(cluster(CLUSTER, **self.spec))

    def scale(self, replicas: int) -> None:
        """Apply the Cluster with another number of brokers."""
        (pool,) = self.spec["pools"]
        self.apply(pools=[pool | {"replicas": replicas}])

    @property
    def wanted(self) -> int:
        """The requested number of brokers."""
        replicas: int = self.spec["pools"][0]["replicas"]
        return replicas

    def conditions(self) -> Mapping[str, Document]:
        """The Cluster's conditions by type, without those of an older spec."""
        found = self.namespace.get(f"cluster.millrace.dev/{CLUSTER}")
        return {
            condition["type"]: condition
            for condition in found.get("status", {}).get("conditions", ())
            if condition["observedGeneration"] == found["metadata"]["generation"]
        }

    def wait_until_whole(self) -> None:
        """Return once nodes, pods, replicas and the Cluster's conditions are as required.

        Raises:
            AssertionError: says what is missing.
        """
        deadline = time.monotonic() + _WHOLE_SECONDS_MAX
        while missing := self._missing():
            assert time.monotonic() < deadline, (
                f"not whole within {_WHOLE_SECONDS_MAX:g} s: {missing}"
            )
            time.sleep(_LOOK_AGAIN_SECONDS)

    def _missing(self) -> str:
        view = self.watcher.view
        if view is None:
            return "no metadata"
        if missing := view.what_is_missing():
            return missing
        for broker in view.cluster.brokers.values():
            if broker.reluctance:
                return f"{broker.name} would rather not lead: {broker.reluctance}"
        try:
            for node in self.kubernetes.kubectl.get("nodes")["items"]:
                if not _is_true(node, "Ready"):
                    return f"{node['metadata']['name']} is not ready"
            pods = self.pods()
            if len(pods) != self.wanted or not all(_is_true(pod, "Ready") for pod in pods.values()):
                return f"of {self.wanted} brokers {len(pods)} are there, and not all are ready"
            conditions = self.conditions()
        except CommandError as error:
            return str(error)
        for condition in conditions.values():
            if condition["status"] != "True":
                kind, status = condition["type"], condition["status"]
                return f"{kind} is {status}: {condition['reason']}: {condition['message']}"
        return "" if conditions else "no conditions of the newest spec"

    # --- The metadata ------------------------------------------------------------------------

    @property
    def view(self) -> View:
        """The present metadata."""
        found = self.watcher.view
        assert found is not None
        return found

    def key(self) -> int:
        """Any of the load's partitions."""
        return self.dice.choice(self.view.places.keys)

    def leader(self, key: int) -> str:
        """The name of the leader's pod of a partition."""
        return self.name_of(self.view.partition(key).leader)

    def name_of(self, broker_id: int) -> str:
        """The name of a broker and of its pod."""
        name: str = self.view.cluster.brokers[broker_id].name  # type: ignore[index]
        return name

    def any_topic(self) -> str:
        """The resource name of any of the load's topics."""
        return self.dice.choice(self.view.places.topics).rpartition("/")[2]

    # --- Pods and nodes ----------------------------------------------------------------------

    def pods(self) -> dict[str, Document]:
        """The brokers' pods by name."""
        found = self.namespace.get("pods", _BROKERS)["items"]
        return {pod["metadata"]["name"]: pod for pod in found}

    def failed_brokers(self) -> list[str]:
        """What brokers said that have ended by themselves, each once."""
        found = [said for pod in self.pods().values() for said in failures_of(pod)]
        new = [said for said in found if said not in self.told]
        self.told.update(new)
        return new

    def uids(self) -> dict[str, str]:
        """The brokers' pods' uids by name."""
        return {name: pod["metadata"]["uid"] for name, pod in self.pods().items()}

    def delete_pod(self, name: str, *, grace_s: int = 0) -> None:
        """Delete a pod; without a grace period do not wait for its end."""
        force = () if grace_s else ("--force",)
        choices = (f"--grace-period={grace_s}", *force, "--wait=false")
        self.namespace("delete", "pod", name, *choices)

    def wait_for_other_pods(self, before: Mapping[str, str], seconds: float = 240.0) -> None:
        """Wait until each of some pods was replaced by another one of its name.

        Raises:
            NotSeenError: they are not in time.
        """

        def are_others() -> bool:
            now = self.uids()
            return all(name in now and now[name] != uid for name, uid in before.items())

        self.until(are_others, f"pods {sorted(before)} are others", seconds)

    def node_of(self, pod: str) -> Node:
        """The node of a pod."""
        return self.kubernetes.node_of(pod, self.namespace.name)

    def away_from_home(self) -> str:
        """Name of a broker's pod on a node that may be broken.

        Raises:
            NotSeenError: all are on the load's node.
        """
        found = [
            name
            for name, pod in sorted(self.pods().items())
            if pod["spec"].get("nodeName", self.home) != self.home
        ]
        if not found:
            raise NotSeenError("all brokers are on the node of the load")
        return self.dice.choice(found)

    def alone_on_its_node(self) -> str:
        """Name of a broker's pod that has its node for itself.

        Raises:
            NotSeenError: there is none.
        """
        nodes = {name: pod["spec"].get("nodeName") for name, pod in sorted(self.pods().items())}
        found = [name for name, node in nodes.items() if list(nodes.values()).count(node) == 1]
        if not found:
            raise NotSeenError("each broker's node has another one, too")
        return self.dice.choice(found)

    def led_key(self, pod: str) -> int:
        """Any partition that a broker leads.

        Raises:
            NotSeenError: it leads none.
        """
        return self.dice.choice(self.led_keys(pod))

    def signal(self, pod: str, name: str, namespace: str = "") -> None:
        """Send a signal to the first process of a pod's only container."""
        self.kubernetes.signal_pod(pod, name, namespace or self.namespace.name)

    def is_node_ready(self, node: Node) -> bool:
        """Whether Kubernetes says that a node is ready."""
        return _is_true(self.kubernetes.kubectl.get(f"node/{node.name}"), "Ready")

    # --- The operator ------------------------------------------------------------------------

    @property
    def acting_operator(self) -> str:
        """The name of the operator's pod that holds its Lease; empty: none does."""
        lease = self.kubernetes.kubectl.get(_LEASE, f"--namespace={SYSTEM}")
        return lease["spec"].get("holderIdentity") or ""

    def kill_operators(self) -> str:
        """Delete all operators' pods without a grace period; return a description."""
        system = f"--namespace={SYSTEM}"
        found = self.kubernetes.kubectl.get("pods", system, _OPERATORS)["items"]
        names = sorted(pod["metadata"]["name"] for pod in found)
        force = ("--grace-period=0", "--force", "--wait=false")
        self.kubernetes.kubectl("delete", "pod", system, *force, *names)
        return f"{len(names)} operators were killed"

    def take_operator_lease(self, holder: str) -> None:
        """Write another holder into the operator's Lease."""
        spec = {"holderIdentity": holder, "renewTime": "2999-01-01T00:00:00.000000Z"}
        patch = ("--type=merge", "--patch", json.dumps({"spec": spec}))
        self.kubernetes.kubectl("patch", _LEASE, f"--namespace={SYSTEM}", *patch)

    # --- Waiting -----------------------------------------------------------------------------

    def until(self, is_so: Callable[[], object], what: str, seconds: float = 120.0) -> None:
        """Return once a condition holds; an error while checking it counts as false.

        Raises:
            NotSeenError: it does not in time.
        """
        deadline = time.monotonic() + seconds
        while True:
            try:
                if is_so():
                    return
                why = ""
            except CommandError as error:
                why = f": {error}"
            if time.monotonic() > deadline:
                raise NotSeenError(f"not within {seconds:g} s: {what}{why}")
            time.sleep(_LOOK_AGAIN_SECONDS)

    def wait_for_condition(self, name: str, reason: str, seconds: float = 180.0) -> str:
        """Wait until a condition of the Cluster has a reason; return its message."""
        self.until(
            lambda: self.conditions().get(name, {}).get("reason") == reason,
            f"condition {name} says {reason}",
            seconds,
        )
        message: str = self.conditions()[name]["message"]
        return message


FAULTS: Final = Catalogue[Scene]()
fault = FAULTS.fault


def _is_true(document: Document, condition: str) -> bool:
    return any(
        found["type"] == condition and found["status"] == "True"
        for found in document["status"].get("conditions", ())
    )
