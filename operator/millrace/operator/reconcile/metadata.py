"""The metadata that brokers keep in the API server: it is deleted with the Cluster, or stays."""

from millrace.operator.kube.api import Api
from millrace.operator.kube.applied import NameTakenError
from millrace.operator.kube.kinds import CLUSTER_STATE, STATE_SHARD
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.objects import CLUSTER_LABEL
from millrace.operator.plan import metadata as metadata_plan
from millrace.operator.reconcile.resources import unless_changed
from millrace.runtime.kubernetes.resources import LEASE


async def own_metadata(api: Api, cluster: Cluster) -> bool:
    """Let the metadata be deleted with the Cluster, or stay, as its volumes.

    Returns:
        Whether there is any: the first controller makes it.

    Raises:
        ApiError: the API server did not answer.
        NameTakenError: it is of an earlier Cluster of the name, and is being deleted.
    """
    is_there = False
    where, chosen = cluster.namespace, {CLUSTER_LABEL: cluster.name}
    for kind in (CLUSTER_STATE, STATE_SHARD, LEASE):
        for stored in await api.list(kind, where, chosen, is_metadata_enough=True):
            metadata = stored["metadata"]
            is_there = True
            if metadata_plan.belongs_to_predecessor(cluster, stored):
                raise NameTakenError(
                    f"{kind.name} {where}/{metadata['name']} belongs to an earlier Cluster "
                    f"{cluster.name}, and is deleted with it",
                    is_passing=True,
                )
            owners = metadata_plan.owners_wanted(cluster, stored)
            if owners is None:
                continue
            # Brokers write these: if one was first, the next look succeeds.
            same = {key: metadata[key] for key in ("uid", "resourceVersion")}
            change = {"metadata": {**same, "ownerReferences": owners}}
            await unless_changed(api.patch(kind, where, metadata["name"], change))
    return is_there
