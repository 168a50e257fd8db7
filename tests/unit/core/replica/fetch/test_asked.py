"""What a reader asks for by single requests, and the sessions in which it names only changes."""

import pytest

from millrace.core.errors import MalformedRequestError
from millrace.core.ids import LeaderEpoch, Offset, TopicId, TopicPartition
from millrace.core.replica.fetch.asked import (
    AskedPartitions,
    AskedTopic,
    ConnectionSession,
    Session,
    SessionBudget,
    SessionProblem,
    Wanted,
)

TOPIC = TopicId(b"t" * 16)


def wanted(
    partition: int, offset: int = 0, *, topic: AskedTopic = "t", last_fetched_epoch: int = -1
) -> Wanted:
    return Wanted(
        topic,
        partition,
        LeaderEpoch(4),
        Offset(offset),
        LeaderEpoch(last_fetched_epoch),
        1000,
    )


def asked_for(*partitions: int) -> AskedPartitions:
    asked = AskedPartitions(10)
    for partition in partitions:
        asked.want(wanted(partition))
    return asked


def turn(asked: AskedPartitions) -> list[int]:
    return [each.position.topic_partition.partition for each in asked.turn()]


def read_to_the_end(asked: AskedPartitions, *partitions: int) -> None:
    for each in asked.turn():
        if each.position.topic_partition.partition in partitions:
            each.position.has_advanced = False
            asked.on_nothing(each.position.handle)


def handle_of(asked: AskedPartitions, partition: int) -> int:
    (handle,) = (
        handle
        for handle, each in asked.by_handle.items()
        if each.position.topic_partition.partition == partition
    )
    return handle


# --- Partitions ------------------------------------------------------------------------------


def test_partitions_are_served_in_the_order_in_which_they_are_named() -> None:
    assert turn(asked_for(3, 1, 2)) == [3, 1, 2]


def test_who_was_served_goes_to_the_end() -> None:
    asked = asked_for(1, 2, 3)
    asked.on_served(handle_of(asked, 1))
    assert turn(asked) == [2, 3, 1]


def test_another_partition_comes_first_each_time() -> None:
    asked = asked_for(3, 1, 2)
    found = []
    for number in (0, 1, 5):
        asked.begin_with(number)
        found.append(turn(asked))
    assert found == [[3, 1, 2], [1, 2, 3], [3, 1, 2]]
    AskedPartitions(1).begin_with(7)  # There is none.


def test_who_has_read_everything_is_not_looked_at_until_there_is_more() -> None:
    asked = asked_for(1, 2)
    read_to_the_end(asked, 1)
    assert turn(asked) == [2]
    asked.on_advanced(handle_of(asked, 1))
    assert turn(asked) == [2, 1]


def test_news_that_come_after_the_look_are_not_lost() -> None:
    asked = asked_for(1)
    (each,) = asked.turn()
    each.position.has_advanced = False  # As a look at the partition leaves it.
    asked.on_advanced(each.position.handle)
    asked.on_nothing(each.position.handle)
    assert turn(asked) == [1]


def test_another_position_of_a_partition_takes_the_place_of_the_earlier_one() -> None:
    asked = asked_for(1, 2)
    read_to_the_end(asked, 1, 2)
    asked.want(wanted(1, offset=7))
    (moved,) = asked.turn()
    assert moved.position.fetch_offset == 7
    assert len(asked) == 2


def test_a_reader_that_moves_on_is_not_told_again_what_it_knows() -> None:
    asked = asked_for(1)
    (each,) = asked.turn()
    each.position.told_high_watermark = 5
    assert asked.want(wanted(1, offset=5)).position.told_high_watermark == 5
    # Where it names the epoch of its last batch, that is compared with the log again (P4).
    moved = asked.want(wanted(1, offset=5, last_fetched_epoch=3))
    assert moved.position.told_high_watermark == -1


def test_a_forgotten_partition_is_neither_looked_at_nor_woken() -> None:
    asked = asked_for(1, 2)
    handle = handle_of(asked, 1)
    assert asked.forget("t", 1) == handle
    assert asked.forget("t", 1) is None
    asked.on_advanced(handle)
    asked.on_served(handle)
    asked.on_nothing(handle)
    assert turn(asked) == [2]


def test_a_handle_is_given_once() -> None:
    asked = asked_for(1)
    first = asked.forget("t", 1)
    asked.want(wanted(1))
    assert handle_of(asked, 1) != first


def test_a_topic_that_was_made_again_is_another_one() -> None:
    (each,) = asked_for(1).turn()
    assert each.find(TOPIC) == TopicPartition(TOPIC, 1)
    again = TopicId(b"u" * 16)
    assert each.find(again) == TopicPartition(again, 1)


def test_a_topic_may_be_named_by_its_id() -> None:
    asked = AskedPartitions(10)
    each = asked.want(wanted(1, topic=TOPIC))
    assert each.position.topic_partition == TopicPartition(TOPIC, 1)


def test_a_reader_asks_for_so_many_partitions_and_no_more() -> None:
    asked = asked_for(*range(10))
    asked.want(wanted(9, offset=1))
    with pytest.raises(MalformedRequestError, match="at most 10 partitions"):
        asked.want(wanted(10))


# --- Sessions --------------------------------------------------------------------------------


def opened(connection: ConnectionSession, *partitions: int) -> Session:
    session = connection.open(asked_for(*partitions or (1,)), by_id=False)
    assert session is not None
    return session


def test_each_request_of_a_session_has_the_next_epoch() -> None:
    connection = ConnectionSession(SessionBudget(1000))
    session = opened(connection)
    for epoch in (1, 2, 3):
        assert connection.next(session.session_id, epoch, by_id=False) is session
    for epoch in (1, 3, 5):
        found = connection.next(session.session_id, epoch, by_id=False)
        assert found is SessionProblem.INVALID_EPOCH


def test_after_the_largest_epoch_comes_the_first() -> None:
    connection = ConnectionSession(SessionBudget(1000))
    session = opened(connection)
    session.epoch = 2**31 - 1
    assert connection.next(session.session_id, 2**31 - 1, by_id=False) is session
    assert connection.next(session.session_id, 1, by_id=False) is session


def test_a_session_answers_one_request_at_a_time() -> None:
    connection = ConnectionSession(SessionBudget(1000))
    session = opened(connection)
    session.is_busy = True
    assert connection.next(session.session_id, 1, by_id=False) is SessionProblem.INVALID_EPOCH


def test_a_session_names_topics_in_one_way() -> None:
    connection = ConnectionSession(SessionBudget(1000))
    session = opened(connection)
    assert connection.next(session.session_id, 1, by_id=True) is SessionProblem.TOPIC_ID_ERROR


def test_a_session_that_has_ended_is_unknown_and_so_is_that_of_another_connection() -> None:
    budget = SessionBudget(1000)
    mine, others = ConnectionSession(budget), ConnectionSession(budget)
    session = opened(mine)
    assert others.next(session.session_id, 1, by_id=False) is SessionProblem.ID_NOT_FOUND
    mine.end()
    mine.end()
    assert mine.next(session.session_id, 1, by_id=False) is SessionProblem.ID_NOT_FOUND


def test_sessions_of_all_connections_have_different_ids() -> None:
    budget = SessionBudget(10_000)
    ids = {opened(ConnectionSession(budget)).session_id for _ in range(20)}
    assert len(ids) == 20
    assert 0 not in ids


def test_all_sessions_together_have_a_bound() -> None:
    budget = SessionBudget(250)
    first, second, third = (ConnectionSession(budget) for _ in range(3))
    opened(first)
    opened(second)
    assert third.open(asked_for(1), by_id=False) is None  # Each counts as 100 at the least.
    second.end()
    assert budget.used == 100
    opened(third)


def test_a_session_that_grows_beyond_the_bound_has_no_room() -> None:
    budget = SessionBudget(150)
    connection = ConnectionSession(budget)
    session = opened(connection)
    session.asked.partitions_max = 1000
    for partition in range(151):
        session.asked.want(wanted(partition))
    assert not connection.count(session)
    session.asked.forget("t", 0)
    assert connection.count(session)
    assert budget.used == 150
    connection.end()
    assert budget.used == 0


def test_one_connection_has_one_session_and_the_last_one_counts() -> None:
    budget = SessionBudget(1000)
    connection = ConnectionSession(budget)
    first, *_, last = (opened(connection) for _ in range(8))
    assert budget.used == 100
    assert connection.next(first.session_id, 1, by_id=False) is SessionProblem.ID_NOT_FOUND
    assert connection.next(last.session_id, 1, by_id=False) is last
