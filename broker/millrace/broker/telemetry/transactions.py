"""Metrics of transactions: those that coordinators know, and those that partitions wait for.

A coordinator counts each transaction once. The leader of a partition knows those that are open
there, by producer id alone, so a transaction is counted in each of its partitions. A transaction
that a partition has and no coordinator knows is *hanging* (P54, KIP-664). What shows it without a
question to coordinators: it is open for longer than any transaction of one producer may be, and for
longer than any of many producers is, as their coordinators say.

All gauges are set once a second. Labels are bounded: topics by `metrics.topics_max`.
"""

from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge

from millrace.broker.telemetry.topic_labels import TopicLabels
from millrace.core.coordinator.transactions.kept_transactions import KnownTransactions
from millrace.core.coordinator.transactions.transaction import Ended, Ending

_REASONS: Final = {
    Ending.PRODUCER: "producer",
    Ending.RESTART: "producer",
    Ending.TIMEOUT: "timeout",
    Ending.FENCED: "fenced",
    Ending.OPERATOR: "operator",
}


@dataclass(slots=True)
class UndecidedCounts:
    """Transactions in the partitions that a broker leads.

    Attributes:
        open: those that are open, each counted in every partition.
        open_ms: for how long the oldest one has been open, by the first batch that it has there.
        hanging: partitions whose oldest one is hanging.
        records: below the high watermark, that readers of committed records do not see yet, in the
            partition with the most; by topic.
    """

    open: int = 0
    open_ms: int = 0
    hanging: int = 0
    records: dict[str, int] = field(default_factory=dict)


class TransactionMetrics:
    """Counters and gauges by their Prometheus names.

    Args:
        registry: that they join.
        topic_labels: the values of the label `topic`.
    """

    def __init__(self, registry: CollectorRegistry, topic_labels: TopicLabels) -> None:
        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"millrace_{name}", meaning, labels, registry=registry)

        self._ids = gauge(
            "transactional_ids",
            "Transactional ids kept in led partitions of __transactions.",
        )
        self._open = gauge(
            "transactions_open", "Open transactions, each shown by its coordinator alone."
        )
        self._open_seconds = gauge(
            "transactions_open_seconds_max",
            "For how long the oldest of them has been open that a producer has joined. Its "
            "time-out, or its lease, ends it.",
        )
        self._shared_seconds = gauge(
            "transactions_shared_open_seconds_max",
            "For how long the oldest open transaction has been open that participants have joined, "
            "such as tasks of Spark. They keep it open; transactions.lease_ms_max ends it.",
        )
        self._owed = gauge(
            "transactions_owed",
            "Decided transactions of which a partition or a group has not heard yet: readers of "
            "committed records wait there.",
        )
        self._owed_seconds = gauge(
            "transactions_owed_seconds_max", "How long ago the oldest of them was decided."
        )
        self._left = gauge(
            "deleted_topic_markers_owed",
            "Ends of transactions that deleted topics get when they are brought back, one for each "
            "transaction and partition. They delay nobody. When a topic is gone for good, they are "
            "dropped a week after the decision.",
        )
        self.unready = gauge(
            "transactions_unready_partitions",
            "Led partitions of __transactions whose log is not read yet, or cannot be.",
        )
        self._committed = Counter(
            "millrace_transactions_committed",
            "Transactions that were committed, counted by their coordinators.",
            registry=registry,
        )
        self._aborted = Counter(
            "millrace_transactions_aborted",
            "Those that were aborted, by reason: by their `producer`, by their `timeout`, `fenced` "
            "by another producer that began with the id, or by an `operator`.",
            ["reason"],
            registry=registry,
        )
        for reason in _REASONS.values():  # A rate needs the 0 before the first one.
            self._aborted.labels(reason)
        self._undecided = gauge(
            "partition_transactions_open",
            "Transactions that are open in led partitions, each counted in every partition.",
        )
        self._undecided_seconds = gauge(
            "partition_transaction_open_seconds_max",
            "For how long the oldest open transaction of a led partition has been open there, by "
            "its first batch, in the partition where that is longest. A replica that was added "
            "since counts from its copying, unless the topic stamps append time.",
        )
        self._hanging = gauge(
            "hanging_transaction_partitions",
            "Led partitions in which readers of committed records wait for a transaction that is "
            "open for longer than transactions.timeout_ms_max, and five minutes more. Nobody will "
            "end it, unless one with participants is as old: transactions_shared_open_seconds_max.",
        )
        self.timeout_max_seconds = gauge(
            "transaction_timeout_max_seconds", "The setting transactions.timeout_ms_max."
        )
        self._records = gauge(
            "topic_undecided_records_max",
            "Replicated records that readers of committed records do not see yet, because a "
            "transaction is open or has just ended: in the led partition with the most, by topic. "
            "Absent where no transaction was seen.",
            "topic",
        )
        self._topic_labels = topic_labels
        self._topics: set[str] = set()

    def on_known(self, known: KnownTransactions) -> None:
        """Show what the coordinators here know."""
        self._ids.set(known.ids)
        self._open.set(known.open)
        self._open_seconds.set(known.open_ms / 1000)
        self._shared_seconds.set(known.shared_ms / 1000)
        self._owed.set(known.owed)
        self._owed_seconds.set(known.owed_ms / 1000)
        self._left.set(known.left)

    def on_decided(self, ended: Ended) -> None:
        """Count a decision."""
        if ended.is_commit:
            self._committed.inc()
        else:
            self._aborted.labels(_REASONS[ended.ending]).inc()

    def on_undecided(self, counts: UndecidedCounts) -> None:
        """Show what is undecided in the partitions that this broker leads."""
        self._undecided.set(counts.open)
        self._undecided_seconds.set(counts.open_ms / 1000)
        self._hanging.set(counts.hanging)
        most: dict[str, int] = {}
        for topic, records in counts.records.items():
            label = self._topic_labels.label(topic)
            # A topic without transactions has no series; one that had some keeps its.
            if records or label in self._topics:
                most[label] = max(records, most.get(label, 0))
        for label in self._topics - most.keys():
            self._records.remove(label)
        self._topics = set(most)
        for label, records in most.items():
            self._records.labels(label).set(records)
