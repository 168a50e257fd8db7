"""Transactions with participants: producers of many processes, which one decision ends (D30).

An application, such as a query of Spark, opens a transaction of its id. Each task that writes for
it joins as a participant, and gets a producer of its own. Then the application names the
participants that count. In one record are the decision, these participants, and the application's
*version* of what it wrote, such as the number of a micro-batch. The markers follow from that: a
commit for those that are named, an abort for all others: tasks that were tried again, or were slow,
or whose process was lost.

- A transaction has a number. Who commits or aborts names it, and is refused unless it is the open
  one, and all participants that it names have joined it. A decision may be repeated, and never
  reversed (T19).
- A run of the application has a generation. Another run replaces it, and the last
  `REPLACED_RUNS_MAX` replaced ones never come back, though their process may have slept (T20).
- With the version, its origin is kept: a query and its checkpoint. The same version of the same
  origin is done. An earlier one, or another origin, is an error (T21). The answer to `open` alone
  says whether a version is done (T22).
- An open transaction has a lease, which the application and all participants renew, from when the
  first one has joined. It is aborted when nobody has, or at its longest time (T23).
- An id with a version is never forgotten by its age (T24).

A participant that has ended leaves its producer id to one of the next transaction, which writes
with a larger epoch. A producer id that the last transaction did not need is forgotten: a late
writer is refused by the epoch where it wrote, and by the coordinator elsewhere.

Source: Delta Lake's `txnAppId` and `txnVersion`; KIP-939; SPARK-28908.
"""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from millrace.core.coordinator.contract import Result
from millrace.core.coordinator.transactions import refusals
from millrace.core.coordinator.transactions.kept_transactions import KeptTransactions
from millrace.core.coordinator.transactions.records import (
    IdRecord,
    ParticipantRecord,
    TransactionRecord,
)
from millrace.core.coordinator.transactions.transaction import (
    NOBODY,
    Ended,
    Ending,
    Producer,
    Shared,
    State,
    Transaction,
    Version,
    short_id,
)
from millrace.core.errors import (
    InvalidTransactionStateError,
    MalformedRequestError,
    MillraceError,
    TransactionAbortedError,
    TransactionalIdNotFoundError,
    TransactionsFullError,
)
from millrace.core.ids import NO_PRODUCER_EPOCH, ProducerEpoch, ProducerId, WallMs
from millrace.core.records.markers import BUMPING
from millrace.core.words import count

REPLACED_RUNS_MAX: Final = 100
"""Runs that an id remembers, so that they do not come back."""
RUN_ID_BYTES_MAX: Final = 255
ORIGIN_BYTES_MAX: Final = 1024
"""Of a query id, and of a checkpoint."""
_VERSION_MAX: Final = 2**63 - 1


class Opened(NamedTuple):
    """The answer to `open`.

    Attributes:
        generation: of the run.
        number: of the transaction; of the last one if none was opened.
        is_done: the version was committed before: there is nothing to write.
    """

    generation: int
    number: int
    is_done: bool


class SharedTransactions(KeptTransactions):
    """The part of the machine that serves ids whose transactions have participants."""

    def handle_open(
        self,
        transactional_id: str,
        run_id: str,
        wanted: Version | None,
        now: WallMs,
        *,
        may_attach: bool = False,
    ) -> Result[TransactionRecord, Opened | None]:
        """Open a transaction; return None while an open one is aborted.

        The request is repeated until it gets an answer.

        Args:
            transactional_id: the application's and the target's, with its namespace.
            run_id: the same for all transactions of one run.
            wanted: the version that will be written; None: there is none.
            now: the time.
            may_attach: return the one that is open for the same version of the same run: several
                processes of the run ask, and none knows which one is the first.

        Raises:
            ProducerFencedError: another run has replaced this one.
            VersionConflictError: another origin's version was committed, or a later one.
            ConcurrentTransactionsError: the last transaction is not complete.
            InvalidTransactionStateError: a producer has the id.
            TransactionsFullError: there is no room for another id.
            MalformedRequestError: a text is too long, or a number out of bounds.
        """
        _check_texts(run_id, wanted)
        record = self._ids.get(transactional_id)
        transaction = None if record is None else record.transaction
        if transaction is None:
            self._check_room_for_id()
            transaction = Transaction(
                NOBODY, self._config.lease_ms, State.EMPTY, BUMPING, now, shared=Shared(run_id, 0)
            )
        shared = transaction.shared
        if shared is None:
            raise InvalidTransactionStateError(
                f"a producer has the transactional id {short_id(transactional_id)}: choose another "
                "one for transactions with participants"
            )
        if run_id in shared.replaced:
            raise refusals.replaced(short_id(transactional_id), run_id)
        is_done = wanted is not None and wanted == shared.done
        if wanted is not None and not is_done:
            _check_version(transactional_id, transaction, shared, wanted)
        if transaction.state is State.ONGOING:
            if may_attach and (run_id, wanted) == (shared.run_id, shared.wanted):
                return Result([], Opened(shared.generation, shared.number, False))
            if is_done and run_id == shared.run_id:  # A late process of the version before.
                return Result([], Opened(shared.generation, shared.number, True))
            ending = Ending.RESTART
            if run_id != shared.run_id:
                ending = Ending.FENCED
                transaction = transaction._replace(shared=_replaced_by(shared, run_id))
            aborted = self._decided_shared(transactional_id, transaction, (), ending, now)
            return self._stored([aborted], None)
        if run_id != shared.run_id or not shared.generation:
            shared = _replaced_by(shared, run_id)
        if is_done:
            registered = transaction._replace(shared=shared)
            return self._stored(
                [] if registered == transaction else [IdRecord(transactional_id, registered, now)],
                Opened(shared.generation, shared.number, True),
            )
        if transaction.state.is_prepared:
            raise self._concurrent(transactional_id)
        shared = shared._replace(number=shared.number + 1, wanted=wanted, listed=())
        opened = transaction._replace(
            state=State.ONGOING, timeout_ms=self._config.lease_ms, began_at=now, shared=shared
        )
        return self._stored(
            [IdRecord(transactional_id, opened, now)],
            Opened(shared.generation, shared.number, False),
        )

    def handle_participate(
        self,
        transactional_id: str,
        generation: int,
        number: int,
        now: WallMs,
        next_id: Callable[[], ProducerId],
    ) -> Result[TransactionRecord, Producer]:
        """Let another producer take part in the open transaction.

        Raises:
            ProducerFencedError: another run has replaced this one.
            TransactionAbortedError, InvalidTransactionStateError: the transaction is over.
            TransactionsFullError: it has as many participants as are allowed.
        """
        self._check_open(transactional_id, generation, number)
        present = self._participants.count_joined(transactional_id, number)
        most = self._config.participants_max
        if present >= most:
            raise TransactionsFullError(
                f"transaction {number} of {short_id(transactional_id)} has "
                f"{count(present, 'participant')}, as many as the setting "
                "transactions.participants_max allows: write with fewer tasks, or raise it"
            )
        idle = self._participants.idle(transactional_id, number)
        following = 0 if idle is None or idle.epoch is None else idle.epoch + 1
        if idle is not None and following < self._config.epoch_max:
            producer = Producer(idle.producer_id, ProducerEpoch(following))
        else:
            self._check_room_for_participants(1)
            producer = Producer(next_id(), ProducerEpoch(0))
        return self._stored([ParticipantRecord(transactional_id, *producer, number, now)], producer)

    def handle_renew(
        self, transactional_id: str, generation: int, number: int
    ) -> Result[TransactionRecord, None]:
        """Check that a transaction is open, so that its lease may be renewed.

        Raises:
            ProducerFencedError, TransactionAbortedError, InvalidTransactionStateError: as
                `handle_participate`.
        """
        self._check_open(transactional_id, generation, number)
        return Result([], None)

    def handle_decide(
        self,
        transactional_id: str,
        generation: int,
        number: int,
        participants: Collection[Producer],
        now: WallMs,
        *,
        is_commit: bool,
    ) -> Result[TransactionRecord, None]:
        """Decide a transaction: it is committed with these participants, or aborted.

        Raises:
            ProducerFencedError: another run has replaced this one.
            TransactionAbortedError: it was aborted by its lease or by hand.
            InvalidTransactionStateError: it was decided otherwise, is not the open one, or has not
                all of these participants.
        """
        transaction = self._numbered(transactional_id, generation, number)
        if transaction.state is not State.ONGOING:
            _check_decision(transactional_id, transaction, number, is_commit=is_commit)
            return Result([], None)
        if len(participants) > self._config.participants_max:
            raise MalformedRequestError(
                f"{len(participants)} participants: at most {self._config.participants_max} may be"
            )
        for producer in participants:
            record = self._participants.find_joined(transactional_id, producer.producer_id)
            if record is None or (record.epoch, record.number) != (producer.epoch, number):
                raise InvalidTransactionStateError(
                    f"producer {producer} has not joined transaction {number} of "
                    f"{short_id(transactional_id)}: it belongs to another attempt. Abort this one"
                )
        listed = tuple(sorted({producer.producer_id for producer in participants}))
        decided = self._decided_shared(
            transactional_id, transaction, listed, Ending.PRODUCER, now, is_commit=is_commit
        )
        return self._stored([decided], None)

    def handle_forget_version(
        self, transactional_id: str, now: WallMs
    ) -> Result[TransactionRecord, None]:
        """Forget the committed version of an application, for a person (T21, T22).

        Raises:
            TransactionalIdNotFoundError: nothing is known of the id, or it has no version.
            InvalidTransactionStateError: a transaction of it is open.
            ConcurrentTransactionsError: the last one is not complete.
        """
        transaction = self.get(transactional_id).transaction
        assert transaction is not None
        shared = transaction.shared
        if shared is None or shared.done is None:
            raise TransactionalIdNotFoundError(
                f"the transactional id {short_id(transactional_id)} has no version"
            )
        if transaction.state.is_prepared:
            raise self._concurrent(transactional_id)
        if transaction.state is State.ONGOING:
            raise InvalidTransactionStateError(
                f"a transaction of {short_id(transactional_id)} is open: stop its application, and "
                "abort it by `millrace transaction abort`, before its version is forgotten"
            )
        forgotten = transaction._replace(shared=shared._replace(done=None))
        return self._stored([IdRecord(transactional_id, forgotten, now)], None)

    def has_participants(self, transactional_id: str) -> bool:
        """Return whether a producer has joined the last transaction."""
        number = self._number(transactional_id)
        return self._participants.count_joined(transactional_id, number) > 0

    def shared_by(self, transactional_id: str) -> list[Producer]:
        """Return the producers that have joined the last transaction."""
        number = self._number(transactional_id)
        return [
            Producer(record.producer_id, record.epoch)
            for record in self._participants.joined(transactional_id)
            if record.number == number and record.epoch is not None
        ]

    def _number(self, transactional_id: str) -> int:
        transaction = self.get(transactional_id).transaction
        shared = None if transaction is None else transaction.shared
        return 0 if shared is None else shared.number

    # --- For the rest of the machine ---------------------------------------------------------

    def _participant(self, transactional_id: str, shared: Shared, producer: Producer) -> str:
        """Return the name of a participant's records, if it may write.

        Raises:
            MillraceError: it takes no part in the open transaction.
        """
        record = self._participants.find_joined(transactional_id, producer.producer_id)
        if record is None or record.epoch != producer.epoch:
            raise refusals.takes_no_part(transactional_id, producer)
        if record.number != shared.number:
            raise refusals.not_open(short_id(transactional_id), record.number, shared.number)
        return record.name

    def _too_late(
        self, transactional_id: str, transaction: Transaction, shared: Shared, producer: Producer
    ) -> MillraceError:
        """Return why a participant may not write: no transaction is open."""
        record = self._participants.find_joined(transactional_id, producer.producer_id)
        if record is None or (record.epoch, record.number) != (producer.epoch, shared.number):
            return refusals.takes_no_part(transactional_id, producer)
        return _over(transactional_id, transaction, shared.number)

    def _decided_shared(
        self,
        transactional_id: str,
        transaction: Transaction,
        listed: tuple[ProducerId, ...],
        ending: Ending,
        now: WallMs,
        *,
        is_commit: bool = False,
    ) -> IdRecord:
        """Return the record that decides an open transaction."""
        shared = transaction.shared
        assert shared is not None
        is_owed = bool(self._participants.writing(transactional_id))
        if is_commit:
            state = State.PREPARE_COMMIT if is_owed else State.COMPLETE_COMMIT
            shared = shared._replace(listed=listed, done=shared.wanted or shared.done)
        else:
            state = State.PREPARE_ABORT if is_owed else State.COMPLETE_ABORT
        decided = transaction._replace(
            state=state,
            ended=Ended(NOBODY, NO_PRODUCER_EPOCH, is_commit, ending),
            shared=shared,
        )
        return IdRecord(transactional_id, decided, now)

    # --- Private -----------------------------------------------------------------------------

    def _numbered(self, transactional_id: str, generation: int, number: int) -> Transaction:
        """Return the last transaction of a run, if that has this number (T19, T20).

        Raises:
            MillraceError: there is none, another run has replaced this one, or it has another
                number.
        """
        record = self._ids.get(transactional_id)
        transaction = None if record is None else record.transaction
        shared = None if transaction is None else transaction.shared
        if transaction is None or shared is None:
            raise refusals.unopened(short_id(transactional_id))
        if generation != shared.generation:
            raise refusals.replaced(short_id(transactional_id), f"of generation {generation}")
        if number != shared.number:
            raise refusals.not_open(short_id(transactional_id), number, shared.number)
        return transaction

    def _check_open(self, transactional_id: str, generation: int, number: int) -> None:
        transaction = self._numbered(transactional_id, generation, number)
        if transaction.state is not State.ONGOING:
            raise _over(transactional_id, transaction, number)


def _check_texts(run_id: str, wanted: Version | None) -> None:
    texts = [("the run id", run_id, RUN_ID_BYTES_MAX)]
    if wanted is not None:
        query_id, checkpoint = wanted.origin
        texts.append(("the query id", query_id, ORIGIN_BYTES_MAX))
        texts.append(("the checkpoint", checkpoint, ORIGIN_BYTES_MAX))
        if not 0 <= wanted.number <= _VERSION_MAX:
            raise MalformedRequestError(f"version {wanted.number}: it is 0 to {_VERSION_MAX}")
    if not run_id:
        raise MalformedRequestError("a run has an id that is not empty")
    for what, text, most in texts:
        if len(text) > most or len(text.encode(errors="replace")) > most:
            raise MalformedRequestError(f"{what} is longer than {most} bytes")


def _check_version(
    transactional_id: str, transaction: Transaction, shared: Shared, wanted: Version
) -> None:
    """Refuse a version that is not the next one of its origin (T21).

    Raises:
        VersionConflictError: says how it is solved.
    """
    done = shared.done
    if done is not None and done.origin == wanted.origin and done.number < wanted.number:
        return
    if done is None:
        there = shared.wanted if transaction.state is State.ONGOING else None
        if there is None or there.origin == wanted.origin:
            return
        done = there
    raise refusals.version_conflict(short_id(transactional_id), done, wanted)


def _check_decision(
    transactional_id: str, transaction: Transaction, number: int, *, is_commit: bool
) -> None:
    """Refuse a decision that is not the one that was made."""
    ended = transaction.ended
    if ended is not None and ended.is_commit == is_commit:
        return
    if ended is not None and ended.is_commit:
        raise InvalidTransactionStateError(
            f"transaction {number} of {short_id(transactional_id)} is committed: a decision stands"
        )
    raise _over(transactional_id, transaction, number)


def _over(transactional_id: str, transaction: Transaction, number: int) -> MillraceError:
    """Return the error for a transaction that is decided."""
    ended = transaction.ended
    if ended is not None and ended.is_commit:
        return InvalidTransactionStateError(
            f"transaction {number} of {short_id(transactional_id)} is committed: this belongs to "
            "none"
        )
    why = {
        Ending.TIMEOUT: "nobody renewed its lease, or it was open for too long",
        Ending.OPERATOR: "a person asked for it",
    }.get(Ending.PRODUCER if ended is None else ended.ending)
    return TransactionAbortedError(
        f"transaction {number} of {short_id(transactional_id)} was aborted, because "
        f"{why or 'its application asked for it'}: open another one"
    )


def _replaced_by(shared: Shared, run_id: str) -> Shared:
    replaced = shared.replaced
    if shared.generation:
        replaced = (*replaced, shared.run_id)[-REPLACED_RUNS_MAX:]
    return shared._replace(run_id=run_id, generation=shared.generation + 1, replaced=replaced)
