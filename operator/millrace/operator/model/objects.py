"""The objects that a Cluster needs, as the API server takes them.

    <cluster>-broker      ServiceAccount, Role, RoleBinding: brokers keep metadata in the API server
    <cluster>-brokers     Service without an address of its own: each pod has a name in it
    <cluster>-bootstrap   Service that clients connect to first
    <cluster>             PodDisruptionBudget, NetworkPolicy
    <cluster>-<pool>      ConfigMap with the brokers' settings, StatefulSet of the pool

The objects for clients outside of the Kubernetes cluster are in `outside`.

All are owned by the Cluster, so that they are deleted with it. Everything follows from the Cluster
and from `Decided`; nothing here makes a request.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from millrace.core.broker_config import OLDER_COPY_ANNOTATION
from millrace.core.metadata.model import SHARD_KEYS
from millrace.operator.model.broker_settings import (
    DATA,
    IF_KNOWN,
    broker_toml,
    initial_brokers,
    variables_if_known,
)
from millrace.operator.model.cluster import Cluster, ClusterSpec, Pool, Volume, VolumeDeletion
from millrace.operator.model.images import with_version
from millrace.operator.model.network_policy import USUAL_API_PORTS, policy_spec
from millrace.operator.model.pod_tls import secure
from millrace.operator.model.ports import (
    CLIENT_KAFKA_PORT,
    CLIENT_KAFKA_PORT_NAME,
    CLIENT_KAFKA_TLS_PORT,
    CLIENT_KAFKA_TLS_PORT_NAME,
    CLIENT_PORT,
    CLIENT_TLS_PORT,
    CLIENT_TLS_PORT_NAME,
    METRICS_PORT,
    OUTSIDE_DRPC_PORT_NAME,
    inside_ports,
    outside_ports,
)
from millrace.operator.model.security import TlsMode

Document = dict[str, Any]

CLUSTER_LABEL: Final = "millrace.dev/cluster"
POOL_LABEL: Final = "millrace.dev/pool"
CONFIG_ANNOTATION: Final = "millrace.dev/config"
ZONE_LABEL: Final = "topology.kubernetes.io/zone"
ZONE_ANNOTATION: Final = "millrace.dev/zone"
"""Annotation of a pod whose pool names no zone: the zone of its node; empty: it has none."""
NODE_ANNOTATION: Final = "millrace.dev/node"
"""Likewise: the node of that zone. The pod waits for this annotation."""
WAITS_FOR_ZONE: Final = "zone"
"""Name of the container that waits for it."""
BROKER: Final = "broker"
"""Name of a pod's container that runs the broker."""

USER_ID: Final = 65532
"""The image's user and group, which are not root's."""

_CONFIG: Final = "/etc/millrace"
_OUTSIDE: Final = "/etc/millrace-outside"
_PLACED: Final = "/etc/millrace-placed"
_INITIAL_BROKERS: Final = "initial-brokers"
"""Name of the file beside `broker.toml` with the number of the cluster's first brokers (P77)."""
_ZONE_WAITS_MAX: Final = 600
"""Waits, of a tenth of a second each, before a broker starts without its zone."""
_STOP_SECONDS: Final = 120
"""How long a broker may take to hand over and to close its logs before it is killed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """The operator's decisions for a cluster from its present state, beside its resource.

    Attributes:
        image: of brokers, if the resource names none.
        replicas: brokers now of each pool, by the name of its StatefulSet: while some are being
            drained, more than asked.
        may_be_disrupted: whether a broker may be evicted now.
        api_ports: of the API server; none: unknown.
        operator_namespace: where the operator runs; empty: in no pod.
    """

    image: str
    replicas: Mapping[str, int] = field(default_factory=dict)
    may_be_disrupted: bool = False
    api_ports: Sequence[int] = USUAL_API_PORTS
    operator_namespace: str = ""


def desired_objects(cluster: Cluster, decided: Decided) -> list[Document]:
    """Return the objects in the order of their dependencies."""
    return [
        *_access(cluster),
        *_services(cluster),
        *_network_policy(cluster, decided),
        disruption_budget(cluster, decided),
        *(
            document
            for pool in cluster.spec.pools
            for document in (_config_map(cluster, pool), _stateful_set(cluster, pool, decided))
        ),
    ]


def pool_object_name(cluster: str, pool: str) -> str:
    """Return the name of a pool's StatefulSet, which is also the prefix of its pods' names."""
    return f"{cluster}-{pool}"


def brokers_of(replicas: Mapping[str, int]) -> list[str]:
    """Return the names of brokers.

    Args:
        replicas: how many each pool has, by the name of its StatefulSet.
    """
    return [f"{name}-{number}" for name, count in replicas.items() for number in range(count)]


def broker_of_claim(claim: str) -> str:
    """Return the broker that a claim is of: no hyphen is in the name of the volume before it."""
    return claim.partition("-")[2]


def broker_account(cluster_name: str) -> str:
    """Return the name of the brokers' ServiceAccount."""
    return f"{cluster_name}-broker"


def outside_name(name: str) -> str:
    """Return the name of the Service by which clients outside reach a cluster, or a broker."""
    return f"{name}-outside"


def broker_container(pod: Document) -> Document:
    """Return the container of a pod that runs the broker; empty: the pod is no broker's.

    Webhooks of the API server may add containers before and after it, such as the proxy of a
    service mesh.
    """
    containers: list[Document] = pod["spec"]["containers"]
    return next((container for container in containers if container["name"] == BROKER), {})


def outside_file(broker: str, kind: str = "") -> str:
    """Return the name of the file with a broker's address for clients outside.

    Args:
        kind: `drpc`; `kafka`; `tls` and `kafka-tls`: of gRPC and Kafka by TLS, while the addresses
            without it are in plain text.
    """
    return f"{broker}.{kind}" if kind else broker


def labels(cluster_name: str) -> dict[str, str]:
    """Return the labels by which all objects of a cluster are found."""
    return {
        "app.kubernetes.io/name": "millrace",
        "app.kubernetes.io/instance": cluster_name,
        "app.kubernetes.io/managed-by": "millrace-operator",
        CLUSTER_LABEL: cluster_name,
    }


def selector(cluster_name: str) -> dict[str, str]:
    """Return the labels that brokers' pods have, and nothing else of the cluster."""
    return {CLUSTER_LABEL: cluster_name, "app.kubernetes.io/component": "broker"}


def owned_object(
    cluster: Cluster, api_version: str, kind: str, name: str, **content: object
) -> Document:
    """Return an object that goes with the cluster."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": cluster.namespace,
            "labels": labels(cluster.name),
            "ownerReferences": [
                {
                    "apiVersion": "millrace.dev/v1beta1",
                    "kind": "Cluster",
                    "name": cluster.name,
                    "uid": cluster.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        **content,
    }


def _access(cluster: Cluster) -> Iterator[Document]:
    """Brokers' access to the API server: read and write this cluster's metadata."""
    name, lease = broker_account(cluster.name), f"{cluster.name}-controller"
    shards = [f"{cluster.name}-{key.rpartition('/')[2]}" for key in SHARD_KEYS]
    rbac = "rbac.authorization.k8s.io"
    yield owned_object(cluster, "v1", "ServiceAccount", name)
    yield owned_object(
        cluster,
        f"{rbac}/v1",
        "Role",
        name,
        rules=[
            # RBAC cannot restrict names when an object is created.
            _rule("millrace.dev", ["clusterstates", "stateshards"], ["create"]),
            _rule("millrace.dev", ["clusterstates"], ["get", "update"], [cluster.name]),
            _rule("millrace.dev", ["stateshards"], ["get", "update"], shards),
            _rule("coordination.k8s.io", ["leases"], ["create"]),
            _rule("coordination.k8s.io", ["leases"], ["get", "watch", "update"], [lease]),
        ],
    )
    yield owned_object(
        cluster,
        f"{rbac}/v1",
        "RoleBinding",
        name,
        roleRef={"apiGroup": rbac, "kind": "Role", "name": name},
        subjects=[{"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}],
    )


def _rule(
    group: str, resources: list[str], verbs: list[str], names: list[str] | None = None
) -> Document:
    rule: Document = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    if names is not None:
        rule["resourceNames"] = names
    return rule


def _services(cluster: Cluster) -> Iterator[Document]:
    ports = list(itertools.starmap(_service_port, inside_ports(cluster).items()))
    yield owned_object(
        cluster,
        "v1",
        "Service",
        f"{cluster.name}-brokers",
        spec={
            "clusterIP": "None",
            "selector": selector(cluster.name),
            "ports": ports,
            # Brokers have to reach each other before they are ready, or none ever is.
            "publishNotReadyAddresses": True,
        },
    )
    yield owned_object(
        cluster,
        "v1",
        "Service",
        f"{cluster.name}-bootstrap",
        spec={"selector": selector(cluster.name), "ports": _bootstrap_ports(cluster)},
    )


def _bootstrap_ports(cluster: Cluster) -> list[Document]:
    """Return where clients begin: with gRPC, which tells them where DRPC is, or as Kafka's do.

    The first port is for TLS once there is nothing else. Clients that changed to the other one
    while there was both keep it.
    """
    ports = [_service_port("client", CLIENT_PORT) | {"targetPort": CLIENT_PORT}]
    if cluster.spec.tls is not None:
        ports.append(_service_port(CLIENT_TLS_PORT_NAME, CLIENT_TLS_PORT))
    if cluster.spec.listeners.kafka.enabled:
        name, port = CLIENT_KAFKA_PORT_NAME, CLIENT_KAFKA_PORT
        ports.append(_service_port(name, port) | {"targetPort": port})
        if cluster.spec.tls is not None:
            ports.append(_service_port(CLIENT_KAFKA_TLS_PORT_NAME, CLIENT_KAFKA_TLS_PORT))
    return ports


def _service_port(name: str, port: int) -> Document:
    return {"name": name, "port": port, "targetPort": name, "protocol": "TCP"}


def _network_policy(cluster: Cluster, decided: Decided) -> Iterator[Document]:
    if cluster.spec.network_policy.enabled:
        spec = policy_spec(
            cluster,
            selector(cluster.name),
            api_ports=decided.api_ports,
            operator_namespace=decided.operator_namespace,
        )
        kind = "NetworkPolicy"
        yield owned_object(cluster, "networking.k8s.io/v1", kind, cluster.name, spec=spec)


def disruption_budget(cluster: Cluster, decided: Decided) -> Document:
    """Return what keeps brokers from being evicted, as by `kubectl drain`."""
    return owned_object(
        cluster,
        "policy/v1",
        "PodDisruptionBudget",
        cluster.name,
        spec={
            "selector": {"matchLabels": selector(cluster.name)},
            "maxUnavailable": 1 if decided.may_be_disrupted else 0,
        },
    )


def _config_map(cluster: Cluster, pool: Pool) -> Document:
    return owned_object(
        cluster,
        "v1",
        "ConfigMap",
        pool_object_name(cluster.name, pool.name),
        data={
            "broker.toml": broker_toml(cluster, pool),
            # Running brokers read it again: another number is no reason to restart them.
            _INITIAL_BROKERS: f"{initial_brokers(cluster)}\n",
        },
    )


def _stateful_set(cluster: Cluster, pool: Pool, decided: Decided) -> Document:
    name = pool_object_name(cluster.name, pool.name)
    pod_labels = {
        **pool.template.labels,
        **labels(cluster.name),
        **selector(cluster.name),
        POOL_LABEL: pool.name,
    }
    on_deletion = "Delete" if cluster.spec.volume_deletion is VolumeDeletion.DELETE else "Retain"
    document = owned_object(
        cluster,
        "apps/v1",
        "StatefulSet",
        name,
        spec={
            "replicas": decided.replicas.get(name, pool.replicas),
            "serviceName": f"{cluster.name}-brokers",
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": {**selector(cluster.name), POOL_LABEL: pool.name}},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": on_deletion,
                "whenScaled": "Retain",  # Until the broker is drained nothing of it may go.
            },
            "template": {
                "metadata": {
                    "labels": pod_labels,
                    "annotations": {
                        "kubectl.kubernetes.io/default-container": BROKER,
                        # Prometheus finds the page by these; a pool's own annotations may differ.
                        "prometheus.io/scrape": "true",
                        "prometheus.io/port": str(METRICS_PORT),
                        **({"prometheus.io/scheme": "https"} if _scheme(cluster) else {}),
                        **pool.template.annotations,
                        CONFIG_ANNOTATION: _digest(broker_toml(cluster, pool)),
                    },
                },
                "spec": _pod(cluster, pool, decided),
            },
            "volumeClaimTemplates": [_claim(cluster, volume) for volume in pool.volumes],
        },
    )
    document["metadata"]["labels"][POOL_LABEL] = pool.name
    return document


def _scheme(cluster: Cluster) -> Document:
    """Return how the metrics page is asked for, beyond the usual; the kubelet shows no token."""
    is_guarded = cluster.spec.metrics_page is not None and cluster.spec.tls is not None
    return {"scheme": "HTTPS"} if is_guarded else {}


def _claim(cluster: Cluster, volume: Volume) -> Document:
    spec: Document = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": volume.size}},
    }
    if volume.storage_class_name is not None:
        spec["storageClassName"] = volume.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": volume.name, "labels": labels(cluster.name)},
        "spec": spec,
    }


def _pod(cluster: Cluster, pool: Pool, decided: Decided) -> Document:
    template = pool.template
    spec: Document = {
        "serviceAccountName": broker_account(cluster.name),
        "terminationGracePeriodSeconds": _STOP_SECONDS,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(cluster, pool, decided)],
        "volumes": [
            {"name": "config", "configMap": {"name": pool_object_name(cluster.name, pool.name)}},
            {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}},
        ],
        "affinity": _apart(cluster)
        if template.affinity is None
        else msgspec.to_builtins(template.affinity),
    }
    node_selector = dict(template.node_selector)
    if pool.zone is not None:
        node_selector[ZONE_LABEL] = pool.zone
    else:
        spec["initContainers"] = [_zone_container(cluster, pool, decided)]
        # A file, since it can change while a container runs, as the environment cannot.
        node = {"path": "node", **_annotation(NODE_ANNOTATION)}
        spec["volumes"].append({"name": "placed", "downwardAPI": {"items": [node]}})
    chosen = {
        "imagePullSecrets": [{"name": name} for name in cluster.spec.image_pull_secrets],
        "nodeSelector": node_selector,
        "tolerations": msgspec.to_builtins(template.tolerations),
        "topologySpreadConstraints": msgspec.to_builtins(template.topology_spread_constraints),
        "priorityClassName": template.priority_class_name,
        "runtimeClassName": template.runtime_class_name,
    }
    if cluster.spec.listeners.outside is not None:
        _open_outside(cluster, spec)
    if cluster.spec.tls is not None:
        secure(cluster, pool_object_name(cluster.name, pool.name), spec)
    return spec | {name: value for name, value in chosen.items() if value}


def _apart(cluster: Cluster) -> Document:
    """Brokers avoid each other's nodes, and each other's zones, if possible."""

    def term(weight: int, topology_key: str) -> Document:
        return {
            "weight": weight,
            "podAffinityTerm": {
                "topologyKey": topology_key,
                "labelSelector": {"matchLabels": selector(cluster.name)},
            },
        }

    return {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                term(100, "kubernetes.io/hostname"),
                term(50, ZONE_LABEL),
            ]
        }
    }


def _zone_container(cluster: Cluster, pool: Pool, decided: Decided) -> Document:
    """Wait until the operator has written the zone; see `plan/zones.py`."""
    wait = (
        f"waits=0; until [ -s {_PLACED}/node ] || [ $waits -ge {_ZONE_WAITS_MAX} ]; "
        "do waits=$((waits + 1)); sleep 0.1; done"
    )
    return {
        "name": WAITS_FOR_ZONE,
        "command": ["/bin/sh", "-c", wait],
        "volumeMounts": [{"name": "placed", "mountPath": _PLACED, "readOnly": True}],
        **_of_every_container(cluster, pool, decided),
    }


def _annotation(name: str) -> Document:
    return {"fieldRef": {"fieldPath": f"metadata.annotations['{name}']"}}


def _container(cluster: Cluster, pool: Pool, decided: Decided) -> Document:
    host = f"$(POD_NAME).{cluster.name}-brokers.{cluster.namespace}.svc"
    environment: list[Document] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "MILLRACE_BROKER__NODE__NAME", "value": "$(POD_NAME)"},
        {"name": "MILLRACE_BROKER__LISTENER__ADVERTISED_HOST", "value": host},
        {"name": "MILLRACE_BROKER__REPLICA_LISTENER__ADVERTISED_HOST", "value": host},
    ]
    if pool.zone is None:
        zone = _annotation(ZONE_ANNOTATION)
        environment.append({"name": "MILLRACE_BROKER__NODE__RACK", "valueFrom": zone})
    # Read again at each start of the container: it takes effect while the pod crashes.
    accepted = _annotation(OLDER_COPY_ANNOTATION)
    initial = f"{_CONFIG}/{_INITIAL_BROKERS}"
    environment += [
        {"name": f"{IF_KNOWN}NODE__ACCEPT_OLDER_COPY", "valueFrom": accepted},
        {"name": f"{IF_KNOWN}NODE__INITIAL_BROKERS_FILE", "value": initial},
        *({"name": name, "value": value} for name, value in variables_if_known(cluster)),
    ]
    claims = [volume.name for volume in pool.volumes]
    # A probe of gRPC cannot speak TLS (G5), and brokers of 0.2.0 have no page for it.
    asked: Document = (
        {"grpc": {"port": CLIENT_PORT}}
        if cluster.spec.tls is None
        else {"httpGet": {"path": "/ready", "port": METRICS_PORT, **_scheme(cluster)}}
    )
    is_serving = {**asked, "timeoutSeconds": 5}
    return {
        "name": BROKER,
        "args": ["broker", "--config", f"{_CONFIG}/broker.toml"],
        "env": environment,
        "ports": [
            {"name": name, "containerPort": port}
            for name, port in {**inside_ports(cluster), **outside_ports(cluster)}.items()
        ],
        # A start may have to read many logs: it is given an hour, and looked at every second.
        "startupProbe": {**is_serving, "periodSeconds": 1, "failureThreshold": 3600},
        "readinessProbe": {**is_serving, "periodSeconds": 5, "failureThreshold": 3},
        # Whether the process lives at all. A slow one must never be killed for that: its session
        # ends, others lead, and it comes back.
        "livenessProbe": {
            "tcpSocket": {"port": METRICS_PORT},
            "periodSeconds": 20,
            "timeoutSeconds": 10,
            "failureThreshold": 6,
        },
        "volumeMounts": [
            {"name": "config", "mountPath": _CONFIG, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *({"name": name, "mountPath": f"{DATA}/{name}"} for name in claims),
        ],
        **_of_every_container(cluster, pool, decided),
    }


def _of_every_container(cluster: Cluster, pool: Pool, decided: Decided) -> Document:
    resources = {name: part for name, part in msgspec.to_builtins(pool.resources).items() if part}
    chosen = {"imagePullPolicy": cluster.spec.image_pull_policy, "resources": resources}
    return {
        "image": _image(cluster.spec, decided.image),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        **{name: value for name, value in chosen.items() if value},
    }


def _image(spec: ClusterSpec, own: str) -> str:
    if spec.image is not None:
        return spec.image
    return own if spec.version is None else with_version(own, spec.version)


def _open_outside(cluster: Cluster, pod: Document) -> None:
    """Give a pod's broker its listeners for clients outside, and where it reads its addresses."""
    (container,) = pod["containers"]
    settings = "MILLRACE_BROKER__OUTSIDE_LISTENER__"
    container["env"] += [
        {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": f"{settings}ADVERTISED_HOST", "value": "$(HOST_IP)"},
        {"name": f"{settings}ADDRESS_FILE", "value": f"{_OUTSIDE}/{outside_file('$(POD_NAME)')}"},
    ]
    others = {}
    if OUTSIDE_DRPC_PORT_NAME in outside_ports(cluster):
        others["LISTENERS__OUTSIDE_DRPC__ADDRESS_FILE"] = "drpc"
    has_kafka = cluster.spec.listeners.outside_kafka is not None
    if has_kafka:
        others["LISTENERS__OUTSIDE_KAFKA__ADDRESS_FILE"] = "kafka"
    if cluster.spec.tls is not None and cluster.spec.tls.mode is TlsMode.OPTIONAL:
        others["LISTENERS__OUTSIDE__TLS_ADDRESS_FILE"] = "tls"
        if has_kafka:
            others["LISTENERS__OUTSIDE_KAFKA__TLS_ADDRESS_FILE"] = "kafka-tls"
    container["env"] += [
        {"name": f"{IF_KNOWN}{setting}", "value": f"{_OUTSIDE}/{outside_file('$(POD_NAME)', kind)}"}
        for setting, kind in others.items()
    ]
    container["volumeMounts"].append({"name": "outside", "mountPath": _OUTSIDE, "readOnly": True})
    # A broker starts also without an address: it reads the file again while it runs.
    source = {"name": outside_name(cluster.name), "optional": True}
    pod["volumes"].append({"name": "outside", "configMap": source})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
