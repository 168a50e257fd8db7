"""Shows what coordinators know of transactions: decisions, those not told, and their age.

A decision is counted when it is committed: by its coordinator, once. What a coordinator takes over
from another one was counted there.

A transaction that is aborted by time or by another producer has a line in the log, as its producer
may not live to say so; what a person aborts is in the audit log. Decisions that have not reached
their participants for a minute have one line a minute, which names the oldest, and another line
when all are told.
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final

from millrace.broker import events
from millrace.broker.coordinator.marker_delivery import Participant
from millrace.broker.telemetry.transactions import TransactionMetrics
from millrace.core.coordinator.transactions.kept_transactions import (
    KeptTransactions,
    KnownTransactions,
)
from millrace.core.coordinator.transactions.records import IdRecord
from millrace.core.coordinator.transactions.transaction import Ending
from millrace.core.ids import TopicPartition, WallMs

_log = logging.getLogger(__name__)

LONG_MS: Final = 60_000
"""For so long a decision may be on its way before the log says so, and then that much between two
lines: longer than an election takes."""


class TransactionWatch:
    """Counts and logs for one broker. It belongs to the event loop.

    Args:
        metrics: what is shown.
        named: returns the name of a partition, for people.
    """

    def __init__(self, metrics: TransactionMetrics, named: Callable[[TopicPartition], str]) -> None:
        self._metrics = metrics
        self._named = named
        self._said_at: WallMs | None = None  # When the log said last what is owed.

    def on_decided(self, record: IdRecord) -> None:
        """Count a decision that is committed."""
        transaction = record.transaction
        assert transaction is not None
        ended = transaction.ended
        assert ended is not None
        self._metrics.on_decided(ended)
        if ended.ending is Ending.TIMEOUT:
            events.TRANSACTION_TIMED_OUT.log(
                _log,
                transactional_id=record.transactional_id,
                producer_id=ended.writer.producer_id,
                timeout_ms=transaction.timeout_ms,
            )
        elif ended.ending is Ending.FENCED:
            events.TRANSACTION_FENCED.log(
                _log,
                transactional_id=record.transactional_id,
                producer_id=ended.writer.producer_id,
            )

    def look(
        self,
        machines: Iterable[tuple[TopicPartition, KeptTransactions]],
        owed: Callable[[TopicPartition, str], dict[Participant, str] | None],
        now: WallMs,
    ) -> None:
        """Show what the coordinators here know.

        Args:
            machines: the loaded ones, by partition.
            owed: returns who must still be told the decision of an id, and why it is not told.
            now: the coordinators' time.
        """
        known = KnownTransactions()
        late: list[tuple[TopicPartition, IdRecord]] = []
        for place, machine in machines:
            here = machine.known(now)
            known |= here
            if here.owed_ms > LONG_MS:
                late += ((place, record) for record in machine.owed_since(WallMs(now - LONG_MS)))
        self._metrics.on_known(known)
        if late:
            self._say_late(late, owed, now)
        elif self._said_at is not None:
            self._said_at = None
            events.MARKERS_WRITTEN.log(_log)

    def _say_late(
        self,
        late: list[tuple[TopicPartition, IdRecord]],
        owed: Callable[[TopicPartition, str], dict[Participant, str] | None],
        now: WallMs,
    ) -> None:
        if self._said_at is not None and now - self._said_at < LONG_MS:
            return
        self._said_at = now
        place, oldest = min(late, key=lambda item: item[1].timestamp)
        waited_for = owed(place, oldest.transactional_id) or {}
        participant, problem = next(iter(waited_for.items()), ("", ""))
        events.MARKERS_OWED.log(
            _log,
            transactions=len(late),
            transactional_id=oldest.transactional_id,
            duration_ms=now - oldest.timestamp,
            participant=participant if isinstance(participant, str) else self._named(participant),
            problem=problem,
        )
