from collections.abc import Iterator

import pytest

from millrace.core import errors
from millrace.core.errors import (
    ERRORS_BY_CODE,
    AbortedError,
    AccessDeniedError,
    Appended,
    ClientError,
    FencedError,
    InvalidRequestError,
    LogTruncatedError,
    MillraceError,
    NotLeaderError,
    RetriableError,
    StorageError,
    UnknownServerError,
    error_for_code,
)
from millrace.core.ids import TopicId, TopicPartition
from millrace.proto.v1 import common_pb2

BRANCHES = (
    RetriableError,
    FencedError,
    AbortedError,
    InvalidRequestError,
    StorageError,
    ClientError,
    AccessDeniedError,
)


def leaves() -> Iterator[type[MillraceError]]:
    for thing in vars(errors).values():
        if isinstance(thing, type) and issubclass(thing, MillraceError) and thing.code:
            yield thing


def test_every_code_has_one_class_and_every_class_one_code() -> None:
    found = list(leaves())
    assert {leaf.code: leaf for leaf in found} == ERRORS_BY_CODE
    assert len(found) == len(ERRORS_BY_CODE)
    for leaf in found:
        assert error_for_code(leaf.code) is leaf


def test_the_wire_has_the_code_of_every_error_but_the_clients_own_and_no_other() -> None:
    on_the_wire = {
        name.removeprefix("ERROR_CODE_"): number
        for name, number in common_pb2.ErrorCode.items()
        if number
    }
    ours = {leaf.name(): leaf.code for leaf in leaves() if not issubclass(leaf, ClientError)}
    assert ours == on_the_wire
    assert all(leaf.code > 1000 for leaf in leaves() if issubclass(leaf, ClientError))


def test_no_error_is_zero_on_the_wire() -> None:
    assert common_pb2.ERROR_CODE_UNSPECIFIED == 0
    assert 0 not in ERRORS_BY_CODE


def test_whether_it_was_appended_has_the_same_numbers_on_the_wire() -> None:
    on_the_wire = {
        name.removeprefix("APPENDED_"): number for name, number in common_pb2.Appended.items()
    }
    assert on_the_wire == {"UNSPECIFIED": 0} | {
        appended.name: appended.value for appended in Appended
    }


def test_every_error_hangs_from_a_branch_that_says_what_to_do() -> None:
    for leaf in leaves():
        assert leaf is UnknownServerError or issubclass(leaf, BRANCHES), leaf
        assert leaf.__doc__, leaf


def test_a_code_of_a_later_release_is_an_unknown_server_error() -> None:
    assert error_for_code(777) is UnknownServerError
    assert UnknownServerError("?").appended is Appended.MAYBE


def test_the_place_of_failure_may_know_better_whether_it_was_appended() -> None:
    assert NotLeaderError("moved").appended is Appended.MAYBE
    assert NotLeaderError("moved", appended=Appended.NO).appended is Appended.NO
    assert NotLeaderError("moved").appended is Appended.MAYBE


@pytest.mark.parametrize(("name", "code"), [("NotLeader", 8), ("CorruptBatch", 2)])
def test_codes_are_for_ever(name: str, code: int) -> None:
    assert ERRORS_BY_CODE[code].__name__ == f"{name}Error"


def test_an_error_for_another_request_is_the_same_but_for_what_became_of_that() -> None:
    place = TopicPartition(TopicId(b"t" * 16), 1)
    error = LogTruncatedError("gone", topic="orders", position=7, end_offset=5)
    error.told = 1
    again = error.again(Appended.MAYBE)
    assert (again.message, again.topic, again.position, again.told) == ("gone", "orders", 7, 0)
    assert (again.appended, error.appended) == (Appended.MAYBE, Appended.NO)
    moved = NotLeaderError("moved", topic_partition=place).again(Appended.NO)
    assert (moved.message, moved.topic_partition) == (f"{place}: moved", place)
