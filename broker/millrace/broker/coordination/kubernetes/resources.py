"""Names of the API server's resources for the objects of the coordination store.

| key         | resource                            | name          |
|-------------|-------------------------------------|---------------|
| `cluster`   | `clusterstates.millrace.dev`        | `<cluster>`   |
| `shards/07` | `stateshards.millrace.dev`          | `<cluster>-07`|
| (the lease) | `leases.coordination.k8s.io`        | `<cluster>-controller` |

All carry the label `millrace.dev/cluster`, so that several clusters can share a namespace.
"""

from typing import Final

from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS
from millrace.runtime.kubernetes.resources import LEASE, Kind, Resource

CLUSTER_LABEL: Final = "millrace.dev/cluster"


CLUSTER_STATE: Final = Kind("millrace.dev/v1", "ClusterState", "clusterstates")
STATE_SHARD: Final = Kind("millrace.dev/v1", "StateShard", "stateshards")


class ClusterResources:
    """The resources of one cluster."""

    def __init__(self, namespace: str, cluster_name: str) -> None:
        self.labels: Final = {CLUSTER_LABEL: cluster_name}
        self.lease: Final = Resource(LEASE, namespace, f"{cluster_name}-controller")
        self.objects: Final = {
            CLUSTER_KEY: Resource(CLUSTER_STATE, namespace, cluster_name),
            **{
                key: Resource(STATE_SHARD, namespace, f"{cluster_name}-{key.rpartition('/')[2]}")
                for key in SHARD_KEYS
            },
        }
