"""Names of the API server's resources for the objects of the coordination store.

| key         | resource                            | name          |
|-------------|-------------------------------------|---------------|
| `cluster`   | `clusterstates.millrace.dev`        | `<cluster>`   |
| `shards/07` | `stateshards.millrace.dev`          | `<cluster>-07`|
| (the lease) | `leases.coordination.k8s.io`        | `<cluster>-controller` |

All carry the label `millrace.dev/cluster`, so that several clusters can share a namespace.
"""

from dataclasses import dataclass
from typing import Final

from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS

CLUSTER_LABEL: Final = "millrace.dev/cluster"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of resource."""

    api_version: str
    name: str
    plural: str


CLUSTER_STATE: Final = Kind("millrace.dev/v1", "ClusterState", "clusterstates")
STATE_SHARD: Final = Kind("millrace.dev/v1", "StateShard", "stateshards")
LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")


@dataclass(frozen=True, slots=True)
class Resource:
    """One object of the API server."""

    kind: Kind
    namespace: str
    name: str

    @property
    def collection(self) -> str:
        """The path under which it is created."""
        return f"/apis/{self.kind.api_version}/namespaces/{self.namespace}/{self.kind.plural}"

    @property
    def path(self) -> str:
        """The path of the object."""
        return f"{self.collection}/{self.name}"

    @property
    def watching(self) -> str:
        """The path that watches the object alone, to be added to with `&`."""
        return f"{self.collection}?watch=1&fieldSelector=metadata.name%3D{self.name}"

    def __str__(self) -> str:
        return f"{self.kind.name} {self.namespace}/{self.name}"


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
