"""A log with transactions is compacted: aborted records, committed ones, and markers (T3)."""

from tests.fakes.disk import Disk
from tests.fakes.keyed_batches import batches_in, keyed_batch, records_in
from tests.fakes.log_on_disk import EVERYWHERE, NOW, LogOnDisk
from tests.fakes.stamped_batches import TOPIC_PARTITION, control_batch

from millrace.broker.storage.log_config import LogConfig
from millrace.broker.storage.stamped_batch import StampedBatch
from millrace.core.ids import LeaderEpoch, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.header import HEADER_BYTES, BatchHeader
from millrace.core.records.markers import Marker, WrittenMarker, read_markers
from millrace.core.replica.compaction.cleanable import CompactionLags
from millrace.core.replica.compaction.key_hashes import KeyHasher

HASHER = KeyHasher(b"a secret of the test")
DAY = 86_400_000
COMPACTED = LogConfig(
    is_compacted=True,
    index_interval_bytes=200,
    delete_retention_ms=DAY,
    lags=CompactionLags(min_dirty_ratio=0.0),
)


class TransactionalLog(LogOnDisk):
    """A compacted log at the only replica: what is written is committed."""

    def __init__(self, disk: Disk) -> None:
        super().__init__(disk, COMPACTED)
        self.log.high_watermark = self.end
        self.log.cleaner.tombstones_end = EVERYWHERE

    def write(self, producer_id: int, *cells: tuple[bytes | None, bytes | None]) -> None:
        """Append one transactional batch."""
        entry = self.log.producer_states.entry(ProducerId(producer_id))
        sequence = entry.batches[-1].last_sequence + 1 if entry and entry.batches else 0
        self.append(
            keyed_batch(
                self.end,
                cells,
                producer_id=producer_id,
                producer_epoch=entry.epoch if entry else 0,
                sequence=sequence,
                in_transaction=True,
            )
        )
        self.log.high_watermark = self.end

    def write_plain(self, *cells: tuple[bytes, bytes | None]) -> None:
        self.append(keyed_batch(self.end, cells))
        self.log.high_watermark = self.end

    def finish(self, *producer_ids: int, is_commit: bool) -> None:
        """Append the markers of producers' transactions."""
        states = self.log.producer_states
        decided = []
        for producer_id in producer_ids:
            entry = states.entry(ProducerId(producer_id))
            epoch = ProducerEpoch(entry.epoch + 1 if entry else 1)
            written = states.check_marker(
                Marker(ProducerId(producer_id), epoch, is_commit, LeaderEpoch(1))
            )
            assert written is not None
            decided.append(written)
        self.append(control_batch(self.end, *decided))
        self.log.high_watermark = self.end

    def clean(self, now: int = NOW) -> None:
        self.log.writer.roll(NOW)
        for _ in self.log.cleaner.clean(HASHER, 1 << 20, WallMs(now)):
            pass

    @property
    def headers(self) -> list[BatchHeader]:
        return [header for header, _ in batches_in(self.log)]

    @property
    def markers(self) -> list[WrittenMarker]:
        return [
            marker
            for header, batch in batches_in(self.log)
            if header.is_control
            for marker in read_markers(TOPIC_PARTITION, header, batch)
        ]

    @property
    def values(self) -> list[tuple[bytes, bytes | None]]:
        return [(one.key, one.value) for one in records_in(self.log) if one.key is not None]


def test_aborted_records_go_and_delete_nothing() -> None:
    the = TransactionalLog(Disk())
    the.write_plain((b"a", b"1"), (b"b", b"1"))
    the.write(7, (b"a", b"aborted"), (b"b", None))
    the.finish(7, is_commit=False)
    the.clean()
    assert the.values == [(b"a", b"1"), (b"b", b"1")]


def test_committed_records_replace_earlier_ones_and_become_plain() -> None:
    the = TransactionalLog(Disk())
    the.write_plain((b"a", b"1"), (b"b", b"1"))
    the.write(7, (b"a", b"2"))
    the.finish(7, is_commit=True)
    the.write_plain((b"c", b"3"))
    the.clean()
    assert the.values == [(b"b", b"1"), (b"a", b"2"), (b"c", b"3")]
    assert not any(header.is_transactional for header in the.headers)


def test_cleaning_ends_at_the_last_stable_offset() -> None:
    the = TransactionalLog(Disk())
    the.write_plain((b"a", b"1"))
    the.write(7, (b"a", b"open"))
    the.write_plain((b"a", b"2"))
    the.clean()
    assert [value for _, value in the.values] == [b"1", b"open", b"2"]
    the.finish(7, is_commit=False)
    the.log.high_watermark = Offset(3)  # The marker is not committed.
    the.clean()
    assert [value for _, value in the.values] == [b"1", b"open", b"2"]
    the.log.high_watermark = the.end
    the.clean()
    assert [value for _, value in the.values] == [b"2"]


def test_a_marker_in_a_later_segment_decides_about_earlier_ones() -> None:
    the = TransactionalLog(Disk())
    the.write_plain((b"a", b"1"))
    the.write(7, (b"a", b"aborted"))
    the.log.writer.roll(NOW)
    the.write_plain((b"c", b"1"))
    the.log.writer.roll(NOW)
    the.finish(7, is_commit=False)
    the.clean()
    assert the.values == [(b"a", b"1"), (b"c", b"1")]


def test_a_marker_outlives_its_records_and_its_horizon() -> None:
    the = TransactionalLog(Disk())
    the.write(7, (b"a", b"aborted"))
    the.finish(7, is_commit=False)
    the.write(7, (b"a", b"2"))
    the.finish(7, is_commit=True)
    the.clean()
    first, second = the.markers
    assert [header.is_control for header in the.headers if header.record_count] == [
        True,
        False,
        True,
    ]
    assert the.log.cleaner.cleanable(WallMs(NOW + DAY)).is_due
    assert not the.log.cleaner.cleanable(WallMs(NOW + DAY - 1)).is_due
    the.clean(NOW + DAY - 1)
    assert the.markers == [first, second]
    the.clean(NOW + DAY)
    assert the.markers == [second]  # It fences what is late.
    assert not the.log.cleaner.cleanable(WallMs(NOW + 9 * DAY)).is_due


def test_of_one_control_batch_the_last_markers_stay() -> None:
    the = TransactionalLog(Disk())
    the.write(7, (b"a", b"1"))
    the.write(8, (b"b", b"1"))
    the.finish(7, 8, is_commit=False)
    the.write(8, (b"b", b"2"))
    the.finish(8, is_commit=True)
    everything = Offset(0), the.end
    the.clean()
    assert [one.producer_id for one in the.log.reader.aborted(*everything)] == [7, 8]
    the.clean(NOW + DAY)
    assert [one.marker.producer_id for one in the.markers] == [7, 8]
    assert [one.producer_id for one in the.log.reader.aborted(*everything)] == [7]


def test_aborted_records_without_a_key_go_too() -> None:
    the = TransactionalLog(Disk())
    the.write(7, (None, b"aborted"))
    the.finish(7, is_commit=False)
    the.write(7, (None, b"committed"))
    the.finish(7, is_commit=True)
    the.clean()
    found = [one.value for one in records_in(the.log) if one.key is None]
    assert b"aborted" not in found
    assert b"committed" in found


def test_no_transaction_opens_again_where_all_markers_are_gone() -> None:
    the = TransactionalLog(Disk())
    for is_commit in (True, False, True):
        the.write(7, (b"%d" % the.end, b"value" * 5000))
        the.finish(7, is_commit=is_commit)
    the.clean()
    assert the.log.expire_producers(WallMs(NOW + 1)) == 1
    the.clean(NOW + 1)  # Now the horizon of the last marker begins, too.
    the.clean(NOW + 2 * DAY)
    assert the.markers == []
    copied = LogOnDisk(Disk(), COMPACTED)
    for header, batch in batches_in(the.log):
        copied.append(_copied(header, batch))
    assert copied.log.producer_states.open_entries() == []
    assert copied.log.undecided.last_stable_offset(copied.end) == copied.end


def test_markers_stay_until_every_replica_has_compacted_what_they_end() -> None:
    the = TransactionalLog(Disk())
    the.write(7, (b"a", b"aborted"))
    the.finish(7, is_commit=False)
    the.write(7, (b"a", b"2"))
    the.finish(7, is_commit=True)
    the.clean()
    the.log.cleaner.tombstones_end = Offset(0)
    the.clean(NOW + DAY)
    assert len(the.markers) == 2


def test_the_aborted_index_is_that_of_the_markers_which_stay() -> None:
    the = TransactionalLog(Disk())
    the.write(7, (b"a", b"aborted"))
    the.finish(7, is_commit=False)
    the.log.writer.roll(NOW)
    the.write(7, (b"b", b"aborted"))
    the.finish(7, is_commit=False)
    everything = Offset(0), the.end
    before = the.log.reader.aborted(*everything)
    assert [one.first_offset for one in before] == [0, 2]
    the.clean()
    assert the.log.reader.aborted(*everything) == before
    the.clean(NOW + DAY)
    assert the.log.reader.aborted(*everything) == before[1:]
    the.log.flusher.checkpoint()
    the.directory.close(clean=True)
    the.disk.restart()
    assert LogOnDisk(the.disk, COMPACTED).log.reader.aborted(*everything) == before[1:]


def test_a_replica_that_copies_a_cleaned_log_knows_the_same_producers() -> None:
    the = TransactionalLog(Disk())
    for number in range(4):
        the.write(7, (b"a", b"%d" % number))
        the.finish(7, is_commit=number % 2 == 0)
    the.write(8, (b"b", b"1"))
    the.finish(8, is_commit=False)
    the.write_plain((b"c", b"1"))
    the.clean()
    the.clean(NOW + DAY)
    assert len(the.markers) == 2
    for producer_id in (7, 8):
        known = the.log.producer_states.entry(ProducerId(producer_id))
        states = LogOnDisk(Disk(), COMPACTED)
        for header, batch in batches_in(the.log):
            states.append(_copied(header, batch))
        copied = states.log.producer_states.entry(ProducerId(producer_id))
        assert known is not None
        assert copied is not None
        assert copied[:1] + copied[3:] == known[:1] + known[3:]


def test_batches_of_different_producers_are_not_put_into_one_transaction() -> None:
    the = TransactionalLog(Disk())
    the.write(7, (b"a", b"7"))
    the.write(8, (b"b", b"8"))
    the.finish(7, is_commit=False)
    the.finish(8, is_commit=True)
    the.clean()
    assert the.values == [(b"b", b"8")]
    aborted = the.log.reader.aborted(Offset(0), the.end)
    assert [one.producer_id for one in aborted] == [7]


def _copied(header: BatchHeader, batch: bytes) -> StampedBatch:
    return StampedBatch.of(header, batch[:HEADER_BYTES], batch[HEADER_BYTES:])
