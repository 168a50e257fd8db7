"""The leader of a partition with one replica: offsets, durability, acknowledgements."""

from dataclasses import replace
from itertools import product

import pytest
from tests.fakes.batch import PARTITION, WALL, header_of
from tests.fakes.completed import completed
from tests.fakes.replica_log import FakeReplicaLog

from millrace.core.errors import (
    Appended,
    DuplicateSequenceError,
    FencedLeaderEpochError,
    InvalidTimestampError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RequestTimedOutError,
    StorageFullError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from millrace.core.ids import (
    NO_TIMESTAMP,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionEpoch,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.topic_config import Durability
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


def leader(durability: Durability = Durability.FSYNC, end: int = 0) -> PartitionLeader:
    return PartitionLeader(
        PARTITION,
        ALONE.isr[0],
        ALONE,
        FakeReplicaLog(Offset(end), Offset(end)),
        AppendRules(durability=durability),
        high_watermark=Offset(end),
        now=MonotonicMs(0),
    )


def test_batches_get_dense_offsets_before_anything_is_written() -> None:
    machine = leader(end=10)
    first = machine.append(header_of(3), Acks.ALL, "a", WALL)
    second = machine.append(header_of(2), Acks.ALL, "b", WALL)
    assert (first.base_offset, first.last_offset) == (10, 12)
    assert (second.base_offset, second.last_offset) == (13, 14)
    assert machine.next_offset == 15
    assert machine.high_watermark == machine.written_offset == 10


def test_fsync_acknowledges_at_the_flush_and_replicated_at_the_write() -> None:
    machine = leader(Durability.FSYNC)
    waiter = machine.append(header_of(2), Acks.ALL, "a", WALL)
    assert completed(machine.on_written(Offset(2), MonotonicMs(0))) == []
    assert (machine.high_watermark, waiter.is_done) == (0, False)
    assert completed(machine.on_flushed(Offset(2))) == [waiter]
    assert (machine.high_watermark, waiter.is_done, waiter.error) == (2, True, None)

    machine = leader(Durability.REPLICATED)
    waiter = machine.append(header_of(2), Acks.LEADER, "a", WALL)
    assert completed(machine.on_written(Offset(2), MonotonicMs(0))) == [waiter]
    assert machine.high_watermark == 2


def test_a_flush_acknowledges_all_before_it_in_the_order_of_offsets_and_no_more() -> None:
    machine = leader()
    waiters = [machine.append(header_of(), Acks.ALL, n, WALL) for n in range(3)]
    machine.on_written(Offset(3), MonotonicMs(0))
    assert completed(machine.on_flushed(Offset(2))) == waiters[:2]
    assert not waiters[2].is_done
    assert completed(machine.on_flushed(Offset(1))) == []
    assert machine.high_watermark == 2
    assert completed(machine.on_flushed(Offset(3))) == waiters[2:]


def test_a_repeated_batch_gets_the_originals_offset_and_waits_for_the_original() -> None:
    machine = leader(end=7)
    original = machine.append(header_of(2, producer_id=1, sequence=0), Acks.ALL, "a", WALL)
    repeated = machine.append(header_of(2, producer_id=1, sequence=0), Acks.ALL, "b", WALL)
    assert repeated.is_duplicate
    assert (repeated.base_offset, repeated.last_offset) == (7, 8)
    assert machine.next_offset == 9
    assert not repeated.is_done
    machine.on_written(Offset(9), MonotonicMs(0))
    assert completed(machine.on_flushed(Offset(9))) == [original, repeated]
    late = machine.append(header_of(2, producer_id=1, sequence=0), Acks.ALL, "c", WALL)
    assert late.is_done
    assert late.base_offset == 7


def test_what_is_older_than_the_last_five_batches_counts_as_written_once_it_is_committed() -> None:
    """Clients of Kafka take "duplicate" for "written", too (P18)."""
    machine = leader(end=7)

    def append(sequence: int, records: int = 2, acks: Acks = Acks.ALL) -> Waiter:
        return machine.append(header_of(records, 1, sequence), acks, "a", WALL)

    for number in range(7):  # The first two are older than the last five.
        append(2 * number)
    for durable in (7, 9, 11):  # Where the log ends that is surely there.
        machine.on_written(Offset(durable), MonotonicMs(0))
        machine.on_flushed(Offset(durable))
        for number, acks in product(range(2), (Acks.ALL, Acks.LEADER)):
            # It does not remember where the one ends and the other begins.
            error = DuplicateSequenceError if durable == 11 else RequestTimedOutError
            with pytest.raises(error) as it:
                append(2 * number, acks=acks)
            assert it.value.appended is Appended.MAYBE


def test_a_part_of_a_batch_counts_as_written_once_that_is_committed() -> None:
    machine = leader(end=7)
    for number in range(2):
        machine.append(header_of(2, 1, 2 * number), Acks.ALL, "a", WALL)
    for durable, missing in ((9, 3), (11, 4)):
        machine.on_written(Offset(durable), MonotonicMs(0))
        machine.on_flushed(Offset(durable))
        for sequence in (1, 3):
            error = RequestTimedOutError if sequence >= missing else DuplicateSequenceError
            with pytest.raises(error):
                machine.append(header_of(1, 1, sequence), Acks.ALL, "a", WALL)


def test_a_gap_in_the_sequence_is_refused_and_takes_no_offset() -> None:
    machine = leader()
    machine.append(header_of(2, producer_id=1, sequence=0), Acks.ALL, "a", WALL)
    with pytest.raises(OutOfOrderSequenceError):
        machine.append(header_of(1, producer_id=1, sequence=3), Acks.ALL, "b", WALL)
    assert machine.next_offset == 2


def test_a_failed_write_takes_back_offsets_and_sequences_of_all_after_it() -> None:
    machine = leader()
    kept = machine.append(header_of(1, producer_id=1, sequence=0), Acks.ALL, "kept", WALL)
    lost = machine.append(header_of(1, producer_id=1, sequence=1), Acks.ALL, "lost", WALL)
    other = machine.append(header_of(1, producer_id=2, sequence=0), Acks.ALL, "other", WALL)
    machine.on_written(Offset(1), MonotonicMs(0))
    error = StorageFullError("full")
    assert completed(machine.on_write_failed(Offset(1), error)) == [lost, other]
    assert lost.error is error
    assert machine.generation == 1
    assert machine.next_offset == 1
    again = machine.append(header_of(1, producer_id=1, sequence=1), Acks.ALL, "again", WALL)
    assert (again.base_offset, again.is_duplicate) == (1, False)
    assert (
        machine.append(header_of(1, producer_id=2, sequence=0), Acks.ALL, "x", WALL).base_offset
        == 2
    )
    machine.on_written(Offset(3), MonotonicMs(0))
    assert completed(machine.on_flushed(Offset(3)))[0] is kept


def test_a_retry_that_waits_for_a_write_that_fails_fails_with_it() -> None:
    machine = leader()
    machine.append(header_of(1, producer_id=1, sequence=0), Acks.ALL, "a", WALL)
    repeated = machine.append(header_of(1, producer_id=1, sequence=0), Acks.ALL, "b", WALL)
    error = StorageFullError("full")
    machine.on_write_failed(Offset(0), error)
    assert repeated.error is error


def test_another_leader_epoch_is_refused_by_its_side() -> None:
    machine = leader()
    machine.check_epoch(LeaderEpoch(5))
    machine.check_epoch(LeaderEpoch(-1))
    with pytest.raises(FencedLeaderEpochError):
        machine.check_epoch(LeaderEpoch(4))
    with pytest.raises(UnknownLeaderEpochError):
        machine.check_epoch(LeaderEpoch(6))


def test_resigning_fails_what_waits_and_refuses_what_comes() -> None:
    machine = leader()
    waiter = machine.append(header_of(), Acks.ALL, "a", WALL)
    assert completed(machine.resign(UnknownTopicOrPartitionError("gone"))) == [waiter]
    assert isinstance(waiter.error, UnknownTopicOrPartitionError)
    assert waiter.error.appended is Appended.MAYBE  # Followers may have it.
    with pytest.raises(NotLeaderError):
        machine.check_epoch(LeaderEpoch(5))


def test_timestamps_outside_of_what_the_topic_allows_are_refused() -> None:
    machine = leader()
    machine.rules = replace(machine.rules, timestamp_after_max_ms=10, timestamp_before_max_ms=20)
    machine.append(header_of(timestamp=WALL + 10), Acks.ALL, "a", WALL)
    machine.append(header_of(timestamp=WALL - 20), Acks.ALL, "a", WALL)
    for timestamp in (WALL + 11, WALL - 21):
        with pytest.raises(InvalidTimestampError):
            machine.append(header_of(timestamp=timestamp), Acks.ALL, "a", WALL)
    none = replace(header_of(), base_timestamp=NO_TIMESTAMP, max_timestamp=NO_TIMESTAMP)
    machine.append(none, Acks.ALL, "a", WALL)  # Kafka's records may have no time (K3).
    machine.rules = replace(machine.rules, stamps_append_time=True)
    waiter = machine.append(header_of(timestamp=WALL + 11), Acks.ALL, "a", WALL)
    assert waiter.append_timestamp == WALL
