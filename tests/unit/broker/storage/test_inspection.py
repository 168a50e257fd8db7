"""Looking at files without a broker."""

import pytest
from tests.fakes.disk import Disk
from tests.fakes.log_on_disk import PARTITION, ROOT, LogOnDisk
from tests.fakes.stamped_batches import TOPIC_PARTITION, stamped_batch, transactions

from millrace.broker.storage import index_chunks, inspection
from millrace.broker.storage.aborted_index import Rows
from millrace.broker.storage.inspection import Finding, PartitionFiles, Severity
from millrace.broker.storage.log_config import LogConfig
from millrace.core.errors import CorruptBatchError
from millrace.core.ids import Offset

LENGTH = stamped_batch(0).length
CONFIG = LogConfig(segment_bytes=3 * LENGTH)


def stopped(*, flushed: int = 8) -> Disk:
    """Nine batches in three segments, of which `flushed` are before the recovery point."""
    opened = LogOnDisk(Disk(), CONFIG)
    for offset in range(9):
        opened.append(stamped_batch(offset))
        if offset + 1 == flushed:
            opened.checkpoint()
    opened.disk.restart()
    return opened.disk


def the_partition(disk: Disk) -> PartitionFiles:
    (partition,) = inspection.partitions(disk, ROOT)
    return partition


def test_log_directories_are_found_at_the_path_and_below_it() -> None:
    disk = stopped()
    for root in ("/", ROOT):
        ((path, identity),) = inspection.log_directories(disk, root.rstrip("/"))
        assert path == ROOT
        assert identity == ("cluster", 1, "directory")


def test_a_partition_is_described_without_touching_it() -> None:
    disk = stopped()
    calls = disk.calls
    partition = the_partition(disk)
    assert partition.topic_partition == TOPIC_PARTITION
    assert [found.base_offset for found in partition.segments] == [0, 3, 6]
    assert partition.point == (0, 8, 0)
    assert partition.leader_epochs == ((0, 0),)
    assert inspection.verify_partition(disk, partition).is_sound
    assert disk.calls == calls


def test_batches_are_listed_from_an_offset_on() -> None:
    disk = stopped()
    found = list(inspection.batches(disk, the_partition(disk), Offset(4)))
    assert [batch.header.base_offset for batch in found] == [4, 5, 6, 7, 8]
    assert [batch.position for batch in found] == [LENGTH, 2 * LENGTH, 0, LENGTH, 2 * LENGTH]


def test_a_sound_partition_has_no_findings() -> None:
    disk = stopped()
    seen = inspection.verify_partition(disk, the_partition(disk))
    assert seen.findings == []
    assert (seen.batches, seen.records, seen.log_end_offset) == (9, 9, 9)
    assert seen.size_bytes == 9 * LENGTH


def test_a_torn_tail_is_harmless() -> None:
    disk = stopped()
    active = f"{PARTITION}/{6:020}.log"
    disk.write(active, disk.contents(active)[:-1])
    (finding,) = inspection.verify_partition(disk, the_partition(disk)).findings
    assert finding.severity is Severity.HARMLESS
    assert (finding.path, finding.position) == (active, 2 * LENGTH)


@pytest.mark.parametrize(("path", "position"), [(0, LENGTH), (6, 0)])
def test_damage_before_the_recovery_point_is_corruption(path: int, position: int) -> None:
    disk = stopped()
    disk.flip_bit(f"{PARTITION}/{path:020}.log", position + LENGTH - 1)
    seen = inspection.verify_partition(disk, the_partition(disk))
    assert not seen.is_sound
    assert seen.findings[0].severity is Severity.CORRUPT
    assert seen.findings[0].position == position


@pytest.mark.parametrize("base", [0, 3, 6])
def test_a_missing_segment_is_corruption(base: int) -> None:
    disk = stopped()
    disk.unlink(f"{PARTITION}/{base:020}.log")
    assert not inspection.verify_partition(disk, the_partition(disk)).is_sound


def test_a_damaged_index_is_harmless() -> None:
    disk = stopped()
    disk.flip_bit(f"{PARTITION}/{3:020}.index", 20)
    seen = inspection.verify_partition(disk, the_partition(disk))
    assert seen.is_sound
    assert "rebuilt" in seen.findings[0].message


# --- The index of aborted transactions --------------------------------------------------------


def with_aborts() -> Disk:
    """A log with aborted transactions in closed segments and in the last one."""
    opened = LogOnDisk(Disk(), LogConfig(segment_bytes=1500, index_interval_bytes=200))
    for batch in transactions(9):
        opened.append(batch)
    opened.checkpoint()
    opened.disk.restart()
    return opened.disk


def indexes_of_aborts(disk: Disk) -> dict[str, index_chunks.Contents]:
    """The indexes with aborted transactions, by path."""
    binding = index_chunks.binding_of(TOPIC_PARTITION)
    found = {}
    for segment in the_partition(disk).segments:
        path = segment.path.replace(".log", ".index")
        if disk.exists(path):
            contents = index_chunks.read(disk.contents(path), binding, segment.base_offset)
            if len(contents.aborts):
                found[path] = contents
    return found


def rewrite(disk: Disk, path: str, contents: index_chunks.Contents, aborts: Rows) -> None:
    """Write an index anew, with sound checksums and these aborted transactions."""
    assert contents.coverage is not None
    base_offset = Offset(int(path.rpartition("/")[2].partition(".")[0]))
    binding = index_chunks.binding_of(TOPIC_PARTITION)
    disk.write(
        path,
        index_chunks.write(contents.coverage, contents.rows, aborts, binding, base_offset),
    )


def finding_of(disk: Disk) -> Finding:
    seen = inspection.verify_partition(disk, the_partition(disk))
    assert not seen.is_sound
    (finding,) = seen.findings
    assert finding.severity is Severity.WRONG
    return finding


def test_indexes_of_aborted_transactions_that_fit_the_markers_are_sound() -> None:
    disk = with_aborts()
    assert len(indexes_of_aborts(disk)) >= 3
    assert inspection.verify_partition(disk, the_partition(disk)).findings == []


@pytest.mark.parametrize("which", [0, -1])
def test_an_aborted_transaction_that_an_index_lacks_is_named(which: int) -> None:
    disk = with_aborts()
    path, contents = list(indexes_of_aborts(disk).items())[which]
    rewrite(disk, path, contents, contents.aborts[1:])
    finding = finding_of(disk)
    lacking = contents.aborts[0]
    assert finding.path == path
    assert (
        f"it lacks 1 aborted transaction, the first of producer {lacking['producer_id']} at "
        f"offsets {lacking['first_offset']} to {lacking['last_offset']}, with the marker at "
        f"{lacking['marker_offset']}" in finding.message
    )


@pytest.mark.parametrize("field", ["producer_id", "first_offset", "last_offset"])
def test_an_index_that_contradicts_a_marker_is_found(field: str) -> None:
    disk = with_aborts()
    path, contents = next(iter(indexes_of_aborts(disk).items()))
    aborts = contents.aborts.copy()
    aborts[field][0] += 1
    rewrite(disk, path, contents, aborts)
    message = finding_of(disk).message
    assert "lacks 1 aborted transaction" in message
    assert "has 1 of which no marker tells" in message


def test_an_index_with_an_aborted_transaction_that_was_committed_is_found() -> None:
    disk = with_aborts()
    path, contents = next(iter(indexes_of_aborts(disk).items()))
    aborts = contents.aborts[[0, *range(len(contents.aborts))]]
    aborts["producer_id"][0] = 99
    rewrite(disk, path, contents, aborts)
    message = finding_of(disk).message
    assert message.startswith("it has 1 of which no marker tells, the first of producer 99")


def test_a_damaged_header_ends_the_list_of_batches() -> None:
    disk = stopped()
    disk.flip_bit(f"{PARTITION}/{3:020}.log", LENGTH)
    batches = inspection.batches(disk, the_partition(disk))
    assert [next(batches).header.base_offset for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(CorruptBatchError):
        next(batches)
