"""What callers name is checked before a request is made of it."""

import pytest

from millrace.client._cluster.arguments import checked_broker, checked_count, checked_place
from millrace.core.errors import (
    BrokerIdNotRegisteredError,
    InvalidPartitionsError,
    InvalidRequestError,
)


@pytest.mark.parametrize("given", [0, -1, 2**31, 1.5, "3", True])
def test_a_count_is_a_number_from_one_on(given: object) -> None:
    with pytest.raises(InvalidPartitionsError, match="give a number from 1 to 2147483647"):
        checked_count(given, "partitions", InvalidPartitionsError)


def test_no_count_is_the_default_of_the_cluster() -> None:
    assert checked_count(None, "partitions", InvalidPartitionsError) == 0
    assert checked_count(7, "partitions", InvalidPartitionsError) == 7


@pytest.mark.parametrize("given", [-1, 2**31, 2.0, "3", None, False])
def test_a_broker_has_a_number(given: object) -> None:
    with pytest.raises(BrokerIdNotRegisteredError, match="there is no broker"):
        checked_broker(given)
    assert checked_broker(0) == 0


@pytest.mark.parametrize("given", ["orders", ("orders",), ("orders", 2**31), ("orders", True), 7])
def test_a_partition_is_a_topic_and_a_number(given: object) -> None:
    with pytest.raises(InvalidRequestError, match="give the topic and the number"):
        checked_place(given)
    assert checked_place(("orders", 3)) == ("orders", 3)
