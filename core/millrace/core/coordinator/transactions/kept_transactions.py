"""What is known of the transactional ids of one partition: the state that its records lead to.

`machine` makes the records. Which decisions are to be told follows from the state, and from what of
it is committed (T9).
"""

from collections.abc import Collection, Iterator
from heapq import nsmallest
from typing import Final, NamedTuple

from millrace.core.coordinator.contract import ResponseT, Result
from millrace.core.coordinator.kept_records import SLACK_RECORDS, KeptRecords
from millrace.core.coordinator.transactions.config import TransactionsConfig
from millrace.core.coordinator.transactions.participants import OwedMarkers, Participants
from millrace.core.coordinator.transactions.records import (
    IdRecord,
    OwedRecord,
    TransactionRecord,
)
from millrace.core.coordinator.transactions.transaction import (
    Decision,
    Over,
    Producer,
    State,
    Transaction,
    short_id,
)
from millrace.core.errors import (
    ConcurrentTransactionsError,
    MillraceError,
    TransactionalIdNotFoundError,
    TransactionsFullError,
)
from millrace.core.ids import (
    Offset,
    ProducerEpoch,
    ProducerId,
    TopicId,
    TopicPartition,
    WallMs,
)

_START: Final = Offset(0)


class KnownTransactions(NamedTuple):
    """How many transactions coordinators know.

    Attributes:
        ids: transactional ids.
        open: those whose transaction is open.
        open_ms: for how long the oldest one is; one that waits for its participants does not count,
            as no reader waits for it.
        owed: those whose transaction is decided, and not told to all participants.
        owed_ms: how long ago the oldest one was decided.
        left: markers that deleted topics get when they are brought back (T8).
        shared_ms: for how long the oldest open one is that a participant has joined: readers wait
            for it as long as its lease is kept (T23).
    """

    ids: int = 0
    open: int = 0
    open_ms: int = 0
    owed: int = 0
    owed_ms: int = 0
    left: int = 0
    shared_ms: int = 0

    def __or__(self, other: "KnownTransactions") -> "KnownTransactions":
        """Return what two coordinators know together."""
        return KnownTransactions(
            self.ids + other.ids,
            self.open + other.open,
            max(self.open_ms, other.open_ms),
            self.owed + other.owed,
            max(self.owed_ms, other.owed_ms),
            self.left + other.left,
            max(self.shared_ms, other.shared_ms),
        )


class KeptTransactions:
    """The state of one partition.

    Args:
        config: the broker's settings.
        start_offset: where the log begins.
        slack_records: see `KeptRecords`.
    """

    def __init__(
        self,
        config: TransactionsConfig,
        start_offset: Offset,
        *,
        slack_records: int = SLACK_RECORDS,
    ) -> None:
        self._config = config
        self._kept: KeptRecords[TransactionRecord] = KeptRecords(start_offset, slack_records)
        self._ids: dict[str, IdRecord] = {}
        self._participants = Participants()
        self._left = OwedMarkers()
        self._open: dict[str, None] = {}
        # The offsets of decisions that are not complete, ascending.
        self._decided: dict[str, Offset] = {}

    def __len__(self) -> int:
        """The number of transactional ids."""
        return len(self._ids)

    @property
    def next_offset(self) -> Offset:
        """The offset after the last replayed record."""
        return self._kept.next_offset

    @property
    def oldest_offset(self) -> Offset:
        """The offset of the oldest record that counts; `next_offset` if there is none."""
        return self._kept.oldest_offset

    def replay(self, record: TransactionRecord, offset: Offset) -> None:
        """Apply a record of the log."""
        self._kept.replay(record, offset)
        if isinstance(record, IdRecord):
            self._replay_id(record, offset)
        elif isinstance(record, OwedRecord):
            self._left.replay(record)
        else:
            self._participants.replay(record)

    def _replay_id(self, record: IdRecord, offset: Offset) -> None:
        transactional_id, transaction, _ = record
        if transaction is None:
            self._ids.pop(transactional_id, None)
        else:
            self._ids[transactional_id] = record
        state = State.EMPTY if transaction is None else transaction.state
        if state is State.ONGOING:
            self._open[transactional_id] = None
        else:
            self._open.pop(transactional_id, None)
        if state.is_prepared:
            # A record that repeats the decision is not another one.
            self._decided.setdefault(transactional_id, offset)
        else:
            self._decided.pop(transactional_id, None)

    # --- Queries -----------------------------------------------------------------------------

    def find(self, transactional_id: str) -> IdRecord | None:
        """Return what is known of an id, and since when; None: nothing."""
        return self._ids.get(transactional_id)

    def get(self, transactional_id: str) -> IdRecord:
        """Return what is known of an id, and since when.

        Raises:
            TransactionalIdNotFoundError: nothing is.
        """
        record = self._ids.get(transactional_id)
        if record is None:
            raise TransactionalIdNotFoundError(
                f"nothing is known of the transactional id {short_id(transactional_id)!r}: it was "
                "never used, or not for long. `millrace transaction list` shows all"
            )
        return record

    def ids_after(
        self,
        after: str,
        count: int,
        *,
        states: Collection[State] = (),
        producer_id: ProducerId | None = None,
    ) -> list[IdRecord]:
        """Return the first ids after another one, sorted.

        Args:
            after: an id; empty: begin with the first.
            count: of ids at most.
            states: only those in one of these; none: all.
            producer_id: only those of this producer id.
        """
        found = (
            transactional_id
            for transactional_id, record in self._ids.items()
            if transactional_id > after and self._is_listed(record, states, producer_id)
        )
        return [self._ids[found_id] for found_id in nsmallest(count, found)]

    def _is_listed(
        self, record: IdRecord, states: Collection[State], producer_id: ProducerId | None
    ) -> bool:
        transaction = record.transaction
        if transaction is None or (states and transaction.state not in states):
            return False
        if producer_id in (None, transaction.producer.producer_id):
            return True
        assert producer_id is not None
        joined = self._participants.find_joined(record.transactional_id, producer_id)
        return joined is not None

    def open_ids(self) -> list[str]:
        """Return the ids whose transaction is open."""
        return list(self._open)

    def unused(self, now: WallMs) -> list[str]:
        """Return the ids of which something was unused for so long that it is forgotten."""
        return [
            transactional_id
            for transactional_id, record in self._ids.items()
            if self._is_unused(record, now) or self._has_unused_participants(record, now)
        ]

    def _is_unused(self, record: IdRecord, now: WallMs) -> bool:
        _, transaction, timestamp = record
        shared = None if transaction is None else transaction.shared
        expiration_ms = self._config.id_expiration_ms
        return (
            expiration_ms != -1
            and now - timestamp > expiration_ms
            and self._is_at_rest(record)
            and (shared is None or shared.done is None)  # T24
        )

    def _has_unused_participants(self, record: IdRecord, now: WallMs) -> bool:
        """Whether participants wait for a next transaction that does not come.

        They count for the bound of their partition: writes that each have an id of their own would
        reach it.
        """
        return (
            now - record.timestamp > self._config.participants_kept_ms
            and self._is_at_rest(record)
            and self._participants.has_joined(record.transactional_id)
        )

    def _is_at_rest(self, record: IdRecord) -> bool:
        """Whether the id has no transaction that is open or not complete."""
        name = record.transactional_id
        return name not in self._open and name not in self._decided

    def known(self, now: WallMs) -> KnownTransactions:
        """Return how many transactions are known, and how old the oldest ones are."""
        began, shared = [], []
        for transactional_id in self._open:
            transaction = self._ids[transactional_id].transaction
            assert transaction is not None
            if transaction.shared is None:
                began.append(transaction.began_at)
            elif self._participants.count_joined(transactional_id, transaction.shared.number):
                began.append(transaction.began_at)
                shared.append(transaction.began_at)
        decided = [self._ids[transactional_id].timestamp for transactional_id in self._decided]
        return KnownTransactions(
            len(self._ids),
            len(self._open),
            max(now - min(began, default=now), 0),
            len(decided),
            max(now - min(decided, default=now), 0),
            self._left.count,
            max(now - min(shared, default=now), 0),
        )

    def owed_since(self, before: WallMs) -> list[IdRecord]:
        """Return the ids whose transaction was decided before a time and is not complete."""
        found = (self._ids[transactional_id] for transactional_id in self._decided)
        return [record for record in found if record.timestamp < before]

    def participants(self, transactional_id: str) -> tuple[list[TopicPartition], list[str]]:
        """Return the partitions and groups of the transaction that is open or not complete."""
        record = self._ids.get(transactional_id)
        transaction = None if record is None else record.transaction
        if transaction is None:
            return [], []
        partitions: set[TopicPartition] = set()
        groups: set[str] = set()
        for name, writer in self._writers(transactional_id, transaction):
            partitions.update(self._participants.partitions(name, writer))
            groups.update(self._participants.groups(name, writer))
        return sorted(partitions), sorted(groups)

    def _writers(
        self, transactional_id: str, transaction: Transaction
    ) -> list[tuple[str, Producer]]:
        """Return the producers of the transaction that is open or not complete.

        Each comes with the name under which its partitions and groups are kept.
        """
        if transaction.shared is None:
            ended = transaction.ended if transaction.state.is_prepared else None
            return [(transactional_id, transaction.producer if ended is None else ended.writer)]
        joined = (
            self._participants.find_joined(transactional_id, producer_id)
            for producer_id in self._participants.writing(transactional_id)
        )
        return [
            (record.name, Producer(record.producer_id, record.epoch))
            for record in joined
            if record is not None and record.epoch is not None
        ]

    def owed(self, high_watermark: Offset, since: Offset = _START) -> Iterator[Decision]:
        """Yield the committed decisions to tell, the last one first (T9).

        Args:
            high_watermark: of the log: what is not below it may still be lost.
            since: the high watermark of the last call with the same leadership.
        """
        for transactional_id, offset in reversed(self._decided.items()):
            if offset < since:
                break
            if offset < high_watermark:
                yield from self.decisions(transactional_id)

    def is_over(self, transactional_id: str, over: Over | None) -> bool:
        """Whether that is the decision of an id that is not complete, and all have its marker."""
        return over is not None and self._decided.get(transactional_id) == over.decided_at

    def decisions(self, transactional_id: str) -> list[Decision]:
        """Return what is decided of an id whose transaction is not complete: for each producer."""
        record = self._ids[transactional_id]
        transaction = record.transaction
        assert transaction is not None
        assert transaction.state.is_prepared
        ended, shared = transaction.ended, transaction.shared
        assert ended is not None
        listed = frozenset(() if shared is None else shared.listed)
        return [
            Decision(
                transactional_id,
                Producer(
                    writer.producer_id,
                    ended.marker_epoch if shared is None else ProducerEpoch(writer.epoch + 1),
                ),
                ended.is_commit and (shared is None or writer.producer_id in listed),
                transaction.protocol,
                self._participants.partitions(name, writer),
                self._participants.groups(name, writer),
                self._decided[transactional_id],
            )
            for name, writer in self._writers(transactional_id, transaction)
        ]

    def find_writer(self, place: TopicPartition, writer: Producer) -> str | None:
        """Return the id whose transaction will end what a producer has open in a partition.

        It is open, or decided and not complete, or its end is owed to a deleted topic (T8).

        Args:
            place: the partition.
            writer: with the epoch of its records.
        """
        for transactional_id in (*self._open, *self._decided):
            transaction = self._ids[transactional_id].transaction
            assert transaction is not None
            for name, found in self._writers(transactional_id, transaction):
                if found == writer and place in self._participants.partitions(name, found):
                    return transactional_id
        return self._left.find_writer(place, writer)

    def owed_topics(self) -> list[TopicId]:
        """Return the deleted topics to which markers are owed (T8)."""
        return self._left.topics()

    def owed_to(self, topic_id: TopicId) -> list[OwedRecord]:
        """Return the markers that are owed to a deleted topic."""
        return self._left.of_topic(topic_id)

    def owed_epochs(self, producer_id: ProducerId) -> list[ProducerEpoch]:
        """Return a producer's transactions whose end is owed to deleted topics, by epoch."""
        return self._left.epochs_of(producer_id)

    # --- What the parts of the machine share -------------------------------------------------

    def _concurrent(self, transactional_id: str) -> MillraceError:
        transaction = self.get(transactional_id).transaction
        is_commit = transaction is not None and transaction.state is State.PREPARE_COMMIT
        state = "committed" if is_commit else "aborted"
        partitions, groups = self.participants(transactional_id)
        place = next(iter(partitions), None)
        what = f"the group {groups[0]!r}" if groups and place is None else ""
        return ConcurrentTransactionsError(
            f"the last transaction of {short_id(transactional_id)!r} is {state}, and "
            f"{what or 'a partition'} may not know it yet: try again shortly. "
            "`millrace transaction describe` shows what it waits for",
            topic_partition=place,
        )

    def _stored(
        self, records: list[TransactionRecord], response: ResponseT
    ) -> Result[TransactionRecord, ResponseT]:
        return Result(self._kept.with_repetitions(records), response)

    def _check_room_for_id(self) -> None:
        if len(self._ids) >= self._config.partition_ids_max:
            raise TransactionsFullError(
                f"the partition of this id has {len(self._ids)} transactional ids, as many as the "
                "setting transactions.partition_ids_max allows: use ids again, or raise it"
            )

    def _check_room_for_participants(self, more: int) -> None:
        if len(self._participants) + more > self._config.partition_participants_max:
            raise TransactionsFullError(
                "the transactions in the partition of this id have "
                f"{len(self._participants)} topics, groups and participants, and the setting "
                "transactions.partition_participants_max allows "
                f"{self._config.partition_participants_max}: try again when some have ended, which "
                "for participants is an hour ago, or raise it"
            )
