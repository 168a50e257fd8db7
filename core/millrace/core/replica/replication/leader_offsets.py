"""The offsets of one leader, and what followers and readers may be told about its log.

A leader begins with the high watermark that it knew as a follower, which may be behind the true
one. The true one is at most where its epoch began, so until its own has reached that offset, it
cannot tell readers where the log ends (P11).

Source: KIP-101, 207, 279, 320.
"""

from millrace.core.errors import (
    Appended,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    EpochEnd,
    LeaderEpoch,
    Offset,
    TopicPartition,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.topic_config import Durability
from millrace.core.replica.log.leader_epochs import LeaderEpochs, wrong_epoch
from millrace.core.replica.replication.in_sync import InSyncReplicas, LeaderEnds
from millrace.core.replica.replication.role import ReplicaLog, Role
from millrace.core.replica.replication.rules import AppendRules
from millrace.core.words import count


class LeaderOffsets(Role):
    """What a leader knows of its own log. `PartitionLeader` moves the offsets.

    Attributes:
        generation: counts failed writes: work of an earlier generation is void.
        in_sync: the replicas that it counts on.
        is_resigned: whether it no longer leads.
        leader_epoch_start_offset: end of the log when this epoch began.
        log_start_offset: of the log, as far as the disk has advanced it.
    """

    __slots__ = (
        "broker",
        "compacted_offset",
        "flushed_offset",
        "generation",
        "high_watermark",
        "in_sync",
        "is_resigned",
        "leader_epoch",
        "leader_epoch_start_offset",
        "log",
        "log_start_offset",
        "next_offset",
        "rules",
        "topic_partition",
        "written_offset",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker: BrokerLife,
        log: ReplicaLog,
        rules: AppendRules,
        in_sync: InSyncReplicas,
        *,
        high_watermark: Offset,
    ) -> None:
        # A state of an earlier life of this broker does not make it the leader (P37).
        assert in_sync.state.leader_life == broker
        self.topic_partition = topic_partition
        self.log = log
        self.broker = broker
        self.rules = rules
        self.leader_epoch = in_sync.state.leader_epoch
        self.next_offset = self.written_offset = log.log_end_offset
        self.flushed_offset = log.flushed_offset
        self.high_watermark = high_watermark
        self.leader_epoch_start_offset = self.next_offset
        self.log_start_offset = log.log_start_offset
        self.compacted_offset = Offset(0)
        self.generation = 0
        self.in_sync = in_sync
        self.is_resigned = False

    # --- State -------------------------------------------------------------------------------

    @property
    def durable_offset(self) -> Offset:
        """End of the records that count as durable on this replica (P13)."""
        if self.rules.durability is Durability.FSYNC:
            return self.flushed_offset
        return self.written_offset

    @property
    def is_settled(self) -> bool:
        """Whether no append is on its way to the disk."""
        return self.next_offset == self.written_offset

    @property
    def state(self) -> PartitionState:
        """The newest state that is known."""
        return self.in_sync.state

    @property
    def is_high_watermark_known(self) -> bool:
        """Whether it covers everything that earlier leaders may have committed (P11)."""
        return self.high_watermark >= self.leader_epoch_start_offset

    # --- Queries -----------------------------------------------------------------------------

    def check_epoch(self, expected: LeaderEpoch) -> None:
        """Compare as every role does (P6).

        Raises:
            NotLeaderError: this leader has resigned.
        """
        if self.is_resigned:
            raise NotLeaderError(
                "another broker leads it now: refresh the metadata",
                appended=Appended.NO,
                topic_partition=self.topic_partition,
            )
        if expected != self.leader_epoch:
            super().check_epoch(expected)

    def check_end_offset(self) -> None:
        """Refuse to tell readers the end of the log while it is not known (P11, KIP-207).

        Raises:
            OffsetNotAvailableError: the high watermark may be behind what readers saw before.
        """
        if not self.is_high_watermark_known:
            raise OffsetNotAvailableError(
                f"the leader of epoch {self.leader_epoch} does not know "
                f"yet what is committed between {self.high_watermark} and "
                f"{self.leader_epoch_start_offset}: try again shortly",
                topic_partition=self.topic_partition,
            )

    def check_readable(self, fetch_offset: Offset, log_start_offset: Offset) -> None:
        """Refuse a consumer's position outside of the log.

        A position between the high watermark and the end waits: the reader may have it from an
        earlier leader with a higher high watermark (P11).

        Raises:
            OffsetOutOfRangeError: the position is before the start, or beyond the end.
        """
        if not log_start_offset <= fetch_offset <= self.next_offset:
            raise OffsetOutOfRangeError(
                f"the log has the offsets {log_start_offset} to {self.next_offset}, not "
                f"{fetch_offset}: seek to one of them",
                topic_partition=self.topic_partition,
            )

    def diverging(
        self, fetch_offset: Offset, last_fetched_epoch: LeaderEpoch, leader_epochs: LeaderEpochs
    ) -> EpochEnd | None:
        """Return where a follower or consumer must look back to; None when it may go on (P4).

        Args:
            fetch_offset: the reader has everything before it.
            last_fetched_epoch: of the last batch before it; -1 when there is none.
            leader_epochs: of this replica's log.

        Raises:
            UnknownLeaderEpochError: the reader has seen a later leader than this one.
        """
        if last_fetched_epoch == self.leader_epoch and fetch_offset <= self.written_offset:
            return None  # The usual case: in its own epoch no other leader has written.
        if last_fetched_epoch > self.leader_epoch:
            raise wrong_epoch(self.topic_partition, self.leader_epoch, last_fetched_epoch)
        epochs = leader_epochs.with_reign(self.leader_epoch, self.leader_epoch_start_offset)
        return epochs.diverging(fetch_offset, last_fetched_epoch, self.written_offset)

    def diverging_follower(
        self,
        life: BrokerLife,
        fetch_offset: Offset,
        last_fetched_epoch: LeaderEpoch,
        leader_epochs: LeaderEpochs,
        log_start_offset: Offset,
    ) -> EpochEnd | None:
        """Return where a follower must look back to; None when it may go on, and counts (P4).

        As `diverging`, but also for empty logs: no epoch shows whether the records before an empty
        log's start were the same as here. For in-sync and eligible replicas they were. Any other
        may have deleted them before an unclean election, and lack the records that replaced them.
        So it must start over where this log begins: then the epoch is -1, and the end is the start
        of this log.

        Args:
            life: the follower's.
            fetch_offset: end of its log.
            last_fetched_epoch: of the last batch before it; -1 when there is none.
            leader_epochs: of this replica's log.
            log_start_offset: of this replica's log.

        Raises:
            UnknownLeaderEpochError: as `diverging`.
        """
        if last_fetched_epoch == NO_LEADER_EPOCH and fetch_offset > log_start_offset:
            is_trusted = life in self.in_sync.maximal_isr or life in self.state.elr
            if not is_trusted or fetch_offset > self.written_offset:
                return EpochEnd(NO_LEADER_EPOCH, self.written_offset)
        return self.diverging(fetch_offset, last_fetched_epoch, leader_epochs)

    def end_offset_for(self, epoch: LeaderEpoch, leader_epochs: LeaderEpochs) -> EpochEnd:
        """Return the greatest epoch that is not above `epoch`, and its end (P3).

        Raises:
            OffsetNotAvailableError: as in `check_end_offset`.
        """
        self.check_end_offset()
        epochs = leader_epochs.with_reign(self.leader_epoch, self.leader_epoch_start_offset)
        return epochs.end_offset_for(epoch, self.written_offset)

    # --- Deleting records --------------------------------------------------------------------

    def check_deletable(self, offset: Offset) -> None:
        """Refuse to delete the records before an offset, if that is not possible now (P71).

        Raises:
            OffsetNotAvailableError: as in `check_end_offset`.
            OffsetOutOfRangeError: not all of them are committed.
            NotEnoughReplicasError: too few replicas are in sync: others may come back to lead.
        """
        self.check_end_offset()
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRangeError(
                f"records can be deleted up to offset {self.high_watermark}, where those that are "
                f"committed end, not to {offset}; nothing was deleted",
                topic_partition=self.topic_partition,
            )
        if self.in_sync.is_short(self.rules):
            raise NotEnoughReplicasError(
                self._too_few("nothing was deleted"), topic_partition=self.topic_partition
            )

    @property
    def low_watermark(self) -> Offset:
        """All records before it are deleted, and no replica that may lead has them (P71)."""
        return self.in_sync.low_watermark(self.log_start_offset)

    def _too_few(self, what: str) -> str:
        return (
            f"{count(len(self.state.isr), 'replica is', 'replicas are')} in sync, "
            f"{self.in_sync.effective_min(self.rules)} must be (min.insync.replicas): {what}"
        )

    @property
    def _ends(self) -> LeaderEnds:
        return LeaderEnds(
            self.written_offset,
            self.high_watermark,
            self.leader_epoch_start_offset,
            self.flushed_offset,
            self.log_start_offset,
        )
