"""The table of bad resources: what somebody applies, and what he is told.

Each is refused by the API server, or accepted and explained by a condition. Either way the text
names the field, and says what would be right. `world` has a good Cluster, `GOOD`, with one broker
on an SSD, a good Topic and a good Quota of it; no case may trouble these.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Document = dict[str, Any]

GOOD: Final = "good"
"""The Cluster that works."""
GOOD_TOPIC: Final = "good"
GOOD_QUOTA: Final = "good"
"""A Quota for the client id of the same name."""
NAMESPACE: Final = "brokers"
ELSEWHERE: Final = "elsewhere"
"""A namespace whose Topics the good Cluster does not take."""

MIB: Final = 1 << 20
_DEEP: Final = 5000


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row.

    Attributes:
        name: what is wrong.
        resource: without a name it gets one of its own.
        says: texts that somebody has to be told: the field, and what to do.
        condition: that says it, if the API server does not refuse.
        reason: of that condition; empty: the API server refuses.
        before: the spec that is accepted first, of which `resource` is a change.
        others: objects that are there before.
    """

    name: str
    resource: Document
    says: tuple[str, ...]
    condition: str = "Ready"
    reason: str = ""
    before: Mapping[str, Any] | None = None
    others: tuple[Document, ...] = ()


VOLUME: Final = {"name": "data", "size": "1Gi"}


def pool(**changes: Any) -> Document:
    """Return a pool that is good but for the changes."""
    return {"name": "b", "replicas": 1, "volumes": [VOLUME], **changes}


def volume(**changes: Any) -> Document:
    """Return a pool with a volume that is good but for the changes."""
    return pool(volumes=[{**VOLUME, **changes}])


def cluster(*pools: Document, named: str = "", **spec: Any) -> Document:
    """Return a Cluster; without pools it has a good one."""
    return _resource("Cluster", named, {"pools": list(pools) or [pool()], **spec})


def placed(**template: Any) -> Document:
    """Return a Cluster whose pods have this template."""
    return cluster(pool(template=template))


def topic(*, named: str = "", where: str = NAMESPACE, **spec: Any) -> Document:
    """Return a Topic of the good Cluster."""
    spec = {"clusterRef": {"name": GOOD}, **spec}
    return _resource(
        "Topic", named, {key: each for key, each in spec.items() if each is not None}, where
    )


def quota(
    whom: Mapping[str, Any] | None = None, *, named: str = "", where: str = NAMESPACE, **spec: Any
) -> Document:
    """Return a Quota of the good Cluster, for a client id of no other one unless it says more."""
    whom = {"clientId": "somebody"} if whom is None else whom
    spec = {"clusterRef": {"name": GOOD}, "for": whom, "produceBytesPerSecond": "1MB", **spec}
    return _resource(
        "Quota", named, {key: each for key, each in spec.items() if each is not None}, where
    )


def outside(named: str = "", **changes: Any) -> Document:
    """Return a Cluster with a listener for clients outside."""
    return cluster(named=named, listeners={"outside": {"type": "NodePort", **changes}})


def configured(settings: Document) -> Document:
    """Return a Topic with these settings."""
    return topic(config=settings)


def _resource(kind: str, name: str, spec: Document, where: str = NAMESPACE) -> Document:
    metadata = {"namespace": where} | ({"name": name} if name else {})
    return {
        "apiVersion": "millrace.dev/v1beta1",
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
    }


def _nested(depth: int) -> Document:
    found: Document = {}
    for _ in range(depth):
        found = {"a": found}
    return found


TOPICS: Final = (
    # What it is called, and where.
    Case(
        name="a Topic without a spec",
        resource={
            "apiVersion": "millrace.dev/v1beta1",
            "kind": "Topic",
            "metadata": {"namespace": NAMESPACE},
        },
        says=("spec: Required value",),
    ),
    Case(
        name="a Topic of no cluster",
        resource=topic(clusterRef=None),
        says=("spec.clusterRef: Required value",),
    ),
    Case(
        name="a cluster's name with a slash",
        resource=topic(clusterRef={"name": "brokers/good"}),
        says=("spec.clusterRef.name", "should match"),
    ),
    Case(
        name="a cluster that is not there",
        resource=topic(clusterRef={"name": "nowhere"}),
        reason="NoCluster",
        says=("no Cluster nowhere in namespace brokers", "create it", "spec.clusterRef"),
    ),
    Case(
        name="a cluster in a namespace that is not there",
        resource=topic(clusterRef={"name": GOOD, "namespace": "nowhere"}),
        reason="NoCluster",
        says=("no Cluster good in namespace nowhere", "create it", "spec.clusterRef"),
    ),
    Case(
        name="a namespace that the cluster does not allow",
        resource=topic(where=ELSEWHERE, clusterRef={"name": GOOD, "namespace": NAMESPACE}),
        reason="NotAllowed",
        says=("takes no Topics of namespace elsewhere", "spec.allowedTopics.namespaces"),
    ),
    Case(
        name="a topic that another Topic has",
        resource=topic(topicName=GOOD_TOPIC),
        reason="NameClash",
        says=("has the name brokers/good", "spec.topicName"),
    ),
    Case(
        name="a name of the cluster's own",
        resource=topic(topicName="__positions"),
        says=("topicName", "choose another"),
    ),
    Case(name="the name ..", resource=topic(topicName=".."), says=("topicName", "choose another")),
    Case(
        name="a name that climbs out of its folder",
        resource=topic(topicName="../../etc/passwd"),
        says=("spec.topicName", "should match '^[A-Za-z0-9._-]+$'"),
    ),
    Case(
        name="a name that is not ASCII",
        resource=topic(topicName="größe"),
        says=("spec.topicName", "should match"),
    ),
    Case(name="an empty name", resource=topic(topicName=""), says=("spec.topicName", "at least 1")),
    Case(
        name="a name that is too long",
        resource=topic(topicName="x" * 250),
        says=("spec.topicName", "Too long", "249"),
    ),
    Case(
        name="a resource whose name is too long for a topic",
        resource=topic(named="x" * 250),
        says=("the name is too long for a topic", "at most 249", "spec.topicName"),
    ),
    Case(
        name="a resource with capital letters",
        resource=topic(named="Orders"),
        says=("metadata.name", "lower case"),
    ),
    # Partitions and replicas.
    Case(
        name="no partitions",
        resource=topic(partitions=0),
        says=("spec.partitions", "greater than or equal to 1"),
    ),
    Case(
        name="a negative number of partitions",
        resource=topic(partitions=-3),
        says=("spec.partitions", "greater than or equal to 1"),
    ),
    Case(
        name="half a partition",
        resource=topic(partitions=1.5),
        says=("spec.partitions", "must be of type integer"),
    ),
    Case(
        name="partitions as a text",
        resource=topic(partitions="3"),
        says=("spec.partitions", "must be of type integer"),
    ),
    Case(
        name="more partitions than any topic may have",
        resource=topic(partitions=100_001),
        says=("spec.partitions", "less than or equal to 100000"),
    ),
    Case(
        name="more partitions than this cluster allows",
        resource=topic(partitions=20_000),
        reason="InvalidPartitions",
        says=("partitions", "10000", "topic_partitions_max"),
    ),
    Case(
        name="fewer partitions",
        before={"partitions": 4},
        resource=topic(partitions=3),
        says=("partitions never become fewer", "make another Topic"),
    ),
    Case(
        name="partitions that are taken out again",
        before={"partitions": 4},
        resource=topic(),
        says=("partitions never become fewer", "make another Topic"),
    ),
    Case(
        name="no replicas",
        resource=topic(replicas=0),
        says=("spec.replicas", "greater than or equal to 1"),
    ),
    Case(
        name="more replicas than a number of 16 bits",
        resource=topic(replicas=40_000),
        says=("spec.replicas", "less than or equal to 32767"),
    ),
    Case(
        name="more replicas than brokers",
        resource=topic(replicas=3),
        reason="InvalidReplicationFactor",
        says=("3 replicas need as many brokers", "ask for fewer replicas or add brokers"),
    ),
    Case(
        name="more in-sync replicas than replicas",
        resource=topic(replicas=1, config={"min.insync.replicas": 2}),
        says=("min.insync.replicas is more than replicas", "no more can be in sync"),
    ),
    # Media.
    Case(
        name="a media that nobody knows",
        resource=topic(media="nvme"),
        says=("spec.media", '"nvme"', '"hdd", "ssd"'),
    ),
    Case(
        name="a media that no broker has",
        resource=topic(replicas=1, media="hdd"),
        reason="NoMedia",
        says=(
            "for 1 replica on hdd the cluster needs 1 broker",
            "add a pool with a volume of media hdd",
            "spec.media",
        ),
    ),
    Case(
        name="tiers that no broker has",
        resource=topic(replicas=1, media="tiered"),
        reason="NoMedia",
        says=("for 1 replica on tiered", "add a pool with volumes of media ssd and of hdd"),
    ),
    # What must not change.
    Case(
        name="another cluster",
        before={},
        resource=topic(clusterRef={"name": "other"}),
        says=("clusterRef cannot change", "make another Topic"),
    ),
    Case(
        name="another name",
        before={"topicName": "One"},
        resource=topic(topicName="Two"),
        says=("topicName cannot change", "make another Topic"),
    ),
    Case(
        name="a name where there was none",
        before={},
        resource=topic(topicName="Two"),
        says=("topicName cannot change", "make another Topic"),
    ),
    # Settings.
    Case(
        name="a setting that does not exist",
        resource=configured({"retention.mss": 1}),
        says=('unknown field "spec.config.retention.mss"',),
    ),
    Case(
        name="a setting with underscores",
        resource=configured({"retention_ms": 1000}),
        says=('unknown field "spec.config.retention_ms"',),
    ),
    Case(
        name="a setting of Kafka's that is not there",
        resource=configured({"flush.messages": 1}),
        says=('unknown field "spec.config.flush.messages"',),
    ),
    Case(
        name="media among the settings",
        resource=configured({"media": "ssd"}),
        says=('unknown field "spec.config.media"',),
    ),
    Case(
        name="a setting that is one of a few words, and is none of them",
        resource=configured({"durability": "always"}),
        says=("spec.config.durability", '"fsync", "replicated"'),
    ),
    Case(
        name="the same of Kafka's",
        resource=configured({"message.timestamp.type": "create"}),
        says=("spec.config.message.timestamp.type", '"CreateTime", "LogAppendTime"'),
    ),
    Case(
        name="a time in words",
        resource=configured({"retention.ms": "seven days"}),
        says=("spec.config.retention.ms", "must be a time", "1h30m", "or -1: no limit"),
    ),
    Case(
        name="a time with a unit of no time",
        resource=configured({"retention.ms": "7GiB"}),
        says=("spec.config.retention.ms", "must be a time"),
    ),
    Case(
        name="a time that is no whole number of milliseconds",
        resource=configured({"retention.ms": "1.0005s"}),
        reason="InvalidConfig",
        says=("retention.ms = '1.0005s'", "must be ms as a whole number", "1h30m"),
    ),
    Case(
        name="a part of a millisecond",
        resource=configured({"retention.ms": "1.5ms"}),
        says=("spec.config.retention.ms", "must be a time"),
    ),
    Case(
        name="a time below what stands for no limit",
        resource=configured({"retention.ms": -2}),
        says=("spec.config.retention.ms", "greater than or equal to -1"),
    ),
    Case(
        name="no limit where there has to be one",
        resource=configured({"segment.bytes": "-1"}),
        says=("spec.config.segment.bytes", "must be a size", "64Mi"),
    ),
    Case(
        name="a size that is too small",
        resource=configured({"segment.bytes": 1}),
        says=("spec.config.segment.bytes", "greater than or equal to 1048576"),
    ),
    Case(
        name="a size that is too small, as a text",
        resource=configured({"segment.bytes": "1KiB"}),
        reason="InvalidConfig",
        says=("segment.bytes = '1KiB'", "must be 1048576 to"),
    ),
    Case(
        name="a size beyond what a segment can have",
        resource=configured({"segment.bytes": 1 << 31}),
        says=("spec.config.segment.bytes", "less than or equal to"),
    ),
    Case(
        name="segments that end all the time",
        resource=configured({"segment.ms": 5}),
        reason="InvalidConfig",
        says=("segment.ms", "at least 1000"),
    ),
    Case(
        name="a number as a text",
        resource=configured({"min.insync.replicas": "2"}),
        says=("spec.config.min.insync.replicas", "must be of type integer"),
    ),
    Case(
        name="no replicas in sync",
        resource=configured({"min.insync.replicas": 0}),
        says=("spec.config.min.insync.replicas", "must be at least 1, or -1"),
    ),
    Case(
        name="yes for true",
        resource=configured({"unclean.leader.election.enable": "yes"}),
        says=("spec.config.unclean.leader.election.enable", "must be of type boolean"),
    ),
    Case(
        name="settings as a list",
        resource=topic(config=[{"name": "retention.ms", "value": 1}]),
        says=('unknown field "spec.config[0].name"',),
    ),
    Case(
        name="a policy of deletion that is none",
        resource=topic(deletionPolicy="Keep"),
        says=("spec.deletionPolicy", '"Delete", "Retain"'),
    ),
    Case(
        name="a field that is not there",
        resource=topic(partition=3),
        says=('unknown field "spec.partition"',),
    ),
    Case(
        name="a thousand settings",
        resource=configured({f"s{number}": number for number in range(1000)}),
        says=('unknown field "spec.config.s0"',),
    ),
    Case(
        name="a setting of a MiB",
        resource=configured({"retention.ms": "9" * MIB}),
        says=("spec.config.retention.ms", "Too long", "32"),
    ),
)

CLUSTERS: Final = (
    # What it is called.
    Case(
        name="a Cluster whose name leaves no room for its pods'",
        resource=cluster(named="c" * 31),
        says=("the name must be at most 30",),
    ),
    Case(
        name="a Cluster whose name begins with a digit",
        resource=cluster(named="3brokers"),
        says=("the name must", "begin with a letter"),
    ),
    Case(
        name="a Cluster whose name has a dot",
        resource=cluster(named="logs.eu"),
        says=("the name must be at most 30 of a-z, 0-9 and -",),
    ),
    Case(
        name="a Cluster whose name is not ASCII",
        resource=cluster(named="größe"),
        says=("metadata.name", "lower case"),
    ),
    Case(
        name="objects of its name that belong to another Cluster",
        resource=cluster(pool(name="b-c"), named="a"),
        others=(cluster(pool(name="c"), named="a-b"),),
        reason="NameTaken",
        says=("a-b-c", "belongs to Cluster a-b", "give the Cluster another name"),
    ),
    Case(
        name="a ConfigMap of its name that is somebody's",
        resource=cluster(named="taken"),
        others=(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "taken-b", "namespace": NAMESPACE},
                "data": {"mine": "yes"},
            },
        ),
        reason="NameTaken",
        says=("ConfigMap brokers/taken-b", "is not ours", "give the Cluster another name"),
    ),
    # Pools.
    Case(
        name="no pools",
        resource=_resource("Cluster", "", {"pools": []}),
        says=("spec.pools", "at least 1"),
    ),
    Case(
        name="two pools of one name",
        resource=cluster(pool(), pool()),
        says=("spec.pools[1]", "Duplicate value"),
    ),
    Case(
        name="too many pools",
        resource=cluster(*(pool(name=f"p{number}") for number in range(17))),
        says=("spec.pools", "must have at most 16 items"),
    ),
    Case(
        name="a pool whose name is too long for a host's",
        resource=cluster(pool(name="p" * 21)),
        says=("spec.pools[0].name", "Too long", "20"),
    ),
    Case(
        name="a pool with capital letters",
        resource=cluster(pool(name="Fast")),
        says=("spec.pools[0].name", "should match"),
    ),
    Case(
        name="no brokers at all",
        resource=cluster(pool(replicas=0)),
        says=("a cluster needs a broker", "set replicas of a pool to 1 or more"),
    ),
    Case(
        name="a negative number of brokers",
        resource=cluster(pool(replicas=-1)),
        says=("spec.pools[0].replicas", "greater than or equal to 0"),
    ),
    Case(
        name="ten thousand brokers",
        resource=cluster(pool(replicas=10_000)),
        says=("spec.pools[0].replicas", "less than or equal to 250"),
    ),
    Case(
        name="brokers as a text",
        resource=cluster(pool(replicas="three")),
        says=("spec.pools[0].replicas", "must be of type integer"),
    ),
    Case(
        name="a zone that no node can have",
        resource=cluster(pool(zone="eu west")),
        says=("spec.pools[0].zone", "should match"),
    ),
    Case(
        name="a zone, and another one for the nodes",
        resource=cluster(
            pool(zone="a", template={"nodeSelector": {"topology.kubernetes.io/zone": "b"}})
        ),
        says=("spec.pools[0]", "take topology.kubernetes.io/zone out of template.nodeSelector"),
    ),
    # Volumes.
    Case(
        name="a pool without volumes",
        resource=cluster(pool(volumes=[])),
        says=("spec.pools[0].volumes", "at least 1"),
    ),
    Case(
        name="two volumes of one name",
        resource=cluster(pool(volumes=[VOLUME, VOLUME])),
        says=("spec.pools[0].volumes[1]", "Duplicate value"),
    ),
    Case(
        name="a volume of the name that the settings' has",
        resource=cluster(volume(name="config")),
        says=("spec.pools[0].volumes[0]", "give it another name"),
    ),
    Case(
        name="a volume whose name is a path",
        resource=cluster(volume(name="../data")),
        says=("spec.pools[0].volumes[0].name", "should match"),
    ),
    Case(
        name="a volume without a size",
        resource=cluster(pool(volumes=[{"name": "data"}])),
        says=("spec.pools[0].volumes[0].size: Required value",),
    ),
    Case(
        name="a size in words",
        resource=cluster(volume(size="large")),
        says=("spec.pools[0].volumes[0]", "size must be a quantity", "100Gi"),
    ),
    Case(
        name="a size with a unit that Kubernetes does not know",
        resource=cluster(volume(size="10GB")),
        says=("spec.pools[0].volumes[0]", "size must be a quantity", "100Gi"),
    ),
    Case(
        name="a negative size",
        resource=cluster(volume(size="-1Gi")),
        says=("spec.pools[0].volumes[0]", "size must be at least 128Mi", "100Gi"),
    ),
    Case(
        name="a size without a unit",
        resource=cluster(volume(size=100)),
        says=("spec.pools[0].volumes[0]", "size must be at least 128Mi", "100Gi"),
    ),
    Case(
        name="a media of volumes that nobody knows",
        resource=cluster(volume(media="tape")),
        says=("spec.pools[0].volumes[0].media", '"hdd", "ssd"'),
    ),
    Case(
        name="a volume that shrinks",
        before={"pools": [volume(size="2Gi")]},
        resource=cluster(volume(size="1Gi")),
        says=("spec.pools[0].volumes[0]", "cannot shrink", "add a pool"),
    ),
    Case(
        name="a volume of another media",
        before={"pools": [volume(media="ssd")]},
        resource=cluster(volume(media="hdd")),
        says=("spec.pools[0].volumes[0]", "media cannot change", "add a pool"),
    ),
    Case(
        name="a volume of another class",
        before={"pools": [volume(storageClassName="local")]},
        resource=cluster(volume(storageClassName="remote")),
        says=("spec.pools[0].volumes[0]", "storageClassName cannot change", "add a pool"),
    ),
    Case(
        name="a volume more in a pool",
        before={"pools": [pool()]},
        resource=cluster(pool(volumes=[VOLUME, {**VOLUME, "name": "more"}])),
        says=("spec.pools[0]", "neither added nor removed", "add a pool"),
    ),
    # Settings.
    Case(
        name="a section of settings that does not exist",
        resource=cluster(config={"storag": {"slow_flush_ms": 10}}),
        says=('unknown field "spec.config.storag"',),
    ),
    Case(
        name="a setting of brokers that does not exist",
        resource=cluster(config={"storage": {"slow_flush": 10}}),
        says=('unknown field "spec.config.storage.slow_flush"',),
    ),
    Case(
        name="the name of brokers",
        resource=cluster(config={"node": {"name": "mine"}}),
        says=('unknown field "spec.config.node"',),
    ),
    Case(
        name="the port of brokers",
        resource=cluster(config={"listener": {"port": 80}}),
        says=('unknown field "spec.config.listener"',),
    ),
    Case(
        name="where brokers keep their logs",
        resource=cluster(config={"log_dirs": ["/"]}),
        says=('unknown field "spec.config.log_dirs"',),
    ),
    Case(
        name="a setting of brokers that is out of bounds",
        resource=cluster(config={"storage": {"slow_flush_ms": 1}}),
        says=("spec.config.storage.slow_flush_ms", "must be at least 10 ms, or -1"),
    ),
    Case(
        name="a setting of brokers that is out of bounds, as a text",
        resource=cluster(config={"storage": {"slow_flush_ms": "1ms"}}),
        reason="InvalidConfig",
        says=("spec.config", "storage.slow_flush_ms = '1ms'", "must be 10 to"),
    ),
    Case(
        name="settings of brokers that do not go together",
        resource=cluster(
            config={"cluster": {"default_partitions": 100, "topic_partitions_max": 10}}
        ),
        reason="InvalidConfig",
        says=("spec.config", "cluster.default_partitions = 100", "topic_partitions_max = 10"),
    ),
    Case(
        name="a section that is a text",
        resource=cluster(config={"storage": "fast"}),
        says=("spec.config.storage", "must be of type object"),
    ),
    # Pods.
    Case(
        name="a version that is no tag",
        resource=cluster(version="0.1.0 or later"),
        says=("spec.version", "should match"),
    ),
    Case(
        name="a version beside an image",
        resource=cluster(version="0.2.0", image="registry.example.org/millrace:0.1.0"),
        says=("version is the tag of the operator's own image", "name the tag there"),
    ),
    Case(
        name="a volume's name that is part of a cluster's",
        resource=cluster(volume(name="data-a")),
        says=("spec.pools[0].volumes[0].name", "should match"),
    ),
    Case(
        name="an image with spaces",
        resource=cluster(image="millrace 0.1.0"),
        says=("spec.image", "should match"),
    ),
    Case(
        name="an image whose name is very long",
        resource=cluster(image="m" * 513),
        says=("spec.image", "Too long", "512"),
    ),
    Case(
        name="a pull policy that is none",
        resource=cluster(imagePullPolicy="Sometimes"),
        says=("spec.imagePullPolicy", '"Always", "IfNotPresent", "Never"'),
    ),
    Case(
        name="a resource of containers that is none",
        resource=cluster(pool(resources={"requests": {"cpuu": "1"}})),
        reason="Refused",
        says=("resources.requests[cpuu]", "standard resource", "correct the Cluster's spec"),
    ),
    Case(
        name="more asked than allowed",
        resource=cluster(
            pool(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}})
        ),
        reason="Refused",
        says=("resources.requests", "less than or equal to memory limit", "correct the Cluster's"),
    ),
    Case(
        name="a negative amount of memory",
        resource=cluster(pool(resources={"requests": {"memory": "-1Gi"}})),
        says=("spec.pools[0].resources.requests.memory", "should match"),
    ),
    Case(
        name="a label that is none",
        resource=placed(labels={"team": "log files"}),
        says=("spec.pools[0].template.labels.team", "should match"),
    ),
    Case(
        name="a label whose name is none",
        resource=placed(labels={"team of": "logs"}),
        reason="Refused",
        says=("labels", '"team of"', "correct the Cluster's spec"),
    ),
    Case(
        name="a label that the operator sets",
        resource=placed(labels={"millrace.dev/cluster": "other"}),
        says=("spec.pools[0].template", "take them out of template.labels"),
    ),
    Case(
        name="annotations of a MiB",
        resource=placed(annotations={"big": "x" * MIB}),
        reason="Refused",
        says=("annotations", "may not be more than 262144 bytes", "correct the Cluster's spec"),
    ),
    Case(
        name="an affinity of a wrong shape",
        resource=placed(affinity={"nodeAffinity": "ssd"}),
        says=("spec.pools[0].template.affinity.nodeAffinity", "must be of type object"),
    ),
    Case(
        name="an affinity that does not exist",
        resource=placed(affinity={"nodeAfinity": {}}),
        says=('unknown field "spec.pools[0].template.affinity.nodeAfinity"',),
    ),
    Case(
        name="an affinity that is nested without end",
        resource=placed(affinity=_nested(_DEEP)),
        says=('unknown field "spec.pools[0].template.affinity.a"',),
    ),
    Case(
        name="an affinity to nodes with a number that is none",
        resource=placed(
            affinity={
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "cores", "operator": "Gt"}]}
                        ]
                    }
                }
            }
        ),
        reason="Refused",
        says=("nodeSelectorTerms[0].matchExpressions[0].values", "correct the Cluster's spec"),
    ),
    Case(
        name="a toleration of no effect",
        resource=placed(tolerations=[{"key": "dedicated", "effect": "Never"}]),
        says=("spec.pools[0].template.tolerations[0].effect", '"NoExecute", "NoSchedule"'),
    ),
    Case(
        name="a toleration without a key",
        resource=placed(tolerations=[{"value": "logs"}]),
        says=("spec.pools[0].template.tolerations[0]", "the operator must be Exists"),
    ),
    Case(
        name="spread that is unlimited",
        resource=placed(
            topologySpreadConstraints=[
                {
                    "maxSkew": 0,
                    "topologyKey": "kubernetes.io/hostname",
                    "whenUnsatisfiable": "DoNotSchedule",
                }
            ]
        ),
        says=("topologySpreadConstraints[0].maxSkew", "greater than or equal to 1"),
    ),
    Case(
        name="a priority class that is not there",
        resource=placed(priorityClassName="most-important"),
        reason="NoBrokerAnswers",
        says=("no PriorityClass with name most-important",),
    ),
    # Who may have topics.
    Case(
        name="a selector without saying that it counts",
        resource=cluster(allowedTopics={"namespaces": {"selector": {"matchLabels": {"a": "b"}}}}),
        says=("spec.allowedTopics.namespaces", "selector goes with `from: Selector`"),
    ),
    Case(
        name="no selector where one counts",
        resource=cluster(allowedTopics={"namespaces": {"from": "Selector"}}),
        says=("spec.allowedTopics.namespaces", "selector goes with `from: Selector`"),
    ),
    Case(
        name="a selector with a mistake, which would select everything",
        resource=cluster(
            allowedTopics={"namespaces": {"from": "Selector", "selector": {"matchLabel": {}}}}
        ),
        says=('unknown field "spec.allowedTopics.namespaces.selector.matchLabel"',),
    ),
    Case(
        name="a selector of everything",
        resource=cluster(allowedTopics={"namespaces": {"from": "Selector", "selector": {}}}),
        says=("spec.allowedTopics.namespaces", "write `from: All`"),
    ),
    Case(
        name="a selector with an operator that is none",
        resource=cluster(
            allowedTopics={
                "namespaces": {
                    "from": "Selector",
                    "selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]},
                }
            }
        ),
        says=("selector.matchExpressions[0].operator", '"Exists", "In", "NotIn"'),
    ),
    # Clients outside.
    Case(
        name="a listener of no type",
        resource=outside(type="Ingress"),
        says=("spec.listeners.outside.type", '"LoadBalancer", "NodePort"'),
    ),
    Case(
        name="addresses of nodes behind load balancers",
        resource=outside(type="LoadBalancer", nodeAddress="Hostname"),
        says=("spec.listeners.outside", "nodeAddress goes with `type: NodePort`"),
    ),
    Case(
        name="load balancers of no Service",
        resource=outside(loadBalancerClass="example.org/lb"),
        says=("spec.listeners.outside", "loadBalancerClass", "go with `type: LoadBalancer`"),
    ),
    Case(
        name="networks that are none",
        resource=outside(type="LoadBalancer", loadBalancerSourceRanges=["everybody"]),
        condition="OutsideAddressed",
        reason="AddressesMissing",
        says=("is refused", "LoadBalancerSourceRanges[0]", "everybody", "10.9.8.0/24"),
    ),
    Case(
        name="a port that is none",
        resource=outside(bootstrap={"nodePort": 70_000}),
        says=("spec.listeners.outside.bootstrap.nodePort", "less than or equal to 65535"),
    ),
    Case(
        name="a port that nodes do not give",
        resource=outside(bootstrap={"nodePort": 80}),
        condition="OutsideAddressed",
        reason="AddressesMissing",
        says=("is refused", "nodePort", "30000-32767"),
    ),
    Case(
        name="one port for two brokers",
        resource=outside(
            named="ports",
            bootstrap={"nodePort": 30_080},
            brokers=[{"name": "ports-b-0", "nodePort": 30_080}],
        ),
        condition="OutsideAddressed",
        reason="AddressesMissing",
        says=("is refused", "nodePort", "30080", "already allocated"),
    ),
    Case(
        name="a broker that there is twice",
        resource=outside(named="twice", brokers=[{"name": "twice-b-0"}, {"name": "twice-b-0"}]),
        says=("spec.listeners.outside.brokers[1]", "Duplicate value"),
    ),
    Case(
        name="a broker of a pool that is not there",
        resource=outside(named="nobody", brokers=[{"name": "nobody-c-0"}]),
        says=("listeners.outside.brokers names a broker of no pool", "<cluster>-<pool>-<number>"),
    ),
    Case(
        name="a host with a space",
        resource=outside(
            named="host", brokers=[{"name": "host-b-0", "advertisedHost": "broker 0"}]
        ),
        says=("spec.listeners.outside.brokers[0].advertisedHost", "should match"),
    ),
    # The rest.
    Case(
        name="a policy for volumes that is none",
        resource=cluster(volumeDeletion="Keep"),
        says=("spec.volumeDeletion", '"Delete", "Retain"'),
    ),
    Case(
        name="a policy for lost volumes that is none",
        resource=cluster(lostVolumes="Ignore"),
        says=("spec.lostVolumes", '"Replace", "Wait"'),
    ),
    Case(
        name="paused in words",
        resource=cluster(paused="yes"),
        says=("spec.paused", "must be of type boolean"),
    ),
    Case(
        name="a field of Clusters that is not there",
        resource=cluster(replicas=3),
        says=('unknown field "spec.replicas"',),
    ),
    Case(
        name="a Cluster of 4 MiB",
        resource=cluster(image="m" * 4 * MIB),
        says=("too large", "limit is 3145728"),
    ),
)

QUOTAS: Final = (
    Case(
        name="a Quota for nobody",
        resource=quota({}),
        says=("spec.for", "give exactly one: clientId, user or both of them; or topic"),
    ),
    Case(
        name="a Quota for clients and a topic",
        resource=quota({"clientId": "app", "topic": "t"}),
        says=("spec.for", "give exactly one"),
    ),
    Case(
        name="a Quota for each namespace and a user",
        resource=quota({"user": "alice", "each": ["Namespace"]}),
        says=("spec.for", "give exactly one"),
    ),
    Case(
        name="a Quota for one client id and each",
        resource=quota({"clientId": "app", "each": ["ClientId"]}),
        says=("spec.for", "a name and each exclude each other", "take one away"),
    ),
    Case(
        name="a Quota for one namespace and each",
        resource=quota({"namespace": "shop", "each": ["Namespace"]}),
        says=("spec.for", "a name and each exclude each other"),
    ),
    Case(
        name="a Quota for each of what is not there",
        resource=quota({"each": ["Group"]}),
        says=("spec.for.each", '"ClientId", "Namespace", "Topic", "User"'),
    ),
    Case(
        name="a Quota for a client id with a space",
        resource=quota({"clientId": "my app"}),
        says=("spec.for.clientId", "should match"),
    ),
    Case(
        name="a Quota for a user that is not printable",
        resource=quota({"user": "al\nice"}),
        reason="Invalid",
        says=("principal", "printable characters"),
    ),
    Case(
        name="a Quota for the topic ..",
        resource=quota({"topic": ".."}),
        reason="Invalid",
        says=("topic", "neither '.' nor '..'"),
    ),
    Case(
        name="a Quota without a limit",
        resource=quota(produceBytesPerSecond=None),
        says=("it limits nothing", "produceBytesPerSecond, fetchBytesPerSecond or requestPercent"),
    ),
    *(
        Case(
            name=f"a rate of {rate}",
            resource=quota(fetchBytesPerSecond=rate),
            says=("fetchBytesPerSecond must be 1024 bytes to 1 TiB", "10MB or 10Mi"),
        )
        for rate in (0, -5, 1023, "1k", "1023B", "1025Gi", 1 << 41)
    ),
    *(
        Case(
            name=f"the rate {rate}",
            resource=quota(produceBytesPerSecond=rate),
            says=("produceBytesPerSecond must be bytes a second", "10Mi"),
        )
        for rate in ("10m", "10 MB", "1e7", "10mb", "much", "")
    ),
    Case(
        name="half a byte more",
        resource=quota(produceBytesPerSecond=2048.5),
        says=("spec.produceBytesPerSecond", "must be of type"),
    ),
    Case(
        name="no request time",
        resource=quota(requestPercent=0),
        says=("spec.requestPercent", "greater than or equal to 1"),
    ),
    Case(
        name="request time of a topic",
        resource=quota({"topic": "t"}, requestPercent=5),
        says=("requestPercent is for clients, and not for topics",),
    ),
    Case(
        name="request time of each namespace",
        resource=quota({"each": ["Namespace"]}, requestPercent=5),
        says=("requestPercent is for clients, and not for topics",),
    ),
    Case(
        name="a scope that is none",
        resource=quota(scope="Topic"),
        says=("spec.scope", '"Broker", "Cluster"'),
    ),
    Case(
        name="a Quota that moves to another cluster",
        before={"for": {"clientId": "moves"}, "produceBytesPerSecond": "1MB"},
        resource=quota({"clientId": "moves"}, clusterRef={"name": "other"}),
        says=("clusterRef cannot change", "make another Quota"),
    ),
    Case(
        name="a Quota of a cluster that is not there",
        resource=quota(clusterRef={"name": "nowhere"}),
        reason="NoCluster",
        says=("no Cluster nowhere in namespace brokers", "create it", "in another Quota"),
    ),
    Case(
        name="a Quota of a namespace that the cluster does not allow",
        resource=quota(where=ELSEWHERE, clusterRef={"name": GOOD, "namespace": NAMESPACE}),
        reason="NotAllowed",
        says=("takes no Quotas of namespace elsewhere", "spec.allowedTopics.namespaces"),
    ),
    Case(
        name="a Quota for what another one is for",
        resource=quota({"clientId": GOOD_QUOTA}),
        reason="Conflict",
        says=(
            "quota brokers/good is for client id good already",
            "change or delete the Quota good of namespace brokers",
        ),
    ),
)

CASES: Final = (*TOPICS, *CLUSTERS, *QUOTAS)
