"""How many calls and connections a caller has at a time."""

from millrace.core.callers import ANONYMOUS, Caller
from millrace.core.quotas.concurrency import CallsUnderWay


def caller(principal: str, address: str) -> Caller:
    return Caller(
        principal=principal, client_id="", address=address, listener="clients", software=""
    )


def test_a_principal_has_a_bound_of_calls_and_of_connections_with_a_call() -> None:
    under_way = CallsUnderWay(calls_max=3, connections_max=2)
    first, second, third = (caller("spark", f"10.0.0.{number}:1") for number in (1, 2, 3))
    assert under_way.begin(first) == under_way.begin(second) == ""
    assert under_way.begin(third) == "principal_connections_max"
    assert under_way.begin(first) == ""
    assert under_way.begin(first) == "principal_calls_max"
    assert under_way.begin(caller("other", "10.0.0.1:1")) == ""
    under_way.end(second)
    assert under_way.begin(third) == ""


def test_who_proves_nothing_counts_by_its_address_and_what_has_ended_is_forgotten() -> None:
    under_way = CallsUnderWay(calls_max=1, connections_max=1)
    first, again, other = (
        caller(ANONYMOUS, address) for address in ("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1")
    )
    assert under_way.begin(first) == under_way.begin(other) == ""
    assert under_way.begin(again) == "principal_calls_max"
    under_way.end(first)
    under_way.end(other)
    assert not under_way._calls
    assert not under_way._connections
