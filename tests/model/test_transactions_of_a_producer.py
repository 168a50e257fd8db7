"""The machine of a transactional producer against a coordinator whose answers are lost.

Hypothesis chooses what the program does, and what becomes of each request: it is answered, it is
lost before or after the coordinator has decided, or it arrives late. The coordinator aborts by its
time-out, and other producers begin with the id. Its epochs run out after two.

Whatever happens: what the program is told to be committed is committed, and what it is told to be
aborted never is; an outcome that it asks for is the truth; no two transactions that reached a
broker have the same id and epoch.
"""

from contextlib import suppress
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millrace.core.client.producer.transaction import (
    Described,
    End,
    ProducerIdentity,
    ProducerTransactions,
    TransactionState,
)
from millrace.core.errors import (
    ConcurrentTransactionsError,
    ConnectionFailedError,
    InvalidTransactionStateError,
    MessageTooLargeError,
    MillraceError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionInDoubtError,
)
from millrace.core.ids import ProducerEpoch, ProducerId

EPOCH_MAX = 2
FIRST = ProducerIdentity(ProducerId(1), ProducerEpoch(0))


@dataclass
class Coordinator:
    """The rules of KIP-890's second version, for one transactional id."""

    current: ProducerIdentity = FIRST
    is_open: bool = False
    ended: ProducerIdentity | None = None
    ended_committed: bool = False
    was_forced: bool = False
    """The last transaction was aborted by its time-out."""
    is_replaced: bool = False
    """Another producer has begun since the last transaction was decided."""
    truth: dict[ProducerIdentity, bool] = field(default_factory=dict)
    """Whether each transaction was committed, of those that are decided."""

    def _bump(self) -> None:
        if self.current.producer_epoch < EPOCH_MAX:
            epoch = ProducerEpoch(self.current.producer_epoch + 1)
            self.current = ProducerIdentity(self.current.producer_id, epoch)
        else:
            other = ProducerId(self.current.producer_id + 1)
            self.current = ProducerIdentity(other, ProducerEpoch(0))

    def _decide(self, *, committed: bool, forced: bool) -> None:
        self.truth[self.current] = committed
        self.ended, self.ended_committed = self.current, committed
        self.is_open, self.was_forced, self.is_replaced = False, forced, False
        self._bump()

    @property
    def last(self) -> ProducerIdentity | None:
        """The last transaction, of the present producer."""
        return None if self.is_replaced else self.ended

    def init(self, named: ProducerIdentity | None) -> ProducerIdentity:
        if named is not None and named not in {self.current, self.last}:
            raise ProducerFencedError("another producer began with the id")
        if self.is_open:
            self._decide(committed=False, forced=True)
        else:
            self._bump()
        self.is_replaced = named is None
        return self.current

    def join(self, identity: ProducerIdentity) -> None:
        if identity == self.current:
            assert identity not in self.truth
            self.is_open = True
        elif identity == self.last:
            raise TransactionAbortedError("it was open for too long")
        else:
            raise ProducerFencedError("another producer began with the id")

    def end(self, asked: End) -> ProducerIdentity:
        if asked.identity == self.current:
            if not self.is_open and asked.committed:
                raise InvalidTransactionStateError("none is open")
            self._decide(committed=asked.committed, forced=False)
        elif asked.identity != self.last:
            raise ProducerFencedError("another producer began with the id")
        elif self.was_forced:
            raise TransactionAbortedError("it was open for too long")
        elif asked.committed != self.ended_committed:
            raise InvalidTransactionStateError("it was decided otherwise")
        return self.current

    def time_out(self) -> None:
        self._decide(committed=False, forced=True)


ANSWER = st.sampled_from(["answered", "lost", "late", "not asked", "busy"])


class Program(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = ProducerTransactions("billing")
        self.coordinator = Coordinator()
        self.late: list[End] = []
        self.told: dict[ProducerIdentity, bool] = {}
        """Whether each transaction is committed, as the program was told."""
        self.open: ProducerIdentity | None = None
        """The program's transaction that reached a broker and has no known outcome."""
        self.used: set[ProducerIdentity] = set()

    def tell(self, *, committed: bool) -> None:
        if self.open is not None:
            self.told[self.open] = committed
            self.open = None

    @precondition(lambda self: self.machine.must_initialise)
    @rule(is_lost=st.booleans())
    def initialise(self, is_lost: bool) -> None:
        named = self.machine.initialise()
        self.tell(committed=False)  # Only an abort can have been in doubt.
        try:
            identity = self.coordinator.init(named)
        except ProducerFencedError as error:
            self.machine.on_not_initialised(error)
            return
        if is_lost:
            self.machine.on_not_initialised(ConnectionFailedError("silent"))
        else:
            self.machine.on_initialised(identity)

    @precondition(lambda self: self.machine.is_open)
    @rule()
    def initialise_within(self) -> None:
        is_joined = self.machine.is_joined
        named = self.machine.initialise()
        if is_joined:
            self.tell(committed=False)
        try:
            self.machine.on_initialised(self.coordinator.init(named))
        except ProducerFencedError as error:
            self.machine.on_not_initialised(error)
        try:
            self.machine.commit()
        except MillraceError:
            return
        raise AssertionError("nothing is open")

    @precondition(
        lambda self: self.machine.state in {TransactionState.READY, TransactionState.OPEN}
    )
    @rule(fails=st.sampled_from([False, False, False, True]))
    def send(self, fails: bool) -> None:
        if self.machine.state is TransactionState.READY:
            assert self.machine.begin() not in self.used, "it is a transaction's own"
        identity = self.machine.identity
        assert identity is not None
        self.machine.is_joined = True
        self.used.add(identity)
        self.open = identity
        try:
            self.coordinator.join(identity)
            if fails:
                raise MessageTooLargeError("the second record")
        except MillraceError as error:
            self.machine.on_failed(error)
            if isinstance(error, TransactionAbortedError | ProducerFencedError):
                self.tell(committed=False)

    @precondition(lambda self: self.open is not None)
    @rule(committed=st.sampled_from([True, True, False]), answer=ANSWER)
    def end(self, committed: bool, answer: str) -> None:
        doubted = self.machine.state is TransactionState.COMMIT_IN_DOUBT
        try:
            asked = self.machine.commit() if committed else self.machine.abort()
        except TransactionInDoubtError:
            assert doubted
            return
        except MillraceError:
            return  # It changes nothing: the rules of states have their own tests.
        if asked is None:
            assert self.open is None
            return
        assert asked.identity == self.open
        assert not doubted or asked.committed
        identity: ProducerIdentity | None = None
        error: MillraceError | None = None
        if answer == "not asked":
            error = ConnectionFailedError("nobody listens")
        elif answer == "busy":
            error = ConcurrentTransactionsError("wait")
        elif answer == "late":
            self.late.append(asked)
        else:
            try:
                identity = self.coordinator.end(asked)
            except MillraceError as refusal:
                error = refusal
            if answer == "lost":
                identity = error = None
        self.take(asked, identity, error)

    def take(
        self, asked: End, identity: ProducerIdentity | None, error: MillraceError | None
    ) -> None:
        if identity is not None:
            self.machine.on_ended(identity)
            self.tell(committed=asked.committed)
            return
        is_lost = error is None
        told = self.machine.on_not_ended(error or ConnectionFailedError("silent"), in_doubt=is_lost)
        is_over = told is None or isinstance(told, TransactionAbortedError)
        if is_over or self.machine.outcome == "aborted":
            self.tell(committed=False)

    @precondition(lambda self: self.late)
    @rule()
    def arrive_late(self) -> None:
        with suppress(MillraceError):  # Nobody waits for the answer.
            self.coordinator.end(self.late.pop())

    @precondition(lambda self: self.machine.must_ask)
    @rule()
    def ask(self) -> None:
        coordinator = self.coordinator
        ended = coordinator.ended
        outcome = self.machine.on_described(
            Described(coordinator.current, ended, coordinator.ended_committed)
        )
        if outcome in {"committed", "aborted"}:
            self.tell(committed=outcome == "committed")
        elif outcome == "unknown":
            self.open = None

    @precondition(lambda self: self.coordinator.is_open)
    @rule()
    def time_out(self) -> None:
        self.coordinator.time_out()

    @precondition(lambda self: self.machine.state is not TransactionState.FENCED)
    @rule()
    def another_producer(self) -> None:
        self.coordinator.init(None)

    @precondition(lambda self: self.machine.state is TransactionState.FENCED)
    @rule()
    def start_again(self) -> None:
        self.machine, self.open = ProducerTransactions("billing"), None

    @invariant()
    def what_the_program_was_told_is_true(self) -> None:
        for identity, committed in self.told.items():
            truth = self.coordinator.truth.get(identity, False)
            assert truth is committed, (identity, committed)

    @invariant()
    def a_doubt_is_never_left_by_doing_the_work_again(self) -> None:
        if self.machine.state is TransactionState.COMMIT_IN_DOUBT:
            assert self.machine.must_ask
            assert not self.machine.is_open


Program.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestProgram = Program.TestCase


def test_a_commit_that_arrives_after_the_program_has_asked_was_never_told_to_be_aborted() -> None:
    run = Program()
    run.initialise(is_lost=False)
    run.send(fails=False)
    run.end(committed=True, answer="late")
    run.ask()
    run.arrive_late()
    run.what_the_program_was_told_is_true()
    run.ask()
    assert list(run.told.values()) == [True]


def test_a_commit_before_another_producer_began_is_never_told_to_be_aborted() -> None:
    run = Program()
    run.initialise(is_lost=False)
    run.send(fails=False)
    run.end(committed=True, answer="lost")
    run.another_producer()
    run.end(committed=True, answer="answered")
    run.what_the_program_was_told_is_true()
    run.ask()
    assert list(run.told.values()) == [True]
