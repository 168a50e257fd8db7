"""What becomes of a look, for people and Prometheus."""

import asyncio
from typing import Any

import pytest
from tests.fakes.administered_clusters import FakeBrokers
from tests.fakes.api_objects import FakeApi

from millrace.operator.queue import WorkQueue
from millrace.operator.reconcile.again import GONE
from millrace.operator.reconcile.cluster import ClusterReconciler
from millrace.operator.reconcile.quotas import QuotasReconciler
from millrace.operator.reconcile.topics import TopicsReconciler
from millrace.operator.telemetry import OperatorMetrics
from millrace.operator.worker import Key, Worker

KEY = Key("cluster", "n", "c")
EARLIER = 5.0
CLUSTER: dict[str, Any] = {
    "apiVersion": "millrace.dev/v1beta1",
    "kind": "Cluster",
    "metadata": {"namespace": "n", "name": "c", "uid": "u", "generation": 1},
    "spec": {"pools": [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}], "tls": {}},
}


class Shown:
    """What an operator shows that succeeded earlier, and looks once."""

    def __init__(self, api: FakeApi) -> None:
        self.metrics = OperatorMetrics()
        self.metrics.succeeded(*KEY, now_s=EARLIER)
        clusters = ClusterReconciler(api, FakeBrokers(), "millrace:1")

        async def look() -> None:
            queue = WorkQueue[Key]()
            queue.add(KEY)
            worker = Worker(queue, self.metrics, lambda: True, {"cluster": clusters.reconcile})
            await worker.work(await queue.get())

        asyncio.run(look())

    @property
    def last_success(self) -> float | None:
        return self.metrics.registry.get_sample_value(
            "millrace_operator_last_success_timestamp_seconds",
            {"work": "cluster", "namespace": "n", "name": "c"},
        )

    @property
    def failures(self) -> float | None:
        return self.metrics.registry.get_sample_value(
            "millrace_operator_reconcile_failures_total", {"work": "cluster"}
        )


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (403, "give the operator's ServiceAccount its role back, or upgrade the chart"),
        (422, "correct the Cluster's spec"),
    ],
)
def test_a_refusal_is_no_success_and_says_what_to_do(status: int, advice: str) -> None:
    api = FakeApi()
    api.put({**CLUSTER})
    api.refusals["Secret"] = (status, 'secrets "c-ca" is forbidden')
    shown = Shown(api)
    assert (shown.last_success, shown.failures) == (EARLIER, 1)
    (ready,) = (
        condition
        for condition in api.objects["Cluster", "n", "c"]["status"]["conditions"]
        if condition["type"] == "Ready"
    )
    assert ready["reason"] == "Refused"
    assert 'secrets "c-ca" is forbidden; ' + advice in ready["message"]


@pytest.mark.parametrize("is_there", [False, True])
def test_a_cluster_that_is_deleted_has_no_last_success(is_there: bool) -> None:
    api = FakeApi()
    if is_there:  # Its objects are deleted with it, by Kubernetes.
        deleted = {**CLUSTER["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
        api.put({**CLUSTER, "metadata": deleted})
    shown = Shown(api)
    assert (shown.last_success, shown.failures) == (None, 0)


@pytest.mark.parametrize("reconciler", [TopicsReconciler, QuotasReconciler])
async def test_a_cluster_without_topics_or_quotas_is_not_waited_for(
    reconciler: type[TopicsReconciler | QuotasReconciler],
) -> None:
    assert await reconciler(FakeApi(), FakeBrokers()).reconcile("n", "c") is GONE
