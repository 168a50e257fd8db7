"""A compacted log against a list of its records, on a disk that loses power and fills up.

Whatever happens: what is left of the log are some of the records that were written, in their order
and at their offsets; each key has its last value; nothing but a later record or a tombstone removes
one; and no offset is without a batch.
"""

from collections.abc import Callable
from contextlib import suppress

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.fakes.disk import Disk, PowerCut
from tests.fakes.keyed_batches import KeyedRecord, batches_in, keyed_batch, latest, records_in
from tests.fakes.log_on_disk import EVERYWHERE, NOW, LogOnDisk

from millrace.broker.storage.log_config import LogConfig
from millrace.core.errors import StorageFullError
from millrace.core.ids import Offset, WallMs
from millrace.core.replica.compaction.cleanable import CompactionLags
from millrace.core.replica.compaction.key_hashes import KeyHasher

RETENTION_MS = 1000
CONFIG = LogConfig(
    segment_bytes=1500,
    index_interval_bytes=200,
    is_compacted=True,
    delete_retention_ms=RETENTION_MS,
    lags=CompactionLags(min_dirty_ratio=0.0),
)
HASHER = KeyHasher(b"a secret of the test")
SMALL_MAP = 1
"""Bytes: the map has its least size, 57 keys."""
KEYS = st.one_of(st.none(), st.integers(0, 5).map(lambda number: b"key-%d" % number), st.binary())
CELLS = st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=30)))


class CompactedLogMachine(RuleBasedStateMachine):
    """`written` has all records, also those that compaction has removed.

    Attributes:
        cleaned_to: compaction may have removed records before it, for later ones before it.
    """

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.disk = Disk(seed)
        self.written: list[KeyedRecord] = []
        self.flushed = 0
        self.epoch = 0
        self.cleaned_to = 0
        self.now = NOW
        self.opened = LogOnDisk(self.disk, CONFIG)
        self.opened.log.cleaner.tombstones_end = EVERYWHERE

    def do(self, action: Callable[[], object]) -> bool:
        """Do something to the log; return whether the power stayed."""
        try:
            action()
        except PowerCut:
            self.disk.capacity = None
            self.disk.cut_power()
            self.reopen(self.flushed)
            return False
        return True

    def reopen(self, at_least: int) -> None:
        self.opened = LogOnDisk(self.disk, CONFIG)
        self.opened.log.cleaner.tombstones_end = EVERYWHERE
        log = self.opened.log
        assert log.log_end_offset >= at_least
        self.written = [record for record in self.written if record.offset < log.log_end_offset]
        self.flushed = log.flushed_offset
        log.high_watermark = log.log_end_offset
        self.epoch = max(self.epoch, log.leader_epochs.latest_epoch) + 1

    @rule(
        cells=st.lists(CELLS, min_size=1, max_size=8),
        codec=st.sampled_from(["none", "lz4"]),
        as_kafka=st.booleans(),
    )
    def append(
        self, cells: list[tuple[bytes | None, bytes | None]], codec: str, as_kafka: bool = False
    ) -> None:
        end = self.opened.end
        batch = keyed_batch(end, cells, epoch=self.epoch, codec=codec, as_kafka=as_kafka)
        made = [KeyedRecord(end + number, *cell) for number, cell in enumerate(cells)]
        self.written += made
        if self.do(lambda: self.opened.append(batch)):
            self.opened.log.high_watermark = self.opened.end

    @rule()
    def roll(self) -> None:
        if self.do(lambda: self.opened.log.writer.roll(self.now)):
            self.flushed = self.opened.log.flushed_offset

    @rule()
    def new_leader_epoch(self) -> None:
        self.epoch += 1

    @rule(later_ms=st.integers(1, 2 * RETENTION_MS))
    def wait(self, later_ms: int) -> None:
        self.now = WallMs(self.now + later_ms)

    def cleaned(self, map_bytes: int = 1 << 20) -> None:
        self.cleaned_to = max(self.cleaned_to, self.opened.log.segments[-1].base_offset)
        for _ in self.opened.log.cleaner.clean(HASHER, map_bytes, self.now):
            pass

    @rule(is_small=st.booleans())
    def clean(self, is_small: bool) -> None:
        self.do(lambda: self.cleaned(SMALL_MAP if is_small else 1 << 20))

    @rule(calls=st.integers(1, 40))
    def clean_until_the_power_goes(self, calls: int) -> None:
        self.disk.cut_power_at = self.disk.calls + calls
        self.do(self.cleaned)
        self.disk.cut_power_at = None

    @rule(room=st.integers(0, 1500))
    def clean_on_a_full_disk(self, room: int) -> None:
        self.disk.capacity = room + sum(map(self.disk.size, self.disk.files()))
        with suppress(StorageFullError):
            self.do(self.cleaned)
        self.disk.capacity = None

    @rule()
    def clean_half_and_kill(self) -> None:
        self.cleaned_to = max(self.cleaned_to, self.opened.log.segments[-1].base_offset)
        steps = self.opened.log.cleaner.clean(HASHER, 1 << 20, self.now)
        next(steps, None)
        self.disk.restart()
        self.reopen(self.opened.end)

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """As after an unclean election; a batch that holds the offset goes as a whole.

        All is flushed before, so the truncation is durable. If the records go for which compaction
        has removed others, those do not come back.
        """
        if not self.do(self.opened.log.flusher.flush):
            return
        offset = data.draw(st.integers(0, self.written[-1].offset + 1))
        before, self.flushed = self.flushed, 0
        if self.do(lambda: self.opened.log.truncation.truncate_to(Offset(offset), self.now)):
            self.flushed = min(before, self.opened.end)
            self.written = [record for record in self.written if record.offset < self.opened.end]
            self.opened.log.high_watermark = self.opened.end
            self.epoch += 1
        if self.opened.end < self.cleaned_to:
            by_offset = {record.offset: record for record in self.written}
            found = records_in(self.opened.log)
            assert all(by_offset[record.offset] == record for record in found)
            self.written = found
            self.cleaned_to = 0

    @invariant()
    def each_key_has_its_last_value(self) -> None:
        log = self.opened.log
        found = records_in(log)
        by_offset = {record.offset: record for record in self.written}
        assert all(by_offset[record.offset] == record for record in found)
        assert [record.offset for record in found] == sorted({record.offset for record in found})
        keyed = [record for record in self.written if record.key is not None]
        assert latest(record for record in found if record.key is not None) == latest(keyed)
        kept = {record.offset for record in found}
        assert all(record.offset in kept for record in self.written if record.key is None)
        at, epoch = log.log_start_offset, 0
        for header, _ in batches_in(log):
            assert header.base_offset == at
            assert header.leader_epoch >= epoch
            assert log.leader_epochs.epoch_of(header.base_offset) == header.leader_epoch
            at, epoch = header.next_offset, header.leader_epoch
        assert at == log.log_end_offset
        assert log.state.cleaner_point.offset <= max(log.log_end_offset, 0)


TestCompactedLog = CompactedLogMachine.TestCase
TestCompactedLog.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    derandomize=True,
    # A failure is a story of at most 40 steps; making it shorter takes longer than reading it.
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)
