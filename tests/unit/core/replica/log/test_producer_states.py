"""Retries never double: what is recognised, what is let through, what is refused (P42-P45)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.core.errors import (
    Appended,
    CorruptBatchError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
)
from millrace.core.ids import Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.header import SEQUENCE_MAX, BatchHeader, parse_header, producer_section
from millrace.core.records.header import seal as seal_header
from millrace.core.replica.log.producer_snapshot import BATCHES_KEPT
from millrace.core.replica.log.producer_states import ProducerStates

NOW = WallMs(1000)


def batch(sequence: int, records: int = 10, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    section = producer_section(
        stored_length=0,
        inflated_length=0,
        record_count=records,
        attributes=0,
        base_timestamp=NOW,
        max_timestamp=NOW,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(epoch),
        base_sequence=sequence,
    )
    return parse_header(seal_header(TOPIC_PARTITION, section, b""))


def wrote(*batches: BatchHeader) -> ProducerStates:
    """States after these batches, which got the offsets from 100 on."""
    states = ProducerStates()
    offset = 100
    for header in batches:
        assert states.check(header) is None
        states.update(header, Offset(offset), NOW)
        offset += header.record_count
    return states


def test_an_unknown_producer_may_start_anywhere() -> None:
    assert ProducerStates().check(batch(12345)) is None


@pytest.mark.parametrize("first", [70, SEQUENCE_MAX - 4])
def test_what_is_before_the_start_of_an_unknown_producer_is_no_repetition(first: int) -> None:
    """Kafka's clients take "duplicate" for "appended", and have at most five batches under way."""
    starts = [(first + 10 * number) & SEQUENCE_MAX for number in range(5)]
    for count in range(1, 5):
        states = wrote(*(batch(start) for start in starts[:count]))
        for before in (first - 10, first - 60):
            with pytest.raises(OutOfOrderSequenceError, match="began here with") as raised:
                states.check(batch(before))
            assert raised.value.appended is Appended.MAYBE, "it may have been forgotten"
    states = wrote(*(batch(start) for start in starts))
    with pytest.raises(DuplicateSequenceError):
        states.check(batch(first - 10))


def test_an_unknown_producer_may_not_start_with_the_successor_of_an_open_batch() -> None:
    states = ProducerStates()
    with pytest.raises(OutOfOrderSequenceError, match="not known here"):
        states.check(batch(10), is_successor=True)
    assert states.check(batch(0)) is None
    states.update(batch(0), Offset(100), NOW)
    assert states.check(batch(10), is_successor=True) is None
    assert states.check(batch(0), is_successor=True) == 100


def test_a_batch_goes_on_where_the_last_one_ended() -> None:
    states = wrote(batch(0), batch(10, records=1))
    assert states.check(batch(11)) is None


def test_each_of_the_last_five_batches_is_recognised_and_gets_its_offset() -> None:
    states = wrote(*(batch(10 * n) for n in range(8)))
    for number in range(3, 8):
        assert states.check(batch(10 * number)) == 100 + 10 * number


def test_an_older_batch_is_refused_as_a_duplicate_that_may_be_in_the_log() -> None:
    states = wrote(*(batch(10 * n) for n in range(8)))
    with pytest.raises(DuplicateSequenceError) as raised:
        states.check(batch(20))
    assert raised.value.appended is Appended.MAYBE


def test_a_batch_of_other_bounds_is_no_repetition() -> None:
    states = wrote(batch(0), batch(10))
    with pytest.raises(DuplicateSequenceError):
        states.check(batch(10, records=9))


@pytest.mark.parametrize("kept", [0, 10])
def test_a_batch_that_is_in_the_log_in_part_is_refused_and_says_so(kept: int) -> None:
    states = wrote(*(batch(10 * n) for n in range(1 + kept)))
    end = 10 * (1 + kept)
    for overlapping in (batch(end - 1, records=2), batch(end - 10, records=11)):
        with pytest.raises(OutOfOrderSequenceError, match=f"up to {end - 1} are in the log") as it:
            states.check(overlapping)
        assert it.value.appended is Appended.MAYBE
    with pytest.raises(DuplicateSequenceError):
        states.check(batch(end - 1, records=1))


def test_an_overlap_is_found_where_sequences_wrap() -> None:
    states = wrote(batch(SEQUENCE_MAX - 9))
    with pytest.raises(OutOfOrderSequenceError, match="are in the log"):
        states.check(batch(SEQUENCE_MAX, records=2))


def test_a_gap_is_refused_and_says_what_is_missing() -> None:
    states = wrote(batch(0))
    with pytest.raises(OutOfOrderSequenceError, match="expected is 10") as raised:
        states.check(batch(11))
    assert raised.value.appended is Appended.NO


def test_sequences_wrap_to_zero() -> None:
    states = wrote(*(batch((SEQUENCE_MAX - 44 + 10 * n) & SEQUENCE_MAX) for n in range(6)))
    assert states.check(batch(15)) is None
    assert states.check(batch(SEQUENCE_MAX - 4)) == 140
    with pytest.raises(DuplicateSequenceError):
        states.check(batch(SEQUENCE_MAX - 44))
    with pytest.raises(OutOfOrderSequenceError):
        states.check(batch(16))


def test_a_new_epoch_begins_with_sequence_zero() -> None:
    states = wrote(batch(0))
    with pytest.raises(OutOfOrderSequenceError, match="begins with 0"):
        states.check(batch(10, epoch=1))
    assert states.check(batch(0, epoch=1)) is None
    states.update(batch(0, epoch=1), Offset(110), NOW)
    assert states.check(batch(0, epoch=1)) == 110
    assert states.check(batch(10, epoch=1)) is None


def test_an_older_epoch_is_fenced() -> None:
    states = wrote(batch(0, epoch=3))
    with pytest.raises(InvalidProducerEpochError):
        states.check(batch(0, epoch=2))


def test_batches_without_a_producer_leave_no_trace() -> None:
    states = ProducerStates()
    header = batch(0)
    header.producer_id = ProducerId(-1)
    states.update(header, Offset(0), NOW)
    assert len(states) == 0


def test_a_failed_write_is_undone_by_putting_the_entry_back() -> None:
    states = wrote(batch(0))
    before = states.entry(ProducerId(7))
    states.update(batch(10), Offset(110), NOW)
    states.put(ProducerId(7), before)
    assert states == wrote(batch(0))
    states.put(ProducerId(7), None)
    assert states == ProducerStates()


def test_idle_producers_are_forgotten() -> None:
    states = wrote(batch(0, producer_id=1))
    states.update(batch(0, producer_id=2), Offset(110), WallMs(2000))
    assert states.expire(WallMs(1000)) == 0
    assert states.expire(WallMs(1001)) == 1
    assert list(states) == [2]


def test_beyond_the_bound_the_most_silent_producer_is_forgotten() -> None:
    states = ProducerStates(producers_max=2)
    for producer_id in (1, 2, 1, 3):
        states.put(ProducerId(9), None)
        states.update(batch(0, producer_id=producer_id), Offset(0), NOW)
    assert list(states) == [1, 3]


def test_a_copy_goes_its_own_way() -> None:
    states = wrote(batch(0))
    twin = states.copy()
    twin.update(batch(10), Offset(110), NOW)
    assert states == wrote(batch(0))
    assert twin == wrote(batch(0), batch(10))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 9), st.integers(0, 2**40)), max_size=30)
)
def test_a_snapshot_brings_everything_back(written: list[tuple[int, int, int]]) -> None:
    states = ProducerStates()
    for offset, (producer_id, records, now) in enumerate(written):
        states.update(batch(offset, records, 0, producer_id), Offset(offset), WallMs(now))
    restored = ProducerStates()
    restored.restore(states.snapshot())
    assert restored == states
    assert list(restored) == list(states), "the most silent first"
    assert all(
        len(entry.batches) <= BATCHES_KEPT
        for entry in map(restored.entry, restored)
        if entry is not None
    )


@pytest.mark.parametrize("size", range(len(wrote(batch(0)).snapshot())))
def test_a_snapshot_that_is_cut_short_is_refused(size: int) -> None:
    with pytest.raises(CorruptBatchError):
        ProducerStates().restore(wrote(batch(0)).snapshot()[:size])


def test_a_snapshot_with_more_after_it_is_refused() -> None:
    with pytest.raises(CorruptBatchError):
        ProducerStates().restore(wrote(batch(0)).snapshot() + b"\0")
