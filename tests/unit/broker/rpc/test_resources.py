"""Which topics a request is about, before somebody else answers it."""

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.broker.guard.demands import ById
from millrace.broker.rpc.resources import TopicResources
from millrace.core.errors import UnknownTopicOrPartitionError
from millrace.core.guard.access import ResourceKind, named
from millrace.core.ids import TopicId
from millrace.core.topics import TopicName
from millrace.proto.v1.cluster_pb2 import TopicRef

THERE, DELETED, NEW = (TopicId(letter * 16) for letter in (b"t", b"d", b"n"))


def resources() -> TopicResources:
    """Return those of a broker that has yet to hear of a new topic."""
    there = SimpleNamespace(name=TopicName("shop", "orders"))
    deleted = SimpleNamespace(topic=SimpleNamespace(name=TopicName("shop", "gone")))
    image: Any = SimpleNamespace(
        topics_by_id={THERE: there},
        deleted_topic=lambda topic_id: deleted if topic_id == DELETED else None,
    )
    return TopicResources(lambda: image)


def test_names_and_ids_are_both_what_a_request_is_about() -> None:
    refs = [TopicRef(name="mine/x", topic_id=THERE), TopicRef(topic_id=DELETED)]
    mine, orders, gone = (
        named(ResourceKind.TOPICS, name) for name in ("mine/x", "shop/orders", "shop/gone")
    )
    assert list(resources().of_refs(refs)) == [mine, ById(orders), ById(gone)]


def test_a_topic_that_is_deleted_may_be_back_before_the_request_is_answered() -> None:
    places = [SimpleNamespace(topic_partition=SimpleNamespace(topic_id=DELETED))]
    gone = named(ResourceKind.TOPICS, "shop/gone")
    assert list(resources().of_partitions(places)) == [ById(gone)]


def test_an_id_that_is_not_known_here_is_not_passed_on_alone() -> None:
    """The controller may know it: the topic of somebody else, who has just created it."""
    with pytest.raises(UnknownTopicOrPartitionError, match="name it, too"):
        list(resources().of_refs([TopicRef(topic_id=NEW)]))
    mine = named(ResourceKind.TOPICS, "mine/x")
    assert list(resources().of_refs([TopicRef(name="mine/x", topic_id=NEW)])) == [mine, None]
