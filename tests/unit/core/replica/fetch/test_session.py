"""A fetch session: positions, credit, fairness, and waiting for enough bytes."""

from dataclasses import replace

import pytest

from millrace.core.errors import CreditTooSmallError, MalformedRequestError
from millrace.core.ids import LeaderEpoch, MonotonicMs, Offset, TopicId, TopicPartition
from millrace.core.replica.fetch.session import (
    ABORTED_IN_RESPONSE,
    PARTITIONS_IN_RESPONSE,
    FetchPosition,
    FetchSession,
    SessionLimits,
    SessionSettings,
)

NOW = MonotonicMs(1000)
EPOCH = LeaderEpoch(0)


def session(**settings: int) -> FetchSession:
    made = FetchSession(
        SessionLimits(partitions_max=3, response_bytes_max=100, max_wait_ms_max=1000)
    )
    made.configure(SessionSettings(**settings))  # type: ignore[arg-type]
    return made


def position(handle: int, offset: int = 0) -> FetchPosition:
    return FetchPosition(
        handle, TopicPartition(TopicId(b"t" * 16), handle), Offset(offset), EPOCH, EPOCH, 0
    )


def test_without_credit_nothing_is_sent() -> None:
    follower = session()
    follower.add(position(1), NOW)
    assert not follower.can_send
    follower.grant(10)
    assert follower.can_send


def test_sending_moves_the_position_and_is_paid_from_the_credit() -> None:
    follower = session()
    follower.grant(10)
    follower.add(position(1, offset=5), NOW)
    (turn,) = follower.next_turn()
    follower.on_sent(turn, 7, Offset(9), LeaderEpoch(2))
    assert follower.credit == 3
    assert (turn.fetch_offset, turn.last_fetched_epoch) == (9, 2)
    with pytest.raises(AssertionError):
        follower.on_sent(turn, 4, Offset(10), EPOCH)


def test_a_position_is_at_its_end_when_everything_before_it_was_sent() -> None:
    follower = session()
    follower.grant(100)
    endless, ending = position(1), replace(position(2), end_offset=Offset(5))
    for each, sent in ((endless, 5), (ending, 4)):
        follower.add(each, NOW)
        follower.on_sent(each, 1, Offset(sent), EPOCH)
        assert not each.is_at_end
    follower.on_sent(ending, 1, Offset(6), EPOCH)
    assert ending.is_at_end


def test_a_partition_that_was_served_goes_after_those_that_wait() -> None:
    follower = session()
    follower.grant(100)
    for handle in (1, 2, 3):
        follower.add(position(handle), NOW)
    first = follower.next_turn()[0]
    follower.on_sent(first, 1, Offset(1), EPOCH)
    assert [turn.handle for turn in follower.next_turn()] == [2, 3, 1]


def test_a_partition_without_news_comes_back_when_it_advances() -> None:
    follower = session()
    follower.grant(1)
    follower.add(position(1), NOW)
    follower.on_nothing(follower.next_turn())
    assert not follower.can_send
    follower.on_advanced(1, NOW)
    follower.on_advanced(1, NOW)
    assert [turn.handle for turn in follower.next_turn()] == [1]


def test_what_was_left_is_not_offered_again() -> None:
    follower = session()
    follower.grant(1)
    follower.add(position(1), NOW)
    assert follower.remove(1) is not None
    assert follower.remove(1) is None
    assert follower.next_turn() == []


def test_news_of_a_partition_that_was_left_is_ignored() -> None:
    follower = session()
    follower.grant(1)
    follower.on_advanced(9, NOW)
    assert not follower.can_send
    assert follower.next_turn() == []


def test_more_partitions_than_the_bound_are_refused() -> None:
    follower = session()
    for handle in (1, 2, 3):
        follower.add(position(handle), NOW)
    with pytest.raises(MalformedRequestError, match="at most 3"):
        follower.add(position(4), NOW)
    follower.add(position(3, offset=8), NOW)
    assert follower.positions[3].fetch_offset == 8


def test_a_partition_has_one_handle() -> None:
    follower = session()
    place = position(1).topic_partition
    follower.add(position(1), NOW)
    with pytest.raises(MalformedRequestError, match="under handle 1"):
        follower.add(replace(position(2), topic_partition=place), NOW)
    assert list(follower.positions) == [1]
    follower.remove(1)
    follower.add(replace(position(2), topic_partition=place), NOW)
    follower.add(position(2), NOW)  # The handle is another partition's now.
    follower.add(position(1), NOW)
    assert list(follower.positions) == [2, 1]


def test_few_bytes_wait_for_more_until_the_time_is_up() -> None:
    follower = session(min_bytes=50, max_wait_ms=300)
    follower.grant(100)
    follower.add(position(1), NOW)
    assert follower.must_wait(10, NOW) == 300
    assert follower.must_wait(10, MonotonicMs(NOW + 200)) == 100
    assert follower.must_wait(10, MonotonicMs(NOW + 300)) == 0
    assert follower.must_wait(50, NOW) == 0


def test_waiting_begins_anew_after_a_response() -> None:
    follower = session(min_bytes=50, max_wait_ms=300)
    follower.grant(100)
    follower.add(position(1), NOW)
    later = MonotonicMs(NOW + 300)
    follower.on_nothing(follower.next_turn())
    follower.on_responded(later)
    follower.on_advanced(1, MonotonicMs(later + 100))
    assert follower.must_wait(1, MonotonicMs(later + 100)) == 300


def sent_at(follower: FetchSession, *times: int) -> None:
    """Send a batch at each of these times, after `NOW`."""
    for number, time in enumerate(times):
        now = MonotonicMs(NOW + time)
        follower.on_advanced(1, now)
        follower.on_sent(follower.positions[1], 1, Offset(number), EPOCH)
        follower.on_nothing([follower.positions[1]])
        follower.on_responded(now)


def moved_alone(follower: FetchSession, time: int) -> int:
    """Return how long what moved at this time without a batch must wait."""
    now = MonotonicMs(NOW + time)
    follower.on_advanced(1, now)
    return follower.must_wait(0, now)


def test_what_moves_alone_waits_for_the_next_of_batches_that_follow_closely() -> None:
    follower = session(max_wait_ms=5)
    follower.grant(100)
    follower.add(position(1), NOW)
    sent_at(follower, 0, 20)
    assert moved_alone(follower, 23) == 47
    assert follower.must_wait(1, MonotonicMs(NOW + 40)) == 0  # Here it is.
    sent_at(follower, 40)
    assert moved_alone(follower, 43) == 47
    assert follower.must_wait(0, MonotonicMs(NOW + 90)) == 0  # None came.


@pytest.mark.parametrize("times", [(0,), (0, 51), (0, 20, 80)])
def test_what_moves_alone_waits_as_ever_where_batches_are_rare(times: tuple[int, ...]) -> None:
    follower = session(max_wait_ms=5)
    follower.grant(100)
    follower.add(position(1), NOW)
    sent_at(follower, *times)
    assert moved_alone(follower, times[-1] + 2) == 5


def test_a_wait_beyond_the_brokers_bound_is_cut_to_it() -> None:
    assert session(max_wait_ms=99_999).settings.max_wait_ms == 1000


def test_a_response_is_the_smaller_of_what_both_sides_want() -> None:
    assert session(response_bytes_max=0).response_bytes_max == 100
    assert session(response_bytes_max=60).response_bytes_max == 60
    assert session(response_bytes_max=600).response_bytes_max == 100


# --- What a response holds ---------------------------------------------------------------------


def test_a_response_names_so_many_aborted_transactions_unless_one_partition_has_more() -> None:
    reader = session()
    reader.grant(1000)
    response = reader.room()
    assert response.take(1, aborted=ABORTED_IN_RESPONSE + 1)
    assert not response.take(1, aborted=1)
    assert response.take(1)
    response = reader.room()
    assert response.take(1, aborted=ABORTED_IN_RESPONSE - 1)
    assert not response.take(1, aborted=2)
    assert response.take(1, aborted=1)


@pytest.mark.parametrize(("credit", "room"), [(1000, 100), (60, 60)])
def test_a_response_holds_what_its_bound_and_the_credit_allow(credit: int, room: int) -> None:
    reader = session()
    reader.grant(credit)
    response = reader.room()
    assert response.max_bytes(position(1)) == room
    assert response.max_bytes(replace(position(1), max_bytes=40)) == 40
    assert response.take(20)
    assert response.max_bytes(position(1)) == room - 20
    assert not response.take(room)
    assert not response.is_full
    assert response.take(room - 20)
    assert response.is_full


def test_a_first_batch_that_is_too_large_is_sent_alone_where_the_credit_suffices() -> None:
    reader = session()
    reader.grant(120)
    assert not reader.room().take(121)
    response = reader.room()
    assert response.take(120)
    assert response.is_full
    response = reader.room()
    assert response.take(0)
    assert not response.take(120), "it is not the first"


def test_credit_that_comes_while_the_disk_is_read_counts() -> None:
    reader = session()
    reader.grant(1)
    response = reader.room()
    reader.grant(150)
    assert response.take(150)


def test_a_response_tells_of_so_many_partitions() -> None:
    reader = session()
    reader.grant(100)
    response = reader.room()
    for _ in range(PARTITIONS_IN_RESPONSE):
        assert not response.is_full
        assert response.take(0)
    assert response.is_full


def test_a_batch_that_is_larger_than_the_window_is_refused() -> None:
    reader = session(window_bytes=100)
    reader.check_window(position(0, 5), 100)
    with pytest.raises(CreditTooSmallError, match="the batch at offset 5 is 101 bytes") as refused:
        reader.check_window(position(0, 5), 101)
    assert refused.value.topic_partition == position(0).topic_partition
    session().check_window(position(0, 5), 10**9)  # It did not say how large it is.
