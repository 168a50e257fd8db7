"""What a partition remembers of its producers: a retry never doubles, a transaction stays whole.

For each producer id: its epoch and its last five batches, because a client keeps at most five in
flight (P44). A batch that equals one of them is a repetition and gets the original's offset. Any
other must continue exactly where the last one ended; sequences wrap from 2^31 - 1 to 0 (P42, P43).
An unknown producer may begin with any sequence, but not with the successor of a batch that may
still arrive: that batch would then be refused.

What is before the last five batches is a duplicate if it is surely in the log: if all records of
the producer from there on follow one another. Kafka's clients take "duplicate" for "written", and
some may have a leader begin in the middle, so theirs are counted (K1). The count begins again at a
gap: a leader that had forgotten the producer took what its follower, which had not, finds there.
All else of before is out of order. Apache Kafka's leader says that of all, also to a Java producer
whose batches are with two leaders, and whose first ones were passed on: it cannot go on then.

A transactional batch opens its producer's transaction in this partition; a marker ends it, and
fences what is late by the epoch that it brings (P48). A transaction goes on only in the epoch that
opened it: a batch of a higher one waits for the marker (T2). Data outside of the transaction is
refused while it is open (P51). A marker with a higher epoch than the producer's is written, also
for a producer that is unknown here; one with the same epoch is done already, where nothing is open;
any other is refused (T1). Protocol 1, without an epoch for each end, is the exception: there the
marker has the epoch of the records that it ends.

The states are a function of the log's prefix (P45): they are rebuilt by replaying batches in order,
on leaders, followers and after a crash alike. Only times come from each replica's own clock:
`seen_at`, which expires idle producers (a forgotten one may start with any sequence), and
`began_at`, by which a hanging transaction is found (P54). The latter is the batch's own time where
the topic stamps append time; a producer's timestamp may be that of an event long ago. On a leader
both are when it took the batch, however long that waits for the disk. A snapshot
keeps both, so that only what came in the last seconds before a crash, or was copied to a new
replica, is as young as its reading.

There are at most `PRODUCERS_MAX` of them, some 700 bytes each: a new one replaces the one that was
silent longest. Only a retry that comes after that many other producers is not recognised. A
producer with an open transaction is never forgotten; when all have one, new ones are refused (T4).

Entries are immutable, so a leader may hold on to one and `put` it back when a write failed.

Snapshots: see `producer_snapshot`.

Source: KIP-98, KIP-360, KIP-890.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from millrace.core.errors import (
    Appended,
    ConcurrentTransactionsError,
    DuplicateSequenceError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
    TransactionsFullError,
)
from millrace.core.ids import (
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    UNKNOWN_OFFSET,
    Offset,
    ProducerEpoch,
    ProducerId,
    WallMs,
)
from millrace.core.records.header import KAFKA_FORMAT, SEQUENCE_MAX, Attributes
from millrace.core.records.markers import BUMPING, Marker, WrittenMarker
from millrace.core.replica.log.open_transactions import OpenTransactions
from millrace.core.replica.log.producer_snapshot import (
    BATCHES_KEPT,
    NOT_COUNTED,
    UNBROKEN_MAX,
    KeptBatch,
    ProducerEntry,
    parse_snapshot,
    write_snapshot,
)

PRODUCERS_MAX: Final = 20_000

_TRANSACTIONAL: Final = Attributes.TRANSACTIONAL


class SequencedBatch(Protocol):
    """What a batch's header says about its producer."""

    @property
    def format(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def producer_id(self) -> ProducerId: ...
    @property
    def producer_epoch(self) -> ProducerEpoch: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def last_sequence(self) -> int: ...
    @property
    def last_offset_delta(self) -> int: ...
    @property
    def append_timestamp(self) -> WallMs: ...


class ProducerStates:
    """The producers of one partition, as of one offset.

    Args:
        producers_max: how many producers are remembered; beyond it the one that was silent longest
            is forgotten.

    Attributes:
        transactions: those that are open, or whose end may not be committed.
    """

    __slots__ = ("_entries", "_producers_max", "transactions")

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        # In the order of their last batches, the longest silent first.
        self._entries: dict[ProducerId, ProducerEntry] = {}
        self._producers_max = producers_max
        self.transactions = OpenTransactions()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerId]:
        return iter(self._entries)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProducerStates)
            and self._entries == other._entries
            and self.transactions == other.transactions
        )

    __hash__ = None  # type: ignore[assignment]

    def entry(self, producer_id: ProducerId) -> ProducerEntry | None:
        """Return what is known of a producer, as an immutable value."""
        return self._entries.get(producer_id)

    def put(self, producer_id: ProducerId, entry: ProducerEntry | None) -> None:
        """Reset a producer to an earlier entry; None forgets it. Then `end_at` ends the log."""
        if entry is None:
            self._entries.pop(producer_id, None)
        else:
            self._entries[producer_id] = entry

    def end_at(self, end_offset: Offset) -> None:
        """The log ends at an offset: what was beyond it has been put back, and no marker counts."""
        transactions = self.transactions
        transactions.replace_open(self._open())
        transactions.replace_ended(
            ended for ended in transactions.ended if ended.marker_offset < end_offset
        )

    def open_entries(self) -> list[tuple[ProducerId, ProducerEntry]]:
        """Return the producers with an open transaction here, the oldest transaction first."""
        found = [(key, self._entries[key]) for key, _ in self._open()]
        return sorted(found, key=lambda item: item[1].first_offset)

    def _open(self) -> list[tuple[ProducerId, Offset]]:
        return [
            (key, entry.first_offset)
            for key, entry in self._entries.items()
            if entry.first_offset != UNKNOWN_OFFSET
        ]

    def check(self, batch: SequencedBatch, *, is_successor: bool = False) -> Offset | None:
        """Decide about a producer's next batch before it is given offsets.

        Args:
            batch: the batch.
            is_successor: whether batches that the producer sent before are not acknowledged.

        Returns:
            None when it is to be appended, the original's base offset when it is a repetition.

        Raises:
            InvalidProducerEpochError: a newer incarnation of the producer has written.
            OutOfOrderSequenceError: batches are missing before this one; or it was perhaps appended
                before, but not surely all of it.
            DuplicateSequenceError: it was appended before, but too long ago to know where.
            ConcurrentTransactionsError: the producer's transaction of an earlier epoch is still
                open here; its marker comes (T2).
            InvalidTransactionStateError: data outside of the transaction that is open (P51).
            TransactionsFullError: all producers that are known have an open transaction (T4).
        """
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            if is_successor:
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} sent sequence {batch.base_sequence}, and is not "
                    "known here: the batches before are missing, send them first"
                )
            if len(self.transactions) >= self._producers_max:
                raise TransactionsFullError(
                    f"{len(self.transactions)} producers have an open transaction in the "
                    "partition, and it remembers no more: try again when some of them have ended"
                )
            return None
        if batch.producer_epoch != entry.epoch:
            self._check_epoch(batch, entry)
            if batch.base_sequence != 0:
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} begins epoch {batch.producer_epoch} with "
                    f"sequence {batch.base_sequence}: a new epoch begins with 0"
                )
            return None
        for kept in entry.batches:
            if (
                kept.base_sequence == batch.base_sequence
                and kept.last_sequence == batch.last_sequence
            ):
                return kept.base_offset
        if entry.first_offset != UNKNOWN_OFFSET and not batch.attributes & _TRANSACTIONAL:
            raise _outside(batch)
        if not entry.batches:
            self._check_first(batch, entry, is_successor=is_successor)
            return None
        expected = entry.next_sequence
        ahead = (batch.base_sequence - expected) & SEQUENCE_MAX
        if ahead == 0:
            return None
        if ahead > SEQUENCE_MAX // 2:
            if (batch.last_sequence - expected) & SEQUENCE_MAX <= SEQUENCE_MAX // 2:
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} sent sequences {batch.base_sequence} to "
                    f"{batch.last_sequence}; those up to {entry.batches[-1].last_sequence} are in "
                    "the log, and the others are not: repeat a batch only as it was first sent",
                    appended=Appended.MAYBE,
                )
            if (expected - batch.base_sequence) & SEQUENCE_MAX > entry.in_log:
                first = (expected - entry.in_log) & SEQUENCE_MAX
                raise OutOfOrderSequenceError(
                    f"producer {batch.producer_id} sent sequence {batch.base_sequence}, and began "
                    f"here with {first}: batches of an epoch are sent in their order",
                    appended=Appended.MAYBE,
                )
            raise DuplicateSequenceError(
                f"producer {batch.producer_id} sent sequence {batch.base_sequence} again, but only "
                f"its last {BATCHES_KEPT} batches are remembered: it is in the log already"
            )
        raise OutOfOrderSequenceError(
            f"producer {batch.producer_id} sent sequence {batch.base_sequence}, expected is "
            f"{expected}: the batches between are missing, send them first"
        )

    def must_join(self, batch: SequencedBatch, *, is_confirmed: bool = True) -> bool:
        """Whether a transactional batch would open a transaction here; its epoch comes first.

        One of a higher epoch would, also while an earlier transaction is open: once that is over.

        Args:
            batch: the batch.
            is_confirmed: whether what is open here in the epoch of the batch is surely the
                transaction that its coordinator has open.

        Raises:
            InvalidProducerEpochError: as in `check`.
        """
        entry = self._entries.get(batch.producer_id)
        if entry is None:
            return True
        if batch.producer_epoch < entry.epoch:
            raise _stale(batch, entry)
        if batch.producer_epoch > entry.epoch:
            return True
        is_open = entry.first_offset != UNKNOWN_OFFSET and is_confirmed
        return not is_open and all(
            kept[:2] != (batch.base_sequence, batch.last_sequence) for kept in entry.batches
        )

    def _check_first(
        self, batch: SequencedBatch, entry: ProducerEntry, *, is_successor: bool
    ) -> None:
        """Check the first batch of an epoch that a marker has begun."""
        if batch.base_sequence != 0 and (entry.begins_with_0 or is_successor):
            raise OutOfOrderSequenceError(
                f"producer {batch.producer_id} begins epoch {entry.epoch} with sequence "
                f"{batch.base_sequence}: the batches before are missing, send them first"
            )

    def _check_epoch(self, batch: SequencedBatch, entry: ProducerEntry) -> None:
        if batch.producer_epoch < entry.epoch:
            raise _stale(batch, entry)
        if entry.first_offset != UNKNOWN_OFFSET:
            if not batch.attributes & _TRANSACTIONAL:
                raise _outside(batch)
            raise ConcurrentTransactionsError(
                f"the transaction of producer {batch.producer_id} in epoch {entry.epoch} is open "
                f"here from offset {entry.first_offset} on, and this batch is of epoch "
                f"{batch.producer_epoch}: its end is on the way, try again shortly"
            )

    def update(self, batch: SequencedBatch, base_offset: Offset, now: WallMs) -> None:
        """Remember a batch that got its offsets; ignore one without a producer id.

        Batches in the log are not checked again: a state that contradicts the batch is replaced.
        """
        producer_id = batch.producer_id
        if producer_id == NO_PRODUCER_ID:
            return
        kept = KeptBatch(
            batch.base_sequence,
            batch.last_sequence,
            base_offset,
            Offset(base_offset + batch.last_offset_delta),
        )
        entry = self._entries.pop(producer_id, None)
        batches: tuple[KeptBatch, ...] = (kept,)
        first_offset, coordinator_epoch = UNKNOWN_OFFSET, NO_LEADER_EPOCH
        if entry is not None:
            # Also in another epoch: no marker has ended it.
            first_offset, coordinator_epoch = entry.first_offset, entry.coordinator_epoch
            if entry.epoch == batch.producer_epoch:
                batches = (*entry.batches[1 - BATCHES_KEPT :], kept)
        elif len(self._entries) >= self._producers_max:
            self._make_room()
        began_at = NO_TIMESTAMP
        if entry is not None and first_offset != UNKNOWN_OFFSET:
            began_at = entry.began_at
        elif batch.attributes & _TRANSACTIONAL:
            first_offset = base_offset
            began_at = now if batch.append_timestamp == NO_TIMESTAMP else batch.append_timestamp
            self.transactions.begin(producer_id, base_offset)
        self._entries[producer_id] = ProducerEntry(
            batch.producer_epoch,
            batches,
            now,
            first_offset,
            coordinator_epoch,
            False,
            began_at,
            _unbroken(batch, entry) if batch.format == KAFKA_FORMAT else NOT_COUNTED,
        )

    def _make_room(self) -> None:
        """Forget the producer that was silent longest, but none with an open transaction (T4)."""
        for _ in range(len(self._entries)):
            oldest = next(iter(self._entries))
            entry = self._entries.pop(oldest)
            if entry.first_offset == UNKNOWN_OFFSET:
                return
            self._entries[oldest] = entry  # So that the next search does not meet it again.

    # --- Markers -----------------------------------------------------------------------------

    def check_marker(self, marker: Marker) -> WrittenMarker | None:
        """Decide about a marker before it is given an offset (T1).

        Returns:
            What is to be written; None when the marker has been written.

        Raises:
            TransactionCoordinatorFencedError: a later coordinator has written a marker.
            InvalidProducerEpochError: it does not end what is open, or a later epoch has written.
        """
        entry = self._entries.get(marker.producer_id)
        if entry is None:
            return WrittenMarker(marker)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"the marker of producer {marker.producer_id} is of coordinator epoch "
                f"{marker.coordinator_epoch}, and one of {entry.coordinator_epoch} was written: "
                "another coordinator took over"
            )
        is_open = entry.first_offset != UNKNOWN_OFFSET
        if marker.producer_epoch == entry.epoch and not is_open:
            return None
        is_of_epoch = marker.producer_epoch == entry.epoch and marker.protocol != BUMPING
        if marker.producer_epoch <= entry.epoch and not is_of_epoch:
            raise InvalidProducerEpochError(
                f"the marker of producer {marker.producer_id} is of epoch {marker.producer_epoch}, "
                f"and the producer wrote with epoch {entry.epoch}: it ends nothing here"
            )
        if not is_open:
            return WrittenMarker(marker)
        return WrittenMarker(marker, entry.first_offset, entry.batches[-1].last_offset)

    def end(self, written: Iterable[WrittenMarker], marker_offset: Offset, now: WallMs) -> None:
        """Remember the ends of transactions: a control batch that got its offsets.

        Markers in the log are not checked again; an epoch never goes back.

        Args:
            written: its markers.
            marker_offset: its first offset.
            now: the time.
        """
        for marker, first_offset, _ in written:
            producer_id = marker.producer_id
            entry = self._entries.pop(producer_id, None)
            self.transactions.end(producer_id, marker_offset, first_offset)
            epoch, begins_with_0 = marker.producer_epoch, marker.protocol == BUMPING
            batches: tuple[KeptBatch, ...] = ()
            unbroken = NOT_COUNTED
            if entry is not None and entry.epoch >= epoch:
                epoch, batches, begins_with_0 = entry.epoch, entry.batches, entry.begins_with_0
                unbroken = entry.unbroken
            elif entry is None and len(self._entries) >= self._producers_max:
                self._make_room()
                if len(self._entries) >= self._producers_max:
                    continue  # All others are open. Its repetition is written again.
            self._entries[producer_id] = ProducerEntry(
                epoch,
                batches,
                now,
                UNKNOWN_OFFSET,
                marker.coordinator_epoch,
                begins_with_0,
                NO_TIMESTAMP,
                unbroken,
            )

    # --- As a whole --------------------------------------------------------------------------

    def expire(self, seen_before: WallMs) -> int:
        """Forget producers that were last seen before `seen_before`; return how many.

        None with an open transaction is forgotten (T4).
        """
        idle = [
            key
            for key, entry in self._entries.items()
            if entry.seen_at < seen_before and entry.first_offset == UNKNOWN_OFFSET
        ]
        for key in idle:
            del self._entries[key]
        return len(idle)

    def copy(self) -> "ProducerStates":
        """Return states that change independently from now on."""
        twin = ProducerStates(self._producers_max)
        twin._entries = dict(self._entries)
        twin.transactions = self.transactions.copy()
        return twin

    def snapshot(self) -> bytes:
        """Return all states as the bytes of a snapshot."""
        return write_snapshot(self._entries, self.transactions.ended)

    def restore(self, snapshot: bytes) -> None:
        """Replace all states by those of a snapshot.

        Raises:
            CorruptBatchError: the bytes are not a snapshot.
        """
        self._entries, ended = parse_snapshot(snapshot)
        self.transactions.replace_open(self._open())
        self.transactions.replace_ended(ended)


def _unbroken(batch: SequencedBatch, before: ProducerEntry | None) -> int:
    """Return how many records are in the log without a gap, up to the last of a batch."""
    count = ((batch.last_sequence - batch.base_sequence) & SEQUENCE_MAX) + 1
    if (
        before is not None
        and before.batches
        and before.epoch == batch.producer_epoch
        and before.next_sequence == batch.base_sequence
    ):
        count += before.in_log
    return min(count, UNBROKEN_MAX)


def _stale(batch: SequencedBatch, entry: ProducerEntry) -> InvalidProducerEpochError:
    return InvalidProducerEpochError(
        f"producer {batch.producer_id} wrote with epoch {entry.epoch} already, this batch is of "
        f"epoch {batch.producer_epoch}: its transaction is over, or a newer incarnation took its "
        "place"
    )


def _outside(batch: SequencedBatch) -> InvalidTransactionStateError:
    return InvalidTransactionStateError(
        f"producer {batch.producer_id} has an open transaction here, and this batch is not "
        "transactional: end the transaction first"
    )
