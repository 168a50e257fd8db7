"""Errors as they travel."""

import pytest

from millrace.core.errors import InvalidTopicError, ReassignmentReason, ReassignmentRefusedError
from millrace.proto.errors import error_from_wire, error_to_wire


def test_an_error_travels_as_it_was_said() -> None:
    found = error_from_wire(error_to_wire(InvalidTopicError("said: \N{SNOWMAN}")))
    assert isinstance(found, InvalidTopicError)
    assert found.message == "said: \N{SNOWMAN}"


def test_the_text_of_an_error_that_travels_is_bounded() -> None:
    wire = error_to_wire(InvalidTopicError("x" * 1_000_000))
    assert len(wire.message) < 3000


@pytest.mark.parametrize("reason", [*ReassignmentReason, None])
def test_the_reason_of_a_refused_reassignment_arrives(reason: ReassignmentReason | None) -> None:
    found = error_from_wire(error_to_wire(ReassignmentRefusedError("no", reason=reason)))
    assert isinstance(found, ReassignmentRefusedError)
    assert found.reason is reason


def test_a_reason_of_a_later_release_is_none() -> None:
    wire = error_to_wire(ReassignmentRefusedError("no"))
    wire.reassignment = 99  # type: ignore[assignment]
    found = error_from_wire(wire)
    assert isinstance(found, ReassignmentRefusedError)
    assert found.reason is None
