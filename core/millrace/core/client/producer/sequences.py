"""The order of one partition's batches: the next one to send, and its sequence (KIP-98).

Every batch carries a producer id, an epoch and a sequence. The leader appends only the next
sequence, and answers a repeated one with the original's offset. A batch keeps its sequence over all
attempts.

Invariants:
- From a partition's first batch without an outcome to the last that has a sequence there are at
  most `BATCHES_IN_FLIGHT_MAX` (P44), including acknowledged ones between: answers overtake each
  other, and a leader remembers only that many. Batches are repeated in their order, and no new
  batch passes one that has to be repeated.
- A leader that does not know a producer accepts any sequence as its first (P43), so a second batch
  could pass a refused first one. So each batch says whether it is the successor of one without an
  outcome, and a leader that does not know the producer refuses it.
- A batch whose attempt ended without a clear answer (`maybe_appended`) keeps its sequence until it
  certainly was not appended. There are two such cases. It comes after a batch that was not
  appended. Or a leader of a later epoch than all unanswered attempts lacks the batch before it:
  that leader refuses those attempts if they still arrive (P6), and reports the gap only once no
  replica that may lead has the missing batch (P43).
- A hole in the sequences (a batch that failed for good) is never filled: once no batch of the old
  numbering is in flight, or might be in the log, the partition continues under the next producer
  epoch from sequence 0, which also fences batches of the old epoch that are still under way (P43).
- The batches of a transaction have its id and epoch, and sequences from 0 in each partition. After
  a hole the transaction is aborted instead: another epoch would be another transaction.

Without `acks=all` there are no sequences, and one batch of a partition is in flight at a time.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from millrace.core.client.producer.batch import BatchState, ProducerBatch
from millrace.core.client.routing.route import Route
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
)
from millrace.core.records.header import SEQUENCE_MAX

BATCHES_IN_FLIGHT_MAX: Final = 5
"""Batches of a partition, as the broker remembers that many (P42, P44)."""
PRODUCER_EPOCH_MAX: Final = 2**15 - 1
FIRST_EPOCH: Final = ProducerEpoch(0)


@dataclass(slots=True)
class ProducerIds:
    """The producer id that partitions begin with, of one producer.

    Attributes:
        producer_id: the present one; none: it is allocated once a partition needs it.
        producer_epoch: with which partitions begin.
        is_wanted: a partition waits for it.
        is_allocating: a request for it is under way.
        problem: the last failure of the allocation.
    """

    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = FIRST_EPOCH
    is_wanted: bool = False
    is_allocating: bool = False
    problem: str = ""

    def get(self) -> ProducerId | None:
        """Return the present id. None: there is none, and it is wanted."""
        if self.producer_id == NO_PRODUCER_ID:
            self.is_wanted = True
            return None
        return self.producer_id

    def on_allocated(self, producer_id: ProducerId) -> None:
        """Take a fresh id, with epoch 0."""
        self.producer_id = producer_id
        self.is_wanted = self.is_allocating = False
        self.problem = ""

    def retire(self, producer_id: ProducerId) -> None:
        """Let no partition begin with an id any more."""
        if producer_id == self.producer_id:
            self.producer_id = NO_PRODUCER_ID

    def on_begun(self, partition: "PartitionBatches") -> None:
        """A partition has begun with them."""


@dataclass(slots=True)
class TransactionIds(ProducerIds):
    """The producer id and epoch of one transaction after another.

    Attributes:
        partitions: those that have begun with them.
    """

    partitions: "list[PartitionBatches]" = field(default_factory=list)

    def begin(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> None:
        """Let all partitions begin again, with those of the next transaction."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        for partition in self.partitions:
            partition.begin_anew()
        self.partitions.clear()

    def retire(self, producer_id: ProducerId) -> None:
        """A transaction keeps its id."""

    def on_begun(self, partition: "PartitionBatches") -> None:
        """A partition takes part in the transaction."""
        self.partitions.append(partition)


@dataclass(slots=True)
class PartitionBatches:
    """The batches of one partition without an outcome, and their sequences.

    Attributes:
        route: of the partition.
        ids: where its producer id comes from; None: it has no sequences.
        waiting: batches that were never sent.
        in_flight: sent batches without an outcome, in the order of their sequences.
        taken: how many have ever left `waiting` to be sent.
        must_renew: there is a hole: the partition goes on under a new epoch as soon as the
            outcomes of the old one are known.
    """

    route: Route
    ids: ProducerIds | None
    waiting: deque[ProducerBatch] = field(default_factory=deque)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    taken: int = 0
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    next_sequence: int = 0
    must_renew: bool = False

    def __len__(self) -> int:
        """How many batches have no outcome."""
        return len(self.waiting) + len(self.in_flight)

    @property
    def must_repeat(self) -> bool:
        """Whether a batch waits to be repeated."""
        for batch in self.in_flight:  # noqa: SIM110  # Asked for each batch: `any` costs three calls.
            if batch.state is BatchState.TO_REPEAT:
                return True
        return False

    @property
    def lacks_producer_id(self) -> bool:
        """Whether its batches wait for a producer id, or may do so."""
        return self.producer_id == NO_PRODUCER_ID or self.must_renew

    def next(self, connection: int) -> ProducerBatch | None:
        """Return the batch to be sent next on a connection; None: none may be sent now."""
        for index, batch in enumerate(self.in_flight):
            if batch.state is BatchState.TO_REPEAT:
                if self.must_renew and not batch.maybe_appended:
                    break  # It waits for its new number, and so do the batches after it.
                if _is_awaited(self.in_flight[:index], batch.request):
                    return None
                return batch
            if batch.connection != connection:
                return None  # Its outcome decides what follows.
        if self.must_renew:
            if not self._can_renew() or not self._renew():
                return None
            if self.in_flight:
                return self.in_flight[0]
        if not self.waiting or self._is_window_full():
            return None
        if self.ids is not None and self.producer_id == NO_PRODUCER_ID:
            return self.waiting[0] if self._begin(self.ids) else None
        return self.waiting[0]

    def _is_window_full(self) -> bool:
        """Whether a further batch could make a leader forget one that may have to be repeated."""
        if not self.in_flight:
            return False
        in_flight_max = BATCHES_IN_FLIGHT_MAX if self.ids is not None else 1
        return self.taken - self.in_flight[0].ordinal + 1 >= in_flight_max

    def take(self, batch: ProducerBatch, connection: int, leader_epoch: LeaderEpoch) -> None:
        """Note that the next batch is sent, on a connection and under a leader epoch."""
        if batch.state is BatchState.WAITING:
            self.waiting.popleft()
            self.taken += 1
            batch.ordinal = self.taken
            self.in_flight.append(batch)
            if self.ids is not None:
                self._number(batch)
        batch.state = BatchState.IN_THE_AIR
        batch.is_successor = batch is not self.in_flight[0]
        batch.connection = connection
        batch.leader_epoch = leader_epoch
        batch.attempts += 1

    def on_gap(self, batch: ProducerBatch) -> bool:
        """The leader expects an earlier sequence; return whether the batch can be repeated.

        The leader did not append this one.
        """
        if batch.leader_epoch > batch.abandoned_in:
            batch.maybe_appended = False
        if not batch.is_successor:  # Else its turn comes after its predecessors'.
            if isinstance(self.ids, TransactionIds):
                return False
            if batch.maybe_appended:
                # An earlier attempt may still be under way on a broken connection to this leader:
                # another number could double it.
                return False
            self.must_renew = True
        batch.state = BatchState.TO_REPEAT
        return True

    def on_fenced(self) -> None:
        """Another producer has the epoch, or a later one: continue with another id."""
        self.producer_epoch = ProducerEpoch(PRODUCER_EPOCH_MAX)

    def remove(self, batch: ProducerBatch) -> None:
        """Remove a batch that failed for good."""
        if batch.state is BatchState.WAITING:
            self.waiting.remove(batch)
        else:
            self.in_flight.remove(batch)
            self.must_renew = self.ids is not None

    # Numbers.

    def _begin(self, ids: ProducerIds) -> bool:
        producer_id = ids.get()
        if producer_id is None:
            return False
        self.producer_id, self.producer_epoch = producer_id, ids.producer_epoch
        ids.on_begun(self)
        return True

    def begin_anew(self) -> None:
        """Number what comes from 0, under another id or epoch: no batch is left."""
        assert not len(self), "a batch keeps its numbers"
        self.producer_id, self.producer_epoch = NO_PRODUCER_ID, NO_PRODUCER_EPOCH
        self.next_sequence = 0
        self.must_renew = False

    def _number(self, batch: ProducerBatch) -> None:
        batch.producer_id = self.producer_id
        batch.producer_epoch = self.producer_epoch
        batch.base_sequence = self.next_sequence
        self.next_sequence = (self.next_sequence + batch.record_count) & SEQUENCE_MAX

    def _can_renew(self) -> bool:
        """Whether no batch of the old numbering can be in the log, or still get there.

        No batch can after one that certainly was not appended, regardless of its own attempts.
        """
        if any(batch.state is BatchState.IN_THE_AIR for batch in self.in_flight):
            return False
        return not self.in_flight or not self.in_flight[0].maybe_appended

    def _renew(self) -> bool:
        """Begin the next epoch, or the next id when there is no next epoch."""
        assert self.ids is not None
        if self.producer_id == NO_PRODUCER_ID or self.producer_epoch == PRODUCER_EPOCH_MAX:
            self.ids.retire(self.producer_id)
            if not self._begin(self.ids):
                return False
        else:
            self.producer_epoch = ProducerEpoch(self.producer_epoch + 1)
        self.must_renew = False
        self.next_sequence = 0
        for batch in self.in_flight:
            batch.maybe_appended = False
            batch.abandoned_in = NO_LEADER_EPOCH
            self._number(batch)
        return True


def _is_awaited(predecessors: Sequence[ProducerBatch], request: int) -> bool:
    """Whether a batch that was sent before a refused request is not answered yet.

    Answers overtake one another. The predecessor's answer decides about the refused batch. Without
    waiting for it, the batch would be sent and refused in a fast loop.
    """
    return any(
        batch.state is BatchState.IN_THE_AIR and batch.request < request for batch in predecessors
    )
