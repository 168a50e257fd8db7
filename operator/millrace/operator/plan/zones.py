"""The zone of a broker whose pool names none: that of its node.

A pod cannot see its node's labels, and its node is known only once it is scheduled. So the operator
reads the Node and writes its zone onto the pod, as annotations; an init container of the pod waits
for them, and the broker gets the zone from its environment. Without them the pod starts after a
minute without a zone, until its next restart: a broker must start without an operator, too. The
cluster knows the zone that the broker had last (P77).

The alternative, used by Strimzi, lets every broker read all Nodes: that takes a ClusterRoleBinding
for each Cluster, which is not deleted with the namespace or the owner. From Kubernetes 1.35 on pods
have this label of their node themselves; once no earlier release is supported, this can be removed.
"""

from collections.abc import Iterable, Mapping, Sequence

from millrace.operator.model.objects import (
    NODE_ANNOTATION,
    WAITS_FOR_ZONE,
    ZONE_ANNOTATION,
    ZONE_LABEL,
    Document,
)
from millrace.operator.plan.pods import is_unscheduled


def untold(pods: Iterable[Document]) -> list[Document]:
    """Return the pods that have a node, and wait for its zone."""
    return [
        pod
        for pod in pods
        if _waits(pod)
        and pod["spec"].get("nodeName")
        and _annotations(pod).get(NODE_ANNOTATION) != pod["spec"]["nodeName"]
    ]


def is_any_to_come(pods: Sequence[Document]) -> bool:
    """Return whether a pod is about to get a node, so that looking again soon is worth it."""
    return any(
        _waits(pod)
        and not pod["spec"].get("nodeName")
        and not is_unscheduled(pod.get("status") or {})
        for pod in pods
    )


def annotations(node: Document) -> Mapping[str, str]:
    """Return the annotations of a pod on this node."""
    metadata = node["metadata"]
    zone = (metadata.get("labels") or {}).get(ZONE_LABEL, "")
    return {ZONE_ANNOTATION: zone, NODE_ANNOTATION: metadata["name"]}


def _waits(pod: Document) -> bool:
    containers = pod["spec"].get("initContainers") or ()
    return any(container["name"] == WAITS_FOR_ZONE for container in containers)


def _annotations(pod: Document) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}
