"""Positions in transactions and without, against a reference that remembers when each was stored.

Producers stage positions and end their transactions in any order, readers commit without one, and
the coordinator reads its shortened log again at any time. The position of a partition that counts
is the one that was stored latest, of those that are committed (T10, P56). At each moment the state
is what the records lead to from the oldest one on that counts. Epochs run out after two.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.groups.config import GroupsConfig
from millrace.core.coordinator.groups.coordinator import (
    CoordinatorRecord,
    GroupCoordinator,
    decode,
    encode,
)
from millrace.core.coordinator.positions.position import Kind, Position, PositionsConfig
from millrace.core.errors import UnstablePositionsError
from millrace.core.ids import (
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)

TOPIC = TopicId(bytes(16))
NOW = WallMs(1)
EPOCH = LeaderEpoch(7)
GROUPS = ("a", "b")
EPOCH_MAX = 2

producers = st.integers(0, 2)
partitions = st.integers(0, 2)
groups = st.sampled_from(GROUPS)


@dataclass
class Known:
    """What the reference knows of one partition of a group: when a position was stored, and it."""

    committed: tuple[int, int] | None = None
    pending: dict[int, tuple[int, int]] = field(default_factory=dict)  # By producer.

    @property
    def is_unstable(self) -> bool:
        newest = -1 if self.committed is None else self.committed[0]
        return any(stored > newest for stored, _ in self.pending.values())


def facts(machine: GroupCoordinator) -> tuple[object, ...]:
    """All that a machine knows."""
    positions = machine._positions
    return (
        machine.next_offset,
        machine.oldest_offset,
        len(positions),
        sorted(positions.names()),
        [machine.positions(group, Kind.COMMITTED) for group in GROUPS],
        {
            key: pending
            for group in GROUPS
            for key, pending in positions._pending._names.get(group, {}).items()
        },
    )


class PendingPositions(RuleBasedStateMachine):
    """Two groups, three producers, and the log of their coordinator."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 0
        self.records: list[tuple[bytes, bytes | None, WallMs]] = []
        self.machine = self.new_machine()
        self.known = {(group, at): Known() for group in GROUPS for at in range(3)}
        # The producers' ids; the remainder by three is a producer's number.
        self.ids = [0, 1, 2]
        self.epochs = [0, 0, 0]
        self.time = 0

    def new_machine(self, start: int | None = None) -> GroupCoordinator:
        offset = Offset(self.start if start is None else start)
        return GroupCoordinator(PositionsConfig(), GroupsConfig(), offset, slack_records=3)

    def replayed(self, start: int) -> GroupCoordinator:
        """A machine that has replayed the log from an offset on."""
        machine = self.new_machine(start)
        for offset, record in enumerate(self.records, self.start):
            if offset >= start:
                machine.replay(decode(*record), Offset(offset))
        return machine

    def take(self, result: Result[CoordinatorRecord, None]) -> None:
        for record in result.records:
            self.machine.replay(record, Offset(self.start + len(self.records)))
            self.records.append((*encode(record), record.timestamp))

    @rule(group=groups, number=producers, at=partitions, offset=st.integers(0, 99))
    def stages(self, group: str, number: int, at: int, offset: int) -> None:
        self.time += 1
        positions = {TopicPartition(TOPIC, at): Position(offset)}
        producer = ProducerId(self.ids[number]), ProducerEpoch(self.epochs[number])
        self.take(self.machine.handle_stage(group, positions, producer, EPOCH, NOW))
        self.known[group, at].pending[number] = self.time, offset

    @rule(group=groups, at=partitions, offset=st.integers(0, 99))
    def commits_without_a_transaction(self, group: str, at: int, offset: int) -> None:
        self.time += 1
        self.take(
            self.machine.handle_commit(group, {TopicPartition(TOPIC, at): Position(offset)}, NOW)
        )
        self.known[group, at].committed = self.time, offset

    @rule(number=producers, is_commit=st.booleans(), is_repeated=st.booleans())
    def ends(self, number: int, is_commit: bool, is_repeated: bool) -> None:
        producer_id = ProducerId(self.ids[number])
        before = ProducerEpoch(self.epochs[number] + 1)
        self.epochs[number] += 1
        if self.epochs[number] == EPOCH_MAX:  # The largest one only fences.
            self.ids[number] += len(self.ids)
            self.epochs[number] = 0
        for group in GROUPS:
            for _ in range(1 + is_repeated):
                self.take(
                    self.machine.handle_end(
                        group, producer_id, before, EPOCH, NOW, is_commit=is_commit
                    )
                )
        for known in self.known.values():
            stored = known.pending.pop(number, None)
            if is_commit and stored is not None:
                known.committed = max(stored, known.committed or (-1, 0))

    @rule(number=producers, is_commit=st.booleans())
    def an_end_before_comes_late(self, number: int, is_commit: bool) -> None:
        before = ProducerEpoch(self.epochs[number])
        for group in GROUPS:
            result = self.machine.handle_end(
                group, ProducerId(self.ids[number]), before, EPOCH, NOW, is_commit=is_commit
            )
            assert result.records == []

    @rule(group=groups)
    def deletes(self, group: str) -> None:
        self.take(self.machine.handle_delete(group, NOW))
        for at in range(3):
            self.known[group, at] = Known()

    @rule()
    def the_coordinator_fails_over(self) -> None:
        gone = self.machine.oldest_offset - self.start
        del self.records[:gone]
        self.start += gone
        self.machine = self.replayed(self.start)

    @invariant()
    def the_records_that_count_lead_to_the_same_state(self) -> None:
        assert facts(self.replayed(self.machine.oldest_offset)) == facts(self.machine)
        assert facts(self.replayed(self.start)) == facts(self.machine)

    @invariant()
    def what_counts_was_stored_latest(self) -> None:
        for group in GROUPS:
            found = self.machine.positions(group, Kind.COMMITTED)
            assert {where.partition: position.offset for where, position in found.items()} == {
                at: known.committed[1]
                for at in range(3)
                if (known := self.known[group, at]).committed is not None
            }

    @invariant()
    def what_may_change_is_not_told(self) -> None:
        for (group, at), known in self.known.items():
            try:
                self.machine.check_stable(group, [TopicPartition(TOPIC, at)])
            except UnstablePositionsError:
                assert known.is_unstable
            else:
                assert not known.is_unstable


TestPendingPositions = PendingPositions.TestCase
TestPendingPositions.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
