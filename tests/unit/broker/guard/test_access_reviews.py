"""What callers may do, as Kubernetes' access control says (G7, G8)."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from tests.fakes.authority import FakeAuthority
from tests.fakes.virtual_loop import in_virtual_time

from millrace.broker.guard.access_reviews import (
    AGAIN_S,
    ASKED_MAX,
    DUE_WAIT_S,
    LEARN_S,
    NAMES_MAX,
    AccessReviews,
)
from millrace.broker.guard.guard import AuthorityAwayError, NotAskedError
from millrace.core.guard.access import CLUSTER, Demand, Operation, Resource, ResourceKind, named
from millrace.core.guard.decisions import ALLOWED_MS, AWAY_MS, REFUSED_MS, Decision
from millrace.core.guard.identity import Identity
from millrace.core.ids import MonotonicMs
from millrace.runtime.kubernetes.resources import Kind

NO = Decision(False, MonotonicMs(0))
READER = Identity("system:serviceaccount:shop:reader", frozenset({"system:serviceaccounts"}))
ORDERS = named(ResourceKind.TOPICS, "shop/orders")
CONSUME = Demand(Operation.CONSUME, ORDERS)


@pytest.fixture
def authority() -> FakeAuthority:
    return FakeAuthority()


@pytest.fixture
def access(authority: FakeAuthority) -> AccessReviews:
    return AccessReviews(authority, "logs-system", "logs")


def asked(authority: FakeAuthority) -> list[tuple[str, str, str]]:
    """Return resource, namespace and name of each review."""
    found = [spec["resourceAttributes"] for spec in authority.reviewed]
    return [(about["resource"], about["namespace"], about["name"]) for about in found]


async def may(access: AccessReviews, demand: Demand, identity: Identity = READER) -> bool:
    return (await access.decide(identity, demand)).is_allowed


@in_virtual_time
async def test_all_namespaces_then_the_namespace_then_the_name_are_asked(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    assert not await may(access, CONSUME)
    assert asked(authority) == [
        ("topics", "", ""),
        ("topics", "shop", ""),
        ("topics", "shop", "orders"),
    ]
    assert authority.reviewed[2] == {
        "user": READER.principal,
        "groups": ["system:serviceaccounts"],
        "resourceAttributes": {
            "group": "millrace.dev",
            "resource": "topics",
            "verb": "consume",
            "namespace": "shop",
            "name": "orders",
        },
    }


@pytest.mark.parametrize(
    ("rule", "reviews"),
    [
        (("consume", "topics", "", ""), 1),
        (("consume", "topics", "shop", ""), 2),
        (("consume", "topics", "shop", "orders"), 3),
    ],
)
def test_a_role_of_each_extent_allows(
    authority: FakeAuthority, rule: tuple[str, str, str, str], reviews: int
) -> None:
    authority.allowed.add(rule)

    @in_virtual_time
    async def story() -> None:
        access = AccessReviews(authority, "logs-system", "logs")
        assert await may(access, CONSUME)
        assert len(authority.reviewed) == reviews
        assert not await may(access, Demand(Operation.PRODUCE, ORDERS))

    story()


@in_virtual_time
async def test_who_may_read_a_namespace_costs_two_reviews_for_all_its_topics(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    authority.allowed.add(("describe", "topics", "shop", ""))
    for number in range(5000):
        demand = Demand(Operation.DESCRIBE, Resource(ResourceKind.TOPICS, "shop", f"t{number}"))
        assert await may(access, demand)
    assert len(authority.reviewed) == 2


@in_virtual_time
async def test_decisions_live_for_ten_seconds(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    rule = ("consume", "topics", "shop", "orders")
    assert not await may(access, CONSUME)
    authority.allowed.add(rule)
    assert not await may(access, CONSUME)
    await asyncio.sleep(REFUSED_MS / 1000)
    decision = await access.decide(READER, CONSUME)
    assert decision.is_allowed
    authority.allowed.clear()
    await asyncio.sleep(ALLOWED_MS / 1000 - 0.1)
    assert await may(access, CONSUME)
    await asyncio.sleep(0.1)
    assert not await may(access, CONSUME)


@in_virtual_time
async def test_many_calls_ask_once(authority: FakeAuthority, access: AccessReviews) -> None:
    authority.allowed.add(("consume", "topics", "", ""))
    authority.delay_s = 0.1
    assert all(await asyncio.gather(*(may(access, CONSUME) for _ in range(100))))
    assert len(authority.reviewed) == 1


@in_virtual_time
async def test_what_was_allowed_goes_on_while_the_api_server_is_away(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    authority.allowed.add(("consume", "topics", "shop", "orders"))
    assert await may(access, CONSUME)
    authority.is_away = True
    with pytest.raises(AuthorityAwayError):
        await may(access, Demand(Operation.PRODUCE, ORDERS))
    with pytest.raises(AuthorityAwayError):
        await may(access, CONSUME, Identity("system:serviceaccount:shop:new"))
    for _ in range(AWAY_MS // 60_000 - 1):
        await asyncio.sleep(60)
        assert await may(access, CONSUME)
    await asyncio.sleep(60)
    with pytest.raises(AuthorityAwayError):
        await may(access, CONSUME)
    authority.is_away = False
    await asyncio.sleep(AGAIN_S)
    assert await may(access, CONSUME)


@in_virtual_time
async def test_an_api_server_that_does_not_answer_delays_nobody_for_long(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    authority.allowed.add(("consume", "topics", "", ""))
    assert await may(access, CONSUME)
    await asyncio.sleep(ALLOWED_MS / 1000)
    authority.delay_s = 30.0
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    assert await may(access, CONSUME)
    assert loop.time() - began_s <= DUE_WAIT_S


STRANGER = Identity("system:serviceaccount:other:stranger")
ELSEWHERE = [
    Demand(Operation.CONSUME, named(ResourceKind.TOPICS, f"n{number}/x")) for number in range(1000)
]


class CountingAuthority(FakeAuthority):
    """Counts the questions that are under way, and takes no more than a few hundred."""

    under_way = most = 0

    async def review(self, kind: Kind, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.under_way >= 500:
            raise NotAskedError("there are too many")
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await super().review(kind, spec)
        finally:
            self.under_way -= 1


@in_virtual_time
async def test_who_asks_for_a_thousand_namespaces_hinders_nobody_else() -> None:
    authority = CountingAuthority()
    authority.allowed.add(("consume", "topics", "shop", ""))
    authority.delay_s = 0.1
    access = AccessReviews(authority, "logs-system", "logs")
    lists = [asyncio.create_task(access.learn(STRANGER, ELSEWHERE)) for _ in range(20)]
    streams = [access.begin(STRANGER, demand, MonotonicMs(0)) for demand in ELSEWHERE]
    assert len(streams) == 1000
    await asyncio.sleep(0.15)
    assert await asyncio.wait_for(may(access, CONSUME), 1)
    assert authority.most <= ASKED_MAX + 1
    await asyncio.gather(*lists, return_exceptions=True)


@in_virtual_time
async def test_a_question_that_could_not_be_asked_says_nothing_of_the_api_server() -> None:
    authority = CountingAuthority()
    authority.allowed.add(("consume", "topics", "shop", ""))
    access = AccessReviews(authority, "logs-system", "logs")
    authority.under_way = 500
    with pytest.raises(NotAskedError):
        await may(access, CONSUME)
    authority.under_way = 0
    assert await may(access, CONSUME)


@in_virtual_time
async def test_an_error_is_no_decision(authority: FakeAuthority, access: AccessReviews) -> None:
    authority.is_away = True
    with pytest.raises(AuthorityAwayError):
        await may(access, CONSUME)
    authority.is_away = False
    authority.allowed.add(("consume", "topics", "", ""))
    await asyncio.sleep(AGAIN_S)
    assert await may(access, CONSUME)


@in_virtual_time
async def test_the_cluster_is_asked_for_by_its_own_name(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    authority.allowed.add(("administer", "clusters", "logs-system", "logs"))
    assert await may(access, Demand(Operation.ADMINISTER, CLUSTER))
    assert not await may(access, Demand(Operation.DESCRIBE, CLUSTER))


@in_virtual_time
async def test_topics_of_the_cluster_itself_are_for_who_administers_it(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    authority.allowed.add(("consume", "topics", "", ""))
    positions = Resource(ResourceKind.TOPICS, "default", "__positions")
    assert not await may(access, Demand(Operation.CONSUME, positions))
    authority.allowed.add(("administer", "clusters", "logs-system", "logs"))
    await asyncio.sleep(REFUSED_MS / 1000)
    assert await may(access, Demand(Operation.CONSUME, positions))


@in_virtual_time
async def test_a_name_that_is_none_asks_for_nothing(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    authority.allowed |= {("consume", "topics", "", ""), ("consume", "topics", "shop", "")}
    for namespace, name in (("", "orders"), ("", ""), ("Shop", "x"), ("shop", "x" * 600)):
        demand = Demand(Operation.CONSUME, Resource(ResourceKind.TOPICS, namespace, name))
        assert not await may(access, demand)
    assert not authority.reviewed


@in_virtual_time
async def test_a_list_asks_about_namespaces_and_about_names_if_they_are_few(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    authority.allowed |= {
        ("describe", "topics", "shop", ""),
        ("describe", "topics", "other", "one"),
    }
    names = [("shop", f"t{number}") for number in range(5000)] + [
        ("other", "one"),
        ("other", "two"),
    ]
    demands = [
        Demand(Operation.DESCRIBE, Resource(ResourceKind.TOPICS, namespace, name))
        for namespace, name in names
    ]
    await access.learn(READER, demands)
    assert len(authority.reviewed) == 1 + 2 + 2
    now = MonotonicMs(int(asyncio.get_running_loop().time() * 1000))
    seen = [demand for demand in demands if (access.known(READER, demand, now) or NO).is_allowed]
    assert len(seen) == 5001


@in_virtual_time
async def test_a_list_with_many_names_of_a_namespace_asks_about_none_of_them(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    demands = [
        Demand(Operation.DESCRIBE, Resource(ResourceKind.TOPICS, "shop", f"t{number}"))
        for number in range(NAMES_MAX + 1)
    ]
    await access.learn(READER, demands)
    assert asked(authority) == [("topics", "", ""), ("topics", "shop", "")]


@in_virtual_time
async def test_a_request_that_needs_many_names_is_asked_about_all_of_them_at_once(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    """A member of a group that names a thousand topics would join in as many tries."""
    demands = [
        Demand(Operation.DESCRIBE, Resource(ResourceKind.TOPICS, "shop", f"t{number}"))
        for number in range(1000)
    ]
    authority.allowed |= {("describe", "topics", "shop", f"t{number}") for number in range(1000)}
    authority.delay_s = 0.005
    await access.learn(READER, demands, all_needed=True)
    now = MonotonicMs(int(asyncio.get_running_loop().time() * 1000))
    assert all((access.known(READER, demand, now) or NO).is_allowed for demand in demands)
    assert len(authority.reviewed) == 2 + 1000


@in_virtual_time
async def test_an_api_server_that_is_slow_delays_such_a_request_for_a_second_at_a_time(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    demands = [
        Demand(Operation.DESCRIBE, Resource(ResourceKind.TOPICS, "shop", f"t{number}"))
        for number in range(300)
    ]
    authority.allowed |= {("describe", "topics", "shop", f"t{number}") for number in range(300)}
    authority.delay_s = 0.2
    loop = asyncio.get_running_loop()
    tries = 0
    while len(authority.reviewed) < 2 + 300:
        begun = loop.time()
        await access.learn(READER, demands, all_needed=True)
        assert loop.time() - begun <= LEARN_S + 2 * authority.delay_s
        tries += 1
    assert tries == 2


@in_virtual_time
async def test_what_was_allowed_counts_until_the_next_answer_is_there(
    authority: FakeAuthority, access: AccessReviews
) -> None:
    """Without waiting: a stream goes on."""
    loop = asyncio.get_running_loop()

    def now() -> MonotonicMs:
        return MonotonicMs(int(loop.time() * 1000))

    assert not access.begin(READER, CONSUME, now()).is_allowed
    authority.allowed.add(("consume", "topics", "", ""))
    await asyncio.sleep(1)
    known = access.known(READER, CONSUME, now())
    assert known is not None
    assert known.is_allowed
    await asyncio.sleep(ALLOWED_MS / 1000)
    authority.allowed.clear()
    assert access.known(READER, CONSUME, now()) is None
    assert access.begin(READER, CONSUME, now()).is_allowed
    await asyncio.sleep(1)
    assert not (access.known(READER, CONSUME, now()) or NO).is_allowed
