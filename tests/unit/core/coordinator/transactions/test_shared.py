"""Transactions with participants: T19 to T24, each as the interleaving that it is about."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.transactions_log import MINUTE, ORDERS, TransactionsLog, at

from millrace.core.coordinator.transactions.kept_transactions import KnownTransactions
from millrace.core.coordinator.transactions.shared import REPLACED_RUNS_MAX, Opened
from millrace.core.coordinator.transactions.transaction import (
    Decision,
    Ending,
    Origin,
    Over,
    Producer,
    State,
    Version,
)
from millrace.core.errors import (
    ConcurrentTransactionsError,
    InvalidTransactionStateError,
    MalformedRequestError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionalIdNotFoundError,
    TransactionsFullError,
    VersionConflictError,
)
from millrace.core.ids import WallMs

NAME = "default/etl@orders"
QUERY = Origin("query", "s3://checkpoints/etl")


class Application(TransactionsLog):
    """One application, at its coordinator."""

    def ask_to_open(
        self, number: int | None = 0, *, run: str = "run", origin: Origin = QUERY, name: str = NAME
    ) -> Opened | None:
        """Open a transaction; None: another one is being aborted."""
        wanted = None if number is None else Version(number, origin)
        return self.take(self.machine.handle_open(name, run, wanted, self.now))

    def open(
        self, number: int | None = 0, *, run: str = "run", origin: Origin = QUERY, name: str = NAME
    ) -> Opened:
        """Open one, once the one before is over."""
        opened = self.ask_to_open(number, run=run, origin=origin, name=name)
        if opened is None:
            self.tell(name=name)
            opened = self.ask_to_open(number, run=run, origin=origin, name=name)
        assert opened is not None
        return opened

    def participate(self, opened: Opened, *partitions: int) -> Producer:
        """Join, and write to partitions."""
        producer = self.take(
            self.machine.handle_participate(
                NAME, opened.generation, opened.number, self.now, self.next_id
            )
        )
        if partitions:
            self.join(producer, *map(at, partitions), name=NAME)
        return producer

    def decide(
        self, opened: Opened, *participants: Producer, is_commit: bool = True, name: str = NAME
    ) -> None:
        """Commit with these participants, or abort."""
        self.take(
            self.machine.handle_decide(
                name,
                opened.generation,
                opened.number,
                participants,
                self.now,
                is_commit=is_commit,
            )
        )

    def told(self, name: str = NAME) -> list[Decision]:
        """Return what is to be told."""
        return list(self.machine.owed(self.end)) if name in self.machine._decided else []

    def tell(self, *, name: str = NAME) -> None:
        """Let all partitions have their markers."""
        for decision in self.told(name):
            over = Over(decision.decided_at)
            self.take(self.machine.handle_complete({name: over}, self.now))


@pytest.fixture(params=[2, 2**15 - 1])
def app(request: pytest.FixtureRequest) -> Application:
    """With a largest epoch of 2, too."""
    return Application(epoch_max=request.param)


def test_those_that_are_named_are_committed_and_all_others_aborted(app: Application) -> None:
    opened = app.open()
    first = app.participate(opened, 0, 1)
    tried_again = app.participate(opened, 1)
    second = app.participate(opened, 1, 2)
    idle = app.participate(opened)
    app.decide(opened, first, second, idle)
    told = {decision.producer.producer_id: decision for decision in app.told()}
    assert set(told) == {first.producer_id, tried_again.producer_id, second.producer_id}
    assert [told[which.producer_id].is_commit for which in (first, tried_again, second)] == [
        True,
        False,
        True,
    ]
    assert told[first.producer_id].partitions == [at(0), at(1)]
    assert all(decision.producer.epoch == 1 for decision in told.values())
    app.tell()
    assert app.transaction(NAME).state is State.COMPLETE_COMMIT
    assert app.machine.participants(NAME) == ([], [])


def test_markers_for_deleted_topics_are_owed_by_who_wrote_there(app: Application) -> None:
    """T8: each participant owes its own marker."""
    opened = app.open()
    first, second = app.participate(opened, 0, 1), app.participate(opened, 1, 2)
    app.decide(opened, first)
    (decided_at,) = {decision.decided_at for decision in app.told()}
    app.take(app.machine.handle_complete({NAME: Over(decided_at, [at(1), at(2)])}, app.now))
    assert app.transaction(NAME).state is State.COMPLETE_COMMIT
    owed = {
        (record.producer.producer_id, record.is_commit): record.bitmap
        for record in app.machine.owed_to(ORDERS)
    }
    assert owed == {(first.producer_id, True): 0b10, (second.producer_id, False): 0b110}


def test_a_commit_that_stalled_does_not_commit_the_next_attempt(app: Application) -> None:
    """T19: else it stores the version, and the rows of the attempt are lost."""
    stalled = app.open(7)
    written = app.participate(stalled, 0)
    attempt = app.open(7)
    assert attempt.number == stalled.number + 1
    app.participate(attempt, 0)
    with pytest.raises(InvalidTransactionStateError, match="is over"):
        app.decide(stalled, written)
    with pytest.raises(InvalidTransactionStateError, match="has not joined"):
        app.decide(attempt, written)
    assert app.transaction(NAME).state is State.ONGOING
    with pytest.raises(InvalidTransactionStateError, match="is over"):
        app.decide(stalled, is_commit=False)
    assert app.transaction(NAME).state is State.ONGOING


def test_processes_of_a_run_attach_to_what_the_first_one_has_opened(app: Application) -> None:
    """T22: all of them get the same answer."""

    def attach(number: int, run: str = "run") -> Opened | None:
        wanted = Version(number, QUERY)
        return app.take(app.machine.handle_open(NAME, run, wanted, app.now, may_attach=True))

    opened = attach(7)
    assert opened is not None
    written = app.participate(opened, 0)
    assert attach(7) == opened
    app.decide(opened, written)
    assert attach(7) == opened._replace(is_done=True)
    app.tell()
    assert attach(7) == opened._replace(is_done=True)
    following = attach(8)
    assert following == Opened(opened.generation, opened.number + 1, False)
    assert attach(7) == following._replace(is_done=True), "a late process ends nothing"
    assert attach(8) == following
    assert attach(8, "another") is None, "another run aborts it"
    with pytest.raises(ProducerFencedError):
        attach(8)


def test_a_participant_is_told_that_its_transaction_was_aborted(app: Application) -> None:
    """T17: it is not fenced, and may join the next one."""
    opened = app.open(7)
    written, silent = app.participate(opened, 0), app.participate(opened)
    app.take(app.machine.handle_abort(NAME, app.now))
    for _ in range(2):
        for producer, partition in ((written, 1), (silent, 0)):
            with pytest.raises(TransactionAbortedError, match="a person asked"):
                app.join(producer, at(partition), name=NAME)
        if app.told():
            app.tell()
    following = app.open(7)
    with pytest.raises(InvalidTransactionStateError, match="the last one is"):
        app.join(silent, at(0), name=NAME)
    app.decide(following, app.participate(following, 0))
    with pytest.raises(ProducerFencedError, match="takes no part"):
        app.join(silent, at(0), name=NAME)


def test_a_decision_is_repeated_and_never_reversed(app: Application) -> None:
    """T19: Spark aborts after a commit that failed for all it knows."""
    opened = app.open(7)
    written = app.participate(opened, 0)
    app.decide(opened, written)
    for _ in range(2):
        before = app.end
        app.decide(opened, written)
        assert app.end == before
        with pytest.raises(InvalidTransactionStateError, match="a decision stands"):
            app.decide(opened, is_commit=False)
        app.tell()
    aborted = app.open(8)
    app.decide(aborted, is_commit=False)
    app.decide(aborted, is_commit=False)
    with pytest.raises(TransactionAbortedError, match="its application asked"):
        app.decide(aborted)


def test_a_run_that_was_replaced_never_comes_back(app: Application) -> None:
    """T20: a driver that slept would be the newest one when it wakes."""
    slept = app.open(7, run="slept")
    written = app.participate(slept, 0)
    awake = app.open(7, run="awake")
    assert awake.generation == slept.generation + 1
    with pytest.raises(ProducerFencedError, match="stop this one"):
        app.open(7, run="slept")
    with pytest.raises(ProducerFencedError):
        app.decide(slept, written)
    with pytest.raises(ProducerFencedError):
        app.participate(slept)
    with pytest.raises(ProducerFencedError):
        app.machine.handle_renew(NAME, slept.generation, slept.number)
    with pytest.raises((ProducerFencedError, InvalidTransactionStateError)):
        app.join(written, at(1), name=NAME)
    app.decide(awake, app.participate(awake, 0))
    for number in range(REPLACED_RUNS_MAX):
        with pytest.raises(ProducerFencedError):
            app.open(7, run="slept")
        assert app.open(7, run=f"another {number}").is_done


def test_what_is_done_is_done_for_its_own_query_alone(app: Application) -> None:
    """T21, and T22: the answer to `open` says so."""
    opened = app.open(7)
    app.decide(opened, app.participate(opened, 0))
    assert app.open(7).is_done, "although its markers are not written yet"
    app.tell()
    again = app.open(7, run="another")
    assert again == Opened(opened.generation + 1, opened.number, True)
    for origin in (Origin("query", "s3://a copy"), Origin("another", QUERY.checkpoint)):
        for number in (0, 7, 8):
            with pytest.raises(VersionConflictError, match="forget-version"):
                app.open(number, run="third", origin=origin)
    with pytest.raises(VersionConflictError, match="is an old one"):
        app.open(6, run="another")
    assert not app.open(9, run="another").is_done


def test_a_second_query_does_not_abort_what_the_first_one_writes(app: Application) -> None:
    """T21: also before the first version is committed."""
    opened = app.open(0)
    written = app.participate(opened, 0)
    with pytest.raises(VersionConflictError):
        app.open(0, run="second", origin=Origin("second", "elsewhere"))
    app.decide(opened, written)


def test_an_aborted_version_is_not_done(app: Application) -> None:
    app.decide(app.open(7), is_commit=False)
    assert not app.open(7).is_done
    app.take(app.machine.handle_abort(NAME, app.now))
    assert not app.open(7).is_done


def test_a_version_is_forgotten_by_a_person_alone(app: Application) -> None:
    """T22: not while a transaction is open; T24: not by its age."""
    opened = app.open(7)
    with pytest.raises(TransactionalIdNotFoundError, match="no version"):
        app.take(app.machine.handle_forget_version(NAME, app.now))
    app.decide(opened, app.participate(opened, 0))
    with pytest.raises(ConcurrentTransactionsError, match="is committed"):
        app.take(app.machine.handle_forget_version(NAME, app.now))
    app.tell()
    following = app.open(8)
    with pytest.raises(InvalidTransactionStateError, match="is open"):
        app.take(app.machine.handle_forget_version(NAME, app.now))
    app.decide(following, is_commit=False)
    app.expire(10 * app.config.id_expiration_ms)
    assert app.open(7).is_done
    app.take(app.machine.handle_forget_version(NAME, app.now))
    assert not app.open(0, run="another", origin=Origin("another", "elsewhere")).is_done


def test_what_has_no_version_is_forgotten_after_a_while(app: Application) -> None:
    """T24: a batch write without an application id keeps its outcome for seven days."""
    opened = app.open(None)
    app.decide(opened, app.participate(opened, 0))
    app.tell()
    app.expire(app.config.id_expiration_ms - MINUTE)
    app.decide(opened)
    app.expire(2 * MINUTE)
    assert app.machine.find(NAME) is None
    assert len(app.machine._participants) == 0
    with pytest.raises(TransactionalIdNotFoundError, match="open one"):
        app.decide(opened)


def test_participants_that_wait_for_no_next_transaction_are_forgotten() -> None:
    """Batch writes have an id each: otherwise no producer of their partition could join."""
    app = Application(partition_participants_max=3)
    for number in range(3):
        opened = app.open(None, name=f"{NAME}-{number}")
        join = app.machine.handle_participate
        found = app.take(join(f"{NAME}-{number}", *opened[:2], app.now, app.next_id))
        app.decide(opened, found, name=f"{NAME}-{number}")
        app.tell(name=f"{NAME}-{number}")
    writer = app.begun()
    with pytest.raises(TransactionsFullError, match="an hour ago"):
        app.join(writer, at(0))
    app.expire(app.config.participants_kept_ms)
    with pytest.raises(TransactionsFullError):
        app.join(writer, at(0))
    app.expire(1)
    app.join(writer, at(0))
    assert len(app.machine) == 4, "their outcome is kept (T24)"
    again = app.replayed()
    assert len(again._participants) == len(app.machine._participants) == 1


def test_participants_of_a_version_are_forgotten_and_the_version_is_not(app: Application) -> None:
    opened = app.open(7)
    app.decide(opened, app.participate(opened, 0))
    app.expire(2 * app.config.participants_kept_ms)
    assert app.told(), "it is not complete: who must be told is known"
    app.tell()
    app.expire(2 * app.config.participants_kept_ms)
    assert len(app.machine._participants) == 0
    assert app.open(7).is_done
    following = app.open(8)
    app.decide(following, app.participate(following, 0))


def test_a_time_out_aborts_and_says_why(app: Application) -> None:
    """T23: who renews what, the shell knows."""
    opened = app.open(7)
    written = app.participate(opened, 0)
    app.take(app.machine.handle_time_out([(NAME, app.transaction(NAME))], app.now))
    ended = app.transaction(NAME).ended
    assert ended is not None
    assert ended.ending is Ending.TIMEOUT
    assert [decision.is_commit for decision in app.told()] == [False]
    with pytest.raises(TransactionAbortedError, match="lease"):
        app.decide(opened, written)
    app.decide(opened, is_commit=False)
    with pytest.raises(ConcurrentTransactionsError):
        app.ask_to_open(7)


def test_one_that_readers_may_wait_for_is_told_with_its_age(app: Application) -> None:
    """Before a producer has joined, and after the decision, none does: it hides nothing (P54)."""
    opened = app.open()
    app.now = WallMs(app.now + MINUTE)
    assert app.machine.known(app.now) == KnownTransactions(ids=1, open=1)
    writer = app.participate(opened, 1)
    known = app.machine.known(app.now)
    assert known == KnownTransactions(ids=1, open=1, open_ms=MINUTE, shared_ms=MINUTE)
    known = app.machine.known(app.now) | KnownTransactions(shared_ms=2 * MINUTE)
    assert known.shared_ms == 2 * MINUTE
    app.decide(opened, writer)
    assert app.machine.known(app.now).shared_ms == 0


def test_a_lease_is_as_long_as_the_setting_says_when_it_begins(app: Application) -> None:
    app.decide(app.open(0))
    app.config = replace(app.config, lease_ms=7_000)
    app.machine = app.replayed()
    app.open(1)
    assert app.transaction(NAME).timeout_ms == 7_000


def test_producer_ids_are_used_again_with_larger_epochs(app: Application) -> None:
    used = set()
    for number in range(6):
        opened = app.open(number)
        writers = [app.participate(opened, 0), app.participate(opened, 1)]
        for writer in writers:
            assert writer not in used, "a late writer has the epoch of no other one"
        used.update(writers)
        app.decide(opened, *writers)
        app.tell()
        assert len(app.machine._participants) == 2
    if app.config.epoch_max > 2:
        assert len({writer.producer_id for writer in used}) == 2


def test_producer_ids_that_are_not_needed_are_forgotten(app: Application) -> None:
    opened = app.open(0)
    writers = [app.participate(opened, number) for number in range(5)]
    app.decide(opened, *writers)
    app.tell()
    opened = app.open(1)
    app.decide(opened, app.participate(opened, 0))
    app.tell()
    assert len(app.machine._participants) == 1
    for writer in writers:
        with pytest.raises((ProducerFencedError, InvalidTransactionStateError)):
            app.join(writer, at(9), name=NAME)


def test_participants_are_bounded() -> None:
    app = Application(participants_max=3)
    opened = app.open()
    writers = [app.participate(opened) for _ in range(3)]
    with pytest.raises(TransactionsFullError, match="participants_max"):
        app.participate(opened)
    with pytest.raises(MalformedRequestError, match="at most 3"):
        app.decide(opened, *writers, writers[0])
    app.decide(opened, *writers)
    app.open(1)


@pytest.mark.parametrize(
    ("run", "wanted"),
    [
        ("", None),
        ("r" * 256, None),
        ("run", Version(-1, QUERY)),
        ("run", Version(2**63, QUERY)),
        ("run", Version(0, Origin("q" * 1025, ""))),
        ("run", Version(0, Origin("", "é" * 1024))),
    ],
)
def test_texts_and_numbers_are_bounded(run: str, wanted: Version | None) -> None:
    with pytest.raises(MalformedRequestError):
        Application().machine.handle_open(NAME, run, wanted, WallMs(0))


def test_an_id_is_a_producers_or_an_applications() -> None:
    app = Application()
    writer = app.begun()
    with pytest.raises(InvalidTransactionStateError, match="a producer has"):
        app.open(name="default/copy")
    opened = app.open()
    with pytest.raises(InvalidTransactionStateError, match="have participants"):
        app.init(name=NAME)
    with pytest.raises(InvalidTransactionStateError, match="have participants"):
        app.commit(app.participate(opened, 0), name=NAME)
    with pytest.raises(TransactionalIdNotFoundError):
        app.decide(opened, name="default/copy")
    app.join(writer, at(0))


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["open", "join", "write", "commit", "abort", "tell"]),
                  st.integers(0, 3)),
        max_size=40,
    ),
    epoch_max=st.sampled_from([2, 100]),
)  # fmt: skip
def test_the_state_follows_from_the_records_that_count(
    steps: list[tuple[str, int]], epoch_max: int
) -> None:
    """Also with records that are repeated, and from each start of the log."""
    app = Application(slack_records=0, epoch_max=epoch_max)
    opened: Opened | None = None
    writers: list[Producer] = []
    version = 0
    for step, number in steps:
        try:
            match step:
                case "open":
                    opened, writers = app.ask_to_open(version, run=f"run {number}"), []
                case "join" if opened is not None:
                    writers.append(app.participate(opened))
                case "write" if writers:
                    app.join(writers[number % len(writers)], at(number), name=NAME)
                case "commit" if opened is not None:
                    app.decide(opened, *writers[:number])
                    version += 1
                case "abort" if opened is not None:
                    app.decide(opened, is_commit=False)
                case "tell":
                    app.tell()
        except (
            ConcurrentTransactionsError,
            InvalidTransactionStateError,
            TransactionAbortedError,
            ProducerFencedError,
        ):
            pass
        app.advance_start()
        again = app.replayed()
        assert again.find(NAME) == app.machine.find(NAME)
        assert again.participants(NAME) == app.machine.participants(NAME)
        assert list(again.owed(app.end)) == app.told()
        assert len(again._participants) == len(app.machine._participants)
        assert again.next_offset == app.machine.next_offset


def test_a_late_participant_is_told_that_its_transaction_is_over(app: Application) -> None:
    opened = app.open(0)
    late = app.participate(opened, 0)
    app.decide(opened, late)
    app.tell()
    following = app.participate(app.open(1), 0)
    assert following.producer_id == late.producer_id
    with pytest.raises(ProducerFencedError, match="let another one join"):
        app.join(late, at(0), name=NAME)
