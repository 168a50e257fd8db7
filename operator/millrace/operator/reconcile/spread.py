"""Looks whether brokers share a node without need."""

from collections.abc import Sequence

from millrace.operator.kube.api import Api
from millrace.operator.kube.kinds import CLAIM, NODE, VOLUME
from millrace.operator.model.cluster import Cluster
from millrace.operator.model.objects import CLUSTER_LABEL, Document
from millrace.operator.plan.spread import Crowd, crowds, shared_nodes


async def find_crowds(api: Api, cluster: Cluster, pods: Sequence[Document]) -> list[Crowd]:
    """Return the brokers that share a node though another one could take one of them.

    Args:
        api: asked for nodes and volumes only where brokers share a node.
        cluster: theirs.
        pods: of the brokers.

    Raises:
        ApiError: the API server did not answer.
    """
    if not shared_nodes(pods):
        return []
    return crowds(
        pods,
        await api.list(NODE),
        await api.list(CLAIM, cluster.namespace, {CLUSTER_LABEL: cluster.name}),
        {volume["metadata"]["name"]: volume for volume in await api.list(VOLUME)},
    )
