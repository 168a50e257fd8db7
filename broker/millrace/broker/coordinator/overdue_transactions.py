"""Which open transactions are open for too long (P53), and the leases of those with participants.

A transaction is as old as its record says, or as this coordinator has seen it, whichever is more:
the clock of the coordinator before may have been fast, and its transactions would stay open for as
much longer. For a lease only the latter counts (T23). Nobody stores when it was renewed, so the
next coordinator starts it again. A lease starts when the first participant joins. No reader waits
before that, and the tasks of an application may start long after it has opened the transaction.
"""

from millrace.core.coordinator.transactions.machine import TransactionCoordinator
from millrace.core.coordinator.transactions.transaction import Transaction
from millrace.core.ids import MonotonicMs, TopicPartition, WallMs
from millrace.runtime.clock import monotonic_now


class OverdueTransactions:
    """What this broker's coordinators have seen open.

    Args:
        lease_ms_max: how long a transaction is open, however often its lease is renewed.
    """

    def __init__(self, lease_ms_max: int) -> None:
        self._lease_ms_max = lease_ms_max
        # With the time at which it was seen first, or renewed.
        self._seen: dict[TopicPartition, dict[str, tuple[Transaction, MonotonicMs]]] = {}

    def renew(self, place: TopicPartition, transactional_id: str) -> None:
        """Start the lease of an open transaction again."""
        seen = self._seen.get(place, {})
        if transactional_id in seen:
            transaction, _ = seen[transactional_id]
            seen[transactional_id] = transaction, monotonic_now()

    def forget(self, place: TopicPartition) -> None:
        """Forget what was seen in a partition: this broker does not coordinate it any more."""
        self._seen.pop(place, None)

    def look(
        self, place: TopicPartition, machine: TransactionCoordinator, now: WallMs
    ) -> list[tuple[str, Transaction]]:
        """Return the ids of a partition whose transaction is open for too long.

        Args:
            place: the partition.
            machine: its coordinator.
            now: the coordinators' time.
        """
        seen = self._seen.pop(place, {})
        present = self._seen[place] = {}
        overdue = []
        for transactional_id in machine.open_ids():
            transaction = machine.get(transactional_id).transaction
            assert transaction is not None
            is_shared = transaction.shared is not None
            has_begun = not is_shared or machine.has_participants(transactional_id)
            before, since = seen.get(transactional_id, (None, monotonic_now()))
            if before != transaction or not has_begun:
                since = monotonic_now()
            present[transactional_id] = transaction, since
            open_ms, seen_ms = now - transaction.began_at, monotonic_now() - since
            if is_shared:
                is_overdue = seen_ms > transaction.timeout_ms or open_ms > self._lease_ms_max
            else:
                is_overdue = max(open_ms, seen_ms) > transaction.timeout_ms
            if is_overdue:
                overdue.append((transactional_id, transaction))
        return overdue
