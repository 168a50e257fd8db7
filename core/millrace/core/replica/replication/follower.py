"""A follower's side of one partition: what to fetch, what to append, what to cut.

A follower makes its log equal to its leader's. It names its next offset, and the epoch of its last
batch. The leader answers with batches if the follower's log is a prefix of its own, and otherwise
with the last epoch that both may share (P4). Then the follower cuts its log back to where that
epoch ends in the shorter of the two, and asks again, until nothing diverges (P3). Its high
watermark plays no part in that: it is always a step behind, and records above it may well be
committed (P5). Below it nothing may ever be cut, unless the partition had an unclean election; a
follower that would have to cut there halts and keeps everything, until there is another leader: the
present one may be the replica that is wrong. An empty log, whose records were
all given up, has nothing to cut: if its leader cannot tell whether it may continue from there, it
starts over.

Batches are kept byte for byte as the leader has them (P1), one whole batch or nothing of it (P8). A
batch that came damaged is fetched again, and the leader verifies its copy first (P65).
With one exception: a leader whose log is compacted may have put batches together, and then one of
them may begin before the end of this log. The follower takes the end of it. The shell changes the
log, in the order of the effects (`effects`), and each change comes back as an event:

| effect          | answered by                                                                |
|-----------------|----------------------------------------------------------------------------|
| `FetchFrom`     | `on_fetched`, or `on_out_of_range`, `on_fetch_failed`                      |
| `StopFetching`  |                                                                            |
| `Append`        | `on_written`, `on_flushed`, or `on_write_failed`                           |
| `ChangeLog`     | `on_changed`, with producer states and indexes (P45)                       |
| `RecordsLost`   |                                                                            |

The shell verifies both checksums of every batch before it passes a response on (P8, P66). The
producer states are not here either: the log's append and truncation maintain them (P45), and a
follower that becomes the leader begins with a copy of them.

A leader's log may begin within a batch, where records were deleted up to an offset. An empty log
starts over at the beginning of that batch, and gives up the records before the leader's start when
it has the batch.

Appends are pipelined: the position moves on when a batch is handed over, not when it is written. So
the credit that the shell grants bounds the bytes under way. Before it opens a position at another
leader, the machine waits until everything is written or has failed.

After a write, a flush, a truncation and an advance of the log start the session with the leader
sends `progress`: the high watermark depends only on that, and so do deletions of records (P71).
After a failed write the shell drops the appends that it has not done yet.

Invariants: `high_watermark <= written_offset <= next_offset`; the high watermark goes back only
after an unclean election, and when an empty log starts over.

Source: KIP-101, 279, 320, 392, 595 (truncation on fetch).
"""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from millrace.core.errors import (
    MillraceError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    SafetyViolationError,
)
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    VERIFY_NOTHING,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    PartitionEpoch,
    TopicPartition,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.replica.log.leader_epochs import LeaderEpochs
from millrace.core.replica.replication.effects import (
    Append,
    Change,
    ChangeLog,
    Effect,
    FetchFrom,
    RecordsLost,
    ReplicaBatch,
    StopFetching,
    Wake,
)
from millrace.core.replica.replication.events import Changed, Fetched
from millrace.core.replica.replication.in_sync import BrokerStanding
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.role import ReplicaLog, Role
from millrace.core.replica.replication.rules import ReplicationConfig

_DEFAULTS: Final = ReplicationConfig()


class Phase(Enum):
    """The phases of a follower."""

    LEADERLESS = "there is no leader to fetch from"
    SETTLING = "appends of an earlier leader are still on their way to the disk"
    FETCHING = "a position is open"
    CHANGING = "the log is being cut, or starts over"
    HALTED = "going on would lose committed records"


class PartitionFollower(Role):
    """The role of a replica that does not lead.

    Args:
        topic_partition: the partition.
        broker: this broker's life.
        log: the partition's; nothing is on its way to the disk. Its epochs are copied.
        high_watermark: everything below it is committed; may be far behind (P68).
        high_watermark_epoch: the leader epoch in which that was known; -1: unknown.
        config: the broker's settings.

    Attributes:
        durable_log_start_offset: the log's start, as far as the disk has advanced it.
    """

    __slots__ = (
        "_config",
        "_epochs",
        "_high_watermark_epoch",
        "_lacks_committed",
        "_leader_high_watermark",
        "_leader_log_start_offset",
        "_opened",
        "_partition_epoch",
        "_pause_ms",
        "_refusal_pause_ms",
        "_starts_within",
        "_unclean_epoch",
        "_verify_until",
        "broker",
        "compacted_offset",
        "durable_log_start_offset",
        "flushed_offset",
        "generation",
        "high_watermark",
        "leader",
        "leader_epoch",
        "log",
        "log_start_offset",
        "next_offset",
        "phase",
        "topic_partition",
        "written_offset",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker: BrokerLife,
        log: ReplicaLog,
        *,
        high_watermark: Offset,
        high_watermark_epoch: LeaderEpoch = NO_LEADER_EPOCH,
        config: ReplicationConfig = _DEFAULTS,
    ) -> None:
        assert high_watermark <= log.log_end_offset
        self.topic_partition = topic_partition
        self.log = log
        self.log_start_offset = self.durable_log_start_offset = log.log_start_offset
        self.next_offset = self.written_offset = log.log_end_offset
        self.flushed_offset = log.flushed_offset
        self.high_watermark = high_watermark
        self.leader: BrokerId = NO_BROKER
        self.leader_epoch = NO_LEADER_EPOCH
        self.phase = Phase.LEADERLESS
        self.generation = 0
        self._epochs = LeaderEpochs(log.leader_epochs.entries)
        # Remove an epoch that was noted for a batch whose write failed.
        self._epochs.truncate_from_end(log.log_end_offset)
        self.broker = broker
        self._high_watermark_epoch = high_watermark_epoch
        self._config = config
        self._partition_epoch = PartitionEpoch(-1)
        self._unclean_epoch = NO_LEADER_EPOCH
        self._opened = 0
        self._pause_ms = 0
        self._lacks_committed = False  # A cut took committed records along: it is halted for good.
        # The start of the leader's log, if that lies within the first batch of this empty log.
        self._starts_within: Offset = log.log_start_offset
        self._forget_leader()

    def _forget_leader(self) -> None:
        """Forget the last leader's offsets: they hold only for prefixes of its own log."""
        self._leader_high_watermark = self.high_watermark
        self._leader_log_start_offset = self.log_start_offset
        self.compacted_offset = Offset(0)
        self._refusal_pause_ms = 0
        self._verify_until = VERIFY_NOTHING

    # --- State -------------------------------------------------------------------------------

    @property
    def position(self) -> FetchFrom | None:
        """The open position, so that a lost request can be repeated (P4)."""
        return self._position() if self.phase is Phase.FETCHING else None

    @property
    def _fetch_offset(self) -> Offset:
        return max(self.next_offset, self._starts_within)

    def _position(self, pause_ms: int = 0) -> FetchFrom:
        return FetchFrom(
            self.topic_partition,
            self.leader,
            self.leader_epoch,
            self._fetch_offset,
            self._epoch_before(self.next_offset),
            self._opened,
            pause_ms,
            self._verify_until,
        )

    @property
    def is_settled(self) -> bool:
        """Whether no append or cut is on its way to the disk, and the follower is not halted."""
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
            self.log.compacted_offset,
        )

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

    # --- The leader to follow ----------------------------------------------------------------

    def on_state(
        self,
        state: PartitionState,
        standings: Mapping[BrokerId, BrokerStanding],
        now: MonotonicMs,
    ) -> list[Effect]:
        """Follow the controller's state; a state older than the known one is ignored (P39).

        A halted follower goes on with another leader, or in another leader epoch.
        """
        if self._lacks_committed or state.partition_epoch < self._partition_epoch:
            return []
        self._partition_epoch = state.partition_epoch
        self._unclean_epoch = state.unclean_epoch
        if state.leader_life == self.broker:
            return self.stop()
        if (state.leader, state.leader_epoch) == (self.leader, self.leader_epoch):
            return []
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self._starts_within = self.log_start_offset
        self._forget_leader()
        return self._open()

    def stop(self) -> list[Effect]:
        """Follow no leader from now on; work on its way to the disk still reports back."""
        self.leader = NO_BROKER
        self.leader_epoch = NO_LEADER_EPOCH
        self._forget_leader()
        return self._open()

    def resign(self, error: MillraceError) -> list[Effect]:
        """Follow no leader; nothing waits here."""
        return [*self.stop(), Wake(self.topic_partition)]

    def _open(self, pause_ms: int = 0) -> list[Effect]:
        if self.phase is Phase.CHANGING:
            return []  # When that is done.
        if self.leader == NO_BROKER:
            self.phase = Phase.LEADERLESS
            return [StopFetching(self.topic_partition)]
        if self.next_offset != self.written_offset:
            self.phase = Phase.SETTLING
            self._pause_ms = pause_ms
            return [StopFetching(self.topic_partition)]
        self.phase = Phase.FETCHING
        self._opened += 1
        return [self._position(pause_ms)]

    # --- Answers of the leader ---------------------------------------------------------------

    def on_fetched(self, position: FetchFrom, fetched: Fetched) -> list[Effect]:
        """Take an answer to a position; ignore one that is not open any more (P7).

        Raises:
            SafetyViolationError: committed batches would be cut; the replica is halted (P5).
        """
        if not self._is_open(position) or fetched.fetch_offset != self._fetch_offset:
            return []
        self._refusal_pause_ms = 0
        if fetched.diverging is not None:
            return self._cut_back(fetched.diverging, fetched.log_start_offset)
        if fetched.log_start_offset > self._fetch_offset:
            self._guard(fetched.log_start_offset)
            return self._restart_at(fetched.log_start_offset)
        is_empty = self.next_offset == self.log_start_offset
        if is_empty and _begin_before(fetched.batches, self.next_offset):
            base_offset = fetched.batches[0].base_offset
            return self._restart_at(base_offset, self._fetch_offset)  # Nothing is lost.
        batches = self._follow_on(fetched.batches)
        effects: list[Effect] = []
        if batches:
            effects.append(Append(self.topic_partition, batches, self.generation))
            for batch in batches:
                self._epochs.append(batch.leader_epoch, batch.base_offset)
            self.next_offset = batches[-1].next_offset
        self._leader_high_watermark = fetched.high_watermark
        self._high_watermark_epoch = self.leader_epoch
        self._leader_log_start_offset = fetched.log_start_offset
        self.compacted_offset = fetched.compacted_offset
        effects += self._advance()
        if fetched.is_damaged:
            self._verify_until = Offset(self._fetch_offset + 1)
        if fetched.is_damaged or len(batches) < len(fetched.batches):
            effects += self._open(self._config.replica_fetch_backoff_ms)  # P8: fetch it again.
        return effects

    def _is_open(self, position: FetchFrom) -> bool:
        """Whether a position is the open one: of this leader, this epoch, and no earlier try (P7).

        Within one epoch the log may have been cut, and filled again, since an old position.
        """
        return (
            self.phase is Phase.FETCHING
            and position.leader == self.leader
            and position.leader_epoch == self.leader_epoch
            and position.number == self._opened
        )

    def _follow_on(self, batches: Sequence[ReplicaBatch]) -> list[ReplicaBatch]:
        """Return the batches up to the first that does not follow on the one before it (P8)."""
        next_offset, epoch = self.next_offset, self._epoch_before(self.next_offset)
        if _begin_before(batches, next_offset):
            batches = [batches[0].cut(self.topic_partition, next_offset), *batches[1:]]
        found = []
        for batch in batches:
            is_next = batch.base_offset == next_offset < batch.next_offset
            if not (is_next and max(epoch, 0) <= batch.leader_epoch <= self.leader_epoch):
                break
            next_offset, epoch = batch.next_offset, batch.leader_epoch
            found.append(batch)
        return found

    def on_out_of_range(self, position: FetchFrom, log_start_offset: Offset) -> list[Effect]:
        """Take the answer that a position lies outside of the leader's log.

        A position before the leader's start is too old: those batches are gone. A position beyond
        the leader's end is no reason to cut anything: only epochs are (P5).
        """
        if not self._is_open(position):
            return []
        if log_start_offset > self._fetch_offset:
            self._guard(log_start_offset)
            return self._restart_at(log_start_offset)
        return self._open(self._config.replica_fetch_backoff_ms)

    def on_fetch_failed(self, position: FetchFrom) -> list[Effect]:
        """Ask again after a pause: the leader refused the position, or was lost (P6).

        The pause is short at first, as a follower may hear of its leader before the leader does.
        """
        if not self._is_open(position):
            return []
        longest = self._config.replica_fetch_backoff_ms
        pause = min(self._refusal_pause_ms or self._config.replica_fetch_backoff_min_ms, longest)
        self._refusal_pause_ms = min(2 * pause, longest)
        return self._open(pause)

    def _cut_back(self, diverging: EpochEnd, leader_log_start_offset: Offset) -> list[Effect]:
        """Cut to where the epoch that the leader names ends in the shorter of the logs (P4).

        Never to the own high watermark: that is the end of committed records, not of shared ones
        (P5).
        """
        is_empty = self.next_offset == self.log_start_offset
        if is_empty and diverging.epoch == NO_LEADER_EPOCH and diverging.end_offset >= 0:
            # Nothing is cut, but a leader that ends before committed records has lost them (P5).
            self._guard(diverging.end_offset)
            return self._restart_at(leader_log_start_offset)
        own = self._epochs.end_offset_for(diverging.epoch, self.next_offset)
        if diverging.end_offset < 0 or own.end_offset < 0:
            # An epoch that neither log has: no correct leader answers so.
            return self._open(self._config.replica_fetch_backoff_ms)
        end_offset = min(diverging.end_offset, own.end_offset)
        lost = self._lost(end_offset)
        if end_offset < self.log_start_offset:
            self._guard(leader_log_start_offset)
            return [*lost, *self._restart_at(leader_log_start_offset)]
        self._guard(end_offset)
        self.phase = Phase.CHANGING
        return [*lost, ChangeLog(self.topic_partition, Change.TRUNCATE, end_offset)]

    def _restart_at(
        self, start_offset: Offset, starts_within: Offset | None = None
    ) -> list[Effect]:
        self.phase = Phase.CHANGING
        self._starts_within = start_offset if starts_within is None else starts_within
        return [ChangeLog(self.topic_partition, Change.START_OVER, start_offset)]

    @property
    def _is_void(self) -> bool:
        """Whether an unclean election has invalidated the high watermark.

        It has if it came after the high watermark was known. That epoch is not remembered over
        restarts, but it was not before the last batch of the log.
        """
        known_in = max(self._high_watermark_epoch, self._epoch_before(self.next_offset))
        return self._unclean_epoch > known_in

    def _lost(self, end_offset: Offset) -> list[Effect]:
        """Report the records of a cut after an unclean election (P30): any may be committed."""
        start_offset = max(end_offset, self.log_start_offset)
        if not self._is_void or start_offset >= self.next_offset:
            return []
        offsets = start_offset, self.next_offset, max(start_offset, self.high_watermark)
        return [RecordsLost(self.topic_partition, self.leader_epoch, *offsets)]

    def _guard(self, end_offset: Offset, *, is_cut: bool = False) -> None:
        """Halt rather than cut committed records (P5); for good if the log is cut already."""
        if end_offset >= self.high_watermark or self._is_void:
            return
        self.phase = Phase.HALTED
        self._lacks_committed = is_cut
        raise SafetyViolationError(
            f"following broker {self.leader} in leader epoch "
            f"{self.leader_epoch} would end the log at {end_offset}, but everything before "
            f"{self.high_watermark} is committed, and no unclean election since is on record. "
            "Find out which replica is right before this one is removed: it keeps its records, and "
            "goes on when there is another leader",
            topic_partition=self.topic_partition,
        )

    # --- Events of the disk ------------------------------------------------------------------

    def on_written(self, end_offset: Offset, now: MonotonicMs) -> list[Effect]:
        """Note that all before `end_offset` is in the file."""
        if self.phase is Phase.CHANGING:
            return []  # The change reports the written offset: this may be from before or after.
        assert self.written_offset <= end_offset <= self.next_offset
        self.written_offset = end_offset
        return self._advance() + self._settled()

    def on_flushed(self, flushed_offset: Offset) -> list[Effect]:
        """Note that all before `flushed_offset` is durable."""
        assert flushed_offset <= self.written_offset or self.phase is Phase.CHANGING
        self.flushed_offset = max(self.flushed_offset, min(flushed_offset, self.written_offset))
        return []

    def on_write_failed(self, base_offset: Offset, error: MillraceError) -> list[Effect]:
        """Take back the appends from `base_offset` on, where the file ends; fetch again."""
        assert base_offset >= self.written_offset
        self.generation += 1
        self.next_offset = base_offset
        self._epochs.truncate_from_end(base_offset)
        if self.phase is Phase.FETCHING:
            return self._open(self._config.replica_fetch_backoff_ms)
        return self._settled()

    def _settled(self) -> list[Effect]:
        if self.phase is Phase.SETTLING and self.next_offset == self.written_offset:
            return self._open(self._pause_ms)
        return []

    def on_changed(self, event: Changed) -> list[Effect]:
        """Note where the log begins and ends now; after a cut, ask again whether it diverges (P3).

        Raises:
            SafetyViolationError: the batch that was cut through had been committed (P5).
        """
        match event.change:
            case Change.TRUNCATE:
                return self._on_truncated(event.log_end_offset)
            case Change.START_OVER:
                return self._on_started_over(event.log_start_offset)
        # This broker may have deleted records when it led. A log that changes begins elsewhere.
        if self.phase is not Phase.CHANGING and event.log_start_offset < self.written_offset:
            self.log_start_offset = max(self.log_start_offset, event.log_start_offset)
        self.durable_log_start_offset = min(event.log_start_offset, self.log_start_offset)
        return [Wake(self.topic_partition)]

    def _on_truncated(self, log_end_offset: Offset) -> list[Effect]:
        assert self.phase is Phase.CHANGING
        self._guard(log_end_offset, is_cut=True)
        self._epochs.truncate_from_end(log_end_offset)
        self._starts_within = min(self.log_start_offset, log_end_offset)
        return self._changed(self.log_start_offset, log_end_offset)

    def _on_started_over(self, start_offset: Offset) -> list[Effect]:
        assert self.phase is Phase.CHANGING
        self._epochs = LeaderEpochs()
        # Everything before the leader's start was committed, and no longer exists.
        self.high_watermark = start_offset
        self._high_watermark_epoch = self.leader_epoch
        self.flushed_offset = self.durable_log_start_offset = start_offset
        return self._changed(start_offset, start_offset)

    def _changed(self, log_start_offset: Offset, log_end_offset: Offset) -> list[Effect]:
        self.log_start_offset = min(log_start_offset, log_end_offset)
        self.durable_log_start_offset = min(self.durable_log_start_offset, self.log_start_offset)
        self.next_offset = self.written_offset = log_end_offset
        self.flushed_offset = min(self.flushed_offset, log_end_offset)
        self.high_watermark = min(self.high_watermark, log_end_offset)
        self._forget_leader()
        self.phase = Phase.FETCHING
        return self._open()

    def _advance(self) -> list[Effect]:
        """Move the high watermark as far as the leader's and the own log allow (P12).

        The log start follows the leader's, which is never behind what is committed.
        """
        committed = min(self._leader_high_watermark, self.written_offset)
        self.high_watermark = max(self.high_watermark, committed)
        start_offset = min(self._leader_log_start_offset, self.high_watermark)
        if start_offset <= self.log_start_offset:
            return []  # As nearly always.
        self.log_start_offset = start_offset
        self._epochs.truncate_from_start(start_offset)
        return [ChangeLog(self.topic_partition, Change.ADVANCE_START, start_offset)]


def _begin_before(batches: Sequence[ReplicaBatch], next_offset: Offset) -> bool:
    """Whether the first batch begins before an offset, and ends after it."""
    return bool(batches) and batches[0].base_offset < next_offset < batches[0].next_offset
