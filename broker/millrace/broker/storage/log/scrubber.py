"""Verifies the closed segments of a log, a little with each call (P67).

Their indexes are verified, too, and rebuilt if they are damaged. The active segment is left out:
recovery verifies its unflushed part.

A tiered log has a round for each of its two disks, so that one that hangs does not hold up the
other's. The indexes of all segments lie at home, and belong to the round there.
"""

from millrace.broker.storage import scan
from millrace.broker.storage.log.state import LogState
from millrace.broker.storage.log_recovery import rebuild
from millrace.broker.storage.segment import Segment, segment_of
from millrace.core.ids import NO_LEADER_EPOCH, Offset


class LogScrubber:
    """The round of one disk. One thread at a time calls; appends go on meanwhile.

    Args:
        state: of the log.
        in_tier: whether it is the round of the segments in the tier.
    """

    __slots__ = ("_in_tier", "_offset", "_state")

    def __init__(self, state: LogState, *, in_tier: bool) -> None:
        self._state = state
        self._in_tier = in_tier
        self._offset = Offset(0)  # Where the next call goes on.

    def scrub(self, max_bytes: int) -> int:
        """Verify about `max_bytes` of closed segments (P67), from the end of the last call on.

        Their indexes are verified too, and rebuilt where they are damaged.

        Args:
            max_bytes: about as many, of at least one batch.

        Returns:
            The bytes that were verified; 0 once after all of them, then it begins again.

        Raises:
            CorruptLogError: a batch is damaged; this partition takes nothing more.
            StorageFullError, StorageBusyError: a damaged index stays so until the next round, or
                nothing could be read; the next call goes on.
            LogDirFailedError: the disk takes no new index.
        """
        state = self._state
        state.health.check()
        segments = state.segments
        offset = max(self._offset, state.log_start_offset)
        found = segments[max(segment_of(segments, offset), 0)]
        is_on_disk = state.is_at_home(found) is not self._in_tier
        if found is segments[-1] or (self._in_tier and not is_on_disk):
            self._offset = Offset(0)
            return 0
        verified = 0
        fresh: Segment | None = None
        try:
            is_begun = offset in (found.base_offset, state.log_start_offset)
            if is_begun and not self._in_tier:  # Once for each segment.
                verified = found.index.verify()
                if found.index.is_damaged:
                    fresh = self._rebuild_index(found)
            if not is_on_disk:
                self._offset = found.next_offset
                return self._done(found, fresh, verified)
            place = found.locate(offset, found.size)
            for position, header in scan.verified_batches(
                found.file,
                state.topic_partition,
                position=place.position,
                end_position=found.size,
                next_offset=place.offset,
                leader_epoch=NO_LEADER_EPOCH,
            ):
                verified = position + header.length - place.position
                self._offset = header.next_offset
                if verified >= max_bytes:
                    break
        except FileNotFoundError as error:
            if state.is_missing(found):
                raise state.health.unread(error, found.path) from error
            self._offset = found.next_offset  # Deleted by retention meanwhile.
        except (*scan.DAMAGE, scan.ScanStop, OSError) as error:
            if state.has(found):
                raise state.health.unread(error, found.path) from error
        return self._done(found, fresh, verified)

    def _done(self, found: Segment, fresh: Segment | None, verified: int) -> int:
        if fresh is not None:
            self._replace(found, fresh)
        return max(verified, 1)

    def _rebuild_index(self, found: Segment) -> Segment:
        """Read a closed segment for a new index; appends go on meanwhile."""
        fresh = self._state.open_segment(found.base_offset)
        fresh.file = found.file
        rebuild(fresh, found.size, self._state.config.index_interval_bytes, found.created_at)
        fresh.restore(found.coverage)
        return fresh

    def _replace(self, found: Segment, fresh: Segment) -> None:
        """Use a segment's new index; without room for it, the next round tries again."""
        state = self._state
        with state.lock:
            if state.health.is_closed or found not in state.segments[:-1]:
                return  # Deleted or cut meanwhile.
            try:
                fresh.index.save(fresh.coverage)
            except OSError as error:
                raise state.health.refusal(error, "rebuilding an index of") from error
            state.segments = tuple(
                fresh if segment is found else segment for segment in state.segments
            )
