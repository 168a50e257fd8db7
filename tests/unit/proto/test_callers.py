"""A caller travels as it is."""

from millrace.core.callers import Caller
from millrace.proto.callers import (
    caller_from_wire,
    caller_to_wire,
    client_id_from_metadata,
    client_id_to_metadata,
)


def test_a_caller_is_the_same_after_it_was_passed_on() -> None:
    caller = Caller(
        principal="reports",
        client_id="nightly",
        address="10.0.0.1:4711",
        listener="clients",
        software="own/7",
    )
    assert caller_from_wire(caller_to_wire(caller)) == caller


def test_a_client_id_is_found_among_the_metadata_of_a_call() -> None:
    more: list[tuple[str, str | bytes]] = [("user-agent", "x"), ("trace-bin", b"\x00")]
    metadata = [*more, *client_id_to_metadata("me")]
    assert client_id_from_metadata(metadata) == "me"
    assert client_id_from_metadata(more) == ""
