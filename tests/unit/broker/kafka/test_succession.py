"""Which batches of a connection come after others that are not in the log (K1)."""

import random

from millrace.broker.kafka.records.succession import Succession
from millrace.core.ids import TopicId, TopicPartition
from millrace.core.records.header import SEQUENCE_MAX

PLACE = TopicPartition(TopicId(bytes(16)), 0)
OTHER = TopicPartition(TopicId(bytes(16)), 1)


def test_a_batch_behind_one_that_is_not_answered_is_a_successor() -> None:
    one = Succession()
    assert not one.begin(PLACE, 9, 0, 0)
    assert one.begin(PLACE, 9, 0, 5)
    one.end(PLACE, 9, 0, 0)
    assert one.begin(PLACE, 9, 0, 10)
    one.end(PLACE, 9, 0, 5)
    one.end(PLACE, 9, 0, 10)
    assert not one.begin(PLACE, 9, 0, 15)


def test_a_batch_behind_one_that_was_refused_is_a_successor_until_that_is_in_the_log() -> None:
    one = Succession()
    one.begin(PLACE, 9, 0, 0)
    one.begin(PLACE, 9, 0, 5)
    # Both were refused, and are sent again.
    assert not one.begin(PLACE, 9, 0, 0)
    assert one.begin(PLACE, 9, 0, 5)
    one.end(PLACE, 9, 0, 0)
    assert not one.begin(PLACE, 9, 0, 5)


def test_producers_partitions_and_epochs_do_not_follow_one_another() -> None:
    one = Succession()
    one.begin(PLACE, 9, 0, 0)
    assert not one.begin(OTHER, 9, 0, 5)
    assert not one.begin(PLACE, 8, 0, 5)
    assert not one.begin(PLACE, 9, 1, 0), "what was refused in an earlier epoch is not repeated"
    assert one.begin(PLACE, 9, 1, 5)


def test_sequences_begin_again_at_0() -> None:
    one = Succession()
    one.begin(PLACE, 9, 0, SEQUENCE_MAX - 1)
    assert one.begin(PLACE, 9, 0, 3)
    assert not one.begin(PLACE, 9, 0, SEQUENCE_MAX - 9)


def test_what_is_remembered_is_bounded_and_goes_with_the_answers() -> None:
    one = Succession()
    for producer in range(20_000):
        one.begin(PLACE, producer, 0, 0)
    for sequence in range(1000):
        assert one.begin(OTHER, 7, 0, sequence) is (sequence > 0)
    assert len(one._open) <= 10_000
    assert max(len(sequences) for _, sequences in one._open.values()) <= 64
    quiet = Succession()
    numbers = list(range(50))
    for number in numbers:
        quiet.begin(PLACE, 9, 0, number)
    random.Random(7).shuffle(numbers)
    for number in numbers:
        quiet.end(PLACE, 9, 0, number)
    assert not quiet._open
