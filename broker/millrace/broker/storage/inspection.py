"""Inspection of log directories without a broker: nothing is locked, recovered or changed.

A running broker goes on appending; the end of its active segments may then look torn.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from millrace.broker.storage import new_beginning, scan, segment, segment_swap
from millrace.broker.storage.aborted_index import PendingAborts, Rows, aborts_of
from millrace.broker.storage.epoch_checkpoint import read_epochs
from millrace.broker.storage.file_system import File, FileSystem
from millrace.broker.storage.log_directory import Identity, is_log_directory, read_identity
from millrace.broker.storage.log_start import known_log_start
from millrace.broker.storage.producer_snapshots import ProducerSnapshots
from millrace.broker.storage.recovery_checkpoint import RecoveryCheckpoint, RecoveryPoint
from millrace.broker.storage.sealed_file import DamagedFileError
from millrace.broker.storage.segment import offset_name, parse_offset_name
from millrace.broker.storage.sparse_index import IndexCache, SparseIndex
from millrace.broker.storage.tier import NO_LOG_DIRS, read_tier
from millrace.core.errors import CorruptLogError, InvalidRecordError
from millrace.core.ids import NO_LEADER_EPOCH, Offset, TopicPartition, parse_topic_partition
from millrace.core.records.header import BatchHeader
from millrace.core.records.markers import WrittenMarker, read_markers
from millrace.core.replica.log.leader_epochs import EpochStart
from millrace.core.words import count

_START: Final = Offset(0)


@dataclass(slots=True, frozen=True)
class SegmentFile:
    """One segment of a partition."""

    path: str
    base_offset: Offset
    size_bytes: int


@dataclass(slots=True, frozen=True)
class PartitionFiles:
    """One partition's directory.

    `point` is None when the recovery checkpoint is missing, damaged, or does not name it.
    `leader_epochs` is None when its file is missing, damaged, or another partition's.
    `lacks_tier` says why the oldest segments, which lie in another log directory, are left out;
    empty when all are there.
    """

    topic_partition: TopicPartition
    directory: str
    segments: tuple[SegmentFile, ...]
    point: RecoveryPoint | None
    is_checkpoint_lost: bool
    leader_epochs: tuple[EpochStart, ...] | None
    lacks_tier: str = ""


class StoredBatch(NamedTuple):
    """A batch as it lies in a file; its header is sound, its body was not read."""

    path: str
    position: int
    header: BatchHeader


class Severity(Enum):
    """The consequence of a finding at the next start of the broker."""

    HARMLESS = "harmless"
    """The broker rebuilds it, or cuts it off: a damaged cache, or a tail that was never flushed."""
    CORRUPT = "corrupt"
    """Flushed records are damaged or missing: the broker refuses the partition."""
    WRONG = "wrong"
    """The broker takes it for right, and tells readers what the records do not say."""


class Finding(NamedTuple):
    """A problem of the files."""

    severity: Severity
    path: str
    position: int | None
    message: str


@dataclass(slots=True)
class Verified:
    """The result of `verify_partition`."""

    batches: int = 0
    records: int = 0
    size_bytes: int = 0
    log_start_offset: Offset = _START
    log_end_offset: Offset = _START
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        """Whether the broker will serve the partition, and rightly."""
        return all(finding.severity is Severity.HARMLESS for finding in self.findings)


def log_directories(files: FileSystem, root: str) -> list[tuple[str, Identity]]:
    """Return the log directories at or directly below `root`, with their identities.

    Raises:
        FileNotFoundError, DamagedFileError: an identity cannot be read.
    """
    paths = [root, *(f"{root}/{name}" for name in files.list(root))]
    return [(path, read_identity(files, path)) for path in paths if is_log_directory(files, path)]


def partitions(
    files: FileSystem, log_directory: str, log_dirs: Mapping[str, str] = NO_LOG_DIRS
) -> list[PartitionFiles]:
    """Return the partitions of a log directory, trash left out.

    Args:
        files: where.
        log_directory: its path.
        log_dirs: paths of the broker's other log directories, by id: segments may lie there.
    """
    checkpoint = RecoveryCheckpoint(files, log_directory)
    checkpoint.read()
    names = {name: parse_topic_partition(name) for name in files.list(log_directory)}
    return [
        _partition(files, f"{log_directory}/{name}", found, checkpoint, log_dirs)
        for name, found in names.items()
        if found is not None
    ]


def _partition(
    files: FileSystem,
    directory: str,
    found: TopicPartition,
    checkpoint: RecoveryCheckpoint,
    log_dirs: Mapping[str, str],
) -> PartitionFiles:
    tier, lacks_tier = None, ""
    try:
        tier = read_tier(files, directory, found, log_dirs)
    except CorruptLogError as error:
        lacks_tier = f"{error.message}. Without a broker, --log-dir names that directory"
    paths = _segment_paths(files, directory)
    if tier is not None:
        end_offset, folder = tier.end_offset, tier.folder(found)
        there = _segment_paths(files, folder) if files.exists(folder) else {}
        paths = {base: path for base, path in paths.items() if base >= end_offset}
        paths |= {base: path for base, path in there.items() if base < end_offset}
    segments = [SegmentFile(path, base, files.size(path)) for base, path in sorted(paths.items())]
    epochs = read_epochs(files, directory, found)
    return PartitionFiles(
        found,
        directory,
        tuple(segments),
        checkpoint.get(found),
        checkpoint.is_lost,
        None if epochs is None else epochs.entries,
        lacks_tier,
    )


def _segment_paths(files: FileSystem, folder: str) -> dict[Offset, str]:
    """Return the segments in a folder by their first offset."""
    names = files.list(folder)
    swaps = [swap for name in names if (swap := segment_swap.parse_swap(name)) is not None]
    # A cleaned segment counts, and those that it is replacing do not.
    bases = {swap.base_offset: swap.name for swap in swaps}
    for name in names:
        base_offset = parse_offset_name(name, segment.SUFFIX)
        if base_offset is not None and not any(swap.covers(base_offset) for swap in swaps):
            bases[base_offset] = name
    return {base: f"{folder}/{name}" for base, name in bases.items()}


def batches(
    files: FileSystem, partition: PartitionFiles, start_offset: Offset = _START
) -> Iterator[StoredBatch]:
    """Yield the batches from the one that holds `start_offset` on, reading headers alone.

    Raises:
        CorruptBatchError, UnsupportedFormatError: a header is damaged; the walk ends there.
    """
    ends = [later.base_offset for later in partition.segments[1:]] + [None]
    for found, end in zip(partition.segments, ends, strict=True):
        if end is not None and end <= start_offset:
            continue
        file = files.open(found.path)
        try:
            for position, header in scan.headers(file, 0, found.size_bytes):
                if header.next_offset > start_offset:
                    yield StoredBatch(found.path, position, header)
        finally:
            file.close()


def verify_partition(files: FileSystem, partition: PartitionFiles) -> Verified:
    """Verify every byte of a partition's batches, and that nothing is missing between them.

    Indexes must fit: their aborted transactions are those that the markers name.
    """
    seen = Verified()
    try:
        new_start = new_beginning.decided(files, partition.directory, partition.topic_partition)
    except DamagedFileError as error:
        seen.findings.append(Finding(Severity.CORRUPT, partition.directory, None, str(error)))
        return seen
    if new_start is not None:
        message = "the log is being emptied to start over: the broker completes that at its start"
        seen.findings.append(Finding(Severity.HARMLESS, partition.directory, None, message))
        return seen
    if partition.lacks_tier:
        seen.findings.append(
            Finding(Severity.CORRUPT, partition.directory, None, partition.lacks_tier)
        )
    if not partition.segments:
        if partition.point is not None or partition.leader_epochs:
            message = "all its segments are missing"
            seen.findings.append(Finding(Severity.CORRUPT, partition.directory, None, message))
        return seen
    first = partition.segments[0]
    start_offset = known_log_start(
        first.base_offset,
        partition.point,
        partition.leader_epochs or (),
        is_checkpoint_lost=partition.is_checkpoint_lost,
    )
    if start_offset is None:
        message = f"nothing says that it begins at offset {first.base_offset}"
        seen.findings.append(Finding(Severity.CORRUPT, partition.directory, None, message))
        start_offset = first.base_offset
    point = partition.point or RecoveryPoint(
        start_offset, partition.segments[-1].base_offset, start_offset
    )
    seen.log_start_offset = point.log_start_offset
    if first.base_offset > point.log_start_offset:
        message = f"the segment of offset {point.log_start_offset} is missing"
        seen.findings.append(Finding(Severity.CORRUPT, partition.directory, None, message))
    for found, after in zip(partition.segments, (*partition.segments[1:], None), strict=True):
        aborts = _verify_segment(files, partition, found, point.recovery_point, seen)
        seen.size_bytes += found.size_bytes
        if after is not None:
            _verify_index(files, partition, found, aborts, seen, next_base=after.base_offset)
        else:
            _verify_growing_index(files, partition, aborts, seen)
    _verify_snapshots(files, partition, seen)
    if seen.log_end_offset < point.recovery_point:
        message = f"offsets {seen.log_end_offset} to {point.recovery_point} were flushed"
        seen.findings.append(Finding(Severity.CORRUPT, partition.directory, None, message))
    if partition.leader_epochs is None and seen.batches:
        message = (
            "the leader epochs are missing, damaged or another log's: they will be read from the "
            "log"
        )
        seen.findings.append(Finding(Severity.HARMLESS, partition.directory, None, message))
    return seen


def _verify_segment(
    files: FileSystem,
    partition: PartitionFiles,
    found: SegmentFile,
    recovery_point: Offset,
    seen: Verified,
) -> Rows:
    """Verify a segment, and return the aborted transactions by its markers."""
    is_active = found is partition.segments[-1]
    following = [other.base_offset for other in partition.segments if other is not found]
    next_base = min((base for base in following if base > found.base_offset), default=None)
    seen.log_end_offset = found.base_offset
    aborts = PendingAborts()
    file = files.open(found.path)
    try:
        for position, header in scan.verified_batches(
            file,
            partition.topic_partition,
            position=0,
            end_position=found.size_bytes,
            next_offset=found.base_offset,
            leader_epoch=NO_LEADER_EPOCH,
        ):
            seen.batches += 1
            seen.records += header.record_count
            seen.log_end_offset = header.next_offset
            if header.is_control:
                markers = _markers(file, partition.topic_partition, position, header)
                for abort in aborts_of(markers, header.base_offset):
                    aborts.add(abort)
    except scan.ScanStop as stop:
        is_torn = is_active and stop.offset >= recovery_point
        severity = Severity.HARMLESS if is_torn else Severity.CORRUPT
        meaning = "never flushed, will be cut off: " if is_torn else ""
        seen.findings.append(Finding(severity, found.path, stop.position, meaning + stop.reason))
    else:
        if next_base is not None and seen.log_end_offset != next_base:
            message = f"it ends at offset {seen.log_end_offset}, the next begins at {next_base}"
            seen.findings.append(Finding(Severity.CORRUPT, found.path, None, message))
    finally:
        file.close()
    return aborts.rows()


def _markers(
    file: File, topic_partition: TopicPartition, position: int, header: BatchHeader
) -> list[WrittenMarker]:
    """Return the markers of a control batch.

    Raises:
        ScanStop: they cannot be read.
    """
    try:
        return read_markers(topic_partition, header, file.pread(header.length, position))
    except (InvalidRecordError, *scan.DAMAGE) as error:
        raise scan.ScanStop(error.message, position, header.base_offset) from None


def _verify_index(
    files: FileSystem,
    partition: PartitionFiles,
    found: SegmentFile,
    aborts: Rows,
    seen: Verified,
    *,
    next_base: Offset,
) -> None:
    index = _index(files, partition, found)
    coverage = index.open(whole=True)
    if coverage is None or (coverage.next_offset, coverage.end_position) != (
        next_base,
        found.size_bytes,
    ):
        message = f"the index of {offset_name(found.base_offset)} does not fit: it will be rebuilt"
        seen.findings.append(Finding(Severity.HARMLESS, found.path, None, message))
        return
    _compare_aborts(index, aborts, seen)


def _verify_growing_index(
    files: FileSystem, partition: PartitionFiles, aborts: Rows, seen: Verified
) -> None:
    found = partition.segments[-1]
    index = _index(files, partition, found)
    coverage = index.open(whole=True)
    if coverage is None and files.exists(index.path):
        message = "it is damaged or another log's: it will be made again"
        seen.findings.append(Finding(Severity.HARMLESS, index.path, None, message))
    elif coverage is not None and coverage.end_position > files.size(found.path):
        message = f"its index says that {coverage.end_position} bytes were flushed"
        seen.findings.append(Finding(Severity.CORRUPT, found.path, None, message))
    elif coverage is not None:  # What it does not cover is read from the segment at the start.
        _compare_aborts(index, aborts[aborts["marker_offset"] < coverage.next_offset], seen)


def _compare_aborts(index: SparseIndex, by_markers: Rows, seen: Verified) -> None:
    """Hold the aborted transactions of an index against those that the markers name."""
    stored = index.stored_aborts()
    if stored.tobytes() == by_markers.tobytes():
        return
    there, wanted = set(stored.tolist()), set(by_markers.tolist())
    more = [row for row in stored.tolist() if row not in wanted]
    lacking = [row for row in by_markers.tolist() if row not in there]
    told = []
    if more:
        told.append(f"it has {len(more):,} of which no marker tells, {_first(more)}")
    if lacking:
        told.append(f"it lacks {count(len(lacking), 'aborted transaction')}, {_first(lacking)}")
    if not told:
        told = ["its aborted transactions are in another order than their markers"]
    message = f"{'; '.join(told)}: stop the broker and delete the file, which it makes again"
    seen.findings.append(Finding(Severity.WRONG, index.path, None, message))


def _first(rows: Sequence[tuple[int, int, int, int]]) -> str:
    producer_id, first_offset, last_offset, marker_offset = rows[0]
    return (
        f"the first of producer {producer_id} at offsets {first_offset} to {last_offset}, with the "
        f"marker at {marker_offset}"
    )


def _verify_snapshots(files: FileSystem, partition: PartitionFiles, seen: Verified) -> None:
    names = files.list(partition.directory)
    snapshots = ProducerSnapshots(files, partition.directory, partition.topic_partition, names)
    for path in snapshots.damaged():
        message = "it is damaged or another log's: producers will be read from the log"
        seen.findings.append(Finding(Severity.HARMLESS, path, None, message))


def _index(files: FileSystem, partition: PartitionFiles, found: SegmentFile) -> SparseIndex:
    stem = f"{partition.directory}/{offset_name(found.base_offset)}"
    return SparseIndex(files, stem, partition.topic_partition, found.base_offset, IndexCache(0))
