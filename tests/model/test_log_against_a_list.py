"""A partition's log against a plain list of batches, on a disk that crashes, fills up and fails.

Whatever happens: the log is a prefix of what was appended, it holds all that was flushed, and its
epochs and producers are those of its batches.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.fakes.disk import Disk, PowerCut
from tests.fakes.log_on_disk import NOW, LogOnDisk, batches_of
from tests.fakes.stamped_batches import bytes_of, stamped_batch

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.errors import LogDirFailedError, OffsetOutOfRangeError, StorageFullError
from millrace.core.ids import Offset
from millrace.core.replica.log.producer_snapshot import BATCHES_KEPT

CONFIG = LogConfig(segment_bytes=900, index_interval_bytes=200, checkpoint_bytes=2000)
PRODUCERS = 3


class LogMachine(RuleBasedStateMachine):
    """`batches` is what the log should hold, from offset 0 on; `start` hides the first of them.

    `cut` has what the log held before truncations that no flush has followed. Loss of power may
    undo these: the log makes a truncation durable at once only where it takes flushed batches away.
    """

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.disk = Disk(seed)
        self.batches: list[StampedBatch] = []
        self.cut: list[list[StampedBatch]] = []
        self.start = 0
        self.flushed = 0
        self.epoch = 0
        self.opened = LogOnDisk(self.disk, CONFIG)

    @property
    def end(self) -> int:
        return self.batches[-1].next_offset if self.batches else 0

    def next_batches(
        self, sizes: list[int], producer: int, kafka_sizes: int = 0
    ) -> list[StampedBatch]:
        made: list[StampedBatch] = []
        base = self.end
        for size in sizes:
            sent = [b for b in [*self.batches, *made] if b.producer_id == producer]
            sequence = sent[-1].last_sequence + 1 if sent else 0
            made.append(
                stamped_batch(
                    base,
                    records=1 + size % 3,
                    value=bytes([size]) * size,
                    timestamp=1000 + base % 7,
                    epoch=self.epoch,
                    producer_id=producer,
                    sequence=sequence if producer >= 0 else -1,
                    as_kafka=size < kafka_sizes,
                )
            )
            base = made[-1].next_offset
        return made

    def do(self, action: Callable[[], object], may_append: list[StampedBatch]) -> bool:
        """Do something to the log; when the power goes in the middle, see what is left of it."""
        try:
            action()
        except PowerCut:
            self.disk.capacity = None  # Opening a log needs some room.
            self.lose_power(may_append)
            return False
        return True

    def lose_power(self, may_append: Sequence[StampedBatch] = ()) -> None:
        self.disk.cut_power()
        self.reopen(self.flushed, [*self.batches, *may_append], *self.cut)
        self.cut = []

    def do_flush(self, flush: Callable[[], object]) -> None:
        has_news = self.opened.log.flushed_offset < self.end  # Else nothing is done.
        if self.do(flush, []):
            self.flushed = self.end
            if has_news:
                self.cut = []

    def reopen(self, at_least: int, *candidates: list[StampedBatch]) -> None:
        self.opened = LogOnDisk(self.disk, CONFIG)
        log = self.opened.log
        assert at_least <= log.log_end_offset
        held = batches_of(log, 700)
        prefixes = [
            [b for b in candidate if b.next_offset <= log.log_end_offset]
            for candidate in candidates
        ]
        self.batches = next(
            (
                prefix
                for prefix in prefixes
                if held.items() <= {b.base_offset: bytes_of(b) for b in prefix}.items()
            ),
            prefixes[0],
        )
        self.start = log.log_start_offset
        self.flushed = log.flushed_offset
        assert self.end == log.log_end_offset
        # A leader that comes back leads a new epoch.
        self.epoch = max(self.epoch, log.leader_epochs.latest_epoch) + 1

    @rule(
        sizes=st.lists(st.integers(0, 250), min_size=1, max_size=4),
        producer=st.integers(-1, PRODUCERS - 1),
        kafka_sizes=st.sampled_from([0, 125, 251]),
    )
    def append(self, sizes: list[int], producer: int, kafka_sizes: int) -> None:
        made = self.next_batches(sizes, producer, kafka_sizes)
        if self.do(lambda: self.opened.append(*made), made):
            self.batches += made

    @rule()
    def flush(self) -> None:
        self.do_flush(self.opened.log.flusher.flush)

    @rule()
    def checkpoint(self) -> None:
        self.do_flush(self.opened.checkpoint)

    @rule()
    def roll(self) -> None:
        self.do(lambda: self.opened.log.writer.roll(NOW), [])

    @rule()
    def new_leader_epoch(self) -> None:
        self.epoch += 1

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data())
    def advance_log_start(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        if self.do(lambda: self.opened.log.retention.advance_log_start(Offset(offset)), []):
            self.start = offset

    @rule(kept=st.integers(0, 3000))
    def retain_by_size(self, kept: int) -> None:
        log = self.opened.log
        log.config = replace(CONFIG, retention_bytes=kept)
        if self.do(lambda: log.retention.apply(NOW, log.log_end_offset), []):
            assert log.log_start_offset >= self.start
            self.start = log.log_start_offset
            assert log.size_bytes >= min(kept, log.size_bytes)

    @rule(kept=st.integers(0, 40))
    def retain_by_number(self, kept: int) -> None:
        log = self.opened.log
        log.config = replace(CONFIG, retention_records=kept)
        before = self.end - self.start
        if self.do(lambda: log.retention.apply(NOW, log.log_end_offset), []):
            self.start = log.log_start_offset
            assert self.end - self.start >= min(kept, before)

    @precondition(lambda self: self.end > self.start)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, self.end))
        kept = [batch for batch in self.batches if batch.next_offset <= offset]
        flushed_before = self.flushed
        self.cut.append(self.batches)
        self.flushed = min(self.flushed, kept[-1].next_offset if kept else 0)
        if self.do(lambda: self.opened.log.truncation.truncate_to(Offset(offset), NOW), []):
            self.batches = kept
            self.start = min(self.start, self.end)
            self.flushed = max(self.flushed, self.end if offset < flushed_before else 0)
            self.epoch += 1

    @rule(room=st.integers(0, 1500), sizes=st.lists(st.integers(0, 250), min_size=1, max_size=4))
    def append_to_a_full_disk(self, room: int, sizes: list[int]) -> None:
        made = self.next_batches(sizes, 0)
        self.disk.capacity = room + sum(map(self.disk.size, self.disk.files()))

        def append() -> None:
            try:
                self.opened.append(*made)
            except StorageFullError:
                made.clear()

        given = list(made)
        if self.do(append, given):
            self.batches += made
        self.disk.capacity = None

    @rule()
    def kill(self) -> None:
        self.disk.restart()
        self.reopen(self.end, self.batches)

    @rule()
    def cut_power(self) -> None:
        self.lose_power()

    @rule(calls=st.integers(1, 12))
    def cut_power_soon(self, calls: int) -> None:
        self.disk.cut_power_at = self.disk.calls + calls

    @rule()
    def stop_cleanly(self) -> None:
        def close() -> None:
            self.opened.directory.close(clean=True)

        if self.do(close, []):
            self.disk.restart()
            self.reopen(self.end, self.batches)
            assert self.opened.directory.was_clean
            assert self.opened.log.scanned_bytes == 0

    @precondition(lambda self: self.end > self.opened.log.flushed_offset)
    @rule(end=st.sampled_from(("power cut", "kill", "kill and eviction")))
    def flush_that_fails(self, end: str) -> None:
        """The disk forgets; until the page cache does too, nothing in it may be trusted."""
        self.disk.cut_power_at = None
        self.disk.fail_flush_at = self.disk.flushes + 1
        with pytest.raises(LogDirFailedError):
            self.opened.log.flusher.flush()
        with pytest.raises(LogDirFailedError):
            self.opened.append(*self.next_batches([1], 0))
        if end == "power cut":
            self.lose_power()
            return
        self.disk.restart()
        if end == "kill and eviction":
            self.disk.evict_all()
        self.reopen(self.flushed, self.batches, *self.cut)

    @rule(data=st.data(), max_bytes=st.integers(1, 2000))
    def read(self, data: st.DataObject, max_bytes: int) -> None:
        log = self.opened.log
        offset = data.draw(st.integers(0, self.end + 1))
        limit = data.draw(st.integers(0, self.end + 1))
        if not self.start <= offset <= self.end:
            with pytest.raises(OffsetOutOfRangeError):
                log.reader.plan_read(Offset(offset), max_bytes, Offset(limit))
            return
        plan = log.reader.plan_read(Offset(offset), max_bytes, Offset(limit))
        whole = [b for b in self.batches if b.next_offset > offset and b.next_offset <= limit]
        if plan is None:
            assert not whole or whole[0].base_offset > offset
            return
        found = log.reader.read(plan)
        count = sum(batch.next_offset <= plan.end_offset for batch in whole)
        assert found == b"".join(map(bytes_of, whole[:count]))
        assert len(found) <= max_bytes or count == 1

    @invariant()
    def it_holds_what_the_list_holds(self) -> None:
        log = self.opened.log
        visible = [batch for batch in self.batches if batch.next_offset > self.start]
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.flushed_offset <= self.end
        assert log.state.recovery_point <= log.flushed_offset
        assert batches_of(log, 700) == {b.base_offset: bytes_of(b) for b in visible}

    @invariant()
    def its_epochs_are_those_of_its_batches(self) -> None:
        epochs = self.opened.log.leader_epochs
        for batch in self.batches:
            if batch.base_offset >= self.start:
                assert epochs.epoch_of(batch.base_offset) == batch.leader_epoch

    @invariant()
    def its_producers_are_those_of_its_batches(self) -> None:
        states = self.opened.log.producer_states
        for producer in range(PRODUCERS):
            sent = [b.base_offset for b in self.batches if b.producer_id == producer]
            must_know = [offset for offset in sent if offset >= self.start][-BATCHES_KEPT:]
            entry = states.entry(producer)  # type: ignore[arg-type]
            known = [kept.base_offset for kept in entry.batches] if entry else []
            # Batches before the log start may be known from a snapshot, or forgotten.
            assert known[len(known) - len(must_know) :] == must_know
            assert known == sent[len(sent) - len(known) :]


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=100,
    stateful_step_count=25,
    derandomize=True,
    # A failure is a story of at most 25 steps; making it shorter takes longer than reading it.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
