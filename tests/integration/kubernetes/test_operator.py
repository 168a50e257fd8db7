"""The operator on a real API server; the rest of Kubernetes, and the brokers, are played."""

from contextlib import closing
from datetime import timedelta
from typing import Any

import pytest
from tests.integration.kubernetes.operated import Operated

from millrace.broker.coordination.kubernetes.store import KubernetesStore
from millrace.core.ids import ControllerEpoch
from millrace.core.metadata.lease import LeaseRecord
from millrace.core.metadata.model import CLUSTER_KEY, SHARD_KEYS
from millrace.core.metadata.stored import StoredObject
from millrace.operator.reconcile.cluster import BUSY_S

PODS = "/api/v1/%s/pods"
CLAIMS = "/api/v1/%s/persistentvolumeclaims"
STATEFUL_SETS = "/apis/apps/v1/%s/statefulsets"
VOLUME = {"name": "data", "size": "1Gi"}


def pool(name: str = "b", replicas: int = 3, **more: Any) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, "volumes": [VOLUME], **more}


def test_a_cluster_gets_ready_and_its_brokers_know_the_zones_of_their_nodes(
    operated: Operated,
) -> None:
    operated.apply("clusters", "c", {"pools": [pool()]})
    operated.settle()
    zones = {each.name: each.rack for each in operated.fake().brokers.values()}
    assert zones == {"c-b-0": "a", "c-b-1": "b", "c-b-2": "c"}


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
    return [each["status"]["capacity"]["storage"] for each in claims]


def uids(operated: Operated, path: str) -> set[str]:
    return {each["metadata"]["uid"] for each in operated.controllers.items(path)}


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
    alive = {each.broker_id for each in operated.fake().brokers.values()}
    assert {broker for each in held for broker in each} <= alive


METADATA = (
    "/apis/millrace.dev/v1/%s/clusterstates",
    "/apis/millrace.dev/v1/%s/stateshards",
    "/apis/coordination.k8s.io/v1/%s/leases",
)


def begin_metadata(operated: Operated, name: str = "c") -> KubernetesStore:
    """Return a store in which brokers have begun a cluster."""
    admin = operated.server.admin
    store = KubernetesStore(admin, cluster_name=name, namespace=operated.namespace)
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
    assert operated.conditions() == {"Ready": ("False", "PredecessorGoes")}
    operated.settle()
    assert metadata_left(operated) == 0
