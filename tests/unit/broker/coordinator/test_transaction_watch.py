"""What the log and the metrics say of transactions, and how often."""

import logging
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry
from tests.fakes.transactions_log import MINUTE, TransactionsLog, at

from millrace.broker.coordinator.marker_delivery import Participant
from millrace.broker.coordinator.transaction_watch import LONG_MS, TransactionWatch
from millrace.broker.telemetry.topic_labels import TopicLabels
from millrace.broker.telemetry.transactions import TransactionMetrics
from millrace.core.events import NAME_ATTRIBUTE
from millrace.core.ids import TopicId, TopicPartition, WallMs

PLACE = TopicPartition(TopicId(b"transactions".ljust(16)), 0)


class Stage:
    """A coordinator of one partition, and the watch of its broker."""

    def __init__(self) -> None:
        self.log = TransactionsLog(epoch_max=2)
        self.registry = CollectorRegistry()
        metrics = TransactionMetrics(self.registry, TopicLabels(10))
        self.watch = TransactionWatch(metrics, lambda place: f"orders-{place.partition}")
        self.owed: dict[str, dict[Participant, str]] = {}

    def decide(self, name: str, *, is_commit: bool = True) -> None:
        """Decide a transaction of one partition, which has no leader."""
        log = self.log
        writer = log.begun(name=name)
        log.join(writer, at(4), name=name)
        log.end_with(writer, is_commit=is_commit, name=name)
        self.owed[name] = {at(4): "it has no leader"}

    def look(self, later_ms: int = 0) -> None:
        """Look, so much later."""
        self.log.now = WallMs(self.log.now + later_ms)
        machines = [(PLACE, self.log.machine)]
        self.watch.look(machines, lambda _, name: self.owed.get(name), self.log.now)

    def shown(self, name: str, **labels: str) -> float | None:
        """A metric."""
        return self.registry.get_sample_value(f"millrace_transactions_{name}", labels)


@pytest.fixture
def stage(caplog: pytest.LogCaptureFixture) -> Iterator[Stage]:
    with caplog.at_level(logging.DEBUG):
        yield Stage()


def names(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events that were logged since the last call."""
    found = [getattr(record, NAME_ATTRIBUTE, "") for record in caplog.records]
    caplog.clear()
    return [name for name in found if name]


def test_open_and_owed_transactions_are_shown_with_their_age(stage: Stage) -> None:
    for name in ("default/a", "default/b"):
        stage.log.join(stage.log.begun(name=name), at(0), name=name)
        stage.log.now = WallMs(stage.log.now + 1000)
    stage.decide("default/c")
    stage.look(2000)
    assert (stage.shown("open"), stage.shown("open_seconds_max")) == (2, 4)
    assert (stage.shown("owed"), stage.shown("owed_seconds_max")) == (1, 2)
    assert stage.registry.get_sample_value("millrace_transactional_ids") == 3
    stage.log.complete(name="default/c")
    stage.look()
    assert (stage.shown("owed"), stage.shown("owed_seconds_max")) == (0, 0)


def test_a_clock_that_was_set_back_shows_no_age_below_nothing(stage: Stage) -> None:
    stage.decide("default/a")
    stage.look(-5000)
    assert stage.shown("owed_seconds_max") == 0


def test_an_abort_by_time_is_in_the_log_and_counted(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.log.join(stage.log.begun(), at(0))
    stage.log.expire(MINUTE + 1)
    (record,) = stage.log.machine.ids_after("", 2)
    stage.watch.on_decided(record)
    assert stage.shown("aborted_total", reason="timeout") == 1
    (line,) = caplog.records
    assert vars(line)["transactional_id"] == "default/copy"
    assert vars(line)["timeout_ms"] == MINUTE
    assert names(caplog) == ["transaction_timed_out"]


def test_a_producer_that_is_fenced_in_its_transaction_is_in_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.log.join(stage.log.begun(), at(0))
    assert stage.log.init() is None
    (record,) = stage.log.machine.ids_after("", 2)
    stage.watch.on_decided(record)
    assert stage.shown("aborted_total", reason="fenced") == 1
    assert names(caplog) == ["transaction_fenced"]


def test_ends_that_producers_choose_are_counted_and_not_in_the_log(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.decide("default/a")
    stage.decide("default/b", is_commit=False)
    for record in stage.log.machine.ids_after("", 3):
        stage.watch.on_decided(record)
    assert stage.shown("committed_total") == 1
    assert stage.shown("aborted_total", reason="producer") == 1
    assert names(caplog) == []


def test_markers_that_are_owed_for_long_are_told_once_a_minute_with_the_oldest(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    stage.decide("default/old")
    stage.look(LONG_MS)
    assert names(caplog) == [], "an election takes less"
    stage.decide("default/new")
    stage.look(1)
    (line,) = caplog.records
    said = vars(line)
    assert (said["transactional_id"], said["transactions"]) == ("default/old", 1)
    assert (said["participant"], said["problem"]) == ("orders-4", "it has no leader")
    assert names(caplog) == ["markers_owed"]
    for _ in range(59):
        stage.look(1000)
    assert names(caplog) == []
    stage.look(1000)
    assert vars(caplog.records[0])["transactions"] == 2
    assert names(caplog) == ["markers_owed"]
    for name in ("default/old", "default/new"):
        stage.log.complete(name=name)
    stage.look(1000)
    stage.look(1000)
    assert names(caplog) == ["markers_written"]
