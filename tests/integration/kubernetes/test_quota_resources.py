"""Quotas as resources: the operator on a real API server; the brokers are played."""

from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.fakes.administered_clusters import QUOTAS_MAX
from tests.integration.kubernetes.operated import Document, KilledError, Operated

from millrace.client import QuotaUse
from millrace.core.ids import BrokerId
from millrace.core.quotas.quota import Quota, QuotaEntity
from millrace.operator.reconcile.quotas import MEASURE_S_MIN

QUOTAS = "/apis/millrace.dev/v1beta1/%s/quotas"
CLUSTER = {"pools": [{"name": "b", "volumes": [{"name": "data", "size": "1Gi"}]}]}
READY = {"Ready": ("True", "Ready")}


@pytest.fixture
def cluster(operated: Operated) -> Operated:
    """An operator with a Cluster whose broker answers."""
    operated.apply("clusters", "c", CLUSTER)
    operated.fake().join("c-b-0")
    return operated


def quota(client_id: str = "app", rate: int | str = "10MB", **spec: Any) -> Document:
    return {
        "clusterRef": {"name": "c"},
        "for": {"clientId": client_id},
        "produceBytesPerSecond": rate,
        **spec,
    }


def by_hand(name: str, client_id: str) -> Quota:
    entity = QuotaEntity(client_id=client_id)
    return Quota(name=name, entity=entity, produce_bytes_per_second=5000)


def status(operated: Operated, name: str = "q") -> Document:
    found = operated.get(QUOTAS, name)
    assert found is not None
    told: Document = found["status"]
    return told


def test_a_quota_is_made_changed_put_right_and_deleted_with_its_resource(
    cluster: Operated,
) -> None:
    name = f"{cluster.namespace}/q"
    quotas = cluster.fake().quotas
    cluster.apply("quotas", "q", quota())
    cluster.look()
    assert quotas[name].produce_bytes_per_second == 10_000_000
    assert cluster.conditions("quotas", "q") == READY
    found = status(cluster)
    assert (found["quotaName"], found["subject"]) == (name, "client id app")
    assert found["observedGeneration"] == 1

    cluster.apply("quotas", "q", quota(rate="20Mi", scope="Broker", requestPercent=50))
    cluster.look()
    wanted = quotas[name]
    assert wanted == Quota(
        name=name,
        entity=QuotaEntity(client_id="app"),
        produce_bytes_per_second=20 << 20,
        request_percent=50,
        is_per_broker=True,
    )
    assert status(cluster)["observedGeneration"] == 2

    quotas[name] = replace(wanted, produce_bytes_per_second=5000, is_per_broker=False)
    cluster.look()
    assert quotas[name] == wanted
    del quotas[name]
    cluster.look()
    assert quotas[name] == wanted

    quotas["theirs"] = by_hand("theirs", "else")
    cluster.delete("quotas", "q")
    cluster.look()
    assert set(quotas) == {"theirs"}
    assert cluster.get(QUOTAS, "q") is None


def test_the_status_tells_of_the_use_now_and_then_and_nothing_is_written_beside(
    cluster: Operated,
) -> None:
    name = f"{cluster.namespace}/q"
    cluster.apply("quotas", "q", quota())
    cluster.settle()
    cluster.look()
    assert status(cluster)["use"] == {"summary": "produce 0 B/s", "produceBytesPerSecond": 0}
    # Measured just now: by a busy machine it may be a while ago.
    cluster.ahead += timedelta(seconds=MEASURE_S_MIN)
    cluster.look()
    fake = cluster.fake()
    fake.uses[name] = tuple(
        QuotaUse("produce", "", "app", "", "", BrokerId(broker), 5_000_000, 5_000_000, delay, 0)
        for broker, delay in enumerate((0, 250))
    )
    writes, measurements = cluster.api.writes, fake.measurements
    cluster.look()
    assert (cluster.api.writes, fake.measurements) == (writes, measurements)
    for _ in range(2):
        cluster.ahead += timedelta(seconds=MEASURE_S_MIN)
        cluster.look()
        assert cluster.api.writes == writes + 1  # The second measurement says nothing new.
    assert fake.measurements == measurements + 2
    found = status(cluster)
    assert found["use"]["summary"] == "produce 10 MB/s"
    assert (found["throttled"], found["longestDelays"]) == (
        1,
        [{"subject": "client id app", "delayMs": 250}],
    )
    # What was measured stays when the resource is changed.
    cluster.apply("quotas", "q", quota(rate="20MB"))
    cluster.look()
    assert (status(cluster)["observedGeneration"], status(cluster)["throttled"]) == (2, 1)


def test_a_quota_for_what_another_one_is_for_names_it_and_gets_it_when_that_is_gone(
    cluster: Operated,
) -> None:
    quotas = cluster.fake().quotas
    quotas["theirs"] = by_hand("theirs", "app")
    cluster.apply("quotas", "q", quota())
    cluster.look()
    assert cluster.conditions("quotas", "q") == {"Ready": ("False", "Conflict")}
    message = cluster.told("quotas", "q")["Ready"][2]
    assert "the quota theirs is for client id app already" in message
    assert "millrace quota delete theirs" in message
    assert set(quotas) == {"theirs"}
    del quotas["theirs"]
    cluster.look()
    assert cluster.conditions("quotas", "q") == READY

    cluster.apply("quotas", "other", quota())
    cluster.look()
    assert cluster.conditions("quotas", "other") == {"Ready": ("False", "Conflict")}
    message = cluster.told("quotas", "other")["Ready"][2]
    assert f"change or delete the Quota q of namespace {cluster.namespace}" in message
    cluster.delete("quotas", "q")
    cluster.look()
    cluster.look()
    assert cluster.conditions("quotas", "other") == READY
    assert set(quotas) == {f"{cluster.namespace}/other"}


def test_two_quotas_can_change_places(cluster: Operated) -> None:
    quotas = cluster.fake().quotas
    for name, client_id in (("q", "a"), ("r", "b")):
        cluster.apply("quotas", name, quota(client_id))
    cluster.look()
    for name, client_id in (("q", "b"), ("r", "a")):
        cluster.apply("quotas", name, quota(client_id))

    def changed() -> bool:
        clients = {name: quota.entity.client_id for name, quota in quotas.items()}
        space = cluster.namespace
        return clients == {f"{space}/q": "b", f"{space}/r": "a"}

    cluster.until(changed)
    cluster.look()
    assert cluster.conditions("quotas", "q") == cluster.conditions("quotas", "r") == READY


def test_another_namespace_limits_only_its_own_topics_and_only_if_the_cluster_allows_it(
    cluster: Operated,
) -> None:
    shop = f"shop-{cluster.namespace}"
    assert cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": shop}})
    where = f"/apis/millrace.dev/v1beta1/namespaces/{shop}/quotas"
    made = cluster.request(
        "POST",
        where,
        {
            "apiVersion": "millrace.dev/v1beta1",
            "kind": "Quota",
            "metadata": {"name": "q"},
            "spec": {
                "clusterRef": {"name": "c", "namespace": cluster.namespace},
                "for": {"namespace": shop},
                "produceBytesPerSecond": "1MB",
            },
        },
    )
    assert made["spec"]["scope"] == "Cluster"

    def ready() -> tuple[str, str]:
        cluster.look()
        (condition,) = cluster.request("GET", f"{where}/q")["status"]["conditions"]
        return condition["reason"], condition["message"]

    reason, message = ready()
    assert reason == "NotAllowed"
    assert f"takes no Quotas of namespace {shop}" in message
    cluster.apply("clusters", "c", {**CLUSTER, "allowedTopics": {"namespaces": {"from": "All"}}})
    assert ready()[0] == "Ready"
    assert set(cluster.fake().quotas) == {f"{shop}/q"}
    found = cluster.request("GET", f"{where}/q")
    cluster.request("PUT", f"{where}/q", {**found, "spec": {**found["spec"], "for": {"user": "a"}}})
    reason, message = ready()
    assert reason == "NotAllowed"
    assert "this one is for principal a: correct spec.for" in message
    assert cluster.fake().quotas == {}


def test_a_quota_waits_for_brokers_and_for_room(cluster: Operated) -> None:
    fake = cluster.fake()
    fake.leave("c-b-0")
    cluster.apply("quotas", "q", quota())
    cluster.look()
    assert cluster.conditions("quotas", "q") == {"Ready": ("Unknown", "NoBrokerAnswers")}
    fake.join("c-b-0")
    fake.quotas.update(
        {f"x{number}": by_hand(f"x{number}", f"x{number}") for number in range(QUOTAS_MAX)}
    )
    cluster.look()
    assert cluster.conditions("quotas", "q") == {"Ready": ("False", "QuotasFull")}
    del fake.quotas["x0"]
    cluster.look()
    assert cluster.conditions("quotas", "q") == READY


def test_a_deletion_waits_for_the_brokers_but_not_for_a_cluster_that_is_gone(
    cluster: Operated,
) -> None:
    fake = cluster.fake()
    for name in ("q", "r"):
        cluster.apply("quotas", name, quota(name))
    cluster.look()
    fake.leave("c-b-0")
    cluster.delete("quotas", "q")
    cluster.look()
    assert cluster.conditions("quotas", "q") == {"Ready": ("False", "CannotDelete")}
    cluster.delete("clusters", "c")
    cluster.look()
    assert cluster.get(QUOTAS, "q") is None
    assert cluster.conditions("quotas", "r") == {"Ready": ("False", "NoCluster")}
    assert "create it, or correct spec.clusterRef" in cluster.told("quotas", "r")["Ready"][2]
    cluster.delete("quotas", "r")
    cluster.look()
    assert cluster.get(QUOTAS, "r") is None


@pytest.mark.parametrize("is_done", [True, False], ids=["with", "after"])
def test_an_operator_that_is_killed_by_every_change_gets_there_all_the_same(
    cluster: Operated, is_done: bool
) -> None:
    quotas = cluster.fake().quotas
    for name, client_id in (("q", "a"), ("r", "b")):
        cluster.apply("quotas", name, quota(client_id))
    cluster.settle()
    cluster.look()
    # They change places, and one comes, and one goes.
    cluster.apply("quotas", "gone", quota("gone"))
    cluster.look()
    for name, client_id in (("q", "b"), ("r", "a"), ("new", "new")):
        cluster.apply("quotas", name, quota(client_id))
    cluster.delete("quotas", "gone")
    cluster.api.is_done = is_done

    def is_there() -> bool:
        names = {"q": "b", "r": "a", "new": "new"}
        clients = {name.split("/")[1]: quota.entity.client_id for name, quota in quotas.items()}
        if clients != names or cluster.get(QUOTAS, "gone") is not None:
            return False
        return all(cluster.conditions("quotas", name) == READY for name in names)

    lives = 0
    while not is_there():
        cluster.restart(changes=1)
        with suppress(KilledError):
            cluster.look()
        lives += 1
        assert lives < 40, cluster.told("quotas", "q")
    assert lives > 5
