"""Millrace's errors as Kafka's clients know them."""

from kafka.errors import for_code

from millrace.broker.kafka.wire.errors import CODES, Code, code_of, code_of_wire
from millrace.core import errors
from millrace.core.errors import (
    ERRORS_BY_CODE,
    ClientError,
    MillraceError,
    ReassignmentReason,
    ReassignmentRefusedError,
    RefreshMetadataError,
    RetriableError,
)
from millrace.core.replica.fetch.asked import SessionProblem
from millrace.proto.errors import error_to_wire
from millrace.proto.v1.common_pb2 import Error


def test_every_error_that_a_broker_raises_has_a_number_of_kafkas() -> None:
    raised = {kind for kind in ERRORS_BY_CODE.values() if not issubclass(kind, ClientError)}
    assert set(CODES) == raised


def test_the_numbers_are_kafkas() -> None:
    for code in Code:
        assert for_code(code).message == _OTHER_NAMES.get(code, code.name)


_OTHER_NAMES = {
    Code.UNKNOWN_SERVER_ERROR: "UNKNOWN",
    Code.NOT_LEADER_OR_FOLLOWER: "NOT_LEADER_FOR_PARTITION",
    Code.MESSAGE_TOO_LARGE: "MESSAGE_SIZE_TOO_LARGE",
    Code.INVALID_TOPIC_EXCEPTION: "INVALID_TOPIC",
    Code.INVALID_REPLICA_ASSIGNMENT: "INVALID_REPLICATION_ASSIGNMENT",
}
"""What kafka-python calls them."""


def test_what_is_wrong_with_a_fetch_session_has_a_number() -> None:
    assert {problem.value for problem in SessionProblem} <= set(Code.__members__)


def test_an_error_on_the_wire_has_the_number_of_the_error() -> None:
    assert code_of_wire(Error()) == 0
    for kind, code in CODES.items():
        if kind is not ReassignmentRefusedError:
            assert code_of_wire(error_to_wire(kind("why"))) == code
    ended = ReassignmentRefusedError("why", reason=ReassignmentReason.NOT_IN_PROGRESS)
    assert code_of_wire(error_to_wire(ended)) == Code.NO_REASSIGNMENT_IN_PROGRESS


def test_what_may_be_tried_again_has_a_number_that_clients_try_again() -> None:
    for kind, code in CODES.items():
        if issubclass(kind, RetriableError) and kind not in _NOT_FOR_CLIENTS:
            assert for_code(code).retriable, kind
        if issubclass(kind, RefreshMetadataError) and code not in _NOT_OF_A_PARTITION:
            assert for_code(code).invalid_metadata, kind


_NOT_FOR_CLIENTS: set[type[MillraceError]] = {
    errors.IneligibleReplicaError,
    errors.DuplicateBrokerRegistrationError,
    errors.ReassignmentRefusedError,
    errors.UnreleasedInstanceIdError,
}
"""Brokers try again, and those who administer them; a member with an instance id is told so."""
_NOT_OF_A_PARTITION = {Code.NOT_CONTROLLER, Code.REQUEST_TIMED_OUT}


def test_an_error_of_a_later_release_is_a_failure_of_the_broker() -> None:
    assert code_of_wire(Error(code=54321)) == Code.UNKNOWN_SERVER_ERROR  # type: ignore[arg-type]
    assert code_of(MillraceError("why")) == Code.UNKNOWN_SERVER_ERROR
