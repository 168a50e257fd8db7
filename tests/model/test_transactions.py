"""Transactions of some producers with one id, against a few lines that say what must hold.

Requests are late, repeated and lost; time-outs, aborts by hand and other producers come between;
markers are written late; the coordinator fails over at any step, and all, some or none of what was
not committed survives. An answer comes after the commit. The reference knows each transaction that
was ever open, by its writer, and what was decided of it. Whatever happens:

- a transaction is decided once, and what a producer is told of it is what was decided;
- no identity is given to two producers, or to one again once it was used;
- markers are those of committed decisions, and have an epoch above the records' (P48, T9);
- a commit succeeds only if everything that joined is among the decision's partitions (P49);
- the state is what the log's records lead to, from its start and from any place it may be cut.
"""

from copy import deepcopy
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.fakes.transactions_log import ID, MINUTE, TransactionsLog, at

from millrace.core.coordinator.transactions.machine import TransactionCoordinator
from millrace.core.coordinator.transactions.transaction import Over, Producer, State, Transaction
from millrace.core.errors import (
    AbortedError,
    ConcurrentTransactionsError,
    FencedError,
    InvalidRequestError,
    MillraceError,
)
from millrace.core.ids import Offset, TopicPartition, WallMs

producers = st.integers(0, 2)
WEEK = 604_800_000


@dataclass
class Client:
    """One producer: what it was told, and the requests of it that may arrive again."""

    identity: Producer | None = None
    is_beginning: bool = False  # It names its identity, and repeats that until it has another one.
    former: list[Producer] = field(default_factory=list)

    def take(self, identity: Producer) -> None:
        if self.identity is not None and identity != self.identity:
            self.former.append(self.identity)
        self.identity, self.is_beginning = identity, False


@dataclass
class Known:
    """What the reference knows of one transaction, by its writer."""

    joined: set[TopicPartition] = field(default_factory=set)
    is_commit: bool | None = None


def facts(machine: TransactionCoordinator) -> tuple[object, ...]:
    """All that a machine knows."""
    return (
        machine.next_offset,
        machine.ids_after("", 100),
        [machine.participants(record.transactional_id) for record in machine.ids_after("", 100)],
        sorted(machine.open_ids()),
        {topic_id: sorted(machine.owed_to(topic_id)) for topic_id in machine.owed_topics()},
        sorted(decision[:-1] for decision in machine.owed(machine.next_offset)),
    )


class OneId(RuleBasedStateMachine):
    """The id, its coordinator and its producers."""

    def __init__(self, epoch_max: int = 2) -> None:
        super().__init__()
        self.log = TransactionsLog(epoch_max=epoch_max, slack_records=6)
        self.clients = [Client() for _ in range(3)]
        self.known: dict[Producer, Known] = {}
        self.given: dict[Producer, int] = {}  # Identities, and the client that has each.
        self.committed = Offset(0)
        # What was known after each request that is not committed, with the end of the log then.
        self.uncommitted: list[tuple[Offset, dict[Producer, Known], dict[Producer, int]]] = []
        self.commit_now()

    @property
    def transaction(self) -> Transaction | None:
        record = self.log.machine.find(ID)
        return None if record is None else record.transaction

    def over(self) -> Over | None:
        """The transaction that is not complete, and of which all have the marker by now."""
        for decision in self.log.machine.owed(self.committed):
            return Over(decision.decided_at)
        return None

    def commit_now(self) -> None:
        self.committed = self.log.end
        self.log.advance_start()
        self.uncommitted.clear()
        self.note()

    def note(self) -> None:
        """Remember what is known now, as a failover may come back to it."""
        self.uncommitted.append((self.log.end, deepcopy(self.known), dict(self.given)))

    # --- Requests ----------------------------------------------------------------------------

    @rule(number=producers, names_itself=st.booleans(), is_answered=st.booleans())
    def inits(self, number: int, names_itself: bool, is_answered: bool) -> None:
        client = self.clients[number]
        expected = client.identity if names_itself else None
        if expected is None:
            client.identity = None  # Another process.
        client.is_beginning = expected is not None
        before = self.transaction
        try:
            begun = self.log.init(expected)
        except ConcurrentTransactionsError:
            assert before is not None
            assert before.state.is_prepared
            return
        except FencedError:
            assert expected is not None
            assert self.is_replaced(number)
            client.identity = None
            return
        self.note_decision()
        if begun is None:
            assert before is not None
            assert before.state is State.ONGOING
        else:
            assert begun.epoch < self.log.config.epoch_max
            assert begun not in self.known, "a transaction was written with it"
            assert self.given.setdefault(begun, number) == number
        self.note()
        if is_answered:
            self.commit_now()
            if begun is not None:
                client.take(begun)

    @rule(
        number=producers,
        partition=st.integers(0, 3),
        is_late=st.booleans(),
        is_answered=st.booleans(),
        is_told=st.booleans(),
    )
    def joins(
        self, number: int, partition: int, is_late: bool, is_answered: bool, is_told: bool
    ) -> None:
        writer = self.writer(number, is_late)
        if writer is None:
            return
        try:
            self.log.join(writer, at(partition), over=self.over() if is_told else None)
        except MillraceError as error:
            self.check_refusal(number, writer, error)
            return
        assert self.log.machine.participants(ID)[0].count(at(partition)) == 1
        known = self.known.setdefault(writer, Known())
        assert known.is_commit is None, "it is decided, and took another partition"
        known.joined.add(at(partition))
        self.note()
        if is_answered:
            self.commit_now()

    @rule(
        number=producers,
        is_commit=st.booleans(),
        is_late=st.booleans(),
        is_answered=st.booleans(),
    )
    def ends(self, number: int, is_commit: bool, is_late: bool, is_answered: bool) -> None:
        writer = self.writer(number, is_late)
        if writer is None:
            return
        known = self.known.get(writer)
        decided = None if known is None else known.is_commit
        try:
            following = self.log.end_with(writer, is_commit=is_commit)
        except MillraceError as error:
            self.check_refusal(number, writer, error)
            if isinstance(error, AbortedError):
                assert self.known[writer].is_commit is False
            return
        assert decided in (None, is_commit), "a decision was turned"
        assert known is not None or not is_commit, "a commit of nothing"
        self.note_decision()
        assert self.known.setdefault(writer, Known(is_commit=False)).is_commit is is_commit
        assert self.given.setdefault(following, number) == number
        assert following.epoch < self.log.config.epoch_max
        self.note()
        if is_answered:
            self.commit_now()
            if not is_late:
                self.clients[number].take(following)

    def writer(self, number: int, is_late: bool) -> Producer | None:
        client = self.clients[number]
        if is_late:
            return client.former[-1] if client.former else None
        return None if client.is_beginning else client.identity

    def check_refusal(self, number: int, writer: Producer, error: MillraceError) -> None:
        transaction = self.transaction
        client = self.clients[number]
        if isinstance(error, ConcurrentTransactionsError):
            assert transaction is not None
            # The last one is not over, or not in a partition that was deleted then (T8).
            assert transaction.state.is_prepared or self.log.machine.owed_topics()
        elif isinstance(error, FencedError):
            assert writer != client.identity or self.is_replaced(number)
        else:
            assert isinstance(error, AbortedError | InvalidRequestError)
        if isinstance(error, AbortedError):
            assert self.known[writer].is_commit is False
        if isinstance(error, FencedError) and writer == client.identity:
            client.identity = None

    def is_replaced(self, number: int) -> bool:
        """Whether the id is gone, or has been given to, or taken by, another producer since."""
        transaction = self.transaction
        if transaction is None:
            return True
        own = self.clients[number].identity
        assert own is not None
        identities = [transaction.producer, transaction.previous]
        return own not in identities or self.given.get(transaction.producer, number) != number

    @rule(number=producers, partition=st.integers(0, 3), is_told=st.booleans())
    def writes(self, number: int, partition: int, is_told: bool = False) -> None:
        """A producer works, as most do most of the time."""
        if self.clients[number].identity is None or self.clients[number].is_beginning:
            self.inits(number, names_itself=True, is_answered=True)
        self.joins(number, partition, is_late=False, is_answered=True, is_told=is_told)

    @rule(number=producers)
    def repeats_an_end(self, number: int) -> None:
        """The answer of a commit is lost, its markers are written, and it is sent again."""
        self.writes(number, 0)
        self.ends(number, is_commit=True, is_late=False, is_answered=False)
        self.commit_now()
        self.markers_are_written(is_deleted=False, is_late=True)
        self.ends(number, is_commit=True, is_late=False, is_answered=True)

    # --- What nobody asks for ----------------------------------------------------------------

    @rule(later_ms=st.sampled_from([1, MINUTE // 2, 2 * MINUTE, 2 * WEEK]))
    def time_passes(self, later_ms: int) -> None:
        self.log.expire(later_ms)
        self.note_decision()
        self.note()

    @rule()
    def a_person_aborts(self) -> None:
        try:
            self.log.take(self.log.machine.handle_abort(ID, self.log.now))
        except InvalidRequestError:
            return
        self.note_decision()
        self.note()

    def note_decision(self) -> None:
        """Hold a decision against what is known of the transaction."""
        transaction = self.transaction
        if transaction is None or transaction.ended is None:
            return
        ended = transaction.ended
        known = self.known.setdefault(ended.writer, Known())
        assert known.is_commit in (None, ended.is_commit)
        known.is_commit = ended.is_commit
        if transaction.state.is_prepared:
            decision = self.log.machine.decisions(ID)[0]
            assert set(decision.partitions) == known.joined

    # --- Commits, markers and failover -------------------------------------------------------

    @rule()
    def commits_are_acknowledged(self) -> None:
        self.commit_now()

    @rule(is_deleted=st.booleans(), is_late=st.booleans())
    def markers_are_written(self, is_deleted: bool, is_late: bool) -> None:
        for decision in list(self.log.machine.owed(self.committed)):
            writer = self.transaction.ended.writer  # type: ignore[union-attr]
            assert decision.producer.producer_id == writer.producer_id
            assert writer.epoch < decision.producer.epoch <= self.log.config.epoch_max
            assert self.known[writer].is_commit is decision.is_commit
            if is_late:  # An answer about another transaction completes nothing.
                result = self.log.machine.handle_complete({ID: Over(Offset(-2))}, self.log.now)
                assert result.records == []
            deleted = decision.partitions[:1] if is_deleted else []
            self.log.complete(*deleted)
            self.note()

    @rule(which=st.integers(0, 10))
    def the_coordinator_fails_over(self, which: int) -> None:
        """Keep what some of the uncommitted requests have written."""
        end, known, given = self.uncommitted[min(which, len(self.uncommitted) - 1)]
        self.known, self.given = deepcopy(known), dict(given)
        del self.log.records[end - self.log.start :]
        self.log.machine = self.log.replayed()
        self.commit_now()

    # --- What holds at each moment -----------------------------------------------------------

    @invariant()
    def the_log_leads_to_the_same_state(self) -> None:
        known = facts(self.log.machine)
        assert facts(self.log.replayed()) == known
        assert facts(self.log.replayed(start=self.log.machine.oldest_offset)) == known

    @invariant()
    def a_cut_log_owes_only_what_was_decided(self) -> None:
        machine = self.log.replayed(self.committed)
        for decision in machine.owed(self.committed):
            assert decision.producer.epoch <= self.log.config.epoch_max

    def teardown(self) -> None:
        """At last the markers are written, and a new producer can begin."""
        self.commit_now()
        self.markers_are_written(False, False)
        self.log.now = WallMs(self.log.now + 1)
        if self.log.init() is None:
            self.note_decision()
            self.commit_now()
            self.markers_are_written(False, False)
            assert self.log.init() is not None


class OneIdWithManyEpochs(OneId):
    """The same with the epochs that there really are."""

    def __init__(self) -> None:
        super().__init__(epoch_max=32_767)


TestTransactionsWithTwoEpochs = OneId.TestCase
TestTransactions = OneIdWithManyEpochs.TestCase
TestTransactionsWithTwoEpochs.settings = TestTransactions.settings = settings(
    max_examples=200, stateful_step_count=50, deadline=None
)
