"""A follower's report about its log, the only thing on which its leader counts."""

from typing import Final, NamedTuple

from millrace.core.ids import NO_LEADER_EPOCH, UNKNOWN_OFFSET, LeaderEpoch, Offset
from millrace.core.metadata.topic_config import Durability


class FollowerProgress(NamedTuple):
    """A follower's log at one moment.

    The report is complete in itself: from the epoch of the last batch the leader sees whether the
    log is a prefix of its own (P4), in any order of reports.
    """

    log_end_offset: Offset
    """Behind the last batch that is written."""
    flushed_offset: Offset
    """Behind the last batch that survives a power cut."""
    log_start_offset: Offset
    """All before it is deleted, also after a power cut (P71)."""
    last_fetched_epoch: LeaderEpoch
    """Of the last batch that is written; -1 when there is none."""

    def kept(self, durability: Durability) -> Offset:
        """Return the end of the records that count as durable (P13)."""
        if durability is Durability.FSYNC:
            return min(self.flushed_offset, self.log_end_offset)
        return self.log_end_offset


NO_PROGRESS: Final = FollowerProgress(
    UNKNOWN_OFFSET, UNKNOWN_OFFSET, UNKNOWN_OFFSET, NO_LEADER_EPOCH
)
"""Of a follower that is silent: below every offset, so that it holds the high watermark back."""
