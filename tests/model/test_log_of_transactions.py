"""A log of transactions against a plain list of what was written.

Whatever happens to the log: the producers' states are what a replay of all its batches gives (P45,
T4), the index of aborted transactions is what its control batches say, and the last stable offset
is what the definition says (P52). Once with epochs that run out after two.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import NOW, LogOnDisk
from tests.fakes.stamped_batches import control_batch, stamped_batch

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId
from millrace.core.records.header import Attributes
from millrace.core.records.markers import BUMPING, NOT_BUMPING, Marker, WrittenMarker
from millrace.core.replica.log.producer_states import ProducerStates

CONFIG = LogConfig(segment_bytes=1200, index_interval_bytes=300, checkpoint_bytes=100_000)
PRODUCERS = 4


@dataclass
class Written:
    """A batch of the log, with its markers."""

    batch: StampedBatch
    markers: list[WrittenMarker] = field(default_factory=list)


class TransactionMachine(RuleBasedStateMachine):
    """`written` is what the log holds, from offset 0 on; `start` hides the first of it."""

    epoch_max = 2
    """The largest epoch: it only fences, and its producer gets another id."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.disk = Disk(seed)
        self.written: list[Written] = []
        self.start = 0
        self.flushed = 0
        self.high_watermark = 0
        self.leader_epoch = 0
        self.opened = LogOnDisk(self.disk, CONFIG)

    @property
    def end(self) -> int:
        return self.written[-1].batch.next_offset if self.written else 0

    @property
    def states(self) -> ProducerStates:
        return self.replayed(len(self.written))

    def replayed(self, count: int) -> ProducerStates:
        """The states after so many batches."""
        states = ProducerStates()
        for one in self.written[:count]:
            states.update(one.batch, one.batch.base_offset, NOW)
            states.end(one.markers, one.batch.base_offset, NOW)
        return states

    # --- What happens ------------------------------------------------------------------------

    @rule(
        producer=st.integers(0, PRODUCERS - 1),
        records=st.integers(1, 4),
        in_transaction=st.booleans(),
        as_kafka=st.booleans(),
    )
    def append(
        self, producer: int, records: int, in_transaction: bool, as_kafka: bool = False
    ) -> None:
        states = self.states
        producer_id = self.producer_id(states, producer)
        entry = states.entry(producer_id)
        is_open = entry is not None and entry.first_offset >= 0
        made = stamped_batch(
            self.end,
            records=records,
            value=b"x" * 40,
            epoch=self.leader_epoch,
            producer_id=producer_id,
            producer_epoch=0 if entry is None else entry.epoch,
            sequence=entry.batches[-1].last_sequence + 1 if entry and entry.batches else 0,
            in_transaction=in_transaction or is_open,
            as_kafka=as_kafka,
        )
        self.opened.append(made)
        self.written.append(Written(made))

    def producer_id(self, states: ProducerStates, number: int) -> ProducerId:
        """The id that a producer has now: another one after each that has used up its epochs."""
        producer_id = ProducerId(number)
        while (entry := states.entry(producer_id)) is not None and entry.epoch >= self.epoch_max:
            producer_id = ProducerId(producer_id + PRODUCERS + 1)
        return producer_id

    @rule(
        producers=st.lists(st.integers(0, PRODUCERS), min_size=1, unique=True),
        is_commit=st.booleans(),
        protocol=st.sampled_from((BUMPING, NOT_BUMPING)),
    )
    def end_transactions(self, producers: list[int], is_commit: bool, protocol: int) -> None:
        states = self.states
        decided = []
        for producer in producers:
            producer_id = self.producer_id(states, producer)
            entry = states.entry(producer_id)
            epoch = 0 if entry is None else entry.epoch + (protocol == BUMPING)
            one = states.check_marker(
                Marker(producer_id, ProducerEpoch(epoch), is_commit, LeaderEpoch(1), protocol)
            )
            if one is not None:
                decided.append(one)
        if decided:
            made = control_batch(self.end, *decided, epoch=self.leader_epoch)
            self.opened.append(made)
            self.written.append(Written(made, decided))

    @rule()
    def flush(self) -> None:
        self.opened.log.flusher.flush()
        self.flushed = self.end

    @rule()
    def checkpoint(self) -> None:
        self.opened.checkpoint()
        self.flushed = self.end

    @rule()
    def roll(self) -> None:
        was_empty = self.opened.log.segments[-1].size == 0
        self.opened.log.writer.roll(NOW)
        self.flushed = self.flushed if was_empty else self.end

    @rule(part=st.floats(0, 1))
    def commit(self, part: float) -> None:
        self.high_watermark += int(part * (self.end - self.high_watermark))
        self.opened.log.high_watermark = Offset(self.high_watermark)

    @precondition(lambda self: self.written)
    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        self.flush()  # Then loss of power does not undo the cut.
        offset = self.high_watermark + int(part * (self.end - self.high_watermark))
        self.opened.log.truncation.truncate_to(Offset(offset), NOW)
        self.written = [one for one in self.written if one.batch.next_offset <= offset]
        self.flushed = min(self.flushed, self.end)
        self.leader_epoch += 1
        self.settle()

    @precondition(lambda self: self.high_watermark > self.start)
    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        self.start += int(part * (self.high_watermark - self.start))
        self.opened.log.retention.advance_log_start(Offset(self.start))
        self.flushed = self.opened.log.flushed_offset

    @rule(is_clean=st.booleans())
    def reopen(self, is_clean: bool) -> None:
        if is_clean:
            self.opened.directory.close(clean=True)
            self.disk.restart()
        else:
            self.disk.cut_power()
        self.opened = LogOnDisk(self.disk, CONFIG)
        end = self.opened.log.log_end_offset
        assert end >= self.flushed
        self.written = [one for one in self.written if one.batch.next_offset <= end]
        assert self.end == end
        self.flushed = self.opened.log.flushed_offset
        self.start = self.opened.log.log_start_offset
        self.high_watermark = min(self.high_watermark, end)
        self.leader_epoch += 1
        self.settle()

    def settle(self) -> None:
        self.high_watermark = max(min(self.high_watermark, self.end), self.start)
        self.opened.log.high_watermark = Offset(self.high_watermark)

    @rule()
    def lose_indexes(self) -> None:
        for found in self.opened.log.segments:
            found.index.is_damaged = found.index.verify() > 0

    # --- What holds --------------------------------------------------------------------------

    @invariant()
    def states_are_those_of_a_replay(self) -> None:
        found, expected = self.opened.log.producer_states.copy(), self.states
        for states in (found, expected):
            states.transactions.settle(Offset(self.high_watermark))
        if self.start == 0:
            assert found == expected
        assert found.open_entries() == expected.open_entries()

    @invariant()
    def every_snapshot_and_the_rest_give_the_states(self) -> None:
        for count in range(len(self.written)):
            states = ProducerStates()
            states.restore(self.replayed(count).snapshot())
            for one in self.written[count:]:
                states.update(one.batch, one.batch.base_offset, NOW)
                states.end(one.markers, one.batch.base_offset, NOW)
            assert states == self.states

    @invariant()
    def the_index_has_what_the_markers_say(self) -> None:
        log = self.opened.log
        kept = log.segments[0].base_offset
        for start in range(log.log_start_offset, self.end + 1, 3):
            for end in (start, start + 1, start + 7, self.end):
                expected = [
                    (marker.producer_id, first, last)
                    for one in self.written
                    if one.batch.base_offset >= max(start, kept)
                    for marker, first, last in one.markers
                    if not marker.is_commit and 0 <= first < end
                ]
                found = log.reader.aborted(Offset(start), Offset(end))
                relevant = [one for one in found if one.last_offset >= start]
                assert relevant == [one for one in expected if one[2] >= start]

    @invariant()
    def what_is_stable_is_decided(self) -> None:
        undecided = self.opened.log.undecided
        for high_watermark in range(self.high_watermark, self.end + 1):
            below = [one for one in self.written if one.batch.base_offset < high_watermark]
            open_since: dict[int, int] = {}
            for one in below:
                for marker, *_ in one.markers:
                    open_since.pop(marker.producer_id, None)
                if one.batch.attributes & Attributes.TRANSACTIONAL:
                    open_since.setdefault(one.batch.producer_id, one.batch.base_offset)
            expected = min([high_watermark, *open_since.values()])
            assert undecided.last_stable_offset(Offset(high_watermark)) == expected


class ManyEpochs(TransactionMachine):
    """The same with the epochs that there really are."""

    epoch_max = 32_767


TestTransactionsWithTwoEpochs = TransactionMachine.TestCase
TestTransactions = ManyEpochs.TestCase
TestTransactionsWithTwoEpochs.settings = TestTransactions.settings = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_producers_of_deleted_records_are_known_after_a_loss_of_power() -> None:
    """P45: a snapshot within a segment is a cache, and that at its begin is all there is."""
    machine = TransactionMachine()
    machine.begin(seed=0)
    machine.append(in_transaction=True, producer=0, records=1)
    machine.roll()
    machine.append(in_transaction=True, producer=0, records=1)
    machine.checkpoint()
    machine.commit(part=1.0)
    machine.delete_records(part=1.0)
    machine.reopen(is_clean=False)
    machine.states_are_those_of_a_replay()
    assert machine.start == machine.end == 2
