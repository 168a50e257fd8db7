"""Names as clients of Kafka know them, in one namespace."""

import uuid

import pytest

from millrace.broker.kafka.names import Names, topic_id_of, uuid_of
from millrace.core.coordinator.groups.patterns import matching
from millrace.core.errors import InvalidTopicError
from millrace.core.ids import TopicId
from millrace.core.topics import TopicName, parse_topic_name


def test_the_names_of_a_namespace_are_those_of_its_clients_one_to_one() -> None:
    for namespace, full in (("default", "a.b"), ("pay", "pay/a.b")):
        names = Names(namespace)
        assert names.full("a.b") == full
        assert names.known(full) == "a.b"
        assert names.topic("a.b") == TopicName(namespace, "a.b")
        assert names.of_topic(TopicName(namespace, "a.b")) == "a.b"


@pytest.mark.parametrize("name", ["a", "a/b", "pay/a", "default/a", "/"])
def test_a_group_may_have_slashes_in_its_name(name: str) -> None:
    for namespace, other in (("default", "pay"), ("pay", "default")):
        full = Names(namespace).full(name)
        assert Names(namespace).known_group(full) == name
        assert Names(other).known_group(full) is None


def test_a_group_that_clients_cannot_call_is_not_known() -> None:
    assert Names("default").known_group("default/a") is None, "a is another one"
    assert Names("pay").known_group("payments/a") is None


def test_names_of_other_namespaces_are_not_known() -> None:
    assert Names("default").known("pay/a") is None
    assert Names("pay").known("a") is None
    assert Names("pay").known("payments/a") is None
    assert Names("pay").of_topic(TopicName("default", "a")) is None


@pytest.mark.parametrize("namespace", ["default", "pay"])
def test_a_name_with_a_slash_reaches_no_other_namespace(namespace: str) -> None:
    names = Names(namespace)
    with pytest.raises(InvalidTopicError):
        parse_topic_name(names.full("other/a"))
    with pytest.raises(InvalidTopicError):
        names.topic("other/a")


@pytest.mark.parametrize("namespace", ["default", "pay", "pay-ments"])
@pytest.mark.parametrize("pattern", [".*", "a|other/a", ".*/a|a"])
def test_a_pattern_matches_names_of_its_namespace_alone(namespace: str, pattern: str) -> None:
    names = Names(namespace)
    full = names.full_pattern(pattern)
    everywhere = [str(TopicName(other, "a")) for other in ("other", "default", "pay", "pay-ments")]
    assert matching(full, everywhere) == [names.full("a")]
    assert names.known_pattern(full) == pattern
    assert Names("other").known_pattern(full) == ""
    assert names.full_pattern("") == names.known_pattern("") == ""


def test_a_topics_id_is_the_same_number() -> None:
    topic_id = TopicId(bytes(range(16)))
    assert topic_id_of(uuid_of(topic_id)) == topic_id
    assert uuid_of(topic_id) == uuid.UUID(bytes=bytes(range(16)))
    assert topic_id_of(None) is None
