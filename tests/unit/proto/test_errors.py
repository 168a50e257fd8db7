"""Errors as they travel."""

from millrace.core.errors import InvalidTopicError
from millrace.proto.errors import error_from_wire, error_to_wire


def test_an_error_travels_as_it_was_said() -> None:
    found = error_from_wire(error_to_wire(InvalidTopicError("said: \N{SNOWMAN}")))
    assert isinstance(found, InvalidTopicError)
    assert found.message == "said: \N{SNOWMAN}"


def test_the_text_of_an_error_that_travels_is_bounded() -> None:
    wire = error_to_wire(InvalidTopicError("x" * 1_000_000))
    assert len(wire.message) < 3000
