"""One partition that is read: its position, and the leader epochs of what was taken before it.

The epochs say whether a log still has the records that were taken (KIP-320), however the leader
came to lack them.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from millrace.core.client.consumer.fetch_state import RESTING, TRANSITIONS, FetchEvent, FetchState
from millrace.core.client.consumer.sessions import AddedPartition, FetchedBatch, FetchedPartition
from millrace.core.client.routing.route import Route
from millrace.core.errors import LogTruncatedError, MillraceError, OffsetOutOfRangeError
from millrace.core.ids import (
    NO_BROKER,
    NO_LEADER_EPOCH,
    UNKNOWN_OFFSET,
    VERIFY_NOTHING,
    BrokerId,
    Leader,
    LeaderEpoch,
    MonotonicMs,
    Offset,
)
from millrace.core.transitions import after

_EPOCHS_KEPT: Final = 64
"""Leader epochs whose first read offset a partition remembers."""


class Reset(Enum):
    """Where to go without a valid position."""

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"


class JumpReason(Enum):
    """Why a position jumps."""

    RECORDS_DELETED = "records_deleted"
    """The log starts after it: retention or a request has deleted what was to be read next."""
    BEYOND_END = "beyond_end"
    """The log ends before it."""


@dataclass(slots=True)
class Jumped:
    """Effect: tell the user that a position was reset.

    Attributes:
        topic: name of the topic.
        partition: number of the partition.
        from_offset: of the record that was to be read next.
        to_offset: of the record that is read next.
        reason: why there is no record at the old position.
        reset: whether it went on at the start or at the end of the log.
    """

    topic: str
    partition: int
    from_offset: Offset
    to_offset: Offset
    reason: JumpReason
    reset: Reset

    @property
    def skipped(self) -> int:
        """How many offsets are not read."""
        return max(0, self.to_offset - self.from_offset)


@dataclass(slots=True, eq=False)
class ReadPartition:
    """A partition that is read."""

    route: Route
    read_committed: bool = False
    """Whether its reader sees only committed records."""
    state: FetchState = FetchState.AWAIT_RESET
    is_paused: bool = False
    handle: int = 0
    """Handle of the request or session under way; 0: there is none."""
    position: Offset = UNKNOWN_OFFSET
    """Offset of the next record to be taken."""
    epochs: list[tuple[LeaderEpoch, Offset]] = field(default_factory=list)
    """Leader epochs of what was taken, and where each began; ascending. The position follows on."""
    end: Offset | None = None
    """End of what the user wants; the batch that holds the last record is taken whole."""
    reset: Reset = Reset.NONE
    jumps_from: Offset = UNKNOWN_OFFSET
    """Offset of the record that was to be read next when the position was reset."""
    broker_id: BrokerId = NO_BROKER
    """The broker whose session it is in, or was in last."""
    high_watermark: Offset = UNKNOWN_OFFSET
    end_offset: Offset = UNKNOWN_OFFSET
    """Up to where this reader may see the log: the high watermark, or the last stable offset."""
    log_start_offset: Offset = UNKNOWN_OFFSET
    is_doubted: bool = False
    """A leader refused the position since records were read or the user named it."""
    verify_until: Offset = VERIFY_NOTHING
    """Brokers verify what they send of the records below: a batch came damaged."""
    error: MillraceError | None = None
    """Why it failed; None: it did not, or was moved since."""

    def on(self, event: FetchEvent) -> None:
        """Go to the state that follows."""
        self.state = after(TRANSITIONS, self.state, event)

    def __str__(self) -> str:
        """The partition in the user's terms."""
        return f"topic {self.route.topic!r} partition {self.route.topic_partition.partition}"

    @property
    def is_awaiting(self) -> bool:
        """Whether it takes its next step as soon as its leader can be reached."""
        return self.state not in RESTING and not self.is_paused

    @property
    def is_awaited(self) -> bool:
        """Whether the user waits for it, and no broker sends it."""
        is_sent = self.state is FetchState.FETCHING or self.state is FetchState.FAILED
        return not is_sent and not self.is_paused

    @property
    def rests(self) -> bool:
        """Whether it has no step to take until something happens to it."""
        return not self.is_awaiting and self.route.ask_leader_at is None

    def moments(self, now: MonotonicMs) -> list[int]:
        """Return when it takes a step though nothing happens to it."""
        moments: list[int] = []
        if self.route.ask_leader_at is not None:
            moments.append(max(self.route.ask_leader_at, now + 1))
        if self.route.retry_at > now and self.is_awaiting:
            moments.append(self.route.retry_at)
        return moments

    @property
    def last_epoch(self) -> LeaderEpoch:
        """Leader epoch of the last batch that was taken."""
        return self.epochs[-1][0] if self.epochs else NO_LEADER_EPOCH

    def take(self, batch: FetchedBatch) -> None:
        """Note that a batch was taken, or that the position moves over what is passed."""
        self.position = batch.header.next_offset
        self.is_doubted = False
        if batch.header.leader_epoch != self.last_epoch:
            self.epochs.append((batch.header.leader_epoch, batch.start_offset))
            del self.epochs[:-_EPOCHS_KEPT]

    @property
    def is_at_end(self) -> bool:
        """Whether everything that the user wants was taken."""
        return self.end is not None and self.position >= self.end

    def distrust(self, damaged_offset: Offset) -> bool:
        """Have brokers verify a batch that came damaged; return whether it is the first time."""
        is_first = damaged_offset >= self.verify_until
        self.verify_until = Offset(damaged_offset + 1)
        return is_first

    def first_lost(self, epoch: LeaderEpoch, end_offset: Offset) -> Offset:
        """Return the first offset at which the records taken differ from a log.

        Args:
            epoch: the greatest of the log that is not above the last one taken; -1: none.
            end_offset: the end of that epoch in the log; -1: unknown.
        """
        ends = [base for taken, base in self.epochs if taken > epoch]
        if end_offset >= 0:
            ends.append(end_offset)
        return min(ends, default=self.position)

    @property
    def known_position(self) -> Offset | None:
        """The offset of the next batch's first record to be taken; None: not known yet."""
        return self.position if self.position >= 0 else None

    @property
    def known_end(self) -> Offset | None:
        """The end of the readable log, as of the last response; None: not known yet."""
        return self.end_offset if self.end_offset >= 0 else None

    @property
    def first_taken(self) -> Offset | None:
        """The first offset that was taken since the user, or the group, named a position.

        None: none was. For a partition that began at a known leader epoch, the one before it.
        """
        return self.epochs[0][1] if self.epochs else None

    def epoch_before(self, offset: Offset) -> LeaderEpoch:
        """Return the leader epoch of the record before an offset that was taken; -1: unknown."""
        found = (epoch for epoch, base in reversed(self.epochs) if base < offset)
        return next(found, NO_LEADER_EPOCH)

    def begin_anew(self) -> None:
        """Forget all that is known of the log at the position: it is moved."""
        self.error = None
        self.jumps_from = self.position = UNKNOWN_OFFSET
        self.route.ask_leader()  # It judges the new position.
        self.route.end_pause()
        self.epochs.clear()
        self.is_doubted = False
        self.verify_until = VERIFY_NOTHING

    def learn(self, fetched: FetchedPartition) -> None:
        """Take where the log begins and ends, as a broker says it."""
        end = fetched.last_stable_offset if self.read_committed else fetched.high_watermark
        if fetched.error is None:
            self.high_watermark, self.end_offset = fetched.high_watermark, end
            self.log_start_offset = fetched.log_start_offset
            self.route.failures = 0
        elif isinstance(fetched.error, OffsetOutOfRangeError):
            # A broker may not say where the log ends: then the last known end counts.
            self.high_watermark = fetched.high_watermark or self.high_watermark
            self.end_offset = end or self.end_offset
            self.log_start_offset = fetched.log_start_offset

    def joining(self, leader: Leader) -> AddedPartition:
        """Return what the session of the leader, or of a replica nearby, is told of it."""
        is_sent_on = self.route.read_replica != NO_BROKER
        self.broker_id = self.route.read_replica if is_sent_on else leader.broker_id
        return AddedPartition(
            self.handle,
            self.route.topic_partition,
            self.position,
            leader.leader_epoch,
            self.last_epoch,
            self.route.from_leader,
            self.end,
            self.verify_until,
        )

    def truncated(self, epoch: LeaderEpoch, end_offset: Offset) -> LogTruncatedError:
        """Return the error for a log that has lost records that were taken; see `first_lost`."""
        lost = self.first_lost(epoch, end_offset)
        return LogTruncatedError(
            f"{self}: the records [{lost}, {self.position}) were read, but are gone: an unclean "
            f"election took the log of leader epoch {self.last_epoch} back. Seek to {lost} to go "
            "on with what took their place",
            topic=self.route.topic,
            partition=self.route.topic_partition.partition,
            position=self.position,
            end_offset=lost,
        )

    def without_position(self) -> OffsetOutOfRangeError:
        """Return the error for a position outside of the log, or none, that nobody resets."""
        where = "there is no position"
        if self.position >= 0:
            where = f"position {self.position} lies outside of the log, which starts at "
            where += str(self.log_start_offset)
            if self.end_offset >= self.log_start_offset:
                where += f" and can be read up to {self.end_offset}"
        return OffsetOutOfRangeError(
            f"{self}: {where}: seek, or set auto_offset_reset to earliest or latest"
        )

    def jump_to(self, offset: Offset) -> Jumped | None:
        """Go to where the log starts or ends; return the jump that the user is told of."""
        start, self.jumps_from = self.jumps_from, UNKNOWN_OFFSET
        self.position = offset
        self.epochs.clear()
        if start < 0 or start == offset:
            return None
        log_start = offset if self.reset is Reset.EARLIEST else self.log_start_offset
        reason = JumpReason.RECORDS_DELETED if start < log_start else JumpReason.BEYOND_END
        number = self.route.topic_partition.partition
        return Jumped(self.route.topic, number, start, offset, reason, self.reset)
