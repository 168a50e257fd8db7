"""What consumers of Kafka say to each other through the broker."""

import pytest

from millrace.core.coordinator.groups.consumer_protocol import (
    assigned_partitions,
    subscribed_topics,
)

SUBSCRIPTION = b"\x00\x01" + b"\x00\x00\x00\x02" + b"\x00\x01a" + b"\x00\x02bc" + b"\xff" * 9
ASSIGNMENT = (
    b"\x00\x00" + b"\x00\x00\x00\x02"
    b"\x00\x01a" + b"\x00\x00\x00\x02" + b"\x00\x00\x00\x00" + b"\x00\x00\x00\x05"
    b"\x00\x01b" + b"\x00\x00\x00\x00" + b"\xff\xff\xff\xff"
)


def test_the_topics_of_a_subscription_and_the_partitions_of_an_assignment_are_found() -> None:
    assert subscribed_topics(SUBSCRIPTION) == frozenset({"a", "bc"})
    assert assigned_partitions(ASSIGNMENT) == frozenset({("a", 0), ("a", 5)})
    assert assigned_partitions(b"") == frozenset()


@pytest.mark.parametrize("length", range(12))
def test_what_is_cut_short_says_nothing(length: int) -> None:
    assert subscribed_topics(SUBSCRIPTION[:length]) is None
    if length:
        assert assigned_partitions(ASSIGNMENT[:length]) is None


def test_counts_that_are_not_there_take_no_memory() -> None:
    assert subscribed_topics(b"\x00\x00\x7f\xff\xff\xff") is None
    assert assigned_partitions(b"\x00\x00\x00\x00\x00\x01\x00\x01a\x7f\xff\xff\xff") is None
