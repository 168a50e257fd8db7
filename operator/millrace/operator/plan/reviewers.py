"""Which brokers may ask the API server whose tokens are shown, and what those may do.

These rights are not of a namespace, and an object of a Cluster cannot give them: nothing that is
not in a namespace is deleted with it. So one ClusterRoleBinding, which is installed with the
operator, has the ServiceAccounts of all Clusters that need them, and of no others (G10).
"""

from collections.abc import Sequence

from millrace.operator.model.objects import Document, broker_account


def reviewers(clusters: Sequence[Document]) -> list[Document]:
    """Return the subjects of the binding, in a fixed order.

    Args:
        clusters: all Clusters of all namespaces.
    """
    found = sorted(
        (cluster["metadata"]["namespace"], broker_account(cluster["metadata"]["name"]))
        for cluster in clusters
        if cluster["spec"].get("access") is not None
        and "deletionTimestamp" not in cluster["metadata"]
    )
    return [
        {"kind": "ServiceAccount", "namespace": namespace, "name": name}
        for namespace, name in found
    ]
