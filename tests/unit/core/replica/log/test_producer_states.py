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
from millrace.core.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.header import (
    KAFKA_FORMAT,
    SEQUENCE_MAX,
    BatchHeader,
    parse_header,
    producer_section,
)
from millrace.core.records.header import seal as seal_header
from millrace.core.records.markers import NOT_BUMPING, Marker, WrittenMarker
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


def kafka_batch(sequence: int, records: int = 10, epoch: int = 0) -> BatchHeader:
    """Like `batch`, from a client of Kafka."""
    header = batch(sequence, records, epoch)
    header.format = KAFKA_FORMAT
    return header


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


@pytest.mark.parametrize("first", [70, SEQUENCE_MAX - 4])
@pytest.mark.parametrize("count", [1, 5, 6, 12])
@pytest.mark.parametrize("is_restored", [False, True])
def test_what_a_client_of_kafka_has_not_written_is_never_a_duplicate(
    first: int, count: int, is_restored: bool
) -> None:
    """However many batches came since: it takes "duplicate" for "written" (K1)."""
    states = wrote(*(kafka_batch((first + 10 * n) & SEQUENCE_MAX) for n in range(count)))
    if is_restored:
        snapshot = states.snapshot()
        states = ProducerStates()
        states.restore(snapshot)
    for before in (first - 10, first - 5, first - 60):
        with pytest.raises(OutOfOrderSequenceError) as raised:
            states.check(kafka_batch(before))
        assert raised.value.appended is Appended.MAYBE, "it may have been forgotten"
    for number in range(count - BATCHES_KEPT):
        with pytest.raises(DuplicateSequenceError):
            states.check(kafka_batch((first + 10 * number) & SEQUENCE_MAX))


def test_what_is_between_two_batches_of_a_client_of_kafka_is_no_duplicate() -> None:
    """A leader that had forgotten the producer took the second; its follower had not."""
    states = wrote(kafka_batch(0))
    for number in range(BATCHES_KEPT + 1):
        states.update(kafka_batch(100 + 10 * number), Offset(200 + 10 * number), NOW)
    for sequence in (0, 10, 90):
        with pytest.raises(OutOfOrderSequenceError, match="began here with 100"):
            states.check(kafka_batch(sequence))
    with pytest.raises(DuplicateSequenceError):
        states.check(kafka_batch(100))


def test_an_epoch_of_a_client_of_kafka_is_counted_from_its_own_beginning() -> None:
    states = wrote(*(kafka_batch(10 * n) for n in range(8)))
    for number in range(BATCHES_KEPT):
        states.update(kafka_batch(50 + 10 * number, epoch=1), Offset(200 + 10 * number), NOW)
    with pytest.raises(OutOfOrderSequenceError, match="began here with 50"):
        states.check(kafka_batch(0, epoch=1))


def test_an_end_of_a_transaction_does_not_begin_to_count_again() -> None:
    """Sequences of Kafka's first protocol go on."""
    states = wrote(*(kafka_batch(70 + 10 * n) for n in range(6)))
    marker = Marker(ProducerId(7), ProducerEpoch(0), True, LeaderEpoch(3), NOT_BUMPING)
    states.end([WrittenMarker(marker)], Offset(160), NOW)
    with pytest.raises(DuplicateSequenceError):
        states.check(kafka_batch(70))
    with pytest.raises(OutOfOrderSequenceError, match="began here with 70"):
        states.check(kafka_batch(60))


def test_after_half_of_all_sequences_everything_behind_is_a_duplicate() -> None:
    part = (SEQUENCE_MAX + 1) // 16
    starts = [(70 + part * number) & SEQUENCE_MAX for number in range(20)]
    states = wrote(*(kafka_batch(start, part) for start in starts))
    for start in starts[-8:-BATCHES_KEPT]:
        with pytest.raises(DuplicateSequenceError):
            states.check(kafka_batch(start, part))
    snapshot = states.snapshot()
    states.restore(snapshot)
    assert states.snapshot() == snapshot


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
        header = batch(offset, records, 0, producer_id)
        if producer_id == 4:
            header.format = KAFKA_FORMAT
        states.update(header, Offset(offset), WallMs(now))
    restored = ProducerStates()
    restored.restore(states.snapshot())
    assert restored == states
    assert list(restored) == list(states), "the most silent first"
    assert all(
        len(entry.batches) <= BATCHES_KEPT
        for entry in map(restored.entry, restored)
        if entry is not None
    )


@pytest.mark.parametrize("written", [batch(0), kafka_batch(0)])
def test_a_snapshot_that_is_cut_short_is_refused(written: BatchHeader) -> None:
    snapshot = wrote(written).snapshot()
    for size in range(len(snapshot)):
        with pytest.raises(CorruptBatchError):
            ProducerStates().restore(snapshot[:size])


def test_only_with_clients_of_kafka_has_a_snapshot_what_earlier_releases_do_not_read() -> None:
    """Once there are such clients no broker of these releases comes back (K4)."""
    states = wrote(batch(70), batch(80))
    assert states.snapshot()[:4] == b"\x01\0\0\0"
    states.update(kafka_batch(0, epoch=1), Offset(120), NOW)
    assert states.snapshot()[:8] == b"\xff\xff\xff\xff\x03\0\0\0"


@pytest.mark.parametrize("count", [-2, SEQUENCE_MAX])
def test_a_snapshot_with_a_count_that_cannot_be_is_refused(count: int) -> None:
    snapshot = wrote(kafka_batch(0)).snapshot()
    ten, other = (number.to_bytes(4, "little", signed=True) for number in (10, count))
    assert snapshot.count(ten) == 1
    with pytest.raises(CorruptBatchError, match="impossible"):
        ProducerStates().restore(snapshot.replace(ten, other))


def test_a_snapshot_with_more_after_it_is_refused() -> None:
    with pytest.raises(CorruptBatchError):
        ProducerStates().restore(wrote(batch(0)).snapshot() + b"\0")
