"""The leader's side of one partition: offsets, durability and acknowledgements.

An append passes three points, and each is an event here:

1. *given*: `append` has checked epoch and sequence, and the batch has its offsets. Nothing is on
   disk. Later batches may be given offsets at once, so appends are pipelined.
2. *written*: the bytes are in the file (`on_written`).
3. *flushed*: the bytes survive a power cut (`on_flushed`).

The shell writes batches in the order in which they were given their offsets. When a write fails
(`on_write_failed`), that batch and all behind it lose their offsets again, and the producers'
sequences go back with them: nothing is consumed (P64).

The *durable* end is the flushed offset where the topic's durability is `fsync`, and the written
offset where it is `replicated` (P13). The high watermark is the smallest durable end of the in-sync
replicas (P9); with one replica that is the leader's own. An append with `acks=1` is acknowledged
when the leader's durable end passes it, with `acks=all` when the high watermark does (P15). Either
way it is not acknowledged before it is durable here: durability belongs to the topic, and how many
replicas to wait for to the producer.

Invariants: `high_watermark <= durable end <= written_offset <= next_offset`, and within one leader
epoch the high watermark never goes back.

Source: Kafka's Partition and ReplicaManager; KIP-98 for duplicates (P18).
"""

import heapq
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from millrace.core.errors import (
    Appended,
    FencedLeaderEpochError,
    InvalidTimestampError,
    MillraceError,
    NotLeaderError,
    UnknownLeaderEpochError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    LeaderEpoch,
    Offset,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.log.producer_states import ProducerEntry, ProducerStates
from millrace.core.metadata.topic_config import Durability
from millrace.core.records.header import BatchHeader


class Acks(Enum):
    """What an append waits for."""

    LEADER = 1
    """This replica has it."""
    ALL = -1
    """All in-sync replicas have it."""


@dataclass(slots=True, frozen=True, kw_only=True)
class AppendRules:
    """The topic's settings that decide over an append."""

    durability: Durability = Durability.FSYNC
    stamps_append_time: bool = False
    timestamp_after_max_ms: int = 3_600_000
    timestamp_before_max_ms: int = 2**63 - 1


@dataclass(slots=True)
class Waiter:
    """One append that somebody waits for; `is_done` once it is acknowledged or has failed.

    `append_timestamp` is -1 unless the topic stamps append time.
    """

    owner: object
    """The shell's own: whom to tell."""

    base_offset: Offset
    last_offset: Offset
    append_timestamp: WallMs
    acks: Acks
    is_duplicate: bool = False
    is_done: bool = False
    error: MillraceError | None = None


@dataclass(slots=True)
class _Given:
    """A batch that has offsets but is not written: what it takes to undo it."""

    base_offset: Offset
    next_offset: Offset
    producer_before: ProducerEntry | None
    producer_id: ProducerId


@dataclass(slots=True)
class PartitionLeader:
    """See the module. All methods that complete appends return them in the order of offsets."""

    topic_partition: TopicPartition
    leader_epoch: LeaderEpoch
    producers: ProducerStates
    rules: AppendRules
    next_offset: Offset
    written_offset: Offset
    flushed_offset: Offset
    high_watermark: Offset
    generation: int = 0
    """Counts failed writes: work that was handed out under an earlier one is void."""

    _given: deque[_Given] = field(default_factory=deque)
    _waiting: list[tuple[Offset, int, Waiter]] = field(default_factory=list)
    _waiters_made: int = 0
    _resigned: bool = False

    @property
    def durable_offset(self) -> Offset:
        """End of what this replica counts as kept."""
        if self.rules.durability is Durability.FSYNC:
            return self.flushed_offset
        return self.written_offset

    @property
    def last_stable_offset(self) -> Offset:
        """End of what `read_committed` may see."""
        return self.high_watermark

    def check_epoch(self, expected: LeaderEpoch) -> None:
        """Hold a request's leader epoch against the own one (P6); -1 is not checked.

        Raises:
            FencedLeaderEpochError: the caller follows an earlier leader.
            UnknownLeaderEpochError: the caller knows a later leader.
            NotLeaderError: this leader has resigned.
        """
        if self._resigned:
            raise NotLeaderError(
                f"{self.topic_partition} is led by another broker now: refresh the metadata",
                appended=Appended.NO,
            )
        if expected in (self.leader_epoch, NO_LEADER_EPOCH):
            return
        if expected < self.leader_epoch:
            raise FencedLeaderEpochError(
                f"{self.topic_partition} is in leader epoch {self.leader_epoch}, the request is of "
                f"epoch {expected}: refresh the metadata"
            )
        raise UnknownLeaderEpochError(
            f"{self.topic_partition} is in leader epoch {self.leader_epoch} here, the request "
            f"already knows epoch {expected}: try again shortly"
        )

    def append(self, header: BatchHeader, acks: Acks, owner: object, now: WallMs) -> Waiter:
        """Give a checked batch its offsets, or find the original that it repeats.

        The caller stamps and writes the batch unless `is_duplicate` is set.

        Raises:
            InvalidTimestampError: the records are too far from `now`.
            OutOfOrderSequenceError, DuplicateSequenceError, InvalidProducerEpochError: P42, P43.
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
                f"{self.topic_partition}: timestamps {header.base_timestamp} to "
                f"{header.max_timestamp} are outside of what the topic allows around {now}: set "
                "the producer's clock, or message.timestamp.after.max.ms and .before.max.ms"
            )
        if header.producer_id != NO_PRODUCER_ID:
            original = self.producers.check(header)
            if original is not None:
                return self._wait(
                    Waiter(
                        owner,
                        original,
                        Offset(original + header.last_offset_delta),
                        NO_TIMESTAMP,
                        acks,
                        is_duplicate=True,
                    )
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

    def _wait(self, waiter: Waiter) -> Waiter:
        if self._acknowledged(waiter):
            waiter.is_done = True
        else:
            self._waiters_made += 1
            heapq.heappush(self._waiting, (waiter.last_offset, self._waiters_made, waiter))
        return waiter

    def _acknowledged(self, waiter: Waiter) -> bool:
        # acks=1 waits for this replica only; with one replica both ends are the same.
        end = self.high_watermark if waiter.acks is Acks.ALL else self.durable_offset
        return waiter.last_offset < end

    def on_written(self, next_offset: Offset) -> list[Waiter]:
        """Note that all before `next_offset` is in the file; return the appends that completes."""
        assert self.written_offset <= next_offset <= self.next_offset
        self.written_offset = next_offset
        while self._given and self._given[0].next_offset <= next_offset:
            self._given.popleft()
        return self._advance()

    def on_flushed(self, next_offset: Offset) -> list[Waiter]:
        """Note that all before `next_offset` is durable; return the appends that completes."""
        assert next_offset <= self.written_offset
        self.flushed_offset = max(self.flushed_offset, next_offset)
        return self._advance()

    def _advance(self) -> list[Waiter]:
        self.high_watermark = max(self.high_watermark, self.durable_offset)
        done = []
        while self._waiting and self._acknowledged(self._waiting[0][2]):
            waiter = heapq.heappop(self._waiting)[2]
            waiter.is_done = True
            done.append(waiter)
        return done

    def on_write_failed(self, base_offset: Offset, error: MillraceError) -> list[Waiter]:
        """Take back the offsets from `base_offset` on; return the appends that fail.

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
        failed = [entry for entry in self._waiting if entry[0] >= base_offset]
        self._waiting = [entry for entry in self._waiting if entry[0] < base_offset]
        heapq.heapify(self._waiting)
        return self._fail(failed, error)

    def resign(self, error: MillraceError) -> list[Waiter]:
        """Stop leading: every append that is waited for ends with `error` (P17)."""
        self._resigned = True
        waiting, self._waiting = self._waiting, []
        return self._fail(waiting, error)

    def _fail(
        self, waiting: list[tuple[Offset, int, Waiter]], error: MillraceError
    ) -> list[Waiter]:
        failed = []
        for _, _, waiter in sorted(waiting, key=lambda entry: entry[:2]):
            waiter.is_done = True
            waiter.error = error
            failed.append(waiter)
        return failed
