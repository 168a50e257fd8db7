"""Brokers that share a node, though another node could take one of them.

Brokers keep off each other's nodes when they are scheduled. After the loss of a node its broker may
have no other choice than a node that has one; and when there is a node again, Kubernetes moves
nothing. The loss of the shared node would then take two brokers at once. This finds that and names
who may move. Nothing is moved: whether the scheduler would take the free node, by its room and all
other rules, is known to nobody else, and a broker that came back to where it was would be restarted
again and again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from millrace.operator.model.objects import Document
from millrace.operator.plan.lost import claim_names
from millrace.operator.plan.selectors import can_be_used_on, selects

_KEEPING_OFF: Final = {"NoSchedule", "NoExecute"}
"""Effects of taints."""


@dataclass(frozen=True, slots=True)
class Crowd:
    """Brokers that share a node.

    Attributes:
        node: its name.
        brokers: their names.
        movable: one of them that may run elsewhere.
        free: such a node, which has no broker of the cluster.
    """

    node: str
    brokers: tuple[str, ...]
    movable: str
    free: str


def shared_nodes(pods: Iterable[Document]) -> dict[str, list[Document]]:
    """Return the nodes that have more than one broker, with the brokers' pods."""
    by_node: dict[str, list[Document]] = {}
    for pod in pods:
        name = pod["spec"].get("nodeName")
        if name and "deletionTimestamp" not in pod["metadata"]:
            by_node.setdefault(name, []).append(pod)
    return {name: found for name, found in by_node.items() if len(found) > 1}


def crowds(
    pods: Sequence[Document],
    nodes: Iterable[Document],
    claims: Iterable[Document],
    volumes: Mapping[str, Document],
) -> list[Crowd]:
    """Return the brokers that share a node without need.

    Args:
        pods: of all brokers of a cluster.
        nodes: of Kubernetes.
        claims: of the brokers.
        volumes: PersistentVolumes by name.
    """
    taken = {pod["spec"].get("nodeName") for pod in pods}
    free = [node for node in nodes if node["metadata"]["name"] not in taken and _is_open(node)]
    by_name = {claim["metadata"]["name"]: claim for claim in claims}
    found = []
    for name, sharing in sorted(shared_nodes(pods).items()):
        for pod in sorted(sharing, key=_name, reverse=True):
            bound = [
                by_name[claim]["spec"].get("volumeName")
                for claim in claim_names(pod)
                if claim in by_name
            ]
            needs = [volumes[volume] for volume in bound if volume in volumes]
            place = next((node for node in free if _takes(node, pod, needs)), None)
            if place is not None:
                brokers = tuple(sorted(map(_name, sharing)))
                found.append(Crowd(name, brokers, _name(pod), place["metadata"]["name"]))
                break
    return found


def _name(pod: Document) -> str:
    name: str = pod["metadata"]["name"]
    return name


def _is_open(node: Document) -> bool:
    """Whether a node is ready, and takes pods."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    is_ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in conditions
    )
    return is_ready and not (node.get("spec") or {}).get("unschedulable")


def _takes(node: Document, pod: Document, volumes: Iterable[Document]) -> bool:
    """Whether a node may take a pod, as far as labels, taints and volumes say."""
    labels = node["metadata"].get("labels") or {}
    spec = pod["spec"]
    tolerations = spec.get("tolerations") or ()
    if any(
        taint.get("effect") in _KEEPING_OFF and not any(_tolerates(t, taint) for t in tolerations)
        for taint in (node.get("spec") or {}).get("taints") or ()
    ):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None and not any(
        selects(term, labels) for term in required.get("nodeSelectorTerms") or ()
    ):
        return False
    return selects({"matchLabels": spec.get("nodeSelector")}, labels) and all(
        can_be_used_on(volume, labels) for volume in volumes
    )


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    key, is_any = toleration.get("key"), toleration.get("operator") == "Exists"
    if not key:
        return is_any
    return bool(key == taint.get("key")) and (
        is_any or (toleration.get("value") or "") == (taint.get("value") or "")
    )
