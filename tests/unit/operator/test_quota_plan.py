"""What a Quota asks for, whether it may, and which ones ask for the same."""

from typing import Any

import pytest

from millrace.core.errors import InvalidQuotaError
from millrace.core.quotas.quota import EACH, Quota, QuotaEntity
from millrace.operator.plan.quotas import conflicts, may_be_for, wanted
from millrace.operator.reconcile.resources import quota_of


def resource(whom: dict[str, Any], **spec: Any) -> Any:
    return quota_of(
        {
            "metadata": {"namespace": "shop", "name": "q", "uid": "u", "generation": 1},
            "spec": {
                "clusterRef": {"name": "c"},
                "for": whom,
                "produceBytesPerSecond": 5000,
                **spec,
            },
        }
    )


def quota(name: str, **entity: str) -> Quota:
    return Quota(name=name, entity=QuotaEntity(**entity), produce_bytes_per_second=5000)


def test_a_quota_is_called_after_its_namespace_and_resource() -> None:
    asked = resource({"clientId": "app"}, fetchBytesPerSecond="1Ki", requestPercent=50)
    assert wanted(asked) == Quota(
        name="shop/q",
        entity=QuotaEntity(client_id="app"),
        produce_bytes_per_second=5000,
        fetch_bytes_per_second=1024,
        request_percent=50,
    )
    assert wanted(resource({"clientId": "app"}, scope="Broker")).is_per_broker


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        (10_000_000, 10_000_000),
        ("10000000", 10_000_000),
        ("10M", 10_000_000),
        ("10MB", 10_000_000),
        ("10Mi", 10 << 20),
        ("10MiB", 10 << 20),
        ("1.5kB", 1500),
        ("2048B", 2048),
    ],
)
def test_a_rate_has_the_units_of_kubernetes_or_of_the_command_line(
    written: int | str, rate: int
) -> None:
    asked = resource({"clientId": "app"}, produceBytesPerSecond=written)
    assert wanted(asked).produce_bytes_per_second == rate


@pytest.mark.parametrize(
    ("whom", "entity"),
    [
        ({"user": "alice"}, {"principal": "alice"}),
        ({"user": "alice", "clientId": "app"}, {"principal": "alice", "client_id": "app"}),
        ({"user": "alice", "each": ["ClientId"]}, {"principal": "alice", "client_id": EACH}),
        ({"each": ["User", "ClientId"]}, {"principal": EACH, "client_id": EACH}),
        ({"topic": "orders"}, {"topic": "shop/orders"}),
        ({"topic": "default/orders"}, {"topic": "orders"}),
        ({"each": ["Topic"]}, {"topic": EACH}),
        ({"namespace": "shop"}, {"namespace": "shop"}),
        ({"each": ["Namespace"]}, {"namespace": EACH}),
    ],
)
def test_whom_a_quota_is_for(whom: dict[str, Any], entity: dict[str, str]) -> None:
    assert wanted(resource(whom)).entity == QuotaEntity(**entity)


def test_what_only_the_brokers_can_tell_is_refused() -> None:
    with pytest.raises(InvalidQuotaError, match="printable"):
        wanted(resource({"user": "a\nb"}))


@pytest.mark.parametrize(
    ("entity", "is_allowed"),
    [
        (QuotaEntity(topic="shop/orders"), True),
        (QuotaEntity(namespace="shop"), True),
        (QuotaEntity(topic="orders"), False),
        (QuotaEntity(topic="other/orders"), False),
        (QuotaEntity(topic=EACH), False),
        (QuotaEntity(namespace="other"), False),
        (QuotaEntity(namespace=EACH), False),
        (QuotaEntity(client_id="app"), False),
        (QuotaEntity(principal=EACH), False),
    ],
)
def test_a_namespace_limits_its_own_topics_and_that_of_the_cluster_everybody(
    entity: QuotaEntity, is_allowed: bool
) -> None:
    assert may_be_for(entity, "shop", "logs") is is_allowed
    assert may_be_for(entity, "logs", "logs")


def test_the_oldest_gets_what_nobody_has_and_who_has_it_keeps_it() -> None:
    old, young = quota("shop/old", client_id="app"), quota("shop/young", client_id="app")
    other = quota("shop/other", client_id="else")
    assert conflicts([old, young, other], {}) == {"shop/young": "shop/old"}
    assert conflicts([old, young], {young.name: young}) == {"shop/old": "shop/young"}
    made = quota("by-hand", client_id="app")
    assert conflicts([old], {made.name: made}) == {"shop/old": "by-hand"}


def test_a_quota_is_not_in_its_own_way() -> None:
    before, now = quota("shop/q", client_id="app"), quota("shop/q", client_id="else")
    assert conflicts([now], {before.name: before}) == {}
    assert conflicts([before], {before.name: before}) == {}
