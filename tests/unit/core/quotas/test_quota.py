from dataclasses import replace

import pytest

from millrace.core.errors import InvalidQuotaError
from millrace.core.quotas.quota import (
    EACH,
    RATE_MAX,
    RATE_MIN,
    Quota,
    QuotaEntity,
    QuotaKind,
    checked,
    checked_quota_name,
)


def quota(
    name: str = "q",
    *,
    produce: int | None = 5000,
    fetch: int | None = None,
    entity: dict[str, str | None] | None = None,
) -> Quota:
    return Quota(
        name=name,
        entity=QuotaEntity(**({"principal": "alice"} if entity is None else entity)),
        produce_bytes_per_second=produce,
        fetch_bytes_per_second=fetch,
    )


@pytest.mark.parametrize(
    ("entity", "words"),
    [
        ({"principal": "alice"}, "principal alice"),
        ({"principal": EACH}, "each principal"),
        ({"principal": "CN=größer, O=x"}, "principal CN=größer, O=x"),
        ({"client_id": "<default>"}, "client id <default>"),
        ({"principal": "alice", "client_id": EACH}, "principal alice and each client id"),
        ({"topic": "shop/orders"}, "topic shop/orders"),
        ({"topic": EACH}, "each topic"),
        ({"namespace": "shop"}, "namespace shop"),
    ],
)
def test_a_quota_is_for_clients_or_topics_or_namespaces(
    entity: dict[str, str | None], words: str
) -> None:
    found = checked(quota(entity=entity))
    assert found == quota(entity=entity)
    assert str(found.entity) == words


def test_a_topic_is_kept_under_its_canonical_name() -> None:
    assert checked(quota(entity={"topic": "default/orders"})).entity.topic == "orders"


@pytest.mark.parametrize(
    "entity",
    [
        {"topic": "t", "namespace": "n"},
        {"principal": "alice", "topic": "t"},
        {"client_id": "c", "namespace": "n"},
        {"principal": None},
        {"principal": "a\nb"},
        {"principal": "a\u202eb"},
        {"principal": "x" * 256},
        {"client_id": "with a space"},
        {"client_id": "x" * 256},
        {"topic": "no/such/name"},
        {"topic": ".."},
        {"namespace": "Upper"},
        {"namespace": "x" * 64},
    ],
)
def test_any_other_subject_is_refused(entity: dict[str, str | None]) -> None:
    with pytest.raises(InvalidQuotaError, match="quota 'q'"):
        checked(quota(entity=entity))


@pytest.mark.parametrize("limit", [0, -1, RATE_MIN - 1, RATE_MAX + 1, 1 << 70])
@pytest.mark.parametrize("kind", [QuotaKind.PRODUCE, QuotaKind.FETCH])
def test_a_limit_out_of_bounds_is_refused(limit: int, kind: QuotaKind) -> None:
    limits = {"produce": None, "fetch": None, kind.value: limit}
    with pytest.raises(InvalidQuotaError, match=f"the limit to {kind} is {limit} bytes"):
        checked(quota(**limits))  # type: ignore[arg-type]


@pytest.mark.parametrize("percent", [0, -1, 10_001])
def test_a_limit_of_request_time_out_of_bounds_is_refused(percent: int) -> None:
    with pytest.raises(InvalidQuotaError, match=f"{percent} percent"):
        checked(replace(quota(), request_percent=percent))


def test_a_limit_of_request_time_is_for_clients_and_for_each_broker() -> None:
    found = checked(replace(quota(produce=None), request_percent=5))
    assert found.limit(QuotaKind.REQUEST) == 50_000  # Microseconds.
    assert not found.is_shared(QuotaKind.REQUEST)
    assert found.is_shared(QuotaKind.PRODUCE)
    for entity in ({"topic": "t"}, {"namespace": "n"}):
        with pytest.raises(InvalidQuotaError, match="not for topics"):
            checked(replace(quota(entity={**entity}), request_percent=5))


def test_a_quota_limits_something() -> None:
    with pytest.raises(InvalidQuotaError, match="limits nothing"):
        checked(quota(produce=None))


@pytest.mark.parametrize("name", ["a", "team-a/reports.v2", "9"])
def test_a_name_is_that_of_a_kubernetes_object_with_or_without_a_namespace(name: str) -> None:
    assert checked_quota_name(name) == name


@pytest.mark.parametrize("name", ["", "A", "-a", "a/", "/a", "a/b/c", "x" * 254, "a b", "a\n"])
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidQuotaError):
        checked_quota_name(name)
