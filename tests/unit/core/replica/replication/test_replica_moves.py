"""Which replicas on the wrong media of their broker move, and when."""

from millrace.core.ids import MonotonicMs, TopicId, TopicPartition
from millrace.core.media import Media, TopicMedia
from millrace.core.replica.replication.replica_moves import RETRY_MS, ReplicaMoves

BOTH = (Media.SSD, Media.HDD)
FIRST, SECOND, THIRD = (TopicPartition(TopicId(bytes(16)), number) for number in range(3))


def at(now: int) -> MonotonicMs:
    return MonotonicMs(now)


def misplaced(moves_max: int = 1) -> ReplicaMoves:
    """Return moves of three replicas on an SSD whose topic asks for an HDD."""
    moves = ReplicaMoves(moves_max)
    for each in (FIRST, SECOND, THIRD):
        moves.on_placed(each, Media.SSD, TopicMedia.HDD)
    return moves


def test_what_lies_where_its_topic_asks_for_stays() -> None:
    moves = ReplicaMoves(1)
    moves.on_placed(FIRST, Media.SSD, TopicMedia.SSD)
    moves.on_placed(SECOND, Media.HDD, TopicMedia.ANY)
    assert len(moves) == 0
    assert moves.begin(BOTH, at(0)) == []


def test_misplaced_replicas_move_one_after_the_other() -> None:
    moves = misplaced()
    assert moves.begin(BOTH, at(0)) == [FIRST]
    assert moves.begin(BOTH, at(1)) == []
    assert moves.under_way == 1
    moves.on_placed(FIRST, Media.HDD, TopicMedia.HDD)
    moves.on_ended(FIRST, at(2))
    assert moves.begin(BOTH, at(2)) == [SECOND]
    assert list(moves) == [SECOND, THIRD]


def test_as_many_move_at_a_time_as_the_setting_says() -> None:
    assert misplaced(2).begin(BOTH, at(0)) == [FIRST, SECOND]
    assert misplaced(0).begin(BOTH, at(0)) == []


def test_without_a_working_directory_of_the_media_a_replica_is_misplaced_and_stays() -> None:
    moves = misplaced()
    assert moves.begin([Media.SSD], at(0)) == []
    assert len(moves) == 3
    assert moves.begin(BOTH, at(1)) == [FIRST]


def test_a_move_that_was_refused_is_tried_again_after_a_pause_and_others_go_first() -> None:
    moves = misplaced()
    assert moves.begin(BOTH, at(0)) == [FIRST]
    moves.on_ended(FIRST, at(10), is_refused=True)
    assert moves.begin(BOTH, at(10)) == [SECOND]
    moves.on_closed(SECOND)
    moves.on_closed(THIRD)
    moves.on_ended(SECOND, at(20))
    assert moves.begin(BOTH, at(9 + RETRY_MS)) == []
    assert moves.begin(BOTH, at(10 + RETRY_MS)) == [FIRST]


def test_a_topic_that_asks_for_something_else_meanwhile_is_gone_by() -> None:
    moves = misplaced()
    assert moves.begin(BOTH, at(0)) == [FIRST]
    assert moves.is_wanted_on(FIRST, Media.HDD)
    moves.on_placed(FIRST, Media.SSD, TopicMedia.ANY)
    assert not moves.is_wanted_on(FIRST, Media.HDD)
    moves.on_placed(FIRST, Media.SSD, TopicMedia.HDD)  # It moves still.
    assert moves.begin(BOTH, at(0)) == []
    moves.on_ended(FIRST, at(1))
    assert moves.begin(BOTH, at(1)) == [SECOND]
