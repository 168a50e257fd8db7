"""Places are found by offset, position and time, in memory and in the file."""

from bisect import bisect_left, bisect_right

import pytest
from tests.fakes.disk import Disk
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.broker.storage.aborted_index import NEVER, Abort
from millrace.broker.storage.index_chunks import Coverage
from millrace.broker.storage.sparse_index import (
    CHUNKS_MAX,
    IndexCache,
    Place,
    SparseIndex,
)
from millrace.core.ids import NO_TIMESTAMP, Offset, ProducerId, TopicId, WallMs
from millrace.core.records.markers import AbortedTransaction

BASE = Offset(1000)
STEP = 7


def index_on(disk: Disk, cache_bytes: int = 1 << 20) -> SparseIndex:
    return SparseIndex(disk, "/segment", TOPIC_PARTITION, BASE, IndexCache(cache_bytes))


def coverage(entries: int, closed_at: int = NO_TIMESTAMP) -> Coverage:
    """Of a segment whose entries 0, 1, ... are 7 offsets, 100 bytes and 10 ms apart."""
    return Coverage(
        Offset(BASE + STEP * entries),
        100 * entries,
        WallMs(10 * entries),
        WallMs(1),
        WallMs(closed_at),
    )


def place(entry: int) -> Place:
    return Place(Offset(BASE + STEP * entry), 100 * entry)


def add(index: SparseIndex, entries: range) -> None:
    for entry in entries:
        index.add(place(entry).offset, place(entry).position, WallMs(10 * entry))


def assert_finds(index: SparseIndex, entries: int) -> None:
    """Every search finds what a search of the whole list finds."""
    known = range(1, entries)
    offsets, positions = ([place(n)[column] for n in known] for column in (0, 1))
    times = [10 * n for n in known]
    for offset in range(BASE, BASE + STEP * entries + 3):
        assert index.floor_of_offset(Offset(offset)) == place(bisect_right(offsets, offset))
    for position in range(0, 100 * entries + 3, 13):
        assert index.floor_of_position(position) == place(bisect_right(positions, position))
    for time in range(0, 10 * entries + 3):
        assert index.floor_of_time(WallMs(time)) == place(bisect_left(times, time))


def test_an_empty_index_points_to_the_beginning() -> None:
    assert_finds(index_on(Disk()), 1)


def test_entries_in_memory_are_found() -> None:
    index = index_on(Disk())
    add(index, range(1, 30))
    assert_finds(index, 30)


def test_entries_in_the_file_and_in_memory_are_found_together() -> None:
    disk = Disk()
    index = index_on(disk)
    add(index, range(1, 10))
    index.save(coverage(10))
    add(index, range(10, 20))
    index.save(coverage(20))
    add(index, range(20, 30))
    assert_finds(index, 30)
    again = index_on(disk)
    assert again.open(whole=True) == coverage(20)
    assert_finds(again, 20)


def test_only_what_is_covered_is_written() -> None:
    disk = Disk()
    index = index_on(disk)
    add(index, range(1, 20))
    index.save(coverage(12))
    assert_finds(index, 20)
    again = index_on(disk)
    assert again.open(whole=True) == coverage(12)
    assert_finds(again, 12)


def test_closing_makes_one_chunk() -> None:
    disk = Disk()
    index = index_on(disk)
    for start in range(1, 10):
        add(index, range(start, start + 1))
        index.save(coverage(start + 1))
    assert index_on(disk).open(whole=False) is None, "many chunks, so not closed"
    index.save(coverage(10, closed_at=99))
    again = index_on(disk)
    assert again.open(whole=False) == coverage(10, closed_at=99)
    assert_finds(again, 10)


def test_an_index_of_many_chunks_is_made_one() -> None:
    disk = Disk()
    index = index_on(disk)
    for _ in range(CHUNKS_MAX + 1):
        index.save(coverage(1))
    assert disk.size("/segment.index") == 64


@pytest.mark.parametrize("whole", [True, False])
def test_a_missing_file_or_one_of_another_segment_covers_nothing(whole: bool) -> None:
    disk = Disk()
    assert index_on(disk).open(whole=whole) is None
    SparseIndex(disk, "/segment", TOPIC_PARTITION, Offset(5), IndexCache(0)).save(coverage(1))
    assert index_on(disk).open(whole=whole) is None


@pytest.mark.parametrize("whole", [True, False])
def test_an_index_of_the_same_segment_of_another_partition_covers_nothing(whole: bool) -> None:
    disk = Disk()
    for other in (
        TOPIC_PARTITION._replace(partition=TOPIC_PARTITION.partition + 1),
        TOPIC_PARTITION._replace(topic_id=TopicId(bytes(16))),
    ):
        SparseIndex(disk, "/segment", other, BASE, IndexCache(0)).save(coverage(1))
        assert index_on(disk).open(whole=whole) is None


def test_a_chunk_that_was_torn_is_overwritten_by_the_next() -> None:
    disk = Disk()
    index = index_on(disk)
    add(index, range(1, 10))
    index.save(coverage(10))
    disk.write("/segment.index", disk.contents("/segment.index") + b"torn")
    again = index_on(disk)
    assert again.open(whole=True) == coverage(10)
    add(again, range(10, 15))
    again.save(coverage(15))
    third = index_on(disk)
    assert third.open(whole=True) == coverage(15)
    assert_finds(third, 15)


def test_a_full_disk_leaves_the_entries_in_memory() -> None:
    disk = Disk()
    index = index_on(disk)
    add(index, range(1, 10))
    disk.open("/segment.index", create=True)
    disk.capacity = 30
    index.save(coverage(10))
    assert_finds(index, 10)
    disk.capacity = None
    index.save(coverage(10))
    again = index_on(disk)
    assert again.open(whole=True) == coverage(10)


def test_the_cache_drops_what_was_idle_longest() -> None:
    disk = Disk()
    cache = IndexCache(bytes_max=16 * 25)
    indexes = [SparseIndex(disk, f"/{n}", TOPIC_PARTITION, BASE, cache) for n in range(3)]
    for index in indexes:
        add(index, range(1, 11))
        index.save(coverage(11))
        assert index.floor_of_offset(Offset(BASE + 8)) == place(1)
    assert cache.nbytes == 2 * 160
    assert cache.get(indexes[0]) is None
    assert cache.get(indexes[2]) is not None
    indexes[2].close()
    assert cache.nbytes == 160


def test_loading_from_the_disk_is_said_before_it_is_done() -> None:
    disk = Disk()
    index = index_on(disk)
    add(index, range(1, 11))
    index.save(coverage(11))
    with pytest.raises(BlockingIOError):
        index.floor_of_offset(BASE, may_block=False)
    index.floor_of_offset(BASE)
    assert index.floor_of_offset(Offset(BASE + 8), may_block=False) == place(1)


@pytest.mark.parametrize("cut_at", [0, 1, 5, 10, 11, 15, 29, 40])
@pytest.mark.parametrize("saved", [0, 10, 20])
def test_another_index_goes_on_with_the_entries_before_a_cut(saved: int, cut_at: int) -> None:
    disk = Disk()
    index = index_on(disk)
    add(index, range(1, saved))
    if saved:
        index.save(coverage(saved))
    add(index, range(max(saved, 1), 30))
    after = index_on(disk)
    known = after.take_before(index, 100 * cut_at)
    last = min(cut_at - 1, 29)
    if known is None:
        assert last < 1
        last = 0
    else:
        # The end of what the file covers will do, too.
        assert known[0] in (place(last), place(saved))
        assert known[1] == 10 * (known[0].position // 100)
    assert_finds(after, last + 1)
    witness = index_on(disk).open(whole=True)
    assert witness is None or witness.end_position <= 100 * cut_at
    add(after, range(last + 1, 50))
    after.save(coverage(50))
    again = index_on(disk)
    assert again.open(whole=True) == coverage(50)
    assert_finds(again, 50)


def test_a_damaged_index_leaves_nothing_to_another() -> None:
    disk = Disk()
    index = index_on(disk)
    add(index, range(1, 10))
    index.save(coverage(10))
    disk.flip_bit("/segment.index", 70)
    assert index.floor_of_offset(place(5).offset) == place(0)
    after = index_on(disk)
    assert after.take_before(index, 100 * 20) is None
    assert not after.is_damaged
    assert not disk.exists("/segment.index")


# --- Aborted transactions --------------------------------------------------------------------


def abort(entry: int, first: int | None = None) -> Abort:
    """A transaction that ended at an entry, of the records before it."""
    marker_offset = place(entry).offset
    first_offset = Offset(marker_offset - STEP if first is None else first)
    return Abort(
        AbortedTransaction(ProducerId(entry), first_offset, Offset(marker_offset - 1)),
        marker_offset,
    )


def aborted(index: SparseIndex, start: int, end: int) -> list[int] | None:
    found = index.aborted(Offset(start), Offset(end))
    return None if found is None else [one.producer_id for one in found]


def test_aborted_transactions_are_found_in_memory_in_the_file_and_in_both() -> None:
    disk = Disk()
    index = index_on(disk)
    for entry in range(1, 9):
        index.add_abort(abort(entry))
    assert aborted(index, BASE, place(20).offset) == [*range(1, 9)]
    index.save(coverage(5))
    assert aborted(index, BASE, place(20).offset) == [*range(1, 9)]
    assert aborted(index, place(3).offset - 1, place(5).offset) == [3, 4, 5]
    again = index_on(disk)
    assert again.open(whole=True) == coverage(5)
    assert aborted(again, BASE, place(20).offset) == [1, 2, 3, 4]
    index.save(coverage(9, closed_at=99))
    again = index_on(disk)
    assert again.open(whole=False) == coverage(9, closed_at=99)
    assert again.smallest_first == BASE
    assert aborted(again, BASE, place(20).offset) == [*range(1, 9)]


def test_without_aborted_transactions_the_file_is_what_earlier_releases_read() -> None:
    disk = Disk()
    index = index_on(disk)
    index.save(coverage(1))
    assert disk.contents("/segment.index")[:4] == b"MRX\x02"
    index.add_abort(abort(1))
    index.save(coverage(2))
    assert disk.contents("/segment.index")[64:68] == b"MRX\x03"
    assert index_on(disk).open(whole=True) == coverage(2)


def test_a_reader_that_may_not_wait_is_told_when_the_file_must_be_read() -> None:
    disk = Disk()
    index = index_on(disk)
    index.add_abort(abort(1))
    assert index.aborted(BASE, place(9).offset, may_block=False)
    index.save(coverage(2))
    with pytest.raises(BlockingIOError):
        index.aborted(BASE, place(9).offset, may_block=False)
    assert aborted(index, BASE, place(9).offset) == [1]
    assert index.aborted(BASE, place(9).offset, may_block=False)


def test_entries_that_another_thread_loaded_before_a_save_are_loaded_again() -> None:
    disk = Disk()
    cache = IndexCache(1 << 20)
    index = SparseIndex(disk, "/segment", TOPIC_PARTITION, BASE, cache)
    index.add_abort(abort(1))
    index.save(coverage(2))
    assert aborted(index, BASE, place(9).offset) == [1]
    before = cache.get(index)
    index.add_abort(abort(2))
    index.save(coverage(3))
    assert before is not None
    cache.put(index, before)  # By a thread that has read the file before.
    assert aborted(index, BASE, place(9).offset) == [1, 2]


def test_a_damaged_index_does_not_pretend_that_nothing_was_aborted() -> None:
    disk = Disk()
    index = index_on(disk)
    index.add_abort(abort(1))
    index.save(coverage(2))
    disk.flip_bit("/segment.index", 80)
    assert aborted(index, BASE, place(9).offset) is None
    with pytest.raises(BlockingIOError):
        index.aborted(BASE, place(9).offset, may_block=False)


@pytest.mark.parametrize("saved", [0, 3, 8])
@pytest.mark.parametrize("cut_at", [2, 5, 8])
def test_a_cut_keeps_the_aborted_transactions_before_it(saved: int, cut_at: int) -> None:
    disk = Disk()
    index = index_on(disk)
    for entry in range(1, 8):
        index.add(place(entry).offset, place(entry).position, WallMs(10 * entry))
        index.add_abort(abort(entry))
    if saved:
        index.save(coverage(saved))
    after = index_on(disk)
    known = after.take_before(index, 100 * cut_at)
    assert known is not None
    kept = [entry for entry in range(1, 8) if place(entry).offset < known[0].offset]
    assert aborted(after, BASE, place(99).offset) == kept
    assert after.smallest_first == (BASE if kept else NEVER)


def test_an_index_that_was_discarded_does_not_pretend_that_nothing_was_aborted() -> None:
    disk = Disk()
    index = index_on(disk)
    index.add_abort(abort(1))
    index.save(coverage(2))
    index.add_abort(abort(2))
    index.discard()
    assert not disk.exists("/segment.index")
    assert index.smallest_first == BASE
    assert aborted(index, BASE, place(9).offset) is None
    with pytest.raises(BlockingIOError):
        index.aborted(BASE, place(9).offset, may_block=False)
    index.save(coverage(3))  # Not all of its entries are known.
    assert not disk.exists("/segment.index")
    index.reset()
    assert aborted(index, BASE, place(9).offset) == []


@pytest.mark.parametrize("closed_at", [NO_TIMESTAMP, 99])
def test_a_damaged_index_is_not_written_again_without_its_aborted_transactions(
    closed_at: int,
) -> None:
    disk = Disk()
    index = index_on(disk)
    index.add_abort(abort(1))
    index.save(coverage(2))
    disk.flip_bit("/segment.index", 80)
    damaged = disk.contents("/segment.index")
    if closed_at == NO_TIMESTAMP:
        index.verify()
    index.add_abort(abort(2))
    index.save(coverage(3, closed_at=closed_at))
    assert disk.contents("/segment.index") == damaged
    assert index.is_damaged
