import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.errors import InvalidTopicError
from millrace.core.topics import (
    NAME_LENGTH_MAX,
    NAMESPACE_LENGTH_MAX,
    TopicName,
    parse_topic_name,
)

NAMES = st.from_regex(r"\A[A-Za-z0-9._-]{1,249}\Z").filter(lambda name: name not in (".", ".."))
NAMESPACES = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")


@given(NAMESPACES, NAMES)
def test_a_name_reads_back_as_it_is_shown(namespace: str, name: str) -> None:
    topic = TopicName(namespace, name)
    assert parse_topic_name(f"{namespace}/{name}") == topic
    assert parse_topic_name(str(topic)) == topic


def test_the_default_namespace_is_left_out_where_a_name_is_shown() -> None:
    assert parse_topic_name("orders") == TopicName("default", "orders")
    assert str(parse_topic_name("default/orders")) == "orders"
    assert str(parse_topic_name("shop/orders")) == "shop/orders"


def test_a_topic_of_the_cluster_itself_begins_with_two_underscores() -> None:
    assert parse_topic_name("shop/__offsets").is_internal
    assert not parse_topic_name("shop/_offsets").is_internal


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/",
        "/a",
        "a/b/c",
        ".",
        "..",
        "default/..",
        "../orders",
        "a b",
        "a\n",
        "ä",
        "a\0",
        "\ud800",
        "Shop/orders",
        "-shop/orders",
        "shop-/orders",
        "a" * (NAME_LENGTH_MAX + 1),
        "n" * (NAMESPACE_LENGTH_MAX + 1) + "/a",
    ],
)
def test_what_breaks_a_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopicError, match="topic"):
        parse_topic_name(text)


def test_a_huge_name_is_refused_without_being_repeated() -> None:
    with pytest.raises(InvalidTopicError) as refusal:
        parse_topic_name("a" * 5_000_000)
    assert len(refusal.value.message) < 200


@given(st.text(max_size=400))
def test_any_text_is_a_name_or_refused(text: str) -> None:
    try:
        topic = parse_topic_name(text)
    except InvalidTopicError:
        return
    assert parse_topic_name(str(topic)) == topic
