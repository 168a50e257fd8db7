"""Logs with transactions are compacted again and again, against a dictionary (T3).

Whatever is written and cleaned: a reader of committed records that begins at the log's start gets
the last committed value of each key, and a replica that copies the log knows the same producers.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.disk import Disk
from tests.fakes.keyed_batches import batches_in, keyed_batch
from tests.fakes.log_on_disk import EVERYWHERE, NOW, LogOnDisk
from tests.fakes.stamped_batches import TOPIC_PARTITION, control_batch

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.batch import open_batch
from millrace.core.records.header import HEADER_BYTES
from millrace.core.records.markers import BUMPING, NOT_BUMPING, Marker
from millrace.core.replica.compaction.cleanable import CompactionLags
from millrace.core.replica.compaction.key_hashes import KeyHasher

HASHER = KeyHasher(b"a secret of the test")
HOUR = 3_600_000
CONFIG = LogConfig(
    is_compacted=True,
    segment_bytes=1500,
    index_interval_bytes=300,
    delete_retention_ms=2 * HOUR,
    lags=CompactionLags(min_dirty_ratio=0.0),
)
PRODUCERS = 3

Cells = list[tuple[bytes, bytes | None]]


class CompactedTransactions:
    """The log, and what a reader should get: committed values, and those of open transactions."""

    def __init__(self, *, may_remove: bool) -> None:
        self.opened = LogOnDisk(Disk(), CONFIG)
        self.log = self.opened.log
        self.log.cleaner.tombstones_end = EVERYWHERE if may_remove else Offset(0)
        self.now = NOW
        self.values: dict[bytes, bytes | None] = {}
        self.open: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
        self.offsets: dict[bytes, int] = {}
        self.written = 0

    def write(self, producer: int, keys: list[int], *, in_transaction: bool) -> None:
        entry = self.log.producer_states.entry(ProducerId(producer))
        is_open = entry is not None and entry.first_offset >= 0
        cells: Cells = []
        for key in keys:
            self.written += 1
            value = None if self.written % 5 == 0 else b"value %d" % self.written
            cells.append((b"key %d" % key, value))
        base = self.opened.end
        self.opened.append(
            keyed_batch(
                base,
                cells,
                producer_id=producer,
                producer_epoch=entry.epoch if entry else 0,
                sequence=entry.batches[-1].last_sequence + 1 if entry and entry.batches else 0,
                in_transaction=in_transaction or is_open,
                as_kafka=self.written % 3 == 0,
            )
        )
        placed = [(base + number, *cell) for number, cell in enumerate(cells)]
        if in_transaction or is_open:
            self.open.setdefault(producer, []).extend(placed)
        else:
            self.count(placed)

    def count(self, placed: list[tuple[int, bytes, bytes | None]]) -> None:
        """Readers see these records: of each key the one of the largest offset is the last."""
        for offset, key, value in placed:
            if offset > self.offsets.get(key, -1):
                self.offsets[key] = offset
                self.values[key] = value

    def finish(self, producer: int, *, is_commit: bool, protocol: int) -> None:
        states = self.log.producer_states
        entry = states.entry(ProducerId(producer))
        epoch = ProducerEpoch((entry.epoch if entry else 0) + (protocol == BUMPING))
        decided = states.check_marker(
            Marker(ProducerId(producer), epoch, is_commit, LeaderEpoch(1), protocol)
        )
        if decided is not None:
            self.opened.append(control_batch(self.opened.end, decided))
            placed = self.open.pop(producer, [])
            if is_commit:
                self.count(placed)

    def clean(self) -> None:
        self.log.high_watermark = self.opened.end
        self.log.writer.roll(WallMs(self.now))
        self.now = WallMs(self.now + HOUR)
        for _ in self.log.cleaner.clean(HASHER, 1 << 16, self.now):
            pass

    def read_committed(self) -> dict[bytes, bytes | None]:
        """The last values that a reader of committed records gets."""
        log, found = self.log, dict[bytes, bytes | None]()
        end = log.undecided.last_stable_offset(self.opened.end)
        aborted = log.reader.aborted(Offset(0), end)
        for header, batch in batches_in(log):
            is_aborted = header.is_transactional and any(
                one.producer_id == header.producer_id
                and one.first_offset <= header.base_offset <= one.last_offset
                for one in aborted
            )
            if header.base_offset >= end or header.is_control or is_aborted:
                continue
            opened = open_batch(TOPIC_PARTITION, header, batch, header.inflated_length)
            columns = (opened.column(name).to_pylist() for name in ("key", "value"))
            found.update(dict(zip(*columns, strict=True)))
        return found


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"),
            st.integers(0, PRODUCERS - 1),
            st.lists(st.integers(0, 4), min_size=1, max_size=3),
            st.booleans(),
        ),
        st.tuples(
            st.just("finish"),
            st.integers(0, PRODUCERS - 1),
            st.booleans(),
            st.sampled_from((BUMPING, NOT_BUMPING)),
        ),
        st.tuples(st.just("clean")),
    ),
    min_size=5,
    max_size=60,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(ACTIONS, st.booleans())
def test_readers_of_a_compacted_log_get_what_was_committed(
    actions: list[tuple[object, ...]], may_remove: bool
) -> None:
    the = CompactedTransactions(may_remove=may_remove)
    for action in actions:
        match action:
            case ("write", int(producer), list(keys), bool(in_transaction)):
                the.write(producer, keys, in_transaction=in_transaction)
            case ("finish", int(producer), bool(is_commit), int(protocol)):
                the.finish(producer, is_commit=is_commit, protocol=protocol)
            case _:
                the.clean()
    for producer in [*the.open]:
        the.finish(producer, is_commit=producer % 2 == 0, protocol=BUMPING)
    for _ in range(4):
        kept = {key: value for key, value in the.read_committed().items() if value is not None}
        assert kept == {key: value for key, value in the.values.items() if value is not None}
        the.clean()
    copied = LogOnDisk(Disk(), CONFIG)
    for header, batch in batches_in(the.log):
        copied.append(StampedBatch.of(header, batch[:HEADER_BYTES], batch[HEADER_BYTES:]))
    assert copied.log.producer_states.open_entries() == []
    for producer in range(PRODUCERS):
        known = the.log.producer_states.entry(ProducerId(producer))
        found = copied.log.producer_states.entry(ProducerId(producer))
        assert (known is None) == (found is None)
        if known is not None and found is not None:
            assert (found.epoch, found.coordinator_epoch) == (known.epoch, known.coordinator_epoch)
            assert [one.last_sequence for one in found.batches[-1:]] == [
                one.last_sequence for one in known.batches[-1:]
            ]
