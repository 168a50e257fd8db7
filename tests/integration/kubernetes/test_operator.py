"""The operator on a real API server; the rest of Kubernetes, and the brokers, are played."""

import asyncio
import json
import logging
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import kopf
import pytest
from tests.api_server.controllers import CLAIMS, CONFIG_MAPS, PODS, SERVICES, STATEFUL_SETS
from tests.api_server.relay import ApiServerRelay, Hang
from tests.integration.kubernetes.conftest import PATIENT_MS
from tests.integration.kubernetes.operated import KilledError, Operated

from millrace.broker.coordination.kubernetes.store import KubernetesStore
from millrace.core.controller.lease import LeaseRecord
from millrace.core.errors import NotControllerError
from millrace.core.events import AUDIT_LOGGER
from millrace.core.ids import BrokerId, ControllerEpoch
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS
from millrace.core.metadata.objects.stored_object import StoredObject
from millrace.operator import handlers
from millrace.operator.kube.api import TIMEOUT_MS, Api, ApiError
from millrace.operator.kube.kinds import CLUSTER
from millrace.operator.kube.lease import OperatorLease
from millrace.operator.reconcile.cluster import BUSY_S, STEADY_S
from millrace.operator.reconcile.cluster_status import CONDITIONS
from millrace.runtime.kubernetes.access import from_kubeconfig

TOPICS = "/apis/millrace.dev/v1beta1/%s/topics"
QUOTAS = "/apis/millrace.dev/v1beta1/%s/quotas"
SECRETS = "/api/v1/%s/secrets"
CONTAINER = {"name": "theirs", "image": "theirs:1"}
VOLUME = {"name": "data", "size": "1Gi"}
SETTLED = {"Ready": ("True", "Ready"), "Placed": ("True", "AsWanted")}
"""Conditions of a Topic."""


def not_done(reason: str) -> dict[str, tuple[str, str]]:
    """Conditions of a Cluster on which no work is done."""
    return {**dict.fromkeys(CONDITIONS, ("Unknown", reason)), "Ready": ("False", reason)}


def pool(name: str = "b", replicas: int = 3, **more: Any) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "volumes": [VOLUME], **more}


def test_a_cluster_gets_ready_and_its_brokers_know_the_zones_of_their_nodes(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool()]})
    operated.settle()
    zones = {broker.name: broker.rack for broker in operated.fake().brokers.values()}
    assert zones == {"c-b-0": "a", "c-b-1": "b", "c-b-2": "c"}


def test_what_the_operator_changes_is_in_its_audit_log(
    operated: Operated, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, AUDIT_LOGGER)
    operated.apply("clusters", "c", {"pools": [pool()]})
    operated.settle()
    operated.apply("topics", "orders", {"clusterRef": {"name": "c"}, "partitions": 3})
    operated.look()
    lines: list[Any] = [line for line in caplog.records if line.name == AUDIT_LOGGER]
    objects = {
        (line.act, line.kind, line.object)
        for line in lines
        if line.event_name == "object_changed" and line.namespace == operated.namespace
    }
    assert {("apply", "StatefulSet", "c-b"), ("apply", "Service", "c-brokers")} <= objects
    (topic,) = [line for line in lines if line.event_name == "topic_changed"]
    assert topic.topic == f"{operated.namespace}/orders"
    caplog.clear()
    operated.look()
    assert not [line for line in caplog.records if line.name == AUDIT_LOGGER], "nothing changed"


def test_a_pod_that_is_about_to_get_its_node_is_looked_at_again_at_once(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool(replicas=1)]})
    operated.look()
    operated.controllers.step()
    (pod,) = operated.controllers.items(PODS)
    assert "millrace.dev/node" not in pod["metadata"]["annotations"]
    operated.look()
    (pod,) = operated.controllers.items(PODS)
    annotations = pod["metadata"]["annotations"]
    assert (annotations["millrace.dev/node"], annotations["millrace.dev/zone"]) == ("node-0", "a")


def storage_class(operated: Operated, *, grows: bool) -> str:
    name = f"class-{operated.namespace}"
    document = {
        "metadata": {"name": name},
        "provisioner": "example.org/none",
        "allowVolumeExpansion": grows,
    }
    operated.request("POST", "/apis/storage.k8s.io/v1/storageclasses", document)
    return name


def sized(operated: Operated, size: str, class_name: str, *, replicas: int = 2) -> None:
    volume = {"name": "data", "size": size, "storageClassName": class_name}
    operated.apply("clusters", "c", {"pools": [pool(replicas=replicas, volumes=[volume])]})


def capacities(operated: Operated) -> list[str]:
    claims = operated.controllers.items(CLAIMS)
    return [claim["status"]["capacity"]["storage"] for claim in claims]


def uids(operated: Operated, path: str) -> set[str]:
    return {document["metadata"]["uid"] for document in operated.controllers.items(path)}


def test_volumes_grow_and_no_broker_is_restarted_for_it(operated: Operated) -> None:
    name = storage_class(operated, grows=True)
    sized(operated, "1Gi", name)
    operated.settle()
    pods, sets = uids(operated, PODS), uids(operated, STATEFUL_SETS)
    sized(operated, "3Gi", name)
    operated.look()
    assert operated.conditions()["VolumesSized"] == ("False", "Growing")
    operated.settle()
    assert capacities(operated) == ["3Gi", "3Gi"]
    assert uids(operated, PODS) == pods
    assert not uids(operated, STATEFUL_SETS) & sets
    sized(operated, "3Gi", name, replicas=3)
    operated.settle()
    assert capacities(operated) == ["3Gi", "3Gi", "3Gi"]


def rollout_restart(operated: Operated, when: str) -> None:
    """Do what `kubectl rollout restart` does."""
    found = operated.get(STATEFUL_SETS, "c-b")
    assert found is not None
    annotations = found["spec"]["template"]["metadata"]["annotations"]
    annotations["kubectl.kubernetes.io/restartedAt"] = when
    operated.controllers.put(STATEFUL_SETS, found)


def test_volumes_that_grow_repeat_no_restart_that_was_asked_for_and_lose_none(
    operated: Operated,
) -> None:
    name = storage_class(operated, grows=True)
    sized(operated, "1Gi", name)
    operated.settle()
    first = uids(operated, PODS)
    rollout_restart(operated, "2026-11-28T10:00:00Z")
    operated.controllers.step()
    operated.settle()
    second = uids(operated, PODS)
    assert not first & second
    sized(operated, "2Gi", name)
    operated.settle()
    assert uids(operated, PODS) == second, "the restart is not repeated"
    rollout_restart(operated, "2026-11-28T11:00:00Z")
    sized(operated, "3Gi", name)
    operated.settle()
    assert not uids(operated, PODS) & second, "a restart is not lost"


def restart_notes(operated: Operated) -> list[str]:
    """Return when a restart was asked for: as the StatefulSet says, and as its ConfigMap does."""
    found = operated.get(STATEFUL_SETS, "c-b"), operated.get(CONFIG_MAPS, "c-b")
    assert found[0] is not None
    assert found[1] is not None
    places = found[0]["spec"]["template"]["metadata"], found[1]["metadata"]
    name = "kubectl.kubernetes.io/restartedAt"
    return [place.get("annotations", {}).get(name, "") for place in places]


def test_a_restart_that_was_brought_back_is_not_remembered_for_a_later_time(
    operated: Operated,
) -> None:
    name = storage_class(operated, grows=True)
    sized(operated, "1Gi", name, replicas=1)
    operated.settle()
    rollout_restart(operated, "2026-11-28T10:00:00Z")
    sized(operated, "2Gi", name, replicas=1)
    operated.settle()
    operated.look()
    assert restart_notes(operated) == ["2026-11-28T10:00:00Z", ""]


@pytest.mark.parametrize("just_before", ["DELETE", "PATCH"])
def test_a_restart_that_is_asked_for_while_a_stateful_set_is_recreated_is_not_lost(
    operated: Operated, just_before: str
) -> None:
    name = storage_class(operated, grows=True)
    sized(operated, "1Gi", name, replicas=1)
    operated.settle()
    rollout_restart(operated, "2026-11-28T10:00:00Z")
    operated.controllers.step()
    operated.settle()
    asked: list[str] = []

    def meanwhile(method: str, path: str, body: object) -> None:
        """Ask for another one before the deletion, or before the first one is brought back."""
        is_meant = method == "DELETE" or "restartedAt" in str(body)
        if not asked and path.endswith("statefulsets/c-b") and method == just_before and is_meant:
            asked.append(path)
            rollout_restart(operated, "2026-11-28T11:00:00Z")

    operated.api.meanwhile = meanwhile
    before = uids(operated, PODS)
    sized(operated, "2Gi", name, replicas=1)
    operated.settle()
    operated.look()
    assert asked
    assert restart_notes(operated) == ["2026-11-28T11:00:00Z", ""]
    assert not uids(operated, PODS) & before


def test_a_driver_that_needs_it_has_brokers_restarted_one_at_a_time(operated: Operated) -> None:
    name = storage_class(operated, grows=True)
    operated.controllers.grows_while_used = False
    sized(operated, "1Gi", name)
    operated.settle()
    pods = uids(operated, PODS)
    sized(operated, "2Gi", name)
    operated.until(lambda: operated.conditions()["VolumesSized"] == ("False", "Growing"))
    assert uids(operated, PODS) == pods
    operated.ahead = timedelta(minutes=10)
    operated.until(lambda: capacities(operated) == ["2Gi", "2Gi"])
    assert not uids(operated, PODS) & pods


def test_a_storage_class_that_lets_nothing_grow_is_said(operated: Operated) -> None:
    name = storage_class(operated, grows=False)
    sized(operated, "1Gi", name)
    operated.settle()
    sized(operated, "2Gi", name)
    operated.until(lambda: operated.conditions()["VolumesSized"] == ("False", "CannotGrow"))
    assert "allowVolumeExpansion" in operated.told()["VolumesSized"][2]
    operated.until(lambda: operated.conditions()["Ready"] == ("True", "BrokersReady"))


def test_brokers_that_are_being_drained_stay_while_their_stateful_set_is_made_anew(
    operated: Operated,
) -> None:
    name = storage_class(operated, grows=True)
    sized(operated, "1Gi", name, replicas=3)
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}, "partitions": 3, "replicas": 2})
    operated.settle()
    operated.until(lambda: operated.conditions("topics", "t")["Ready"] == ("True", "Ready"))
    sized(operated, "2Gi", name, replicas=2)
    operated.settle()
    operated.until(lambda: capacities(operated) == ["2Gi", "2Gi"])
    held = operated.fake().topics[f"{operated.namespace}/t"].replicas
    alive = {broker.broker_id for broker in operated.fake().brokers.values()}
    assert {broker for holders in held for broker in holders} <= alive


def test_a_topic_that_is_protected_stays_with_its_resource_until_that_is_lifted(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool(replicas=1)]})
    protected = {"clusterRef": {"name": "c"}, "config": {"deletion.protection": True}}
    for name in ("t", "kept"):
        operated.apply("topics", name, protected)
    operated.until(lambda: is_all_settled(operated))
    topics = operated.fake().topics
    t, kept = (f"{operated.namespace}/{name}" for name in ("t", "kept"))
    operated.until(lambda: set(topics) == {t, kept})
    for name in ("t", "kept"):
        operated.delete("topics", name)
    operated.settle()
    for name in ("t", "kept"):
        reason = "DeletionProtected"
        assert operated.conditions("topics", name) == {
            "Ready": ("False", reason),
            "Placed": ("Unknown", reason),
        }
    assert "deletion.protection in spec.config to false" in operated.told("topics", "t")["Ready"][2]
    assert set(topics) == {t, kept}
    operated.apply("topics", "t", {**protected, "config": {"deletion.protection": False}})
    operated.apply("topics", "kept", {**protected, "deletionPolicy": "Retain"})
    operated.settle()
    assert operated.get(TOPICS, "t") is operated.get(TOPICS, "kept") is None
    assert set(topics) == {kept}


def test_a_tiered_topic_says_whether_its_segments_move_to_the_hdds(operated: Operated) -> None:
    volumes = [{**VOLUME, "media": media, "name": media} for media in ("ssd", "hdd")]
    operated.apply("clusters", "c", {"pools": [pool(volumes=volumes)]})
    operated.until(lambda: operated.conditions("clusters", "c")["Ready"][0] == "True")
    operated.fake().knows_tiers = False
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}, "media": "tiered", "replicas": 2})
    operated.until(
        lambda: operated.conditions("topics", "t").get("Tiered") == ("Unknown", "Waiting")
    )
    operated.fake().knows_tiers = True
    settled = {**SETTLED, "Tiered": ("True", "SegmentsMove")}
    operated.until(lambda: operated.conditions("topics", "t") == settled)
    operated.fake().hdd_problem = "the disk is full"
    operated.until(lambda: operated.conditions("topics", "t")["Tiered"] == ("False", "CannotMove"))
    said = operated.told("topics", "t")["Tiered"][2]
    assert "2 replicas do not move" in said
    assert "the disk is full" in said
    operated.fake().hdd_problem = ""
    operated.until(lambda: operated.conditions("topics", "t") == settled)
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}, "media": "ssd", "replicas": 2})
    operated.until(lambda: operated.conditions("topics", "t") == SETTLED)


def test_a_topic_is_not_known_to_be_placed_before_every_broker_has_said_on_which_disks(
    operated: Operated,
) -> None:
    volumes = [{**VOLUME, "media": media, "name": media} for media in ("ssd", "hdd")]
    operated.apply("clusters", "c", {"pools": [pool(volumes=volumes)]})
    operated.until(lambda: operated.conditions("clusters", "c")["Ready"][0] == "True")
    operated.fake().leave("c-b-1")
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}, "media": "tiered", "replicas": 3})
    for _ in range(2):
        operated.look()
    unknown = ("Unknown", "NoBrokerAnswers")
    assert operated.conditions("topics", "t") == {
        "Ready": ("True", "Ready"),
        "Placed": unknown,
        "Tiered": unknown,
    }
    for condition in ("Placed", "Tiered"):
        said = operated.told("topics", "t")[condition][2]
        assert "no word from c-b-1 about the disks of 1 replica" in said
    settled = {**SETTLED, "Tiered": ("True", "SegmentsMove")}
    operated.until(lambda: operated.conditions("topics", "t") == settled)
    operated.fake().leave("c-b-1")
    operated.look()
    assert operated.conditions("topics", "t") == settled, "what is known counts while it is away"


def test_a_broker_that_has_the_only_replica_comes_back_to_have_it_copied(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool(replicas=3)]})
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}, "partitions": 3, "replicas": 1})
    operated.until(lambda: is_all_settled(operated))
    operated.apply("clusters", "c", {"pools": [pool(replicas=2)]})
    operated.look()
    stateful_set = f"{STATEFUL_SETS % f'namespaces/{operated.namespace}'}/c-b"
    operated.request("DELETE", stateful_set, {"propagationPolicy": "Background"})
    operated.settle()
    brokers = operated.fake().brokers
    assert sorted(brokers) == ["c-b-0", "c-b-1"]
    held = operated.fake().topics[f"{operated.namespace}/t"].replicas
    assert {broker for holders in held for broker in holders} <= {
        broker.broker_id for broker in brokers.values()
    }


def test_a_broker_that_goes_takes_no_claims_of_one_whose_name_ends_as_its_own(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool(replicas=2), pool("c-b", replicas=2)]})
    operated.settle()
    operated.apply("clusters", "c", {"pools": [pool(replicas=1), pool("c-b", replicas=2)]})
    operated.settle()
    claims = [claim["metadata"] for claim in operated.controllers.items(CLAIMS)]
    kept = {claim["name"] for claim in claims if "deletionTimestamp" not in claim}
    assert kept == {"data-c-b-0", "data-c-c-b-0", "data-c-c-b-1"}


def test_a_restart_is_decided_by_what_brokers_say_at_that_moment(operated: Operated) -> None:
    operated.apply("clusters", "c", {"pools": [pool()]})
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}, "replicas": 3})
    operated.until(lambda: is_all_settled(operated))
    operated.apply("clusters", "c", {"pools": [pool()], "image": "millrace:2"})
    operated.look()
    operated.controllers.step()
    config = f"{CONFIG_MAPS % f'namespaces/{operated.namespace}'}/c-b"
    operated.request("DELETE", config)

    def meanwhile(method: str, path: str, body: object) -> None:
        """Let a broker die while the operator makes the ConfigMap again."""
        if path.startswith(config):
            operated.fake().leave("c-b-2")

    operated.api.meanwhile = meanwhile
    operated.look()
    pods = [pod["metadata"] for pod in operated.controllers.items(PODS)]
    restarted = [pod["name"] for pod in pods if "deletionTimestamp" in pod]
    assert restarted == ["c-b-2"], "of the others t-0 needs both"


def evictable(operated: Operated) -> int:
    """Return how many brokers may be evicted now."""
    budget = operated.get("/apis/policy/v1/%s/poddisruptionbudgets", "c")
    assert budget is not None
    found: int = budget["spec"]["maxUnavailable"]
    return found


def test_no_broker_is_evicted_while_another_one_is_restarted(operated: Operated) -> None:
    operated.apply("clusters", "c", {"pools": [pool()]})
    operated.settle()
    assert evictable(operated) == 1
    of_restarts = []

    def meanwhile(method: str, path: str, body: object) -> None:
        if method == "DELETE" and "/pods/" in path:
            of_restarts.append(evictable(operated))

    operated.api.meanwhile = meanwhile
    operated.apply("clusters", "c", {"pools": [pool()], "image": "millrace:2"})
    operated.settle()
    assert of_restarts == [0, 0, 0]
    assert evictable(operated) == 1


def test_a_broker_that_was_evicted_at_the_last_moment_is_waited_for(operated: Operated) -> None:
    operated.apply("clusters", "c", {"pools": [pool()]})
    operated.settle()
    operated.apply("clusters", "c", {"pools": [pool()], "image": "millrace:2"})
    first = f"{PODS % f'namespaces/{operated.namespace}'}/c-b-0"

    def meanwhile(method: str, path: str, body: object) -> None:
        """Evict a broker at the last moment at which that is allowed."""
        if "/poddisruptionbudgets/" in path and evictable(operated):
            operated.request("DELETE", first)

    operated.api.meanwhile = meanwhile
    operated.look()
    operated.controllers.step()
    operated.look()
    pods = [pod["metadata"] for pod in operated.controllers.items(PODS)]
    assert [pod["name"] for pod in pods if "deletionTimestamp" in pod] == ["c-b-0"]


def held(operated: Operated) -> list[tuple[BrokerId, ...]]:
    return operated.fake().topics[f"{operated.namespace}/t"].replicas


def test_a_topic_without_a_number_of_replicas_gets_more_when_its_cluster_grows(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool(replicas=1)]})
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}, "partitions": 3})
    operated.until(lambda: is_all_settled(operated))
    assert held(operated) == [(0,)] * 3
    operated.apply("clusters", "c", {"pools": [pool(replicas=3)]})
    operated.until(
        lambda: {frozenset(holders) for holders in held(operated)} == {frozenset({0, 1, 2})}
    )
    operated.until(lambda: operated.conditions("topics", "t") == SETTLED)


def test_only_partitions_with_too_few_replicas_get_more(operated: Operated) -> None:
    operated.apply("clusters", "c", {"pools": [pool(replicas=5)]})
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}, "partitions": 3})
    operated.until(lambda: is_all_settled(operated))
    more = tuple(map(BrokerId, range(4)))
    held(operated)[:2] = [more, (BrokerId(4),)]
    untouched = held(operated)[2]
    operated.until(lambda: len(held(operated)[1]) == 3)
    operated.until(lambda: is_all_settled(operated))
    assert [len(holders) for holders in held(operated)] == [4, 3, 3]
    assert (held(operated)[0], held(operated)[2]) == (more, untouched)


def test_what_goes_to_a_broker_that_is_away_waits_for_it_and_the_rest_is_done(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool()]})
    topic = {"clusterRef": {"name": "c"}, "partitions": 3}
    operated.apply("topics", "t", {**topic, "replicas": 2})
    operated.until(lambda: is_all_settled(operated))
    fake = operated.fake()
    fake.leave("c-b-2")
    operated.apply("topics", "t", {**topic, "replicas": 3})
    for _ in range(4):
        operated.look()
        fake.arrive()
    assert sorted(map(len, held(operated))) == [2, 3, 3]
    status, reason, message = operated.told("topics", "t")["Placed"]
    assert (status, reason) == ("False", "Moving")
    assert "those of 1 wait for c-b-2 to be back" in message
    fake.join("c-b-2")
    operated.until(lambda: operated.conditions("topics", "t") == SETTLED)
    assert {len(holders) for holders in held(operated)} == {3}


def test_a_topic_is_not_made_on_the_brokers_of_a_pool_that_is_being_removed(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool("old")]})
    operated.settle()
    operated.apply("clusters", "c", {"pools": [pool("new")]})
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}})
    operated.look()
    status, reason, message = operated.told("topics", "t")["Ready"]
    assert (status, reason) == ("False", "BrokersMissing")
    assert "missing: c-new-0, c-new-1, c-new-2" in message


METADATA = (
    "/apis/millrace.dev/v1/%s/clusterstates",
    "/apis/millrace.dev/v1/%s/stateshards",
    "/apis/coordination.k8s.io/v1/%s/leases",
)


def begin_metadata(operated: Operated, name: str = "c") -> KubernetesStore:
    """Return a store in which brokers have begun a cluster."""
    admin = operated.server.admin
    store = KubernetesStore(
        admin,
        cluster_name=name,
        namespace=operated.namespace,
        request_timeout_ms=PATIENT_MS,
    )
    first = LeaseRecord(holder="c-b-0", address="", duration_ms=1000, version=1)
    assert store.compare_and_swap_lease(first)
    for key in (CLUSTER_KEY, SHARD_KEYS[0]):
        state = StoredObject(b"{}", 1, ControllerEpoch(1))
        assert store.compare_and_swap_all([(key, state)]) == [True]
    return store


def metadata_left(operated: Operated) -> int:
    return sum(len(operated.controllers.items(path)) for path in METADATA)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_metadata_goes_with_the_volumes_and_stays_with_them(
    operated: Operated, is_deleted: bool
) -> None:
    spec = {"pools": [pool()]}
    first, last = ("Retain", "Delete") if is_deleted else ("Delete", "Retain")
    operated.apply("clusters", "c", {**spec, "volumeDeletion": first})
    with closing(begin_metadata(operated)) as store:
        operated.settle()
        operated.apply("clusters", "c", {**spec, "volumeDeletion": last})
        operated.settle()
        later = StoredObject(b"{}", 1, ControllerEpoch(1))  # Another shard, and nobody looks.
        assert store.compare_and_swap_all([(SHARD_KEYS[1], later)]) == [True]
    operated.delete("clusters", "c")
    for _ in range(4):
        operated.look()
        operated.controllers.step()
    assert operated.controllers.items(STATEFUL_SETS) == []
    assert operated.controllers.items(PODS) == []
    left = len(operated.controllers.items(CLAIMS)), metadata_left(operated)
    assert left == ((0, 0) if is_deleted else (3, 4))


def test_a_cluster_that_is_made_again_at_once_begins_when_the_one_before_is_gone(
    operated: Operated,
) -> None:
    spec = {"pools": [pool()], "volumeDeletion": "Delete"}
    operated.apply("clusters", "c", spec)
    begin_metadata(operated).close()
    operated.settle()
    operated.delete("clusters", "c")
    operated.apply("clusters", "c", spec)
    assert operated.look() == BUSY_S
    assert operated.conditions() == not_done("PredecessorGoes")
    operated.settle()
    assert metadata_left(operated) == 0


def rebuilt(operated: Operated, class_name: str, *, is_new: bool) -> None:
    """Apply a Cluster and a Topic; another time, with everything else than the first time."""
    size, image = ("2Gi", "millrace:2") if is_new else ("1Gi", "millrace:1")
    volume = {"name": "data", "size": size, "storageClassName": class_name}
    large = {"name": "data", "size": "5Gi", "media": "hdd", "storageClassName": class_name}
    pools = [pool(replicas=2 if is_new else 3, volumes=[volume])]
    pools.append(pool("h" if is_new else "g", replicas=2, volumes=[large]))
    deletion = "Delete" if is_new else "Retain"
    operated.apply("clusters", "c", {"pools": pools, "image": image, "volumeDeletion": deletion})
    media = "hdd" if is_new else "ssd"
    partitions = 4 if is_new else 3
    operated.apply(
        "topics",
        "t",
        {"clusterRef": {"name": "c"}, "partitions": partitions, "replicas": 2, "media": media},
    )


def is_all_settled(operated: Operated) -> bool:
    topic = operated.request(
        "GET", f"/apis/millrace.dev/v1beta1/namespaces/{operated.namespace}/topics/t"
    )
    status = topic.get("status") or {}
    return (
        operated.is_settled()
        and status.get("observedGeneration") == topic["metadata"]["generation"]
        and operated.conditions("topics", "t") == SETTLED
    )


@pytest.mark.timeout(300)  # Some forty lives, of which each looks at everything.
@pytest.mark.parametrize(
    "is_done",
    [pytest.param(True, id="with", marks=pytest.mark.nightly), pytest.param(False, id="after")],
)
def test_an_operator_that_is_killed_by_every_change_gets_there_all_the_same(
    operated: Operated, is_done: bool
) -> None:
    """Each life changes one thing, and begins with what all lives before have left behind."""
    name = storage_class(operated, grows=True)
    rebuilt(operated, name, is_new=False)
    begin_metadata(operated).close()
    operated.until(lambda: is_all_settled(operated))
    rebuilt(operated, name, is_new=True)
    operated.api.is_done = is_done
    lives = 0
    while not is_all_settled(operated):
        operated.restart(changes=1)
        with suppress(KilledError):
            operated.look()
        operated.controllers.step()
        lives += 1
        assert lives < 120, operated.told()
    assert lives > 20
    operated.restart()
    operated.until(lambda: is_all_settled(operated))
    items = operated.controllers.items
    assert [pod["metadata"]["name"] for pod in items(PODS)] == [
        *("c-b-0", "c-b-1", "c-h-0", "c-h-1")
    ]
    assert {pod["spec"]["containers"][0]["image"] for pod in items(PODS)} == {"millrace:2"}
    assert capacities(operated) == ["2Gi", "2Gi", "5Gi", "5Gi"]
    assert [stateful_set["metadata"]["name"] for stateful_set in items(STATEFUL_SETS)] == [
        "c-b",
        "c-h",
    ]
    owned = [
        document["metadata"].get("ownerReferences") for path in METADATA for document in items(path)
    ]
    assert len(owned) == 3
    assert all(owned)
    brokers = operated.fake().brokers
    assert sorted(brokers) == ["c-b-0", "c-b-1", "c-h-0", "c-h-1"]
    assert not any(broker.is_drained for broker in brokers.values())
    large = {brokers[name].broker_id for name in ("c-h-0", "c-h-1")}
    held = operated.fake().topics[f"{operated.namespace}/t"].replicas
    assert [set(holders) for holders in held] == [large] * 4


def test_an_operator_that_has_nothing_to_do_writes_nothing(operated: Operated) -> None:
    operated.apply("clusters", "c", {"pools": [pool()]})
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}, "partitions": 1})
    operated.until(lambda: is_all_settled(operated))
    writes = operated.api.writes
    assert operated.look() == STEADY_S
    assert operated.api.writes == writes
    operated.restart()  # One that knows nothing applies what is there already, once.
    operated.look()
    writes = operated.api.writes
    operated.look()
    assert operated.api.writes == writes


@pytest.mark.parametrize(
    ("path", "kind", "name"),
    [
        (SERVICES, "Service", "c-brokers"),
        (CONFIG_MAPS, "ConfigMap", "c-b"),
        (STATEFUL_SETS, "StatefulSet", "c-b"),
        ("/apis/policy/v1/%s/poddisruptionbudgets", "PodDisruptionBudget", "c"),
        (SECRETS, "Secret", "c-ca"),
        (SECRETS, "Secret", "c-b-tls"),
    ],
)
def test_an_object_of_somebody_else_is_named_and_never_touched(
    operated: Operated, path: str, kind: str, name: str
) -> None:
    spec: dict[str, Any] = {"ports": [{"port": 80}]} if kind == "Service" else {}
    if kind == "StatefulSet":
        labels = {"app": "theirs"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [CONTAINER]}}
        spec = {"selector": {"matchLabels": labels}, "template": template, "replicas": 0}
    content: dict[str, Any] = {} if kind in ("ConfigMap", "Secret") else {"spec": spec}
    where = path % f"namespaces/{operated.namespace}"
    made = operated.request("POST", where, {"metadata": {"name": name}, **content})
    security: dict[str, Any] = {"tls": {}} if kind == "Secret" else {}
    operated.apply("clusters", "c", {"pools": [pool()], **security})
    assert operated.look() == STEADY_S
    assert operated.conditions() == not_done("NameTaken")
    assert f"{kind} {operated.namespace}/{name} is there already" in operated.told()["Ready"][2]
    writes = operated.api.writes
    operated.look()
    assert operated.api.writes == writes
    assert operated.get(path, name) == made
    operated.request("DELETE", f"{where}/{name}")
    operated.settle()


def test_a_pod_that_only_has_the_labels_of_brokers_is_left_alone(operated: Operated) -> None:
    operated.apply("clusters", "c", {"pools": [pool()]})
    operated.settle()
    (first, *_) = operated.controllers.items(PODS)
    metadata = {"name": "debugged-0", "labels": first["metadata"]["labels"]}
    where = PODS % f"namespaces/{operated.namespace}"
    made = operated.request(
        "POST", where, {"metadata": metadata, "spec": {"containers": [CONTAINER]}}
    )
    operated.apply("clusters", "c", {"pools": [pool()], "image": "millrace:2"})
    for _ in range(12):
        operated.look()
        operated.controllers.step()
    left = operated.get(PODS, "debugged-0")
    assert left is not None
    assert left["metadata"]["uid"] == made["metadata"]["uid"]
    assert operated.conditions()["RolledOut"] == ("True", "Current")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (CONFIG_MAPS, "c-b"),
        ("/api/v1/%s/serviceaccounts", "c-broker"),
        ("/apis/rbac.authorization.k8s.io/v1/%s/roles", "c-broker"),
        (SERVICES, "c-brokers"),
    ],
)
def test_an_object_that_vanishes_is_made_again(operated: Operated, path: str, name: str) -> None:
    operated.apply("clusters", "c", {"pools": [pool()]})
    operated.settle()
    before = operated.get(path, name)
    assert before is not None
    operated.request("DELETE", f"{path % f'namespaces/{operated.namespace}'}/{name}")
    operated.look()
    after = operated.get(path, name)
    assert after is not None
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    same = ("data", "rules")
    assert [after.get(field) for field in same] == [before.get(field) for field in same]


@pytest.mark.parametrize("changes", [1, 4, 9, 11])
def test_a_cluster_that_is_deleted_while_it_is_made_leaves_nothing(
    operated: Operated, changes: int
) -> None:
    operated.apply("clusters", "c", {"pools": [pool()], "volumeDeletion": "Delete"})
    operated.restart(changes)
    operated.api.is_done = True
    with suppress(KilledError):
        operated.look()
    operated.restart()
    operated.delete("clusters", "c")
    for _ in range(4):
        operated.look()
        operated.controllers.step()
    for path in (STATEFUL_SETS, PODS, CLAIMS, CONFIG_MAPS, SERVICES):
        assert operated.controllers.items(path) == []


async def test_changes_are_heard_with_the_token_that_the_kubeconfig_has_then(
    operated: Operated, tmp_path: Path
) -> None:
    config = json.loads(operated.server.kubeconfig("admin"))
    token = config["users"][0]["user"].pop("token")
    config["users"][0]["user"]["tokenFile"] = "token"
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    (tmp_path / "token").write_text(token)
    access = from_kubeconfig(tmp_path / "kubeconfig")
    heard: set[tuple[str, str, str]] = set()
    news, stop = asyncio.Event(), asyncio.Event()

    def on_event(work: str, namespace: str, name: str) -> None:
        heard.add((work, namespace, name))
        news.set()

    registry = handlers.registry(access, on_event, lambda uid, generation: True)
    watching = asyncio.create_task(
        kopf.operator(
            registry=registry,
            settings=handlers.settings(),
            clusterwide=True,
            standalone=True,
            stop_flag=stop,
        )
    )
    try:
        async with asyncio.timeout(60):
            operated.apply("clusters", "c", {"pools": [pool()]})
            while ("cluster", operated.namespace, "c") not in heard:
                news.clear()
                await news.wait()
    finally:
        stop.set()
        await watching


async def test_of_two_operators_one_acts_and_the_other_one_follows(operated: Operated) -> None:
    acts: dict[str, bool] = {}
    changed = asyncio.Event()

    def on_change(name: str, is_held: bool) -> None:
        acts[name] = is_held
        changed.set()

    leases = {
        name: OperatorLease(operated.api, operated.namespace, name, partial(on_change, name))
        for name in ("first", "second")
    }
    tasks = {name: asyncio.create_task(lease.run()) for name, lease in leases.items()}
    try:
        async with asyncio.timeout(60):
            await changed.wait()
            (holder,) = (name for name, held in acts.items() if held)
            other = "second" if holder == "first" else "first"
            changed.clear()
            tasks[holder].cancel()
            await leases[holder].give_back()
            while acts.get(other) is not True:
                changed.clear()
                await changed.wait()
            assert acts == {holder: False, other: True}
    finally:
        for task in tasks.values():
            task.cancel()


async def test_the_lease_does_not_wait_for_other_requests(operated: Operated) -> None:
    server = operated.server
    with closing(ApiServerRelay(server.url, server.admin.tls, token=server.tokens["admin"])) as way:
        way.inject(Hang(is_done=False), path="/clusters", times=1000)
        access = replace(server.admin, server=way.url, tls=None, tls_server_name=None)
        api, is_held = Api(access), asyncio.Event()
        lease = OperatorLease(api, operated.namespace, "one", lambda _: is_held.set())
        slow = [asyncio.create_task(api.list(CLUSTER)) for _ in range(24)]
        running = asyncio.create_task(lease.run())
        try:
            # On the threads of the others it would begin after three of their rounds.
            async with asyncio.timeout(2.5 * TIMEOUT_MS / 1000):
                await is_held.wait()
        finally:
            for task in (running, *slow):
                task.cancel()
    api.close()


def topic_and_quota(operated: Operated, spec: dict[str, Any]) -> None:
    """Apply a Cluster, a Topic `t` and a Quota `q`, and let them get ready."""
    operated.apply("clusters", "c", spec)
    operated.apply("topics", "t", {"clusterRef": {"name": "c"}})
    limit = {"clusterRef": {"name": "c"}, "for": {"clientId": "app"}, "requestPercent": 50}
    operated.apply("quotas", "q", limit)
    operated.until(lambda: is_all_settled(operated))
    assert operated.conditions("quotas", "q") == {"Ready": ("True", "Ready")}


def test_a_paused_cluster_says_so_at_its_topics_and_quotas_and_they_go_when_it_goes_on(
    operated: Operated,
) -> None:
    spec = {"pools": [pool(replicas=1)]}
    topic_and_quota(operated, spec)
    fake, names = operated.fake(), {name: f"{operated.namespace}/{name}" for name in "tq"}
    operated.apply("clusters", "c", {**spec, "paused": True})
    operated.apply("topics", "new", {"clusterRef": {"name": "c"}})
    operated.look()
    paused = ("Unknown", "Paused")
    assert operated.conditions() == dict.fromkeys(CONDITIONS, paused)
    for name in ("t", "new"):
        assert operated.conditions("topics", name) == {"Ready": paused, "Placed": paused}
    assert operated.conditions("quotas", "q") == {"Ready": paused}
    assert "spec.paused is false" in operated.told("topics", "new")["Ready"][2]
    told = operated.get(TOPICS, "t")
    assert told is not None
    assert told["status"]["partitions"] == 1, "what was known of it stays"

    for kind, name in (("topics", "t"), ("topics", "new"), ("quotas", "q")):
        operated.delete(kind, name)
    operated.look()
    assert operated.get(TOPICS, "new") is None, "nothing was made for it"
    for kind, name in (("topics", "t"), ("quotas", "q")):
        assert operated.conditions(kind, name)["Ready"] == ("False", "CannotDelete")
        assert "paused" in operated.told(kind, name)["Ready"][2]
    assert (names["t"] in fake.topics, names["q"] in fake.quotas) == (True, True)

    operated.apply("clusters", "c", {**spec, "paused": False})
    operated.look()
    assert operated.get(TOPICS, "t") is operated.get(QUOTAS, "q") is None
    assert (names["t"] in fake.topics, names["q"] in fake.quotas) == (False, False)


def test_a_topic_of_a_paused_cluster_that_is_to_be_retained_is_deleted_at_once(
    operated: Operated,
) -> None:
    spec = {"pools": [pool(replicas=1)]}
    topic_and_quota(operated, spec)
    operated.apply("clusters", "c", {**spec, "paused": True})
    operated.delete("topics", "t")
    operated.look()
    retained = {"clusterRef": {"name": "c"}, "deletionPolicy": "Retain"}
    operated.apply("topics", "t", retained)
    operated.look()
    assert operated.get(TOPICS, "t") is None
    assert {*operated.fake().topics} == {f"{operated.namespace}/t"}


@pytest.mark.parametrize("is_paused", [True, False], ids=["paused", "broken"])
def test_a_namespace_with_topics_of_a_cluster_that_does_nothing_can_be_deleted(
    operated: Operated, caplog: pytest.LogCaptureFixture, is_paused: bool
) -> None:
    spec = {"pools": [pool(replicas=1)]}
    topic_and_quota(operated, spec)
    if is_paused:
        operated.apply("clusters", "c", {**spec, "paused": True})
    else:
        operated.fake().leave("c-b-0")
    operated.request("DELETE", f"/api/v1/namespaces/{operated.namespace}")
    for kind, name in (("topics", "t"), ("quotas", "q")):  # As the controller of namespaces does.
        operated.delete(kind, name)
    operated.look()
    assert operated.conditions("topics", "t")["Ready"] == ("False", "CannotDelete")
    assert operated.conditions("quotas", "q")["Ready"] == ("False", "CannotDelete")
    operated.ahead = timedelta(minutes=2)
    operated.look()
    assert operated.get(TOPICS, "t") is operated.get(QUOTAS, "q") is None
    told = {line.event_name for line in caplog.records if line.name == AUDIT_LOGGER}  # type: ignore[attr-defined]
    assert {"topic_kept", "quota_kept"} <= told
    assert {*operated.fake().topics} == {f"{operated.namespace}/t"}


def test_work_that_fails_for_now_is_told_and_no_condition_is_true_meanwhile(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool(replicas=2)]})
    operated.settle()
    fake = operated.fake()
    error: Exception = NotControllerError("another broker is")

    def refuse(what: str) -> None:
        raise error

    fake.on_write = refuse
    operated.apply("clusters", "c", {"pools": [pool(replicas=1)]})
    operated.look()
    assert operated.conditions()["Scaled"] == ("False", "Moving")
    assert "another broker is" in operated.told()["Scaled"][2]
    operated.controllers.step()
    operated.look()
    assert operated.conditions()["RolledOut"] == ("True", "Current"), "the rest goes on"

    operated.held_at = datetime.now(UTC)  # A look takes no time.
    error = ApiError(500, "the disk is full", request="GET /x")
    operated.apply("clusters", "c", {"pools": [pool(replicas=1)], "lostVolumes": "Replace"})
    operated.look()
    assert operated.conditions() == dict.fromkeys(CONDITIONS, ("Unknown", "NotNow"))
    assert "the disk is full" in operated.told()["Ready"][2]
    error = ApiError(500, "etcd has no leader", request="GET /x")
    operated.look()
    assert "the disk is full" in operated.told()["Ready"][2], "no report causes the next look"
    operated.ahead = timedelta(seconds=11)
    operated.look()
    assert operated.conditions() == dict.fromkeys(CONDITIONS, ("Unknown", "NotNow"))
    assert "etcd has no leader" in operated.told()["Ready"][2]
    fake.on_write = operated.api.on_write
    operated.settle()
