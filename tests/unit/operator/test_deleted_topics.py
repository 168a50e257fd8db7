"""What becomes of a deleted Topic whose topic cannot be deleted."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fakes.administered_clusters import FakeBrokers
from tests.fakes.api_objects import FakeApi

from millrace.operator.reconcile.topics import FINALIZER, TopicsReconciler

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POOL = {"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}
PROTECTED = {"deletion.protection": "true"}

Case = tuple[dict[str, Any], dict[str, Any], bool]
CASES: dict[str, Case] = {
    "the form of the Topic is not known": ({}, {"partitions": "many"}, True),
    "the Cluster is paused": ({"paused": True}, {}, True),
    "the form of the Cluster is not known": ({"pools": "many"}, {}, True),
    "no broker answers": ({}, {}, False),
}
"""Fields of the Cluster, fields of the Topic, and whether brokers answer."""


def document(kind: str, name: str, **more: Any) -> dict[str, Any]:
    metadata = {
        "name": name,
        "namespace": "n",
        "uid": name,
        "generation": 1,
        "resourceVersion": "1",
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    return {
        "apiVersion": "millrace.dev/v1beta1",
        "kind": kind,
        "metadata": metadata | more.pop("metadata", {}),
        **more,
    }


def look(
    case: Case, *, is_namespace_deleted: bool = False, after: timedelta = timedelta(), **spec: Any
) -> str | None:
    """Look at a deleted Topic; return the reason of its Ready; None: it is gone."""
    cluster, topic, is_answering = case
    api, brokers = FakeApi(), FakeBrokers()
    gone = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    api.put(document("Cluster", "c", spec={"pools": [POOL], **cluster}))
    namespace = {"name": "n", **(gone if is_namespace_deleted else {})}
    api.put({"kind": "Namespace", "metadata": namespace})
    api.put(
        document(
            "Topic",
            "t",
            metadata={"finalizers": [FINALIZER], **gone},
            spec={"clusterRef": {"name": "c"}, **topic, **spec},
        )
    )
    if is_answering:
        brokers.of("n", "c").join("c-b-0")
    asyncio.run(TopicsReconciler(api, brokers, lambda: NOW + after).reconcile("n", "c"))
    left = api.objects.get(("Topic", "n", "t"))
    if left is None:
        return None
    (reason,) = (c["reason"] for c in left["status"]["conditions"] if c["type"] == "Ready")
    return str(reason)


@pytest.fixture(params=[*CASES.values()], ids=[*CASES])
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def test_it_waits_and_goes_at_once_if_the_topic_is_to_be_retained(case: Case) -> None:
    assert look(case) == "CannotDelete"
    assert look(case, deletionPolicy="Retain") is None
    assert look(case, deletionPolicy="Retain", config=PROTECTED) is None


def test_its_deleted_namespace_does_not_wait_for_it_longer_than_a_minute(case: Case) -> None:
    for seconds, reason in ((59, "CannotDelete"), (61, None)):
        after = timedelta(seconds=seconds)
        assert look(case, is_namespace_deleted=True, after=after) == reason
        assert look(case, after=after) == "CannotDelete"


def test_it_says_that_it_is_protected_and_holds_its_namespace(case: Case) -> None:
    for after in (timedelta(), timedelta(hours=1)):
        assert look(case, config=PROTECTED) == "DeletionProtected"
        found = look(case, config=PROTECTED, is_namespace_deleted=True, after=after)
        assert found == "DeletionProtected"
