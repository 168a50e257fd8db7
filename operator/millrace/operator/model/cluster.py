"""The resource `Cluster`: brokers in pools, their volumes, settings, and allowed Topics."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct, field

from millrace.core.media import DEFAULT_MEDIA, Media
from millrace.operator.model.fields import (
    DnsLabel,
    ImageName,
    ImageTag,
    LabelValue,
    PartName,
    Quantity,
    Rule,
    VolumeName,
)
from millrace.operator.model.listeners import Listeners
from millrace.operator.model.network import NetworkRules
from millrace.operator.model.scheduling import (
    Affinity,
    Labels,
    LabelSelector,
    SpreadConstraint,
    Toleration,
)
from millrace.operator.model.security import Access, MetricsPage, Tls

POOLS_MAX = 16
VOLUMES_MAX = 16
REPLICAS_MAX = 250
VOLUME_SIZE_MIN = "128Mi"
"""A broker takes 64 MiB of it in advance; a size with its unit forgotten is below this."""

POD_VOLUMES = ("config", "outside", "placed", "tmp")
"""Names of the volumes that pods have beside those of the pool."""

ANNOTATIONS_MAX = 32
OPERATOR_LABELS = (
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/component",
    "millrace.dev/cluster",
    "millrace.dev/pool",
)
"""Labels of pods by which the operator, Services and budgets find them."""


class VolumeDeletion(StrEnum):
    """Whether the volumes are kept when the Cluster is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class LostVolumes(StrEnum):
    """What is done when a broker's node, and its local volumes with it, do not come back."""

    WAIT = "Wait"
    REPLACE = "Replace"


class NamespacesFrom(StrEnum):
    """Which namespaces are meant."""

    SAME = "Same"
    ALL = "All"
    SELECTOR = "Selector"


class Volume(Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume that each broker of the pool has: one log directory. Several of one media share the
    broker's partitions, and one that fails takes only its own offline.
    """

    RULES: ClassVar = (
        Rule(
            "self.media == oldSelf.media",
            "a volume's media cannot change: add a pool with other volumes, and remove this one",
        ),
        Rule(
            "has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            "a volume's storageClassName cannot change: add a pool, and remove this one",
        ),
        Rule(
            "!isQuantity(string(self.size)) || "
            "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            "a volume cannot shrink: add a pool with smaller ones, and remove this one",
        ),
        Rule(
            "isQuantity(string(self.size))",
            "size must be a quantity of Kubernetes, as 100Gi or 100G",
        ),
        Rule(
            "!isQuantity(string(self.size)) || "
            f"quantity(string(self.size)).compareTo(quantity('{VOLUME_SIZE_MIN}')) >= 0",
            f"size must be at least {VOLUME_SIZE_MIN}: write it with its unit, as 100Gi",
        ),
        Rule(
            f"!(self.name in {list(POD_VOLUMES)})",
            f"{', '.join(POD_VOLUMES)} are volumes of pods already: give it another name",
        ),
    )

    name: VolumeName
    """Its name in the pool. Claims are called `<name>-<broker>`."""
    media: Media = DEFAULT_MEDIA
    """Its media. Topics may ask for `ssd` or `hdd`."""
    size: Annotated[int | str, Meta(extra_json_schema={"maxLength": 32})]
    """How large it is, as `100Gi`. It may grow later where the storage class allows that; it never
    shrinks."""
    storage_class_name: DnsLabel | None = None
    """Storage class of the claim. Unset: the Kubernetes cluster's default."""


class PodTemplate(Struct, frozen=True, kw_only=True, rename="camel"):
    """Additions to the pool's pods beside the operator's own: mostly where they may run."""

    RULES: ClassVar = (
        Rule(
            f"!has(self.labels) || {list(OPERATOR_LABELS)}.all(each, !(each in self.labels))",
            f"the operator sets these labels itself: take them out of template.labels: "
            f"{', '.join(OPERATOR_LABELS)}",
        ),
        Rule(
            "!has(self.annotations) || !('millrace.dev/config' in self.annotations)",
            "the operator sets millrace.dev/config itself: take it out of template.annotations",
        ),
    )

    labels: Labels = {}
    """Further labels of the pods."""
    annotations: Annotated[dict[str, str], Meta(max_length=ANNOTATIONS_MAX)] = {}
    """Annotations of the pods."""
    node_selector: Labels = {}
    """Labels that a node must have."""
    tolerations: Annotated[list[Toleration], Meta(max_length=32)] = []
    """Taints that the pods tolerate."""
    affinity: Affinity | None = None
    """Affinity of the pods. Unset: brokers of the cluster keep off each other's nodes where they
    can; `{}`: they do not."""
    topology_spread_constraints: Annotated[list[SpreadConstraint], Meta(max_length=8)] = []
    """How the pods spread."""
    priority_class_name: DnsLabel | None = None
    """Priority class of the pods."""
    runtime_class_name: DnsLabel | None = None
    """Runtime class of the pods."""


class Resources(Struct, frozen=True, kw_only=True, rename="camel"):
    """What each broker may use, as in a container of a pod."""

    requests: Annotated[dict[str, Quantity], Meta(max_length=16)] = {}
    """What it gets for sure."""
    limits: Annotated[dict[str, Quantity], Meta(max_length=16)] = {}
    """What it gets at the most."""


class Pool(Struct, frozen=True, kw_only=True, rename="camel"):
    """Brokers that are alike. Each becomes a pod `<cluster>-<pool>-<number>`."""

    name: PartName
    """Its name in the cluster."""
    replicas: Annotated[int, Meta(ge=0, le=REPLICAS_MAX)] = 3
    """How many brokers. With fewer, those that go are drained first."""
    zone: Annotated[LabelValue, Meta(min_length=1)] | None = None
    """Zone that the pool stands in: pods run on nodes with this `topology.kubernetes.io/zone`, and
    replicas of a partition are spread over zones. Unset: each broker takes the zone of its node."""
    volumes: Annotated[
        list[Volume],
        Meta(
            min_length=1,
            max_length=VOLUMES_MAX,
            extra_json_schema={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ]
    """Volumes of each broker."""
    resources: Resources = field(default_factory=Resources)
    """What each broker may use."""
    template: PodTemplate = field(default_factory=PodTemplate)
    """What its pods get beside, as where they may run."""

    RULES: ClassVar = (
        Rule(
            "self.volumes.map(v, v.name) == oldSelf.volumes.map(v, v.name)",
            "volumes of a pool can be neither added nor removed: add a pool, and remove this one",
        ),
        Rule(
            "!has(self.zone) || !has(self.template) || !has(self.template.nodeSelector) || "
            "!('topology.kubernetes.io/zone' in self.template.nodeSelector)",
            "zone says on which nodes the pods run: take topology.kubernetes.io/zone out of "
            "template.nodeSelector",
        ),
    )


class AllowedNamespaces(Struct, frozen=True, kw_only=True, rename="camel"):
    """Namespaces whose Topics may name the cluster, as `allowedRoutes` of the Gateway API."""

    RULES: ClassVar = (
        Rule(
            "(self.from == 'Selector') == has(self.selector)",
            "selector goes with `from: Selector`, and only with that",
        ),
        Rule(
            "!has(self.selector) || has(self.selector.matchLabels) && "
            "size(self.selector.matchLabels) > 0 || has(self.selector.matchExpressions) && "
            "size(self.selector.matchExpressions) > 0",
            "selector says nothing: set its matchLabels or matchExpressions; to allow all "
            "namespaces write `from: All`",
        ),
    )

    from_: NamespacesFrom = field(default=NamespacesFrom.SAME, name="from")
    """`Same`: the cluster's own namespace. `All`: every one. `Selector`: the cluster's own, and
    those that `selector` chooses by their labels."""
    selector: LabelSelector | None = None
    """Labels of the namespaces, with `from: Selector`."""


class AllowedTopics(Struct, frozen=True, kw_only=True, rename="camel"):
    """Which Topics the cluster takes."""

    namespaces: AllowedNamespaces = field(default_factory=AllowedNamespaces)
    """Namespaces that may have Topics of this cluster, and Quotas for these."""


class ClusterSpec(Struct, frozen=True, kw_only=True, rename="camel"):
    """What the cluster should be."""

    RULES: ClassVar = (
        Rule(
            "self.pools.exists(p, p.replicas > 0)",
            "a cluster needs a broker: set replicas of a pool to 1 or more",
        ),
        Rule(
            "!has(self.listeners) || !has(self.listeners.outside) || "
            "self.pools.all(p, p.name != 'outside')",
            "a pool cannot be called outside beside listeners.outside: the ConfigMap "
            "<cluster>-outside has the addresses; give it another name",
        ),
        Rule(
            "!has(self.tls) || !has(self.tls.issuerRef) || self.pools.all(p, p.name != 'clients')",
            "a pool cannot be called clients beside tls.issuerRef: the Secret "
            "<cluster>-clients-tls has what clients are shown; give it another name",
        ),
        Rule(
            # The name of the cluster is out of sight here.
            "!has(self.listeners) || !has(self.listeners.outside) || "
            "!has(self.listeners.outside.brokers) || self.listeners.outside.brokers.all(b, "
            "self.pools.exists(p, b.name.contains('-' + p.name + '-')))",
            "listeners.outside.brokers names a broker of no pool: they are called "
            "<cluster>-<pool>-<number>",
        ),
        Rule(
            "!has(self.listeners) || !has(self.listeners.outsideDrpc) || "
            "!has(self.listeners.outsideDrpc.brokers) || self.listeners.outsideDrpc.brokers.all(b, "
            "self.pools.exists(p, b.name.contains('-' + p.name + '-')))",
            "listeners.outsideDrpc.brokers names a broker of no pool: they are called "
            "<cluster>-<pool>-<number>",
        ),
        Rule(
            "!has(self.listeners) || !has(self.listeners.outsideKafka) || "
            "!has(self.listeners.outsideKafka.brokers) || "
            "self.listeners.outsideKafka.brokers.all(b, "
            "self.pools.exists(p, b.name.contains('-' + p.name + '-')))",
            "listeners.outsideKafka.brokers names a broker of no pool: they are called "
            "<cluster>-<pool>-<number>",
        ),
        Rule(
            "!has(self.access) || self.access.mode != 'Enforced' || !has(self.tls) || "
            "self.tls.mode == 'Required'",
            "access.mode Enforced goes with tls.mode Required: tokens are sent over TLS only",
        ),
        Rule(
            "!has(self.access) || self.access.mode != 'Logged' || !has(self.tls) || "
            "self.tls.mode != 'Disabled'",
            "access.mode Logged goes without tls.mode Disabled: tokens are sent over TLS only",
        ),
        Rule(
            "!has(self.listeners) || !has(self.listeners.outside) || "
            "!has(self.listeners.outside.clientsCA) || has(self.tls) && "
            "self.tls.mode != 'Disabled'",
            "listeners.outside.clientsCA goes with `tls`: certificates are shown over TLS only",
        ),
        Rule(
            "!has(self.metricsPage) || has(self.tls) && self.tls.mode != 'Disabled'",
            "metricsPage goes with `tls`: its token is sent over TLS only",
        ),
        Rule(
            "!has(self.tls) || self.tls.mode == 'Disabled' || !has(self.version) || "
            "!(self.version in ['0.1.0', '0.2.0'])",
            "tls needs brokers that know it: 0.1.0 and 0.2.0 do not; name a later version",
        ),
        Rule(
            "!has(self.version) || !(self.version in ['0.1.0', '0.2.0']) || "
            "!has(self.listeners) || !has(self.listeners.outsideKafka) && "
            "(!has(self.listeners.kafka) || !self.listeners.kafka.enabled)",
            "listeners.kafka and outsideKafka need brokers that speak Kafka's protocol: 0.1.0 and "
            "0.2.0 do not; name a later version",
        ),
        Rule(
            "!has(self.version) || !has(self.image)",
            "version is the tag of the operator's own image: with `image`, name the tag there",
        ),
    )

    version: ImageTag | None = None
    """Release of the brokers, as `0.1.0`: the tag of their image, which is the operator's
    otherwise. Unset: the operator's own release. Another one is rolled out, a broker at a time."""
    image: ImageName | None = None
    """Image of the brokers, in place of `version`, where it is another one than the operator's."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When nodes pull the image. Unset: Kubernetes decides by the tag."""
    image_pull_secrets: Annotated[list[DnsLabel], Meta(max_length=8)] = []
    """Names of Secrets with which nodes pull the image."""
    pools: Annotated[
        list[Pool],
        Meta(
            min_length=1,
            max_length=POOLS_MAX,
            extra_json_schema={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
            },
        ),
    ]
    """The brokers."""
    config: dict[str, dict[str, Any]] = {}
    """Settings of the brokers, by section and name as in docs/configuration.md. A change is rolled
    out, a broker at a time, but that of `cluster.initial_brokers` needs no restart."""
    listeners: Listeners = field(default_factory=Listeners)
    """Where clients connect beside the Service `<cluster>-bootstrap`, which is always there for
    those in the Kubernetes cluster, and by which protocols. A change is a rolling restart."""
    tls: Tls | None = None
    """TLS on all listeners. Unset: a new Cluster has it; one that is in plain text stays so."""
    access: Access | None = None
    """Who may do what. Unset: a new Cluster asks Kubernetes, if its `tls` is not `Disabled`; one
    whose clients may do everything stays so."""
    network_policy: NetworkRules = field(default_factory=NetworkRules)
    """Who reaches the brokers' pods, and whom they reach."""
    metrics_page: MetricsPage | None = None
    """Guards the metrics page of brokers: it speaks TLS, and asks for a token. A change is a
    rolling restart. Unset: everybody who reaches it may read it."""
    allowed_topics: AllowedTopics = field(default_factory=AllowedTopics)
    """Which Topics the cluster takes, and Quotas for these."""
    volume_deletion: VolumeDeletion = VolumeDeletion.RETAIN
    """What happens to the volumes when the Cluster is deleted. `Retain`: they stay, and a Cluster
    of the same name takes them up again. `Delete`: all data is lost."""
    lost_volumes: LostVolumes = LostVolumes.WAIT
    """What is done when a broker cannot be scheduled because the node of its local volumes is gone.
    `Wait`: nothing, until it is back. `Replace`: when the Node was deleted, the claims are deleted,
    and the broker begins again on another node with empty volumes, if every partition has another
    replica in sync."""
    paused: bool = False
    """The operator changes nothing of the cluster while this is true; it only renews certificates,
    which end."""


class Cluster(Struct, frozen=True, kw_only=True):
    """A cluster and where it is.

    Attributes:
        annotations: by which people ask for things that are done once.
    """

    namespace: str
    name: str
    uid: str
    generation: int
    spec: ClusterSpec
    annotations: dict[str, str] = {}
