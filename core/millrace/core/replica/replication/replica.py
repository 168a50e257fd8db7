"""One replica of a partition: it leads or it follows, as the controller's state says.

The two roles are machines of their own, `PartitionLeader` and `PartitionFollower`. This one
replaces one by the other, and only while nothing is on its way to the disk: a leader that has
resigned waits for its last appends, a follower for its last writes and cuts. In between the replica
has no role, and serves no reader. So neither machine gets events of a change that the other one
ordered.

- This broker leads if the state names its present life as the leader (P37); an earlier life of the
  broker may have had another log.
- Otherwise it follows the leader, or waits until there is one.
- A state older than the known one is ignored (P39).

The count of failed writes goes on from role to role: the writer counts them for the log, and does
not know roles.

A new leader begins where the log ends then, with the producer states of the log (P45) and the high
watermark that it knew as a follower; a new follower begins likewise.

Source: Kafka's Partition, `makeLeader` and `makeFollower`.
"""

from collections.abc import Mapping
from typing import Protocol

from millrace.core.errors import Appended, MillraceError, NotLeaderError
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicPartition,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.replica.log.leader_epochs import LeaderEpochs
from millrace.core.replica.log.producer_states import ProducerStates
from millrace.core.replica.replication.effects import Complete, Effect, FetchFrom, Wake
from millrace.core.replica.replication.follower import Fetched, PartitionFollower
from millrace.core.replica.replication.in_sync import BrokerStanding, IsrProposal
from millrace.core.replica.replication.leader import PartitionLeader, Waiter
from millrace.core.replica.replication.rules import AppendRules, ReplicationConfig


class ReplicaLog(Protocol):
    """The log that a role begins with. Read only while nothing is on its way to the disk.

    Its start may advance at any time; it is durable when it is visible.
    """

    @property
    def log_start_offset(self) -> Offset: ...
    @property
    def log_end_offset(self) -> Offset: ...
    @property
    def flushed_offset(self) -> Offset: ...
    @property
    def leader_epochs(self) -> LeaderEpochs: ...
    @property
    def producer_states(self) -> ProducerStates: ...


class Replica:
    """See the module.

    Args:
        topic_partition: the partition.
        broker: this broker's life.
        log: the partition's, open.
        rules: the topic's settings.
        high_watermark: the last one that was known, at most the log's end (P68).
        config: the broker's settings.

    Attributes:
        leader: while it leads, and after that until its last appends are done.
        follower: at all other times.
        state: the newest that is known.
    """

    __slots__ = (
        "_config",
        "_log",
        "_rules",
        "_standings",
        "broker",
        "follower",
        "leader",
        "state",
        "topic_partition",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        broker: BrokerLife,
        log: ReplicaLog,
        rules: AppendRules,
        *,
        high_watermark: Offset,
        config: ReplicationConfig,
    ) -> None:
        self.topic_partition = topic_partition
        self.broker = broker
        self.state: PartitionState | None = None
        self.leader: PartitionLeader | None = None
        self.follower: PartitionFollower | None = self._follower(
            log, high_watermark, NO_LEADER_EPOCH, config
        )
        self._log = log
        self._rules = rules
        self._config = config
        self._standings: Mapping[BrokerId, BrokerStanding] = {}

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition now."""
        return self.leader is not None and not self.leader.is_resigned

    @property
    def has_all_in_sync(self) -> bool:
        """Whether all replicas are in sync, and so have all that is committed."""
        return self.state is not None and len(self.state.isr) == len(self.state.replicas)

    def require_leader(self) -> PartitionLeader:
        """Return the machine that leads.

        Raises:
            NotLeaderError: this broker does not lead the partition.
        """
        if self.leader is None or self.leader.is_resigned:
            raise NotLeaderError(
                "this broker does not lead it: refresh the metadata",
                appended=Appended.NO,
                topic_partition=self.topic_partition,
            )
        return self.leader

    def may_yet_lead(self, expected: LeaderEpoch) -> bool:
        """Whether a request with this leader epoch should wait here for a moment.

        A client or follower may hear of an election before the new leader does, and the new leader
        may have fetched batches that are not written yet. Either takes milliseconds.
        """
        if self.state is None or expected == NO_LEADER_EPOCH:
            return False
        if expected > self.state.leader_epoch:
            return True
        return expected == self.state.leader_epoch and self.must_lead and not self.leads

    @property
    def high_watermark(self) -> Offset:
        """Everything below it is committed."""
        role = self.leader or self.follower
        assert role is not None
        return role.high_watermark

    @property
    def written_offset(self) -> Offset:
        """Everything before it is in the file, by the events so far."""
        role = self.leader or self.follower
        assert role is not None
        return role.written_offset

    @property
    def has_committed(self) -> bool:
        """Whether its log has everything before the partition's `committed_end` (P26)."""
        if self.state is None:
            return False
        log, end = self._log, self.state.committed_end
        return log.leader_epochs.has(end, log.log_start_offset, log.log_end_offset)

    @property
    def lacks_committed(self) -> bool:
        """Whether there is no leader, and only missing records keep this replica from leading
        (P26)."""
        return (
            self.state is not None
            and self.state.leader == NO_BROKER
            and self.broker in self.state.elr
            and not self.has_committed
        )

    def replace_log(self, log: ReplicaLog) -> None:
        """Use another log from now on, which has everything that the one before has."""
        self._log = log

    # --- The controller ----------------------------------------------------------------------

    def configure(self, rules: AppendRules, now: MonotonicMs) -> None:
        """Follow the topic's settings from now on."""
        self._rules = rules
        if self.leader is not None:
            self.leader.configure(rules, now)

    def on_state(
        self,
        state: PartitionState,
        standings: Mapping[BrokerId, BrokerStanding],
        now: MonotonicMs,
    ) -> list[Effect]:
        """Take the role of this broker in the state, now or when the disk has caught up."""
        if self.state is not None and state.partition_epoch < self.state.partition_epoch:
            return []
        self.state = state
        self._standings = standings
        if self.leader is not None:
            led, epoch = self.leads, self.leader.leader_epoch
            effects = self._complete(self.leader.on_state(state, standings, now))
            if led and (not self.leads or self.leader.leader_epoch > epoch):
                effects.append(Wake(self.topic_partition))
        else:
            assert self.follower is not None
            effects = list(
                self.follower.stop() if self.must_lead else self.follower.on_state(state)
            )
        return effects + self._settle(now)

    @property
    def must_lead(self) -> bool:
        """Whether the state names this broker; it leads once the disk has caught up."""
        return self.state is not None and self.state.leader_life == self.broker

    def _settle(self, now: MonotonicMs) -> list[Effect]:
        """Change the role if the state says so and nothing is on its way to the disk."""
        effects: list[Effect] = []
        if self.leader is not None and self.leader.is_resigned and self.leader.is_settled:
            led = self.leader
            self.leader = None
            # These records were committed in this epoch: an unclean election of an earlier one does
            # not invalidate them (P5).
            self.follower = self._follower(
                self._log, led.high_watermark, led.leader_epoch, self._config
            )
            self.follower.generation = led.generation
            assert self.state is not None
            if not self.must_lead:
                effects += self.follower.on_state(self.state)
        if self.follower is not None and self.must_lead and self.follower.is_settled:
            assert self.state is not None
            end = self._log.log_end_offset
            self.leader = PartitionLeader(
                self.topic_partition,
                self.broker,
                self.state,
                self._log.producer_states.copy(),
                self._rules,
                next_offset=end,
                written_offset=end,
                flushed_offset=self._log.flushed_offset,
                high_watermark=self.follower.high_watermark,
                log_start_offset=self._log.log_start_offset,
                now=now,
                standings=self._standings,
                config=self._config,
            )
            self.leader.generation = self.follower.generation
            self.follower = None
            effects.append(Wake(self.topic_partition))
        return effects

    def _follower(
        self,
        log: ReplicaLog,
        high_watermark: Offset,
        high_watermark_epoch: LeaderEpoch,
        config: ReplicationConfig,
    ) -> PartitionFollower:
        return PartitionFollower(
            self.topic_partition,
            log.leader_epochs,
            log_start_offset=log.log_start_offset,
            log_end_offset=log.log_end_offset,
            flushed_offset=log.flushed_offset,
            high_watermark=high_watermark,
            high_watermark_epoch=high_watermark_epoch,
            config=config,
        )

    def resign(self, error: MillraceError) -> list[Effect]:
        """Give up the role: the log went offline, or the partition is deleted."""
        self.state = None
        if self.leader is not None:
            return [*self._complete(self.leader.resign(error)), Wake(self.topic_partition)]
        assert self.follower is not None
        return [*self.follower.stop(), Wake(self.topic_partition)]

    # --- Events of the disk ------------------------------------------------------------------

    def on_written(self, end_offset: Offset, now: MonotonicMs) -> list[Effect]:
        """All before `end_offset` is in the file."""
        if self.leader is not None:
            return self._complete(self.leader.on_written(end_offset, now)) + self._settle(now)
        assert self.follower is not None
        return [*self.follower.on_written(end_offset), *self._settle(now)]

    def on_flushed(self, flushed_offset: Offset) -> list[Effect]:
        """All before `flushed_offset` survives a power cut."""
        if self.leader is not None:
            return self._complete(self.leader.on_flushed(flushed_offset))
        assert self.follower is not None
        self.follower.on_flushed(flushed_offset)
        return []

    def on_write_failed(
        self, base_offset: Offset, error: MillraceError, now: MonotonicMs
    ) -> list[Effect]:
        """The batches from `base_offset` on were not written, and will not be."""
        if self.leader is not None:
            return self._complete(self.leader.on_write_failed(base_offset, error)) + self._settle(
                now
            )
        assert self.follower is not None
        return [*self.follower.on_write_failed(base_offset), *self._settle(now)]

    def on_truncated(self, now: MonotonicMs) -> list[Effect]:
        """The log was cut, or started over, as the follower wanted.

        Raises:
            SafetyViolationError: a batch that was cut through had been committed (P5).
        """
        assert self.follower is not None
        return [*self.follower.on_truncated(self._log.log_end_offset), *self._settle(now)]

    def on_started_over(self, now: MonotonicMs) -> list[Effect]:
        """The log is empty, as the follower wanted."""
        assert self.follower is not None
        return [*self.follower.on_started_over(self._log.log_start_offset), *self._settle(now)]

    def on_log_start_advanced(self) -> None:
        """The log begins later, durably: by retention, or as a leader or a client wanted."""
        if self.leader is not None:
            self.leader.log_start_offset = self._log.log_start_offset
        elif self.follower is not None:
            self.follower.on_log_start_advanced(self._log.log_start_offset)

    # --- Answers of the leader ---------------------------------------------------------------

    def on_fetched(self, position: FetchFrom, fetched: Fetched) -> list[Effect]:
        """Pass a leader's answer on to the follower; one that leads now takes none (P7).

        Raises:
            SafetyViolationError: committed batches would be cut; the replica is halted (P5).
        """
        return [] if self.follower is None else self.follower.on_fetched(position, fetched)

    # --- Time --------------------------------------------------------------------------------

    def due_at(self, now: MonotonicMs) -> MonotonicMs | None:
        """Return when `tick` will have something to do; see `PartitionLeader.due_at`."""
        return None if self.leader is None else self.leader.due_at(now)

    def tick(self, now: MonotonicMs) -> tuple[list[Effect], IsrProposal | None]:
        """Let time pass; see `PartitionLeader.tick`."""
        if self.leader is None:
            return [], None
        waiters, proposal = self.leader.tick(now, self._log.leader_epochs)
        return self._complete(waiters), proposal

    def _complete(self, waiters: list[Waiter]) -> list[Effect]:
        return [Complete(self.topic_partition, waiters)] if waiters else []
