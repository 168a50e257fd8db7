"""Connections that only take up room are closed, and no others."""

from collections import Counter
from dataclasses import replace
from typing import Any

from millrace.broker.rpc.connection_rules import ConnectionRules
from millrace.core.broker_config import LimitsConfig
from millrace.core.ids import MonotonicMs


def at(now: int) -> MonotonicMs:
    return MonotonicMs(now)


def peers(*numbers: int) -> dict[str, str]:
    return {f"socket {number}": f"peer {number}" for number in numbers}


def rules_of(**limits: Any) -> ConnectionRules:
    return ConnectionRules(replace(LimitsConfig(), **limits))


def calls(rules: ConnectionRules, number: int, now: int = 0, *, ended: int | None = None) -> None:
    """Have a peer make a call whose caller is known."""
    rules.on_call(f"peer {number}")
    rules.on_known(f"peer {number}", at(now))
    if ended is not None:
        rules.on_call_ended(f"peer {number}", at(ended))


def test_a_connection_that_never_calls_is_closed_after_its_time() -> None:
    rules = rules_of(connections_max=100, connection_silence_ms_max=10_000)
    assert rules.judge(peers(1), at(0)) == []
    assert rules.judge(peers(1, 2), at(9_999)) == []
    assert rules.judge(peers(1, 2), at(10_000)) == ["socket 1"]
    assert rules.judge(peers(2), at(19_999)) == ["socket 2"]


def test_a_connection_that_called_once_or_has_a_call_under_way_stays() -> None:
    rules = rules_of(connections_max=100, connection_silence_ms_max=10_000)
    rules.judge(peers(1, 2), at(0))
    calls(rules, 1)
    calls(rules, 2, ended=1)
    assert rules.judge(peers(1, 2), at(1_000_000)) == []


def test_a_call_before_the_connection_was_seen_counts() -> None:
    rules = rules_of(connections_max=100, connection_silence_ms_max=10_000)
    calls(rules, 1, ended=1)
    rules.judge({}, at(2))
    rules.judge(peers(1), at(1000))
    assert rules.judge(peers(1), at(50_000)) == []


def test_where_room_is_short_those_without_a_call_go_the_quietest_first() -> None:
    rules = rules_of(connections_max=10, connection_silence_ms_max=100_000)
    everybody = peers(*range(10))
    rules.judge(everybody, at(0))
    calls(rules, 0)
    for number in (1, 2):
        calls(rules, number, ended=5000 - number)
    for number in range(3, 10):
        calls(rules, number, ended=9000)
    assert rules.judge(everybody, at(20_000)) == ["socket 2"], "one of ten is to be free"


def test_a_new_connection_is_not_closed_to_make_room() -> None:
    rules = rules_of(connections_max=10, connection_silence_ms_max=100_000)
    assert rules.judge(peers(*range(10)), at(0)) == []
    assert rules.judge(peers(*range(10)), at(999)) == []
    assert len(rules.judge(peers(*range(10)), at(1000))) == 1


def test_what_is_gone_is_forgotten() -> None:
    rules = rules_of(connections_max=100, connection_silence_ms_max=10_000)
    calls(rules, 1, ended=1)
    rules.judge(peers(1), at(2))
    rules.judge({}, at(100_000))
    assert rules._known == rules._refused == rules._calls == rules._quiet_since == {}


def test_a_call_whose_caller_is_not_known_keeps_no_connection() -> None:
    rules = rules_of(connection_silence_ms_max=10_000)
    rules.judge(peers(1), at(0))
    rules.on_call("peer 1")  # It watches the broker's health, for ever.
    assert rules.judge(peers(1), at(9_999)) == []
    assert rules.judge(peers(1), at(10_000)) == ["socket 1"]


def test_a_stranger_that_is_refused_again_and_again_goes_at_once() -> None:
    rules = rules_of()
    rules.judge(peers(1, 2), at(0))
    calls(rules, 2, ended=1)
    for number in range(1, 21):
        assert rules.on_refused("peer 1") == (number == 20)
        assert not rules.on_refused("peer 2"), "it is known"
    assert rules.judge(peers(1, 2), at(2)) == ["socket 1"]


def test_a_stranger_that_sends_much_goes_and_who_is_known_stays() -> None:
    rules = rules_of(connection_unknown_bytes_max=1 << 16)
    rules.judge(peers(1, 2, 3), at(0))
    calls(rules, 2)
    assert rules.strangers(peers(1, 2, 3)) == {"socket 1", "socket 3"}
    received = {"socket 1": (1 << 16) + 1, "socket 3": 1 << 16}
    assert rules.judge(peers(1, 2, 3), at(1), received) == ["socket 1"]


def test_who_does_what_no_client_does_goes_and_nobody_else_of_its_host() -> None:
    rules = rules_of()
    there = {f"socket {number}": f"10.0.0.1 {number}" for number in range(1, 4)}
    rules.on_known("10.0.0.1 1", at(0))
    rules.on_known("10.0.0.1 2", at(0))
    rules.condemn("10.0.0.1 1", at(0))
    rules.on_known("10.0.0.1 1", at(0))  # By another call, before anybody looked.
    assert rules.judge(there, at(1)) == ["socket 1"], "neither who is known nor a stranger"
    for _ in range(5):
        rules.condemn("10.0.0.1 1", at(2))  # Its other calls.
    assert rules.judge(there | {"socket 4": "10.0.0.1 4"}, at(3)) == ["socket 1"]


def test_strangers_of_a_host_go_for_a_while_of_which_several_do_what_no_client_does() -> None:
    rules = rules_of()
    there = {"socket 1": "10.0.0.1 1", "socket 2": "10.0.0.1 2", "socket 3": "10.0.0.2 3"}
    for peer in there.values():
        rules.on_known(peer, at(0))
    for number in (1, 11, 12):
        rules.condemn(f"10.0.0.1 {number}", at(0))
    assert rules.judge(there, at(1)) == ["socket 1"], "the other one is known"
    assert rules.judge(there | {"socket 4": "10.0.0.1 4"}, at(2)) == ["socket 1", "socket 4"]
    assert rules.judge({"socket 5": "10.0.0.1 5"}, at(10_001)) == []
    rules.condemn("10.0.0.1 6", at(10_002))
    assert rules.judge({"socket 5": "10.0.0.1 5"}, at(10_003)) == [], "the others were long ago"


def test_the_youngest_connections_of_an_address_go_that_has_more_than_it_may() -> None:
    rules = rules_of(connections_per_host_max=3)
    hosts = {f"socket {number}": f"10.0.0.1 {number}" for number in range(3)}
    for peer in hosts.values():
        rules.on_known(peer, at(0))
    assert rules.judge(hosts, at(0)) == []
    more = {f"socket {number}": f"10.0.0.1 {number}" for number in range(3, 5)}
    other = {"socket 9": "10.0.0.2 9"}
    assert rules.judge(hosts | other | more, at(1)) == list(more)
    assert rules.reached == Counter(connections_per_host_max=2)


def test_new_connections_of_an_address_beyond_its_rate_go_unless_they_are_known() -> None:
    rules = rules_of(connections_per_host_rate_max=10, connections_per_host_max=1000)
    hosts = {f"socket {number}": f"10.0.0.1 {number}" for number in range(60)}
    rules.on_known("10.0.0.1 59", at(0))
    closed = rules.judge(hosts, at(0))
    assert closed == [f"socket {number}" for number in range(40, 59)], "a burst, and a debt of 3 s"
    assert rules.judge(hosts | {"socket 60": "10.0.0.2 60"}, at(1)) == [], "another address may"
    assert rules.reached["connections_per_host_rate_max"] == 19


def test_the_oldest_strangers_go_where_there_are_too_many() -> None:
    rules = rules_of(connections_unknown_max=2)
    calls(rules, 1)
    rules.judge(peers(1, 2), at(0))
    rules.judge(peers(1, 2, 3), at(1))
    assert rules.judge(peers(1, 2, 3, 4), at(2)) == ["socket 2"]
    assert rules.reached["connections_unknown_max"] == 1
