from millrace.core.controller.brokers.sessions import Sessions
from millrace.core.ids import BrokerEpoch, BrokerId, MonotonicMs
from millrace.core.metadata.cluster_config import ClusterConfig
from millrace.core.metadata.model import BrokerLife

A = BrokerLife(BrokerId(0), BrokerEpoch(1))
A_AGAIN = BrokerLife(BrokerId(0), BrokerEpoch(7))
B = BrokerLife(BrokerId(1), BrokerEpoch(2))


def at(ms: int) -> MonotonicMs:
    return MonotonicMs(ms)


def sessions() -> Sessions:
    started = Sessions(ClusterConfig())
    assert started.ended(at(0)) == []
    return started


def ended_between(started: Sessions, first: int, last: int) -> list[tuple[int, BrokerLife]]:
    """Tick every 100 ms; return who ended when."""
    return [(ms, life) for ms in range(first, last + 1, 100) for life in started.ended(at(ms))]


def test_a_silent_broker_s_session_ends_after_the_time_out() -> None:
    started = sessions()
    started.on_heartbeat(A, 5, at(0))
    assert started.is_alive(A.broker_id)
    assert ended_between(started, 100, 6000) == [(4000, A)]
    assert not started.is_alive(A.broker_id)


def test_every_heartbeat_begins_the_time_out_anew() -> None:
    started = sessions()
    for ms in range(0, 20_000, 1000):
        started.on_heartbeat(A, 5, at(ms))
        assert ended_between(started, ms + 100, ms + 900) == []


def test_a_broken_connection_ends_it_after_the_grace() -> None:
    started = sessions()
    started.on_heartbeat(A, 5, at(0))
    started.on_connection_broken(A, at(1000))
    assert ended_between(started, 100, 2000) == [(1400, A)]


def test_the_same_life_that_comes_back_in_time_goes_on() -> None:
    started = sessions()
    started.on_heartbeat(A, 5, at(0))
    started.on_connection_broken(A, at(1000))
    started.on_heartbeat(A, 5, at(1300))
    assert ended_between(started, 1400, 5200) == []


def test_a_connection_of_another_life_says_nothing() -> None:
    started = sessions()
    started.on_heartbeat(A_AGAIN, 5, at(0))
    started.on_connection_broken(A, at(100))
    started.on_connection_broken(B, at(100))
    assert ended_between(started, 100, 3900) == []


def test_a_break_does_not_lengthen_a_session_that_is_nearly_over() -> None:
    started = sessions()
    started.on_heartbeat(A, 5, at(0))
    started.on_connection_broken(A, at(3900))
    assert ended_between(started, 100, 5000) == [(4000, A)]


def test_an_expected_broker_has_a_whole_session_and_proves_nothing() -> None:
    started = sessions()
    started.expect(A, at(0))
    assert not started.is_alive(A.broker_id)
    assert started.metadata_epoch(A.broker_id) == -1
    assert ended_between(started, 100, 5000) == [(4000, A)]


def test_to_expect_a_broker_that_was_heard_of_changes_nothing() -> None:
    started = sessions()
    started.on_heartbeat(A, 5, at(0))
    started.expect(A, at(3000))
    assert started.is_alive(A.broker_id)
    assert ended_between(started, 100, 5000) == [(4000, A)]


def test_after_a_pause_of_the_controller_everybody_has_time_again() -> None:
    started = sessions()
    started.on_heartbeat(A, 5, at(0))
    started.on_heartbeat(B, 5, at(0))
    assert started.ended(at(9000)) == []
    started.on_heartbeat(A, 5, at(9100))
    assert ended_between(started, 9100, 13_000) == [(13_000, B)]


def test_what_a_broker_has_seen_is_known_as_long_as_its_session() -> None:
    started = sessions()
    started.on_heartbeat(A, 5, at(0))
    started.on_heartbeat(A, 8, at(100))
    assert started.metadata_epoch(A.broker_id) == 8
    started.end(A.broker_id)
    assert started.metadata_epoch(A.broker_id) == -1
    assert ended_between(started, 100, 5000) == []


def test_one_that_is_most_likely_gone_gets_less_time_and_never_more_than_a_session() -> None:
    started = sessions()
    started.expect(A, at(0), until=at(9_000))
    started.expect(B, at(0), until=at(300))
    assert ended_between(started, 100, 5000) == [(300, B), (4000, A)]


def test_the_first_end_is_known_so_that_nobody_has_to_look_for_it() -> None:
    started = sessions()
    assert started.next_end() is None
    started.on_heartbeat(A, 5, at(0))
    started.on_heartbeat(B, 5, at(100))
    assert started.next_end() == 4000
    started.on_connection_broken(B, at(1017))
    assert started.next_end() == 1417
    assert started.ended(at(1416)) == []
    assert started.ended(at(1417)) == [B]


def test_one_that_was_silent_and_comes_back_goes_on() -> None:
    started = sessions()
    started.expect(A, at(0), until=at(500))
    started.on_heartbeat(A, 5, at(400))
    assert ended_between(started, 500, 4300) == []
