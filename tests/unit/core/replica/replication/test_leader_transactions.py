"""Transactions at a partition's leader: joining, markers, the last stable offset."""

from dataclasses import replace

import pytest
from tests.fakes.batch import PARTITION, WALL, header_of
from tests.fakes.completed import completed
from tests.fakes.replica_log import FakeReplicaLog

from millrace.core.errors import (
    Appended,
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    MillraceError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    StorageFullError,
    TransactionalIdNotFoundError,
    TransactionCoordinatorFencedError,
)
from millrace.core.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionEpoch,
    ProducerEpoch,
    ProducerId,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.records.header import PRODUCER_EPOCH_MAX, Attributes, BatchHeader
from millrace.core.records.markers import BUMPING, NOT_BUMPING, Marker, WrittenMarker
from millrace.core.replica.log.open_transactions import Undecided
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.leader import PartitionLeader
from millrace.core.replica.replication.rules import AppendRules

ALONE = PartitionState(
    replicas=(BrokerId(0),),
    leader=BrokerId(0),
    leader_epoch=LeaderEpoch(5),
    partition_epoch=PartitionEpoch(0),
    isr=(BrokerLife(BrokerId(0), BrokerEpoch(1)),),
)
NOW = MonotonicMs(0)


def leader(
    log: FakeReplicaLog | None = None, *, state: PartitionState = ALONE, insync_min: int = 1
) -> PartitionLeader:
    log = FakeReplicaLog() if log is None else log
    return PartitionLeader(
        PARTITION,
        ALONE.isr[0],
        state,
        log,
        AppendRules(min_insync_replicas=insync_min),
        high_watermark=log.log_end_offset,
        now=NOW,
    )


def batch(sequence: int = 0, *, epoch: int = 0, producer_id: int = 7) -> BatchHeader:
    """A transactional batch of 10 records."""
    return replace(
        header_of(10, producer_id=producer_id, sequence=sequence),
        attributes=header_of(10).attributes | Attributes.TRANSACTIONAL,
        producer_epoch=ProducerEpoch(epoch),
    )


def marker(
    epoch: int = 1, *, producer_id: int = 7, coordinator_epoch: int = 3, protocol: int = BUMPING
) -> Marker:
    return Marker(
        ProducerId(producer_id),
        ProducerEpoch(epoch),
        True,
        LeaderEpoch(coordinator_epoch),
        protocol,
    )


def join(machine: PartitionLeader, header: BatchHeader) -> Waiter:
    """Append the first batch of a transaction, as the coordinator has agreed."""
    guard = machine.begin_joining(header)
    assert guard is not None
    return machine.append(header, Acks.ALL, "data", WALL, joined=guard)


def written(machine: PartitionLeader) -> list[Waiter]:
    """The disk has everything."""
    end = machine.next_offset
    return completed(machine.on_written(end, NOW) + machine.on_flushed(end))


# --- Joining (P49) ---------------------------------------------------------------------------


def test_a_transaction_that_was_not_joined_is_refused() -> None:
    machine = leader()
    with pytest.raises(InvalidTransactionStateError, match="not in a transaction"):
        machine.append(batch(), Acks.ALL, "a", WALL)
    assert machine.next_offset == 0


def test_only_the_first_batch_must_join() -> None:
    machine = leader()
    assert join(machine, batch()).base_offset == 0
    assert machine.begin_joining(batch(10)) is None
    assert machine.append(batch(10), Acks.ALL, "b", WALL).base_offset == 10


def test_a_repetition_need_not_join() -> None:
    machine = leader()
    join(machine, batch())
    machine.append_markers([marker(0, protocol=NOT_BUMPING)], "m", WALL)
    assert machine.begin_joining(batch()) is None
    assert machine.append(batch(), Acks.ALL, "b", WALL).is_duplicate
    assert machine.begin_joining(batch(10)) is not None


def test_a_transaction_of_a_producer_that_is_not_known_begins_with_0() -> None:
    """P43: else its first records are lost here, and it must not be committed without them."""
    machine = leader()
    with pytest.raises(OutOfOrderSequenceError, match="begins with sequence 10"):
        join(machine, batch(10))
    assert machine.next_offset == 0
    assert join(machine, batch()).base_offset == 0


def test_without_bumps_a_transaction_of_a_producer_that_is_not_known_begins_anywhere() -> None:
    """T14: its sequences go on from its last transaction, which may be forgotten (P43, KIP-360)."""
    machine = leader()
    first = batch(70)
    guard = machine.begin_joining(first, NOT_BUMPING)
    with pytest.raises(OutOfOrderSequenceError):  # Those before it are under way.
        machine.append(first, Acks.ALL, "a", WALL, joined=guard, is_successor=True)
    assert machine.append(first, Acks.ALL, "a", WALL, joined=guard).base_offset == 0
    for sequence in (60, 0, 90):  # Nothing before it comes later, and no gap follows.
        with pytest.raises(OutOfOrderSequenceError):
            machine.append(batch(sequence), Acks.ALL, "a", WALL)
    assert machine.append(batch(80), Acks.ALL, "a", WALL).base_offset == 10
    machine.append_markers([marker(0, protocol=NOT_BUMPING)], "m", WALL)
    # The coordinator's yes counts for one transaction, wherever it begins.
    with pytest.raises(InvalidTransactionStateError):
        machine.append(batch(90), Acks.ALL, "a", WALL, joined=guard)


@pytest.mark.parametrize("is_known", [True, False])
def test_a_guard_is_void_after_a_marker_that_has_nothing_to_end(is_known: bool) -> None:
    """T14: without bumps nothing but the guard tells a late batch from one of the next one."""
    machine = leader()
    if is_known:
        join(machine, batch())
        machine.append_markers([marker(0, protocol=NOT_BUMPING)], "m", WALL)
    late = batch(10 if is_known else 0)
    guard = machine.begin_joining(late, NOT_BUMPING)
    # Its transaction is over, and has no records here.
    machine.append_markers([marker(0, protocol=NOT_BUMPING)], "m", WALL)
    with pytest.raises(InvalidTransactionStateError):
        machine.append(late, Acks.ALL, "b", WALL, joined=guard)


def test_a_marker_that_comes_again_leaves_the_guard_of_the_next_transaction() -> None:
    machine = leader()
    join(machine, batch())
    machine.append_markers([marker()], "m", WALL)
    guard = machine.begin_joining(batch(epoch=1))
    machine.append_markers([marker()], "m", WALL)
    machine.append(batch(epoch=1), Acks.ALL, "b", WALL, joined=guard)


def test_a_guard_is_void_after_an_append_and_an_end_of_the_producer() -> None:
    machine = leader()
    first = machine.begin_joining(batch())
    assert machine.begin_joining(batch()) is first
    machine.append(batch(), Acks.ALL, "a", WALL, joined=first)
    machine.append_markers([marker(0, protocol=NOT_BUMPING)], "m", WALL)
    # The state is as it was, but the coordinator's yes was for the transaction that is over.
    with pytest.raises(InvalidTransactionStateError):
        machine.append(batch(10), Acks.ALL, "b", WALL, joined=first)


def test_a_guard_is_void_after_other_data_of_the_producer() -> None:
    machine = leader()
    guard = machine.begin_joining(batch(10))
    machine.append(header_of(10, producer_id=7, sequence=0), Acks.ALL, "a", WALL)
    with pytest.raises(InvalidTransactionStateError):
        machine.append(batch(10), Acks.ALL, "b", WALL, joined=guard)


def test_a_guard_serves_its_producer_and_epoch_alone() -> None:
    machine = leader()
    guard = machine.begin_joining(batch())
    for other in (batch(epoch=1), batch(producer_id=8)):
        with pytest.raises(InvalidTransactionStateError):
            machine.append(other, Acks.ALL, "a", WALL, joined=guard)


def test_a_guard_of_another_reign_is_void() -> None:
    guard = leader().begin_joining(batch())
    with pytest.raises(InvalidTransactionStateError):
        leader().append(batch(), Acks.ALL, "a", WALL, joined=guard)


def test_a_guard_that_was_given_up_leaves_nothing_behind() -> None:
    machine = leader()
    for producer_id in range(3):
        machine.begin_joining(batch(producer_id=producer_id))
    held = machine.begin_joining(batch(producer_id=9))
    assert held is not None
    assert len(machine._joining) == 1


def test_the_epoch_is_checked_before_the_guard() -> None:
    machine = leader()
    machine.append_markers([marker(4)], "m", WALL)
    with pytest.raises(InvalidProducerEpochError):
        machine.begin_joining(batch(epoch=3))
    with pytest.raises(InvalidProducerEpochError):
        machine.append(batch(epoch=3), Acks.ALL, "a", WALL)


def test_a_batch_of_a_higher_epoch_waits_for_the_marker_of_the_open_transaction() -> None:
    machine = leader()
    join(machine, batch())
    guard = machine.begin_joining(batch(epoch=1))
    for joined in (guard, None):  # The coordinator may agree where the earlier one hangs.
        with pytest.raises(ConcurrentTransactionsError):
            machine.append(batch(epoch=1), Acks.ALL, "b", WALL, joined=joined)
    machine.append_markers([marker(1)], "m", WALL)
    assert machine.append(batch(epoch=1), Acks.ALL, "b", WALL, joined=guard).base_offset == 11


@pytest.mark.parametrize("is_known", [True, False])
def test_a_guard_outlives_the_marker_of_the_transaction_before(is_known: bool) -> None:
    """Else a producer that goes on at once asks its coordinator twice in each transaction."""
    machine = leader()
    if is_known:
        join(machine, batch())
    guard = machine.begin_joining(batch(epoch=1))
    assert guard is not None
    machine.append_markers([marker(1)], "m", WALL)
    assert machine.is_valid(guard)
    machine.append(batch(epoch=1), Acks.ALL, "b", WALL, joined=guard)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_guard_is_void_after_the_marker_of_its_own_transaction(is_open: bool) -> None:
    """It has no records here; the coordinator's yes was for a transaction that is over."""
    machine = leader()
    if is_open:
        join(machine, batch())
    guard = machine.begin_joining(batch(epoch=1))
    machine.append_markers([marker(1), marker(2)], "m", WALL)
    assert guard is not None
    assert not machine.is_valid(guard)


@pytest.mark.parametrize(
    ("of_guard", "of_marker"), [(BUMPING, NOT_BUMPING), (NOT_BUMPING, BUMPING)]
)
def test_epochs_tell_transactions_apart_only_if_each_has_its_own(
    of_guard: int, of_marker: int
) -> None:
    machine = leader()
    guard = machine.begin_joining(batch(epoch=1), of_guard)
    assert guard is not None
    machine.append_markers([marker(1, protocol=of_marker)], "m", WALL)
    assert not machine.is_valid(guard)


# --- Transactions that another leader began (T8, T14) ----------------------------------------


def next_leader(opened: BatchHeader) -> PartitionLeader:
    """Return the leader after one that has opened a transaction with this batch."""
    before = leader()
    join(before, opened)
    written(before)
    log = FakeReplicaLog(producer_states=before.producers)
    log.end_at(before.next_offset, 4)
    return leader(log)


def test_a_leader_asks_once_whether_a_transaction_that_another_one_began_is_the_open_one() -> None:
    """T8: where a topic is brought back, the marker of this transaction may still be owed. Without
    bumps a batch of the next one, which has not taken the partition in, looks like its own."""
    machine = next_leader(batch())
    guard = machine.begin_joining(batch(10), NOT_BUMPING)
    assert guard is not None
    assert machine.append(batch(10), Acks.ALL, "a", WALL, joined=guard).base_offset == 10
    assert machine.begin_joining(batch(20), NOT_BUMPING) is None
    assert machine.append(batch(20), Acks.ALL, "b", WALL).base_offset == 20


def test_the_coordinators_yes_is_void_after_the_marker_that_was_owed() -> None:
    machine = next_leader(batch())
    guard = machine.begin_joining(batch(10), NOT_BUMPING)
    machine.append_markers([marker(0, protocol=NOT_BUMPING)], "m", WALL)
    assert guard is not None
    assert not machine.is_valid(guard)
    with pytest.raises(InvalidTransactionStateError):
        machine.append(batch(10), Acks.ALL, "a", WALL, joined=guard)


def test_a_yes_that_was_for_another_batch_confirms_no_transaction() -> None:
    machine = next_leader(batch())
    guard = machine.begin_joining(batch(10), NOT_BUMPING)
    machine.append(batch(10), Acks.ALL, "own", WALL)  # Another kind of client wrote meanwhile.
    with pytest.raises(InvalidTransactionStateError):
        machine.append(batch(20), Acks.ALL, "a", WALL, joined=guard)
    assert machine.begin_joining(batch(20), NOT_BUMPING) is not None


def test_an_epoch_for_each_transaction_needs_no_further_question() -> None:
    machine = next_leader(batch())
    assert machine.begin_joining(batch(10)) is None
    assert machine.append(batch(10), Acks.ALL, "a", WALL).base_offset == 10


def test_a_repetition_of_what_another_leader_took_needs_no_question() -> None:
    machine = next_leader(batch())
    assert machine.begin_joining(batch(), NOT_BUMPING) is None
    assert machine.append(batch(), Acks.ALL, "a", WALL).is_duplicate


def test_a_marker_that_could_not_be_written_leaves_the_transaction_to_be_confirmed() -> None:
    machine = next_leader(batch())
    machine.append_markers([marker(0, protocol=NOT_BUMPING)], "m", WALL)
    machine.on_write_failed(Offset(10), StorageFullError("no room", appended=Appended.NO))
    assert machine.begin_joining(batch(10), NOT_BUMPING) is not None


# --- Markers (T1, P50) -----------------------------------------------------------------------


def test_markers_take_one_offset_each_and_say_where_the_records_lie() -> None:
    machine = leader()
    join(machine, batch())
    machine.append(batch(10), Acks.ALL, "b", WALL)
    join(machine, batch(producer_id=8))
    done = machine.append_markers([marker(), marker(producer_id=8)], "m", WALL)
    assert done.written == [
        WrittenMarker(marker(), Offset(0), Offset(19)),
        WrittenMarker(marker(producer_id=8), Offset(20), Offset(29)),
    ]
    assert done.refusals == [None, None]
    assert done.waiter is not None
    assert (done.waiter.base_offset, done.waiter.last_offset) == (30, 31)
    assert machine.next_offset == 32
    assert not done.waiter.is_done
    assert done.waiter in written(machine)


def test_a_marker_that_is_written_waits_until_it_is_committed_and_takes_no_offset() -> None:
    machine = leader()
    join(machine, batch())
    machine.append_markers([marker()], "m", WALL)
    again = machine.append_markers([marker()], "m", WALL)
    assert (again.written, again.refusals) == ([], [None])
    assert again.waiter is not None
    assert again.waiter.is_duplicate
    assert not again.waiter.is_done
    assert machine.next_offset == 11
    assert again.waiter in written(machine)
    late = machine.append_markers([marker()], "m", WALL).waiter
    assert late is not None
    assert late.is_done


def test_a_refused_marker_does_not_count_as_delivered() -> None:
    machine = leader()
    join(machine, batch(epoch=4))
    done = machine.append_markers([marker(4), marker(5), marker(6, coordinator_epoch=2)], "m", WALL)
    assert [type(refusal) for refusal in done.refusals] == [
        InvalidProducerEpochError,
        type(None),
        TransactionCoordinatorFencedError,
    ]
    assert [one.marker for one in done.written] == [marker(5)]
    refused = machine.append_markers([marker(4)], "m", WALL)
    assert refused.waiter is None
    assert machine.next_offset == 11


def test_markers_are_not_appended_while_too_few_are_in_sync() -> None:
    machine = leader(state=replace(ALONE, replicas=(BrokerId(0), BrokerId(1))), insync_min=2)
    with pytest.raises(NotEnoughReplicasError):
        machine.append_markers([marker()], "m", WALL)
    assert machine.next_offset == 0


def test_a_failed_write_takes_back_begins_and_ends() -> None:
    machine = leader()
    join(machine, batch())
    written(machine)
    machine.append_markers([marker()], "m", WALL)
    join(machine, batch(epoch=1))
    machine.append_markers([marker(9, producer_id=8)], "m", WALL)
    machine.on_write_failed(Offset(10), StorageFullError("full"))
    assert machine.next_offset == 10
    assert [key for key, _ in machine.producers.open_entries()] == [7]
    assert machine.producers.entry(ProducerId(8)) is None
    again = machine.append_markers([marker()], "m", WALL)
    assert again.written == [WrittenMarker(marker(), Offset(0), Offset(9))]


def test_a_failed_write_fails_the_markers() -> None:
    machine = leader()
    waiter = machine.append_markers([marker()], "m", WALL).waiter
    assert completed(machine.on_write_failed(Offset(0), StorageFullError("full"))) == [waiter]


def test_who_no_longer_leads_tells_that_markers_may_be_written() -> None:
    machine = leader()
    waiter = machine.append_markers([marker()], "m", WALL).waiter
    assert waiter is not None
    machine.resign(MillraceError("gone"))
    assert waiter.error is not None
    assert waiter.error.appended is Appended.MAYBE


def test_an_abort_by_hand_has_a_higher_epoch() -> None:
    machine = leader()
    with pytest.raises(TransactionalIdNotFoundError):
        machine.abort_marker(ProducerId(7), Offset(0))
    join(machine, batch(epoch=4))
    with pytest.raises(TransactionalIdNotFoundError):  # Another one, which began elsewhere.
        machine.abort_marker(ProducerId(7), Offset(1))
    aborts = machine.abort_marker(ProducerId(7), Offset(0))
    assert (aborts.producer_epoch, aborts.is_commit, aborts.protocol) == (5, False, BUMPING)
    assert machine.append_markers([aborts], "m", WALL).refusals == [None]
    assert machine.producers.open_entries() == []


def test_an_abort_by_hand_in_the_last_epoch_ends_the_transaction() -> None:
    machine = leader()
    join(machine, batch(epoch=PRODUCER_EPOCH_MAX))
    aborts = machine.abort_marker(ProducerId(7), Offset(0))
    assert aborts.producer_epoch == PRODUCER_EPOCH_MAX
    assert machine.append_markers([aborts], "m", WALL).refusals == [None]
    assert machine.producers.open_entries() == []


# --- The last stable offset (P52, T6) --------------------------------------------------------


def test_the_last_stable_offset_follows_from_the_log_and_the_high_watermark() -> None:
    log = FakeReplicaLog(Offset(50), Offset(50))
    machine = leader(log)
    assert machine.last_stable_offset == machine.high_watermark == 50
    log.undecided = Undecided(Offset(30))
    assert machine.last_stable_offset == 30
    log.undecided = Undecided(marker_offsets=(Offset(50),), first_offsets=(Offset(20),))
    assert machine.last_stable_offset == 20


def test_the_last_stable_offset_is_never_before_the_logs_start() -> None:
    log = FakeReplicaLog(Offset(50), Offset(50), Offset(40))
    log.undecided = Undecided(Offset(30))
    assert leader(log).last_stable_offset == 40
