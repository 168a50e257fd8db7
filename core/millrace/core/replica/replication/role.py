"""What a replica is at a time, a leader or a follower: the events that reach either."""

from collections.abc import Mapping
from typing import Protocol, assert_never

from millrace.core.errors import MillraceError
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicPartition,
)
from millrace.core.metadata.model import PartitionState
from millrace.core.replica.log.leader_epochs import LeaderEpochs, wrong_epoch
from millrace.core.replica.log.open_transactions import NOTHING_UNDECIDED, Undecided
from millrace.core.replica.log.producer_states import ProducerStates
from millrace.core.replica.replication.effects import Effect, FetchFrom
from millrace.core.replica.replication.events import Changed, Failed, Fetched, Flushed, Written
from millrace.core.replica.replication.in_sync import BrokerStanding, IsrProposal
from millrace.core.replica.replication.rules import AppendRules


class ReplicaLog(Protocol):
    """The log that a role begins with. Read only while nothing is on its way to the disk.

    Its start may advance at any time; it is durable when it is visible. `undecided` is replaced
    with each append, before the machine hears of that.
    """

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def log_end_offset(self) -> Offset: ...
    @property
    def flushed_offset(self) -> Offset: ...
    @property
    def compacted_offset(self) -> Offset: ...
    @property
    def leader_epochs(self) -> LeaderEpochs: ...
    @property
    def producer_states(self) -> ProducerStates: ...
    @property
    def undecided(self) -> Undecided: ...


class Role:
    """The interface of a leader and a follower. An event that does not concern a role changes
    nothing there.

    Attributes:
        log: the partition's; another object once it has moved.
        high_watermark: everything below it is committed.
        next_offset: where the next batch begins; the batches before it may not be written yet.
        written_offset: everything before it is in the file, by the events so far.
        generation: counts failed writes: work of an earlier generation is void.
        compacted_offset: every replica has compacted its log up to it; 0: not known (P57).
    """

    __slots__ = ()

    topic_partition: TopicPartition
    log: ReplicaLog
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    next_offset: Offset
    written_offset: Offset
    generation: int
    compacted_offset: Offset

    def check_epoch(self, expected: LeaderEpoch) -> None:
        """Compare a request's leader epoch with the own one (P6); -1 is not checked.

        An earlier leader would tell a reader of a later one that its records are gone.

        Raises:
            FencedLeaderEpochError: the caller knows an earlier leader.
            UnknownLeaderEpochError: the caller knows a later leader.
        """
        if expected not in (self.leader_epoch, NO_LEADER_EPOCH):
            raise wrong_epoch(self.topic_partition, self.leader_epoch, expected)

    @property
    def last_stable_offset(self) -> Offset:
        """End of the records whose outcome is certain: `read_committed` may see them (P10, P52).

        Never before the log's start (T6).
        """
        undecided = self.log.undecided
        if undecided is NOTHING_UNDECIDED:
            return self.high_watermark
        stable = undecided.last_stable_offset(self.high_watermark)
        return max(stable, min(self.log.log_start_offset, self.high_watermark))

    @property
    def is_settled(self) -> bool:
        """Whether nothing is on its way to the disk, so that another role may begin."""
        raise NotImplementedError

    def configure(self, rules: AppendRules, now: MonotonicMs) -> None:
        """Follow the topic's settings from now on."""

    def on_state(
        self,
        state: PartitionState,
        standings: Mapping[BrokerId, BrokerStanding],
        now: MonotonicMs,
    ) -> list[Effect]:
        """Follow the controller's state; one that is older than the known one is ignored (P39)."""
        raise NotImplementedError

    def resign(self, error: MillraceError) -> list[Effect]:
        """Give up the role; every waiting append ends with the error (P17)."""
        raise NotImplementedError

    # --- Events of the disk ------------------------------------------------------------------

    def on_disk(
        self, event: Written | Flushed | Failed | Changed, now: MonotonicMs
    ) -> list[Effect]:
        """The disk has done something, or could not.

        Raises:
            SafetyViolationError: a cut has taken a committed batch along (P5).
        """
        match event:
            case Written(end_offset):
                return self.on_written(end_offset, now)
            case Flushed(end_offset):
                return self.on_written(end_offset, now) + self.on_flushed(end_offset)
            case Failed(base_offset, error):
                return self.on_write_failed(base_offset, error)
            case Changed():
                return self.on_changed(event)
            case _:
                assert_never(event)

    def on_written(self, end_offset: Offset, now: MonotonicMs) -> list[Effect]:
        """All before `end_offset` is in the file."""
        raise NotImplementedError

    def on_flushed(self, flushed_offset: Offset) -> list[Effect]:
        """All before `flushed_offset` survives a power cut."""
        raise NotImplementedError

    def on_write_failed(self, base_offset: Offset, error: MillraceError) -> list[Effect]:
        """Take back everything from `base_offset` on, where the file ends."""
        raise NotImplementedError

    def on_changed(self, event: Changed) -> list[Effect]:
        """The log was cut, emptied or begins later."""
        raise NotImplementedError

    # --- The leader to follow ----------------------------------------------------------------

    def on_fetched(self, position: FetchFrom, fetched: Fetched) -> list[Effect]:
        """Take the leader's answer to a position; one that leads by now ignores it (P7)."""
        return []

    def on_fetch_failed(self, position: FetchFrom) -> list[Effect]:
        """The leader refused a position, or was lost."""
        return []

    def on_out_of_range(self, position: FetchFrom, log_start_offset: Offset) -> list[Effect]:
        """A position lies outside of the leader's log, which begins at this offset."""
        return []

    # --- Time --------------------------------------------------------------------------------

    def due_at(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return when `tick` may have something to do, if no event comes before; None: never."""
        return None

    def tick(
        self, now: MonotonicMs, leader_epochs: LeaderEpochs
    ) -> tuple[list[Effect], IsrProposal | None]:
        """Let time pass; return what to propose to the controller, too."""
        return [], None
