"""Places are found by offset, position and time, in memory and in the file."""

from bisect import bisect_left, bisect_right

import pytest
from tests.fakes.disk import Disk
from tests.fakes.stamped_batches import TOPIC_PARTITION

from millrace.broker.storage.index_chunks import Coverage
from millrace.broker.storage.sparse_index import (
    CHUNKS_MAX,
    IndexCache,
    Place,
    SparseIndex,
)
from millrace.core.ids import NO_TIMESTAMP, Offset, TopicId, WallMs

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
