import pytest

from millrace.core.quotas.precedence import QuotaTable
from millrace.core.quotas.quota import EACH, Bucket, Quota, QuotaEntity, QuotaKind

PRODUCE, FETCH = QuotaKind.PRODUCE, QuotaKind.FETCH

ORDER = [
    QuotaEntity(principal="alice", client_id="app"),
    QuotaEntity(principal="alice", client_id=EACH),
    QuotaEntity(principal="alice"),
    QuotaEntity(principal=EACH, client_id="app"),
    QuotaEntity(principal=EACH, client_id=EACH),
    QuotaEntity(principal=EACH),
    QuotaEntity(client_id="app"),
    QuotaEntity(client_id=EACH),
]
"""Kafka's, the most specific first."""


def quota(name: str, entity: QuotaEntity, *, fetch: int | None = None) -> Quota:
    return Quota(
        name=name,
        entity=entity,
        produce_bytes_per_second=None if fetch else 5000,
        fetch_bytes_per_second=fetch,
    )


@pytest.mark.parametrize("first", range(len(ORDER)))
def test_the_most_specific_quota_counts(first: int) -> None:
    quotas = [quota(f"q{number}", entity) for number, entity in enumerate(ORDER)]
    found = QuotaTable(reversed(quotas[first:])).of_caller(PRODUCE, "alice", "app")
    assert found is not None
    assert found[0].name == f"q{first}"


def test_those_of_one_quota_are_counted_together_where_it_does_not_tell_them_apart() -> None:
    buckets = []
    for entity in ORDER:
        found = QuotaTable([quota("q", entity)]).of_caller(PRODUCE, "alice", "app")
        assert found is not None
        buckets.append(found[1])
    both = Bucket("q", PRODUCE, principal="alice", client_id="app")
    user = Bucket("q", PRODUCE, principal="alice")
    client = Bucket("q", PRODUCE, client_id="app")
    assert buckets == [both, both, user, both, both, user, client, client]


def test_a_quota_of_others_does_not_count() -> None:
    quotas = [
        quota("a", QuotaEntity(principal="bob")),
        quota("b", QuotaEntity(client_id="other")),
        quota("c", QuotaEntity(principal="alice", client_id="other")),
    ]
    assert QuotaTable(quotas).of_caller(PRODUCE, "alice", "app") is None


def test_each_kind_of_limit_is_looked_up_by_itself() -> None:
    table = QuotaTable(
        [quota("a", QuotaEntity(principal="alice"), fetch=7000), quota("c", ORDER[-1])]
    )
    assert not table.has_request_quotas
    assert table.of_caller(QuotaKind.REQUEST, "alice", "app") is None
    names = {}
    for kind in (PRODUCE, FETCH):
        found = table.of_caller(kind, "alice", "app")
        assert found is not None
        names[kind] = found[0].name
    assert names == {FETCH: "a", PRODUCE: "c"}


def test_a_client_without_a_client_id_has_the_quota_of_each_other() -> None:
    found = QuotaTable([quota("q", QuotaEntity(client_id=EACH))]).of_caller(PRODUCE, "p", "")
    assert found == (quota("q", QuotaEntity(client_id=EACH)), Bucket("q", PRODUCE))


def test_a_hostile_client_id_is_only_a_name() -> None:
    table = QuotaTable([quota("q", QuotaEntity(client_id="app"))])
    for name in ("<default>", "*", "app/../app", "default"):
        assert table.of_caller(PRODUCE, "p", name) is None


def test_a_topics_quota_and_its_namespaces_count_together() -> None:
    table = QuotaTable(
        [
            quota("t", QuotaEntity(topic="shop/orders")),
            quota("each-t", QuotaEntity(topic=EACH)),
            quota("n", QuotaEntity(namespace="shop")),
            quota("each-n", QuotaEntity(namespace=EACH)),
        ]
    )
    assert [bucket for _, bucket in table.of_topic(PRODUCE, "shop/orders")] == [
        Bucket("t", PRODUCE, topic="shop/orders"),
        Bucket("n", PRODUCE, namespace="shop"),
    ]
    assert [bucket for _, bucket in table.of_topic(PRODUCE, "flights")] == [
        Bucket("each-t", PRODUCE, topic="flights"),
        Bucket("each-n", PRODUCE, namespace="default"),
    ]
    assert table.of_topic(FETCH, "flights") == []


def test_a_table_knows_whether_it_has_anything() -> None:
    empty = QuotaTable()
    assert not empty.has_caller_quotas
    assert not empty.has_topic_quotas
    assert empty.of_caller(PRODUCE, "p", "c") is None
    assert empty.of_topic(PRODUCE, "t") == []
    assert QuotaTable([quota("q", QuotaEntity(topic="t"))]).has_topic_quotas
    assert QuotaTable([quota("q", QuotaEntity(client_id="c"))]).has_caller_quotas
