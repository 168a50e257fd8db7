"""The machine of a transactional producer: each state, each refusal, and what is in doubt."""

from collections.abc import Callable

import pytest

from millrace.core.client.producer.transaction import (
    TRANSITIONS,
    Described,
    End,
    ProducerIdentity,
    ProducerTransactions,
    TransactionEvent,
    TransactionState,
)
from millrace.core.errors import (
    Appended,
    ClosedError,
    ConcurrentTransactionsError,
    ConnectionFailedError,
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    MessageTooLargeError,
    MillraceError,
    ProducerFencedError,
    StaleMemberEpochError,
    TransactionAbortedError,
    TransactionInDoubtError,
    UnknownServerError,
)
from millrace.core.ids import ProducerEpoch, ProducerId

S = TransactionState


def identity(epoch: int, producer_id: int = 9) -> ProducerIdentity:
    return ProducerIdentity(ProducerId(producer_id), ProducerEpoch(epoch))


def ready(epoch: int = 0) -> ProducerTransactions:
    machine = ProducerTransactions("billing")
    assert machine.initialise() is None
    machine.on_initialised(identity(epoch))
    return machine


def begun(*, joined: bool = True) -> ProducerTransactions:
    machine = ready()
    machine.begin()
    machine.is_joined = joined
    return machine


def failed() -> ProducerTransactions:
    machine = begun()
    machine.on_failed(MessageTooLargeError("too large"))
    return machine


def committing() -> ProducerTransactions:
    machine = begun()
    machine.commit()
    return machine


def aborting() -> ProducerTransactions:
    machine = begun()
    machine.abort()
    return machine


def in_doubt(*, commit: bool = True) -> ProducerTransactions:
    machine = committing() if commit else aborting()
    machine.on_not_ended(ConnectionFailedError("silent"), in_doubt=True)
    return machine


def over() -> ProducerTransactions:
    machine = begun()
    machine.on_failed(TransactionAbortedError("by its time-out"))
    return machine


def fenced() -> ProducerTransactions:
    machine = begun()
    machine.on_failed(ProducerFencedError("another one began"))
    return machine


def closed() -> ProducerTransactions:
    machine = ready()
    machine.close()
    return machine


STATES: dict[TransactionState, Callable[[], ProducerTransactions]] = {
    S.UNINITIALISED: lambda: ProducerTransactions("billing"),
    S.READY: ready,
    S.OPEN: begun,
    S.FAILED: failed,
    S.COMMITTING: committing,
    S.ABORTING: aborting,
    S.COMMIT_IN_DOUBT: in_doubt,
    S.ABORT_IN_DOUBT: lambda: in_doubt(commit=False),
    S.OVER: over,
    S.FENCED: fenced,
    S.CLOSED: closed,
}


@pytest.mark.parametrize("state", S)
def test_each_state_can_be_reached_and_closed(state: TransactionState) -> None:
    machine = STATES[state]()
    assert machine.state is state
    machine.close()
    assert machine.state is S.CLOSED


def test_each_event_happens_in_some_state() -> None:
    assert {event for row in TRANSITIONS.values() for event in row} == set(TransactionEvent)


REFUSED: dict[str, dict[TransactionState, type[MillraceError]]] = {
    "begin": {
        S.OPEN: InvalidTransactionStateError,
        S.FAILED: InvalidTransactionStateError,
        S.COMMITTING: InvalidTransactionStateError,
        S.ABORTING: InvalidTransactionStateError,
        S.COMMIT_IN_DOUBT: TransactionInDoubtError,
        S.FENCED: ProducerFencedError,
        S.CLOSED: ClosedError,
    },
    "commit": {
        S.UNINITIALISED: InvalidTransactionStateError,
        S.READY: InvalidTransactionStateError,
        S.FAILED: MessageTooLargeError,
        S.COMMITTING: InvalidTransactionStateError,
        S.ABORTING: InvalidTransactionStateError,
        S.ABORT_IN_DOUBT: InvalidTransactionStateError,
        S.OVER: TransactionAbortedError,
        S.FENCED: ProducerFencedError,
        S.CLOSED: ClosedError,
    },
    "abort": {
        S.UNINITIALISED: InvalidTransactionStateError,
        S.READY: InvalidTransactionStateError,
        S.COMMITTING: InvalidTransactionStateError,
        S.ABORTING: InvalidTransactionStateError,
        S.COMMIT_IN_DOUBT: TransactionInDoubtError,
        S.FENCED: ProducerFencedError,
        S.CLOSED: ClosedError,
    },
    "initialise": {
        S.COMMITTING: InvalidTransactionStateError,
        S.ABORTING: InvalidTransactionStateError,
        S.COMMIT_IN_DOUBT: TransactionInDoubtError,
        S.FENCED: ProducerFencedError,
        S.CLOSED: ClosedError,
    },
}


@pytest.mark.parametrize("call", REFUSED)
@pytest.mark.parametrize("state", S)
def test_a_call_that_does_not_fit_the_state_is_refused_and_changes_nothing(
    state: TransactionState, call: str
) -> None:
    machine = STATES[state]()
    expected = REFUSED[call].get(state)
    if expected is None:
        if call != "begin" or not machine.must_initialise:
            getattr(machine, call)()
        return
    with pytest.raises(expected):
        getattr(machine, call)()
    assert machine.state is state


def test_each_transaction_is_written_with_what_the_end_of_the_last_one_brought() -> None:
    machine = ready(epoch=4)
    assert machine.begin() == identity(4)
    machine.is_joined = True
    assert machine.commit() == End(identity(4), committed=True)
    machine.on_ended(identity(5))
    outcomes = [machine.outcome]
    assert not machine.must_initialise
    assert machine.begin() == identity(5)
    machine.is_joined = True
    assert machine.abort() == End(identity(5), committed=False)
    machine.on_ended(identity(0, producer_id=10))  # The epochs of the first id are used up.
    assert [*outcomes, machine.outcome] == ["committed", "aborted"]
    assert machine.begin() == identity(0, producer_id=10)


@pytest.mark.parametrize(("end", "outcome"), [("commit", "committed"), ("abort", "aborted")])
def test_a_transaction_that_no_broker_has_heard_of_ends_without_a_call(
    end: str, outcome: str
) -> None:
    """As in librdkafka#4849."""
    machine = begun(joined=False)
    assert machine.outcome == "open"
    assert getattr(machine, end)() is None
    assert machine.state is S.READY
    assert machine.outcome == outcome, "and not that of the one before"
    assert machine.begin() == identity(0)


def test_a_failure_before_any_broker_has_heard_of_it_is_aborted_without_a_call() -> None:
    machine = begun(joined=False)
    machine.on_failed(MessageTooLargeError("too large"))
    with pytest.raises(MessageTooLargeError):
        machine.commit()
    assert machine.abort() is None
    assert machine.begin() == identity(0)


def test_a_commit_is_refused_with_the_first_failure() -> None:
    machine = failed()
    machine.on_failed(StaleMemberEpochError("later"))
    with pytest.raises(MessageTooLargeError, match="too large"):
        machine.commit()
    with pytest.raises(MessageTooLargeError):
        machine.check_open()  # Nor is anything more sent.
    assert machine.abort() == End(identity(0), committed=False)


def test_what_the_coordinator_has_aborted_is_followed_by_another_under_a_renewed_epoch() -> None:
    """KIP-360: the last id and epoch are named."""
    machine = over()
    with pytest.raises(TransactionAbortedError):
        machine.commit()
    assert machine.abort() is None
    assert machine.must_initialise
    assert machine.initialise() == identity(0)
    machine.on_initialised(identity(2))
    assert machine.begin() == identity(2)
    machine.check_open()


def test_a_commit_that_the_coordinator_refuses_as_aborted_is_over() -> None:
    machine = committing()
    error = machine.on_not_ended(TransactionAbortedError("by its time-out"), in_doubt=False)
    assert isinstance(error, TransactionAbortedError)
    assert (machine.state, machine.outcome) == (S.OVER, "aborted")


def test_an_abort_of_what_the_coordinator_has_aborted_is_a_success() -> None:
    machine = aborting()
    assert machine.on_not_ended(TransactionAbortedError("by a person"), in_doubt=False) is None
    assert machine.must_initialise


def test_an_epoch_that_a_leader_refuses_says_less_than_the_coordinator() -> None:
    """It is fenced, or aborted by its time-out."""
    machine = begun()
    machine.on_failed(InvalidProducerEpochError("a later epoch has written"))
    assert machine.state is S.FAILED
    assert machine.abort() is not None
    machine.on_not_ended(TransactionAbortedError("by its time-out"), in_doubt=False)
    with pytest.raises(TransactionAbortedError):
        machine.commit()


def test_to_initialise_within_a_transaction_aborts_it_and_its_commit_fails() -> None:
    """As in librdkafka#3575."""
    machine = begun()
    assert machine.initialise() == identity(0)
    with pytest.raises(TransactionAbortedError):
        machine.commit()
    machine.on_initialised(identity(1))
    with pytest.raises(TransactionAbortedError, match="init_transactions"):
        machine.commit()
    with pytest.raises(TransactionAbortedError):
        machine.check_open()
    assert machine.outcome == "aborted"
    assert machine.begin() == identity(1)


# T17: fenced, aborted, in doubt.


def test_a_commit_whose_answer_is_lost_is_in_doubt_and_only_the_commit_is_repeated() -> None:
    machine = committing()
    error = machine.on_not_ended(ConnectionFailedError("silent"), in_doubt=True)
    assert isinstance(error, TransactionInDoubtError)
    assert error.appended is Appended.MAYBE
    assert machine.must_ask
    for forbidden in (machine.abort, machine.begin, machine.initialise, machine.check_open):
        with pytest.raises(TransactionInDoubtError):
            forbidden()
    assert machine.commit() == End(identity(0), committed=True)
    machine.on_ended(identity(1))
    assert (machine.state, machine.outcome) == (S.READY, "committed")


def test_an_answer_that_leaves_it_open_whether_it_was_decided_is_a_doubt() -> None:
    machine = committing()
    error = machine.on_not_ended(UnknownServerError("it crashed"), in_doubt=False)
    assert isinstance(error, TransactionInDoubtError)


def test_a_doubt_stays_when_the_repeated_commit_does_not_reach_the_coordinator() -> None:
    machine = in_doubt()
    machine.commit()
    error = machine.on_not_ended(ConnectionFailedError("nobody listens"), in_doubt=False)
    assert isinstance(error, TransactionInDoubtError)
    assert machine.state is S.COMMIT_IN_DOUBT


def test_a_commit_that_never_reached_the_coordinator_may_be_repeated_or_aborted() -> None:
    machine = committing()
    error = machine.on_not_ended(ConnectionFailedError("nobody listens"), in_doubt=False)
    assert isinstance(error, ConnectionFailedError)
    assert machine.state is S.OPEN
    assert machine.abort() == End(identity(0), committed=False)


def test_a_commit_that_the_coordinator_refuses_for_good_can_only_be_aborted() -> None:
    machine = committing()
    refusal = InvalidTransactionStateError("nothing is open")
    assert machine.on_not_ended(refusal, in_doubt=False) is refusal
    with pytest.raises(InvalidTransactionStateError, match="nothing is open"):
        machine.commit()
    assert machine.abort() is not None


@pytest.mark.parametrize("doubt", [False, True])
def test_a_fenced_commit_says_whether_it_may_be_done(doubt: bool) -> None:
    """Another producer may have begun after it was decided."""
    machine = committing()
    error = machine.on_not_ended(ProducerFencedError("another one began"), in_doubt=doubt)
    assert isinstance(error, ProducerFencedError)
    assert error.appended is (Appended.MAYBE if doubt else Appended.NO)
    assert machine.state is S.FENCED
    assert machine.must_ask is doubt
    assert machine.outcome == ("open" if doubt else "aborted")


@pytest.mark.parametrize(
    "error",
    [ConnectionFailedError("silent"), ConcurrentTransactionsError("wait"), UnknownServerError("?")],
    ids=str,
)
def test_an_abort_in_doubt_is_repeated_or_followed_by_another_transaction(
    error: MillraceError,
) -> None:
    """It never counts, whenever it ends; to initialise ends it first."""
    machine = aborting()
    told = machine.on_not_ended(error, in_doubt=False)
    assert isinstance(told, TransactionInDoubtError)
    assert told.appended is Appended.NO
    assert machine.must_initialise
    machine.abort()
    machine.on_not_ended(error, in_doubt=False)
    assert machine.initialise() == identity(0)
    machine.on_initialised(identity(1))
    assert machine.outcome == "aborted"
    assert machine.begin() == identity(1)


@pytest.mark.parametrize(
    ("described", "outcome", "state"),
    [
        (Described(identity(1), identity(0), True), "committed", S.OVER),
        (Described(identity(1), identity(0), False), "aborted", S.OVER),
        (Described(identity(0), None, False), "open", S.COMMIT_IN_DOUBT),
        (Described(identity(0), identity(5, producer_id=8), True), "open", S.COMMIT_IN_DOUBT),
        (Described(identity(7), identity(6), True), "unknown", S.OVER),
    ],
)
def test_the_coordinator_settles_a_doubt(
    described: Described, outcome: str, state: TransactionState
) -> None:
    machine = in_doubt()
    assert machine.on_described(described) == outcome
    assert (machine.state, machine.outcome) == (state, outcome)
    if state is S.OVER:  # What was lost with the answer is asked again.
        assert machine.initialise() == identity(0)


def test_a_fenced_producer_is_fenced_when_it_initialises_and_for_ever() -> None:
    machine = over()
    machine.initialise()
    machine.on_not_initialised(ProducerFencedError("another one began"))
    assert machine.state is S.FENCED
    with pytest.raises(ProducerFencedError):
        machine.begin()


def test_another_failure_to_initialise_may_pass() -> None:
    machine = ProducerTransactions("billing")
    machine.initialise()
    machine.on_not_initialised(ConcurrentTransactionsError("the last one is not written yet"))
    assert machine.state is S.UNINITIALISED


def test_what_fails_after_the_end_was_asked_changes_nothing() -> None:
    machine = committing()
    machine.on_failed(MessageTooLargeError("late"))
    assert machine.state is S.COMMITTING


def taking_part() -> ProducerTransactions:
    machine = ProducerTransactions("etl@orders")
    assert machine.take_part(identity(0)) == identity(0)
    machine.is_joined = True
    return machine


def committed_once() -> ProducerTransactions:
    machine = begun()
    machine.commit()
    machine.on_ended(identity(1))
    return machine


def test_a_producer_takes_part_in_one_transaction_after_another() -> None:
    machine = taking_part()
    with pytest.raises(InvalidTransactionStateError, match="is open"):
        machine.take_part(identity(1))
    assert machine.leave() == identity(0)
    assert machine.state is S.OVER
    with pytest.raises(InvalidTransactionStateError):
        machine.check_open()
    machine.take_part(identity(1))
    assert machine.leave() == identity(1)


@pytest.mark.parametrize("before", [ready, committed_once, taking_part])
def test_who_has_left_may_begin_its_own_transaction(
    before: Callable[[], ProducerTransactions],
) -> None:
    machine = before()
    if machine.is_open:
        machine.leave()
    machine.take_part(identity(3))
    machine.leave()
    assert machine.must_initialise
    machine.initialise()
    machine.on_initialised(identity(5))
    machine.begin()
    assert not machine.is_shared
    with pytest.raises(InvalidTransactionStateError, match="commit or abort it"):
        machine.leave()


def test_a_participant_neither_commits_nor_asks_for_an_abort() -> None:
    machine = taking_part()
    with pytest.raises(InvalidTransactionStateError, match="leave_transaction"):
        machine.commit()
    assert machine.is_open
    assert machine.abort() is None
    assert machine.state is S.OVER


def test_a_part_in_which_something_failed_cannot_be_named() -> None:
    machine = taking_part()
    machine.on_failed(MessageTooLargeError("too large"))
    with pytest.raises(MessageTooLargeError):
        machine.leave()
    assert machine.abort() is None
    machine = taking_part()
    machine.on_failed(TransactionAbortedError("its lease ran out"))
    with pytest.raises(TransactionAbortedError):
        machine.leave()
    machine.take_part(identity(7))


def test_what_became_of_a_shared_transaction_is_not_this_producers_to_tell() -> None:
    machine = committed_once()
    machine.take_part(identity(3))
    machine.leave()
    assert (machine.outcome, machine.must_ask) == (None, False)
