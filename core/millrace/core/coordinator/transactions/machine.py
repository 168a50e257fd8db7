"""The coordinator of the transactional ids of one partition of `__transactions`.

`coordinator/contract.py` has the contract between it and its runtime. So the partition's leader
coordinates its ids (P46).

A transaction is open once the coordinator's record of it is committed, and no partition takes its
records before that (P49). Its *decision* is a record, too (P50). The shell tells the decision to
the leaders of the partitions, again and again until each has written its marker, and then completes
the transaction; the id's next one waits for that (T12). Only committed decisions are told: `owed`
looks at the high watermark (T9).

Epochs (P47, P48, T13). A producer with epoch e writes a transaction; its marker has epoch e + 1,
and with that epoch the producer writes its next one. So a message that is late belongs to no later
transaction. With the protocol before KIP-890 (T14) the marker has epoch e, and so has the next one.
An abort by time, by hand or by another producer takes e + 1 for the marker, too, and gives it to
nobody: the next `init` does. The largest epoch only fences. After it the id gets another producer
id.

A request that is repeated, or late, names an epoch that is over. What it gets depends on who ended
the transaction of that epoch:

- its producer: the same outcome again, or `InvalidTransactionStateError` if it wants another one;
- time or a person: `TransactionAbortedError`; the producer may call `init` with that epoch;
- another producer: `ProducerFencedError`, as for an id that has expired.

The owner of an id proves that it is the same producer by naming the identity that it has
(`expected`, KIP-360), or the one before, if an answer was lost.

Markers for a deleted topic are kept apart, and the transaction is complete without them (T8).

Source: KIP-98, KIP-360, KIP-890, Kafka's TransactionMetadata; KAFKA-20785, KAFKA-19367,
KAFKA-18019.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.transactions import refusals
from millrace.core.coordinator.transactions.participants import bitmaps, owed_to_deleted
from millrace.core.coordinator.transactions.records import (
    GroupRecord,
    IdRecord,
    OwedRecord,
    TransactionRecord,
)
from millrace.core.coordinator.transactions.shared import SharedTransactions
from millrace.core.coordinator.transactions.transaction import (
    NOBODY,
    Ended,
    Ending,
    Over,
    Producer,
    State,
    Transaction,
    short_id,
)
from millrace.core.errors import (
    InvalidTransactionStateError,
    InvalidTransactionTimeoutError,
    TransactionalIdNotFoundError,
    TransactionsFullError,
)
from millrace.core.ids import ProducerEpoch, ProducerId, TopicPartition, WallMs
from millrace.core.records.markers import BUMPING
from millrace.core.words import count

ResponseT = TypeVar("ResponseT")

_NO_ID: Final = ""
"""Nobody's: names of ids have a namespace."""


class TransactionCoordinator(SharedTransactions):
    """The machine of one partition; see `KeptTransactions`, and `shared` for its other ids."""

    # --- A producer begins -------------------------------------------------------------------

    def handle_init(
        self,
        transactional_id: str,
        timeout_ms: int,
        now: WallMs,
        next_id: Callable[[], ProducerId],
        expected: Producer | None = None,
    ) -> Result[TransactionRecord, Producer | None]:
        """Begin with an id: return the producer, or None while an open transaction is aborted.

        The request is repeated until it gets a producer.

        Args:
            transactional_id: the id, with its namespace.
            timeout_ms: how long its transactions may be open.
            now: the time.
            next_id: returns a producer id that nobody has had.
            expected: what the producer was before, if it is the same one.

        Raises:
            ProducerFencedError: another producer has begun with the id, or it has expired.
            ConcurrentTransactionsError: the last transaction is not complete.
            InvalidTransactionTimeoutError: out of bounds.
            TransactionsFullError: there is no room for another id.
        """
        self._check_timeout(timeout_ms)
        record = self._ids.get(transactional_id)
        transaction = None if record is None else record.transaction
        if transaction is None:
            return self._new_id(transactional_id, timeout_ms, now, next_id, expected)
        if transaction.shared is not None:
            raise refusals.has_participants(short_id(transactional_id))
        if expected is not None and not _may_begin(transaction, expected):
            raise refusals.fenced(transactional_id, expected)
        if transaction.state.is_prepared:
            raise self._concurrent(transactional_id)
        if transaction.state is State.ONGOING:
            ending = Ending.FENCED if expected is None else Ending.RESTART
            return self._stored([self._fence(transactional_id, transaction, ending, now)], None)
        producer = transaction.producer
        is_repeated = transaction.state is State.EMPTY and expected == transaction.previous
        if not (transaction.is_fenced or (expected is not None and is_repeated)):
            producer = _bumped(producer)
        if producer.epoch >= self._config.epoch_max:
            producer = Producer(next_id(), ProducerEpoch(0))
        begun = transaction._replace(
            producer=producer,
            timeout_ms=timeout_ms,
            state=State.EMPTY,
            began_at=now,
            previous=NOBODY if expected is None else expected,
            is_fenced=False,
        )
        return self._stored([IdRecord(transactional_id, begun, now)], producer)

    def _new_id(
        self,
        transactional_id: str,
        timeout_ms: int,
        now: WallMs,
        next_id: Callable[[], ProducerId],
        expected: Producer | None,
    ) -> Result[TransactionRecord, Producer | None]:
        if expected is not None:
            raise refusals.expired(transactional_id)
        self._check_room_for_id()
        producer = Producer(next_id(), ProducerEpoch(0))
        new = Transaction(producer, timeout_ms, State.EMPTY, BUMPING, now)
        return self._stored([IdRecord(transactional_id, new, now)], producer)

    def _check_timeout(self, timeout_ms: int) -> None:
        longest = self._config.timeout_ms_max
        if not 0 < timeout_ms <= longest:
            raise InvalidTransactionTimeoutError(
                f"a time-out of {timeout_ms} ms: choose 1 to {longest} ms, which the setting "
                "transactions.timeout_ms_max allows"
            )

    # --- Its transaction ---------------------------------------------------------------------

    def handle_join(
        self,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        groups: Collection[str],
        now: WallMs,
        *,
        protocol: int = BUMPING,
        only_verified: bool = False,
        over: Over | None = None,
    ) -> Result[TransactionRecord, None]:
        """Take partitions and groups into the transaction of a producer; begin it if none is open.

        Args:
            transactional_id: the id, with its namespace.
            producer: that writes.
            partitions: to take in.
            groups: likewise.
            now: the time.
            protocol: of the transaction.
            only_verified: take in nothing: with the protocol before KIP-890 the client takes them
                in, and leaders ask whether it did.
            over: the id's last transaction, if all participants have its marker and that is not
                noted yet: it is noted with the begin of this one. One that deleted topics take part
                in is to be noted before, since they may be back (T8).

        Raises:
            ProducerFencedError, TransactionAbortedError, InvalidTransactionStateError: the producer
                may not write.
            ConcurrentTransactionsError: the last transaction is not complete, or a partition whose
                topic was deleted and brought back has not got its marker yet (T8).
            TransactionsFullError: there is no room for another partition.
            MalformedRequestError: there is too much in the request.
        """
        refusals.check_request(partitions, groups)
        if over is not None and over.deleted:
            over = None
        transaction = self._joined(transactional_id, producer, protocol, over)
        name = transactional_id
        if transaction.shared is not None:
            name = self._participant(transactional_id, transaction.shared, producer)
        is_open = transaction.state is State.ONGOING
        missing = bitmaps(partitions)
        missing_groups = list(dict.fromkeys(groups))
        if is_open:
            missing = self._participants.missing(name, producer, partitions)
            missing_groups = self._participants.missing_groups(name, producer, missing_groups)
        if only_verified:
            if missing or missing_groups or not is_open:
                raise InvalidTransactionStateError(
                    "it is not in the open transaction of its producer: add it first"
                )
            return Result([], None)
        if not missing and not missing_groups:
            return self.handle_complete({} if over is None else {transactional_id: over}, now)
        if (owed := self._left.of_id(transactional_id, missing)) is not None:
            raise refusals.owed(transactional_id, owed)
        there = self._participants.count_partitions(name, producer) if is_open else 0
        self._check_room(there, missing.values(), len(missing_groups))
        records: list[TransactionRecord] = []
        if over is not None and transaction.state.is_prepared:
            records += self._participants.forgotten(transactional_id, now)
        if not is_open:
            begun = transaction._replace(state=State.ONGOING, protocol=protocol, began_at=now)
            records.append(IdRecord(transactional_id, begun, now))
        records += self._participants.added(name, producer, missing, now, is_first=not is_open)
        records += (GroupRecord(name, group, producer, now) for group in missing_groups)
        return self._stored(records, None)

    def _joined(
        self, transactional_id: str, producer: Producer, protocol: int, over: Over | None
    ) -> Transaction:
        """Return the transaction that a producer may join or begin.

        Raises:
            MillraceError: it may not.
        """
        transaction = self._transaction_of(transactional_id)
        if transaction.shared is not None:
            if transaction.state is not State.ONGOING:
                raise self._too_late(transactional_id, transaction, transaction.shared, producer)
            return transaction
        if producer != transaction.producer:
            raise refusals.late(transactional_id, transaction, producer)
        if transaction.state.is_prepared and not self.is_over(transactional_id, over):
            raise self._concurrent(transactional_id)
        if transaction.is_fenced:
            raise refusals.unbegun(producer)
        if transaction.state is State.ONGOING and transaction.protocol != protocol:
            raise InvalidTransactionStateError(
                f"the open transaction has protocol {transaction.protocol}, not {protocol}: a "
                "producer does not change it within a transaction"
            )
        return transaction

    def _check_room(self, there: int, missing: Collection[int], groups: int) -> None:
        more = sum(bitmap.bit_count() for bitmap in missing)
        if there + more > self._config.partitions_max:
            raise TransactionsFullError(
                f"the transaction has {count(there, 'partition')}, and {more} more: at most "
                f"{self._config.partitions_max} may be, by the setting "
                "transactions.partitions_max. Write to fewer in one transaction, or raise it"
            )
        self._check_room_for_participants(len(missing) + groups)

    def handle_end(
        self,
        transactional_id: str,
        producer: Producer,
        now: WallMs,
        next_id: Callable[[], ProducerId],
        *,
        is_commit: bool,
        protocol: int = BUMPING,
    ) -> Result[TransactionRecord, Producer]:
        """Decide the transaction of a producer; return the producer for the next one.

        Raises:
            TransactionAbortedError: it was aborted by time or by hand.
            ProducerFencedError: by another producer, which has begun; or the id has expired.
            InvalidTransactionStateError: there is nothing to commit, or it was decided otherwise.
            ConcurrentTransactionsError: the one before it is not complete.
        """
        transaction = self._transaction_of(transactional_id)
        if transaction.shared is not None:
            raise refusals.has_participants(short_id(transactional_id))
        ended = transaction.ended
        if (
            ended is not None
            and producer == ended.writer
            and not _is_open_to(transaction, producer)
        ):
            self._check_outcome(transactional_id, transaction, ended, is_commit)
            return Result([], transaction.producer)
        if producer != transaction.producer:
            raise refusals.late(transactional_id, transaction, producer)
        if transaction.state is State.ONGOING:
            if transaction.protocol != protocol:
                raise InvalidTransactionStateError(
                    f"the open transaction has protocol {transaction.protocol}, not {protocol}"
                )
            state = State.PREPARE_COMMIT if is_commit else State.PREPARE_ABORT
            return self._ended(transactional_id, transaction, state, now, next_id)
        if transaction.is_fenced:
            raise refusals.unbegun(producer)
        if transaction.state.is_prepared:
            raise self._concurrent(transactional_id)
        if is_commit:
            raise InvalidTransactionStateError(
                "there is nothing to commit: no transaction of this producer is open. It has "
                "written nothing since the last end, or all that it wrote was refused"
            )
        if protocol != BUMPING:
            return Result([], producer)
        # Whatever the producer has sent and is still under way is fenced by the next epoch.
        nothing = transaction._replace(protocol=protocol, began_at=now)
        return self._ended(transactional_id, nothing, State.COMPLETE_ABORT, now, next_id)

    def _ended(
        self,
        transactional_id: str,
        transaction: Transaction,
        state: State,
        now: WallMs,
        next_id: Callable[[], ProducerId],
    ) -> Result[TransactionRecord, Producer]:
        """Decide a transaction as its producer wants."""
        writer = transaction.producer
        marked = _bumped(writer) if transaction.protocol == BUMPING else writer
        following = marked
        if following.epoch >= self._config.epoch_max:
            following = Producer(next_id(), ProducerEpoch(0))
        decided = transaction._replace(
            producer=following,
            state=state,
            ended=Ended(writer, marked.epoch, state is State.PREPARE_COMMIT, Ending.PRODUCER),
            previous=writer,
        )
        return self._stored([IdRecord(transactional_id, decided, now)], following)

    def _check_outcome(
        self, transactional_id: str, transaction: Transaction, ended: Ended, is_commit: bool
    ) -> None:
        """Refuse a repeated end that was decided otherwise, or by others."""
        is_owner = transaction.previous == ended.writer
        if not is_owner or ended.ending is not Ending.PRODUCER:
            raise refusals.late(transactional_id, transaction, ended.writer)
        if ended.is_commit != is_commit:
            wanted = "commit" if is_commit else "abort"
            raise InvalidTransactionStateError(
                f"its producer has {'committed' if ended.is_commit else 'aborted'} the "
                f"transaction, so it cannot {wanted} it: a decision stands"
            )

    # --- Ends that the producer does not choose ----------------------------------------------

    def handle_time_out(
        self, overdue: Iterable[tuple[str, Transaction]], now: WallMs
    ) -> Result[TransactionRecord, None]:
        """Abort transactions that are open for longer than their time-out (P53).

        Args:
            overdue: ids, each with its open transaction; what is over is skipped.
            now: the time.
        """
        records: list[TransactionRecord] = []
        for transactional_id, transaction in overdue:
            record = self._ids.get(transactional_id)
            if record is not None and record.transaction == transaction:
                records.append(self._fence(transactional_id, transaction, Ending.TIMEOUT, now))
        return self._stored(records, None)

    def handle_expire(
        self, transactional_ids: Iterable[str], now: WallMs
    ) -> Result[TransactionRecord, None]:
        """Forget ids that were unused for long, or the participants of their last transaction.

        Args:
            transactional_ids: to look at; those that are gone are skipped.
            now: the time.
        """
        records: list[TransactionRecord] = []
        for transactional_id in transactional_ids:
            record = self._ids.get(transactional_id)
            if record is None:
                continue
            is_unused = self._is_unused(record, now)
            if is_unused or self._has_unused_participants(record, now):
                records += self._participants.forgotten(transactional_id, now)
            if is_unused:
                records.append(IdRecord(transactional_id, None, now))
        return self._stored(records, None)

    def handle_abort(self, transactional_id: str, now: WallMs) -> Result[TransactionRecord, None]:
        """Abort the open transaction of an id, for a person.

        Raises:
            TransactionalIdNotFoundError: nothing is known of the id, or none is open.
            InvalidTransactionStateError: it is decided that it is committed.
        """
        transaction = self.get(transactional_id).transaction
        assert transaction is not None
        if transaction.state is State.PREPARE_ABORT:
            return Result([], None)
        if transaction.state is State.PREPARE_COMMIT:
            raise InvalidTransactionStateError(
                f"the transaction of {short_id(transactional_id)!r} is committed, and its "
                "partitions are being told: `millrace transaction describe` shows which are not yet"
            )
        if transaction.state is not State.ONGOING:
            raise TransactionalIdNotFoundError(
                f"the transactional id {short_id(transactional_id)!r} has no open transaction"
            )
        aborted = self._fence(transactional_id, transaction, Ending.OPERATOR, now)
        return self._stored([aborted], None)

    def _fence(
        self, transactional_id: str, transaction: Transaction, ending: Ending, now: WallMs
    ) -> IdRecord:
        """Abort an open transaction with an epoch that nobody gets before the next `init` (T13)."""
        if transaction.shared is not None:
            return self._decided_shared(transactional_id, transaction, (), ending, now)
        writer = transaction.producer
        fence = _bumped(writer)
        aborted = transaction._replace(
            producer=fence,
            state=State.PREPARE_ABORT,
            ended=Ended(writer, fence.epoch, False, ending),
            previous=NOBODY if ending is Ending.FENCED else writer,
            is_fenced=True,
        )
        return IdRecord(transactional_id, aborted, now)

    # --- Markers are written -----------------------------------------------------------------

    def handle_complete(
        self, over: Mapping[str, Over], now: WallMs
    ) -> Result[TransactionRecord, None]:
        """Note that all partitions and groups have the markers of decided transactions.

        Nothing changes for an id if that transaction is complete already.

        Args:
            over: by id, with its namespace.
            now: the time.
        """
        records: list[TransactionRecord] = []
        for transactional_id, one in over.items():
            if self.is_over(transactional_id, one):
                records += self._completed(transactional_id, one, now)
        return self._stored(records, None)

    def _completed(
        self, transactional_id: str, over: Over, now: WallMs
    ) -> Iterator[TransactionRecord]:
        transaction = self._transaction_of(transactional_id)
        for decision in self.decisions(transactional_id):
            written = frozenset(decision.partitions)
            deleted = [place for place in over.deleted if place in written]
            yield from owed_to_deleted(decision, deleted, now)
        shared = transaction.shared
        if shared is None:
            yield from self._participants.forgotten(transactional_id, now)
        else:
            yield from self._participants.ended(transactional_id, shared.number, now)
            transaction = transaction._replace(shared=shared._replace(listed=()))
        # The record of the id comes last: if only some are stored, the rest is told again.
        is_commit = transaction.state is State.PREPARE_COMMIT
        state = State.COMPLETE_COMMIT if is_commit else State.COMPLETE_ABORT
        yield IdRecord(transactional_id, transaction._replace(state=state), now)

    def handle_paid(
        self, paid: Iterable[OwedRecord], now: WallMs
    ) -> Result[TransactionRecord, None]:
        """Note that deleted topics have these markers, or will never be brought back (T8).

        Args:
            paid: as `owed_to` returns them, or with some of the bits.
            now: the time.
        """
        records: list[TransactionRecord] = []
        for record in paid:
            owed = self._left.find(record)
            if owed is not None:
                records.append(owed._replace(bitmap=owed.bitmap & ~record.bitmap, timestamp=now))
        return self._stored(records, None)

    def handle_nothing(self, now: WallMs) -> Result[TransactionRecord, None]:
        """Change nothing: once that is committed, no other coordinator has begun before it."""
        return self._stored([IdRecord(_NO_ID, None, now)], None)

    # --- Private -----------------------------------------------------------------------------

    def _transaction_of(self, transactional_id: str) -> Transaction:
        record = self._ids.get(transactional_id)
        if record is None or record.transaction is None:
            raise refusals.expired(transactional_id)
        return record.transaction


def _is_open_to(transaction: Transaction, producer: Producer) -> bool:
    """Whether a producer has an open transaction; without bumps the last one has the same epoch."""
    return transaction.state is State.ONGOING and transaction.producer == producer


def _may_begin(transaction: Transaction, expected: Producer) -> bool:
    """Whether a producer that names itself owns the id."""
    if expected == transaction.producer:
        return not transaction.is_fenced
    # A late request must not abort what was begun after it.
    return transaction.state is not State.ONGOING and expected == transaction.previous != NOBODY


def _bumped(producer: Producer) -> Producer:
    return producer._replace(epoch=ProducerEpoch(producer.epoch + 1))
