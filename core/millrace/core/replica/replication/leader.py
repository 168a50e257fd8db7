"""The leader's side of one partition: offsets, durability, the high watermark, acknowledgements.

An append passes four points, and each is an event here:

1. *given*: `append` has checked epoch and sequence, and the batch has its offsets. Nothing is on
   disk. Later batches may be given offsets at once, so appends are pipelined.
2. *written*: the bytes are in the file (`on_written`). From here on followers may fetch them.
3. *flushed*: the bytes survive a power cut (`on_flushed`).
4. *replicated*: a follower reports what it has written and flushed (`on_follower_fetch`).

The shell writes batches in the order in which they were given their offsets. When a write fails
(`on_write_failed`), that batch and all after it lose their offsets again, and the producers'
sequences go back with them: no number is used up (P64).

A replica's end is the flushed offset if the topic's durability is `fsync`, and the written offset
if it is `replicated` (P13). The high watermark is the smallest end of the leader, of all replicas
in the maximal ISR, and of followers that are about to join it (P9, P20); while fewer replicas are
in sync than `min.insync.replicas` it stands still. An append with `acks=1` is acknowledged when the
leader's own end passes it, with `acks=all` when the high watermark does (P15). Either way it is not
acknowledged before it is durable here: the topic decides the durability, and the producer the
number of replicas to wait for.

A leader begins with the high watermark that it knew as a follower, which may be behind the true
one. The true one is at most where its epoch began, so until its own has reached that offset, it
cannot tell readers where the log ends (P11).

The shell makes the machine when the controller's state names this life of the broker as the leader,
passes on every newer state (`on_state`), asks it for proposals in time (`tick`, `due_at`), and
discards it when it has resigned.

Invariants: `high_watermark <= durable end <= written_offset <= next_offset`, and within one leader
epoch the high watermark never goes back. After the leader has resigned nothing advances (P17).

Source: Kafka's Partition and ReplicaManager; KIP-98 for duplicates (P18); KIP-207, 320, 497, 966.
"""

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from millrace.core.errors import (
    Appended,
    InvalidTimestampError,
    MalformedRequestError,
    MillraceError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OffsetNotAvailableError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BrokerId,
    EpochEnd,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.topic_config import Durability
from millrace.core.records.header import BatchHeader
from millrace.core.replica.log.leader_epochs import LeaderEpochs, wrong_epoch
from millrace.core.replica.log.producer_states import ProducerEntry, ProducerStates
from millrace.core.replica.replication.effects import Complete, Effect, Wake
from millrace.core.replica.replication.events import Changed
from millrace.core.replica.replication.in_sync import (
    BrokerStanding,
    Follower,
    InSyncReplicas,
    IsrProposal,
    LeaderEnds,
)
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.role import Role
from millrace.core.replica.replication.rules import AppendRules, ReplicationConfig
from millrace.core.words import count

_DEFAULTS: Final = ReplicationConfig()
_NO_RECORDS_DELETED: Final = Offset(0)


class Acks(Enum):
    """The replicas that an append waits for."""

    LEADER = 1
    """This replica has it."""
    ALL = -1
    """All in-sync replicas have it."""


@dataclass(slots=True)
class Waiter:
    """An append that a caller waits for; `is_done` once it is acknowledged or has failed.

    `append_timestamp` is -1 unless the topic stamps append time.
    """

    owner: object
    """The shell's own: the receiver of the outcome."""

    base_offset: Offset
    last_offset: Offset
    append_timestamp: WallMs
    acks: Acks
    is_duplicate: bool = False
    is_done: bool = False
    error: MillraceError | None = None


@dataclass(slots=True)
class _Given:
    """A batch that has offsets but is not written, with all that undoing it needs."""

    base_offset: Offset
    next_offset: Offset
    producer_before: ProducerEntry | None
    producer_id: ProducerId


class PartitionLeader(Role):
    """See the module. Appends complete in the order of offsets.

    Args:
        topic_partition: the partition.
        broker: this broker's life; the leader of `state`.
        state: the controller's newest state of the partition.
        producers: as of the end of the log; the leader's own from now on.
        rules: the topic's settings; may be replaced at any time.
        next_offset: end of the log; nothing is on its way to the disk.
        written_offset: the same.
        flushed_offset: up to here the log survives a power cut.
        high_watermark: the last one that this replica knew; may be behind the true one (P68).
        log_start_offset: of the log, durably.
        standings: every registered broker.
        config: the broker's settings.
        now: the time.

    Attributes:
        generation: counts failed writes: work of an earlier generation is void.
        leader_epoch_start_offset: end of the log when this epoch began.
        log_start_offset: of the log, as far as the disk has advanced it.
    """

    __slots__ = (
        "_given",
        "_in_sync",
        "_is_resigned",
        "_waiters_made",
        "_waiting",
        "_waiting_for_all",
        "broker",
        "flushed_offset",
        "generation",
        "high_watermark",
        "leader_epoch",
        "leader_epoch_start_offset",
        "log_start_offset",
        "next_offset",
        "producers",
        "rules",
        "topic_partition",
        "written_offset",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker: BrokerLife,
        state: PartitionState,
        producers: ProducerStates,
        rules: AppendRules,
        *,
        next_offset: Offset,
        written_offset: Offset,
        flushed_offset: Offset,
        high_watermark: Offset,
        now: MonotonicMs,
        log_start_offset: Offset = _NO_RECORDS_DELETED,
        standings: Mapping[BrokerId, BrokerStanding] | None = None,
        config: ReplicationConfig = _DEFAULTS,
    ) -> None:
        # A state of an earlier life of this broker does not make it the leader (P37).
        assert state.leader_life == broker
        self.topic_partition = topic_partition
        self.broker = broker
        self.leader_epoch = state.leader_epoch
        self.producers = producers
        self.rules = rules
        self.next_offset = next_offset
        self.written_offset = written_offset
        self.flushed_offset = flushed_offset
        self.high_watermark = high_watermark
        self.leader_epoch_start_offset = next_offset
        self.log_start_offset = log_start_offset
        self.generation = 0
        self._in_sync = InSyncReplicas(broker, state, standings or {}, config, now)
        self._given: deque[_Given] = deque()
        # Heaps by last offset, then by age: acks=1 must not queue up behind acks=all.
        self._waiting: list[tuple[Offset, int, Waiter]] = []
        self._waiting_for_all: list[tuple[Offset, int, Waiter]] = []
        self._waiters_made = 0
        self._is_resigned = False
        self._advance()  # Without followers no report will trigger it.

    # --- State -------------------------------------------------------------------------------

    @property
    def durable_offset(self) -> Offset:
        """End of the records that count as durable on this replica (P13)."""
        if self.rules.durability is Durability.FSYNC:
            return self.flushed_offset
        return self.written_offset

    @property
    def last_stable_offset(self) -> Offset:
        """End of the records that `read_committed` may see (P10)."""
        return self.high_watermark

    @property
    def is_resigned(self) -> bool:
        """Whether it no longer leads."""
        return self._is_resigned

    @property
    def is_settled(self) -> bool:
        """Whether no append is on its way to the disk."""
        return self.next_offset == self.written_offset

    @property
    def state(self) -> PartitionState:
        """The newest state that is known."""
        return self._in_sync.state

    @property
    def isr(self) -> tuple[BrokerLife, ...]:
        """The committed in-sync replicas."""
        return self._in_sync.isr

    @property
    def maximal_isr(self) -> tuple[BrokerLife, ...]:
        """All replicas that are in sync, or may be while a proposal is in flight (P20)."""
        return self._in_sync.maximal_isr

    @property
    def proposal(self) -> IsrProposal | None:
        """The proposal whose answer is still to come; at most one (P20)."""
        return self._in_sync.proposal

    @property
    def followers(self) -> tuple[Follower, ...]:
        """All other replicas and their progress, in the order of the partition's replicas."""
        return self._in_sync.followers

    @property
    def is_high_watermark_known(self) -> bool:
        """Whether it covers everything that earlier leaders may have committed (P11)."""
        return self.high_watermark >= self.leader_epoch_start_offset

    # --- Queries -----------------------------------------------------------------------------

    def check_epoch(self, expected: LeaderEpoch) -> None:
        """Compare a request's leader epoch with the own one (P6); -1 is not checked.

        Raises:
            FencedLeaderEpochError: the caller follows an earlier leader.
            UnknownLeaderEpochError: the caller knows a later leader.
            NotLeaderError: this leader has resigned.
        """
        if self._is_resigned:
            raise NotLeaderError(
                "another broker leads it now: refresh the metadata",
                appended=Appended.NO,
                topic_partition=self.topic_partition,
            )
        if expected in (self.leader_epoch, NO_LEADER_EPOCH):
            return
        raise wrong_epoch(self.topic_partition, self.leader_epoch, expected)

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
            is_trusted = life in self._in_sync.maximal_isr or life in self.state.elr
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
        if self._in_sync.is_short(self.rules):
            raise NotEnoughReplicasError(
                self._too_few("nothing was deleted"), topic_partition=self.topic_partition
            )

    @property
    def low_watermark(self) -> Offset:
        """All records before it are deleted, and no replica that may lead has them (P71)."""
        return self._in_sync.low_watermark(self.log_start_offset)

    # --- Appending ---------------------------------------------------------------------------

    def append(
        self,
        header: BatchHeader,
        acks: Acks,
        owner: object,
        now: WallMs,
        *,
        is_successor: bool = False,
    ) -> Waiter:
        """Give a checked batch its offsets, or find the original that it repeats.

        The caller stamps and writes the batch unless `is_duplicate` is set.

        Args:
            header: the batch's.
            acks: what the waiter waits for.
            owner: the receiver of the outcome.
            now: the time.
            is_successor: as in `ProducerStates.check`.

        Raises:
            InvalidTimestampError: timestamps of the records are too far from `now`.
            OutOfOrderSequenceError, DuplicateSequenceError, InvalidProducerEpochError: P42, P43.
            NotEnoughReplicasError: too few replicas are in sync for acks=all, or another replica
                may have batches that are missing before this one; not appended (P14).
            NotEnoughReplicasAfterAppendError: likewise, but this repeats a batch that is in the log
                and not committed yet (P15).
        """
        rules = self.rules
        append_timestamp = NO_TIMESTAMP
        if rules.stamps_append_time:
            append_timestamp = now
        elif (
            header.max_timestamp > now + rules.timestamp_after_max_ms
            or header.base_timestamp < now - rules.timestamp_before_max_ms
        ):
            raise InvalidTimestampError(
                f"timestamps {header.base_timestamp} to "
                f"{header.max_timestamp} are outside of what the topic allows around {now}: set "
                "the producer's clock, or message.timestamp.after.max.ms and .before.max.ms",
                topic_partition=self.topic_partition,
            )
        if header.producer_id != NO_PRODUCER_ID:
            original = self._find_original(header, acks, is_successor)
            if original is not None:
                return self._repeat(header, original, acks, owner)
        if acks is Acks.ALL and self._in_sync.is_short(rules):
            raise NotEnoughReplicasError(
                self._too_few("nothing was appended"), topic_partition=self.topic_partition
            )
        base_offset = self.next_offset
        self.next_offset = Offset(base_offset + header.last_offset_delta + 1)
        before = self.producers.entry(header.producer_id)
        self._given.append(_Given(base_offset, self.next_offset, before, header.producer_id))
        if header.producer_id != NO_PRODUCER_ID:
            self.producers.update(header, base_offset, now)
        return self._wait(
            Waiter(owner, base_offset, Offset(self.next_offset - 1), append_timestamp, acks)
        )

    def _find_original(self, header: BatchHeader, acks: Acks, is_successor: bool) -> Offset | None:
        """As `ProducerStates.check`, but report missing batches only once it is certain.

        The producer renumbers batches that are reported missing. But an in-sync replica may still
        have records that an earlier leader did not pass on. If it were elected before it has cut
        them off, it would have both.
        """
        try:
            return self.producers.check(header, is_successor=is_successor)
        except OutOfOrderSequenceError as gap:
            if acks is not Acks.ALL or self._is_unrivalled:
                raise
            raise NotEnoughReplicasError(
                f"{gap.message}; not all replicas that may lead have shown yet that they lack them"
            ) from gap

    @property
    def _is_unrivalled(self) -> bool:
        """Whether no replica that may lead has records that an earlier leader did not pass on
        (P4)."""
        if self.state.elr or self._in_sync.is_short(self.rules):
            return False
        replicated = self._in_sync.smallest_end(Durability.REPLICATED)
        return replicated is None or replicated >= self.leader_epoch_start_offset

    def _repeat(self, header: BatchHeader, original: Offset, acks: Acks, owner: object) -> Waiter:
        """Make a repetition wait like its original (P18)."""
        last_offset = Offset(original + header.last_offset_delta)
        waiter = Waiter(owner, original, last_offset, NO_TIMESTAMP, acks, is_duplicate=True)
        if not self._is_acknowledged(waiter) and self._must_give_up(acks):
            raise self._fell_short()
        return self._wait(waiter)

    def _wait(self, waiter: Waiter) -> Waiter:
        if self._is_acknowledged(waiter):
            waiter.is_done = True
        else:
            self._waiters_made += 1
            waiting = self._waiting_for_all if waiter.acks is Acks.ALL else self._waiting
            heapq.heappush(waiting, (waiter.last_offset, self._waiters_made, waiter))
        return waiter

    def _is_acknowledged(self, waiter: Waiter) -> bool:
        end = self.high_watermark if waiter.acks is Acks.ALL else self.durable_offset
        return waiter.last_offset < end

    def _must_give_up(self, acks: Acks) -> bool:
        return acks is Acks.ALL and self._in_sync.is_surely_short(self.rules)

    def _too_few(self, what: str) -> str:
        return (
            f"{count(len(self._in_sync.isr), 'replica is', 'replicas are')} in sync, "
            f"{self._in_sync.effective_min(self.rules)} must be (min.insync.replicas): {what}"
        )

    def _fell_short(self) -> NotEnoughReplicasAfterAppendError:
        return NotEnoughReplicasAfterAppendError(
            self._too_few("the batch is in the leader's log; an idempotent retry is safe"),
            topic_partition=self.topic_partition,
        )

    def configure(self, rules: AppendRules, now: MonotonicMs) -> None:
        """Follow the topic's settings from now on."""
        self._observe(now)
        self.rules = rules

    def on_written(self, end_offset: Offset, now: MonotonicMs) -> list[Effect]:
        """Note that all before `end_offset` is written."""
        assert self.written_offset <= end_offset <= self.next_offset
        self._observe(now)
        self.written_offset = end_offset
        while self._given and self._given[0].next_offset <= end_offset:
            self._given.popleft()
        return self._complete(self._advance())

    def on_flushed(self, flushed_offset: Offset) -> list[Effect]:
        """Note that all before `flushed_offset` is durable."""
        assert flushed_offset <= self.written_offset
        self.flushed_offset = max(self.flushed_offset, flushed_offset)
        return self._complete(self._advance())

    def on_changed(self, event: Changed) -> list[Effect]:
        """Note that the log begins later: readers must check their positions."""
        self.log_start_offset = event.log_start_offset
        return [Wake(self.topic_partition)]

    def on_write_failed(self, base_offset: Offset, error: MillraceError) -> list[Effect]:
        """Take back the offsets from `base_offset` on.

        Args:
            base_offset: first offset that was not written; the file ends there.
            error: why. Nothing of these batches is in the log.
        """
        assert base_offset >= self.written_offset
        self.generation += 1
        while self._given and self._given[-1].base_offset >= base_offset:
            given = self._given.pop()
            if given.producer_id != NO_PRODUCER_ID:
                self.producers.put(given.producer_id, given.producer_before)
        self.next_offset = base_offset
        # The epoch began after batches that were on their way to the disk.
        self.leader_epoch_start_offset = min(self.leader_epoch_start_offset, base_offset)
        waiting = self._waiting + self._waiting_for_all
        self._waiting = [entry for entry in self._waiting if entry[0] < base_offset]
        self._waiting_for_all = [entry for entry in self._waiting_for_all if entry[0] < base_offset]
        heapq.heapify(self._waiting)
        heapq.heapify(self._waiting_for_all)
        failed = [entry for entry in waiting if entry[0] >= base_offset]
        return self._complete(_fail(failed, error))

    # --- Replicas ----------------------------------------------------------------------------

    def on_follower_fetch(
        self,
        life: BrokerLife,
        leader_epoch: LeaderEpoch,
        progress: FollowerProgress,
        leader_epochs: LeaderEpochs,
        now: MonotonicMs,
        *,
        log_start_offset: Offset,
    ) -> list[Effect]:
        """Take a follower's report about its log.

        A log that is no prefix of this one does not count until its follower has cut it (P4).

        Args:
            life: the follower.
            leader_epoch: the one in which the follower opened its session here (P9).
            progress: the report.
            leader_epochs: of this replica's log.
            now: the time.
            log_start_offset: of this replica's log.

        Raises:
            FencedLeaderEpochError, UnknownLeaderEpochError, NotLeaderError: as in `check_epoch`.
            MalformedRequestError: it is no replica of the partition, or names no leader epoch.
        """
        self.check_epoch(leader_epoch)
        if leader_epoch == NO_LEADER_EPOCH or not self._in_sync.has(life.broker_id):
            raise MalformedRequestError(
                f"broker {life.broker_id} reports in leader epoch "
                f"{leader_epoch}; the replicas are {self.state.replicas}, the epoch is "
                f"{self.leader_epoch}",
                topic_partition=self.topic_partition,
            )
        diverging = self.diverging_follower(
            life,
            progress.log_end_offset,
            progress.last_fetched_epoch,
            leader_epochs,
            log_start_offset,
        )
        if diverging is not None:
            return []
        self._in_sync.on_report(life, progress, self.written_offset, self.rules, now)
        return self._complete(self._advance())

    @property
    def _ends(self) -> LeaderEnds:
        return LeaderEnds(
            self.written_offset,
            self.high_watermark,
            self.leader_epoch_start_offset,
            self.flushed_offset,
            self.log_start_offset,
        )

    def _observe(self, now: MonotonicMs) -> None:
        self._in_sync.observe(self.written_offset, self.rules, now)

    def is_expansion_due(self, now: MonotonicMs) -> bool:
        """Whether `tick` would let a follower join: a reason to call it at once."""
        if self._is_resigned:
            return False
        self._observe(now)
        return self._in_sync.is_expansion_due(self._ends, self.rules, now)

    def due_at(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return when `tick` may have something to do, if no event comes before.

        None: never.
        """
        if self._is_resigned:
            return None
        self._observe(now)
        return self._in_sync.due_at(self._ends, self.rules, now)

    def on_stood_still(self, now: MonotonicMs) -> None:
        """Note that this process itself stood still: its followers get their time again (P23)."""
        self._in_sync.on_stood_still(self._ends, now)

    def tick(
        self, now: MonotonicMs, leader_epochs: LeaderEpochs
    ) -> tuple[list[Effect], IsrProposal | None]:
        """Let time pass, when `due_at` says so or at any other time.

        Args:
            now: the time.
            leader_epochs: of this replica's log.

        Returns:
            Effects, as the wait for a joining follower that went silent ends; and in-sync replicas
            to propose to the controller (P22, P23).
        """
        if self._is_resigned:
            return [], None
        self._observe(now)
        self._in_sync.on_tick(self.rules, now)
        done = self._complete(self._advance())
        return done, self._in_sync.propose(self._ends, leader_epochs, self.rules, now)

    def on_isr_accepted(
        self, proposal: IsrProposal, state: PartitionState, now: MonotonicMs
    ) -> list[Effect]:
        """Take the state in the controller's answer to a proposal; as `on_state`."""
        if self._is_resigned:
            return []
        self._in_sync.on_accepted(proposal, state, now)
        return self.on_state(state, self._in_sync.standings, now)

    def on_isr_refused(self, proposal: IsrProposal, now: MonotonicMs) -> list[Effect]:
        """Take back a proposal that the controller proved was not applied (P21)."""
        self._observe(now)
        self._in_sync.on_refused(proposal, self.rules, now)
        return self._complete(self._advance())

    def on_isr_unknown(self, proposal: IsrProposal, now: MonotonicMs) -> None:
        """Note that a proposal may have been applied; it will be made again (P21)."""
        self._in_sync.on_unknown(proposal, now)

    def on_state(
        self,
        state: PartitionState,
        standings: Mapping[BrokerId, BrokerStanding],
        now: MonotonicMs,
    ) -> list[Effect]:
        """Follow the controller's state.

        A state older than the known one is ignored (P39). One that names another leader, or another
        life of this broker, ends this one: see `is_resigned`.

        Args:
            state: of the partition.
            standings: every registered broker.
            now: the time.
        """
        known = self._in_sync.state
        if self._is_resigned or state.partition_epoch < known.partition_epoch:
            return []
        self._observe(now)
        if state.leader_life != self.broker:
            return self.resign(
                NotLeaderError(
                    f"broker {state.leader} leads it since leader epoch {state.leader_epoch}: "
                    "refresh the metadata",
                    topic_partition=self.topic_partition,
                )
            )
        failed: list[Waiter] = []
        woken: list[Effect] = []
        if state.leader_epoch > self.leader_epoch:
            # A waiting append is acknowledged only in its own epoch (P17).
            failed = self._fail_all(
                NotLeaderError(
                    f"the leader epoch is {state.leader_epoch} now: refresh the metadata",
                    topic_partition=self.topic_partition,
                )
            )
            self.leader_epoch = state.leader_epoch
            self.leader_epoch_start_offset = self.next_offset
            woken = [Wake(self.topic_partition)]
        self._in_sync.adopt(state, standings, self.rules, now)
        return [*self._complete(failed + self._advance()), *woken]

    def resign(self, error: MillraceError) -> list[Effect]:
        """Stop leading: every waiting append ends with `error` (P17)."""
        self._is_resigned = True
        return [*self._complete(self._fail_all(error)), Wake(self.topic_partition)]

    # --- Acknowledging -----------------------------------------------------------------------

    def _complete(self, waiters: list[Waiter]) -> list[Effect]:
        return [Complete(self.topic_partition, waiters)] if waiters else []

    def _advance(self) -> list[Waiter]:
        if self._is_resigned:
            return []
        rules = self.rules
        durable_offset = self.durable_offset
        is_short = self._in_sync.is_short(rules)
        if not is_short:
            replicated = self._in_sync.smallest_end(rules.durability)
            if replicated is None or replicated > durable_offset:
                replicated = durable_offset
            self.high_watermark = max(self.high_watermark, replicated)
        done = _completed(self._waiting_for_all, self.high_watermark)
        if self._waiting:
            done += _completed(self._waiting, durable_offset)
            done.sort(key=lambda waiter: waiter.last_offset)
        if is_short and self._waiting_for_all and self._in_sync.is_surely_short(rules):
            # The high watermark stands still, so it is unknown when, or whether, it passes (P15).
            waiting, self._waiting_for_all = self._waiting_for_all, []
            done += _fail(waiting, self._fell_short())
        return done

    def _fail_all(self, error: MillraceError) -> list[Waiter]:
        """Fail all waiting appends: they may still be committed by others (P16)."""
        error = error.again(Appended.MAYBE)
        waiting = self._waiting + self._waiting_for_all
        self._waiting, self._waiting_for_all = [], []
        return _fail(waiting, error)


def _completed(waiting: list[tuple[Offset, int, Waiter]], end: Offset) -> list[Waiter]:
    done = []
    while waiting and waiting[0][0] < end:
        waiter = heapq.heappop(waiting)[2]
        waiter.is_done = True
        done.append(waiter)
    return done


def _fail(waiting: list[tuple[Offset, int, Waiter]], error: MillraceError) -> list[Waiter]:
    failed = []
    for _, _, waiter in sorted(waiting, key=lambda entry: entry[:2]):
        waiter.is_done = True
        waiter.error = error
        failed.append(waiter)
    return failed
