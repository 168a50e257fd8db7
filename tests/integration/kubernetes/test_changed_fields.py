"""Every field of every spec is changed, and no condition says too early that the change is done.

After each look of the operator, every condition that is True and of the resource's present
generation is compared with what is really there: pods, brokers, volumes and topics.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest
from msgspec.structs import fields
from tests.api_server.controllers import CLAIMS, PODS, STATEFUL_SETS
from tests.integration.kubernetes.operated import LOOKS_MAX, Document, Operated

from millrace.core.media import Media
from millrace.operator.model.cluster import ClusterSpec, PodTemplate, Pool, Volume
from millrace.operator.model.quota import QuotaSpec
from millrace.operator.model.topic import TopicSpec
from millrace.operator.reconcile.cluster_status import CONDITIONS

Path = tuple[str | int, ...]

RESOURCES = "/apis/millrace.dev/v1beta1/%s/"

AT_ONCE = ""
"""In the place of a condition: nothing of the change takes time."""
CANNOT_CHANGE = "cannot change"

POOL: Path = ("pools", 0)
VOLUME: Path = (*POOL, "volumes", 0)
TEMPLATE: Path = (*POOL, "template")
EXTRA_POOL = {"name": "x", "replicas": 1, "volumes": [{"name": "data", "size": "1Gi"}]}
SELECTOR = {"from": "Selector", "selector": {"matchLabels": {"team": "a"}}}
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}

CLUSTER_CHANGES: dict[type, dict[str, tuple[Path, Any, str]]] = {
    ClusterSpec: {
        "version": (("version",), "2", "RolledOut"),
        "image": (("image",), "millrace:3", "RolledOut"),
        "imagePullPolicy": (("imagePullPolicy",), "Never", "RolledOut"),
        "imagePullSecrets": (("imagePullSecrets",), ["s"], "RolledOut"),
        "pools": (("pools",), [EXTRA_POOL], "Scaled"),
        "config": (("config",), {"storage": {"trash_delay_ms": "1h"}}, "RolledOut"),
        "listeners": (("listeners",), {"outside": {"type": "NodePort"}}, "OutsideAddressed"),
        "tls": (("tls",), {"mode": "Disabled"}, AT_ONCE),  # More in `test_security_steps`.
        "access": (("access",), {"mode": "Disabled"}, AT_ONCE),
        "networkPolicy": (("networkPolicy",), {"enabled": False}, AT_ONCE),
        "metricsPage": (("metricsPage",), None, CANNOT_CHANGE),  # While there is no TLS.
        "allowedTopics": (("allowedTopics",), {"namespaces": SELECTOR}, AT_ONCE),
        "volumeDeletion": (("volumeDeletion",), "Delete", AT_ONCE),
        "lostVolumes": (("lostVolumes",), "Replace", AT_ONCE),
        "paused": (("paused",), True, "Ready"),
    },
    Pool: {
        "name": ((*POOL, "name"), "y", "Scaled"),
        "replicas": ((*POOL, "replicas"), 2, "Scaled"),
        "zone": ((*POOL, "zone"), "a", "RolledOut"),
        "volumes": ((*VOLUME, "size"), "2Gi", "VolumesSized"),
        "resources": ((*POOL, "resources"), {"requests": {"cpu": "1"}}, "RolledOut"),
        "template": ((*TEMPLATE, "labels"), {"all": "of-it"}, "RolledOut"),
    },
    Volume: {
        "name": (VOLUME, None, CANNOT_CHANGE),
        "media": (VOLUME, None, CANNOT_CHANGE),
        "size": ((*VOLUME, "size"), "3Gi", "VolumesSized"),
        "storageClassName": (VOLUME, None, CANNOT_CHANGE),
    },
    PodTemplate: {
        "labels": ((*TEMPLATE, "labels"), {"a": "b"}, "RolledOut"),
        "annotations": ((*TEMPLATE, "annotations"), {"a": "b"}, "RolledOut"),
        "nodeSelector": ((*TEMPLATE, "nodeSelector"), {"a": "b"}, "RolledOut"),
        "tolerations": ((*TEMPLATE, "tolerations"), [{"operator": "Exists"}], "RolledOut"),
        "affinity": ((*TEMPLATE, "affinity"), {}, "RolledOut"),
        "topologySpreadConstraints": (
            (*TEMPLATE, "topologySpreadConstraints"),
            [SPREAD],
            "RolledOut",
        ),
        "priorityClassName": (
            (*TEMPLATE, "priorityClassName"),
            "system-node-critical",
            "RolledOut",
        ),
        "runtimeClassName": ((*TEMPLATE, "runtimeClassName"), "made", "RolledOut"),
    },
}
TOPIC_CHANGES: dict[str, tuple[Any, str]] = {
    "clusterRef": (None, CANNOT_CHANGE),
    "topicName": (None, CANNOT_CHANGE),
    "partitions": (4, "Ready"),
    "replicas": (2, "Placed"),
    "media": ("hdd", "Placed"),
    "config": ({"retention.ms": "1h"}, "Ready"),
    "deletionPolicy": ("Retain", AT_ONCE),
}
QUOTA_CHANGES: dict[str, Any] = {
    "clusterRef": CANNOT_CHANGE,
    "for": {"clientId": "other"},
    "produceBytesPerSecond": "20MB",
    "fetchBytesPerSecond": "30MB",
    "requestPercent": 50,
    "scope": "Broker",
}


@pytest.mark.parametrize(
    ("spec", "changed"),
    [*CLUSTER_CHANGES.items(), (TopicSpec, TOPIC_CHANGES), (QuotaSpec, QUOTA_CHANGES)],
)
def test_no_field_is_left_out(spec: type, changed: dict[str, object]) -> None:
    assert {*changed} == {field.encode_name for field in fields(spec)}


class Watched:
    """A Cluster `c`, a Topic `t` and a Quota `q`, with what is really there of them.

    Args:
        brokers: how many the Cluster has.
    """

    def __init__(self, operated: Operated, brokers: int) -> None:
        self.operated = operated
        class_name = f"class-{operated.namespace}"
        grows = {"provisioner": "example.org/none", "allowVolumeExpansion": True}
        operated.request(
            "POST",
            "/apis/storage.k8s.io/v1/storageclasses",
            {"metadata": {"name": class_name}, **grows},
        )
        volumes = [
            {"name": media, "size": "1Gi", "media": media, "storageClassName": class_name}
            for media in ("ssd", "hdd")
        ]
        self.specs: dict[str, Document] = {
            "clusters": {"pools": [{"name": "b", "replicas": brokers, "volumes": volumes}]},
            "topics": {"clusterRef": {"name": "c"}, "partitions": 3, "replicas": 1, "media": "ssd"},
            "quotas": {"clusterRef": {"name": "c"}, "for": {"clientId": "app"}}
            | {"produceBytesPerSecond": "10MB"},
        }
        self.names = {"clusters": "c", "topics": "t", "quotas": "q"}
        self.topic = f"{operated.namespace}/t"
        for kind in self.specs:
            self.apply(kind)
        self.settle()

    def apply(self, kind: str) -> None:
        self.operated.apply(kind, self.names[kind], self.specs[kind])

    def statuses(self, kind: str) -> dict[str, str]:
        """Return the conditions that are of the resource's present generation."""
        found = self.operated.get(RESOURCES + kind, self.names[kind])
        assert found is not None
        conditions = found.get("status", {}).get("conditions", ())
        generation = found["metadata"]["generation"]
        return {
            condition["type"]: condition["status"]
            for condition in conditions
            if condition["observedGeneration"] == generation
        }

    def settle(self) -> None:
        """Let all take turns until every condition is True; none may be so too early."""
        for _ in range(LOOKS_MAX):
            self.look()
            self.operated.controllers.step()
            if all(self.is_settled(spec) for spec in self.specs):
                return
        told = {kind: self.operated.told(kind, name) for kind, name in self.names.items()}
        raise AssertionError(f"not settled after {LOOKS_MAX} looks: {told}")

    def is_settled(self, kind: str) -> bool:
        statuses = self.statuses(kind)
        return bool(statuses) and {*statuses.values()} == {"True"}

    def look(self) -> None:
        self.operated.look()
        told = [
            f"{kind} {type}: {problem}"
            for kind in self.specs
            for type, status in self.statuses(kind).items()
            if status == "True" and type in _LACKING
            for problem in _LACKING[type](self)
        ]
        assert told == []

    # --- What is really there

    def pods(self) -> list[Document]:
        return self.operated.controllers.items(PODS)

    def expected(self) -> set[str]:
        return {
            f"c-{pool['name']}-{number}"
            for pool in self.specs["clusters"]["pools"]
            for number in range(pool["replicas"])
        }

    def old_pods(self) -> Iterator[str]:
        """Yield pods that are not of the newest revision."""
        sets = {
            stateful_set["metadata"]["name"]: stateful_set
            for stateful_set in self.operated.controllers.items(STATEFUL_SETS)
        }
        for pod in self.pods():
            name = pod["metadata"]["name"].rpartition("-")[0]
            if pod["metadata"]["name"] not in self.expected():
                continue  # It goes.
            if name not in sets:
                yield f"{name} is being recreated"
                continue
            text = json.dumps(sets[name]["spec"]["template"], sort_keys=True).encode()
            revision = f"{name}-{hashlib.sha256(text).hexdigest()[:8]}"
            if pod["metadata"]["labels"]["controller-revision-hash"] != revision:
                yield f"{pod['metadata']['name']} is old"

    def wrong_brokers(self) -> Iterator[str]:
        fake = self.operated.fake()
        if {*fake.brokers} != self.expected():
            yield f"brokers: {sorted(fake.brokers)}"
        # One that is restarted has no pod for a moment.
        if more := {pod["metadata"]["name"] for pod in self.pods()} - self.expected():
            yield f"pods: {sorted(more)}"
        staying = {
            broker.broker_id for name, broker in fake.brokers.items() if name in self.expected()
        }
        topic = fake.topics.get(self.topic)
        if topic is not None and any(not staying.issuperset(holders) for holders in topic.replicas):
            yield "replicas have yet to move"

    def small_volumes(self) -> Iterator[str]:
        for pool in self.specs["clusters"]["pools"]:
            for volume in pool["volumes"]:
                for claim in self.operated.controllers.items(CLAIMS):
                    name = claim["metadata"]["name"]
                    if name.startswith(f"{volume['name']}-c-{pool['name']}-"):
                        size = claim["status"]["capacity"]["storage"]
                        if size != volume["size"]:
                            yield f"{name} has {size}"

    def deaf_pods(self) -> Iterator[str]:
        for pod in self.pods():
            ports = pod["spec"]["containers"][0]["ports"]
            if not any(port["name"] == "outside" for port in ports):
                yield f"{pod['metadata']['name']} does not listen outside"

    def topic_settings(self) -> Iterator[str]:
        spec = self.specs["topics"]
        topic = self.operated.fake().topics[self.topic]
        if len(topic.replicas) != spec["partitions"]:
            yield f"{len(topic.replicas)} partitions"
        if "config" in spec and topic.config.get("retention.ms") != "3600000":
            yield f"config {topic.config}"

    def misplaced(self) -> Iterator[str]:
        spec, fake = self.specs["topics"], self.operated.fake()
        topic = fake.topics[self.topic]
        if topic.adding or {len(holders) for holders in topic.replicas} != {spec["replicas"]}:
            yield f"replicas {topic.replicas}, to come {topic.adding}"
        if fake.disks.get(self.topic, Media.SSD) != spec["media"]:
            yield f"on {fake.disks[self.topic]}"


_LACKING: dict[str, Callable[[Watched], Iterator[str]]] = {
    "RolledOut": Watched.old_pods,
    "Scaled": Watched.wrong_brokers,
    "VolumesSized": Watched.small_volumes,
    "OutsideAddressed": Watched.deaf_pods,
    "Placed": Watched.misplaced,
}


@pytest.fixture
def watched(operated: Operated) -> Watched:
    return Watched(operated, brokers=2)


def put(spec: Document, path: Path, value: Any) -> None:
    """Set a field of a spec; a list of pools is added to those that are there."""
    *above, last = path
    place: Any = spec
    for key in above:
        place = place[key] if isinstance(key, int) else place.setdefault(key, {})
    place[last] = [*place[last], *value] if path == ("pools",) else value


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "of",
    [
        Volume,
        *(pytest.param(cls, marks=pytest.mark.nightly) for cls in (ClusterSpec, Pool, PodTemplate)),
    ],
)
def test_no_condition_of_a_cluster_is_true_before_its_work_is_done(
    operated: Operated, of: type
) -> None:
    made = {"metadata": {"name": "made"}, "handler": "runc"}
    operated.server.request("POST", "/apis/node.k8s.io/v1/runtimeclasses", made)
    watched = Watched(operated, brokers=1)
    before = deepcopy(watched.specs["clusters"])
    for name, (path, value, condition) in CLUSTER_CHANGES[of].items():
        if condition == CANNOT_CHANGE:
            continue
        if name == "image":
            watched.specs["clusters"].pop("version", None)
        put(watched.specs["clusters"], path, value)
        watched.apply("clusters")
        watched.look()
        statuses = watched.statuses("clusters")
        assert {*CONDITIONS} <= {*statuses}, name
        if name == "paused":
            assert {*statuses.values()} == {"Unknown"}
            watched.specs["clusters"]["paused"] = False
            watched.apply("clusters")
        else:
            assert not condition or statuses[condition] != "True", name
        watched.settle()
    # And back, as far as that is possible.
    before["pools"][0]["volumes"] = watched.specs["clusters"]["pools"][0]["volumes"]
    watched.specs["clusters"] = before
    watched.apply("clusters")
    watched.settle()


def test_no_condition_of_a_topic_is_true_before_its_work_is_done(watched: Watched) -> None:
    watched.operated.fake().shows_late = True
    for name, (value, condition) in TOPIC_CHANGES.items():
        if condition == CANNOT_CHANGE:
            continue
        watched.specs["topics"][name] = value
        watched.apply("topics")
        watched.look()
        statuses = watched.statuses("topics")
        assert {*statuses} == {"Ready", "Placed"}, name
        assert not condition or statuses[condition] != "True", name
        watched.settle()
        assert [*watched.topic_settings(), *watched.misplaced()] == []


def test_a_quota_is_ready_only_when_the_cluster_has_it_as_it_is(watched: Watched) -> None:
    fake = watched.operated.fake()
    for name, value in QUOTA_CHANGES.items():
        if value == CANNOT_CHANGE:
            continue
        before = fake.quotas[f"{watched.operated.namespace}/q"]
        watched.specs["quotas"][name] = value
        watched.apply("quotas")
        watched.look()
        assert watched.statuses("quotas") == {"Ready": "True"}, name
        assert fake.quotas[f"{watched.operated.namespace}/q"] != before, name
