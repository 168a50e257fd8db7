"""Which brokers may ask the API server whose tokens are shown, and what those may do.

These rights are not of a namespace, and an object of a Cluster cannot give them: nothing that is
not in a namespace is deleted with it. So one ClusterRoleBinding, which is installed with the
operator, has the ServiceAccounts of all Clusters that need them, and of no others (G10).
"""

from collections.abc import Sequence

from millrace.operator.model.objects import Document, broker_account
from millrace.operator.model.security import AccessMode


def reviewers(clusters: Sequence[Document]) -> list[Document]:
    """Return the subjects of the binding, in a fixed order.

    Args:
        clusters: all Clusters of all namespaces.
    """
    found = sorted(
        (cluster["metadata"]["namespace"], broker_account(cluster["metadata"]["name"]))
        for cluster in clusters
        if _asks(cluster) and "deletionTimestamp" not in cluster["metadata"]
    )
    return [
        {"kind": "ServiceAccount", "namespace": namespace, "name": name}
        for namespace, name in found
    ]


def _asks(cluster: Document) -> bool:
    """Whether its brokers ask, or are about to."""
    security = (cluster.get("status") or {}).get("security") or {}
    access = cluster["spec"].get("access")
    said = AccessMode.DISABLED if access is None else access.get("mode", AccessMode.ENFORCED)
    return {said, security.get("access", AccessMode.DISABLED)} != {AccessMode.DISABLED}
