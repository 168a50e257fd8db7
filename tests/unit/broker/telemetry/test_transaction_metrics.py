"""Transactions on the metrics page."""

import pytest
from prometheus_client import CollectorRegistry
from tests.fakes.transactions_log import producer

from millrace.broker.telemetry.topic_labels import OTHERS, TopicLabels
from millrace.broker.telemetry.transactions import TransactionMetrics, UndecidedCounts
from millrace.core.coordinator.transactions.kept_transactions import KnownTransactions
from millrace.core.coordinator.transactions.transaction import Ended, Ending
from millrace.core.ids import ProducerEpoch


class Shown:
    """The page, and the metrics on it."""

    def __init__(self, topics_max: int = 10) -> None:
        self._registry = CollectorRegistry()
        self.metrics = TransactionMetrics(self._registry, TopicLabels(topics_max))

    def __call__(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"millrace_{name}", labels)

    def topics(self) -> dict[str, float]:
        """The undecided records by topic."""
        return {
            sample.labels["topic"]: sample.value
            for metric in self._registry.collect()
            if metric.name == "millrace_topic_undecided_records_max"
            for sample in metric.samples
        }


def test_what_coordinators_know_is_shown_with_the_age_of_the_oldest() -> None:
    shown = Shown()
    shown.metrics.on_known(KnownTransactions(9, 4, 2500, 2, 61_000, 5, 1500))
    assert shown("transactional_ids") == 9
    assert (shown("transactions_open"), shown("transactions_open_seconds_max")) == (4, 2.5)
    assert (shown("transactions_owed"), shown("transactions_owed_seconds_max")) == (2, 61)
    assert shown("deleted_topic_markers_owed") == 5
    assert shown("transactions_shared_open_seconds_max") == 1.5


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (Ending.PRODUCER, "producer"),
        (Ending.RESTART, "producer"),
        (Ending.TIMEOUT, "timeout"),
        (Ending.FENCED, "fenced"),
        (Ending.OPERATOR, "operator"),
    ],
)
def test_an_abort_is_counted_by_its_reason(ending: Ending, reason: str) -> None:
    shown = Shown()
    writer = producer(100, 3)
    assert shown("transactions_aborted_total", reason=reason) == 0, "a rate needs a beginning"
    shown.metrics.on_decided(Ended(writer, ProducerEpoch(4), False, ending))
    assert shown("transactions_aborted_total", reason=reason) == 1
    assert shown("transactions_committed_total") == 0


def test_a_commit_is_counted() -> None:
    shown = Shown()
    shown.metrics.on_decided(Ended(producer(100, 3), ProducerEpoch(4), True, Ending.PRODUCER))
    assert shown("transactions_committed_total") == 1
    assert shown("transactions_aborted_total", reason="producer") == 0


def test_what_partitions_wait_for_is_shown_by_topic_and_a_topic_without_it_has_no_series() -> None:
    shown = Shown()
    shown.metrics.on_undecided(UndecidedCounts(3, 1500, 1, {"orders": 7, "plain": 0}))
    assert shown("partition_transactions_open") == 3
    assert shown("partition_transaction_open_seconds_max") == 1.5
    assert shown("hanging_transaction_partitions") == 1
    assert shown.topics() == {"orders": 7}
    shown.metrics.on_undecided(UndecidedCounts(records={"orders": 0, "plain": 0}))
    assert shown.topics() == {"orders": 0}, "a line that goes to 0 says that all is well again"
    shown.metrics.on_undecided(UndecidedCounts(records={"plain": 0}))
    assert shown.topics() == {}, "another broker leads it"


def test_many_topics_share_a_series() -> None:
    shown = Shown(topics_max=2)
    records = {f"topic-{number}": number + 1 for number in range(5)}
    shown.metrics.on_undecided(UndecidedCounts(records=records))
    assert shown.topics() == {"topic-0": 1, "topic-1": 2, OTHERS: 5}
