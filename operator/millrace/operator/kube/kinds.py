"""The kinds of object that the operator reads or writes, known by their version and name."""

from typing import Final

from millrace.operator.model.objects import Document
from millrace.runtime.kubernetes.resources import Kind

CLUSTER: Final = Kind("millrace.dev/v1beta1", "Cluster", "clusters")
TOPIC: Final = Kind("millrace.dev/v1beta1", "Topic", "topics")
QUOTA: Final = Kind("millrace.dev/v1beta1", "Quota", "quotas")
CLUSTER_STATE: Final = Kind("millrace.dev/v1", "ClusterState", "clusterstates")
STATE_SHARD: Final = Kind("millrace.dev/v1", "StateShard", "stateshards")
STATEFUL_SET: Final = Kind("apps/v1", "StatefulSet", "statefulsets")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
SECRET: Final = Kind("v1", "Secret", "secrets")
POD: Final = Kind("v1", "Pod", "pods")
SERVICE: Final = Kind("v1", "Service", "services")
CLAIM: Final = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
VOLUME: Final = Kind("v1", "PersistentVolume", "persistentvolumes", is_namespaced=False)
STORAGE_CLASS: Final = Kind(
    "storage.k8s.io/v1", "StorageClass", "storageclasses", is_namespaced=False
)
NODE: Final = Kind("v1", "Node", "nodes", is_namespaced=False)
NAMESPACE: Final = Kind("v1", "Namespace", "namespaces", is_namespaced=False)
EVENT: Final = Kind("v1", "Event", "events")
CLUSTER_ROLE_BINDING: Final = Kind(
    "rbac.authorization.k8s.io/v1",
    "ClusterRoleBinding",
    "clusterrolebindings",
    is_namespaced=False,
)
SERVICE_ACCOUNT: Final = Kind("v1", "ServiceAccount", "serviceaccounts")
NETWORK_POLICY: Final = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
CERTIFICATE: Final = Kind("cert-manager.io/v1", "Certificate", "certificates")
ISSUER: Final = Kind("cert-manager.io/v1", "Issuer", "issuers")
CLUSTER_ISSUER: Final = Kind(
    "cert-manager.io/v1", "ClusterIssuer", "clusterissuers", is_namespaced=False
)
ENDPOINT_SLICE: Final = Kind("discovery.k8s.io/v1", "EndpointSlice", "endpointslices")

_ALL: Final = {
    (kind.api_version, kind.name): kind
    for kind in (
        *(CLUSTER, TOPIC, QUOTA, CLUSTER_STATE, STATE_SHARD, STATEFUL_SET, CONFIG_MAP, SECRET, POD),
        *(SERVICE, CLAIM, VOLUME, STORAGE_CLASS, NODE, NAMESPACE, EVENT),
        *(SERVICE_ACCOUNT, NETWORK_POLICY, CERTIFICATE),
        Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
        Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
        Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    )
}


def kind_of(document: Document) -> Kind:
    """Return the kind of an object."""
    return _ALL[document["apiVersion"], document["kind"]]
