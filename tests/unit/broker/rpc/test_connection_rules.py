"""Connections that only take up room are closed, and no others."""

from millrace.broker.rpc.connection_rules import ConnectionRules
from millrace.core.ids import MonotonicMs


def at(now: int) -> MonotonicMs:
    return MonotonicMs(now)


def peers(*numbers: int) -> dict[str, str]:
    return {f"socket {number}": f"peer {number}" for number in numbers}


def test_a_connection_that_never_calls_is_closed_after_its_time() -> None:
    rules = ConnectionRules(100, 10_000)
    assert rules.judge(peers(1), at(0)) == []
    assert rules.judge(peers(1, 2), at(9_999)) == []
    assert rules.judge(peers(1, 2), at(10_000)) == ["socket 1"]
    assert rules.judge(peers(2), at(19_999)) == ["socket 2"]


def test_a_connection_that_called_once_or_has_a_call_under_way_stays() -> None:
    rules = ConnectionRules(100, 10_000)
    rules.judge(peers(1, 2), at(0))
    rules.on_call("peer 1")
    rules.on_call("peer 2")
    rules.on_call_ended("peer 2", at(1))
    assert rules.judge(peers(1, 2), at(1_000_000)) == []


def test_a_call_before_the_connection_was_seen_counts() -> None:
    rules = ConnectionRules(100, 10_000)
    rules.on_call("peer 1")
    rules.on_call_ended("peer 1", at(1))
    rules.judge({}, at(2))
    rules.judge(peers(1), at(1000))
    assert rules.judge(peers(1), at(50_000)) == []


def test_where_room_is_short_those_without_a_call_go_the_quietest_first() -> None:
    rules = ConnectionRules(10, 100_000)
    everybody = peers(*range(10))
    rules.judge(everybody, at(0))
    rules.on_call("peer 0")
    for number in (1, 2):
        rules.on_call(f"peer {number}")
        rules.on_call_ended(f"peer {number}", at(5000 - number))
    for number in range(3, 10):
        rules.on_call(f"peer {number}")
        rules.on_call_ended(f"peer {number}", at(9000))
    assert rules.judge(everybody, at(20_000)) == ["socket 2"], "one of ten is to be free"


def test_a_new_connection_is_not_closed_to_make_room() -> None:
    rules = ConnectionRules(10, 100_000)
    assert rules.judge(peers(*range(10)), at(0)) == []
    assert rules.judge(peers(*range(10)), at(999)) == []
    assert len(rules.judge(peers(*range(10)), at(1000))) == 1


def test_what_is_gone_is_forgotten() -> None:
    rules = ConnectionRules(100, 10_000)
    rules.on_call("peer 1")
    rules.on_call_ended("peer 1", at(1))
    rules.judge(peers(1), at(2))
    rules.judge({}, at(100_000))
    assert rules._called_at == rules._calls == rules._quiet_since == {}
