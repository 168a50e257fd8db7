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

`Replica` makes the machine when the controller's state names this life of the broker as the leader,
passes on every newer state (`on_state`), and discards it when it has resigned. `Replicas` asks it
for proposals in time (`tick`, `due_at`).

Invariants: `high_watermark <= durable end <= written_offset <= next_offset`, and within one leader
epoch the high watermark never goes back. After the leader has resigned nothing advances (P17).

Source: Kafka's Partition and ReplicaManager; KIP-98 for duplicates (P18); KIP-497, 966.
"""

from collections.abc import Mapping
from typing import Final

from millrace.core.errors import (
    Appended,
    DuplicateSequenceError,
    InvalidTimestampError,
    MalformedRequestError,
    MillraceError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RequestTimedOutError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.topic_config import Durability
from millrace.core.records.header import Attributes, BatchHeader
from millrace.core.replica.log.leader_epochs import LeaderEpochs
from millrace.core.replica.replication.appends import Acks, Waiter
from millrace.core.replica.replication.effects import Complete, Effect, Wake
from millrace.core.replica.replication.events import Changed
from millrace.core.replica.replication.in_sync import (
    BrokerStanding,
    InSyncReplicas,
    IsrProposal,
)
from millrace.core.replica.replication.leader_transactions import JoinGuard, LeaderTransactions
from millrace.core.replica.replication.progress import FollowerProgress
from millrace.core.replica.replication.role import ReplicaLog
from millrace.core.replica.replication.rules import AppendRules, ReplicationConfig

_DEFAULTS: Final = ReplicationConfig()


class PartitionLeader(LeaderTransactions):
    """The role of a replica that leads. Appends complete in the order of offsets.

    Args:
        topic_partition: the partition.
        broker: this broker's life; the leader of `state`.
        state: the controller's newest state of the partition.
        log: the partition's; nothing is on its way to the disk. Its producer states are copied.
        rules: the topic's settings; may be replaced at any time.
        high_watermark: the last one that this replica knew; may be behind the true one (P68).
        standings: every registered broker.
        config: the broker's settings.
        now: the time.
    """

    __slots__ = ()

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker: BrokerLife,
        state: PartitionState,
        log: ReplicaLog,
        rules: AppendRules,
        *,
        high_watermark: Offset,
        now: MonotonicMs,
        standings: Mapping[BrokerId, BrokerStanding] | None = None,
        config: ReplicationConfig = _DEFAULTS,
    ) -> None:
        in_sync = InSyncReplicas(broker, state, standings or {}, config, now)
        super().__init__(
            topic_partition, broker, log, rules, in_sync, high_watermark=high_watermark
        )
        self._advance()  # Without followers no report will trigger it.
        self._note_compacted()

    # --- Appending ---------------------------------------------------------------------------

    def append(
        self,
        header: BatchHeader,
        acks: Acks,
        owner: object,
        now: WallMs,
        *,
        is_successor: bool = False,
        joined: JoinGuard | None = None,
    ) -> Waiter:
        """Give a checked batch its offsets, or find the original that it repeats.

        The caller stamps and writes the batch unless `is_duplicate` is set.

        Args:
            header: the batch's.
            acks: what the waiter waits for.
            owner: the receiver of the outcome.
            now: the time.
            is_successor: as in `ProducerStates.check`.
            joined: of a transactional batch, as `begin_joining` returned it.

        Raises:
            InvalidTimestampError: timestamps of the records are too far from `now`.
            OutOfOrderSequenceError, DuplicateSequenceError, InvalidProducerEpochError: P42, P43.
            InvalidTransactionStateError, ConcurrentTransactionsError, TransactionsFullError: as in
                `ProducerStates.check`; or the partition is not in the transaction (P49).
            NotEnoughReplicasError: too few replicas are in sync for acks=all, or another replica
                may have batches that are missing before this one; not appended (P14).
            NotEnoughReplicasAfterAppendError: likewise, but this repeats a batch that is in the log
                and not committed yet (P15).
            RequestTimedOutError: this repeats a batch of before the last five, and that is not
                committed yet (P18).
        """
        rules = self.rules
        append_timestamp = NO_TIMESTAMP
        if rules.stamps_append_time:
            append_timestamp = now
        elif (
            header.max_timestamp > now + rules.timestamp_after_max_ms
            or NO_TIMESTAMP < header.base_timestamp < now - rules.timestamp_before_max_ms
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
            if header.attributes & Attributes.TRANSACTIONAL:
                self._check_joined(header, joined)
        if acks is Acks.ALL and self.in_sync.is_short(rules):
            raise NotEnoughReplicasError(
                self._too_few("nothing was appended"), topic_partition=self.topic_partition
            )
        base_offset = self.next_offset
        self.next_offset = Offset(base_offset + header.last_offset_delta + 1)
        before = self.producers.entry(header.producer_id)
        self._appends.give(base_offset, self.next_offset, header.producer_id, before)
        if header.producer_id != NO_PRODUCER_ID:
            self.producers.update(header, base_offset, now)
            if self._joining:
                self._joining.pop(header.producer_id, None)
        last_offset = Offset(self.next_offset - 1)
        waiter = Waiter(owner, base_offset, last_offset, append_timestamp, acks)
        self._appends.wait(waiter)  # It is not written yet.
        return waiter

    def _find_original(self, header: BatchHeader, acks: Acks, is_successor: bool) -> Offset | None:
        """As `ProducerStates.check`, but report what is there or missing only once it is certain.

        The producer renumbers batches that are reported missing. But an in-sync replica may still
        have records that an earlier leader did not pass on. If it were elected before it has cut
        them off, it would have both. And it takes what is older than the batches that are
        remembered for acknowledged, so that must be committed (P18).
        """
        try:
            return self.producers.check(header, is_successor=is_successor)
        except DuplicateSequenceError as old:
            entry = self.producers.entry(header.producer_id)
            assert entry is not None
            if entry.end_of(header.last_sequence) <= self._acknowledged_end(acks):
                raise
            raise RequestTimedOutError(
                f"{old.message}, and not committed yet", topic_partition=self.topic_partition
            ) from old
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
        if self.state.elr or self.in_sync.is_short(self.rules):
            return False
        replicated = self.in_sync.smallest_end(Durability.REPLICATED)
        return replicated is None or replicated >= self.leader_epoch_start_offset

    def _repeat(self, header: BatchHeader, original: Offset, acks: Acks, owner: object) -> Waiter:
        """Make a repetition wait like its original (P18)."""
        last_offset = Offset(original + header.last_offset_delta)
        waiter = Waiter(owner, original, last_offset, NO_TIMESTAMP, acks, is_duplicate=True)
        if self._is_acknowledged(waiter):
            waiter.is_done = True
        elif self._must_give_up(acks):
            raise self._fell_short()
        else:
            self._appends.wait(waiter)
        return waiter

    def _must_give_up(self, acks: Acks) -> bool:
        return acks is Acks.ALL and self.in_sync.is_surely_short(self.rules)

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
        self._appends.on_written(end_offset)
        return self._complete(self._advance())

    def on_flushed(self, flushed_offset: Offset) -> list[Effect]:
        """Note that all before `flushed_offset` is durable."""
        assert flushed_offset <= self.written_offset
        self.flushed_offset = max(self.flushed_offset, flushed_offset)
        return self._complete(self._advance())

    def on_changed(self, event: Changed) -> list[Effect]:
        """Note that the log begins later: readers must check their positions."""
        self.log_start_offset = event.log_start_offset
        self._note_compacted()
        return [Wake(self.topic_partition)]

    def on_write_failed(self, base_offset: Offset, error: MillraceError) -> list[Effect]:
        """Take back the offsets from `base_offset` on.

        Args:
            base_offset: first offset that was not written; the file ends there.
            error: why. Nothing of these batches is in the log.
        """
        assert base_offset >= self.written_offset
        self.generation += 1
        self.next_offset = base_offset
        # The epoch began after batches that were on their way to the disk.
        self.leader_epoch_start_offset = min(self.leader_epoch_start_offset, base_offset)
        return self._complete(self._appends.take_back(base_offset, self.producers, error))

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
        if leader_epoch == NO_LEADER_EPOCH or not self.in_sync.has(life.broker_id):
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
        self.in_sync.on_report(life, progress, self.written_offset, self.rules, now)
        self._note_compacted()
        return self._complete(self._advance())

    def _note_compacted(self) -> None:
        """A tombstone before this offset deletes nothing more in any replica, nor will it (P57)."""
        own = self.log.compacted_offset
        self.compacted_offset = self.in_sync.compacted_offset(own) if own else own

    def _observe(self, now: MonotonicMs) -> None:
        self.in_sync.observe(self.written_offset, self.rules, now)

    def is_expansion_due(self, now: MonotonicMs) -> bool:
        """Whether `tick` would let a follower join: a reason to call it at once."""
        if self.is_resigned:
            return False
        self._observe(now)
        return self.in_sync.is_expansion_due(self._ends, self.rules, now)

    def due_at(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return when `tick` may have something to do, if no event comes before.

        None: never.
        """
        if self.is_resigned:
            return None
        self._observe(now)
        return self.in_sync.due_at(self._ends, self.rules, now)

    def on_stood_still(self, now: MonotonicMs) -> None:
        """Note that this process itself stood still: its followers get their time again (P23)."""
        self.in_sync.on_stood_still(self._ends, now)

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
        if self.is_resigned:
            return [], None
        self._observe(now)
        self.in_sync.on_tick(self.rules, now)
        done = self._complete(self._advance())
        return done, self.in_sync.propose(self._ends, leader_epochs, self.rules, now)

    def on_isr_accepted(
        self, proposal: IsrProposal, state: PartitionState, now: MonotonicMs
    ) -> list[Effect]:
        """Take the state in the controller's answer to a proposal; as `on_state`."""
        if self.is_resigned:
            return []
        self.in_sync.on_accepted(proposal, state, now)
        return self.on_state(state, self.in_sync.standings, now)

    def on_isr_refused(self, proposal: IsrProposal, now: MonotonicMs) -> list[Effect]:
        """Take back a proposal that the controller proved was not applied (P21)."""
        self._observe(now)
        self.in_sync.on_refused(proposal, self.rules, now)
        return self._complete(self._advance())

    def on_isr_unknown(self, proposal: IsrProposal, now: MonotonicMs) -> None:
        """Note that a proposal may have been applied; it will be made again (P21)."""
        self.in_sync.on_unknown(proposal, now)

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
        known = self.in_sync.state
        if self.is_resigned or state.partition_epoch < known.partition_epoch:
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
        self.in_sync.adopt(state, standings, self.rules, now)
        self._note_compacted()
        return [*self._complete(failed + self._advance()), *woken]

    def resign(self, error: MillraceError) -> list[Effect]:
        """Stop leading: every waiting append ends with `error` (P17)."""
        self.is_resigned = True
        return [*self._complete(self._fail_all(error)), Wake(self.topic_partition)]

    # --- Acknowledging -----------------------------------------------------------------------

    def _complete(self, waiters: list[Waiter]) -> list[Effect]:
        return [Complete(self.topic_partition, waiters)] if waiters else []

    def _advance(self) -> list[Waiter]:
        if self.is_resigned:
            return []
        rules = self.rules
        durable_offset = self.durable_offset
        is_short = self.in_sync.is_short(rules)
        if not is_short:
            replicated = self.in_sync.smallest_end(rules.durability)
            if replicated is None or replicated > durable_offset:
                replicated = durable_offset
            self.high_watermark = max(self.high_watermark, replicated)
        done = self._appends.acknowledge(durable_offset, self.high_watermark)
        if is_short and self._appends.wait_for_all and self.in_sync.is_surely_short(rules):
            # The high watermark stands still, so it is unknown when, or whether, it passes (P15).
            done += self._appends.fail_those_for_all(self._fell_short())
        return done

    def _fail_all(self, error: MillraceError) -> list[Waiter]:
        """Fail all waiting appends: they may still be committed by others (P16)."""
        return self._appends.fail_all(error.again(Appended.MAYBE))
