"""The transactions of one producer, one after another: what may be done next, and what became of
the last one.

                            ┌─────────────────── ended ────────────────────┐
                            v                                              │
    UNINITIALISED ──────> READY ──────> OPEN ──────> COMMITTING ──────> (decided)
                            ^            │  ^            │   │
                            │            v  └─ not asked ┘   └──> COMMIT_IN_DOUBT
                            │          FAILED <── refused ───┘
                            │            v
                            │         ABORTING ──────> ABORT_IN_DOUBT
                            │            │                   │
                       initialised       v                   v
                            └───────── OVER <────────────────┘

An end that the coordinator has decided brings another epoch, with which the next transaction is
written (KIP-890). What is late of an earlier one is refused by its epoch. Invariants:

- One transaction at a time. Each has a producer id and an epoch of its own, except where the one
  before it never reached a broker.
- A batch, or positions, that failed for good make a transaction that can only be aborted: a commit
  is refused with the first error.
- If the coordinator has aborted a transaction, by its time-out or for a person, it is over: another
  one may begin, under an epoch for which the last id and epoch are named (KIP-360).
- If another producer has the id, this one is fenced, for ever.
- If the answer to a commit is lost, the transaction may be committed or not: the commit alone may
  be repeated, or its outcome be asked (T17). Doing the work again would double it
  (librdkafka#4558). An abort whose answer is lost is in doubt only as to when it happens, so
  another one may begin: that ends the last one first.
- A transaction that no broker has heard of ends without a call (librdkafka#4849).
- To initialise within a transaction aborts it, and a commit then fails (librdkafka#3575).
- A producer may take part in a transaction that others end (D30): it gets an id and an epoch for
  that, and leaves when its records are delivered.

Pure: a method says what to ask of the coordinator, and others take the answers.

Source: Kafka's TransactionManager, KIP-98, KIP-360, KIP-890.
"""

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Literal, NamedTuple

from millrace.core.errors import (
    AbortedError,
    Appended,
    ClosedError,
    FencedError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    MillraceError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionInDoubtError,
)
from millrace.core.ids import ProducerEpoch, ProducerId
from millrace.core.transitions import after


class ProducerIdentity(NamedTuple):
    """What a transaction's batches are written with."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class TransactionState(Enum):
    """Where a transactional producer is."""

    UNINITIALISED = auto()
    """It has no producer id."""
    READY = auto()
    """It has an id and an epoch that no transaction has used."""
    OPEN = auto()
    """A transaction is open."""
    FAILED = auto()
    """A transaction is open, and can only be aborted."""
    COMMITTING = auto()
    """The coordinator is asked to commit."""
    ABORTING = auto()
    """The coordinator is asked to abort."""
    COMMIT_IN_DOUBT = auto()
    """It was asked, and its answer is lost."""
    ABORT_IN_DOUBT = auto()
    """Likewise."""
    OVER = auto()
    """No transaction is open, and the epoch is used up."""
    FENCED = auto()
    """Another producer has the transactional id."""
    CLOSED = auto()
    """The producer is closed."""


class TransactionEvent(Enum):
    """What moves a producer to another state."""

    INITIALISED = auto()
    """The coordinator has given an id and an epoch."""
    BEGUN = auto()
    """The user begins a transaction."""
    FAILED = auto()
    """Something of it failed for good."""
    COMMIT = auto()
    """The coordinator is asked to commit."""
    ABORT = auto()
    """The coordinator is asked to abort."""
    ENDED = auto()
    """It is decided as asked, or nobody has to be asked."""
    UNASKED = auto()
    """The coordinator was not reached, and nothing can be decided."""
    REFUSED = auto()
    """The coordinator refused the end."""
    LOST = auto()
    """The answer to the end is lost."""
    ABORTED = auto()
    """The coordinator has aborted the transaction, or the producer lets it do so."""
    SETTLED = auto()
    """The coordinator has told what became of an end in doubt."""
    FENCED = auto()
    """Another producer began with the id."""
    LEFT = auto()
    """The producer has done its part in a transaction that others end."""
    CLOSED = auto()
    """The producer is closed."""


_ALWAYS: Final = {
    TransactionEvent.FENCED: TransactionState.FENCED,
    TransactionEvent.CLOSED: TransactionState.CLOSED,
}

TRANSITIONS: Final[dict[TransactionState, dict[TransactionEvent, TransactionState]]] = {
    TransactionState.UNINITIALISED: {
        **_ALWAYS,
        TransactionEvent.INITIALISED: TransactionState.READY,
    },
    TransactionState.READY: {
        **_ALWAYS,
        TransactionEvent.INITIALISED: TransactionState.READY,
        TransactionEvent.BEGUN: TransactionState.OPEN,
    },
    TransactionState.OPEN: {
        **_ALWAYS,
        TransactionEvent.FAILED: TransactionState.FAILED,
        TransactionEvent.COMMIT: TransactionState.COMMITTING,
        TransactionEvent.ABORT: TransactionState.ABORTING,
        TransactionEvent.ENDED: TransactionState.READY,
        TransactionEvent.ABORTED: TransactionState.OVER,
        TransactionEvent.LEFT: TransactionState.OVER,
    },
    TransactionState.FAILED: {
        **_ALWAYS,
        TransactionEvent.FAILED: TransactionState.FAILED,
        TransactionEvent.ABORT: TransactionState.ABORTING,
        TransactionEvent.ENDED: TransactionState.READY,
        TransactionEvent.ABORTED: TransactionState.OVER,
        TransactionEvent.LEFT: TransactionState.OVER,
    },
    TransactionState.COMMITTING: {
        **_ALWAYS,
        TransactionEvent.ENDED: TransactionState.READY,
        TransactionEvent.UNASKED: TransactionState.OPEN,
        TransactionEvent.REFUSED: TransactionState.FAILED,
        TransactionEvent.LOST: TransactionState.COMMIT_IN_DOUBT,
        TransactionEvent.ABORTED: TransactionState.OVER,
    },
    TransactionState.ABORTING: {
        **_ALWAYS,
        TransactionEvent.ENDED: TransactionState.READY,
        TransactionEvent.LOST: TransactionState.ABORT_IN_DOUBT,
        TransactionEvent.ABORTED: TransactionState.OVER,
    },
    TransactionState.COMMIT_IN_DOUBT: {
        **_ALWAYS,
        TransactionEvent.COMMIT: TransactionState.COMMITTING,
        TransactionEvent.SETTLED: TransactionState.OVER,
    },
    TransactionState.ABORT_IN_DOUBT: {
        **_ALWAYS,
        TransactionEvent.ABORT: TransactionState.ABORTING,
        TransactionEvent.ABORTED: TransactionState.OVER,
        TransactionEvent.SETTLED: TransactionState.OVER,
    },
    TransactionState.OVER: {
        **_ALWAYS,
        TransactionEvent.INITIALISED: TransactionState.READY,
    },
    TransactionState.FENCED: {**_ALWAYS},
    TransactionState.CLOSED: {
        TransactionEvent.FENCED: TransactionState.CLOSED,
        TransactionEvent.CLOSED: TransactionState.CLOSED,
    },
}
"""The state that follows, by state and event."""

_OPEN: Final = frozenset((TransactionState.OPEN, TransactionState.FAILED))
_ENDING: Final = frozenset((TransactionState.COMMITTING, TransactionState.ABORTING))
_DOUBTED: Final = frozenset((TransactionState.COMMIT_IN_DOUBT, TransactionState.ABORT_IN_DOUBT))

Outcome = Literal["committed", "aborted", "open", "unknown"]
"""What became of a transaction: decided; not decided yet, so that an end that is under way may
still decide it; decided, and the coordinator does not remember how, as others ended since."""


@dataclass(slots=True, frozen=True)
class End:
    """What to ask of the coordinator: decide the transaction that was written so."""

    identity: ProducerIdentity
    committed: bool


@dataclass(slots=True, frozen=True)
class Described:
    """What the coordinator knows of a transactional id.

    Attributes:
        current: of the id's producer now.
        ended: with which the last decided transaction was written; None: none is decided.
        ended_committed: whether that one was committed.
    """

    current: ProducerIdentity
    ended: ProducerIdentity | None
    ended_committed: bool


class ProducerTransactions:
    """The machine of one transactional producer.

    Attributes:
        state: where it is.
        identity: with which the open transaction is written, else the last or the next one; None
            before the first.
        problem: the first failure of the open transaction, or why the last one was aborted.
        is_joined: something of the open transaction may have reached a broker.
        is_shared: others end the open transaction, or the last one.
    """

    def __init__(self, transactional_id: str) -> None:
        self._id = transactional_id
        self.state = TransactionState.UNINITIALISED
        self.identity: ProducerIdentity | None = None
        self.problem: MillraceError | None = None
        self.is_joined = False
        self.is_shared = False
        self._was_in_doubt = False
        """An earlier attempt of the end that is under way may have decided it."""
        self._last: tuple[ProducerIdentity, Outcome] | None = None
        """The last transaction, and what became of it; "open": in doubt."""

    def _on(self, event: TransactionEvent) -> None:
        self.state = after(TRANSITIONS, self.state, event)

    @property
    def is_open(self) -> bool:
        """Whether records may be sent, or could be before something failed."""
        return self.state in _OPEN

    @property
    def must_initialise(self) -> bool:
        """Whether the next transaction needs an id and an epoch of the coordinator first."""
        return self.state in {
            TransactionState.UNINITIALISED,
            TransactionState.OVER,
            TransactionState.ABORT_IN_DOUBT,
        }

    # The id and the epoch.

    def initialise(self) -> ProducerIdentity | None:
        """Return the last id and epoch to name to the coordinator; None: there is none.

        A transaction that is open will be aborted.

        Raises:
            MillraceError: it is not possible now.
        """
        self._check_alive()
        if self.state in _ENDING:
            raise self._under_way()
        if self.state is TransactionState.COMMIT_IN_DOUBT:
            raise self._in_doubt()
        if self.is_open:
            self._on_aborted(
                TransactionAbortedError(
                    "init_transactions() was called within the transaction, which aborts it: begin "
                    "another one"
                )
            )
        elif self.state is TransactionState.ABORT_IN_DOUBT:
            self._on(TransactionEvent.ABORTED)
            self._settle("aborted")
        return None if self.is_shared else self.identity

    def on_initialised(self, identity: ProducerIdentity) -> None:
        """Take the id and the epoch of the next transaction."""
        self.identity = identity
        self._on(TransactionEvent.INITIALISED)

    def on_not_initialised(self, error: MillraceError) -> None:
        """Take why the coordinator gives no id and no epoch."""
        if isinstance(error, FencedError):
            self._on_fenced(error)

    # One transaction.

    def check_ready(self) -> None:
        """Refuse what `begin` would refuse.

        Raises:
            MillraceError: no transaction can begin now.
        """
        self._check_alive()
        if self.is_open:
            raise InvalidTransactionStateError(
                "a transaction is open: commit or abort it before another one begins"
            )
        if self.state in _ENDING:
            raise self._under_way()
        if self.state is TransactionState.COMMIT_IN_DOUBT:
            raise self._in_doubt()

    def begin(self) -> ProducerIdentity:
        """Begin a transaction; return what its batches are written with.

        Raises:
            MillraceError: no transaction can begin now.
        """
        self.check_ready()
        assert self.identity is not None, "there is one once it is initialised"
        self._on(TransactionEvent.BEGUN)
        self.problem = None
        self.is_joined = self.is_shared = False
        return self.identity

    def take_part(self, identity: ProducerIdentity) -> ProducerIdentity:
        """Begin to write a transaction that others end, with this id and epoch.

        Raises:
            MillraceError: no transaction can begin now.
        """
        self.check_ready()
        if self.state is TransactionState.ABORT_IN_DOUBT:
            self._on(TransactionEvent.ABORTED)
        self._on(TransactionEvent.INITIALISED)
        self.identity, self._last = identity, None
        self.begin()
        self.is_shared = True
        return identity

    def leave(self) -> ProducerIdentity:
        """Note that its part is written; return with which id and epoch.

        Raises:
            MillraceError: the first failure, if there was one: the part does not count.
        """
        self.check_open()
        assert self.identity is not None, "a transaction is open"
        if not self.is_shared:
            raise InvalidTransactionStateError(
                "the transaction is this producer's own: commit or abort it"
            )
        self._on(TransactionEvent.LEFT)
        return self.identity

    def on_failed(self, error: MillraceError) -> None:
        """Take that a batch, or positions, failed for good.

        What the producer itself dropped, as something else had failed, is no such failure.
        """
        if not self.is_open:
            return  # What became of it is known, or asked.
        if isinstance(error, TransactionAbortedError):
            self._on_aborted(error)
        elif isinstance(error, ProducerFencedError):
            self._on_fenced(error)
        else:
            self.problem = self.problem or error
            self._on(TransactionEvent.FAILED)

    def check_open(self) -> None:
        """Refuse what needs an open transaction in which nothing has failed.

        Raises:
            MillraceError: why it cannot be done.
        """
        self._check_alive()
        if self.state in _ENDING:
            raise self._under_way()
        if self.state is TransactionState.COMMIT_IN_DOUBT:
            raise self._in_doubt()
        if self.problem is not None:
            raise self.problem.again(self.problem.appended)
        if not self.is_open:
            raise InvalidTransactionStateError(
                "no transaction is open: begin one, best by `async with producer.transaction()`"
            )

    # Its end.

    def commit(self) -> End | None:
        """Return what to ask of the coordinator; None: it is committed.

        Raises:
            MillraceError: the first failure, if there was one: the transaction is not committed,
                and is to be aborted. Or there is none to commit.
        """
        if self.state is not TransactionState.COMMIT_IN_DOUBT:
            self.check_open()
        return self._end(committed=True)

    def abort(self) -> End | None:
        """Return what to ask of the coordinator; None: it is aborted.

        Raises:
            MillraceError: there is nothing to abort, or a commit is in doubt.
        """
        self._check_alive()
        if self.state in _ENDING:
            raise self._under_way()
        if self.state is TransactionState.COMMIT_IN_DOUBT:
            raise self._in_doubt()
        if not self.is_open and self.state is not TransactionState.ABORT_IN_DOUBT:
            if self.problem is None:
                raise InvalidTransactionStateError("no transaction is open: there is none to abort")
            return None  # The coordinator has done it, or nobody heard of it.
        return self._end(committed=False)

    def _end(self, *, committed: bool) -> End | None:
        assert self.identity is not None, "a transaction is open"
        if self.is_shared:
            if committed:
                raise InvalidTransactionStateError(
                    "the producer takes part in a transaction that its application commits: leave "
                    "it by leave_transaction()"
                )
            self._on(TransactionEvent.LEFT)
            return None
        if not self.is_joined:
            self._on(TransactionEvent.ENDED)
            self.problem = None
            self._last = self.identity, "committed" if committed else "aborted"
            return None
        self._was_in_doubt = self.state in _DOUBTED
        self._last = self.identity, "open"
        self._on(TransactionEvent.COMMIT if committed else TransactionEvent.ABORT)
        return End(self.identity, committed)

    def on_ended(self, identity: ProducerIdentity) -> None:
        """Take that it is decided as asked, and the next transaction's id and epoch."""
        self._settle("committed" if self.state is TransactionState.COMMITTING else "aborted")
        self._on(TransactionEvent.ENDED)
        self.identity = identity
        self.problem = None

    def on_not_ended(self, error: MillraceError, *, in_doubt: bool) -> MillraceError | None:
        """Take why the coordinator has not decided as asked.

        Args:
            error: the last refusal, or that there was no answer.
            in_doubt: an attempt before the last one, or the last one, may have decided it.

        Returns:
            The error for the user; None: it is aborted, as asked.
        """
        is_commit = self.state is TransactionState.COMMITTING
        in_doubt = in_doubt or self._was_in_doubt
        if isinstance(error, AbortedError):
            self._on_aborted(error)
            return error if is_commit else None
        if isinstance(error, FencedError):
            self._on_fenced(error)
            if in_doubt and is_commit:  # The other one may have begun after the commit.
                return error.again(Appended.MAYBE)
            self._settle("aborted")
            return error
        if in_doubt or not is_commit or error.appended is Appended.MAYBE:
            self._on(TransactionEvent.LOST)
            return self._in_doubt(error)
        if error.retriable:
            self._on(TransactionEvent.UNASKED)
            return error
        self.problem = error
        self._on(TransactionEvent.REFUSED)
        return error

    # What became of it.

    @property
    def outcome(self) -> Outcome | None:
        """What became of the last transaction, as far as that is known.

        None: there was none. "open": it has not ended, or is in doubt (`must_ask`).
        """
        if self.is_open:
            return "open"
        return None if self._last is None else self._last[1]

    @property
    def must_ask(self) -> bool:
        """Whether only the coordinator knows what became of the last transaction."""
        return self._last is not None and self._last[1] == "open" and not self.is_open

    def on_described(self, described: Described) -> Outcome:
        """Take what the coordinator knows; return what became of the last transaction."""
        assert self._last is not None, "there is a transaction to ask about"
        written, _ = self._last
        if described.ended == written:
            outcome: Outcome = "committed" if described.ended_committed else "aborted"
        else:
            outcome = "open" if described.current == written else "unknown"
        if outcome != "open":
            self._settle(outcome)
            if self.state in _DOUBTED:
                self._on(TransactionEvent.SETTLED)
        return outcome

    def close(self) -> None:
        """Let nothing more be done."""
        self._on(TransactionEvent.CLOSED)

    # Errors.

    def _settle(self, outcome: Outcome) -> None:
        if self._last is not None:
            self._last = self._last[0], outcome

    def _on_aborted(self, error: MillraceError) -> None:
        assert self.identity is not None, "there is a transaction"
        if self.problem is None or isinstance(self.problem, InvalidProducerEpochError):
            self.problem = error
        self._last = self.identity, "aborted"
        self._on(TransactionEvent.ABORTED)

    def _on_fenced(self, error: MillraceError) -> None:
        if self.is_open and self.identity is not None:
            self._last = self.identity, "aborted"  # By the other one, when it began.
        self.problem = error
        self._on(TransactionEvent.FENCED)

    def _check_alive(self) -> None:
        if self.state is TransactionState.FENCED:
            assert self.problem is not None, "it says why"
            raise self.problem.again(Appended.NO)
        if self.state is TransactionState.CLOSED:
            raise ClosedError("the producer is closed")

    def _under_way(self) -> InvalidTransactionStateError:
        what = "commit" if self.state is TransactionState.COMMITTING else "abort"
        return InvalidTransactionStateError(
            f"the {what} of the transaction is under way: wait until it has ended"
        )

    def _in_doubt(self, cause: MillraceError | None = None) -> TransactionInDoubtError:
        because = "" if cause is None else f": {cause.message}"
        if self.state is TransactionState.ABORT_IN_DOUBT:
            return TransactionInDoubtError(
                f"the coordinator of {self._id!r} has not confirmed the abort{because}. The "
                "transaction never counts, and is aborted when another one begins, or by its "
                "time-out",
                appended=Appended.NO,
            )
        return TransactionInDoubtError(
            f"the coordinator of {self._id!r} has not confirmed the commit, which may have been "
            f"done{because}. Commit again, or ask with outcome(); doing the work again may double "
            "it"
        )
