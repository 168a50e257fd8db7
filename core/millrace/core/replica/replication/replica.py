"""One replica of a partition: it leads or it follows, as the controller's state says.

The two roles (`role`) are machines of their own: `PartitionLeader`, `PartitionFollower`. This one
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

from collections import deque
from collections.abc import Mapping

from millrace.core.errors import (
    Appended,
    CorruptLogError,
    MillraceError,
    NotLeaderError,
    SafetyViolationError,
)
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    BrokerId,
    LeaderEpoch,
    MonotonicMs,
    Offset,
    TopicPartition,
)
from millrace.core.metadata.model import BrokerLife, PartitionState
from millrace.core.metadata.requests import LogEnd
from millrace.core.replica.replication.effects import Effect, FetchFrom, Halted, Wake
from millrace.core.replica.replication.events import Changed, Failed, Fetched, Flushed, Written
from millrace.core.replica.replication.follower import PartitionFollower
from millrace.core.replica.replication.in_sync import BrokerStanding
from millrace.core.replica.replication.leader import PartitionLeader
from millrace.core.replica.replication.leader_session import LeaderSession
from millrace.core.replica.replication.role import ReplicaLog
from millrace.core.replica.replication.rules import AppendRules, ReplicationConfig


class Replica:
    """Holds the role, and replaces it.

    Args:
        topic_partition: the partition.
        broker: this broker's life.
        log: the partition's, open.
        rules: the topic's settings.
        high_watermark: the last one that was known, at most the log's end (P68).
        config: the broker's settings.

    Attributes:
        role: the present one; a leader that has resigned stays until its last appends are done.
        leader, follower: the role, if it is that; None: it is the other one.
        state: the newest that is known.
        session: with the leader at which its position is open.
        turn: when it is due.
        unwritten: appends that are not written yet: end, bytes, and the session whose credit they
            took.
    """

    __slots__ = (
        "_config",
        "_log",
        "_rules",
        "_standings",
        "_told_compacted_offset",
        "_told_high_watermark",
        "_told_written_offset",
        "broker",
        "follower",
        "leader",
        "role",
        "session",
        "state",
        "topic_partition",
        "turn",
        "unwritten",
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
        self._log = log
        self.state: PartitionState | None = None
        self._rules = rules
        self._config = config
        self._standings: Mapping[BrokerId, BrokerStanding] = {}
        self.role: PartitionLeader | PartitionFollower
        self.leader: PartitionLeader | None
        self.follower: PartitionFollower | None
        self._become_follower(high_watermark, NO_LEADER_EPOCH)
        self.session: LeaderSession | None = None
        self.turn: MonotonicMs | None = None
        self.unwritten: deque[tuple[Offset, int, LeaderSession]] = deque()
        self._told_high_watermark = UNKNOWN_OFFSET
        # Followers fetch written records, and only their reports move the high watermark.
        self._told_written_offset = UNKNOWN_OFFSET
        self._told_compacted_offset = Offset(0)

    @property
    def log(self) -> ReplicaLog:
        """The partition's; another object once it has moved."""
        return self._log

    @log.setter
    def log(self, log: ReplicaLog) -> None:
        self._log = self.role.log = log

    @property
    def leads(self) -> bool:
        """Whether this broker leads the partition now."""
        return self.leader is not None and not self.leader.is_resigned

    def require_leader(self) -> PartitionLeader:
        """Return the machine that leads.

        Raises:
            NotLeaderError: this broker does not lead the partition.
        """
        leader = self.leader
        if leader is None or leader.is_resigned:
            raise NotLeaderError(
                "this broker does not lead it: refresh the metadata",
                appended=Appended.NO,
                topic_partition=self.topic_partition,
            )
        return leader

    def may_yet_lead(self, expected: LeaderEpoch) -> bool:
        """Whether a request with this leader epoch should wait here for a moment.

        A client or follower may hear of an election before the new leader does, and the new leader
        may have fetched batches that are not written yet. Either takes milliseconds.
        """
        if self.state is None or expected == NO_LEADER_EPOCH:
            return False
        if expected > self.state.leader_epoch:
            return True
        return expected == self.state.leader_epoch and not self.leads and self.must_lead

    @property
    def high_watermark(self) -> Offset:
        """Everything below it is committed."""
        return self.role.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Everything below it is committed, and no transaction can still change its meaning."""
        return self.role.last_stable_offset

    @property
    def has_committed(self) -> bool:
        """Whether its log has everything before the partition's `committed_end` (P26)."""
        if self.state is None:
            return False
        log, end = self.log, self.state.committed_end
        return log.leader_epochs.has(end, log.log_start_offset, log.log_end_offset)

    def lack(self) -> CorruptLogError | None:
        """Return what keeps an eligible replica from leading while no other leads (P26).

        None: it does not lack any committed record, or is not eligible.
        """
        log, state = self.log, self.state
        if (
            state is None
            or state.leader != NO_BROKER
            or self.broker not in state.elr
            or self.has_committed
        ):
            return None
        epoch, end = state.committed_end
        return CorruptLogError(
            f"records were committed up to offset {end} (leader epoch {epoch}), and the log here, "
            f"which ends at {log.log_end_offset} (leader epoch {log.leader_epochs.latest_epoch}), "
            "lacks some of them: an older copy of the disk was put back, or damage cut the log "
            "off. Put the newest copy back, or start another eligible broker; where there is none, "
            "an unclean election goes on without them",
            topic_partition=self.topic_partition,
        )

    def log_end(self) -> LogEnd | None:
        """Return the end of a log without a leader, and whether it reaches `committed_end` (P26).

        None: a leader is known here, or a batch is still being written, perhaps one that this
        broker took when it led.
        """
        log, state, role = self.log, self.state, self.role
        is_written = role.written_offset == role.next_offset
        if state is None or state.leader != NO_BROKER or not is_written:
            return None
        return LogEnd(
            self.topic_partition,
            log.leader_epochs.latest_epoch,
            log.log_end_offset,
            state.committed_end.end_offset if self.has_committed else UNKNOWN_OFFSET,
        )

    def take_news(self) -> Wake | None:
        """Return which readers to wake, if offsets have advanced since the last call."""
        role, topic_partition = self.role, self.topic_partition
        is_committed = role.high_watermark != self._told_high_watermark
        self._told_high_watermark = role.high_watermark
        is_extended = self.leader is not None and role.written_offset != self._told_written_offset
        if is_extended:
            self._told_written_offset = role.written_offset
        is_compacted = role.compacted_offset != self._told_compacted_offset
        self._told_compacted_offset = role.compacted_offset
        if is_committed or is_extended or (is_compacted and self.leader is not None):
            return Wake(topic_partition, only_followers=not is_committed)
        return None

    def repay(self, end_offset: Offset, *, is_void: bool = False) -> None:
        """Give credit back for what is written, or, with `is_void`, never will be."""
        while self.unwritten and (is_void or self.unwritten[0][0] <= end_offset):
            _, size, session = self.unwritten.popleft()
            session.on_done(size)

    # --- Events ------------------------------------------------------------------------------

    def configure(self, rules: AppendRules, now: MonotonicMs) -> None:
        """Follow the topic's settings from now on."""
        self._rules = rules
        self.role.configure(rules, now)

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
        return self.role.on_state(state, standings, now) + self._settle(now)

    def resign(self, error: MillraceError) -> list[Effect]:
        """Give up the role: the log went offline, or the partition is deleted."""
        self.state = None
        return self.role.resign(error)

    def on_disk(
        self, event: Written | Flushed | Failed | Changed, now: MonotonicMs
    ) -> list[Effect]:
        """The disk has done something, or could not."""
        try:
            effects = self.role.on_disk(event, now)
        except SafetyViolationError as error:
            return [Halted(self.topic_partition, error)]
        return effects + self._settle(now)

    def on_fetched(self, position: FetchFrom, fetched: Fetched) -> list[Effect]:
        """Take the leader's answer to a position."""
        try:
            return self.role.on_fetched(position, fetched)
        except SafetyViolationError as error:
            return [Halted(self.topic_partition, error)]

    def on_fetch_error(self, position: FetchFrom, log_start_offset: Offset | None) -> list[Effect]:
        """The leader refused a position, or was lost.

        Args:
            position: that was open.
            log_start_offset: the leader's, where the position is out of its range; else None.
        """
        if log_start_offset is None:
            return self.role.on_fetch_failed(position)
        try:
            return self.role.on_out_of_range(position, log_start_offset)
        except SafetyViolationError as error:
            return [Halted(self.topic_partition, error)]

    # --- Roles -------------------------------------------------------------------------------

    @property
    def must_lead(self) -> bool:
        """Whether the state names this broker; it leads once the disk has caught up."""
        return self.state is not None and self.state.leader_life == self.broker

    def _settle(self, now: MonotonicMs) -> list[Effect]:
        """Change the role if the state says so and nothing is on its way to the disk."""
        role, state, effects = self.role, self.state, list[Effect]()
        if self.leads or state is None or not role.is_settled:
            return effects
        if isinstance(role, PartitionLeader):
            # These records were committed in this epoch: an unclean election of an earlier one does
            # not invalidate them (P5).
            self._become_follower(role.high_watermark, role.leader_epoch)
            self.role.generation = role.generation
            role = self.role
            if not self.must_lead:
                effects += role.on_state(state, self._standings, now)
        if self.must_lead and role.is_settled:
            self._become_leader(state, role.high_watermark, now)
            self.role.generation = role.generation
            effects.append(Wake(self.topic_partition))
        return effects

    def _become_leader(
        self, state: PartitionState, high_watermark: Offset, now: MonotonicMs
    ) -> None:
        self.role = self.leader = PartitionLeader(
            self.topic_partition,
            self.broker,
            state,
            self.log,
            self._rules,
            high_watermark=high_watermark,
            standings=self._standings,
            config=self._config,
            now=now,
        )
        self.follower = None

    def _become_follower(self, high_watermark: Offset, high_watermark_epoch: LeaderEpoch) -> None:
        self.role = self.follower = PartitionFollower(
            self.topic_partition,
            self.broker,
            self.log,
            high_watermark=high_watermark,
            high_watermark_epoch=high_watermark_epoch,
            config=self._config,
        )
        self.leader = None
