"""The offsets of one follower, and what its leader and readers may be told about its log."""

from enum import Enum

from millrace.core.errors import (
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
)
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from millrace.core.replica.log.leader_epochs import LeaderEpochs, wrong_epoch
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.role import Role


class Phase(Enum):
    """The phases of a follower."""

    LEADERLESS = "there is no leader to fetch from"
    SETTLING = "appends of an earlier leader are still on their way to the disk"
    FETCHING = "a position is open"
    CHANGING = "the log is being cut, or starts over"
    HALTED = "going on would lose committed records"


class FollowerOffsets(Role):
    """What a follower knows of its own log. `PartitionFollower` moves the offsets.

    Attributes:
        leader: that is followed; `NO_BROKER`: none.
        durable_log_start_offset: the log's start, as far as the disk has advanced it.
        next_offset: after the last batch that was handed over to be written.
        generation: counts failed writes: work of an earlier generation is void.
    """

    __slots__ = (
        "_epochs",
        "durable_log_start_offset",
        "flushed_offset",
        "generation",
        "high_watermark",
        "leader",
        "leader_epoch",
        "log_start_offset",
        "next_offset",
        "phase",
        "topic_partition",
        "written_offset",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        leader_epochs: LeaderEpochs,
        *,
        log_start_offset: Offset,
        log_end_offset: Offset,
        flushed_offset: Offset,
        high_watermark: Offset,
    ) -> None:
        assert high_watermark <= log_end_offset
        self.topic_partition = topic_partition
        self.log_start_offset = self.durable_log_start_offset = log_start_offset
        self.next_offset = self.written_offset = log_end_offset
        self.flushed_offset = flushed_offset
        self.high_watermark = high_watermark
        self.leader: BrokerId = NO_BROKER
        self.leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
        self.phase = Phase.LEADERLESS
        self.generation = 0
        self._epochs = LeaderEpochs(leader_epochs.entries)
        # Remove an epoch that was noted for a batch whose write failed.
        self._epochs.truncate_from_end(log_end_offset)

    @property
    def is_settled(self) -> bool:
        """Whether no append or cut is on its way to the disk. A halted follower never is
        settled."""
        is_changing = self.phase in (Phase.CHANGING, Phase.HALTED)
        return not is_changing and self.next_offset == self.written_offset

    def _epoch_before(self, end_offset: Offset) -> LeaderEpoch:
        if end_offset == self.log_start_offset:
            return NO_LEADER_EPOCH
        return self._epochs.epoch_of(Offset(end_offset - 1))

    @property
    def progress(self) -> FollowerProgress:
        """The report to the leader: written batches, not those still under way (P13)."""
        return FollowerProgress(
            self.written_offset,
            self.flushed_offset,
            self.durable_log_start_offset,
            self._epoch_before(self.written_offset),
        )

    def check_epoch(self, expected: LeaderEpoch) -> None:
        """Compare a reader's leader epoch with the one that is followed (P6); -1 is not checked.

        An earlier leader would tell a reader of a later one that its records are gone.

        Raises:
            FencedLeaderEpochError: the reader knows an earlier leader.
            UnknownLeaderEpochError: the reader knows a later leader.
        """
        if expected in (NO_LEADER_EPOCH, self.leader_epoch):
            return
        raise wrong_epoch(self.topic_partition, self.leader_epoch, expected)

    def check_readable(self, fetch_offset: Offset) -> None:
        """Refuse a consumer's position that this replica cannot judge (P12, KIP-392).

        Raises:
            OffsetOutOfRangeError: it lies before the log's start.
            OffsetNotAvailableError: it lies beyond the high watermark, which may be late here.
            NotLeaderError: the replica is halted.
        """
        if self.phase is Phase.HALTED:
            raise NotLeaderError(
                "this replica is halted: read from the leader", topic_partition=self.topic_partition
            )
        if fetch_offset < self.log_start_offset:
            raise OffsetOutOfRangeError(
                f"the log begins at offset {self.log_start_offset} here, not {fetch_offset}: ask "
                "the leader",
                topic_partition=self.topic_partition,
            )
        if fetch_offset > self.high_watermark:
            raise OffsetNotAvailableError(
                f"it is known here to be committed up to {self.high_watermark}, not to "
                f"{fetch_offset}: try again shortly, or ask the leader",
                topic_partition=self.topic_partition,
            )
