"""Finds and reads the batches of a log, by offset and by time. Takes no lock: see `state`."""

from bisect import bisect_left
from collections.abc import Callable
from itertools import accumulate
from typing import Final, NamedTuple

from millrace.broker.storage import scan
from millrace.broker.storage.log import replacement
from millrace.broker.storage.log.state import LogState
from millrace.broker.storage.segment import ReadPlan, Segment, segment_of
from millrace.broker.storage.sparse_index import Place
from millrace.broker.storage.time_search import TimestampedOffset, first_record, latest_record
from millrace.core.ids import NO_TIMESTAMP, Offset, WallMs
from millrace.core.records.batch import walk
from millrace.core.records.header import BatchHeader, verify_body
from millrace.core.records.markers import AbortedTransaction

_MARKERS_PASSED: Final = 100
"""Control batches in a row that do not count as unread; more are taken for records."""


class Unread(NamedTuple):
    """What lies between a reader's offset and the end.

    Attributes:
        size: bytes of the batches.
        timestamp: of the first one; `NO_TIMESTAMP`: there is none.
    """

    size: int
    timestamp: WallMs


class LogReader:
    """Plans reads, and reads what was planned. Any thread may call."""

    __slots__ = ("_smallest_from", "_state")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._smallest_from: tuple[tuple[Segment, ...], list[Offset]] = (), []

    def plan_read(
        self, start_offset: Offset, max_bytes: int, limit_offset: Offset, *, may_block: bool = True
    ) -> ReadPlan | None:
        """Return where whole batches from `start_offset` on lie, in one file.

        Args:
            start_offset: the first batch is the one that holds it, and may begin earlier.
            max_bytes: one batch is planned even if it is larger.
            limit_offset: only batches that end at or before it.
            may_block: whether headers and indexes may be read from the disk.

        Returns:
            None when no batch ends by the limit.

        Raises:
            OffsetOutOfRangeError: `start_offset` lies outside of the log.
            CorruptLogError: no batch begins where one should; this partition takes nothing more.
            BlockingIOError: `may_block` is false, and the disk would have to be read.
        """
        state = self._state
        state.health.check()
        found, end = state.tail
        if not state.log_start_offset <= start_offset <= end.offset:
            raise state.out_of_range(start_offset)
        limit_offset = min(limit_offset, end.offset)
        if start_offset >= limit_offset:
            return None
        if start_offset < found.base_offset:
            segments = state.segments
            at = segment_of(segments, start_offset)
            if at < 0:
                raise state.out_of_range(start_offset)
            found = segments[at]
            end = Place(found.next_offset, found.size)
        try:
            plan = found.plan(start_offset, max_bytes, limit_offset, end, may_block=may_block)
        except BlockingIOError:
            raise
        except (*scan.DAMAGE, OSError) as error:
            if not found.is_retired:
                is_gone = isinstance(error, FileNotFoundError) and not state.is_missing(found)
                if is_gone:  # Deleted by retention meanwhile.
                    state.health.check_not_closed()
                    raise state.out_of_range(start_offset) from None
                if found in state.segments:
                    raise state.health.unread(error, found.path) from error
        else:
            if not found.is_retired:
                return plan
        # Cut or cleaned meanwhile: another object has the rest.
        self.await_replacement(found, may_block=may_block)
        return self.plan_read(start_offset, max_bytes, limit_offset, may_block=may_block)

    def await_replacement(self, found: Segment, *, may_block: bool = True) -> None:
        """Wait until a segment that is being replaced by a cleaned one is no longer the log's.

        Raises:
            StorageBusyError: the process lacks what the replacement takes.
            BlockingIOError: `may_block` is false.
        """
        state = self._state
        if found.is_retired and found in state.segments:
            if not may_block:
                raise BlockingIOError
            with state.lock:
                if found in state.segments:  # That was refused for now.
                    state.health.check()
                    state.health.check_not_closed()
                    replacement.finish(state)

    def offset_after_bytes(self, start_offset: Offset, size: int, limit_offset: Offset) -> Offset:
        """Return where the whole batches from `start_offset` on end that take at most `size` bytes.

        Args:
            start_offset: before the log's start: from there.
            size: as they are stored; one batch counts even if it is larger.
            limit_offset: only batches that end at or before it.

        Raises:
            As `plan_read`.
        """
        start = at = Offset(max(start_offset, self._state.log_start_offset))
        left = size
        while left > 0:
            plan = self.plan_read(at, left, limit_offset, may_block=True)
            if plan is None or (at > start and plan.length > left):
                break
            at, left = plan.end_offset, left - plan.length
        return at

    def unread(self, start_offset: Offset, limit_offset: Offset) -> Unread:
        """Return what lies between two offsets.

        What is deleted does not count, nor do the ends of transactions before the first record: a
        reader that has noted the record before them has read everything.

        Raises:
            CorruptLogError: as in `plan_read`.
        """
        for _ in range(_MARKERS_PASSED):
            unread, batch = self._unread(start_offset, limit_offset)
            if batch is None or not batch.is_control:
                break
            start_offset = batch.next_offset
        return unread

    def _unread(
        self, start_offset: Offset, limit_offset: Offset
    ) -> tuple[Unread, BatchHeader | None]:
        """Return what lies between two offsets, and the first batch of that."""
        state = self._state
        state.health.check()
        segments, (tail, end) = state.segments, state.tail
        start = Offset(max(start_offset, state.log_start_offset, segments[0].base_offset))
        # Another thread may change the end between the two: what both have is there.
        limit = Offset(min(limit_offset, end.offset, segments[-1].next_offset))
        if start >= limit:
            return Unread(0, NO_TIMESTAMP), None
        first, last = segments[segment_of(segments, start)], segments[segment_of(segments, limit)]
        found = first
        try:
            begin, batch = first.batch_at(start, first.size)
            found = last
            stop = (
                end.position
                if last is tail and limit == end.offset
                else last.locate(limit, last.size).position
            )
        except (*scan.DAMAGE, OSError) as error:
            is_gone = isinstance(error, FileNotFoundError) and not state.is_missing(found)
            if is_gone:
                state.health.check_not_closed()
            for segment in (first, last):
                self.await_replacement(segment, may_block=True)
            is_cut = first not in state.segments or last not in state.segments
            if is_cut or state.log_start_offset > start:  # Cut, or deleted by retention, meanwhile.
                return self._unread(start_offset, limit_offset)
            if is_gone:
                raise state.out_of_range(start) from None
            raise state.health.unread(error, found.path) from error
        if first.is_retired or last.is_retired:  # Cleaned meanwhile.
            for segment in (first, last):
                self.await_replacement(segment, may_block=True)
            return self._unread(start_offset, limit_offset)
        between = segments[segments.index(first) : segments.index(last)]
        size = sum(segment.size for segment in between) - begin + stop
        time = batch.append_timestamp if batch.has_append_time else batch.base_timestamp
        return Unread(size, time), batch

    def aborted(
        self, start_offset: Offset, end_offset: Offset, *, may_block: bool = True
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions whose records may lie in `[start_offset, end_offset)`.

        To be asked before the batches are read: a cleaning takes the records first, and their
        entries much later.

        Args:
            start_offset: of the first batch that is read.
            end_offset: end of what is read; at most the last stable offset.
            may_block: whether indexes may be read from the disk.

        Raises:
            CorruptLogError: as in `plan_read`.
            BlockingIOError: `may_block` is false, and the disk would have to be read.
        """
        state = self._state
        if not state.has_aborts:
            return []
        state.health.check()
        found: list[AbortedTransaction] = []
        concerned = self._with_aborts(start_offset, end_offset)
        for segment in concerned:
            try:
                found += segment.aborted(start_offset, end_offset, may_block=may_block)
            except BlockingIOError:
                raise
            except (*scan.DAMAGE, OSError) as error:
                self.await_replacement(segment, may_block=may_block)
                if segment not in state.segments:  # Cut, cleaned or deleted meanwhile.
                    return self.aborted(start_offset, end_offset, may_block=may_block)
                state.health.check_not_closed()
                raise state.health.unread(error, segment.path) from error
        if any(segment.is_retired for segment in concerned):
            for segment in concerned:
                self.await_replacement(segment, may_block=may_block)
            return self.aborted(start_offset, end_offset, may_block=may_block)
        return found

    def _with_aborts(self, start_offset: Offset, end_offset: Offset) -> list[Segment]:
        """Return the segments that have entries for `aborted`, found by halves."""
        segments = self._state.segments
        known, smallest_from = self._smallest_from
        if known is not segments:  # Of the closed ones: for each, the smallest from it on.
            closed = [segment.index.smallest_first for segment in segments[-2::-1]]
            smallest_from = [*accumulate(closed, min)][::-1]
            self._smallest_from = segments, smallest_from
        first = max(segment_of(segments, start_offset), 0)
        end = bisect_left(smallest_from, end_offset, min(first, len(smallest_from)))
        return [
            segment
            for segment in (*segments[first:end], segments[-1])
            if segment.index.smallest_first < end_offset
        ]

    def read(self, plan: ReadPlan) -> bytes:
        """Return the batches of a plan; fewer bytes, or none, when they were deleted meanwhile.

        Raises:
            CorruptLogError: the disk cannot read them: the log is damaged (P65).
        """
        try:
            return plan.segment.file.pread(plan.length, plan.position)
        except FileNotFoundError as error:
            if self._state.is_missing(plan.segment):
                raise self._state.health.unread(error, plan.segment.path) from error
            return b""
        except OSError as error:
            raise self._state.health.unread(error, plan.segment.path) from error

    def verify(self, plan: ReadPlan) -> None:
        """Verify the batches of a plan, unless they were deleted or cut meanwhile.

        Raises:
            CorruptLogError: one is damaged; this partition takes nothing more.
            StorageFullError, StorageBusyError: nothing could be read.
        """
        state, found = self._state, plan.segment
        content = self.read(plan)
        if len(content) < plan.length:
            return
        try:
            for header, batch in walk(memoryview(content)):
                verify_body(state.topic_partition, header, batch)
        except scan.DAMAGE as error:
            if state.has(found):
                raise state.health.unread(error, found.path) from error

    def read_cached(self, plan: ReadPlan, buffer: memoryview) -> int:
        """Read the batches of a plan into `buffer` if all of them are in memory.

        Returns:
            `plan.length`, or -1 when a thread must `read` them.
        """
        done = plan.segment.file.pread_into_cached(buffer[: plan.length], plan.position)
        return done if done == plan.length else -1

    def offset_for_timestamp(
        self, timestamp: WallMs, limit_offset: Offset | None = None
    ) -> TimestampedOffset | None:
        """Return the first record whose timestamp is `timestamp` or later; None if there is none.

        Args:
            timestamp: what to look for.
            limit_offset: the record must lie before it.

        Raises:
            CorruptLogError: as in `plan_read`.
        """
        start, limit = self._bounds(limit_offset)
        try:
            for found in self._state.segments:
                if found.base_offset >= limit:
                    break
                record = self._search(found, first_record, timestamp, start, limit)
                if record is not None:
                    return record
        except _Replaced:
            return self.offset_for_timestamp(timestamp, limit_offset)
        return None

    def offset_of_largest_timestamp(
        self, limit_offset: Offset | None = None
    ) -> TimestampedOffset | None:
        """Return the first record of the largest timestamp; None when there is no record.

        Args:
            limit_offset: the record must lie before it.

        Raises:
            CorruptLogError: as in `plan_read`.
        """
        start, limit = self._bounds(limit_offset)
        latest: TimestampedOffset | None = None
        try:
            for found in sorted(
                self._state.segments, key=lambda segment: -segment.largest_timestamp
            ):
                if latest is not None and found.largest_timestamp < latest.timestamp:
                    break
                record = self._search(found, latest_record, start, limit)
                if record is not None and (latest is None or _rank(record) > _rank(latest)):
                    latest = record
        except _Replaced:
            return self.offset_of_largest_timestamp(limit_offset)
        return latest

    def _bounds(self, limit_offset: Offset | None) -> tuple[Offset, Offset]:
        """Return where the records begin and end that a search may find."""
        state = self._state
        state.health.check()
        end = state.log_end_offset
        return state.log_start_offset, end if limit_offset is None else min(limit_offset, end)

    def _search(
        self,
        found: Segment,
        search: Callable[..., TimestampedOffset | None],
        *args: int,
    ) -> TimestampedOffset | None:
        """Search a segment; return None where retention has deleted it meanwhile.

        Raises:
            _Replaced: it was cut or cleaned meanwhile: another object has its records.
        """
        try:
            record = search(found, *args)
        except (*scan.DAMAGE, OSError) as error:
            self.await_replacement(found, may_block=True)
            is_gone = isinstance(error, FileNotFoundError) and not self._state.is_missing(found)
            if is_gone and not found.is_retired:
                self._state.health.check_not_closed()
                return None
            if found not in self._state.segments:
                raise _Replaced from None
            raise self._state.health.unread(error, found.path) from error
        if found.is_retired:
            self.await_replacement(found, may_block=True)
            raise _Replaced
        return record


class _Replaced(Exception):
    """A segment was cut or cleaned while it was searched."""


def _rank(record: TimestampedOffset) -> tuple[WallMs, int]:
    """The latest record ranks first, and of several the one that was written first."""
    return record.timestamp, -record.offset
