"""What is open for too long: time-outs, and leases that are renewed."""

import pytest
from tests.fakes.transactions_log import ID, MINUTE, TransactionsLog, at

from millrace.broker.coordinator import overdue_transactions
from millrace.broker.coordinator.overdue_transactions import OverdueTransactions
from millrace.core.ids import MonotonicMs, TopicId, TopicPartition, WallMs

PLACE = TopicPartition(TopicId(b"transactions".ljust(16)), 0)
NAME = "default/etl@orders"
LONGEST = 100 * MINUTE


class Stage:
    """A coordinator, and a clock."""

    def __init__(self) -> None:
        self.log = TransactionsLog(lease_ms=MINUTE)
        self.overdue = OverdueTransactions(LONGEST)
        self.clock = 0

    def after(self, milliseconds: int) -> list[str]:
        """Return the ids that are overdue so much later."""
        self.clock += milliseconds
        self.log.now = WallMs(self.log.now + milliseconds)
        return [name for name, _ in self.overdue.look(PLACE, self.log.machine, self.log.now)]

    def open(self, participants: int) -> None:
        """Open a transaction which so many have joined."""
        log = self.log
        assert log.take(log.machine.handle_open(NAME, "run", None, log.now)) is not None
        for _ in range(participants):
            self.join()
        assert self.after(0) == []

    def join(self) -> None:
        """Let another participant join the first transaction; its lease is not renewed yet."""
        log = self.log
        log.take(log.machine.handle_participate(NAME, 1, 1, log.now, log.next_id))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage()
    monkeypatch.setattr(overdue_transactions, "monotonic_now", lambda: MonotonicMs(made.clock))
    return made


def test_a_transaction_is_overdue_after_its_time_out(stage: Stage) -> None:
    stage.log.join(stage.log.begun(), at(0))
    assert stage.after(MINUTE) == []
    assert stage.after(1) == [ID]


def test_a_lease_that_nobody_renews_ends(stage: Stage) -> None:
    """T23."""
    stage.open(1)
    assert stage.after(MINUTE) == []
    assert stage.after(1) == [NAME]


def test_a_lease_that_is_renewed_goes_on_until_the_longest_time(stage: Stage) -> None:
    """T23: an hour's write can commit, and none is open for ever."""
    stage.open(1)
    for _ in range(100):
        stage.overdue.renew(PLACE, NAME)
        assert stage.after(MINUTE) == []
    stage.overdue.renew(PLACE, NAME)
    assert stage.after(1) == [NAME]


def test_a_lease_begins_with_the_first_participant(stage: Stage) -> None:
    """Nobody waits for a transaction into which nobody has written."""
    stage.open(0)
    assert stage.after(50 * MINUTE) == []
    assert stage.after(50 * MINUTE + 1) == [NAME]


def test_a_lease_is_not_over_when_the_first_participant_joins_late(stage: Stage) -> None:
    """Its record counts as soon as it is written, and the lease is renewed when it is committed."""
    stage.open(0)
    assert stage.after(2 * MINUTE) == []
    stage.join()
    assert stage.after(0) == []
    assert stage.after(MINUTE) == []
    assert stage.after(1) == [NAME]


def test_a_lease_begins_anew_at_the_next_coordinator(stage: Stage) -> None:
    stage.open(1)
    assert stage.after(MINUTE) == []
    stage.overdue.forget(PLACE)
    assert stage.after(MINUTE) == []
    assert stage.after(MINUTE) == []
    assert stage.after(1) == [NAME]


def test_who_renews_what_is_not_open_renews_nothing(stage: Stage) -> None:
    stage.overdue.renew(PLACE, NAME)
    assert stage.after(0) == []
