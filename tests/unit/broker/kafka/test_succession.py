"""Which batches of a connection come after others that are not in the log (K1)."""

import random

import pytest

from millrace.broker.kafka.records.succession import Standing, Succession
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.records.header import SEQUENCE_MAX

PLACE = TopicPartition(TopicId(bytes(16)), 0)
OTHER = TopicPartition(TopicId(bytes(16)), 1)
NEXT, SUCCESSOR, UNCERTAIN = Standing.NEXT, Standing.SUCCESSOR, Standing.UNCERTAIN


def test_a_batch_behind_one_that_is_not_answered_is_a_successor() -> None:
    one = Succession()
    assert one.begin(PLACE, 9, 0, 0) is NEXT
    assert one.begin(PLACE, 9, 0, 5) is SUCCESSOR
    one.end(PLACE, 9, 0, 0, 5)
    assert one.begin(PLACE, 9, 0, 10) is SUCCESSOR
    one.end(PLACE, 9, 0, 5, 5)
    one.end(PLACE, 9, 0, 10, 5)
    assert one.begin(PLACE, 9, 0, 15) is NEXT


def test_a_batch_behind_one_that_was_refused_is_a_successor_until_that_is_in_the_log() -> None:
    one = Succession()
    one.begin(PLACE, 9, 0, 0)
    one.begin(PLACE, 9, 0, 5)
    # Both were refused, and are sent again.
    assert one.begin(PLACE, 9, 0, 0) is NEXT
    assert one.begin(PLACE, 9, 0, 5) is SUCCESSOR
    one.end(PLACE, 9, 0, 0, 5)
    assert one.begin(PLACE, 9, 0, 5) is NEXT


def test_a_batch_that_is_refused_for_good_is_forgotten() -> None:
    one = Succession()
    assert one.begin(PLACE, 9, 0, 0) is NEXT
    one.forget(PLACE, 9, 0, 0)
    assert not one._open
    assert one.begin(PLACE, 9, 0, 5) is UNCERTAIN


def test_a_batch_whose_forerunner_came_by_another_connection_is_uncertain_once() -> None:
    """That may be under way to the old leader, unanswered. Its client repeats the oldest first."""
    one = Succession()
    assert one.begin(PLACE, 9, 0, 20) is UNCERTAIN
    assert one.begin(PLACE, 9, 0, 30) is SUCCESSOR
    assert one.begin(PLACE, 9, 0, 20) is NEXT
    one.end(PLACE, 9, 0, 20, 10)
    assert one.begin(PLACE, 9, 0, 30) is NEXT


def test_a_batch_that_leaves_a_gap_is_uncertain() -> None:
    """Its leader knows whether what is between is there: it may have come by another leader."""
    one = Succession()
    one.begin(PLACE, 9, 0, 0)
    one.end(PLACE, 9, 0, 0, 5)
    assert one.begin(PLACE, 9, 0, 20) is UNCERTAIN


def test_producers_partitions_and_epochs_do_not_follow_one_another() -> None:
    one = Succession()
    one.begin(PLACE, 9, 0, 0)
    assert one.begin(OTHER, 9, 0, 5) is UNCERTAIN
    assert one.begin(PLACE, 8, 0, 5) is UNCERTAIN
    assert one.begin(PLACE, 9, 1, 0) is NEXT, "what was refused in an earlier epoch is not repeated"
    assert one.begin(PLACE, 9, 1, 5) is SUCCESSOR
    one.end(PLACE, 9, 1, 0, 5)
    one.end(PLACE, 9, 1, 5, 5)
    assert one.begin(PLACE, 9, 2, 10) is UNCERTAIN


@pytest.mark.parametrize(("sequence", "following"), [(SEQUENCE_MAX - 4, 0), (SEQUENCE_MAX - 3, 1)])
def test_sequences_begin_again_at_0(sequence: int, following: int) -> None:
    one = Succession()
    one.begin(PLACE, 9, 0, sequence)
    assert one.begin(PLACE, 9, 0, following) is SUCCESSOR
    assert one.begin(PLACE, 9, 0, SEQUENCE_MAX - 9) is UNCERTAIN
    one.end(PLACE, 9, 0, SEQUENCE_MAX - 9, 5)
    one.end(PLACE, 9, 0, sequence, 5)
    assert one.begin(PLACE, 9, 0, following) is NEXT


def test_what_is_remembered_is_bounded_and_goes_with_the_answers() -> None:
    one = Succession()
    for producer in range(20_000):
        one.begin(PLACE, producer, 0, 0)
    for sequence in range(1000):
        assert one.begin(OTHER, 7, 0, sequence) is (SUCCESSOR if sequence else NEXT)
    assert len(one._open) <= 10_000
    assert max(len(sequences) for _, sequences in one._open.values()) <= 64
    quiet = Succession()
    numbers = list(range(50))
    for number in numbers:
        quiet.begin(PLACE, 9, 0, number)
    random.Random(7).shuffle(numbers)
    for number in numbers:
        quiet.end(PLACE, 9, 0, number, 1)
    assert not quiet._open


def test_what_is_written_is_remembered_of_the_producers_that_wrote_last() -> None:
    one = Succession()
    for producer in range(1001):
        one.begin(PLACE, producer, 0, 0)
        one.end(PLACE, producer, 0, 0, 5)
        one.begin(PLACE, 0, 0, 5 * producer)
        one.end(PLACE, 0, 0, 5 * producer, 5)
    assert len(one._written) == 1000
    assert one.begin(PLACE, 0, 0, 5005) is NEXT
    assert one.begin(PLACE, 1, 0, 5) is UNCERTAIN
