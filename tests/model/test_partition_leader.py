"""A leader without followers against a plain list of what was given, written and flushed."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.fakes.batch import PARTITION, WALL, header_of
from tests.fakes.completed import completed
from tests.fakes.replica_log import FakeReplicaLog

from millrace.core.errors import (
    Appended,
    DuplicateSequenceError,
    MillraceError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RequestTimedOutError,
    StorageFullError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionEpoch,
    ProducerId,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.topic_config import Durability
from millrace.core.replica.log.producer_snapshot import BATCHES_KEPT
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.leader import PartitionLeader
from millrace.core.replica.replication.rules import AppendRules

ALONE = PartitionState(
    replicas=(BrokerId(0),),
    leader=BrokerId(0),
    leader_epoch=LeaderEpoch(1),
    partition_epoch=PartitionEpoch(0),
    isr=(BrokerLife(BrokerId(0), BrokerEpoch(1)),),
)
PRODUCERS = 3


@dataclass
class Batch:
    """What the model knows of one batch in the log, or on its way there."""

    base_offset: int
    records: int
    producer_id: int
    sequence: int
    waiters: list[Waiter] = field(default_factory=list)

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.records


class LeaderModel(RuleBasedStateMachine):
    """`log` holds all batches; the first `written` of them are in the file."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Batch] = []
        self.written = 0
        self.flushed_offset = 0
        self.high_watermark = 0
        self.outcomes: dict[int, Waiter] = {}
        self.failed: list[tuple[Waiter, MillraceError]] = []
        self.resigned = False

    @initialize(durability=st.sampled_from(Durability))
    def lead(self, durability: Durability) -> None:
        """Begin with an empty log."""
        self.durability = durability
        self.leader = PartitionLeader(
            PARTITION,
            ALONE.isr[0],
            ALONE,
            FakeReplicaLog(),
            AppendRules(durability=durability),
            high_watermark=Offset(0),
            now=MonotonicMs(0),
        )

    # What the model derives.

    @property
    def next_offset(self) -> int:
        return self.log[-1].next_offset if self.log else 0

    @property
    def written_offset(self) -> int:
        return self.log[self.written - 1].next_offset if self.written else 0

    def of_producer(self, producer_id: int) -> list[Batch]:
        return [batch for batch in self.log if batch.producer_id == producer_id]

    def next_sequence(self, producer_id: int) -> int:
        batches = self.of_producer(producer_id)
        return batches[-1].sequence + batches[-1].records if batches else 0

    # What happens.

    def _append(self, records: int, producer_id: int, sequence: int, acks: Acks) -> Waiter:
        owner = object()
        waiter = self.leader.append(header_of(records, producer_id, sequence), acks, owner, WALL)
        assert waiter.owner is owner
        return waiter

    @precondition(lambda self: not self.resigned)
    @rule(
        records=st.integers(1, 5),
        producer_id=st.integers(-1, PRODUCERS - 1),
        acks=st.sampled_from(Acks),
    )
    def append(self, records: int, producer_id: int, acks: Acks) -> None:
        """A new batch goes after all others."""
        sequence = -1 if producer_id < 0 else self.next_sequence(producer_id)
        expected = self.next_offset
        waiter = self._append(records, producer_id, sequence, acks)
        assert (waiter.base_offset, waiter.is_duplicate, waiter.is_done) == (expected, False, False)
        self.log.append(Batch(expected, records, producer_id, sequence, [waiter]))

    @precondition(lambda self: not self.resigned)
    @rule(
        producer_id=st.integers(0, PRODUCERS - 1),
        back=st.integers(1, BATCHES_KEPT),
        acks=st.sampled_from(Acks),
    )
    def repeat(self, producer_id: int, back: int, acks: Acks) -> None:
        """One of a producer's last five batches comes again."""
        batches = self.of_producer(producer_id)[-back:]
        if not batches:
            return
        original = batches[0]
        waiter = self._append(original.records, producer_id, original.sequence, acks)
        assert waiter.is_duplicate
        assert waiter.base_offset == original.base_offset
        original.waiters.append(waiter)

    @precondition(lambda self: not self.resigned)
    @rule(producer_id=st.integers(0, PRODUCERS - 1), gap=st.integers(1, 100))
    def leave_a_gap(self, producer_id: int, gap: int) -> None:
        """A batch comes before its predecessors."""
        if not self.of_producer(producer_id):
            return
        sequence = self.next_sequence(producer_id) + gap
        try:
            self._append(1, producer_id, sequence, Acks.ALL)
        except OutOfOrderSequenceError:
            return
        raise AssertionError("a gap was appended")

    @precondition(lambda self: not self.resigned)
    @rule(producer_id=st.integers(0, PRODUCERS - 1))
    def repeat_what_is_forgotten(self, producer_id: int) -> None:
        """A batch comes again that is older than the five: written, if it is committed."""
        batches = self.of_producer(producer_id)
        if len(batches) <= BATCHES_KEPT:
            return
        old = batches[-BATCHES_KEPT - 1]
        try:
            self._append(old.records, producer_id, old.sequence, Acks.ALL)
        except DuplicateSequenceError:
            assert old.next_offset <= self.leader.high_watermark
            return
        except RequestTimedOutError:
            after = batches[-BATCHES_KEPT]
            assert after.base_offset > self.leader.high_watermark
            return
        raise AssertionError("an old batch was appended again")

    @rule(count=st.integers(1, 4))
    def write(self, count: int) -> None:
        """The next batches are in the file."""
        self.written = min(self.written + count, len(self.log))
        self._take(completed(self.leader.on_written(Offset(self.written_offset), MonotonicMs(0))))

    @rule(back=st.integers(0, 2))
    def flush(self, back: int) -> None:
        """A flush is reported, of now or of some batches ago."""
        reached = max(self.written - back, 0)
        offset = self.log[reached - 1].next_offset if reached else 0
        self.flushed_offset = max(self.flushed_offset, offset)
        self._take(completed(self.leader.on_flushed(Offset(offset))))

    @precondition(lambda self: self.written < len(self.log))
    @rule(data=st.data())
    def fail_to_write(self, data: st.DataObject) -> None:
        """A batch that is not written yet, and all after it, never will be."""
        first = data.draw(st.integers(self.written, len(self.log) - 1))
        lost, self.log = self.log[first:], self.log[:first]
        generation = self.leader.generation
        error = StorageFullError("full")
        failed = completed(self.leader.on_write_failed(Offset(lost[0].base_offset), error))
        assert self.leader.generation == generation + 1
        expected = [] if self.resigned else [w for batch in lost for w in batch.waiters]
        assert failed == expected
        assert all(waiter.error is error for waiter in failed)
        self.failed += [(waiter, error) for waiter in failed]

    @precondition(lambda self: not self.resigned)
    @rule()
    def resign(self) -> None:
        """Another broker leads from now on."""
        self.resigned = True
        error = NotLeaderError("resigned")
        waiting = [w for batch in self.log for w in batch.waiters if not w.is_done]
        failed = completed(self.leader.resign(error))
        assert {id(w) for w in failed} == {id(w) for w in waiting}
        assert [w.last_offset for w in failed] == sorted(w.last_offset for w in failed)
        for waiter in failed:
            assert isinstance(waiter.error, NotLeaderError)
            assert waiter.error.appended is Appended.MAYBE
            self.failed.append((waiter, waiter.error))

    def _take(self, done: list[Waiter]) -> None:
        assert [w.last_offset for w in done] == sorted(w.last_offset for w in done)
        for waiter in done:
            assert waiter.is_done
            assert waiter.error is None
            assert id(waiter) not in self.outcomes, "told twice"
            self.outcomes[id(waiter)] = waiter

    # What is always true.

    @invariant()
    def offsets_are_what_was_given_written_and_flushed(self) -> None:
        """Between events nothing else moves them."""
        leader = self.leader
        assert leader.next_offset == self.next_offset
        assert leader.written_offset == self.written_offset
        assert leader.flushed_offset == self.flushed_offset

    @invariant()
    def the_high_watermark_follows_what_is_durable_and_never_goes_back(self) -> None:
        """The only replica is the in-sync set."""
        leader = self.leader
        durable = (
            self.flushed_offset if self.durability is Durability.FSYNC else self.written_offset
        )
        assert leader.high_watermark <= leader.durable_offset <= leader.written_offset
        assert leader.written_offset <= leader.next_offset
        assert leader.high_watermark >= self.high_watermark
        assert leader.high_watermark == (self.high_watermark if self.resigned else durable)
        self.high_watermark = leader.high_watermark

    @invariant()
    def an_append_is_acknowledged_when_it_is_durable_and_not_before(self) -> None:
        """Whatever has failed stays failed."""
        failed = {id(waiter): error for waiter, error in self.failed}
        for batch in self.log:
            for waiter in batch.waiters:
                if id(waiter) in failed:
                    assert waiter.error is failed[id(waiter)]
                else:
                    assert waiter.is_done == (batch.next_offset <= self.leader.high_watermark)
                    assert waiter.error is None

    @invariant()
    def producers_are_remembered_as_the_log_says(self) -> None:
        """Failed writes have left no trace."""
        for producer_id in range(PRODUCERS):
            entry = self.leader.producers.entry(ProducerId(producer_id))
            kept = self.of_producer(producer_id)[-BATCHES_KEPT:]
            found = () if entry is None else entry.batches
            assert [(batch.base_sequence, batch.base_offset) for batch in found] == [
                (batch.sequence, batch.base_offset) for batch in kept
            ]

    @invariant()
    def a_resigned_leader_takes_nothing(self) -> None:
        """Whatever epoch is named."""
        if self.resigned:
            for epoch in (LeaderEpoch(1), NO_LEADER_EPOCH):
                try:
                    self.leader.check_epoch(epoch)
                except NotLeaderError:
                    continue
                raise AssertionError("a resigned leader answered")


TestLeader = LeaderModel.TestCase
TestLeader.settings = settings(max_examples=150, stateful_step_count=40)
