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
    condition: str
    reason: str
    before: Mapping[str, Any] | None
    others: tuple[Document, ...]


def case(
    name: str,
    resource: Document,
    *says: str,
    condition: str = "Ready",
    reason: str = "",
    before: Mapping[str, Any] | None = None,
    others: tuple[Document, ...] = (),
) -> Case:
    """Return a row."""
    return Case(
        name=name,
        resource=resource,
        says=says,
        condition=condition,
        reason=reason,
        before=before,
        others=others,
    )


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
        "Topic", named, {key: value for key, value in spec.items() if value is not None}, where
    )


def quota(
    whom: Mapping[str, Any] | None = None, *, named: str = "", where: str = NAMESPACE, **spec: Any
) -> Document:
    """Return a Quota of the good Cluster, for a client id of no other one unless it says more."""
    whom = {"clientId": "somebody"} if whom is None else whom
    spec = {"clusterRef": {"name": GOOD}, "for": whom, "produceBytesPerSecond": "1MB", **spec}
    return _resource(
        "Quota", named, {key: value for key, value in spec.items() if value is not None}, where
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


# fmt: off
TOPICS: Final = (
    # What it is called, and where.
    case("a Topic without a spec",
         {
             "apiVersion": "millrace.dev/v1beta1",
             "kind": "Topic",
             "metadata": {"namespace": NAMESPACE},
         }, "spec: Required value"),
    case("a Topic of no cluster", topic(clusterRef=None), "spec.clusterRef: Required value"),
    case("a cluster's name with a slash", topic(clusterRef={"name": "brokers/good"}),
         "spec.clusterRef.name", "should match"),
    case("a cluster that is not there", topic(clusterRef={"name": "nowhere"}),
         "no Cluster nowhere in namespace brokers", "create it", "spec.clusterRef",
         reason="NoCluster"),
    case("a cluster in a namespace that is not there",
         topic(clusterRef={"name": GOOD, "namespace": "nowhere"}),
         "no Cluster good in namespace nowhere", "create it", "spec.clusterRef",
         reason="NoCluster"),
    case("a namespace that the cluster does not allow",
         topic(where=ELSEWHERE, clusterRef={"name": GOOD, "namespace": NAMESPACE}),
         "takes no Topics of namespace elsewhere", "spec.allowedTopics.namespaces",
         reason="NotAllowed"),
    case("a topic that another Topic has", topic(topicName=GOOD_TOPIC),
         "has the name brokers/good", "spec.topicName", reason="NameClash"),
    case("a name of the cluster's own", topic(topicName="__positions"), "topicName",
         "choose another"),
    case("the name ..", topic(topicName=".."), "topicName", "choose another"),
    case("a name that climbs out of its folder", topic(topicName="../../etc/passwd"),
         "spec.topicName", "should match '^[A-Za-z0-9._-]+$'"),
    case("a name that is not ASCII", topic(topicName="größe"), "spec.topicName", "should match"),
    case("an empty name", topic(topicName=""), "spec.topicName", "at least 1"),
    case("a name that is too long", topic(topicName="x" * 250), "spec.topicName", "Too long",
         "249"),
    case("a resource whose name is too long for a topic", topic(named="x" * 250),
         "the name is too long for a topic", "at most 249", "spec.topicName"),
    case("a resource with capital letters", topic(named="Orders"), "metadata.name", "lower case"),
    # Partitions and replicas.
    case("no partitions", topic(partitions=0), "spec.partitions", "greater than or equal to 1"),
    case("a negative number of partitions", topic(partitions=-3), "spec.partitions",
         "greater than or equal to 1"),
    case("half a partition", topic(partitions=1.5), "spec.partitions", "must be of type integer"),
    case("partitions as a text", topic(partitions="3"), "spec.partitions",
         "must be of type integer"),
    case("more partitions than any topic may have", topic(partitions=100_001), "spec.partitions",
         "less than or equal to 100000"),
    case("more partitions than this cluster allows", topic(partitions=20_000), "partitions",
         "10000", "topic_partitions_max", reason="InvalidPartitions"),
    case("fewer partitions", topic(partitions=3), "partitions never become fewer",
         "make another Topic", before={"partitions": 4}),
    case("partitions that are taken out again", topic(), "partitions never become fewer",
         "make another Topic", before={"partitions": 4}),
    case("no replicas", topic(replicas=0), "spec.replicas", "greater than or equal to 1"),
    case("more replicas than a number of 16 bits", topic(replicas=40_000), "spec.replicas",
         "less than or equal to 32767"),
    case("more replicas than brokers", topic(replicas=3), "3 replicas need as many brokers",
         "ask for fewer replicas or add brokers", reason="InvalidReplicationFactor"),
    case("more in-sync replicas than replicas",
         topic(replicas=1, config={"min.insync.replicas": 2}),
         "min.insync.replicas is more than replicas", "no more can be in sync"),
    # Media.
    case("a media that nobody knows", topic(media="nvme"), "spec.media", '"nvme"', '"hdd", "ssd"'),
    case("a media that no broker has", topic(replicas=1, media="hdd"),
         "for 1 replica on hdd the cluster needs 1 broker",
         "add a pool with a volume of media hdd", "spec.media", reason="NoMedia"),
    case("tiers that no broker has", topic(replicas=1, media="tiered"), "for 1 replica on tiered",
         "add a pool with volumes of media ssd and of hdd", reason="NoMedia"),
    # What must not change.
    case("another cluster", topic(clusterRef={"name": "other"}), "clusterRef cannot change",
         "make another Topic", before={}),
    case("another name", topic(topicName="Two"), "topicName cannot change", "make another Topic",
         before={"topicName": "One"}),
    case("a name where there was none", topic(topicName="Two"), "topicName cannot change",
         "make another Topic", before={}),
    # Settings.
    case("a setting that does not exist", configured({"retention.mss": 1}),
         'unknown field "spec.config.retention.mss"'),
    case("a setting with underscores", configured({"retention_ms": 1000}),
         'unknown field "spec.config.retention_ms"'),
    case("a setting of Kafka's that is not there", configured({"flush.messages": 1}),
         'unknown field "spec.config.flush.messages"'),
    case("media among the settings", configured({"media": "ssd"}),
         'unknown field "spec.config.media"'),
    case("a setting that is one of a few words, and is none of them",
         configured({"durability": "always"}), "spec.config.durability", '"fsync", "replicated"'),
    case("the same of Kafka's", configured({"message.timestamp.type": "create"}),
         "spec.config.message.timestamp.type", '"CreateTime", "LogAppendTime"'),
    case("a time in words", configured({"retention.ms": "seven days"}), "spec.config.retention.ms",
         "must be a time", "1h30m", "or -1: no limit"),
    case("a time with a unit of no time", configured({"retention.ms": "7GiB"}),
         "spec.config.retention.ms", "must be a time"),
    case("a time that is no whole number of milliseconds", configured({"retention.ms": "1.0005s"}),
         "retention.ms = '1.0005s'", "must be ms as a whole number", "1h30m",
         reason="InvalidConfig"),
    case("a part of a millisecond", configured({"retention.ms": "1.5ms"}),
         "spec.config.retention.ms", "must be a time"),
    case("a time below what stands for no limit", configured({"retention.ms": -2}),
         "spec.config.retention.ms", "greater than or equal to -1"),
    case("no limit where there has to be one", configured({"segment.bytes": "-1"}),
         "spec.config.segment.bytes", "must be a size", "64Mi"),
    case("a size that is too small", configured({"segment.bytes": 1}), "spec.config.segment.bytes",
         "greater than or equal to 1048576"),
    case("a size that is too small, as a text", configured({"segment.bytes": "1KiB"}),
         "segment.bytes = '1KiB'", "must be 1048576 to", reason="InvalidConfig"),
    case("a size beyond what a segment can have", configured({"segment.bytes": 1 << 31}),
         "spec.config.segment.bytes", "less than or equal to"),
    case("segments that end all the time", configured({"segment.ms": 5}), "segment.ms",
         "at least 1000", reason="InvalidConfig"),
    case("a number as a text", configured({"min.insync.replicas": "2"}),
         "spec.config.min.insync.replicas", "must be of type integer"),
    case("no replicas in sync", configured({"min.insync.replicas": 0}),
         "spec.config.min.insync.replicas", "must be at least 1, or -1"),
    case("yes for true", configured({"unclean.leader.election.enable": "yes"}),
         "spec.config.unclean.leader.election.enable", "must be of type boolean"),
    case("settings as a list", topic(config=[{"name": "retention.ms", "value": 1}]),
         'unknown field "spec.config[0].name"'),
    case("a policy of deletion that is none", topic(deletionPolicy="Keep"), "spec.deletionPolicy",
         '"Delete", "Retain"'),
    case("a field that is not there", topic(partition=3), 'unknown field "spec.partition"'),
    case("a thousand settings", configured({f"s{number}": number for number in range(1000)}),
         'unknown field "spec.config.s0"'),
    case("a setting of a MiB", configured({"retention.ms": "9" * MIB}), "spec.config.retention.ms",
         "Too long", "32"),
)
# fmt: on

# fmt: off
CLUSTERS: Final = (
    # What it is called.
    case("a Cluster whose name leaves no room for its pods'", cluster(named="c" * 31),
         "the name must be at most 30"),
    case("a Cluster whose name begins with a digit", cluster(named="3brokers"), "the name must",
         "begin with a letter"),
    case("a Cluster whose name has a dot", cluster(named="logs.eu"),
         "the name must be at most 30 of a-z, 0-9 and -"),
    case("a Cluster whose name is not ASCII", cluster(named="größe"), "metadata.name",
         "lower case"),
    case("objects of its name that belong to another Cluster",
         cluster(pool(name="b-c"), named="a"), "a-b-c", "belongs to Cluster a-b",
         "give the Cluster another name", reason="NameTaken",
         others=(cluster(pool(name="c"), named="a-b"),)),
    case("a ConfigMap of its name that is somebody's", cluster(named="taken"),
         "ConfigMap brokers/taken-b", "is not ours", "give the Cluster another name",
         reason="NameTaken",
         others=(
             {
                 "apiVersion": "v1",
                 "kind": "ConfigMap",
                 "metadata": {"name": "taken-b", "namespace": NAMESPACE},
                 "data": {"mine": "yes"},
             },
         )),
    # Pools.
    case("no pools", _resource("Cluster", "", {"pools": []}), "spec.pools", "at least 1"),
    case("two pools of one name", cluster(pool(), pool()), "spec.pools[1]", "Duplicate value"),
    case("too many pools", cluster(*(pool(name=f"p{number}") for number in range(17))),
         "spec.pools", "must have at most 16 items"),
    case("a pool whose name is too long for a host's", cluster(pool(name="p" * 21)),
         "spec.pools[0].name", "Too long", "20"),
    case("a pool with capital letters", cluster(pool(name="Fast")), "spec.pools[0].name",
         "should match"),
    case("a pool that would have the objects of the authorities", cluster(pool(name="ca")),
         "a pool cannot be called ca", "give it another name"),
    case("a pool that would have the objects of the addresses",
         cluster(pool(name="outside"), listeners={"outside": {"type": "NodePort"}}),
         "a pool cannot be called outside", "give it another name"),
    case("a pool that would have the Secret of an issuer",
         cluster(pool(name="clients"), tls={"issuerRef": {"name": "letsencrypt"}}),
         "a pool cannot be called clients", "give it another name"),
    case("no brokers at all", cluster(pool(replicas=0)), "a cluster needs a broker",
         "set replicas of a pool to 1 or more"),
    case("a negative number of brokers", cluster(pool(replicas=-1)), "spec.pools[0].replicas",
         "greater than or equal to 0"),
    case("ten thousand brokers", cluster(pool(replicas=10_000)), "spec.pools[0].replicas",
         "less than or equal to 250"),
    case("brokers as a text", cluster(pool(replicas="three")), "spec.pools[0].replicas",
         "must be of type integer"),
    case("a zone that no node can have", cluster(pool(zone="eu west")), "spec.pools[0].zone",
         "should match"),
    case("a zone, and another one for the nodes",
         cluster(pool(zone="a", template={"nodeSelector": {"topology.kubernetes.io/zone": "b"}})),
         "spec.pools[0]", "take topology.kubernetes.io/zone out of template.nodeSelector"),
    # Volumes.
    case("a pool without volumes", cluster(pool(volumes=[])), "spec.pools[0].volumes",
         "at least 1"),
    case("two volumes of one name", cluster(pool(volumes=[VOLUME, VOLUME])),
         "spec.pools[0].volumes[1]", "Duplicate value"),
    case("a volume of the name that the settings' has", cluster(volume(name="config")),
         "spec.pools[0].volumes[0]", "give it another name"),
    case("a volume whose name is a path", cluster(volume(name="../data")),
         "spec.pools[0].volumes[0].name", "should match"),
    case("a volume without a size", cluster(pool(volumes=[{"name": "data"}])),
         "spec.pools[0].volumes[0].size: Required value"),
    case("a size in words", cluster(volume(size="large")), "spec.pools[0].volumes[0]",
         "size must be a quantity", "100Gi"),
    case("a size with a unit that Kubernetes does not know", cluster(volume(size="10GB")),
         "spec.pools[0].volumes[0]", "size must be a quantity", "100Gi"),
    case("a negative size", cluster(volume(size="-1Gi")), "spec.pools[0].volumes[0]",
         "size must be at least 128Mi", "100Gi"),
    case("a size without a unit", cluster(volume(size=100)), "spec.pools[0].volumes[0]",
         "size must be at least 128Mi", "100Gi"),
    case("a media of volumes that nobody knows", cluster(volume(media="tape")),
         "spec.pools[0].volumes[0].media", '"hdd", "ssd"'),
    case("a volume that shrinks", cluster(volume(size="1Gi")), "spec.pools[0].volumes[0]",
         "cannot shrink", "add a pool", before={"pools": [volume(size="2Gi")]}),
    case("a volume of another media", cluster(volume(media="hdd")), "spec.pools[0].volumes[0]",
         "media cannot change", "add a pool", before={"pools": [volume(media="ssd")]}),
    case("a volume of another class", cluster(volume(storageClassName="remote")),
         "spec.pools[0].volumes[0]", "storageClassName cannot change", "add a pool",
         before={"pools": [volume(storageClassName="local")]}),
    case("a volume more in a pool", cluster(pool(volumes=[VOLUME, {**VOLUME, "name": "more"}])),
         "spec.pools[0]", "neither added nor removed", "add a pool", before={"pools": [pool()]}),
    # Settings.
    case("a section of settings that does not exist",
         cluster(config={"storag": {"slow_flush_ms": 10}}), 'unknown field "spec.config.storag"'),
    case("a setting of brokers that does not exist",
         cluster(config={"storage": {"slow_flush": 10}}),
         'unknown field "spec.config.storage.slow_flush"'),
    case("the name of brokers", cluster(config={"node": {"name": "mine"}}),
         'unknown field "spec.config.node"'),
    case("the port of brokers", cluster(config={"listener": {"port": 80}}),
         'unknown field "spec.config.listener"'),
    case("where brokers keep their logs", cluster(config={"log_dirs": ["/"]}),
         'unknown field "spec.config.log_dirs"'),
    case("a setting of brokers that is out of bounds",
         cluster(config={"storage": {"slow_flush_ms": 1}}), "spec.config.storage.slow_flush_ms",
         "must be at least 10 ms, or -1"),
    case("a setting of brokers that is out of bounds, as a text",
         cluster(config={"storage": {"slow_flush_ms": "1ms"}}), "spec.config",
         "storage.slow_flush_ms = '1ms'", "must be 10 to", reason="InvalidConfig"),
    case("settings of brokers that do not go together",
         cluster(config={"cluster": {"default_partitions": 100, "topic_partitions_max": 10}}),
         "spec.config", "cluster.default_partitions = 100", "topic_partitions_max = 10",
         reason="InvalidConfig"),
    case("a section that is a text", cluster(config={"storage": "fast"}), "spec.config.storage",
         "must be of type object"),
    # Pods.
    case("a version that is no tag", cluster(version="0.1.0 or later"), "spec.version",
         "should match"),
    case("a version beside an image",
         cluster(version="0.2.0", image="registry.example.org/millrace:0.1.0"),
         "version is the tag of the operator's own image", "name the tag there"),
    case("access control while TLS is optional", cluster(tls={"mode": "Optional"}, access={}),
         "access.mode Enforced goes with tls.mode Required", "tokens are sent over TLS only"),
    case("access control without TLS",
         cluster(tls={"mode": "Disabled"}, access={"mode": "Logged"}),
         "access.mode Logged goes without tls.mode Disabled", "tokens are sent over TLS only"),
    case("a mode of TLS that is not known", cluster(tls={"mode": "Maybe"}), "spec.tls.mode",
         '"Disabled", "Optional", "Required"'),
    case("TLS of brokers that do not know it", cluster(tls={}, version="0.2.0"),
         "tls needs brokers that know it", "name a later version"),
    case("an authority that is not known", cluster(tls={}, access={"authority": "Files"}),
         "spec.access.authority", '"Kubernetes"'),
    case("a trust domain that is a URL", cluster(tls={"trustDomain": "spiffe://a"}),
         "spec.tls.trustDomain", "should match"),
    case("another trust domain", cluster(tls={"trustDomain": "b.org"}), "spec.tls",
         "trustDomain cannot change", before={"pools": [volume()], "tls": {}}),
    case("times of certificates without an issuer", cluster(tls={"duration": "72h"}), "spec.tls",
         "duration and renewBefore go with issuerRef"),
    case("a certificate that cert-manager would not issue",
         cluster(tls={"issuerRef": {"name": "a"}, "duration": "30m"}), "spec.tls",
         "duration must be at least 1h"),
    case("a certificate that is renewed before it is there",
         cluster(tls={"issuerRef": {"name": "a"}, "renewBefore": "721h"}), "spec.tls",
         "shorter than duration"),
    case("a certificate that is renewed when nobody has time to act any more",
         cluster(tls={"issuerRef": {"name": "a"}, "renewBefore": "24h"}), "spec.tls",
         "at least a fifth of it"),
    case("a time that is none",
         cluster(tls={"issuerRef": {"name": "a"}, "duration": "30 days"}), "spec.tls.duration",
         "should match"),
    case("an issuer where cert-manager is not installed", cluster(tls={"issuerRef": {"name": "a"}}),
         "knows no Certificates", "install cert-manager", condition="Certified",
         reason="NoCertManager"),
    case("a peer of the network that is two things",
         cluster(networkPolicy={"metrics": [{"podSelector": {}, "ipBlock": {"cidr": "::/0"}}]}),
         "spec.networkPolicy.metrics[0]", "either ipBlock, or namespaceSelector"),
    case("a network that is an address", cluster(networkPolicy={"apiServer": ["10.0.0.1"]}),
         "spec.networkPolicy.apiServer[0]", "should match"),
    case("a network that is too narrow for its address",
         cluster(networkPolicy={"apiServer": ["10.0.0.0/99"]}), "cidr",
         "correct the Cluster's spec", reason="Refused"),
    case("a volume's name that is part of a cluster's", cluster(volume(name="data-a")),
         "spec.pools[0].volumes[0].name", "should match"),
    case("an image with spaces", cluster(image="millrace 0.1.0"), "spec.image", "should match"),
    case("an image whose name is very long", cluster(image="m" * 513), "spec.image", "Too long",
         "512"),
    case("a pull policy that is none", cluster(imagePullPolicy="Sometimes"),
         "spec.imagePullPolicy", '"Always", "IfNotPresent", "Never"'),
    case("a resource of containers that is none",
         cluster(pool(resources={"requests": {"cpuu": "1"}})), "resources.requests[cpuu]",
         "standard resource", "correct the Cluster's spec", reason="Refused"),
    case("more asked than allowed",
         cluster(pool(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}})),
         "resources.requests", "less than or equal to memory limit", "correct the Cluster's",
         reason="Refused"),
    case("a negative amount of memory", cluster(pool(resources={"requests": {"memory": "-1Gi"}})),
         "spec.pools[0].resources.requests.memory", "should match"),
    case("a label that is none", placed(labels={"team": "log files"}),
         "spec.pools[0].template.labels.team", "should match"),
    case("a label whose name is none", placed(labels={"team of": "logs"}), "labels", '"team of"',
         "correct the Cluster's spec", reason="Refused"),
    case("a label that the operator sets", placed(labels={"millrace.dev/cluster": "other"}),
         "spec.pools[0].template", "take them out of template.labels"),
    case("annotations of a MiB", placed(annotations={"big": "x" * MIB}), "annotations",
         "may not be more than 262144 bytes", "correct the Cluster's spec", reason="Refused"),
    case("an affinity of a wrong shape", placed(affinity={"nodeAffinity": "ssd"}),
         "spec.pools[0].template.affinity.nodeAffinity", "must be of type object"),
    case("an affinity that does not exist", placed(affinity={"nodeAfinity": {}}),
         'unknown field "spec.pools[0].template.affinity.nodeAfinity"'),
    case("an affinity that is nested without end", placed(affinity=_nested(_DEEP)),
         'unknown field "spec.pools[0].template.affinity.a"'),
    case("an affinity to nodes with a number that is none",
         placed(
             affinity={
                 "nodeAffinity": {
                     "requiredDuringSchedulingIgnoredDuringExecution": {
                         "nodeSelectorTerms": [
                             {"matchExpressions": [{"key": "cores", "operator": "Gt"}]}
                         ]
                     }
                 }
             }
         ), "nodeSelectorTerms[0].matchExpressions[0].values", "correct the Cluster's spec",
         reason="Refused"),
    case("a toleration of no effect",
         placed(tolerations=[{"key": "dedicated", "effect": "Never"}]),
         "spec.pools[0].template.tolerations[0].effect", '"NoExecute", "NoSchedule"'),
    case("a toleration without a key", placed(tolerations=[{"value": "logs"}]),
         "spec.pools[0].template.tolerations[0]", "the operator must be Exists"),
    case("spread that is unlimited",
         placed(
             topologySpreadConstraints=[
                 {
                     "maxSkew": 0,
                     "topologyKey": "kubernetes.io/hostname",
                     "whenUnsatisfiable": "DoNotSchedule",
                 }
             ]
         ), "topologySpreadConstraints[0].maxSkew", "greater than or equal to 1"),
    case("a priority class that is not there", placed(priorityClassName="most-important"),
         "no PriorityClass with name most-important", reason="NoBrokerAnswers"),
    # Who may have topics.
    case("a selector without saying that it counts",
         cluster(allowedTopics={"namespaces": {"selector": {"matchLabels": {"a": "b"}}}}),
         "spec.allowedTopics.namespaces", "selector goes with `from: Selector`"),
    case("no selector where one counts",
         cluster(allowedTopics={"namespaces": {"from": "Selector"}}),
         "spec.allowedTopics.namespaces", "selector goes with `from: Selector`"),
    case("a selector with a mistake, which would select everything",
         cluster(
             allowedTopics={"namespaces": {"from": "Selector", "selector": {"matchLabel": {}}}}
         ), 'unknown field "spec.allowedTopics.namespaces.selector.matchLabel"'),
    case("a selector of everything",
         cluster(allowedTopics={"namespaces": {"from": "Selector", "selector": {}}}),
         "spec.allowedTopics.namespaces", "write `from: All`"),
    case("a selector with an operator that is none",
         cluster(
             allowedTopics={
                 "namespaces": {
                     "from": "Selector",
                     "selector": {"matchExpressions": [{"key": "a", "operator": "Like"}]},
                 }
             }
         ), "selector.matchExpressions[0].operator", '"Exists", "In", "NotIn"'),
    # Clients outside.
    case("a listener of no type", outside(type="Ingress"), "spec.listeners.outside.type",
         '"ClusterIP", "LoadBalancer", "NodePort"'),
    case("certificates of clients in plain text",
         cluster(tls={"mode": "Disabled"},
                 listeners={"outside": {"type": "NodePort", "clientsCA": {"name": "clients"}}}),
         "listeners.outside.clientsCA goes with `tls`"),
    case("authorities of clients that are nowhere",
         cluster(tls={}, listeners={"outside": {"type": "NodePort", "clientsCA": {"name": "no"}}}),
         "there is no ConfigMap no for listeners.outside.clientsCA: create it",
         condition="OutsideAddressed", reason="AddressesMissing"),
    case("the key of an authority where its certificate should be",
         cluster(tls={}, listeners={"outside": {
             "type": "NodePort", "clientsCA": {"kind": "Secret", "name": "a", "key": "1.key"}}}),
         "spec.listeners.outside.clientsCA", "key of a Secret must end in .crt"),
    case("authorities of clients in an object of another kind",
         cluster(tls={}, listeners={
             "outside": {"type": "NodePort", "clientsCA": {"kind": "Issuer", "name": "a"}}}),
         "spec.listeners.outside.clientsCA.kind", '"ConfigMap", "Secret"'),
    case("addresses of nodes behind load balancers",
         outside(type="LoadBalancer", nodeAddress="Hostname"), "spec.listeners.outside",
         "nodeAddress goes with `type: NodePort`"),
    case("load balancers of no Service", outside(loadBalancerClass="example.org/lb"),
         "spec.listeners.outside", "loadBalancerClass", "go with `type: LoadBalancer`"),
    case("networks that are none",
         outside(type="LoadBalancer", loadBalancerSourceRanges=["everybody"]), "is refused",
         "LoadBalancerSourceRanges[0]", "everybody", "10.9.8.0/24", reason="AddressesMissing",
         condition="OutsideAddressed"),
    case("DRPC for clients outside, who cannot begin", cluster(listeners={"outsideDrpc": {}}),
         "spec.listeners", "outsideDrpc goes with `outside`"),
    case("a broker of no pool by DRPC",
         cluster(
             listeners={
                 "outside": {"type": "NodePort"},
                 "outsideDrpc": {"brokers": [{"name": "orders-0"}]},
             }
         ), "listeners.outsideDrpc.brokers names a broker of no pool"),
    case("clients of Kafka outside without a Service", cluster(listeners={"outsideKafka": {}}),
         "spec.listeners", "outsideKafka goes with `outside`"),
    case("a broker of no pool for clients of Kafka",
         cluster(
             listeners={
                 "outside": {"type": "NodePort"},
                 "outsideKafka": {"brokers": [{"name": "orders-0"}]},
             }
         ), "listeners.outsideKafka.brokers names a broker of no pool"),
    case("clients of Kafka of brokers that do not know them",
         cluster(version="0.2.0", listeners={"kafka": {"enabled": True}}),
         "need brokers that speak Kafka's protocol: 0.1.0 and 0.2.0 do not"),
    case("a namespace that Millrace cannot have",
         cluster(listeners={"kafka": {"enabled": True, "namespace": "No Name"}}),
         "spec.listeners.kafka.namespace", "should match"),
    case("a port that is none", outside(bootstrap={"nodePort": 70_000}),
         "spec.listeners.outside.bootstrap.nodePort", "less than or equal to 65535"),
    case("a port that nodes do not give", outside(bootstrap={"nodePort": 80}), "is refused",
         "nodePort", "30000-32767", reason="AddressesMissing", condition="OutsideAddressed"),
    case("one port for two brokers",
         outside(
             named="ports",
             bootstrap={"nodePort": 30_080},
             brokers=[{"name": "ports-b-0", "nodePort": 30_080}],
         ), "is refused", "nodePort", "30080", "already allocated", reason="AddressesMissing",
         condition="OutsideAddressed"),
    case("a broker that there is twice",
         outside(named="twice", brokers=[{"name": "twice-b-0"}, {"name": "twice-b-0"}]),
         "spec.listeners.outside.brokers[1]", "Duplicate value"),
    case("a broker of a pool that is not there",
         outside(named="nobody", brokers=[{"name": "nobody-c-0"}]),
         "listeners.outside.brokers names a broker of no pool", "<cluster>-<pool>-<number>"),
    case("a host with a space",
         outside(named="host", brokers=[{"name": "host-b-0", "advertisedHost": "broker 0"}]),
         "spec.listeners.outside.brokers[0].advertisedHost", "should match"),
    case("a port for TLS that is none",
         outside(named="tls", brokers=[{"name": "tls-b-0", "tlsAdvertisedPort": 0}]),
         "spec.listeners.outside.brokers[0].tlsAdvertisedPort", "greater than or equal to 1"),
    # The rest.
    case("a policy for volumes that is none", cluster(volumeDeletion="Keep"),
         "spec.volumeDeletion", '"Delete", "Retain"'),
    case("a policy for lost volumes that is none", cluster(lostVolumes="Ignore"),
         "spec.lostVolumes", '"Replace", "Wait"'),
    case("paused in words", cluster(paused="yes"), "spec.paused", "must be of type boolean"),
    case("a field of Clusters that is not there", cluster(replicas=3),
         'unknown field "spec.replicas"'),
    case("a Cluster of 4 MiB", cluster(image="m" * 4 * MIB), "too large", "limit is 3145728"),
)
# fmt: on

# fmt: off
QUOTAS: Final = (
    case("a Quota for nobody", quota({}), "spec.for",
         "give exactly one: clientId, user or both of them; or topic"),
    case("a Quota for clients and a topic", quota({"clientId": "app", "topic": "t"}), "spec.for",
         "give exactly one"),
    case("a Quota for each namespace and a user", quota({"user": "alice", "each": ["Namespace"]}),
         "spec.for", "give exactly one"),
    case("a Quota for one client id and each", quota({"clientId": "app", "each": ["ClientId"]}),
         "spec.for", "a name and each exclude each other", "take one away"),
    case("a Quota for one namespace and each", quota({"namespace": "shop", "each": ["Namespace"]}),
         "spec.for", "a name and each exclude each other"),
    case("a Quota for each of what is not there", quota({"each": ["Group"]}), "spec.for.each",
         '"ClientId", "Namespace", "Topic", "User"'),
    case("a Quota for a client id with a space", quota({"clientId": "my app"}),
         "spec.for.clientId", "should match"),
    case("a Quota for a user that is not printable", quota({"user": "al\nice"}), "principal",
         "printable characters", reason="Invalid"),
    case("a Quota for the topic ..", quota({"topic": ".."}), "topic", "neither '.' nor '..'",
         reason="Invalid"),
    case("a Quota without a limit", quota(produceBytesPerSecond=None), "it limits nothing",
         "produceBytesPerSecond, fetchBytesPerSecond or requestPercent"),
    *(
        case(f"a rate of {rate}", quota(fetchBytesPerSecond=rate),
             "fetchBytesPerSecond must be 1024 bytes to 1 TiB", "10MB or 10Mi")
        for rate in (0, -5, 1023, "1k", "1023B", "1025Gi", 1 << 41)
    ),
    *(
        case(f"the rate {rate}", quota(produceBytesPerSecond=rate),
             "produceBytesPerSecond must be bytes a second", "10Mi")
        for rate in ("10m", "10 MB", "1e7", "10mb", "much", "")
    ),
    case("half a byte more", quota(produceBytesPerSecond=2048.5), "spec.produceBytesPerSecond",
         "must be of type"),
    case("no request time", quota(requestPercent=0), "spec.requestPercent",
         "greater than or equal to 1"),
    case("request time of a topic", quota({"topic": "t"}, requestPercent=5),
         "requestPercent is for clients, and not for topics"),
    case("request time of each namespace", quota({"each": ["Namespace"]}, requestPercent=5),
         "requestPercent is for clients, and not for topics"),
    case("a scope that is none", quota(scope="Topic"), "spec.scope", '"Broker", "Cluster"'),
    case("a Quota that moves to another cluster",
         quota({"clientId": "moves"}, clusterRef={"name": "other"}), "clusterRef cannot change",
         "make another Quota",
         before={"for": {"clientId": "moves"}, "produceBytesPerSecond": "1MB"}),
    case("a Quota of a cluster that is not there", quota(clusterRef={"name": "nowhere"}),
         "no Cluster nowhere in namespace brokers", "create it", "in another Quota",
         reason="NoCluster"),
    case("a Quota of a namespace that the cluster does not allow",
         quota(where=ELSEWHERE, clusterRef={"name": GOOD, "namespace": NAMESPACE}),
         "takes no Quotas of namespace elsewhere", "spec.allowedTopics.namespaces",
         reason="NotAllowed"),
    case("a Quota for what another one is for", quota({"clientId": GOOD_QUOTA}),
         "quota brokers/good is for client id good already",
         "change or delete the Quota good of namespace brokers", reason="Conflict"),
)
# fmt: on

CASES: Final = (*TOPICS, *CLUSTERS, *QUOTAS)
