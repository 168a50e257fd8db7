"""Topics of one namespace, by what a listener's clients call them."""

from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.call_context import CALLER

from millrace.broker.kafka.known_topics import KnownTopics, has_partition
from millrace.broker.kafka.names import Names
from millrace.broker.kafka.wire.errors import Code
from millrace.core.errors import (
    AccessUndecidedError,
    MillraceError,
    TopicAuthorizationFailedError,
)
from millrace.core.guard.access import Operation, Resource
from millrace.core.ids import TopicId
from millrace.core.topics import TopicName

HERE, ELSEWHERE, NOBODYS = (TopicId(letter * 16) for letter in (b"h", b"e", b"n"))


def topic(topic_id: TopicId, namespace: str, name: str) -> Any:
    found = TopicName(namespace, name)
    return SimpleNamespace(topic_id=topic_id, name=found, partitions=[object()] * 2)


NO = TopicAuthorizationFailedError("no")


class Guarded:
    """A caller who may use `orders` alone, once that is learned; the rest is as of anybody.

    Args:
        refused: why it may not use others.
    """

    def __init__(self, refused: MillraceError = NO) -> None:
        self.learned: set[Resource] = set()
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        return getattr(CALLER, name)

    async def learn(self, operation: Operation, resources: Any, *, all_needed: bool) -> None:
        assert operation is Operation.CONSUME
        assert all_needed, "a request names what it needs"
        self.learned.update(resources)

    def refusal(self, _: Operation, resource: Resource) -> MillraceError | None:
        assert resource in self.learned
        return None if resource.name == "orders" else self._refused


@pytest.fixture
def known() -> KnownTopics:
    every = [topic(HERE, "team", "orders"), topic(ELSEWHERE, "default", "orders")]
    image: Any = SimpleNamespace(
        topics={each.name: each for each in every},
        topics_by_id={each.topic_id: each for each in every},
    )
    return KnownTopics(Names("team"), lambda: image)


async def test_topics_are_found_by_name_and_by_id_in_one_namespace(known: KnownTopics) -> None:
    asked: list[str | TopicId] = ["orders", "none", "default/orders", HERE, ELSEWHERE, NOBODYS]
    found = await known.found(asked, Operation.CONSUME, CALLER)
    orders = known.find("orders")
    assert orders is not None
    assert orders.topic_id == HERE
    assert found == {
        "orders": orders,
        "none": Code.UNKNOWN_TOPIC_OR_PARTITION,
        "default/orders": Code.UNKNOWN_TOPIC_OR_PARTITION,
        HERE: orders,
        ELSEWHERE: Code.UNKNOWN_TOPIC_ID,
        NOBODYS: Code.UNKNOWN_TOPIC_ID,
    }
    assert [*known.all()] == [orders]


async def test_who_may_not_use_a_name_is_not_told_whether_there_is_such_a_topic(
    known: KnownTopics,
) -> None:
    caller: Any = Guarded()
    found = await known.found(["orders", "none", "a/b", HERE], Operation.CONSUME, caller)
    assert found["orders"] == found[HERE] == known.find("orders")
    assert found["none"] == Code.TOPIC_AUTHORIZATION_FAILED
    assert found["a/b"] == Code.UNKNOWN_TOPIC_OR_PARTITION


async def test_what_nobody_knows_now_has_the_code_at_which_the_request_is_tried_again(
    known: KnownTopics,
) -> None:
    caller: Any = Guarded(AccessUndecidedError("ask again"))
    for given, code in (({}, Code.REQUEST_TIMED_OUT), ({"undecided": 14}, 14)):
        found = await known.found(["orders", "none"], Operation.CONSUME, caller, **given)
        assert found["orders"] == known.find("orders")
        assert found["none"] == code


def test_partitions_are_numbered_from_0(known: KnownTopics) -> None:
    orders = known.find(HERE)
    assert orders is not None
    assert [has_partition(orders, number) for number in (-1, 0, 1, 2)] == [False, True, True, False]
