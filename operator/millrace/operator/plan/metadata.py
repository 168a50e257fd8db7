"""Whether a cluster's metadata is deleted with it: the owner of the metadata in the API server.

Volumes and metadata belong together: either is useless without the other. If the volumes are
deleted with the Cluster, it owns the metadata, too, and the garbage collector of Kubernetes deletes
it, without an operator. If the volumes stay, the metadata has no owner, and a Cluster of the same
name takes both over.

Metadata that still belongs to an earlier Cluster of the name is about to be deleted. A new cluster
begins once it is gone: otherwise it would refer to volumes that are gone.
"""

from collections.abc import Iterable
from typing import Final

from millrace.operator.model.cluster import Cluster, VolumeDeletion
from millrace.operator.model.objects import Document

_API_VERSION: Final = "millrace.dev/v1beta1"
_KIND: Final = "Cluster"


def belongs_to_predecessor(cluster: Cluster, document: Document) -> bool:
    """Return whether an object belongs to an earlier Cluster of the same name."""
    return any(
        _is_cluster(owner) and owner["name"] == cluster.name and owner["uid"] != cluster.uid
        for owner in document["metadata"].get("ownerReferences") or ()
    )


def owners_wanted(cluster: Cluster, document: Document) -> list[Document] | None:
    """Return the owners that an object with metadata should have; None: it has them."""
    found = document["metadata"].get("ownerReferences") or []
    wanted = [owner for owner in found if not _is_cluster(owner)]
    if cluster.spec.volume_deletion is VolumeDeletion.DELETE:
        wanted += [owner for owner in found if owner["uid"] == cluster.uid] or [_owner(cluster)]
    return None if _uids(found) == _uids(wanted) else wanted


def _is_cluster(owner: Document) -> bool:
    return bool(owner["apiVersion"] == _API_VERSION and owner["kind"] == _KIND)


def _owner(cluster: Cluster) -> Document:
    return {
        "apiVersion": _API_VERSION,
        "kind": _KIND,
        "name": cluster.name,
        "uid": cluster.uid,
    }


def _uids(owners: Iterable[Document]) -> set[str]:
    return {owner["uid"] for owner in owners}
