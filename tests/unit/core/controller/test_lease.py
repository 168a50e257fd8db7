from dataclasses import replace

import pytest

from millrace.core.controller.lease import NOBODY, Deposed, LeaseElection, LeaseRecord, LeaseTimes
from millrace.core.ids import MonotonicMs

TIMES = LeaseTimes(duration_ms=1500, renew_deadline_ms=1000, retry_ms=250, watch_ms=50)


def at(now: int) -> MonotonicMs:
    return MonotonicMs(now)


def record(holder: str, version: int, duration_ms: int = 1500) -> LeaseRecord:
    return LeaseRecord(holder=holder, address="", duration_ms=duration_ms, version=version)


def election(name: str = "a") -> LeaseElection:
    return LeaseElection(name, "", TIMES)


def test_a_lease_that_nobody_has_is_taken_at_once() -> None:
    assert election().on_read(None, at(5)) == record("a", 1)
    assert election().on_read(record(NOBODY, 7), at(5)) == record("a", 8)


def test_one_is_the_holder_only_once_the_write_is_confirmed() -> None:
    candidate = election()
    wanted = candidate.on_read(None, at(5))
    assert wanted is not None
    assert not candidate.is_held(at(5))
    candidate.on_written(wanted, sent_at=at(5))
    assert candidate.is_held(at(5))


def test_the_holder_stops_when_it_could_not_renew() -> None:
    candidate = election()
    candidate.on_written(record("a", 1), sent_at=at(100))
    assert candidate.is_held(at(1099))
    assert not candidate.is_held(at(1100))


def test_another_waits_until_it_has_seen_no_renewal_for_the_duration() -> None:
    candidate = election()
    assert candidate.on_read(record("b", 1), at(0)) is None
    assert candidate.on_read(record("b", 2), at(1400)) is None
    assert candidate.on_read(record("b", 2), at(2899)) is None
    assert candidate.on_read(record("b", 2), at(2900)) == record("a", 3)


def test_the_holders_own_duration_counts() -> None:
    candidate = election()
    assert candidate.on_read(record("b", 1, duration_ms=6000), at(0)) is None
    assert candidate.on_read(record("b", 1, duration_ms=6000), at(5999)) is None
    assert candidate.on_read(record("b", 1, duration_ms=6000), at(6000)) is not None


def test_a_lease_that_was_deleted_is_made_anew_after_its_duration() -> None:
    candidate = election()
    assert candidate.on_read(record("b", 7), at(0)) is None
    assert candidate.on_read(None, at(1000)) is None  # Its holder may still act.
    assert candidate.on_read(None, at(2499)) is None
    assert candidate.on_read(None, at(2500)) == record("a", 1)


def test_the_holder_of_a_lease_that_was_deleted_makes_it_anew_at_once() -> None:
    candidate = election()
    candidate.on_written(record("a", 7), sent_at=at(0))
    assert candidate.on_read(None, at(100)) == record("a", 1)


def test_a_lease_made_anew_by_another_is_news_whatever_its_version() -> None:
    candidate = election()
    assert candidate.on_read(record("b", 1), at(0)) is None
    assert candidate.on_read(record("c", 1), at(1400)) is None
    assert candidate.on_read(record("c", 1), at(2899)) is None
    assert candidate.on_read(record("c", 1), at(2900)) == record("a", 2)


def test_the_old_holder_and_the_new_one_never_both_act() -> None:
    """The holder's deadline ends before anybody can have waited for the duration."""
    old, new = election("a"), election("b")
    old.on_written(record("a", 1), sent_at=at(100))
    for now in range(100, 3000, 250):
        wanted = new.on_read(record("a", 1), at(now))
        if wanted is not None:
            assert not old.is_held(at(now))
            return
    raise AssertionError("it was never taken over")


def test_a_broker_that_starts_again_takes_up_its_own_lease() -> None:
    assert election("a").on_read(record("a", 9), at(0)) == record("a", 10)


def test_a_second_process_of_the_holders_name_waits_until_the_first_is_silent() -> None:
    """It listens elsewhere, so the first may live on."""
    first, second = LeaseElection("a", "there:1", TIMES), LeaseElection("a", "here:2", TIMES)
    wanted = first.on_read(None, at(0))
    assert wanted is not None
    first.on_written(wanted, sent_at=at(0))
    for now in range(0, 3000, 250):
        assert second.on_read(wanted, at(now)) is None
        renewed = first.on_read(wanted, at(now))
        assert renewed is not None
        first.on_written(renewed, sent_at=at(now))
        wanted = renewed
        assert first.is_held(at(now))
    assert second.give_back(wanted) is None
    assert second.on_read(wanted, at(3000)) is None
    taken = second.on_read(wanted, at(4500))
    assert taken is not None
    assert taken.address == "here:2"
    assert first.on_read(taken, at(4500)) is None
    assert not first.is_held(at(4500))


def of_process(incarnation: str) -> LeaseElection:
    """A candidate under a name that any node may be given, as by Kubernetes."""
    return LeaseElection("a", "a.orders:7093", TIMES, incarnation)


def test_two_processes_of_one_name_and_address_never_both_act() -> None:
    first, second = of_process("1"), of_process("2")
    stored = first.on_read(None, at(0))
    assert stored is not None
    first.on_written(stored, sent_at=at(0))
    for now in range(100, 20_000, 250):  # The first is told to stop, and takes its time.
        assert second.on_read(stored, at(now)) is None
        renewed = first.on_read(stored, at(now + 100))
        assert renewed is not None
        first.on_written(renewed, sent_at=at(now + 100))
        stored = renewed
        assert not second.is_held(at(now + 100))
    assert second.give_back(stored) is None


def test_the_process_before_is_gone_when_it_misses_some_renewals() -> None:
    first, second = of_process("1"), of_process("2")
    stored = first.on_read(None, at(0))
    assert stored is not None
    first.on_written(stored, sent_at=at(0))
    assert second.on_read(stored, at(100)) is None
    assert second.pause_ms(at(840)) == 10
    assert second.on_read(stored, at(849)) is None
    taken = second.on_read(stored, at(850))
    assert taken is not None
    second.on_written(taken, sent_at=at(850))
    assert first.on_read(taken, at(900)) is None  # It was paused, and learns that it lost it.
    assert not first.is_held(at(900))
    assert first.give_back(taken) is None
    assert second.give_back(taken) is not None


def test_a_lease_that_says_nothing_of_processes_goes_by_name_and_address() -> None:
    """As an SQLite store keeps it, and an earlier release wrote it."""
    holder = of_process("1")
    stored = replace(record("a", 9), address="a.orders:7093")
    renewed = holder.on_read(stored, at(0))
    assert renewed == replace(stored, version=10, incarnation="1")
    holder.on_written(renewed, sent_at=at(0))
    kept = replace(renewed, incarnation="")
    assert holder.on_read(kept, at(250)) == replace(renewed, version=11)
    assert holder.is_held(at(250))
    assert LeaseElection("b", "b.orders:7093", TIMES, "2").on_read(stored, at(0)) is None


def test_a_holder_that_sees_another_stops_at_once() -> None:
    candidate = election()
    candidate.on_written(record("a", 1), sent_at=at(0))
    assert candidate.on_read(record("b", 2), at(10)) is None
    assert not candidate.is_held(at(10))


def test_whose_lease_ran_out_is_known_as_long_as_one_holds_it() -> None:
    candidate = election()
    candidate.on_read(record("b", 1), at(0))
    assert not candidate.deposed
    wanted = candidate.on_read(record("b", 1), at(1500))
    assert wanted is not None
    candidate.on_written(wanted, sent_at=at(1500))
    assert candidate.deposed == Deposed(holder="b", since=at(1500), grace_ms=200)
    renewed = candidate.on_read(wanted, at(1750))
    assert renewed is not None
    candidate.on_written(renewed, sent_at=at(1750))
    assert candidate.deposed == Deposed(holder="b", since=at(1500), grace_ms=200)


def test_who_gave_the_lease_back_is_known_to_those_that_saw_it_hold_it() -> None:
    candidate = election()
    candidate.on_read(record("b", 1), at(0))
    wanted = candidate.on_read(record(NOBODY, 2), at(100))
    assert wanted is not None
    candidate.on_written(wanted, sent_at=at(100))
    assert candidate.deposed == Deposed(holder="b", since=at(100), grace_ms=200)


def test_one_that_takes_up_its_own_lease_knows_that_its_earlier_process_is_gone() -> None:
    candidate = election()
    wanted = candidate.on_read(record("a", 7), at(50))
    assert wanted is not None
    candidate.on_written(wanted, sent_at=at(50))
    assert candidate.deposed == Deposed(holder="a", since=at(50), grace_ms=200)


def test_one_that_could_not_renew_for_a_while_is_not_gone_itself() -> None:
    candidate = election()
    candidate.on_read(None, at(0))
    candidate.on_written(record("a", 1), sent_at=at(0))
    late = candidate.on_read(record("a", 1), at(1200))
    assert late is not None
    candidate.on_written(late, sent_at=at(1200))
    assert candidate.deposed is None


def test_who_is_deposed_has_the_grace_of_a_broken_connection_and_time_for_a_session() -> None:
    deposed = Deposed(holder="b", since=at(1000), grace_ms=200)
    assert deposed.until(active_at=at(1100), grace_ms=400) == 1400
    assert deposed.until(active_at=at(1390), grace_ms=400) == 1540, "it took long to take over"
    assert deposed.until(active_at=at(1010), grace_ms=100) == 1200


def test_one_looks_again_at_the_moment_when_the_lease_runs_out() -> None:
    candidate = election()
    candidate.on_read(record("b", 1), at(100))
    assert candidate.pause_ms(at(100)) == 50
    assert candidate.pause_ms(at(1580)) == 20
    assert candidate.pause_ms(at(1600)) == 50  # It was another's turn.


def test_the_holder_renews_with_its_own_pause() -> None:
    candidate = election()
    candidate.on_written(record("a", 1), sent_at=at(0))
    assert candidate.pause_ms(at(1400)) == 250


@pytest.mark.parametrize("before", [None, record(NOBODY, 7)])
def test_nobody_is_deposed_by_who_takes_a_lease_that_nobody_had(
    before: LeaseRecord | None,
) -> None:
    candidate = election()
    wanted = candidate.on_read(before, at(0))
    assert wanted is not None
    candidate.on_written(wanted, sent_at=at(0))
    assert not candidate.deposed


def test_a_lease_that_is_given_back_is_free_for_others() -> None:
    candidate = election()
    candidate.on_written(record("a", 4), sent_at=at(0))
    given_back = candidate.give_back(record("a", 5))
    assert given_back == record(NOBODY, 6)
    assert not candidate.is_held(at(1))
    assert election("b").on_read(given_back, at(2)) == record("b", 7)


@pytest.mark.parametrize("stored", [None, record("b", 3), record(NOBODY, 3)])
def test_only_the_holder_gives_the_lease_back(stored: LeaseRecord | None) -> None:
    assert election("a").give_back(stored) is None
