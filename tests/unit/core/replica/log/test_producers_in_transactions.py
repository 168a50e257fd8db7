"""Producers with transactions: which data and which markers a partition takes (T1, T2, T4, P51)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.core.errors import (
    ConcurrentTransactionsError,
    CorruptBatchError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
    TransactionsFullError,
)
from millrace.core.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.header import (
    APPEND_TIME,
    Attributes,
    BatchHeader,
    parse_header,
    producer_section,
)
from millrace.core.records.header import seal as seal_header
from millrace.core.records.markers import BUMPING, NOT_BUMPING, Marker, WrittenMarker
from millrace.core.replica.log.producer_states import ProducerStates

NOW = WallMs(1000)


def batch(
    sequence: int, *, epoch: int = 0, producer_id: int = 7, in_transaction: bool = True
) -> BatchHeader:
    section = producer_section(
        stored_length=0,
        inflated_length=0,
        record_count=10,
        attributes=Attributes.TRANSACTIONAL if in_transaction else 0,
        base_timestamp=NOW,
        max_timestamp=NOW,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(epoch),
        base_sequence=sequence,
    )
    return parse_header(seal_header(TOPIC_PARTITION, section, b""))


def marker(
    epoch: int, *, producer_id: int = 7, coordinator_epoch: int = 3, protocol: int = BUMPING
) -> Marker:
    return Marker(
        ProducerId(producer_id),
        ProducerEpoch(epoch),
        True,
        LeaderEpoch(coordinator_epoch),
        protocol,
    )


def plain(sequence: int, *, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    return batch(sequence, epoch=epoch, producer_id=producer_id, in_transaction=False)


def wrote(*written: BatchHeader | Marker, states: ProducerStates | None = None) -> ProducerStates:
    """States after these batches and markers, which got the offsets from 100 on."""
    states = ProducerStates() if states is None else states
    offset = 100
    for one in written:
        if isinstance(one, Marker):
            decided = states.check_marker(one)
            assert decided is not None
            states.end([decided], Offset(offset), NOW)
            offset += 1
        else:
            assert states.check(one) is None
            states.update(one, Offset(offset), NOW)
            offset += one.record_count
    return states


def test_a_transaction_is_open_from_its_first_batch_to_its_marker() -> None:
    states = wrote(plain(0), batch(10), batch(20))
    (open_entry,) = states.open_entries()
    assert open_entry[1].first_offset == 110
    assert states.check_marker(marker(1)) == WrittenMarker(marker(1), Offset(110), Offset(129))
    states = wrote(marker(1), states=states)
    assert states.open_entries() == []


def test_data_outside_of_an_open_transaction_is_refused() -> None:
    states = wrote(batch(0))
    for outside in (plain(10), plain(0, epoch=1)):
        with pytest.raises(InvalidTransactionStateError, match="open transaction"):
            states.check(outside)
    assert states.check(batch(10)) is None


def test_a_batch_of_a_higher_epoch_does_not_join_the_open_transaction() -> None:
    states = wrote(batch(0))
    with pytest.raises(ConcurrentTransactionsError, match="its end is on the way"):
        states.check(batch(0, epoch=1))
    assert wrote(marker(1), states=states).check(batch(0, epoch=1)) is None


def test_a_repetition_is_found_in_an_open_transaction() -> None:
    assert wrote(batch(0), batch(10)).check(batch(0)) == 100


def test_what_is_late_for_an_ended_transaction_is_fenced() -> None:
    states = wrote(batch(0), marker(1))
    for late in (batch(0), batch(10)):
        with pytest.raises(InvalidProducerEpochError):
            states.check(late)


def test_a_marker_fences_a_producer_that_has_not_written_here() -> None:
    states = wrote(marker(5))
    with pytest.raises(InvalidProducerEpochError):
        states.check(batch(0, epoch=4))
    assert states.check(batch(0, epoch=5)) is None


def test_an_epoch_that_a_marker_began_begins_with_0() -> None:
    states = wrote(batch(0), marker(1))
    with pytest.raises(OutOfOrderSequenceError, match="begins epoch 1 with sequence 10"):
        states.check(batch(10, epoch=1))


def test_a_marker_of_protocol_1_may_leave_a_forgotten_producer_its_sequences() -> None:
    states = wrote(marker(0, protocol=NOT_BUMPING))
    assert states.check(batch(10)) is None
    with pytest.raises(OutOfOrderSequenceError):
        states.check(batch(10), is_successor=True)


# --- Markers (T1) ----------------------------------------------------------------------------


def test_a_marker_that_was_written_is_done_and_not_written_again() -> None:
    states = wrote(batch(0), marker(1))
    assert states.check_marker(marker(1)) is None


def test_a_marker_of_a_higher_epoch_is_written_also_where_nothing_is_open() -> None:
    assert wrote(plain(0)).check_marker(marker(1)) == WrittenMarker(marker(1))
    assert ProducerStates().check_marker(marker(1)) == WrittenMarker(marker(1))


def test_a_marker_that_does_not_end_what_is_open_is_refused() -> None:
    states = wrote(batch(0, epoch=4))
    for late in (marker(4), marker(3), marker(3, protocol=NOT_BUMPING)):
        with pytest.raises(InvalidProducerEpochError, match="ends nothing here"):
            states.check_marker(late)


def test_a_marker_of_an_earlier_epoch_is_refused_where_nothing_is_open() -> None:
    with pytest.raises(InvalidProducerEpochError):
        wrote(batch(0, epoch=4), marker(5)).check_marker(marker(4))


def test_a_marker_of_protocol_1_has_the_epoch_of_the_transaction() -> None:
    ends = marker(0, protocol=NOT_BUMPING)
    states = wrote(batch(0))
    assert states.check_marker(ends) == WrittenMarker(ends, Offset(100), Offset(109))
    states = wrote(ends, states=states)
    assert states.check_marker(ends) is None
    assert states.check(batch(10)) is None  # The sequences go on.
    assert states.check(batch(0)) == 100


def test_a_marker_of_an_earlier_coordinator_is_fenced() -> None:
    states = wrote(batch(0), marker(1, coordinator_epoch=3), batch(0, epoch=1))
    with pytest.raises(TransactionCoordinatorFencedError):
        states.check_marker(marker(2, coordinator_epoch=2))
    assert states.check_marker(marker(2, coordinator_epoch=4)) is not None


def test_an_epoch_in_the_log_never_goes_back() -> None:
    states = wrote(batch(0, epoch=4), marker(5))
    states.end([WrittenMarker(marker(2))], Offset(200), NOW)
    entry = states.entry(ProducerId(7))
    assert entry is not None
    assert entry.epoch == 5


# --- Bounds (T4) -----------------------------------------------------------------------------


def test_a_producer_with_an_open_transaction_is_never_evicted() -> None:
    states = ProducerStates(producers_max=3)
    wrote(batch(0, producer_id=1), plain(0, producer_id=2), states=states)
    for producer_id in range(3, 9):
        wrote(plain(0, producer_id=producer_id), states=states)
    assert set(states) == {1, 7, 8}


def test_where_all_have_an_open_transaction_a_new_producer_is_refused() -> None:
    states = ProducerStates(producers_max=2)
    wrote(batch(0, producer_id=1), batch(0, producer_id=2), states=states)
    for one in (plain(0, producer_id=3), batch(0, producer_id=3)):
        with pytest.raises(TransactionsFullError):
            states.check(one)
    assert states.check(batch(10, producer_id=1)) is None
    states.end([WrittenMarker(marker(9, producer_id=4))], Offset(200), NOW)
    assert set(states) == {1, 2}
    wrote(marker(1, producer_id=1), states=states)
    assert states.check(batch(0, producer_id=3)) is None


def test_a_producer_with_an_open_transaction_does_not_expire() -> None:
    states = wrote(batch(0, producer_id=1), plain(0, producer_id=2), marker(1, producer_id=3))
    assert states.expire(WallMs(NOW + 1)) == 2
    assert set(states) == {1}


# --- Snapshots (T4) --------------------------------------------------------------------------

_WRITTEN: tuple[BatchHeader | Marker, ...] = (
    plain(0, producer_id=1),
    batch(0, producer_id=2),
    batch(10, producer_id=1),
    marker(4, producer_id=3),  # Of a producer that has never written here.
    marker(1, producer_id=2),
    batch(0, producer_id=2, epoch=1),
    batch(10, producer_id=2, epoch=1),
    marker(2, producer_id=2),
    batch(0, producer_id=5),
    marker(0, producer_id=5, protocol=NOT_BUMPING),
)


@pytest.mark.parametrize("count", range(len(_WRITTEN) + 1))
def test_a_snapshot_and_the_rest_of_the_log_give_the_same_states(count: int) -> None:
    straight = wrote(*_WRITTEN)
    restored = ProducerStates()
    offset = 100
    for number, one in enumerate(_WRITTEN):
        if number == count:
            snapshot = restored.snapshot()
            restored = ProducerStates()
            restored.restore(snapshot)
            assert restored.snapshot() == snapshot
        if isinstance(one, Marker):
            decided = restored.check_marker(one)
            assert decided is not None
            restored.end([decided], Offset(offset), NOW)
            offset += 1
        else:
            restored.update(one, Offset(offset), NOW)
            offset += one.record_count
    assert restored == straight


# --- The age of an open transaction (P54) ----------------------------------------------------


def began_at(states: ProducerStates) -> WallMs:
    (open_entry,) = states.open_entries()
    return open_entry[1].began_at


def test_the_age_of_a_transaction_counts_from_its_first_batch() -> None:
    states = wrote(plain(0), batch(10))
    states.update(batch(20), Offset(120), WallMs(5000))
    assert began_at(states) == NOW
    wrote(marker(1), states=states)
    states.update(batch(0, epoch=1), Offset(200), WallMs(7000))
    assert began_at(states) == 7000


def test_the_age_of_a_transaction_survives_in_a_snapshot() -> None:
    states = ProducerStates()
    states.restore(wrote(plain(0), batch(10)).snapshot())
    states.update(batch(20), Offset(120), WallMs(5000))
    assert began_at(states) == NOW


def test_a_batch_with_append_time_says_by_itself_when_its_transaction_began() -> None:
    stamped = replace(batch(0), append_timestamp=WallMs(400), broker_attributes=APPEND_TIME)
    states = ProducerStates()
    states.update(stamped, Offset(100), NOW)  # Read again after a crash, or copied.
    assert began_at(states) == 400


def test_the_time_of_an_event_says_nothing_about_the_age_of_a_transaction() -> None:
    states = ProducerStates()
    states.update(batch(0), Offset(100), WallMs(9000))
    assert batch(0).max_timestamp == NOW
    assert began_at(states) == 9000


def test_without_transactions_a_snapshot_is_what_earlier_releases_read() -> None:
    states = wrote(plain(0, producer_id=1), plain(0, producer_id=2))
    assert states.snapshot()[:4] == b"\x02\0\0\0"
    assert wrote(marker(1), states=states).snapshot()[:8] == b"\xff\xff\xff\xff\x02\0\0\0"


@given(st.binary(max_size=200))
def test_bytes_that_are_no_snapshot_are_refused(garbage: bytes) -> None:
    head = b"\xff\xff\xff\xff\x02\0\0\0"
    for snapshot in (garbage, head + garbage):
        try:
            ProducerStates().restore(snapshot)
        except CorruptBatchError:
            continue


def test_every_cut_of_a_snapshot_is_refused() -> None:
    snapshot = wrote(*_WRITTEN).snapshot()
    for length in range(len(snapshot)):
        with pytest.raises(CorruptBatchError):
            ProducerStates().restore(snapshot[:length])


# --- Taking back -----------------------------------------------------------------------------


def test_failed_writes_leave_no_trace_of_begins_and_ends() -> None:
    states = wrote(batch(0, producer_id=1))
    before = states.copy()
    entries = {key: states.entry(ProducerId(key)) for key in (1, 2)}
    wrote(marker(1, producer_id=1), batch(0, producer_id=2), states=states)
    for key, entry in entries.items():
        states.put(ProducerId(key), entry)
    states.end_at(Offset(100))
    assert states == before
