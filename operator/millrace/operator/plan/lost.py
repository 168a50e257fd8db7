"""Brokers whose volumes are gone with their node, and whether they may start over without them.

A local volume can be used only on its node. While that node is away, its pod waits for it, and the
operator does, too: the node comes back with all its data. A node is gone for good when its Node was
deleted, by a person or by the cloud. Then the volume can be used on no node, and the pod would wait
for ever. A volume that is of a zone, as those of network storage are, is not lost with the zone's
last node: the next node of the zone can use it.

With `lostVolumes: Replace` the claims are deleted then, and the broker starts over elsewhere with
empty volumes. Its replicas are copied from others; so each of its partitions must have another one
in sync, on a broker that is there. A partition without one keeps the broker waiting: the volume may
have the only copy of its records. Which replicas are in sync may be said by what was known before
the nodes were lost, so a broker that is lost or fenced itself does not count.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from millrace.operator.model.objects import Document
from millrace.operator.plan.pods import is_unscheduled
from millrace.operator.plan.rolling import PartitionHealth
from millrace.operator.plan.selectors import can_be_used_on, outlives_nodes


@dataclass(frozen=True, slots=True)
class LostBroker:
    """A broker that waits for a volume which no node has.

    Attributes:
        pod: its pod.
        claims: those of its claims that are bound to such volumes.
        needed_for: partitions of which no other broker that is there has everything.
    """

    pod: Document
    claims: tuple[Document, ...]
    needed_for: tuple[str, ...]

    @property
    def name(self) -> str:
        """The broker's name."""
        name: str = self.pod["metadata"]["name"]
        return name


def lost_brokers(
    pods: Iterable[Document],
    claims: Iterable[Document],
    volumes: Mapping[str, Document],
    nodes: Sequence[Document],
    partitions: Sequence[PartitionHealth] | None,
    *,
    fenced: Collection[str] = (),
) -> list[LostBroker]:
    """Return the brokers whose node is gone for good.

    Args:
        volumes: PersistentVolumes by name.
        partitions: None: the brokers do not answer; then every broker is needed.
        fenced: brokers that the controller takes for dead.
    """
    labels = [node["metadata"].get("labels") or {} for node in nodes]
    by_name = {claim["metadata"]["name"]: claim for claim in claims}
    found = []
    for pod in pods:
        if not is_unscheduled(pod.get("status") or {}):
            continue
        lost = tuple(
            by_name[name]
            for name in claim_names(pod)
            if name in by_name and _is_lost(by_name[name], volumes, labels)
        )
        if lost:
            found.append((pod, lost))
    away = {*fenced, *(pod["metadata"]["name"] for pod, _ in found)}
    return [
        LostBroker(pod, lost, _needed_for(pod["metadata"]["name"], away, partitions))
        for pod, lost in found
    ]


def claim_names(pod: Document) -> list[str]:
    """Return the names of the claims that a pod uses."""
    return [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    ]


def _is_lost(
    claim: Document, volumes: Mapping[str, Document], nodes: Sequence[Mapping[str, str]]
) -> bool:
    """Whether a claim is bound to a volume that can be used on no node, or is gone."""
    name = claim["spec"].get("volumeName")
    if not name:
        return False
    volume = volumes.get(name)
    return volume is None or not (
        outlives_nodes(volume) or any(can_be_used_on(volume, labels) for labels in nodes)
    )


def _needed_for(
    broker: str, away: Collection[str], partitions: Sequence[PartitionHealth] | None
) -> tuple[str, ...]:
    if partitions is None:
        return ("any partition, as no broker answers",)
    return tuple(
        partition.place
        for partition in partitions
        if broker in partition.replicas and not {*partition.in_sync}.difference(away)
    )
