"""Transactions: what a request comes to, and what the log says of it afterwards.

P47 and T13: producers begin, and fence those before them; epochs run out, and ids expire. P48: ends
that are repeated or late. P50, T9 and T12: decisions, who is told, and who waits. T8: markers for
deleted topics. T14: both protocols.
"""

import pytest
from tests.fakes.transactions_log import (
    CLICKS,
    ID,
    MINUTE,
    ORDERS,
    TransactionsLog,
    at,
    producer,
)

from millrace.core.coordinator.transactions.config import EPOCH_MAX
from millrace.core.coordinator.transactions.kept_transactions import KnownTransactions
from millrace.core.coordinator.transactions.transaction import Ending, Over, Producer, State
from millrace.core.errors import (
    ConcurrentTransactionsError,
    InvalidTransactionStateError,
    InvalidTransactionTimeoutError,
    MalformedRequestError,
    ProducerFencedError,
    TransactionAbortedError,
    TransactionalIdNotFoundError,
    TransactionsFullError,
)
from millrace.core.ids import Offset, ProducerEpoch, ProducerId, TopicPartition, WallMs
from millrace.core.records.markers import BUMPING, NOT_BUMPING

WEEK = 604_800_000


@pytest.fixture(params=[2, EPOCH_MAX], autouse=True)
def epoch_max(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the largest epoch: each rule also holds where epochs run out at once."""
    largest: int = request.param
    monkeypatch.setattr(TransactionsLog, "epoch_max", largest)
    return largest


@pytest.fixture
def log(epoch_max: int) -> TransactionsLog:
    """A log."""
    return TransactionsLog()


def test_the_first_producer_of_an_id_gets_epoch_0_and_the_next_one_fences_it() -> None:
    log = TransactionsLog()
    first = log.begun()
    assert first == producer(100, 0)
    assert log.begun() == producer(100, 1)
    with pytest.raises(ProducerFencedError):
        log.join(first, at(0))


def test_an_id_whose_epochs_have_run_out_gets_another_producer_id() -> None:
    log = TransactionsLog(epoch_max=2)
    assert [log.begun() for _ in range(4)] == [
        producer(100, 0),
        producer(100, 1),
        producer(101, 0),
        producer(101, 1),
    ]


def test_a_commit_bumps_the_epoch_and_its_marker_has_the_new_one() -> None:
    log = TransactionsLog()
    writer = log.begun()
    log.join(writer, at(0), at(3), at(1, CLICKS), groups=("g",))
    assert log.state() is State.ONGOING
    assert log.commit(writer) == producer(100, 1)
    assert log.state() is State.PREPARE_COMMIT
    decision = log.complete()
    assert decision.producer == producer(100, 1)
    assert decision.is_commit
    assert decision.partitions == [at(1, CLICKS), at(0), at(3)]
    assert decision.groups == ["g"]
    assert log.state() is State.COMPLETE_COMMIT
    assert log.machine.participants(ID) == ([], [])


def test_the_last_epoch_is_kept_for_the_marker() -> None:
    log = TransactionsLog(epoch_max=2)
    log.begun()
    writer = log.begun()
    assert writer == producer(100, 1)
    log.join(writer, at(0))
    following = log.commit(writer)
    assert following == producer(101, 0)
    assert log.complete().producer == producer(100, 2)
    assert log.commit(writer) == following  # Its answer was lost.
    log.join(following, at(0))


def test_an_end_that_is_repeated_gets_the_stored_outcome(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    following = log.commit(writer)
    before = log.end
    assert log.commit(writer) == following
    log.complete()
    assert log.commit(writer) == following
    assert log.end == before + 2  # Of `complete`: the partitions, and the id.
    log.join(following, at(0))
    assert log.commit(writer) == following


def test_an_end_that_contradicts_its_own_decision_is_refused(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    log.abort(writer)
    with pytest.raises(InvalidTransactionStateError, match="has aborted the transaction"):
        log.commit(writer)
    log.complete()
    with pytest.raises(InvalidTransactionStateError):
        log.commit(writer)


@pytest.mark.parametrize("is_complete", [False, True])
def test_a_commit_in_flight_while_time_aborts_is_told_so(
    log: TransactionsLog, is_complete: bool
) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    log.expire(2 * MINUTE)
    if is_complete:
        log.complete()
    with pytest.raises(TransactionAbortedError, match="its time-out"):
        log.commit(writer)
    with pytest.raises(TransactionAbortedError):
        log.join(writer, at(0))
    with pytest.raises(TransactionAbortedError):
        log.abort(writer)


def test_an_abort_by_time_bumps_the_epoch_once() -> None:
    log = TransactionsLog()
    writer = log.begun()
    log.join(writer, at(0))
    log.expire(MINUTE)
    assert log.state() is State.ONGOING
    log.expire(1)
    assert log.state() is State.PREPARE_ABORT
    assert log.ending() is Ending.TIMEOUT
    with pytest.raises(ConcurrentTransactionsError):
        log.init(writer)
    assert log.complete().producer == producer(100, 1)
    assert log.begun(writer) == producer(100, 1)
    log.join(producer(100, 1), at(0))


def test_an_abort_by_init_bumps_the_epoch_once() -> None:
    log = TransactionsLog()
    writer = log.begun()
    log.join(writer, at(0))
    assert log.init() is None
    assert log.ending() is Ending.FENCED
    with pytest.raises(ConcurrentTransactionsError):
        log.init()
    assert log.complete().producer == producer(100, 1)
    assert log.begun() == producer(100, 1)


def test_a_fence_with_the_last_epoch_leads_to_another_producer_id() -> None:
    log = TransactionsLog(epoch_max=1)
    writer = log.begun()
    log.join(writer, at(0))
    log.expire(2 * MINUTE)
    assert log.complete().producer == producer(100, 1)
    assert log.begun(writer) == producer(101, 0)


def test_nobody_writes_with_the_epoch_of_a_fence(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    log.expire(2 * MINUTE)
    fence = log.complete().producer
    with pytest.raises(InvalidTransactionStateError):
        log.join(fence, at(0))
    with pytest.raises(InvalidTransactionStateError):
        log.abort(fence)
    with pytest.raises(ProducerFencedError):
        log.init(fence)


def test_a_producer_that_another_one_has_replaced_is_fenced(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    log.init()
    for request in (log.commit, log.abort, log.join, log.init):
        with pytest.raises(ProducerFencedError):
            request(writer)
    log.complete()
    log.begun()
    for request in (log.commit, log.abort, log.join, log.init):
        with pytest.raises(ProducerFencedError):
            request(writer)


def test_after_an_abort_by_time_another_producer_fences_the_first(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    log.expire(2 * MINUTE)
    log.complete()
    log.begun()
    for request in (log.commit, log.join, log.init):
        with pytest.raises(ProducerFencedError):
            request(writer)


def test_a_producer_that_begins_anew_within_its_transaction_aborts_it(
    log: TransactionsLog,
) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    assert log.init(writer) is None
    with pytest.raises(TransactionAbortedError):
        log.commit(writer)
    log.complete()
    following = log.begun(writer)
    assert log.begun(writer) == following  # Its answer was lost.
    with pytest.raises(TransactionAbortedError):
        log.commit(writer)
    log.join(following, at(0))


def test_a_late_init_does_not_abort_what_was_begun_after_it(log: TransactionsLog) -> None:
    writer = log.begun()
    following = log.begun(writer)
    log.join(following, at(0))
    with pytest.raises(ProducerFencedError):
        log.init(writer)
    assert log.state() is State.ONGOING


def test_an_init_after_an_end_whose_answer_was_lost_goes_on(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    log.commit(writer)
    log.complete()
    following = log.begun(writer)
    assert following != log.begun(following)


def test_an_init_that_names_another_producer_is_fenced() -> None:
    log = TransactionsLog()
    log.begun()
    for expected in (producer(100, 1), producer(7, 0), producer(-1, -1)):
        with pytest.raises(ProducerFencedError):
            log.init(expected)


def test_an_abort_of_nothing_succeeds_and_fences_what_is_late(log: TransactionsLog) -> None:
    writer = log.begun()
    following = log.abort(writer)
    assert following != writer
    assert log.state() is State.COMPLETE_ABORT
    assert log.abort(writer) == following
    with pytest.raises(InvalidTransactionStateError):
        log.join(writer, at(0))


def test_a_commit_of_nothing_is_refused(log: TransactionsLog) -> None:
    writer = log.begun()
    with pytest.raises(InvalidTransactionStateError, match="nothing to commit"):
        log.commit(writer)
    log.join(writer, at(0))
    following = log.commit(writer)
    log.complete()
    with pytest.raises(InvalidTransactionStateError):
        log.commit(following)


def test_the_next_transaction_waits_for_the_last_marker_and_is_told_for_which(
    log: TransactionsLog,
) -> None:
    writer = log.begun()
    log.join(writer, at(5))
    following = log.commit(writer)
    for request in (log.join, log.commit, log.abort, log.init):
        with pytest.raises(ConcurrentTransactionsError, match=str(at(5))):
            request(following)
    log.complete()
    log.join(following, at(5))


def test_more_participants_of_an_open_transaction_do_not_wait(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    log.join(writer, at(1), at(0), groups=("a",))
    log.join(writer, at(1024), groups=("a", "b"))
    assert log.machine.participants(ID) == ([at(0), at(1), at(1024)], ["a", "b"])


def test_what_has_joined_writes_nothing_again(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0), groups=("g",))
    before = log.end
    log.join(writer, at(0), groups=("g",))
    assert log.end == before


def test_participants_of_an_earlier_transaction_are_void(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0), groups=("g",))
    following = log.commit(writer)
    # Only the record of the id was lost and written again, as with a log that was cut.
    transaction = log.transaction()._replace(state=State.COMPLETE_COMMIT)
    log.machine.replay(
        log.machine.get(ID)._replace(transaction=transaction),
        log.end,
    )
    log.machine.replay(
        log.machine.get(ID)._replace(
            transaction=transaction._replace(state=State.ONGOING, producer=following)
        ),
        Offset(log.end + 1),
    )
    assert log.machine.participants(ID) == ([], [])


# --- Version 1 -----------------------------------------------------------------------------------


def test_the_earlier_protocol_does_not_bump_at_an_end(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0), protocol=NOT_BUMPING)
    assert log.commit(writer, protocol=NOT_BUMPING) == writer
    assert log.commit(writer, protocol=NOT_BUMPING) == writer
    with pytest.raises(InvalidTransactionStateError):
        log.abort(writer, protocol=NOT_BUMPING)
    decision = log.complete()
    assert decision.producer == writer
    assert decision.protocol == NOT_BUMPING
    log.join(writer, at(1), protocol=NOT_BUMPING)
    assert log.machine.participants(ID) == ([at(1)], [])
    log.abort(writer, protocol=NOT_BUMPING)
    assert log.complete().producer == writer


def test_a_fence_bumps_with_the_earlier_protocol_too() -> None:
    log = TransactionsLog(epoch_max=2)
    writer = log.begun()
    log.join(writer, at(0), protocol=NOT_BUMPING)
    log.expire(2 * MINUTE)
    assert log.complete().producer == producer(100, 1)
    with pytest.raises(TransactionAbortedError):
        log.commit(writer, protocol=NOT_BUMPING)


def test_an_abort_of_nothing_with_the_earlier_protocol_changes_nothing() -> None:
    log = TransactionsLog()
    writer = log.begun()
    before = log.end
    assert log.abort(writer, protocol=NOT_BUMPING) == writer
    assert log.end == before


def test_a_leader_that_only_verifies_takes_nothing_in() -> None:
    log = TransactionsLog()
    writer = log.begun()

    def verify(*partitions: int) -> None:
        result = log.machine.handle_join(
            ID,
            writer,
            [at(partition) for partition in partitions],
            (),
            log.now,
            protocol=NOT_BUMPING,
            only_verified=True,
        )
        assert result.records == []

    with pytest.raises(InvalidTransactionStateError, match="add it first"):
        verify(0)
    log.join(writer, at(0), protocol=NOT_BUMPING)
    verify(0)
    with pytest.raises(InvalidTransactionStateError):
        verify(0, 1)


def test_a_transaction_keeps_its_protocol() -> None:
    log = TransactionsLog()
    writer = log.begun()
    log.join(writer, at(0), protocol=BUMPING)
    with pytest.raises(InvalidTransactionStateError):
        log.join(writer, at(0), protocol=NOT_BUMPING)
    with pytest.raises(InvalidTransactionStateError):
        log.commit(writer, protocol=NOT_BUMPING)


# --- Bounds and expiry ---------------------------------------------------------------------------


def test_a_time_out_beyond_the_bound_is_refused() -> None:
    log = TransactionsLog()
    for timeout_ms in (0, 900_001, 2**32 - 1):
        with pytest.raises(InvalidTransactionTimeoutError, match="timeout_ms_max"):
            log.init(timeout_ms=timeout_ms)
    log.init(timeout_ms=900_000)


def test_ids_partitions_and_participants_have_bounds() -> None:
    log = TransactionsLog(partition_ids_max=2, partitions_max=3, partition_participants_max=3)
    writer, other = log.begun(), log.begun(name="default/b")
    with pytest.raises(TransactionsFullError, match="partition_ids_max"):
        log.init(name="default/c")
    log.join(writer, at(0), at(1), at(2))
    with pytest.raises(TransactionsFullError, match="partitions_max"):
        log.join(writer, at(3))
    log.join(writer, at(2), groups=("g", "h"))
    with pytest.raises(TransactionsFullError, match="partition_participants_max"):
        log.join(other, at(0), name="default/b")
    log.commit(writer)
    log.complete()
    log.join(other, at(0), name="default/b")


def test_a_request_has_bounds() -> None:
    log = TransactionsLog()
    writer = log.begun()
    with pytest.raises(MalformedRequestError, match="1001 partitions"):
        log.join(writer, *map(at, range(1001)))
    with pytest.raises(MalformedRequestError, match="101 groups"):
        log.join(writer, groups=tuple(map(str, range(101))))


def test_ten_thousand_partitions_added_one_by_one_keep_the_log_short() -> None:
    log = TransactionsLog(slack_records=10)
    writer = log.begun()
    written = 0
    for partition in range(10_000):
        before = len(log.records)
        log.join(writer, at(partition))
        written += sum(len(key) + len(value or b"") for key, value, _ in log.records[before:])
        log.advance_start()
        assert len(log.records) <= 2 * 12 + 10 + 4
    assert written < 10_000 * 2 * 256
    log.commit(writer)
    assert log.replayed().decisions(ID)[0].partitions == list(map(at, range(10_000)))


def test_a_transaction_without_data_expires(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, groups=("g",))
    log.expire(2 * MINUTE)
    assert log.state() is State.PREPARE_ABORT


def test_an_id_that_has_expired_is_fenced_and_never_renewed_in_silence(
    log: TransactionsLog,
) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    following = log.commit(writer)
    log.expire(WEEK + 1)
    assert log.state() is State.PREPARE_COMMIT  # It owes markers.
    log.complete()
    log.expire(WEEK)
    assert log.state() is State.COMPLETE_COMMIT
    log.expire(1)
    for late in (writer, following):
        for request in (log.commit, log.abort, log.join, log.init):
            with pytest.raises(ProducerFencedError, match="forgotten"):
                request(late)
    with pytest.raises(TransactionalIdNotFoundError):
        log.machine.get(ID)
    assert log.begun().producer_id > writer.producer_id
    with pytest.raises(ProducerFencedError):
        log.join(following, at(0))


def test_an_id_with_an_open_transaction_does_not_expire() -> None:
    log = TransactionsLog(id_expiration_ms=MINUTE // 2)
    writer = log.begun()
    log.join(writer, at(0))
    log.expire(MINUTE)
    log.commit(writer)
    assert log.state() is State.PREPARE_COMMIT


def test_ids_need_not_expire() -> None:
    log = TransactionsLog(id_expiration_ms=-1)
    log.begun()
    log.expire(1000 * WEEK)
    assert log.state() is State.EMPTY


def test_what_is_over_or_another_one_does_not_time_out() -> None:
    log = TransactionsLog()
    writer = log.begun()
    log.join(writer, at(0))
    is_open = log.transaction()
    another = is_open._replace(producer=producer(100, 7))
    for overdue in ((ID, another), ("default/nobody", is_open)):
        assert log.machine.handle_time_out([overdue], log.now).records == []
    log.commit(writer)
    assert log.machine.handle_time_out([(ID, is_open)], log.now).records == []
    assert log.machine.handle_expire([ID, "default/nobody"], log.now).records == []


def test_a_clock_that_goes_back_aborts_nothing() -> None:
    log = TransactionsLog()
    log.join(log.begun(), at(0))
    log.expire(-WEEK)
    assert log.state() is State.ONGOING


# --- By hand -------------------------------------------------------------------------------------


def test_an_abort_by_hand_fences_and_its_producer_may_begin_again(log: TransactionsLog) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    log.take(log.machine.handle_abort(ID, log.now))
    assert log.ending() is Ending.OPERATOR
    assert log.machine.handle_abort(ID, log.now).records == []
    with pytest.raises(TransactionAbortedError, match="a person"):
        log.commit(writer)
    assert not log.complete().is_commit
    log.join(log.begun(writer), at(0))


def test_an_abort_by_hand_does_not_turn_a_decision() -> None:
    log = TransactionsLog()
    with pytest.raises(TransactionalIdNotFoundError):
        log.machine.handle_abort(ID, log.now)
    writer = log.begun()
    with pytest.raises(TransactionalIdNotFoundError, match="no open transaction"):
        log.machine.handle_abort(ID, log.now)
    log.join(writer, at(0))
    log.commit(writer)
    with pytest.raises(InvalidTransactionStateError, match="is committed"):
        log.machine.handle_abort(ID, log.now)


# --- Delivery ------------------------------------------------------------------------------------


def test_only_committed_decisions_are_told() -> None:
    log = TransactionsLog()
    writer = log.begun()
    log.join(writer, at(0))
    log.commit(writer)
    assert list(log.machine.owed(Offset(log.end - 1))) == []
    assert [decision.producer for decision in log.machine.owed(log.end)] == [producer(100, 1)]
    assert list(log.machine.owed(Offset(log.end + 5), log.end)) == []  # It was told before.


def test_a_decision_that_is_written_again_stays_committed() -> None:
    log = TransactionsLog(slack_records=0)
    writer = log.begun()
    log.join(writer, at(0))
    log.commit(writer)
    committed = log.end
    while log.machine.oldest_offset < committed:
        log.begun(name="default/other")
    assert len(list(log.machine.owed(committed))) == 1


@pytest.mark.parametrize("protocol", [BUMPING, NOT_BUMPING])
def test_the_next_transaction_notes_that_the_last_one_is_over(
    log: TransactionsLog, protocol: int
) -> None:
    writer = log.begun()
    log.join(writer, at(0), at(1, CLICKS), groups=("g",), protocol=protocol)
    following = log.commit(writer, protocol=protocol)
    decision = log.machine.decisions(ID)[0]
    with pytest.raises(ConcurrentTransactionsError):
        log.join(following, at(2), protocol=protocol, over=Over(Offset(0)))
    deleted = Over(decision.decided_at, [at(1, CLICKS)])
    with pytest.raises(ConcurrentTransactionsError):  # A deleted topic may be back (T8).
        log.join(following, at(2), protocol=protocol, over=deleted)
    over = Over(decision.decided_at)
    log.join(following, at(2), protocol=protocol, over=over)
    assert log.state() is State.ONGOING
    assert log.machine.participants(ID) == ([at(2)], [])
    assert not list(log.machine.owed(log.end))
    log.join(following, at(3), protocol=protocol, over=over)  # Another leader asks.
    assert log.machine.participants(ID) == ([at(2), at(3)], [])
    last = log.commit(following, protocol=protocol)
    with pytest.raises(ConcurrentTransactionsError):  # Though the epochs may be the same.
        log.join(last, at(2), protocol=protocol, over=over)
    assert log.machine.handle_complete({ID: over}, log.now).records == []


def test_who_joins_with_nothing_notes_all_the_same_that_the_last_one_is_over(
    log: TransactionsLog,
) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    following = log.commit(writer)
    log.join(following, over=Over(log.machine.decisions(ID)[0].decided_at))
    assert log.state() is State.COMPLETE_COMMIT


def test_an_epoch_that_only_fences_does_not_join_when_the_aborted_transaction_is_over(
    log: TransactionsLog,
) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    log.take(log.machine.handle_abort(ID, log.now))
    fence = log.transaction().producer
    with pytest.raises(InvalidTransactionStateError, match="was not begun"):
        log.join(fence, at(0), over=Over(log.machine.decisions(ID)[0].decided_at))


def test_transactions_that_are_over_are_noted_together(log: TransactionsLog) -> None:
    over = {}
    for name in ("default/a", "default/b"):
        writer = log.begun(name=name)
        log.join(writer, at(0), name=name)
        log.commit(writer, name=name)
        over[name] = Over(log.machine.decisions(name)[0].decided_at)
    gone = {"default/gone": Over(Offset(0))}
    log.take(log.machine.handle_complete({**over, **gone}, log.now))
    assert {log.transaction(name).state for name in over} == {State.COMPLETE_COMMIT}
    assert log.machine.handle_complete(over, log.now).records == []


def test_a_late_answer_about_markers_completes_no_later_transaction(
    log: TransactionsLog,
) -> None:
    writer = log.begun()
    log.join(writer, at(0))
    following = log.commit(writer)
    decision = log.complete()
    log.join(following, at(0))
    log.commit(following)
    result = log.machine.handle_complete({ID: Over(decision.decided_at)}, log.now)
    assert result.records == []
    assert log.state() is State.PREPARE_COMMIT


def test_markers_for_a_deleted_topic_delay_nobody_and_wait_until_it_is_back(
    log: TransactionsLog,
) -> None:
    writer = log.begun()
    log.join(writer, at(0), at(1), at(1500), at(0, CLICKS))
    following = log.commit(writer)
    log.complete(at(0), at(1), at(1500))
    log.join(following, at(0, CLICKS))
    machine = log.machine = log.replayed()
    assert machine.owed_topics() == [ORDERS]
    assert machine.owed_epochs(writer.producer_id) == [writer.epoch]
    assert machine.owed_epochs(ProducerId(7)) == []
    owed = machine.owed_to(ORDERS)
    assert [(record.chunk, record.bitmap) for record in owed] == [(0, 0b11), (1, 1 << 476)]
    assert machine.known(log.now).left == log.replayed().known(log.now).left == 3
    assert {record.producer.epoch for record in owed} == {1 if log.config.epoch_max > 1 else 0}
    assert all(record.is_commit and record.transactional_id == ID for record in owed)
    log.take(machine.handle_paid([owed[0]._replace(bitmap=0b01), owed[1]], log.now))
    assert [record.bitmap for record in machine.owed_to(ORDERS)] == [0b10]
    assert machine.known(log.now).left == 1
    log.take(machine.handle_paid(owed, log.now))
    assert log.replayed().owed_topics() == []
    assert log.replayed().owed_epochs(writer.producer_id) == []
    assert machine.known(log.now).left == log.replayed().known(log.now).left == 0
    assert machine.handle_paid(owed, log.now).records == []


def test_what_a_partition_has_open_is_found_until_its_end_is_there(log: TransactionsLog) -> None:
    """T8, P54: a person ends only what is not found."""

    def found(place: TopicPartition, of: Producer) -> tuple[str | None, str | None]:
        return log.machine.find_writer(place, of), log.replayed().find_writer(place, of)

    writer = log.begun()
    assert found(at(0), writer) == (None, None)
    log.join(writer, at(0), at(1), at(0, CLICKS))
    for place in (at(0), at(1), at(0, CLICKS)):
        assert found(place, writer) == (ID, ID)
    for other in (writer._replace(epoch=ProducerEpoch(7)), producer(7, writer.epoch)):
        assert found(at(0), other) == (None, None)
    assert found(at(2), writer) == (None, None)
    log.commit(writer)
    assert found(at(0), writer) == (ID, ID)  # Decided, and perhaps not told.
    log.complete(at(1))  # ORDERS is deleted, with a partition of it.
    assert found(at(1), writer) == (ID, ID)
    assert found(at(0), writer) == (None, None)
    log.take(log.machine.handle_paid(log.machine.owed_to(ORDERS), log.now))
    assert found(at(1), writer) == (None, None)


def test_a_topic_that_is_back_gets_its_marker_before_the_next_transaction_of_the_id(
    log: TransactionsLog,
) -> None:
    """Else the marker of the next one would end the last one there, perhaps otherwise."""
    writer = log.begun()
    log.join(writer, at(0), at(1))
    following = log.commit(writer)
    log.complete(at(0))
    log.join(following, at(1), at(0, CLICKS))
    with pytest.raises(ConcurrentTransactionsError, match="brought back"):
        log.join(following, at(0), at(2))
    log.join(log.begun(name="default/other"), at(0), name="default/other")
    log.take(log.machine.handle_paid(log.machine.owed_to(ORDERS), log.now))
    log.join(following, at(0), at(2))


def test_an_id_that_expires_leaves_what_is_owed_to_deleted_topics() -> None:
    log = TransactionsLog()
    writer = log.begun()
    log.join(writer, at(0))
    log.commit(writer)
    log.complete(at(0))
    log.expire(2 * WEEK)
    assert log.machine.find(ID) is None
    assert log.machine.owed_topics() == [ORDERS]


# --- Lists ---------------------------------------------------------------------------------------


def test_ids_are_listed_in_pages_by_state_and_producer() -> None:
    log = TransactionsLog()
    writers = {name: log.begun(name=name) for name in ("default/c", "default/a", "default/b")}
    log.join(writers["default/c"], at(0), name="default/c")

    def names(after: str = "", **chosen: object) -> list[str]:
        found = log.machine.ids_after(after, 2, **chosen)  # type: ignore[arg-type]
        return [record.transactional_id for record in found]

    assert names() == ["default/a", "default/b"]
    assert names("default/b") == ["default/c"]
    assert names(states=(State.ONGOING,)) == ["default/c"]
    assert names(producer_id=ProducerId(101)) == ["default/a"]
    assert log.machine.open_ids() == ["default/c"]


def test_transactions_are_counted_with_the_age_of_the_oldest() -> None:
    log = TransactionsLog()
    assert log.machine.known(log.now) == KnownTransactions()
    for name in ("default/a", "default/b"):
        log.join(log.begun(name=name), at(0), name=name)
        log.now = WallMs(log.now + 1000)
    writer = log.begun()
    log.join(writer, at(0))
    log.commit(writer)
    log.now = WallMs(log.now + 500)
    assert log.machine.known(log.now) == KnownTransactions(3, 2, 2500, 1, 500)
    assert log.replayed().known(log.now) == log.machine.known(log.now)
    assert log.machine.owed_since(WallMs(log.now - 500)) == []
    assert log.machine.owed_since(log.now) == [log.machine.get(ID)]
    twice = log.machine.known(log.now) | KnownTransactions(1, 1, 9000, 0, 0, 2)
    assert twice == KnownTransactions(4, 3, 9000, 1, 500, 2)
    log.complete()
    assert log.machine.known(log.now) == KnownTransactions(3, 2, 2500)


def test_handling_changes_nothing() -> None:
    log = TransactionsLog()
    writer = log.begun()
    log.join(writer, at(0))
    before = log.transaction(), log.machine.participants(ID), log.machine.next_offset
    log.machine.handle_init(ID, MINUTE, log.now, log.next_id)
    log.machine.handle_join(ID, writer, [at(1)], ["g"], log.now)
    log.machine.handle_end(ID, writer, log.now, log.next_id, is_commit=True)
    log.machine.handle_abort(ID, log.now)
    log.machine.handle_time_out([(ID, log.transaction())], log.now)
    log.machine.handle_expire([ID], WallMs(log.now + 10 * MINUTE))
    assert (log.transaction(), log.machine.participants(ID), log.machine.next_offset) == before
