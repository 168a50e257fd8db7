"""Growing volumes: which claims grow, and what that waits for.

Claims grow while they are used, if their storage class allows it. A StatefulSet cannot change the
size in its templates of claims, so it is deleted without its pods and recreated, and takes the pods
over: nothing restarts. New brokers then begin with volumes of the new size. The annotation of
`kubectl rollout restart` in its template is carried over, by way of the pool's ConfigMap.

Some drivers let a file system grow only when it is mounted. A claim of such a driver keeps the
condition `FileSystemResizePending`: after a while the broker is restarted, in the order and with
the care of any other restart.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final

from millrace.operator.model.cluster import Cluster, Volume
from millrace.operator.model.objects import Document, pool_object_name
from millrace.operator.model.quantities import amount

RESTARTED_ANNOTATION: Final = "kubectl.kubernetes.io/restartedAt"
_FAILED: Final = frozenset({"ControllerResizeError", "NodeResizeError"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """What to do about the size of volumes.

    Attributes:
        recreate: StatefulSets to delete without their pods.
        grow: claims, each with the storage to request.
        restart: pods by name, each with the reason.
        under_way: claims that are not as large as they should be yet.
        problem: why some will not be; empty: there is no obstacle.
    """

    recreate: tuple[Document, ...] = ()
    grow: tuple[tuple[Document, str], ...] = ()
    restart: Mapping[str, str] = field(default_factory=dict)
    under_way: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim of a broker and its wanted size."""

    document: Document
    pod: str
    size: str

    @property
    def name(self) -> str:
        name: str = self.document["metadata"]["name"]
        return name

    @property
    def wanted(self) -> Decimal:
        return amount(self.size)

    @property
    def requested(self) -> Decimal:
        return _storage(self.document["spec"]["resources"]["requests"])

    @property
    def is_small(self) -> bool:
        """Whether the volume is smaller than requested."""
        capacity = self._status.get("capacity") or {}
        return self.is_bound and _storage(capacity) < self.requested

    @property
    def is_bound(self) -> bool:
        return self._status.get("phase") == "Bound"

    def condition(self, *types: str) -> Mapping[str, Any] | None:
        """Return a condition of one of these types that holds."""
        for condition in self._status.get("conditions") or ():
            if condition["type"] in types and condition.get("status") == "True":
                found: Mapping[str, Any] = condition
                return found
        return None

    @property
    def _status(self) -> Mapping[str, Any]:
        return self.document.get("status") or {}


def growth(
    cluster: Cluster,
    stateful_sets: Sequence[Document],
    pods: Sequence[Document],
    claims: Sequence[Document],
    classes: Mapping[str, Document],
    *,
    long_ago: str,
) -> Growth:
    """Return what to do about volumes that should be larger.

    Args:
        claims: of the cluster.
        classes: storage classes by name.
        long_ago: a file system that waits to grow since then has its pod restarted; as the API
            server writes times.
    """
    made = {pod["metadata"]["name"]: pod["metadata"]["creationTimestamp"] for pod in pods}
    grow, under_way, problems = [], [], []
    restart: dict[str, str] = {}
    for claim in _claims(cluster, pods, claims):
        if claim.requested < claim.wanted:
            under_way.append(claim.name)
            if not claim.is_bound:
                continue  # Only a bound claim can grow; it will be bound.
            class_name = claim.document["spec"].get("storageClassName") or ""
            if (classes.get(class_name) or {}).get("allowVolumeExpansion"):
                grow.append((claim.document, claim.size))
            else:
                problems.append(
                    f"{claim.name}: its storage class {class_name!r} lets no claim grow"
                )
        elif claim.is_small:
            under_way.append(claim.name)
            if failed := claim.condition(*_FAILED):
                problems.append(f"{claim.name}: {failed.get('message') or failed['type']}")
            elif since := _pending_since(claim, long_ago):
                if made.get(claim.pod, "") < since:
                    restart[claim.pod] = f"{claim.name} grows when it is mounted again"
                else:
                    problems.append(f"{claim.name}: did not grow when it was mounted again")
    return Growth(
        recreate=tuple(_outgrown(cluster, stateful_sets)),
        grow=tuple(grow),
        restart=restart,
        under_way=tuple(under_way),
        problem="; ".join(problems),
    )


def restarted_at(document: Document) -> str | None:
    """Return the time of the last `kubectl rollout restart`, from a template or a note of it."""
    annotations = (document.get("metadata") or {}).get("annotations") or {}
    found: str | None = annotations.get(RESTARTED_ANNOTATION)
    return found


def needs_classes(cluster: Cluster, pods: Sequence[Document], claims: Sequence[Document]) -> bool:
    """Return whether the storage classes are needed."""
    return any(claim.requested < claim.wanted for claim in _claims(cluster, pods, claims))


def _claims(
    cluster: Cluster, pods: Sequence[Document], claims: Sequence[Document]
) -> Iterator[_Claim]:
    there = {claim["metadata"]["name"]: claim for claim in claims}
    names = {pod["metadata"]["name"] for pod in pods}
    for pool in cluster.spec.pools:
        prefix = pool_object_name(cluster.name, pool.name)
        # A pod that is being recreated has its claims all the while.
        names.update(f"{prefix}-{number}" for number in range(pool.replicas))
        for pod in sorted(names):
            if pod.rpartition("-")[0] != prefix:
                continue
            for volume in pool.volumes:
                claim = there.get(f"{volume.name}-{pod}")
                if claim is not None and "deletionTimestamp" not in claim["metadata"]:
                    yield _Claim(claim, pod, str(volume.size))


def _outgrown(cluster: Cluster, stateful_sets: Sequence[Document]) -> Iterator[Document]:
    """The StatefulSets whose templates request too little storage."""
    by_name = {stateful_set["metadata"]["name"]: stateful_set for stateful_set in stateful_sets}
    for pool in cluster.spec.pools:
        found = by_name.get(pool_object_name(cluster.name, pool.name))
        if found is None or "deletionTimestamp" in found["metadata"]:
            continue
        sizes = {
            template["metadata"]["name"]: _storage(template["spec"]["resources"]["requests"])
            for template in found["spec"].get("volumeClaimTemplates") or ()
        }
        if any(sizes.get(volume.name, _size(volume)) != _size(volume) for volume in pool.volumes):
            yield found


def _pending_since(claim: _Claim, long_ago: str) -> str:
    """Return since when a file system has waited too long; empty: it does not."""
    pending = claim.condition("FileSystemResizePending")
    since: str = "" if pending is None else pending.get("lastTransitionTime") or ""
    return since if since < long_ago else ""


def _size(volume: Volume) -> Decimal:
    return amount(volume.size)


def _storage(resources: Mapping[str, Any]) -> Decimal:
    return amount(resources.get("storage", 0))
