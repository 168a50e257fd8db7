"""Cleans a log: copies its segments without the records that later ones replace (P57).

The copy is written beside the log, in groups of segments that become one, and replaces each group
before the next one is begun: so at most one more segment is on the disk. Appends and reads go on
meanwhile. A reader of a replaced segment finds that out (`Segment.is_retired`) and asks again.

A segment that is cut, or deleted by retention, during the copy is another object afterwards, or
gone: then the copy of its group is dropped. A segment that moves to another disk is another
object, too, with the same batches. So a cleaning *holds* the segments that it reads
(`LogState.held`): they do not move meanwhile. It looks for the others again when it comes to them.
Else a log whose segments move all the time would never be cleaned to its end.

`clean` is a generator, so that its caller decides how fast it goes and whether it goes on. What it
has replaced until then stays, and the cleaner point moves only at the end. If it is left in the
middle of a group, the unfinished copy stays until the next cleaning overwrites it, or the log is
opened again.

It ends at the last stable offset: what it reads is committed or aborted (T3).

Source: Kafka's Cleaner.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

from millrace.broker.storage import scan, segment_swap
from millrace.broker.storage.aborted_index import Abort, aborts_of
from millrace.broker.storage.cleaner_point import write_point
from millrace.broker.storage.file_system import BUFFERS_MAX, File, is_passing
from millrace.broker.storage.log import replacement
from millrace.broker.storage.log.health import may_pass
from millrace.broker.storage.log.reader import LogReader
from millrace.broker.storage.log.state import LogState, Replacement
from millrace.broker.storage.segment import Segment, segment_of
from millrace.broker.storage.segment_swap import Swap
from millrace.core.errors import (
    InvalidRecordError,
    MillraceError,
    StorageBusyError,
    StorageFullError,
)
from millrace.core.ids import NO_LEADER_EPOCH, Offset, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.header import Buffer, parse_header
from millrace.core.records.markers import read_markers
from millrace.core.records.rewriting import RewrittenBatch
from millrace.core.replica.compaction.batches import (
    BatchCleaner,
    CleaningRules,
    KeyCollector,
    OpenedBatch,
    open_groups,
)
from millrace.core.replica.compaction.cleanable import Cleanable, CleanerPoint, cleanable, groups
from millrace.core.replica.compaction.ended_transactions import AbortedBatches
from millrace.core.replica.compaction.key_hashes import KeyHasher
from millrace.core.replica.compaction.offset_map import OffsetMap
from millrace.core.settings import BATCH_INFLATED_BYTES_MAX

_T = TypeVar("_T")

_READ_BYTES: Final = 4 << 20
_FLUSH_BYTES: Final = 32 << 20
"""Written bytes after which the copy is flushed: one flush of all of it at the end would keep the
disk from the appends' flushes for long."""


class CleaningStep(NamedTuple):
    """What one step of a cleaning did.

    Attributes:
        read_bytes, written_bytes: of segments, in this step.
        removed_records: likewise.
    """

    read_bytes: int = 0
    written_bytes: int = 0
    removed_records: int = 0


class LogCleaner:
    """Cleans one log. One thread at a time calls `clean`.

    Attributes:
        is_held: whether no segment may be replaced now, as the files are being copied.
        tombstones_end: those before it may go when their horizon is over: every replica has
            compacted its log up to there; set on the event loop.
    """

    __slots__ = ("_state", "is_held", "tombstones_end")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self.is_held = False
        self.tombstones_end = Offset(0)

    def cleanable(self, now: WallMs) -> Cleanable:
        """Return which part of the log may be cleaned; any thread may call."""
        state = self._state
        return cleanable(
            state.segments,
            state.cleaner_point,
            state.config.lags,
            state.last_stable_offset,
            now,
            tombstones_end=min(self.tombstones_end, state.cleaner_point.offset),
        )

    def clean(self, hasher: KeyHasher, map_bytes: int, now: WallMs) -> Iterator[CleaningStep]:
        """Clean the log once, a step with each item; appends and reads go on meanwhile.

        Args:
            hasher: of keys.
            map_bytes: memory of the map of keys; if it is too small for all, the head is cleaned
                as far as it goes.
            now: the time.

        Raises:
            CorruptLogError: a batch is damaged; this partition takes nothing more.
            StorageFullError, StorageBusyError: not now; what was cleaned until then stays so.
            LogDirFailedError: the disk failed; the log takes no more calls.
        """
        state = self._state
        with state.lock:
            state.health.check_open()
            replacement.finish(state)
            segments, point, config = state.segments, state.cleaner_point, state.config
            last_batches, last_epochs = _last_batches(state), _last_epochs(state)
        tombstones_end = min(self.tombstones_end, point.offset)
        found = cleanable(
            segments,
            point,
            config.lags,
            state.last_stable_offset,
            now,
            tombstones_end=tombstones_end,
        )
        # Not the active one: it may be empty now, and grow meanwhile.
        closed = [
            segment for segment in segments[:-1] if segment.next_offset <= found.first_uncleanable
        ]
        if not closed:
            return
        aborted = AbortedBatches(
            LogReader(state).aborted(segments[0].base_offset, found.first_uncleanable)
        )
        offset_map = OffsetMap(map_bytes, found.first_uncleanable - found.first_dirty)
        collector = KeyCollector(offset_map, hasher, found.first_dirty, aborted)
        try:
            yield from self._collect(closed, collector)
            rules = CleaningRules(
                topic_partition=state.topic_partition,
                start_offset=found.first_dirty,
                end_offset=collector.end_offset,
                now=now,
                delete_retention_ms=config.delete_retention_ms,
                tombstones_end=min(tombstones_end, collector.end_offset),
                last_batches=last_batches,
                last_epochs=last_epochs,
                aborted=aborted,
                batch_bytes_max=config.max_message_bytes,
            )
            cleaner = BatchCleaner(rules, offset_map, hasher)
            concerned = [segment for segment in closed if segment.base_offset < rules.end_offset]
            while concerned:
                group = self._hold(concerned, config.segment_bytes)
                yield from _Copy(state, self, group).run(cleaner)
                del concerned[: len(group)]
        except _Overtaken:
            return
        finally:
            with state.lock:
                pending = state.replacement
                state.held = () if pending is None else (pending.made,)
        counts = cleaner.counts
        self._move_point(
            point, CleanerPoint(rules.end_offset, counts.next_horizon, now, counts.next_end)
        )

    def _collect(
        self, closed: Sequence[Segment], collector: KeyCollector
    ) -> Iterator[CleaningStep]:
        for found in closed:
            if found.next_offset <= collector.end_offset:
                continue
            (held,) = self._hold([found], found.size)
            for group, size in opened_batches(self._state, held, collector.end_offset):
                collector.take(group)
                yield CleaningStep(read_bytes=size)
                if collector.is_full:
                    return

    def _hold(self, wanted: Sequence[Segment], bytes_max: int) -> list[Segment]:
        """Return the first of the segments, of one disk, that become one; none of them moves now.

        Raises:
            _Overtaken: one was cut or deleted meanwhile.
        """
        state = self._state
        with state.lock:
            first = max(segment_of(state.segments, wanted[0].base_offset), 0)
            found = state.segments[first : first + len(wanted)]
            # One that has moved keeps its index, and any other replacement has a new one.
            if [segment.index for segment in found] != [segment.index for segment in wanted]:
                raise _Overtaken
            of_one_disk = takewhile(lambda segment: segment.folder == found[0].folder, found)
            held = next(groups(of_one_disk, bytes_max))
            state.held = tuple(held)
        return held

    def _move_point(self, before: CleanerPoint, point: CleanerPoint) -> None:
        """Move the cleaner point, unless the log was cut or emptied since."""
        state = self._state
        with state.lock:
            if state.health.is_closed or state.cleaner_point is not before:
                return
            state.cleaner_point = point
            try:
                write_point(state.files, state.directory, state.topic_partition, point)
            except OSError as error:
                if not may_pass(error):
                    raise state.health.fail(error, "writing the cleaner point of") from error


class _Overtaken(Exception):
    """A segment was cut or deleted while it was cleaned."""


class _Copy:
    """The cleaned copy of a group of segments.

    The copy of one segment is only written from its first batch on that changes: in a large log
    most segments change seldom.
    """

    def __init__(self, state: LogState, cleaner: LogCleaner, group: Sequence[Segment]) -> None:
        self._state = state
        self._cleaner = cleaner
        self._group = group
        self._folder = group[0].folder
        self._swap = Swap(group[0].base_offset, group[-1].next_offset)
        self._path = f"{self._folder}/{self._swap.temporary}"
        self._file: File | None = None
        self._written = 0
        self._unflushed = 0

    def run(self, cleaner: BatchCleaner) -> Iterator[CleaningStep]:
        """Copy the group, and replace it, unless nothing changes."""
        made = self._state.open_segment(self._swap.base_offset)
        made.created_at = min(segment.created_at for segment in self._group)
        made.closed_at = max(segment.closed_at for segment in self._group)
        try:
            if len(self._group) > 1:
                yield from self._begin(0)
            for found in self._group:
                for group, size in opened_batches(self._state, found, found.base_offset):
                    kept, written = cleaner.counts.kept, self._written
                    batches = list(cleaner.take(group))
                    yield from self._write(made, batches)
                    removed = sum(batch.header.record_count for batch in group)
                    removed -= cleaner.counts.kept - kept
                    yield CleaningStep(size, self._written - written, removed)
            yield from self._write(made, list(cleaner.finish()))
            assert made.next_offset == self._swap.end_offset
            if self._file is not None:
                self._checked(self._file.fdatasync)
                self._replace(made)
        except (MillraceError, _Overtaken):
            self._drop()
            raise
        finally:
            if self._file is not None:
                self._file.close()

    def _begin(self, size: int) -> Iterator[CleaningStep]:
        """Begin the file with the first bytes of the first segment, which did not change."""
        files, found = self._state.files, self._group[0]
        self._file = self._checked(files.open, self._path, create=True, writable=True)
        self._checked(self._file.truncate, 0)
        for at in range(0, size, _READ_BYTES):
            wanted = min(_READ_BYTES, size - at)
            with _reading(self._state, found):
                data = found.file.pread(wanted, at)
                if len(data) < wanted:
                    raise scan.ScanStop("the batch is cut", at, found.base_offset)
            self._append(self._file, [data])
            yield CleaningStep(wanted, wanted)

    def _write(self, made: Segment, batches: Sequence[RewrittenBatch]) -> Iterator[CleaningStep]:
        if self._file is None and any(batch.is_rewritten for batch in batches):
            yield from self._begin(made.size)
        buffers: list[Buffer] = []
        for batch in batches:
            header = batch.header
            aborts: list[Abort] = []
            if header.is_control:
                whole = batch.stamped + bytes(batch.body)
                markers = read_markers(self._state.topic_partition, header, whole)
                aborts = aborts_of(markers, header.base_offset)
            made.extend(
                [(header.base_offset, batch.length, header.largest_timestamp)],
                header.next_offset,
                self._state.config.index_interval_bytes,
                made.created_at,
                aborts,
            )
            if self._file is not None:
                if len(buffers) + 2 > BUFFERS_MAX:
                    self._append(self._file, buffers)
                    buffers = []
                buffers += (batch.stamped, batch.body)
        if self._file is not None and buffers:
            self._append(self._file, buffers)

    def _append(self, file: File, buffers: list[Buffer]) -> None:
        size = sum(map(len, buffers))
        if self._checked(file.append, buffers) != size:
            raise StorageFullError(
                f"cleaning {self._folder}: the disk is full",
                topic_partition=self._state.topic_partition,
            )
        self._written += size
        self._unflushed += size
        if self._unflushed >= _FLUSH_BYTES:
            self._checked(file.fdatasync)
            self._unflushed = 0

    def _replace(self, made: Segment) -> None:
        state, group = self._state, self._group
        with state.lock:
            state.health.check_open()
            if self._cleaner.is_held:
                raise StorageBusyError(
                    "the log is being moved: it is cleaned afterwards",
                    topic_partition=state.topic_partition,
                )
            segments = state.segments
            at = segments.index(group[0]) if group[0] in segments else 0
            if segments[at : at + len(group)] != tuple(group):
                raise _Overtaken
            is_decided = self._decide()
            for segment in group:
                segment.retire()
            made.move_away()  # Until its file has its name, another one has it.
            state.segments = (*segments[:at], made, *segments[at + len(group) :])
            state.replacement = Replacement(self._swap, made, is_decided)
            replacement.finish(state)

    def _decide(self) -> bool:
        """Let the copy count; return whether that is durable, or its flush was refused for now."""
        state = self._state
        try:
            segment_swap.decide(state.files, self._folder, self._swap)
        except OSError as error:
            if not is_passing(error):
                self._take_back()
            elif state.files.exists(f"{self._folder}/{self._swap.name}"):
                return False
            raise state.health.refusal(error, "cleaning", self._folder) from error
        return True

    def _take_back(self) -> None:
        state = self._state
        try:
            segment_swap.take_back(state.files, self._folder, self._swap)
        except OSError as error:  # It may count after a crash, when the log has moved on.
            raise state.health.fail(error, "cleaning", self._folder) from error

    def _drop(self) -> None:
        """Remove an unfinished copy; if the disk refuses, the next copy overwrites it."""
        if self._file is None or self._state.health.is_closed:
            return  # Or the directory has another name, or is another log's.
        files = self._state.files
        try:
            if files.exists(self._path):
                files.unlink(self._path)
        except OSError as error:
            if not may_pass(error):
                raise self._state.health.fail(error, "cleaning", self._folder) from error

    def _checked(self, call: Callable[..., _T], *args: object, **options: object) -> _T:
        try:
            return call(*args, **options)
        except OSError as error:
            if self._state.health.is_closed:
                raise _Overtaken from None
            raise self._state.health.refusal(error, "cleaning", self._folder) from error


def opened_batches(
    state: LogState, found: Segment, start_offset: Offset
) -> Iterator[tuple[list[OpenedBatch], int]]:
    """Yield the batches of a closed segment, opened, from the one that holds `start_offset` on.

    In groups, with the bytes of each.

    Raises:
        _Overtaken, CorruptLogError: see `_reading`.
    """
    with _reading(state, found):
        yield from _opened_batches(state, found, start_offset)


@contextmanager
def _reading(state: LogState, found: Segment) -> Iterator[None]:
    """Read a segment in the block.

    Raises:
        _Overtaken: the segment was deleted, cut or closed meanwhile.
        CorruptLogError: a batch is damaged; the partition takes nothing more.
    """
    try:
        yield
    except (*scan.DAMAGE, scan.ScanStop, InvalidRecordError, OSError) as error:
        if not state.has(found) or state.health.is_closed:
            raise _Overtaken from None
        raise state.health.unread(error, found.path) from error


def _opened_batches(
    state: LogState, found: Segment, start_offset: Offset
) -> Iterator[tuple[list[OpenedBatch], int]]:
    next_offset, position = found.locate(start_offset, found.size)
    wanted = _READ_BYTES
    while position < found.size:
        data = found.file.pread(min(wanted, found.size - position), position)
        read = 0
        for group in open_groups(state.topic_partition, data, BATCH_INFLATED_BYTES_MAX):
            for header, *_ in group:
                if header.base_offset != next_offset:
                    raise scan.ScanStop("a batch is missing", position + read, next_offset)
                next_offset = header.next_offset
                read += header.length
            yield group, sum(batch.header.length for batch in group)
        if not read:
            if len(data) < min(wanted, found.size - position) or wanted > _READ_BYTES:
                raise scan.ScanStop("the batch is cut", position, next_offset)
            wanted = parse_header(data).length
            continue
        position, wanted = position + read, _READ_BYTES


def _last_batches(state: LogState) -> dict[ProducerId, Offset]:
    """Return the last offset of each producer that the log remembers; the caller holds `lock`."""
    states = state.producer_states
    entries = ((producer_id, states.entry(producer_id)) for producer_id in states)
    return {
        producer_id: entry.batches[-1].last_offset
        for producer_id, entry in entries
        if entry is not None and entry.batches
    }


def _last_epochs(state: LogState) -> dict[ProducerId, ProducerEpoch]:
    """Return the epoch of each producer that a marker has ended; the caller holds `lock`."""
    states = state.producer_states
    entries = ((producer_id, states.entry(producer_id)) for producer_id in states)
    return {
        producer_id: entry.epoch
        for producer_id, entry in entries
        if entry is not None and entry.coordinator_epoch != NO_LEADER_EPOCH
    }
