"""What callers name is checked before a request is made of it."""

import numpy as np
import pytest

from millrace.client._cluster.arguments import (
    checked_broker,
    checked_count,
    checked_offset,
    checked_place,
    checked_word,
    whole_number,
)
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


@pytest.mark.parametrize("given", [-1, 1.0, "3", None, True, np.True_, 2**63])
def test_an_offset_is_a_number_from_zero_on(given: object) -> None:
    with pytest.raises(InvalidRequestError, match="is no offset: give 0 or more"):
        checked_offset(given, ("orders", 3))


def test_whole_numbers_of_numpy_count_as_python_s_own() -> None:
    numbers = [
        checked_place(("orders", np.int64(3)))[1],
        checked_broker(np.uint8(3)),
        checked_count(np.int32(3), "partitions", InvalidPartitionsError),
        checked_offset(np.int16(3), ("orders", 3)),
        whole_number(np.uint64(3)),
    ]
    assert numbers == [3] * 5
    assert {type(number) for number in numbers} == {int}


@pytest.mark.parametrize("given", ["clean", "", None, 1, ["unclean"]])
def test_a_word_is_one_of_those_that_there_are(given: object) -> None:
    kinds = {"preferred": 1, "unclean": 2}
    with pytest.raises(InvalidRequestError, match="no kind: give 'preferred' or 'unclean'"):
        checked_word(given, kinds, "kind")
    assert checked_word("unclean", kinds, "kind") == 2
