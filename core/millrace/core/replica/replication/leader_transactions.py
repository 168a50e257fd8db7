"""The leader's side of transactions: who may write into one, and which markers are written.

A transaction's first batch in a partition is appended only once its coordinator has taken the
partition into the transaction (P49): a late batch would open a transaction that nobody ends. The
shell begins with `begin_joining`, asks the coordinator, and passes the guard to `append`. A guard
is void after any other append of the producer, and after a marker that may have ended its
transaction: the coordinator's yes was for one that may be over by then. A marker that brings no
higher epoch than the guard's ended the transaction before; without bumps (T14) nothing tells, so
any marker counts. Once the transaction is open here, its further batches need no guard.

Without bumps there is one exception: a transaction that another leader began here may be one whose
marker is still owed, as its topic was deleted and brought back (T8). A batch of the next one has
the same epoch. So the first batch that would go on with such a transaction asks, too: the
coordinator refuses it until the marker is written.

The coordinator's markers are written when the transaction is decided (`append_markers`). Which of
them are written, done already or refused is the rule of `ProducerStates.check_marker` (T1); this
holds for a leader that took over in between, too: there is no other way to end a transaction.

Source: KIP-890; KAFKA-19690 (the epoch is checked before the guard).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from weakref import ReferenceType, ref

from millrace.core.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    MillraceError,
    NotEnoughReplicasError,
    OutOfOrderSequenceError,
    TransactionalIdNotFoundError,
    TransactionCoordinatorFencedError,
)
from millrace.core.ids import (
    NO_TIMESTAMP,
    UNKNOWN_OFFSET,
    LeaderEpoch,
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
    WallMs,
)
from millrace.core.metadata.model import BrokerLife
from millrace.core.records.header import PRODUCER_EPOCH_MAX, BatchHeader
from millrace.core.records.markers import BUMPING, NOT_BUMPING, Marker, WrittenMarker
from millrace.core.replica.log.producer_snapshot import ProducerEntry
from millrace.core.replica.replication.appends import Acks, OpenAppends, Waiter
from millrace.core.replica.replication.in_sync import InSyncReplicas
from millrace.core.replica.replication.leader_offsets import LeaderOffsets
from millrace.core.replica.replication.role import ReplicaLog
from millrace.core.replica.replication.rules import AppendRules


@dataclass(slots=True, weakref_slot=True, eq=False)
class JoinGuard:
    """A producer's transaction is about to be joined here; known by identity."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    protocol: int = BUMPING


class AppendedMarkers(NamedTuple):
    """What became of markers.

    Attributes:
        written: the markers of a control batch that the caller stamps and writes; none: no batch.
        refusals: of each marker, why it is refused; None: it is in the log, or will be.
        waiter: of all that are not refused: done once they are committed; None: all are refused.
    """

    written: list[WrittenMarker]
    refusals: list[MillraceError | None]
    waiter: Waiter | None


class LeaderTransactions(LeaderOffsets):
    """What a leader knows of its producers. `PartitionLeader` appends their batches.

    Attributes:
        producers: the producers' states, as of the end of the log.
    """

    __slots__ = ("_appends", "_inherited", "_joining", "producers")

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
        super().__init__(
            topic_partition, broker, log, rules, in_sync, high_watermark=high_watermark
        )
        self.producers = log.producer_states.copy()
        self._appends = OpenAppends()
        # Those that are valid, while somebody holds them.
        self._joining: dict[ProducerId, ReferenceType[JoinGuard]] = {}
        # First offsets of transactions that another leader began, and no coordinator confirmed.
        self._inherited = {
            producer_id: entry.first_offset for producer_id, entry in self.producers.open_entries()
        }

    # --- Joining -----------------------------------------------------------------------------

    def begin_joining(self, header: BatchHeader, protocol: int = BUMPING) -> JoinGuard | None:
        """Begin to take this partition into a transaction, before its first batch is appended.

        Args:
            header: of a transactional batch.
            protocol: of the transaction.

        Returns:
            What `append` needs once the coordinator has agreed, to be kept until then; also while
            the producer's transaction of an earlier epoch is open here (T2), as the coordinator
            agrees when that one is over. None: the coordinator need not be asked, as the
            transaction is surely open here, or the batch repeats one that is in the log.

        Raises:
            InvalidProducerEpochError: a newer incarnation of the producer has written.
        """
        joining, producer_id = self._joining, header.producer_id
        is_confirmed = protocol == BUMPING or not self._is_inherited(producer_id)
        if not self.producers.must_join(header, is_confirmed=is_confirmed):
            return None
        known = joining.get(producer_id)
        guard = None if known is None else known()
        if guard is None or (guard.producer_epoch, guard.protocol) != (
            header.producer_epoch,
            protocol,
        ):
            guard = JoinGuard(producer_id, header.producer_epoch, protocol)

            def forget(dropped: ReferenceType[JoinGuard]) -> None:
                if joining.get(producer_id) is dropped:
                    del joining[producer_id]

            joining[producer_id] = ref(guard, forget)
        return guard

    def _is_inherited(self, producer_id: ProducerId) -> bool:
        """Whether what is open of a producer was begun by another leader, and is not confirmed."""
        first_offset = self._inherited.get(producer_id)
        entry = None if first_offset is None else self.producers.entry(producer_id)
        return entry is not None and entry.first_offset == first_offset

    def is_valid(self, guard: JoinGuard) -> bool:
        """Whether nothing has made a guard void: the coordinator's yes counts."""
        valid = self._joining.get(guard.producer_id)
        return valid is not None and valid() is guard

    def _void_ended(self, marker: Marker) -> None:
        """Make the guard of a transaction void that a marker may have ended, without records here.

        With bumps the epochs tell; without them the marker may be of any transaction (T14).
        """
        known = self._joining.get(marker.producer_id)
        guard = None if known is None else known()
        if guard is None:
            return
        is_bumping = guard.protocol == marker.protocol == BUMPING
        if not is_bumping or marker.producer_epoch > guard.producer_epoch:
            del self._joining[marker.producer_id]

    def _check_joined(self, header: BatchHeader, joined: JoinGuard | None) -> None:
        """Refuse a batch that would open a transaction of which its coordinator knows nothing."""
        entry = self.producers.entry(header.producer_id)
        is_open = entry is not None and entry.first_offset != UNKNOWN_OFFSET
        is_confirmed = joined is None or not self._is_inherited(header.producer_id)
        if is_open and is_confirmed:
            return
        if (
            joined is None
            or joined.producer_id != header.producer_id
            or joined.producer_epoch != header.producer_epoch
            or not self.is_valid(joined)
        ):
            raise InvalidTransactionStateError(
                f"the partition is not in a transaction of producer {header.producer_id} of epoch "
                f"{header.producer_epoch}: begin one first",
                topic_partition=self.topic_partition,
            )
        if not is_confirmed:
            del self._inherited[header.producer_id]
        if entry is None and header.base_sequence != 0 and joined.protocol == BUMPING:
            # A transaction has an epoch of its own, so what is before this batch is lost here.
            raise OutOfOrderSequenceError(
                f"the transaction of producer {header.producer_id} begins with sequence "
                f"{header.base_sequence} here: its first records are missing, abort it",
                topic_partition=self.topic_partition,
            )

    # --- Markers -----------------------------------------------------------------------------

    def append_markers(
        self, markers: Sequence[Marker], owner: object, now: WallMs
    ) -> AppendedMarkers:
        """Give the ends of transactions their offsets, in one control batch.

        Args:
            markers: of their coordinators; no more than `MARKERS_MAX`.
            owner: the receiver of the outcome.
            now: the time.

        Raises:
            NotEnoughReplicasError: too few replicas are in sync; nothing was appended (P14).
        """
        if self.in_sync.is_short(self.rules):
            raise NotEnoughReplicasError(
                self._too_few("nothing was appended"), topic_partition=self.topic_partition
            )
        producers = self.producers
        producers.transactions.settle(self.high_watermark)
        base_offset = self.next_offset
        written: list[WrittenMarker] = []
        refusals: list[MillraceError | None] = []
        before = []
        for marker in markers:
            try:
                decided = producers.check_marker(marker)
            except (TransactionCoordinatorFencedError, InvalidProducerEpochError) as refusal:
                refusals.append(refusal.with_traceback(None))  # It refers to this frame.
                continue
            refusals.append(None)
            self._void_ended(marker)
            if decided is not None:
                before.append((marker.producer_id, producers.entry(marker.producer_id)))
                producers.end([decided], base_offset, now)
                written.append(decided)
        if all(refusals):
            return AppendedMarkers(written, refusals, None)
        if written:
            self.next_offset = Offset(base_offset + len(written))
            self._appends.give_markers(base_offset, self.next_offset, before)
        # One that was written before lies somewhere before the end of the log.
        last_offset = Offset(self.next_offset - 1)
        waiter = Waiter(
            owner, base_offset, last_offset, NO_TIMESTAMP, Acks.ALL, is_duplicate=not written
        )
        if self._is_acknowledged(waiter):
            waiter.is_done = True
        else:
            self._appends.wait(waiter)
        return AppendedMarkers(written, refusals, waiter)

    def open_epoch(self, producer_id: ProducerId, first_offset: Offset) -> ProducerEpoch:
        """Return the epoch of the records of an open transaction.

        Args:
            producer_id: of the transaction.
            first_offset: of its first record here; another transaction is left alone.

        Raises:
            TransactionalIdNotFoundError: the producer has no such transaction open here.
        """
        return self._open_entry(producer_id, first_offset).epoch

    def abort_marker(self, producer_id: ProducerId, first_offset: Offset) -> Marker:
        """Return a marker that aborts a transaction of which no coordinator knows.

        Args:
            producer_id: of the transaction.
            first_offset: as for `open_epoch`.

        Raises:
            TransactionalIdNotFoundError: likewise.
        """
        entry = self._open_entry(producer_id, first_offset)
        coordinator_epoch = LeaderEpoch(max(entry.coordinator_epoch, 0))
        if entry.epoch == PRODUCER_EPOCH_MAX:  # No later one can fence what is late.
            return Marker(producer_id, entry.epoch, False, coordinator_epoch, NOT_BUMPING)
        epoch = ProducerEpoch(entry.epoch + 1)
        return Marker(producer_id, epoch, False, coordinator_epoch, BUMPING)

    def _open_entry(self, producer_id: ProducerId, first_offset: Offset) -> ProducerEntry:
        entry = self.producers.entry(producer_id)
        if entry is None or not UNKNOWN_OFFSET < entry.first_offset == first_offset:
            raise TransactionalIdNotFoundError(
                f"producer {producer_id} has no open transaction that begins at offset "
                f"{first_offset}: list them again",
                topic_partition=self.topic_partition,
            )
        return entry

    def _is_acknowledged(self, waiter: Waiter) -> bool:
        return waiter.last_offset < self._acknowledged_end(waiter.acks)

    def _acknowledged_end(self, acks: Acks) -> Offset:
        return self.high_watermark if acks is Acks.ALL else self.durable_offset
