"""When a Cluster counts as one that has had a controller."""

from typing import Any

import pytest
from tests.fakes.administered_clusters import FakeBrokers
from tests.fakes.api_objects import FakeApi

from millrace.operator.model.objects import CLUSTER_LABEL
from millrace.operator.reconcile.cluster import ClusterReconciler

OURS, EARLIER = "uid-2", "uid-1"
NAMED = {"namespace": "shop", "name": "orders"}


def cluster(**metadata: str) -> dict[str, Any]:
    """Return a Cluster whose settings its brokers would refuse."""
    volume = {"name": "data", "size": "1Gi"}
    return {
        "apiVersion": "millrace.dev/v1beta1",
        "kind": "Cluster",
        "metadata": {**NAMED, "uid": OURS, "generation": 1, **metadata},
        "spec": {
            "pools": [{"name": "b", "replicas": 3, "volumes": [volume]}],
            "config": {"nonsense": {"setting": "1"}},
            "tls": {"mode": "Disabled"},
            "access": {"mode": "Disabled"},
        },
    }


def lease(owner: str) -> dict[str, Any]:
    """Return what the first controller of a cluster makes."""
    reference = {"apiVersion": "millrace.dev/v1beta1", "kind": "Cluster", "name": "orders"}
    metadata = {
        "namespace": "shop",
        "name": "orders-controller",
        "uid": "uid-3",
        "resourceVersion": "1",
        "labels": {CLUSTER_LABEL: "orders"},
        "ownerReferences": [{**reference, "uid": owner}],
    }
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}


@pytest.mark.parametrize(
    ("documents", "formed"),
    [
        ([cluster()], False),
        ([cluster(), lease(OURS)], True),
        ([cluster(), lease(EARLIER)], False),
        ([cluster(deletionTimestamp="2026-11-30T12:00:00Z"), lease(OURS)], None),
        ([], None),
    ],
    ids=["new", "it has had a controller", "an earlier one had", "it is deleted", "it is gone"],
)
async def test_a_cluster_is_formed_when_its_controller_has_made_its_metadata(
    documents: list[dict[str, Any]], formed: bool | None
) -> None:
    api = FakeApi()
    told: list[tuple[str, str, bool | None]] = []
    for document in documents:
        api.put(document)
    clusters = ClusterReconciler(
        api, FakeBrokers(), "millrace:1", on_formed=lambda *formed: told.append(formed)
    )
    await clusters.reconcile("shop", "orders")
    assert told == [("shop", "orders", formed)]
