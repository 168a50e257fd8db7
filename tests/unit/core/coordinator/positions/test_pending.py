"""Positions that wait for the end of a transaction (P56, T10)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.topics_view import Topics

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.coordinator import (
    CoordinatorRecord,
    GroupCoordinator,
    decode,
    encode,
)
from millrace.core.coordinator.positions.position import (
    CommitNumber,
    Kind,
    Position,
    PositionsConfig,
)
from millrace.core.coordinator.positions.records import Pending, PendingKey, PendingRecord
from millrace.core.errors import (
    InvalidPositionError,
    PositionsFullError,
    TransactionCoordinatorFencedError,
    UnknownMemberIdError,
    UnstablePositionsError,
    UnsupportedFormatError,
)
from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)

NOW = WallMs(1_700_000_000_000)
DAY = 86_400_000
TOPIC = TopicId(bytes(range(16)))
A, B = ProducerId(1), ProducerId(2)
EPOCH = LeaderEpoch(7)
"""Of the coordinator of transactions."""


def at(partition: int) -> TopicPartition:
    return TopicPartition(TOPIC, partition)


class Log:
    """A machine at the head of its log."""

    def __init__(self, *, slack_records: int = 1000, **config: int) -> None:
        self.config = PositionsConfig(**config)
        self.slack_records = slack_records
        self.records: list[tuple[bytes, bytes | None, WallMs]] = []
        self.start = 0
        self.machine = self.new_machine()

    def new_machine(self) -> GroupCoordinator:
        return GroupCoordinator(
            self.config, GroupsConfig(), Offset(self.start), slack_records=self.slack_records
        )

    def take(self, result: Result[CoordinatorRecord, None]) -> None:
        for record in result.records:
            self.machine.replay(record, Offset(self.start + len(self.records)))
            self.records.append((*encode(record), record.timestamp))

    def fail_over(self) -> None:
        """Read the log again, from where it must begin."""
        gone = self.machine.oldest_offset - self.start
        del self.records[:gone]
        self.start += gone
        self.machine = self.new_machine()
        for offset, record in enumerate(self.records, self.start):
            self.machine.replay(decode(*record), Offset(offset))

    def stage(
        self,
        producer_id: ProducerId,
        offset: int,
        *partitions: int,
        epoch: int = 0,
        coordinator: int = EPOCH,
    ) -> None:
        positions = {at(partition): Position(offset) for partition in partitions or (0,)}
        producer = producer_id, ProducerEpoch(epoch)
        joined = LeaderEpoch(coordinator)
        self.take(self.machine.handle_stage("g", positions, producer, joined, NOW))

    def end(
        self,
        producer_id: ProducerId,
        *,
        is_commit: bool,
        before: int = 1,
        coordinator: int = EPOCH,
    ) -> None:
        epoch, told_by = ProducerEpoch(before), LeaderEpoch(coordinator)
        self.take(
            self.machine.handle_end("g", producer_id, epoch, told_by, NOW, is_commit=is_commit)
        )

    def commit(self, offset: int, partition: int = 0) -> None:
        self.take(self.machine.handle_commit("g", {at(partition): Position(offset)}, NOW))

    @property
    def committed(self) -> dict[int, int]:
        found = self.machine.positions("g", Kind.COMMITTED)
        return {where.partition: position.offset for where, position in found.items()}

    def unstable(self, *partitions: int) -> bool:
        try:
            self.machine.check_stable("g", [at(partition) for partition in partitions])
        except UnstablePositionsError:
            return True
        return False


def test_what_a_transaction_commits_counts_at_its_end() -> None:
    log = Log()
    log.commit(3)
    log.stage(A, 10, 0, 1)
    assert log.committed == {0: 3}
    assert log.unstable()
    log.fail_over()
    assert log.unstable()
    log.end(A, is_commit=True)
    assert log.committed == {0: 10, 1: 10}
    assert not log.unstable()


def test_what_an_aborted_transaction_would_commit_is_dropped() -> None:
    log = Log()
    log.stage(A, 10)
    assert log.machine.has("g")
    assert log.machine.names() == ["g"]
    log.end(A, is_commit=False)
    assert log.committed == {}
    assert not log.machine.has("g")
    before = len(log.records)
    log.end(A, is_commit=True)  # It is told again.
    assert len(log.records) == before


def test_of_pending_positions_the_latest_of_each_partition_is_told() -> None:
    log = Log()
    log.stage(A, 10, 0, 1)
    log.stage(B, 20, 1)
    assert log.machine.pending("g") == {at(0): Position(10), at(1): Position(20)}
    log.end(B, is_commit=False)
    assert log.machine.pending("g") == {at(0): Position(10), at(1): Position(10)}
    log.end(A, is_commit=True)
    assert log.machine.pending("g") == {}


def test_only_the_partitions_that_a_member_reads_have_to_be_stable() -> None:
    log = Log()
    log.stage(A, 10, 0)
    assert not log.unstable(1, 2)
    assert log.unstable(0, 2)
    log.machine.check_stable("other")


def test_an_end_is_that_of_one_producer_and_of_its_earlier_epochs() -> None:
    log = Log()
    log.stage(A, 10, 0)
    log.stage(B, 20, 1, epoch=5)
    log.end(A, is_commit=True, before=1)
    log.end(B, is_commit=True, before=5)
    assert log.committed == {0: 10}
    log.end(B, is_commit=True, before=6)
    assert log.committed == {0: 10, 1: 20}


@pytest.mark.parametrize("fails_over", [False, True])
def test_a_late_end_of_a_coordinator_that_was_replaced_is_not_that_of_the_next_transaction(
    fails_over: bool,
) -> None:
    """P46, T14: without bumps both transactions have the same epoch."""
    log = Log()
    log.stage(A, 10, 0, coordinator=7)
    log.end(A, is_commit=True, coordinator=7)
    log.stage(A, 20, 0, coordinator=8)
    if fails_over:
        log.fail_over()
    for is_commit in (True, False):
        with pytest.raises(TransactionCoordinatorFencedError):
            log.end(A, is_commit=is_commit, coordinator=7)
    assert log.unstable()
    log.end(A, is_commit=True, coordinator=9)
    assert log.committed == {0: 20}


@pytest.mark.parametrize("fails_over", [False, True])
def test_an_older_pending_position_never_replaces_a_later_commit(fails_over: bool) -> None:
    log = Log()
    log.stage(A, 10)
    log.commit(20)
    if fails_over:
        log.fail_over()
    log.end(A, is_commit=True)
    assert log.committed == {0: 20}


@pytest.mark.parametrize("slack_records", [0, 1000])
def test_of_two_transactions_the_one_that_committed_later_counts(slack_records: int) -> None:
    for first, second in ((A, B), (B, A)):
        log = Log(slack_records=slack_records)
        log.stage(A, 10)
        log.stage(B, 20)
        for number in range(10):  # The oldest records are written again, after later ones.
            log.commit(number, 7)
        log.fail_over()
        log.end(first, is_commit=True)
        log.end(second, is_commit=True)
        assert log.committed[0] == 20


def test_a_transaction_that_aborts_leaves_the_older_one_of_another() -> None:
    log = Log()
    log.stage(A, 10)
    log.stage(B, 20)
    log.end(B, is_commit=False)
    log.end(A, is_commit=True)
    assert log.committed == {0: 10}


def test_a_late_attempt_of_a_member_stages_nothing() -> None:
    log = Log()
    machine = log.machine._positions
    producer = A, ProducerEpoch(0)
    for number, offset in ((2, 20), (1, 10)):
        commit = CommitNumber("m", number)
        staged = machine.handle_stage(
            "g", {at(0): Position(offset)}, producer, EPOCH, NOW, commit=commit
        )
        log.take(staged)  # type: ignore[arg-type]
    log.end(A, is_commit=True)
    assert log.committed == {0: 20}
    late = machine.handle_stage(
        "g", {at(0): Position(1)}, producer, EPOCH, NOW, commit=CommitNumber("m", 1)
    )
    assert late.records == []


def test_the_end_at_which_a_group_begins_never_takes_a_transaction_s_positions_away() -> None:
    """A member commits it until it is stored, with a number below all of its commits (P62)."""
    log = Log()
    machine = log.machine._positions
    producer = A, ProducerEpoch(0)
    staged = machine.handle_stage(
        "g", {at(0): Position(20)}, producer, EPOCH, NOW, commit=CommitNumber("m", 2)
    )
    log.take(staged)  # type: ignore[arg-type]
    end = machine.handle_commit("g", {at(0): Position(10)}, NOW, CommitNumber("m", 1))
    log.take(end)  # type: ignore[arg-type]
    assert log.committed == {0: 10}  # What counts if the transaction is aborted.
    assert log.unstable()
    log.end(A, is_commit=True)
    assert log.committed == {0: 20}


def test_a_later_commit_of_the_member_takes_them_away() -> None:
    log = Log()
    machine = log.machine._positions
    producer = A, ProducerEpoch(0)
    staged = machine.handle_stage(
        "g", {at(0): Position(20)}, producer, EPOCH, NOW, commit=CommitNumber("m", 2)
    )
    log.take(staged)  # type: ignore[arg-type]
    later = machine.handle_commit("g", {at(0): Position(30)}, NOW, CommitNumber("m", 3))
    log.take(later)  # type: ignore[arg-type]
    log.end(A, is_commit=True)
    assert log.committed == {0: 30}


def test_a_member_of_which_the_group_knows_nothing_stages_nothing() -> None:
    log = Log()
    with pytest.raises(UnknownMemberIdError):
        log.machine.handle_stage(
            "g", {at(0): Position(1)}, (A, ProducerEpoch(0)), EPOCH, NOW, member_id="m", epoch=1
        )


def test_pending_positions_have_the_bounds_of_others() -> None:
    log = Log(name_positions_max=3, metadata_bytes_max=4)
    log.commit(1)
    log.stage(A, 10, 0, 1)
    log.stage(A, 11, 0, 1)  # They are there already.
    with pytest.raises(PositionsFullError, match="name_positions_max"):
        log.stage(B, 10, 0)
    with pytest.raises(InvalidPositionError):
        log.machine.handle_stage(
            "g", {at(0): Position(1, -1, "12345")}, (A, ProducerEpoch(0)), EPOCH, NOW
        )
    with pytest.raises(InvalidPositionError):
        log.machine.handle_stage("", {at(0): Position(1)}, (A, ProducerEpoch(0)), EPOCH, NOW)


def test_a_name_with_pending_positions_is_not_forgotten_unless_somebody_asks() -> None:
    log = Log()
    log.commit(1)
    log.stage(A, 10)
    later = WallMs(NOW + 100 * DAY)
    assert log.machine.handle_expire(["g"], later, lambda _: True, Topics()).records == []
    log.take(log.machine.handle_delete("g", NOW))
    assert not log.machine.has("g")
    log.stage(A, 10, 0, 1)
    log.take(log.machine.handle_forget_topics("g", [TOPIC], Topics(), NOW))
    assert not log.machine.has("g")


pending = st.builds(
    PendingRecord,
    st.builds(
        PendingKey,
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
        st.integers(0, 2**31 - 1).map(at),
        st.integers(0, 2**63 - 1).map(ProducerId),
    ),
    st.none()
    | st.builds(
        Pending,
        st.integers(0, 2**15 - 1).map(ProducerEpoch),
        st.integers(-1, 2**31 - 1).map(LeaderEpoch),
        st.integers(1, 2**64 - 1),
        st.builds(
            Position,
            st.integers(0, 2**63 - 1),
            st.integers(-1, 2**31 - 1),
            st.text(st.characters(codec="utf-8"), max_size=60),
        ),
        st.none()
        | st.builds(
            CommitNumber,
            st.text(st.characters(codec="utf-8"), min_size=1, max_size=60),
            st.integers(1, 2**64 - 1),
        ),
    ),
    st.just(NOW),
)


@given(pending)
def test_a_record_is_read_as_it_was_written(record: PendingRecord) -> None:
    assert decode(*encode(record), NOW) == record


@pytest.mark.parametrize("value", [b"", b"\x02" + bytes(40), b"\x01" + bytes(34) + b"\xff\xff"])
def test_a_value_that_this_release_does_not_know_is_refused(value: bytes) -> None:
    key, _ = encode(PendingRecord(PendingKey("g", at(0), A), None, NOW))
    with pytest.raises(UnsupportedFormatError):
        decode(key, value, NOW)
    with pytest.raises(UnsupportedFormatError):
        decode(key[:20], None, NOW)
